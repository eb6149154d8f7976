//! One gVisor sandbox and the life of its containers.
//!
//! Create, start, delete and checkpoint are commands of `runsc`; everything else
//! is asked of the sentry itself, without a helper process. The end of the first
//! container is that of the sentry, which this process reaps.

mod command;
mod console;
mod create;
mod exec;
pub(crate) mod exit;
mod loopback;
mod platform;
mod signal;
mod start;
pub(crate) mod state;
mod table;
mod urpc;
pub(crate) mod usage;
pub(crate) mod version;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::children::Children;
use crate::cleanup::{self, cleanup};
use crate::config::{Config, Network, Platform, Setup};
use crate::error::{Error, Result};
use crate::launch::Launcher;
use crate::stdio::Stdio;

use command::{Call, Runsc};
use exit::{Exit, ended};
use table::{Phase, Sentry, Shared};

/// One sandbox. All methods take `&self`; no lock is held while a command runs
/// or the sentry is asked.
#[derive(Debug)]
pub struct Gvisor {
    runsc: Runsc,
    home: PathBuf,
    table: Shared,
    /// Decided at the first create, and the same for every command after.
    setup: OnceLock<Setup>,
    /// Whether the sentry takes no argument for Event, as that of 2022.
    plain_event: AtomicBool,
}

/// A container that was created.
#[derive(Debug)]
pub struct Created {
    /// The sentry, which every container of the sandbox has as its host process.
    pub pid: Pid,
    /// The master of its terminal, if one was wanted.
    pub console: Option<OwnedFd>,
}

/// A further process that was started in a container.
#[derive(Debug)]
pub struct Exec {
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// The master of its terminal, if one was wanted.
    pub console: Option<OwnedFd>,
}

/// Whom a signal is for. Pids are those inside the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The container's first process.
    Init,
    /// An exec, or any other process of the container.
    Exec(i32),
    /// Every process of the container.
    All,
    /// The foreground group of the terminal of this exec; 0: of the first process.
    Foreground(i32),
}

impl Gvisor {
    /// A sandbox that does not exist yet; its first container is `sandbox_id`.
    ///
    /// `home` is its cgroup as a path below the mount. The launcher must bring
    /// processes there, in every hierarchy.
    #[must_use]
    pub fn new(
        config: Config,
        children: Children,
        sandbox_id: &str,
        home: PathBuf,
        launcher: Launcher,
    ) -> Self {
        let sandbox_id = sandbox_id.to_owned();
        Self {
            runsc: Runsc {
                config,
                sandbox_id,
                children,
                launcher,
            },
            home,
            table: Shared::default(),
            setup: OnceLock::new(),
            plain_event: AtomicBool::new(false),
        }
    }

    /// The end of a container; answers as often as it is asked, until its delete.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such container, or it was deleted
    /// before it ended.
    pub async fn wait(&self, id: &str) -> Result<Exit> {
        let watch = self.table.lock().container(id)?.watch();
        ended(watch, || format!("container {id}")).await
    }

    /// Stops every process of the sandbox; gVisor cannot stop a single container.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a sandbox; else the sentry's.
    pub async fn pause(&self) -> Result<()> {
        let sentry = self.live_sentry()?;
        if self.is_paused() {
            return Ok(());
        }
        self.tell(&sentry, "Lifecycle.Pause", &Nothing {}).await?;
        self.table.lock().paused = true;
        Ok(())
    }

    /// Lets every process of the sandbox run again.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a sandbox; else the sentry's.
    pub async fn resume(&self) -> Result<()> {
        let sentry = self.live_sentry()?;
        if !self.is_paused() {
            return Ok(());
        }
        self.tell(&sentry, "Lifecycle.Resume", &Nothing {}).await?;
        self.table.lock().paused = false;
        Ok(())
    }

