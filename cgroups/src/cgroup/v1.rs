//! A cgroup on version 1: the same path in every hierarchy.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::tree::{make, version_of};
use super::write::{Setting, controller, refuse_absent, write_all};
use super::{POLL, v2};
use crate::created::Making;
use crate::error::{Error, Result};
use crate::file;
use crate::host::{Hierarchy, Version};
use crate::limits::{Limits, UNLIMITED_FROM, cpu_quota_v1};
use crate::resources::{Files, Resources};
use crate::stats::parse;
use crate::units::{Bytes, Limit};

/// A cgroup in several hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V1 {
    pub(crate) path: PathBuf,
    pub(crate) hierarchies: Vec<Hierarchy>,
}

const READ_RATE: &str = "blkio.throttle.read_bps_device";
const WRITE_RATE: &str = "blkio.throttle.write_bps_device";

/// A throttle's rate in bytes a second: none, and one that no disk comes near. (With
/// larger ones the kernels that need it count past 64 bits.)
const UNLIMITED: u64 = 0;
const UNREACHED: u64 = 1 << 40;

/// Whether this release of Linux counts block I/O only where a rate limits it: 5.18
/// to 6.4 do (mended by "blk-throttle: Fix io statistics for cgroup v1").
fn counts_only_what_is_limited(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = number().zip(number());
    version.is_some_and(|version| ((5, 18)..(6, 5)).contains(&version))
}

impl V1 {
    pub(super) fn create(&self, making: &mut Making) -> Result<()> {
        for hierarchy in &self.hierarchies {
            match hierarchy.version {
                Version::V1 => make(hierarchy, &self.path, making, |directory, _| {
                    if hierarchy.has("cpuset") && directory != hierarchy.mount {
                        fill_cpuset(hierarchy, directory)?;
                    }
                    Ok(())
                })?,
                Version::V2 => v2::create_in(hierarchy, &self.path, making)?,
            }
        }
        Ok(())
    }

    pub(super) fn apply(&self, resources: &Resources) -> Result<()> {
        let blkio = self.directory("blkio");
        let files =
            resources.files_v1(|file| blkio.as_ref().is_some_and(|d| d.join(file).exists()))?;
        let mut settings = Vec::new();
        let mut on_v2 = BTreeSet::new();
        for (name, value) in self.memory_order(resources, files) {
            let controller = controller(&name).to_owned();
            if let Some(path) = self.file(&name) {
                settings.push(Setting { name, path, value });
            } else if self.v2_with(&controller).is_some() {
                on_v2.insert(controller);
            } else {
                return Err(Error::NoController {
                    controller,
                    file: name,
                    value,
                    path: self.path.clone(),
                });
            }
        }
        // A controller that a hybrid host has on the version 2 side takes that
        // version's files.
        if !on_v2.is_empty() {
            for (name, value) in resources.files_v2(|_| false)? {
                let controller = controller(&name);
                if let Some(hierarchy) = self
                    .v2_with(controller)
                    .filter(|_| on_v2.contains(controller))
                {
                    let path = hierarchy.directory(&self.path).join(&name);
                    settings.push(Setting { name, path, value });
                }
            }
        }
        refuse_absent(&settings, &self.path)?;
        if let (true, Some(Limit::Of(limit)), Some(directory)) = (
            resources.memory.check_before_update,
            resources.memory.limit,
            self.directory("memory"),
        ) {
            v2::refuse_below_usage(&directory, "memory.usage_in_bytes", limit)?;
        }
        write_all(&settings)
    }

    /// memsw may not be below the limit at any moment: when raising, it goes
    /// first, when lowering, last.
    fn memory_order(&self, resources: &Resources, mut files: Files) -> Files {
        let at = |name: &str, files: &Files| files.iter().position(|(f, _)| f == name);
        let limit = at("memory.limit_in_bytes", &files);
        let swap = at("memory.memsw.limit_in_bytes", &files);
        if let (Some(limit), Some(swap), Some(Limit::Of(Bytes(new)))) =
            (limit, swap, resources.memory.swap)
        {
            let current = self.file("memory.limit_in_bytes").and_then(|p| number(&p));
            if limit < swap && current.is_some_and(|current| current < new) {
                files.swap(limit, swap);
            }
        }
        files
    }

    pub(super) fn limits_in_force(&self) -> Limits {
        let mut limits = Limits::default();
        for ancestor in self.path.ancestors() {
            if let Some(hierarchy) = self.with("memory") {
                let memory = number(&hierarchy.directory(ancestor).join("memory.limit_in_bytes"));
                limits.memory = limits.memory.min(match memory {
                    Some(n) if n < UNLIMITED_FROM => Limit::Of(Bytes(n)),
                    _ => Limit::Unlimited,
                });
            }
            if let Some(hierarchy) = self.with("cpu") {
                limits.tighten_cpu(cpu_quota_v1(&hierarchy.directory(ancestor)));
            }
            if limits.cpus.is_none()
                && let Some(hierarchy) = self.with("cpuset")
            {
                let directory = hierarchy.directory(ancestor);
                let lists = ["cpuset.effective_cpus", "cpuset.cpus"]
                    .map(|f| directory.join(name(hierarchy, f)));
                limits.cpus = lists.iter().find_map(|p| crate::limits::cpu_count(p));
            }
        }
        limits
    }

