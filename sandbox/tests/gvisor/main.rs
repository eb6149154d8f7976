//! The life of containers in real sandboxes.
//!
//! One process reaps all children, so there is one runtime, and the cases run one
//! after the other: this is its own test harness. Arguments filter by name.

#![expect(clippy::unwrap_used, reason = "a panic is how a case fails")]
#![expect(clippy::print_stdout, reason = "this is the test harness")]

mod host;

use std::fs::{File, Permissions};
use std::future::Future;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci_spec::runtime::LinuxNamespaceType;
use sandbox::{
    Children, Deadlines, Error, Exit, Network, Platform, Stdio, Target, Version, terminal,
};
use serde_json::json;
use tokio::sync::mpsc;

use host::{Cgroup, Host, Pod, SANDBOX, output, process, stdout_only, until};

type Case = fn(Rc<Host>) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|host| Box::pin($name(host))) as Case)),*]
    };
}

fn main() -> ExitCode {
    let cases = cases![
        life_of_one_container,
        sized_by_its_cgroup,
        exit_codes,
        pod_of_several,
        failed_create_leaves_nothing,
        causes_told_on_standard_error,
        failed_start,
        killed_before_its_start,
        execs,
        exec_on_a_terminal,
        terminal_of_the_first,
        terminal_of_a_further_one,
        signals,
        pause_and_resume,
        usage_of_each,
        killed_sentry,
        stopped_sentry,
        cleanup_without_the_shim,
        cgroup_that_cannot_be_joined,
        checkpoint_and_restore,
        platform_is_probed,
        network_is_chosen,
    ];
    let runsc = match Host::find() {
        Ok(runsc) => runsc,
        Err(reason) => {
            println!("skipped: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));

    let version = std::process::Command::new(&runsc)
        .arg("--version")
        .output()
        .unwrap();
    let version = Version::parse(&String::from_utf8_lossy(&version.stdout));
    println!("runsc: {} ({version:?})", runsc.display());
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut failed = Vec::new();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let children = Children::new().unwrap();
        let host = Rc::new(Host {
            runsc,
            version,
            children,
            cgroup: Cgroup::make(),
        });
        for (name, case) in cases.into_iter().filter(|(name, _)| wanted(name)) {
            let began = std::time::Instant::now();
            let ended = tokio::task::spawn_local(case(Rc::clone(&host))).await;
            let result = if ended.is_ok() { "ok" } else { "FAILED" };
            println!("{name} … {result} ({:.2?})", began.elapsed());
            if ended.is_err() {
                failed.push(name);
                end_what_is_left(&host).await;
            }
        }
    });
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}

/// After a failure, so that the next case starts clean.
async fn end_what_is_left(host: &Host) {
    for pid in host.cgroup.members() {
        // Only what our launcher put there is in this cgroup.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    until("the cgroup to be empty", || {
        host.cgroup.members().is_empty()
    })
    .await;
}

async fn life_of_one_container(host: Rc<Host>) {
    let pod = Pod::new(&host);
    let (stdout, text) = output();
    let args = ["sh", "-c", "echo hello; cat /proc/version; exit 3"];
    let created = pod
        .create(SANDBOX, &args, stdout_only(stdout))
        .await
        .unwrap();
    assert_eq!(pod.gvisor.sentry_pid(), Some(created.pid));
    let members = host.cgroup.members();
    assert!(members.contains(&created.pid.as_raw()));
    assert!(members.len() >= 2, "sentry and gofer: {members:?}");
    for pid in members {
        assert!(host.cgroup.holds(pid), "{pid} is not in every hierarchy");
    }

    pod.gvisor.start(SANDBOX).await.unwrap();
    assert_eq!(pod.code(SANDBOX).await, 3);
    assert_eq!(pod.code(SANDBOX).await, 3, "asked again");
    assert_eq!(pod.gvisor.sentry_pid(), None);
    let text = text.await.unwrap();
    assert!(
        text.starts_with("hello\n") && text.contains("Jan 10 15:06:54 PST 2016"),
        "{text}"
    );

    let duplicate = pod
        .create(SANDBOX, &["true"], Stdio::Null)
        .await
        .unwrap_err();
    assert!(
        matches!(duplicate, Error::AlreadyExists { .. }),
        "{duplicate}"
    );
    pod.gvisor.delete(SANDBOX).await.unwrap();
    pod.gvisor.delete(SANDBOX).await.unwrap();
    let gone = pod.gvisor.wait(SANDBOX).await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    pod.end(&host).await;
}

