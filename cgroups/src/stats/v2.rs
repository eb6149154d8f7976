//! Reading the statistics of version 2.

use std::path::Path;

use super::{HugePages, Stats, parse, v1};
use crate::cgroup::v2::V2;
use crate::file::read_if_there;
use crate::units::{Bytes, Micros, Nanos};

impl V2 {
    pub(crate) fn stats(&self) -> Stats {
        read(&self.directory())
    }
}

/// All that a version 2 directory tells.
pub(super) fn read(directory: &Path) -> Stats {
    let mut stats = Stats::default();
    cpu(directory, &mut stats);
    memory(directory, &mut stats);
    pids(directory, &mut stats);
    stats.io = read_if_there(&directory.join("io.stat"))
        .map(|t| parse::io_stat(&t))
        .unwrap_or_default();
    stats.io_pressure =
        read_if_there(&directory.join("io.pressure")).and_then(|t| parse::pressure(&t));
    stats.hugetlb = huge_pages(directory);
    rdma(directory, &mut stats);
    stats
}

fn cpu(directory: &Path, stats: &mut Stats) {
    let map = read_if_there(&directory.join("cpu.stat"))
        .map(|t| parse::keyed(&t))
        .unwrap_or_default();
    let count = |key: &str| map.get(key).copied();
    let time = |key: &str| count(key).map(|n| Nanos::from(Micros(n)));
    let cpu = &mut stats.cpu;
    (cpu.usage, cpu.user, cpu.system) =
        (time("usage_usec"), time("user_usec"), time("system_usec"));
    (cpu.periods, cpu.throttled_periods) = (count("nr_periods"), count("nr_throttled"));
    cpu.throttled_time = time("throttled_usec");
    (cpu.bursts, cpu.burst_time) = (count("nr_bursts"), time("burst_usec"));
    cpu.pressure = read_if_there(&directory.join("cpu.pressure")).and_then(|t| parse::pressure(&t));
}

fn memory(directory: &Path, stats: &mut Stats) {
    let read = |file: &str| read_if_there(&directory.join(file));
    let bytes = |file: &str| read(file).and_then(|t| parse::number(&t)).map(Bytes);
    let limit = |file: &str| {
        read(file)
            .and_then(|t| parse::limit(&t))
            .map(|l| l.map(Bytes))
    };
    let memory = &mut stats.memory;
    memory.memory.usage = bytes("memory.current");
    memory.memory.max_usage = bytes("memory.peak");
    memory.memory.limit = limit("memory.max");
    memory.swap.usage = bytes("memory.swap.current");
    memory.swap.max_usage = bytes("memory.swap.peak");
    memory.swap.limit = limit("memory.swap.max");
    memory.stat = read("memory.stat")
        .map(|t| parse::keyed(&t))
        .unwrap_or_default();
    memory.events = read("memory.events").and_then(|t| parse::memory_events(&t));
    memory.pressure = read("memory.pressure").and_then(|t| parse::pressure(&t));
}

pub(super) fn pids(directory: &Path, stats: &mut Stats) {
    let read = |file: &str| read_if_there(&directory.join(file));
    stats.pids.current = read("pids.current").and_then(|t| parse::number(&t));
    stats.pids.limit = read("pids.max").and_then(|t| parse::limit(&t));
}

pub(super) fn rdma(directory: &Path, stats: &mut Stats) {
    let read = |file: &str| {
        read_if_there(&directory.join(file))
            .map(|t| parse::rdma(&t))
            .unwrap_or_default()
    };
    stats.rdma_current = read("rdma.current");
    stats.rdma_limit = read("rdma.max");
}

fn huge_pages(directory: &Path) -> Vec<HugePages> {
    v1::sizes(directory, ".current")
        .into_iter()
        .map(|size| {
            let read = |end: &str| read_if_there(&directory.join(format!("hugetlb.{size}.{end}")));
            HugePages {
                usage: read("current").and_then(|t| parse::number(&t)).map(Bytes),
                max_usage: None,
                limit: read("max")
                    .and_then(|t| parse::limit(&t))
                    .map(|l| l.map(Bytes)),
                failcnt: read("events").and_then(|t| parse::keyed(&t).get("max").copied()),
                size,
            }
        })
        .collect()
}
