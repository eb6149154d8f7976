//! Where a container's processes live: its cgroup, and how they come into it.
//!
//! All processes of a pod live in the sandbox container's own cgroup. The other
//! containers' cgroups are made too, with their limits written, so that node
//! agents find them; they stay empty.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cgroups::systemd::Properties;
use cgroups::{Cgroup, CgroupPath, Created, Host, Mode, Origin, Resources};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use sandbox::launch::{Join, Launcher};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::bundle::Role;
use crate::create::blocking;
use crate::error::{Error, Result, chain};
use crate::lock::lock;
use crate::record::Record;
use crate::systemd::Systemd;

/// A container's place in the host's hierarchies.
#[derive(Debug, Clone)]
pub struct Placement {
    host: Arc<Host>,
    path: CgroupPath,
    cgroup: Cgroup,
    /// What the spec's annotations want of the unit.
    annotated: Properties,
    /// Why the scope could not be made, for the error of the call: the launcher
    /// that waits for it only sees that it was killed.
    refusal: Arc<Mutex<Option<Error>>>,
}

impl Placement {
    /// Works out the place from `linux.cgroupsPath`; touches nothing.
    ///
    /// Only a sandbox container's place can be a systemd unit, and only where
    /// systemd runs: a unit cannot be empty, so the other containers' are plain
    /// directories of the same name.
    ///
    /// # Errors
    /// A path that cannot be honoured, with the reason.
    pub fn plan(spec: &Spec, id: &str, role: &Role) -> Result<Self> {
        let host = Host::detect()?;
        let given = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.cgroups_path().as_ref())
            .map(|path| path.display().to_string());
        let parsed = CgroupPath::parse(given.as_deref(), id, &Origin::of(&host)?)?;
        let path = match role {
            Role::Root => parsed,
            Role::Member { .. } => parsed.into_directory(),
        };
        if let CgroupPath::Unit { unit, .. } = &path
            && unit.ends_with(".slice")
        {
            return Err(Error::InvalidArgument(format!(
                "cgroupsPath {:?} names the slice {unit}, and systemd keeps no process in a slice: give a name that does not end in .slice",
                given.unwrap_or_default()
            )));
        }
        let cgroup = Cgroup::new(&host, path.path())?;
        let annotated =
            cgroups::systemd::annotated_properties(spec.annotations().iter().flatten())?;
        Ok(Self {
            host: Arc::new(host),
            path,
            cgroup,
            annotated,
            refusal: Arc::default(),
        })
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

    /// Checks that nobody is in the cgroup, or below it: all who are in it later
    /// count as the sandbox's, and are killed with it. runc refuses it too.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] names one of those who are.
    pub async fn must_be_empty(&self) -> Result<()> {
        let cgroup = self.cgroup.clone();
        let pids = blocking(move || Ok(cgroup.pids()?)).await?;
        match pids.first() {
            None => Ok(()),
            Some(pid) => Err(Error::FailedPrecondition(format!(
                "cgroup {} is not empty: it holds process {pid}; a sandbox needs a cgroup of its own",
                self.path().display()
            ))),
        }
    }

    /// Makes the directories and writes the limits; what is made is on `record`. A
    /// unit is made later, around the first process: [`Placement::launcher`].
    ///
    /// # Errors
    /// A directory or a limit is refused; nothing is left then.
    pub async fn make(
        &self,
        resources: Resources,
        record: &Mutex<Record>,
        state_directory: &Path,
    ) -> Result<()> {
        match self.unit() {
            None => make(&self.cgroup, resources, record, state_directory).await,
            Some(_) => Ok(()),
        }
    }

    /// Starts programs inside. `resources` are those that a unit is made with;
    /// `record`, kept in `state_directory`, hears of the directories that are
    /// made beside it.
    ///
    /// # Errors
    /// The shim's own binary cannot be found.
    pub fn launcher(
        &self,
        resources: Resources,
        record: Arc<Mutex<Record>>,
        state_directory: &Path,
        id: &str,
    ) -> Result<Launcher> {
        let exe = std::env::current_exe().map_err(Error::system("find the shim's own binary"))?;
        let join = self.cgroup.directories();
        let CgroupPath::Unit { slice, unit, .. } = &self.path else {
            return Ok(Launcher {
                exe,
                join,
                mode: Join::Enter,
            });
        };
        let (sender, receiver) = unbounded_channel();
        let scope = Scope {
            placement: self.clone(),
            slice: slice.clone(),
            unit: unit.clone(),
            description: format!("Rampart sandbox {id}"),
            resources,
            record,
            state_directory: state_directory.to_owned(),
        };
        tokio::spawn(scope.admit(receiver));
        Ok(Launcher {
            exe,
            join,
            mode: Join::AwaitMembership(sender),
        })
    }

