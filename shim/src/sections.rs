//! What a spec asks of the host's kernel and a gVisor sandbox cannot give: refused,
//! or said in the log, but never dropped without a word.
//!
//! docs/configuration.md has the same rules for users.

use oci_spec::runtime::{LinuxNamespaceType, Process, Spec};

use crate::error::{Error, Result};

/// The AppArmor profiles that containerd and Docker give to every container of a
/// host with AppArmor: nobody asked for them.
const GIVEN_PROFILES: [&str; 3] = ["cri-containerd.apparmor.d", "docker-default", "unconfined"];

/// Refuses what would change what the container is or may do, and logs the rest.
///
/// # Errors
/// [`Error::InvalidArgument`] names the field, why, and what to do.
pub fn check(spec: &Spec, id: &str) -> Result<()> {
    if let Some(refusal) = refused(spec) {
        return Err(Error::InvalidArgument(format!(
            "the spec of {id} cannot be run in gVisor: {refusal}"
        )));
    }
    for text in ignored(spec) {
        log::warn!("{id}: {text}");
    }
    Ok(())
}

fn refused(spec: &Spec) -> Option<String> {
    let profile = spec.process().as_ref().and_then(profile);
    if let Some(profile) = profile.filter(|profile| !GIVEN_PROFILES.contains(profile)) {
        return Some(format!(
            "process.apparmorProfile: {profile:?} would confine nothing, for the host's kernel \
             does not see what the container does; leave the profile out"
        ));
    }
    let sysctl = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.sysctl().as_ref());
    let mut unknown: Vec<_> = sysctl
        .into_iter()
        .flatten()
        .filter(|(name, value)| !holds(name, value))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    unknown.sort();
    (!unknown.is_empty()).then(|| {
        format!(
            "linux.sysctl: {} cannot be set in the sandbox's kernel; leave it out",
            unknown.join(", ")
        )
    })
}

/// Whether a setting is so in the sandbox: always, or because runsc sees to it.
fn holds(name: &str, value: &str) -> bool {
    match name {
        // runsc reads these of the first container's spec.
        "fs.nr_open" | "net.ipv6.conf.all.disable_ipv6" => true,
        // gVisor asks for no capability to bind a low port.
        "net.ipv4.ip_unprivileged_port_start" => value == "0",
        // Nor for a group to send pings. Containerd gives the whole range.
        "net.ipv4.ping_group_range" => value.split_whitespace().next() == Some("0"),
        _ => false,
    }
}

fn ignored(spec: &Spec) -> Vec<String> {
    let mut texts = Vec::new();
    let process = spec.process().as_ref();
    if let Some(profile) = process.and_then(profile).filter(|one| *one != "unconfined") {
        texts.push(format!(
            "process.apparmorProfile {profile:?} is not loaded: the container never reaches the host's kernel"
        ));
    }
    let linux = spec.linux().as_ref();
    let namespaces = linux.and_then(|linux| linux.namespaces().as_ref());
    let has = |kind| namespaces.is_some_and(|all| all.iter().any(|one| one.typ() == kind));
    if !has(LinuxNamespaceType::Pid) {
        texts.push(
            "without a PID namespace of its own it sees the processes of its sandbox, not the host's"
                .to_owned(),
        );
    }
    if !has(LinuxNamespaceType::Ipc) {
        texts.push(
            "without an IPC namespace of its own it sees the IPC objects of its sandbox, not the host's"
                .to_owned(),
        );
    }
    for (field, there) in [
        (
            "process.scheduler",
            process.is_some_and(|one| one.scheduler().is_some()),
        ),
        (
            "process.ioPriority",
            process.is_some_and(|one| one.io_priority().is_some()),
        ),
        (
            "process.execCPUAffinity",
            process.is_some_and(|one| one.exec_cpu_affinity().is_some()),
        ),
        (
            "linux.intelRdt",
            linux.is_some_and(|one| one.intel_rdt().is_some()),
        ),
        (
            "linux.memoryPolicy",
            linux.is_some_and(|one| one.memory_policy().is_some()),
        ),
        (
            "linux.netDevices",
            linux.is_some_and(|one| one.net_devices().is_some()),
        ),
        (
            "linux.personality",
            linux.is_some_and(|one| one.personality().is_some()),
        ),
        (
            "linux.timeOffsets",
            linux.is_some_and(|one| one.time_offsets().is_some()),
        ),
    ] {
        if there {
            texts.push(format!("{field} has no effect: gVisor has nothing like it"));
        }
    }
    texts
}

fn profile(process: &Process) -> Option<&str> {
    let profile = process.apparmor_profile().as_deref();
    profile.filter(|profile| !profile.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(pointer: &str, value: Value) -> Spec {
        let mut spec = json!({
            "ociVersion": "1.2.0",
            "process": {"args": ["sh"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}]},
        });
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_is_impossible_is_refused_by_name() {
        for (pointer, value, named) in [
            (
                "/linux/sysctl",
                json!({"kernel.shm_rmid_forced": "1"}),
                "kernel.shm_rmid_forced=1",
            ),
            (
                "/linux/sysctl",
                json!({"net.core.somaxconn": "9", "fs.mqueue.msg_max": "1", "fs.nr_open": "9"}),
                "linux.sysctl: fs.mqueue.msg_max=1, net.core.somaxconn=9 cannot",
            ),
            (
                "/linux/sysctl",
                json!({"net.ipv4.ip_unprivileged_port_start": "1024"}),
                "=1024",
            ),
            (
                "/process/apparmorProfile",
                json!("mine"),
                "process.apparmorProfile: \"mine\"",
            ),
        ] {
            let error = check(&spec(pointer, value), "c").unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn what_containerd_always_gives_runs() {
        for (pointer, value) in [
            (
                "/linux/sysctl",
                json!({"net.ipv4.ip_unprivileged_port_start": "0",
                    "net.ipv4.ping_group_range": "0 2147483647"}),
            ),
            (
                "/process/apparmorProfile",
                json!("cri-containerd.apparmor.d"),
            ),
            ("/process/apparmorProfile", json!("unconfined")),
            ("/process/apparmorProfile", json!("")),
        ] {
            let spec = spec(pointer, value);
            assert!(check(&spec, "c").is_ok(), "{spec:?}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        for (pointer, value, said) in [
            (
                "/linux/namespaces",
                json!([{"type": "ipc"}]),
                "PID namespace",
            ),
            (
                "/linux/namespaces",
                json!([{"type": "pid"}]),
                "IPC namespace",
            ),
            (
                "/process/apparmorProfile",
                json!("docker-default"),
                "is not loaded",
            ),
            (
                "/process/ioPriority",
                json!({"class": "IOPRIO_CLASS_IDLE", "priority": 1}),
                "process.ioPriority",
            ),
            (
                "/linux/personality",
                json!({"domain": "LINUX32"}),
                "linux.personality",
            ),
            ("/linux/intelRdt", json!({"closID": "x"}), "linux.intelRdt"),
            (
                "/linux/timeOffsets",
                json!({"monotonic": {"secs": 1}}),
                "linux.timeOffsets",
            ),
        ] {
            let texts = ignored(&spec(pointer, value));
            assert!(
                texts.len() == 1 && texts[0].contains(said),
                "{said}: {texts:?}"
            );
        }
        let plain = ignored(&spec("/process/apparmorProfile", json!("unconfined")));
        assert_eq!(plain, Vec::<String>::new());
    }
}
