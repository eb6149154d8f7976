//! The sandbox's control protocol: JSON with descriptors over a unix socket.
//!
//! One connection per call, closed with its answer: a connection that is only
//! left open delays the end of the sentry by 15 s.

use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};

/// More than any answer has; a sentry is not trusted with our memory.
const LONGEST_ANSWER: usize = 16 << 20;

/// Longest path that fits a socket address (`sun_path`, with its final zero).
const LONGEST_ADDRESS: usize = 107;

/// Descriptors that go with one call at most: the three standard streams.
const MOST_FDS: usize = 3;

/// Pause before another try to connect to a sandbox that takes no connection.
const RETRY: Duration = Duration::from_millis(50);

/// Where a sandbox listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A socket file.
    File(PathBuf),
    /// The abstract name that runsc of 2022 binds, in its network namespace.
    Abstract(String),
}

/// Calls one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    sandbox_id: String,
    address: Address,
}

#[derive(Serialize)]
struct Call<'a, A> {
    method: &'a str,
    arg: &'a A,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    err: String,
    #[serde(default)]
    result: serde_json::Value,
}

impl Control {
    pub(crate) fn new(sandbox_id: &str, address: Address) -> Self {
        Self {
            sandbox_id: sandbox_id.to_owned(),
            address,
        }
    }

    /// Calls `method`; no answer after `deadline` is an error, None waits for ever.
    pub(crate) async fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        method: &'static str,
        arg: &A,
        fds: &[OwnedFd],
        deadline: Option<Duration>,
    ) -> Result<R> {
        let id = || self.sandbox_id.clone();
        let exchange = self.exchange(method, arg, fds);
        let answer = match deadline {
            None => exchange.await,
            Some(after) => timeout(after, exchange)
                .await
                .map_err(|_| Error::Unresponsive {
                    id: id(),
                    method,
                    after,
                })?,
        };
        let answer = answer.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Error::Answer {
                id: id(),
                method,
                cause: error.to_string(),
            },
            // It says nothing of the sandbox.
            _ if is_our_own_want(&error) => {
                Error::io("connect to", self.address.to_string())(error)
            }
            _ => Error::SandboxGone {
                id: id(),
                method,
                cause: error.to_string(),
            },
        })?;
        if !answer.success {
            return Err(Error::Refused {
                id: id(),
                method,
                cause: answer.err,
            });
        }
        serde_json::from_value(answer.result).map_err(|error| Error::Answer {
            id: id(),
            method,
            cause: error.to_string(),
        })
    }

    async fn exchange<A: Serialize>(
        &self,
        method: &str,
        arg: &A,
        fds: &[OwnedFd],
    ) -> io::Result<Answer> {
        let request = serde_json::to_vec(&Call { method, arg })?;
        let mut stream = loop {
            match self.connect().await {
                // A sentry that stands still takes no more connections once as
                // many wait as it has room for. It is not gone.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
                other => break other?,
            }
        };
        let sent = send_with_fds(&stream, &request, fds).await?;
        stream.write_all(&request[sent..]).await?;
        read_answer(&mut stream).await
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        match &self.address {
            Address::File(path) => connect_file(path).await,
            // The final zero is part of the name.
            Address::Abstract(name) => UnixStream::connect(format!("\0{name}\0")).await,
        }
    }
}

/// Whether it is this process, or the host, that lacks something.
fn is_our_own_want(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
    )
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

async fn connect_file(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= LONGEST_ADDRESS {
        return UnixStream::connect(path).await;
    }
    let socket = nix::fcntl::open(
        path,
        nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )?;
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

/// Sends the start of `bytes`, with `fds` attached to the first; how many were sent.
async fn send_with_fds(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(io::Error::other("too many descriptors for one call"));
            }
            let bytes = [IoSlice::new(bytes)];
            Ok(sendmsg(
                stream,
                &bytes,
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )?)
        })
        .await
}

/// Reads one JSON value; there is no length before and no end after it.
async fn read_answer(stream: &mut UnixStream) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "closed without an answer",
            ));
        }
        if let Some(answer) = parse(&bytes) {
            return answer;
        }
    }
}

