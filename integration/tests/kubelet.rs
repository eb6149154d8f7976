//! Pods as Kubernetes runs them: by a real kubelet, with Rampart as the default
//! runtime of its containerd.

use std::fs;

use integration::cgroups;
use integration::containerd::{Containerd, Version};
use integration::inventory::Inventory;
use integration::kubelet::{Kubelet, pod_cgroup};
use integration::skip;
use serde_json::{Value, json};

/// What a RuntimeClass adds to a pod here; without an API server it stands in the
/// pod itself.
const OVERHEAD: &str = "48Mi";

#[test]
fn a_pod_with_all_that_pods_have_and_nothing_is_left_of_it() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    // What the kubelet and containerd make once does not count.
    kubelet.put(
        "warm",
        json!({ "containers": [sleeper("one", &json!({}))] }),
    );
    kubelet.until_ready("warm");
    kubelet.withdraw("warm");
    containerd.crictl(&["rmp", "--all"]).ok();
    let before = Inventory::take(containerd.host());

    let files = containerd.host().directory().join("files");
    fs::create_dir(&files).expect("make a directory of files");
    fs::write(files.join("setting"), "from the host\n").expect("write a file");
    kubelet.put_with(
        "full",
        &json!({ "note": "an annotation" }),
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
            "containers": [sleeper("main", &json!({
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
    // It keeps a pod's sandbox until it looks for dead ones, each minute.
    kubelet.until("the sandbox to be removed", || {
        let pods = containerd.crictl(&["pods", "--quiet"]).ok();
        pods.is_empty().then_some(())
    });
    fs::remove_dir_all(&files).expect("remove the directory of files");
    before.assert_same_but(containerd.host(), of_the_machinery);
}

#[test]
fn probes_of_every_kind_and_a_restart_in_the_living_pod() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    let web = |port: u16| format!("echo ok >/tmp/index.html; exec httpd -f -p {port} -h /tmp");
    kubelet.put(
        "probed",
        json!({
            "containers": [
                {
                    "name": "http",
                    "command": ["sh", "-c", web(8080)],
                    "readinessProbe": { "httpGet": { "path": "/index.html", "port": 8080 },
                        "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10 },
                },
                {
                    "name": "tcp",
                    "command": ["sh", "-c", web(8081)],
                    "readinessProbe": { "tcpSocket": { "port": 8081 }, "periodSeconds": 1, "timeoutSeconds": 10 },
                },
                sleeper("exec", &json!({
                    "readinessProbe": { "exec": { "command": ["test", "-e", "/tmp/ready"] },
                        "periodSeconds": 1, "timeoutSeconds": 10 },
                    "livenessProbe": { "exec": { "command": ["test", "!", "-e", "/tmp/broken"] },
                        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1 },
                })),
            ],
            "terminationGracePeriodSeconds": 1,
        }),
    );
    let ready = |container: &str, wanted: bool| {
        kubelet.until(&format!("{container} to be ready: {wanted}"), || {
            (kubelet.status("probed", container)["ready"] == wanted).then_some(())
        });
    };
    ready("http", true);
    ready("tcp", true);
    assert_eq!(kubelet.status("probed", "exec")["ready"], false);
    kubelet.run("probed", "exec", &["touch", "/tmp/ready"]);
    kubelet.until_ready("probed");
    kubelet.run("probed", "http", &["rm", "/tmp/index.html"]);
    ready("http", false);
    kubelet.run("probed", "http", &["touch", "/tmp/index.html"]);
    ready("http", true);

    let ids = ["http", "tcp"].map(|name| kubelet.status("probed", name)["containerID"].clone());
    let address = kubelet.pod("probed")["status"]["podIP"].clone();
    kubelet.run("probed", "exec", &["touch", "/tmp/broken"]);
    kubelet.until("exec to be restarted", || {
        let status = kubelet.status("probed", "exec");
        (status["restartCount"] == 1 && status["state"]["running"].is_object()).then_some(())
    });
    // Its files are new, and its neighbours never noticed.
    assert_eq!(kubelet.run("probed", "exec", &["ls", "/tmp"]), "");
    let after = ["http", "tcp"].map(|name| kubelet.status("probed", name)["containerID"].clone());
    assert_eq!(after, ids);
    assert_eq!(kubelet.pod("probed")["status"]["podIP"], address);
    kubelet.withdraw("probed");
}

#[test]
fn limits_hold_and_only_the_guilty_is_out_of_memory() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    let resources = json!({ "limits": { "memory": "64Mi", "cpu": "500m" } });
    let hungry = "until [ -e /tmp/go ]; do sleep 0.1; done; tail -c 100000000 /dev/zero";
    kubelet.put(
        "limited",
        json!({
            "overhead": { "memory": OVERHEAD },
            "restartPolicy": "Never",
            "containers": [
                { "name": "guilty", "command": ["sh", "-c", hungry], "resources": resources },
                sleeper("innocent", &json!({ "resources": resources })),
            ],
        }),
    );
    kubelet.until_ready("limited");
    let uid = kubelet.pod("limited")["metadata"]["uid"].clone();
    let path = pod_cgroup(
        containerd.host(),
        "",
        uid.as_str().expect("a pod has a uid"),
    );
    let limit: u64 = (64 + 64 + 48) << 20;
    let kernels = cgroups::read(&path, "memory.limit_in_bytes", "memory.max");
    assert_eq!(kernels, limit.to_string());
    let seen = kubelet.run("limited", "innocent", &["cat", "/proc/meminfo"]);
    assert!(
        seen.starts_with(&format!("MemTotal:         {} kB", limit / 1024)),
        "{seen}"
    );

    kubelet.run("limited", "guilty", &["touch", "/tmp/go"]);
    let ended = kubelet.until("the guilty one's end", || {
        let status = kubelet.status("limited", "guilty")["state"]["terminated"].clone();
        status.is_object().then_some(status)
    });
    assert_eq!(ended["reason"], "OOMKilled", "{ended}");
    assert_eq!(ended["exitCode"], 137, "{ended}");
    let status = kubelet.status("limited", "innocent");
    assert!(status["state"]["running"].is_object(), "{status}");
    assert_eq!(
        kubelet.run("limited", "innocent", &["echo", "still"]),
        "still"
    );
    kubelet.withdraw("limited");
}

#[test]
fn ends_are_told_and_graceful() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    let files = containerd.host().directory().join("told");
    fs::create_dir(&files).expect("make a directory");
    let told = json!([{ "name": "told", "mountPath": "/told" }]);
    kubelet.put(
        "ends",
        json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "volumes": [{ "name": "told", "hostPath": { "path": files } }],
            "containers": [
                { "name": "message",
                    "command": ["sh", "-c", "printf bye >/dev/termination-log; exit 4"] },
                { "name": "log", "terminationMessagePolicy": "FallbackToLogsOnError",
                    "command": ["sh", "-c", "echo last words; exit 5"] },
                { "name": "good", "command": ["true"] },
                {
                    "name": "graceful",
                    "command": ["sh", "-c",
                        "trap 'echo term >>/told/ends; exit 0' TERM; while :; do sleep 0.1; done"],
                    "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", "echo stop >>/told/ends"] } } },
                    "volumeMounts": told,
                },
            ],
        }),
    );
    let ended = |name: &str| {
        kubelet.until(&format!("the end of {name}"), || {
            let status = kubelet.status("ends", name)["state"]["terminated"].clone();
            status.is_object().then_some(status)
        })
    };
    let message = ended("message");
    assert_eq!(
        (&message["message"], &message["exitCode"]),
        (&json!("bye"), &json!(4)),
        "{message}"
    );
    let log = ended("log");
    assert_eq!(
        (&log["message"], &log["reason"]),
        (&json!("last words\n"), &json!("Error")),
        "{log}"
    );
    assert_eq!(ended("good")["reason"], "Completed");
    kubelet.until("graceful to run", || {
        kubelet.status("ends", "graceful")["state"]["running"]
            .is_object()
            .then_some(())
    });
    kubelet.withdraw("ends");
    let told = fs::read_to_string(files.join("ends")).expect("read what it told");
    assert_eq!(told, "stop\nterm\n");

    // One that does not listen is killed after its grace.
    kubelet.put(
        "deaf",
        json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "one", "command": ["sh", "-c",
                "trap '' TERM; echo deaf; while :; do sleep 1; done"] }],
        }),
    );
    kubelet.until("it to be deaf", || {
        (kubelet.container_log("deaf", "one") == "deaf\n").then_some(())
    });
    kubelet.withdraw("deaf");
}

