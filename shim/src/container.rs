//! A container: its bundle, its place, its first process and its execs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cgroups::Resources;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use sandbox::{Gvisor, Target};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::bundle::Role;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::limits::FollowsContainers;
use crate::lock::lock;
use crate::metrics::{Figures, devices};
use crate::oom::{Hit, Level, Oom};
use crate::placement::Placement;
use crate::process::{Exit, Life, State};
use crate::record::Record;
use crate::stdio::{Owner, Paths, Streams};

/// One container of a pod.
#[derive(Debug)]
pub struct Container {
    /// Its id, which is the task's.
    pub id: String,
    /// Its bundle directory.
    pub bundle: PathBuf,
    /// What it is to its sandbox.
    pub role: Role,
    /// The sandbox it runs in.
    pub sandbox: Arc<Gvisor>,
    /// The host process that stands for it: the sentry.
    pub pid: Pid,
    /// Where the streams of its first process go.
    pub paths: Paths,
    /// The shim's side of them.
    pub streams: Arc<Streams>,
    /// Whose streams they are.
    pub owner: Owner,
    /// The life of its first process.
    pub life: Life,
    /// Its cgroup.
    pub placement: Placement,
    /// What is on disk about it.
    pub record: Arc<Mutex<Record>>,
    /// The limits it asks for.
    pub asked: Mutex<Resources>,
    /// Which limits of this sandbox follow its containers.
    pub follows: Mutex<FollowsContainers>,
    /// Directory of the record.
    pub state_directory: PathBuf,
    /// The operator's settings for it.
    pub config: Config,
    /// Image that it starts from, instead of its program.
    pub checkpoint: Option<PathBuf>,
    /// Its figures.
    pub figures: Arc<Figures>,
    /// Those of its sandbox as a whole; of the sandbox itself the same.
    pub whole: Arc<Figures>,
    /// The devices that it was given.
    pub devices: Vec<devices::Group>,
    /// Kills for want of memory in its sandbox.
    pub oom: Arc<Oom>,
    /// It was killed because it used more memory than its own limit.
    pub over_limit: AtomicBool,
    /// How many kills for want of memory were told of it.
    pub kills: AtomicU64,
    /// Its execs by id.
    pub execs: Mutex<HashMap<String, Arc<Exec>>>,
}

impl Container {
    /// Whether it is the sandbox itself.
    pub fn is_root(&self) -> bool {
        self.role == Role::Root
    }

    /// The exec with this id.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn exec(&self, id: &str) -> Result<Arc<Exec>> {
        self.execs()
            .get(id)
            .cloned()
            .ok_or_else(|| Error::NotFound(format!("exec {id} of task {} does not exist", self.id)))
    }

    /// Adds an exec.
    ///
    /// # Errors
    /// The container has ended, or the id is taken.
    pub fn add_exec(&self, exec: Arc<Exec>) -> Result<()> {
        if self.life.exit().is_some() {
            return Err(Error::FailedPrecondition(format!(
                "task {} has ended: nothing can be run in it any more",
                self.id
            )));
        }
        let mut execs = self.execs();
        if execs.contains_key(&exec.id) {
            return Err(Error::AlreadyExists(format!(
                "exec {} of task {} exists already",
                exec.id, self.id
            )));
        }
        execs.insert(exec.id.clone(), exec);
        Ok(())
    }

    /// The execs that run, or are being started, right now.
    pub fn running_execs(&self) -> Vec<Arc<Exec>> {
        self.execs()
            .values()
            .filter(|exec| {
                matches!(
                    exec.life.state(),
                    State::Starting | State::Running | State::Paused
                )
            })
            .cloned()
            .collect()
    }

    /// Ends the execs that outlive the container's first process: those in the
    /// sandbox are dying with it, or are killed now. Returns once their ends are
    /// known, or `patience` is over.
    pub async fn end_execs(&self, patience: Duration) {
        let deadline = tokio::time::Instant::now() + patience;
        for exec in self.running_execs() {
            // A start that fails now leaves nothing that could end.
            let settled = tokio::time::timeout_at(deadline, exec.life.settled()).await;
            if matches!(settled, Ok(State::Created)) {
                continue;
            }
            if let Ok(target) = exec.target() {
                // It may be gone already, or the whole sandbox.
                let _ = tokio::time::timeout_at(
                    deadline,
                    self.sandbox
                        .signal(&self.id, target, Signal::SIGKILL as i32),
                )
                .await;
            }
            if tokio::time::timeout_at(deadline, exec.life.wait())
                .await
                .is_err()
            {
                log::warn!("exec {} of {} gave no exit status", exec.id, self.id);
            }
        }
    }

    /// A channel whose signals reach the foreground group of `leader`'s terminal:
    /// inside gVisor only the sandbox container's own terminal hears of them.
    pub fn foreground_signals(&self, leader: i32) -> UnboundedSender<Signal> {
        let (sender, mut receiver) = unbounded_channel();
        let (sandbox, id) = (Arc::clone(&self.sandbox), self.id.clone());
        tokio::spawn(async move {
            while let Some(signal) = receiver.recv().await {
                let sent = sandbox
                    .signal(&id, Target::Foreground(leader), signal as i32)
                    .await;
                if let Err(error) = sent {
                    log::debug!("{signal} for the terminal of {id}: {error}");
                }
            }
        });
        sender
    }

    /// Whether its end was one for want of memory. A kill of the sandbox is one
    /// of every container in it; a kill of a process that runs guest code shows
    /// as SIGKILL, or as SIGSEGV, SIGBUS or a lost status, of the container.
    pub fn died_of_memory(&self, exit: Exit, with_sandbox: bool) -> bool {
        if self.over_limit.load(Ordering::Relaxed) {
            return true;
        }
        if with_sandbox {
            return self.oom.took_sandbox();
        }
        matches!(exit.code, 128 | 135 | 137 | 139) && self.oom.claim() > 0
    }

    /// Which limit a want of memory ran into.
    pub fn limit_that_was_hit(&self) -> Hit {
        if self.over_limit.load(Ordering::Relaxed) {
            return Hit {
                level: Level::CONTAINER,
                cgroup: self.placement.path().to_owned(),
                limit: self.memory_limit(),
            };
        }
        self.oom.hit()
    }

    /// The memory that it may use by its own limit.
    pub fn memory_limit(&self) -> Option<cgroups::Bytes> {
        let asked = lock(&self.asked);
        asked.memory.limit.and_then(cgroups::Limit::value)
    }

    /// Whether `delete` has removed it while this shim lived.
    pub fn is_removed(&self) -> bool {
        matches!(Record::read(&self.state_directory, &self.id), Ok(None))
    }

    /// Writes the exit status where `delete` finds it if this shim is killed, unless
    /// it has been there already.
    pub fn remember_exit(&self, exit: Exit) {
        if self.is_removed() {
            return;
        }
        let mut record = lock(&self.record);
        record.exit = Some(exit);
        if let Err(error) = record.write(&self.state_directory) {
            log::warn!(
                "the exit status of {} is not on disk: {}",
                self.id,
                crate::error::chain(&error)
            );
        }
    }

    fn execs(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Exec>>> {
        lock(&self.execs)
    }
}
