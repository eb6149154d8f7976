//! What is changed in a container's spec before runsc gets it.
//!
//! Pure functions: the bundle of the caller stays as it is, the result is
//! written to a directory of ours inside it.

use std::fs::{Metadata, metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxNamespaceType, Process, Spec};

use crate::config::Network;
use crate::error::{Error, Result};

/// By which annotation runsc tells the first container of a sandbox from the
/// others (set by containerd's CRI plugin).
pub const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
/// The annotation that names the sandbox of a further container.
pub const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";

/// What a spec is rewritten for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The container.
    pub id: &'a str,
    /// The sandbox; equal to `id` for its first container.
    pub sandbox_id: &'a str,
    /// Where `config.json` was; a relative root is relative to it.
    pub bundle: &'a Path,
    /// cgroup of the sandbox, below the mount.
    pub home: &'a Path,
    /// The lowest `oom_score_adj` this process may give, its own.
    pub oom_score_adj: i32,
}

/// The spec as runsc gets it.
///
/// # Errors
/// [`Error::Spec`] for what runsc would accept and then not run.
pub fn rewrite(spec: &Spec, place: Place<'_>) -> Result<Spec> {
    let mut spec = spec.clone();
    let invalid = |field, cause: &str| Error::Spec {
        id: place.id.to_owned(),
        field,
        cause: cause.to_owned(),
    };

    let process = spec
        .process_mut()
        .as_mut()
        .ok_or_else(|| invalid("process", "is missing"))?;
    check_process(place.id, process)?;
    // Lower than our own needs CAP_SYS_RESOURCE, and runsc fails for want of it
    // only after the guest runs.
    if let Some(score) = process.oom_score_adj() {
        process.set_oom_score_adj(Some(score.max(place.oom_score_adj)));
    }

    let root = spec
        .root_mut()
        .as_mut()
        .ok_or_else(|| invalid("root", "is missing"))?;
    let path = place.bundle.join(root.path());
    root.set_path(path);

    // The first container's path is the home of the sandbox, from which the
    // sentry also reads how much memory and how many CPUs the guest is shown.
    // Others are given none: runsc would make empty directories of it.
    let first = place.id == place.sandbox_id;
    let mut linux = spec.linux().clone().unwrap_or_default();
    linux.set_cgroups_path(first.then(|| place.home.to_path_buf()));
    spec.set_linux(Some(linux));

    let annotations = spec.annotations_mut().get_or_insert_default();
    if !first {
        annotations.insert(CONTAINER_TYPE.to_owned(), "container".to_owned());
        annotations.insert(SANDBOX_ID.to_owned(), place.sandbox_id.to_owned());
    } else if let Some(kind) = annotations.get_mut(CONTAINER_TYPE) {
        "sandbox".clone_into(kind);
    }
    Ok(spec)
}

/// Refuses what runsc would accept and run differently.
///
/// # Errors
/// [`Error::Spec`]: no arguments, or a working directory that is not absolute.
pub fn check_process(id: &str, process: &Process) -> Result<()> {
    let invalid = |field, cause: String| {
        Err(Error::Spec {
            id: id.to_owned(),
            field,
            cause,
        })
    };
    if process.args().as_ref().is_none_or(Vec::is_empty) {
        return invalid("process.args", "is empty".to_owned());
    }
    // The kernel's texts end at a zero byte; what is behind would be lost.
    let texts = [
        ("process.args", process.args()),
        ("process.env", process.env()),
    ];
    for (field, texts) in texts {
        if let Some(text) = texts.iter().flatten().find(|text| text.contains('\0')) {
            return invalid(field, format!("{text:?} holds a zero byte"));
        }
    }
    if !process.cwd().is_absolute() {
        let cwd = process.cwd().display();
        return invalid(
            "process.cwd",
            format!("{cwd:?} is not an absolute path", cwd = cwd.to_string()),
        );
    }
    Ok(())
}

