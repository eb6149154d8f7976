//! The daemon: the ttrpc server on the socket that `start` left on stdin, until
//! nothing is left to serve.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::unistd::dup2_stdin;
use protos::task::create_task;
use protos::ttrpc::asynchronous::transport::Listener;
use protos::ttrpc::asynchronous::{MethodHandler, Server, Service, TtrpcContext};
use protos::ttrpc::{self, Code, Request, Response};
use rustix::thread::CoreSchedulingScope;
use sandbox::children::Children;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Flags;
use crate::connections::Connections;
use crate::error::{Error, Result};
use crate::events::Events;
use crate::pod::Pod;
use crate::task::TaskService;
use crate::{bootstrap, logger, socket};

/// Serves until the last task is gone and containerd has said Shutdown, or
/// nobody has called for a while, or a signal asks for the end.
///
/// # Errors
/// The shim cannot come up; `start` reads the cause from stdout.
pub fn serve(flags: &Flags) -> Result<()> {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::system("start the runtime"))
        .and_then(|runtime| runtime.block_on(run(flags)));
    if let Err(error) = &outcome {
        // If `start` is gone, killed with its containerd, nobody wants to know, and
        // nobody else knows of the socket.
        let _ = std::io::stdout().write_all(crate::error::chain(error).as_bytes());
        let _ = socket::remove(Path::new(&flags.socket));
    }
    outcome
}

