//! The bundle: the directory in which containerd hands a task over, and what
//! its `config.json` says about the pod.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use oci_spec::runtime::Spec;

use crate::error::{Error, Result};
use crate::{program, wire};

/// What a container is to its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It is the sandbox: a pod's first container, or a container of its own.
    Root,
    /// It joins the sandbox with this id.
    Member {
        /// Id of the sandbox container.
        sandbox: String,
    },
}

/// Loads the OCI spec of the bundle.
///
/// # Errors
/// The file cannot be read or understood; it is named.
pub fn load(bundle: &Path) -> Result<Spec> {
    let path = bundle.join("config.json");
    let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
        // The caller has named the wrong bundle.
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Error::InvalidArgument(format!("load {}: {source}", path.display()))
        }
        _ => Error::file("read", &path)(source),
    })?;
    wire::json_object(&bytes, &format!("load {}", path.display()))
}

/// Refuses a spec that no sandbox can run, whatever else is in it.
///
/// # Errors
/// [`Error::InvalidArgument`] names the field.
pub fn check(spec: &Spec) -> Result<()> {
    let fault = |text: String| Err(Error::InvalidArgument(format!("config.json: {text}")));
    let Some(process) = spec.process() else {
        return fault("process is missing".into());
    };
    if let Err(reason) = program::first_argument(process) {
        return fault(format!("process.args {reason}"));
    }
    match spec.root() {
        None => fault("root is missing".into()),
        Some(root) if root.path().as_os_str().is_empty() => fault("root.path is missing".into()),
        Some(_) => Ok(()),
    }
}

/// An annotation of a spec: the first of `keys` that it has.
pub fn annotation<'a>(spec: &'a Spec, keys: &[&str]) -> Option<&'a str> {
    let annotations = spec.annotations().as_ref()?;
    keys.iter()
        .find_map(|key| annotations.get(*key))
        .map(String::as_str)
}

/// Reads the role from the annotations of containerd's CRI plugin, or of
/// CRI-O. A container without them is its own sandbox, as with `ctr run` and
/// Docker.
///
/// # Errors
/// A member that does not say of which sandbox, or an unknown type.
pub fn role(spec: &Spec) -> Result<Role> {
    let kind = annotation(
        spec,
        &[
            "io.kubernetes.cri.container-type",
            "io.kubernetes.cri-o.ContainerType",
        ],
    );
    match kind {
        None | Some("sandbox") => Ok(Role::Root),
        Some("container") => {
            let sandbox = annotation(
                spec,
                &[
                    "io.kubernetes.cri.sandbox-id",
                    "io.kubernetes.cri-o.SandboxID",
                ],
            );
            let Some(sandbox) = sandbox else {
                return Err(Error::InvalidArgument(
                    "the container's annotations say that it belongs to a pod, but not to which: io.kubernetes.cri.sandbox-id is missing".into(),
                ));
            };
            Ok(Role::Member {
                sandbox: sandbox.to_owned(),
            })
        }
        Some(other) => Err(Error::InvalidArgument(format!(
            "annotation io.kubernetes.cri.container-type is {other:?}; known are sandbox and container"
        ))),
    }
}

