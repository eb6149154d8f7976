//! The master of a process's terminal, read and written without blocking.

use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use sandbox::terminal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;

/// A terminal, and where the signals go that its keys mean.
#[derive(Debug)]
pub(super) struct Terminal {
    master: AsyncFd<OwnedFd>,
    /// Where nobody in the sandbox hears of keys and sizes, they are sent here,
    /// for the foreground group.
    signals: Option<UnboundedSender<Signal>>,
}

impl Terminal {
    pub(super) fn new(
        master: OwnedFd,
        signals: Option<UnboundedSender<Signal>>,
    ) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&master, FcntlArg::F_GETFL)?);
        fcntl(&master, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        #[expect(
            deprecated,
            reason = "sound for an OwnedFd, which is what it holds; its successor is unsafe to call"
        )]
        let master = AsyncFd::new(master)?;
        Ok(Self { master, signals })
    }

    /// Reads what the process wrote. The end, and the error that the kernel
    /// gives when the other side is closed, are both 0.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self
            .master
            .async_io(Interest::READABLE, |master| {
                Ok(nix::unistd::read(master, buffer)?)
            })
            .await;
        match read {
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => Ok(0),
            read => read,
        }
    }

    /// Types `bytes`.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        if self.signals.is_some() {
            for signal in terminal::typed_signals(self.master.get_ref(), bytes)? {
                self.signal(signal);
            }
        }
        while !bytes.is_empty() {
            let written = self
                .master
                .async_io(Interest::WRITABLE, |master| {
                    Ok(nix::unistd::write(master, bytes)?)
                })
                .await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    pub(super) fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        terminal::resize(self.master.get_ref(), width, height)?;
        self.signal(Signal::SIGWINCH);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(signals) = &self.signals {
            // Without a receiver the process is gone.
            let _ = signals.send(signal);
        }
    }
}
