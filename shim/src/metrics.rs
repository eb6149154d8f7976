//! Stats: what a container uses, in containerd's words.
//!
//! The sandbox container answers for the whole pod, with what the kernel charged
//! to its cgroup, in which all of the pod's processes are. The others answer
//! with their share as the sandbox knows it. The last answer is kept: it is what
//! Stats says while the sandbox does not answer, and after the end.

mod change;
pub mod devices;
mod share;
mod v1;
mod v2;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cgroups::net::{self, Interface};
use cgroups::stats::{CpuStats, MemoryStats, PidsStats, Stats, Usage};
use cgroups::{Cgroup, Limit};
use nix::unistd::Pid;
use protos::protobuf::well_known_types::any::Any;

use crate::container::Container;
use crate::create::blocking;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::wire;

pub use change::Figures as Moving;

/// A container's figures: where they come from, and what they last were.
#[derive(Debug)]
pub struct Figures {
    cgroup: Cgroup,
    /// A process in the network namespace whose interfaces count.
    pid: Pid,
    last: Mutex<Option<Arc<Sample>>>,
    /// Of a sandbox: what its containers were said to use of it.
    shares: share::Shares,
}

/// The figures of one moment.
#[derive(Debug)]
pub struct Sample {
    /// The moment.
    pub at: Instant,
    /// What the cgroup, or the sandbox, says.
    pub stats: Stats,
    /// The interfaces; of a sandbox only.
    pub network: Vec<Interface>,
    /// The same as containerd's message.
    pub message: Any,
}

impl Figures {
    /// None are taken yet.
    pub fn new(cgroup: Cgroup, pid: Pid) -> Self {
        Self {
            cgroup,
            pid,
            last: Mutex::default(),
            shares: share::Shares::default(),
        }
    }

    /// Those that were last taken.
    pub fn last(&self) -> Option<Arc<Sample>> {
        lock(&self.last).clone()
    }

    fn fresh(&self) -> Option<Arc<Sample>> {
        self.last().filter(|sample| sample.at.elapsed() < FRESH)
    }

    /// Takes those of a sandbox from its cgroup.
    async fn take(&self) -> Result<Arc<Sample>> {
        let (cgroup, pid) = (self.cgroup.clone(), self.pid);
        let (stats, net_dev) = blocking(move || {
            let net_dev = std::fs::read_to_string(format!("/proc/{pid}/net/dev"));
            Ok((cgroup.stats(), net_dev))
        })
        .await?;
        let network = match net_dev {
            Ok(text) => net::interfaces(&text),
            // The sandbox has ended: what it was is what it is.
            Err(_) => self
                .last()
                .map(|last| last.network.clone())
                .unwrap_or_default(),
        };
        if stats.cpu.usage.is_none()
            && stats.memory.memory.usage.is_none()
            && let Some(last) = self.last()
        {
            // A scope goes with its last process.
            return Ok(last);
        }
        self.keep(stats, network, Instant::now())
    }

    fn keep(&self, mut stats: Stats, network: Vec<Interface>, at: Instant) -> Result<Arc<Sample>> {
        let mut kept = lock(&self.last);
        let before = kept.as_ref().map(|last| &last.stats.memory);
        let memory = &mut stats.memory;
        own_maximum(&mut memory.memory, before.map(|before| &before.memory));
        own_maximum(&mut memory.swap, before.map(|before| &before.swap));
        let sample = Arc::new(Sample {
            at,
            message: pack(&self.cgroup, &stats, &network)?,
            stats,
            network,
        });
        *kept = Some(Arc::clone(&sample));
        Ok(sample)
    }
}

/// The most that was seen, where the kernel does not keep it: version 2 before
/// Linux 5.19 (swap: 6.5), and shares.
fn own_maximum(usage: &mut Usage, before: Option<&Usage>) {
    if usage.max_usage.is_none() {
        usage.max_usage = usage.usage.max(before.and_then(|before| before.max_usage));
    }
}

