//! A container's figures: asked from its shim, or taken from an event, in either
//! version's message.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use protos::metrics_v1;
use protos::metrics_v2;
use protos::protobuf::Message;
use protos::protobuf::well_known_types::any::Any;
use protos::task::{StatsRequest, StatsResponse};
use serde_json::Value;

use crate::cgroups;
use crate::containerd::Containerd;
use crate::wire::{Client, Refusal, TASK_V2};

/// The figures that tests and the live table look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Type of the message that they came in.
    pub type_url: String,
    /// CPU time in nanoseconds.
    pub cpu: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// The most memory at a time, in bytes.
    pub most_memory: u64,
    /// The limit of memory in bytes; 2^64 - 1 is none.
    pub memory_limit: u64,
    /// Kills for want of memory, if they are counted.
    pub kills: Option<u64>,
    /// Periods of the CPU quota in which it was used up, if they are counted.
    pub throttled: Option<u64>,
    /// Threads or processes.
    pub pids: u64,
    /// Bytes written to block devices.
    pub written: u64,
    /// Bytes received and sent by interface.
    pub network: BTreeMap<String, (u64, u64)>,
}

/// The type of message that this host's mode asks for.
pub fn expected_type() -> &'static str {
    if cgroups::is_unified() { V2 } else { V1 }
}

const V1: &str = "io.containerd.cgroups.v1.Metrics";
const V2: &str = "io.containerd.cgroups.v2.Metrics";

impl Figures {
    /// Reads a message; `None` if it is neither version's.
    pub fn of(any: &Any) -> Option<Self> {
        match any.type_url.as_str() {
            V1 => Some(Self::of_v1(
                &metrics_v1::Metrics::parse_from_bytes(&any.value).ok()?,
            )),
            V2 => Some(Self::of_v2(
                &metrics_v2::Metrics::parse_from_bytes(&any.value).ok()?,
            )),
            _ => None,
        }
    }

    /// Reads the payload of a metrics event as `ctr events` prints it.
    pub fn of_event(data: &Value) -> Option<Self> {
        Self::of(&any_of_event(data)?)
    }

    /// Asks the shim of `sandbox` for the figures of its container `id`.
    ///
    /// # Errors
    ///
    /// What the shim answered.
    pub fn ask(
        containerd: &Containerd,
        namespace: &str,
        sandbox: &str,
        id: &str,
    ) -> Result<Self, Refusal> {
        let bundle = containerd.bundle_in(namespace, sandbox);
        let address = fs::read_to_string(bundle.join("address"))
            .unwrap_or_else(|error| panic!("the address of {sandbox}: {error}"));
        let socket = address.trim().trim_start_matches("unix://").to_owned();
        Self::ask_at(&containerd.host().outside(socket), id)
    }

    /// As [`Self::ask`], of the shim that listens at `socket`.
    ///
    /// # Errors
    ///
    /// What the shim answered.
    pub fn ask_at(socket: &Path, id: &str) -> Result<Self, Refusal> {
        let mut client =
            Client::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        let request = StatsRequest {
            id: id.to_owned(),
            ..StatsRequest::default()
        };
        let answer: StatsResponse = client.call(TASK_V2, "Stats", &request)?;
        Ok(Self::of(answer.stats.get_or_default())
            .unwrap_or_else(|| panic!("Stats answered {}", answer.stats.type_url)))
    }

    fn of_v1(metrics: &metrics_v1::Metrics) -> Self {
        let memory = metrics.memory.usage.get_or_default();
        Self {
            type_url: V1.to_owned(),
            cpu: metrics.cpu.usage.total,
            memory: memory.usage,
            most_memory: memory.max,
            memory_limit: memory.limit,
            kills: metrics.memory_oom_control.as_ref().map(|one| one.oom_kill),
            throttled: metrics
                .cpu
                .throttling
                .as_ref()
                .map(|one| one.throttled_periods),
            pids: metrics.pids.current,
            written: metrics
                .blkio
                .io_service_bytes_recursive
                .iter()
                .filter(|entry| entry.op == "Write")
                .map(|entry| entry.value)
                .sum(),
            network: metrics
                .network
                .iter()
                .map(|one| (one.name.clone(), (one.rx_bytes, one.tx_bytes)))
                .collect(),
        }
    }

    fn of_v2(metrics: &metrics_v2::Metrics) -> Self {
        let memory = metrics.memory.get_or_default();
        Self {
            type_url: V2.to_owned(),
            cpu: metrics.cpu.usage_usec.saturating_mul(1000),
            memory: memory.usage,
            most_memory: memory.max_usage,
            memory_limit: memory.usage_limit,
            kills: metrics.memory_events.as_ref().map(|one| one.oom_kill),
            throttled: metrics.cpu.as_ref().map(|one| one.nr_throttled),
            pids: metrics.pids.current,
            written: metrics.io.usage.iter().map(|device| device.wbytes).sum(),
            network: metrics
                .network
                .iter()
                .map(|one| (one.name.clone(), (one.rx_bytes, one.tx_bytes)))
                .collect(),
        }
    }
}

/// The message inside of a metrics event as `ctr events` prints it.
pub fn any_of_event(data: &Value) -> Option<Any> {
    Some(Any {
        type_url: data["data"]["type_url"].as_str()?.to_owned(),
        value: base64(data["data"]["value"].as_str()?)?,
        ..Any::default()
    })
}

/// Decodes base64, in which Go writes bytes into JSON.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for character in text.bytes().take_while(|character| *character != b'=') {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9vYmFy", b"foobar"),
            ("/+8=", &[0xff, 0xef]),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(base64("a b"), None);
    }
}
