//! The shares of a sandbox's containers, held against the whole: none ever
//! falls, and together they are no more than what the kernel charged the pod.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cgroups::stats::MemoryStats;
use cgroups::{Bytes, Nanos};

/// What each container of a sandbox was last said to use.
#[derive(Debug, Default)]
pub struct Shares(Mutex<BTreeMap<String, Share>>);

#[derive(Debug, Default)]
struct Share {
    cpu: u64,
    memory: Option<(Instant, u64)>,
}

/// How long a container's memory counts against the others'. It comes and goes,
/// so an old figure says nothing of now.
const COUNTS_FOR: Duration = Duration::from_secs(1);

impl Shares {
    /// The CPU time to tell of `id`, of which the sandbox says `known`. gVisor
    /// counts ticks in which a thread wants to run, so its sum can be above what
    /// the kernel charged: `whole`. What ended containers used stays theirs.
    pub fn cpu(&self, id: &str, known: Nanos, whole: Option<Nanos>) -> Nanos {
        let mut shares = self.lock();
        let others = shares
            .iter()
            .filter(|(other, _)| *other != id)
            .fold(0_u64, |sum, (_, share)| sum.saturating_add(share.cpu));
        let room = whole.map_or(u64::MAX, |whole| whole.0.saturating_sub(others));
        let share = shares.entry(id.to_owned()).or_default();
        share.cpu = share.cpu.max(known.0.min(room));
        Nanos(share.cpu)
    }

    /// The memory to tell of `id`, likewise; it may fall.
    pub fn memory(&self, id: &str, known: Bytes, whole: Option<Bytes>, now: Instant) -> Bytes {
        let mut shares = self.lock();
        let others = shares
            .iter()
            .filter(|(other, _)| *other != id)
            .filter_map(|(_, share)| share.memory)
            .filter(|(at, _)| now.saturating_duration_since(*at) < COUNTS_FOR)
            .fold(0_u64, |sum, (_, memory)| sum.saturating_add(memory));
        let room = whole.map_or(u64::MAX, |whole| whole.0.saturating_sub(others));
        let memory = known.0.min(room);
        shares.entry(id.to_owned()).or_default().memory = Some((now, memory));
        Bytes(memory)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The swap figure of a container that uses `memory`, known only while the pod as
/// a whole has nothing in swap. Version 1 counts memory and swap together, and has
/// swap by itself in `memory.stat`.
pub(super) fn swap(memory: Option<Bytes>, whole: &MemoryStats) -> Option<Bytes> {
    match (whole.get("total_swap"), whole.swap.usage) {
        (Some(0), Some(_)) => memory,
        (None, Some(Bytes(0))) => Some(Bytes(0)),
        _ => None,
    }
}

/// Puts in how many kills for want of memory were told of a container: its own
/// cgroup, without processes, has none.
pub(super) fn count_kills(memory: &mut MemoryStats, kills: u64) {
    if let Some(events) = &mut memory.events {
        events.oom_kill = kills;
    }
    if let Some(control) = &mut memory.oom_control {
        control.oom_kill = Some(kills);
    }
}

#[cfg(test)]
mod tests {
    use cgroups::stats::{MemoryEvents, OomControl, Usage};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the sandbox says, and in whatever order it is asked.
        #[test]
        fn cpu_never_falls_and_never_sums_above_the_whole(
            looks in prop::collection::vec((0_usize..4, 0_u64..1000, 0_u64..300), 1..60),
        ) {
            let shares = Shares::default();
            let (mut whole, mut told) = (0, [0_u64; 4]);
            for (who, known, grown) in looks {
                whole += grown;
                let now = shares.cpu(&who.to_string(), Nanos(known), Some(Nanos(whole))).0;
                prop_assert!(now >= told[who]);
                told[who] = now;
                prop_assert!(told.iter().sum::<u64>() <= whole);
            }
        }

        #[test]
        fn memory_never_sums_above_the_whole(known in prop::array::uniform4(0_u64..1000), whole in 0_u64..2000) {
            let (shares, now) = (Shares::default(), Instant::now());
            let told = (0..4).map(|who| {
                shares.memory(&who.to_string(), Bytes(known[who]), Some(Bytes(whole)), now).0
            });
            prop_assert!(told.sum::<u64>() <= whole);
        }
    }

    #[test]
    fn what_the_sandbox_says_is_told_where_there_is_room() {
        let shares = Shares::default();
        assert_eq!(shares.cpu("a", Nanos(30), Some(Nanos(100))), Nanos(30));
        assert_eq!(shares.cpu("b", Nanos(80), Some(Nanos(100))), Nanos(70));
        assert_eq!(shares.cpu("a", Nanos(20), Some(Nanos(100))), Nanos(30));
        assert_eq!(shares.cpu("c", Nanos(5), None), Nanos(5));
    }

    #[test]
    fn old_memory_does_not_count_against_others() {
        let (shares, then) = (Shares::default(), Instant::now());
        shares.memory("a", Bytes(90), Some(Bytes(100)), then);
        let whole = Some(Bytes(100));
        assert_eq!(shares.memory("b", Bytes(60), whole, then), Bytes(10));
        assert_eq!(
            shares.memory("b", Bytes(60), whole, then + COUNTS_FOR),
            Bytes(60)
        );
    }

    #[test]
    fn swap_is_told_where_it_can_only_be_none() {
        let whole = |swap: Option<u64>, alone: Option<u64>| MemoryStats {
            swap: Usage {
                usage: swap.map(Bytes),
                ..Usage::default()
            },
            stat: alone
                .map(|bytes| ("total_swap".to_owned(), bytes))
                .into_iter()
                .collect(),
            ..MemoryStats::default()
        };
        let known = Some(Bytes(70));
        for (what, memory, whole, told) in [
            (
                "v1, nothing swapped",
                known,
                whole(Some(100), Some(0)),
                known,
            ),
            ("v1, memory unknown", None, whole(Some(100), Some(0)), None),
            (
                "v1, something swapped",
                known,
                whole(Some(120), Some(20)),
                None,
            ),
            ("v1, swap not counted", known, whole(None, None), None),
            (
                "v2, nothing swapped",
                known,
                whole(Some(0), None),
                Some(Bytes(0)),
            ),
            ("v2, something swapped", known, whole(Some(20), None), None),
        ] {
            assert_eq!(swap(memory, &whole), told, "{what}");
        }
    }

    #[test]
    fn kills_are_those_that_were_told_in_either_versions_place() {
        let mut memory = MemoryStats::default();
        count_kills(&mut memory, 1);
        assert_eq!(memory, MemoryStats::default(), "absent stays absent");
        memory.oom_control = Some(OomControl::default());
        memory.events = Some(MemoryEvents::default());
        count_kills(&mut memory, 2);
        assert_eq!(memory.oom_control.unwrap().oom_kill, Some(2));
        assert_eq!(memory.events.unwrap().oom_kill, 2);
    }
}
