//! From the OCI spec's `linux.resources`: everything that contradicts itself is
//! refused here, before anything is written.

use oci_spec::runtime as oci;

use super::{
    BlockIo, Cpu, CpusetLists, DeviceWeight, Memory, Rdma, Resources, Throttle, ThrottleKind, fault,
};
use crate::cpus::CpuSet;
use crate::error::{Error, Result};
use crate::units::{Bytes, Limit, Micros};

impl TryFrom<&oci::LinuxResources> for Resources {
    type Error = Error;

    /// # Errors
    /// A value that is out of its range or contradicts another, whatever the
    /// host. What only one version cannot express is an error of
    /// [`Resources::files_v1`] or [`Resources::files_v2`].
    fn try_from(spec: &oci::LinuxResources) -> Result<Self> {
        let (cpu, cpuset) = spec
            .cpu()
            .as_ref()
            .map(cpu)
            .transpose()?
            .unwrap_or_default();
        Ok(Self {
            cpu,
            cpuset,
            memory: spec
                .memory()
                .as_ref()
                .map(memory)
                .transpose()?
                .unwrap_or_default(),
            pids: match spec.pids().as_ref().map(oci::LinuxPids::limit) {
                Some(0) => Some(Limit::Of(1)),
                Some(n) => Some(limit("pids.limit", n)?),
                None => None,
            },
            block_io: spec
                .block_io()
                .as_ref()
                .map(block_io)
                .transpose()?
                .unwrap_or_default(),
            hugetlb: spec
                .hugepage_limits()
                .iter()
                .flatten()
                .map(huge_page)
                .collect::<Result<_>>()?,
            rdma: spec
                .rdma()
                .iter()
                .flatten()
                .map(rdma)
                .collect::<Result<_>>()?,
            class_id: spec
                .network()
                .as_ref()
                .and_then(oci::LinuxNetwork::class_id)
                .filter(|id| *id != 0),
            priorities: spec
                .network()
                .iter()
                .flat_map(|n| n.priorities().iter().flatten())
                .map(|p| (p.name().clone(), p.priority()))
                .collect(),
            unified: spec
                .unified()
                .iter()
                .flatten()
                .map(unified)
                .collect::<Result<_>>()?,
        })
    }
}

fn cpu(spec: &oci::LinuxCpu) -> Result<(Cpu, CpusetLists)> {
    let cpu = Cpu {
        shares: spec.shares().filter(|n| *n != 0),
        quota: match spec.quota() {
            None | Some(0) => None,
            Some(n) => Some(u64::try_from(n).map_or(Limit::Unlimited, |n| Limit::Of(Micros(n)))),
        },
        period: spec.period().filter(|n| *n != 0).map(Micros),
        burst: spec.burst().map(Micros),
        idle: match spec.idle() {
            None => None,
            Some(0) => Some(false),
            Some(1) => Some(true),
            Some(n) => return fault("cpu.idle", n, "it is 0 or 1"),
        },
        realtime_runtime: spec.realtime_runtime().filter(|n| *n != 0),
        realtime_period: spec.realtime_period().filter(|n| *n != 0).map(Micros),
    };
    if let (Some(burst), Some(Limit::Of(quota))) = (cpu.burst, cpu.quota)
        && burst > quota
    {
        return fault("cpu.burst", burst.0, "it is more than the quota");
    }
    let cpuset = CpusetLists {
        cpus: cpu_list("cpu.cpus", spec.cpus().as_deref())?,
        mems: cpu_list("cpu.mems", spec.mems().as_deref())?,
    };
    Ok((cpu, cpuset))
}

fn cpu_list(key: &str, list: Option<&str>) -> Result<Option<String>> {
    let Some(list) = list.filter(|l| !l.is_empty()) else {
        return Ok(None);
    };
    match list.parse::<CpuSet>() {
        Ok(set) if set.count() > 0 => Ok(Some(list.to_owned())),
        Ok(_) => fault(key, list, "it names nothing"),
        Err(reason) => fault(key, list, reason),
    }
}

