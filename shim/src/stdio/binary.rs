//! Log programs: `binary:///path?key=value` as stdout.
//!
//! The program reads the container's stdout at descriptor 3 and its stderr at
//! 4, and closes descriptor 5 when it is ready (containerd
//! core/runtime/v2/README.md, "Logging"). A child can be given only 0, 1 and 2
//! without unsafe code, so our own binary goes between: it moves them up and
//! becomes the program.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox::children::Children;

use super::Owner;
use crate::error::{Error, Result};

/// The sub-command under which our binary makes way for a log program.
pub const COMMAND: &str = "log-program";

/// How such an output begins.
pub(super) const SCHEME: &str = "binary://";

/// How long the program may take until it is ready, and until it has ended
/// after its input has (containerd's runc shim gives it 12 s).
const PATIENCE: Duration = Duration::from_secs(12);

/// A running log program.
#[derive(Debug)]
pub(super) struct LogProgram {
    pid: Pid,
    children: Children,
}

impl LogProgram {
    /// Starts the program of `uri` on the reading ends of both pipes and waits
    /// until it is ready.
    ///
    /// # Errors
    /// The URI is faulty, the program is not there, or it is not ready in time.
    pub(super) async fn start(
        uri: &str,
        owner: &Owner,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<Self> {
        let (program, arguments) = parse(uri)?;
        let exe = std::env::current_exe().map_err(Error::system("find the shim's own binary"))?;
        let (mut ready, ready_theirs) =
            std::io::pipe().map_err(Error::system("make a pipe to the log program"))?;
        let mut command = Command::new(exe);
        command
            .arg(COMMAND)
            .arg(&program)
            .args(&arguments)
            .env("CONTAINER_ID", &owner.id)
            .env("CONTAINER_NAMESPACE", &owner.namespace)
            .stdin(stdout)
            .stdout(stderr)
            .stderr(ready_theirs);
        let children = owner.children.clone();
        let pid = children
            .spawn(&mut command)
            .map_err(Error::file("run", &program))?;
        // The command holds our copy of the program's end of the pipe.
        drop(command);
        let said = tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            ready.read_to_string(&mut said).map(|_| said)
        });
        let program = program.display();
        let said = tokio::time::timeout(PATIENCE, said)
            .await
            .map_err(|_| {
                // It may be gone already.
                let _ = kill(pid, Signal::SIGKILL);
                Error::DeadlineExceeded(format!(
                    "log program {program} is not ready after {PATIENCE:?}"
                ))
            })?
            .map_err(|error| {
                Error::system("wait for the log program")(std::io::Error::from(error))
            })?
            .map_err(Error::system("wait for the log program"))?;
        if said.is_empty() {
            Ok(Self { pid, children })
        } else {
            Err(Error::InvalidArgument(format!(
                "log program {program}: {}",
                said.trim()
            )))
        }
    }

    /// Waits for its end, which follows that of its input, and kills it if it
    /// does not come.
    pub(super) async fn stop(&self) {
        if tokio::time::timeout(PATIENCE, self.children.wait(self.pid))
            .await
            .is_err()
        {
            log::warn!("log program {} does not end and is killed", self.pid);
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }
}

/// Program and arguments of a URI: each key of the query, followed by its value
/// if it has one.
fn parse(uri: &str) -> Result<(PathBuf, Vec<String>)> {
    let rest = uri.strip_prefix(SCHEME).unwrap_or(uri);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decode(path);
    if !path.starts_with('/') {
        return Err(Error::InvalidArgument(format!(
            "output to {uri:?}: a log program is named by an absolute path, as in binary:///usr/bin/logger"
        )));
    }
    let mut arguments = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        arguments.push(decode(key));
        if !value.is_empty() {
            arguments.push(decode(value));
        }
    }
    Ok((path.into(), arguments))
}

/// Resolves `%XX` and `+` of a URI.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        match (first, escaped) {
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', None) => bytes.push(b' '),
            (byte, None) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The process between: moves descriptors 0, 1 and 2 to 3, 4 and 5 and becomes
/// the program. What fails is said on descriptor 2, where the shim listens.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = arguments.next() else {
        eprintln!("no program");
        return ExitCode::FAILURE;
    };
    let moved = match move_up() {
        Ok(moved) => moved,
        Err(error) => {
            eprintln!("move descriptors: {error}");
            return ExitCode::FAILURE;
        }
    };
    let error = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .exec();
    // Descriptor 2 is /dev/null by now, but 5 is still where the shim listens.
    let [_, _, ready] = moved;
    let _ = writeln!(std::fs::File::from(ready), "{error}");
    ExitCode::FAILURE
}

/// Copies descriptors 0, 1 and 2, which land on 3, 4 and 5: the lowest free
/// ones are taken, and a fresh process has no other. They outlive the exec.
fn move_up() -> std::io::Result<[OwnedFd; 3]> {
    let copies = [
        std::io::stdin().as_fd().try_clone_to_owned()?,
        std::io::stdout().as_fd().try_clone_to_owned()?,
        std::io::stderr().as_fd().try_clone_to_owned()?,
    ];
    for (copy, wanted) in copies.iter().zip(3..) {
        if copy.as_raw_fd() != wanted {
            return Err(std::io::Error::other(format!(
                "descriptor {wanted} is not free"
            )));
        }
        fcntl(copy, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_query_becomes_arguments() {
        for (uri, path, arguments) in [
            ("binary:///bin/log", "/bin/log", vec![]),
            (
                "binary:///bin/log?--id=a%20b&flag",
                "/bin/log",
                vec!["--id", "a b", "flag"],
            ),
            ("binary:///bin/l%6Fg?a=+%2", "/bin/log", vec!["a", " %2"]),
        ] {
            assert_eq!(
                parse(uri).unwrap(),
                (
                    path.into(),
                    arguments.into_iter().map(str::to_owned).collect()
                )
            );
        }
        assert!(parse("binary://log").is_err());
    }

    proptest! {
        #[test]
        fn any_uri_names_an_absolute_program_or_is_refused(uri in "(binary://)?/?[a-z%0-9A-F+?&=/ä]{0,30}") {
            if let Ok((program, _)) = parse(&uri) {
                prop_assert!(program.is_absolute(), "{}", program.display());
            }
        }

        #[test]
        fn any_argument_survives_its_escapes(key in "[ -~ä]{1,12}", value in "[ -~ä]{1,12}") {
            let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
            let uri = format!("binary:///p?{}={}", escaped(&key), escaped(&value));
            prop_assert_eq!(parse(&uri).unwrap().1, [key, value]);
        }
    }
}
