//! A real kubelet without an API server beside a private containerd: pods are
//! files in a directory, everything else is asked over the kubelet's own API.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::containerd::Containerd;
use crate::host::Host;
use crate::process::{self, Output, Process};
use crate::{cgroups, skip, tools, wait};

/// How long a pod may take to become what is waited for. The kubelet's own waits
/// come first: back-off of a restart, grace, the collector of removed pods.
pub const LIMIT: Duration = Duration::from_secs(150);

/// The name of the node, with which those of all pods end.
const NODE: &str = "node";

/// What the kubelet may look for in places of its own choice, and must not change
/// on the machine: kernel settings, logs, the socket that cAdvisor uses.
const SET_UP: &str = r#"
set -e
mkdir -p "$1/sysctl" "$1/manifests" "$1/plugins" /run/containerd
ln -s "$1/c.sock" /run/containerd/containerd.sock
mount -t tmpfs -o mode=755 varlog /var/log
while read -r name value; do
    file=$1/sysctl/$(basename "$name")
    echo "$value" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done <<SETTINGS
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS
"#;

/// A running kubelet; dropping it ends it, pods stay until their containerd goes.
#[derive(Debug)]
pub struct Kubelet<'a> {
    process: Process,
    containerd: &'a Containerd,
}

impl<'a> Kubelet<'a> {
    /// Starts one with the feature `gates` on and waits until it answers, or skips
    /// the test where none has been built.
    pub fn start(containerd: &'a Containerd, gates: &[&str]) -> Option<Self> {
        let program = tools::tool("kubelet");
        if !program.exists() {
            skip("the kubelet is not built: tools/install --kubelet");
            return None;
        }
        let host = containerd.host();
        let mut set_up = host.command("/bin/sh");
        set_up.args(["-c", SET_UP, "sh"]).arg(host.directory());
        process::run(&mut set_up, wait::LIMIT).ok();
        // All its cgroups are below this one, which it wants to find.
        for hierarchy in cgroups::hierarchies() {
            let path = hierarchy.join(host.name());
            fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let config = host.directory().join("kubelet.json");
        fs::write(&config, settings(host, containerd, gates).to_string())
            .expect("write the kubelet's configuration");
        let log = host.directory().join("kubelet.log");
        let log = File::create(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let mut command = host.command(program);
        command
            .arg("--config")
            .arg(&config)
            .arg("--root-dir")
            .arg(host.directory().join("kubelet"))
            .arg("--cert-dir")
            .arg(host.directory().join("pki"))
            .arg(format!("--hostname-override={NODE}"))
            .arg("-v=4")
            .stdout(Stdio::null())
            .stderr(log);
        let mut kubelet = Self {
            process: Process::spawn(&mut command),
            containerd,
        };
        wait::until("the kubelet to answer", || {
            if let Some(status) = kubelet.process.try_wait() {
                panic!("the kubelet ended, {status}:\n{}", kubelet.log());
            }
            kubelet.curl("healthz", &[]).stdout == "ok"
        });
        Some(kubelet)
    }

    /// Has the pod `name` run with `spec`; what a spec here always says is added.
    pub fn put(&self, name: &str, spec: Value) {
        self.put_with(name, json!({}), spec);
    }

    /// As [`Self::put`], with annotations.
    pub fn put_with(&self, name: &str, annotations: Value, mut spec: Value) {
        for kind in ["containers", "initContainers"] {
            for container in spec[kind].as_array_mut().into_iter().flatten() {
                container["image"] = json!(tools::IMAGE);
                container["imagePullPolicy"] = json!("Never");
            }
        }
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "annotations": annotations },
            "spec": spec,
        });
        // It takes what has a final name only.
        let path = self.manifest(name);
        let new = path.with_extension("new");
        fs::write(&new, pod.to_string()).expect("write a pod's file");
        fs::rename(&new, &path).expect("rename a pod's file");
    }

    /// Withdraws the pod and waits until the kubelet has forgotten it, volumes
    /// and cgroups included.
    #[track_caller]
    pub fn withdraw(&self, name: &str) {
        let uid = self.pod(name)["metadata"]["uid"].clone();
        let uid = uid.as_str().expect("a pod has a uid").to_owned();
        fs::remove_file(self.manifest(name)).expect("remove a pod's file");
        self.until(&format!("{name} to be gone"), || {
            let volumes = self.directory().join("pods").join(&uid);
            let cgroups = cgroups::named(&format!("pod{uid}"));
            (self.pod(name).is_null() && !volumes.exists() && cgroups.is_empty()).then_some(())
        });
    }

    /// The pod as the kubelet has it, null if it has none of that name.
    pub fn pod(&self, name: &str) -> Value {
        let mut pods = self.get("pods");
        let items = pods["items"].as_array_mut().into_iter().flatten();
        let full = format!("{name}-{NODE}");
        items
            .into_iter()
            .find(|pod| pod["metadata"]["name"] == full)
            .map_or(Value::Null, Value::take)
    }

    /// The status of one container of the pod, of whatever kind it is.
    pub fn status(&self, pod: &str, container: &str) -> Value {
        let mut pod = self.pod(pod);
        for kind in ["containerStatuses", "initContainerStatuses"] {
            for status in pod["status"][kind].as_array_mut().into_iter().flatten() {
                if status["name"] == container {
                    return status.take();
                }
            }
        }
        Value::Null
    }

    /// Waits until the pod is ready.
    #[track_caller]
    pub fn until_ready(&self, name: &str) {
        self.until(&format!("{name} to be ready"), || {
            let pod = self.pod(name);
            let conditions = pod["status"]["conditions"].as_array()?;
            conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
                .then_some(())
        });
    }

    /// Waits until `probe` answers; else the test fails with what the kubelet and
    /// containerd said.
    #[track_caller]
    pub fn until<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait::within(LIMIT, probe).unwrap_or_else(|| {
            panic!(
                "waited {LIMIT:?} in vain for {what}\npods: {:#}\nkubelet: {}\ncontainerd: {}",
                self.get("pods")["items"],
                tail(&self.log()),
                tail(&self.containerd.log()),
            )
        })
    }

    /// What the kubelet says of all pods' use.
    pub fn summary(&self) -> Value {
        self.get("stats/summary")
    }

    /// What the kubelet says of the use of the pod `name`, null if nothing yet.
    pub fn stats(&self, name: &str) -> Value {
        let full = format!("{name}-{NODE}");
        let mut summary = self.summary();
        let pods = summary["pods"].as_array_mut().into_iter().flatten();
        pods.into_iter()
            .find(|pod| pod["podRef"]["name"] == full)
            .map_or(Value::Null, Value::take)
    }

    /// Runs a program to its end and gives its output; the kubelet's `run`.
    #[track_caller]
    pub fn run(&self, pod: &str, container: &str, program: &[&str]) -> String {
        let path = format!("run/default/{pod}-{NODE}/{container}");
        let mut options = vec!["--request", "POST", "--get"];
        let command = format!("cmd={}", program.join(" "));
        options.extend(["--data-urlencode", &command]);
        let output = self.curl(&path, &options);
        output.ok()
    }

    /// Runs a program and gives what came on its output and the status that the
    /// kubelet tells at the end: `kubectl exec`, over a WebSocket.
    #[track_caller]
    pub fn exec(&self, pod: &str, container: &str, program: &[&str]) -> (String, Value) {
        let words: Vec<String> = program
            .iter()
            .map(|word| format!("command={word}"))
            .collect();
        let mut options = vec!["--get", "--http1.1", "--no-buffer"];
        for header in [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: cmFtcGFydCBleGVjIHRlc3Q=",
            "Sec-WebSocket-Protocol: v4.channel.k8s.io",
        ] {
            options.extend(["--header", header]);
        }
        options.extend(["--data", "output=1&error=1"]);
        for word in &words {
            options.extend(["--data-urlencode", word]);
        }
        let path = format!("exec/default/{pod}-{NODE}/{container}");
        let frames = frames(&self.curl(&path, &options).bytes);
        let of = |channel: u8| -> Vec<u8> {
            let of_it = frames
                .iter()
                .filter(|frame| frame.first() == Some(&channel));
            of_it.flat_map(|frame| frame[1..].to_vec()).collect()
        };
        let status = serde_json::from_slice(&of(3)).expect("the status is JSON");
        (String::from_utf8_lossy(&of(1)).into_owned(), status)
    }

    /// The log of a container.
    pub fn container_log(&self, pod: &str, container: &str) -> String {
        self.curl(
            &format!("containerLogs/default/{pod}-{NODE}/{container}"),
            &[],
        )
        .stdout
    }

    /// What the kubelet logged.
    pub fn log(&self) -> String {
        let path = self.containerd.host().directory().join("kubelet.log");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The directory that it keeps pods' volumes in.
    pub fn directory(&self) -> PathBuf {
        self.containerd.host().directory().join("kubelet")
    }

    fn manifest(&self, name: &str) -> PathBuf {
        let directory = self.containerd.host().directory();
        directory.join("manifests").join(format!("{name}.json"))
    }

    fn get(&self, path: &str) -> Value {
        let output = self.curl(path, &[]);
        serde_json::from_str(&output.stdout).unwrap_or(Value::Null)
    }

    fn curl(&self, path: &str, options: &[&str]) -> Output {
        let mut command = self.containerd.host().command("curl");
        command
            .args(["--silent", "--show-error", "--insecure", "--max-time", "30"])
            .args(options)
            .arg(format!("https://127.0.0.1:10250/{path}"));
        process::run(&mut command, wait::LIMIT)
    }
}

