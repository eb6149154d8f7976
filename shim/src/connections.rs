//! Who is connected: a shim without tasks stays only for as long as somebody
//! might still want it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Counts connections; clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    ever: AtomicUsize,
}

impl Connections {
    /// Counts `stream` for as long as it lives.
    pub fn count(&self, stream: UnixStream) -> Counted {
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        self.counts.ever.fetch_add(1, Ordering::Relaxed);
        Counted {
            stream,
            counts: Arc::clone(&self.counts),
        }
    }

    /// Whether there was one, and none is left.
    pub fn all_gone(&self) -> bool {
        self.counts.ever.load(Ordering::Relaxed) > 0
            && self.counts.open.load(Ordering::Relaxed) == 0
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub struct Counted {
    stream: UnixStream,
    counts: Arc<Counts>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