    /// Whether the sandbox is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.table.lock().paused
    }

    /// Writes the state of a running container to a directory; afterwards it has
    /// ended, unless `leave_running`.
    ///
    /// # Errors
    /// [`Error::WrongState`], or why runsc could not.
    pub async fn checkpoint(&self, id: &str, image: &Path, leave_running: bool) -> Result<()> {
        let dir = {
            let mut table = self.table.lock();
            table
                .container_in(id, Phase::Running, "checkpoint")?
                .bundle
                .join(cleanup::DIR)
        };
        let mut args: Vec<OsString> = vec!["--image-path".into(), image.into()];
        if leave_running {
            args.push("--leave-running".into());
        }
        self.command("checkpoint", id, None, args, &dir, Stdio::Null)
            .await
    }

    /// Ends a container if it runs and removes it; the first one takes the
    /// sandbox with it. A container that is not there is deleted already.
    ///
    /// # Errors
    /// Why it could not; it may be tried again.
    pub async fn delete(&self, id: &str) -> Result<()> {
        let (bundle, hooks, sandbox_lives) = {
            let mut table = self.table.lock();
            let Ok(container) = table.container(id) else {
                return Ok(());
            };
            let found = (container.bundle.clone(), container.has_stop_hooks);
            (found.0, found.1, table.sentry.is_some())
        };
        let first = id == self.id();
        // A dead sandbox has nothing that runsc would have to tell the sentry, and
        // a first container is deleted by ending the sandbox.
        if hooks || (sandbox_lives && !first) {
            let dir = bundle.join(cleanup::DIR);
            let deleted = self
                .command(
                    "delete",
                    id,
                    None,
                    vec!["--force".into()],
                    &dir,
                    Stdio::Null,
                )
                .await;
            // It may have died meanwhile; then there is nothing left to tell.
            if let Err(error) = deleted
                && (self.sentry_pid().is_some() && !first)
            {
                return Err(error);
            }
        }
        if first {
            self.kill_sentry(Signal::SIGKILL as i32);
        }
        self.clean_up(id, &bundle).await?;
        if first {
            // Killed above, so this is only until it is reaped.
            self.wait(id).await?;
        }
        self.table.lock().forget(id);
        Ok(())
    }

    /// Ends and removes what is left of a container.
    async fn clean_up(&self, id: &str, bundle: &Path) -> Result<()> {
        let home = &self.runsc.launcher.join;
        cleanup(&self.runsc.config, self.id(), id, bundle, home).await
    }

    /// The sentry's pid on the host, while it lives.
    #[must_use]
    pub fn sentry_pid(&self) -> Option<Pid> {
        self.table.lock().sentry.as_ref().map(|sentry| sentry.pid)
    }

    /// The network that was chosen; None before the first create.
    #[must_use]
    pub fn network(&self) -> Option<Network> {
        self.setup.get().map(|setup| setup.network)
    }

    fn id(&self) -> &str {
        &self.runsc.sandbox_id
    }

    async fn command(
        &self,
        verb: &'static str,
        id: &str,
        option: Option<&'static str>,
        args: Vec<OsString>,
        dir: &Path,
        stdio: Stdio,
    ) -> Result<()> {
        let stdio = match stdio {
            Stdio::Null | Stdio::Terminal { .. } => None,
            piped @ Stdio::Piped { .. } => {
                Some(piped.into_fds().map_err(Error::io("open", "/dev/null"))?)
            }
        };
        let setup = self.setup.get().copied().unwrap_or(Setup {
            platform: Platform::Systrap,
            network: Network::Sandbox,
        });
        let call = Call {
            verb,
            id,
            option,
            args,
            dir,
            stdio,
            setup,
        };
        let result = self.runsc.run(call).await;
        crate::stdio::give_null_back();
        result.map_err(explained)
    }

    /// Asks for something that has no answer but that it is done.
    async fn tell<A: Serialize>(
        &self,
        sentry: &Sentry,
        method: &'static str,
        arg: &A,
    ) -> Result<()> {
        // It is an empty object, whose form means nothing.
        self.ask(sentry, method, arg).await.map(|_: IgnoredAny| ())
    }

    async fn ask<A: Serialize, R: serde::de::DeserializeOwned>(
        &self,
        sentry: &Sentry,
        method: &'static str,
        arg: &A,
    ) -> Result<R> {
        let deadline = Some(self.runsc.config.deadlines.call);
        sentry.control.call(method, arg, &[], deadline).await
    }

    fn live_sentry(&self) -> Result<Sentry> {
        self.table.lock().sentry(self.id())
    }

    fn sentry_of_running(&self, id: &str) -> Result<Sentry> {
        let mut table = self.table.lock();
        if table.container(id)?.exit().is_some() {
            return Err(Error::NotFound {
                object: format!("container {id}"),
            });
        }
        table.sentry(self.id())
    }

    fn kill_sentry(&self, signal: i32) {
        let mut table = self.table.lock();
        if let Some(sentry) = &table.sentry {
            // In the table it is not reaped, so the pid is still its own.
            let _ = kill(sentry.pid, Signal::SIGKILL);
            table.ended_by = Some(signal);
        }
    }
}

/// The empty object, as argument.
#[derive(Serialize)]
struct Nothing {}

/// Adds what to do to a message of runsc that does not say it.
fn explained(error: Error) -> Error {
    match error {
        Error::Runsc { verb, id, cause } if cause.contains("in root network namespace") => {
            let cause = format!(
                "{cause}; the network namespace is the host's, or this runsc is of 2022, whose \
                 test for that fails on present kernels: set network = \"host\" or \"none\""
            );
            Error::Runsc { verb, id, cause }
        }
        error => error,
    }
}

/// Makes NotFound of the sentry's ways to say that a container is no more.
fn gone(id: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Refused { cause, .. } if means_gone(&cause) => Error::NotFound {
            object: format!("container {id}"),
        },
        Error::SandboxGone { .. } => Error::NotFound {
            object: format!("container {id}"),
        },
        error => error,
    }
}

/// Whether the sentry says that the process or container is no more.
fn means_gone(cause: &str) -> bool {
    [
        "no such process",
        "not found",
        "has stopped",
        "does not exist",
    ]
    .iter()
    .any(|text| cause.contains(text))
}
