//! Looks at each container from time to time: figures for events, and the
//! memory limit that gVisor does not keep for the containers of a pod.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cgroups::{Bytes, Cgroup};
use nix::sys::signal::Signal;
use sandbox::Target;

use crate::container::Container;
use crate::events::{Event, metric};
use crate::metrics::devices::Roots;
use crate::metrics::{self, Moving, Sample};
use crate::pod::Pod;
use crate::process::State;
use crate::wire;

/// Publishes the container's figures at the configured interval until it ends.
pub async fn publish(pod: Arc<Pod>, container: Arc<Container>) {
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
    let mut told: Option<(Instant, Moving)> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = container.life.wait() => return,
        }
        let sample = match metrics::sample(&container).await {
            Ok(sample) => sample,
            Err(error) => {
                log::debug!("no figures of {} to publish: {error}", container.id);
                continue;
            }
        };
        let now = Moving::of(&sample.stats, &sample.network);
        let percent = container.config.metrics_threshold;
        if percent > 0
            && let Some((at, before)) = &told
            && !now.moved(before, sample.at.saturating_duration_since(*at), percent)
        {
            continue;
        }
        told = Some((sample.at, now));
        let data = sample.message.clone();
        pod.events()
            .publish(Event::Metrics(metric(&container.id, data)));
        publish_devices(&pod, &container, &sample);
    }
}

/// Publishes what the container's devices do, if it has any; the sandbox speaks
/// for all of its containers.
fn publish_devices(pod: &Pod, container: &Container, sample: &Sample) {
    let members = if container.is_root() {
        pod.members(&container.id)
    } else {
        Vec::new()
    };
    let given = members.iter().flat_map(|member| &member.devices);
    let groups = container.devices.iter().chain(given);
    let message = Roots::default().look_up(groups, &sample.network, &sample.stats.hugetlb);
    if message.groups.is_empty() {
        return;
    }
    match wire::pack("rampart.v1.Devices", &message) {
        Ok(data) => pod
            .events()
            .publish(Event::Devices(metric(&container.id, data))),
        Err(error) => log::warn!("devices of {}: {error}", container.id),
    }
}

/// Kills containers of a pod that use more memory than their own limit. The
/// kernel knows only the sandbox's limit, which is the pod's, and gVisor keeps
/// none.
///
/// It is a look from time to time. What the pod uses as a whole is read often,
/// for that costs next to nothing; the sandbox is asked for a container when the
/// pod has grown so much that the container may be near its limit. What is
/// allocated and freed between two looks is not seen, and a container that
/// allocates faster than that runs into the pod's limit. While no container has a
/// limit, nothing is done at all.
pub async fn enforce_memory(pod: Arc<Pod>, root: Arc<Container>) {
    let gauge = Gauge::open(root.placement.cgroup());
    let mut looks: HashMap<String, Look> = HashMap::new();
    let mut limits = pod.limits();
    loop {
        limits.mark_unchanged();
        let mut pause: Option<Duration> = None;
        let mut members = pod.members(&root.id);
        members.retain(|member| {
            member.config.enforce_container_memory && !member.life.state().has_ended()
        });
        looks.retain(|id, _| members.iter().any(|member| member.id == *id));
        let whole = gauge.as_ref().and_then(Gauge::read);
        for member in members {
            let Some(limit) = member.memory_limit() else {
                continue;
            };
            let until_next = look_at(&member, limit, whole, &mut looks).await;
            pause = Some(pause.map_or(until_next, |pause| pause.min(until_next)));
        }
        tokio::select! {
            () = tokio::time::sleep(pause.unwrap_or(FAR)), if pause.is_some() => {}
            // The pod is there, so it is no error.
            _ = limits.changed() => {}
            _ = root.life.wait() => return,
        }
    }
}

/// Looks at a container if it is time, and kills it if it is over its limit; until
/// when it need not be looked at again.
async fn look_at(
    member: &Container,
    limit: Bytes,
    whole: Option<Bytes>,
    looks: &mut HashMap<String, Look>,
) -> Duration {
    if !matches!(member.life.state(), State::Running) {
        // What it uses is not known before it has started, and does not grow
        // while it is paused.
        return FAR;
    }
    if let Some(look) = looks.get(&member.id)
        && !look.is_due(whole, limit)
    {
        return look.pause(whole, limit);
    }
    let look = Look {
        at: Instant::now(),
        used: usage(member).await,
        whole,
    };
    if let Some(used) = look.used
        && used > limit
    {
        kill(member, used, limit).await;
    }
    let pause = look.pause(whole, limit);
    looks.insert(member.id.clone(), look);
    pause
}

