//! Figures and out-of-memory kills, against work whose amount is known.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use integration::containerd::{Containerd, Version};
use integration::events::Events;
use integration::figures::{Figures, any_of_event, expected_type};
use integration::host::Host;
use integration::mock::MockContainerd;
use integration::process::{self, Process};
use integration::shim::{Input, Shim, TaskClient};
use integration::wire::{TASK_V2, code};
use integration::{bundle, cgroups, on_each_containerd, skip, wait};
use nix::sys::signal::Signal;
use protos::metric::Metric;
use protos::own::out_of_memory::Level;
use protos::own::{Devices, OutOfMemory};
use protos::protobuf::Message;
use protos::protobuf::well_known_types::any::Any;
use protos::task::{CreateTaskRequest, CreateTaskResponse};
use serde_json::{Value, json};

on_each_containerd!(
    a_container_is_charged_what_it_does,
    a_pod_is_charged_what_its_containers_do,
    clients_print_sane_figures,
    a_lone_container_out_of_memory,
    a_container_of_a_pod_out_of_memory,
);

const MIB: u64 = 1 << 20;

/// What a workload does, step by step, each when its file appears. It signs each
/// step off with another file. The rounds of the loop have no system call in them. What is
/// written is synced in small parts, into a file that has its blocks: what the kernel
/// or the file system's journal writes back by itself counts for nobody on v1.
const WORKLOAD: &str = r#"
step() { until [ -e /steps/$1 ]; do sleep 0.05; done; }
step cpu
until [ -e /steps/cpu-enough ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done
: >/steps/cpu-done
step memory
dd if=/dev/zero bs=67108864 count=1 2>/dev/null | {
    head -c 1 >/dev/null
    : >/steps/memory-done
    step end
} &
step disk
i=0
while [ $i -lt 8 ]; do
    dd if=/dev/zero of=/steps/written bs=4194304 count=1 seek=$i conv=notrunc,fsync 2>/dev/null
    i=$((i+1))
done
: >/steps/disk-done
step net
head -c 1048576 /dev/zero | nc $SINK 9000
: >/steps/net-done
step end
"#;

/// The directory over which the test and its workload speak.
struct Steps(PathBuf);

impl Steps {
    fn new(containerd: &Containerd, name: &str) -> Self {
        let path = containerd.host().directory().join(format!("steps-{name}"));
        fs::create_dir(&path).expect("make the directory of steps");
        Self(path)
    }

    fn allow(&self, step: &str) {
        fs::write(self.0.join(step), "").expect("make the file of a step");
    }

    /// The file that the step `disk` writes, with all its blocks on the disk.
    fn prepare_file(&self) {
        let mut file = fs::File::create(self.0.join("written")).expect("make the file");
        let blocks = vec![1; usize::try_from(32 * MIB).expect("it fits")];
        file.write_all(&blocks)
            .and_then(|()| file.sync_all())
            .expect("fill the file");
    }

    fn until_done(&self, step: &str) {
        let done = self.0.join(format!("{step}-done"));
        wait::until(&format!("{step} to be done"), || done.exists());
    }

    fn go_through(&self, step: &str) {
        self.allow(step);
        self.until_done(step);
    }
}

/// Lets the workload do all its steps, and checks what each moves; `figures` asks
/// for those of the whole, `share` for those of the container alone.
fn walk(
    containerd: &Containerd,
    steps: &Steps,
    cgroup: &Path,
    interface: &str,
    figures: impl Fn() -> Figures,
    share: impl Fn() -> Figures,
) {
    // The processes of the sandbox count their time themselves; it is the measure
    // for what the cgroup counts.
    let time = || -> u64 { cgroups::pids(cgroup).into_iter().map(cpu_time).sum() };
    let (time_before, before) = (time(), figures().cpu);
    let burnt = || time().saturating_sub(time_before);
    steps.allow("cpu");
    wait::until("two seconds of CPU", || burnt() >= 2_000_000_000);
    steps.allow("cpu-enough");
    steps.until_done("cpu");
    let burnt = burnt();
    // Clock ticks on one side, and what happens between the two looks.
    let tolerance = burnt / 10 + 200_000_000;
    moved("CPU", before, || figures().cpu, burnt, tolerance);
    // gVisor counts ticks in which a thread wants to run, so on a busy machine
    // its figure is cut to the whole.
    let shared = share().cpu;
    assert!(
        shared >= burnt / 5,
        "{shared} of {burnt} ns for the container"
    );
    assert!(shared <= figures().cpu, "a share beyond the whole");

    let (before, share_before) = (figures().memory, share().memory);
    steps.go_through("memory");
    moved("memory", before, || figures().memory, 64 * MIB, 8 * MIB);
    moved(
        "the container's memory",
        share_before,
        || share().memory,
        64 * MIB,
        8 * MIB,
    );
    assert!(
        figures().most_memory >= before + 56 * MIB,
        "{:?}",
        figures()
    );
    assert!(share().most_memory >= 64 * MIB, "{:?}", share());

    // On v2 what is written back counts for the cgroup that wrote to the file first.
    if !cgroups::is_unified() {
        steps.prepare_file();
    }
    let before = figures().written;
    steps.go_through("disk");
    if on_disk(containerd.host().directory()) {
        // The file system's own journal comes on top.
        moved("block I/O", before, || figures().written, 32 * MIB, 2 * MIB);
    } else {
        skip("block I/O: the test's directory is not on a block device");
    }

    let mut sink = containerd.host().command("busybox");
    // It ends the conversation when its input ends.
    let sink = sink
        .args(["nc", "-l", "-p", "9000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut sink = Process::spawn(sink);
    let sent = || {
        figures()
            .network
            .get(interface)
            .map_or(0, |traffic| traffic.1)
    };
    wait::until("the sink to listen", || listens(containerd.host(), 9000));
    let before = sent();
    steps.go_through("net");
    assert_eq!(sink.wait(wait::LIMIT), 0);
    // Headers and acknowledgements come on top.
    moved("traffic", before, sent, MIB + MIB / 16, MIB / 16);
    assert_eq!(figures().type_url, expected_type());
}

/// Waits until a figure, which may be a moment old, has moved so far, and checks
/// that it has not moved farther.
#[track_caller]
fn moved(what: &str, before: u64, figure: impl Fn() -> u64, expected: u64, tolerance: u64) {
    let mut now = 0;
    wait::within(Duration::from_secs(10), || {
        now = figure().saturating_sub(before);
        (now >= expected - tolerance).then_some(())
    });
    assert!(
        now.abs_diff(expected) <= tolerance,
        "{what}: {now}, not {expected} +- {tolerance}"
    );
}

fn a_container_is_charged_what_it_does(containerd: &mut Containerd) {
    let steps = Steps::new(containerd, "lone");
    let mount = format!(
        "type=bind,src={},dst=/steps,options=rbind:rw",
        steps.0.display()
    );
    let options = [
        "--detach",
        "--net-host",
        "--env",
        "SINK=127.0.0.1",
        "--mount",
        &mount,
    ];
    let mut command = containerd.run_command(&options, "lone", &["sh", "-c", WORKLOAD]);
    process::run(&mut command, wait::LIMIT).ok();
    let namespace = containerd.namespace();
    let figures = || Figures::ask(containerd, namespace, "lone", "lone").expect("it runs");
    let cgroup = cgroup_of(containerd.task("lone").expect("it runs").1);
    walk(containerd, &steps, &cgroup, "lo", figures, figures);
    steps.allow("end");
    containerd.until_task("lone", "STOPPED");
    // Between the end and Delete the last figures are told.
    let last = figures();
    assert!(last.cpu >= 2_000_000_000, "{last:?}");
    assert!(last.network["lo"].1 >= MIB, "{last:?}");
    containerd.remove("lone");
}

fn a_pod_is_charged_what_its_containers_do(containerd: &mut Containerd) {
    let steps = Steps::new(containerd, "pod");
    let pod = containerd.run_pod("figures", &Value::Null);
    let more = json!({
        "envs": [{ "key": "SINK", "value": "10.213.0.1" }],
        "mounts": [{ "host_path": steps.0, "container_path": "/steps" }],
    });
    let busy = containerd.run_in_pod(&pod, "busy", &["sh", "-c", WORKLOAD], &more);
    let idle = containerd.run_in_pod(&pod, "idle", &["sleep", "1000"], &Value::Null);
    let ask = |id: &str| Figures::ask(containerd, "k8s.io", &pod, id).expect("it runs");
    let cgroup = cgroup_of(pid_of_pod(containerd, &pod));
    walk(
        containerd,
        &steps,
        &cgroup,
        "eth0",
        || ask(&pod),
        || ask(&busy),
    );

    let quiet = ask(&idle);
    assert!(quiet.memory < 16 * MIB, "{quiet:?}");
    // Its processes sleep, but its gofer had to start.
    let parts = [ask(&busy), quiet];
    let [loud, quiet] = &parts;
    assert!((1..loud.cpu / 2).contains(&quiet.cpu), "{parts:?}");
    assert_eq!((quiet.kills, quiet.throttled), (Some(0), Some(0)));
    let whole = ask(&pod);
    assert!(
        whole.cpu >= parts.iter().map(|part| part.cpu).sum(),
        "{whole:?} {parts:?}"
    );
    assert!(
        whole.memory >= parts.iter().map(|part| part.memory).sum(),
        "{whole:?} {parts:?}"
    );
    assert!(parts.iter().all(|part| part.type_url == expected_type()));

    // A sandbox that stands still is answered for.
    let sentry = pid_of_pod(containerd, &pod);
    process::signal(sentry, Signal::SIGSTOP);
    for (id, before) in [(&pod, whole.cpu), (&busy, parts[0].cpu)] {
        assert!(ask(id).cpu >= before);
    }
    process::signal(sentry, Signal::SIGCONT);
    // The CRI plugin deletes the task of a container as soon as that has ended; its
    // part of the pod's figures stays.
    let last = ask(&busy);
    steps.allow("end");
    wait::until("the busy one to be deleted", || {
        Figures::ask(containerd, "k8s.io", &pod, &busy)
            .is_err_and(|refusal| refusal.code == code::NOT_FOUND)
    });
    assert!(
        ask(&pod).cpu >= last.cpu + ask(&idle).cpu,
        "what the ended one used is lost"
    );
    containerd.remove_pod(&pod);
}

fn clients_print_sane_figures(containerd: &mut Containerd) {
    containerd.run_detached("seen", &["sleep", "1000"]);
    let text = containerd.ctr(&["tasks", "metrics", "seen"]).ok();
    assert!(text.contains("seen"), "{text}");
    let text = containerd
        .ctr(&["tasks", "metrics", "--format", "json", "seen"])
        .ok();
    serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    containerd.remove("seen");

    let pod = containerd.run_pod("seen", &Value::Null);
    let limited = json!({ "linux": { "resources": { "memory_limit_in_bytes": 128 * MIB } } });
    let ids = [
        containerd.run_in_pod(&pod, "free", &["sleep", "1000"], &Value::Null),
        containerd.run_in_pod(&pod, "limited", &["sleep", "1000"], &limited),
    ];
    for id in &ids {
        let text = containerd
            .crictl(&["stats", "--output", "json", "--id", id])
            .ok();
        assert_sane(&text);
        let stats: Value = serde_json::from_str(&text).expect("crictl prints JSON");
        let memory = &stats["stats"][0]["memory"];
        let used: u64 = value(&memory["workingSetBytes"]);
        assert!((1..64 * MIB).contains(&used), "{text}");
        let available: u64 = value(&memory["availableBytes"]);
        if id == &ids[0] {
            assert_eq!(available, 0, "unlimited, so nothing is said: {text}");
        } else {
            assert_eq!(available + used, 128 * MIB, "{text}");
        }
        containerd.crictl(&["stats", "--id", id]).ok();
    }
    let text = containerd
        .crictl(&["statsp", "--output", "json", "--id", &pod])
        .ok();
    assert_sane(&text);
    let stats: Value = serde_json::from_str(&text).expect("crictl prints JSON");
    let used = value(&stats["stats"][0]["linux"]["memory"]["workingSetBytes"]);
    assert!((8 * MIB..256 * MIB).contains(&used), "{text}");
    containerd.remove_pod(&pod);
}

#[test]
fn figures_are_pushed_on_1_6() {
    figures_are_pushed(Version::V1_6);
}

#[test]
fn figures_are_pushed_on_2_4() {
    figures_are_pushed(Version::V2_4);
}

fn figures_are_pushed(version: Version) {
    let Some(containerd) = Containerd::with_settings(version, "metrics_interval = 1\n") else {
        return;
    };
    let events = containerd.events();
    containerd.run_detached("pushed", &["sleep", "1000"]);
    let pushed = |topic: &str, id: &str| -> Vec<Value> {
        let of = |event: &integration::events::Event| {
            event.topic == format!("/tasks/{topic}") && event.is_of(id)
        };
        events
            .all()
            .into_iter()
            .filter(of)
            .map(|event| event.data)
            .collect()
    };
    wait::until("two events", || pushed("metrics", "pushed").len() >= 2);
    let figures: Vec<_> = pushed("metrics", "pushed")
        .iter()
        .filter_map(Figures::of_event)
        .collect();
    assert!(figures.len() >= 2, "not of the expected type");
    assert!(figures.iter().all(|one| one.type_url == expected_type()));
    assert!(
        figures
            .iter()
            .all(|one| one.memory > 4 * MIB && one.cpu > 0),
        "{figures:?}"
    );
    assert!(figures.is_sorted_by_key(|one| one.cpu), "{figures:?}");
    containerd.remove("pushed");

    let pod = containerd.run_pod("pushed", &Value::Null);
    let ids = ["one", "two"]
        .map(|name| containerd.run_in_pod(&pod, name, &["sleep", "1000"], &Value::Null));
    for id in [&pod, &ids[0], &ids[1]] {
        wait::until("an event of each", || !pushed("metrics", id).is_empty());
    }
    containerd.remove_pod(&pod);
}

fn a_lone_container_out_of_memory(containerd: &mut Containerd) {
    let events = containerd.events();
    for round in 0..5 {
        let id = format!("oom{round}");
        let options = ["--rm", "--memory-limit", "67108864"];
        let mut command = containerd.run_command(&options, &id, &["sh", "-c", HUNGRY]);
        let output = process::run(&mut command, Duration::from_secs(90));
        assert_eq!(output.code, 137, "{}{}", output.stdout, output.stderr);
        assert_out_of_memory(&events, &id);
        assert!(cgroups::named(&id).is_empty(), "the cgroup is still there");
    }
}

/// Holds more memory than it may.
const HUNGRY: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1000000";

fn a_container_of_a_pod_out_of_memory(containerd: &mut Containerd) {
    let events = containerd.events();
    let pod = containerd.run_pod("oom", &Value::Null);
    let innocent = containerd.run_in_pod(&pod, "innocent", &["sleep", "1000"], &Value::Null);
    for round in 0..5 {
        let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 64 * MIB } } });
        let name = format!("guilty{round}");
        let guilty = containerd.run_in_pod(&pod, &name, &["sh", "-c", HUNGRY], &limit);
        let status = until_out_of_memory(containerd, &guilty);
        assert_eq!(status["exitCode"], 137, "{status}");
        assert_eq!(status["reason"], "OOMKilled", "{status}");
        assert_out_of_memory(&events, &guilty);
        containerd.crictl(&["rm", &guilty]).ok();
    }
    let said = containerd
        .crictl(&["exec", "--sync", &innocent, "echo", "alive"])
        .ok();
    assert_eq!(said, "alive");
    assert!(
        events
            .of(&innocent)
            .iter()
            .all(|event| event.topic != "/tasks/oom")
    );
    containerd.remove_pod(&pod);
}

