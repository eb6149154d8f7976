//! One cgroup: a name at one place in every hierarchy of the host.
//!
//! [`Cgroup`] is a handle; it holds no file open and can be built anew in any
//! process from the host and the path.

mod kill;
pub(crate) mod tree;
pub(crate) mod v1;
pub(crate) mod v2;
mod write;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::created::{Created, Making};
use crate::error::{Error, Result};
use crate::host::{Hierarchy, Host, Mode};
use crate::limits::Limits;
use crate::oom::{self, OomWatch};
use crate::resources::Resources;
use crate::stats::Stats;

/// A cgroup of a host with version 1 (alone or hybrid) or version 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    /// One directory in each version 1 hierarchy, and in hybrid mode one in
    /// the version 2 hierarchy beside them.
    V1(v1::V1),
    /// One directory.
    V2(v2::V2),
}

impl Cgroup {
    /// The cgroup at `path` below each hierarchy's mount; see
    /// [`CgroupPath`](crate::CgroupPath). Touches nothing.
    ///
    /// # Errors
    /// The path is not absolute and clean, or is the root.
    pub fn new(host: &Host, path: &Path) -> Result<Self> {
        let mut parts = path.components();
        let absolute = parts.next() == Some(Component::RootDir);
        let clean = path
            .components()
            .skip(1)
            .all(|c| matches!(c, Component::Normal(_)));
        if !absolute || !clean || path == Path::new("/") {
            let reason = "an absolute path below the root is wanted, without ..";
            return Err(Error::Path {
                path: path.display().to_string(),
                reason,
            });
        }
        let path: PathBuf = path.components().collect();
        Ok(match (host.mode(), host.hierarchies()) {
            (Mode::Unified, [only]) => Self::V2(v2::V2 {
                path,
                hierarchy: only.clone(),
            }),
            (_, all) => Self::V1(v1::V1 {
                path,
                hierarchies: all.to_vec(),
            }),
        })
    }

