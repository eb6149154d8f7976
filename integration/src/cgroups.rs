//! The host's cgroups as a reader sees them; nothing of the crate under test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::wait;

/// Where the hierarchies are mounted; on a v2 host it is one itself.
const ROOT: &str = "/sys/fs/cgroup";

/// The mount points of all hierarchies, v1 and v2.
pub fn hierarchies() -> Vec<PathBuf> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return vec![PathBuf::from(ROOT)];
    }
    let mut found: Vec<PathBuf> = fs::read_dir(ROOT)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Tells whether the host has the one hierarchy of v2.
pub fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// All cgroups with `name` somewhere in their path, parents first.
pub fn named(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        collect(&hierarchy, name, false, &mut found);
    }
    found
}

/// Every cgroup of the host, parents first.
pub fn all() -> Vec<PathBuf> {
    named("")
}

/// Tells whether systemd is this host's init.
pub fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The directory of the cgroup `path` in the hierarchy of a v1 controller, or in
/// the one of v2.
pub fn directory(controller: &str, path: &str) -> PathBuf {
    let root = PathBuf::from(ROOT);
    let mount = if is_unified() {
        root
    } else {
        root.join(controller)
    };
    mount.join(path.trim_start_matches('/'))
}

/// What a file of the cgroup `path` holds: `v1` is `controller.rest`, `v2` the
/// name on a v2 host.
///
/// # Panics
///
/// If it cannot be read.
#[track_caller]
pub fn read(path: &str, v1: &str, v2: &str) -> String {
    let controller = v1.split('.').next().unwrap_or_default();
    let file = directory(controller, path).join(if is_unified() { v2 } else { v1 });
    fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        .trim_end()
        .to_owned()
}

/// The pids in `cgroup` itself.
pub fn pids(cgroup: &Path) -> Vec<u32> {
    fs::read_to_string(cgroup.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect()
}

/// Removes what a failed test or a reference left under `name`.
pub fn remove_named(name: &str) {
    wait::within(std::time::Duration::from_secs(5), || {
        let left = named(name);
        for cgroup in left.iter().rev() {
            let _busy_until_its_last_process_is_reaped = fs::remove_dir(cgroup);
        }
        left.is_empty().then_some(())
    });
}

fn collect(directory: &Path, name: &str, inside: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let inside = inside || entry.file_name().to_string_lossy().contains(name);
            if inside {
                found.push(entry.path());
            }
            collect(&entry.path(), name, inside, found);
        }
    }
}
