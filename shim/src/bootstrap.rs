//! `start`: make sure that a shim serves the task, and tell containerd where.
//!
//! containerd reads stdout and stderr of this call as one, so on success
//! nothing but the answer is written. Three generations call it: up to 2.2
//! stdin holds the runtime options (or nothing) and the answer is a plain
//! address; from 2.3 stdin holds `BootstrapParams` and the answer is a
//! `BootstrapResult`. Answering in kind serves all of them, since both task
//! services are served on the one socket.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use protos::bootstrap::{BootstrapParams, BootstrapResult};
use protos::protobuf::Message as _;
use protos::protobuf::well_known_types::any::Any;

use crate::args::Flags;
use crate::bundle;
use crate::error::{Error, Result};
use crate::options;
use crate::socket::{self, Claim};

/// Most that is read from stdin; containerd's Go shims have the same bound.
const LARGEST_INPUT: u64 = 10 << 20;

/// How long stdin may take to end, and a new shim to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `start` in the bundle directory, which is the current one.
///
/// # Errors
/// No shim could be found or started; the caller prints the cause.
pub fn start(flags: &Flags) -> Result<()> {
    let request = Request::parse(&read_input()?, flags);
    let bundle = std::env::current_dir().map_err(Error::system("find the bundle directory"))?;
    let group = bundle::group(&bundle, &flags.id)?;
    let path = socket::path(
        &request.socket_directory,
        &flags.address,
        &flags.namespace,
        &group,
    )?;
    let address = format!("unix://{}", path.display());
    // containerd 1.6 and 1.7 find the shim again by this file.
    let address_file = bundle.join("address");
    std::fs::write(&address_file, &address).map_err(Error::file("write", &address_file))?;
    if let Claim::Ours(listener) = socket::claim(&path)? {
        let started = serve_in_background(flags, &request, &path, listener.into());
        if started.is_err() {
            socket::remove(&path)?;
        }
        started?;
    }
    let answer = match request.form {
        Form::Options => address.into_bytes(),
        Form::Params => {
            let mut result = BootstrapResult::new();
            result.version = 3;
            result.address = address;
            result.protocol = "ttrpc".into();
            result.write_to_bytes().map_err(|source| Error::Message {
                what: "encode the answer".into(),
                source,
            })?
        }
    };
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&answer)
        .and_then(|()| stdout.flush())
        .map_err(Error::system("write the answer to stdout"))
}

/// What stdin said.
#[derive(Debug, PartialEq)]
struct Request {
    form: Form,
    socket_directory: PathBuf,
    /// cgroup that the shim itself shall join (`ShimCgroup` of runc's options).
    shim_cgroup: Option<String>,
}

/// Which generation of containerd asks, and so how it reads the answer.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// Up to 2.2: runtime options or nothing; a plain address.
    Options,
    /// From 2.3: `BootstrapParams`; a `BootstrapResult`.
    Params,
}

impl Request {
    /// An old `Any` also decodes as `BootstrapParams` without an error, and the
    /// other way round; genuine parameters repeat the id and the namespace.
    fn parse(input: &[u8], flags: &Flags) -> Self {
        let params = BootstrapParams::parse_from_bytes(input)
            .ok()
            .filter(|p| p.instance_id == flags.id && p.namespace == flags.namespace);
        let Some(params) = params else {
            let shim_cgroup = Any::parse_from_bytes(input)
                .ok()
                .and_then(|a| options::shim_cgroup(&a));
            return Self {
                form: Form::Options,
                socket_directory: socket::DEFAULT_DIRECTORY.into(),
                shim_cgroup,
            };
        };
        let shim_cgroup = params
            .extensions
            .iter()
            .filter_map(|extension| extension.value.as_ref())
            .find_map(options::shim_cgroup);
        let socket_directory = params
            .socket_dir
            .filter(|directory| !directory.is_empty())
            .map_or_else(|| socket::DEFAULT_DIRECTORY.into(), PathBuf::from);
        Self {
            form: Form::Params,
            socket_directory,
            shim_cgroup,
        }
    }
}

/// Reads stdin to its end. A person's terminal or a pipe that nobody closes
/// must not hold the call up for ever.
fn read_input() -> Result<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut input = Vec::new();
        let read = std::io::stdin()
            .lock()
            .take(LARGEST_INPUT + 1)
            .read_to_end(&mut input);
        // The receiver is gone only if the patience is.
        let _ = sender.send(read.map(|_| input));
    });
    let input = receiver
        .recv_timeout(PATIENCE)
        .map_err(|_| Error::DeadlineExceeded(format!("stdin did not end within {PATIENCE:?}")))?
        .map_err(Error::system("read stdin"))?;
    if input.len() as u64 > LARGEST_INPUT {
        return Err(Error::InvalidArgument(format!(
            "stdin holds more than {LARGEST_INPUT} bytes; runtime options were expected"
        )));
    }
    Ok(input)
}

