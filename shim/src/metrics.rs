//! Stats: what a container uses, in containerd's words.
//!
//! The sandbox container answers for the whole pod, with what the kernel charged
//! to its cgroup, in which all of the pod's processes are. The others answer
//! with their share as the sandbox knows it. The last answer is kept: it is what
//! Stats says while the sandbox does not answer, and after the end.

mod v1;
mod v2;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cgroups::net::{self, Interface};
use cgroups::stats::Stats;
use cgroups::{Cgroup, Limit};
use protos::protobuf::well_known_types::any::Any;

use crate::container::Container;
use crate::create::blocking;
use crate::error::{Error, Result};
use crate::wire;

/// The container's figures: those at hand if they are fresh, else new ones.
///
/// # Errors
/// There were never any.
pub async fn of(container: &Container) -> Result<Any> {
    let fresh = last(container).is_some_and(|(at, _)| at.elapsed() < FRESH);
    if !fresh && !container.life.state().has_ended() {
        refresh(container).await?;
    }
    last(container).map(|(_, stats)| stats).ok_or_else(|| {
        Error::NotFound(format!("there are no figures of task {} yet", container.id))
    })
}

/// How old figures may be; containerd asks for those of all tasks each second.
const FRESH: Duration = Duration::from_millis(100);

fn last(container: &Container) -> Option<(Instant, Any)> {
    container
        .last_stats
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Takes the figures anew and keeps them.
///
/// # Errors
/// They cannot be encoded. A sandbox that does not answer leaves the last ones.
pub async fn refresh(container: &Container) -> Result<()> {
    let cgroup = container.placement.cgroup().clone();
    let mut stats = blocking(move || Ok(cgroup.stats())).await?;
    let mut network = Vec::new();
    if container.is_root() {
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", container.pid));
        network = text.map(|text| net::interfaces(&text)).unwrap_or_default();
    } else {
        let usage = container.sandbox.usage(&container.id);
        let usage = match tokio::time::timeout(SHARE_PATIENCE, usage).await {
            Ok(Ok(usage)) => usage,
            Ok(Err(error)) => {
                log::debug!("usage of {}: {error}", container.id);
                return keep_if_none(container, &stats);
            }
            Err(_) => return keep_if_none(container, &stats),
        };
        share(&mut stats, container, &usage);
    }
    keep(container, &stats, &network)
}

/// How long a sandbox may take to tell a container's share; a running one
/// answers in less than a millisecond.
pub const SHARE_PATIENCE: Duration = Duration::from_millis(500);

/// Puts a container's share where its own, empty cgroup has zeros.
fn share(stats: &mut Stats, container: &Container, usage: &sandbox::Usage) {
    let known = usage
        .cpu_of_each
        .get(&container.id)
        .map_or(0, |nanos| nanos.0);
    let cpu = container
        .cpu
        .fetch_max(known, std::sync::atomic::Ordering::Relaxed)
        .max(known);
    stats.cpu = cgroups::stats::CpuStats {
        usage: Some(cgroups::Nanos(cpu)),
        ..Default::default()
    };
    stats.pids.current = usage.pids;
    let limit = stats.memory.memory.limit;
    let usage = usage.memory.map(|bytes| cgroups::Bytes(bytes.0));
    stats.memory = cgroups::stats::MemoryStats::default();
    stats.memory.memory.usage = usage;
    stats.memory.memory.limit = limit;
}

fn keep(container: &Container, stats: &Stats, network: &[Interface]) -> Result<()> {
    let any = pack(container.placement.cgroup(), stats, network)?;
    *container
        .last_stats
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), any));
    Ok(())
}

/// Without the sandbox's word only the limits are known; older figures are
/// better than that.
fn keep_if_none(container: &Container, stats: &Stats) -> Result<()> {
    let none = container
        .last_stats
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_none();
    if none {
        keep(container, stats, &[])
    } else {
        Ok(())
    }
}

/// Packs figures in the message of the host's mode: containerd refuses the
/// other one.
fn pack(cgroup: &Cgroup, stats: &Stats, network: &[Interface]) -> Result<Any> {
    match cgroup {
        Cgroup::V1(_) => wire::pack(
            "io.containerd.cgroups.v1.Metrics",
            &v1::metrics(stats, network),
        ),
        Cgroup::V2(_) => wire::pack(
            "io.containerd.cgroups.v2.Metrics",
            &v2::metrics(stats, network),
        ),
    }
}

/// An RDMA figure; none is the kernel's `max`.
fn handles(figure: Option<Limit<u32>>) -> u32 {
    match figure {
        Some(Limit::Of(figure)) => figure,
        Some(Limit::Unlimited) => u32::MAX,
        None => 0,
    }
}
