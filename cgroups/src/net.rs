//! Statistics of network interfaces, as `/proc/<pid>/net/dev` has them for the
//! network namespace of that process.

/// Counters of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Errors on receiving.
    pub rx_errors: u64,
    /// Packets dropped on receiving.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Errors on sending.
    pub tx_errors: u64,
    /// Packets dropped on sending.
    pub tx_dropped: u64,
}

/// The interfaces in the text of a `net/dev` file, in its order, loopback
/// included. A line that is none is skipped.
#[must_use]
pub fn interfaces(proc_net_dev: &str) -> Vec<Interface> {
    proc_net_dev.lines().filter_map(interface).collect()
}

fn interface(line: &str) -> Option<Interface> {
    // The last colon: an alias such as eth0:1 has one in its name. There may
    // be no space after it.
    let (name, counters) = line.rsplit_once(':')?;
    let counters: Vec<u64> = counters
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let [
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        _,
        _,
        _,
        _,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
        ..,
    ] = counters[..]
    else {
        return None;
    };
    let name = name.trim().to_owned();
    Some(Interface {
        name,
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_are_skipped_and_columns_right() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
             lo:   10       2    0    0    0     0          0         0       10       2    0    0    0     0       0          0\n\
             eth0:1:18446744073709551615 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  torn: 1 2\n";
        let found = interfaces(text);
        assert_eq!(
            found.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(),
            ["lo", "eth0:1"]
        );
        assert_eq!(
            found[1],
            Interface {
                name: "eth0:1".into(),
                rx_bytes: u64::MAX,
                rx_packets: 2,
                rx_errors: 3,
                rx_dropped: 4,
                tx_bytes: 9,
                tx_packets: 10,
                tx_errors: 11,
                tx_dropped: 12,
            }
        );
    }

    #[test]
    fn the_kernels_own_file_has_loopback() {
        let found = interfaces(&std::fs::read_to_string("/proc/self/net/dev").unwrap());
        assert!(found.iter().any(|i| i.name == "lo"), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_text_of_net_dev_is_read(text in "[a-z:0-9 \n]{0,80}") {
            let _ = interfaces(&text);
        }
    }
}