async fn sized_by_its_cgroup(host: Rc<Host>) {
    let megabytes = 600;
    let before = host.cgroup.limit_memory(&(megabytes << 20).to_string());
    let pod = Pod::new(&host);
    let (stdout, text) = output();
    pod.create(
        SANDBOX,
        &["grep", "MemTotal", "/proc/meminfo"],
        stdout_only(stdout),
    )
    .await
    .unwrap();
    pod.gvisor.start(SANDBOX).await.unwrap();
    assert_eq!(pod.code(SANDBOX).await, 0);
    let text = text.await.unwrap();
    assert!(text.contains(&format!(" {} kB", megabytes << 10)), "{text}");
    pod.end(&host).await;
    host.cgroup.limit_memory(&before);
}

async fn exit_codes(host: Rc<Host>) {
    for (script, code) in [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -11 $$", 139),
    ] {
        let pod = Pod::new(&host);
        pod.run(SANDBOX, &["sh", "-c", script]).await;
        assert_eq!(pod.code(SANDBOX).await, code, "first container: {script}");
        pod.end(&host).await;
    }
    let pod = Pod::new(&host);
    pod.pause().await;
    for (number, (script, code)) in [
        ("true", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -11 $$", 139),
    ]
    .iter()
    .enumerate()
    {
        let id = format!("c{number}");
        pod.run(&id, &["sh", "-c", script]).await;
        assert_eq!(pod.code(&id).await, *code, "further container: {script}");
        pod.gvisor.delete(&id).await.unwrap();
    }
    pod.end(&host).await;
}

async fn pod_of_several(host: Rc<Host>) {
    let pod = Pod::new(&host);
    let early = pod.create("c1", &["true"], Stdio::Null).await.unwrap_err();
    assert!(
        matches!(early, Error::NotFound { .. }),
        "no sandbox yet: {early}"
    );

    let created = pod
        .create(SANDBOX, &["sleep", "1000"], Stdio::Null)
        .await
        .unwrap();
    let (stdout, text) = output();
    let args = ["sh", "-c", "echo from c1; sleep 1000"];
    let further = pod.create("c1", &args, stdout_only(stdout)).await.unwrap();
    assert_eq!(further.pid, created.pid);
    let early = pod.gvisor.start("c1").await.unwrap_err();
    assert!(
        matches!(early, Error::WrongState { .. }),
        "before the first one: {early}"
    );
    pod.gvisor.start(SANDBOX).await.unwrap();
    pod.gvisor.start("c1").await.unwrap();
    pod.run("c2", &["sh", "-c", "exit 7"]).await;
    assert_eq!(pod.code("c2").await, 7);
    for pid in host.cgroup.members() {
        assert!(host.cgroup.holds(pid), "{pid} is not in every hierarchy");
    }

    // The end of the first takes the others with it.
    pod.gvisor
        .signal(SANDBOX, Target::Init, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 137);
    let lost = pod.gvisor.wait("c1").await.unwrap();
    assert_eq!(lost.code, 137, "{lost:?}");
    assert_eq!(text.await.unwrap(), "from c1\n");
    let restart = pod.create("c3", &["true"], Stdio::Null).await.unwrap_err();
    assert!(matches!(restart, Error::NotFound { .. }), "{restart}");
    for id in ["c1", "c2"] {
        pod.gvisor.delete(id).await.unwrap();
    }
    pod.end(&host).await;
}

async fn failed_create_leaves_nothing(host: Rc<Host>) {
    let pod = Pod::new(&host);
    let mut spec = pod.make_bundle(SANDBOX, &["true"], false);
    spec.root_mut().as_mut().unwrap().set_path("nowhere".into());
    let bundle = pod.bundle(SANDBOX);
    let cause = match host.version {
        Version::Current => "nowhere",
        // It says what failed, but not with which path.
        Version::Debian2022 => "mounting root on root",
    };
    let error = pod
        .gvisor
        .create(SANDBOX, &bundle, &spec, Stdio::Null)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(cause),
        "names the cause: {error}"
    );
    pod.assert_nothing_left(&host).await;

    // The id is free again.
    let pod = Pod::new(&host);
    pod.run(SANDBOX, &["true"]).await;
    assert_eq!(pod.code(SANDBOX).await, 0);
    pod.end(&host).await;
}