#[test]
fn the_kernel_takes_a_pod_on_1_6() {
    the_kernel_takes_a_pod(Version::V1_6);
}

#[test]
fn the_kernel_takes_a_pod_on_2_4() {
    the_kernel_takes_a_pod(Version::V2_4);
}

/// Nobody keeps the containers' limits, so the pod runs into its own, which is
/// their sum and the overhead.
fn the_kernel_takes_a_pod(version: Version) {
    let settings = "enforce_container_memory = false\n";
    let Some(containerd) = Containerd::with_settings(version, settings) else {
        return;
    };
    let events = containerd.events();
    let pod = containerd.run_pod("taken", &Value::Null);
    let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 64 * MIB } } });
    let innocent = containerd.run_in_pod(&pod, "innocent", &["sleep", "1000"], &limit);
    let guilty = containerd.run_in_pod(&pod, "guilty", &["sh", "-c", HUNGRY], &limit);
    let status = until_out_of_memory(&containerd, &guilty);
    assert_eq!(status["exitCode"], 137, "{status}");
    assert_eq!(status["reason"], "OOMKilled", "{status}");
    assert_out_of_memory(&events, &guilty);
    // The kernel takes one process: the sentry, and everybody with it, or the one
    // that ran the guilty one's code.
    // containerd learns of each end by itself.
    let lives = wait::until_some("the innocent one to answer, or the pod's end", || {
        if !is_ready(&containerd, &pod) {
            return Some(false);
        }
        let said = containerd.crictl(&["exec", "--sync", &innocent, "echo", "alive"]);
        (said.stdout.trim() == "alive").then_some(true)
    });
    if !lives {
        assert_out_of_memory(&events, &innocent);
        assert_out_of_memory(&events, &pod);
    }
    containerd.remove_pod(&pod);
}

