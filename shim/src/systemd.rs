//! systemd over D-Bus: a pod's scope is made, changed and ended.
//!
//! A job that is queued is not done: without waiting for its result a process
//! stays where it was, and nobody notices. So every job is awaited, and where
//! the unit really is, is read back.

use std::path::PathBuf;
use std::time::Duration;

use cgroups::systemd::{Properties, Property};
use futures::StreamExt as _;
use nix::unistd::Pid;
use zbus::OwnedObjectPath;
use zbus::Variant;

use crate::error::{Error, Result};

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        auxiliary: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;
    fn set_unit_properties(
        &self,
        name: &str,
        runtime: bool,
        properties: &[(&str, Variant<'_>)],
    ) -> zbus::Result<()>;
    fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;
    #[zbus(property)]
    fn version(&self) -> zbus::Result<String>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Scope",
    default_service = "org.freedesktop.systemd1"
)]
trait Scope {
    #[zbus(property)]
    fn control_group(&self) -> zbus::Result<String>;
}

/// A connection to systemd, held for one piece of work.
#[derive(Debug)]
pub struct Systemd {
    manager: ManagerProxy<'static>,
    connection: zbus::Connection,
}

impl Systemd {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// There is no bus, or systemd is not on it.
    pub async fn connect() -> Result<Self> {
        let connected = async {
            let connection = zbus::Connection::system().await?;
            let manager = ManagerProxy::new(&connection).await?;
            manager.subscribe().await?;
            zbus::Result::Ok(Self {
                manager,
                connection,
            })
        };
        bounded("connect to systemd", connected).await
    }

    /// systemd's version, which decides what properties it knows.
    ///
    /// # Errors
    /// It does not say.
    pub async fn version(&self) -> Result<u32> {
        let text = bounded("ask systemd for its version", self.manager.version()).await?;
        Ok(cgroups::systemd::version(&text).unwrap_or_default())
    }

    /// Makes the transient unit `name` in `slice` around `pid` and answers where
    /// it is. Slices that are not there go again with the last unit in them.
    ///
    /// # Errors
    /// The job does not end well, or a unit of this name lives on.
    pub async fn start(
        &self,
        name: &str,
        slice: &str,
        properties: &Properties,
        pid: Pid,
    ) -> Result<PathBuf> {
        let pids = vec![pid.as_raw().unsigned_abs()];
        let mut all = values(properties);
        all.push(("PIDs", Variant::from(pids)));
        let what = format!("start unit {name}");
        let missing = self.missing_slices(slice).await?;
        let slices: Vec<_> = missing
            .iter()
            .map(|slice| {
                let properties = vec![("StopWhenUnneeded", Variant::from(true))];
                (slice.as_str(), properties)
            })
            .collect();
        let start = self
            .manager
            .start_transient_unit(name, "replace", &all, &slices);
        match self.job(&what, start).await {
            Err(Error::Systemd { source, .. }) if named(&source, "UnitExists") => {
                // A unit that has failed keeps its name until it is reset; one
                // that lives must not be joined: it is somebody else's. It may
                // also be a slice that has come meanwhile, or has a file.
                let _ = self.manager.reset_failed_unit(name).await;
                let start = self
                    .manager
                    .start_transient_unit(name, "replace", &all, &[]);
                self.job(&what, start).await?;
            }
            other => other?,
        }
        self.control_group(name).await
    }

    /// The slices from the root to `slice` that systemd does not have.
    async fn missing_slices(&self, slice: &str) -> Result<Vec<String>> {
        let stem = slice.strip_suffix(".slice").unwrap_or_default();
        let ends = stem.match_indices('-').map(|(at, _)| at);
        let mut missing = Vec::new();
        for end in ends.chain([stem.len()]).filter(|end| *end > 0) {
            let name = format!("{}.slice", &stem[..end]);
            let what = format!("look for slice {name}");
            match bounded(&what, self.manager.get_unit(&name)).await {
                Err(Error::Systemd { source, .. }) if named(&source, "NoSuchUnit") => {
                    missing.push(name);
                }
                other => drop(other?),
            }
        }
        Ok(missing)
    }

    /// Gives a unit other limits, until it ends.
    ///
    /// # Errors
    /// systemd refuses them.
    pub async fn set(&self, name: &str, properties: &Properties) -> Result<()> {
        let all = values(properties);
        let set = self.manager.set_unit_properties(name, true, &all);
        bounded(&format!("set properties of unit {name}"), set).await
    }

    /// Ends a unit; one that is gone is fine. A failed one is forgotten.
    ///
    /// # Errors
    /// The job does not end.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let what = format!("stop unit {name}");
        match self
            .job(&what, self.manager.stop_unit(name, "replace"))
            .await
        {
            Err(Error::Systemd { source, .. }) if named(&source, "NoSuchUnit") => {}
            other => other?,
        }
        // Most units are gone with their job; only a failed one is left.
        let _ = self.manager.reset_failed_unit(name).await;
        Ok(())
    }

    async fn control_group(&self, name: &str) -> Result<PathBuf> {
        let asked = async {
            let path = self.manager.get_unit(name).await?;
            let scope = ScopeProxy::builder(&self.connection)
                .path(path)
                .build()
                .await?;
            scope.control_group().await
        };
        bounded(&format!("ask where unit {name} is"), asked)
            .await
            .map(PathBuf::from)
    }

    /// Queues a job and waits for its result.
    async fn job(
        &self,
        what: &str,
        queue: impl Future<Output = zbus::Result<OwnedObjectPath>>,
    ) -> Result<()> {
        // Listening begins before the job can end.
        let mut removed = bounded(what, self.manager.receive_job_removed()).await?;
        let job = bounded(what, queue).await?;
        let result = async {
            while let Some(signal) = removed.next().await {
                let arguments = signal.args()?;
                if arguments.job == job {
                    return Ok(arguments.result);
                }
            }
            Err(zbus::Error::InvalidReply)
        };
        let result = bounded(what, result).await?;
        // `skipped`: it was in that state already.
        if matches!(result.as_str(), "done" | "skipped") {
            return Ok(());
        }
        Err(Error::FailedPrecondition(format!(
            "{what}: systemd says that the job is {result}"
        )))
    }
}

/// How long systemd may take for one request (runc gives a job 30 s).
const PATIENCE: Duration = Duration::from_secs(30);

async fn bounded<T>(what: &str, work: impl Future<Output = zbus::Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| {
            Error::DeadlineExceeded(format!(
                "{what}: systemd did not answer within {PATIENCE:?}"
            ))
        })?
        .map_err(|source| Error::Systemd {
            action: what.to_owned(),
            source,
        })
}

/// Whether systemd refused with its error of this name.
fn named(error: &zbus::Error, name: &str) -> bool {
    let zbus::Error::MethodError(full, _, _) = error else {
        return false;
    };
    full.as_str().strip_prefix("org.freedesktop.systemd1.") == Some(name)
}

fn values(properties: &Properties) -> Vec<(&str, Variant<'_>)> {
    let value = |property: &Property| match property {
        Property::Bool(value) => Variant::from(*value),
        Property::I32(value) => Variant::from(*value),
        Property::I64(value) => Variant::from(*value),
        Property::U32(value) => Variant::from(*value),
        Property::U64(value) => Variant::from(*value),
        Property::Str(value) => Variant::from(value.clone()),
        Property::Strings(value) => Variant::from(value.clone()),
        Property::Bytes(value) => Variant::from(value.clone()),
    };
    properties
        .iter()
        .map(|(name, property)| (name.as_str(), value(property)))
        .collect()
}