#[test]
fn networks_and_processes_of_the_pod_and_of_the_host() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &[]) else {
        return;
    };
    // The bridge is there from the first pod on.
    kubelet.put(
        "shares",
        json!({
            "shareProcessNamespace": true,
            "containers": [
                sleeper("one", &json!({ "command": ["sleep", "4242"] })),
                sleeper("two", &json!({})),
            ],
        }),
    );
    kubelet.until_ready("shares");
    let seen = kubelet.run("shares", "two", &["ps", "-o", "args"]);
    assert!(seen.contains("sleep 4242"), "{seen}");
    kubelet.put("hosts", json!({
        "hostNetwork": true,
        "containers": [{
            "name": "web",
            "command": ["sh", "-c", "echo ok >/tmp/index.html; exec httpd -f -p 127.0.0.1:8082 -h /tmp"],
            "readinessProbe": { "httpGet": { "host": "127.0.0.1", "path": "/index.html", "port": 8082 },
                "periodSeconds": 1, "timeoutSeconds": 10 },
        }],
    }));
    kubelet.until_ready("hosts");
    let links = kubelet.run("hosts", "web", &["ip", "-o", "link"]);
    assert!(links.contains("rampart0"), "{links}");
    kubelet.withdraw("hosts");
    kubelet.withdraw("shares");
}

