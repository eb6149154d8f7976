//! The launcher as a process: it joins and becomes the program, or says why not.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use sandbox::launch::FAILED;
use sandbox::{Join, Launcher};

fn exe() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let profile = exe.parent().and_then(Path::parent).unwrap();
    profile.join("examples/launch")
}

fn launch(join: Vec<PathBuf>, program: &str, args: &[&str]) -> Output {
    let launcher = Launcher {
        exe: exe(),
        join,
        mode: Join::Enter,
    };
    let mut command = launcher.command(Path::new("/dev/null"), Path::new(program), None, args);
    command.output().unwrap()
}

/// A cgroup in the first hierarchy that lets one be made; None with the reason printed.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make(name: &str) -> Option<Self> {
        for hierarchy in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let name = format!("rampart-launch-test-{name}-{}", std::process::id());
            let dir = Path::new(hierarchy).join(name);
            if fs::create_dir(&dir).is_ok() && dir.join("cgroup.procs").exists() {
                return Some(Self(dir));
            }
        }
        println!("skipped: no cgroup can be made here");
        None
    }

    fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = fs::remove_dir(&self.0) {
            assert!(Instant::now() < deadline, "{}: {error}", self.0.display());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn becomes_the_program_inside_the_cgroup() {
    let Some(cgroup) = Cgroup::make("enter") else {
        return;
    };
    let output = launch(
        vec![cgroup.0.clone()],
        "/bin/cat",
        &["/proc/self/cgroup", "/proc/self/comm"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains(cgroup.name()), "{text}");
    assert!(text.ends_with("cat\n"), "{text}");
}

#[test]
fn waits_until_it_was_put_there() {
    let Some(cgroup) = Cgroup::make("await") else {
        return;
    };
    let (sender, _receiver) = tokio::sync::mpsc::unbounded_channel();
    let launcher = Launcher {
        exe: exe(),
        join: vec![cgroup.0.clone()],
        mode: Join::AwaitMembership(sender),
    };
    let mut command = launcher.command(
        Path::new("/dev/null"),
        Path::new("/bin/cat"),
        None,
        ["/proc/self/cgroup"],
    );
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    fs::write(cgroup.0.join("cgroup.procs"), child.id().to_string()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(cgroup.name()), "{text}");
}

#[test]
fn a_flag_is_given_to_who_lists_it() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    let script = "#!/bin/sh\n[ \"$1\" = flags ] && echo '  -known value' >&2 || echo \"$@\"\n";
    // By a child: what this process has open for writing another test's child may
    // have inherited, and then it cannot be executed (ETXTBSY).
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]);
    let written = shell.arg(&program).arg(script).status().unwrap();
    assert!(written.success());
    let launcher = Launcher {
        exe: exe(),
        join: Vec::new(),
        mode: Join::Enter,
    };
    for (option, expected) in [
        (Some("known"), "--known a b\n"),
        (Some("unknown"), "a b\n"),
        (None, "a b\n"),
    ] {
        let mut command = launcher.command(Path::new("/dev/null"), &program, option, ["a", "b"]);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}

#[test]
fn says_in_one_line_why_the_program_did_not_run() {
    let marker = tempfile::tempdir().unwrap();
    let marker = marker.path().join("ran");
    let touch = [marker.to_str().unwrap()];
    for (join, program, cause) in [
        (
            vec!["/sys/fs/cgroup/no/such".into()],
            "/bin/touch",
            "launch: cannot join cgroup /sys/fs/cgroup/no/such: ",
        ),
        (
            Vec::new(),
            "/nowhere",
            "launch: cannot execute /nowhere: No such file",
        ),
    ] {
        let output = launch(join, program, &touch);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(i32::from(FAILED)), "{stderr}");
        assert!(stderr.starts_with(cause), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(!marker.exists(), "the program ran");
    }
}

#[test]
fn the_program_dies_with_its_parent() {
    // The parent is a shell that starts the launcher and is then killed.
    let exe = exe();
    let script = format!(
        "{} launch --parent $$ -- /bin/sh -c 'echo $$; exec sleep 1000' & wait",
        exe.display()
    );
    let mut shell = Command::new("/bin/sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(shell.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    // The last holder of the pipe was the program.
    line.clear();
    assert_eq!(stdout.read_line(&mut line).unwrap(), 0, "{line}");

    let output = Command::new(exe)
        .args(["launch", "--parent", "1", "--", "/bin/true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(i32::from(FAILED)));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "launch: parent 1 is gone\n"
    );
}