    pub(super) fn count_block_io(&self) {
        let release = file::read_if_there(Path::new("/proc/sys/kernel/osrelease"));
        let limited = release.is_some_and(|release| counts_only_what_is_limited(&release));
        let (rate, files): (u64, &[&str]) = match limited {
            true => (UNREACHED, &[READ_RATE, WRITE_RATE]),
            // One rule makes the kernel count both ways.
            false => (UNLIMITED, &[READ_RATE]),
        };
        let partitions = file::read_if_there(Path::new("/proc/partitions")).unwrap_or_default();
        let disks = parse::partitions(&partitions);
        for name in files {
            let Some(file) = self.file(name) else {
                continue;
            };
            for (major, minor) in disks.keys() {
                // Partitions are refused, their disk stands for them. A limit that
                // is set already must stay.
                let device = format!("{major}:{minor} ");
                let set = file::read_if_there(&file)
                    .is_some_and(|t| t.lines().any(|l| l.starts_with(&device)));
                if !set {
                    let _ = file::try_write(&file, &format!("{device}{rate}"));
                }
            }
        }
    }

    pub(super) fn freeze(&self, deadline: Instant) -> Result<()> {
        let state = self.freezer()?;
        for attempt in 1_u32.. {
            file::write(&state, "FROZEN")?;
            // FREEZING is not there yet: a task may be in a place where it
            // cannot be stopped.
            if file::read(&state)?.trim() == "FROZEN" {
                return Ok(());
            }
            if Instant::now() >= deadline {
                file::write(&state, "THAWED")?;
                let pids = super::Cgroup::V1(self.clone()).pids().unwrap_or_default();
                return Err(Error::TimedOut {
                    path: self.path.clone(),
                    what: "freezing",
                    pids,
                });
            }
            // A group that forks while it is being frozen may never get there
            // (Documentation/cgroup-v1/freezer-subsystem); a moment of freedom
            // lets it.
            if attempt.is_multiple_of(50) {
                file::write(&state, "THAWED")?;
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    pub(super) fn thaw(&self) -> Result<()> {
        file::write(&self.freezer()?, "THAWED")
    }

    fn freezer(&self) -> Result<PathBuf> {
        self.directory("freezer")
            .map(|d| d.join("freezer.state"))
            .ok_or_else(|| Error::NoController {
                controller: "freezer".to_owned(),
                file: "freezer.state".to_owned(),
                value: "FROZEN".to_owned(),
                path: self.path.clone(),
            })
    }

    /// The version 1 hierarchy with this controller.
    pub(crate) fn with(&self, controller: &str) -> Option<&Hierarchy> {
        version_of(&self.hierarchies, Version::V1).find(|h| h.has(controller))
    }

    /// The version 2 hierarchy of a hybrid host, if the controller is there.
    pub(crate) fn v2_with(&self, controller: &str) -> Option<&Hierarchy> {
        version_of(&self.hierarchies, Version::V2).find(|h| h.has(controller))
    }

    /// Its directory in the hierarchy with this controller.
    pub(crate) fn directory(&self, controller: &str) -> Option<PathBuf> {
        self.with(controller).map(|h| h.directory(&self.path))
    }

    fn file(&self, file: &str) -> Option<PathBuf> {
        let hierarchy = self.with(file.split('.').next()?)?;
        Some(hierarchy.directory(&self.path).join(name(hierarchy, file)))
    }
}

/// The file's name in a hierarchy that may be mounted without prefixes.
fn name<'a>(hierarchy: &Hierarchy, file: &'a str) -> &'a str {
    match file.split_once('.') {
        Some((_, rest)) if hierarchy.noprefix => rest,
        _ => file,
    }
}

/// A new cpuset is empty, and a process cannot join an empty one (ENOSPC). One
/// that has CPUs is left alone: it may be managed from outside.
fn fill_cpuset(hierarchy: &Hierarchy, directory: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let file = name(hierarchy, file);
        let path = directory.join(file);
        if file::read(&path)?.trim().is_empty()
            && let Some(parent) = directory.parent()
        {
            file::write(&path, file::read(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

fn number(path: &Path) -> Option<u64> {
    file::read_if_there(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_count_only_what_is_limited() {
        for (release, so) in [
            ("5.17.15", false),
            ("5.18.0-rc1", true),
            ("5.18", true),
            ("6.1.0-28-amd64\n", true),
            ("6.4.16", true),
            ("6.5.0", false),
            ("6.12.8+", false),
            ("5.4.0", false),
            ("10.0.0", false),
            ("six", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(counts_only_what_is_limited(release), so, "{release:?}");
        }
    }
}
