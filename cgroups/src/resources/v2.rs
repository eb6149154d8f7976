//! Resources as the files of version 2, and the conversions between the two
//! versions' scales.

use super::v1::put;
use super::{DEFAULT_PERIOD, Files, Memory, Resources, ThrottleKind, fault};
use crate::error::Result;
use crate::units::{Bytes, Limit, Micros};

impl Resources {
    /// The files of version 2 in writing order. `exists` tells whether the
    /// cgroup has a file of that name; block weights go to the scheduler that
    /// is there.
    ///
    /// Swappiness, the switch of the OOM killer, realtime limits, leaf weights
    /// and network classes do not exist in version 2 and are left out, as are
    /// weights of single devices without the BFQ scheduler.
    ///
    /// # Errors
    /// The resources cannot be had with version 2.
    pub fn files_v2(&self, exists: impl Fn(&str) -> bool) -> Result<Files> {
        let mut files = Vec::new();
        if let Some(pids) = self.pids {
            put(&mut files, "pids.max", or_max(pids));
        }
        if let Some(swap) = swap_v2(&self.memory)? {
            put(&mut files, "memory.swap.max", bytes(swap));
        }
        if let Some(limit) = self.memory.limit {
            put(&mut files, "memory.max", bytes(limit));
        }
        if let Some(reservation) = self.memory.reservation {
            put(&mut files, "memory.low", bytes(reservation));
        }
        self.block_io_v2(&mut files, exists);
        self.cpu_v2(&mut files);
        self.cpuset_v1(&mut files);
        for (size, limit) in &self.hugetlb {
            put(&mut files, format!("hugetlb.{size}.max"), limit.0);
            put(&mut files, format!("hugetlb.{size}.rsvd.max"), limit.0);
        }
        self.rdma_files(&mut files);
        for (file, value) in &self.unified {
            for line in value.lines().filter(|l| !l.trim().is_empty()) {
                put(&mut files, file, line);
            }
        }
        Ok(files)
    }

    /// An idle group has no weight, the kernel refuses one (EINVAL).
    fn cpu_v2(&self, files: &mut Files) {
        let cpu = &self.cpu;
        if let Some(idle) = cpu.idle {
            put(files, "cpu.idle", u8::from(idle));
        }
        if let Some(shares) = cpu.shares.filter(|_| cpu.idle != Some(true)) {
            put(files, "cpu.weight", cpu_weight(shares));
        }
        if let Some(burst) = cpu.burst {
            put(files, "cpu.max.burst", burst.0);
        }
        if cpu.quota.is_some() || cpu.period.is_some() {
            let quota = cpu.quota.unwrap_or(Limit::Unlimited).map(|Micros(n)| n);
            let Micros(period) = cpu.period.unwrap_or(DEFAULT_PERIOD);
            put(files, "cpu.max", format!("{} {period}", or_max(quota)));
        }
    }

    fn block_io_v2(&self, files: &mut Files, exists: impl Fn(&str) -> bool) {
        let io = &self.block_io;
        let bfq = (io.weight.is_some() || !io.devices.is_empty()) && exists("io.bfq.weight");
        if let Some(weight) = io.weight {
            match bfq {
                true => put(files, "io.bfq.weight", weight),
                false => put(files, "io.weight", io_weight(weight)),
            }
        }
        for entry in io.devices.iter().filter(|_| bfq) {
            if let Some(weight) = entry.weight {
                let (major, minor) = entry.device;
                put(files, "io.bfq.weight", format!("{major}:{minor} {weight}"));
            }
        }
        for throttle in &io.throttles {
            let (major, minor) = throttle.device;
            let key = match throttle.what {
                ThrottleKind::ReadBytes => "rbps",
                ThrottleKind::WriteBytes => "wbps",
                ThrottleKind::ReadOperations => "riops",
                ThrottleKind::WriteOperations => "wiops",
            };
            put(
                files,
                "io.max",
                format!("{major}:{minor} {key}={}", throttle.rate),
            );
        }
    }
}

