//! Out-of-memory kills of a sandbox: counted from the moment it is created, and
//! told before the exit that they cause.
//!
//! The kernel kills host processes: the sentry, and then the whole pod is gone,
//! or one of the processes that run the guest's code, and then somebody in a
//! container dies of SIGKILL or SIGSEGV. Which container that was shows only in
//! who exits next, so kills are counted here and claimed there.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::lock::lock;
use std::time::Duration;

use cgroups::{Bytes, Cgroup, Limit, OomWatch};
use protos::own::OutOfMemory;
pub use protos::own::out_of_memory::Level;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// The kills in a sandbox's cgroup, and who has claimed them.
#[derive(Debug)]
pub struct Oom {
    levels: Vec<Watched>,
    counts: Mutex<Counts>,
    /// Changes with every kill.
    seen: watch::Sender<u64>,
}

/// The sandbox's cgroup, or one above it.
#[derive(Debug)]
struct Watched {
    cgroup: Cgroup,
    /// How often its limit had been hit when the sandbox was created.
    hits: u64,
}

#[derive(Debug, Default)]
struct Counts {
    /// The kernel's count when the watch began: a cgroup may be an old one.
    baseline: u64,
    /// The most that was seen since.
    killed: u64,
    /// How many of these an exit has answered for.
    claimed: u64,
    took_sandbox: bool,
}

/// The limit that a want of memory ran into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Whose it is.
    pub level: Level,
    /// The cgroup that has it; empty if it was the host's memory that ran out.
    pub cgroup: PathBuf,
    /// The limit, if it is known.
    pub limit: Option<Bytes>,
}

impl Hit {
    /// As our own message.
    pub fn message(&self) -> OutOfMemory {
        OutOfMemory {
            level: self.level.into(),
            cgroup: self.cgroup.display().to_string(),
            limit: self.limit.map_or(u64::MAX, |limit| limit.0),
            ..OutOfMemory::default()
        }
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.level {
            Level::HOST | Level::UNKNOWN => return f.write_str("the end of the host's memory"),
            Level::CONTAINER => "the container's own limit",
            Level::SANDBOX => "the sandbox's limit",
            Level::POD => "the pod's limit",
            Level::ANCESTOR => "an ancestor's limit",
        };
        write!(f, "{whose}")?;
        if let Some(limit) = self.limit {
            write!(f, " of {} bytes", limit.0)?;
        }
        write!(f, " ({})", self.cgroup.display())
    }
}

impl Oom {
    /// Starts counting. Without a memory controller nothing is ever counted.
    pub fn arm(home: &Cgroup) -> Arc<Self> {
        let mut levels = Vec::new();
        let mut next = Some(home.clone());
        while let Some(cgroup) = next {
            next = cgroup.parent();
            levels.push(Watched {
                hits: hits(&cgroup),
                cgroup,
            });
        }
        let baseline = home.oom_kills().unwrap_or(0);
        let counts = Mutex::new(Counts {
            baseline,
            ..Counts::default()
        });
        let oom = Arc::new(Self {
            levels,
            counts,
            seen: watch::Sender::new(0),
        });
        match home.oom_watch().map(AsyncWatch::new) {
            Ok(Ok(watch)) => {
                tokio::spawn(Arc::clone(&oom).listen(watch));
            }
            // Kills are still counted at every exit.
            Ok(Err(error)) => log::warn!("out-of-memory kills are seen late: {error}"),
            Err(error) => log::warn!("out-of-memory kills are seen late: {error}"),
        }
        oom
    }

    /// Whether the sandbox as a whole was killed for want of memory: asked by
    /// each of its containers, and the same for all.
    pub fn took_sandbox(&self) -> bool {
        let unclaimed = self.claim() > 0;
        let mut counts = self.counts();
        counts.took_sandbox |= unclaimed;
        counts.took_sandbox
    }

    /// Takes every kill that nobody has answered for yet; how many there were.
    pub fn claim(&self) -> u64 {
        self.look();
        let mut counts = self.counts();
        let unclaimed = counts.killed - counts.claimed;
        counts.claimed = counts.killed;
        unclaimed
    }

    /// Waits for a kill that was not there when this was called.
    pub async fn next(&self) {
        // The sender lives as long as `self`.
        let _ = self.seen.subscribe().changed().await;
    }

    /// Which limit was hit: that of the lowest level whose count of hits has
    /// risen.
    pub fn hit(&self) -> Hit {
        let risen = |level: &Watched| hits(&level.cgroup) > level.hits;
        let Some(index) = self.levels.iter().position(risen) else {
            return Hit {
                level: Level::HOST,
                cgroup: PathBuf::new(),
                limit: None,
            };
        };
        let cgroup = &self.levels[index].cgroup;
        let limit = cgroup.stats().memory.memory.limit;
        Hit {
            level: match index {
                0 => Level::SANDBOX,
                1 => Level::POD,
                _ => Level::ANCESTOR,
            },
            cgroup: cgroup.path().to_owned(),
            limit: limit.and_then(Limit::value),
        }
    }

    /// Reads the kernel's count; one that cannot be read any more, because the
    /// cgroup went with its last process, changes nothing.
    fn look(&self) {
        let Some(level) = self.levels.first() else {
            return;
        };
        let Some(now) = level.cgroup.oom_kills() else {
            return;
        };
        let mut counts = self.counts();
        let killed = now.saturating_sub(counts.baseline);
        if killed > counts.killed {
            counts.killed = killed;
            self.seen.send_replace(killed);
        }
    }

    async fn listen(self: Arc<Self>, watch: AsyncWatch) {
        // Nobody but this task holds it: the sandbox is gone.
        while Arc::strong_count(&self) > 1 {
            match tokio::time::timeout(Duration::from_secs(5), watch.ready()).await {
                Ok(Ok(())) => self.look(),
                Ok(Err(error)) => {
                    log::warn!("out-of-memory kills are seen late from now on: {error}");
                    return;
                }
                Err(_) => {}
            }
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        lock(&self.counts)
    }
}

/// How often allocations ran into a cgroup's own limit.
fn hits(cgroup: &Cgroup) -> u64 {
    let memory = cgroup.stats().memory;
    memory
        .events
        .map(|events| events.oom)
        .or(memory.memory.failcnt)
        .unwrap_or(0)
}

/// The kernel's descriptor, waited for without blocking.
struct AsyncWatch(AsyncFd<OomWatch>);

impl AsyncWatch {
    fn new(watch: OomWatch) -> std::io::Result<Self> {
        #[expect(
            deprecated,
            reason = "sound for what owns its descriptor, as this does; its successor is unsafe to call"
        )]
        AsyncFd::new(watch).map(Self)
    }

    async fn ready(&self) -> std::io::Result<()> {
        let mut guard = self.0.readable().await?;
        guard.get_inner().drain()?;
        guard.clear_ready();
        Ok(())
    }
}
