//! The socket over which runsc hands out the master of a container's terminal.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixListener;
use tokio::time::timeout;

/// Runsc has sent the master before its `create` ends; this is for the last hop.
const DELIVERY: Duration = Duration::from_secs(5);

/// A socket in a directory of ours, removed when dropped.
#[derive(Debug)]
pub(crate) struct Console {
    listener: UnixListener,
    path: PathBuf,
    /// Makes the path short enough for a socket address, however long it is.
    dir: OwnedFd,
}

impl Console {
    pub(crate) fn bind(dir: &Path) -> io::Result<Self> {
        let path = dir.join("console.sock");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(dir, flags, Mode::empty())?;
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/console.sock", dir.as_raw_fd()))?;
        Ok(Self {
            listener,
            path,
            dir,
        })
    }

    /// The path for `--console-socket`.
    pub(crate) fn address(&self) -> String {
        format!(
            "/proc/{}/fd/{}/console.sock",
            std::process::id(),
            self.dir.as_raw_fd()
        )
    }

    /// The master that runsc has sent.
    pub(crate) async fn receive(self) -> io::Result<OwnedFd> {
        let received = timeout(DELIVERY, async {
            let (stream, _) = self.listener.accept().await?;
            stream
                .async_io(Interest::READABLE, || receive_fd(&stream))
                .await
        });
        received.await.unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "runsc sent no terminal",
            ))
        })
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn receive_fd(socket: &tokio::net::UnixStream) -> io::Result<OwnedFd> {
    // One message, whose bytes ("pty-master") only carry the descriptor.
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "runsc's message had no terminal",
            )
        })
}