#[test]
fn a_limit_below_what_is_used_takes_effect() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let events = containerd.events();
    let pod = containerd.run_pod("lowered", &Value::Null);
    let limit = (64 * MIB).to_string();
    let lower = |id: &str| containerd.crictl(&["update", "--memory", &limit, id]);
    let big = containerd.run_in_pod(&pod, "big", &["sh", "-c", HUNGRY], &Value::Null);
    wait::until("the memory to be used", || {
        Figures::ask(&containerd, "k8s.io", &pod, &big)
            .expect("it runs")
            .memory
            > 128 * MIB
    });
    if !cgroups::is_unified() {
        // Alone it would be the pod's limit, which version 1 does not set below
        // what is used; what was refused is not in force.
        lower(&big).err();
    }
    let idle = containerd.run_in_pod(&pod, "idle", &["sleep", "1000"], &Value::Null);
    lower(&big).ok();
    let status = until_out_of_memory(&containerd, &big);
    assert_eq!(status["exitCode"], 137, "{status}");
    assert_eq!(status["reason"], "OOMKilled", "{status}");
    assert_out_of_memory(&events, &big);
    let said = containerd
        .crictl(&["exec", "--sync", &idle, "echo", "alive"])
        .ok();
    assert_eq!(said, "alive");
    containerd.remove_pod(&pod);
}