async fn kill(member: &Container, used: Bytes, limit: Bytes) {
    log::warn!(
        "{} uses {} bytes of memory and may use {}: killed",
        member.id,
        used.0,
        limit.0
    );
    member.over_limit.store(true, Ordering::Relaxed);
    let kill = Signal::SIGKILL as i32;
    // Whoever was forked meanwhile is killed in the next round.
    if let Err(error) = member.sandbox.signal(&member.id, Target::All, kill).await {
        log::debug!("kill {}: {error}", member.id);
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

/// What the pod as a whole uses, from a file that is kept open.
#[derive(Debug)]
struct Gauge(File);

impl Gauge {
    fn open(cgroup: &Cgroup) -> Option<Self> {
        let names = ["memory.current", "memory.usage_in_bytes"];
        let mut paths = cgroup
            .directories()
            .into_iter()
            .flat_map(|directory| names.map(|name| directory.join(name)));
        paths.find_map(|path| File::open(path).ok()).map(Self)
    }

    fn read(&self) -> Option<Bytes> {
        let mut buffer = [0; 24];
        let length = self.0.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        text.trim().parse().ok().map(Bytes)
    }
}

/// The last look at a container.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    /// What it used; not known for a container that does not see its cgroup.
    used: Option<Bytes>,
    /// What the pod used.
    whole: Option<Bytes>,
}

impl Look {
    /// Whether it is time for the next one: the pod has grown by half of what
    /// the container had left, or the look is old. The last is for growth that
    /// others' shrinking hides, which is likelier where the pod's use has moved.
    fn is_due(&self, whole: Option<Bytes>, limit: Bytes) -> bool {
        let left = self.left(limit);
        let oldest = if left >= limit.0 / 5 {
            OLDEST
        } else if self.has_moved(whole) {
            OLDEST_NEAR
        } else {
            OLDEST_STILL
        };
        self.at.elapsed() >= oldest || (self.used.is_some() && self.grown(whole) > left / 2)
    }

    /// Until the pod's use is read again: as long as the fastest growth needs to
    /// make a look due.
    fn pause(&self, whole: Option<Bytes>, limit: Bytes) -> Duration {
        if self.used.is_none() {
            return FAR;
        }
        let room = (self.left(limit) / 2).saturating_sub(self.grown(whole));
        Duration::from_millis(room / GROWTH).clamp(NEAR, FAR)
    }

    fn left(&self, limit: Bytes) -> u64 {
        limit.0.saturating_sub(self.used.map_or(0, |used| used.0))
    }

    fn grown(&self, whole: Option<Bytes>) -> u64 {
        match (whole, self.whole) {
            (Some(now), Some(then)) => now.0.saturating_sub(then.0),
            _ => 0,
        }
    }

    fn has_moved(&self, whole: Option<Bytes>) -> bool {
        match (whole, self.whole) {
            (Some(now), Some(then)) => now.0.abs_diff(then.0) > STILL,
            _ => true,
        }
    }
}

/// The fastest growth that is reckoned with, in bytes a millisecond: 1 GB/s.
const GROWTH: u64 = 1_000_000;

/// The longest and the shortest pause.
const FAR: Duration = Duration::from_millis(200);
const NEAR: Duration = Duration::from_millis(10);

/// How old a look may become: far from the limit, near it, and near it while the
/// pod's use stands still.
const OLDEST: Duration = Duration::from_secs(3);
const OLDEST_NEAR: Duration = Duration::from_millis(200);
const OLDEST_STILL: Duration = Duration::from_secs(1);

/// The pod's use stands still if it moves by no more bytes than this.
const STILL: u64 = 1 << 20;

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

    /// A pod of 50 MiB, whose container may use 100 MiB.
    #[test]
    fn looks_follow_the_growth_of_the_pod() {
        let mib = |n: u64| Bytes(n << 20);
        for (used, whole, due, pause) in [
            (Some(0), Some(50), false, 52),
            (Some(0), Some(60), false, 41),
            (Some(0), Some(90), false, 10),
            (Some(0), Some(101), true, 10),
            (Some(79), Some(50), false, 11),
            (Some(90), Some(50), false, 10),
            (Some(90), Some(56), true, 10),
            (Some(90), Some(40), false, 10),
            (Some(110), Some(50), false, 10),
            (Some(110), Some(51), true, 10),
            (None, Some(500), false, 200),
            (Some(0), None, false, 52),
        ] {
            let look = Look {
                at: Instant::now(),
                used: used.map(mib),
                whole: Some(mib(50)),
            };
            let (whole, limit) = (whole.map(mib), mib(100));
            assert_eq!(look.is_due(whole, limit), due, "{used:?} of {whole:?}");
            let pause = Duration::from_millis(pause);
            assert_eq!(look.pause(whole, limit), pause, "{used:?} of {whole:?}");
        }
        let far = Look {
            at: Instant::now(),
            used: Some(mib(10)),
            whole: Some(mib(50)),
        };
        assert_eq!(far.pause(Some(mib(50)), mib(4096)), FAR);
    }

    #[test]
    fn near_the_limit_looks_are_old_sooner_where_the_pod_moves() {
        let mib = |n: u64| Bytes(n << 20);
        let look = Look {
            at: Instant::now().checked_sub(OLDEST_NEAR).unwrap(),
            used: Some(mib(90)),
            whole: Some(mib(95)),
        };
        for (whole, due) in [
            (Some(95), false),
            (Some(96), false),
            (Some(93), true),
            (None, true),
        ] {
            assert_eq!(look.is_due(whole.map(mib), mib(100)), due, "{whole:?}");
        }
    }

    #[test]
    fn an_old_look_is_due() {
        let then = Instant::now().checked_sub(OLDEST).unwrap();
        let look = Look {
            at: then,
            used: None,
            whole: None,
        };
        assert!(look.is_due(None, Bytes(1)));
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
