//! A private containerd with root, state, socket and configuration of its own,
//! and the clients that speak to it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

pub use crate::config::Version;
use crate::config::{self, HANDLER, place};
use crate::events::Events;
use crate::host::Host;
use crate::inventory::Inventory;
use crate::process::{self, Output, Process};
use crate::{skip, tools, wait};

/// How long a call of ctr or crictl may take before the test fails.
const CALL: Duration = Duration::from_secs(90);

/// A running containerd; dropping it ends it and all that was started in it.
#[derive(Debug)]
pub struct Containerd {
    // Dropped first, so that it does not see its shims being killed.
    daemon: Option<Process>,
    version: Version,
    rampart_config: bool,
    host: Host,
}

impl Containerd {
    /// Starts one with the test images imported, or skips the test if this
    /// version, the shim or the images are not there.
    pub fn start(version: Version) -> Option<Self> {
        Self::build(version, None)
    }

    /// As [`Self::start`], with `settings` as Rampart's own configuration file.
    pub fn with_settings(version: Version, settings: &str) -> Option<Self> {
        Self::build(version, Some(settings))
    }

    fn build(version: Version, settings: Option<&str>) -> Option<Self> {
        if !tools::shim().exists() {
            skip("the shim is not built: cargo build -p shim");
            return None;
        }
        let Some(images) = tools::images() else {
            skip("the test images are missing: make tools");
            return None;
        };
        let host = Host::new()?;
        let found = process::run(host.command(program(version)).arg("--version"), wait::LIMIT);
        if !found.stdout.contains(match version {
            Version::V1_6 => " 1.6.",
            Version::V2_4 => "/v2",
        }) {
            skip(&format!("containerd {version:?} is not here: make tools"));
            return None;
        }
        let directory = host.directory();
        let cni = directory.join(place::CNI);
        fs::create_dir(&cni).expect("make the CNI directory");
        let files = [
            (
                directory.join(place::CONFIG),
                config::containerd(version, directory, settings.is_some()),
            ),
            (cni.join("10-test.conflist"), config::cni(directory)),
            (directory.join("crictl.yaml"), String::new()),
            (
                directory.join(place::RAMPART),
                settings.unwrap_or_default().to_owned(),
            ),
        ];
        for (path, text) in files {
            fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let mut containerd = Self {
            daemon: None,
            version,
            rampart_config: settings.is_some(),
            host,
        };
        containerd.launch();
        for namespace in [containerd.namespace().to_owned(), "k8s.io".to_owned()] {
            let mut command = containerd.ctr_in(&namespace, &["images", "import"]);
            command.arg(&images);
            process::run(&mut command, CALL).ok();
        }
        Some(containerd)
    }

    /// The version that runs.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The corner that it runs in.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The namespace that [`Self::ctr`] works in; it is named after the test.
    pub fn namespace(&self) -> &str {
        self.host.name()
    }

    /// Its gRPC socket.
    pub fn socket(&self) -> PathBuf {
        self.host.directory().join(place::SOCKET)
    }

    /// The bundle of the container `id`.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.bundle_in(self.namespace(), id)
    }

    /// The bundle of the container `id` of `namespace`.
    pub fn bundle_in(&self, namespace: &str, id: &str) -> PathBuf {
        self.host
            .directory()
            .join("state/io.containerd.runtime.v2.task")
            .join(namespace)
            .join(id)
    }

