//! Figures as `io.containerd.cgroups.v1.Metrics`, for version 1 and hybrid
//! hosts. Times are nanoseconds; a limit that is none is 2^64 - 1.

use cgroups::net::Interface;
use cgroups::stats::{BlkioEntry, RdmaDevice, Stats, Usage};
use protos::metrics_v1::{
    BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl,
    MemoryStat, Metrics, NetworkStat, PidsStat, RdmaEntry, RdmaStat, Throttle,
};
use protos::protobuf::MessageField;

use super::handles;

/// The message. A group of figures that the host does not have is absent; but
/// memory and CPU usage are always there, since `ctr` reads them unasked.
pub(super) fn metrics(stats: &Stats, network: &[Interface]) -> Metrics {
    Metrics {
        pids: stats
            .pids
            .current
            .map(|current| pids(stats, current))
            .into(),
        cpu: MessageField::some(cpu(stats)),
        memory: MessageField::some(memory(stats)),
        memory_oom_control: oom_control(stats),
        blkio: MessageField::some(blkio(stats)),
        hugetlb: hugetlb(stats),
        rdma: rdma(stats),
        network: network.iter().map(interface).collect(),
        ..Metrics::default()
    }
}

fn pids(stats: &Stats, current: u64) -> PidsStat {
    // Here, unlike in version 2's message, 0 stands for no limit.
    let limit = stats
        .pids
        .limit
        .and_then(cgroups::Limit::value)
        .unwrap_or(0);
    PidsStat {
        current,
        limit,
        ..PidsStat::default()
    }
}

fn cpu(stats: &Stats) -> CPUStat {
    let cpu = &stats.cpu;
    let nanos = |time: Option<cgroups::Nanos>| time.map_or(0, |time| time.0);
    let usage = CPUUsage {
        total: nanos(cpu.usage),
        kernel: nanos(cpu.system),
        user: nanos(cpu.user),
        per_cpu: cpu.per_cpu.iter().map(|time| time.0).collect(),
        ..CPUUsage::default()
    };
    let throttling = cpu.periods.map(|periods| Throttle {
        periods,
        throttled_periods: cpu.throttled_periods.unwrap_or(0),
        throttled_time: nanos(cpu.throttled_time),
        ..Throttle::default()
    });
    CPUStat {
        usage: MessageField::some(usage),
        throttling: throttling.into(),
        ..CPUStat::default()
    }
}

fn memory(stats: &Stats) -> MemoryStat {
    let memory = &stats.memory;
    let of = |key: &str| memory.get(key).unwrap_or(0);
    MemoryStat {
        cache: of("cache"),
        rss: of("rss"),
        rss_huge: of("rss_huge"),
        mapped_file: of("mapped_file"),
        dirty: of("dirty"),
        writeback: of("writeback"),
        pg_pg_in: of("pgpgin"),
        pg_pg_out: of("pgpgout"),
        pg_fault: of("pgfault"),
        pg_maj_fault: of("pgmajfault"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        hierarchical_memory_limit: of("hierarchical_memory_limit"),
        hierarchical_swap_limit: of("hierarchical_memsw_limit"),
        total_cache: of("total_cache"),
        total_rss: of("total_rss"),
        total_rss_huge: of("total_rss_huge"),
        total_mapped_file: of("total_mapped_file"),
        total_dirty: of("total_dirty"),
        total_writeback: of("total_writeback"),
        total_pg_pg_in: of("total_pgpgin"),
        total_pg_pg_out: of("total_pgpgout"),
        total_pg_fault: of("total_pgfault"),
        total_pg_maj_fault: of("total_pgmajfault"),
        total_inactive_anon: of("total_inactive_anon"),
        total_active_anon: of("total_active_anon"),
        total_inactive_file: of("total_inactive_file"),
        total_active_file: of("total_active_file"),
        total_unevictable: of("total_unevictable"),
        usage: MessageField::some(entry(&memory.memory).unwrap_or_default()),
        swap: entry(&memory.swap).into(),
        kernel: entry(&memory.kernel).into(),
        kernel_tcp: entry(&memory.kernel_tcp).into(),
        ..MemoryStat::default()
    }
}

fn entry(usage: &Usage) -> Option<MemoryEntry> {
    let now = usage.usage?;
    Some(MemoryEntry {
        limit: usage.limit.map_or(u64::MAX, |limit| limit.or_max()),
        usage: now.0,
        max: usage.max_usage.map_or(0, |most| most.0),
        failcnt: usage.failcnt.unwrap_or(0),
        ..MemoryEntry::default()
    })
}

fn oom_control(stats: &Stats) -> MessageField<MemoryOomControl> {
    let control = stats.memory.oom_control.map(|control| MemoryOomControl {
        oom_kill_disable: control.oom_kill_disable,
        under_oom: control.under_oom,
        oom_kill: control.oom_kill.unwrap_or(0),
        ..MemoryOomControl::default()
    });
    control.into()
}

fn blkio(stats: &Stats) -> BlkIOStat {
    let entries = |entries: &[BlkioEntry]| {
        entries
            .iter()
            .map(|entry| BlkIOEntry {
                op: entry.op.clone(),
                device: entry.device.clone(),
                major: entry.major.into(),
                minor: entry.minor.into(),
                value: entry.value,
                ..BlkIOEntry::default()
            })
            .collect()
    };
    let blkio = &stats.blkio;
    BlkIOStat {
        io_service_bytes_recursive: entries(&blkio.service_bytes),
        io_serviced_recursive: entries(&blkio.serviced),
        io_queued_recursive: entries(&blkio.queued),
        io_service_time_recursive: entries(&blkio.service_time),
        io_wait_time_recursive: entries(&blkio.wait_time),
        io_merged_recursive: entries(&blkio.merged),
        io_time_recursive: entries(&blkio.time),
        sectors_recursive: entries(&blkio.sectors),
        ..BlkIOStat::default()
    }
}

fn hugetlb(stats: &Stats) -> Vec<HugetlbStat> {
    stats
        .hugetlb
        .iter()
        .map(|pages| HugetlbStat {
            usage: pages.usage.map_or(0, |usage| usage.0),
            max: pages.max_usage.map_or(0, |most| most.0),
            failcnt: pages.failcnt.unwrap_or(0),
            pagesize: pages.size.clone(),
            ..HugetlbStat::default()
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
