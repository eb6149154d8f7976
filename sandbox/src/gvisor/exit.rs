//! How containers and execs end, and how that is learnt.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::sync::watch;

use super::table::Sentry;
use crate::children::{Reaped, Status};
use crate::error::{Error, Result};

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

/// The code of a process that ended with its sandbox, as if by SIGKILL.
const LOST: u32 = 128 + 9;

/// Pause before a sentry is asked again that could not be asked.
const RETRY: Duration = Duration::from_millis(500);

/// The code of a container whose start failed, as `runsc` itself ends then.
const START_FAILED: u32 = 128;

impl Exit {
    /// The end of the first container, which is that of the sentry.
    pub(super) fn of_sentry(reaped: Reaped, ended_by: Option<i32>) -> Self {
        let at = reaped.at;
        match (reaped.status, ended_by) {
            // Also after a signal in the guest: the sentry exits with 128 + n then.
            (Status::Exited(code), _) => Self {
                code: u32::try_from(code).unwrap_or(255),
                at,
                by_sandbox_death: false,
            },
            (Status::Signaled(_), Some(signal)) => Self::signalled(signal, at),
            (Status::Signaled(signal), None) => Self {
                by_sandbox_death: true,
                ..Self::signalled(signal, at)
            },
        }
    }

    /// The end of a process that was not there any more when its sandbox went.
    pub(super) fn lost(at: SystemTime) -> Self {
        Self {
            code: LOST,
            at,
            by_sandbox_death: true,
        }
    }

    pub(super) fn signalled(signal: i32, at: SystemTime) -> Self {
        Self {
            code: 128 + signal.unsigned_abs(),
            at,
            by_sandbox_death: false,
        }
    }

    pub(super) fn start_failed(at: SystemTime) -> Self {
        Self {
            code: START_FAILED,
            at,
            by_sandbox_death: false,
        }
    }

    /// The end that a wait status of the sentry says (`wait(2)`: code or signal).
    pub(super) fn of_wait_status(status: u32, at: SystemTime) -> Self {
        let signal = status & 0x7f;
        let code = if signal == 0 {
            status >> 8 & 0xff
        } else {
            128 + signal
        };
        Self {
            code,
            at,
            by_sandbox_death: false,
        }
    }
}

/// Asks the sentry for the end of a process, for as long as that takes.
pub(super) async fn wait_status<A: Serialize>(
    sentry: &Sentry,
    method: &'static str,
    arg: &A,
) -> Exit {
    loop {
        let answer: Result<u32> = sentry.control.call(method, arg, &[], None).await;
        let at = SystemTime::now();
        match answer {
            Ok(status) => return Exit::of_wait_status(status, at),
            // It could not be asked, for want of a descriptor: it may live.
            Err(Error::Io { .. }) => tokio::time::sleep(RETRY).await,
            Err(error) => {
                log::debug!("{method}: {error}");
                return Exit::lost(at);
            }
        }
    }
}

pub(super) async fn ended(
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

#[cfg(test)]
mod tests {
    use super::*;

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn statuses_become_codes() {
        for (status, code) in [
            (0, 0),
            (0x300, 3),
            (0xff00, 255),
            (9, 137),
            (11 | 0x80, 139),
        ] {
            assert_eq!(Exit::of_wait_status(status, AT).code, code, "{status:#x}");
        }
    }

    #[test]
    fn a_killed_sentry_is_told_from_a_killed_guest() {
        let of = |status, by| {
            let exit = Exit::of_sentry(Reaped { status, at: AT }, by);
            (exit.code, exit.by_sandbox_death)
        };
        assert_eq!(of(Status::Exited(137), None), (137, false));
        assert_eq!(of(Status::Signaled(9), None), (137, true));
        assert_eq!(
            of(Status::Signaled(9), Some(15)),
            (143, false),
            "killed before its start"
        );
    }
}