/// What says it on standard error alone says it to us also where that is the
/// container's.
async fn causes_told_on_standard_error(host: Rc<Host>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let flag = |config: &mut sandbox::Config| {
        let (name, value) = ("no-such-flag".to_owned(), "1".to_owned());
        config.flags.insert(name, value);
    };
    let not_a_program = |config: &mut sandbox::Config| config.runsc = file.path().to_owned();
    type Change<'a> = &'a dyn Fn(&mut sandbox::Config);
    let changes: [(&str, Change<'_>); 2] = [
        ("-no-such-flag", &flag),
        ("ermission denied", &not_a_program),
    ];
    for (cause, change) in changes {
        for piped in [false, true] {
            let pod = Pod::with(&host, change);
            let stdio = if piped {
                stdout_only(output().0)
            } else {
                Stdio::Null
            };
            let error = pod.create(SANDBOX, &["true"], stdio).await.unwrap_err();
            let error = error.to_string();
            assert!(error.contains(cause), "piped {piped}: {error}");
            pod.assert_nothing_left(&host).await;
        }
    }
}

async fn failed_start(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    pod.create("c1", &["/nowhere"], Stdio::Null).await.unwrap();
    let error = pod.gvisor.start("c1").await.unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "names the cause: {error}");
    assert_eq!(pod.gvisor.wait("c1").await.unwrap().code, 128);
    let again = pod.gvisor.start("c1").await.unwrap_err();
    assert!(matches!(again, Error::WrongState { .. }), "{again}");
    pod.gvisor.delete("c1").await.unwrap();
    // Another one in the same root file system.
    let mut spec = pod.make_bundle("c2", &["true"], false);
    let rootfs = pod.bundle("c1").join("rootfs");
    spec.root_mut().as_mut().unwrap().set_path(rootfs);
    pod.gvisor
        .create("c2", &pod.bundle("c2"), &spec, Stdio::Null)
        .await
        .unwrap();
    pod.gvisor.start("c2").await.unwrap();
    assert_eq!(pod.code("c2").await, 0);
    pod.gvisor.delete("c2").await.unwrap();
    pod.end(&host).await;

    let pod = Pod::new(&host);
    pod.create(SANDBOX, &["/nowhere"], Stdio::Null)
        .await
        .unwrap();
    let error = pod.gvisor.start(SANDBOX).await.unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "names the cause: {error}");
    pod.gvisor.wait(SANDBOX).await.unwrap();
    pod.end(&host).await;
}

async fn killed_before_its_start(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.create(SANDBOX, &["sleep", "1000"], Stdio::Null)
        .await
        .unwrap();
    pod.gvisor
        .signal(SANDBOX, Target::Init, Signal::SIGWINCH as i32)
        .await
        .unwrap();
    pod.create("c1", &["sleep", "1000"], Stdio::Null)
        .await
        .unwrap();
    pod.gvisor
        .signal("c1", Target::Init, Signal::SIGTERM as i32)
        .await
        .unwrap();
    assert_eq!(pod.code("c1").await, 143);
    pod.gvisor
        .signal(SANDBOX, Target::All, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 137);
    pod.gvisor.delete("c1").await.unwrap();
    pod.end(&host).await;
}

