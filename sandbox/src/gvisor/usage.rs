//! What a container uses, as the sentry and its gofer tell.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::Deserialize;

use super::{Gvisor, Nothing, gone};
use crate::error::{Error, Result};

/// A time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

/// A size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// What one container uses. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes in the container. Runsc of 2022 counts only the sandbox as a whole.
    pub pids: Option<u64>,
    /// Memory of the container. Known if it is alone in the sandbox, or sees a
    /// cgroup file system (then the sentry counts by container).
    pub memory: Option<Bytes>,
    /// CPU time: of its processes, which the sentry counts in steps of 10 ms, and
    /// of its gofer, which the kernel counts and which works for nobody else.
    pub cpu: Nanos,
}

impl Gvisor {
    /// What a running container uses.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the container or its sandbox has ended.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        const METHOD: &str = "containerManager.Event";
        let sentry = self.sentry_of_running(id)?;
        let (memory_known, gofer) = {
            let mut table = self.table.lock();
            let alone = table.containers.len() == 1;
            let container = table.container(id)?;
            let known = !sentry.old && container.mounts_cgroups || alone;
            (known, container.gofer)
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
        let pids_known = !self.plain_event.load(Ordering::Relaxed);
        let mut usage = event.of(id, memory_known, pids_known);
        usage.cpu.0 = usage
            .cpu
            .0
            .saturating_add(gofer.map_or(0, |pid| cpu_time(pid).0));
        Ok(usage)
    }
}

/// CPU time of a process with all its threads; zero if it is no more.
fn cpu_time(pid: Pid) -> Nanos {
    let time = clock_getcpuclockid(pid).and_then(clock_gettime);
    Nanos(time.map_or(0, |time| {
        let nanos = time.tv_sec().saturating_mul(1_000_000_000) + time.tv_nsec();
        u64::try_from(nanos).unwrap_or(0)
    }))
}

/// The answer of `containerManager.Event`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    event: Inner,
    /// CPU time in ns, in steps of 10 ms. A container's never falls, and its entry
    /// vanishes when it ends.
    #[serde(default)]
    container_usage: BTreeMap<String, u64>,
}

impl Event {
    /// What it says of the container; memory and pids in it are the container's,
    /// if they are known at all.
    fn of(self, id: &str, memory_known: bool, pids_known: bool) -> Usage {
        let data = self.event.data;
        Usage {
            pids: pids_known.then_some(data.pids.current),
            memory: memory_known.then_some(Bytes(data.memory.usage.usage)),
            cpu: Nanos(self.container_usage.get(id).copied().unwrap_or(0)),
        }
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    const ANSWER: &str = r#"{"event":{"type":"stats","id":"c","data":{"cpu":{"usage":{}},
        "memory":{"usage":{"limit":0,"usage":4096,"failcnt":0},"swap":{"limit":0,"failcnt":0}},
        "pids":{"current":2},"network_interfaces":[{"Name":"eth0","RxBytes":7,"TxDropped":1}]}},
        "containerUsage":{"c":20000000,"p":0}}"#;

    fn read(answer: &str, known: bool) -> Usage {
        let event: Event = serde_json::from_str(answer).unwrap();
        event.of("c", known, known)
    }

    #[test]
    fn an_answer_is_read_as_far_as_it_can_be_trusted() {
        let usage = read(ANSWER, true);
        assert_eq!((usage.memory, usage.pids), (Some(Bytes(4096)), Some(2)));
        assert_eq!(usage.cpu, Nanos(20_000_000));

        let usage = read(ANSWER, false);
        assert_eq!((usage.memory, usage.pids), (None, None), "absent, not zero");
    }

    #[test]
    fn an_idle_container_of_the_old_version_is_read() {
        let old = r#"{"event":{"type":"stats","id":"c","data":{"cpu":{"usage":{}},
            "memory":{"usage":{"limit":0,"failcnt":0}},"pids":{}}},"containerUsage":{}}"#;
        let usage = read(old, true);
        assert_eq!((usage.memory, usage.pids), (Some(Bytes(0)), Some(0)));
    }

    #[test]
    fn a_process_has_its_time_and_one_that_is_no_more_has_none() {
        let (own, before) = (Pid::this(), cpu_time(Pid::this()));
        while cpu_time(own) < Nanos(before.0 + 1_000_000) {}
        assert!(cpu_time(own).0 < 3_600_000_000_000, "{:?}", cpu_time(own));
        assert_eq!(cpu_time(Pid::from_raw(1 << 23)), Nanos(0));
    }

    proptest! {
        #[test]
        fn any_answer_is_usage_or_refused(bytes in damaged(ANSWER.as_bytes()), known: bool) {
            if let Ok(event) = serde_json::from_slice::<Event>(&bytes) {
                let usage = event.of("c", known, known);
                prop_assert_eq!(usage.memory.is_some(), known);
            }
        }
    }
}
