//! One gVisor sandbox and the life of its containers.
//!
//! Create, start, delete and checkpoint are commands of `runsc`; everything else
//! is asked of the sentry itself, without a helper process. The end of the first
//! container is that of the sentry, which this process reaps.

mod command;
mod console;
mod exec;
mod loopback;
mod platform;
pub(crate) mod state;
mod table;
mod urpc;
pub(crate) mod usage;
pub(crate) mod version;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, fchown};
use oci_spec::runtime::{Process, Spec};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::children::Children;
use crate::cleanup::{self, cleanup};
use crate::config::{Config, Network, Platform};
use crate::error::{Error, Result};
use crate::launch::Launcher;
use crate::spec::{self, Place};
use crate::stdio::Stdio;
use crate::terminal;

use command::{Call, Runsc};
use console::Console;
use exec::ExecArgs;
use table::{Container, Phase, Sentry, Shared, ends_unstarted};
use urpc::{Address, Control};
use usage::{Event, Usage};

/// One sandbox. All methods take `&self`; no lock is held while a command runs
/// or the sentry is asked.
#[derive(Debug)]
pub struct Gvisor {
    runsc: Runsc,
    home: PathBuf,
    table: Shared,
    /// Decided at the first create, and the same for every command after.
    setup: OnceLock<(Platform, Network)>,
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

/// The end of a container or exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + n after signal n.
    pub code: u32,
    /// When it was seen.
    pub at: SystemTime,
    /// It did not end by itself or by a signal to it: the sandbox went away under it.
    pub by_sandbox_death: bool,
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

    /// Creates a container: the sandbox with it if it is the first, else in it.
    ///
    /// After a failure nothing of it is left.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::Spec`], or why runsc could not.
    pub async fn create(
        &self,
        id: &str,
        bundle: &Path,
        spec: &Spec,
        stdio: Stdio,
    ) -> Result<Created> {
        {
            let mut table = self.table.lock();
            if table.containers.contains_key(id) {
                return Err(Error::AlreadyExists { id: id.to_owned() });
            }
            if id != self.id() {
                table.sentry(self.id())?;
            }
            table
                .containers
                .insert(id.to_owned(), Container::new(bundle.to_owned()));
        }
        let created = self.create_new(id, bundle, spec, stdio).await;
        if created.is_err() {
            if let Err(error) = cleanup(&self.runsc.config, self.id(), id, bundle).await {
                log::warn!("after the failed create of {id}: {error}");
            }
            self.table.lock().forget(id);
        }
        created
    }

    async fn create_new(
        &self,
        id: &str,
        bundle: &Path,
        spec: &Spec,
        stdio: Stdio,
    ) -> Result<Created> {
        let first = id == self.id();
        let place = Place {
            id,
            sandbox_id: self.id(),
            bundle,
            home: &self.home,
            oom_score_adj: own_oom_score_adj(),
        };
        let rewritten = spec::rewrite(spec, place)?;
        let dir = bundle.join(cleanup::DIR);
        std::fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        let config = dir.join("config.json");
        rewritten
            .save(&config)
            .map_err(|error| Error::io("write", &config)(std::io::Error::other(error)))?;
        if first {
            self.set_up(spec, &dir).await?;
        }

        let mut args: Vec<OsString> = vec!["--bundle".into(), dir.clone().into()];
        let console = match &stdio {
            Stdio::Terminal { width, height } => {
                let console = Console::bind(&dir).map_err(Error::io("listen in", &dir))?;
                args.extend(["--console-socket".into(), console.address().into()]);
                Some((console, *width, *height))
            }
            Stdio::Null | Stdio::Piped { .. } => None,
        };
        // The first container's streams are taken at create, others' at start.
        let (now, later) = if first {
            (stdio, None)
        } else {
            (Stdio::Null, Some(stdio))
        };
        self.command("create", id, args, &dir, now).await?;
        let console = match console {
            None => None,
            Some((console, width, height)) => {
                let master = console
                    .receive()
                    .await
                    .map_err(Error::io("listen in", &dir))?;
                if (width, height) != (0, 0) {
                    terminal::resize(&master, width, height).map_err(Error::io("resize", &dir))?;
                }
                Some(master)
            }
        };

        let pid = if first {
            self.adopt_sentry()?
        } else {
            self.live_sentry()?.pid
        };
        if first && self.network() == Some(Network::Sandbox) && spec::makes_network_namespace(spec)
        {
            let namespace = PathBuf::from(format!("/proc/{pid}/ns/net"));
            loopback::bring_up(&namespace).map_err(Error::io("bring loopback up in", namespace))?;
        }
        let mut table = self.table.lock();
        let container = table.container(id)?;
        container.phase = Phase::Created;
        container.stdio = later;
        container.capabilities = spec
            .process()
            .as_ref()
            .and_then(|p| p.capabilities().clone());
        container.mounts_cgroups = spec::mounts_cgroups(spec);
        container.has_stop_hooks = spec
            .hooks()
            .as_ref()
            .and_then(|hooks| hooks.poststop().as_ref())
            .is_some_and(|hooks| !hooks.is_empty());
        Ok(Created { pid, console })
    }

