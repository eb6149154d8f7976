//! What is known of a sandbox's containers while the shim lives: their phase and
//! their end. Held under a lock for moments, never across a command or a call.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use oci_spec::runtime::LinuxCapabilities;
use tokio::sync::watch;

use super::exit::Exit;
use super::urpc::Control;
use crate::children::Reaped;
use crate::error::{Error, Result};
use crate::stdio::Stdio;

/// A table that tasks share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Table>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// None before create and after its end.
    pub(crate) sentry: Option<Sentry>,
    pub(crate) paused: bool,
    /// The signal by which we ended the sentry on behalf of the first container.
    pub(crate) ended_by: Option<i32>,
    pub(crate) containers: HashMap<String, Container>,
    /// By container and pid inside the sandbox.
    execs: HashMap<(String, i32), watch::Sender<Option<Exit>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sentry {
    pub(crate) pid: Pid,
    pub(crate) control: Control,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Runsc of 2022.
    pub(crate) old: bool,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) phase: Phase,
    /// The caller's bundle.
    pub(crate) bundle: PathBuf,
    /// For the start of a container that is not the first.
    pub(crate) stdio: Option<Stdio>,
    pub(crate) capabilities: Option<LinuxCapabilities>,
    pub(crate) mounts_cgroups: bool,
    /// While it lives.
    pub(crate) gofer: Option<Pid>,
    /// Whether runsc must be asked to delete it, for it runs hooks then.
    pub(crate) has_stop_hooks: bool,
    exit: watch::Sender<Option<Exit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Creating,
    Created,
    Starting,
    Running,
    /// The start failed; it cannot be tried again.
    Failed,
}

impl Container {
    pub(crate) fn new(bundle: PathBuf) -> Self {
        Self {
            phase: Phase::Creating,
            bundle,
            stdio: None,
            capabilities: None,
            mounts_cgroups: false,
            gofer: None,
            has_stop_hooks: false,
            exit: watch::Sender::new(None),
        }
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<Exit>> {
        self.exit.subscribe()
    }

    /// It has ended. The streams of one that was never started go with it: who
    /// reads its output waits for the end of that.
    pub(crate) fn end(&mut self, exit: Exit) {
        self.stdio = None;
        publish(&self.exit, exit);
    }

    /// The state as errors name it.
    pub(crate) fn state(&self) -> &'static str {
        match (self.phase, self.exit()) {
            (_, Some(_)) => "stopped",
            (Phase::Creating, None) => "being created",
            (Phase::Created, None) => "created",
            (Phase::Starting, None) => "being started",
            (Phase::Running, None) => "running",
            (Phase::Failed, None) => "failed",
        }
    }
}

impl Table {
    pub(crate) fn container(&mut self, id: &str) -> Result<&mut Container> {
        self.containers.get_mut(id).ok_or_else(|| Error::NotFound {
            object: format!("container {id}"),
        })
    }

    /// The container, if it is in `phase` and has not ended.
    pub(crate) fn container_in(
        &mut self,
        id: &str,
        phase: Phase,
        action: &'static str,
    ) -> Result<&mut Container> {
        let container = self.container(id)?;
        if container.phase == phase && container.exit().is_none() {
            return Ok(container);
        }
        Err(Error::WrongState {
            id: id.to_owned(),
            action,
            state: container.state(),
        })
    }

    /// A paused sentry would take the request and not carry it out.
    pub(crate) fn check_not_paused(&self, id: &str, action: &'static str) -> Result<()> {
        if self.paused {
            return Err(Error::WrongState {
                id: id.to_owned(),
                action,
                state: "paused",
            });
        }
        Ok(())
    }

    pub(crate) fn sentry(&self, sandbox_id: &str) -> Result<Sentry> {
        self.sentry.clone().ok_or_else(|| Error::NotFound {
            object: format!("the sentry of sandbox {sandbox_id}"),
        })
    }

    pub(crate) fn add_exec(&mut self, id: &str, pid: i32) {
        self.execs
            .insert((id.to_owned(), pid), watch::Sender::new(None));
    }

