//! Sends signals to the processes of a container, and lists them.

use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::exit::Exit;
use super::table::{Phase, Table, ends_unstarted};
use super::{Gvisor, Target, gone, means_gone};
use crate::error::{Error, Result};

/// How long a sentry that takes no more calls may need to be reaped.
const ENDING: Duration = Duration::from_millis(500);

impl Gvisor {
    /// Sends a signal. SIGKILL also resumes a paused sandbox, as it could not die,
    /// and for the first container reaches it if the sentry stands still, cannot be asked
    /// or does not answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the target has ended.
    pub async fn signal(&self, id: &str, target: Target, signal: i32) -> Result<()> {
        let (sentry, paused) = {
            let mut table = self.table.lock();
            let container = table.container(id)?;
            let gone = || Error::NotFound {
                object: target.name(id),
            };
            // What the first process leaves behind can still be killed: it lives
            // on where containers share a PID namespace.
            let is_of_the_rest =
                signal == Signal::SIGKILL as i32 && matches!(target, Target::All | Target::Exec(_));
            if container.exit().is_some() && !is_of_the_rest {
                return Err(gone());
            }
            match container.phase {
                Phase::Running => {}
                Phase::Created => return self.signal_unstarted(&mut table, id, target, signal),
                Phase::Creating | Phase::Starting | Phase::Failed => {
                    let state = container.state();
                    return Err(Error::WrongState {
                        id: id.to_owned(),
                        action: "signal",
                        state,
                    });
                }
            }
            if let Target::Exec(pid) = target
                && table
                    .exec(id, pid)
                    .is_ok_and(|exec| exec.borrow().is_some())
            {
                return Err(gone());
            }
            (table.sentry(self.id()).map_err(|_| gone())?, table.paused)
        };

        let (pid, mode) = match target {
            Target::Init => (0, 0),
            Target::Exec(pid) => (pid, 0),
            Target::All => (0, 1),
            Target::Foreground(pid) => (pid, 2),
        };
        let arg = SignalArgs {
            cid: id,
            signo: signal,
            pid,
            mode,
        };
        let kills = signal == Signal::SIGKILL as i32;
        let ends_sandbox = kills && id == self.id() && matches!(target, Target::Init | Target::All);
        // It would only be asked in vain, for as long as a call may take.
        if ends_sandbox && stands_still(sentry.pid) {
            self.kill_sentry(signal);
            return Ok(());
        }
        let sent = self.tell(&sentry, "containerManager.Signal", &arg).await;
        match sent {
            Ok(()) if kills && paused => self.resume().await,
            Err(Error::Refused { cause, .. }) if means_gone(&cause) => Err(Error::NotFound {
                object: target.name(id),
            }),
            // Or its socket alone is, and nobody can reach it any more.
            Err(Error::SandboxGone { .. }) if ends_sandbox && !self.ends_soon().await => {
                self.kill_sentry(signal);
                Ok(())
            }
            Err(Error::SandboxGone { .. }) => Err(Error::NotFound {
                object: target.name(id),
            }),
            Err(Error::Unresponsive { .. } | Error::Io { .. }) if ends_sandbox => {
                self.kill_sentry(signal);
                Ok(())
            }
            sent => sent,
        }
    }

    /// Whether the sentry is reaped within the time that an ending one needs.
    async fn ends_soon(&self) -> bool {
        timeout(ENDING, self.wait(self.id())).await.is_ok()
    }

    /// A container that was never started has no process: it ends by our word.
    fn signal_unstarted(
        &self,
        table: &mut Table,
        id: &str,
        target: Target,
        signal: i32,
    ) -> Result<()> {
        if matches!(target, Target::Exec(_) | Target::Foreground(_)) {
            return Err(Error::NotFound {
                object: target.name(id),
            });
        }
        if !ends_unstarted(signal) {
            return Ok(());
        }
        if id == self.id() {
            let sentry = table.sentry(self.id())?;
            table.ended_by = Some(signal);
            // Not reaped yet, or the table would not have it.
            let _ = kill(sentry.pid, Signal::SIGKILL);
        } else {
            table
                .container(id)?
                .end(Exit::signalled(signal, SystemTime::now()));
        }
        Ok(())
    }

    /// The processes of a container, as pids inside the sandbox; none before its start.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the container or its sandbox has ended.
    pub async fn processes(&self, id: &str) -> Result<Vec<i32>> {
        #[derive(Deserialize)]
        struct Listed {
            pid: i32,
        }
        let sentry = self.sentry_of_running(id)?;
        if self.table.lock().container(id)?.phase != Phase::Running {
            return Ok(Vec::new());
        }
        let processes: Option<Vec<Listed>> = self
            .ask(&sentry, "containerManager.Processes", &id)
            .await
            .map_err(gone(id))?;
        Ok(processes
            .unwrap_or_default()
            .into_iter()
            .map(|process| process.pid)
            .collect())
    }
}

/// Whether a process was stopped by a signal or a debugger.
fn stands_still(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which stands in parentheses and may hold anything.
    matches!(stat.rsplit_once(") "), Some((_, rest)) if rest.starts_with(['T', 't']))
}

impl Target {
    fn name(self, id: &str) -> String {
        match self {
            Self::Init | Self::All => format!("container {id}"),
            Self::Exec(pid) | Self::Foreground(pid) => format!("process {pid} of container {id}"),
        }
    }
}

#[derive(Serialize)]
struct SignalArgs<'a> {
    #[serde(rename = "CID")]
    cid: &'a str,
    #[serde(rename = "Signo")]
    signo: i32,
    #[serde(rename = "PID")]
    pid: i32,
    #[serde(rename = "Mode")]
    mode: u8,
}