/// The network a spec asks for: the host kernel's if it has no network namespace
/// of its own, else the sentry's.
#[must_use]
pub fn network(spec: &Spec) -> Network {
    let own = metadata("/proc/self/ns/net").ok();
    match network_namespace(spec) {
        NetworkNamespace::Hosts => Network::Host,
        NetworkNamespace::New => Network::Sandbox,
        NetworkNamespace::At(path) => {
            let same = |own: &Metadata, other: &Metadata| {
                (own.dev(), own.ino()) == (other.dev(), other.ino())
            };
            match (own, metadata(path)) {
                (Some(own), Ok(other)) if same(&own, &other) => Network::Host,
                _ => Network::Sandbox,
            }
        }
    }
}

/// Whether the container gets a network namespace that is made for it, empty.
#[must_use]
pub fn makes_network_namespace(spec: &Spec) -> bool {
    matches!(network_namespace(spec), NetworkNamespace::New)
}

enum NetworkNamespace {
    Hosts,
    New,
    At(PathBuf),
}

fn network_namespace(spec: &Spec) -> NetworkNamespace {
    let namespaces = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.namespaces().as_ref());
    let network = namespaces.and_then(|all| {
        all.iter()
            .find(|ns| ns.typ() == LinuxNamespaceType::Network)
    });
    match network.map(|ns| {
        ns.path()
            .clone()
            .filter(|path| !path.as_os_str().is_empty())
    }) {
        None => NetworkNamespace::Hosts,
        Some(None) => NetworkNamespace::New,
        Some(Some(path)) => NetworkNamespace::At(path),
    }
}

/// Whether a process of the sandbox whose first container this is may gain
/// privileges from a program's file: it itself, or, in a pod, one to come.
#[must_use]
pub fn may_gain_privileges(spec: &Spec) -> bool {
    let process = spec.process().as_ref();
    let no_new = process
        .and_then(Process::no_new_privileges)
        .unwrap_or(false);
    let annotations = spec.annotations().as_ref();
    !no_new || annotations.is_some_and(|all| all.contains_key(CONTAINER_TYPE))
}

