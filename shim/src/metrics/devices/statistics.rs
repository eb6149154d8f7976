//! What the host counts of a device, as our own message has it.

use cgroups::net::Interface;
use cgroups::stats::HugePages;
use protos::own::device::Statistics;
use protos::own::{BlockStatistics, Device, HugePageStatistics, NetworkStatistics};

/// The text of a block device's `stat`; see the kernel's
/// Documentation/block/stat.rst. Its sectors have 512 bytes on every device.
pub(super) fn block(text: &str) -> Option<BlockStatistics> {
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let [
        reads,
        _,
        read_sectors,
        read_milliseconds,
        writes,
        _,
        written_sectors,
        write_milliseconds,
        in_flight,
        busy_milliseconds,
        ..,
    ] = fields[..]
    else {
        return None;
    };
    Some(BlockStatistics {
        reads,
        writes,
        read_bytes: read_sectors.saturating_mul(512),
        written_bytes: written_sectors.saturating_mul(512),
        read_milliseconds,
        write_milliseconds,
        in_flight,
        busy_milliseconds,
        ..BlockStatistics::default()
    })
}

pub(super) fn interface(interface: &Interface) -> Device {
    Device {
        id: interface.name.clone(),
        statistics: Some(Statistics::Network(NetworkStatistics {
            received_bytes: interface.rx_bytes,
            received_packets: interface.rx_packets,
            receive_errors: interface.rx_errors,
            receive_dropped: interface.rx_dropped,
            sent_bytes: interface.tx_bytes,
            sent_packets: interface.tx_packets,
            send_errors: interface.tx_errors,
            send_dropped: interface.tx_dropped,
            ..NetworkStatistics::default()
        })),
        ..Device::default()
    }
}

pub(super) fn huge_pages(pages: &HugePages) -> Device {
    Device {
        id: pages.size.clone(),
        statistics: Some(Statistics::HugePages(HugePageStatistics {
            usage: pages.usage.map_or(0, |usage| usage.0),
            most: pages.max_usage.map_or(0, |most| most.0),
            limit: pages.limit.map_or(u64::MAX, |limit| limit.or_max()),
            failures: pages.failcnt.unwrap_or(0),
            ..HugePageStatistics::default()
        })),
        ..Device::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_of_stat_is_read(text in "[0-9 a\n]{0,80}") {
            let _ = block(&text);
        }
    }
}
