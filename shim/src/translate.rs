//! What a spec leaves to Linux, in words that runsc knows, or refused.

use oci_spec::runtime::{LinuxNamespaceType, Spec};

use crate::error::{Error, Result};

/// Where the kernel has the host's name.
pub const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Rewrites `spec` for a sandbox on a host that is called `host_name`:
///
/// - `rro` becomes `ro`. In the sandbox a bind mount is one file system, whatever
///   is mounted below its source on the host, so a read-only one is read-only
///   throughout; `rro` itself runsc would take for the file system's.
/// - Without a hostname it is the host's, as in a fresh UTS namespace of Linux;
///   the sandbox's would be empty.
///
/// # Errors
/// [`Error::InvalidArgument`] for a name of its own in the host's UTS namespace,
/// which runc refuses too; and for a mount whose own mounts are to appear on the
/// host (`shared`, `rshared`): those of a sandbox are its kernel's alone, and
/// runsc would make it private without a word.
pub fn translate(spec: &mut Spec, host_name: &str) -> Result<()> {
    for mount in spec.mounts_mut().iter_mut().flatten() {
        let destination = mount.destination().display().to_string();
        for option in mount.options_mut().iter_mut().flatten() {
            match option.as_str() {
                "rro" => "ro".clone_into(option),
                "shared" | "rshared" => {
                    return Err(Error::InvalidArgument(format!(
                        "mount {destination}: {option} (bidirectional) propagation cannot be had: \
                         what is mounted in a gVisor sandbox does not reach the host; use rslave \
                         (host-to-container) or rprivate"
                    )));
                }
                _ => {}
            }
        }
    }
    match spec.hostname().as_deref().filter(|name| !name.is_empty()) {
        None => {
            spec.set_hostname(Some(host_name.to_owned()));
        }
        Some(name) if name != host_name && !has_uts_namespace(spec) => {
            return Err(Error::InvalidArgument(format!(
                "hostname {name:?} cannot be set without a UTS namespace: the spec shares the \
                 host's, so leave hostname empty"
            )));
        }
        Some(_) => {}
    }
    Ok(())
}

fn has_uts_namespace(spec: &Spec) -> bool {
    let linux = spec.linux().as_ref();
    let namespaces = linux.and_then(|linux| linux.namespaces().as_ref());
    namespaces
        .into_iter()
        .flatten()
        .any(|namespace| namespace.typ() == LinuxNamespaceType::Uts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: serde_json::Value) -> Spec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn recursive_read_only_is_read_only() {
        let mut spec = spec(serde_json::json!({
            "ociVersion": "1.0.2",
            "mounts": [
                {"destination": "/a", "options": ["rbind", "rro", "rprivate"]},
                {"destination": "/b", "options": ["ro", "nosuid"]},
                {"destination": "/c"},
            ],
        }));
        translate(&mut spec, "host").unwrap();
        let options: Vec<_> = spec
            .mounts()
            .iter()
            .flatten()
            .map(|mount| mount.options().clone().unwrap_or_default().join(","))
            .collect();
        assert_eq!(options, ["rbind,ro,rprivate", "ro,nosuid", ""]);
    }

    #[test]
    fn mounts_that_should_reach_the_host_are_refused_by_name() {
        for (option, refused) in [
            ("private", false),
            ("rprivate", false),
            ("slave", false),
            ("rslave", false),
            ("shared", true),
            ("rshared", true),
        ] {
            let mut spec = spec(serde_json::json!({
                "ociVersion": "1.0.2",
                "mounts": [{"destination": "/csi", "options": ["rbind", option]}],
            }));
            let translated = translate(&mut spec, "host").map_err(|error| error.to_string());
            assert_eq!(translated.is_err(), refused, "{option}: {translated:?}");
            if let Err(text) = translated {
                assert!(
                    text.contains("mount /csi: ") && text.contains(option),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn names_by_namespace() {
        for (hostname, own_namespace, expected) in [
            ("", true, Some("host")),
            ("", false, Some("host")),
            ("guest", true, Some("guest")),
            ("host", false, Some("host")),
            ("guest", false, None),
        ] {
            let kind = if own_namespace { "uts" } else { "pid" };
            let mut spec = spec(serde_json::json!({
                "ociVersion": "1.0.2",
                "hostname": hostname,
                "linux": {"namespaces": [{"type": kind}]},
            }));
            let translated = translate(&mut spec, "host");
            assert_eq!(translated.is_ok(), expected.is_some(), "{hostname:?}");
            if expected.is_some() {
                assert_eq!(spec.hostname().as_deref(), expected, "{hostname:?}");
            }
        }
    }
}
