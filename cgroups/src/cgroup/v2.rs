//! A cgroup on version 2: one directory.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::POLL;
use super::tree::make;
use super::write::{Setting, refuse_absent, write_all};
use crate::created::Making;
use crate::error::{Error, Result};
use crate::file;
use crate::host::Hierarchy;
use crate::limits::{Limits, cpu_count, cpu_quota_v2};
use crate::resources::Resources;
use crate::units::{Bytes, Limit};

/// A cgroup in the one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V2 {
    pub(crate) path: PathBuf,
    pub(crate) hierarchy: Hierarchy,
}

impl V2 {
    pub(super) fn create(&self, making: &mut Making) -> Result<()> {
        create_in(&self.hierarchy, &self.path, making)
    }

    pub(super) fn apply(&self, resources: &Resources) -> Result<()> {
        let directory = self.directory();
        let settings: Vec<_> = resources
            .files_v2(|file| directory.join(file).exists())?
            .into_iter()
            .map(|(name, value)| Setting {
                path: directory.join(&name),
                name,
                value,
            })
            .collect();
        if let (true, Some(Limit::Of(limit))) =
            (resources.memory.check_before_update, resources.memory.limit)
        {
            refuse_below_usage(&directory, "memory.current", limit)?;
        }
        refuse_absent(&settings, &self.path)?;
        write_all(&settings)
    }

    pub(super) fn limits_in_force(&self) -> Limits {
        let mut limits = Limits::default();
        for ancestor in self.path.ancestors() {
            let directory = self.hierarchy.directory(ancestor);
            let memory = file::read_if_there(&directory.join("memory.max"))
                .and_then(|t| t.trim().parse().ok());
            limits.memory = limits
                .memory
                .min(memory.map_or(Limit::Unlimited, |n| Limit::Of(Bytes(n))));
            limits.tighten_cpu(cpu_quota_v2(&directory));
            if limits.cpus.is_none() {
                limits.cpus = cpu_count(&directory.join("cpuset.cpus.effective"));
            }
        }
        limits
    }

    pub(super) fn freeze(&self, deadline: Instant) -> Result<()> {
        let directory = self.directory();
        file::write(&directory.join("cgroup.freeze"), "1")?;
        loop {
            if event(&directory, "frozen")? == Some(1) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.thaw()?;
                let pids = super::Cgroup::V2(self.clone()).pids().unwrap_or_default();
                return Err(Error::TimedOut {
                    path: self.path.clone(),
                    what: "freezing",
                    pids,
                });
            }
            thread::sleep(POLL);
        }
    }

    pub(super) fn thaw(&self) -> Result<()> {
        file::write(&self.directory().join("cgroup.freeze"), "0")
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.hierarchy.directory(&self.path)
    }
}

/// Makes the directory with all controllers on that the cgroups above it can
/// give. A controller that cannot be enabled is an error only when a limit
/// needs it.
pub(super) fn create_in(hierarchy: &Hierarchy, path: &Path, making: &mut Making) -> Result<()> {
    make(hierarchy, path, making, |directory, last| {
        if last {
            return refuse_threaded(directory);
        }
        enable_controllers(directory);
        Ok(())
    })
}

/// A cgroup that holds processes itself, other than the root (which has no
/// type), cannot give controllers to children. The kernel refuses most, but to
/// accept some (cpu, pids) it would make the children threads-only.
fn enable_controllers(directory: &Path) {
    let inhabited =
        file::read_if_there(&directory.join("cgroup.procs")).is_some_and(|t| !t.is_empty());
    if inhabited && directory.join("cgroup.type").exists() {
        return;
    }
    let there = file::read_if_there(&directory.join("cgroup.controllers")).unwrap_or_default();
    let control = directory.join("cgroup.subtree_control");
    let on = file::read_if_there(&control).unwrap_or_default();
    let missing: Vec<String> = there
        .split_whitespace()
        .filter(|c| !on.split_whitespace().any(|o| o == *c))
        .map(|c| format!("+{c}"))
        .collect();
    // All or none is what the kernel makes of one write, so when it refuses
    // them together each is tried alone.
    if !missing.is_empty() && file::try_write(&control, &missing.join(" ")).is_err() {
        for controller in missing {
            let _ = file::try_write(&control, &controller);
        }
    }
}

fn refuse_threaded(directory: &Path) -> Result<()> {
    let Some(kind) = file::read_if_there(&directory.join("cgroup.type")) else {
        return Ok(());
    };
    match kind.trim() {
        // "domain threaded" can hold processes, its limits are its own.
        "domain" | "domain threaded" => Ok(()),
        kind => Err(Error::NotADomain {
            path: directory.into(),
            kind: kind.to_owned(),
        }),
    }
}

pub(super) fn refuse_below_usage(directory: &Path, file: &str, limit: Bytes) -> Result<()> {
    let usage = file::read_if_there(&directory.join(file)).and_then(|t| t.trim().parse().ok());
    match usage {
        Some(usage) if limit.0 <= usage => Err(Error::BelowUsage {
            path: directory.into(),
            limit: limit.0,
            usage,
        }),
        _ => Ok(()),
    }
}

/// A value of `cgroup.events`.
pub(super) fn event(directory: &Path, key: &str) -> Result<Option<u64>> {
    let text = file::read(&directory.join("cgroup.events"))?;
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(key)?.trim().parse().ok());
    Ok(value)
}
