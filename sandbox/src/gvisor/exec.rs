//! Runs further processes in containers, by asking the sentry.

mod args;

use std::os::fd::OwnedFd;

use nix::unistd::{Gid, Uid, fchown};
use oci_spec::runtime::Process;
use serde::Serialize;

use super::exit::{Exit, ended, wait_status};
use super::table::{Phase, Sentry};
use super::{Exec, Gvisor};
use crate::error::{Error, Result};
use crate::spec;
use crate::stdio::Stdio;
use crate::terminal;

use args::ExecArgs;

impl Gvisor {
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
}

#[derive(Serialize)]
#[serde(rename_all = "UPPERCASE")]
struct WaitPid<'a> {
    cid: &'a str,
    pid: i32,
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
