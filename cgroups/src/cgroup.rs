//! One cgroup: a name at one place in every hierarchy of the host.
//!
//! [`Cgroup`] is a handle; it holds no file open and can be built anew in any
//! process from the host and the path.

mod kill;
pub(crate) mod v1;
pub(crate) mod v2;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::created::{Created, Making};
use crate::error::{Error, Result};
use crate::file;
use crate::host::{Hierarchy, Host, Mode, Version};
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

    /// Makes its directories in every hierarchy, parents included, and makes
    /// them fit for processes: controllers are enabled down to it (version 2),
    /// empty cpusets are filled from above (version 1). A directory that is
    /// there already is used as it is, and is not in the answer.
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
            subtree_pids(&directory, &mut pids)?;
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
    /// "no limit", which counts and slows nothing down. Elsewhere it has
    /// nothing to do. Worth calling once a cgroup. Linux 5.18 to 6.4 count on
    /// version 1 only where there is a real limit, and say 0 otherwise.
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

/// Makes the directory of `path` in one hierarchy, parents first. `prepare` is
/// called with each directory once it is there, from the mount down; with
/// `true` for the last.
pub(crate) fn make(
    hierarchy: &Hierarchy,
    path: &Path,
    making: &mut Making,
    prepare: impl Fn(&Path, bool) -> Result<()>,
) -> Result<()> {
    /// A parent may go while we are about it: it was empty, and whoever made
    /// it was done with it.
    const TRIES: u32 = 10;
    let mut tries = 0;
    'again: loop {
        tries += 1;
        let mut directory = hierarchy.mount.clone();
        prepare(&directory, false)?;
        let mut parts = path.components().skip(1).peekable();
        while let Some(part) = parts.next() {
            directory.push(part);
            let last = parts.peek().is_none();
            let made = making
                .directory(&directory)
                .and_then(|()| prepare(&directory, last));
            match made {
                Ok(()) => {}
                Err(
                    Error::Create { source, .. }
                    | Error::Write { source, .. }
                    | Error::Read { source, .. },
                ) if file::gone(&source) && tries < TRIES && hierarchy.mount.is_dir() => {
                    continue 'again;
                }
                Err(error) => return Err(error),
            }
        }
        return Ok(());
    }
}

/// Adds the processes in `directory` and below it.
pub(crate) fn subtree_pids(directory: &Path, pids: &mut BTreeSet<i32>) -> Result<()> {
    let members = match fs::read_to_string(directory.join("cgroup.procs")) {
        // A threaded cgroup lists threads only, and not its processes.
        Err(e) if file::is(&e, &[Errno::EOPNOTSUPP]) => {
            fs::read_to_string(directory.join("cgroup.threads"))
        }
        answer => answer,
    };
    match members {
        // 0 stands for a process that this PID namespace does not show.
        Ok(text) => pids.extend(
            text.lines()
                .filter_map(|l| l.parse::<i32>().ok())
                .filter(|pid| *pid != 0),
        ),
        Err(e) if file::gone(&e) => return Ok(()),
        Err(source) => {
            return Err(Error::Read {
                path: directory.join("cgroup.procs"),
                source,
            });
        }
    }
    children(directory)
        .iter()
        .try_for_each(|child| subtree_pids(child, pids))
}

/// The cgroups right below `directory`.
pub(crate) fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect()
}

/// Files whose value may be too big or small for the present quota. The kernel
/// says EINVAL; they are tried again once the new quota is in place.
const AFTER_QUOTA: [&str; 3] = ["cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.max.burst"];
const QUOTAS: [&str; 2] = ["cpu.cfs_quota_us", "cpu.max"];

/// Writes settings in order: `(name, file, value)`.
pub(crate) fn write_all(settings: &[(String, PathBuf, String)]) -> Result<()> {
    let mut later: Vec<&(String, PathBuf, String)> = Vec::new();
    for (at, setting) in settings.iter().enumerate() {
        let (name, path, value) = setting;
        match file::try_write(path, value) {
            Ok(()) => {}
            Err(e) if file::is(&e, &[Errno::ENOENT]) && forgivable(name, value) => {}
            Err(e)
                if file::is(&e, &[Errno::EINVAL])
                    && AFTER_QUOTA.contains(&name.as_str())
                    && settings[at..]
                        .iter()
                        .any(|(n, ..)| QUOTAS.contains(&n.as_str())) =>
            {
                later.push(setting);
            }
            Err(source) => {
                return Err(Error::Write {
                    path: path.clone(),
                    value: value.clone(),
                    source,
                });
            }
        }
        if QUOTAS.contains(&name.as_str()) {
            for (_, path, value) in later.drain(..) {
                file::write(path, value)?;
            }
        }
    }
    Ok(())
}

/// A file that may be missing: reservations of huge pages came with Linux 5.7,
/// and without swap accounting "no swap limit" and "no swap" hold anyway.
fn forgivable(name: &str, value: &str) -> bool {
    match name {
        "memory.swap.max" => matches!(value, "max" | "0"),
        "memory.memsw.limit_in_bytes" => value == "-1",
        name => name.starts_with("hugetlb.") && name.contains(".rsvd."),
    }
}

/// The hierarchies of one version.
pub(crate) fn version_of(
    hierarchies: &[Hierarchy],
    version: Version,
) -> impl Iterator<Item = &Hierarchy> {
    hierarchies.iter().filter(move |h| h.version == version)
}
