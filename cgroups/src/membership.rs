//! Which cgroups a process is in, and moving the caller into others, with the
//! way back if one of them refuses.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::file;
use crate::host::{Hierarchy, Version, parse_mountinfo};

/// The cgroups of a process as `(hierarchy, path)`: the hierarchy is named by
/// its controllers (`cpu,cpuacct`, `name=systemd`), and is empty for version 2.
/// Paths are as `/proc/<pid>/cgroup` has them, that is, relative to the
/// caller's cgroup namespace.
///
/// # Errors
/// The process is gone.
pub fn membership(pid: Pid) -> Result<Vec<(String, PathBuf)>> {
    Ok(parse(&file::read(&PathBuf::from(format!(
        "/proc/{pid}/cgroup"
    )))?))
}

/// Moves the calling process, with all its threads, into each of `dirs` (one
/// directory a hierarchy) and reads back that it is really there.
///
/// # Errors
/// A directory cannot be joined, or the process is elsewhere afterwards. The
/// process is then back where it was before.
pub fn enter<P: AsRef<Path>>(dirs: &[P]) -> Result<()> {
    let targets = targets(dirs)?;
    let before = parse(&file::read(Path::new("/proc/self/cgroup"))?);
    let joined = targets
        .iter()
        .try_for_each(|t| join(&t.directory))
        .and_then(|()| inside(Pid::this(), &targets));
    if joined.is_err() {
        for target in &targets {
            // The way back is tried for each; the first error is what the
            // caller must hear of, not a second one.
            let old = before.iter().find(|(line, _)| target.is_line(line));
            if let Some(dir) = old.and_then(|(_, path)| target.hierarchy.below_mount(path)) {
                let _ = join(&target.hierarchy.directory(&dir));
            }
        }
    }
    joined
}

/// Waits until the calling process is in each of `dirs`: until someone else,
/// such as systemd, has moved it.
///
/// # Errors
/// It is not by then; the error names the first hierarchy that is wrong.
pub fn await_membership<P: AsRef<Path>>(dirs: &[P], deadline: Instant) -> Result<()> {
    let targets = targets(dirs)?;
    loop {
        match inside(Pid::this(), &targets) {
            Err(Error::NotInside { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            answer => return answer,
        }
    }
}

/// Whether process `pid` is in each of `dirs`.
///
/// # Errors
/// It is not, it is gone, or a directory is in no mounted hierarchy.
pub fn verify_membership<P: AsRef<Path>>(pid: Pid, dirs: &[P]) -> Result<()> {
    inside(pid, &targets(dirs)?)
}

/// Parses `/proc/<pid>/cgroup`. A line is split at its first two colons only,
/// since the path may hold more.
pub(crate) fn parse(text: &str) -> Vec<(String, PathBuf)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let hierarchy = fields.next()?;
            let path = fields.next()?;
            Some((
                hierarchy.to_owned(),
                PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path)),
            ))
        })
        .collect()
}

/// A directory to be in, and the hierarchy it belongs to.
struct Target {
    directory: PathBuf,
    hierarchy: Hierarchy,
    /// As `/proc/<pid>/cgroup` will show it.
    path: PathBuf,
}

impl Target {
    fn is_line(&self, line: &str) -> bool {
        match self.hierarchy.version {
            Version::V2 => line.is_empty(),
            Version::V1 => line.split(',').any(|c| self.hierarchy.has(c)),
        }
    }
}

fn targets<P: AsRef<Path>>(dirs: &[P]) -> Result<Vec<Target>> {
    let mounts = parse_mountinfo(&file::read(Path::new("/proc/self/mountinfo"))?);
    dirs.iter()
        .map(|dir| {
            let directory = dir.as_ref();
            let hierarchy = mounts
                .iter()
                .filter(|m| directory.starts_with(&m.mount))
                // The last and longest mount is the one that is seen.
                .max_by_key(|m| m.mount.as_os_str().len())
                .ok_or_else(|| Error::NotACgroup {
                    path: directory.into(),
                })?;
            let rest = directory
                .strip_prefix(&hierarchy.mount)
                .unwrap_or(directory);
            Ok(Target {
                directory: directory.into(),
                hierarchy: hierarchy.clone(),
                // Joining an empty rest would leave a slash at the end.
                path: hierarchy
                    .root
                    .components()
                    .chain(rest.components())
                    .collect(),
            })
        })
        .collect()
}

/// The kernel says EINVAL for a process that is just being born, and EBUSY for
/// a moment after controllers were switched.
const JOIN_TRIES: u32 = 5;
const JOIN_PAUSE: Duration = Duration::from_millis(30);

fn join(directory: &Path) -> Result<()> {
    let path = directory.join("cgroup.procs");
    let mut tries = 0;
    loop {
        tries += 1;
        match file::try_write(&path, "0") {
            Ok(()) => return Ok(()),
            Err(e)
                if tries < JOIN_TRIES
                    && file::is(&e, &[Errno::EINVAL, Errno::EAGAIN, Errno::EBUSY]) =>
            {
                thread::sleep(JOIN_PAUSE);
            }
            Err(source) => {
                return Err(Error::Write {
                    path,
                    value: "0".into(),
                    source,
                });
            }
        }
    }
}

fn inside(pid: Pid, targets: &[Target]) -> Result<()> {
    let lines = membership(pid)?;
    for target in targets {
        let line = lines.iter().find(|(line, _)| target.is_line(line));
        let (hierarchy, found) = line.cloned().unwrap_or_default();
        if found != target.path {
            return Err(Error::NotInside {
                pid,
                hierarchy,
                wanted: target.directory.clone(),
                found,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_may_hold_colons_and_be_deleted() {
        let text = "2:cpu,cpuacct:/a:b:c\n1:name=systemd:/x (deleted)\n0::/\n\ntorn\n";
        let expected = [("cpu,cpuacct", "/a:b:c"), ("name=systemd", "/x"), ("", "/")];
        assert_eq!(
            parse(text),
            expected.map(|(h, p)| (h.to_owned(), PathBuf::from(p)))
        );
    }

    #[test]
    fn a_directory_outside_of_cgroups_is_refused() {
        let error = enter(&["/proc"]).unwrap_err();
        assert_eq!(error.to_string(), "/proc is in no mounted cgroup hierarchy");
    }

    proptest! {
        #[test]
        fn any_text_of_proc_cgroup_is_read(lines in prop::collection::vec("[0-9]{0,2}:[a-z,=]{0,9}:/[a-z:/. ]{0,20}", 0..5)) {
            let read = parse(&lines.join("\n"));
            prop_assert_eq!(read.len(), lines.len());
            prop_assert!(parse(&lines.concat()).len() <= 1);
        }
    }
}
