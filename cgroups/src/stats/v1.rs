//! Reading the statistics of version 1.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{BlkioEntry, BlkioStats, HugePages, IoDevice, Stats, Usage, parse, v2};
use crate::cgroup::v1::V1;
use crate::file::read_if_there;
use crate::units::{Bytes, Nanos};

/// `cpuacct.stat` counts in `USER_HZ`, which is 100 on every architecture that
/// Rust's standard library supports on Linux.
const TICK: u64 = 10_000_000;

impl V1 {
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // Controllers on the version 2 side of a hybrid host, and pressure,
        // which the kernel counts there whatever the controllers.
        if let Some(hierarchy) =
            crate::cgroup::tree::version_of(&self.hierarchies, crate::host::Version::V2).next()
        {
            stats = v2::read(&hierarchy.directory(&self.path));
        }
        if let Some(directory) = self.directory("cpuacct") {
            cpu_usage(&directory, &mut stats);
        }
        if let Some(directory) = self.directory("cpu") {
            throttling(&directory, &mut stats);
        }
        if let Some(directory) = self.directory("memory") {
            memory(&directory, &mut stats);
        }
        if let Some(directory) = self.directory("pids") {
            v2::pids(&directory, &mut stats);
        }
        if let Some(directory) = self.directory("blkio") {
            stats.blkio = blkio(&directory);
            stats.io = by_device(&stats.blkio);
        }
        if let Some(directory) = self.directory("hugetlb") {
            stats.hugetlb = huge_pages(&directory);
        }
        if let Some(directory) = self.directory("rdma") {
            v2::rdma(&directory, &mut stats);
        }
        stats
    }
}

fn cpu_usage(directory: &Path, stats: &mut Stats) {
    let read = |file: &str| read_if_there(&directory.join(file));
    let cpu = &mut stats.cpu;
    cpu.usage = read("cpuacct.usage")
        .and_then(|t| parse::number(&t))
        .map(Nanos);
    cpu.per_cpu = read("cpuacct.usage_percpu")
        .map(|t| parse::per_cpu(&t))
        .unwrap_or_default();
    let ticks = read("cpuacct.stat")
        .map(|t| parse::keyed(&t))
        .unwrap_or_default();
    let time = |key: &str| ticks.get(key).map(|n| Nanos(n.saturating_mul(TICK)));
    (cpu.user, cpu.system) = (time("user"), time("system"));
}

fn throttling(directory: &Path, stats: &mut Stats) {
    let map = read_if_there(&directory.join("cpu.stat"))
        .map(|t| parse::keyed(&t))
        .unwrap_or_default();
    let count = |key: &str| map.get(key).copied();
    let cpu = &mut stats.cpu;
    (cpu.periods, cpu.throttled_periods) = (count("nr_periods"), count("nr_throttled"));
    cpu.throttled_time = count("throttled_time").map(Nanos);
    (cpu.bursts, cpu.burst_time) = (count("nr_bursts"), count("burst_time").map(Nanos));
}

fn memory(directory: &Path, stats: &mut Stats) {
    let memory = &mut stats.memory;
    memory.stat = read_if_there(&directory.join("memory.stat"))
        .map(|t| parse::keyed(&t))
        .unwrap_or_default();
    memory.memory = usage(directory, "memory");
    memory.swap = usage(directory, "memory.memsw");
    memory.kernel = usage(directory, "memory.kmem");
    memory.kernel_tcp = usage(directory, "memory.kmem.tcp");
    memory.oom_control =
        read_if_there(&directory.join("memory.oom_control")).and_then(|t| parse::oom_control(&t));
}

fn usage(directory: &Path, stem: &str) -> Usage {
    let read = |end: &str| read_if_there(&directory.join(format!("{stem}.{end}")));
    let number = |end: &str| read(end).and_then(|t| parse::number(&t));
    Usage {
        usage: number("usage_in_bytes").map(Bytes),
        max_usage: number("max_usage_in_bytes").map(Bytes),
        limit: read("limit_in_bytes").and_then(|t| parse::limit_in_bytes(&t)),
        failcnt: number("failcnt"),
    }
}

/// Who counts depends on the scheduler of the device: BFQ, the CFQ of old
/// kernels, or only the throttling layer. The first that has anything is taken.
const BLKIO_SOURCES: [&str; 4] = [
    "blkio.bfq.*_recursive",
    "blkio.*_recursive",
    "blkio.throttle.*_recursive",
    "blkio.throttle.*",
];

fn blkio(directory: &Path) -> BlkioStats {
    let names = read_if_there(Path::new("/proc/partitions"))
        .map(|t| parse::partitions(&t))
        .unwrap_or_default();
    let all = |source: &str| {
        let list = |what: &str| entries(&directory.join(source.replace('*', what)), &names);
        BlkioStats {
            service_bytes: list("io_service_bytes"),
            serviced: list("io_serviced"),
            queued: list("io_queued"),
            service_time: list("io_service_time"),
            wait_time: list("io_wait_time"),
            merged: list("io_merged"),
            time: list("time"),
            sectors: list("sectors"),
        }
    };
    BLKIO_SOURCES
        .iter()
        .map(|s| all(s))
        .find(|s| *s != BlkioStats::default())
        .unwrap_or_default()
}

fn entries(path: &Path, names: &BTreeMap<(u32, u32), String>) -> Vec<BlkioEntry> {
    read_if_there(path)
        .map(|t| parse::blkio(&t, names))
        .unwrap_or_default()
}

fn by_device(blkio: &BlkioStats) -> Vec<IoDevice> {
    let mut devices: BTreeMap<(u32, u32), IoDevice> = BTreeMap::new();
    let mut add =
        |entries: &[BlkioEntry],
         figure: for<'a> fn(&'a mut IoDevice, &str) -> Option<&'a mut u64>| {
            for entry in entries {
                let (major, minor) = (entry.major, entry.minor);
                let device = devices.entry((major, minor)).or_insert(IoDevice {
                    major,
                    minor,
                    ..IoDevice::default()
                });
                if let Some(value) = figure(device, &entry.op) {
                    *value = value.saturating_add(entry.value);
                }
            }
        };
    add(&blkio.service_bytes, |device, op| match op {
        "Read" => Some(&mut device.read_bytes),
        "Write" => Some(&mut device.write_bytes),
        _ => None,
    });
    add(&blkio.serviced, |device, op| match op {
        "Read" => Some(&mut device.reads),
        "Write" => Some(&mut device.writes),
        _ => None,
    });
    devices.into_values().collect()
}

fn huge_pages(directory: &Path) -> Vec<HugePages> {
    sizes(directory, ".usage_in_bytes")
        .into_iter()
        .map(|size| {
            let usage = usage(directory, &format!("hugetlb.{size}"));
            let Usage {
                usage,
                max_usage,
                limit,
                failcnt,
            } = usage;
            HugePages {
                size,
                usage,
                max_usage,
                limit,
                failcnt,
            }
        })
        .collect()
}

/// Sizes of huge pages: the files `hugetlb.SIZE` and `end`.
pub(super) fn sizes(directory: &Path, end: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |name: &str| {
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(end)?;
        (!size.contains('.')).then(|| size.to_owned())
    };
    let mut sizes: Vec<String> = entries
        .filter_map(|e| size(e.file_name().to_str()?))
        .collect();
    sizes.sort();
    sizes
}
