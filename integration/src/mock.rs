//! A stand-in for containerd's event service, with the faults that a real one
//! shows only now and then.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use protos::events::{
    Envelope, ForwardRequest, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit,
    TaskOOM, TaskPaused, TaskResumed, TaskStart,
};
use protos::metric::Metric;
use protos::protobuf::Message;
use protos::ttrpc::{Code, Request, Response, Status};

use crate::host::Host;
use crate::wire::{RESPONSE, read_frame, write_frame};
use crate::{skip, tools, wait};

/// How the service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// At once.
    Prompt,
    /// After this time.
    Slow(Duration),
    /// With an error, without recording.
    Failing,
}

/// An event as it was forwarded, with the fields that tests ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// containerd's namespace.
    pub namespace: String,
    /// `/tasks/start` and the like.
    pub topic: String,
    /// Seconds since the epoch.
    pub seconds: i64,
    /// The container, where the topic has one.
    pub container: String,
    /// The exec; for exits the process, which is the container's id for init.
    pub process: String,
    /// The exit status, for exits and deletes.
    pub exit_status: u32,
}

/// The service; it stops when dropped.
#[derive(Debug)]
pub struct MockContainerd {
    path: PathBuf,
    shared: Arc<Mutex<Shared>>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    mood: Mood,
    open: bool,
    envelopes: Vec<Envelope>,
    connections: Vec<UnixStream>,
}

impl MockContainerd {
    /// A corner and one in it, for tests of what Rampart alone promises: with another
    /// shim the test is skipped for `reason`.
    pub fn for_rampart(reason: &str) -> Option<(Host, Self)> {
        if !tools::is_rampart() {
            skip(reason);
            return None;
        }
        Self::in_corner()
    }

    /// A corner and one in it, or nothing where there is no shim to drive.
    pub fn in_corner() -> Option<(Host, Self)> {
        if !tools::shim().exists() {
            skip("the shim is not built: cargo build -p shim");
            return None;
        }
        let host = Host::new()?;
        let mock = Self::start(&host.directory().join("events.sock"));
        Some((host, mock))
    }

    /// Listens at `path`.
    pub fn start(path: &Path) -> Self {
        let mut mock = Self {
            path: path.to_owned(),
            shared: Arc::new(Mutex::new(Shared {
                mood: Mood::Prompt,
                open: false,
                envelopes: Vec::new(),
                connections: Vec::new(),
            })),
            acceptor: None,
        };
        mock.listen();
        mock
    }

    /// Where it listens, for `TTRPC_ADDRESS`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes how it answers.
    pub fn set_mood(&self, mood: Mood) {
        lock(&self.shared).mood = mood;
    }

    /// Breaks every connection and is no longer there, as a stopped containerd.
    pub fn stop(&mut self) {
        let connections = {
            let mut shared = lock(&self.shared);
            shared.open = false;
            std::mem::take(&mut shared.connections)
        };
        for connection in connections {
            let _closed_by_the_shim = connection.shutdown(std::net::Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            // Wakes it from its wait for a connection.
            let _refused_if_already_gone = UnixStream::connect(&self.path);
            let _panic_was_printed = acceptor.join();
        }
        let _never_bound = fs::remove_file(&self.path);
    }

    /// Is there again after [`Self::stop`], with what it recorded.
    pub fn listen(&mut self) {
        let listener = UnixListener::bind(&self.path)
            .unwrap_or_else(|error| panic!("cannot listen at {}: {error}", self.path.display()));
        lock(&self.shared).open = true;
        let shared = Arc::clone(&self.shared);
        self.acceptor = Some(thread::spawn(move || accept(&listener, &shared)));
    }

    /// What was forwarded so far, in the order in which it came.
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared).envelopes.iter().map(record).collect()
    }

    /// What was forwarded so far, as it came.
    pub fn envelopes(&self) -> Vec<Envelope> {
        lock(&self.shared).envelopes.clone()
    }

    /// The topics of one container without the leading `/tasks/`, in order; own
    /// ones that are not of its life are left out.
    pub fn topics(&self, container: &str) -> Vec<String> {
        self.recorded()
            .iter()
            .filter(|event| event.container == container)
            .filter_map(|event| event.topic.strip_prefix("/tasks/"))
            .filter(|topic| !["metrics", "devices"].contains(topic))
            .map(str::to_owned)
            .collect()
    }

    /// Waits for `topic` (without `/tasks/`) of `container`.
    #[track_caller]
    pub fn wait_for(&self, topic: &str, container: &str) -> Recorded {
        let topic = format!("/tasks/{topic}");
        wait::within(wait::LIMIT, || {
            self.recorded()
                .into_iter()
                .find(|event| event.topic == topic && event.container == container)
        })
        .unwrap_or_else(|| panic!("no {topic} of {container}, but {:#?}", self.recorded()))
    }
}