/// Starts `serve` with the listening socket as its stdin and waits until it
/// says on stdout that it is ready (or, on failure, why not).
fn serve_in_background(
    flags: &Flags,
    request: &Request,
    path: &Path,
    listener: OwnedFd,
) -> Result<()> {
    let exe = std::env::current_exe().map_err(Error::system("find the shim's own binary"))?;
    let mut command = Command::new(&exe);
    command
        .args([
            "-namespace",
            &flags.namespace,
            "-address",
            &flags.address,
            "-id",
            &flags.id,
        ])
        .args(["-publish-binary", &flags.publish_binary])
        .args(["-socket".as_ref(), path.as_os_str()])
        .args(flags.debug.then_some("-debug"))
        .arg("serve")
        .stdin(listener)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(Error::file("run", &exe))?;
    let result = adjust(child.id(), request).and_then(|()| await_ready(&mut child));
    if result.is_err() {
        // It has not served anybody yet; a failed kill means it is gone.
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

/// Gives the shim its place: its own cgroup if the options name one, and an
/// OOM score just above containerd's, so that a shim goes before the daemon.
fn adjust(pid: u32, request: &Request) -> Result<()> {
    if let Some(cgroup) = &request.shim_cgroup {
        crate::placement::move_shim(pid, cgroup)?;
    }
    let parent = std::os::unix::process::parent_id();
    let score = std::fs::read_to_string(format!("/proc/{parent}/oom_score_adj"))
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
        .map(|score| (score + 1).min(1000));
    if let Some(score) = score {
        // Lowering needs CAP_SYS_RESOURCE; a shim without the score it should
        // have still works, so a refusal is not an error.
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
    }
    Ok(())
}

fn await_ready(child: &mut std::process::Child) -> Result<()> {
    let Some(mut stdout) = child.stdout.take() else {
        return Err(Error::FailedPrecondition(
            "the new shim has no stdout".into(),
        ));
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        let _ = sender.send(read.map(|_| text));
    });
    let begin = Instant::now();
    let text = receiver
        .recv_timeout(PATIENCE)
        .map_err(|_| {
            Error::DeadlineExceeded(format!(
                "the new shim was not ready after {} s",
                begin.elapsed().as_secs()
            ))
        })?
        .map_err(Error::system("read what the new shim says"))?;
    match text.trim() {
        READY => Ok(()),
        "" => Err(Error::FailedPrecondition(
            "the new shim ended before it was ready".into(),
        )),
        reason => Err(Error::FailedPrecondition(format!(
            "the new shim failed: {reason}"
        ))),
    }
}

/// What `serve` writes to stdout, before it closes it, once it serves.
pub const READY: &str = "ready";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flags() -> Flags {
        Flags {
            namespace: "k8s.io".into(),
            id: "abc".into(),
            ..Flags::default()
        }
    }

    #[test]
    fn nothing_and_options_ask_for_a_plain_address() {
        let mut any = Any::new();
        any.type_url = "runtimeoptions.v1.Options".into();
        any.value = vec![10, 3, b'a', b'b', b'c'];
        for input in [
            Vec::new(),
            any.write_to_bytes().unwrap(),
            b"\xff\xff".to_vec(),
        ] {
            let request = Request::parse(&input, &flags());
            assert_eq!(request.form, Form::Options, "{input:?}");
            assert_eq!(
                request.socket_directory,
                Path::new(socket::DEFAULT_DIRECTORY)
            );
        }
    }

    #[test]
    fn genuine_parameters_ask_for_a_result() {
        let mut params = BootstrapParams::new();
        params.instance_id = "abc".into();
        params.namespace = "k8s.io".into();
        params.socket_dir = Some("/run/s".into());
        let request = Request::parse(&params.write_to_bytes().unwrap(), &flags());
        assert_eq!(request.form, Form::Params);
        assert_eq!(request.socket_directory, Path::new("/run/s"));
        params.instance_id = "other".into();
        let request = Request::parse(&params.write_to_bytes().unwrap(), &flags());
        assert_eq!(request.form, Form::Options, "another id is not ours");
    }

    proptest! {
        #[test]
        fn any_input_is_the_old_form_unless_it_repeats_the_id(input in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(Request::parse(&input, &flags()).form, Form::Options);
        }

        #[test]
        fn any_parameters_are_read_as_they_were_sent(directory in "[a-z/]{0,12}", level in any::<i32>()) {
            let mut params = BootstrapParams::new();
            params.instance_id = "abc".into();
            params.namespace = "k8s.io".into();
            params.socket_dir = Some(directory.clone());
            params.containerd_version = level.to_string();
            let request = Request::parse(&params.write_to_bytes().unwrap(), &flags());
            prop_assert_eq!(request.form, Form::Params);
            if !directory.is_empty() {
                prop_assert_eq!(request.socket_directory, Path::new(&directory));
            }
        }
    }
}