/// A container's limit and the pod's are the same, so that both are reached at
/// once: whoever comes first, each that ends is told to be out of memory, once.
#[test]
fn both_limits_are_reached_together() {
    let settings = "overhead_memory = 0\n";
    let Some(containerd) = Containerd::with_settings(Version::V2_4, settings) else {
        return;
    };
    let events = containerd.events();
    let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 64 * MIB } } });
    for round in 0..3 {
        let pod = containerd.run_pod(&format!("both{round}"), &Value::Null);
        let name = format!("guilty{round}");
        let guilty = containerd.run_in_pod(&pod, &name, &["sh", "-c", HUNGRY], &limit);
        let status = until_out_of_memory(&containerd, &guilty);
        assert_eq!(status["exitCode"], 137, "{status}");
        assert_eq!(status["reason"], "OOMKilled", "{status}");
        assert_out_of_memory(&events, &guilty);
        if !is_ready(&containerd, &pod) {
            assert_out_of_memory(&events, &pod);
        }
        containerd.remove_pod(&pod);
    }
}

/// The containers share the pod's PID namespace, in which nothing ends by itself
/// with a container's first process.
#[test]
fn with_the_first_process_out_of_memory_the_rest_goes() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    let events = containerd.events();
    let steps = Steps::new(&containerd, "rest");
    let shared = json!({ "linux": { "security_context": { "namespace_options": { "pid": 0 } } } });
    let pod = containerd.run_pod("rest", &shared);
    let witness = containerd.run_in_pod(&pod, "witness", &["sleep", "1000"], &shared);
    let more = json!({
        "mounts": [{ "host_path": steps.0, "container_path": "/steps" }],
        "linux": {
            "resources": { "memory_limit_in_bytes": 64 * MIB },
            "security_context": { "namespace_options": { "pid": 0 } },
        },
    });
    let script = format!("sleep 4242 & until [ -e /steps/go ]; do sleep 0.05; done; {HUNGRY}");
    let guilty = containerd.run_in_pod(&pod, "guilty", &["sh", "-c", &script], &more);
    let rest_lives = || {
        let processes = containerd.crictl(&["exec", "--sync", &witness, "ps"]).ok();
        processes.contains("sleep 4242")
    };
    wait::until("the other process", rest_lives);
    steps.allow("go");
    let status = until_out_of_memory(&containerd, &guilty);
    assert_eq!(status["reason"], "OOMKilled", "{status}");
    assert_out_of_memory(&events, &guilty);
    wait::until("the other process to be gone", || !rest_lives());
    containerd.remove_pod(&pod);
}

