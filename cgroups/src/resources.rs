//! Limits as the OCI spec has them, understood and checked: after
//! [`Resources::try_from`] nothing contradicts itself.
//!
//! Unset is `None` and unlimited is [`Limit::Unlimited`]; the spec's 0 (leave
//! alone) and -1 (no limit) do not go beyond this file. Kernel memory limits
//! are not known: the kernel dropped them. Devices are not restricted, see the
//! crate's description.

mod oci;
mod v1;
mod v2;

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::units::{Bytes, Limit, Micros};

pub(crate) use v2::{cpu_weight, swap_v2};

/// What is to be written: names of files and values, in writing order.
pub type Files = Vec<(String, String)>;

/// All that can be limited in a cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU time.
    pub cpu: Cpu,
    /// Which CPUs and memory nodes.
    pub cpuset: CpusetLists,
    /// Memory and swap.
    pub memory: Memory,
    /// Number of threads. Zero is written as 1, since 0 would lock out even
    /// the first process.
    pub pids: Option<Limit<u64>>,
    /// Block devices.
    pub block_io: BlockIo,
    /// Huge pages: size as the files are named (`2MB`), and limit.
    pub hugetlb: Vec<(String, Bytes)>,
    /// RDMA devices: name, handles, objects.
    pub rdma: BTreeMap<String, Rdma>,
    /// `net_cls.classid`, version 1 only.
    pub class_id: Option<u32>,
    /// `net_prio.ifpriomap`, version 1 only: interface and priority.
    pub priorities: Vec<(String, u32)>,
    /// Files of version 2 by name, written last.
    pub unified: BTreeMap<String, String>,
}

/// CPU time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Relative weight, 2 to 262144 with 1024 as the usual.
    pub shares: Option<u64>,
    /// CPU time in each period.
    pub quota: Option<Limit<Micros>>,
    /// The period; 100 ms where nothing is said.
    pub period: Option<Micros>,
    /// How much unused quota may be saved up.
    pub burst: Option<Micros>,
    /// Run only when nobody else wants to (`SCHED_IDLE`).
    pub idle: Option<bool>,
    /// Realtime time in each realtime period, version 1 only; -1 for no limit.
    pub realtime_runtime: Option<i64>,
    /// The realtime period, version 1 only.
    pub realtime_period: Option<Micros>,
}

/// CPUs and memory nodes as lists, spelled as they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpusetLists {
    /// CPUs.
    pub cpus: Option<String>,
    /// Memory nodes.
    pub mems: Option<String>,
}

/// Memory and swap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// The limit.
    pub limit: Option<Limit<Bytes>>,
    /// The soft limit.
    pub reservation: Option<Limit<Bytes>>,
    /// The limit of memory and swap together.
    pub swap: Option<Limit<Bytes>>,
    /// How readily to swap, 0 to 100, version 1 only.
    pub swappiness: Option<u64>,
    /// Let processes wait instead of killing them, version 1 only.
    pub disable_oom_killer: bool,
    /// Refuse a limit at or below what is used already.
    pub check_before_update: bool,
}

/// Block devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockIo {
    /// Relative weight, 10 to 1000.
    pub weight: Option<u16>,
    /// Weight against the cgroup's own children, version 1 only.
    pub leaf_weight: Option<u16>,
    /// Weights for single devices.
    pub devices: Vec<DeviceWeight>,
    /// Bytes and operations a second.
    pub throttles: Vec<Throttle>,
}

/// A weight for one block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceWeight {
    /// Major and minor number.
    pub device: (u32, u32),
    /// As [`BlockIo::weight`].
    pub weight: Option<u16>,
    /// As [`BlockIo::leaf_weight`].
    pub leaf_weight: Option<u16>,
}

/// A rate for one block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Major and minor number.
    pub device: (u32, u32),
    /// What is limited.
    pub what: ThrottleKind,
    /// Bytes or operations a second.
    pub rate: u64,
}

/// What a [`Throttle`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleKind {
    /// Bytes read.
    ReadBytes,
    /// Bytes written.
    WriteBytes,
    /// Reads.
    ReadOperations,
    /// Writes.
    WriteOperations,
}

/// Limits of an RDMA device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rdma {
    /// Handles.
    pub hca_handles: Option<u32>,
    /// Objects.
    pub hca_objects: Option<u32>,
}

impl Resources {
    /// The same limits with the CPU quota as systemd rounds it: up to whole
    /// hundredths of a CPU. A smaller one in the files would be overwritten at
    /// the next daemon-reload.
    #[must_use]
    pub fn rounded_for_systemd(&self) -> Self {
        let mut rounded = self.clone();
        if let Some(Limit::Of(quota)) = self.cpu.quota {
            let period = self.cpu.period.unwrap_or(DEFAULT_PERIOD);
            let per_second = crate::systemd::cpu_quota_per_second(quota, period);
            if per_second != exact_per_second(quota, period) {
                let product = u128::from(per_second.0) * u128::from(period.0) / 1_000_000;
                rounded.cpu.quota = Some(Limit::Of(Micros(
                    u64::try_from(product).unwrap_or(u64::MAX),
                )));
            }
        }
        rounded
    }
}

/// The kernel's own period of CPU quotas.
pub(crate) const DEFAULT_PERIOD: Micros = Micros(100_000);

/// CPU time a second, below a microsecond dropped.
pub(crate) fn exact_per_second(quota: Micros, period: Micros) -> Micros {
    let product = u128::from(quota.0) * 1_000_000 / u128::from(period.0.max(1));
    Micros(u64::try_from(product).unwrap_or(u64::MAX))
}

/// An error about one resource.
#[expect(
    clippy::needless_pass_by_value,
    reason = "numbers and texts alike, without noise at the calls"
)]
pub(crate) fn fault<T>(key: &str, value: impl ToString, reason: &'static str) -> Result<T> {
    Err(Error::Resource {
        key: key.to_owned(),
        value: value.to_string(),
        reason,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use oci_spec::runtime::LinuxResources;

    use super::*;

    /// Resources from the JSON of `linux.resources`.
    pub(crate) fn resources(json: &str) -> Result<Resources> {
        Resources::try_from(&serde_json::from_str::<LinuxResources>(json).unwrap())
    }

    #[test]
    fn the_quota_is_raised_to_what_systemd_rounds_to() {
        for (quota, period, raised) in [
            (123_456, 100_000, 124_000),
            (100, 100_000, 1000),
            (50_000, 100_000, 50_000),
        ] {
            let json = format!(r#"{{"cpu":{{"quota":{quota},"period":{period}}}}}"#);
            let rounded = resources(&json).unwrap().rounded_for_systemd();
            assert_eq!(rounded.cpu.quota, Some(Limit::Of(Micros(raised))));
        }
    }
}
