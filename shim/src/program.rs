//! Is the program there that a container is to run?
//!
//! runsc finds out only at start, long after containerd has been told that the
//! container was created; runc says so at create, and so do we.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};
use oci_spec::runtime::{Process, Spec};

use crate::error::{Error, Result};

/// Searched when the process has no `PATH`, as by execvp(3).
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program that a process names.
///
/// # Errors
/// What is wrong with its arguments.
pub fn first_argument(process: &Process) -> std::result::Result<&str, &'static str> {
    match process.args().as_ref().and_then(|args| args.first()) {
        None => Err("is empty"),
        Some(program) if program.is_empty() => Err("begins with an empty text"),
        Some(program) => Ok(program),
    }
}

/// Checks that the first of the process's arguments is an executable file below
/// `root`. What lies in one of the spec's mounts is only there later, and not
/// checked.
///
/// # Errors
/// [`Error::InvalidArgument`] in runc's words, which Docker and the kubelet
/// recognise.
pub fn check(spec: &Spec, root: &Path) -> Result<()> {
    let Some(process) = spec.process() else {
        return Ok(());
    };
    let Ok(program) = first_argument(process) else {
        return Ok(());
    };
    let Ok(root_directory) = std::fs::File::open(root) else {
        return Ok(());
    };
    let mounts: Vec<&PathBuf> = spec
        .mounts()
        .iter()
        .flatten()
        .map(|mount| mount.destination())
        .collect();
    let found = |path: &Path| -> Found {
        if mounts.iter().any(|mount| path.starts_with(mount)) {
            return Found::Executable;
        }
        look(&root_directory, path)
    };
    if program.contains('/') {
        let path = process.cwd().join(program);
        return match found(&path) {
            Found::Executable => Ok(()),
            Found::Other => Err(refused(program, "permission denied")),
            Found::Nothing => Err(refused(program, "no such file or directory")),
        };
    }
    let variables = process.env().as_deref().unwrap_or_default();
    let search = variables
        .iter()
        .find_map(|variable| variable.strip_prefix("PATH="))
        .filter(|path| !path.is_empty())
        .unwrap_or(DEFAULT_PATH);
    let mut seen_other = false;
    for directory in search.split(':') {
        match found(&process.cwd().join(directory).join(program)) {
            Found::Executable => return Ok(()),
            Found::Other => seen_other = true,
            Found::Nothing => {}
        }
    }
    if seen_other {
        Err(refused(program, "permission denied"))
    } else {
        Err(refused(program, "executable file not found in $PATH"))
    }
}

enum Found {
    /// Or it cannot be told.
    Executable,
    /// Something that cannot be executed.
    Other,
    Nothing,
}

/// Looks below `root`, which links do not leave.
fn look(root: &impl AsFd, path: &Path) -> Found {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = match openat2(root, path, how) {
        Ok(file) => file,
        // Nobody can look for want of a descriptor, and runsc is going to say so.
        Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => return Found::Executable,
        Err(_) => return Found::Nothing,
    };
    let Ok(stat) = fstat(&file) else {
        return Found::Nothing;
    };
    let regular = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
    if regular && stat.st_mode & 0o111 != 0 {
        Found::Executable
    } else {
        Found::Other
    }
}

fn refused(program: &str, reason: &str) -> Error {
    Error::InvalidArgument(format!("exec: {program:?}: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn programs_are_found_as_execvp_would() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("bin")).unwrap();
        std::fs::create_dir_all(at("opt")).unwrap();
        std::fs::write(at("bin/tool"), "").unwrap();
        std::fs::set_permissions(at("bin/tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(at("bin/text"), "").unwrap();
        symlink("/bin/tool", at("opt/absolute")).unwrap();
        symlink("../../../../bin/tool", at("opt/climbing")).unwrap();
        for (args, env, cwd, expected) in [
            ("tool", "PATH=/bin", "/", None),
            ("tool", "X=1", "/", None),
            (
                "tool",
                "PATH=/opt",
                "/",
                Some("executable file not found in $PATH"),
            ),
            ("text", "PATH=/opt:/bin", "/", Some("permission denied")),
            ("absolute", "PATH=/opt", "/", None),
            ("/opt/climbing", "", "/", None),
            ("./tool", "", "/bin", None),
            ("bin/tool", "", "/", None),
            ("/bin", "", "/", Some("permission denied")),
            ("/nothing", "", "/", Some("no such file or directory")),
            ("/mounted/tool", "", "/", None),
        ] {
            let spec: Spec = serde_json::from_value(serde_json::json!({
                "ociVersion": "1.0.2",
                "process": {"args": [args], "env": [env], "cwd": cwd, "user": {"uid": 0, "gid": 0}},
                "mounts": [{"destination": "/mounted", "source": "/x", "type": "bind"}],
            }))
            .unwrap();
            let answer = check(&spec, root.path())
                .err()
                .map(|error| error.to_string());
            let expected = expected.map(|reason| format!("exec: {args:?}: {reason}"));
            assert_eq!(answer, expected, "{args} {env} {cwd}");
        }
    }
}