/// The status of a container once it has ended, and containerd has heard why: it
/// is told by another way than of the end, which may be the faster.
#[track_caller]
fn until_out_of_memory(containerd: &Containerd, id: &str) -> Value {
    let mut status = Value::Null;
    wait::within(wait::LIMIT, || {
        status = until_exited(containerd, id);
        (status["reason"] == "OOMKilled").then_some(())
    });
    status
}

#[track_caller]
fn until_exited(containerd: &Containerd, id: &str) -> Value {
    wait::until_some("the container to end", || {
        let text = containerd.crictl(&["inspect", id]).ok();
        let mut status: Value = serde_json::from_str(&text).expect("crictl prints JSON");
        (status["status"]["state"] == "CONTAINER_EXITED").then(|| status["status"].take())
    })
}

fn is_ready(containerd: &Containerd, pod: &str) -> bool {
    let text = containerd.crictl(&["inspectp", pod]).ok();
    let state: Value = serde_json::from_str(&text).expect("crictl prints JSON");
    state["status"]["state"] == "SANDBOX_READY"
}

/// One TaskOOM, before the exit, which says 137.
#[track_caller]
fn assert_out_of_memory(events: &Events, id: &str) {
    let exit = events.wait_for("exit", id);
    assert_eq!(exit.exit_status(), 137, "{exit:?}");
    let topics = events.topics(id);
    let of = |wanted: &str| topics.iter().filter(|topic| *topic == wanted).count();
    assert_eq!((of("oom"), of("exit")), (1, 1), "{topics:?}");
    let at = |wanted: &str| topics.iter().position(|topic| topic == wanted);
    assert!(at("oom") < at("exit"), "{topics:?}");
}

#[test]
fn a_stopped_and_a_killed_sandbox_are_answered_for() {
    let Some((host, mock)) = MockContainerd::in_corner() else {
        return;
    };
    let bundle = bundle::make(&host, host.name(), "held", &["sleep", "1000"], &[]);
    let shim = Shim::new(&host, &mock, "held");
    let reply = shim.start(&Input::Bootstrap);
    let mut client = shim.connect(&reply);
    let sentry = client.create(&bundle).expect("create").pid;
    client.start("").expect("start");
    let socket = host.outside(reply.path());
    let ask = || Figures::ask_at(&socket, "held");
    let running = ask().expect("it runs");
    assert_eq!(running.type_url, expected_type());
    assert!(running.memory > 4 * MIB && running.cpu > 0, "{running:?}");

    process::signal(sentry, Signal::SIGSTOP);
    let stopped = ask().expect("it is stopped");
    assert!(
        stopped.cpu >= running.cpu && stopped.memory > 4 * MIB,
        "{stopped:?}"
    );
    process::signal(sentry, Signal::SIGCONT);

    process::signal(sentry, Signal::SIGKILL);
    assert_eq!(client.wait("").expect("wait").exit_status, 137);
    let last = ask().expect("it is not deleted");
    assert!(last.cpu >= stopped.cpu, "{last:?}");
    assert!(last.most_memory >= running.memory, "{last:?}");
    assert_eq!(
        last.network.keys().collect::<Vec<_>>(),
        running.network.keys().collect::<Vec<_>>()
    );
    client.delete("").expect("delete");
    assert_eq!(ask().expect_err("it is deleted").code, code::NOT_FOUND);
    let _answered_or_gone = client.shutdown();
}

