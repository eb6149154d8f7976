//! The crate against the kernel it runs on, whatever its hierarchy: cgroups are
//! made, joined, limited, measured, killed and removed.
//!
//! It needs root and a writable cgroup file system, and says so where it has
//! not. The program is its own inhabitant: run as `live inhabitant JOB DIR…` it
//! enters the directories and does its job there. Words on the command line
//! choose tests by name.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program fails by panicking and says how it goes"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cgroups::systemd::{self, Property};
use cgroups::{
    Cgroup, CgroupPath, Created, Error, Host, Limit, Limits, Mode, OomWatch, Origin, Resources,
    await_membership, enter, membership, verify_membership,
};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use oci_spec::runtime::LinuxResources;

type Test = fn(&Host);

const TESTS: &[(&str, Test)] = &[
    ("what_is_made_is_removed", what_is_made_is_removed),
    (
        "a_failed_create_leaves_nothing",
        a_failed_create_leaves_nothing,
    ),
    (
        "a_process_is_inside_everywhere",
        a_process_is_inside_everywhere,
    ),
    ("a_failed_enter_goes_back", a_failed_enter_goes_back),
    ("nested_paths_are_not_doubled", nested_paths_are_not_doubled),
    (
        "a_read_only_file_system_is_named",
        a_read_only_file_system_is_named,
    ),
    ("another_may_move_the_process", another_may_move_the_process),
    (
        "limits_are_written_and_updated",
        limits_are_written_and_updated,
    ),
    ("a_refused_value_is_named", a_refused_value_is_named),
    (
        "an_outside_cpuset_is_left_alone",
        an_outside_cpuset_is_left_alone,
    ),
    (
        "the_tightest_limit_is_in_force",
        the_tightest_limit_is_in_force,
    ),
    ("a_fork_bomb_is_killed", a_fork_bomb_is_killed),
    ("frozen_processes_stand_still", frozen_processes_stand_still),
    ("the_caller_is_not_killed", the_caller_is_not_killed),
    ("an_oom_kill_is_seen", an_oom_kill_is_seen),
    ("usage_is_counted", usage_is_counted),
    ("block_io_is_counted", block_io_is_counted),
    ("runc_writes_the_same", runc_writes_the_same),
    ("systemd_agrees", systemd_agrees),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "inhabitant"
    {
        return inhabit(rest);
    }
    let chosen: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let host = match Host::detect() {
        Ok(host) if writable(&host) => host,
        Ok(_) => return skip("root and a writable cgroup file system are needed"),
        Err(error) => return skip(&error.to_string()),
    };
    println!(
        "live: {:?} host, systemd {}",
        host.mode(),
        host.systemd_running()
    );
    let mut failed = 0;
    for (name, test) in TESTS {
        if !chosen.is_empty() && !chosen.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let outcome = panic::catch_unwind(|| test(&host));
        let left = ours();
        let ok = outcome.is_ok() && left.is_empty();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        if !left.is_empty() {
            println!("  left behind: {left:?}");
        }
        failed += u32::from(!ok);
    }
    println!("live: {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn skip(reason: &str) -> ExitCode {
    println!("live: skipped: {reason}");
    ExitCode::SUCCESS
}

fn writable(host: &Host) -> bool {
    host.hierarchies().iter().all(|h| {
        let probe = h.mount.join(format!("{}-probe", prefix()));
        fs::create_dir(&probe).is_ok() && fs::remove_dir(&probe).is_ok()
    })
}

// The tests.

fn what_is_made_is_removed(host: &Host) {
    let first = Place::new(host, "pod/first");
    let hierarchies = host.hierarchies().len();
    assert_eq!(first.created.directories().len(), 3 * hierarchies);
    assert_eq!(first.cgroup.directories().len(), hierarchies);
    assert!(first.cgroup.directories().iter().all(|d| d.is_dir()));
    assert!(first.cgroup.exists());

    let second = Place::new(host, "pod/second");
    assert_eq!(
        second.created.directories().len(),
        hierarchies,
        "the parents are there already"
    );
    let again = first.cgroup.create().unwrap();
    assert_eq!(again.directories(), [] as [PathBuf; 0]);

    // As another process does it: from stored directories. The pod stays while
    // the second container is in it, and goes with that one, which did not make
    // it. What others have made below goes along.
    let stored = Created::from_directories(first.created.directories().to_vec());
    stored.remove().unwrap();
    assert!(!first.cgroup.exists());
    assert!(second.cgroup.exists());
    for directory in second.cgroup.directories() {
        fs::create_dir(directory.join("nested")).unwrap();
    }
    second.created.remove().unwrap();
    assert_eq!(ours(), BTreeSet::new());

    // A parent that others have made stays.
    let theirs: Vec<PathBuf> = host
        .hierarchies()
        .iter()
        .map(|h| h.mount.join(prefix()))
        .collect();
    theirs.iter().for_each(|d| fs::create_dir(d).unwrap());
    drop(Place::new(host, "pod/third"));
    assert!(theirs.iter().all(|d| d.is_dir()));
    theirs.iter().for_each(|d| fs::remove_dir(d).unwrap());
}

fn a_failed_create_leaves_nothing(host: &Host) {
    // The kernel refuses a line break in a name.
    let cgroup = Cgroup::new(host, &path("pod/a\nb")).unwrap();
    let error = cgroup.create().unwrap_err();
    assert!(
        matches!(&error, Error::Create { path, .. } if path.ends_with("pod/a\nb")),
        "{error}"
    );
    assert_eq!(ours(), BTreeSet::new());

    let Some(v2) = host
        .hierarchies()
        .iter()
        .find(|h| h.version == cgroups::Version::V2)
    else {
        return;
    };
    // A hierarchy that is full: the last one in hybrid mode, so that all the
    // others have been made before.
    let pod = Place::new(host, "pod");
    let directory = v2.mount.join(path("pod").strip_prefix("/").unwrap());
    fs::write(directory.join("cgroup.max.descendants"), "1").unwrap();
    let error = Cgroup::new(host, &path("pod/a/b"))
        .unwrap()
        .create()
        .unwrap_err();
    assert!(error.to_string().contains("make cgroup"), "{error}");
    assert!(
        pod.cgroup
            .directories()
            .iter()
            .all(|d| !d.join("a").exists())
    );
}

fn a_process_is_inside_everywhere(host: &Host) {
    let place = Place::new(host, "c");
    if host.hierarchies().iter().all(|h| h.root != Path::new("/")) {
        assert_eq!(host.own_cgroup().unwrap(), Path::new("/self"), "in a nest");
    }
    let parent = Inhabitant::new("fork 2", &place.cgroup);
    let pid = parent.pid();
    verify_membership(pid, &place.cgroup.directories()).unwrap();
    for (hierarchy, found) in membership(pid).unwrap() {
        // Hierarchies that are not mounted here have a line too.
        let mounted = host
            .hierarchies()
            .iter()
            .find(|h| h.controllers.join(",") == hierarchy || hierarchy.is_empty());
        assert!(
            mounted
                .is_none_or(|h| found.ends_with(place.cgroup.path()) || h.root != Path::new("/")),
            "{found:?}"
        );
    }
    let pids = place.cgroup.pids().unwrap();
    assert_eq!(pids.len(), 3, "{pids:?}");
    assert!(pids.contains(&pid));
    for pid in &pids {
        verify_membership(*pid, &place.cgroup.directories()).unwrap();
    }
    let error = verify_membership(Pid::this(), &place.cgroup.directories()).unwrap_err();
    assert!(matches!(error, Error::NotInside { .. }), "{error}");
    // What is in use is not removed, and the error names who.
    let error = place.created.remove().unwrap_err().to_string();
    assert!(error.contains("holds 3 processes"), "{error}");
    place.cgroup.kill(soon()).unwrap();
    assert_eq!(parent.wait().signal(), Some(9));
}

fn a_failed_enter_goes_back(host: &Host) {
    let place = Place::new(host, "c");
    let before = membership(Pid::this()).unwrap();
    let mut directories = place.cgroup.directories();
    directories.last_mut().unwrap().push("not-there");
    let error = enter(&directories).unwrap_err();
    assert!(
        matches!(&error, Error::Write { path, .. } if path.ends_with("not-there/cgroup.procs")),
        "{error}"
    );
    assert_eq!(membership(Pid::this()).unwrap(), before);
    assert_eq!(place.cgroup.pids().unwrap(), []);

    if host.mode() == Mode::Unified {
        // An inner cgroup cannot hold processes.
        let inner = Place::new(host, "pod/c");
        let error = enter(&inner.cgroup.parent().unwrap().directories()).unwrap_err();
        assert!(error.to_string().contains("busy"), "{error}");
        assert_eq!(membership(Pid::this()).unwrap(), before);
    }
}

/// In a container's view: the mounts show a part of the hierarchies only, once
/// without and once with a cgroup namespace.
fn nested_paths_are_not_doubled(host: &Host) {
    let place = Place::new(host, "nest/self");
    for job in ["nest", "nest-namespace"] {
        match Inhabitant::spawn(job, &place.cgroup).wait().code() {
            Some(0) => {}
            Some(127) => println!("  skipped: there is no unshare in the PATH"),
            other => panic!("{job}: {other:?}"),
        }
    }
}

/// What the two jobs of that test run, in there. In its own namespace on
/// version 2 the process is in the root that it sees, so nothing below can have
/// controllers: only the first ones.
const NESTED_TESTS: [&str; 5] = [
    "what_is_made_is_removed",
    "a_failed_create_leaves_nothing",
    "a_process_is_inside_everywhere",
    "limits_are_written_and_updated",
    "an_oom_kill_is_seen",
];

fn a_read_only_file_system_is_named(host: &Host) {
    let place = Place::new(host, "c");
    match Inhabitant::spawn("read-only", &place.cgroup).wait().code() {
        Some(0) => {}
        Some(127) => println!("  skipped: there is no unshare in the PATH"),
        other => panic!("{other:?}"),
    }
}

fn another_may_move_the_process(host: &Host) {
    let place = Place::new(host, "c");
    let error = await_membership(&place.cgroup.directories(), Instant::now()).unwrap_err();
    assert!(matches!(error, Error::NotInside { .. }), "{error}");
    let mut waiting = Inhabitant::spawn("await", &place.cgroup);
    for directory in place.cgroup.directories() {
        fs::write(directory.join("cgroup.procs"), waiting.pid().to_string()).unwrap();
    }
    waiting.expect("ready");
    assert_eq!(place.cgroup.pids().unwrap(), [waiting.pid()]);
}

fn limits_are_written_and_updated(host: &Host) {
    let place = Place::new(host, "c");
    let read = |file: &str| place.read(file);
    place.apply(r#"{"cpu":{"shares":4096,"quota":50000,"period":100000},"memory":{"limit":134217728},"pids":{"limit":77}}"#);
    match host.mode() {
        Mode::Unified => {
            assert_eq!(read("cpu.weight"), "303");
            assert_eq!(read("cpu.max"), "50000 100000");
            assert_eq!(read("memory.max"), "134217728");
        }
        Mode::Legacy | Mode::Hybrid => {
            assert_eq!(read("cpu.shares"), "4096");
            assert_eq!(
                (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")),
                ("50000".into(), "100000".into())
            );
            assert_eq!(read("memory.limit_in_bytes"), "134217728");
        }
    }
    assert_eq!(read("pids.max"), "77");

    // To the byte, as Nomad asks.
    for bytes in [34_603_008_u64, 23_068_672, 11_534_336] {
        place.apply(&format!(r#"{{"memory":{{"limit":{bytes}}}}}"#));
        let file = if host.mode() == Mode::Unified {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        assert_eq!(read(file), bytes.to_string());
    }
    assert_eq!(read("pids.max"), "77", "what is not set stays");

    // Raising and lowering memory and swap together, in every order, and a
    // period that does not fit the old quota.
    if place.has_swap(host) {
        for (limit, swap) in [
            (64, 128),
            (256, 512),
            (32, 32),
            (100, -1),
            (16, 48),
            (-1, -1),
            (8, 16),
        ] {
            let mib = |n: i64| if n < 0 { n } else { n << 20 };
            place.apply(&format!(
                r#"{{"memory":{{"limit":{},"swap":{}}}}}"#,
                mib(limit),
                mib(swap)
            ));
        }
    } else {
        println!("  no swap accounting here: memory and swap are not tried together");
    }
    place.apply(r#"{"cpu":{"quota":900000,"period":1000000}}"#);
    place.apply(r#"{"cpu":{"quota":-1}}"#);
    place.apply(r#"{"memory":{"limit":-1},"pids":{"limit":-1}}"#);
    assert_eq!(place.cgroup.limits_in_force().memory, Limit::Unlimited);
    assert_eq!(read("pids.max"), "max");
    assert_eq!(place.cgroup.stats().pids.limit, Some(Limit::Unlimited));

    let pages = ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"];
    let there = |file: &&str| {
        place
            .cgroup
            .directories()
            .iter()
            .any(|d| d.join(file).exists())
    };
    if pages.iter().any(there) {
        // On a hybrid host this may be a controller of the version 2 side.
        place.apply(r#"{"hugepageLimits":[{"pageSize":"2MB","limit":4194304}]}"#);
        let stats = place.cgroup.stats();
        let pages = stats.hugetlb.iter().find(|h| h.size == "2MB").unwrap();
        assert_eq!(pages.limit, Some(Limit::Of(cgroups::Bytes(4_194_304))));
    }
}

fn a_refused_value_is_named(host: &Host) {
    let place = Place::new(host, "c");
    let error = place
        .try_apply(r#"{"cpu":{"cpus":"4000"}}"#)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"4000\"") && error.contains("cpuset.cpus"),
        "{error}"
    );
    let error = place
        .try_apply(r#"{"rdma":{"none":{"hcaHandles":1}}}"#)
        .unwrap_err()
        .to_string();
    assert!(error.contains("rdma"), "{error}");
    let inhabitant = Inhabitant::new("eat 16777216 stay", &place.cgroup);
    let error = place
        .try_apply(r#"{"memory":{"limit":4194304,"checkBeforeUpdate":true}}"#)
        .unwrap_err();
    assert!(
        matches!(error, Error::BelowUsage { limit: 4_194_304, usage, .. } if usage >= 16_777_216),
        "{error}"
    );
    drop(inhabitant);
}

fn an_outside_cpuset_is_left_alone(host: &Host) {
    // As Nomad does: the directory is there before us, and its cpuset is
    // rewritten while the task runs.
    let outside = Place::new(host, "nomad.slice/1-2.web.scope");
    outside.apply(r#"{"cpu":{"cpus":"0"}}"#);
    let cgroup = Cgroup::new(host, outside.cgroup.path()).unwrap();
    assert_eq!(cgroup.create().unwrap().directories(), [] as [PathBuf; 0]);
    assert_eq!(outside.read("cpuset.cpus"), "0");
    let inhabitant = Inhabitant::new("stay", &cgroup);
    outside.apply(r#"{"memory":{"limit":134217728},"cpu":{"shares":512}}"#);
    assert_eq!(outside.read("cpuset.cpus"), "0");
    assert_eq!(cgroup.limits_in_force().cpus, Some(1));
    drop(inhabitant);
    Created::default().remove().unwrap();
    assert!(cgroup.exists(), "what others made stays");
}

fn the_tightest_limit_is_in_force(host: &Host) {
    let place = Place::new(host, "pod/c");
    let pod = place.cgroup.parent().unwrap();
    let limits = place.cgroup.limits_in_force();
    assert_eq!(
        (limits.memory, limits.cpu),
        (Limit::Unlimited, Limit::Unlimited)
    );
    assert!(limits.cpus.is_some_and(|n| n >= 1));
    pod.apply(&resources(
        r#"{"memory":{"limit":67108864},"cpu":{"quota":150000,"period":100000}}"#,
    ))
    .unwrap();
    place.apply(r#"{"memory":{"limit":50331648}}"#);
    let limits = place.cgroup.limits_in_force();
    let quota = |limits: Limits| limits.cpu.value().map(|q| (q.quota.0, q.period.0));
    assert_eq!(limits.memory, Limit::Of(cgroups::Bytes(50_331_648)));
    assert_eq!(quota(limits), Some((150_000, 100_000)));
    place.apply(r#"{"cpu":{"quota":10000,"period":10000}}"#);
    let limits = place.cgroup.limits_in_force();
    assert_eq!(quota(limits), Some((10_000, 10_000)));
    assert_eq!(
        pod.limits_in_force().memory,
        Limit::Of(cgroups::Bytes(67_108_864))
    );
    // Before it is made, what is above it binds.
    let unmade = Cgroup::new(host, &path("pod/c/none/yet")).unwrap();
    assert_eq!(unmade.limits_in_force(), limits);
}

fn a_fork_bomb_is_killed(host: &Host) {
    let place = Place::new(host, "c");
    // So that the test harms nobody: each dies and leaves two, up to this.
    place.apply(r#"{"pids":{"limit":100}}"#);
    let bomb = Inhabitant::new("bomb", &place.cgroup);
    until("the bomb has spread", || {
        place.cgroup.pids().unwrap().len() > 10
    });
    place
        .cgroup
        .kill(Instant::now() + Duration::from_secs(60))
        .unwrap();
    assert_eq!(place.cgroup.pids().unwrap(), []);
    drop(bomb);
    place.created.remove().unwrap();
    place.cgroup.kill(soon()).unwrap();
}

fn frozen_processes_stand_still(host: &Host) {
    let place = Place::new(host, "c");
    let burner = Inhabitant::new("burn 3600000", &place.cgroup);
    let usage = || place.cgroup.stats().cpu.usage.unwrap();
    let start = usage();
    until("it burns", || usage() > start);
    place.cgroup.freeze(soon()).unwrap();
    let frozen = usage();
    let sooner = Instant::now() + Duration::from_millis(50);
    while Instant::now() < sooner {
        assert_eq!(usage(), frozen);
    }
    place.cgroup.thaw().unwrap();
    until("it burns again", || usage() > frozen);
    place.cgroup.freeze(soon()).unwrap();
    // A frozen group can be killed.
    place.cgroup.kill(soon()).unwrap();
    assert_eq!(burner.wait().signal(), Some(9));
}

fn the_caller_is_not_killed(host: &Host) {
    let place = Place::new(host, "c");
    let suicidal = Inhabitant::spawn("kill-self", &place.cgroup);
    let status = suicidal.wait();
    assert_eq!(status.code(), Some(0));
}

fn an_oom_kill_is_seen(host: &Host) {
    let pod = Place::new(host, "pod");
    let place = Place::new(host, "pod/c");
    // Without swap, so that the limit means something.
    let limit = if place.has_swap(host) {
        r#""limit":33554432,"swap":33554432"#
    } else {
        r#""limit":33554432"#
    };
    place.apply(&format!(r#"{{"memory":{{{limit}}}}}"#));
    let watch = OomWatch::over(&[&place.cgroup, &pod.cgroup]).unwrap();
    assert_eq!(watch.kills(), [Some(0), Some(0)]);
    for round in 1..=3 {
        // Leftovers of the round before: the end of a process wakes, too.
        watch.drain().unwrap();
        let eater = Inhabitant::spawn("eat 134217728", &place.cgroup);
        let mut wakes = 0;
        until("the watch wakes up for a kill", || {
            let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::from(1000_u16)).unwrap() == 1 {
                assert!(watch.drain().unwrap());
                wakes += 1;
            }
            wakes > 0 && place.cgroup.oom_kills() == Some(round)
        });
        assert_eq!(eater.wait().signal(), Some(9));
        assert_eq!(watch.kills(), [Some(round), Some(round)]);
    }
    let memory = place.cgroup.stats().memory;
    match host.mode() {
        Mode::Unified => assert_eq!(memory.events.map(|e| e.oom_kill), Some(3)),
        Mode::Legacy | Mode::Hybrid => {
            assert_eq!(memory.oom_control.and_then(|o| o.oom_kill), Some(3));
        }
    }
    place.created.remove().unwrap();
    assert_eq!(watch.kills(), [None, pod.cgroup.oom_kills()]);
    watch.drain().unwrap();
}

fn usage_is_counted(host: &Host) {
    let place = Place::new(host, "c");
    place.apply(r#"{"memory":{"limit":268435456},"cpu":{"quota":20000,"period":100000},"pids":{"limit":50}}"#);
    let idle = place.cgroup.stats();
    assert_eq!(idle.pids.current, Some(0));
    assert!(idle.cpu.usage.unwrap().0 < 1_000_000, "{idle:?}");

    const EATEN: u64 = 64 << 20;
    let eater = Inhabitant::new(&format!("eat {EATEN} stay"), &place.cgroup);
    let burner = Inhabitant::spawn("burn 400", &place.cgroup);
    assert_eq!(burner.wait().code(), Some(0));
    let stats = place.cgroup.stats();
    // The burner counts its own CPU time, so neither load nor throttling can
    // make it less.
    let cpu = &stats.cpu;
    assert!(cpu.usage.unwrap().0 >= 400_000_000, "{cpu:?}");
    assert!(cpu.user.is_some() && cpu.system.is_some(), "{cpu:?}");
    assert!(
        cpu.periods.unwrap() > 0 && cpu.throttled_periods.unwrap() > 0,
        "{cpu:?}"
    );
    assert!(cpu.throttled_time.unwrap().0 > 1_000_000, "{cpu:?}");

    let memory = &stats.memory;
    let used = memory.memory.usage.unwrap().0;
    assert!((EATEN..EATEN + (32 << 20)).contains(&used), "{used}");
    assert!(memory.working_set().unwrap().0 >= EATEN, "{memory:?}");
    assert_eq!(
        memory.memory.limit,
        Some(Limit::Of(cgroups::Bytes(268_435_456)))
    );
    let anon = memory
        .get(if host.mode() == Mode::Unified {
            "anon"
        } else {
            "total_rss"
        })
        .unwrap();
    assert!((EATEN..EATEN + (32 << 20)).contains(&anon), "{anon}");
    assert_eq!(
        (stats.pids.current, stats.pids.limit),
        (Some(1), Some(Limit::Of(50)))
    );
    match host.mode() {
        Mode::Unified => {
            assert!(memory.events.is_some() && memory.oom_control.is_none());
            assert!(cpu.pressure.is_some() == Path::new("/proc/pressure/cpu").exists());
        }
        Mode::Legacy | Mode::Hybrid => {
            assert!(
                memory.memory.max_usage.unwrap().0 >= used && memory.memory.failcnt == Some(0),
                "{memory:?}"
            );
            assert!(memory.oom_control.is_some() && memory.events.is_none());
            assert!(!cpu.per_cpu.is_empty());
        }
    }
    drop(eater);
    until("the memory is given back", || {
        place.cgroup.stats().memory.memory.usage.unwrap().0 < EATEN
    });

    // A cgroup that is gone has no figures, and that is no error.
    place.created.remove().unwrap();
    assert_eq!(place.cgroup.stats(), cgroups::Stats::default());
    assert_eq!(place.cgroup.oom_kills(), None);
}

fn block_io_is_counted(host: &Host) {
    const WRITTEN: u64 = 8 << 20;
    let place = Place::new(host, "c");
    place.cgroup.count_block_io();
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let job = format!("write {WRITTEN} {}", file.path().display());
    let most = || {
        place
            .cgroup
            .stats()
            .io
            .into_iter()
            .max_by_key(|d| d.write_bytes)
    };
    match Inhabitant::spawn(&job, &place.cgroup).wait().code() {
        Some(0) => {}
        Some(3) => return println!("  skipped: /var/tmp is on a file system without O_DIRECT"),
        other => panic!("{other:?}"),
    }
    let device = most().unwrap();
    assert!(
        (WRITTEN..WRITTEN * 5 / 4).contains(&device.write_bytes),
        "{device:?}"
    );
    assert!(device.writes > 0, "{device:?}");
    if host.mode() != Mode::Unified {
        let blkio = place.cgroup.stats().blkio;
        let entry = blkio
            .service_bytes
            .iter()
            .find(|e| e.op == "Write" && e.major == device.major)
            .unwrap();
        assert!(entry.device.starts_with("/dev/"), "{entry:?}");
    }
}

fn disks() -> Vec<(u32, u32)> {
    let partitions = fs::read_to_string("/proc/partitions").unwrap();
    cgroups::stats::parse::partitions(&partitions)
        .into_keys()
        .collect()
}

/// runc as an oracle: for the same resources it and this crate leave the same
/// values in the same files.
fn runc_writes_the_same(host: &Host) {
    if Command::new("runc").arg("--version").output().is_err() {
        return println!("  skipped: there is no runc in the PATH");
    }
    let probe = Place::new(host, "probe");
    let swap = probe.has_swap(host);
    let weight = [
        "blkio.weight",
        "blkio.bfq.weight",
        "io.weight",
        "io.bfq.weight",
    ];
    let weight = weight.iter().any(|file| {
        probe
            .cgroup
            .directories()
            .iter()
            .any(|d| d.join(file).exists())
    });
    drop(probe);
    let mut specs = vec![
        r#"{}"#.to_owned(),
        r#"{"cpu":{"shares":4096},"memory":{"limit":134217728}}"#.to_owned(),
        r#"{"cpu":{"shares":2,"quota":50000,"period":200000}}"#.to_owned(),
        r#"{"cpu":{"quota":-1}}"#.to_owned(),
        r#"{"cpu":{"period":50000}}"#.to_owned(),
        r#"{"cpu":{"quota":12345}}"#.to_owned(),
        r#"{"cpu":{"cpus":"0","mems":"0"}}"#.to_owned(),
        r#"{"memory":{"limit":34603008,"reservation":16777216}}"#.to_owned(),
        r#"{"memory":{"limit":-1,"reservation":-1}}"#.to_owned(),
        r#"{"pids":{"limit":77}}"#.to_owned(),
        r#"{"pids":{"limit":-1}}"#.to_owned(),
    ];
    if swap {
        specs.push(r#"{"memory":{"limit":33554432,"swap":67108864}}"#.to_owned());
        specs.push(r#"{"memory":{"limit":33554432,"swap":33554432}}"#.to_owned());
        specs.push(r#"{"memory":{"limit":33554432,"swap":-1}}"#.to_owned());
    }
    if let Some((major, minor)) = disks().first() {
        let throttle = format!(r#"[{{"major":{major},"minor":{minor},"rate":1048576}}]"#);
        specs.push(format!(
            r#"{{"blockIO":{{"throttleReadBpsDevice":{throttle},"throttleWriteIOPSDevice":{throttle}}}}}"#
        ));
    }
    match weight {
        true => specs.push(r#"{"blockIO":{"weight":500}}"#.to_owned()),
        false => println!("  no weights of block I/O here (no BFQ): they are not compared"),
    }
    match host.mode() {
        Mode::Unified => {
            specs.push(r#"{"unified":{"memory.high":"33554432","pids.max":"55"}}"#.to_owned());
        }
        Mode::Legacy | Mode::Hybrid => {
            specs.push(r#"{"memory":{"swappiness":30,"disableOOMKiller":true}}"#.to_owned());
        }
    }
    for spec in &specs {
        let ours = Place::new(host, "ours");
        ours.apply(spec);
        let oracle = Runc::create(host, spec);
        let mut compared = 0;
        for (ours, theirs) in ours
            .cgroup
            .directories()
            .iter()
            .zip(oracle.cgroup.directories())
        {
            for entry in fs::read_dir(ours).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                if name.starts_with("cpu.weight")
                    || !LIMITS.iter().any(|l| name.contains(l))
                    || name.contains(".kmem")
                    || name.contains("usage")
                {
                    continue;
                }
                let value = |directory: &Path| fs::read_to_string(directory.join(&name)).ok();
                assert_eq!(value(ours), value(&theirs), "{name} for {spec}");
                compared += 1;
            }
        }
        assert!(compared >= 8, "{compared} files compared");
    }
    println!("  {} specs compared", specs.len());
}

/// systemd as an oracle: it takes the properties, puts the unit where this crate
/// says, and writes the values that this crate would write into the files.
fn systemd_agrees(host: &Host) {
    if !host.systemd_running() {
        return println!("  skipped: systemd does not run here");
    }
    let version = said_by(Command::new("busctl").args([
        "get-property",
        MANAGER[0],
        MANAGER[1],
        MANAGER[2],
        "Version",
    ]));
    let version = systemd::version(version.trim_start_matches("s ")).unwrap();
    let id = std::process::id();
    let origin = Origin::of(host).unwrap();
    let mut compared = 0;
    for (path, json) in [
        (
            format!("system.slice:live:{id}"),
            r#"{"cpu":{"shares":4096,"quota":123456},"memory":{"limit":134217728}}"#,
        ),
        (
            format!("live{id}-a-b.slice::c"),
            r#"{"pids":{"limit":77},"cpu":{"quota":50000,"period":50000}}"#,
        ),
        (
            format!(r"live{id}-x\x2dy.slice:p:a.scope"),
            r#"{"memory":{"limit":67108864,"reservation":33554432}}"#,
        ),
        (
            format!("live{id}.slice:p:q"),
            r#"{"cpu":{"cpus":"0","mems":"0"},"pids":{"limit":-1}}"#,
        ),
        (
            format!(":p:live{id}"),
            r#"{"memory":{"limit":-1},"cpu":{"quota":-1}}"#,
        ),
    ] {
        let CgroupPath::Unit { slice, unit, path } =
            CgroupPath::parse(Some(&path), "id", &origin).unwrap()
        else {
            panic!("{path} is no unit");
        };
        let resources = resources(json);
        let mut properties = systemd::unit_properties(&unit, &slice, "a test", host.mode());
        properties.extend(resources.properties(version, host.mode(), true).unwrap());
        let cgroup = Cgroup::new(host, &path).unwrap();
        // systemd does not manage the others on version 1.
        let managed = ["cpu", "memory", "blkio", "pids", "name=systemd"];
        let directories: Vec<PathBuf> = host
            .hierarchies()
            .iter()
            .zip(cgroup.directories())
            .filter(|(h, _)| h.version == cgroups::Version::V2 || managed.iter().any(|c| h.has(c)))
            .map(|(_, directory)| directory)
            .collect();

        let mut inhabitant = Inhabitant::spawn_in("await", &directories);
        let mut start = Command::new("busctl");
        start.args(["--", "call"]).args(MANAGER).args([
            "StartTransientUnit",
            "ssa(sv)a(sa(sv))",
            &unit,
            "replace",
        ]);
        start.arg((properties.len() + 1).to_string());
        for (name, value) in &properties {
            start.arg(name).args(on_the_bus(value));
        }
        said_by(start.args(["PIDs", "au", "1", &inhabitant.pid().to_string(), "0"]));
        inhabitant.expect("ready");
        let found = said_by(Command::new("systemctl").args([
            "show",
            "--property=ControlGroup",
            "--value",
            "--",
            &unit,
        ]));
        assert_eq!(Path::new(found.trim()), path);

        // What systemd has no property for on this host is not compared.
        let rounded = resources.rounded_for_systemd();
        let files = match host.mode() {
            Mode::Unified => rounded.files_v2(|_| false).unwrap(),
            Mode::Legacy | Mode::Hybrid => rounded.files_v1(|_| true).unwrap(),
        };
        for (file, value) in files {
            let theirs = directories
                .iter()
                .find_map(|d| fs::read_to_string(d.join(&file)).ok());
            let unmanaged = ["cpuset.", "memory.soft", "memory.memsw", "cpu.cfs_period"];
            if host.mode() != Mode::Unified && unmanaged.iter().any(|u| file.starts_with(u)) {
                continue;
            }
            let theirs = theirs.unwrap_or_else(|| panic!("no {file} in {directories:?}"));
            // systemd has no quota beyond 2^63 and no limit beyond the memory.
            let unlimited =
                value == "-1" && theirs.trim().parse::<u64>().is_ok_and(|n| n > 1 << 62);
            assert!(
                theirs.trim() == value || unlimited,
                "{file} of {unit}: {theirs} and not {value}"
            );
            compared += 1;
        }
        // The rest of the hierarchies is ours.
        let created = cgroup.create().unwrap();
        assert_eq!(
            created.directories().is_empty(),
            host.mode() == Mode::Unified,
            "{created:?}"
        );
        cgroup.apply(&rounded).unwrap();
        cgroup.kill(soon()).unwrap();
        assert_eq!(inhabitant.wait().signal(), Some(9));
        created.remove().unwrap();
        until("the scope is gone", || !cgroup.exists());
    }
    said_by(Command::new("systemctl").args(["stop", "--", &format!("live{id}.slice")]));
    let failed = said_by(Command::new("systemctl").args([
        "list-units",
        "--failed",
        "--plain",
        "--no-legend",
    ]));
    assert!(!failed.contains("live"), "{failed}");
    for hierarchy in host.hierarchies() {
        let slice = hierarchy.mount.join(format!("live{id}.slice"));
        until("the slice is gone", || !slice.exists());
    }
    println!("  {compared} files compared");
}

const MANAGER: [&str; 3] = [
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
];

/// What a command says; it must succeed.
fn said_by(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A value in busctl's notation: its type and its words.
fn on_the_bus(value: &Property) -> Vec<String> {
    let list = |kind: &str, items: Vec<String>| {
        [vec![kind.to_owned(), items.len().to_string()], items].concat()
    };
    let one = |kind: &str, text: String| vec![kind.to_owned(), text];
    match value {
        Property::Bool(value) => one("b", value.to_string()),
        Property::I32(value) => one("i", value.to_string()),
        Property::I64(value) => one("x", value.to_string()),
        Property::U32(value) => one("u", value.to_string()),
        Property::U64(value) => one("t", value.to_string()),
        Property::Str(value) => one("s", value.clone()),
        Property::Strings(items) => list("as", items.clone()),
        Property::Bytes(items) => list("ay", items.iter().map(u8::to_string).collect()),
    }
}

/// Parts of names of files with limits. `cpu.weight` is not among them: runc
/// before 1.3.2 has another scale.
const LIMITS: [&str; 17] = [
    "cpu.max",
    "cpu.shares",
    "cpu.cfs_",
    "cpu.idle",
    "cpuset.cpus",
    "cpuset.mems",
    "limit_in_bytes",
    "swappiness",
    "oom_control",
    "memory.max",
    "memory.low",
    "memory.high",
    "memory.swap.max",
    "pids.max",
    "weight",
    "_bps_device",
    "_iops_device",
];

// What the tests are made of.

/// All cgroups of this run begin so, and are told from those of others.
fn prefix() -> String {
    format!("rampart-live-{}", std::process::id())
}

fn path(name: &str) -> PathBuf {
    Path::new("/").join(prefix()).join(name)
}

/// What is left of this run in any hierarchy.
fn ours() -> BTreeSet<PathBuf> {
    let mut left = BTreeSet::new();
    for hierarchy in Host::detect().unwrap().hierarchies() {
        let entries = fs::read_dir(&hierarchy.mount).unwrap().flatten();
        left.extend(entries.map(|e| e.path()).filter(|p| p.ends_with(prefix())));
    }
    left
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn resources(json: &str) -> Resources {
    Resources::try_from(&serde_json::from_str::<LinuxResources>(json).unwrap()).unwrap()
}

/// A cgroup that goes with the test.
struct Place {
    cgroup: Cgroup,
    created: Created,
}

impl Place {
    fn new(host: &Host, name: &str) -> Self {
        let origin = Origin::of(host).unwrap();
        let path = CgroupPath::parse(path(name).to_str(), "id", &origin).unwrap();
        let cgroup = Cgroup::new(host, path.path()).unwrap();
        let created = cgroup.create().unwrap();
        Self { cgroup, created }
    }

    fn try_apply(&self, json: &str) -> Result<(), Error> {
        self.cgroup.apply(&resources(json))
    }

    #[track_caller]
    fn apply(&self, json: &str) {
        self.try_apply(json).unwrap();
    }

    /// A file, wherever it is.
    fn read(&self, file: &str) -> String {
        let found = self
            .cgroup
            .directories()
            .iter()
            .find_map(|d| fs::read_to_string(d.join(file)).ok());
        found
            .unwrap_or_else(|| panic!("no {file}"))
            .trim()
            .to_owned()
    }

    fn has_swap(&self, host: &Host) -> bool {
        let file = if host.mode() == Mode::Unified {
            "memory.swap.max"
        } else {
            "memory.memsw.limit_in_bytes"
        };
        self.cgroup
            .directories()
            .iter()
            .any(|d| d.join(file).exists())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let killed = self.cgroup.kill(soon());
        let removed = self.created.remove();
        if !std::thread::panicking() {
            killed.unwrap();
            removed.unwrap();
        }
    }
}

/// A process in a cgroup, this program again. Killed if it has not ended.
struct Inhabitant {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Inhabitant {
    /// Starts a job and waits until it is at work.
    fn new(job: &str, cgroup: &Cgroup) -> Self {
        let mut inhabitant = Self::spawn(job, cgroup);
        inhabitant.expect("ready");
        inhabitant
    }

    fn spawn(job: &str, cgroup: &Cgroup) -> Self {
        Self::spawn_in(job, &cgroup.directories())
    }

    fn spawn_in(job: &str, directories: &[PathBuf]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("inhabitant")
            .arg(job)
            .args(directories)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Inhabitant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container that runc has created and not started.
struct Runc {
    root: tempfile::TempDir,
    id: String,
    cgroup: Cgroup,
}

impl Runc {
    fn create(host: &Host, resources: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let bundle = root.path().join("bundle");
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        // Never run, but runc looks whether it is there.
        let program = bundle.join("rootfs/init");
        drop(
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o755)
                .open(program)
                .unwrap(),
        );
        let resources: serde_json::Value = serde_json::from_str(resources).unwrap();
        let cgroup = Cgroup::new(host, &path("oracle")).unwrap();
        let config = serde_json::json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/init"], "cwd": "/"},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}],
                "cgroupsPath": cgroup.path(),
                "resources": resources,
            },
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let runc = Self {
            id: prefix(),
            root,
            cgroup,
        };
        let mut create = runc.command("create");
        create.arg("--bundle").arg(&bundle).arg(&runc.id);
        let log = fs::File::create(runc.root.path().join("err")).unwrap();
        let status = create
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .unwrap();
        let said = fs::read_to_string(runc.root.path().join("err")).unwrap();
        assert!(status.success(), "runc create for {resources}: {said}");
        runc
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new("runc");
        command
            .arg("--root")
            .arg(self.root.path().join("state"))
            .arg(verb);
        command
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        let output = self.command("delete").arg("--force").arg(&self.id).output();
        let parent = self.cgroup.parent().unwrap();
        // runc leaves the parent that the tests have in common.
        for directory in self
            .cgroup
            .directories()
            .iter()
            .chain(&parent.directories())
        {
            let _ = fs::remove_dir(directory);
        }
        if !std::thread::panicking() {
            let output = output.unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    }
}

// The inhabitant's side.

fn inhabit(arguments: &[String]) -> ExitCode {
    let (job, directories) = arguments.split_first().unwrap();
    let words: Vec<&str> = job.split(' ').collect();
    match words[..] {
        ["await"] => await_membership(directories, soon()).unwrap(),
        ["refused-all"] => {}
        _ => enter(directories).unwrap(),
    }
    match words[..] {
        ["stay" | "await"] => stay(),
        ["fork", count] => {
            let mut children: Vec<Child> = (0..count.parse().unwrap())
                .map(|_| again("stay", directories))
                .collect();
            for child in &mut children {
                let mut line = String::new();
                BufReader::new(child.stdout.as_mut().unwrap())
                    .read_line(&mut line)
                    .unwrap();
            }
            stay();
        }
        ["bomb"] => {
            println!("ready");
            loop {
                let mut bomb = Command::new(std::env::current_exe().unwrap());
                bomb.arg("inhabitant")
                    .arg("bomb")
                    .args(directories)
                    .stderr(Stdio::null())
                    .stdout(Stdio::null());
                // The limit on processes is reached at some time.
                let _ = bomb.spawn();
            }
        }
        ["eat", bytes, ref rest @ ..] => {
            let mut eaten = vec![0_u8; bytes.parse().unwrap()];
            eaten.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            assert_eq!(std::hint::black_box(&eaten)[0], 1);
            if rest == ["stay"] {
                stay();
            }
            drop(eaten);
        }
        ["burn", millis] => {
            println!("ready");
            let ticks = millis.parse::<u64>().unwrap().div_ceil(10) + 1;
            let mut n = 0_u64;
            while own_cpu_ticks() < ticks {
                for _ in 0..1_000_000 {
                    n = std::hint::black_box(n + 1);
                }
            }
        }
        ["nest"] => return in_new_mounts("--mount", "bind", directories, &NESTED_TESTS),
        ["nest-namespace"] => {
            let unified = Host::detect().unwrap().mode() == Mode::Unified;
            let tests = if unified {
                &NESTED_TESTS[..3]
            } else {
                &NESTED_TESTS[..]
            };
            return in_new_mounts("--mount --cgroup", "anew", directories, tests);
        }
        ["read-only"] => {
            return in_new_mounts(
                "--mount",
                "read-only",
                directories,
                &["inhabitant", "refused-all", "/"],
            );
        }
        ["refused-all"] => {
            let host = Host::detect().unwrap();
            let cgroup = Cgroup::new(&host, &path("x")).unwrap();
            let error = cgroup.create().unwrap_err().to_string();
            assert!(
                error.contains("make cgroup") && error.contains("Read-only"),
                "{error}"
            );
            let error = enter(&cgroup.parent().unwrap().directories())
                .unwrap_err()
                .to_string();
            assert!(error.contains("cgroup.procs"), "{error}");
            // What is not there is removed, also where nothing can be.
            Created::from_directories(cgroup.directories())
                .remove()
                .unwrap();
        }
        ["write", bytes, file] => return write_direct(Path::new(file), bytes.parse().unwrap()),
        ["kill-self"] => {
            let host = Host::detect().unwrap();
            let own = host.own_cgroup().unwrap();
            let own = Cgroup::new(&host, &own).unwrap();
            assert!(matches!(own.kill(soon()), Err(Error::HoldsCaller { .. })));
            assert!(matches!(own.freeze(soon()), Err(Error::HoldsCaller { .. })));
        }
        _ => panic!("no such job: {job}"),
    }
    ExitCode::SUCCESS
}

/// Says that it is at work, and stays until the parent is gone.
fn stay() {
    println!("ready");
    let _ = io::stdin().read(&mut [0]);
}

fn again(job: &str, directories: &[String]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg("inhabitant")
        .arg(job)
        .args(directories)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs this program again with other mounts of its hierarchies: the nest that
/// this process is in, mounted over each `bind`, or each mounted `anew` in the
/// process's own cgroup namespace, or each `read-only`.
fn in_new_mounts(unshare: &str, how: &str, directories: &[String], arguments: &[&str]) -> ExitCode {
    let host = Host::detect().unwrap();
    let mut script = "set -e; mount --make-rprivate /\n".to_owned();
    for (hierarchy, directory) in host.hierarchies().iter().zip(directories) {
        let mount = hierarchy.mount.display();
        let nest = Path::new(directory).parent().unwrap().display();
        let kind = match hierarchy.version {
            cgroups::Version::V2 => "-t cgroup2".to_owned(),
            cgroups::Version::V1 => match hierarchy.controllers.join(",") {
                name if name.starts_with("name=") => format!("-t cgroup -o none,{name}"),
                controllers => format!("-t cgroup -o {controllers}"),
            },
        };
        script += &match how {
            "bind" => format!("mount --bind {nest} {mount}\n"),
            "anew" => format!("umount {mount}; mount {kind} none {mount}\n"),
            _ => format!("mount --bind {mount} {mount}; mount -o remount,bind,ro {mount}\n"),
        };
    }
    script += "exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(unshare.split(' '))
        .args(["sh", "-c", &script, "sh"]);
    command
        .arg(std::env::current_exe().unwrap())
        .args(arguments);
    let Ok(output) = command.output() else {
        return ExitCode::from(127);
    };
    if output.status.success() {
        return ExitCode::SUCCESS;
    }
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let _ = writeln!(
        io::stderr(),
        "{how}: {}\n{}{}",
        output.status,
        said[0],
        said[1]
    );
    ExitCode::FAILURE
}

/// Hundredths of a second of CPU time of this process (proc_pid_stat(5)).
fn own_cpu_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|n| n.parse::<u64>().unwrap())
        .sum()
}

/// Past the page cache: writeback would be charged to someone else on v1.
fn write_direct(path: &Path, bytes: u64) -> ExitCode {
    const PAGE: usize = 4096;
    const BLOCK: usize = 1 << 20;
    let flags = OFlag::O_DIRECT.bits();
    let Ok(mut file) = fs::OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)
    else {
        return ExitCode::from(3);
    };
    let buffer = vec![7_u8; BLOCK + PAGE];
    let start = buffer.as_ptr().align_offset(PAGE);
    for _ in 0..bytes / BLOCK as u64 {
        if file.write_all(&buffer[start..start + BLOCK]).is_err() {
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}
