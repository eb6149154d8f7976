//! Removes what is left of a container or sandbox, from what is on disk alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use tokio::time::{Instant, sleep};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::gvisor::state;

/// Name of the directory in a bundle that holds what we write there.
// containerd 2 keeps a file `sandbox` there.
pub(crate) const DIR: &str = "rampart";

/// How long a killed process may take to be gone.
const DEATH: Duration = Duration::from_secs(10);

/// The directory in [`DIR`] where a probe of the platform has its state.
pub(crate) const PROBE: &str = "probe";

/// Ends what runs of a container and removes what it left; the whole sandbox if
/// `id` is `sandbox_id`. For a process that knows nothing but the bundle, after
/// the shim died, and for what a failed command left.
///
/// `home` are the sandbox's cgroup directories: who is in none of them is not
/// touched, whatever its arguments say. Another root file system of the same host
/// (a node in a container) may have a sandbox of the same name.
///
/// Needs no runsc; may be repeated. The bundle's root file system must still be
/// mounted, or a store that runsc keeps in it is left there.
///
/// # Errors
/// A process that does not die, or a file that cannot be removed.
pub async fn cleanup(
    config: &Config,
    sandbox_id: &str,
    id: &str,
    bundle: &Path,
    home: &[PathBuf],
) -> Result<()> {
    let root = config.sandbox_root(sandbox_id);
    let dir = bundle.join(DIR);
    let whole = id == sandbox_id;

    remove_filestore(&dir, sandbox_id)?;
    if whole {
        end_sandboxes_of(&root, home).await?;
        end_sandboxes_of(&dir.join(PROBE), home).await?;
        // Where runsc puts its socket if the path in its root is too long.
        for place in ["/var/run", "/run", "/tmp"] {
            remove(&Path::new(place).join(format!("runsc-{sandbox_id}.sock")))?;
        }
    } else {
        for pid in processes(home, &root, Some(&dir)) {
            end(pid).await?;
        }
        let state = state::path(&root, sandbox_id, id);
        remove(&state)?;
        remove(&state.with_extension("lock"))?;
    }
    remove_tree(&dir)
}

/// Whether a process still works for the container, or for the whole sandbox if
/// `id` is `sandbox_id`.
#[must_use]
pub fn is_in_use(
    config: &Config,
    sandbox_id: &str,
    id: &str,
    bundle: &Path,
    home: &[PathBuf],
) -> bool {
    let dir = bundle.join(DIR);
    let of_container = (id != sandbox_id).then_some(dir.as_path());
    !processes(home, &config.sandbox_root(sandbox_id), of_container).is_empty()
}

/// Ends the sandboxes whose state is in `root`, and removes it.
pub(crate) async fn end_sandboxes_of(root: &Path, home: &[PathBuf]) -> Result<()> {
    for pid in processes(home, root, None) {
        end(pid).await?;
    }
    remove_tree(root)
}

/// Removes a directory of ours and all in it, once what runsc has mounted there is
/// taken down: an empty network namespace, by concurrent commands more than once,
/// and by `runsc do` in a directory whose name it makes up.
fn remove_tree(directory: &Path) -> Result<()> {
    detach_below(directory);
    missing_is_fine(fs::remove_dir_all(directory)).map_err(Error::io("remove", directory))
}

/// Takes down what is mounted below a directory. What stays is seen when the
/// directory cannot be removed.
fn detach_below(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
        while umount2(&path, flags).is_ok() {}
        if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            detach_below(&path);
        }
    }
}

/// The processes of the cgroup that work for a sandbox, or for the container of one
/// bundle directory: gofers, the sentry, and commands under way.
fn processes(home: &[PathBuf], root: &Path, dir: Option<&Path>) -> Vec<Pid> {
    let mut members = BTreeSet::new();
    for directory in home {
        // A cgroup that is gone holds nobody.
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        members.extend(pids.lines().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    members
        .into_iter()
        .filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            works_for(&command, root, dir)
        })
        .map(Pid::from_raw)
        .collect()
}

