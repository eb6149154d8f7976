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
