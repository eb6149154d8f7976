//! Where a container's processes live: its cgroup, and how they come into it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use cgroups::{Cgroup, CgroupPath, Created, Host, Origin, Resources};
use oci_spec::runtime::{LinuxResources, Spec};
use sandbox::launch::{Join, Launcher};

use crate::bundle::Role;
use crate::create::blocking;
use crate::error::{Error, Result};
use crate::record::Record;

/// A container's place in the host's hierarchies.
#[derive(Debug, Clone)]
pub struct Placement {
    path: CgroupPath,
    cgroup: Cgroup,
}

impl Placement {
    /// Works out the place from `linux.cgroupsPath`; touches nothing.
    ///
    /// # Errors
    /// A path that cannot be honoured, with the reason.
    pub fn plan(spec: &Spec, id: &str) -> Result<Self> {
        let host = Host::detect()?;
        let given = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.cgroups_path().as_ref())
            .map(|path| path.display().to_string());
        let path = CgroupPath::parse(given.as_deref(), id, &Origin::of(&host)?)?.into_directory();
        let cgroup = Cgroup::new(&host, path.path())?;
        Ok(Self { path, cgroup })
    }

    /// Its path below each hierarchy's mount.
    pub fn path(&self) -> &Path {
        self.path.path()
    }

    /// The systemd unit, if it is one.
    pub fn unit(&self) -> Option<&str> {
        match &self.path {
            CgroupPath::Unit { unit, .. } => Some(unit),
            CgroupPath::Directory { .. } => None,
        }
    }

    /// The cgroup itself.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Makes the directories and writes the limits; answers what was made.
    ///
    /// # Errors
    /// A directory or a limit is refused; nothing is left then.
    pub async fn make(&self, spec: &Spec, _role: &Role) -> Result<Vec<PathBuf>> {
        let resources = resources(spec.linux().as_ref().and_then(|l| l.resources().as_ref()))?;
        let cgroup = self.cgroup.clone();
        blocking(move || {
            let created = cgroup.create()?;
            if let Err(error) = cgroup.apply(&resources) {
                created.remove()?;
                return Err(error.into());
            }
            Ok(created.directories().to_vec())
        })
        .await
    }

    /// Starts programs inside.
    ///
    /// # Errors
    /// The shim's own binary cannot be found.
    pub fn launcher(&self) -> Result<Launcher> {
        let exe = std::env::current_exe().map_err(Error::system("find the shim's own binary"))?;
        Ok(Launcher {
            exe,
            join: self.cgroup.directories(),
            mode: Join::Enter,
        })
    }

    /// Writes other limits.
    ///
    /// # Errors
    /// They contradict each other, or the kernel refuses them.
    pub async fn update(&self, resources: &LinuxResources) -> Result<()> {
        let resources = self::resources(Some(resources))?;
        let cgroup = self.cgroup.clone();
        blocking(move || Ok(cgroup.apply(&resources)?)).await
    }
}

/// Kills what is left in a task's cgroup and removes the directories that were
/// made for it.
///
/// # Errors
/// Somebody does not die, or a directory stays.
pub async fn remove(record: Record, deadline: Instant) -> Result<()> {
    if record.cgroup.as_os_str().is_empty() {
        return Ok(());
    }
    blocking(move || {
        let cgroup = Cgroup::new(&Host::detect()?, &record.cgroup)?;
        if record.id == record.sandbox && cgroup.exists() {
            cgroup.kill(deadline)?;
        }
        Ok(Created::from_directories(record.made).remove()?)
    })
    .await
}

/// Moves the shim itself into a cgroup that exists (`ShimCgroup` of runc's
/// options).
///
/// # Errors
/// It is not there or cannot be entered.
pub fn move_shim(pid: u32, path: &str) -> Result<()> {
    let cgroup = Cgroup::new(&Host::detect()?, Path::new(path))?;
    for directory in cgroup.directories() {
        let file = directory.join("cgroup.procs");
        std::fs::write(&file, pid.to_string()).map_err(Error::file("write", file))?;
    }
    Ok(())
}

fn resources(resources: Option<&LinuxResources>) -> Result<Resources> {
    Ok(match resources {
        Some(resources) => Resources::try_from(resources)?,
        None => Resources::default(),
    })
}
