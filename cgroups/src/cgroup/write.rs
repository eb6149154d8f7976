//! Writing settings into the files of a cgroup, in order, and what to do when
//! the kernel refuses one.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::file;

/// One value for one file.
#[derive(Debug)]
pub(super) struct Setting {
    /// The file's name in the kernel's documents, such as `memory.max`.
    pub(super) name: String,
    /// Where it is.
    pub(super) path: PathBuf,
    /// What to write.
    pub(super) value: String,
}

impl Setting {
    /// The controller it belongs to.
    fn controller(&self) -> &str {
        controller(&self.name)
    }

    /// A file that may be missing: reservations of huge pages came with Linux
    /// 5.7, and without swap accounting "no limit of swap" and "no swap" hold
    /// anyway.
    fn forgivable(&self) -> bool {
        match self.name.as_str() {
            "memory.swap.max" => matches!(self.value.as_str(), "max" | "0"),
            "memory.memsw.limit_in_bytes" => self.value == "-1",
            name => name.starts_with("hugetlb.") && name.contains(".rsvd."),
        }
    }

    /// A value that may be too big or too small for the present quota. The
    /// kernel says EINVAL; it is tried again once the new quota is in place.
    fn depends_on_quota(&self) -> bool {
        matches!(
            self.name.as_str(),
            "cpu.cfs_period_us" | "cpu.cfs_burst_us" | "cpu.max.burst"
        )
    }

    fn is_quota(&self) -> bool {
        matches!(self.name.as_str(), "cpu.cfs_quota_us" | "cpu.max")
    }
}

/// The controller that a file belongs to.
pub(super) fn controller(file: &str) -> &str {
    file.split('.').next().unwrap_or_default()
}

/// Refuses settings of version 2 whose controller is not switched on in their
/// directory, before anything is written. `path` is the cgroup's. Where it is
/// on, a missing file (an older kernel has not all) shows when it is written.
pub(super) fn refuse_absent(settings: &[Setting], path: &Path) -> Result<()> {
    for setting in settings
        .iter()
        .filter(|s| !s.forgivable() && !s.path.exists())
    {
        let on = setting
            .path
            .parent()
            .and_then(|d| file::read_if_there(&d.join("cgroup.controllers")));
        let controller = setting.controller();
        let off = on.is_some_and(|on| {
            controller != "cgroup" && on.split_whitespace().all(|c| c != controller)
        });
        if off {
            return Err(Error::NoController {
                controller: controller.to_owned(),
                file: setting.name.clone(),
                value: setting.value.clone(),
                path: path.into(),
            });
        }
    }
    Ok(())
}

/// Writes settings in their order.
pub(super) fn write_all(settings: &[Setting]) -> Result<()> {
    let mut later: Vec<&Setting> = Vec::new();
    for (at, setting) in settings.iter().enumerate() {
        match file::try_write(&setting.path, &setting.value) {
            Ok(()) => {}
            Err(e) if file::is(&e, &[Errno::ENOENT]) && setting.forgivable() => {}
            Err(e)
                if file::is(&e, &[Errno::EINVAL])
                    && setting.depends_on_quota()
                    && settings[at..].iter().any(Setting::is_quota) =>
            {
                later.push(setting);
            }
            Err(source) => {
                return Err(Error::Write {
                    path: setting.path.clone(),
                    value: setting.value.clone(),
                    source,
                });
            }
        }
        if setting.is_quota() {
            for setting in later.drain(..) {
                file::write(&setting.path, &setting.value)?;
            }
        }
    }
    Ok(())
}