async fn execs(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    pod.run("c1", &["sleep", "1000"]).await;
    for id in [SANDBOX, "c1"] {
        let (stdout, text) = output();
        let script = "id -u; grep CapBnd /proc/self/status; exit 5";
        let args = process(&json!({"args": ["sh", "-c", script], "user": {"uid": 7, "gid": 8}}));
        let exec = pod
            .gvisor
            .exec(id, &args, stdout_only(stdout))
            .await
            .unwrap();
        assert_eq!(pod.gvisor.wait_exec(id, exec.pid).await.unwrap().code, 5);
        assert_eq!(
            pod.gvisor.wait_exec(id, exec.pid).await.unwrap().code,
            5,
            "asked again"
        );
        // CAP_CHOWN and CAP_KILL, those of the container.
        assert_eq!(text.await.unwrap(), "7\nCapBnd:\t0000000000000021\n");
        let late = pod
            .gvisor
            .signal(id, Target::Exec(exec.pid), 9)
            .await
            .unwrap_err();
        assert!(matches!(late, Error::NotFound { .. }), "{late}");
        pod.gvisor.forget_exec(id, exec.pid);
        let gone = pod.gvisor.wait_exec(id, exec.pid).await.unwrap_err();
        assert!(matches!(gone, Error::NotFound { .. }), "{gone}");

        let error = pod
            .gvisor
            .exec(id, &process(&json!({"args": ["/nowhere"]})), Stdio::Null)
            .await;
        assert!(error.unwrap_err().to_string().contains("/nowhere"));
        let relative = process(&json!({"args": ["true"], "cwd": "x"}));
        let error = pod
            .gvisor
            .exec(id, &relative, Stdio::Null)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Spec { .. }), "{error}");
    }

    // Many at once, with input, and killed ones.
    let cat = process(&json!({"args": ["cat"]}));
    let mut running = Vec::new();
    for number in 0..10 {
        let (stdout, text) = output();
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let stdio = Stdio::Piped {
            stdin: Some(read),
            stdout: Some(stdout),
            stderr: None,
        };
        let exec = pod.gvisor.exec("c1", &cat, stdio).await.unwrap();
        nix::unistd::write(&write, format!("input {number}").as_bytes()).unwrap();
        running.push((number, exec.pid, text, write));
    }
    assert_eq!(pod.gvisor.processes("c1").await.unwrap().len(), 11);
    for (number, pid, text, write) in running {
        drop(write);
        assert_eq!(text.await.unwrap(), format!("input {number}"));
        assert_eq!(pod.gvisor.wait_exec("c1", pid).await.unwrap().code, 0);
    }
    let sleep = process(&json!({"args": ["sleep", "1000"]}));
    let exec = pod.gvisor.exec("c1", &sleep, Stdio::Null);
    let exec = exec.await.unwrap();
    pod.gvisor
        .signal("c1", Target::Exec(exec.pid), Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(
        pod.gvisor.wait_exec("c1", exec.pid).await.unwrap().code,
        137
    );
    pod.gvisor.delete("c1").await.unwrap();
    pod.end(&host).await;
}

/// A terminal's master, read until a text appears.
struct Screen {
    master: OwnedFd,
    output: mpsc::UnboundedReceiver<String>,
    seen: String,
}

impl Screen {
    fn new(master: OwnedFd) -> Self {
        let (sender, output) = mpsc::unbounded_channel();
        let mut reader = File::from(master.try_clone().unwrap());
        // Ends with the last holder of the other end (EIO).
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                if count == 0 || sender.send(text).is_err() {
                    return;
                }
            }
        });
        Self {
            master,
            output,
            seen: String::new(),
        }
    }

    async fn shows(&mut self, text: &str) {
        let shown = self.shows_within(text, Duration::from_secs(20)).await;
        assert!(shown, "{text:?} never came, only {:?}", self.seen);
    }

    async fn shows_within(&mut self, text: &str, time: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + time;
        while !self.seen.contains(text) {
            match tokio::time::timeout_at(deadline, self.output.recv()).await {
                Ok(Some(more)) => self.seen.push_str(&more),
                Ok(None) => panic!("closed after {:?}", self.seen),
                Err(_) => return false,
            }
        }
        self.seen.clear();
        true
    }

    /// Types as the shim does: signals first, then the bytes.
    fn type_in(&self, bytes: &[u8]) -> Vec<Signal> {
        let signals = terminal::typed_signals(&self.master, bytes).unwrap();
        nix::unistd::write(&self.master, bytes).unwrap();
        signals
    }
}

/// Traps what a terminal sends, and tells its size on request.
const TRAPS: &str = "trap 'echo got int' INT; trap 'echo size $(stty size)' WINCH; \
                     echo ready $(stty size); while true; do sleep 0.1; done";