    /// Runs ctr to its end.
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        process::run(&mut self.ctr_command(arguments), CALL)
    }

    /// A call of ctr for the test to run as it needs it.
    pub fn ctr_command(&self, arguments: &[&str]) -> Command {
        self.ctr_in(self.namespace(), arguments)
    }

    /// `ctr run` of the test image: `options` before the image, then the id and
    /// what to run.
    pub fn run_command(&self, options: &[&str], id: &str, program: &[&str]) -> Command {
        let mut command = self.ctr_command(&["run"]);
        command
            .args(self.settings())
            .args(["--runtime", &tools::runtime()])
            .args(options)
            .args([tools::IMAGE, id])
            .args(program);
        command
    }

    /// The arguments of `ctr run` that name our own configuration file, if there
    /// is one.
    pub fn settings(&self) -> Vec<OsString> {
        if !self.rampart_config {
            return Vec::new();
        }
        let file = self.host.directory().join(place::RAMPART);
        vec!["--runtime-config-path".into(), file.into()]
    }

    /// Runs a container in the foreground and removes it.
    pub fn run(&self, id: &str, program: &[&str]) -> Output {
        process::run(&mut self.run_command(&["--rm"], id, program), CALL)
    }

    /// Starts a container and leaves it running.
    ///
    /// # Panics
    ///
    /// If that fails.
    #[track_caller]
    pub fn run_detached(&self, id: &str, program: &[&str]) {
        process::run(&mut self.run_command(&["--detach"], id, program), CALL).ok();
    }

    /// Runs a process in a container to its end.
    pub fn exec(&self, id: &str, exec: &str, program: &[&str]) -> Output {
        let arguments = [&["tasks", "exec", "--exec-id", exec, id], program].concat();
        self.ctr(&arguments)
    }

    /// The state and init's pid of the task `id`, as `ctr tasks ls` has it.
    pub fn task(&self, id: &str) -> Option<(String, u32)> {
        let listing = self.ctr(&["tasks", "ls"]).ok();
        let fields: Vec<&str> = listing
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&id))?;
        Some((fields.get(2)?.to_string(), fields.get(1)?.parse().ok()?))
    }

    /// Waits until the task `id` is in `state`: RUNNING, STOPPED, PAUSED.
    #[track_caller]
    pub fn until_task(&self, id: &str, state: &str) {
        wait::until(&format!("{id} to be {state}"), || {
            self.task(id).is_some_and(|(now, _)| now == state)
        });
    }

    /// Kills and removes a container in whatever state it is.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        self.ctr(&["tasks", "rm", "--force", id]);
        self.ctr(&["containers", "rm", id]).ok();
    }

    /// The daemon's own pid.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("the daemon runs").pid()
    }

    /// The pids of the shim processes of the container `id`, found as any
    /// operator does: by their arguments.
    pub fn shims(&self, id: &str) -> Vec<u32> {
        process::descendants()
            .into_iter()
            .filter(|process| {
                let mut words = process.command.split(' ');
                !process.zombie
                    && words
                        .next()
                        .is_some_and(|program| program.contains("containerd-shim-"))
                    && words.any(|word| word == id)
            })
            .map(|process| process.pid)
            .collect()
    }

    /// Runs crictl to its end.
    pub fn crictl(&self, arguments: &[&str]) -> Output {
        process::run(&mut self.crictl_command(arguments), CALL)
    }

    /// A call of crictl for the test to run as it needs it.
    pub fn crictl_command(&self, arguments: &[&str]) -> Command {
        let endpoint = format!("unix://{}", self.socket().display());
        let mut command = self.host.command(tools::tool("crictl"));
        command
            .arg("--config")
            .arg(self.host.directory().join("crictl.yaml"))
            .args(["--runtime-endpoint", &endpoint])
            .args(["--image-endpoint", &endpoint])
            .args(["--timeout", "60s"])
            .args(arguments);
        command
    }

    /// Starts a pod in a cgroup named after the test and gives its id; `more` is
    /// merged into its configuration.
    #[track_caller]
    pub fn run_pod(&self, name: &str, more: &Value) -> String {
        let path = self.pod_file(name, more);
        self.crictl(&["runp", "--runtime", HANDLER, &path]).ok()
    }

    /// Starts a container in the pod of [`Self::run_pod`] and gives its id;
    /// `more` is merged into its configuration.
    #[track_caller]
    pub fn run_in_pod(&self, pod: &str, name: &str, program: &[&str], more: &Value) -> String {
        let id = self.create_in_pod(pod, name, program, more);
        self.crictl(&["start", &id]).ok();
        id
    }

    /// As [`Self::run_in_pod`], but for the start.
    #[track_caller]
    pub fn create_in_pod(&self, pod: &str, name: &str, program: &[&str], more: &Value) -> String {
        let mut settings = json!({
            "metadata": { "name": name },
            "image": { "image": tools::IMAGE },
            "command": program,
            "log_path": format!("{name}.log"),
            "linux": {},
        });
        merge(&mut settings, more);
        let path = self.write_json(&format!("{name}-container.json"), &settings);
        let pods = self.crictl(&["inspectp", pod]).ok();
        let pods: Value = serde_json::from_str(&pods).expect("crictl inspectp prints JSON");
        let pod_name = pods["status"]["metadata"]["name"]
            .as_str()
            .expect("a pod has a name");
        let pod_file = self.host.directory().join(format!("{pod_name}-pod.json"));
        let pod_file = pod_file.to_str().expect("the path is plain");
        self.crictl(&["create", pod, &path, pod_file]).ok()
    }

    /// Stops and removes a pod and its containers.
    #[track_caller]
    pub fn remove_pod(&self, pod: &str) {
        self.crictl(&["stopp", pod]).ok();
        self.crictl(&["rmp", "--force", pod]).ok();
    }

    /// Follows containerd's events from now on.
    pub fn events(&self) -> Events {
        Events::follow(self)
    }

    /// What is there now, to be compared later.
    ///
    /// A first container is run before, so that what containerd and ctr make once
    /// (their directories) does not count; [`Inventory::take`] is without it.
    #[track_caller]
    pub fn inventory(&self) -> Inventory {
        self.run("warm", &["true"]).ok();
        wait::until("the first container's shim to end", || {
            self.shims("warm").is_empty()
        });
        Inventory::take(&self.host)
    }

    /// Ends the daemon as an init system does; shims stay.
    pub fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.signal(Signal::SIGTERM);
            daemon.wait(wait::LIMIT);
        }
    }

    /// Kills the daemon; shims stay.
    pub fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill();
        }
    }

    /// Starts the daemon again after [`Self::stop`] or [`Self::kill9`].
    pub fn launch(&mut self) {
        let log = self.host.directory().join(place::LOG);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let mut command = self.host.command(program(self.version));
        command
            .arg("--config")
            .arg(self.host.directory().join(place::CONFIG))
            .stdout(log.try_clone().expect("another handle of the log"))
            .stderr(log);
        if self.version == Version::V1_6 {
            command.envs(tools::environment_of_debian());
        }
        self.daemon = Some(Process::spawn(&mut command));
        wait::until("containerd to answer", || {
            let daemon = self.daemon.as_mut().expect("it was just started");
            if let Some(status) = daemon.try_wait() {
                panic!("containerd ended, {status}:\n{}", self.log());
            }
            let mut version = self.ctr_command(&["version"]);
            self.socket().exists() && process::run(&mut version, CALL).code == 0
        });
    }

    /// Has the daemon stand still, with its sockets open, until [`Self::go_on`].
    pub fn stand_still(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.signal(Signal::SIGSTOP);
        }
    }

    /// Ends [`Self::stand_still`].
    pub fn go_on(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.signal(Signal::SIGCONT);
        }
    }

    /// Stops and starts the daemon.
    pub fn restart(&mut self) {
        self.stop();
        self.launch();
    }

    /// What the daemon, and through it the shims, logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.host.directory().join(place::LOG)).unwrap_or_default()
    }

    /// A call of ctr in another namespace than the test's.
    pub fn ctr_in(&self, namespace: &str, arguments: &[&str]) -> Command {
        let ctr = match self.version {
            Version::V1_6 => PathBuf::from("/usr/bin/ctr"),
            Version::V2_4 => tools::tool("ctr"),
        };
        let mut command = self.host.command(ctr);
        command
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", namespace])
            .args(arguments);
        command
    }

    fn pod_file(&self, name: &str, more: &Value) -> String {
        let logs = self.host.directory().join("pod-logs").join(name);
        fs::create_dir_all(&logs).expect("make the log directory of a pod");
        let mut settings = json!({
            "metadata": { "name": name, "namespace": "default", "uid": name, "attempt": 1 },
            "log_directory": logs,
            "linux": { "cgroup_parent": format!("/{}", self.host.name()) },
        });
        merge(&mut settings, more);
        self.write_json(&format!("{name}-pod.json"), &settings)
    }

    fn write_json(&self, name: &str, value: &Value) -> String {
        let path = self.host.directory().join(name);
        fs::write(&path, value.to_string()).unwrap_or_else(|error| panic!("{name}: {error}"));
        path.into_os_string()
            .into_string()
            .expect("the test's directory has a plain name")
    }
}

fn program(version: Version) -> PathBuf {
    match version {
        Version::V1_6 => PathBuf::from("/usr/bin/containerd"),
        Version::V2_4 => tools::tool("containerd"),
    }
}

/// Puts `more` over `base`, objects member by member.
fn merge(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (base, more) => *base = more.clone(),
    }
}
