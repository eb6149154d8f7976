//! Whether figures have moved enough to be told again.

use std::time::Duration;

use cgroups::net::Interface;
use cgroups::stats::Stats;

/// What is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// CPU time, in nanoseconds.
    pub cpu: u64,
    /// Memory, in bytes.
    pub memory: u64,
    /// Threads.
    pub pids: u64,
    /// Bytes to and from block devices and interfaces.
    pub traffic: u64,
    /// Kills for want of memory.
    pub kills: u64,
}

impl Figures {
    /// Takes them out of all.
    pub fn of(stats: &Stats, network: &[Interface]) -> Self {
        let disks = stats.io.iter().map(|one| [one.read_bytes, one.write_bytes]);
        let links = network.iter().map(|one| [one.rx_bytes, one.tx_bytes]);
        let kills = stats.memory.events.map(|events| events.oom_kill);
        let kills_v1 = stats
            .memory
            .oom_control
            .and_then(|control| control.oom_kill);
        Self {
            cpu: stats.cpu.usage.map_or(0, |time| time.0),
            memory: stats.memory.memory.usage.map_or(0, |usage| usage.0),
            pids: stats.pids.current.unwrap_or(0),
            traffic: disks.chain(links).flatten().fold(0, u64::saturating_add),
            kills: kills.or(kills_v1).unwrap_or(0),
        }
    }

    /// Whether `self`, `elapsed` after `before`, differs by more than `percent`:
    /// CPU time of one CPU in that time, memory and threads of what they were.
    /// Traffic counts from 64 KiB on for each percent, a kill always.
    pub fn moved(&self, before: &Self, elapsed: Duration, percent: u64) -> bool {
        let beyond = |now: u64, then: u64, whole: u64| {
            u128::from(now.abs_diff(then)) * 100 > u128::from(whole) * u128::from(percent)
        };
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        beyond(self.cpu, before.cpu, nanos)
            || beyond(self.memory, before.memory, before.memory)
            || beyond(self.pids, before.pids, before.pids)
            || beyond(self.traffic, before.traffic, TRAFFIC)
            || self.kills != before.kills
    }
}

/// Traffic of which percents are taken.
const TRAFFIC: u64 = 100 * 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_counts_by_its_own_measure() {
        let before = Figures {
            cpu: 5_000_000_000,
            memory: 100 << 20,
            pids: 20,
            traffic: 1 << 30,
            kills: 0,
        };
        let elapsed = Duration::from_secs(10);
        for (after, percent, moved) in [
            (before, 1, false),
            (
                Figures {
                    cpu: before.cpu + 100_000_000,
                    ..before
                },
                1,
                false,
            ),
            (
                Figures {
                    cpu: before.cpu + 100_000_001,
                    ..before
                },
                1,
                true,
            ),
            (
                Figures {
                    memory: 105 << 20,
                    ..before
                },
                5,
                false,
            ),
            (
                Figures {
                    memory: 94 << 20,
                    ..before
                },
                5,
                true,
            ),
            (Figures { pids: 21, ..before }, 5, false),
            (Figures { pids: 22, ..before }, 5, true),
            (
                Figures {
                    traffic: before.traffic + 65_536,
                    ..before
                },
                1,
                false,
            ),
            (
                Figures {
                    traffic: before.traffic + 65_537,
                    ..before
                },
                1,
                true,
            ),
            (Figures { kills: 1, ..before }, 100, true),
        ] {
            assert_eq!(
                after.moved(&before, elapsed, percent),
                moved,
                "{after:?} at {percent} %"
            );
        }
    }
}