async fn exec_on_a_terminal(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    let shell = process(&json!({"args": ["sh", "-c", TRAPS], "terminal": true}));
    let stdio = Stdio::Terminal {
        width: 80,
        height: 24,
    };
    let exec = pod.gvisor.exec(SANDBOX, &shell, stdio).await.unwrap();
    let mut screen = Screen::new(exec.console.unwrap());
    drives_a_terminal(&pod, SANDBOX, exec.pid, &mut screen).await;
    pod.gvisor
        .signal(SANDBOX, Target::Exec(exec.pid), Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(
        pod.gvisor.wait_exec(SANDBOX, exec.pid).await.unwrap().code,
        137
    );
    pod.end(&host).await;
}

async fn terminal_of_a_further_one(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    let stdio = Stdio::Terminal {
        width: 80,
        height: 24,
    };
    let created = pod.create("c1", &["sh", "-c", TRAPS], stdio).await.unwrap();
    let mut screen = Screen::new(created.console.unwrap());
    pod.gvisor.start("c1").await.unwrap();
    drives_a_terminal(&pod, "c1", 0, &mut screen).await;
    pod.gvisor
        .signal("c1", Target::Init, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code("c1").await, 137);
    pod.gvisor.delete("c1").await.unwrap();
    pod.end(&host).await;
}

async fn drives_a_terminal(pod: &Pod, id: &str, pid: i32, screen: &mut Screen) {
    screen.shows("ready 24 80").await;
    let foreground = Target::Foreground(pid);
    let mut shown = false;
    while !shown {
        // The shell of the old version may miss it while it forks.
        assert_eq!(screen.type_in(b"\x03"), [Signal::SIGINT]);
        pod.gvisor
            .signal(id, foreground, Signal::SIGINT as i32)
            .await
            .unwrap();
        shown = screen.shows_within("got int", Duration::from_secs(5)).await;
    }
    terminal::resize(&screen.master, 132, 43).unwrap();
    pod.gvisor
        .signal(id, foreground, Signal::SIGWINCH as i32)
        .await
        .unwrap();
    screen.shows("size 43 132").await;
}

async fn terminal_of_the_first(host: Rc<Host>) {
    let pod = Pod::new(&host);
    let stdio = Stdio::Terminal {
        width: 80,
        height: 24,
    };
    let created = pod
        .create(SANDBOX, &["sh", "-c", TRAPS], stdio)
        .await
        .unwrap();
    let mut screen = Screen::new(created.console.unwrap());
    pod.gvisor.start(SANDBOX).await.unwrap();
    screen.shows("ready 24 80").await;
    // Here the sentry has the terminal, and passes signals on by itself.
    screen.type_in(b"\x03");
    screen.shows("got int").await;
    terminal::resize(&screen.master, 132, 43).unwrap();
    screen.shows("size 43 132").await;
    pod.end(&host).await;
}

async fn signals(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    let (stdout, text) = output();
    let script = "trap 'echo got term; exit 4' TERM; echo ready; while true; do sleep 0.1; done";
    pod.create("c1", &["sh", "-c", script], stdout_only(stdout))
        .await
        .unwrap();
    pod.gvisor.start("c1").await.unwrap();
    // Two processes, so that the trap is set.
    let mut count = 0;
    while count < 2 {
        count = pod.gvisor.processes("c1").await.unwrap().len();
    }
    pod.gvisor
        .signal("c1", Target::Init, Signal::SIGTERM as i32)
        .await
        .unwrap();
    assert_eq!(pod.code("c1").await, 4);
    assert_eq!(text.await.unwrap(), "ready\ngot term\n");
    for target in [Target::Init, Target::All, Target::Exec(1)] {
        let late = pod.gvisor.signal("c1", target, 15).await.unwrap_err();
        assert!(matches!(late, Error::NotFound { .. }), "{late}");
    }
    // SIGKILL may still be for what it left behind, but not for the first process.
    let late = pod.gvisor.signal("c1", Target::Init, 9).await.unwrap_err();
    assert!(matches!(late, Error::NotFound { .. }), "{late}");
    let unknown = pod
        .gvisor
        .signal(SANDBOX, Target::Exec(4242), 9)
        .await
        .unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
    let unknown = pod.gvisor.signal("c9", Target::Init, 9).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");

    pod.run("c2", &["sh", "-c", "sleep 1000 & sleep 1000"])
        .await;
    pod.gvisor
        .signal("c2", Target::All, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code("c2").await, 137);
    for id in ["c1", "c2"] {
        pod.gvisor.delete(id).await.unwrap();
    }
    pod.gvisor
        .signal(SANDBOX, Target::Init, Signal::SIGTERM as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 143);
    pod.end(&host).await;
}

async fn pause_and_resume(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    pod.gvisor.pause().await.unwrap();
    pod.gvisor.pause().await.unwrap();
    assert!(pod.gvisor.is_paused());
    let exec = pod
        .gvisor
        .exec(SANDBOX, &process(&json!({"args": ["true"]})), Stdio::Null)
        .await;
    assert!(matches!(exec, Err(Error::WrongState { .. })), "{exec:?}");
    pod.gvisor.resume().await.unwrap();
    assert!(!pod.gvisor.is_paused());
    let exec = pod
        .gvisor
        .exec(SANDBOX, &process(&json!({"args": ["true"]})), Stdio::Null)
        .await;
    assert_eq!(
        pod.gvisor
            .wait_exec(SANDBOX, exec.unwrap().pid)
            .await
            .unwrap()
            .code,
        0
    );
    // What is paused can still be killed.
    pod.gvisor.pause().await.unwrap();
    pod.gvisor
        .signal(SANDBOX, Target::Init, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 137);
    pod.end(&host).await;
}

async fn usage_of_each(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    let busy = "while :; do :; done";
    pod.run("c1", &["sh", "-c", busy]).await;
    let mut usage = pod.gvisor.usage("c1").await.unwrap();
    if host.version != Version::Debian2022 {
        assert!(usage.cpu.0 > 0, "its gofer has worked: {usage:?}");
    }
    // What it uses beside its gofer comes in steps of 10 ms.
    let enough = usage.cpu.0 + 100_000_000;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while usage.cpu.0 < enough {
        assert!(
            std::time::Instant::now() < deadline,
            "no CPU time: {usage:?}"
        );
        usage = pod.gvisor.usage("c1").await.unwrap();
    }
    if host.version == Version::Debian2022 {
        assert_eq!(
            (usage.memory, usage.pids),
            (None, None),
            "known only of the sandbox"
        );
    } else {
        assert!(usage.memory.is_some_and(|memory| memory.0 > 0), "{usage:?}");
        assert!(usage.pids.is_some_and(|pids| pids > 0), "{usage:?}");
    }
    pod.gvisor.signal("c1", Target::Init, 9).await.unwrap();
    pod.code("c1").await;
    let gone = pod.gvisor.usage("c1").await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    pod.gvisor.delete("c1").await.unwrap();
    pod.end(&host).await;
}

async fn killed_sentry(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    pod.run("c1", &["sleep", "1000"]).await;
    pod.create("c2", &["sleep", "1000"], Stdio::Null)
        .await
        .unwrap();
    let sleep = process(&json!({"args": ["sleep", "9"]}));
    let exec = pod.gvisor.exec("c1", &sleep, Stdio::Null);
    let exec = exec.await.unwrap();
    kill(pod.gvisor.sentry_pid().unwrap(), Signal::SIGKILL).unwrap();
    let ends = [
        pod.gvisor.wait(SANDBOX).await.unwrap(),
        pod.gvisor.wait("c1").await.unwrap(),
        pod.gvisor.wait("c2").await.unwrap(),
        pod.gvisor.wait_exec("c1", exec.pid).await.unwrap(),
    ];
    for Exit {
        code,
        by_sandbox_death,
        ..
    } in ends
    {
        assert_eq!((code, by_sandbox_death), (137, true), "{ends:?}");
    }
    for id in ["c1", "c2", SANDBOX] {
        let late = pod.gvisor.signal(id, Target::Init, 9).await.unwrap_err();
        assert!(matches!(late, Error::NotFound { .. }), "{late}");
        let late = pod.gvisor.processes(id).await.unwrap_err();
        assert!(matches!(late, Error::NotFound { .. }), "{late}");
        pod.gvisor.delete(id).await.unwrap();
    }
    pod.end(&host).await;
}

async fn stopped_sentry(host: Rc<Host>) {
    let second = Duration::from_secs(1);
    let pod = Pod::with(&host, |config| {
        config.deadlines = Deadlines {
            call: second,
            command: 20 * second,
            probe: second,
        };
    });
    pod.pause().await;
    pod.run("c1", &["sleep", "1000"]).await;
    pod.create("c2", &["true"], Stdio::Null).await.unwrap();
    let sentry = pod.gvisor.sentry_pid().unwrap();
    stop(sentry).await;

    let unresponsive = |error| assert!(matches!(error, Error::Unresponsive { .. }), "{error}");
    unresponsive(pod.gvisor.processes("c1").await.unwrap_err());
    unresponsive(pod.gvisor.usage("c1").await.unwrap_err());
    unresponsive(pod.gvisor.signal("c1", Target::Init, 9).await.unwrap_err());
    unresponsive(pod.gvisor.pause().await.unwrap_err());
    let exec = pod
        .gvisor
        .exec("c1", &process(&json!({"args": ["true"]})), Stdio::Null)
        .await;
    unresponsive(exec.unwrap_err());
    // The sandbox as a whole can still be killed.
    pod.gvisor
        .signal(SANDBOX, Target::Init, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 137);
    assert_eq!(pod.gvisor.wait("c1").await.unwrap().code, 137);
    for id in ["c1", "c2"] {
        pod.gvisor.delete(id).await.unwrap();
    }
    pod.end(&host).await;

    // A command that hangs in it is killed.
    let pod = Pod::with(&host, |config| {
        config.deadlines = Deadlines {
            call: second,
            command: 10 * second,
            probe: second,
        };
    });
    pod.pause().await;
    pod.create("c1", &["true"], Stdio::Null).await.unwrap();
    stop(pod.gvisor.sentry_pid().unwrap()).await;
    let error = pod.gvisor.start("c1").await.unwrap_err();
    assert!(matches!(error, Error::CommandDeadline { .. }), "{error}");
    pod.gvisor.delete(SANDBOX).await.unwrap();
    pod.gvisor.delete("c1").await.unwrap();
    pod.end(&host).await;
}

/// Stops a process, all its threads.
async fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).unwrap();
    until("every thread to stop", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            matches!(stat.rsplit_once(") "), Some((_, rest)) if rest.starts_with('T'))
        })
    })
    .await;
}