/// Whether the guest of this spec sees a cgroup file system; then the sentry
/// counts the container's memory.
#[must_use]
pub fn mounts_cgroups(spec: &Spec) -> bool {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    mounts
        .iter()
        .any(|mount| mount.destination() == Path::new("/sys/fs/cgroup"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;
    use serde_json::{Value, json};

    fn spec(changes: &[(&str, Value)]) -> Spec {
        let mut value = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "cwd": "/", "oomScoreAdj": -998},
            "root": {"path": "rootfs"},
            "linux": {"cgroupsPath": "/from/containerd", "namespaces": [{"type": "network"}]},
        });
        for (pointer, new) in changes {
            *value.pointer_mut(pointer).unwrap() = new.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn place(id: &'static str) -> Place<'static> {
        Place {
            id,
            sandbox_id: "s",
            bundle: Path::new("/b"),
            home: Path::new("/pod/s"),
            oom_score_adj: -5,
        }
    }

    fn rewritten(spec: &Spec, id: &'static str) -> Value {
        serde_json::to_value(rewrite(spec, place(id)).unwrap()).unwrap()
    }

    #[test]
    fn first_container_gets_the_home_of_the_sandbox() {
        let value = rewritten(&spec(&[]), "s");
        assert_eq!(value["linux"]["cgroupsPath"], "/pod/s");
        assert_eq!(value["root"]["path"], "/b/rootfs");
        assert_eq!(value["process"]["oomScoreAdj"], -5);
        assert_eq!(
            value["annotations"],
            json!({}),
            "a plain container stays one"
        );
    }

    #[test]
    fn further_container_gets_no_cgroup_and_the_annotations() {
        let value = rewritten(&spec(&[("/root/path", json!("/abs"))]), "c");
        assert_eq!(value["linux"].get("cgroupsPath"), None);
        assert_eq!(value["root"]["path"], "/abs");
        assert_eq!(
            value["annotations"],
            json!({CONTAINER_TYPE: "container", SANDBOX_ID: "s"})
        );
    }

    #[test]
    fn a_score_that_is_allowed_is_kept() {
        let value = rewritten(&spec(&[("/process/oomScoreAdj", json!(1000))]), "s");
        assert_eq!(value["process"]["oomScoreAdj"], 1000);
    }

    #[test]
    fn what_runsc_would_run_differently_is_refused() {
        for (pointer, new, message) in [
            (
                "/process/cwd",
                json!("tmp"),
                "process.cwd: \"tmp\" is not an absolute path",
            ),
            (
                "/process/cwd",
                json!(""),
                "process.cwd: \"\" is not an absolute path",
            ),
            ("/process/args", json!([]), "process.args: is empty"),
            (
                "/process/args",
                json!(["sh", "a\0b"]),
                "process.args: \"a\\0b\" holds a zero byte",
            ),
            ("/process", json!(null), "process: is missing"),
            ("/root", json!(null), "root: is missing"),
        ] {
            let error = rewrite(&spec(&[(pointer, new)]), place("s"))
                .unwrap_err()
                .to_string();
            assert_eq!(error, format!("the spec of s cannot be run: {message}"));
        }
    }

    #[test]
    fn network_follows_the_namespace() {
        for (namespaces, network_is) in [
            (json!([]), Network::Host),
            (json!([{"type": "pid"}]), Network::Host),
            (
                json!([{"type": "network", "path": "/proc/self/ns/net"}]),
                Network::Host,
            ),
            (json!([{"type": "network"}]), Network::Sandbox),
            (json!([{"type": "network", "path": ""}]), Network::Sandbox),
            (
                json!([{"type": "network", "path": "/proc/self/ns/uts"}]),
                Network::Sandbox,
            ),
            (
                json!([{"type": "network", "path": "/nowhere"}]),
                Network::Sandbox,
            ),
        ] {
            let spec = spec(&[("/linux/namespaces", namespaces.clone())]);
            assert_eq!(network(&spec), network_is, "{namespaces}");
        }
    }

    #[test]
    fn only_a_lone_container_can_be_without_new_privileges_for_sure() {
        for (no_new, annotations, may) in [
            (json!(true), json!({}), false),
            (json!(false), json!({}), true),
            (json!(null), json!({}), true),
            (json!(true), json!({CONTAINER_TYPE: "sandbox"}), true),
            (json!(true), json!({"other": "x"}), false),
        ] {
            let process = json!({"args": ["sh"], "cwd": "/", "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": no_new});
            let mut spec = spec(&[("/process", process)]);
            spec.set_annotations(serde_json::from_value(annotations).unwrap());
            assert_eq!(may_gain_privileges(&spec), may, "{spec:?}");
        }
    }

    #[test]
    fn a_cgroup_mount_is_seen() {
        let mut with = spec(&[]);
        assert!(!mounts_cgroups(&with));
        let mount = json!([{"destination": "/sys/fs/cgroup", "type": "cgroup"}]);
        with.set_mounts(Some(serde_json::from_value(mount).unwrap()));
        assert!(mounts_cgroups(&with));
    }

    const SAMPLE: &[u8] =
        br#"{"ociVersion":"1.0.2","process":{"user":{"uid":0,"gid":0},"args":["sh"],
        "cwd":"/","oomScoreAdj":-998},"root":{"path":"rootfs"},"linux":{"cgroupsPath":"/x",
        "namespaces":[{"type":"network","path":"/n"}]}}"#;

    proptest! {
        #[test]
        fn any_spec_is_rewritten_or_refused(bytes in damaged(SAMPLE)) {
            if let Ok(spec) = serde_json::from_slice::<Spec>(&bytes) {
                let _looked_at = (network(&spec), mounts_cgroups(&spec));
                if let Ok(rewritten) = rewrite(&spec, place("s")) {
                    prop_assert!(rewritten.root().as_ref().unwrap().path().is_absolute());
                    let home = rewritten.linux().as_ref().unwrap().cgroups_path().clone();
                    prop_assert_eq!(home.as_deref(), Some(Path::new("/pod/s")));
                }
            }
        }
    }
}
