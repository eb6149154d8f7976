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
use crate::launch::{self, Join, Launcher};
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
    /// A flag before the verb, if this runsc knows it.
    pub(crate) option: Option<&'static str>,
    /// Between the verb and the id.
    pub(crate) args: Vec<OsString>,
    /// For the log of this call; removed after success.
    pub(crate) dir: &'a Path,
    /// The streams of a container. None: nothing, and standard error is kept for
    /// the message of a failure. The launcher's own is kept in any case.
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

        let flags: Vec<OsString> = self
            .config
            .global_flags(&self.sandbox_id, call.setup, &log)
            .into_iter()
            .map(OsString::from)
            .collect();
        let mut args = flags.clone();
        args.push(verb.into());
        args.extend(call.args);
        args.push(id.into());
        let mut command = self
            .launcher
            .command(&stderr, &self.config.runsc, call.option, args);
        self.attach(&mut command, call.stdio, &stderr)?;

        let after = self.config.deadlines.command;
        let ended = self.run_to_end(command, after).await?;
        // A launcher that failed has said why, and one that was killed was refused.
        let failed = ended.is_some_and(|reaped| {
            matches!(reaped.status, Status::Exited(code) if code != 0 && code != i32::from(launch::FAILED))
        });
        if failed && !log.exists() && !stderr.exists() {
            self.have_flags_judged(flags, &stderr).await?;
        }
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

    /// Has runsc say to `stderr` what is wrong with its flags. It judges them before
    /// it opens its log, and its standard error may have been a container's.
    ///
    /// A scope has ended with its first process, the one that failed; then it is
    /// asked where the shim is.
    async fn have_flags_judged(&self, mut flags: Vec<OsString>, stderr: &Path) -> Result<()> {
        flags.push("help".into());
        let join = match self.launcher.mode {
            Join::Enter => self.launcher.join.clone(),
            Join::AwaitMembership(_) => Vec::new(),
        };
        let launcher = Launcher {
            exe: self.launcher.exe.clone(),
            join,
            mode: Join::Enter,
        };
        let mut command = launcher.command(stderr, &self.config.runsc, None, flags);
        self.attach(&mut command, None, stderr)?;
        let spawned = self.children.spawn(&mut command);
        let pid = spawned.map_err(Error::io("start the launcher", &launcher.exe))?;
        let ended = self.wait_for(pid, self.config.deadlines.probe).await;
        if ended.is_none_or(|reaped| reaped.status == Status::Exited(0)) {
            // It is not the flags.
            discard(stderr);
        }
        Ok(())
    }

    /// Runs the command; None if it had to be killed at the deadline.
    pub(crate) async fn run_to_end(
        &self,
        mut command: Command,
        deadline: Duration,
    ) -> Result<Option<Reaped>> {
        let program = PathBuf::from(command.get_program());
        let spawned = self.children.spawn(&mut command);
        // It holds the container's streams, whose readers wait for the last holder.
        drop(command);
        let pid = spawned.map_err(Error::io("start", program))?;
        self.launcher.started(pid);
        Ok(self.wait_for(pid, deadline).await)
    }

    /// Waits for the end of a child; None if it had to be killed at the deadline.
    async fn wait_for(&self, pid: Pid, deadline: Duration) -> Option<Reaped> {
        if let Ok(reaped) = timeout(deadline, self.children.wait(pid)).await {
            return Some(reaped);
        }
        // It is our child and not reaped, so the pid is still its own.
        let _ = kill(pid, Signal::SIGKILL);
        self.children.wait(pid).await;
        None
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
            || "the launcher could not leave its reason".to_owned(),
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
    use proptest::prelude::*;

    use crate::damage::damaged;

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

    proptest! {
        #[test]
        fn any_log_has_a_cause(log in damaged(LOG.as_bytes()), stderr in "[a-z: \n]{0,20}", code in 1..128) {
            let log = String::from_utf8_lossy(&log);
            let error = failure("create", "c", Status::Exited(code), &log, &stderr).to_string();
            prop_assert!(error.len() > "runsc create c: ".len() || log.contains("\"msg\":\"\""), "{error}");
        }
    }
}
