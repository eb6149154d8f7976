//! Where output goes: a fifo of containerd's, a file, or a pipe.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;

use crate::error::{Error, Result};

/// An open destination.
#[derive(Debug)]
pub(super) enum Sink {
    /// A fifo, or the pipe to a log program. A fifo is open for reading too, so
    /// that a reader who comes late, or again, misses nothing.
    Pipe(pipe::Sender),
    /// A file, appended to.
    File(tokio::fs::File),
}

impl Sink {
    /// Opens what `path` names; `None` for an empty path.
    ///
    /// # Errors
    /// An unknown scheme, or the system's refusal.
    pub(super) async fn open(path: &str) -> Result<Option<Self>> {
        if path.is_empty() {
            return Ok(None);
        }
        match path.split_once("://") {
            None | Some(("fifo", _)) => {
                let path = path.strip_prefix("fifo://").unwrap_or(path);
                let sender = pipe::OpenOptions::new()
                    .read_write(true)
                    .open_sender(path)
                    .map_err(Error::file("write to", path))?;
                Ok(Some(Self::Pipe(sender)))
            }
            Some(("file", path)) => Ok(Some(Self::File(append(Path::new(path)).await?))),
            Some((scheme, _)) => Err(Error::InvalidArgument(format!(
                "output to {path:?}: the scheme {scheme} is not known; use a fifo, file:// or binary://"
            ))),
        }
    }

    /// Writes all of `bytes`. A file that cannot take them (a full disk) loses
    /// them: the container must not be stopped for its log.
    ///
    /// # Errors
    /// The pipe has no reader any more.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Pipe(sender) => sender.write_all(bytes).await,
            Self::File(file) => {
                let written = async {
                    file.write_all(bytes).await?;
                    file.flush().await
                };
                if let Err(error) = written.await {
                    log::warn!("{} bytes of output are lost: {error}", bytes.len());
                }
                Ok(())
            }
        }
    }
}

async fn append(path: &Path) -> Result<tokio::fs::File> {
    if let Some(directory) = path.parent() {
        tokio::fs::create_dir_all(directory)
            .await
            .map_err(Error::file("create", directory))?;
    }
    tokio::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)
        .await
        .map_err(Error::file("append to", PathBuf::from(path)))
}

/// Opens a fifo for writing; somebody must have it open for reading.
pub(super) fn open_nonblocking(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
}
