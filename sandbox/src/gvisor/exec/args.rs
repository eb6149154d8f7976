//! How the sentry is asked to run a further process: OCI process to call argument.

use oci_spec::runtime::{Capabilities, LinuxCapabilities, Process};
use serde::Serialize;

/// The argument of `containerManager.ExecuteAsync`; field names are the sentry's.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExecArgs {
    argv: Vec<String>,
    envv: Vec<String>,
    wd: String,
    #[serde(rename = "KUID")]
    uid: u32,
    #[serde(rename = "KGID")]
    gid: u32,
    #[serde(rename = "ExtraKGIDs")]
    groups: Vec<u32>,
    #[serde(rename = "NoNewPrivileges")]
    no_new_privileges: bool,
    #[serde(rename = "Capabilities")]
    capabilities: TaskCapabilities,
    #[serde(rename = "StdioIsPty")]
    stdio_is_pty: bool,
    #[serde(rename = "SupportTTYs")]
    support_ttys: bool,
    /// Which guest descriptor each descriptor of the call becomes.
    #[serde(rename = "GuestFDs")]
    guest_fds: [i32; 3],
    #[serde(rename = "ContainerID")]
    container: String,
}

/// Bit n is capability number n.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct TaskCapabilities {
    permitted_caps: u64,
    inheritable_caps: u64,
    effective_caps: u64,
    bounding_caps: u64,
    ambient_caps: u64,
}

impl ExecArgs {
    /// The call for `process`; `of_container` are the capabilities it has if it
    /// says nothing of them. CAP_NET_RAW goes unless `net_raw`, as for an init.
    pub(crate) fn new(
        container: &str,
        process: &Process,
        of_container: Option<&LinuxCapabilities>,
        net_raw: bool,
        terminal: bool,
    ) -> Self {
        let capabilities = process.capabilities().as_ref().or(of_container);
        Self {
            argv: process.args().clone().unwrap_or_default(),
            envv: process.env().clone().unwrap_or_default(),
            wd: process.cwd().display().to_string(),
            uid: process.user().uid(),
            gid: process.user().gid(),
            groups: process.user().additional_gids().clone().unwrap_or_default(),
            no_new_privileges: process.no_new_privileges().unwrap_or_default(),
            capabilities: capabilities
                .map(|all| masks(all, net_raw))
                .unwrap_or_default(),
            stdio_is_pty: terminal,
            support_ttys: true,
            guest_fds: [0, 1, 2],
            container: container.to_owned(),
        }
    }
}

fn masks(capabilities: &LinuxCapabilities, net_raw: bool) -> TaskCapabilities {
    let mask = |set: &Option<Capabilities>| {
        set.iter().flatten().fold(0, |mask, capability| {
            let name = capability.to_string();
            match NAMES.iter().position(|known| *known == name) {
                Some(number) if net_raw || name != "NET_RAW" => mask | 1 << number,
                Some(_) | None => mask,
            }
        })
    };
    TaskCapabilities {
        permitted_caps: mask(capabilities.permitted()),
        inheritable_caps: mask(capabilities.inheritable()),
        effective_caps: mask(capabilities.effective()),
        bounding_caps: mask(capabilities.bounding()),
        ambient_caps: mask(capabilities.ambient()),
    }
}

/// The capabilities in the order of their numbers (`linux/capability.h`).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(value: serde_json::Value) -> Process {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_capability_of_the_spec_has_its_number() {
        for (number, name) in NAMES.iter().enumerate() {
            let spec = json!({"permitted": [format!("CAP_{name}")]});
            let set: LinuxCapabilities = serde_json::from_value(spec).unwrap();
            assert_eq!(masks(&set, true).permitted_caps, 1 << number, "{name}");
        }
    }

    #[test]
    fn a_process_becomes_a_call() {
        let process = process(json!({
            "user": {"uid": 1, "gid": 2, "additionalGids": [3, 4]},
            "args": ["id", "-u"], "env": ["A=b"], "cwd": "/tmp", "noNewPrivileges": true,
            "capabilities": {"bounding": ["CAP_CHOWN", "CAP_NET_RAW"], "effective": ["CAP_KILL"]},
        }));
        let args = ExecArgs::new("c1", &process, None, false, true);
        assert_eq!(
            serde_json::to_value(args).unwrap(),
            json!({
                "argv": ["id", "-u"], "envv": ["A=b"], "wd": "/tmp", "KUID": 1, "KGID": 2,
                "ExtraKGIDs": [3, 4], "NoNewPrivileges": true, "StdioIsPty": true,
                "SupportTTYs": true, "GuestFDs": [0, 1, 2], "ContainerID": "c1",
                "Capabilities": {"PermittedCaps": 0, "InheritableCaps": 0, "EffectiveCaps": 32,
                    "BoundingCaps": 1, "AmbientCaps": 0},
            })
        );
    }

    #[test]
    fn capabilities_fall_back_to_those_of_the_container() {
        let plain = process(json!({"user": {}, "args": ["id"], "cwd": "/"}));
        let container: LinuxCapabilities =
            serde_json::from_value(json!({"bounding": ["CAP_NET_RAW"]})).unwrap();
        let bounding = |net_raw| {
            ExecArgs::new("c", &plain, Some(&container), net_raw, false)
                .capabilities
                .bounding_caps
        };
        assert_eq!((bounding(true), bounding(false)), (1 << 13, 0));
    }
}
