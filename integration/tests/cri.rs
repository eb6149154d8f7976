//! Pods, as the kubelet makes them: through containerd's CRI with crictl.

use std::fs;
use std::thread;

use integration::containerd::Containerd;
use integration::{cgroups, on_each_containerd, wait};
use serde_json::{Value, json};

on_each_containerd!(
    a_pod_of_two_containers_is_one_shim,
    status_and_log_of_a_container_that_ended,
    containers_made_at_once,
    a_pod_outlives_containerd,
    the_last_container_is_not_the_pod,
    a_pod_is_resized_with_its_container,
);

/// A pod whose containers see the same network, and its id.
#[track_caller]
fn start_pod(containerd: &Containerd, name: &str) -> String {
    containerd.run_pod(name, &Value::Null)
}

fn a_pod_of_two_containers_is_one_shim(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let pod = start_pod(containerd, "pair");
    let ids = ["one", "two"]
        .map(|name| containerd.run_in_pod(&pod, name, &["sleep", "1000"], &Value::Null));
    assert_eq!(containerd.shims(&pod).len(), 1);
    for (id, name) in ids.iter().zip(["one", "two"]) {
        assert_eq!(
            containerd.shims(id),
            Vec::<u32>::new(),
            "{name} has its own"
        );
        let said = containerd
            .crictl(&["exec", "--sync", id, "echo", name])
            .ok();
        assert_eq!(said, name);
        let addresses = containerd
            .crictl(&["exec", "--sync", id, "ip", "-o", "addr"])
            .ok();
        assert!(addresses.contains("10.213.0."), "{name}: {addresses}");
    }
    // Files are each one's own.
    containerd
        .crictl(&["exec", "--sync", &ids[0], "touch", "/tmp/mine"])
        .ok();
    containerd
        .crictl(&["exec", "--sync", &ids[1], "ls", "/tmp/mine"])
        .err();

    containerd.crictl(&["stop", "--timeout", "0", &ids[0]]).ok();
    containerd.crictl(&["rm", &ids[0]]).ok();
    let said = containerd
        .crictl(&["exec", "--sync", &ids[1], "echo", "still"])
        .ok();
    assert_eq!(said, "still");
    containerd.remove_pod(&pod);
    before.assert_same_but(containerd.host(), of_the_machinery);
}

fn status_and_log_of_a_container_that_ended(containerd: &mut Containerd) {
    let pod = start_pod(containerd, "ends");
    let script = "echo to the log; exit 3";
    let id = containerd.run_in_pod(&pod, "short", &["sh", "-c", script], &Value::Null);
    let status = wait::until_some("the container to end", || {
        let status = inspect(containerd, &id);
        (status["state"] == "CONTAINER_EXITED").then_some(status)
    });
    assert_eq!(status["exitCode"], 3, "{status}");
    assert_eq!(status["reason"], "Error", "{status}");
    let log = containerd
        .host()
        .directory()
        .join("pod-logs/ends/short.log");
    // containerd writes it beside, and does not wait for that.
    wait::until("the log to be written", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("stdout F to the log"))
    });
    containerd.remove_pod(&pod);
}

fn containers_made_at_once(containerd: &mut Containerd) {
    let pod = start_pod(containerd, "many");
    let containerd = &*containerd;
    let pod = pod.as_str();
    thread::scope(|scope| {
        for number in 0..5 {
            scope.spawn(move || {
                let name = format!("c{number}");
                let id = containerd.run_in_pod(pod, &name, &["sleep", "1000"], &Value::Null);
                let said = containerd
                    .crictl(&["exec", "--sync", &id, "echo", &name])
                    .ok();
                assert_eq!(said, name);
            });
        }
    });
    containerd.remove_pod(pod);
}

fn a_pod_outlives_containerd(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let pod = start_pod(containerd, "stays");
    let id = containerd.run_in_pod(&pod, "long", &["sleep", "1000"], &Value::Null);
    let shims = containerd.shims(&pod);
    containerd.kill9();
    containerd.launch();
    wait::until("CRI to answer", || {
        containerd.crictl(&["version"]).code == 0
    });
    assert_eq!(containerd.shims(&pod), shims);
    assert_eq!(inspect(containerd, &id)["state"], "CONTAINER_RUNNING");
    let said = containerd
        .crictl(&["exec", "--sync", &id, "echo", "still"])
        .ok();
    assert_eq!(said, "still");
    containerd.remove_pod(&pod);
    before.assert_same_but(containerd.host(), of_the_machinery);
}

