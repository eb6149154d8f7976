//! What the tests need of the host: runsc, a cgroup, bundles, and the proof that
//! nothing is left.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use sandbox::{
    Children, Config, Created, Deadlines, Gvisor, Join, Launcher, Platform, Stdio, Version,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

const BUSYBOX: &str = "/bin/busybox";

/// Made once for all tests of the process.
pub(crate) struct Host {
    pub(crate) runsc: PathBuf,
    pub(crate) version: Version,
    pub(crate) children: Children,
    pub(crate) cgroup: Cgroup,
}

impl Host {
    /// Why nothing can be tested here, if so.
    pub(crate) fn find() -> Result<PathBuf, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        if !Path::new(BUSYBOX).exists() {
            return Err(format!("needs a static {BUSYBOX}"));
        }
        if let Some(runsc) = std::env::var_os("RAMPART_RUNSC") {
            return Ok(runsc.into());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|dir| dir.join("runsc"))
            .find(|file| file.exists())
            .ok_or_else(|| "needs runsc: neither in $RAMPART_RUNSC nor in $PATH".to_owned())
    }
}

/// A cgroup of this process in every hierarchy.
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    pub(crate) dirs: Vec<PathBuf>,
}

impl Cgroup {
    pub(crate) fn make() -> Self {
        let path = PathBuf::from(format!("/rampart-sandbox-test-{}", std::process::id()));
        let mount = Path::new("/sys/fs/cgroup");
        let mut hierarchies = vec![mount.to_owned()];
        if !mount.join("cgroup.controllers").exists() {
            hierarchies = fs::read_dir(mount)
                .unwrap()
                .flatten()
                .filter(|entry| entry.file_type().unwrap().is_dir())
                .map(|entry| entry.path())
                .filter(|dir| dir.join("cgroup.procs").exists())
                .collect();
        }
        let name = path.strip_prefix("/").unwrap().to_owned();
        let dirs: Vec<PathBuf> = hierarchies.iter().map(|root| root.join(&name)).collect();
        for (root, dir) in hierarchies.iter().zip(&dirs) {
            fs::create_dir(dir).unwrap();
            // A cpuset without CPUs takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if dir.join("cgroup.controllers").exists() {
                    continue;
                }
                if let Ok(value) = fs::read_to_string(root.join(file)) {
                    fs::write(dir.join(file), value.trim()).unwrap();
                }
            }
        }
        Self { path, dirs }
    }

    /// Whether the process is here in every hierarchy we made one in, or gone.
    pub(crate) fn holds(&self, pid: i32) -> bool {
        let Ok(places) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else {
            return true;
        };
        let here = |line: &&str| line.rsplit(':').next() == self.path.to_str();
        places.is_empty()
            || places.lines().filter(here).count() == self.dirs.len()
            || is_ending(pid)
    }

    /// Sets the memory limit; returns what it was.
    pub(crate) fn limit_memory(&self, limit: &str) -> String {
        let files = ["memory.max", "memory.limit_in_bytes"];
        let file = self
            .dirs
            .iter()
            .flat_map(|dir| files.map(|file| dir.join(file)))
            .find(|file| file.exists())
            .unwrap();
        let before = fs::read_to_string(&file).unwrap();
        fs::write(file, limit).unwrap();
        before.trim().to_owned()
    }

    pub(crate) fn members(&self) -> Vec<i32> {
        let procs = fs::read_to_string(self.dirs[0].join("cgroup.procs")).unwrap();
        procs.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// Whether the process has ended, or is about to: the kernel takes it out of its
/// cgroups before it is reaped.
fn is_ending(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The state is behind the name, the flags are six fields further (proc(5)).
    let mut fields = stat.rsplit_once(") ").unwrap_or_default().1.split(' ');
    let ended = matches!(fields.next(), Some("Z" | "X"));
    let flags: u32 = fields
        .nth(5)
        .and_then(|flags| flags.parse().ok())
        .unwrap_or(0);
    const PF_EXITING: u32 = 0x4;
    ended || flags & PF_EXITING != 0
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for dir in &self.dirs {
            let deadline = Instant::now() + Duration::from_secs(10);
            while let Err(error) = fs::remove_dir(dir) {
                if Instant::now() > deadline {
                    eprintln!("cannot remove {}: {error}", dir.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A sandbox in a temporary directory.
pub(crate) struct Pod {
    pub(crate) dir: TempDir,
    pub(crate) gvisor: Gvisor,
    pub(crate) config: Config,
}

pub(crate) const SANDBOX: &str = "sb1";

impl Pod {
    pub(crate) fn new(host: &Host) -> Self {
        Self::with(host, |_| ())
    }

    pub(crate) fn with(host: &Host, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            runsc: host.runsc.clone(),
            root: dir.path().join("root"),
            platform: Platform::Systrap,
            network: None,
            flags: std::collections::BTreeMap::default(),
            debug_log: None,
            deadlines: Deadlines::default(),
        };
        if host.version == Version::Debian2022 {
            config.platform = Platform::Ptrace;
            config.network = Some(sandbox::Network::None);
        }
        change(&mut config);
        let launcher = launcher_for(host);
        let gvisor = Gvisor::new(
            config.clone(),
            host.children.clone(),
            SANDBOX,
            host.cgroup.path.clone(),
            launcher,
        );
        Self {
            dir,
            gvisor,
            config,
        }
    }

    pub(crate) fn bundle(&self, id: &str) -> PathBuf {
        self.dir.path().join(id)
    }

    /// Makes the bundle of a container that runs `args`.
    pub(crate) fn make_bundle(
        &self,
        id: &str,
        args: &[&str],
        terminal: bool,
    ) -> oci_spec::runtime::Spec {
        let bundle = self.bundle(id);
        for dir in ["bin", "proc", "dev", "tmp", "sys/fs/cgroup"] {
            fs::create_dir_all(bundle.join("rootfs").join(dir)).unwrap();
        }
        let bin = bundle.join("rootfs/bin");
        if !bin.join("busybox").exists() {
            fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
            for name in [
                "sh", "sleep", "echo", "true", "cat", "kill", "id", "stty", "grep", "dd",
            ] {
                std::os::unix::fs::symlink("busybox", bin.join(name)).unwrap();
            }
        }
        let caps = json!(["CAP_KILL", "CAP_CHOWN"]);
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": terminal,
                "user": {"uid": 0, "gid": 0},
                "args": args,
                "env": ["PATH=/bin", "TERM=xterm"],
                "cwd": "/",
                "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
                "oomScoreAdj": -998,
            },
            "root": {"path": "rootfs"},
            "hostname": "test",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
                {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"},
            ],
            "linux": {
                "cgroupsPath": "/never/used",
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"},
                    {"type": "ipc"}, {"type": "uts"}],
            },
            "annotations": if id == SANDBOX { json!({}) } else { json!({
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-id": SANDBOX,
            })},
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        serde_json::from_value(config).unwrap()
    }

    pub(crate) async fn create(
        &self,
        id: &str,
        args: &[&str],
        stdio: Stdio,
    ) -> sandbox::Result<Created> {
        let spec = self.make_bundle(id, args, stdio.is_terminal());
        self.gvisor.create(id, &self.bundle(id), &spec, stdio).await
    }

    pub(crate) async fn run(&self, id: &str, args: &[&str]) {
        self.create(id, args, Stdio::Null).await.unwrap();
        self.gvisor.start(id).await.unwrap();
    }

    /// A sandbox whose first container only waits, as a pod's does.
    pub(crate) async fn pause(&self) {
        self.run(SANDBOX, &["sleep", "1000"]).await;
    }

    pub(crate) async fn code(&self, id: &str) -> u32 {
        let exit = self.gvisor.wait(id).await.unwrap();
        assert!(!exit.by_sandbox_death, "{id}: {exit:?}");
        exit.code
    }

    /// Deletes what is left and asserts that nothing remains of it.
    pub(crate) async fn end(self, host: &Host) {
        self.gvisor.delete(SANDBOX).await.unwrap();
        self.assert_nothing_left(host).await;
    }

    pub(crate) async fn assert_nothing_left(&self, host: &Host) {
        let null = fs::metadata("/dev/null").unwrap();
        assert_eq!((null.uid(), null.gid()), (0, 0), "the host's /dev/null");
        until("the cgroup to be empty", || {
            host.cgroup.members().is_empty()
        })
        .await;
        let root: Vec<_> = fs::read_dir(&self.config.root)
            .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
            .unwrap_or_default();
        assert!(root.is_empty(), "left in the state directory: {root:?}");
        for bundle in fs::read_dir(self.dir.path()).unwrap().flatten() {
            assert!(
                !bundle.path().join("rampart").exists(),
                "left in the bundle"
            );
            let store = bundle
                .path()
                .join(format!("rootfs/.gvisor.filestore.{SANDBOX}"));
            assert!(!store.exists(), "left: {}", store.display());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(self.dir.path().to_str().unwrap()),
            "left mounted"
        );
    }
}

/// A pipe to write to, and the reader of everything that is written.
pub(crate) fn output() -> (OwnedFd, tokio::task::JoinHandle<String>) {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let mut read = Receiver::from_owned_fd(read).unwrap();
    let reader = tokio::spawn(async move {
        let mut text = String::new();
        read.read_to_string(&mut text).await.unwrap();
        text
    });
    (write, reader)
}

pub(crate) fn stdout_only(stdout: OwnedFd) -> Stdio {
    Stdio::Piped {
        stdin: None,
        stdout: Some(stdout),
        stderr: None,
    }
}

pub(crate) fn process(value: &Value) -> oci_spec::runtime::Process {
    let mut process = json!({"user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], "cwd": "/"});
    for (key, value) in value.as_object().unwrap() {
        process[key] = value.clone();
    }
    serde_json::from_value(process).unwrap()
}

/// Waits for a condition, with a deadline that is only there to fail.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The launcher that Cargo built beside this test, for the cgroup of the tests.
pub(crate) fn launcher_for(host: &Host) -> Launcher {
    let exe = std::env::current_exe().unwrap();
    let exe = exe
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/launch");
    Launcher {
        exe,
        join: host.cgroup.dirs.clone(),
        mode: Join::Enter,
    }
}
