//! How a container comes to be, and how all of it goes away again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cgroups::Resources;
use oci_spec::runtime::Spec;
use protos::protobuf::Message as _;
use protos::task::CreateTaskRequest;
use sandbox::Gvisor;

use crate::bundle::{self, Role};
use crate::cleanup;
use crate::config::{Config, Platform};
use crate::container::Container;
use crate::error::{Error, Result};
use crate::exec::into_stdio;
use crate::limits::{self, FollowsContainers};
use crate::lock::lock;
use crate::metrics::{Figures, devices};
use crate::oom::Oom;
use crate::options::Options;
use crate::placement::Placement;
use crate::pod::Pod;
use crate::process::Life;
use crate::record::Record;
use crate::stdio::{Owner, Paths, Streams};
use crate::{covers, program, rootfs, sections, translate};

/// How long Delete waits for the last output of a process. Short of the 10 s
/// after which the CRI plugin gives a call up.
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// Creates a container. What has to be undone is on disk before it is done, so
/// that a shim that dies half-way leaves nothing that `delete` cannot find.
///
/// # Errors
/// Whatever stands in the way; then nothing is left.
pub async fn create(pod: &Pod, request: &CreateTaskRequest, options: Options) -> Result<Container> {
    let bundle = PathBuf::from(&request.bundle);
    if !bundle.is_absolute() {
        return Err(Error::InvalidArgument(format!(
            "bundle {:?} of task {} is not an absolute path",
            request.bundle, request.id
        )));
    }
    let spec = bundle::load(&bundle)?;
    bundle::check(&spec)?;
    sections::check(&spec, &request.id)?;
    let role = bundle::role(&spec)?;
    let sandbox_id = match &role {
        Role::Root => request.id.clone(),
        Role::Member { sandbox } => sandbox.clone(),
    };
    let placement = Placement::plan(&spec, &request.id, &role)?;
    let (resources, follows) = match &role {
        Role::Root => limits::of_sandbox(&spec, &options.config, placement.cgroup())?,
        Role::Member { .. } => (limits::of_spec(&spec)?, FollowsContainers::default()),
    };
    let target = bundle.join("rootfs");
    let record = Record {
        id: request.id.clone(),
        sandbox: sandbox_id,
        bundle,
        rootfs: (!request.rootfs.is_empty()).then_some(target),
        cgroup: placement.path().to_owned(),
        unit: placement.unit().map(str::to_owned),
        entered: false,
        made: Vec::new(),
        pid: None,
        exit: None,
    };
    let state_directory = options.config.state_directory(pod.namespace());
    cleanup::remove_leavings(&request.id, &options.config, &state_directory).await?;
    if let Some(any) = request.options.as_ref() {
        let path = record.bundle.join(cleanup::OPTIONS_FILE);
        let bytes = any.write_to_bytes().map_err(|source| Error::Message {
            what: "encode the options".into(),
            source,
        })?;
        std::fs::write(&path, bytes).map_err(Error::file("write", path))?;
    }
    record.write(&state_directory)?;
    let record = Arc::new(Mutex::new(record));
    let making = Making {
        pod,
        request,
        options,
        spec,
        role,
        resources,
        follows,
        record,
        state_directory,
    };
    match making.all(&placement).await {
        Ok(container) => Ok(container),
        Err(error) => {
            let error = placement.take_refusal().unwrap_or(error);
            let Making {
                options,
                state_directory,
                ..
            } = &making;
            let record = making.record();
            if let Err(left) = cleanup::demolish(&record, &options.config, state_directory).await {
                log::error!("after a failed create: {}", crate::error::chain(&left));
            }
            Err(error)
        }
    }
}

struct Making<'a> {
    pod: &'a Pod,
    request: &'a CreateTaskRequest,
    options: Options,
    spec: Spec,
    role: Role,
    resources: Resources,
    follows: FollowsContainers,
    record: Arc<Mutex<Record>>,
    state_directory: PathBuf,
}