/// `cpu.weight` for `cpu.shares`: 2, 1024 and 262144 become 1, 100 and 10000,
/// on a logarithmic scale (runc since 1.3.2, crun since 1.23).
pub(crate) fn cpu_weight(shares: u64) -> u64 {
    match shares {
        0..=2 => 1,
        262_144.. => 10_000,
        _ => {
            // Below 2^18, so exact as a double.
            #[expect(clippy::cast_precision_loss, reason = "below 2^18, exact")]
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 1 to 10000"
            )]
            let weight = 10_f64.powf(exponent).ceil() as u64;
            weight
        }
    }
}

/// `io.weight` for a weight from 10 to 1000.
fn io_weight(weight: u16) -> u64 {
    1 + (u64::from(weight) - 10) * 9999 / 990
}

/// Swap alone, where the spec counts memory and swap together.
pub(crate) fn swap_v2(memory: &Memory) -> Result<Option<Limit<Bytes>>> {
    match (memory.swap, memory.limit) {
        (None, Some(Limit::Unlimited)) | (Some(Limit::Unlimited), _) => Ok(Some(Limit::Unlimited)),
        (None, _) => Ok(None),
        (Some(Limit::Of(swap)), Some(Limit::Unlimited)) => Ok(Some(Limit::Of(swap))),
        (Some(Limit::Of(Bytes(swap))), Some(Limit::Of(Bytes(limit)))) if swap >= limit => {
            Ok(Some(Limit::Of(Bytes(swap - limit))))
        }
        (Some(Limit::Of(swap)), Some(Limit::Of(_))) => fault(
            "memory.swap",
            swap.0,
            "it counts memory and swap, and is less than memory.limit",
        ),
        (Some(Limit::Of(swap)), None) => fault(
            "memory.swap",
            swap.0,
            "it counts memory and swap, so memory.limit is wanted beside it",
        ),
    }
}

fn or_max(limit: Limit<u64>) -> String {
    limit
        .value()
        .map_or_else(|| "max".to_owned(), |n| n.to_string())
}