async fn cleanup_without_the_shim(host: Rc<Host>) {
    let pod = Pod::new(&host);
    pod.pause().await;
    pod.run("c1", &["sleep", "1000"]).await;
    let clean = async |id| {
        let bundle = pod.bundle(id);
        sandbox::cleanup::cleanup(&pod.config, SANDBOX, id, &bundle, &host.cgroup.dirs).await
    };
    // A sandbox of the same name, in another root file system of this host.
    let root = format!("--root={}", pod.config.sandbox_root(SANDBOX).display());
    let mut other = std::process::Command::new("sh")
        .args(["-c", "read forever", "runsc-sandbox", &root, "boot"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    clean("c1").await.unwrap();
    assert_eq!(pod.gvisor.wait("c1").await.unwrap().code, 137);
    assert!(pod.gvisor.sentry_pid().is_some(), "the sandbox goes on");
    for _ in 0..2 {
        clean(SANDBOX).await.unwrap();
        clean("c1").await.unwrap();
    }
    assert!(other.try_wait().unwrap().is_none(), "it is not ours to end");
    other.kill().unwrap();
    other.wait().unwrap();
    pod.assert_nothing_left(&host).await;
}

async fn cgroup_that_cannot_be_joined(host: Rc<Host>) {
    let pod = Pod::new(&host);
    let launcher = sandbox::Launcher {
        join: vec!["/sys/fs/cgroup/no/such".into()],
        ..host::launcher_for(&host)
    };
    let gvisor = sandbox::Gvisor::new(
        pod.config.clone(),
        host.children.clone(),
        SANDBOX,
        host.cgroup.path.clone(),
        launcher,
    );
    let spec = pod.make_bundle(SANDBOX, &["true"], false);
    for stdio in [Stdio::Null, stdout_only(output().0)] {
        let error = gvisor
            .create(SANDBOX, &pod.bundle(SANDBOX), &spec, stdio)
            .await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Launch { .. }), "{error}");
        assert!(
            error.to_string().contains("/sys/fs/cgroup/no/such"),
            "{error}"
        );
        pod.assert_nothing_left(&host).await;
    }
}

