//! Resources as the files of version 1.

use std::fmt::Display;

use super::{Files, Resources, ThrottleKind, fault};
use crate::error::Result;
use crate::units::{Bytes, Limit};

impl Resources {
    /// The files of version 1 in writing order, as for a new cgroup.
    /// `exists` tells whether a new cgroup has a file of that name; block
    /// weights go to the scheduler that is there.
    ///
    /// # Errors
    /// The resources cannot be had with version 1.
    pub fn files_v1(&self, exists: impl Fn(&str) -> bool) -> Result<Files> {
        if let Some(key) = self.unified.keys().next() {
            return fault("unified", key, "it needs cgroup v2, and this host has v1");
        }
        let mut files = Vec::new();
        self.cpuset_v1(&mut files);
        self.memory_v1(&mut files)?;
        self.cpu_v1(&mut files);
        if let Some(pids) = self.pids {
            put(
                &mut files,
                "pids.max",
                pids.value()
                    .map_or_else(|| "max".to_owned(), |n| n.to_string()),
            );
        }
        self.block_io_v1(&mut files, exists);
        for (size, limit) in &self.hugetlb {
            put(
                &mut files,
                format!("hugetlb.{size}.limit_in_bytes"),
                limit.0,
            );
            put(
                &mut files,
                format!("hugetlb.{size}.rsvd.limit_in_bytes"),
                limit.0,
            );
        }
        if let Some(class) = self.class_id {
            put(&mut files, "net_cls.classid", class);
        }
        for (interface, priority) in &self.priorities {
            put(
                &mut files,
                "net_prio.ifpriomap",
                format!("{interface} {priority}"),
            );
        }
        self.rdma_files(&mut files);
        Ok(files)
    }

    pub(super) fn cpuset_v1(&self, files: &mut Files) {
        if let Some(cpus) = &self.cpuset.cpus {
            put(files, "cpuset.cpus", cpus);
        }
        if let Some(mems) = &self.cpuset.mems {
            put(files, "cpuset.mems", mems);
        }
    }

    /// memsw may not be below the limit at any moment. A new cgroup has both
    /// unlimited, so the limit comes first, unless memsw is to stay so; for a
    /// cgroup in use the writer looks, see `Cgroup::apply`.
    fn memory_v1(&self, files: &mut Files) -> Result<()> {
        let memory = &self.memory;
        let swap = match (memory.limit, memory.swap) {
            (Some(Limit::Unlimited), Some(Limit::Of(swap))) => {
                return fault(
                    "memory.swap",
                    swap.0,
                    "it counts memory and swap, and memory is unlimited",
                );
            }
            (Some(Limit::Unlimited), None) => Some(Limit::Unlimited),
            (_, swap) => swap,
        };
        let limit = memory.limit.map(|l| ("memory.limit_in_bytes", bytes(l)));
        let swap_file = swap.map(|s| ("memory.memsw.limit_in_bytes", bytes(s)));
        let order = if swap == Some(Limit::Unlimited) {
            [swap_file, limit]
        } else {
            [limit, swap_file]
        };
        for (file, value) in order.into_iter().flatten() {
            put(files, file, value);
        }
        if let Some(reservation) = memory.reservation {
            put(files, "memory.soft_limit_in_bytes", bytes(reservation));
        }
        if memory.disable_oom_killer {
            put(files, "memory.oom_control", 1);
        }
        if let Some(swappiness) = memory.swappiness {
            put(files, "memory.swappiness", swappiness);
        }
        Ok(())
    }

    /// An idle group has no weight, the kernel refuses one (EINVAL); and a
    /// group that stops being idle gets the usual weight, so that comes first.
    fn cpu_v1(&self, files: &mut Files) {
        let cpu = &self.cpu;
        if let Some(idle) = cpu.idle {
            put(files, "cpu.idle", u8::from(idle));
        }
        if let Some(shares) = cpu.shares.filter(|_| cpu.idle != Some(true)) {
            put(files, "cpu.shares", shares);
        }
        if let Some(period) = cpu.period {
            put(files, "cpu.cfs_period_us", period.0);
        }
        if let Some(burst) = cpu.burst {
            put(files, "cpu.cfs_burst_us", burst.0);
        }
        match cpu.quota {
            Some(Limit::Of(quota)) => put(files, "cpu.cfs_quota_us", quota.0),
            Some(Limit::Unlimited) => put(files, "cpu.cfs_quota_us", -1),
            None => {}
        }
        if let Some(period) = cpu.realtime_period {
            put(files, "cpu.rt_period_us", period.0);
        }
        if let Some(runtime) = cpu.realtime_runtime {
            put(files, "cpu.rt_runtime_us", runtime);
        }
    }

    fn block_io_v1(&self, files: &mut Files, exists: impl Fn(&str) -> bool) {
        let io = &self.block_io;
        let stem = if exists("blkio.weight") {
            "blkio.weight"
        } else {
            "blkio.bfq.weight"
        };
        if let Some(weight) = io.weight {
            put(files, stem, weight);
        }
        if let Some(weight) = io.leaf_weight {
            put(files, "blkio.leaf_weight", weight);
        }
        for entry in &io.devices {
            let (major, minor) = entry.device;
            if let Some(weight) = entry.weight {
                put(
                    files,
                    format!("{stem}_device"),
                    format!("{major}:{minor} {weight}"),
                );
            }
            if let Some(weight) = entry.leaf_weight {
                put(
                    files,
                    "blkio.leaf_weight_device",
                    format!("{major}:{minor} {weight}"),
                );
            }
        }
        for throttle in &io.throttles {
            let (major, minor) = throttle.device;
            let file = match throttle.what {
                ThrottleKind::ReadBytes => "blkio.throttle.read_bps_device",
                ThrottleKind::WriteBytes => "blkio.throttle.write_bps_device",
                ThrottleKind::ReadOperations => "blkio.throttle.read_iops_device",
                ThrottleKind::WriteOperations => "blkio.throttle.write_iops_device",
            };
            put(files, file, format!("{major}:{minor} {}", throttle.rate));
        }
    }

