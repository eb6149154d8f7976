//! An exec: a further process in a container.

use std::sync::{Arc, Mutex};

use oci_spec::runtime::Process;
use sandbox::Target;

use crate::container::Container;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::process::{Life, State};
use crate::program::first_argument;
use crate::stdio::{Ends, Owner, Paths, Streams};

/// An exec of a container.
#[derive(Debug)]
pub struct Exec {
    /// Its id.
    pub id: String,
    /// Where its streams go.
    pub paths: Paths,
    /// The shim's side of them, once it is started.
    streams: Mutex<Option<Arc<Streams>>>,
    /// Where it is in its life.
    pub life: Life,
    process: Process,
    /// Pid inside the sandbox, once it is started.
    inner_pid: Mutex<Option<i32>>,
    /// Window size asked for before there was a terminal.
    size: Mutex<Option<(u16, u16)>>,
}

impl Exec {
    /// Prepares an exec; nothing runs yet.
    ///
    /// # Errors
    /// A process that no sandbox can run.
    pub fn new(container: &str, id: &str, process: Process, paths: Paths) -> Result<Self> {
        first_argument(&process).map_err(|fault| {
            Error::InvalidArgument(format!(
                "exec {id} of task {container} has no program: args {fault}"
            ))
        })?;
        Ok(Self {
            id: id.to_owned(),
            paths,
            streams: Mutex::new(None),
            life: Life::new(format!("exec {id} of task {container}")),
            process,
            inner_pid: Mutex::new(None),
            size: Mutex::new(None),
        })
    }

    /// Runs it. Its streams are opened only now, so that an exec that is never
    /// started holds nothing.
    ///
    /// # Errors
    /// The sandbox's refusal, such as a program that is not there.
    pub async fn start(&self, container: &Container, owner: &Owner) -> Result<()> {
        let (streams, ends) = Streams::open(&self.paths, owner).await?;
        let size = *lock(&self.size);
        let stdio = into_stdio(ends, size);
        *lock(&self.streams) = Some(Arc::clone(&streams));
        let started = container
            .sandbox
            .exec(&container.id, &self.process, stdio)
            .await;
        let exec = match started {
            Ok(exec) => exec,
            Err(error) => {
                streams.close(std::time::Duration::ZERO).await;
                return Err(error.into());
            }
        };
        *lock(&self.inner_pid) = Some(exec.pid);
        if let Some(master) = exec.console {
            let signals = container.foreground_signals(exec.pid);
            streams.attach(master, Some(signals))?;
        }
        Ok(())
    }

    /// Whom a signal for this exec is for.
    ///
    /// # Errors
    /// It does not run.
    pub fn target(&self) -> Result<Target> {
        match (self.life.state(), *lock(&self.inner_pid)) {
            (State::Running | State::Paused, Some(pid)) => Ok(Target::Exec(pid)),
            (State::Stopped(_), _) => Err(Error::NotFound(format!(
                "exec {} has ended already",
                self.id
            ))),
            _ => Err(Error::FailedPrecondition(format!(
                "exec {} does not run yet",
                self.id
            ))),
        }
    }

    /// Pid inside the sandbox, if it was started.
    pub fn inner_pid(&self) -> Option<i32> {
        *lock(&self.inner_pid)
    }

    /// The shim's side of its streams, if it was started.
    pub fn streams(&self) -> Option<Arc<Streams>> {
        lock(&self.streams).clone()
    }

    /// Sets the window size, or remembers it until there is a terminal.
    ///
    /// # Errors
    /// It has no terminal.
    pub fn resize(&self, width: u16, height: u16) -> Result<()> {
        if self.life.state() == State::Created && self.paths.terminal {
            *lock(&self.size) = Some((width, height));
            return Ok(());
        }
        match self.streams() {
            Some(streams) => streams.resize(width, height),
            None => Err(Error::FailedPrecondition(format!(
                "exec {} has no terminal",
                self.id
            ))),
        }
    }
}

/// The sandbox's side of streams, in the sandbox's words.
pub fn into_stdio(ends: Ends, size: Option<(u16, u16)>) -> sandbox::Stdio {
    match ends {
        Ends::Pipes {
            stdin,
            stdout,
            stderr,
        } => sandbox::Stdio::Piped {
            stdin,
            stdout,
            stderr,
        },
        Ends::Terminal => {
            let (width, height) = size.unwrap_or_default();
            sandbox::Stdio::Terminal { width, height }
        }
    }
}