#[test]
fn devices_are_told_each_once() {
    let Some((host, mock)) = MockContainerd::in_corner() else {
        return;
    };
    let Some((name, major, minor)) = a_disk() else {
        return skip("no block device is here");
    };
    let node = |path: &str, kind: &str, major: u32, minor: u32| json!({ "path": path, "type": kind, "major": major, "minor": minor });
    let linux = json!({
        "cgroupsPath": format!("/{}/given", host.name()),
        "devices": [
            node("/dev/disk", "b", major, minor),
            node("/dev/again", "b", major, minor),
            node("/dev/full", "c", 1, 7),
        ],
        "namespaces": [
            { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
            { "type": "mount" }, { "type": "network" },
        ],
    });
    let settings = host.directory().join("rampart.toml");
    fs::write(&settings, "metrics_interval = 1\n").expect("write the settings");
    let program = ["sleep", "1000"];
    let bundle = bundle::make(&host, host.name(), "given", &program, &[("linux", linux)]);
    let shim = Shim::new(&host, &mock, "given");
    let reply = shim.start(&Input::Bootstrap);
    let mut client = shim.connect(&reply);
    create_with(&mut client, "given", &bundle, &settings);
    client.start("").expect("start");
    let devices: Devices = wait::until_some("an event of devices", || {
        own_message(&mock, "/tasks/devices", "rampart.v1.Devices")
    });
    let instances: Vec<_> = devices
        .groups
        .iter()
        .flat_map(|group| &group.instances)
        .collect();
    let of = |id: &str| instances.iter().find(|one| one.id == id);
    let disk = of("/dev/disk").expect("it was given");
    assert_eq!((disk.major, disk.minor), (major, minor));
    assert!(disk.block().reads > 0, "{name} was read at least at boot");
    assert!(of("/dev/again").is_none(), "the same disk is told twice");
    let reason = of("/dev/full").expect("it was given").missing();
    assert!(reason.contains("character"), "{reason:?}");
    assert!(of("lo").is_some_and(|lo| lo.has_network()), "{devices}");
    client.kill("", 9).expect("kill");
    client.wait("").expect("wait");
    client.delete("").expect("delete");
    let _answered_or_gone = client.shutdown();
}

/// containerd puts the nodes of a CDI device into the spec without a word of where
/// they come from; the specification tells whose they are.
#[test]
fn a_device_of_cdi_keeps_its_name() {
    let Some(containerd) = Containerd::with_settings(Version::V2_4, "metrics_interval = 1\n")
    else {
        return;
    };
    let vendor = format!("{}.example", containerd.host().name());
    let specification = json!({
        "cdiVersion": "0.5.0",
        "kind": format!("{vendor}/sink"),
        "devices": [{ "name": "first", "containerEdits": { "deviceNodes": [
            { "path": "/dev/sink", "hostPath": "/dev/full" },
        ] } }],
        "containerEdits": { "env": ["SINK=/dev/sink"] },
    });
    // The test's containerd has a /run of its own.
    let directory = containerd.host().outside("/run/cdi");
    fs::create_dir_all(&directory).expect("make the directory of CDI");
    fs::write(directory.join("sink.json"), specification.to_string()).expect("write it");
    let events = containerd.events();
    let pod = containerd.run_pod("given", &Value::Null);
    let name = format!("{vendor}/sink=first");
    let wanted = json!({ "CDI_devices": [{ "name": name }] });
    let id = containerd.run_in_pod(&pod, "given", &["sleep", "1000"], &wanted);
    assert_eq!(
        containerd
            .crictl(&["exec", &id, "sh", "-c", "echo $SINK"])
            .ok(),
        "/dev/sink",
        "containerd did not give the device"
    );
    let event = events.wait_for("devices", &id);
    let message = any_of_event(&event.data).expect("it holds a message");
    assert_eq!(message.type_url, "rampart.v1.Devices");
    let devices = Devices::parse_from_bytes(&message.value).expect("it is what it says");
    let group = devices
        .groups
        .iter()
        .find(|group| group.vendor == vendor)
        .unwrap_or_else(|| panic!("no device of {vendor}: {devices}"));
    assert_eq!(
        (group.type_.as_str(), group.name.as_str()),
        ("sink", "first")
    );
    let ids: Vec<_> = group.instances.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["/dev/sink"]);
    containerd.remove_pod(&pod);
}