    pub(super) fn rdma_files(&self, files: &mut Files) {
        for (device, limits) in &self.rdma {
            let handles = limits
                .hca_handles
                .map(|n| format!(" hca_handle={n}"))
                .unwrap_or_default();
            let objects = limits
                .hca_objects
                .map(|n| format!(" hca_object={n}"))
                .unwrap_or_default();
            put(files, "rdma.max", format!("{device}{handles}{objects}"));
        }
    }
}

pub(super) fn put(files: &mut Files, file: impl Into<String>, value: impl Display) {
    files.push((file.into(), value.to_string()));
}

fn bytes(limit: Limit<Bytes>) -> String {
    limit
        .value()
        .map_or_else(|| "-1".to_owned(), |b| b.0.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::resources;

    #[test]
    fn files_and_their_order() {
        for (json, expected) in [
            (r#"{}"#, ""),
            (
                r#"{"cpu":{"shares":4096},"memory":{"limit":134217728}}"#,
                "memory.limit_in_bytes=134217728 cpu.shares=4096",
            ),
            (
                r#"{"cpu":{"quota":50000,"period":100000}}"#,
                "cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000",
            ),
            (r#"{"cpu":{"quota":-1}}"#, "cpu.cfs_quota_us=-1"),
            (
                r#"{"cpu":{"quota":50000,"burst":1000}}"#,
                "cpu.cfs_burst_us=1000 cpu.cfs_quota_us=50000",
            ),
            (r#"{"cpu":{"shares":512,"idle":1}}"#, "cpu.idle=1"),
            (
                r#"{"cpu":{"shares":512,"idle":0}}"#,
                "cpu.idle=0 cpu.shares=512",
            ),
            (
                r#"{"cpu":{"realtimePeriod":1000,"realtimeRuntime":500}}"#,
                "cpu.rt_period_us=1000 cpu.rt_runtime_us=500",
            ),
            (
                r#"{"cpu":{"cpus":"0-1","mems":"0"}}"#,
                "cpuset.cpus=0-1 cpuset.mems=0",
            ),
            (
                r#"{"memory":{"limit":100,"swap":200}}"#,
                "memory.limit_in_bytes=100 memory.memsw.limit_in_bytes=200",
            ),
            (
                r#"{"memory":{"limit":100,"swap":-1}}"#,
                "memory.memsw.limit_in_bytes=-1 memory.limit_in_bytes=100",
            ),
            (
                r#"{"memory":{"limit":-1}}"#,
                "memory.memsw.limit_in_bytes=-1 memory.limit_in_bytes=-1",
            ),
            (
                r#"{"memory":{"reservation":-1,"swappiness":0,"disableOOMKiller":true}}"#,
                "memory.soft_limit_in_bytes=-1 memory.oom_control=1 memory.swappiness=0",
            ),
            (r#"{"pids":{"limit":7}}"#, "pids.max=7"),
            (r#"{"pids":{"limit":-1}}"#, "pids.max=max"),
            (r#"{"pids":{"limit":0}}"#, "pids.max=1"),
            (
                r#"{"hugepageLimits":[{"pageSize":"2MB","limit":0}]}"#,
                "hugetlb.2MB.limit_in_bytes=0 hugetlb.2MB.rsvd.limit_in_bytes=0",
            ),
            (
                r#"{"network":{"classID":1048577,"priorities":[{"name":"eth0","priority":3}]}}"#,
                "net_cls.classid=1048577 net_prio.ifpriomap=eth0_3",
            ),
            (
                r#"{"rdma":{"mlx5_0":{"hcaHandles":2,"hcaObjects":5}}}"#,
                "rdma.max=mlx5_0_hca_handle=2_hca_object=5",
            ),
            (
                r#"{"blockIO":{"weight":500,"leafWeight":300,"weightDevice":[{"major":8,"minor":0,"weight":200}]}}"#,
                "blkio.weight=500 blkio.leaf_weight=300 blkio.weight_device=8:0_200",
            ),
            (
                r#"{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1}],
                "throttleWriteIOPSDevice":[{"major":8,"minor":16,"rate":2}]}}"#,
                "blkio.throttle.read_bps_device=8:0_1 blkio.throttle.write_iops_device=8:16_2",
            ),
        ] {
            let files = resources(json).unwrap().files_v1(|_| true).unwrap();
            let text: Vec<String> = files
                .iter()
                .map(|(f, v)| format!("{f}={}", v.replace(' ', "_")))
                .collect();
            assert_eq!(text.join(" "), expected, "{json}");
        }
    }

    #[test]
    fn weights_go_to_the_scheduler_that_is_there() {
        let files = resources(r#"{"blockIO":{"weight":500}}"#)
            .unwrap()
            .files_v1(|_| false)
            .unwrap();
        assert_eq!(files, [("blkio.bfq.weight".to_owned(), "500".to_owned())]);
    }

    #[test]
    fn what_version_1_cannot_do_is_an_error() {
        for (json, message) in [
            (r#"{"unified":{"memory.high":"1"}}"#, "needs cgroup v2"),
            (r#"{"memory":{"limit":-1,"swap":5}}"#, "memory is unlimited"),
        ] {
            let error = resources(json)
                .unwrap()
                .files_v1(|_| true)
                .unwrap_err()
                .to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