async fn checkpoint_and_restore(host: Rc<Host>) {
    let script = "echo started; while true; do sleep 0.1; done";
    let pod = Pod::new(&host);
    pod.run(SANDBOX, &["sh", "-c", script]).await;
    let image = tempfile::tempdir().unwrap();
    pod.gvisor
        .checkpoint(SANDBOX, image.path(), false)
        .await
        .unwrap();
    pod.gvisor.wait(SANDBOX).await.unwrap();
    pod.end(&host).await;

    let pod = Pod::new(&host);
    pod.create(SANDBOX, &["sh", "-c", script], Stdio::Null)
        .await
        .unwrap();
    let restored = pod.gvisor.restore(SANDBOX, image.path()).await;
    if host.version == Version::Debian2022 {
        assert!(
            matches!(restored, Err(Error::Unsupported { .. })),
            "{restored:?}"
        );
        return pod.end(&host).await;
    }
    restored.unwrap();
    assert!(!pod.gvisor.processes(SANDBOX).await.unwrap().is_empty());
    pod.gvisor
        .signal(SANDBOX, Target::All, Signal::SIGKILL as i32)
        .await
        .unwrap();
    assert_eq!(pod.code(SANDBOX).await, 137);
    pod.end(&host).await;
}

/// Stands for a runsc on which KVM behaves as `script` does.
fn fake_runsc(dir: &Path, script: &str) -> PathBuf {
    let fake = dir.join("runsc");
    std::fs::write(&fake, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&fake, Permissions::from_mode(0o755)).unwrap();
    fake
}

