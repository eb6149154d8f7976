//! Starts created containers, and has the sentry tell their end.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Gvisor;
use super::exit::{Exit, wait_status};
use super::state;
use super::table::Phase;
use crate::cleanup;
use crate::error::{Error, Result};
use crate::stdio::Stdio;

impl Gvisor {
    /// Starts a created container.
    ///
    /// After a failure it counts as ended, and can only be deleted: its network
    /// addresses may be gone with the attempt.
    ///
    /// # Errors
    /// [`Error::WrongState`], or why runsc could not.
    pub async fn start(&self, id: &str) -> Result<()> {
        let (bundle, stdio) = self.begin_start(id)?;
        let dir = bundle.join(cleanup::DIR);
        let result = self
            .command("start", id, None, Vec::new(), &dir, stdio)
            .await;
        self.end_start(id, result)
    }

    /// Starts a created container from the image that [`Self::checkpoint`] wrote.
    ///
    /// # Errors
    /// [`Error::WrongState`], [`Error::Unsupported`], or why runsc could not.
    pub async fn restore(&self, id: &str, image: &Path) -> Result<()> {
        if self.live_sentry()?.old {
            // It wants to create the container itself.
            return Err(Error::Unsupported {
                action: "restore a created container",
            });
        }
        let (bundle, stdio) = self.begin_start(id)?;
        let dir = bundle.join(cleanup::DIR);
        let args = vec![
            "--image-path".into(),
            image.into(),
            "--bundle".into(),
            dir.clone().into(),
            "--detach".into(),
        ];
        let result = self.command("restore", id, None, args, &dir, stdio).await;
        self.end_start(id, result)
    }

    fn begin_start(&self, id: &str) -> Result<(PathBuf, Stdio)> {
        let mut table = self.table.lock();
        table.check_not_paused(id, "start")?;
        if id != self.id() {
            // Earlier it fails, and takes a sandbox of 2022 down.
            table.container_in(self.id(), Phase::Running, "start a container beside")?;
        }
        let container = table.container_in(id, Phase::Created, "start")?;
        container.phase = Phase::Starting;
        Ok((
            container.bundle.clone(),
            container.stdio.take().unwrap_or(Stdio::Null),
        ))
    }

    fn end_start(&self, id: &str, result: Result<()>) -> Result<()> {
        if result.is_ok() {
            self.adopt_gofer(id);
        }
        let mut table = self.table.lock();
        let container = table.container(id)?;
        if result.is_err() {
            container.phase = Phase::Failed;
            container.end(Exit::start_failed(SystemTime::now()));
            return result;
        }
        container.phase = Phase::Running;
        if id != self.id() {
            let Ok(sentry) = table.sentry(self.id()) else {
                // The sandbox ended meanwhile, and nobody else tells it.
                table.container(id)?.end(Exit::lost(SystemTime::now()));
                return Ok(());
            };
            let (shared, id) = (self.table.clone(), id.to_owned());
            tokio::spawn(async move {
                let exit = wait_status(&sentry, "containerManager.Wait", &id).await;
                if let Some(container) = shared.lock().containers.get_mut(&id) {
                    container.end(exit);
                }
            });
        }
        Ok(())
    }

    /// Learns of the gofer that runsc has left to us, and forgets it at its end:
    /// its time counts for the container. Without it that is only less exact.
    fn adopt_gofer(&self, id: &str) {
        let root = self.runsc.config.sandbox_root(self.id());
        let gofer = match state::load(&root, self.id(), id) {
            Ok(state) => state.and_then(|state| state.gofer),
            Err(error) => return log::debug!("the gofer of {id}: {error}"),
        };
        let Some(pid) = gofer else { return };
        if let Ok(container) = self.table.lock().container(id) {
            container.gofer = gofer;
        }
        let (children, table) = (self.runsc.children.clone(), self.table.clone());
        let id = id.to_owned();
        tokio::spawn(async move {
            children.wait(pid).await;
            if let Ok(container) = table.lock().container(&id)
                && container.gofer == Some(pid)
            {
                container.gofer = None;
            }
        });
    }
}