    /// Why no process could be brought in, if that is so.
    pub fn take_refusal(&self) -> Option<Error> {
        lock(&self.refusal).take()
    }

    /// Writes other limits: in the files, and in the unit's properties, from
    /// which systemd would write the files again.
    ///
    /// # Errors
    /// The kernel or systemd refuses them.
    pub async fn update(&self, resources: Resources) -> Result<()> {
        let resources = match self.unit() {
            None => resources,
            Some(unit) => {
                let systemd = Systemd::connect().await?;
                let version = systemd.version().await?;
                let properties = resources.properties(version, self.host.mode(), false)?;
                if !properties.is_empty() {
                    systemd.set(unit, &properties).await?;
                }
                resources.rounded_for_systemd()
            }
        };
        let cgroup = self.cgroup.clone();
        blocking(move || Ok(cgroup.apply(&resources)?)).await
    }
}

/// A scope that systemd makes around the first process that is launched.
struct Scope {
    placement: Placement,
    slice: String,
    unit: String,
    description: String,
    resources: Resources,
    record: Arc<Mutex<Record>>,
    state_directory: PathBuf,
}

impl Scope {
    /// Brings in each launched process. It waits for that, so it is stopped
    /// until everything is in place, and killed if that cannot be done.
    async fn admit(self, mut launched: UnboundedReceiver<Pid>) {
        let mut made = false;
        while let Some(pid) = launched.recv().await {
            // It may have been killed meanwhile, here and below.
            let _ = kill(pid, Signal::SIGSTOP);
            let admitted = match made {
                false => self.make(pid).await,
                // A scope ends with its last process, which may be that of a probe.
                true => match self.join(pid).await {
                    Ok(()) => Ok(()),
                    Err(refused) => self.make(pid).await.map_err(|_| refused),
                },
            };
            match admitted {
                Ok(()) => {
                    made = true;
                    let _ = kill(pid, Signal::SIGCONT);
                }
                Err(error) => {
                    log::error!("process {pid}: {}", chain(&error));
                    let refusal = &self.placement.refusal;
                    *lock(refusal) = Some(error);
                    let _ = kill(pid, Signal::SIGKILL);
                }
            }
        }
    }

    async fn make(&self, pid: Pid) -> Result<()> {
        let mode = self.placement.host.mode();
        let systemd = Systemd::connect().await?;
        let version = systemd.version().await?;
        let mut properties =
            cgroups::systemd::unit_properties(&self.unit, &self.slice, &self.description, mode);
        properties.extend(self.resources.properties(version, mode, true)?);
        for (name, value) in &self.placement.annotated {
            properties.retain(|(other, _)| other != name);
            properties.push((name.clone(), value.clone()));
        }
        let place = systemd
            .start(&self.unit, &self.slice, &properties, pid)
            .await?;
        if place != self.placement.path() {
            systemd.stop(&self.unit).await?;
            return Err(Error::FailedPrecondition(format!(
                "systemd put unit {} at {}, not at {}: choose a slice whose name is not that of a cgroup controller",
                self.unit,
                place.display(),
                self.placement.path().display()
            )));
        }
        let cgroup = self.placement.cgroup.clone();
        let resources = self.resources.rounded_for_systemd();
        match mode {
            // systemd has made everything; a file without a property is ours.
            Mode::Unified => blocking(move || Ok(cgroup.apply(&resources)?)).await?,
            // The hierarchies that systemd does not manage are ours too.
            Mode::Legacy | Mode::Hybrid => {
                make(&cgroup, resources, &self.record, &self.state_directory).await?;
            }
        }
        self.join(pid).await
    }

    /// Moves a process into the scope, in the hierarchies where it is not yet.
    async fn join(&self, pid: Pid) -> Result<()> {
        let directories = self.placement.cgroup.directories();
        blocking(move || {
            for directory in directories {
                let procs = directory.join("cgroup.procs");
                std::fs::write(&procs, pid.to_string()).map_err(Error::file("write", procs))?;
            }
            Ok(())
        })
        .await
    }
}

/// Makes a cgroup with its limits, or nothing. What is about to be made is on
/// record before: a shim that is killed half-way cannot tell any more.
async fn make(
    cgroup: &Cgroup,
    resources: Resources,
    record: &Mutex<Record>,
    state_directory: &Path,
) -> Result<()> {
    let before = lock(record).made.clone();
    let note = |made: &[PathBuf]| {
        let mut record = lock(record);
        record.made = [&before, made].concat();
        record.write(state_directory)
    };
    note(&cgroup.missing())?;
    let cgroup = cgroup.clone();
    let made = blocking(move || {
        let created = cgroup.create()?;
        if let Err(error) = cgroup.apply(&resources) {
            created.remove()?;
            return Err(error.into());
        }
        cgroup.count_block_io();
        Ok(created)
    });
    match made.await {
        Ok(created) => note(created.directories()),
        Err(error) => {
            // The first error tells more than one of the record's.
            let _ = note(&[]);
            Err(error)
        }
    }
}