fn memory(spec: &oci::LinuxMemory) -> Result<Memory> {
    let bytes = |key, value: Option<i64>| match value {
        None | Some(0) => Ok(None),
        Some(n) => limit(key, n).map(|l| Some(l.map(Bytes))),
    };
    let memory = Memory {
        limit: bytes("memory.limit", spec.limit())?,
        reservation: bytes("memory.reservation", spec.reservation())?,
        swap: bytes("memory.swap", spec.swap())?,
        // Docker says -1 for none, which arrives as its two's complement.
        swappiness: spec.swappiness().filter(|n| *n != u64::MAX),
        disable_oom_killer: spec.disable_oom_killer().unwrap_or_default(),
        check_before_update: spec.check_before_update().unwrap_or_default(),
    };
    if let (Some(Limit::Of(swap)), Some(Limit::Of(limit))) = (memory.swap, memory.limit)
        && swap < limit
    {
        return fault(
            "memory.swap",
            swap.0,
            "it counts memory and swap, and is less than memory.limit",
        );
    }
    match memory.swappiness {
        Some(n) if n > 100 => fault("memory.swappiness", n, "it is from 0 to 100"),
        _ => Ok(memory),
    }
}

/// A limit where -1 is none. Zero is a figure here: what it means differs.
fn limit(key: &str, value: i64) -> Result<Limit<u64>> {
    match u64::try_from(value) {
        Ok(n) => Ok(Limit::Of(n)),
        Err(_) if value == -1 => Ok(Limit::Unlimited),
        Err(_) => fault(
            key,
            value,
            "of the negative numbers only -1, no limit, is known",
        ),
    }
}

fn block_io(spec: &oci::LinuxBlockIo) -> Result<BlockIo> {
    let mut throttles = Vec::new();
    for (list, what) in [
        (spec.throttle_read_bps_device(), ThrottleKind::ReadBytes),
        (spec.throttle_write_bps_device(), ThrottleKind::WriteBytes),
        (
            spec.throttle_read_iops_device(),
            ThrottleKind::ReadOperations,
        ),
        (
            spec.throttle_write_iops_device(),
            ThrottleKind::WriteOperations,
        ),
    ] {
        for t in list.iter().flatten() {
            throttles.push(Throttle {
                device: device(t.major(), t.minor())?,
                what,
                rate: t.rate(),
            });
        }
    }
    let mut devices = Vec::new();
    for w in spec.weight_device().iter().flatten() {
        devices.push(DeviceWeight {
            device: device(w.major(), w.minor())?,
            weight: weight("blockIO.weightDevice.weight", w.weight())?,
            leaf_weight: weight("blockIO.weightDevice.leafWeight", w.leaf_weight())?,
        });
    }
    Ok(BlockIo {
        weight: weight("blockIO.weight", spec.weight())?,
        leaf_weight: weight("blockIO.leafWeight", spec.leaf_weight())?,
        devices,
        throttles,
    })
}

fn weight(key: &str, value: Option<u16>) -> Result<Option<u16>> {
    match value {
        None | Some(0) => Ok(None),
        Some(n @ 10..=1000) => Ok(Some(n)),
        Some(n) => fault(key, n, "it is from 10 to 1000"),
    }
}

fn device(major: i64, minor: i64) -> Result<(u32, u32)> {
    match (u32::try_from(major), u32::try_from(minor)) {
        (Ok(major), Ok(minor)) => Ok((major, minor)),
        _ => fault(
            "blockIO device",
            format!("{major}:{minor}"),
            "it is no device number",
        ),
    }
}

fn huge_page(spec: &oci::LinuxHugepageLimit) -> Result<(String, Bytes)> {
    let size = spec.page_size();
    let stem = ["KB", "MB", "GB"]
        .iter()
        .find_map(|unit| size.strip_suffix(unit));
    if !stem.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
        return fault(
            "hugepageLimits.pageSize",
            size,
            "it is a size such as 2MB or 1GB",
        );
    }
    match u64::try_from(spec.limit()) {
        Ok(limit) => Ok((size.clone(), Bytes(limit))),
        Err(_) => fault("hugepageLimits.limit", spec.limit(), "it is not negative"),
    }
}

