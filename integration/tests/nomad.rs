//! Tasks as Nomad's containerd driver runs them: in the namespace `nomad.slice`,
//! under an id that ends in `.scope`, by a client that comes and goes. Where they
//! are and with which limits is shown in `placement`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use integration::containerd::{Containerd, Version};
use integration::inventory::Inventory;
use integration::process::{self, Output, Process};
use integration::{on_each_containerd, skip, tools, wait};

on_each_containerd!(
    task_outlives_its_client,
    stop_signal_then_kill,
    volumes_with_each_propagation,
);

const NAMESPACE: &str = "nomad.slice";

/// What the driver keeps of a containerd.
struct Driver<'a> {
    containerd: &'a Containerd,
    before: Inventory,
}

impl<'a> Driver<'a> {
    /// With the image in the driver's namespace.
    fn new(containerd: &'a Containerd) -> Option<Self> {
        if !tools::is_rampart() {
            skip("these are Rampart's own promises");
            return None;
        }
        let images = tools::images().expect("they are there, or nothing would run");
        let mut driver = Self {
            containerd,
            before: containerd.inventory(),
        };
        let import = ["images", "import", images.to_str().expect("a plain path")];
        driver.ctr(&import).ok();
        // What containerd keeps for a namespace is not a task's.
        driver.task("warm", &[], &["true"]).ok();
        driver.remove("warm");
        driver.before = Inventory::take(containerd.host());
        Some(driver)
    }

    fn id(&self, task: &str) -> String {
        format!("{}.{task}.scope", self.containerd.host().name())
    }

    fn ctr(&self, arguments: &[&str]) -> Output {
        let mut command = self.containerd.ctr_in(NAMESPACE, arguments);
        process::run(&mut command, wait::LIMIT)
    }

    /// The command that runs a task and follows its output.
    fn command(&self, task: &str, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.containerd.ctr_in(NAMESPACE, &["run"]);
        command
            .args(self.containerd.settings())
            .args(["--runtime", tools::RAMPART])
            .args(options)
            .args([tools::IMAGE, &self.id(task)])
            .args(program);
        command
    }

    fn task(&self, task: &str, options: &[&str], program: &[&str]) -> Output {
        process::run(&mut self.command(task, options, program), wait::LIMIT)
    }

    #[track_caller]
    fn detached(&self, task: &str, options: &[&str], program: &[&str]) {
        self.task(task, &[&["--detach"], options].concat(), program)
            .ok();
    }

    /// Starts a client whose output goes to a file.
    fn follow(&self, name: &str, command: &mut Command) -> (Process, PathBuf) {
        let path = self.containerd.host().directory().join(name);
        let file = File::create(&path).expect("create a file for the output");
        let both = file.try_clone().expect("another handle of the file");
        (Process::spawn(command.stdout(file).stderr(both)), path)
    }

    fn exec(&self, task: &str, exec: &str, script: &str) -> Output {
        let id = self.id(task);
        self.ctr(&["tasks", "exec", "--exec-id", exec, &id, "sh", "-c", script])
    }

    fn status(&self, task: &str) -> String {
        let (listing, id) = (self.ctr(&["tasks", "ls"]).ok(), self.id(task));
        let line = listing.lines().find(|line| line.starts_with(&id));
        let state = line.and_then(|line| line.split_whitespace().last());
        state.unwrap_or("none").to_owned()
    }

    #[track_caller]
    fn remove(&self, task: &str) {
        let id = self.id(task);
        self.ctr(&["tasks", "rm", "--force", &id]);
        self.ctr(&["containers", "rm", &id]).ok();
    }

    #[track_caller]
    fn nothing_left(&self) {
        self.before.assert_same(self.containerd.host());
    }
}

fn until_said(output: &Path, text: &str) {
    wait::until(&format!("{text:?} to be said"), || {
        fs::read_to_string(output).is_ok_and(|said| said.contains(text))
    });
}

/// The client holds the ends of the task's pipes and is gone with kill -9; the
/// next one finds the task, its output from there on, its figures and its end.
fn task_outlives_its_client(containerd: &mut Containerd) {
    let Some(driver) = Driver::new(containerd) else {
        return;
    };
    let script =
        "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); echo tick $n; sleep 0.1; done; exit 7";
    let mut run = driver.command("web", &[], &["sh", "-c", script]);
    let (mut first, output) = driver.follow("first", &mut run);
    until_said(&output, "tick 3");
    first.kill();
    assert_eq!(driver.status("web"), "RUNNING");

    let id = driver.id("web");
    let metrics = driver.ctr(&["tasks", "metrics", &id]).ok();
    assert!(metrics.contains("memory"), "{metrics}");
    driver.exec("web", "e", "true").ok();

    let mut attach = driver
        .containerd
        .ctr_in(NAMESPACE, &["tasks", "attach", &id]);
    let (mut second, output) = driver.follow("second", &mut attach);
    until_said(&output, "tick");
    driver.exec("web", "stop", "touch /tmp/stop").ok();
    let code = second.wait(wait::LIMIT);
    assert_eq!(code, 7, "the end is told to the second client");
    driver.remove("web");
    // The pipes were the first client's to remove.
    let pipes = |line: &str| line.contains("/run/containerd/fifo");
    let host = driver.containerd.host();
    driver.before.assert_same_but(host, pipes);
}

