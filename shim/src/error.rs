//! What can go wrong in the shim, and the one mapping to gRPC codes.

use std::path::PathBuf;

use protos::{protobuf, ttrpc};

/// The shim's errors. Each shows its own words only; [`chain`] adds the sources.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is not containerd's.
    #[error("usage: {0}")]
    Usage(String),
    /// What the client sent cannot be meant.
    #[error("{0}")]
    InvalidArgument(String),
    /// No such task or exec.
    #[error("{0}")]
    NotFound(String),
    /// The id is taken.
    #[error("{0}")]
    AlreadyExists(String),
    /// The object is in the wrong state for this call.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The call is understood, but nothing here can do it.
    #[error("{0}")]
    Unimplemented(String),
    /// Something did not answer in its time.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// A file or socket could not be used.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried, for example `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A mount or unmount was refused.
    #[error("{action} {}: {details}", target.display())]
    Mount {
        /// `mount` or `unmount`.
        action: &'static str,
        /// Where.
        target: PathBuf,
        /// Type, source and options as given.
        details: String,
        /// The system's answer.
        source: nix::Error,
    },
    /// A system call without a file failed.
    #[error("{action}")]
    System {
        /// What was tried.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A message could not be decoded or encoded.
    #[error("{what}")]
    Message {
        /// Which message.
        what: String,
        /// The decoder's answer.
        source: protobuf::Error,
    },
    /// A JSON document could not be understood.
    #[error("{what}")]
    Json {
        /// Which document.
        what: String,
        /// The parser's answer, with line and column.
        source: serde_json::Error,
    },
    /// The sandbox refused or failed.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// A cgroup could not be made, limited or removed.
    #[error(transparent)]
    Cgroup(#[from] cgroups::Error),
    /// systemd refused, or cannot be reached.
    #[error("{action}")]
    Systemd {
        /// What was asked.
        action: String,
        /// Its answer.
        source: zbus::Error,
    },
    /// The server could not be started.
    #[error("serve the task API")]
    Serve(#[source] ttrpc::Error),
    /// Result of a call that several callers joined.
    #[error("{message}")]
    Shared {
        /// The whole chain of the first caller's error.
        message: String,
        /// Its code.
        code: ttrpc::Code,
    },
}

/// Result with the shim's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A file error, as a closure for `map_err`.
    pub fn file<P: Into<PathBuf>>(
        action: &'static str,
        path: P,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    /// A failed system call, as a closure for `map_err`.
    pub fn system<E: Into<std::io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }

    /// The gRPC code that containerd reads; everything that is not the
    /// caller's doing is Unknown, as with runc's shim.
    pub fn code(&self) -> ttrpc::Code {
        use ttrpc::Code;
        match self {
            Self::InvalidArgument(_) | Self::Json { .. } | Self::Message { .. } => {
                Code::INVALID_ARGUMENT
            }
            Self::NotFound(_) => Code::NOT_FOUND,
            Self::AlreadyExists(_) => Code::ALREADY_EXISTS,
            Self::FailedPrecondition(_) => Code::FAILED_PRECONDITION,
            Self::Unimplemented(_) => Code::UNIMPLEMENTED,
            Self::DeadlineExceeded(_) => Code::DEADLINE_EXCEEDED,
            Self::Sandbox(error) => of_sandbox(error),
            Self::Cgroup(
                cgroups::Error::Path { .. }
                | cgroups::Error::Resource { .. }
                | cgroups::Error::BelowUsage { .. },
            ) => Code::INVALID_ARGUMENT,
            Self::Cgroup(_) => Code::UNKNOWN,
            Self::Shared { code, .. } => *code,
            Self::Usage(_)
            | Self::File { .. }
            | Self::Mount { .. }
            | Self::System { .. }
            | Self::Systemd { .. }
            | Self::Serve(_) => Code::UNKNOWN,
        }
    }

    /// The same error for a second caller of the same work.
    pub fn shared(&self) -> Self {
        Self::Shared {
            message: chain(self),
            code: self.code(),
        }
    }
}

/// The codes of the sandbox's errors.
fn of_sandbox(error: &sandbox::Error) -> ttrpc::Code {
    use sandbox::Error;
    use ttrpc::Code;
    match error {
        Error::NotFound { .. } | Error::SandboxGone { .. } => Code::NOT_FOUND,
        Error::AlreadyExists { .. } => Code::ALREADY_EXISTS,
        Error::WrongState { .. } => Code::FAILED_PRECONDITION,
        Error::Spec { .. } => Code::INVALID_ARGUMENT,
        Error::CommandDeadline { .. } | Error::Unresponsive { .. } => Code::DEADLINE_EXCEEDED,
        Error::Platform { .. } => Code::FAILED_PRECONDITION,
        Error::Unsupported { .. } => Code::UNIMPLEMENTED,
        Error::Runsc { .. }
        | Error::Launch { .. }
        | Error::Refused { .. }
        | Error::Answer { .. }
        | Error::Io { .. } => Code::UNKNOWN,
    }
}

impl From<Error> for ttrpc::Error {
    fn from(error: Error) -> Self {
        Self::RpcStatus(ttrpc::get_status(error.code(), chain(&error)))
    }
}

/// The error with all its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Some libraries already print their source.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_every_cause_once() {
        let error = Error::File {
            action: "read",
            path: "/x/config.json".into(),
            source: std::io::Error::from_raw_os_error(2),
        };
        assert_eq!(
            chain(&error),
            "read /x/config.json: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn a_shared_error_keeps_its_code_and_words() {
        let error = Error::NotFound("task a is not here".into());
        let shared = error.shared();
        assert_eq!(shared.code(), ttrpc::Code::NOT_FOUND);
        assert_eq!(chain(&shared), "task a is not here");
    }
}