impl Drop for MockContainerd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Mutex<Shared>>) {
    while let Ok((stream, _)) = listener.accept() {
        let mut state = lock(shared);
        if !state.open {
            return;
        }
        state
            .connections
            .push(stream.try_clone().expect("another handle of a connection"));
        let shared = Arc::clone(shared);
        thread::spawn(move || serve(stream, &shared));
    }
}

fn serve(mut stream: UnixStream, shared: &Mutex<Shared>) {
    while let Ok((of, _, payload)) = read_frame(&mut stream) {
        let answer = match Request::parse_from_bytes(&payload) {
            Ok(request) => answer(&request, shared),
            Err(error) => Err(refusal(Code::INVALID_ARGUMENT, &error.to_string())),
        };
        let (response, envelope) = match answer {
            Ok(envelope) => (Response::default(), Some(envelope)),
            Err(response) => (response, None),
        };
        let bytes = response.write_to_bytes().expect("an answer is complete");
        // One step for who reads and stops: what is recorded has been answered, and
        // is not sent again.
        let mut state = lock(shared);
        if write_frame(&mut stream, of, RESPONSE, &bytes).is_err() {
            return;
        }
        state.envelopes.extend(envelope);
    }
}

/// What the shim forwards, or what to refuse it with.
fn answer(request: &Request, shared: &Mutex<Shared>) -> Result<Envelope, Response> {
    if request.service != "containerd.services.events.ttrpc.v1.Events"
        || request.method != "Forward"
    {
        return Err(refusal(Code::UNIMPLEMENTED, "only events are served here"));
    }
    let mood = lock(shared).mood;
    match mood {
        Mood::Failing => return Err(refusal(Code::UNAVAILABLE, "told to fail")),
        Mood::Slow(time) => thread::sleep(time),
        Mood::Prompt => {}
    }
    ForwardRequest::parse_from_bytes(&request.payload)
        .map(|mut forward| forward.take_envelope())
        .map_err(|error| refusal(Code::INVALID_ARGUMENT, &error.to_string()))
}

fn refusal(code: Code, message: &str) -> Response {
    let mut status = Status::new();
    status.set_code(code);
    status.set_message(message.to_owned());
    let mut response = Response::default();
    response.set_status(status);
    response
}

fn record(envelope: &Envelope) -> Recorded {
    let bytes = &envelope.event().value;
    let mut recorded = Recorded {
        namespace: envelope.namespace.clone(),
        topic: envelope.topic.clone(),
        seconds: envelope.timestamp().seconds,
        container: String::new(),
        process: String::new(),
        exit_status: 0,
    };
    macro_rules! fields {
        ($message:ty $(, $field:ident)*) => {{
            let message = decode::<$message>(bytes, &envelope.topic);
            recorded.container = message.container_id.clone();
            $(fields!(@ $field message);)*
        }};
        (@ exec_id $message:ident) => { recorded.process = $message.exec_id.clone() };
        (@ id $message:ident) => { recorded.process = $message.id.clone() };
        (@ exit_status $message:ident) => { recorded.exit_status = $message.exit_status };
    }
    match envelope.topic.as_str() {
        "/tasks/create" => fields!(TaskCreate),
        "/tasks/start" => fields!(TaskStart),
        "/tasks/exit" => fields!(TaskExit, id, exit_status),
        "/tasks/delete" => fields!(TaskDelete, id, exit_status),
        "/tasks/exec-added" => fields!(TaskExecAdded, exec_id),
        "/tasks/exec-started" => fields!(TaskExecStarted, exec_id),
        "/tasks/oom" => fields!(TaskOOM),
        "/tasks/paused" => fields!(TaskPaused),
        "/tasks/resumed" => fields!(TaskResumed),
        "/tasks/metrics" | "/tasks/devices" | "/rampart/oom" => {
            recorded.container = decode::<Metric>(bytes, &envelope.topic).id;
        }
        _ => {}
    }
    recorded
}

fn decode<M: Message>(bytes: &[u8], topic: &str) -> M {
    M::parse_from_bytes(bytes)
        .unwrap_or_else(|error| panic!("the payload of {topic} is not its message: {error}"))
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