/// As `nomad stop` does: the task's own signal, and after its time KILL.
fn stop_signal_then_kill(containerd: &mut Containerd) {
    let Some(driver) = Driver::new(containerd) else {
        return;
    };
    for (signal, heeds) in [("SIGINT", true), ("SIGTERM", true), ("SIGTERM", false)] {
        let act = if heeds { "exit 3" } else { ":" };
        let name = signal.trim_start_matches("SIG");
        let script = format!("trap '{act}' {name}; echo ready; while true; do sleep 0.1; done");
        let mut run = driver.command("web", &[], &["sh", "-c", &script]);
        let (mut client, output) = driver.follow("client", &mut run);
        until_said(&output, "ready");
        let id = driver.id("web");
        driver.ctr(&["tasks", "kill", "--signal", signal, &id]).ok();
        if !heeds {
            // It has had the signal, and goes on.
            driver.exec("web", "e", "true").ok();
            assert_eq!(driver.status("web"), "RUNNING");
            let kill = ["tasks", "kill", "--signal", "SIGKILL", &id];
            driver.ctr(&kill).ok();
        }
        let code = client.wait(wait::LIMIT);
        assert_eq!(code, if heeds { 3 } else { 137 }, "{signal}");
        driver.remove("web");
    }
    driver.nothing_left();
}

/// Nomad's `propagation_mode` of a volume: private, host-to-task, bidirectional.
fn volumes_with_each_propagation(containerd: &mut Containerd) {
    let Some(driver) = Driver::new(containerd) else {
        return;
    };
    let host = driver.containerd.host();
    let volume = host.directory().join("volume");
    let below = volume.join("below");
    fs::create_dir_all(&below).expect("make the volume");
    let path = volume.to_str().expect("a plain path");
    let mount = |arguments: &[&str]| {
        process::run(host.command("mount").args(arguments), wait::LIMIT).ok();
    };
    // Propagates only from a mount that is shared.
    mount(&["--bind", path, path]);
    mount(&["--make-shared", path]);
    let option = |mode: &str| format!("type=bind,src={path},dst=/volume,options=rbind:{mode}");

    for (task, mode) in [("private", "rprivate"), ("slave", "rslave")] {
        driver.detached(task, &["--mount", &option(mode)], &["sleep", "1000"]);
    }
    let refused = driver.task("shared", &["--mount", &option("rshared")], &["true"]);
    let error = refused.err();
    assert!(
        error.contains("mount /volume: ") && error.contains("rshared"),
        "{error}"
    );
    let shared = driver.id("shared");
    driver.ctr(&["containers", "rm", &shared]);

    let below = below.to_str().expect("a plain path");
    mount(&["-t", "tmpfs", "later", below]);
    fs::write(volume.join("plain"), "").expect("write to the volume");
    process::run(
        host.command("touch").arg(format!("{below}/mounted")),
        wait::LIMIT,
    )
    .ok();
    let sees = |task: &str, exec: &str, file: &str| {
        driver
            .exec(task, exec, &format!("test -e /volume/{file}"))
            .code
            == 0
    };
    for task in ["private", "slave"] {
        assert!(sees(task, "plain", "plain"), "{task}: the volume itself");
    }
    assert!(sees("slave", "mounted", "below/mounted"), "host-to-task");
    assert!(!sees("private", "mounted", "below/mounted"), "private");

    for task in ["private", "slave"] {
        driver.remove(task);
    }
    for path in [below, path] {
        process::run(host.command("umount").arg(path), wait::LIMIT).ok();
    }
    fs::remove_dir_all(&volume).expect("nothing is mounted in the volume");
    driver.nothing_left();
}

/// A CSI plugin's socket: one task listens in a directory that another has too.
/// Host sockets are off in runsc unless asked for, and only streams reach the host.
#[test]
fn socket_in_a_directory_that_tasks_share() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new(PYTHON).exists() {
        return skip("there is no python3 to use sockets with");
    }
    let settings = "runsc_flags = { host-uds = \"all\" }\n";
    let Some(containerd) = Containerd::with_settings(Version::V2_4, settings) else {
        return;
    };
    let Some(driver) = Driver::new(&containerd) else {
        return;
    };
    let directory = containerd.host().directory().join("csi");
    fs::create_dir(&directory).expect("make the shared directory");
    let shared = directory.to_str().expect("a plain path");
    // busybox has no program for such sockets, so the host's Python is lent.
    let volumes: Vec<String> = [
        (shared, "/csi", "rw"),
        ("/usr", "/usr", "ro"),
        ("/usr/lib", "/lib", "ro"),
        ("/usr/lib64", "/lib64", "ro"),
    ]
    .iter()
    .filter(|(from, _, _)| Path::new(from).exists())
    .map(|(from, to, mode)| format!("type=bind,src={from},dst={to},options=rbind:{mode}"))
    .collect();
    let options: Vec<&str> = volumes.iter().flat_map(|one| ["--mount", one]).collect();

    let listen = "import socket\n\
        s = socket.socket(socket.AF_UNIX)\n\
        s.bind('/csi/socket')\n\
        s.listen()\n\
        c, _ = s.accept()\n\
        c.sendall(b'you said ' + c.recv(100))\n";
    let (mut plugin, _) = driver.follow(
        "plugin-output",
        &mut driver.command("plugin", &options, &[PYTHON, "-c", listen]),
    );
    wait::until("the plugin to listen", || directory.join("socket").exists());
    let say = "import socket, time\n\
        s = socket.socket(socket.AF_UNIX)\n\
        while s.connect_ex('/csi/socket'): time.sleep(0.1)\n\
        s.sendall(b'stage volume')\n\
        print(s.recv(100))\n";
    let answer = driver.task("client", &options, &[PYTHON, "-c", say]).ok();
    assert_eq!(answer, "b'you said stage volume'");
    assert_eq!(plugin.wait(wait::LIMIT), 0);
    for task in ["client", "plugin"] {
        driver.remove(task);
    }
    fs::remove_dir_all(&directory).expect("remove the shared directory");
    driver.nothing_left();
}