/// Whether a command line (arguments ended by zeros) names the state directory
/// of the sandbox and, if given, the bundle directory.
fn works_for(command: &[u8], root: &Path, dir: Option<&Path>) -> bool {
    let root = format!("--root={}", root.display());
    // `runsc do` makes a directory below the one it is given its sandbox's root.
    let is_root = |arg: &[u8]| {
        arg.strip_prefix(root.as_bytes())
            .is_some_and(|below| below.is_empty() || below.starts_with(b"/"))
    };
    let dir = dir.map(|dir| dir.display().to_string());
    let args = || command.split(|byte| *byte == 0);
    args().any(is_root)
        && dir.is_none_or(|dir| {
            args().any(|arg| arg.strip_prefix(b"--bundle=").unwrap_or(arg) == dir.as_bytes())
        })
}

/// Kills a process and waits until it is gone, or only waits to be reaped.
async fn end(pid: Pid) -> Result<()> {
    // Gone already is as good.
    let _ = kill(pid, Signal::SIGKILL);
    let deadline = Instant::now() + DEATH;
    while is_alive(pid) {
        if Instant::now() > deadline {
            let error = io::Error::new(io::ErrorKind::TimedOut, "still there after SIGKILL");
            return Err(Error::io("kill", format!("/proc/{pid}"))(error));
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn is_alive(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    // The leader of threads is a zombie while others still end, and until they
    // have, what they were about still happens (proc_pid_stat(5), num_threads).
    let ended = rest.starts_with(['Z', 'X']);
    !ended
        || rest
            .split(' ')
            .nth(17)
            .is_some_and(|threads| threads != "1" && threads != "0")
}

/// Removes the file in the root file system that backs what the guest writes; if
/// it stays, no sandbox can be started in that root again.
fn remove_filestore(dir: &Path, sandbox_id: &str) -> Result<()> {
    let config = dir.join("config.json");
    // Without it the container was never handed to runsc.
    let Ok(spec) = Spec::load(&config) else {
        return Ok(());
    };
    let Some(root) = spec.root() else {
        return Ok(());
    };
    // On a read-only root runsc has no store.
    match remove(&filestore(root.path(), sandbox_id)) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Ok(())
        }
        result => result,
    }
}

fn filestore(rootfs: &Path, sandbox_id: &str) -> PathBuf {
    rootfs.join(format!(".gvisor.filestore.{sandbox_id}"))
}

fn remove(path: &Path) -> Result<()> {
    missing_is_fine(fs::remove_file(path)).map_err(Error::io("remove", path))
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    #[test]
    fn only_processes_of_this_sandbox_are_meant() {
        let root = Path::new("/run/r/s1");
        let dir = Path::new("/b/c1/sandbox");
        let command = |line: &str| line.replace(' ', "\0").into_bytes();
        for (line, of_sandbox, of_container) in [
            (
                "runsc-sandbox --root=/run/r/s1 boot --bundle=/b/c1/sandbox s1",
                true,
                true,
            ),
            (
                "runsc-gofer --root=/run/r/s1 gofer --bundle /b/c1/sandbox --io-fds=9",
                true,
                true,
            ),
            (
                "runsc-gofer --root=/run/r/s1 gofer --bundle /b/c2/sandbox --io-fds=9",
                true,
                false,
            ),
            (
                "runsc-sandbox --root=/run/r/s10 boot --bundle=/b/c1/sandbox s1",
                false,
                false,
            ),
            (
                "runsc-sandbox --root=/run/r/s1/runsc-do1 boot --bundle=/run/r/s1/x do1",
                true,
                false,
            ),
            ("vi /run/r/s1", false, false),
            ("", false, false),
        ] {
            assert_eq!(works_for(&command(line), root, None), of_sandbox, "{line}");
            assert_eq!(
                works_for(&command(line), root, Some(dir)),
                of_container,
                "{line}"
            );
        }
    }

    const COMMAND: &[u8] = b"runsc-sandbox\0--root=/run/r/s1\0boot\0--bundle=/b/c1/sandbox\0s1\0";

    proptest! {
        #[test]
        fn any_command_line_without_the_directory_is_a_strangers(bytes in damaged(COMMAND)) {
            if works_for(&bytes, Path::new("/run/r/s1"), None) {
                prop_assert!(bytes.windows(9).any(|part| part == b"/run/r/s1"));
            }
        }
    }
}
