//! The socket of a shim: where it is, and who holds it.
//!
//! `ctr`, containerd's tests and a second `start` for the same pod compute the
//! address again, so its formula is part of the contract (containerd
//! pkg/shim/util_unix.go): the SHA-256 of containerd's address, the namespace
//! and the group, in `/run/containerd/s`, or in the directory that
//! containerd 2.3 and later names.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// Directory of all shims' sockets where containerd names no other.
pub const DEFAULT_DIRECTORY: &str = "/run/containerd/s";

/// Longest path that fits `sockaddr_un` with its terminating zero.
const LONGEST_PATH: usize = 107;

/// How long a socket that exists may take to accept before it counts as dead.
const CONNECT_PATIENCE: Duration = Duration::from_millis(100);

/// Path of the socket of the group `group` (a pod's sandbox id, or a lone
/// container's id).
///
/// # Errors
/// A path too long for a unix socket.
pub fn path(directory: &Path, address: &str, namespace: &str, group: &str) -> Result<PathBuf> {
    let joined = clean_join(&[address, namespace, group]);
    let digest = Sha256::digest(joined.as_bytes());
    let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = directory.join(name);
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(Error::InvalidArgument(format!(
            "socket path {} is longer than the {LONGEST_PATH} bytes a unix socket may have: use a shorter socket directory",
            path.display()
        )));
    }
    Ok(path)
}

/// What [`claim`] found.
#[derive(Debug)]
pub enum Claim {
    /// A living shim of this group answers there.
    Taken,
    /// Nobody did; this process now listens there.
    Ours(UnixListener),
}

/// Makes sure that somebody listens at `path`: an old shim, or this process.
/// A dead shim's socket is replaced.
///
/// Calls for one directory take turns under a lock, so of two `start`s at the
/// same moment one listens and the other finds it.
///
/// # Errors
/// The directory cannot be made or locked, or the socket cannot be bound.
pub fn claim(path: &Path) -> Result<Claim> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))
        .map_err(Error::file("set the mode of", directory))?;
    let _turn = lock(directory)?;
    if answers(path) {
        return Ok(Claim::Taken);
    }
    remove(path)?;
    let listener = UnixListener::bind(path).map_err(Error::file("listen on", path))?;
    // The directory lets nobody but root in, so there is no moment in which
    // the wider mode of a fresh socket matters.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(Error::file("set the mode of", path))?;
    Ok(Claim::Ours(listener))
}

/// Removes the socket; one that is gone already is fine.
///
/// # Errors
/// The system's refusal.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::File {
            action: "remove",
            path: path.into(),
            source: error,
        }),
        _ => Ok(()),
    }
}

/// Removes the socket only if nobody answers there: what `delete` does for a
/// shim that was killed.
///
/// # Errors
/// The directory cannot be locked or the socket not be removed.
pub fn remove_dead(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let _turn = lock(path.parent().unwrap_or(Path::new("/")))?;
    if answers(path) { Ok(()) } else { remove(path) }
}

fn lock(directory: &Path) -> Result<Flock<std::fs::File>> {
    let file = std::fs::File::open(directory).map_err(Error::file("open", directory))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::system(format!("lock {}", directory.display()))(errno))
}

/// A full backlog answers `WouldBlock` for a while; it is alive.
fn answers(path: &Path) -> bool {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(_) => return true,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if begin.elapsed() > CONNECT_PATIENCE {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return false,
        }
    }
}

/// Go's `filepath.Join`: parts joined by slashes, doubled slashes, `.` and
/// `..` resolved.
fn clean_join(parts: &[&str]) -> String {
    let joined = parts
        .iter()
        .filter(|part| !part.is_empty())
        .copied()
        .collect::<Vec<_>>();
    let joined = joined.join("/");
    let mut clean: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    let rooted = if joined.starts_with('/') { "/" } else { "" };
    format!("{rooted}{}", clean.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_one_containerd_computes() {
        // sha256("/run/containerd/containerd.sock/default/abc"), by sha256sum.
        let path = path(
            Path::new(DEFAULT_DIRECTORY),
            "/run/containerd/containerd.sock",
            "default",
            "abc",
        )
        .unwrap();
        assert_eq!(
            path.to_str().unwrap(),
            "/run/containerd/s/8cb244a719603fe00870d5ce1d8e1f1db43a654cb993d107df1f1ae23ddffa59"
        );
    }

    #[test]
    fn parts_are_joined_as_go_does() {
        assert_eq!(
            clean_join(&["/run//c.sock/", "ns", "id"]),
            "/run/c.sock/ns/id"
        );
        assert_eq!(clean_join(&["", "ns", "id"]), "ns/id");
        assert_eq!(clean_join(&["/a/../b", "./ns", "id"]), "/b/ns/id");
    }

    #[test]
    fn a_directory_too_long_for_a_socket_is_refused() {
        assert!(path(&Path::new("/x").join("y".repeat(60)), "/a", "n", "i").is_err());
    }

    #[test]
    fn one_of_two_claims_listens_and_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let Claim::Ours(listener) = claim(&path).unwrap() else {
            panic!("nobody was there")
        };
        assert!(matches!(claim(&path).unwrap(), Claim::Taken));
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        remove_dead(&path).unwrap();
        assert!(path.exists(), "a living shim's socket stays");
        drop(listener);
        assert!(matches!(claim(&path).unwrap(), Claim::Ours(_)));
        remove_dead(&path).unwrap();
        assert!(!path.exists());
        remove_dead(&path).unwrap();
    }
}
