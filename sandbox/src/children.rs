//! The one reaper of the process: every child, own or adopted, is waited for here.
//!
//! The shim is a sub-reaper, so the sentry and the gofers become its children
//! when the `runsc create` that started them ends. Nothing else in the process
//! may call `wait` (no `tokio::process`, no `std::process::Child::wait`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nix::unistd::Pid;
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How many statuses nobody has asked for are kept. An adopted process can end
/// before anybody knows its pid, but not before hundreds of others have.
const KEPT: usize = 512;

/// Starts children and waits for them; clones share one table.
#[derive(Clone, Debug)]
pub struct Children {
    table: Arc<Mutex<Table>>,
}

/// The end of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// How it ended.
    pub status: Status,
    /// When it was reaped.
    pub at: SystemTime,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited with this code.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
}

impl Children {
    /// Starts reaping, in a task of the current tokio runtime that ends with it.
    ///
    /// # Errors
    /// SIGCHLD could not be subscribed to.
    pub fn new() -> io::Result<Self> {
        let children = Self {
            table: Arc::default(),
        };
        let mut changed = signal(SignalKind::child())?;
        let table = Arc::clone(&children.table);
        tokio::spawn(async move {
            loop {
                reap(&mut lock(&table));
                if changed.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(children)
    }

    /// Starts `command`; its end can be had from [`Self::wait`] however soon it comes.
    ///
    /// Drop the command right after: it holds the descriptors given to the child.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        // Held over the fork: the reaper cannot take the child's status, nor
        // that of a child whose exec failed (which `spawn` itself waits for).
        let mut table = lock(&self.table);
        let child = command.spawn()?;
        let pid = i32::try_from(child.id())
            .map(Pid::from_raw)
            .map_err(io::Error::other)?;
        // A status under this pid is that of a predecessor.
        table.reaped.retain(|(reaped, _)| *reaped != pid);
        Ok(pid)
    }

    /// The end of `pid`, a child of this process, started here or adopted.
    ///
    /// May be asked by several, and after the end. It never comes for a pid that
    /// is not a child, or whose status was dropped for those of many others since.
    pub async fn wait(&self, pid: Pid) -> Reaped {
        loop {
            let end = {
                let mut table = lock(&self.table);
                if let Some(reaped) = table.take_known(pid) {
                    return reaped;
                }
                let (sender, end) = oneshot::channel();
                table.waiters.entry(pid).or_default().push(sender);
                end
            };
            if let Ok(reaped) = end.await {
                return reaped;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    waiters: HashMap<Pid, Vec<oneshot::Sender<Reaped>>>,
    /// Oldest first.
    reaped: VecDeque<(Pid, Reaped)>,
}

impl Table {
    /// The kept status of `pid`, unless a new child has the number now.
    fn take_known(&mut self, pid: Pid) -> Option<Reaped> {
        let at = self.reaped.iter().rposition(|(reaped, _)| *reaped == pid)?;
        if is_child(pid) {
            self.reaped.remove(at);
            return None;
        }
        Some(self.reaped[at].1)
    }

    fn record(&mut self, pid: Pid, reaped: Reaped) {
        for waiter in self.waiters.remove(&pid).unwrap_or_default() {
            // A waiter that gave up is no loss: the status is kept below.
            let _ = waiter.send(reaped);
        }
        self.reaped.retain(|(old, _)| *old != pid);
        if self.reaped.len() == KEPT {
            self.reaped.pop_front();
        }
        self.reaped.push_back((pid, reaped));
    }
}

/// Reaps whatever has ended.
fn reap(table: &mut Table) {
    loop {
        // rustix and not nix: nix loses a child that a realtime signal ended. `wait`
        // and not `waitpid(None)`, which means the own process group only.
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let status = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Status::Exited(code),
                    (None, Some(signal)) => Status::Signaled(signal),
                    (None, None) => continue,
                };
                let pid = Pid::from_raw(pid.as_raw_nonzero().get());
                table.record(
                    pid,
                    Reaped {
                        status,
                        at: SystemTime::now(),
                    },
                );
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// Whether `pid` is a child of this process that is not reaped.
fn is_child(pid: Pid) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // "pid (comm) state ppid …"; the name may hold anything, parentheses too.
    let parent = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').nth(1));
    parent == Some(&std::process::id().to_string())
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