impl Making<'_> {
    /// A copy of the record as it is now.
    fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    /// Changes the record, in memory and on disk.
    fn note(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = lock(&self.record);
        change(&mut record);
        record.write(&self.state_directory)
    }

    async fn all(&self, placement: &Placement) -> Result<Container> {
        if self.role == Role::Root {
            placement.must_be_empty().await?;
            self.note(|record| record.entered = true)?;
        }
        let resources = self.resources.clone();
        let made = placement.make(resources, &self.record, &self.state_directory);
        made.await?;
        let record = self.record();
        let mut spec = self.spec.clone();
        if let Some(target) = record.rootfs.clone() {
            let from_snapshot = self.request.rootfs.clone();
            let mounted = target.clone();
            blocking(move || rootfs::mount_all(&from_snapshot, &mounted)).await?;
        }
        if let Some(root) = spec.root_mut() {
            let path = record.bundle.join(root.path());
            rootfs::check(&path)?;
            program::check(&self.spec, &path)?;
            // Else runsc makes a file in it that backs its own overlay.
            if rootfs::is_read_only(&path)? {
                root.set_readonly(Some(true));
            }
            root.set_path(path.clone());
            covers::add(&mut spec, &path, &record.bundle)?;
        }
        let host_name = std::fs::read_to_string(translate::HOST_NAME)
            .map_err(Error::file("read", translate::HOST_NAME))?;
        translate::translate(&mut spec, host_name.trim_end())?;
        let owner = Owner {
            namespace: self.pod.namespace().to_owned(),
            id: self.request.id.clone(),
            ids: self.options.io_owner,
            children: self.pod.children().clone(),
        };
        let paths = Paths {
            stdin: self.request.stdin.clone(),
            stdout: self.request.stdout.clone(),
            stderr: self.request.stderr.clone(),
            terminal: self.request.terminal,
        };
        let (streams, ends) = Streams::open(&paths, &owner).await?;
        let sandbox = self.sandbox(placement)?;
        let stdio = into_stdio(ends, None);
        let created = sandbox
            .create(&self.request.id, &record.bundle, &spec, stdio)
            .await;
        let created = match created {
            Ok(created) => created,
            Err(error) => {
                streams.close(Duration::ZERO).await;
                return Err(error.into());
            }
        };
        self.note(|record| record.pid = Some(created.pid.as_raw()))?;
        let figures = Arc::new(Figures::new(placement.cgroup().clone(), created.pid));
        let (oom, whole) = match &self.role {
            Role::Root => {
                // Before the first I/O of the containers; what the sandbox reads
                // to come up is not counted.
                placement.cgroup().count_block_io();
                (Oom::arm(placement.cgroup()), Arc::clone(&figures))
            }
            Role::Member { sandbox } => {
                let root = self.pod.container(sandbox)?;
                (Arc::clone(&root.oom), Arc::clone(&root.figures))
            }
        };
        let checkpoint = Some(&self.request.checkpoint).filter(|path| !path.is_empty());
        let container = Container {
            id: self.request.id.clone(),
            bundle: record.bundle.clone(),
            role: self.role.clone(),
            sandbox,
            pid: created.pid,
            paths,
            streams,
            owner,
            life: Life::new(format!("task {}", self.request.id)),
            placement: placement.clone(),
            asked: Mutex::new(self.resources.clone()),
            follows: Mutex::new(self.follows),
            record: Arc::clone(&self.record),
            state_directory: self.state_directory.clone(),
            config: self.options.config.clone(),
            checkpoint: checkpoint.map(PathBuf::from),
            figures,
            whole,
            devices: devices::Roots::default().given(&self.spec),
            oom,
            over_limit: AtomicBool::new(false),
            kills: AtomicU64::new(0),
            execs: Mutex::default(),
        };
        if let Some(master) = created.console {
            // Only the sandbox container's own terminal is the sentry's.
            let signals = (!container.is_root()).then(|| container.foreground_signals(0));
            container.streams.attach(master, signals)?;
        }
        Ok(container)
    }

    /// A sandbox of its own, or that of the pod.
    fn sandbox(&self, placement: &Placement) -> Result<Arc<Gvisor>> {
        match &self.role {
            Role::Root => Ok(Arc::new(Gvisor::new(
                sandbox_config(&self.options.config, &self.state_directory),
                self.pod.children().clone(),
                &self.request.id,
                placement.path().to_owned(),
                placement.launcher(
                    self.resources.clone(),
                    Arc::clone(&self.record),
                    &self.state_directory,
                    &self.request.id,
                )?,
            ))),
            Role::Member { sandbox } => {
                let root = self.pod.container(sandbox).map_err(|_| {
                    Error::FailedPrecondition(format!(
                        "task {} belongs to sandbox {sandbox}, which does not exist here",
                        self.request.id
                    ))
                })?;
                if root.life.state().has_ended() {
                    return Err(Error::FailedPrecondition(format!(
                        "task {} belongs to sandbox {sandbox}, which has ended",
                        self.request.id
                    )));
                }
                Ok(Arc::clone(&root.sandbox))
            }
        }
    }
}

/// Takes a container that has ended apart, down to the last file. May be
/// repeated after a failure.
///
/// # Errors
/// What could not be removed.
pub async fn dismantle(container: &Container) -> Result<()> {
    container.streams.close(DRAIN_PATIENCE).await;
    let execs: Vec<_> = lock(&container.execs)
        .drain()
        .map(|(_, exec)| exec)
        .collect();
    for streams in execs.iter().filter_map(|exec| exec.streams()) {
        streams.close(Duration::ZERO).await;
    }
    container.sandbox.delete(&container.id).await?;
    let record = lock(&container.record).clone();
    cleanup::demolish(&record, &container.config, &container.state_directory).await
}

/// What other runtimes do and runsc only when it is asked to: a spec's seccomp
/// filters hold in the sandbox. The operator's own flags win.
const LIKE_LINUX: [(&str, &str); 1] = [("oci-seccomp", "true")];

/// The operator's settings in the sandbox's words.
pub fn sandbox_config(config: &Config, state_directory: &std::path::Path) -> sandbox::Config {
    sandbox::Config {
        runsc: config.runsc.clone(),
        root: state_directory.to_owned(),
        platform: match config.platform {
            Platform::Systrap => sandbox::Platform::Systrap,
            Platform::Ptrace => sandbox::Platform::Ptrace,
            Platform::Kvm => sandbox::Platform::Kvm,
            Platform::Auto => sandbox::Platform::Auto,
        },
        network: None,
        flags: LIKE_LINUX
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .chain(config.runsc_flags.clone())
            .collect(),
        debug_log: config.debug_log.clone(),
        deadlines: sandbox::Deadlines::default(),
    }
}

/// Runs something that may block on the kernel, off the reactor.
///
/// # Errors
/// Its own.
pub async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::system("finish a blocking call")(std::io::Error::other(error)))?
}