/// The answer that `bytes` begin with; None if there has to be more of it.
fn parse(bytes: &[u8]) -> Option<io::Result<Answer>> {
    let invalid = |error| Some(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
    let more = bytes.len() < LONGEST_ANSWER;
    let mut answers = serde_json::Deserializer::from_slice(bytes).into_iter();
    match answers.next() {
        Some(Ok(answer)) => Some(Ok(answer)),
        Some(Err(error)) if error.is_eof() && more => None,
        None if more => None,
        Some(Err(error)) => invalid(error.to_string()),
        None => invalid("only blanks".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;
    use serde_json::json;
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    /// A sentry that answers one call with `pieces`, then closes; returns the request.
    fn sentry(path: &Path, pieces: &'static [&'static str]) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = serde_json::Deserializer::from_reader(stream.try_clone().unwrap())
                .into_iter::<serde_json::Value>();
            let request = requests.next().unwrap().unwrap().to_string();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).unwrap();
            }
            request
        })
    }

    async fn call(pieces: &'static [&'static str]) -> (Result<u32>, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let thread = sentry(&path, pieces);
        let control = Control::new("s1", Address::File(path));
        let result = control
            .call("m.Wait", &"c1", &[], Some(Duration::from_secs(10)))
            .await;
        (result, thread.join().unwrap())
    }

    #[tokio::test]
    async fn an_answer_may_come_in_pieces() {
        let (result, request) =
            call(&["{\"success\":tr", "ue,\"err\":\"\",\"res", "ult\":2304}\n"]).await;
        assert_eq!(result.unwrap(), 0x900);
        assert_eq!(
            request,
            json!({"method": "m.Wait", "arg": "c1"}).to_string()
        );
    }

    #[tokio::test]
    async fn failures_are_told_apart() {
        let (result, _) = call(&["{\"success\":false,\"err\":\"no c1\",\"result\":null}"]).await;
        assert_eq!(result.unwrap_err().to_string(), "sandbox s1: m.Wait: no c1");
        let (result, _) = call(&["{\"success\":tr"]).await;
        assert!(
            matches!(result.unwrap_err(), Error::SandboxGone { .. }),
            "closed half-way"
        );
        let (result, _) = call(&["nonsense"]).await;
        assert!(matches!(result.unwrap_err(), Error::Answer { .. }));
        let (result, _) = call(&["{\"success\":true,\"result\":\"x\"}"]).await;
        assert!(
            matches!(result.unwrap_err(), Error::Answer { .. }),
            "not a number"
        );
    }

    #[tokio::test]
    async fn a_path_longer_than_an_address_works() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(LONGEST_ADDRESS));
        std::fs::create_dir(&deep).unwrap();
        let short = dir.path().join("s.sock");
        let thread = sentry(&short, &["{\"success\":true,\"err\":\"\",\"result\":7}"]);
        let long = deep.join("s.sock");
        std::fs::rename(&short, &long).unwrap();
        let control = Control::new("s1", Address::File(long));
        let answer: u32 = control.call("m.Wait", &"c1", &[], None).await.unwrap();
        assert_eq!(answer, 7);
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn a_full_queue_of_connections_is_silence_and_no_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // As many as wait: what the standard library asks for is more.
        rustix::net::listen(&listener, 1).unwrap();
        let waiting: Vec<_> = (0..2).map(|_| connect_file(&path)).collect();
        let _held = futures_of(waiting).await;
        let control = Control::new("s1", Address::File(path));
        let result: Result<u32> = control
            .call("m.Wait", &"c1", &[], Some(Duration::from_millis(200)))
            .await;
        assert!(
            matches!(result, Err(Error::Unresponsive { .. })),
            "{result:?}"
        );
    }

    async fn futures_of(
        connections: Vec<impl Future<Output = io::Result<UnixStream>>>,
    ) -> Vec<UnixStream> {
        let mut open = Vec::new();
        for connection in connections {
            open.push(connection.await.unwrap());
        }
        open
    }

    #[tokio::test]
    async fn silence_ends_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let control = Control::new("s1", Address::File(path));
        let after = Some(Duration::from_millis(20));
        let error = control
            .call::<_, u32>("m.Wait", &"c1", &[], after)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unresponsive { .. }), "{error}");
    }

    const SAMPLE: &[u8] = br#"{"success":true,"err":"","result":{"a":[1,2,"x"],"b":null}}"#;

    proptest! {
        #[test]
        fn any_answer_is_understood_once_it_is_whole(end in 0..SAMPLE.len()) {
            prop_assert!(parse(&SAMPLE[..end]).is_none());
            prop_assert!(parse(SAMPLE).unwrap().unwrap().success);
        }

        #[test]
        fn any_damaged_answer_is_one_or_refused(bytes in damaged(SAMPLE)) {
            if let Some(Err(error)) = parse(&bytes) {
                prop_assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            }
        }
    }
}
