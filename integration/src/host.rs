//! A private corner of this machine for one test: mounts, `/run`, `/var/lib` and
//! network of its own, a name that all its cgroups carry, a short directory.
//!
//! One test of a test program has it at a time, so that what is there afterwards
//! is that test's doing. Other programs on the machine see nothing of it and
//! disturb nothing, but for cgroups, which are told apart by the name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::process::{self, Process};
use crate::{cgroups, skip, tools, wait};

static TURN: Mutex<()> = Mutex::new(());

/// What the first process in the new namespaces does. The first argument is the
/// test's directory. `/` is shared, as systemd has it, so that propagation can be
/// tested; D-Bus stays reachable for cgroups that systemd manages.
const SET_UP: &str = r#"
set -e
mount --make-rshared /
mkdir -p "$1/kept"
for kept in systemd dbus; do
    if [ -d "/run/$kept" ]; then
        mkdir "$1/kept/$kept"
        mount --bind "/run/$kept" "$1/kept/$kept"
    fi
done
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755 varlib /var/lib
for kept in systemd dbus; do
    if [ -d "$1/kept/$kept" ]; then
        mkdir "/run/$kept"
        mount --move "$1/kept/$kept" "/run/$kept" 2>/dev/null ||
            mount --bind "$1/kept/$kept" "/run/$kept"
    fi
done
mkdir -p /run/lock
ip link set lo up
: >"$1/ready"
exec sleep infinity
"#;

/// The corner; all that runs in it ends when it is dropped.
#[derive(Debug)]
pub struct Host {
    holder: Process,
    directory: TempDir,
    name: String,
    /// Mounts of the machine that were there at the start; they come and go with
    /// what others do.
    inherited: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Host {
    /// Waits for its turn and sets the corner up, or skips the test where that
    /// cannot be done.
    pub fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip("needs root, for namespaces, mounts and cgroups");
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rt{}-{number}", std::process::id());
        // Sockets below it must stay within the 106 characters of a unix path.
        let directory = tempfile::Builder::new()
            .prefix("rt")
            .rand_bytes(4)
            .tempdir_in("/tmp")
            .expect("make a directory in /tmp");
        let holder = Process::spawn(
            Command::new("unshare")
                .args(["--mount", "--net", "--propagation", "private"])
                .args(["sh", "-c", SET_UP, "sh"])
                .arg(directory.path())
                .stdin(Stdio::null()),
        );
        let mut host = Self {
            holder,
            directory,
            name,
            inherited: Vec::new(),
            _turn: turn,
        };
        wait::until("the private namespaces", || {
            assert!(
                host.holder.try_wait().is_none(),
                "the private namespaces could not be set up: see above"
            );
            host.directory.path().join("ready").exists()
        });
        host.inherited = host.all_mounts();
        Some(host)
    }

    /// A name that no other test has, fit for ids, namespaces and cgroups.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The test's directory, under the same path inside and outside.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where `path`, as seen inside, is found from outside.
    pub fn outside(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let below = path.strip_prefix("/").unwrap_or(path);
        PathBuf::from(format!("/proc/{}/root", self.holder.pid())).join(below)
    }

    /// A command that runs inside, in `/`, with nothing on standard input and the
    /// environment of [`tools::environment`].
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.command_in("/", program)
    }

    /// As [`Self::command`], with a working directory.
    pub fn command_in(&self, directory: impl AsRef<Path>, program: impl AsRef<Path>) -> Command {
        let mut working = std::ffi::OsString::from("--wdns=");
        working.push(directory.as_ref());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.holder.pid()))
            .args(["--mount", "--net"])
            .arg(working)
            .arg("--")
            .arg(program.as_ref())
            .stdin(Stdio::null())
            .env_clear()
            .envs(tools::environment());
        command
    }

    /// What has been mounted inside since the start, as mount point and type.
    pub fn mounts(&self) -> Vec<String> {
        let mut mounts = self.all_mounts();
        mounts.retain(|mount| self.inherited.binary_search(mount).is_err());
        mounts
    }

    fn all_mounts(&self) -> Vec<String> {
        let text = fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.pid()))
            .expect("read the mounts of the private namespace");
        let mut mounts: Vec<String> = text
            .lines()
            .filter_map(|line| {
                let (left, right) = line.split_once(" - ")?;
                let point = left.split(' ').nth(4)?;
                Some(format!("{point} {}", right.split(' ').next()?))
            })
            .collect();
        mounts.sort();
        mounts
    }

    /// The names of the network interfaces inside.
    pub fn links(&self) -> Vec<String> {
        let text = fs::read_to_string(format!("/proc/{}/net/dev", self.holder.pid()))
            .expect("read the interfaces of the private namespace");
        text.lines()
            .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
            .collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        process::end_orphans();
        self.holder.kill();
        cgroups::remove_named(&self.name);
    }
}
