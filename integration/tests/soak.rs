//! Hours in minutes: pods one after the other, pods beside each other, and one shim
//! that lives through all that a pod can go through. Not part of `make test`; `make
//! soak` runs it, and environment variables shorten it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use integration::containerd::{Containerd, Version};
use integration::inventory::Inventory;
use integration::mock::MockContainerd;
use integration::shim::{Input, Shim, TaskClient};
use integration::{bundle, wait};
use serde_json::json;

/// By how much a shim's memory may differ at the end, in KiB: what its allocator
/// keeps or gives back.
const NOISE: u64 = 1024;

/// A number from the environment, so that the soak can be shortened.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}"))
    })
}

/// The longest that each kind of call took until its right answer.
#[derive(Default)]
struct Longest(Mutex<Vec<(&'static str, Duration)>>);

impl Longest {
    fn time<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let answer = work();
        let took = begin.elapsed();
        let mut all = self.0.lock().expect("nobody panics with it");
        match all.iter_mut().find(|(name, _)| *name == what) {
            Some((_, longest)) => *longest = took.max(*longest),
            None => all.push((what, took)),
        }
        answer
    }

    fn print(&self) {
        for (what, longest) in self.0.lock().expect("nobody panics with it").iter() {
            eprintln!("  longest {what}: {} ms", longest.as_millis());
        }
    }
}

#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn pods() {
    let Some(containerd) = Containerd::start(Version::V2_4) else {
        return;
    };
    // What containerd, CNI and the first pod make once.
    whole_life(&containerd, "first", &Longest::default());
    let before = Inventory::take(containerd.host());

    let count = setting("SOAK_PODS", 200);
    let longest = Longest::default();
    for number in 0..count {
        whole_life(&containerd, &format!("row{number}"), &longest);
    }
    eprintln!("{count} pods in a row:");
    longest.print();
    before.assert_same(containerd.host());

    let at_once = setting("SOAK_AT_ONCE", 10);
    let seconds = setting("SOAK_SECONDS", 600);
    let longest = Longest::default();
    let (lived, end) = (
        AtomicUsize::new(0),
        Instant::now() + Duration::from_secs(seconds),
    );
    thread::scope(|scope| {
        for lane in 0..at_once {
            let (containerd, longest, lived) = (&containerd, &longest, &lived);
            scope.spawn(move || {
                for number in 0.. {
                    if Instant::now() > end {
                        break;
                    }
                    whole_life(containerd, &format!("lane{lane}-{number}"), longest);
                    lived.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let lived = lived.into_inner();
    eprintln!("{lived} pods, {at_once} at a time, in {seconds} s:");
    longest.print();
    before.assert_same(containerd.host());
    eprintln!("nothing is left of them");
}

/// A pod from its making to its removal, with a container that runs, one that ends
/// by itself, and an exec.
fn whole_life(containerd: &Containerd, name: &str, longest: &Longest) {
    let status = name.len() % 7 + 1;
    let script = format!("exit {status}");
    let pod = longest.time("start of a pod", || containerd.run_pod(name, &json!({})));
    let inside = |suffix: &str, program: &[&str]| {
        let name = format!("{name}-{suffix}");
        longest.time("start of a container", || {
            containerd.run_in_pod(&pod, &name, program, &json!({}))
        })
    };
    let long = inside("long", &["sleep", "1000"]);
    let short = inside("short", &["sh", "-c", &script]);
    let exec = longest.time("exec", || {
        containerd.crictl(&["exec", &long, "sh", "-c", &script])
    });
    let told = format!("exit code {status}");
    assert!(
        exec.stderr.contains(&told),
        "{name}: no {told}: {}",
        exec.stderr
    );
    let ended = wait::within(wait::LIMIT, || {
        let output = containerd.crictl(&["inspect", &short]).ok();
        let value: serde_json::Value = serde_json::from_str(&output).expect("it is JSON");
        let is_over = value["status"]["state"] == "CONTAINER_EXITED";
        is_over.then(|| value["status"]["exitCode"].as_u64().unwrap_or(0))
    });
    assert_eq!(ended, Some(status as u64), "{name}: status of {short}");
    longest.time("stop and removal of a pod", || containerd.remove_pod(&pod));
}

#[test]
#[ignore = "takes minutes: make soak"]
fn one_shim() {
    let reason = "it drives Rampart's shim directly";
    let Some((host, mock)) = MockContainerd::for_rampart(reason) else {
        return;
    };
    let before = Inventory::take(&host);
    let annotations = |kind: &str| {
        json!({
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.sandbox-id": "pod",
        })
    };
    for (id, kind) in [("pod", "sandbox"), ("member", "container")] {
        let more = [("annotations", annotations(kind))];
        bundle::make(&host, host.name(), id, &["sleep", "100000"], &more);
    }
    let shim = Shim::new(&host, &mock, "pod");
    let reply = shim.start(&Input::Bootstrap);
    let mut pod = shim.connect(&reply);
    pod.create(shim.bundle()).expect("create the sandbox");
    pod.start("").expect("start the sandbox");
    let pid = pod.identify().expect("it serves").shim_pid;
    let members = bundle::path(&host, host.name(), "member");
    let mut member = shim.connect(&reply).of("member");

    let rounds = setting("SOAK_ROUNDS", 400);
    let longest = Longest::default();
    let mut early = (0, 0);
    for round in 0..rounds {
        // Its buffers and tables have come to their size by then.
        if round == rounds / 4 {
            early = weigh(pid);
        }
        one_round(&mut pod, &mut member, &members, round, &longest);
    }
    let late = weigh(pid);
    eprintln!("{rounds} rounds of one shim:");
    longest.print();
    eprintln!(
        "  memory {} KiB, then {} KiB; descriptors {}, then {}",
        early.0, late.0, early.1, late.1
    );
    assert!(
        late.0 <= early.0 + NOISE,
        "its memory grows: {early:?} to {late:?} KiB"
    );
    // It has some open for a moment now and then.
    wait::until("its descriptors to be no more than early", || {
        weigh(pid).1 <= early.1
    });

    pod.kill("", 9).expect("kill the sandbox");
    pod.wait("").expect("wait for it");
    pod.delete("").expect("delete the sandbox");
    pod.end_shim();
    for id in ["pod", "member"] {
        let bundle = bundle::path(&host, host.name(), id);
        fs::remove_dir_all(bundle).expect("remove the bundle");
    }
    before.assert_same_but(&host, |line| {
        ["/run/containerd", "/run/containerd/s", "/run/rampart"]
            .iter()
            .any(|made| line == format!("file {made}"))
    });
}

fn one_round(
    pod: &mut TaskClient,
    member: &mut TaskClient,
    bundle: &std::path::Path,
    round: u64,
    longest: &Longest,
) {
    longest.time("start of a container", || {
        member.create(bundle).expect("create a container");
        member.start("").expect("start a container");
    });
    for client in [&mut *pod, &mut *member] {
        let status = u32::try_from(round % 100).expect("it is small");
        let script = format!("exit {status}");
        longest.time("exec", || {
            client.exec("exec", &["sh", "-c", &script]).expect("exec");
            client.start("exec").expect("start of exec");
            let exit = client.wait("exec").expect("wait for exec");
            assert_eq!(exit.exit_status, status, "round {round}");
            client.delete("exec").expect("delete of exec");
        });
        longest.time("stats", || client.stats().expect("stats"));
        longest.time("pids", || client.pids().expect("pids"));
    }
    longest.time("kill and delete of a container", || {
        member.kill("", 9).expect("kill a container");
        let exit = member.wait("").expect("wait for a container");
        assert_eq!(exit.exit_status, 137, "round {round}");
        member.delete("").expect("delete a container");
    });
}

/// Resident memory in KiB and open descriptors of a process.
fn weigh(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let memory = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
        .expect("the kernel tells its memory");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    (memory, descriptors.count())
}
