//! ttrpc as it is on the wire: a header of ten bytes, then a protobuf message.
//!
//! Written out here instead of taken from the crate that the shim uses, so that
//! both ends of a conversation are not the same code.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use protos::protobuf::Message;
use protos::ttrpc::{Request, Response};

use crate::wait;

/// Type of a frame that holds a request.
pub const REQUEST: u8 = 1;
/// Type of a frame that holds a response.
pub const RESPONSE: u8 = 2;

/// The task service that containerd 1.x asks for.
pub const TASK_V2: &str = "containerd.task.v2.Task";
/// The task service that containerd 2.x prefers.
pub const TASK_V3: &str = "containerd.task.v3.Task";

/// gRPC's codes, as far as containerd acts on them.
pub mod code {
    /// The argument can never be right.
    pub const INVALID_ARGUMENT: i32 = 3;
    /// The limit of time has passed.
    pub const DEADLINE_EXCEEDED: i32 = 4;
    /// No such task or exec.
    pub const NOT_FOUND: i32 = 5;
    /// There is one already.
    pub const ALREADY_EXISTS: i32 = 6;
    /// Not in this state.
    pub const FAILED_PRECONDITION: i32 = 9;
    /// No such service or method.
    pub const UNIMPLEMENTED: i32 = 12;
    /// Not now.
    pub const UNAVAILABLE: i32 = 14;
}

/// A call that was answered with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`code`].
    pub code: i32,
    /// What went wrong.
    pub message: String,
}

/// A connection to a ttrpc server; one call at a time.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    next: u32,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    ///
    /// The system's, when no one listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(wait::LIMIT))?;
        Ok(Self { stream, next: 1 })
    }

    /// Calls a method and waits for its answer.
    ///
    /// # Errors
    ///
    /// What the server answered, if not OK.
    ///
    /// # Panics
    ///
    /// If the connection breaks or stays silent for [`wait::LIMIT`].
    pub fn call<A: Message>(
        &mut self,
        service: &str,
        method: &str,
        request: &impl Message,
    ) -> Result<A, Refusal> {
        let answer = self
            .try_call(service, method, request)
            .unwrap_or_else(|error| panic!("{service}/{method}: {error}"));
        let status = answer.status();
        if status.code() as i32 != 0 {
            return Err(Refusal {
                code: status.code() as i32,
                message: status.message().to_owned(),
            });
        }
        Ok(A::parse_from_bytes(&answer.payload)
            .unwrap_or_else(|error| panic!("the answer of {method} is no such message: {error}")))
    }

    /// Sends a call without waiting for its answer, and gives its stream.
    ///
    /// # Errors
    ///
    /// The system's, when the connection is broken.
    pub fn send(&mut self, service: &str, method: &str, request: &impl Message) -> io::Result<u32> {
        let call = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: request.write_to_bytes()?,
            ..Request::default()
        };
        let stream = self.next;
        self.next += 2;
        write_frame(&mut self.stream, stream, REQUEST, &call.write_to_bytes()?)?;
        Ok(stream)
    }

    /// As [`Self::call`], where the connection may break.
    ///
    /// # Errors
    ///
    /// The system's, when it does.
    pub fn try_call(
        &mut self,
        service: &str,
        method: &str,
        request: &impl Message,
    ) -> io::Result<Response> {
        let stream = self.send(service, method, request)?;
        self.answer(stream)
    }

    /// Waits for the answer to what was sent as `stream`; other answers that come
    /// before it are dropped.
    ///
    /// # Errors
    ///
    /// The system's, when the connection breaks.
    pub fn answer(&mut self, stream: u32) -> io::Result<Response> {
        loop {
            let (of, kind, payload) = read_frame(&mut self.stream)?;
            if of == stream && kind == RESPONSE {
                return Ok(Response::parse_from_bytes(&payload)?);
            }
        }
    }
}

/// Reads one frame: its stream, its type and its payload.
///
/// # Errors
///
/// The system's, at the end of the stream too.
pub fn read_frame(stream: &mut UnixStream) -> io::Result<(u32, u8, Vec<u8>)> {
    let mut header = [0; 10];
    stream.read_exact(&mut header)?;
    let [a, b, c, d, e, f, g, h, kind, _flags] = header;
    let length = u32::from_be_bytes([a, b, c, d]);
    let mut payload = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    stream.read_exact(&mut payload)?;
    Ok((u32::from_be_bytes([e, f, g, h]), kind, payload))
}

/// Writes one frame.
///
/// # Errors
///
/// The system's.
pub fn write_frame(stream: &mut UnixStream, of: u32, kind: u8, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(10 + payload.len());
    frame.extend(length.to_be_bytes());
    frame.extend(of.to_be_bytes());
    frame.extend([kind, 0]);
    frame.extend(payload);
    stream.write_all(&frame)
}