/// Kills what is left in a task's cgroup and removes the directories that were
/// made for it, and its unit.
///
/// # Errors
/// Somebody does not die, or a directory or the unit stays: the first of these;
/// the others are tried all the same.
pub async fn remove(record: Record, deadline: Instant) -> Result<()> {
    if record.cgroup.as_os_str().is_empty() {
        return Ok(());
    }
    let Record {
        id,
        sandbox,
        unit,
        entered,
        ..
    } = record;
    let (path, made) = (record.cgroup, record.made);
    let cgroup = blocking(move || Ok(Cgroup::new(&Host::detect()?, &path)?)).await?;
    let killed = if id == sandbox && entered {
        let cgroup = cgroup.clone();
        blocking(move || match cgroup.exists() {
            true => Ok(cgroup.kill(deadline)?),
            false => Ok(()),
        })
        .await
    } else {
        Ok(())
    };
    let stopped = match &unit {
        Some(unit) if entered => stop(unit).await,
        Some(_) | None => Ok(()),
    };
    let removed = blocking(move || Ok(Created::from_directories(made).remove()?)).await;
    // Where all is gone, it does not matter who could not be asked to see to it:
    // an empty scope ends by itself.
    let failed = killed.and(stopped);
    let ended = match failed {
        Err(error) if unit.is_some() && gone(&cgroup, deadline).await => {
            log::warn!("{id} is gone all the same: {}", chain(&error));
            Ok(())
        }
        other => other,
    };
    ended.and(removed)
}

async fn stop(unit: &str) -> Result<()> {
    Systemd::connect().await?.stop(unit).await
}

/// Waits until a cgroup is nowhere any more.
async fn gone(cgroup: &Cgroup, deadline: Instant) -> bool {
    while cgroup.exists() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Moves the shim itself into a cgroup that exists (`ShimCgroup` of runc's
/// options), in the hierarchies that have it: on a hybrid host, who makes it
/// may do so on the v1 side alone.
///
/// # Errors
/// It is in none of them or cannot be entered.
pub fn move_shim(pid: u32, path: &str) -> Result<()> {
    let cgroup = Cgroup::new(&Host::detect()?, Path::new(path))?;
    let (mut entered, mut absent) = (false, None);
    for directory in cgroup.directories() {
        let file = directory.join("cgroup.procs");
        match std::fs::write(&file, pid.to_string()) {
            Ok(()) => entered = true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                absent = Some(Error::file("write", file)(error));
            }
            Err(error) => return Err(Error::file("write", file)(error)),
        }
    }
    match absent {
        Some(error) if !entered => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Real cgroups: needs root, as everything here does.
    #[tokio::test(flavor = "current_thread")]
    async fn a_cgroup_with_strangers_is_refused_and_they_live() {
        let path = format!("/rampart-strangers-{}", std::process::id());
        let spec: Spec = serde_json::from_value(serde_json::json!({
            "ociVersion": "1.0.2", "linux": {"cgroupsPath": path},
        }))
        .unwrap();
        let placement = Placement::plan(&spec, "a", &Role::Root).unwrap();
        placement.must_be_empty().await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let record = Mutex::new(Record {
            id: "a".into(),
            sandbox: "a".into(),
            bundle: PathBuf::new(),
            rootfs: None,
            cgroup: path.into(),
            unit: None,
            entered: false,
            made: Vec::new(),
            pid: None,
            exit: None,
        });
        let made = placement.make(Resources::default(), &record, state.path());
        made.await.unwrap();
        let mut stranger = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        for directory in placement.cgroup().directories() {
            std::fs::write(directory.join("cgroup.procs"), stranger.id().to_string()).unwrap();
        }
        let error = placement.must_be_empty().await.unwrap_err().to_string();
        assert!(error.contains(&stranger.id().to_string()), "{error}");
        let record = lock(&record).clone();
        assert_eq!(record.made, placement.cgroup().directories());
        let soon = Instant::now() + Duration::from_secs(10);
        let as_if_not_made = Record {
            made: Vec::new(),
            ..record.clone()
        };
        remove(as_if_not_made, soon).await.unwrap();
        assert_eq!(stranger.try_wait().unwrap(), None, "it is none of ours");
        let entered = Record {
            entered: true,
            ..record
        };
        remove(entered, soon).await.unwrap();
        assert!(
            stranger.wait().unwrap().code().is_none(),
            "now it counts as ours"
        );
        assert!(!placement.cgroup().exists());
    }
}