fn the_last_container_is_not_the_pod(containerd: &mut Containerd) {
    let pod = start_pod(containerd, "empty");
    let more = json!({ "metadata": { "attempt": 1 } });
    for round in 0..2 {
        let name = format!("c{round}");
        let id = containerd.run_in_pod(&pod, &name, &["true"], &more);
        wait::until("the container to end", || {
            inspect(containerd, &id)["state"] == "CONTAINER_EXITED"
        });
        containerd.crictl(&["rm", &id]).ok();
        let text = containerd.crictl(&["inspectp", &pod]).ok();
        let status: Value = serde_json::from_str(&text).expect("crictl prints JSON");
        assert_eq!(status["status"]["state"], "SANDBOX_READY");
    }
    containerd.remove_pod(&pod);
}

/// As the kubelet resizes a pod: it has said what the pod gets when it was made.
fn a_pod_is_resized_with_its_container(containerd: &mut Containerd) {
    let limits = json!({ "linux": { "resources": {
        "memory_limit_in_bytes": 64 << 20, "cpu_quota": 50_000, "cpu_period": 100_000 } } });
    let pod = containerd.run_pod("resized", &limits);
    let id = containerd.run_in_pod(&pod, "one", &["sleep", "1000"], &limits);
    let sandbox = format!("/{}/{pod}", containerd.host().name());
    let memory = || -> u64 {
        let limit = cgroups::read(&sandbox, "memory.limit_in_bytes", "memory.max");
        limit.parse().expect("the sandbox has a limit")
    };
    let before = memory();
    for (update, moved) in [("100663296", 32_i64 << 20), ("67108864", 0)] {
        containerd.crictl(&["update", "--memory", update, &id]).ok();
        assert_eq!(memory(), before.strict_add_signed(moved), "{update}");
    }
    refused_update(containerd, &id);
    assert_eq!(memory(), before, "after a refused update");
    containerd.remove_pod(&pod);

    // The same where nobody has said what the pod gets.
    let pod = containerd.run_pod("follows", &Value::Null);
    let id = containerd.run_in_pod(&pod, "one", &["sleep", "1000"], &limits);
    let sandbox = format!("/{}/{pod}", containerd.host().name());
    let memory = || cgroups::read(&sandbox, "memory.limit_in_bytes", "memory.max");
    let before = memory();
    refused_update(containerd, &id);
    assert_eq!(memory(), before, "after a refused update");
    containerd.remove_pod(&pod);
}

/// Half of this update could be had; the other half is refused, and so is all.
#[track_caller]
fn refused_update(containerd: &Containerd, id: &str) {
    let memory = ["update", "--memory", "100663296"];
    let cpus = ["--cpuset-cpus", "0-99", id];
    containerd.crictl(&[memory, cpus].concat()).err();
}

#[track_caller]
fn inspect(containerd: &Containerd, id: &str) -> Value {
    let text = containerd.crictl(&["inspect", id]).ok();
    let mut status: Value = serde_json::from_str(&text).expect("crictl prints JSON");
    status["status"].take()
}

/// What CNI and containerd make once or on their own account, and the cgroup above
/// all pods, which is the kubelet's to remove.
fn of_the_machinery(line: &str) -> bool {
    line == "link rampart0"
        || (line.starts_with("process ") && line.contains("/containerd --config "))
        || line.starts_with("file /var/lib/cni")
        || line.starts_with("file /run/containerd/fifo/")
        || line.ends_with("/k8s.io")
        || line.ends_with("/state/netns")
        || line.contains("/io.containerd.grpc.v1.cri")
        || (line.starts_with("cgroup ") && line.matches("/rt").count() == 1 && {
            let name = line.rsplit('/').next().unwrap_or("");
            name.starts_with("rt")
        })
}
