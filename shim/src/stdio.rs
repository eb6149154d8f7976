//! The stdio of one process: containerd's fifos (or files, or a log program) on
//! one side, the sandbox's own pipes or terminal on the other.
//!
//! The sandbox never gets containerd's fifos themselves: a copy in between lets
//! a stopped reader, a restarted containerd and a background child that holds
//! the pipe be told apart, and none of them holds up an exit.

mod binary;
mod copy;
mod sink;
mod terminal;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use sandbox::children::Children;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::lock::lock;
pub use binary::{COMMAND as LOG_PROGRAM, main as log_program_main};
use sink::Sink;
use terminal::Terminal;

/// Where a process's streams go, in containerd's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Paths {
    /// Fifo that is read; empty for none.
    pub stdin: String,
    /// Fifo, `file://` or `binary://` URI; empty for none.
    pub stdout: String,
    /// The same; not used with a terminal.
    pub stderr: String,
    /// One terminal instead of three pipes.
    pub terminal: bool,
}

/// Whose streams they are, for log programs and the owner of pipes.
#[derive(Debug, Clone)]
pub struct Owner {
    /// containerd namespace.
    pub namespace: String,
    /// Container id.
    pub id: String,
    /// User and group that own the pipes.
    pub ids: (u32, u32),
    /// Where log programs are started and waited for.
    pub children: Children,
}

/// The shim's side of a process's streams.
#[derive(Debug)]
pub struct Streams {
    /// Keeps the stdin fifo from ending before CloseIO.
    stdin_keeper: Mutex<Option<std::fs::File>>,
    /// Parts that start to copy only once a terminal is there.
    waiting: Mutex<Option<Waiting>>,
    outputs: Mutex<Vec<JoinHandle<()>>>,
    input: Mutex<Option<JoinHandle<()>>>,
    log_program: Option<binary::LogProgram>,
    terminal: Mutex<Option<Arc<Terminal>>>,
    stage: watch::Sender<Stage>,
}

/// How far the process is, for those who copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It may write.
    Live,
    /// It has ended; what it wrote may still be on its way.
    Exited,
    /// It is being deleted: nobody else will come to read.
    Closing,
}

#[derive(Debug)]
struct Waiting {
    stdin: Option<pipe::Receiver>,
    stdout: Option<Sink>,
}

/// The sandbox's side.
#[derive(Debug)]
pub enum Ends {
    /// Three pipes; absent ones become `/dev/null`.
    Pipes {
        /// The process reads here.
        stdin: Option<OwnedFd>,
        /// The process writes here.
        stdout: Option<OwnedFd>,
        /// And here.
        stderr: Option<OwnedFd>,
    },
    /// The sandbox makes a terminal and hands it over: [`Streams::attach`].
    Terminal,
}

impl Streams {
    /// Opens everything that `paths` names. Nothing here waits for a peer.
    ///
    /// # Errors
    /// A fifo or file that cannot be opened, an unknown scheme, a log program
    /// that cannot be started.
    pub async fn open(paths: &Paths, owner: &Owner) -> Result<(Arc<Self>, Ends)> {
        let (stage, staged) = watch::channel(Stage::Live);
        let mut streams = Self {
            stdin_keeper: Mutex::new(None),
            waiting: Mutex::new(None),
            outputs: Mutex::default(),
            input: Mutex::new(None),
            log_program: None,
            terminal: Mutex::new(None),
            stage,
        };
        let stdin = streams.open_stdin(&paths.stdin)?;
        if paths.terminal {
            let stdout = streams.open_sink(&paths.stdout, owner).await?;
            streams.waiting = Mutex::new(Some(Waiting { stdin, stdout }));
            return Ok((Arc::new(streams), Ends::Terminal));
        }
        let stdin = match stdin {
            Some(fifo) => {
                let (theirs, ours) = pipe_for(owner)?;
                let ours = pipe::Sender::from_owned_fd(ours)
                    .map_err(Error::system("use the pipe for stdin"))?;
                streams.input = Mutex::new(Some(tokio::spawn(copy::into_pipe(fifo, ours))));
                Some(theirs)
            }
            None => None,
        };
        if paths.stdout.starts_with(binary::SCHEME) {
            // A log program reads the container's pipes itself.
            let (out, stdout) = pipe_for(owner)?;
            let (err, stderr) = pipe_for(owner)?;
            let program = binary::LogProgram::start(&paths.stdout, owner, out, err).await?;
            streams.log_program = Some(program);
            let ends = Ends::Pipes {
                stdin,
                stdout: Some(stdout),
                stderr: Some(stderr),
            };
            return Ok((Arc::new(streams), ends));
        }
        let mut ends = [None, None];
        for (end, path) in ends.iter_mut().zip([&paths.stdout, &paths.stderr]) {
            let Some(sink) = Sink::open(path).await? else {
                continue;
            };
            let (ours, theirs) = pipe_for(owner)?;
            let ours = pipe::Receiver::from_owned_fd(ours)
                .map_err(Error::system("use the pipe for output"))?;
            let task = tokio::spawn(copy::from_pipe(ours, sink, staged.clone()));
            lock(&streams.outputs).push(task);
            *end = Some(theirs);
        }
        let [stdout, stderr] = ends;
        Ok((
            Arc::new(streams),
            Ends::Pipes {
                stdin,
                stdout,
                stderr,
            },
        ))
    }