    /// Its path below each hierarchy's mount.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::V1(v1) => &v1.path,
            Self::V2(v2) => &v2.path,
        }
    }

    /// The cgroup above it, such as a container's pod. `None` below the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let parent = self
            .path()
            .parent()
            .filter(|p| *p != Path::new("/"))?
            .to_path_buf();
        Some(match self {
            Self::V1(v1) => Self::V1(v1::V1 {
                path: parent,
                ..v1.clone()
            }),
            Self::V2(v2) => Self::V2(v2::V2 {
                path: parent,
                ..v2.clone()
            }),
        })
    }

    /// Its directories, one for each hierarchy: where a process must be.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        self.hierarchies()
            .iter()
            .map(|h| h.directory(self.path()))
            .collect()
    }

    /// Which of its directories are not there, parents included and first: what
    /// [`create`](Self::create) is about to make. Whoever notes them down before
    /// can have them removed after a process that died half-way, by
    /// [`Created::from_directories`].
    #[must_use]
    pub fn missing(&self) -> Vec<PathBuf> {
        let hierarchies = self.hierarchies().iter();
        hierarchies
            .flat_map(|hierarchy| tree::missing(hierarchy, self.path()))
            .collect()
    }

    /// Makes its directories in every hierarchy, parents included, and makes
    /// them fit for processes: controllers are enabled down to it (version 2),
    /// empty cpusets are filled from above (version 1). A directory that is
    /// there already is used as it is, and is not in the answer.
    ///
    /// A unit's cgroup is systemd's to make. On version 1 this makes what
    /// systemd has left out, once the unit is there (it manages cpu, cpuacct,
    /// blkio, memory, devices and pids only); on version 2 nothing is left out.
    ///
    /// # Errors
    /// A directory cannot be made; those made before it are removed again.
    pub fn create(&self) -> Result<Created> {
        let mut making = Making::default();
        match self {
            Self::V1(v1) => v1.create(&mut making)?,
            Self::V2(v2) => v2.create(&mut making)?,
        }
        Ok(making.done())
    }

    /// Writes limits, of a new cgroup or one in use. What `resources` does not
    /// set stays as it is.
    ///
    /// # Errors
    /// The host cannot express the resources (nothing is written then), or the
    /// kernel refuses a value (those before it are written).
    pub fn apply(&self, resources: &Resources) -> Result<()> {
        match self {
            Self::V1(v1) => v1.apply(resources),
            Self::V2(v2) => v2.apply(resources),
        }
    }

    /// Whether any of its directories exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.directories().iter().any(|d| d.is_dir())
    }

    /// Who is in it and below it, in any hierarchy; each process once. A
    /// cgroup that is not there holds nobody.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn pids(&self) -> Result<Vec<Pid>> {
        let mut pids = BTreeSet::new();
        for directory in self.directories() {
            tree::subtree_pids(&directory, &mut pids)?;
        }
        Ok(pids.into_iter().map(Pid::from_raw).collect())
    }

    /// The limits that bind it: the least over itself and all above it.
    #[must_use]
    pub fn limits_in_force(&self) -> Limits {
        match self {
            Self::V1(v1) => v1.limits_in_force(),
            Self::V2(v2) => v2.limits_in_force(),
        }
    }

    /// What it uses. A figure that cannot be had is absent.
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self {
            Self::V1(v1) => v1.stats(),
            Self::V2(v2) => v2.stats(),
        }
    }

    /// Has the kernel count block I/O. On version 1 Linux 6.10 and later counts
    /// only for disks that somebody throttles; this throttles each disk to
    /// "no limit", which counts and slows nothing down. Linux 5.18 to 6.4 count
    /// there only what has a limit; this sets one of 1 TiB a second. Elsewhere it
    /// has nothing to do. Worth calling once a cgroup.
    pub fn count_block_io(&self) {
        match self {
            Self::V1(v1) => v1.count_block_io(),
            Self::V2(_) => {}
        }
    }

    /// How many of its processes the kernel has killed for want of memory,
    /// since it was made. `None` where the kernel does not say.
    ///
    /// On version 1 the kernel counts in the victim's own cgroup only, so what
    /// is below is added up; a cgroup removed from below takes its count along.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        oom::kills(self)
    }

    /// Watches for out-of-memory kills in this cgroup.
    ///
    /// # Errors
    /// The memory controller is not there, or descriptors have run out.
    pub fn oom_watch(&self) -> Result<OomWatch> {
        OomWatch::over(&[self])
    }

    /// Kills all that is in it and below it, and waits until nobody is left.
    ///
    /// # Errors
    /// Somebody is left at the deadline, or the caller itself is inside.
    pub fn kill(&self, deadline: Instant) -> Result<()> {
        kill::kill(self, deadline)
    }

    /// Stops all that is in it and below it, and waits until it stands still.
    ///
    /// # Errors
    /// It does not by the deadline (it then runs on), the caller itself is
    /// inside, or the host has no freezer.
    pub fn freeze(&self, deadline: Instant) -> Result<()> {
        self.refuse_caller()?;
        match self {
            Self::V1(v1) => v1.freeze(deadline),
            Self::V2(v2) => v2.freeze(deadline),
        }
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// The kernel refuses, or the host has no freezer.
    pub fn thaw(&self) -> Result<()> {
        match self {
            Self::V1(v1) => v1.thaw(),
            Self::V2(v2) => v2.thaw(),
        }
    }

    pub(crate) fn hierarchies(&self) -> &[Hierarchy] {
        match self {
            Self::V1(v1) => &v1.hierarchies,
            Self::V2(v2) => std::slice::from_ref(&v2.hierarchy),
        }
    }

    fn refuse_caller(&self) -> Result<()> {
        let pid = Pid::this();
        if self.pids()?.contains(&pid) {
            return Err(Error::HoldsCaller {
                path: self.path().into(),
                pid,
            });
        }
        Ok(())
    }
}

/// How long to sleep between two looks at something that is about to change.
pub(crate) const POLL: Duration = Duration::from_millis(1);
