//! The limits that bind a cgroup, its own and those from above: what a sandbox
//! has to size itself by.

use std::path::Path;

use crate::cpus::CpuSet;
use crate::file;
use crate::units::{Bytes, Limit, Micros};

/// Limits in force, the least over a cgroup and all above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory.
    pub memory: Limit<Bytes>,
    /// CPU time; the tightest quota by its ratio to the period.
    pub cpu: Limit<CpuQuota>,
    /// How many CPUs the cpuset has. `None` where no cpuset can be read.
    pub cpus: Option<usize>,
}

/// CPU time a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuQuota {
    /// CPU time.
    pub quota: Micros,
    /// The period; never zero.
    pub period: Micros,
}

impl CpuQuota {
    /// How many CPUs it takes to use it up, at least one.
    #[must_use]
    pub fn cpus(self) -> u64 {
        self.quota.0.div_ceil(self.period.0.max(1)).max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: Limit::Unlimited,
            cpu: Limit::Unlimited,
            cpus: None,
        }
    }
}

impl Limits {
    /// How many CPUs a guest can make use of: those of the cpuset, but not
    /// more than the quota pays for. `None` if neither is known.
    #[must_use]
    pub fn guest_cpus(&self) -> Option<u64> {
        let quota = self.cpu.value().map(CpuQuota::cpus);
        let cpus = self.cpus.and_then(|n| u64::try_from(n).ok());
        [quota, cpus].into_iter().flatten().min()
    }

    pub(crate) fn tighten_cpu(&mut self, other: Option<CpuQuota>) {
        let Some(other) = other else {
            return;
        };
        let tighter = self.cpu.value().is_none_or(|own| {
            u128::from(other.quota.0) * u128::from(own.period.0)
                < u128::from(own.quota.0) * u128::from(other.period.0)
        });
        if tighter {
            self.cpu = Limit::Of(other);
        }
    }
}

/// From here on a version 1 limit is none: the kernel's largest, in whole
/// pages, is just below 2^63.
pub(crate) const UNLIMITED_FROM: u64 = 1 << 62;

pub(crate) fn cpu_quota_v1(directory: &Path) -> Option<CpuQuota> {
    let number = |file: &str| {
        file::read_if_there(&directory.join(file))?
            .trim()
            .parse::<u64>()
            .ok()
    };
    // Without a quota the file says -1, which is no u64.
    quota(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
}

pub(crate) fn cpu_quota_v2(directory: &Path) -> Option<CpuQuota> {
    let text = file::read_if_there(&directory.join("cpu.max"))?;
    let (first, second) = text.trim().split_once(' ')?;
    quota(first.parse().ok()?, second.parse().ok()?)
}

fn quota(quota: u64, period: u64) -> Option<CpuQuota> {
    (period > 0).then_some(CpuQuota {
        quota: Micros(quota),
        period: Micros(period),
    })
}

/// How many CPUs the list in a file has; `None` for an empty one.
pub(crate) fn cpu_count(path: &Path) -> Option<usize> {
    let set: CpuSet = file::read_if_there(path)?.parse().ok()?;
    Some(set.count()).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota_of(quota: u64, period: u64) -> Option<CpuQuota> {
        super::quota(quota, period)
    }

    #[test]
    fn the_tightest_quota_is_by_its_ratio() {
        let mut limits = Limits::default();
        limits.tighten_cpu(None);
        assert_eq!(limits.cpu, Limit::Unlimited);
        limits.tighten_cpu(quota_of(150_000, 100_000));
        limits.tighten_cpu(quota_of(200_000, 100_000));
        limits.tighten_cpu(quota_of(180_000, 1_000_000));
        limits.tighten_cpu(quota_of(20_000, 100_000));
        assert_eq!(limits.cpu.value(), quota_of(180_000, 1_000_000));
    }

    #[test]
    fn a_guest_gets_as_many_cpus_as_it_can_use() {
        for (quota, cpus, guest) in [
            (None, None, None),
            (None, Some(4), Some(4)),
            (quota_of(50_000, 100_000), Some(4), Some(1)),
            (quota_of(150_000, 100_000), Some(4), Some(2)),
            (quota_of(900_000, 100_000), Some(4), Some(4)),
            (quota_of(0, 100_000), None, Some(1)),
        ] {
            let cpu = quota.map_or(Limit::Unlimited, Limit::Of);
            assert_eq!(
                Limits {
                    cpu,
                    cpus,
                    ..Limits::default()
                }
                .guest_cpus(),
                guest
            );
        }
    }
}
