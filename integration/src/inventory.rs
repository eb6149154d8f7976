//! What is there: processes, mounts, cgroups, systemd units, links and files of a
//! test's corner.
//!
//! Taken before and after, it shows what a container left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::host::Host;
use crate::{cgroups, process, wait};

/// A listing of everything a shim can leave behind, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    lines: BTreeSet<String>,
    /// By pid: what one is called changes, when it becomes another program or ends.
    processes: BTreeMap<u32, String>,
}

impl Inventory {
    /// Lists what is there now.
    pub fn take(host: &Host) -> Self {
        let mut lines = BTreeSet::new();
        let processes = process::descendants()
            .into_iter()
            .map(|one| (one.pid, format!("process {} {}", one.pid, one.command)))
            .collect();
        let mut before = String::new();
        let mut layers = 0;
        for mount in host.mounts() {
            layers = if mount == before { layers + 1 } else { 1 };
            lines.insert(format!("mount {mount} ×{layers}"));
            before = mount;
        }
        for cgroup in cgroups::named(host.name()) {
            lines.insert(format!("cgroup {}", cgroup.display()));
        }
        for unit in units(host.name()) {
            lines.insert(format!("unit {unit}"));
        }
        for link in host.links() {
            lines.insert(format!("link {link}"));
        }
        for directory in ["/run", "/var/lib"] {
            list(&host.outside(directory), directory, &mut lines);
        }
        // Of containerd's own two directories: bundles, not content or database.
        for directory in ["state", "root/io.containerd.runtime.v2.task", "logs"] {
            let path = host.directory().join(directory);
            list(&path, &path.to_string_lossy(), &mut lines);
        }
        Self { lines, processes }
    }

    /// Waits until everything is again as it was at `self`, but for processes that
    /// have ended: at `self` one may have been about to.
    ///
    /// # Panics
    ///
    /// With the difference, if it does not come to that.
    #[track_caller]
    pub fn assert_same(&self, host: &Host) {
        self.assert_same_but(host, |_| false);
    }

    /// As [`Self::assert_same`], for all lines but those that `ignored` picks.
    ///
    /// # Panics
    ///
    /// With the difference, if it does not come to that.
    #[track_caller]
    pub fn assert_same_but(&self, host: &Host, ignored: impl Fn(&str) -> bool) {
        let mut difference = Vec::new();
        let same = wait::within(std::time::Duration::from_secs(20), || {
            let now = Self::take(host);
            difference = self.difference(&now, &ignored);
            difference.is_empty().then_some(())
        });
        assert!(
            same.is_some(),
            "not everything is as it was before:\n{}",
            difference.join("\n")
        );
    }

    fn difference(&self, now: &Self, ignored: impl Fn(&str) -> bool) -> Vec<String> {
        let began = now.processes.iter();
        let began = began.filter(|(pid, _)| !self.processes.contains_key(pid));
        let left = now.lines.difference(&self.lines);
        let left = left.chain(began.map(|(_, line)| line));
        let gone = self.lines.difference(&now.lines);
        left.map(|line| ("left", line))
            .chain(gone.map(|line| ("gone", line)))
            .filter(|(_, line)| !ignored(line))
            .map(|(what, line)| format!("{what}: {line}"))
            .collect()
    }
}

/// The systemd units that were made at run time and whose name holds `name`; none
/// where systemd does not run.
fn units(name: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/systemd/transient").into_iter().flatten();
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|unit| unit.contains(name))
        .collect()
}

fn list(directory: &Path, name: &str, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        // What is mounted is listed as a mount; its files are not this listing's.
        if entry.file_name() == "rootfs" || name == "/run/systemd" || name == "/run/dbus" {
            lines.insert(format!("file {name}"));
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), &name, lines);
        }
        lines.insert(format!("file {name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_left_and_what_is_gone() {
        let inventory = |lines: &[&str], processes: &[(u32, &str)]| Inventory {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            processes: processes
                .iter()
                .map(|&(pid, line)| (pid, line.to_owned()))
                .collect(),
        };
        let before = inventory(&["file a", "file b"], &[(1, "sh"), (2, "ending")]);
        let after = inventory(
            &["file b", "file c", "cgroup d"],
            &[(1, "sleep"), (3, "sh")],
        );
        assert_eq!(
            before.difference(&after, |line| line.starts_with("cgroup")),
            ["left: file c", "left: sh", "gone: file a"]
        );
    }
}