async fn platform_is_probed(host: Rc<Host>) {
    if !Path::new("/dev/kvm").exists() {
        return println!("platform_is_probed: skipped: there is no /dev/kvm to probe");
    }
    let real = host.runsc.display();
    let works = match host.version {
        Version::Current => "systrap",
        Version::Debian2022 => "ptrace",
    };
    // Runs everything on the platform that works here, whatever it is asked for.
    let working = format!(
        "for arg do shift; case $arg in --platform=*) arg=--platform={works};; esac; \
         set -- \"$@\" \"$arg\"; done; exec {real} \"$@\""
    );
    // Hangs on KVM, as a nested one may, with what `runsc do` has made by then, and
    // runs everything else.
    let hanging = format!(
        "case \"$*\" in *--platform=kvm*) made=$(mktemp -d -t runsc-doXXXXXX); \
         : >\"$made/null-netns\"; mount --bind /proc/self/ns/net \"$made/null-netns\"; \
         exec sleep 1000;; esac\n{working}"
    );
    let dir = tempfile::tempdir().unwrap();
    let temporary = || {
        let all = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| name.starts_with("runsc-do")).collect();
        names.sort();
        names
    };
    let before = temporary();
    for (script, platform, works) in [
        (&working, Platform::Kvm, true),
        (&hanging, Platform::Kvm, false),
        (&hanging, Platform::Auto, true),
    ] {
        let pod = Pod::with(&host, |config| {
            config.runsc = fake_runsc(dir.path(), script);
            config.platform = platform;
            if script == &hanging {
                config.deadlines.probe = Duration::from_secs(1);
            }
        });
        let created = pod.create(SANDBOX, &["true"], Stdio::Null).await;
        assert_eq!(created.is_ok(), works, "{platform:?}: {created:?}");
        if let Err(error) = created {
            assert!(matches!(error, Error::Platform { .. }), "{error}");
        }
        pod.end(&host).await;
        assert_eq!(temporary(), before, "{platform:?}");
    }
}

async fn network_is_chosen(host: Rc<Host>) {
    for (own_namespace, network) in [(true, Network::Sandbox), (false, Network::Host)] {
        let pod = Pod::with(&host, |config| config.network = None);
        if host.version == Version::Debian2022 && own_namespace {
            // It takes every network namespace for the host's.
            pod.create(SANDBOX, &["true"], Stdio::Null).await.unwrap();
            let error = pod.gvisor.start(SANDBOX).await.unwrap_err();
            assert!(error.to_string().contains("network = \"host\""), "{error}");
            pod.end(&host).await;
            continue;
        }
        let mut spec = pod.make_bundle(SANDBOX, &["cat", "/proc/net/dev"], false);
        if !own_namespace {
            let linux = spec.linux_mut().as_mut().unwrap();
            let mut namespaces = linux.namespaces().clone().unwrap();
            namespaces.retain(|namespace| namespace.typ() != LinuxNamespaceType::Network);
            linux.set_namespaces(Some(namespaces));
        }
        let (stdout, text) = output();
        let bundle = pod.bundle(SANDBOX);
        pod.gvisor
            .create(SANDBOX, &bundle, &spec, stdout_only(stdout))
            .await
            .unwrap();
        assert_eq!(pod.gvisor.network(), Some(network));
        pod.gvisor.start(SANDBOX).await.unwrap();
        assert_eq!(pod.code(SANDBOX).await, 0);
        assert!(
            text.await.unwrap().contains("lo:"),
            "there is at least loopback"
        );
        pod.end(&host).await;
    }
}