fn bytes(limit: Limit<Bytes>) -> String {
    or_max(limit.map(|Bytes(n)| n))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::resources;
    use super::*;

    #[test]
    fn weights_of_known_shares() {
        for (shares, weight) in [
            (1, 1),
            (2, 1),
            (102, 17),
            (512, 59),
            (1000, 99),
            (1024, 100),
            (2000, 170),
            (2048, 174),
            (4096, 303),
            (10240, 639),
            (65536, 3023),
            (262_143, 10_000),
            (262_144, 10_000),
            (u64::MAX, 10_000),
        ] {
            assert_eq!(cpu_weight(shares), weight, "{shares}");
        }
        for (weight, expected) in [(10, 1), (100, 910), (500, 4950), (1000, 10_000)] {
            assert_eq!(io_weight(weight), expected);
        }
    }

    #[test]
    fn files_and_their_order() {
        for (json, expected) in [
            (r#"{}"#, ""),
            (
                r#"{"cpu":{"shares":4096},"memory":{"limit":134217728}}"#,
                "memory.max=134217728 cpu.weight=303",
            ),
            (r#"{"memory":{"limit":34603008}}"#, "memory.max=34603008"),
            (
                r#"{"cpu":{"quota":50000,"period":200000}}"#,
                "cpu.max=50000_200000",
            ),
            (r#"{"cpu":{"quota":50000}}"#, "cpu.max=50000_100000"),
            (r#"{"cpu":{"quota":-1}}"#, "cpu.max=max_100000"),
            (r#"{"cpu":{"period":50000}}"#, "cpu.max=max_50000"),
            (
                r#"{"cpu":{"quota":50000,"burst":1000}}"#,
                "cpu.max.burst=1000 cpu.max=50000_100000",
            ),
            (r#"{"cpu":{"shares":512,"idle":1}}"#, "cpu.idle=1"),
            (
                r#"{"cpu":{"shares":512,"idle":0}}"#,
                "cpu.idle=0 cpu.weight=59",
            ),
            (
                r#"{"cpu":{"cpus":"0-1","mems":"0"}}"#,
                "cpuset.cpus=0-1 cpuset.mems=0",
            ),
            (
                r#"{"memory":{"limit":100,"swap":300}}"#,
                "memory.swap.max=200 memory.max=100",
            ),
            (
                r#"{"memory":{"limit":100,"swap":100}}"#,
                "memory.swap.max=0 memory.max=100",
            ),
            (
                r#"{"memory":{"limit":100,"swap":-1}}"#,
                "memory.swap.max=max memory.max=100",
            ),
            (
                r#"{"memory":{"limit":-1,"swap":300}}"#,
                "memory.swap.max=300 memory.max=max",
            ),
            (
                r#"{"memory":{"limit":-1}}"#,
                "memory.swap.max=max memory.max=max",
            ),
            (r#"{"memory":{"swap":-1}}"#, "memory.swap.max=max"),
            (
                r#"{"memory":{"reservation":50,"swappiness":9,"disableOOMKiller":true}}"#,
                "memory.low=50",
            ),
            (r#"{"pids":{"limit":7}}"#, "pids.max=7"),
            (r#"{"pids":{"limit":-1}}"#, "pids.max=max"),
            (r#"{"pids":{"limit":0}}"#, "pids.max=1"),
            (
                r#"{"hugepageLimits":[{"pageSize":"1GB","limit":1073741824}]}"#,
                "hugetlb.1GB.max=1073741824 hugetlb.1GB.rsvd.max=1073741824",
            ),
            (
                r#"{"rdma":{"mlx5_0":{"hcaObjects":5}}}"#,
                "rdma.max=mlx5_0_hca_object=5",
            ),
            (
                r#"{"blockIO":{"weight":500,"weightDevice":[{"major":8,"minor":0,"weight":200}]}}"#,
                "io.weight=4950",
            ),
            (
                r#"{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1}],
                "throttleWriteIOPSDevice":[{"major":8,"minor":0,"rate":2}]}}"#,
                "io.max=8:0_rbps=1 io.max=8:0_wiops=2",
            ),
            (
                r#"{"unified":{"memory.high":"9","io.max":"8:0 rbps=1\n8:16 rbps=2"},"pids":{"limit":3}}"#,
                "pids.max=3 io.max=8:0_rbps=1 io.max=8:16_rbps=2 memory.high=9",
            ),
        ] {
            let files = resources(json).unwrap().files_v2(|_| false).unwrap();
            let text: Vec<String> = files
                .iter()
                .map(|(f, v)| format!("{f}={}", v.replace(' ', "_")))
                .collect();
            assert_eq!(text.join(" "), expected, "{json}");
        }
    }

    #[test]
    fn bfq_is_used_where_it_is() {
        let json =
            r#"{"blockIO":{"weight":500,"weightDevice":[{"major":8,"minor":0,"weight":200}]}}"#;
        let files = resources(json)
            .unwrap()
            .files_v2(|f| f == "io.bfq.weight")
            .unwrap();
        assert_eq!(
            files.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>(),
            ["500", "8:0 200"]
        );
    }

    #[test]
    fn swap_without_a_limit_is_an_error() {
        let error = resources(r#"{"memory":{"swap":5}}"#)
            .unwrap()
            .files_v2(|_| false)
            .unwrap_err();
        assert!(
            error.to_string().contains("memory.limit is wanted"),
            "{error}"
        );
    }

    #[test]
    fn every_weight_is_in_range_and_none_falls() {
        let mut last = 0;
        for shares in 0..=262_145 {
            let weight = cpu_weight(shares);
            assert!((1..=10_000).contains(&weight), "{shares}: {weight}");
            assert!(weight >= last, "{shares}: {weight} after {last}");
            last = weight;
        }
    }

    proptest! {
        #[test]
        fn any_limits_become_values_that_are_not_empty(limit: i64, swap: i64, quota: i64, period: u64, shares: u64) {
            let json = serde_json::json!({
                "memory": {"limit": limit, "swap": swap},
                "cpu": {"quota": quota, "period": period, "shares": shares},
            });
            if let Ok(parsed) = resources(&json.to_string()) {
                for files in [parsed.files_v1(|_| true), parsed.files_v2(|_| true)].into_iter().flatten() {
                    prop_assert!(files.iter().all(|(file, value)| !file.is_empty() && !value.is_empty()));
                }
            }
        }
    }
}
