//! The directories of cgroups: making them, walking them, and who is in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::created::Making;
use crate::error::{Error, Result};
use crate::file;
use crate::host::{Hierarchy, Version};

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

/// The directories of `path` in one hierarchy that are not there, parents first.
pub(crate) fn missing(hierarchy: &Hierarchy, path: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<_> = path
        .ancestors()
        .take_while(|part| *part != Path::new("/"))
        .map(|part| hierarchy.directory(part))
        .take_while(|directory| !directory.exists())
        .collect();
    missing.reverse();
    missing
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

/// The hierarchies of one version.
pub(crate) fn version_of(
    hierarchies: &[Hierarchy],
    version: Version,
) -> impl Iterator<Item = &Hierarchy> {
    hierarchies.iter().filter(move |h| h.version == version)
}
