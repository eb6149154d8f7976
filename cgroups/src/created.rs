//! Which directories we made, so that those and no others are removed.
//!
//! The list of a process is not enough: of two pods below `/kubepods` the one
//! that made it may go first, and the other does not have it on its list. So
//! each directory that is made gets an extended attribute, and a parent that
//! has it and is empty may go with the last who used it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::Pid;
use rustix::fs::XattrFlags;

use crate::cgroup::tree::{children, subtree_pids};
use crate::error::{Error, Result};
use crate::file;

/// The directories that a [`Cgroup::create`](crate::Cgroup::create) made, in
/// the order it made them. Their list can be stored, and a later process can
/// remove them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Created {
    directories: Vec<PathBuf>,
}

impl Created {
    /// What was made, parents before children.
    #[must_use]
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The same, from a stored list.
    #[must_use]
    pub fn from_directories(directories: Vec<PathBuf>) -> Self {
        Self { directories }
    }

    /// Takes over what `other` made later, such as a pod's second container.
    pub fn absorb(&mut self, other: Self) {
        let new = other
            .directories
            .into_iter()
            .filter(|d| !self.directories.contains(d));
        self.directories.extend(new.collect::<Vec<_>>());
    }

    /// Removes them, children first. What others made below the innermost goes
    /// too; a parent that others still use stays. Empty parents that another
    /// process has made with this crate go as well. What is gone already is
    /// well.
    ///
    /// # Errors
    /// A directory still holds processes after two seconds. The others are
    /// removed nevertheless; the error is the first.
    pub fn remove(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut result = Ok(());
        for directory in self.directories.iter().rev() {
            let inner = self
                .directories
                .iter()
                .any(|d| d != directory && d.starts_with(directory));
            let removed = match inner {
                true => remove_parent(directory),
                false => remove_subtree(directory, deadline),
            };
            if result.is_ok() {
                result = removed;
            }
            // Others on the list come by themselves.
            let above = directory.ancestors().skip(1);
            for parent in
                above.take_while(|p| !self.directories.iter().any(|d| d == p) && is_ours(p))
            {
                if fs::remove_dir(parent).is_err() {
                    break;
                }
            }
        }
        result
    }
}

/// What is being made. Dropped before [`Making::done`], it is unmade.
#[derive(Debug, Default)]
pub(crate) struct Making {
    created: Created,
}

impl Making {
    /// Makes a directory, unless it is there.
    pub(crate) fn directory(&mut self, path: &Path) -> Result<()> {
        match fs::create_dir(path) {
            Ok(()) => {
                // Without the mark the list alone must do.
                let _ = rustix::fs::setxattr(path, MARK, b"1", XattrFlags::empty());
                self.created.directories.push(path.into());
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // On a read-only mount the kernel says EROFS before EEXIST.
            Err(_) if path.is_dir() => Ok(()),
            Err(source) => Err(Error::Create {
                path: path.into(),
                source,
            }),
        }
    }

    pub(crate) fn done(mut self) -> Created {
        std::mem::take(&mut self.created)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // Not `Created::remove`: what others have made in the meantime below a
        // parent of ours is in use, though it be empty yet.
        for directory in self.created.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The extended attribute of a directory that this crate has made. systemd
/// keeps its notes on cgroups in the same way.
const MARK: &str = "trusted.rampart.made";

fn is_ours(directory: &Path) -> bool {
    rustix::fs::getxattr(directory, MARK, &mut [0_u8; 1]).is_ok()
}

/// How long the kernel gets to let go of the last process. It is asked again
/// with growing pauses.
const PATIENCE: Duration = Duration::from_secs(2);

fn remove_subtree(directory: &Path, deadline: Instant) -> Result<()> {
    for child in children(directory) {
        remove_subtree(&child, deadline)?;
    }
    let mut pause = Duration::from_millis(1);
    loop {
        match remove_directory(directory) {
            Ok(()) => return Ok(()),
            Err(e) if file::is(&e, &[Errno::EBUSY]) && Instant::now() < deadline => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(64));
            }
            Err(source) => {
                let mut pids = BTreeSet::new();
                let _ = subtree_pids(directory, &mut pids);
                let pids = pids.into_iter().map(Pid::from_raw).collect();
                return Err(Error::Remove {
                    path: directory.into(),
                    source,
                    pids,
                });
            }
        }
    }
}

fn remove_parent(directory: &Path) -> Result<()> {
    match remove_directory(directory) {
        Ok(()) => Ok(()),
        // Others have come to live in it.
        Err(e) if file::is(&e, &[Errno::EBUSY, Errno::ENOTEMPTY]) => Ok(()),
        Err(source) => Err(Error::Remove {
            path: directory.into(),
            source,
            pids: Vec::new(),
        }),
    }
}

/// Removes one directory; one that is not there is removed. A read-only mount
/// says EROFS even for those.
fn remove_directory(directory: &Path) -> io::Result<()> {
    match fs::remove_dir(directory) {
        Err(e) if file::gone(&e) || !directory.exists() => Ok(()),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let mut making = Making::default();
        fs::create_dir(path("theirs")).unwrap();
        for name in ["theirs", "theirs/a", "theirs/a/b"] {
            making.directory(&path(name)).unwrap();
        }
        let created = making.done();
        assert_eq!(
            created.directories(),
            [path("theirs/a"), path("theirs/a/b")]
        );

        // Below our innermost directory all goes; beside it nothing.
        fs::create_dir_all(path("theirs/a/b/nested/deep")).unwrap();
        fs::create_dir(path("theirs/a/sibling")).unwrap();
        let stored = Created::from_directories(created.directories().to_vec());
        stored.remove().unwrap();
        assert!(!path("theirs/a/b").exists());
        assert!(path("theirs/a/sibling").exists());

        fs::remove_dir(path("theirs/a/sibling")).unwrap();
        stored.remove().unwrap();
        assert!(!path("theirs/a").exists());
        assert!(path("theirs").exists());
        stored.remove().unwrap();
    }

    #[test]
    fn what_is_not_finished_is_unmade() {
        let root = tempfile::tempdir().unwrap();
        let mut making = Making::default();
        making.directory(&root.path().join("a")).unwrap();
        making.directory(&root.path().join("a/b")).unwrap();
        assert!(making.directory(&root.path().join("x/y")).is_err());
        drop(making);
        assert!(!root.path().join("a").exists());
    }

    #[test]
    fn a_pod_remembers_what_all_its_containers_made() {
        let mut pod = Created::from_directories(vec!["/p".into(), "/p/a".into()]);
        pod.absorb(Created::from_directories(vec![
            "/p/a".into(),
            "/p/b".into(),
        ]));
        assert_eq!(pod.directories(), ["/p", "/p/a", "/p/b"].map(PathBuf::from));
    }
}
