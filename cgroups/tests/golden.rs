//! The statistics of real kernels, recorded in `golden/` by `golden/record`,
//! read to the right numbers in the right units.
//!
//! `v1` is a hybrid host of Linux 6.18, `v2` a host of Linux 6.1.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use cgroups::stats::{
    HugePages, IoDevice, MemoryEvents, OomControl, PidsStats, PressureLine, Usage,
};
use cgroups::{Bytes, Cgroup, Host, Limit, Mode, Nanos, Stats};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The recorded cgroup `/g` of a host whose mounts are directories of `golden`.
fn cgroup(directory: &str, mounts: &[(&str, &str)]) -> (Host, Cgroup) {
    let root = golden().join(directory);
    let proc = tempfile::tempdir().unwrap();
    fs::create_dir(proc.path().join("self")).unwrap();
    let line = |(mount, kind): &(&str, &str)| {
        let at = root.join(mount);
        let at = at
            .display()
            .to_string()
            .trim_end_matches('/')
            .replace(' ', "\\040");
        format!("1 0 0:1 / {at} rw - {kind} none rw,{mount}\n")
    };
    let mountinfo: String = mounts.iter().map(line).collect();
    fs::write(proc.path().join("self/mountinfo"), mountinfo).unwrap();
    let host = Host::at(&root, proc.path()).unwrap();
    let cgroup = Cgroup::new(&host, Path::new("/g")).unwrap();
    (host, cgroup)
}

fn v1() -> (Host, Cgroup) {
    let controllers = ["cpu", "cpuacct", "memory", "pids", "blkio"].map(|c| (c, "cgroup"));
    cgroup(
        "v1",
        &[&controllers[..], &[("unified", "cgroup2")]].concat(),
    )
}

fn v2() -> (Host, Cgroup) {
    cgroup("v2", &[("", "cgroup2")])
}

const VDA: (u32, u32) = (254, 0);

#[test]
fn v1_to_the_digit() {
    let (host, cgroup) = v1();
    assert_eq!(host.mode(), Mode::Hybrid);
    let stats = cgroup.stats();

    assert_eq!(stats.cpu.usage, Some(Nanos(2_357_703_240)));
    assert_eq!(
        stats.cpu.per_cpu,
        [Nanos(834_165_542), Nanos(1_523_537_698)]
    );
    assert_eq!(
        (stats.cpu.user, stats.cpu.system),
        (Some(Nanos(2_100_000_000)), Some(Nanos(250_000_000)))
    );
    assert_eq!(
        (stats.cpu.periods, stats.cpu.throttled_periods),
        (Some(50), Some(43))
    );
    assert_eq!(stats.cpu.throttled_time, Some(Nanos(1_652_808_943)));
    assert_eq!(
        (stats.cpu.bursts, stats.cpu.burst_time),
        (Some(0), Some(Nanos(0)))
    );
    // Pressure is counted on the version 2 side, in microseconds.
    assert_eq!(
        stats.cpu.pressure.unwrap().some,
        Some(PressureLine {
            avg10: 9.75,
            avg60: 1.92,
            avg300: 0.4,
            total: Nanos(1_473_769_000)
        })
    );
    assert_eq!(
        stats.memory.pressure.unwrap().full.unwrap().total,
        Nanos(9_836_000)
    );
    assert_eq!(
        stats.io_pressure.unwrap().some.unwrap().total,
        Nanos(5_557_000)
    );

    let limit = Some(Limit::Of(Bytes(100_663_296)));
    let memory = &stats.memory;
    let expected = |usage, max, limit, failcnt| Usage {
        usage: Some(Bytes(usage)),
        max_usage: Some(Bytes(max)),
        limit,
        failcnt: Some(failcnt),
    };
    assert_eq!(memory.memory, expected(68_349_952, 100_663_296, limit, 104));
    assert_eq!(
        memory.swap,
        expected(68_349_952, 100_925_440, Some(Limit::Unlimited), 0)
    );
    assert_eq!(memory.kernel.usage, Some(Bytes(409_600)));
    assert_eq!(memory.kernel.limit, Some(Limit::Unlimited));
    assert!(memory.kernel_tcp.usage.is_some());
    assert_eq!(
        (memory.get("rss"), memory.get("total_rss")),
        (Some(67_801_088), Some(67_801_088))
    );
    assert_eq!(memory.get("hierarchical_memory_limit"), Some(100_663_296));
    assert_eq!(memory.get("total_inactive_file"), Some(4096));
    assert_eq!(memory.working_set(), Some(Bytes(68_349_952 - 4096)));
    assert_eq!(
        memory.oom_control,
        Some(OomControl {
            oom_kill_disable: 0,
            under_oom: 0,
            oom_kill: Some(1)
        })
    );
    assert_eq!(memory.events, None);
    assert_eq!(cgroup.oom_kills(), Some(1));
    assert_eq!(
        stats.pids,
        PidsStats {
            current: Some(3),
            limit: Some(Limit::Of(100))
        }
    );

    // BFQ's files are there and empty: the throttling layer has counted.
    let bytes: Vec<_> = stats
        .blkio
        .service_bytes
        .iter()
        .map(|e| (e.op.as_str(), e.value))
        .collect();
    let expected = [
        ("Read", 20_480),
        ("Write", 8_388_608),
        ("Sync", 8_409_088),
        ("Async", 0),
        ("Discard", 0),
        ("Total", 8_409_088),
    ];
    assert_eq!(bytes, expected);
    assert_eq!(stats.blkio.serviced.len(), 6);
    assert!(stats.blkio.queued.is_empty() && stats.blkio.sectors.is_empty());
    assert_eq!(stats.io, [device(20_480, 8_388_608, 5, 16)]);
}

