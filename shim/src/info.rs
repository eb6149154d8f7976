//! `-info` and `-v`: what this runtime is.

use std::io::Write as _;

use protos::info::{RuntimeInfo, RuntimeVersion};
use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::{Message as _, MessageField};

use crate::error::{Error, Result};

/// The runtime's name towards containerd.
pub const RUNTIME: &str = "io.containerd.rampart.v2";

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints `RuntimeInfo` as protobuf. containerd 2.2 and later asks before it
/// creates a task, until it gets an answer once.
///
/// # Errors
/// Stdout cannot be written.
pub fn print_info() -> Result<()> {
    let bytes = runtime_info()
        .write_to_bytes()
        .map_err(|source| Error::Message {
            what: "encode RuntimeInfo".into(),
            source,
        })?;
    write(&bytes)
}

/// Prints name and version, for people.
///
/// # Errors
/// Stdout cannot be written.
pub fn print_version() -> Result<()> {
    write(format!("containerd-shim-rampart-v2 ({RUNTIME})\n  Version: {VERSION}\n").as_bytes())
}

fn runtime_info() -> RuntimeInfo {
    let mut info = RuntimeInfo::new();
    info.name = RUNTIME.into();
    let version = RuntimeVersion {
        version: VERSION.into(),
        ..RuntimeVersion::default()
    };
    info.version = MessageField::some(version);
    // The OCI features document (runtime-spec features.md): what gVisor does
    // with a spec. containerd reads mountOptions before it uses recursive
    // read-only mounts (see `translate`), and idmap mounts, which gVisor does not
    // have.
    let features = serde_json::json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.2.0",
        "mountOptions": [
            "async", "atime", "bind", "defaults", "dev", "exec", "noatime", "nodev", "noexec",
            "nosuid", "private", "rbind", "ro", "rprivate", "rro", "rslave", "rw", "slave", "suid",
            "sync",
        ],
        "linux": {
            "namespaces": ["ipc", "mount", "network", "pid", "user", "uts"],
            "cgroup": { "v1": true, "v2": true, "systemd": true, "rdma": true },
            "apparmor": { "enabled": false },
            "selinux": { "enabled": false },
        },
    });
    let any = Any {
        type_url: "types.containerd.io/opencontainers/runtime-spec/1/features/Features".into(),
        value: features.to_string().into_bytes(),
        ..Any::default()
    };
    info.features = MessageField::some(any);
    info
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(Error::system("write to stdout"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_decodes_and_its_features_are_json() {
        let bytes = runtime_info().write_to_bytes().unwrap();
        let info = RuntimeInfo::parse_from_bytes(&bytes).unwrap();
        assert_eq!(info.name, RUNTIME);
        let features: serde_json::Value = serde_json::from_slice(&info.features.value).unwrap();
        assert!(
            features["mountOptions"]
                .as_array()
                .unwrap()
                .contains(&"rbind".into())
        );
    }
}
