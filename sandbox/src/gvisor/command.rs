//! Runs `runsc` commands: their arguments, their deadline, and why they failed.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::time::timeout;

use crate::children::{Children, Reaped, Status};
use crate::config::{Config, Setup};
use crate::error::{Error, Result};
use crate::launch::{self, Launcher};
use crate::stdio::null;

/// How much of a log or of standard error is read for the cause of a failure.
const LONGEST_LOG: u64 = 1 << 20;

/// Numbers the calls, so that each has its own log file.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Runs commands for one sandbox.
#[derive(Debug)]
pub(crate) struct Runsc {
    pub(crate) config: Config,
    pub(crate) sandbox_id: String,
    pub(crate) children: Children,
    pub(crate) launcher: Launcher,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: &'static str,
    pub(crate) id: &'a str,
    /// Between the verb and the id.
    pub(crate) args: Vec<OsString>,
    /// For the log of this call; removed after success.
    pub(crate) dir: &'a Path,
    /// The streams of a container. None: nothing, and standard error is kept for
    /// the message of a failure.
    pub(crate) stdio: Option<[OwnedFd; 3]>,
    pub(crate) setup: Setup,
}

impl Runsc {
    /// Runs the command to its end.
    pub(crate) async fn run(&self, call: Call<'_>) -> Result<()> {
        let (verb, id) = (call.verb, call.id);
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let log = call.dir.join(format!("{verb}-{number}.log"));
        let stderr = call.dir.join(format!("{verb}-{number}.stderr"));

        let mut args: Vec<OsString> = self
            .config
            .global_flags(&self.sandbox_id, call.setup, &log)
            .into_iter()
            .map(OsString::from)
            .collect();
        args.push(verb.into());
        args.extend(call.args);
        args.push(id.into());
        let mut command = self.launcher.command(&self.config.runsc, args);
        self.attach(&mut command, call.stdio, &stderr)?;

        let after = self.config.deadlines.command;
        let ended = self.run_to_end(command, after).await?;
        let error = match ended.map(|reaped| reaped.status) {
            Some(Status::Exited(0)) => {
                discard(&log);
                discard(&stderr);
                return Ok(());
            }
            None => Error::CommandDeadline {
                verb,
                id: id.to_owned(),
                after,
            },
            Some(status) => failure(verb, id, status, &read_start(&log), &read_start(&stderr)),
        };
        // Said by the error; left in place they would grow with each failure.
        discard(&log);
        discard(&stderr);
        Err(error)
    }

    /// Runs a command of the launcher; None if it had to be killed at the deadline.
    pub(crate) async fn run_to_end(
        &self,
        command: Command,
        deadline: Duration,
    ) -> Result<Option<Reaped>> {
        self.run_noting(command, deadline, |pid| self.launcher.started(pid))
            .await
    }

    /// As [`Self::run_to_end`], without the launcher: nobody makes a scope for it.
    pub(crate) async fn run_outside(
        &self,
        command: Command,
        deadline: Duration,
    ) -> Result<Option<Reaped>> {
        self.run_noting(command, deadline, |_| ()).await
    }

    async fn run_noting(
        &self,
        mut command: Command,
        deadline: Duration,
        note: impl FnOnce(Pid),
    ) -> Result<Option<Reaped>> {
        let spawned = self.children.spawn(&mut command);
        // It holds the container's streams, whose readers wait for the last holder.
        drop(command);
        let pid = spawned.map_err(Error::io("start the launcher", &self.launcher.exe))?;
        note(pid);
        match timeout(deadline, self.children.wait(pid)).await {
            Ok(reaped) => Ok(Some(reaped)),
            Err(_) => {
                self.end(pid).await;
                Ok(None)
            }
        }
    }

    /// Kills a child and reaps it.
    async fn end(&self, pid: Pid) {
        // It is our child and not reaped, so the pid is still its own.
        let _ = kill(pid, Signal::SIGKILL);
        self.children.wait(pid).await;
    }

    fn attach(
        &self,
        command: &mut Command,
        stdio: Option<[OwnedFd; 3]>,
        stderr: &Path,
    ) -> Result<()> {
        let [stdin, stdout, err] = match stdio {
            Some(streams) => streams,
            None => {
                let open = || null().map_err(Error::io("open", "/dev/null"));
                let err = File::create(stderr).map_err(Error::io("create", stderr))?;
                [open()?, open()?, err.into()]
            }
        };
        command.stdin(stdin).stdout(stdout).stderr(err);
        Ok(())
    }
}

/// Why a command failed, in its own words.
fn failure(verb: &'static str, id: &str, status: Status, log: &str, stderr: &str) -> Error {
    let id = id.to_owned();
    let first_line = || {
        stderr
            .lines()
            .find(|line| !line.trim().is_empty())
            .map(str::to_owned)
    };
    if status == Status::Exited(i32::from(launch::FAILED)) {
        let cause = first_line().map_or_else(
            || "the launcher's message went to the container's standard error".to_owned(),
            |line| line.trim_start_matches("launch: ").to_owned(),
        );
        return Error::Launch { verb, id, cause };
    }
    // The first error is the cause, later ones are its consequences. Wrong flags
    // are only told on standard error, before the log is opened.
    let cause = first_error(log)
        .or_else(first_line)
        .unwrap_or_else(|| match status {
            Status::Exited(code) => format!("exit status {code} without a message"),
            Status::Signaled(signal) => format!("killed by signal {signal}"),
        });
    Error::Runsc { verb, id, cause }
}

/// The first error in a log of JSON objects, which not all versions put on lines.
fn first_error(log: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Entry {
        msg: String,
        level: String,
    }
    serde_json::Deserializer::from_str(log)
        .into_iter::<Entry>()
        .map_while(std::result::Result::ok)
        .find(|entry| matches!(entry.level.as_str(), "error" | "fatal" | "panic"))
        .map(|entry| entry.msg.trim().to_owned())
}

/// The start of a file; empty if there is none.
pub(super) fn read_start(path: &PathBuf) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What could be read before an error is still the best cause there is.
        let _ = file.take(LONGEST_LOG).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn discard(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("cannot remove {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = concat!(
        "{\"msg\":\"slow\",\"level\":\"warning\",\"time\":\"t\"}\n",
        "{\"msg\":\"no such file: /x\",\"level\":\"error\",\"time\":\"t\"}",
        "{\"msg\":\"waiting for sandbox to start: EOF\",\"level\":\"error\",\"time\":\"t\"}",
    );

    #[test]
    fn the_cause_is_the_first_error() {
        let text = |status, log, stderr| failure("create", "c", status, log, stderr).to_string();
        let failed = Status::Exited(128);
        assert_eq!(
            text(failed, LOG, "else"),
            "runsc create c: no such file: /x"
        );
        assert_eq!(
            text(
                Status::Exited(2),
                "",
                "\nflag provided but not defined: -x\nUsage: runsc"
            ),
            "runsc create c: flag provided but not defined: -x"
        );
        assert_eq!(
            text(failed, "", ""),
            "runsc create c: exit status 128 without a message"
        );
        assert_eq!(
            text(Status::Signaled(9), "half a li", ""),
            "runsc create c: killed by signal 9"
        );
        assert_eq!(
            text(
                Status::Exited(125),
                "",
                "launch: cannot join cgroup /x: gone\n"
            ),
            "starting runsc create c in its cgroup: cannot join cgroup /x: gone"
        );
    }
}
