//! The standard streams of a container or exec, as handed to the sandbox.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, chown};

/// Where the standard streams of a process go.
#[derive(Debug)]
pub enum Stdio {
    /// Nowhere.
    Null,
    /// Each to its own description; an absent one is empty.
    ///
    /// They must be blocking descriptions opened for this process alone: the
    /// sentry shows a set `O_NONBLOCK` to the guest, which loses output, and sets
    /// it itself on what it is given.
    Piped {
        /// To read from.
        stdin: Option<OwnedFd>,
        /// To write to.
        stdout: Option<OwnedFd>,
        /// To write to.
        stderr: Option<OwnedFd>,
    },
    /// A terminal, whose master comes back with the answer.
    Terminal {
        /// Columns; 0 leaves the kernel's default.
        width: u16,
        /// Rows; 0 leaves the kernel's default.
        height: u16,
    },
}

impl Stdio {
    /// Whether a terminal is wanted.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Three open descriptors; a closed one would make runsc of 2022 fail without a word.
    pub(crate) fn into_fds(self) -> io::Result<[OwnedFd; 3]> {
        let (stdin, stdout, stderr) = match self {
            Self::Null | Self::Terminal { .. } => (None, None, None),
            Self::Piped {
                stdin,
                stdout,
                stderr,
            } => (stdin, stdout, stderr),
        };
        let or_null = |fd: Option<OwnedFd>| fd.map_or_else(null, Ok);
        Ok([or_null(stdin)?, or_null(stdout)?, or_null(stderr)?])
    }
}

/// `/dev/null`, for both directions.
pub(crate) fn null() -> io::Result<OwnedFd> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map(File::into)
}

/// Gives `/dev/null` back to root: runsc of 2022 gives every stream of a container
/// to the user it runs as, devices of the host too.
pub(crate) fn give_null_back() {
    /// `nobody`, as whom it runs.
    const NOBODY: u32 = 65534;
    let root = (Some(0), Some(0));
    if std::fs::metadata("/dev/null").is_ok_and(|null| null.uid() == NOBODY)
        && let Err(error) = chown("/dev/null", root.0, root.1)
    {
        log::warn!("/dev/null belongs to nobody and cannot be given back to root: {error}");
    }
}
