//! Figures as `io.containerd.cgroups.v2.Metrics`, for version 2 hosts. Times are
//! microseconds; a limit that is none is 2^64 - 1.

use cgroups::Micros;
use cgroups::net::Interface;
use cgroups::stats::{Pressure, PressureLine, RdmaDevice, Stats};
use protos::metrics_v2::{
    CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, NetworkStat, PSIData,
    PSIStats, PidsStat, RdmaEntry, RdmaStat,
};
use protos::protobuf::MessageField;

use super::handles;

/// The message. A group of figures that the host does not have is absent.
pub(super) fn metrics(stats: &Stats, network: &[Interface]) -> Metrics {
    Metrics {
        pids: stats
            .pids
            .current
            .map(|current| pids(stats, current))
            .into(),
        cpu: MessageField::some(cpu(stats)),
        memory: MessageField::some(memory(stats)),
        memory_events: events(stats),
        io: MessageField::some(io(stats)),
        hugetlb: hugetlb(stats),
        rdma: rdma(stats),
        network: network.iter().map(interface).collect(),
        ..Metrics::default()
    }
}

fn pids(stats: &Stats, current: u64) -> PidsStat {
    let limit = stats.pids.limit.map_or(u64::MAX, |limit| limit.or_max());
    PidsStat {
        current,
        limit,
        ..PidsStat::default()
    }
}

fn cpu(stats: &Stats) -> CPUStat {
    let cpu = &stats.cpu;
    let micros = |time: Option<cgroups::Nanos>| time.map_or(0, |time| Micros::from(time).0);
    CPUStat {
        usage_usec: micros(cpu.usage),
        user_usec: micros(cpu.user),
        system_usec: micros(cpu.system),
        nr_periods: cpu.periods.unwrap_or(0),
        nr_throttled: cpu.throttled_periods.unwrap_or(0),
        throttled_usec: micros(cpu.throttled_time),
        nr_bursts: cpu.bursts.unwrap_or(0),
        burst_usec: micros(cpu.burst_time),
        psi: pressure(cpu.pressure),
        ..CPUStat::default()
    }
}

fn memory(stats: &Stats) -> MemoryStat {
    let memory = &stats.memory;
    let of = |key: &str| memory.get(key).unwrap_or(0);
    // Linux 5.9 split these in two; the message has the sums.
    let either = |key: &str| {
        memory
            .get(key)
            .unwrap_or_else(|| of(&format!("{key}_anon")) + of(&format!("{key}_file")))
    };
    MemoryStat {
        anon: of("anon"),
        file: of("file"),
        kernel_stack: of("kernel_stack"),
        slab: of("slab"),
        sock: of("sock"),
        shmem: of("shmem"),
        file_mapped: of("file_mapped"),
        file_dirty: of("file_dirty"),
        file_writeback: of("file_writeback"),
        anon_thp: of("anon_thp"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        slab_reclaimable: of("slab_reclaimable"),
        slab_unreclaimable: of("slab_unreclaimable"),
        pgfault: of("pgfault"),
        pgmajfault: of("pgmajfault"),
        workingset_refault: either("workingset_refault"),
        workingset_activate: either("workingset_activate"),
        workingset_nodereclaim: of("workingset_nodereclaim"),
        pgrefill: of("pgrefill"),
        pgscan: of("pgscan"),
        pgsteal: of("pgsteal"),
        pgactivate: of("pgactivate"),
        pgdeactivate: of("pgdeactivate"),
        pglazyfree: of("pglazyfree"),
        pglazyfreed: of("pglazyfreed"),
        thp_fault_alloc: of("thp_fault_alloc"),
        thp_collapse_alloc: of("thp_collapse_alloc"),
        usage: memory.memory.usage.map_or(0, |usage| usage.0),
        usage_limit: memory.memory.limit.map_or(u64::MAX, |limit| limit.or_max()),
        max_usage: memory.memory.max_usage.map_or(0, |most| most.0),
        swap_usage: memory.swap.usage.map_or(0, |usage| usage.0),
        swap_limit: memory.swap.limit.map_or(u64::MAX, |limit| limit.or_max()),
        swap_max_usage: memory.swap.max_usage.map_or(0, |most| most.0),
        psi: pressure(memory.pressure),
        ..MemoryStat::default()
    }
}

fn events(stats: &Stats) -> MessageField<MemoryEvents> {
    let events = stats.memory.events.map(|events| MemoryEvents {
        low: events.low,
        high: events.high,
        max: events.max,
        oom: events.oom,
        oom_kill: events.oom_kill,
        oom_group_kill: events.oom_group_kill,
        ..MemoryEvents::default()
    });
    events.into()
}

fn io(stats: &Stats) -> IOStat {
    let usage = stats
        .io
        .iter()
        .map(|device| IOEntry {
            major: device.major.into(),
            minor: device.minor.into(),
            rbytes: device.read_bytes,
            wbytes: device.write_bytes,
            rios: device.reads,
            wios: device.writes,
            ..IOEntry::default()
        })
        .collect();
    IOStat {
        usage,
        psi: pressure(stats.io_pressure),
        ..IOStat::default()
    }
}

fn hugetlb(stats: &Stats) -> Vec<HugeTlbStat> {
    stats
        .hugetlb
        .iter()
        .map(|pages| HugeTlbStat {
            current: pages.usage.map_or(0, |usage| usage.0),
            max: pages.limit.map_or(u64::MAX, |limit| limit.or_max()),
            pagesize: pages.size.clone(),
            failcnt: pages.failcnt.unwrap_or(0),
            ..HugeTlbStat::default()
        })
        .collect()
}

fn rdma(stats: &Stats) -> MessageField<RdmaStat> {
    let entries = |devices: &[RdmaDevice]| -> Vec<RdmaEntry> {
        devices
            .iter()
            .map(|device| RdmaEntry {
                device: device.device.clone(),
                hca_handles: handles(device.hca_handles),
                hca_objects: handles(device.hca_objects),
                ..RdmaEntry::default()
            })
            .collect()
    };
    let (current, limit) = (entries(&stats.rdma_current), entries(&stats.rdma_limit));
    let there = !current.is_empty() || !limit.is_empty();
    there
        .then(|| RdmaStat {
            current,
            limit,
            ..RdmaStat::default()
        })
        .into()
}

fn pressure(pressure: Option<Pressure>) -> MessageField<PSIStats> {
    let line = |line: Option<PressureLine>| -> MessageField<PSIData> {
        let data = line.map(|line| PSIData {
            avg10: line.avg10,
            avg60: line.avg60,
            avg300: line.avg300,
            total: Micros::from(line.total).0,
            ..PSIData::default()
        });
        data.into()
    };
    let stats = pressure.map(|pressure| PSIStats {
        some: line(pressure.some),
        full: line(pressure.full),
        ..PSIStats::default()
    });
    stats.into()
}

fn interface(interface: &Interface) -> NetworkStat {
    NetworkStat {
        name: interface.name.clone(),
        rx_bytes: interface.rx_bytes,
        rx_packets: interface.rx_packets,
        rx_errors: interface.rx_errors,
        rx_dropped: interface.rx_dropped,
        tx_bytes: interface.tx_bytes,
        tx_packets: interface.tx_packets,
        tx_errors: interface.tx_errors,
        tx_dropped: interface.tx_dropped,
        ..NetworkStat::default()
    }
}