#[test]
fn v2_to_the_digit() {
    let (host, cgroup) = v2();
    assert_eq!(host.mode(), Mode::Unified);
    let stats = cgroup.stats();

    assert_eq!(stats.cpu.usage, Some(Nanos(15_177_739_000)));
    assert_eq!(
        (stats.cpu.user, stats.cpu.system),
        (Some(Nanos(2_493_446_000)), Some(Nanos(12_684_293_000)))
    );
    assert_eq!(
        (stats.cpu.periods, stats.cpu.throttled_periods),
        (Some(308), Some(300))
    );
    assert_eq!(stats.cpu.throttled_time, Some(Nanos(22_275_449_000)));
    assert!(stats.cpu.per_cpu.is_empty());
    let pressure = stats.cpu.pressure.unwrap();
    assert_eq!(
        pressure.some,
        Some(PressureLine {
            avg10: 41.77,
            avg60: 17.04,
            avg300: 4.24,
            total: Nanos(13_429_305_000)
        })
    );
    assert_eq!(pressure.full.unwrap().total, Nanos(11_775_857_000));
    assert_eq!(
        stats.memory.pressure.unwrap().some.unwrap().total,
        Nanos(162_373_000)
    );
    assert_eq!(
        stats.io_pressure.unwrap().full.unwrap().total,
        Nanos(22_513_000)
    );

    let memory = &stats.memory;
    assert_eq!(memory.memory.usage, Some(Bytes(69_586_944)));
    assert_eq!(memory.memory.max_usage, Some(Bytes(100_663_296)));
    assert_eq!(memory.memory.limit, Some(Limit::Of(Bytes(100_663_296))));
    // memory.swap.peak came with Linux 6.5.
    assert_eq!(
        (memory.swap.usage, memory.swap.max_usage),
        (Some(Bytes(0)), None)
    );
    assert_eq!(memory.swap.limit, Some(Limit::Unlimited));
    assert_eq!(memory.kernel, Usage::default());
    let events = MemoryEvents {
        low: 0,
        high: 0,
        max: 123,
        oom: 1,
        oom_kill: 1,
        oom_group_kill: 0,
    };
    assert_eq!(memory.events, Some(events));
    assert_eq!(memory.oom_control, None);
    assert_eq!(cgroup.oom_kills(), Some(1));
    for (key, value) in [
        ("anon", 69_083_136),
        ("file", 126_976),
        ("kernel_stack", 32_768),
        ("inactive_file", 81_920),
        ("pgfault", 42_336),
        ("workingset_activate_file", 5),
        ("thp_collapse_alloc", 13),
    ] {
        assert_eq!(memory.get(key), Some(value), "{key}");
    }
    assert_eq!(memory.working_set(), Some(Bytes(69_586_944 - 81_920)));
    assert_eq!(
        stats.pids,
        PidsStats {
            current: Some(3),
            limit: Some(Limit::Of(100))
        }
    );
    assert_eq!(stats.io, [device(790_528, 8_388_608, 33, 8)]);
    assert_eq!(stats.blkio, Stats::default().blkio);
    let pages = |size: &str| HugePages {
        size: size.into(),
        usage: Some(Bytes(0)),
        max_usage: None,
        limit: Some(Limit::Unlimited),
        failcnt: Some(0),
    };
    assert_eq!(stats.hugetlb, [pages("1GB"), pages("2MB")]);
    assert!(stats.rdma_current.is_empty());
}

#[test]
fn limits_are_those_recorded() {
    for (_, cgroup) in [v1(), v2()] {
        let limits = cgroup.limits_in_force();
        assert_eq!(limits.memory, Limit::Of(Bytes(100_663_296)));
        let quota = limits.cpu.value().unwrap();
        assert_eq!(
            (quota.quota.0, quota.period.0, quota.cpus()),
            (50_000, 100_000, 1)
        );
    }
}

#[test]
fn what_is_not_there_is_absent() {
    for (host, _) in [v1(), v2()] {
        let cgroup = Cgroup::new(&host, Path::new("/none")).unwrap();
        assert_eq!(cgroup.stats(), Stats::default());
        assert_eq!(cgroup.oom_kills(), None);
        assert_eq!(cgroup.pids().unwrap(), []);
        assert!(!cgroup.exists());
    }
}

fn device(read_bytes: u64, write_bytes: u64, reads: u64, writes: u64) -> IoDevice {
    IoDevice {
        major: VDA.0,
        minor: VDA.1,
        read_bytes,
        write_bytes,
        reads,
        writes,
    }
}
