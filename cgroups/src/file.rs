//! The only door to the kernel's files: every error carries path and value.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use nix::errno::Errno;

use crate::error::{Error, Result};

/// The whole of a file.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })
}

/// The whole of a file, or nothing if it cannot be had. For statistics, where
/// an absent figure is absent and not an error.
pub(crate) fn read_if_there(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Writes `value` in one `write(2)`, as cgroup files want it. Never makes a
/// file: a name that the kernel does not know is an error.
pub(crate) fn write(path: &Path, value: &str) -> Result<()> {
    try_write(path, value).map_err(|source| Error::Write {
        path: path.into(),
        value: value.into(),
        source,
    })
}

/// As [`fn@write`], with the bare reason, for callers that have an answer to some.
pub(crate) fn try_write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    loop {
        match file.write(value.as_bytes()) {
            Ok(n) if n == value.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether the kernel's reason is one of `errnos`.
pub(crate) fn is(error: &io::Error, errnos: &[Errno]) -> bool {
    error
        .raw_os_error()
        .is_some_and(|raw| errnos.contains(&Errno::from_raw(raw)))
}

/// Whether the file or its file system is not there (any more).
pub(crate) fn gone(error: &io::Error) -> bool {
    is(error, &[Errno::ENOENT, Errno::ENODEV])
}
