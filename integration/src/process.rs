//! Processes: starting them with a limit of time, and finding all that came of
//! them.
//!
//! The test process is the sub-reaper of everything it starts, so a daemon or an
//! orphan stays its descendant and can be found, waited for and ended. That is
//! also why every process must be started here: the thread that reaps orphans
//! leaves alone what is known.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::wait;

/// Pids of children that someone will wait for.
static KNOWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child process that ends, at the latest, when this value is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
    ended: bool,
}

/// What a finished command left.
#[derive(Debug)]
pub struct Output {
    /// The exit status, or 128 and the number of the signal.
    pub code: i32,
    /// All of its standard output; what is not UTF-8 is replaced.
    pub stdout: String,
    /// All of its standard error; what is not UTF-8 is replaced.
    pub stderr: String,
    /// Its standard output as it came.
    pub bytes: Vec<u8>,
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Process id.
    pub pid: u32,
    /// Its arguments, or its name in brackets.
    pub command: String,
    /// Whether it has ended and only waits to be reaped.
    pub zombie: bool,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    pub fn spawn(command: &mut Command) -> Self {
        adopt_orphans();
        let what = format!("{command:?}");
        let mut known = known();
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        known.insert(child.id());
        Self {
            child,
            what,
            ended: false,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's pipes, as far as they were asked for.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let mut known = known();
        let status = self
            .child
            .try_wait()
            .unwrap_or_else(|error| panic!("cannot wait for {}: {error}", self.what));
        if status.is_some() {
            self.ended = true;
            known.remove(&self.child.id());
        }
        status
    }

    /// Waits for its end and gives its exit status, or 128 and the signal.
    ///
    /// # Panics
    ///
    /// If it still runs after `limit`; it is killed then.
    pub fn wait(&mut self, limit: Duration) -> i32 {
        match wait::within(limit, || self.try_wait()) {
            Some(status) => code(status),
            None => panic!("after {limit:?} still running: {}", self.what),
        }
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        if !self.ended {
            let _gone_meanwhile = kill(as_pid(self.pid()), signal);
        }
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        if !self.ended {
            wait::until("a killed process to end", || self.try_wait().is_some());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        wait::within(Duration::from_secs(10), || {
            self.ended
                .then_some(())
                .or_else(|| self.try_wait().map(drop))
        });
    }
}

impl Output {
    /// Gives the trimmed standard output of a command that had to succeed.
    ///
    /// # Panics
    ///
    /// If the command failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout.trim_end().to_owned()
    }

    /// Gives the standard error of a command that had to fail.
    ///
    /// # Panics
    ///
    /// If the command succeeded.
    #[track_caller]
    pub fn err(self) -> String {
        assert_ne!(self.code, 0, "succeeded: {}{}", self.stdout, self.stderr);
        self.stderr
    }
}

/// Runs `command` to its end, without standard input unless it has one.
///
/// Output goes through files, so a grandchild that keeps it open delays nothing.
///
/// # Panics
///
/// If it has not ended after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    let mut stdout = temporary();
    let mut stderr = temporary();
    command.stdout(
        stdout
            .try_clone()
            .expect("another handle of a temporary file"),
    );
    command.stderr(
        stderr
            .try_clone()
            .expect("another handle of a temporary file"),
    );
    let mut process = Process::spawn(command);
    let Some(status) = wait::within(limit, || process.try_wait()) else {
        panic!(
            "after {limit:?} still running: {command:?}\n{}{}",
            String::from_utf8_lossy(&contents(&mut stdout)),
            String::from_utf8_lossy(&contents(&mut stderr)),
        );
    };
    let bytes = contents(&mut stdout);
    Output {
        code: code(status),
        stdout: String::from_utf8_lossy(&bytes).into_owned(),
        stderr: String::from_utf8_lossy(&contents(&mut stderr)).into_owned(),
        bytes,
    }
}

/// As [`run`], with `input` on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8], limit: Duration) -> Output {
    let mut file = temporary();
    std::io::Write::write_all(&mut file, input).expect("fill a temporary file");
    file.rewind().expect("rewind a temporary file");
    run(command.stdin(Stdio::from(file)), limit)
}

/// Everything that this test process started and that is still there, daemons
/// and orphans included.
pub fn descendants() -> BTreeSet<Seen> {
    descendants_of(std::process::id())
}

/// Everything below the process `root`.
pub fn descendants_of(root: u32) -> BTreeSet<Seen> {
    let table: Vec<(u32, u32, Seen)> = fs::read_dir("/proc")
        .expect("read /proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(seen)
        .collect();
    let mut found = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, _, process) in table.iter().filter(|(_, of, _)| *of == parent) {
            parents.push(*pid);
            found.insert(process.clone());
        }
    }
    found
}

/// Tells whether `pid` is there and has not ended.
pub fn is_alive(pid: u32) -> bool {
    seen(pid).is_some_and(|(_, _, process)| !process.zombie)
}

/// Sends `signal` to a descendant.
///
/// # Panics
///
/// If `pid` is no descendant of the test: it is not ours to end.
pub fn signal(pid: u32, signal: Signal) {
    assert!(
        descendants().iter().any(|process| process.pid == pid),
        "{pid} was not started by this test"
    );
    let _gone_meanwhile = kill(as_pid(pid), signal);
}

/// Ends every descendant but those that [`Process`] values own.
pub fn end_orphans() {
    wait::within(Duration::from_secs(20), || {
        let owned = known().clone();
        let left: Vec<Seen> = descendants()
            .into_iter()
            .filter(|process| !process.zombie && !owned.contains(&process.pid))
            .collect();
        for process in &left {
            let _gone_meanwhile = kill(as_pid(process.pid), Signal::SIGCONT);
            let _gone_meanwhile = kill(as_pid(process.pid), Signal::SIGKILL);
        }
        left.is_empty().then_some(())
    });
}

/// Pid, parent and the rest; nothing if it is gone.
fn seen(pid: u32) -> Option<(u32, u32, Seen)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, these included.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut fields = tail.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut command = String::from_utf8_lossy(&arguments)
        .replace('\0', " ")
        .trim_end()
        .to_owned();
    if command.is_empty() {
        command = format!("[{name}]");
    }
    // The leader of threads is a zombie while others still end, and until they
    // have, what they were about still happens.
    let threads = fields.nth(15)?;
    let zombie = matches!(state, "Z" | "X") && matches!(threads, "0" | "1");
    Some((
        pid,
        parent,
        Seen {
            pid,
            command,
            zombie,
        },
    ))
}

/// Makes this process the parent of orphans, and reaps them.
fn adopt_orphans() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        nix::sys::prctl::set_child_subreaper(true).expect("become a sub-reaper");
        thread::spawn(|| {
            loop {
                reap_orphans();
                thread::sleep(Duration::from_millis(20));
            }
        });
    });
}

fn reap_orphans() {
    let known = known();
    let Ok(entries) = fs::read_dir("/proc") else {
        return;
    };
    for pid in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
        if known.contains(&pid) {
            continue;
        }
        if let Some((_, parent, process)) = seen(pid)
            && parent == std::process::id()
            && process.zombie
        {
            let _taken_by_no_one_else = waitpid(as_pid(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

fn known() -> MutexGuard<'static, BTreeSet<u32>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn as_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().expect("the kernel's pids fit into an i32"))
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .expect("an ended process has a code or a signal")
}

fn temporary() -> File {
    tempfile::tempfile().expect("make a temporary file")
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().expect("rewind a temporary file");
    file.read_to_end(&mut bytes).expect("read a temporary file");
    bytes
}