    pub(crate) fn exec(&self, id: &str, pid: i32) -> Result<&watch::Sender<Option<Exit>>> {
        self.execs
            .get(&(id.to_owned(), pid))
            .ok_or_else(|| Error::NotFound {
                object: format!("exec {pid} of container {id}"),
            })
    }

    pub(crate) fn forget_exec(&mut self, id: &str, pid: i32) {
        self.execs.remove(&(id.to_owned(), pid));
    }

    pub(crate) fn end_exec(&self, id: &str, pid: i32, exit: Exit) {
        // Forgotten in the meantime: nobody wants to know.
        if let Ok(exec) = self.exec(id, pid) {
            publish(exec, exit);
        }
    }

    pub(crate) fn forget(&mut self, id: &str) {
        self.containers.remove(id);
        self.execs.retain(|(container, _), _| container != id);
    }

    /// The sentry `pid` was reaped: the first container, `sandbox_id`, has ended
    /// with it, and so have those that did not run yet. Who runs is told by its
    /// own wait.
    pub(crate) fn sentry_ended(&mut self, sandbox_id: &str, pid: Pid, reaped: Reaped) {
        if self.sentry.as_ref().is_none_or(|sentry| sentry.pid != pid) {
            // That of a create that failed and was repeated.
            return;
        }
        self.sentry = None;
        self.paused = false;
        for (id, container) in &mut self.containers {
            if id == sandbox_id {
                container.end(Exit::of_sentry(reaped, self.ended_by));
            } else if container.phase != Phase::Running {
                container.end(Exit::lost(reaped.at));
            }
        }
    }
}

/// Whether a process that waits for its start is ended by `signal`.
pub(crate) fn ends_unstarted(signal: i32) -> bool {
    !matches!(
        Signal::try_from(signal),
        Ok(Signal::SIGCHLD
            | Signal::SIGCONT
            | Signal::SIGURG
            | Signal::SIGWINCH
            | Signal::SIGSTOP
            | Signal::SIGTSTP
            | Signal::SIGTTIN
            | Signal::SIGTTOU)
    ) && signal != 0
}

/// The first end that is told counts.
fn publish(sender: &watch::Sender<Option<Exit>>, exit: Exit) {
    sender.send_if_modified(|slot| {
        let new = slot.is_none();
        slot.get_or_insert(exit);
        new
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::time::SystemTime;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use crate::children::Status;
    use crate::gvisor::urpc::Address;

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn with_the_sentry_end_those_whom_no_wait_tells() {
        let pid = Pid::from_raw(7);
        let control = Control::new("s", Address::Abstract("s".to_owned()));
        let sentry = Sentry {
            pid,
            control,
            uid: 0,
            gid: 0,
            old: false,
        };
        let mut table = Table {
            sentry: Some(sentry),
            ..Table::default()
        };
        for (id, phase) in [
            ("s", Phase::Running),
            ("c", Phase::Created),
            ("r", Phase::Running),
        ] {
            let mut container = Container::new(PathBuf::new());
            container.phase = phase;
            table.containers.insert(id.to_owned(), container);
        }
        let reaped = Reaped {
            status: Status::Exited(3),
            at: AT,
        };
        table.sentry_ended("s", Pid::from_raw(6), reaped);
        assert!(table.sentry.is_some(), "another's end");
        table.sentry_ended("s", pid, reaped);
        let code = |id: &str| table.containers[id].exit().map(|exit| exit.code);
        assert_eq!(
            (code("s"), code("c"), code("r")),
            (Some(3), Some(137), None)
        );
    }

    #[test]
    fn what_ends_before_its_start_lets_go_of_its_streams() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut container = Container::new(PathBuf::new());
        container.stdio = Some(Stdio::Piped {
            stdin: None,
            stdout: Some(writer.into()),
            stderr: None,
        });
        container.end(Exit::signalled(9, AT));
        let reading = fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        reading.expect("so that a writer is an error instead of a wait");
        assert_eq!(reader.read(&mut [0]).expect("no writer is left"), 0);
    }

    #[test]
    fn the_first_end_counts() {
        let mut container = Container::new(PathBuf::new());
        container.end(Exit::signalled(15, AT));
        container.end(Exit::lost(AT));
        assert_eq!(container.exit().unwrap().code, 143);
    }
}
