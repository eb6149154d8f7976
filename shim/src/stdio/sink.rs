//! Where output goes: a fifo of containerd's, a file, or a pipe.

use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::Stage;
use crate::error::{Error, Result};

/// An open destination.
#[derive(Debug)]
pub(super) enum Sink {
    /// A fifo. It is open for reading too, so that a reader who comes late, or
    /// again, misses nothing: see [`Sink::finish`].
    Fifo(pipe::Sender, PathBuf),
    /// The pipe to a log program.
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
                Ok(Some(Self::Fifo(sender, path.into())))
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
            Self::Fifo(sender, _) | Self::Pipe(sender) => sender.write_all(bytes).await,
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

    /// Closes it. What is in a fifo is gone when nobody has it open any more, and
    /// a client that opens it only after that waits for ever. A short exec can be
    /// over before its client has come that far, so a reader is waited for; but
    /// not once the client has deleted the process.
    pub(super) async fn finish(self, stage: &mut watch::Receiver<Stage>) {
        let Self::Fifo(both_ways, path) = self else {
            return;
        };
        let Ok(writing) = open_nonblocking(&path) else {
            return;
        };
        drop(both_ways);
        let reader = async {
            while !has_reader(&writing) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = reader => {}
            _ = stage.wait_for(|stage| *stage == Stage::Closing) => {}
            () = tokio::time::sleep(LATEST_READER) => {}
        }
    }
}

/// How often a fifo without a reader is looked at (the kernel does not tell), and
/// how long one may be late: as long as containerd waits for a shim to answer.
const LOOK: Duration = Duration::from_millis(5);
const LATEST_READER: Duration = Duration::from_secs(100);

/// Whether somebody has the fifo open for reading (poll(2), POLLERR).
fn has_reader(writing: &std::fs::File) -> bool {
    let mut polled = [PollFd::new(writing.as_fd(), PollFlags::POLLOUT)];
    let answered = poll(&mut polled, PollTimeout::ZERO).is_ok();
    let gone = polled[0]
        .revents()
        .is_some_and(|events| events.contains(PollFlags::POLLERR));
    answered && !gone
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

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    async fn sink_at(path: &Path) -> Sink {
        nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
        let mut sink = Sink::open(path.to_str().unwrap()).await.unwrap().unwrap();
        sink.write(b"ok").await.unwrap();
        sink
    }

    /// An exec is over before its client has opened the fifo.
    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_who_comes_after_the_end_gets_it_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stdout");
        let sink = sink_at(&path).await;
        let (_stage, mut staged) = watch::channel(Stage::Exited);
        let finished = tokio::spawn(async move { sink.finish(&mut staged).await });
        tokio::task::yield_now().await;
        let read = tokio::task::spawn_blocking(move || std::fs::read(path));
        assert_eq!(read.await.unwrap().unwrap(), b"ok");
        finished.await.unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_client_that_deletes_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let sink = sink_at(&directory.path().join("stdout")).await;
        let (stage, mut staged) = watch::channel(Stage::Exited);
        let finished = tokio::spawn(async move { sink.finish(&mut staged).await });
        tokio::task::yield_now().await;
        assert!(!finished.is_finished());
        stage.send_replace(Stage::Closing);
        finished.await.unwrap();
    }
}