    /// Starts to copy between containerd's fifos and the terminal. Signals that
    /// its keys mean go to `signals`, if the sandbox does not see to them.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn attach(&self, master: OwnedFd, signals: Option<UnboundedSender<Signal>>) -> Result<()> {
        let terminal = Terminal::new(master, signals).map_err(Error::system("use the terminal"))?;
        let terminal = Arc::new(terminal);
        let Some(Waiting { stdin, stdout }) = lock(&self.waiting).take() else {
            return Err(Error::FailedPrecondition(
                "the process has a terminal already".into(),
            ));
        };
        let output = copy::from_terminal(terminal.clone(), stdout, self.stage.subscribe());
        lock(&self.outputs).push(tokio::spawn(output));
        if let Some(stdin) = stdin {
            *lock(&self.input) = Some(tokio::spawn(copy::into_terminal(stdin, terminal.clone())));
        }
        *lock(&self.terminal) = Some(terminal);
        Ok(())
    }

    /// Sets the terminal's size in columns and rows.
    ///
    /// # Errors
    /// The process has no terminal (yet).
    pub fn resize(&self, width: u16, height: u16) -> Result<()> {
        let Some(terminal) = lock(&self.terminal).clone() else {
            return Err(Error::FailedPrecondition(
                "the process has no terminal to resize".into(),
            ));
        };
        terminal
            .resize(width, height)
            .map_err(Error::system("resize the terminal"))
    }

    /// CloseIO: stdin ends once its writers are gone and all is read.
    pub fn close_stdin(&self) {
        lock(&self.stdin_keeper).take();
    }

    /// Says that the process has ended. What it wrote still goes out; a pipe
    /// that somebody else holds open is given up after a while.
    pub fn process_exited(&self) {
        self.stage.send_if_modified(|stage| {
            let earlier = *stage < Stage::Exited;
            if earlier {
                *stage = Stage::Exited;
            }
            earlier
        });
        if let Some(input) = lock(&self.input).take() {
            input.abort();
        }
        lock(&self.stdin_keeper).take();
    }

    /// Waits for the rest of the output, no longer than `patience`, and closes
    /// everything.
    pub async fn close(&self, patience: Duration) {
        self.process_exited();
        self.stage.send_replace(Stage::Closing);
        let outputs = std::mem::take(&mut *lock(&self.outputs));
        let deadline = tokio::time::Instant::now() + patience;
        for mut output in outputs {
            if tokio::time::timeout_at(deadline, &mut output)
                .await
                .is_err()
            {
                output.abort();
            }
        }
        lock(&self.terminal).take();
        lock(&self.waiting).take();
        if let Some(program) = &self.log_program {
            program.stop().await;
        }
    }

    /// Opens the fifo for reading, and once more for writing, so that it does
    /// not end before a client has come, or while containerd restarts.
    fn open_stdin(&self, path: &str) -> Result<Option<pipe::Receiver>> {
        if path.is_empty() {
            return Ok(None);
        }
        let receiver = pipe::OpenOptions::new()
            .open_receiver(path)
            .map_err(Error::file("read from", path))?;
        let keeper = sink::open_nonblocking(Path::new(path)).map_err(Error::file("open", path))?;
        *lock(&self.stdin_keeper) = Some(keeper);
        Ok(Some(receiver))
    }

    /// Output of a terminal: a log program gets it through a pipe of its own.
    async fn open_sink(&mut self, path: &str, owner: &Owner) -> Result<Option<Sink>> {
        if !path.starts_with(binary::SCHEME) {
            return Sink::open(path).await;
        }
        let (out, ours) = pipe_for(owner)?;
        let (err, _) = pipe_for(owner)?;
        self.log_program = Some(binary::LogProgram::start(path, owner, out, err).await?);
        let sender = pipe::Sender::from_owned_fd(ours)
            .map_err(Error::system("use the pipe to the log program"))?;
        Ok(Some(Sink::Pipe(sender)))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for output in lock(&self.outputs).drain(..) {
            output.abort();
        }
        if let Some(input) = lock(&self.input).take() {
            input.abort();
        }
    }
}

/// A pipe (reading end, writing end), both blocking, owned by the user that
/// the options name.
fn pipe_for(owner: &Owner) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) =
        nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(Error::system("make a pipe"))?;
    let (user, group) = owner.ids;
    if (user, group) != (0, 0) {
        for end in [read.as_fd(), write.as_fd()] {
            nix::unistd::fchown(end, Some(user.into()), Some(group.into()))
                .map_err(Error::system("change the owner of a pipe"))?;
        }
    }
    Ok((read, write))
}
