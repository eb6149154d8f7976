//! What can go wrong with a sandbox, in words an operator can act on.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a sandbox or one of its containers could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container or the process does not exist, or exists no more.
    #[error("{object} is not there (any more)")]
    NotFound {
        /// What was looked for.
        object: String,
    },

    /// A container of this id was created before and not yet deleted.
    #[error("container {id} exists already: delete it first")]
    AlreadyExists {
        /// The container.
        id: String,
    },

    /// The container is not in the state that the operation needs.
    #[error("cannot {action} container {id}: it is {state}")]
    WrongState {
        /// The container.
        id: String,
        /// What was asked.
        action: &'static str,
        /// The state it is in.
        state: &'static str,
    },

    /// The OCI spec or process asks for something no sandbox can run.
    #[error("the spec of {id} cannot be run: {field}: {cause}")]
    Spec {
        /// The container.
        id: String,
        /// The field as it is written in config.json.
        field: &'static str,
        /// What is wrong with it.
        cause: String,
    },

    /// A `runsc` command failed; the cause is runsc's own first error.
    #[error("runsc {verb} {id}: {cause}")]
    Runsc {
        /// The command.
        verb: &'static str,
        /// The container.
        id: String,
        /// The first error line of its log, else of its standard error.
        cause: String,
    },

    /// A `runsc` command did not end in time and was killed.
    #[error(
        "runsc {verb} {id} did not end within {after:?} and was killed: is the sandbox stopped?"
    )]
    CommandDeadline {
        /// The command.
        verb: &'static str,
        /// The container.
        id: String,
        /// How long it was given.
        after: Duration,
    },

    /// The launcher could not bring the process into its cgroup, or not start it.
    #[error("starting runsc {verb} {id} in its cgroup: {cause}")]
    Launch {
        /// The command.
        verb: &'static str,
        /// The container.
        id: String,
        /// The launcher's message: the directory or program, and the cause.
        cause: String,
    },

    /// The sandbox's sentry did not answer in time.
    #[error(
        "sandbox {id}: {method} was not answered within {after:?}: is the sentry stopped or paused?"
    )]
    Unresponsive {
        /// The sandbox.
        id: String,
        /// The control method.
        method: &'static str,
        /// How long it was given.
        after: Duration,
    },

    /// The sandbox's sentry is gone, or ended while it was asked.
    #[error("sandbox {id} is gone ({method}: {cause})")]
    SandboxGone {
        /// The sandbox.
        id: String,
        /// The control method.
        method: &'static str,
        /// What the connection said.
        cause: String,
    },

    /// The sentry refused a call; the cause is its own text.
    #[error("sandbox {id}: {method}: {cause}")]
    Refused {
        /// The sandbox.
        id: String,
        /// The control method.
        method: &'static str,
        /// The sentry's text.
        cause: String,
    },

    /// The sentry answered with something that is not understood.
    #[error(
        "sandbox {id}: {method} answered with something unknown: {cause}; is this runsc supported?"
    )]
    Answer {
        /// The sandbox.
        id: String,
        /// The control method.
        method: &'static str,
        /// What could not be read.
        cause: String,
    },

    /// This runsc cannot do it.
    #[error("runsc of 2022 cannot {action}: use a current one")]
    Unsupported {
        /// What was asked.
        action: &'static str,
    },

    /// The platform that was asked for does not work on this host.
    #[error("runsc platform {platform} does not work here: {cause}")]
    Platform {
        /// The platform.
        platform: &'static str,
        /// What the probe saw.
        cause: String,
    },

    /// A file or directory could not be used.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: an input/output error with what was done and to which file.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