#[test]
fn the_limit_that_was_hit_is_told_before_the_kill() {
    let Some((host, mock)) = MockContainerd::in_corner() else {
        return;
    };
    let linux = json!({
        "cgroupsPath": format!("/{}/hungry", host.name()),
        "resources": { "memory": { "limit": 64 * MIB } },
        "namespaces": [
            { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
            { "type": "mount" }, { "type": "network" },
        ],
    });
    let program = ["busybox", "sh", "-c", HUNGRY_OF_BUSYBOX];
    let bundle = bundle::make(&host, host.name(), "hungry", &program, &[("linux", linux)]);
    let shim = Shim::new(&host, &mock, "hungry");
    let reply = shim.start(&Input::Bootstrap);
    let mut client = shim.connect(&reply);
    client.create(&bundle).expect("create");
    client.start("").expect("start");
    assert_eq!(client.wait("").expect("wait").exit_status, 137);
    mock.wait_for("exit", "hungry");
    let cause: OutOfMemory =
        own_message(&mock, "/rampart/oom", "rampart.v1.OutOfMemory").expect("the cause is told");
    assert_eq!(cause.level, Level::SANDBOX.into(), "{cause}");
    assert_eq!(cause.limit, 64 * MIB, "{cause}");
    assert_eq!(cause.cgroup, format!("/{}/hungry", host.name()));
    let topics: Vec<_> = mock.recorded().into_iter().map(|one| one.topic).collect();
    let at = |wanted: &str| topics.iter().position(|topic| topic == wanted);
    assert!(at("/rampart/oom") < at("/tasks/oom"), "{topics:?}");
    assert!(at("/tasks/oom") < at("/tasks/exit"), "{topics:?}");
    client.delete("").expect("delete");
    let _answered_or_gone = client.shutdown();
}

#[test]
fn nothing_is_pushed_while_nothing_moves() {
    let Some((host, mock)) = MockContainerd::in_corner() else {
        return;
    };
    let settings = host.directory().join("rampart.toml");
    let text = "metrics_interval = 1\nmetrics_threshold = 20\n";
    fs::write(&settings, text).expect("write the settings");
    let busy = "while :; do :; done";
    let programs = [
        ("busy", &["busybox", "sh", "-c", busy][..]),
        ("idle", &["sleep", "1000"]),
    ];
    let mut clients = programs.map(|(id, program)| {
        let bundle = bundle::make(&host, host.name(), id, program, &[]);
        let shim = Shim::new(&host, &mock, id);
        let mut client = shim.connect(&shim.start(&Input::Bootstrap));
        create_with(&mut client, id, &bundle, &settings);
        client.start("").expect("start");
        client
    });
    let count = |id: &str| {
        let of = |one: &integration::mock::Recorded| {
            one.topic == "/tasks/metrics" && one.container == id
        };
        mock.recorded().into_iter().filter(of).count()
    };
    // Its start shows in some.
    let mut from = (count("busy"), count("idle"));
    wait::until("the idle one to be still", || {
        let now = (count("busy"), count("idle"));
        if now.1 != from.1 {
            from = now;
        }
        now.1 >= 1 && now.0 >= from.0 + 5
    });
    for client in &mut clients {
        client.kill("", 9).expect("kill");
        client.wait("").expect("wait");
        client.delete("").expect("delete");
        let _answered_or_gone = client.shutdown();
    }
}

/// As [`HUNGRY`] in a bundle that has few links.
const HUNGRY_OF_BUSYBOX: &str = "busybox dd if=/dev/zero of=/dev/null bs=200M count=1000000";

/// The first message of ours on a topic.
fn own_message<M: Message>(mock: &MockContainerd, topic: &str, type_url: &str) -> Option<M> {
    let envelopes = mock.envelopes();
    let envelope = envelopes.iter().find(|one| one.topic == topic)?;
    let event = envelope.event.get_or_default();
    assert_eq!(event.type_url, "containerd.types.Metric");
    let metric = Metric::parse_from_bytes(&event.value).expect("it is a Metric");
    assert_eq!(metric.data.type_url, type_url);
    Some(M::parse_from_bytes(&metric.data.value).expect("it is what it says"))
}

/// Some disk of this machine and its number.
fn a_disk() -> Option<(String, u32, u32)> {
    let mut disks = fs::read_dir("/sys/block").ok()?.flatten();
    disks.find_map(|disk| {
        let number = fs::read_to_string(disk.path().join("dev")).ok()?;
        let stat = fs::read_to_string(disk.path().join("stat")).ok()?;
        let used = stat.split_whitespace().next()? != "0";
        let (major, minor) = number.trim().split_once(':')?;
        let name = disk.file_name().to_string_lossy().into_owned();
        used.then_some((name, major.parse().ok()?, minor.parse().ok()?))
    })
}

#[test]
fn events_wait_in_order_and_in_bounds_while_containerd_is_away() {
    let Some((host, mut mock)) = MockContainerd::in_corner() else {
        return;
    };
    let settings = host.directory().join("rampart.toml");
    fs::write(&settings, "metrics_interval = 1\n").expect("write the settings");
    let bundle = bundle::make(&host, host.name(), "away", &["sleep", "1000"], &[]);
    let shim = Shim::new(&host, &mock, "away");
    let reply = shim.start(&Input::Bootstrap);
    let mut client = shim.connect(&reply);
    create_with(&mut client, "away", &bundle, &settings);
    client.start("").expect("start");
    wait::until("figures after the start", || {
        // Then the start has been acknowledged, and will not be sent again.
        let recorded = mock.recorded();
        let start = recorded.iter().position(|one| one.topic == "/tasks/start");
        let figures = recorded
            .iter()
            .rposition(|one| one.topic == "/tasks/metrics");
        start.is_some() && start < figures
    });
    let pid = client.identify().expect("connect").shim_pid;
    let socket = host.outside(reply.path());

    mock.stop();
    let (since, before) = (Instant::now(), resident(pid));
    let names: Vec<String> = (0..10).map(|number| format!("e{number}")).collect();
    for name in &names {
        // Nothing waits for containerd.
        client.exec(name, &["true"]).expect("exec");
        client.start(name).expect("start an exec");
        client.wait(name).expect("wait for an exec");
        client.delete(name).expect("delete an exec");
    }
    wait::until("twenty seconds without containerd", || {
        let figures = Figures::ask_at(&socket, "away").expect("it runs");
        assert!(figures.memory > 0);
        assert!(
            resident(pid) < before + 16 * MIB,
            "{} of {before}",
            resident(pid)
        );
        since.elapsed() >= Duration::from_secs(20)
    });
    client.kill("", 9).expect("kill");
    client.wait("").expect("wait");
    client.delete("").expect("delete");
    mock.listen();
    mock.wait_for("delete", "away");
    let mut expected: Vec<&str> = vec!["create", "start"];
    for _ in &names {
        expected.extend(["exec-added", "exec-started", "exit"]);
    }
    expected.extend(["exit", "delete"]);
    assert_eq!(mock.topics("away"), expected);
    let _answered_or_gone = client.shutdown();
}

#[test]
fn nothing_waits_for_a_containerd_that_stands_still_1_6() {
    nothing_waits_for_a_containerd_that_stands_still(Version::V1_6);
}

#[test]
fn nothing_waits_for_a_containerd_that_stands_still_2_4() {
    nothing_waits_for_a_containerd_that_stands_still(Version::V2_4);
}

/// Its sockets are open, so that events are sent, and nobody takes them.
fn nothing_waits_for_a_containerd_that_stands_still(version: Version) {
    let Some(containerd) = Containerd::with_settings(version, "metrics_interval = 1\n") else {
        return;
    };
    let events = containerd.events();
    containerd.run_detached("held", &["sleep", "1000"]);
    events.wait_for("start", "held");
    let bundle = containerd.bundle("held");
    let mut client = TaskClient::of_bundle(containerd.host(), &bundle, "held");
    let pid = client.identify().expect("connect").shim_pid;
    let ask = || Figures::ask(&containerd, containerd.namespace(), "held", "held");

    containerd.stand_still();
    let (since, before) = (Instant::now(), resident(pid));
    let names = ["e0", "e1", "e2"];
    for name in names {
        client.exec(name, &["true"]).expect("exec");
        client.start(name).expect("start an exec");
        client.wait(name).expect("wait for an exec");
        client.delete(name).expect("delete an exec");
    }
    wait::until("several tries to tell an event", || {
        assert!(ask().expect("it runs").memory > 0);
        let now = resident(pid);
        assert!(now < before + 16 * MIB, "{now} of {before}");
        since.elapsed() >= Duration::from_secs(20)
    });
    client.kill("", 9).expect("kill");
    client.wait("").expect("wait");
    containerd.go_on();

    let of = |wanted: &str, process: &str| (format!("/tasks/{wanted}"), process.to_owned());
    let mut expected = vec![of("create", ""), of("start", "")];
    for name in names {
        expected.extend(["exec-added", "exec-started", "exit"].map(|topic| of(topic, name)));
    }
    expected.push(of("exit", "held"));
    events.wait_where("the exit of the container", |event| {
        (event.topic.clone(), event.process().to_owned()) == expected[expected.len() - 1]
    });
    // What was sent to the one who stood still is sent again, so it may come twice.
    let mut first = Vec::new();
    for event in events.of("held") {
        let event = (event.topic.clone(), event.process().to_owned());
        if expected.contains(&event) && !first.contains(&event) {
            first.push(event);
        }
    }
    assert_eq!(first, expected);
    containerd.remove("held");
}

/// Creates a container as [`TaskClient::create`] does, with a file of settings.
fn create_with(client: &mut TaskClient, id: &str, bundle: &Path, settings: &Path) -> u32 {
    let options = protos::runtimeoptions::Options {
        config_path: settings.to_string_lossy().into_owned(),
        ..Default::default()
    };
    let options = Any {
        type_url: "runtimeoptions.v1.Options".to_owned(),
        value: options.write_to_bytes().expect("options are complete"),
        ..Any::default()
    };
    let request = CreateTaskRequest {
        id: id.to_owned(),
        bundle: bundle.to_string_lossy().into_owned(),
        options: Some(options).into(),
        ..CreateTaskRequest::default()
    };
    let answer: CreateTaskResponse = client
        .raw()
        .call(TASK_V2, "Create", &request)
        .expect("create");
    answer.pid
}

fn assert_sane(text: &str) {
    let mut numbers = BTreeMap::new();
    for word in text
        .split(|c: char| !c.is_ascii_digit())
        .filter(|word| word.len() >= 19)
    {
        // Timestamps of today have 19 digits; what underflowed has 20.
        if let Ok(number) = word.parse::<u64>() {
            numbers.insert(number, word);
        }
    }
    let odd: Vec<_> = numbers.keys().filter(|number| **number > 1 << 62).collect();
    assert!(odd.is_empty(), "{odd:?} in {text}");
}

/// A figure of CRI: an object with a decimal number as text.
fn value(figure: &Value) -> u64 {
    figure["value"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn pid_of_pod(containerd: &Containerd, pod: &str) -> u32 {
    let text = containerd.crictl(&["inspectp", pod]).ok();
    let status: Value = serde_json::from_str(&text).expect("crictl prints JSON");
    let pid = status["info"]["pid"].as_u64().expect("a pod has a pid");
    pid.try_into().expect("a pid is small")
}

/// The memory cgroup of a process.
fn cgroup_of(pid: u32) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let line = text
        .lines()
        .find(|line| {
            line.split(':')
                .nth(1)
                .is_some_and(|names| names.split(',').any(|name| name == "memory"))
        })
        .or_else(|| text.lines().find(|line| line.starts_with("0::")));
    let path = line
        .and_then(|line| line.splitn(3, ':').nth(2))
        .expect("it has a cgroup");
    let root = if cgroups::is_unified() {
        "/sys/fs/cgroup"
    } else {
        "/sys/fs/cgroup/memory"
    };
    PathBuf::from(format!("{root}{path}"))
}

/// CPU time of a process, and of its children that it has waited for, in
/// nanoseconds and steps of 10 ms.
fn cpu_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks * 10_000_000
}

/// Memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the shim runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.expect("a process has memory") * 1024
}

/// Whether a directory is on a block device, where writes are counted.
fn on_disk(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = fs::metadata(directory)
        .expect("the directory is there")
        .dev();
    let (major, minor) = (nix::libc::major(device), nix::libc::minor(device));
    Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
}

/// Whether somebody listens at a TCP port in the test's network.
fn listens(host: &Host, port: u16) -> bool {
    let listing = process::run(
        host.command("busybox").args(["netstat", "-ltn"]),
        wait::LIMIT,
    )
    .ok();
    listing.contains(&format!(":{port} "))
}