#[test]
fn figures_of_pod_and_containers() {
    figures(&[]);
}

#[test]
fn figures_as_the_shim_tells_them() {
    figures(&["PodAndContainerStatsFromCRI"]);
}

#[test]
fn a_pod_in_slices_and_scopes_of_systemd() {
    if !cgroups::has_systemd() {
        skip("needs systemd as init: integration/testhost");
        return;
    }
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, &["PodAndContainerStatsFromCRI"]) else {
        return;
    };
    let limits = json!({ "limits": { "memory": "64Mi" } });
    kubelet.put(
        "scoped",
        json!({
            "overhead": { "memory": OVERHEAD },
            "containers": [
                sleeper("one", &json!({
                    "resources": limits,
                    "readinessProbe": { "exec": { "command": ["true"] }, "timeoutSeconds": 60 },
                })),
                sleeper("two", &json!({ "resources": limits })),
            ],
        }),
    );
    kubelet.until_ready("scoped");
    let pod = kubelet.pod("scoped");
    let uid = pod["metadata"]["uid"]
        .as_str()
        .expect("a pod has a uid")
        .to_owned();
    let class = if pod["status"]["qosClass"] == "Burstable" {
        "-burstable"
    } else {
        ""
    };
    let mut slice = "/kubepods.slice".to_owned();
    if !class.is_empty() {
        slice.push_str("/kubepods-burstable.slice");
    }
    slice.push_str(&format!("/kubepods{class}-pod{uid}.slice"));
    let kernels = cgroups::read(&slice, "memory.limit_in_bytes", "memory.max");
    assert_eq!(kernels, ((64_u64 + 64 + 48) << 20).to_string());
    let sandbox = containerd.crictl(&["pods", "--quiet"]).ok();
    let scope = format!("{slice}/cri-containerd-{sandbox}.scope");
    let inside = cgroups::pids(&cgroups::directory("memory", &scope));
    assert!(
        inside.len() >= 2,
        "sentry and gofers are in {scope}: {inside:?}"
    );
    let figures = kubelet.until("the figures of the pod", || {
        let pod = kubelet.stats("scoped");
        pod["memory"]["usageBytes"].is_u64().then_some(pod)
    });
    let available = figures["memory"]["availableBytes"].as_u64();
    assert!(
        available.is_some_and(|bytes| bytes < (64 + 64 + 48) << 20),
        "{figures:#}"
    );
    kubelet.withdraw("scoped");
}