async fn run(flags: &Flags) -> Result<()> {
    let path = PathBuf::from(&flags.socket);
    let listener = take_listener()?;
    let bundle = std::env::current_dir().map_err(Error::system("find the bundle directory"))?;
    logger::install(&bundle, &flags.id, flags.debug);
    // A session of its own: a signal for containerd's terminal is not for us.
    // Only a group leader is refused, and one is already apart.
    let _ = nix::unistd::setsid();
    nix::sys::prctl::set_child_subreaper(true).map_err(Error::system("become sub-reaper"))?;
    schedule_apart()?;
    // The bundle goes away before the shim does.
    std::env::set_current_dir("/").map_err(Error::file("change to", "/"))?;

    let children = Children::new().map_err(Error::system("listen for SIGCHLD"))?;
    let events = Events::new(&flags.namespace, events_address(flags));
    let pod = Arc::new(Pod::new(&flags.namespace, events.clone(), children));
    let connections = Connections::default();
    let mut server = server(listener, &pod, connections.clone());
    server.start().await.map_err(Error::Serve)?;
    // Before anybody knows of this shim: from then on it may be told to end.
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::system("hear SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::system("hear SIGINT"))?;
    say_ready()?;
    log::info!("serving at {}", path.display());

    tokio::select! {
        () = pod.over(&connections) => log::info!("nothing left to serve"),
        _ = terminate.recv() => log::info!("ending on SIGTERM"),
        _ = interrupt.recv() => log::info!("ending on SIGINT"),
    }
    // First out of sight, so that no new `start` finds a shim that goes away.
    if let Err(error) = socket::remove(&path) {
        // A read-only /run, for example. The last events matter more; `delete`,
        // or the next shim of this id, replaces the socket.
        log::warn!("{}", crate::error::chain(&error));
    }
    events.flush(FLUSH_PATIENCE).await;
    server.stop_listen().await;
    // Answers that are on their way still go out.
    let _ = tokio::time::timeout(DISCONNECT_PATIENCE, server.disconnect()).await;
    Ok(())
}

/// Core scheduling, when containerd asks for it: what the shim starts inherits
/// the cookie, and shares a CPU core with nobody else.
fn schedule_apart() -> Result<()> {
    if std::env::var_os("SCHED_CORE").is_none_or(|wanted| wanted.is_empty()) {
        return Ok(());
    }
    let own = rustix::process::getpid();
    rustix::thread::create_core_scheduling_cookie(own, CoreSchedulingScope::ThreadGroup).map_err(
        Error::system(
            "set up core scheduling, which containerd asks for (SCHED_CORE); without a kernel and CPU that have it, turn it off",
        ),
    )
}

/// How long the last events may take; a containerd that is being restarted
/// comes back within it.
const FLUSH_PATIENCE: Duration = Duration::from_secs(30);

const DISCONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// The socket that `start` bound, off stdin: what the shim starts must not
/// inherit it.
fn take_listener() -> Result<tokio::net::UnixListener> {
    let stdin = std::io::stdin();
    let listener = stdin
        .as_fd()
        .try_clone_to_owned()
        .map(UnixListener::from)
        .map_err(Error::system("take the socket from stdin"))?;
    let null = std::fs::File::open("/dev/null").map_err(Error::file("open", "/dev/null"))?;
    dup2_stdin(null).map_err(Error::system("replace stdin"))?;
    listener
        .set_nonblocking(true)
        .map_err(Error::system("use the socket"))?;
    tokio::net::UnixListener::from_std(listener).map_err(Error::system("use the socket"))
}

/// Tells `start`, and lets go of its pipe.
fn say_ready() -> Result<()> {
    std::io::stdout()
        .write_all(bootstrap::READY.as_bytes())
        .and_then(|()| std::io::stdout().flush())
        .map_err(Error::system("tell start"))?;
    let null = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .map_err(Error::file("open", "/dev/null"))?;
    nix::unistd::dup2_stdout(null).map_err(Error::system("replace stdout"))
}

/// containerd's ttrpc socket: named in the environment, else beside its gRPC
/// socket.
fn events_address(flags: &Flags) -> Option<String> {
    std::env::var("TTRPC_ADDRESS")
        .ok()
        .filter(|address| !address.is_empty())
        .or_else(|| Some(format!("{}.ttrpc", flags.address)).filter(|_| !flags.address.is_empty()))
}

fn server(listener: tokio::net::UnixListener, pod: &Arc<Pod>, connections: Connections) -> Server {
    let own_user = nix::unistd::geteuid().as_raw();
    // Like containerd's Go shims: whoever is not the shim's own user is not
    // let in, whatever the modes of the path say.
    let accepted = futures::stream::unfold(
        (listener, connections),
        move |(listener, connections)| async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => match stream.peer_cred() {
                        Ok(peer) if peer.uid() == own_user => {
                            return Some((Ok(connections.count(stream)), (listener, connections)));
                        }
                        Ok(peer) => log::warn!("connection of user {} refused", peer.uid()),
                        Err(error) => log::warn!("connection without credentials refused: {error}"),
                    },
                    Err(error) => {
                        // Out of descriptors, for example: it may pass.
                        log::warn!("accept: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        },
    );
    let mut services = create_task(Arc::new(TaskService::new(Arc::clone(pod))));
    // The messages of v2 and v3 are the same; only the service's name differs.
    let v2 = create_task(Arc::new(TaskService::new(Arc::clone(pod))))
        .into_values()
        .map(|service| ("containerd.task.v2.Task".to_owned(), service));
    services.extend(v2);
    services.extend(not_implemented());
    Server::new()
        .add_listener(Listener::new(accepted))
        .register_service(services)
}

/// containerd asks for some services only to see whether they are there, and
/// reads the code: it must be Unimplemented.
fn not_implemented() -> HashMap<String, Service> {
    let sandbox = "containerd.runtime.sandbox.v1.Sandbox";
    let methods = [
        "CreateSandbox",
        "StartSandbox",
        "Platform",
        "StopSandbox",
        "WaitSandbox",
        "SandboxStatus",
        "PingSandbox",
        "ShutdownSandbox",
        "SandboxMetrics",
    ];
    let methods = methods
        .into_iter()
        .map(|method| {
            let handler: Box<dyn MethodHandler + Send + Sync> = Box::new(NotImplemented);
            (method.to_owned(), handler)
        })
        .collect();
    HashMap::from([(
        sandbox.to_owned(),
        Service {
            methods,
            streams: HashMap::new(),
        },
    )])
}

struct NotImplemented;

#[async_trait]
impl MethodHandler for NotImplemented {
    async fn handler(&self, _: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        let words = format!("{}/{} is not implemented", request.service, request.method);
        let mut response = Response::new();
        response.set_status(ttrpc::get_status(Code::UNIMPLEMENTED, words));
        Ok(response)
    }
}