/// The container's figures: those at hand if they are fresh, else new ones.
///
/// # Errors
/// There were never any.
pub async fn of(container: &Container) -> Result<Any> {
    Ok(sample(container).await?.message.clone())
}

/// As [`of`], before they are put into a message.
///
/// # Errors
/// There were never any.
pub async fn sample(container: &Container) -> Result<Arc<Sample>> {
    if container.figures.fresh().is_none() && !container.life.state().has_ended() {
        refresh(container).await?;
    }
    container.figures.last().ok_or_else(|| {
        Error::NotFound(format!("there are no figures of task {} yet", container.id))
    })
}

/// How old figures may be; containerd asks for those of all tasks each second.
const FRESH: Duration = Duration::from_millis(100);

/// Takes the figures anew and keeps them.
///
/// # Errors
/// They cannot be encoded. A sandbox that does not answer leaves the last ones.
pub async fn refresh(container: &Container) -> Result<()> {
    if container.is_root() {
        container.figures.take().await?;
        return Ok(());
    }
    // Taken first, and for all containers that are asked for at a time: what is
    // told of the pod afterwards is never less than the shares.
    let whole = match container.whole.fresh() {
        Some(whole) => whole,
        None => container.whole.take().await?,
    };
    let cgroup = container.placement.cgroup().clone();
    let own = blocking(move || Ok(cgroup.stats())).await?;
    let patience = if container.figures.last().is_some() {
        SHARE_PATIENCE / 5
    } else {
        SHARE_PATIENCE
    };
    let usage = container.sandbox.usage(&container.id);
    let (mut stats, at) = match tokio::time::timeout(patience, usage).await {
        Ok(Ok(usage)) => {
            let stats = share(container, &own, &whole.stats, &usage);
            (stats, Instant::now())
        }
        silent => {
            log::debug!("usage of {}: {silent:?}", container.id);
            // Without the sandbox's word only the limits are known; older figures
            // are better than that.
            match container.figures.last() {
                Some(last) => (last.stats.clone(), last.at),
                None => (own, Instant::now()),
            }
        }
    };
    share::count_kills(&mut stats.memory, container.kills.load(Ordering::Relaxed));
    container.figures.keep(stats, Vec::new(), at)?;
    Ok(())
}

/// How long a sandbox may take to tell a container's share; a running one
/// answers in less than a millisecond.
pub const SHARE_PATIENCE: Duration = Duration::from_millis(500);

/// A container's share. Its own cgroup, which has no process in it, gives the
/// limits, and what is nothing beyond doubt: no period of its quota was throttled,
/// and the host's kernel holds no memory for it alone.
fn share(container: &Container, own: &Stats, whole: &Stats, usage: &sandbox::Usage) -> Stats {
    let shares = &container.whole.shares;
    let cpu = shares.cpu(&container.id, cgroups::Nanos(usage.cpu.0), whole.cpu.usage);
    let memory = usage.memory.map(|bytes| {
        let (known, whole) = (cgroups::Bytes(bytes.0), whole.memory.memory.usage);
        shares.memory(&container.id, known, whole, Instant::now())
    });
    Stats {
        cpu: CpuStats {
            usage: Some(cpu),
            user: None,
            system: None,
            per_cpu: Vec::new(),
            pressure: None,
            ..own.cpu
        },
        memory: MemoryStats {
            memory: Usage {
                usage: memory,
                limit: own.memory.memory.limit,
                ..Usage::default()
            },
            swap: Usage {
                usage: share::swap(memory, &whole.memory),
                limit: own.memory.swap.limit,
                ..Usage::default()
            },
            kernel: own.memory.kernel.clone(),
            kernel_tcp: own.memory.kernel_tcp.clone(),
            events: own.memory.events,
            oom_control: own.memory.oom_control,
            ..MemoryStats::default()
        },
        pids: PidsStats {
            current: usage.pids,
            ..own.pids
        },
        ..Stats::default()
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
