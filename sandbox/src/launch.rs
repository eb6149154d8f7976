//! Starts host processes already inside their cgroup: our own binary runs
//! again as a launcher, joins, and only then becomes the program.
//!
//! What a process touches first is charged where it is then, and does not move
//! with it; so it has to be inside before its first instruction.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use tokio::sync::mpsc::UnboundedSender;

/// Exit status of a launcher that could not start the program. Not one that
/// runsc has (it ends with 1, 2 or 128).
pub const FAILED: u8 = 125;

/// The sub-command under which our binary is the launcher.
pub const COMMAND: &str = "launch";

/// How long a launcher waits to be put into its cgroup by another.
const MEMBERSHIP: Duration = Duration::from_secs(30);

/// Turns commands into commands that run inside the given cgroups.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// A binary that hands the arguments after [`COMMAND`] to [`main`].
    pub exe: PathBuf,
    /// The cgroup directories to be in, one a hierarchy. May be empty.
    pub join: Vec<PathBuf>,
    /// Who moves the process there.
    pub mode: Join,
}

/// Who moves a launched process into its cgroup.
#[derive(Clone, Debug)]
pub enum Join {
    /// The launcher itself.
    Enter,
    /// Another, such as systemd for a scope: each started pid is sent here, and
    /// the launcher waits (at most 30 s) until it sees itself in all directories.
    AwaitMembership(UnboundedSender<Pid>),
}

impl Launcher {
    /// The command that runs `program` with `args` inside the cgroups, before them
    /// the flag `--OPTION` if it knows such a one. Why it could not is also left in
    /// `complaint`: standard error may be a container's.
    ///
    /// The program is killed if the calling thread dies before it.
    pub fn command<A: AsRef<OsStr>>(
        &self,
        complaint: &Path,
        program: &Path,
        option: Option<&str>,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(&self.exe);
        command
            .arg(COMMAND)
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--complaint")
            .arg(complaint);
        for dir in &self.join {
            command.arg("--join").arg(dir);
        }
        if let Join::AwaitMembership(_) = self.mode {
            command.arg("--await");
        }
        if let Some(option) = option {
            command.arg("--option").arg(option);
        }
        command.arg("--").arg(program).args(args);
        command
    }

    /// Tells who moves processes that `pid` waits to be moved.
    pub(crate) fn started(&self, pid: Pid) {
        if let Join::AwaitMembership(sender) = &self.mode {
            // Nobody there: the launcher's own deadline reports it.
            let _ = sender.send(pid);
        }
    }
}

/// The launcher: `[--parent PID] [--complaint FILE] [--join DIR]… [--await]
/// [--option NAME] -- PROGRAM ARGS…`.
///
/// Becomes the program, or writes one line to standard error and the file and
/// returns [`FAILED`]; then the program has not run.
#[must_use]
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let (complaint, cause) = match Request::parse(args) {
        Ok(request) => match request.run() {
            Ok(never) => match never {},
            Err(cause) => (request.complaint, cause),
        },
        Err(cause) => (None, cause),
    };
    // Nothing can be done about a closed standard error, or a full disk.
    let _ = writeln!(std::io::stderr(), "launch: {cause}");
    let _ = complaint.map(|path| std::fs::write(path, format!("launch: {cause}\n")));
    ExitCode::from(FAILED)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    parent: Option<i32>,
    complaint: Option<PathBuf>,
    join: Vec<PathBuf>,
    wait: bool,
    option: Option<String>,
    program: OsString,
    args: Vec<OsString>,
}

