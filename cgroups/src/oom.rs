//! Out-of-memory kills: counting them, and waking up when there is a new one.
//!
//! What is counted is `oom_kill`, not `oom`: the latter is booked where the
//! limit was hit, the former where the victim was. The descriptor only says
//! "look again"; what counts is the difference to an earlier look, because a
//! version 1 event also fires without a kill and when the cgroup goes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::cgroup::Cgroup;
use crate::cgroup::tree::children;
use crate::error::{Error, Result};
use crate::file;

/// One descriptor that becomes readable when one of several cgroups may have
/// seen a kill. One for a whole process is enough, and inotify instances are
/// few (128 a user).
#[derive(Debug)]
pub struct OomWatch {
    source: Source,
    watched: Vec<Cgroup>,
}

#[derive(Debug)]
enum Source {
    /// Version 1: an eventfd that `cgroup.event_control` is told of.
    Event(EventFd),
    /// Version 2: the kernel touches `memory.events`.
    Inotify(Inotify),
}

impl OomWatch {
    /// Watches several cgroups of one host, such as a sandbox's and its pod's.
    ///
    /// # Errors
    /// The list is empty, the memory controller is not there, or descriptors
    /// have run out.
    pub fn over(cgroups: &[&Cgroup]) -> Result<Self> {
        let path = cgroups
            .first()
            .map(|c| c.path().to_path_buf())
            .unwrap_or_default();
        let refused = |errno: Errno| Error::OomWatch {
            path: path.clone(),
            source: errno.into(),
        };
        let source = match cgroups.first().map(|c| files(c)) {
            Some(Some(Files::V1(_))) => {
                EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                    .map(Source::Event)
                    .map_err(refused)?
            }
            Some(Some(Files::V2(_))) => {
                Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
                    .map(Source::Inotify)
                    .map_err(refused)?
            }
            Some(None) | None => return Err(refused(Errno::ENOENT)),
        };
        let mut watch = Self {
            source,
            watched: Vec::new(),
        };
        for cgroup in cgroups {
            watch.add(cgroup)?;
        }
        Ok(watch)
    }

    /// Watches one more cgroup of the same host.
    ///
    /// # Errors
    /// It is not there, or the kernel refuses.
    pub fn add(&mut self, cgroup: &Cgroup) -> Result<()> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source: io::Error| Error::OomWatch { path, source }
        };
        match (&self.source, files(cgroup)) {
            (Source::Event(event), Some(Files::V1(directory))) => {
                let path = directory.join("memory.oom_control");
                let control = File::open(&path).map_err(at(&path))?;
                let value = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
                file::write(&directory.join("cgroup.event_control"), &value)?;
            }
            (Source::Inotify(inotify), Some(Files::V2(directory))) => {
                // cgroup.events changes when the last process goes: the time
                // for a last look, since the file may go right after.
                for name in ["memory.events", "cgroup.events"] {
                    let path = directory.join(name);
                    inotify
                        .add_watch(&path, AddWatchFlags::IN_MODIFY)
                        .map_err(|e| at(&path)(e.into()))?;
                }
            }
            (Source::Event(_) | Source::Inotify(_), _) => {
                return Err(at(cgroup.path())(Errno::ENOENT.into()));
            }
        }
        self.watched.push(cgroup.clone());
        Ok(())
    }

    /// Takes what made the descriptor readable, so that it is not any more.
    /// Never blocks. Whether there was anything.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn drain(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let answer = match &self.source {
                Source::Event(event) => event.read().map(drop),
                Source::Inotify(inotify) => inotify.read_events().map(drop),
            };
            match answer {
                Ok(()) => any = true,
                Err(Errno::EAGAIN) => return Ok(any),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The counts now, in the order in which the cgroups were given. `None`
    /// for one that is gone.
    #[must_use]
    pub fn kills(&self) -> Vec<Option<u64>> {
        self.watched.iter().map(kills).collect()
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Event(event) => event.as_fd(),
            Source::Inotify(inotify) => inotify.as_fd(),
        }
    }
}

impl AsRawFd for OomWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// See [`Cgroup::oom_kills`].
pub(crate) fn kills(cgroup: &Cgroup) -> Option<u64> {
    match files(cgroup)? {
        Files::V1(directory) => kills_below(&directory),
        Files::V2(directory) => count(&directory.join("memory.events")),
    }
}

/// Where the memory controller's files are.
enum Files {
    V1(PathBuf),
    V2(PathBuf),
}

fn files(cgroup: &Cgroup) -> Option<Files> {
    match cgroup {
        Cgroup::V2(v2) => Some(Files::V2(v2.directory())),
        Cgroup::V1(v1) => match v1.directory("memory") {
            Some(directory) => Some(Files::V1(directory)),
            None => v1
                .v2_with("memory")
                .map(|h| Files::V2(h.directory(&v1.path))),
        },
    }
}

fn kills_below(directory: &Path) -> Option<u64> {
    let own = count(&directory.join("memory.oom_control"))?;
    Some(
        children(directory)
            .iter()
            .filter_map(|c| kills_below(c))
            .fold(own, u64::saturating_add),
    )
}

fn count(path: &Path) -> Option<u64> {
    let text = file::read_if_there(path)?;
    text.lines()
        .find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok())
}
