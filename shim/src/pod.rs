//! The pod: the containers that this shim serves, and what each call does to
//! them. The locks live here; none is held while a child or a sandbox is
//! waited for.

mod ends;
mod removal;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cgroups::Resources;
use oci_spec::runtime::{LinuxResources, Process};
use protos::events::{
    TaskCheckpointed, TaskCreate, TaskExecAdded, TaskExecStarted, TaskIO, TaskPaused, TaskResumed,
    TaskStart,
};
use protos::protobuf::MessageField;
use protos::protobuf::well_known_types::any::Any;
use protos::task::CreateTaskRequest;
use sandbox::children::Children;
use tokio::sync::{Notify, watch};

use crate::args::check_identifier;
use crate::bundle::Role;
use crate::calls::Calls;
use crate::connections::Connections;
use crate::container::Container;
use crate::error::{Error, Result, chain};
use crate::events::{Event, Events};
use crate::exec::Exec;
use crate::limits::{self, FollowsContainers};
use crate::lock::lock;
use crate::options::Options;
use crate::process::{Exit, State};
use crate::stdio::Paths;
use crate::{create, metrics, sampler, wire};

/// All that one shim serves: usually the containers of one pod.
#[derive(Debug)]
pub struct Pod {
    namespace: String,
    events: Events,
    children: Children,
    containers: Mutex<HashMap<String, Arc<Container>>>,
    creating: Calls<u32>,
    starting: Calls<u32>,
    killing: Calls<()>,
    pausing: Calls<()>,
    resuming: Calls<()>,
    deleting: Calls<(u32, Exit)>,
    /// Changes when a container may have got another limit, or runs from now on.
    limits: watch::Sender<()>,
    /// Held by an update of a container's limits.
    updating: tokio::sync::Mutex<()>,
    /// When the shim last had something to do.
    used: Mutex<Instant>,
    shutdown: Notify,
}

impl Pod {
    /// An empty pod.
    pub fn new(namespace: &str, events: Events, children: Children) -> Self {
        Self {
            namespace: namespace.to_owned(),
            events,
            children,
            containers: Mutex::default(),
            creating: Calls::default(),
            starting: Calls::default(),
            killing: Calls::default(),
            pausing: Calls::default(),
            resuming: Calls::default(),
            deleting: Calls::default(),
            limits: watch::Sender::new(()),
            updating: tokio::sync::Mutex::default(),
            used: Mutex::new(Instant::now()),
            shutdown: Notify::new(),
        }
    }

    /// containerd's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where events go.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The containers of the sandbox `root`, itself left out.
    pub fn members(&self, root: &str) -> Vec<Arc<Container>> {
        self.containers()
            .values()
            .filter(
                |container| matches!(&container.role, Role::Member { sandbox } if sandbox == root),
            )
            .cloned()
            .collect()
    }

    /// Tells when a container may have got another limit, or runs from now on.
    pub fn limits(&self) -> watch::Receiver<()> {
        self.limits.subscribe()
    }