    /// Learns of the sentry that create has left to us, and waits for its end.
    fn adopt_sentry(&self) -> Result<Pid> {
        let root = self.runsc.config.sandbox_root(self.id());
        let missing = || Error::NotFound {
            object: format!("the sentry of sandbox {}", self.id()),
        };
        let state = state::load(&root, self.id(), self.id())?.ok_or_else(missing)?;
        let pid = state.sentry.ok_or_else(missing)?;
        let old = matches!(state.address, Address::Abstract(_));
        if old {
            log::warn!(
                "sandbox {}: this runsc is of 2022: any local user of its network namespace can \
                 control the sandbox, and sandbox networking may fail; a current one is recommended",
                self.id()
            );
        }
        let control = Control::new(self.id(), state.address);
        let sentry = Sentry {
            pid,
            control,
            uid: state.uid,
            gid: state.gid,
            old,
        };
        {
            let mut table = self.table.lock();
            table.sentry = Some(sentry);
            table.ended_by = None;
        }

        let (children, table) = (self.runsc.children.clone(), self.table.clone());
        let id = self.id().to_owned();
        tokio::spawn(async move {
            let reaped = children.wait(pid).await;
            table.lock().sentry_ended(&id, pid, reaped);
        });
        Ok(pid)
    }

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
        let result = self.command("start", id, Vec::new(), &dir, stdio).await;
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
        let result = self.command("restore", id, args, &dir, stdio).await;
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
                if let Some(container) = shared.lock().containers.get(&id) {
                    container.end(exit);
                }
            });
        }
        Ok(())
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

    /// Runs a further process in a running container.
    ///
    /// # Errors
    /// [`Error::WrongState`], [`Error::Spec`], or [`Error::Refused`] with the
    /// sentry's reason, such as a missing program.
    pub async fn exec(&self, id: &str, process: &Process, stdio: Stdio) -> Result<Exec> {
        spec::check_process(id, process)?;
        let (sentry, capabilities) = {
            let mut table = self.table.lock();
            table.check_not_paused(id, "exec in")?;
            let container = table.container_in(id, Phase::Running, "exec in")?;
            let capabilities = container.capabilities.clone();
            (table.sentry(self.id())?, capabilities)
        };
        let net_raw = self
            .runsc
            .config
            .flags
            .get("net-raw")
            .is_some_and(|value| value == "true");
        let args = ExecArgs::new(
            id,
            process,
            capabilities.as_ref(),
            net_raw,
            stdio.is_terminal(),
        );
        let (console, fds) = exec_streams(stdio, &sentry)
            .map_err(Error::io("open the streams of an exec in", &self.home))?;
        let deadline = Some(self.runsc.config.deadlines.call);
        let pid: i32 = sentry
            .control
            .call("containerManager.ExecuteAsync", &args, &fds, deadline)
            .await?;
        drop(fds);

        self.table.lock().add_exec(id, pid);
        let (shared, id) = (self.table.clone(), id.to_owned());
        // The sentry tells the end only once: nobody but this task asks for it.
        tokio::spawn(async move {
            let arg = WaitPid { cid: &id, pid };
            let exit = wait_status(&sentry, "containerManager.WaitPID", &arg).await;
            shared.lock().end_exec(&id, pid, exit);
        });
        Ok(Exec { pid, console })
    }

    /// The end of an exec; answers as often as it is asked, until it is forgotten.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such exec.
    pub async fn wait_exec(&self, id: &str, pid: i32) -> Result<Exit> {
        let watch = self.table.lock().exec(id, pid)?.subscribe();
        ended(watch, || format!("exec {pid} of container {id}")).await
    }

    /// Drops what is kept of an exec's end.
    pub fn forget_exec(&self, id: &str, pid: i32) {
        self.table.lock().forget_exec(id, pid);
    }

    /// Sends a signal. SIGKILL also resumes a paused sandbox, as it could not die,
    /// and for the first container reaches it if the sentry does not answer.
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
            if container.exit().is_some() {
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
        let sent = self.tell(&sentry, "containerManager.Signal", &arg).await;
        let kills = signal == Signal::SIGKILL as i32;
        match sent {
            Ok(()) if kills && paused => self.resume().await,
            Err(Error::Refused { cause, .. }) if means_gone(&cause) => Err(Error::NotFound {
                object: target.name(id),
            }),
            Err(Error::SandboxGone { .. }) => Err(Error::NotFound {
                object: target.name(id),
            }),
            Err(Error::Unresponsive { .. })
                if kills && id == self.id() && matches!(target, Target::Init | Target::All) =>
            {
                self.kill_sentry(signal);
                Ok(())
            }
            sent => sent,
        }
    }

    /// A container that was never started has no process: it ends by our word.
    fn signal_unstarted(
        &self,
        table: &mut table::Table,
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

    /// What a running container uses.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the container or its sandbox has ended.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        const METHOD: &str = "containerManager.Event";
        let sentry = self.sentry_of_running(id)?;
        let memory_known = {
            let mut table = self.table.lock();
            let alone = table.containers.len() == 1;
            !sentry.old && table.container(id)?.mounts_cgroups || alone
        };
        let event: Event = if self.plain_event.load(Ordering::Relaxed) {
            self.ask(&sentry, METHOD, &Nothing {}).await
        } else {
            match self.ask(&sentry, METHOD, &id).await {
                Err(Error::Refused { cause, .. }) if cause.contains("cannot unmarshal string") => {
                    self.plain_event.store(true, Ordering::Relaxed);
                    self.ask(&sentry, METHOD, &Nothing {}).await
                }
                answer => answer,
            }
        }
        .map_err(gone(id))?;
        Ok(Usage::of(
            event,
            memory_known,
            !self.plain_event.load(Ordering::Relaxed),
        ))
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
        self.command("checkpoint", id, args, &dir, Stdio::Null)
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
                .command("delete", id, vec!["--force".into()], &dir, Stdio::Null)
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
        cleanup(&self.runsc.config, self.id(), id, &bundle).await?;
        if first {
            // Killed above, so this is only until it is reaped.
            self.wait(id).await?;
        }
        self.table.lock().forget(id);
        Ok(())
    }

    /// The sentry's pid on the host, while it lives.
    #[must_use]
    pub fn sentry_pid(&self) -> Option<Pid> {
        self.table.lock().sentry.as_ref().map(|sentry| sentry.pid)
    }

    /// The network that was chosen; None before the first create.
    #[must_use]
    pub fn network(&self) -> Option<Network> {
        self.setup.get().map(|(_, network)| *network)
    }

    fn id(&self) -> &str {
        &self.runsc.sandbox_id
    }

    async fn set_up(&self, spec: &Spec, dir: &Path) -> Result<()> {
        if self.setup.get().is_none() {
            let network = self
                .runsc
                .config
                .network
                .unwrap_or_else(|| spec::network(spec));
            let platform = self.runsc.choose_platform(dir).await?;
            // A second create cannot be here at the same time: the id is taken.
            let _ = self.setup.set((platform, network));
        }
        Ok(())
    }

    async fn command(
        &self,
        verb: &'static str,
        id: &str,
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
        let (platform, network) = self
            .setup
            .get()
            .copied()
            .unwrap_or((Platform::Systrap, Network::Sandbox));
        let call = Call {
            verb,
            id,
            args,
            dir,
            stdio,
            platform,
            network,
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

impl Target {
    fn name(self, id: &str) -> String {
        match self {
            Self::Init | Self::All => format!("container {id}"),
            Self::Exec(pid) | Self::Foreground(pid) => format!("process {pid} of container {id}"),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "UPPERCASE")]
struct WaitPid<'a> {
    cid: &'a str,
    pid: i32,
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

/// The empty object, as argument.
#[derive(Serialize)]
struct Nothing {}

/// Asks the sentry for the end of a process, for as long as that takes.
async fn wait_status<A: Serialize>(sentry: &Sentry, method: &'static str, arg: &A) -> Exit {
    let answer: Result<u32> = sentry.control.call(method, arg, &[], None).await;
    let at = SystemTime::now();
    match answer {
        Ok(status) => Exit::of_wait_status(status, at),
        Err(error) => {
            log::debug!("{method}: {error}");
            Exit::lost(at)
        }
    }
}

async fn ended(
    mut watch: watch::Receiver<Option<Exit>>,
    object: impl FnOnce() -> String,
) -> Result<Exit> {
    // Closed without an end: it was deleted.
    let end = watch
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|exit| *exit);
    end.ok_or_else(|| Error::NotFound { object: object() })
}

/// The streams of an exec, owned by the user that the sentry is.
fn exec_streams(stdio: Stdio, sentry: &Sentry) -> std::io::Result<(Option<OwnedFd>, [OwnedFd; 3])> {
    let owner = (
        Some(Uid::from_raw(sentry.uid)),
        Some(Gid::from_raw(sentry.gid)),
    );
    match stdio {
        Stdio::Terminal { width, height } => {
            let (master, end) = terminal::pair()?;
            if (width, height) != (0, 0) {
                terminal::resize(&master, width, height)?;
            }
            fchown(&end, owner.0, owner.1)?;
            Ok((Some(master), [end.try_clone()?, end.try_clone()?, end]))
        }
        // The host's /dev/null keeps its owner.
        Stdio::Null => Ok((None, stdio.into_fds()?)),
        Stdio::Piped { .. } => {
            let fds = stdio.into_fds()?;
            for fd in &fds {
                if let Err(error) = chown_stream(fd, owner) {
                    log::warn!("stream of an exec: cannot give it to the sandbox: {error}");
                }
            }
            Ok((None, fds))
        }
    }
}

/// Gives a stream to its new owner, unless it is a device, which others use too.
fn chown_stream(fd: &OwnedFd, (uid, gid): (Option<Uid>, Option<Gid>)) -> nix::Result<()> {
    use nix::sys::stat::{SFlag, fstat};
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFCHR {
        Ok(())
    } else {
        fchown(fd, uid, gid)
    }
}

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

/// The lowest oom score adjustment that may be given without a capability.
fn own_oom_score_adj() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
