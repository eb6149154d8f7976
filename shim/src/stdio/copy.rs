//! The copying between both sides of a stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::Stage;
use super::sink::Sink;
use super::terminal::Terminal;

/// Bytes moved at a time; a pipe holds 64 KiB.
const CHUNK: usize = 32 << 10;

/// How long after the process's exit a pipe that stays open, but silent, is
/// still listened to: somebody in the background holds it. Longer than the 10 s
/// after which the CRI plugin reports such an exec as not drained.
const SILENCE: Duration = Duration::from_secs(15);

/// Container to containerd, through a pipe, until it ends.
pub(super) async fn from_pipe(
    mut source: pipe::Receiver,
    mut sink: Sink,
    mut stage: watch::Receiver<Stage>,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = until_silent(source.read(&mut buffer), &mut stage).await;
        match read {
            None | Some(Ok(0)) => break,
            Some(Ok(count)) => {
                if let Err(error) = sink.write(&buffer[..count]).await {
                    log::warn!("output has no reader: {error}");
                    return;
                }
            }
            Some(Err(error)) => {
                log::warn!("read the container's output: {error}");
                break;
            }
        }
    }
    sink.finish(&mut stage).await;
}

/// containerd to container, through a pipe. The end of the fifo ends the pipe.
pub(super) async fn into_pipe(mut source: pipe::Receiver, mut sink: pipe::Sender) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        // The container may have closed its stdin; that is its right.
        if sink.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Terminal to containerd. Without a sink the terminal is read all the same, or
/// the process would block.
pub(super) async fn from_terminal(
    terminal: Arc<Terminal>,
    mut sink: Option<Sink>,
    mut stage: watch::Receiver<Stage>,
) {
    let mut buffer = vec![0; CHUNK];
    while let Some(Ok(count @ 1..)) = until_silent(terminal.read(&mut buffer), &mut stage).await {
        if let Some(open) = &mut sink
            && let Err(error) = open.write(&buffer[..count]).await
        {
            log::warn!("terminal output has no reader: {error}");
            sink = None;
        }
    }
    // The terminal itself is not held for a reader who comes late.
    drop(terminal);
    if let Some(sink) = sink {
        sink.finish(&mut stage).await;
    }
}

/// containerd to terminal.
pub(super) async fn into_terminal(mut source: pipe::Receiver, terminal: Arc<Terminal>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        if terminal.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits for `read`; `None` if the process has ended and nothing came for
/// [`SILENCE`].
async fn until_silent<T>(
    read: impl Future<Output = T>,
    stage: &mut watch::Receiver<Stage>,
) -> Option<T> {
    let silence = async {
        // The sender lives as long as the streams; without it nobody waits.
        let _ = stage.wait_for(|stage| *stage >= Stage::Exited).await;
        tokio::time::sleep(SILENCE).await;
    };
    tokio::select! {
        biased;
        read = read => Some(read),
        () = silence => None,
    }
}