/// The key by which tasks share one shim (containerd
/// cmd/containerd-shim-runc-v2/manager): the group annotation, else the pod,
/// else the task alone.
///
/// # Errors
/// The bundle's `config.json` cannot be read or understood.
pub fn group(bundle: &Path, id: &str) -> Result<String> {
    #[derive(serde::Deserialize)]
    struct Annotated {
        #[serde(default)]
        annotations: Option<HashMap<String, String>>,
    }
    let path = bundle.join("config.json");
    let bytes = std::fs::read(&path).map_err(Error::file("read", &path))?;
    let spec: Annotated = wire::json_object(&bytes, &format!("parse {}", path.display()))?;
    let annotations = spec.annotations.unwrap_or_default();
    Ok([
        "io.containerd.runc.v2.group",
        "io.kubernetes.cri.sandbox-id",
        "io.kubernetes.cri-o.SandboxID",
    ]
    .into_iter()
    .find_map(|key| annotations.get(key).filter(|value| !value.is_empty()))
    .cloned()
    .unwrap_or_else(|| id.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;
    use crate::{limits, sections, translate};

    use super::*;

    fn spec(annotations: &[(&str, &str)]) -> Spec {
        let mut spec = Spec::default();
        let map = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        spec.set_annotations(Some(map));
        spec
    }

    #[test]
    fn roles_follow_the_annotations() {
        assert_eq!(role(&spec(&[])).unwrap(), Role::Root);
        assert_eq!(
            role(&spec(&[("io.kubernetes.cri.container-type", "sandbox")])).unwrap(),
            Role::Root
        );
        for (kind, id) in [
            (
                "io.kubernetes.cri.container-type",
                "io.kubernetes.cri.sandbox-id",
            ),
            (
                "io.kubernetes.cri-o.ContainerType",
                "io.kubernetes.cri-o.SandboxID",
            ),
        ] {
            assert_eq!(
                role(&spec(&[(kind, "container"), (id, "pod")])).unwrap(),
                Role::Member {
                    sandbox: "pod".into()
                }
            );
        }
        assert!(role(&spec(&[("io.kubernetes.cri.container-type", "container")])).is_err());
        assert!(role(&spec(&[("io.kubernetes.cri.container-type", "other")])).is_err());
    }

    #[test]
    fn the_group_is_the_annotated_one_else_the_pod_else_the_task() {
        let directory = tempfile::tempdir().unwrap();
        let group_of = |json: &str| {
            std::fs::write(directory.path().join("config.json"), json).unwrap();
            group(directory.path(), "task").map_err(|error| error.to_string())
        };
        assert!(group(directory.path(), "task").is_err());
        assert!(group_of("{").unwrap_err().contains("config.json"));
        assert_eq!(group_of("{}").unwrap(), "task");
        assert_eq!(group_of(r#"{"annotations":null}"#).unwrap(), "task");
        assert_eq!(
            group_of(r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"p"}}"#).unwrap(),
            "p"
        );
        assert_eq!(
            group_of(
                r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"p","io.containerd.runc.v2.group":"g"}}"#
            )
            .unwrap(),
            "g"
        );
    }

    const SAMPLE: &[u8] = br#"{"ociVersion":"1.0.2","process":{"args":["sh"],"cwd":"/","env":["PATH=/bin"],
        "user":{"uid":0,"gid":0},"rlimits":[{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]},
        "root":{"path":"rootfs"},"hostname":"h","mounts":[{"destination":"/proc","type":"proc","source":"proc"}],
        "annotations":{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-id":"p",
        "io.kubernetes.cri.sandbox-memory":"33554432"},"linux":{"cgroupsPath":"a.slice:b:c",
        "resources":{"memory":{"limit":33554432},"cpu":{"shares":512,"quota":1000,"cpus":"0-1"}},
        "devices":[{"path":"/dev/x","type":"c","major":1,"minor":3}],"namespaces":[{"type":"network"}]}}"#;

    #[test]
    fn the_sample_is_right() {
        let spec: Spec = wire::json_object(SAMPLE, "load it").unwrap();
        check(&spec).unwrap();
        assert_eq!(
            role(&spec).unwrap(),
            Role::Member {
                sandbox: "p".into()
            }
        );
    }

    proptest! {
        #[test]
        fn any_config_json_is_understood_or_refused(bytes in damaged(SAMPLE)) {
            match wire::json_object::<Spec>(&bytes, "load it") {
                Err(error) => prop_assert_eq!(error.code(), protos::ttrpc::Code::INVALID_ARGUMENT),
                Ok(mut spec) => {
                    if check(&spec).is_ok() {
                        prop_assert!(!spec.root().as_ref().unwrap().path().as_os_str().is_empty());
                    }
                    for refusal in [
                        role(&spec).err(),
                        limits::of_spec(&spec).err(),
                        sections::check(&spec, "c").err(),
                        translate::translate(&mut spec, "host").err(),
                    ].into_iter().flatten() {
                        prop_assert_eq!(refusal.code(), protos::ttrpc::Code::INVALID_ARGUMENT, "{}", refusal);
                    }
                }
            }
        }
    }
}
