//! What a cgroup uses, in one form for both versions.
//!
//! A figure that the kernel does not give is `None` or missing from its list,
//! never zero. Times are nanoseconds throughout. The texts of the kernel's
//! files are parsed in [`parse`], which skips what it does not understand.

pub mod parse;
mod v1;
mod v2;

use std::collections::BTreeMap;

use crate::units::{Bytes, Limit, Nanos};

/// Statistics of a cgroup and all below it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// CPU time.
    pub cpu: CpuStats,
    /// Memory and swap.
    pub memory: MemoryStats,
    /// Threads.
    pub pids: PidsStats,
    /// Block devices, one entry each. On version 1 made from [`Stats::blkio`].
    pub io: Vec<IoDevice>,
    /// I/O pressure.
    pub io_pressure: Option<Pressure>,
    /// Block devices as version 1 counts them; empty on version 2.
    pub blkio: BlkioStats,
    /// Huge pages by size.
    pub hugetlb: Vec<HugePages>,
    /// RDMA devices: what is used.
    pub rdma_current: Vec<RdmaDevice>,
    /// RDMA devices: the limits.
    pub rdma_limit: Vec<RdmaDevice>,
}

/// CPU time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuStats {
    /// All of it.
    pub usage: Option<Nanos>,
    /// In user mode.
    pub user: Option<Nanos>,
    /// In the kernel.
    pub system: Option<Nanos>,
    /// By CPU, version 1 only.
    pub per_cpu: Vec<Nanos>,
    /// Periods of the quota that have passed.
    pub periods: Option<u64>,
    /// Periods in which the quota ran out.
    pub throttled_periods: Option<u64>,
    /// How long it was throttled.
    pub throttled_time: Option<Nanos>,
    /// Periods in which saved quota was used.
    pub bursts: Option<u64>,
    /// How long saved quota was used.
    pub burst_time: Option<Nanos>,
    /// CPU pressure.
    pub pressure: Option<Pressure>,
}

/// Memory and swap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryStats {
    /// Memory.
    pub memory: Usage,
    /// Version 1: memory and swap together (`memsw`). Version 2: swap alone.
    pub swap: Usage,
    /// The kernel's memory for the cgroup, version 1 only.
    pub kernel: Usage,
    /// The kernel's memory for its TCP buffers, version 1 only.
    pub kernel_tcp: Usage,
    /// `memory.stat` by key: bytes, pages and events, as the kernel names them.
    pub stat: BTreeMap<String, u64>,
    /// `memory.events`, version 2 only.
    pub events: Option<MemoryEvents>,
    /// `memory.oom_control`, version 1 only.
    pub oom_control: Option<OomControl>,
    /// Memory pressure.
    pub pressure: Option<Pressure>,
}

impl MemoryStats {
    /// A figure of `memory.stat`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<u64> {
        self.stat.get(key).copied()
    }

    /// What cannot be had back at once: usage less inactive file pages, as the
    /// kubelet counts.
    #[must_use]
    pub fn working_set(&self) -> Option<Bytes> {
        let inactive = self
            .get("total_inactive_file")
            .or_else(|| self.get("inactive_file"))
            .unwrap_or(0);
        self.memory
            .usage
            .map(|usage| Bytes(usage.0.saturating_sub(inactive)))
    }
}

/// One kind of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Now.
    pub usage: Option<Bytes>,
    /// The most there was at a time. On version 2 from Linux 5.19 (memory) and
    /// 6.5 (swap) on.
    pub max_usage: Option<Bytes>,
    /// The cgroup's own limit.
    pub limit: Option<Limit<Bytes>>,
    /// How often the limit was hit, version 1 only.
    pub failcnt: Option<u64>,
}

/// `memory.events`; see the kernel's cgroup-v2 document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Reclaimed although below `memory.low`.
    pub low: u64,
    /// Throttled over `memory.high`.
    pub high: u64,
    /// About to go over `memory.max`.
    pub max: u64,
    /// The limit was hit and allocation was about to fail.
    pub oom: u64,
    /// Processes killed.
    pub oom_kill: u64,
    /// Whole groups killed (Linux 5.17).
    pub oom_group_kill: u64,
}

/// `memory.oom_control`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OomControl {
    /// 1 if nothing is killed.
    pub oom_kill_disable: u64,
    /// 1 if processes wait for memory.
    pub under_oom: u64,
    /// Processes killed (Linux 4.13).
    pub oom_kill: Option<u64>,
}

/// Pressure stall information; see the kernel's PSI document.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some processes waited.
    pub some: Option<PressureLine>,
    /// All processes waited.
    pub full: Option<PressureLine>,
}

/// One line of a pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureLine {
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
    /// All time waited.
    pub total: Nanos,
}

/// Threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PidsStats {
    /// Now.
    pub current: Option<u64>,
    /// The limit.
    pub limit: Option<Limit<u64>>,
}

/// Traffic with one block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoDevice {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Block I/O as version 1 counts it; each list in the kernel's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlkioStats {
    /// Bytes.
    pub service_bytes: Vec<BlkioEntry>,
    /// Operations.
    pub serviced: Vec<BlkioEntry>,
    /// Operations that wait.
    pub queued: Vec<BlkioEntry>,
    /// Time in the device, ns.
    pub service_time: Vec<BlkioEntry>,
    /// Time in the queue, ns.
    pub wait_time: Vec<BlkioEntry>,
    /// Operations merged into others.
    pub merged: Vec<BlkioEntry>,
    /// Time the device was given, ms.
    pub time: Vec<BlkioEntry>,
    /// Sectors.
    pub sectors: Vec<BlkioEntry>,
}

/// One line of a version 1 block I/O file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlkioEntry {
    /// `Read`, `Write`, …; empty where the file does not tell them apart.
    pub op: String,
    /// The device's file, `/dev/sda`; empty if `/proc/partitions` has none.
    pub device: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// The figure.
    pub value: u64,
}

/// Huge pages of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugePages {
    /// The size as the files are named, `2MB`.
    pub size: String,
    /// Now.
    pub usage: Option<Bytes>,
    /// The most there was at a time, version 1 only.
    pub max_usage: Option<Bytes>,
    /// The limit.
    pub limit: Option<Limit<Bytes>>,
    /// How often the limit was hit.
    pub failcnt: Option<u64>,
}

/// One RDMA device: figures, or limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name.
    pub device: String,
    /// Handles.
    pub hca_handles: Option<Limit<u32>>,
    /// Objects.
    pub hca_objects: Option<Limit<u32>>,
}