impl Request {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut request = Self::default();
        loop {
            let Some(arg) = args.next() else {
                return Err("no -- and program given".to_owned());
            };
            match arg.to_str() {
                Some("--parent") => {
                    let pid = args.next().and_then(|pid| pid.to_str()?.parse().ok());
                    request.parent = Some(pid.ok_or("--parent needs a pid")?);
                }
                Some("--complaint") => {
                    let path = args.next().ok_or("--complaint needs a file")?;
                    request.complaint = Some(path.into());
                }
                Some("--join") => {
                    request
                        .join
                        .push(args.next().ok_or("--join needs a directory")?.into());
                }
                Some("--await") => request.wait = true,
                Some("--option") => {
                    let name = args.next().and_then(|name| name.into_string().ok());
                    request.option = Some(name.ok_or("--option needs a name")?);
                }
                Some("--") => break,
                _ => return Err(format!("unknown argument {}", arg.display())),
            }
        }
        request.program = args.next().ok_or("no program after --")?;
        request.args = args.collect();
        Ok(request)
    }

    /// Returns only if it failed.
    fn run(&self) -> Result<std::convert::Infallible, String> {
        self.die_with_parent()?;
        // All at once: a refusal takes the process back out of those before it.
        let joined = if self.wait {
            cgroups::await_membership(&self.join, Instant::now() + MEMBERSHIP)
        } else {
            cgroups::enter(&self.join)
        };
        joined.map_err(|error| {
            // One stands for all: the error names the one that refused.
            let cgroup = self.join.first().map(|first| first.display().to_string());
            format!("cannot join cgroup {}: {error}", cgroup.unwrap_or_default())
        })?;
        let mut command = Command::new(&self.program);
        if let Some(name) = self.option.as_ref().filter(|name| self.knows(name)) {
            command.arg(format!("--{name}"));
        }
        let error = command.args(&self.args).exec();
        Err(format!(
            "cannot execute {}: {error}",
            self.program.display()
        ))
    }

    /// Whether the program lists the flag: an unknown one would make it fail. One
    /// that lists none has none, and one that does not run is told of later.
    fn knows(&self, name: &str) -> bool {
        let asked = Command::new(&self.program)
            .arg("flags")
            .stdin(Stdio::null())
            .output();
        asked.is_ok_and(|answer| lists(&String::from_utf8_lossy(&answer.stderr), name))
    }

    fn die_with_parent(&self) -> Result<(), String> {
        let Some(parent) = self.parent else {
            return Ok(());
        };
        prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|error| format!("cannot ask for the parent-death signal: {error}"))?;
        // It may have died before the request.
        if getppid() != Pid::from_raw(parent) {
            return Err(format!("parent {parent} is gone"));
        }
        Ok(())
    }
}

/// Whether a list as Go's flag package prints it has the flag.
fn lists(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let words = line.trim_start().strip_prefix('-');
        words.is_some_and(|words| words.split_whitespace().next() == Some(name))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        Request::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_of_the_program_are_left_alone() {
        let request = parse(
            "--parent 7 --complaint /c --join /a --join /b --await --option o -- prog --join x --",
        )
        .unwrap();
        assert_eq!(
            request,
            Request {
                parent: Some(7),
                complaint: Some("/c".into()),
                join: vec!["/a".into(), "/b".into()],
                wait: true,
                option: Some("o".into()),
                program: "prog".into(),
                args: vec!["--join".into(), "x".into(), "--".into()],
            }
        );
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, cause) in [
            ("", "no -- and program given"),
            ("--join", "--join needs a directory"),
            ("--option", "--option needs a name"),
            ("--parent x -- true", "--parent needs a pid"),
            ("--other -- true", "unknown argument --other"),
            ("--join /a --", "no program after --"),
        ] {
            assert_eq!(parse(line).unwrap_err(), cause, "{line}");
        }
    }

    #[test]
    fn the_command_reads_back_as_the_request() {
        let launcher = Launcher {
            exe: "/exe".into(),
            join: vec!["/cg/a b".into()],
            mode: Join::Enter,
        };
        let command = launcher.command(Path::new("/c"), Path::new("/bin/true"), Some("n"), ["-x"]);
        assert_eq!(command.get_program(), "/exe");
        let mut args = command.get_args().map(OsStr::to_owned);
        assert_eq!(args.next().unwrap(), COMMAND);
        let request = Request::parse(args).unwrap();
        assert_eq!(request.parent, i32::try_from(std::process::id()).ok());
        assert_eq!(request.complaint.as_deref(), Some(Path::new("/c")));
        assert_eq!(request.join, launcher.join);
        assert_eq!(request.option.as_deref(), Some("n"));
        assert_eq!(
            (request.program, request.args),
            ("/bin/true".into(), vec!["-x".into()])
        );
    }

    proptest! {
        #[test]
        fn any_words_are_a_request_or_an_error(
            words in prop::collection::vec("(--parent|--join|--await|--complaint|--|[0-9]{1,3}|/[a-z]{0,3})", 0..10),
        ) {
            match Request::parse(words.iter().map(OsString::from)) {
                Ok(request) => {
                    let after = words.iter().skip_while(|word| *word != "--").count();
                    prop_assert!(request.args.len() + 2 <= after);
                }
                Err(cause) => prop_assert!(!cause.is_empty()),
            }
        }
    }

    #[test]
    fn flags_are_found_by_their_whole_name() {
        let list = "  -allow-suid\n    \tallows --it with -none\n  -root value\n\n";
        for (name, known) in [
            ("allow-suid", true),
            ("root", true),
            ("allow", false),
            ("none", false),
            ("it", false),
            ("value", false),
        ] {
            assert_eq!(lists(list, name), known, "{name}");
        }
        assert!(!lists("", "root"));
    }

    proptest! {
        #[test]
        fn any_flag_of_a_list_is_found(names in prop::collection::vec("[a-z][a-z-]{0,9}", 1..6), noise in "[a-z \n\t-]{0,30}") {
            let list: String = names.iter().map(|name| format!("  -{name} value\n    \tsays what\n")).collect();
            for name in &names {
                prop_assert!(lists(&list, name));
            }
            let _whatever_it_holds = lists(&noise, "root");
        }
    }
}