fn rdma((name, spec): (&String, &oci::LinuxRdma)) -> Result<(String, Rdma)> {
    if name.is_empty() || name.chars().any(char::is_whitespace) {
        return fault("rdma", format!("{name:?}"), "it is no name of a device");
    }
    let limits = Rdma {
        hca_handles: spec.hca_handles(),
        hca_objects: spec.hca_objects(),
    };
    if limits == Rdma::default() {
        return fault("rdma", name, "hcaHandles or hcaObjects is wanted");
    }
    Ok((name.clone(), limits))
}

fn unified((key, value): (&String, &String)) -> Result<(String, String)> {
    if key.contains('/') {
        fault("unified", key, "it is the name of a file, without a slash")
    } else if key.starts_with('.') || !key.contains('.') {
        fault("unified", key, "it is named controller.parameter")
    } else if value.trim().is_empty() {
        fault(
            &format!("unified.{key}"),
            "\"\"",
            "an empty value would be taken for 0",
        )
    } else {
        Ok((key.clone(), value.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::resources;
    use super::*;

    #[test]
    fn contradictions_are_refused_before_anything_is_written() {
        for (json, message) in [
            (
                r#"{"memory":{"limit":-2}}"#,
                "resource memory.limit = -2: of the negative numbers only -1",
            ),
            (
                r#"{"memory":{"limit":10,"swap":9}}"#,
                "less than memory.limit",
            ),
            (r#"{"memory":{"swappiness":101}}"#, "from 0 to 100"),
            (r#"{"cpu":{"idle":2}}"#, "0 or 1"),
            (
                r#"{"cpu":{"quota":1000,"burst":1001}}"#,
                "more than the quota",
            ),
            (r#"{"cpu":{"cpus":"3-1"}}"#, "lower number"),
            (r#"{"cpu":{"cpus":","}}"#, "names nothing"),
            (r#"{"cpu":{"mems":"x"}}"#, "resource cpu.mems = x"),
            (r#"{"pids":{"limit":-5}}"#, "resource pids.limit = -5"),
            (r#"{"blockIO":{"weight":9}}"#, "from 10 to 1000"),
            (r#"{"blockIO":{"weight":1001}}"#, "from 10 to 1000"),
            (
                r#"{"blockIO":{"throttleReadBpsDevice":[{"major":-8,"minor":0,"rate":1}]}}"#,
                "no device number",
            ),
            (
                r#"{"hugepageLimits":[{"pageSize":"../2MB","limit":1}]}"#,
                "a size such as 2MB",
            ),
            (
                r#"{"hugepageLimits":[{"pageSize":"2MB","limit":-1}]}"#,
                "not negative",
            ),
            (
                r#"{"rdma":{"a b":{"hcaHandles":1}}}"#,
                "no name of a device",
            ),
            (r#"{"rdma":{"mlx5":{}}}"#, "is wanted"),
            (r#"{"unified":{"memory/max":"1"}}"#, "without a slash"),
            (r#"{"unified":{"memory":"1"}}"#, "controller.parameter"),
            (r#"{"unified":{".max":"1"}}"#, "controller.parameter"),
            (r#"{"unified":{"memory.max":""}}"#, "an empty value"),
        ] {
            let error = resources(json).unwrap_err().to_string();
            assert!(error.contains(message), "{json}: {error}");
        }
    }

    #[test]
    fn zero_is_unset_and_minus_one_is_unlimited() {
        let unset = r#"{"memory":{"limit":0,"swap":0,"reservation":0},"cpu":{"shares":0,"quota":0,"period":0,"cpus":""},
            "blockIO":{"weight":0}}"#;
        assert_eq!(resources(unset).unwrap(), Resources::default());
        let unlimited = resources(
            r#"{"memory":{"limit":-1,"swap":-1},"cpu":{"quota":-1},"pids":{"limit":-1}}"#,
        )
        .unwrap();
        assert_eq!(unlimited.memory.limit, Some(Limit::Unlimited));
        assert_eq!(unlimited.memory.swap, Some(Limit::Unlimited));
        assert_eq!(unlimited.cpu.quota, Some(Limit::Unlimited));
        assert_eq!(unlimited.pids, Some(Limit::Unlimited));
        assert_eq!(
            resources(r#"{"pids":{"limit":0}}"#).unwrap().pids,
            Some(Limit::Of(1))
        );
    }
}
