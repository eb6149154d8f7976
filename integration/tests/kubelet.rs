//! Pods as Kubernetes runs them: by a real kubelet, with Rampart as the default
//! runtime of its containerd.

use std::fs;

use integration::cgroups;
use integration::containerd::{Containerd, Version};
use integration::inventory::Inventory;
use integration::kubelet::{Kubelet, pod_cgroup};
use serde_json::{Value, json};

/// What a RuntimeClass adds to a pod here; without an API server it stands in the
/// pod itself.
const OVERHEAD: &str = "32Mi";

#[test]
fn a_pod_with_all_that_pods_have_and_nothing_is_left_of_it() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    // What the kubelet and containerd make once does not count.
    kubelet.put("warm", json!({ "containers": [sleeper("one", json!({}))] }));
    kubelet.until_ready("warm");
    kubelet.withdraw("warm");
    let before = Inventory::take(containerd.host());

    let files = containerd.host().directory().join("files");
    fs::create_dir(&files).expect("make a directory of files");
    fs::write(files.join("setting"), "from the host\n").expect("write a file");
    kubelet.put_with(
        "full",
        json!({ "note": "an annotation" }),
        json!({
            "volumes": [
                { "name": "shared", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "16Mi" } },
                { "name": "files", "hostPath": { "path": files } },
                { "name": "about", "downwardAPI": { "items": [
                    { "path": "note", "fieldRef": { "fieldPath": "metadata.annotations['note']" } } ] } },
            ],
            "initContainers": [
                {
                    "name": "first",
                    "command": ["sh", "-c", "echo first >/shared/first"],
                    "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }],
                },
                {
                    "name": "sidecar",
                    "restartPolicy": "Always",
                    "command": ["sh", "-c", "cat /shared/first >/shared/sidecar; sleep 10000"],
                    "startupProbe": { "exec": { "command": ["test", "-s", "/shared/sidecar"] },
                        "periodSeconds": 1, "failureThreshold": 60 },
                    "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }],
                },
            ],
            "containers": [sleeper("main", json!({
                "command": ["sh", "-c", "echo hello log; cat /shared/sidecar; exec sleep 10000"],
                "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
                "volumeMounts": [
                    { "name": "shared", "mountPath": "/shared" },
                    { "name": "memory", "mountPath": "/memory" },
                    { "name": "files", "mountPath": "/files", "readOnly": true },
                    { "name": "files", "mountPath": "/one", "subPath": "setting", "readOnly": true },
                    { "name": "about", "mountPath": "/about" },
                ],
            }))],
        }),
    );
    kubelet.until_ready("full");

    let run = |program: &[&str]| kubelet.run("full", "main", program);
    assert_eq!(
        run(&["cat", "/shared/first", "/shared/sidecar"]),
        "first\nfirst"
    );
    assert_eq!(
        run(&["cat", "/files/setting", "/one"]),
        "from the host\nfrom the host"
    );
    assert_eq!(run(&["cat", "/about/note"]), "an annotation");
    let memory = run(&["df", "-k", "/memory"]);
    assert!(memory.contains(" 16384 "), "{memory}");
    let address = kubelet.pod("full")["status"]["podIP"].clone();
    let variables = run(&["env"]);
    assert!(
        variables.contains(&format!("POD={}", address.as_str().unwrap_or("?"))),
        "{variables}"
    );
    assert_eq!(kubelet.container_log("full", "main"), "hello log\nfirst\n");

    let script = "echo out; echo err >&2; exit 3";
    let (output, status) = kubelet.exec("full", "main", &["sh", "-c", script]);
    assert_eq!(output, "out\n");
    assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");

    // The volume that is read-only stays as it is.
    let (_, status) = kubelet.exec("full", "main", &["touch", "/files/new"]);
    assert_eq!(status["status"], "Failure", "{status}");
    assert!(!files.join("new").exists());

    kubelet.withdraw("full");
    fs::remove_dir_all(&files).expect("remove the directory of files");
    before.assert_same_but(containerd.host(), of_the_machinery);
}

/// A container that sleeps, and ends at once when it is told to.
fn sleeper(name: &str, more: Value) -> Value {
    let mut container = json!({ "name": name, "command": ["sleep", "10000"] });
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    container
}

/// What containerd, CNI and the kubelet keep on their own account.
fn of_the_machinery(line: &str) -> bool {
    line.starts_with("file /var/lib/cni")
        || line.starts_with("process ") && line.contains("/containerd --config ")
}