/// What `/stats/summary` says of a pod of which one container computes, one holds
/// memory, and one does nothing.
fn figures(gates: &[&str]) {
    const HELD: u64 = 50_000_000;
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let Some(kubelet) = Kubelet::start(&containerd, gates) else {
        return;
    };
    let hold = format!("(head -c {HELD} /dev/zero; sleep 10000) | tail -c {HELD}");
    let limits = json!({ "limits": { "memory": "96Mi" } });
    kubelet.put(
        "figures",
        json!({
            "overhead": { "memory": OVERHEAD },
            "containers": [
                { "name": "computes", "command": ["sh", "-c", "while :; do :; done"], "resources": limits },
                { "name": "holds", "command": ["sh", "-c", hold], "resources": limits },
                sleeper("idles", &json!({ "resources": limits })),
            ],
        }),
    );
    kubelet.until_ready("figures");
    let figure = |of: &Value, path: &str| {
        let value = of.pointer(path).and_then(Value::as_u64);
        value.unwrap_or(u64::MAX)
    };
    let of = |pod: &Value, name: &str| {
        let all = pod["containers"].as_array().into_iter().flatten();
        all.into_iter()
            .find(|one| one["name"] == name)
            .cloned()
            .unwrap_or(Value::Null)
    };
    // cAdvisor looks at the pod every ten seconds or so, and at first too early.
    let pod = kubelet.until("the figures of the pod", || {
        let pod = kubelet.stats("figures");
        let is_there = |of: &Value, path: &str, least: u64| {
            let figure = figure(of, path);
            figure != u64::MAX && figure >= least
        };
        let (memory, cpu) = ("/memory/usageBytes", "/cpu/usageCoreNanoSeconds");
        (is_there(&of(&pod, "holds"), memory, HELD)
            && is_there(&of(&pod, "computes"), cpu, 1_000_000_000)
            && is_there(&pod, memory, HELD)
            && is_there(&pod, cpu, 0))
        .then_some(pod)
    });
    let (mut cpu, mut memory) = (0, 0);
    for name in ["computes", "holds", "idles"] {
        let one = of(&pod, name);
        let (usage, available) = (
            figure(&one, "/memory/usageBytes"),
            figure(&one, "/memory/availableBytes"),
        );
        assert!(usage <= 96 << 20, "{name}: {one:#}");
        assert!(
            available <= (96 << 20) - figure(&one, "/memory/workingSetBytes"),
            "{name}: {one:#}"
        );
        if name != "holds" {
            assert!(usage < HELD, "{name}: {one:#}");
        }
        cpu += figure(&one, "/cpu/usageCoreNanoSeconds");
        memory += usage;
    }
    // The two are not of one moment: the pod's may be some seconds older.
    let all = figure(&pod, "/cpu/usageCoreNanoSeconds");
    assert!(all + 60_000_000_000 > cpu, "{pod:#}");
    let whole = figure(&pod, "/memory/usageBytes");
    assert!((HELD..=(3 * 96 + 48) << 20).contains(&whole), "{pod:#}");
    assert!(whole + (16 << 20) > memory, "{pod:#}");
    assert!(
        figure(&pod, "/memory/availableBytes") <= (3 * 96 + 48) << 20,
        "{pod:#}"
    );
    kubelet.withdraw("figures");
}

/// A container that sleeps, and ends at once when it is told to.
fn sleeper(name: &str, more: &Value) -> Value {
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
