//! Faults on demand: a runsc that fails at a chosen command, a disk that is full,
//! a `/run` that cannot be written, a process without descriptors.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::host::Host;
use crate::{process, tools, wait};

/// Where the shim and runsc keep their state.
pub const STATE: &str = "/run/rampart";

/// What a call of runsc does when its turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Fails at once, with a message.
    Fail,
    /// Is killed before it has done anything.
    Die,
    /// Stands still for ever.
    Stand,
    /// Begins a second later.
    Dawdle,
    /// Waits before its work until [`FaultyRunsc::go`].
    HoldBefore,
    /// Waits after its work until [`FaultyRunsc::go`].
    HoldAfter,
}

impl Order {
    fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Die => "die",
            Self::Stand => "stand",
            Self::Dawdle => "dawdle",
            Self::HoldBefore => "before",
            Self::HoldAfter => "after",
        }
    }
}

/// The text of a failure that was ordered.
pub const ORDERED_FAILURE: &str = "told to fail";

/// The real runsc behind a script that does what it is told first.
#[derive(Debug)]
pub struct FaultyRunsc {
    directory: TempDir,
}

impl FaultyRunsc {
    /// Makes the script.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("rf")
            .tempdir_in("/tmp")
            .expect("make a directory in /tmp");
        let faulty = Self { directory };
        let script = format!(
            r#"#!/bin/sh
for word; do
    case $word in
    --log=*) log=${{word#--log=}} ;;
    create | start | delete) verb=$word && break ;;
    esac
done
order=
[ -z "$verb" ] || [ ! -e "{dir}/$verb" ] || read -r order <"{dir}/$verb"
hold() {{
    : >"{dir}/reached"
    until [ -e "{dir}/go" ]; do sleep 0.05; done
}}
case $order in
fail) echo '{{"level":"error","msg":"{ORDERED_FAILURE}"}}' >"$log" && exit 128 ;;
die) kill -KILL $$ ;;
stand) : >"{dir}/reached" && kill -STOP $$ ;;
dawdle) sleep 1 ;;
before) hold ;;
after) "{real}" "$@" && hold && exit 0 ;;
esac
exec "{real}" "$@"
"#,
            dir = faulty.directory.path().display(),
            real = tools::tool("runsc").display(),
        );
        let path = faulty.path();
        fs::write(&path, script).expect("write the script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it a program");
        faulty
    }

    /// The script, for the shim's configuration.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("runsc")
    }

    /// Has the calls of `verb` do as `order` says from now on.
    pub fn order(&self, verb: &str, order: Order) {
        fs::write(self.directory.path().join(verb), order.word()).expect("leave the order");
    }

    /// Waits until a call holds, or stands.
    pub fn until_reached(&self) {
        let reached = self.directory.path().join("reached");
        wait::until("runsc to be called", || reached.exists());
    }

    /// Lets a call that holds go on.
    pub fn go(&self) {
        fs::write(self.directory.path().join("go"), "").expect("let it go");
    }

    /// Forgets all orders.
    pub fn relent(&self) {
        for name in ["create", "start", "delete", "reached", "go"] {
            match fs::remove_file(self.directory.path().join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    panic!("take back the order for {name}: {error}")
                }
                _ => {}
            }
        }
    }
}

impl Default for FaultyRunsc {
    fn default() -> Self {
        Self::new()
    }
}

/// Mounts a small file system over a directory of the corner, which is made if
/// need be.
pub fn mount_small_disk(host: &Host, target: &Path) {
    let script = r#"mkdir -p "$1" && mount -t tmpfs -o size=512k,mode=711 small "$1""#;
    let mut command = host.command("/bin/sh");
    command.args(["-c", script, "sh"]).arg(target);
    process::run(&mut command, wait::LIMIT).ok();
}

/// Fills the small disk, but for its last `left` pages.
pub fn fill_disk(host: &Host, target: &Path, left: u64) {
    let ballast = host.outside(target.join(BALLAST));
    let mut file = fs::File::create(ballast).expect("make the ballast");
    let mut pages = 0;
    while file.write_all(&[0; 4096]).is_ok() {
        pages += 1;
    }
    let length = 4096 * u64::saturating_sub(pages, left);
    file.set_len(length).expect("leave some room");
}

/// Makes room on it again.
pub fn empty_disk(host: &Host, target: &Path) {
    // Not there if it was never filled.
    let _ = fs::remove_file(host.outside(target.join(BALLAST)));
}

/// Takes the small disk away.
pub fn unmount_disk(host: &Host, target: &Path) {
    let mut command = host.command("/bin/umount");
    process::run(command.arg(target), wait::LIMIT).ok();
}

const BALLAST: &str = "ballast";

/// Makes the corner's `/run` read-only, or writable again.
pub fn read_only_run(host: &Host, read_only: bool) {
    let option = if read_only {
        "remount,ro"
    } else {
        "remount,rw"
    };
    let mut command = host.command("/bin/mount");
    process::run(command.args(["-o", option, "/run"]), wait::LIMIT).ok();
}

/// Has the process `pid` get at most `more` descriptors beyond those it has.
pub fn limit_descriptors(pid: u32, more: usize) {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process lives")
        .count();
    set_limit(pid, open + more);
}

/// Has the process `pid` get no further descriptor.
pub fn refuse_descriptors(pid: u32) {
    // Those that it has stay; a number of a new one would have to be lower.
    set_limit(pid, 1);
}

/// Takes [`limit_descriptors`] and [`refuse_descriptors`] back.
pub fn free_descriptors(pid: u32) {
    set_limit(pid, 1024);
}

fn set_limit(pid: u32, count: usize) {
    // The soft one only: the hard one could not be raised again.
    let limit = format!("--nofile={count}:");
    let mut command = Command::new("prlimit");
    process::run(
        command.args(["--pid", &pid.to_string(), &limit]),
        wait::LIMIT,
    )
    .ok();
}
