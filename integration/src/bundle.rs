//! A bundle as containerd leaves it for the shim: `config.json`, `rootfs`, `log`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::host::Host;
use crate::tools;

/// Where a bundle of `id` is within the test's directory.
pub fn path(host: &Host, namespace: &str, id: &str) -> PathBuf {
    host.directory().join("bundles").join(namespace).join(id)
}

/// Makes the bundle of container `id`, which runs `program` of busybox.
///
/// `more` is put over the members of the configuration.
pub fn make(
    host: &Host,
    namespace: &str,
    id: &str,
    program: &[&str],
    more: &[(&str, Value)],
) -> PathBuf {
    let bundle = path(host, namespace, id);
    let rootfs = bundle.join("rootfs");
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir_all(rootfs.join(folder)).expect("make a folder of the bundle");
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| {
            panic!(
                "busybox is missing ({:?}): make tools",
                tools::tool("busybox")
            )
        });
    fs::copy(busybox, rootfs.join("bin/busybox")).expect("copy busybox");
    for applet in [
        "cat", "echo", "env", "false", "head", "id", "ls", "ps", "sh", "sleep", "true",
    ] {
        symlink("busybox", rootfs.join("bin").join(applet)).expect("link busybox");
    }
    mkfifo(&bundle.join("log"), Mode::S_IRUSR | Mode::S_IWUSR).expect("make the log fifo");

    let mut spec = json!({
        "ociVersion": "1.0.2",
        "process": {
            "args": program,
            "cwd": "/",
            "env": ["PATH=/bin"],
            "user": { "uid": 0, "gid": 0 },
        },
        "root": { "path": "rootfs" },
        "hostname": "tested",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
        ],
        "linux": {
            "cgroupsPath": format!("/{}/{id}", host.name()),
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "mount" }, { "type": "network" },
            ],
        },
    });
    for (key, value) in more {
        spec[*key] = value.clone();
    }
    fs::write(bundle.join("config.json"), spec.to_string()).expect("write config.json");
    bundle
}
