//! Kill and Delete.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use protos::events::TaskDelete;
use sandbox::Target;

use super::Pod;
use crate::container::Container;
use crate::error::{Error, Result, chain};
use crate::events::Event;
use crate::exec::Exec;
use crate::lock::lock;
use crate::process::{Exit, State};
use crate::{create, metrics, wire};

impl Pod {
    /// Kill: a signal for one process, or all of the container.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the process has ended, as with runc.
    pub async fn kill(
        self: &Arc<Self>,
        id: &str,
        exec_id: &str,
        signal: u32,
        all: bool,
    ) -> Result<()> {
        let signal = i32::try_from(signal)
            .ok()
            .filter(|signal| (0..=64).contains(signal));
        let Some(signal) = signal else {
            return Err(Error::InvalidArgument(
                "the signal is not one of 0 to 64".into(),
            ));
        };
        let container = self.container(id)?;
        let exec = if exec_id.is_empty() {
            None
        } else {
            Some(container.exec(exec_id)?)
        };
        let key = format!("{id}/{exec_id}/{signal}/{all}");
        let pod = Arc::clone(self);
        self.killing
            .join(&key, pod.kill_now(container, exec, signal, all))
            .await
    }

    async fn kill_now(
        self: Arc<Self>,
        container: Arc<Container>,
        exec: Option<Arc<Exec>>,
        signal: i32,
        all: bool,
    ) -> Result<()> {
        if let Some(exec) = exec {
            exec.life.settled().await;
            let target = exec.target()?;
            return Ok(container
                .sandbox
                .signal(&container.id, target, signal)
                .await?);
        }
        if container.life.settled().await.has_ended() {
            return Err(Error::NotFound(format!(
                "task {} has ended already",
                container.id
            )));
        }
        if [Signal::SIGKILL as i32, Signal::SIGTERM as i32].contains(&signal)
            && let Err(error) = metrics::refresh(&container).await
        {
            // The last that may be had of it.
            log::warn!("figures of {} before its end: {error}", container.id);
        }
        let target = if all { Target::All } else { Target::Init };
        Ok(container
            .sandbox
            .signal(&container.id, target, signal)
            .await?)
    }

    /// Delete: of an exec, or of the container with all that is left of it.
    ///
    /// # Errors
    /// It is not there, or runs.
    pub async fn delete(self: &Arc<Self>, id: &str, exec_id: &str) -> Result<(u32, Exit)> {
        // Who deletes what is still being created wants it gone.
        self.creating.settled(id).await;
        let container = self.container(id)?;
        let pod = Arc::clone(self);
        if exec_id.is_empty() {
            return self
                .deleting
                .join(id, pod.delete_container(container))
                .await;
        }
        let exec = container.exec(exec_id)?;
        let key = format!("{id}/{exec_id}");
        self.deleting.join(&key, delete_exec(container, exec)).await
    }

    async fn delete_container(self: Arc<Self>, container: Arc<Container>) -> Result<(u32, Exit)> {
        match container.life.settled().await {
            State::Stopped(_) => {}
            State::Created => {
                let kill = Signal::SIGKILL as i32;
                match container
                    .sandbox
                    .signal(&container.id, Target::Init, kill)
                    .await
                {
                    // It has ended by itself meanwhile.
                    Err(sandbox::Error::NotFound { .. }) => {}
                    other => other?,
                }
            }
            State::Starting | State::Running | State::Paused => {
                return Err(Error::FailedPrecondition(format!(
                    "task {} runs and cannot be deleted: kill it first",
                    container.id
                )));
            }
        }
        let exit = container.life.wait().await;
        self.take_out(&container).await?;
        let pid = wire::pid(container.pid);
        self.events.publish(Event::Delete(TaskDelete {
            container_id: container.id.clone(),
            pid,
            exit_status: exit.code,
            exited_at: wire::exited_at(Some(exit)),
            ..TaskDelete::default()
        }));
        Ok((pid, exit))
    }

    /// Forgets the task `id` if `delete` has removed it: containerd calls that for a
    /// shim that did not answer in time, and has told of the end itself. A shim that
    /// was only slow would keep the task, and itself, for ever.
    pub(super) async fn forget_removed(self: &Arc<Self>, id: &str) {
        let Ok(container) = self.container(id) else {
            return;
        };
        if !container.is_removed() {
            return;
        }
        let ended = tokio::time::timeout(REMOVED_PATIENCE, container.life.wait()).await;
        let Ok(exit) = ended else { return };
        log::info!("task {id} was removed by another: it is forgotten");
        let pod = Arc::clone(self);
        let forget = async move {
            // A Delete may have been faster, and the id be another's by now.
            let present = pod.container(&container.id);
            if present.is_ok_and(|present| Arc::ptr_eq(&present, &container)) {
                pod.take_out(&container).await?;
            }
            Ok((wire::pid(container.pid), exit))
        };
        if let Err(error) = self.deleting.join(id, forget).await {
            log::warn!("what is left of {id}: {}", chain(&error));
        }
    }

    /// Takes an ended container apart and out of the pod.
    async fn take_out(&self, container: &Container) -> Result<()> {
        create::dismantle(container).await?;
        self.containers().remove(&container.id);
        self.touch();
        Ok(())
    }
}

/// How long the end of a task whose processes `delete` has killed may take to be
/// known here.
const REMOVED_PATIENCE: Duration = Duration::from_secs(5);

async fn delete_exec(container: Arc<Container>, exec: Arc<Exec>) -> Result<(u32, Exit)> {
    let exit = match exec.life.settled().await {
        State::Stopped(exit) => exit,
        // Never started: nothing has run.
        State::Created => Exit {
            code: 0,
            at: std::time::SystemTime::now(),
        },
        State::Starting | State::Running | State::Paused => {
            return Err(Error::FailedPrecondition(format!(
                "exec {} runs and cannot be deleted: kill it first",
                exec.id
            )));
        }
    };
    if let Some(streams) = exec.streams() {
        streams.close(create::DRAIN_PATIENCE).await;
    }
    if let Some(pid) = exec.inner_pid() {
        container.sandbox.forget_exec(&container.id, pid);
    }
    lock(&container.execs).remove(&exec.id);
    Ok((wire::pid(container.pid), exit))
}