    /// The one reaper.
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// The container `id`.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn container(&self, id: &str) -> Result<Arc<Container>> {
        self.containers()
            .get(id)
            .cloned()
            .ok_or_else(|| Error::NotFound(format!("task {id} does not exist")))
    }

    /// Create: a container comes to be, its process is prepared.
    ///
    /// # Errors
    /// The bundle, the options or the sandbox; nothing is left behind then.
    pub async fn create(self: &Arc<Self>, request: CreateTaskRequest) -> Result<u32> {
        check_identifier("task id", &request.id)?;
        let pod = Arc::clone(self);
        let id = request.id.clone();
        self.creating
            .join(&id, async move { pod.create_now(request).await })
            .await
    }

    async fn create_now(self: Arc<Self>, request: CreateTaskRequest) -> Result<u32> {
        self.touch();
        self.forget_removed(&request.id).await;
        if self.containers().contains_key(&request.id) {
            return Err(Error::AlreadyExists(format!(
                "task {} exists already",
                request.id
            )));
        }
        let options = Options::parse(request.options.as_ref())?;
        let container = Arc::new(create::create(&self, &request, options).await?);
        let pid = wire::pid(container.pid);
        self.containers()
            .insert(request.id.clone(), Arc::clone(&container));
        self.limits.send_replace(());
        self.events.publish(Event::Create(TaskCreate {
            container_id: request.id,
            bundle: request.bundle,
            rootfs: request.rootfs,
            io: MessageField::some(TaskIO {
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
                terminal: request.terminal,
                ..TaskIO::default()
            }),
            checkpoint: request.checkpoint,
            pid,
            ..TaskCreate::default()
        }));
        if let Err(error) = self.follow_containers(&container).await {
            log::warn!("limits of the pod of {}: {}", container.id, chain(&error));
        }
        // From here on it can end, started or not.
        tokio::spawn(Arc::clone(&self).watch(Arc::clone(&container)));
        tokio::spawn(sampler::publish(Arc::clone(&self), Arc::clone(&container)));
        if container.is_root() {
            let root = Arc::clone(&container);
            tokio::spawn(sampler::enforce_memory(Arc::clone(&self), root));
            tokio::spawn(Arc::clone(&self).watch_memory(container));
        }
        Ok(pid)
    }

    /// Start: the prepared process, of the container or of an exec, runs.
    ///
    /// # Errors
    /// It is not there, runs already, or the sandbox cannot run it.
    pub async fn start(self: &Arc<Self>, id: &str, exec_id: &str) -> Result<u32> {
        let container = self.container(id)?;
        let pod = Arc::clone(self);
        if exec_id.is_empty() {
            return self.starting.join(id, pod.start_container(container)).await;
        }
        let exec = container.exec(exec_id)?;
        let key = format!("{id}/{exec_id}");
        self.starting
            .join(&key, pod.start_exec(container, exec))
            .await
    }

    async fn start_container(self: Arc<Self>, container: Arc<Container>) -> Result<u32> {
        if let Role::Member { sandbox } = &container.role {
            // runsc of 2022 loses the sandbox over this; the current one only
            // says something obscure.
            let root = self.container(sandbox)?;
            if !matches!(root.life.settled().await, State::Running | State::Paused) {
                return Err(Error::FailedPrecondition(format!(
                    "task {} cannot start: its sandbox {sandbox} does not run",
                    container.id
                )));
            }
        }
        container.life.become_state(State::Starting)?;
        let started = match &container.checkpoint {
            None => container.sandbox.start(&container.id).await,
            Some(image) => container.sandbox.restore(&container.id, image).await,
        };
        if let Err(error) = started {
            container.life.become_state(State::Created)?;
            return Err(error.into());
        }
        let pid = wire::pid(container.pid);
        self.events.publish(Event::Start(TaskStart {
            container_id: container.id.clone(),
            pid,
            ..TaskStart::default()
        }));
        container.life.become_state(State::Running)?;
        self.limits.send_replace(());
        Ok(pid)
    }

    async fn start_exec(
        self: Arc<Self>,
        container: Arc<Container>,
        exec: Arc<Exec>,
    ) -> Result<u32> {
        match container.life.state() {
            State::Running => {}
            State::Stopped(_) => {
                return Err(Error::FailedPrecondition(format!(
                    "exec {} cannot start: task {} has ended",
                    exec.id, container.id
                )));
            }
            State::Created | State::Starting | State::Paused => {
                return Err(Error::FailedPrecondition(format!(
                    "exec {} cannot start: task {} does not run",
                    exec.id, container.id
                )));
            }
        }
        exec.life.become_state(State::Starting)?;
        if let Err(error) = exec.start(&container, &container.owner).await {
            exec.life.become_state(State::Created)?;
            return Err(error);
        }
        let pid = wire::pid(container.pid);
        self.events.publish(Event::ExecStarted(TaskExecStarted {
            container_id: container.id.clone(),
            exec_id: exec.id.clone(),
            pid,
            ..TaskExecStarted::default()
        }));
        exec.life.become_state(State::Running)?;
        tokio::spawn(self.watch_exec(container, exec));
        Ok(pid)
    }

    /// Exec: prepares a further process.
    ///
    /// # Errors
    /// The id is taken, the task has ended, the process is faulty.
    pub fn exec(&self, id: &str, exec_id: &str, process: Process, paths: Paths) -> Result<()> {
        check_identifier("exec id", exec_id)?;
        let container = self.container(id)?;
        container.add_exec(Arc::new(Exec::new(id, exec_id, process, paths)?))?;
        self.events.publish(Event::ExecAdded(TaskExecAdded {
            container_id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            ..TaskExecAdded::default()
        }));
        Ok(())
    }

    /// Wait: the end of a process.
    ///
    /// # Errors
    /// It is not there.
    pub async fn wait(&self, id: &str, exec_id: &str) -> Result<Exit> {
        let container = self.container(id)?;
        if exec_id.is_empty() {
            return Ok(container.life.wait().await);
        }
        Ok(container.exec(exec_id)?.life.wait().await)
    }

    /// Pids: the processes inside, each with the id of its exec if it is one's
    /// first. Their pids are no host pids; the sentry runs them all and stands
    /// for each. Never empty, and never an error for a task that is here or is
    /// being created: a containerd that was restarted takes both for a leaked shim
    /// and deletes the task.
    ///
    /// # Errors
    /// It is not there.
    pub async fn processes(&self, id: &str) -> Result<Vec<Option<String>>> {
        let created = self.creating.settled(id);
        if tokio::time::timeout(CREATE_PATIENCE, created)
            .await
            .is_err()
        {
            return Ok(vec![None]);
        }
        let container = self.container(id)?;
        let asked = container.sandbox.processes(id);
        let inner = match tokio::time::timeout(PROCESSES_PATIENCE, asked).await {
            Ok(Ok(inner)) if !inner.is_empty() => inner,
            _ => return Ok(vec![None]),
        };
        let execs = lock(&container.execs);
        let exec_of = |pid| execs.values().find(|exec| exec.inner_pid() == Some(pid));
        Ok(inner
            .into_iter()
            .map(|pid| exec_of(pid).map(|exec| exec.id.clone()))
            .collect())
    }

    /// CloseIO: no more stdin.
    ///
    /// # Errors
    /// The process is not there.
    pub fn close_stdin(&self, id: &str, exec_id: &str) -> Result<()> {
        let container = self.container(id)?;
        if exec_id.is_empty() {
            container.streams.close_stdin();
        } else if let Some(streams) = container.exec(exec_id)?.streams() {
            streams.close_stdin();
        }
        Ok(())
    }

    /// ResizePty.
    ///
    /// # Errors
    /// The process is not there or has no terminal.
    pub fn resize(&self, id: &str, exec_id: &str, width: u16, height: u16) -> Result<()> {
        let container = self.container(id)?;
        if exec_id.is_empty() {
            container.streams.resize(width, height)
        } else {
            container.exec(exec_id)?.resize(width, height)
        }
    }

    /// Pause: the container's processes stand still.
    ///
    /// # Errors
    /// It does not run, or the sandbox refuses.
    pub async fn pause(self: &Arc<Self>, id: &str) -> Result<()> {
        let container = self.container(id)?;
        let pod = Arc::clone(self);
        self.pausing.join(id, pod.pause_now(container)).await
    }

    async fn pause_now(self: Arc<Self>, container: Arc<Container>) -> Result<()> {
        let id = &container.id;
        if container.life.state() != State::Running {
            return Err(Error::FailedPrecondition(format!("task {id} does not run")));
        }
        container.sandbox.pause().await?;
        container.life.become_state(State::Paused)?;
        self.events.publish(Event::Paused(TaskPaused {
            container_id: id.to_owned(),
            ..TaskPaused::default()
        }));
        Ok(())
    }

    /// Resume: they go on.
    ///
    /// # Errors
    /// It is not paused, or the sandbox refuses.
    pub async fn resume(self: &Arc<Self>, id: &str) -> Result<()> {
        let container = self.container(id)?;
        let pod = Arc::clone(self);
        self.resuming.join(id, pod.resume_now(container)).await
    }

    async fn resume_now(self: Arc<Self>, container: Arc<Container>) -> Result<()> {
        let id = &container.id;
        if container.life.state() != State::Paused {
            return Err(Error::FailedPrecondition(format!(
                "task {id} is not paused"
            )));
        }
        container.sandbox.resume().await?;
        container.life.become_state(State::Running)?;
        self.events.publish(Event::Resumed(TaskResumed {
            container_id: id.to_owned(),
            ..TaskResumed::default()
        }));
        Ok(())
    }

    /// Update: other limits.
    ///
    /// # Errors
    /// It has ended, or the limits cannot be set.
    pub async fn update(&self, id: &str, resources: &LinuxResources) -> Result<()> {
        let container = self.container(id)?;
        if container.life.exit().is_some() {
            return Err(Error::FailedPrecondition(format!("task {id} has ended")));
        }
        let update = limits::of_linux(Some(resources))?;
        // One after the other: each starts from what the one before has left.
        let _turn = self.updating.lock().await;
        if container.is_root() {
            limits::check(&update, &container.config)?;
            if let Err(error) = container.placement.update(update.clone()).await {
                let back = limits::back_to(&lock(&container.asked).clone(), &update);
                if let Err(error) = container.placement.update(back).await {
                    log::warn!("after a refused update of {id}: {}", chain(&error));
                }
                return Err(error);
            }
            limits::merge(&mut lock(&container.asked), &update);
            // What is said of the pod as a whole stays said.
            let mut follows = lock(&container.follows);
            follows.memory &= update.memory.limit.is_none();
            follows.cpu &= update.cpu.quota.is_none();
            return Ok(());
        }
        let before = lock(&container.asked).clone();
        let mut after = before.clone();
        limits::merge(&mut after, &update);
        *lock(&container.asked) = after.clone();
        // The sandbox first: a limit below what is used is refused there.
        let mut resized = false;
        let updated = async {
            self.resize_sandbox(&container, &before, &after).await?;
            resized = true;
            self.follow_containers(&container).await?;
            container.placement.update(update).await
        }
        .await;
        if updated.is_err() {
            self.take_back(&container, before, &after, resized).await;
        }
        self.limits.send_replace(());
        updated
    }

    /// Undoes what was written of a refused update.
    async fn take_back(
        &self,
        member: &Container,
        before: Resources,
        after: &Resources,
        resized: bool,
    ) {
        *lock(&member.asked) = before.clone();
        let sandbox = match resized {
            true => self.resize_sandbox(member, after, &before).await,
            false => Ok(()),
        };
        let together = self.follow_containers(member).await;
        let own = limits::back_to(&before, after);
        let own = member.placement.update(own).await;
        if let Err(error) = sandbox.and(together).and(own) {
            log::warn!("after a refused update of {}: {}", member.id, chain(&error));
        }
    }

    /// Gives the sandbox of `member` as much more or less as the member got, where
    /// somebody has said what the pod gets.
    async fn resize_sandbox(
        &self,
        member: &Container,
        before: &Resources,
        after: &Resources,
    ) -> Result<()> {
        let Role::Member { sandbox } = &member.role else {
            return Ok(());
        };
        let root = self.container(sandbox)?;
        let (follows, said) = (*lock(&root.follows), lock(&root.asked).clone());
        let cgroup = root.placement.cgroup();
        let resized = limits::resized(&said, follows, before, after, cgroup);
        if resized == Resources::default() {
            return Ok(());
        }
        if let Err(error) = root.placement.update(resized.clone()).await {
            let back = limits::back_to(&said, &resized);
            if let Err(error) = root.placement.update(back).await {
                log::warn!("after a refused update of {sandbox}: {}", chain(&error));
            }
            return Err(error);
        }
        limits::merge(&mut lock(&root.asked), &resized);
        Ok(())
    }

    /// Gives the sandbox of `member` the limits of its containers together,
    /// unless somebody has said what the pod gets.
    async fn follow_containers(&self, member: &Container) -> Result<()> {
        let Role::Member { sandbox } = &member.role else {
            return Ok(());
        };
        let root = self.container(sandbox)?;
        let follows = *lock(&root.follows);
        if follows == FollowsContainers::default() {
            return Ok(());
        }
        let asked: Vec<_> = self
            .containers()
            .values()
            .filter(|container| container.role == member.role)
            .filter(|container| !container.life.state().has_ended())
            .map(|container| lock(&container.asked).clone())
            .collect();
        let cgroup = root.placement.cgroup();
        let together = limits::of_containers(&asked, follows, &root.config, cgroup);
        root.placement.update(together).await
    }

    /// Stats: what the container uses.
    ///
    /// # Errors
    /// It is not there.
    pub async fn stats(&self, id: &str) -> Result<Any> {
        let container = self.container(id)?;
        metrics::of(&container).await
    }

    /// Checkpoint: the container's state goes to `path`.
    ///
    /// # Errors
    /// The runsc at hand cannot, or refuses.
    pub async fn checkpoint(&self, id: &str, path: &str, options: Option<&Any>) -> Result<()> {
        let container = self.container(id)?;
        let exit = options.is_some_and(crate::options::checkpoint_exits);
        container
            .sandbox
            .checkpoint(id, Path::new(path), exit)
            .await?;
        self.events.publish(Event::Checkpointed(TaskCheckpointed {
            container_id: id.to_owned(),
            checkpoint: path.to_owned(),
            ..TaskCheckpointed::default()
        }));
        Ok(())
    }

    /// Shutdown: the shim ends, unless it still serves something; with `now`,
    /// too: containerd sends that for one container of many.
    pub fn shutdown(&self, _now: bool) {
        self.shutdown.notify_one();
    }

    /// Resolves when there is nothing left to serve: a Shutdown came, or nobody
    /// has called for [`IDLE`], because containerd died between `start` and
    /// Create, or all who were connected have gone.
    pub async fn over(self: &Arc<Self>, connections: &Connections) {
        loop {
            for id in self.ended() {
                self.forget_removed(&id).await;
            }
            let wanted = tokio::select! {
                () = self.shutdown.notified() => false,
                () = tokio::time::sleep(LOOK) => {
                    let idle = lock(&self.used).elapsed();
                    idle < LOOK || (idle < IDLE && !connections.all_gone())
                }
            };
            let busy = !self.creating.is_idle()
                || !self.deleting.is_idle()
                || !self.containers().is_empty();
            if !wanted && !busy {
                return;
            }
        }
    }

    /// The ids of the containers that have ended.
    fn ended(&self) -> Vec<String> {
        self.containers()
            .values()
            .filter(|container| container.life.state().has_ended())
            .map(|container| container.id.clone())
            .collect()
    }

    fn touch(&self) {
        *lock(&self.used) = Instant::now();
    }

    fn containers(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Container>>> {
        lock(&self.containers)
    }
}

/// How long who asks for the processes of a task that is being created waits for
/// it. Together with [`PROCESSES_PATIENCE`] less than the 5 s in which containerd
/// loads a shim after its restart (`io.containerd.timeout.shim.load`).
const CREATE_PATIENCE: Duration = Duration::from_secs(3);

/// How long a sandbox may take to list its processes: it may stand still.
const PROCESSES_PATIENCE: Duration = Duration::from_secs(1);

/// How often a shim looks whether it is still wanted, and how long it stays after
/// its last client has gone.
const LOOK: Duration = Duration::from_secs(3);

/// How long a shim without tasks waits for somebody to want it.
const IDLE: Duration = Duration::from_secs(60);