impl Drop for Kubelet<'_> {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        wait::within(wait::LIMIT, || self.process.try_wait());
    }
}

/// The kubelet's configuration, for one that looks after nothing but pods.
fn settings(host: &Host, containerd: &Containerd, gates: &[&str]) -> Value {
    let in_directory = |name: &str| host.directory().join(name);
    let gates: serde_json::Map<String, Value> = gates
        .iter()
        .map(|&gate| (gate.to_owned(), json!(true)))
        .collect();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", host.name()),
        "containerRuntimeEndpoint": format!("unix://{}", containerd.socket().display()),
        "staticPodPath": in_directory("manifests"),
        "podLogsDir": in_directory("pod-logs"),
        "volumePluginDir": in_directory("plugins"),
        "resolvConf": "",
        "address": "127.0.0.1",
        "readOnlyPort": 0,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "fileCheckFrequency": "1s",
        "syncFrequency": "10s",
        "failSwapOn": false,
        "protectKernelDefaults": true,
        "makeIPTablesUtilChains": false,
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%",
            "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%" },
        "imageGCHighThresholdPercent": 100,
        "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
        "featureGates": gates,
    })
}

/// The payloads of WebSocket frames that a server sent, which are not masked.
fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        let (length, rest) = match second & 0x7f {
            126 if rest.len() >= 2 => (
                usize::from(u16::from_be_bytes([rest[0], rest[1]])),
                &rest[2..],
            ),
            length => (usize::from(length), rest),
        };
        if rest.len() < length {
            break;
        }
        // Text or binary; a close or a ping is the connection's own.
        if matches!(first & 0x0f, 1 | 2) {
            frames.push(rest[..length].to_vec());
        }
        bytes = &rest[length..];
    }
    frames
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Where a pod's cgroup is, below each hierarchy's mount; `class` is empty for a
/// guaranteed pod.
pub fn pod_cgroup(host: &Host, class: &str, uid: &str) -> String {
    Path::new("/")
        .join(host.name())
        .join("kubepods")
        .join(class)
        .join(format!("pod{uid}"))
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        let mut bytes = vec![0x82, 3, 1, b'h', b'i', 0x89, 0, 0x82, 126, 0, 200];
        bytes.extend([7; 200]);
        bytes.extend([0x82, 9, 1]);
        assert_eq!(frames(&bytes), [vec![1, b'h', b'i'], vec![7; 200]]);
    }
}
