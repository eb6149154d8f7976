//! What the sentry counts of its containers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Deserialize;

use super::{Gvisor, Nothing, gone};
use crate::error::{Error, Result};

/// A time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// A size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// What one container uses, as far as the sentry knows it. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes in the container. Runsc of 2022 counts only the sandbox as a whole.
    pub pids: Option<u64>,
    /// Memory of the container. Known if it is alone in the sandbox, or sees a
    /// cgroup file system (then the sentry counts by container).
    pub memory: Option<Bytes>,
    /// CPU time of each container of the sandbox, in steps of 10 ms. A container's
    /// never falls, and the entry vanishes when the container ends.
    pub cpu_of_each: BTreeMap<String, Nanos>,
    /// The interfaces of the sandbox's own network stack; empty on the host's.
    pub network: Vec<NetworkUsage>,
}

/// Traffic of one interface of the sandbox since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    /// The interface.
    pub name: String,
    /// Received.
    pub rx_bytes: Bytes,
    /// Received packets.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Received and dropped packets.
    pub rx_dropped: u64,
    /// Sent.
    pub tx_bytes: Bytes,
    /// Sent packets.
    pub tx_packets: u64,
    /// Send errors.
    pub tx_errors: u64,
    /// Packets dropped instead of sent.
    pub tx_dropped: u64,
}

impl Gvisor {
    /// What a running container uses.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the container or its sandbox has ended.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        const METHOD: &str = "containerManager.Event";
        let sentry = self.sentry_of_running(id)?;
        let memory_known = {
            let mut table = self.table.lock();
            let alone = table.containers.len() == 1;
            !sentry.old && table.container(id)?.mounts_cgroups || alone
        };
        let event: Event = if self.plain_event.load(Ordering::Relaxed) {
            self.ask(&sentry, METHOD, &Nothing {}).await
        } else {
            match self.ask(&sentry, METHOD, &id).await {
                Err(Error::Refused { cause, .. }) if cause.contains("cannot unmarshal string") => {
                    self.plain_event.store(true, Ordering::Relaxed);
                    self.ask(&sentry, METHOD, &Nothing {}).await
                }
                answer => answer,
            }
        }
        .map_err(gone(id))?;
        Ok(Usage::of(
            event,
            memory_known,
            !self.plain_event.load(Ordering::Relaxed),
        ))
    }
}

impl Usage {
    /// What an answer says; `by_container` if memory and pids in it are the container's.
    pub(crate) fn of(event: Event, memory_known: bool, pids_known: bool) -> Self {
        let data = event.event.data;
        Self {
            pids: pids_known.then_some(data.pids.current),
            memory: memory_known.then_some(Bytes(data.memory.usage.usage)),
            cpu_of_each: event
                .container_usage
                .into_iter()
                .map(|(id, nanos)| (id, Nanos(nanos)))
                .collect(),
            network: data
                .network_interfaces
                .unwrap_or_default()
                .into_iter()
                .map(|interface| NetworkUsage {
                    name: interface.name,
                    rx_bytes: Bytes(interface.rx_bytes),
                    rx_packets: interface.rx_packets,
                    rx_errors: interface.rx_errors,
                    rx_dropped: interface.rx_dropped,
                    tx_bytes: Bytes(interface.tx_bytes),
                    tx_packets: interface.tx_packets,
                    tx_errors: interface.tx_errors,
                    tx_dropped: interface.tx_dropped,
                })
                .collect(),
        }
    }
}

/// The answer of `containerManager.Event`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    event: Inner,
    #[serde(default)]
    container_usage: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct Inner {
    data: Data,
}

#[derive(Debug, Deserialize)]
struct Data {
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    pids: Pids,
    #[serde(default)]
    network_interfaces: Option<Vec<Interface>>,
}

#[derive(Debug, Default, Deserialize)]
struct Memory {
    #[serde(default)]
    usage: MemoryEntry,
}

/// Zero values are left out by the sentry.
#[derive(Debug, Default, Deserialize)]
struct MemoryEntry {
    #[serde(default)]
    usage: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Pids {
    #[serde(default)]
    current: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct Interface {
    name: String,
    rx_bytes: u64,
    rx_packets: u64,
    rx_errors: u64,
    rx_dropped: u64,
    tx_bytes: u64,
    tx_packets: u64,
    tx_errors: u64,
    tx_dropped: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    const ANSWER: &str = r#"{"event":{"type":"stats","id":"c","data":{"cpu":{"usage":{}},
        "memory":{"usage":{"limit":0,"usage":4096,"failcnt":0},"swap":{"limit":0,"failcnt":0}},
        "pids":{"current":2},"network_interfaces":[{"Name":"eth0","RxBytes":7,"TxDropped":1}]}},
        "containerUsage":{"c":20000000,"p":0}}"#;

    #[test]
    fn an_answer_is_read_as_far_as_it_can_be_trusted() {
        let usage = Usage::of(serde_json::from_str(ANSWER).unwrap(), true, true);
        assert_eq!((usage.memory, usage.pids), (Some(Bytes(4096)), Some(2)));
        let cpu = [
            ("c".to_owned(), Nanos(20_000_000)),
            ("p".to_owned(), Nanos(0)),
        ];
        assert_eq!(usage.cpu_of_each, BTreeMap::from(cpu));
        let eth0 = &usage.network[0];
        assert_eq!(
            (eth0.name.as_str(), eth0.rx_bytes, eth0.tx_dropped),
            ("eth0", Bytes(7), 1)
        );

        let usage = Usage::of(serde_json::from_str(ANSWER).unwrap(), false, false);
        assert_eq!((usage.memory, usage.pids), (None, None), "absent, not zero");
    }

    #[test]
    fn an_idle_container_of_the_old_version_is_read() {
        let old = r#"{"event":{"type":"stats","id":"c","data":{"cpu":{"usage":{}},
            "memory":{"usage":{"limit":0,"failcnt":0}},"pids":{}}},"containerUsage":{}}"#;
        let usage = Usage::of(serde_json::from_str(old).unwrap(), true, true);
        assert_eq!((usage.memory, usage.pids), (Some(Bytes(0)), Some(0)));
        assert!(usage.network.is_empty());
    }

    proptest! {
        #[test]
        fn any_answer_is_usage_or_refused(bytes in damaged(ANSWER.as_bytes()), known: bool) {
            if let Ok(event) = serde_json::from_slice(&bytes) {
                let usage = Usage::of(event, known, known);
                prop_assert_eq!(usage.memory.is_some(), known);
            }
        }
    }
}
