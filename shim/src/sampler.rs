//! Looks at each container from time to time: figures for events, and the
//! memory limit that gVisor does not keep for the containers of a pod.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use cgroups::{Bytes, Limit};
use nix::sys::signal::Signal;
use protos::metric::Metric;
use protos::protobuf::MessageField;
use protos::protobuf::well_known_types::timestamp::Timestamp;
use sandbox::Target;

use crate::container::Container;
use crate::events::{Event, Events};
use crate::metrics;

/// Publishes the container's figures at the configured interval until it ends.
pub async fn publish(container: Arc<Container>, events: Events) {
    let Some(interval) = container.config.metrics_interval() else {
        return;
    };
    // Pods that were started together must not all speak at the same moment.
    tokio::select! {
        () = tokio::time::sleep(jitter(&container.id, interval)) => {}
        _ = container.life.wait() => return,
    }
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = container.life.wait() => return,
        }
        match metrics::of(&container).await {
            Ok(stats) => events.publish(Event::Metrics(Metric {
                timestamp: MessageField::some(Timestamp::from(SystemTime::now())),
                id: container.id.clone(),
                data: MessageField::some(stats),
                ..Metric::default()
            })),
            Err(error) => log::debug!("no figures of {} to publish: {error}", container.id),
        }
    }
}

/// Kills a pod's container that uses more memory than its own limit. The kernel
/// knows only the sandbox's limit, which is the pod's, and gVisor keeps none.
///
/// It is a look from time to time, closer when the limit is near: what is
/// allocated and freed between two looks is not seen, and a container that
/// allocates faster than that runs into the pod's limit.
pub async fn enforce_memory(container: Arc<Container>) {
    loop {
        let limit = container
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .memory
            .limit
            .and_then(Limit::value);
        let mut pause = FAR;
        if let Some(limit) = limit
            && !container.life.state().has_ended()
            && let Some(used) = usage(&container).await
        {
            if used > limit {
                log::warn!(
                    "{} uses {} bytes of memory and may use {}: killed",
                    container.id,
                    used.0,
                    limit.0
                );
                container.over_limit.store(true, Ordering::Relaxed);
                let kill = Signal::SIGKILL as i32;
                if let Err(error) = container
                    .sandbox
                    .signal(&container.id, Target::All, kill)
                    .await
                {
                    log::debug!("kill {}: {error}", container.id);
                }
                // Whoever was forked meanwhile is killed in the next round.
            }
            pause = until_next_look(used, limit);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = container.life.wait() => return,
        }
    }
}

async fn usage(container: &Container) -> Option<Bytes> {
    let usage = container.sandbox.usage(&container.id);
    let usage = tokio::time::timeout(metrics::SHARE_PATIENCE, usage)
        .await
        .ok()?
        .ok()?;
    usage.memory.map(|bytes| Bytes(bytes.0))
}

const FAR: Duration = Duration::from_millis(200);
const NEARER: Duration = Duration::from_millis(50);
const NEAR: Duration = Duration::from_millis(10);

/// The closer the limit, the sooner the next look.
fn until_next_look(used: Bytes, limit: Bytes) -> Duration {
    if used.0 >= limit.0 / 5 * 4 {
        NEAR
    } else if used.0 >= limit.0 / 2 {
        NEARER
    } else {
        FAR
    }
}

/// A part of the interval that depends on the id alone.
fn jitter(id: &str, interval: Duration) -> Duration {
    // FNV-1a; any even spread will do.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let millis = u64::try_from(interval.as_millis())
        .unwrap_or(u64::MAX)
        .max(1);
    Duration::from_millis(hash % millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_closer_with_the_limit() {
        let limit = Bytes(100 << 20);
        for (used, pause) in [
            (0, FAR),
            (49, FAR),
            (50, NEARER),
            (79, NEARER),
            (80, NEAR),
            (120, NEAR),
        ] {
            assert_eq!(
                until_next_look(Bytes(used << 20), limit),
                pause,
                "{used} MiB"
            );
        }
    }

    #[test]
    fn jitter_spreads_over_the_interval() {
        let interval = Duration::from_secs(10);
        let jitters: Vec<_> = (0..100)
            .map(|n| jitter(&format!("pod-{n}"), interval))
            .collect();
        assert!(jitters.iter().all(|jitter| *jitter < interval));
        let early = jitters
            .iter()
            .filter(|jitter| **jitter < interval / 2)
            .count();
        assert!(
            (30..70).contains(&early),
            "{early} of 100 in the first half"
        );
    }
}
