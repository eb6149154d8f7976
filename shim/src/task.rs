//! The task service: decodes, calls the pod, encodes. No decisions here.

use std::sync::Arc;

use async_trait::async_trait;
use oci_spec::runtime::{LinuxResources, Process};
use protos::protobuf::MessageField;
use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::well_known_types::empty::Empty;
use protos::task::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
    CreateTaskResponse, DeleteRequest, DeleteResponse, ExecProcessRequest, KillRequest,
    PauseRequest, PidsRequest, PidsResponse, ProcessInfo, ResizePtyRequest, ResumeRequest,
    ShutdownRequest, StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest,
    StatsResponse, Task, UpdateTaskRequest, WaitRequest, WaitResponse,
};
use protos::ttrpc;
use protos::ttrpc::r#async::TtrpcContext;

use crate::error::{Error, Result};
use crate::info;
use crate::pod::Pod;
use crate::stdio::Paths;
use crate::wire;

/// Serves `containerd.task.v2.Task` and `v3` alike.
pub struct TaskService {
    pod: Arc<Pod>,
}

impl TaskService {
    /// The service of `pod`'s tasks.
    pub fn new(pod: Arc<Pod>) -> Self {
        Self { pod }
    }

    /// The host pid of a task, 0 if there is none (yet).
    fn pid(&self, id: &str) -> u32 {
        let container = self.pod.container(id);
        container.map_or(0, |container| wire::pid(container.pid))
    }
}

#[async_trait]
impl Task for TaskService {
    async fn create(
        &self,
        _: &TtrpcContext,
        request: CreateTaskRequest,
    ) -> ttrpc::Result<CreateTaskResponse> {
        let pid = self.pod.create(request).await?;
        Ok(CreateTaskResponse {
            pid,
            ..CreateTaskResponse::default()
        })
    }

    async fn start(&self, _: &TtrpcContext, request: StartRequest) -> ttrpc::Result<StartResponse> {
        let pid = self.pod.start(&request.id, &request.exec_id).await?;
        Ok(StartResponse {
            pid,
            ..StartResponse::default()
        })
    }

    async fn delete(
        &self,
        _: &TtrpcContext,
        request: DeleteRequest,
    ) -> ttrpc::Result<DeleteResponse> {
        let (pid, exit) = self.pod.delete(&request.id, &request.exec_id).await?;
        Ok(DeleteResponse {
            pid,
            exit_status: exit.code,
            exited_at: wire::exited_at(Some(exit)),
            ..DeleteResponse::default()
        })
    }

    async fn exec(&self, _: &TtrpcContext, request: ExecProcessRequest) -> ttrpc::Result<Empty> {
        self.pod.container(&request.id)?;
        let process: Process = json(&request.spec, "the exec's process")?;
        let paths = Paths {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        self.pod
            .exec(&request.id, &request.exec_id, process, paths)?;
        Ok(Empty::new())
    }

    async fn state(&self, _: &TtrpcContext, request: StateRequest) -> ttrpc::Result<StateResponse> {
        let container = self.pod.container(&request.id)?;
        let (life, paths) = if request.exec_id.is_empty() {
            (container.life.state(), container.paths.clone())
        } else {
            let exec = container.exec(&request.exec_id)?;
            (exec.life.state(), exec.paths.clone())
        };
        let exit = match life {
            crate::process::State::Stopped(exit) => Some(exit),
            _ => None,
        };
        Ok(StateResponse {
            id: request.id,
            bundle: container.bundle.display().to_string(),
            pid: wire::pid(container.pid),
            status: wire::status(life).into(),
            stdin: paths.stdin,
            stdout: paths.stdout,
            stderr: paths.stderr,
            terminal: paths.terminal,
            exit_status: exit.map_or(0, |exit| exit.code),
            exited_at: wire::exited_at(exit),
            exec_id: request.exec_id,
            ..StateResponse::default()
        })
    }

    async fn wait(&self, _: &TtrpcContext, request: WaitRequest) -> ttrpc::Result<WaitResponse> {
        let exit = self.pod.wait(&request.id, &request.exec_id).await?;
        Ok(WaitResponse {
            exit_status: exit.code,
            exited_at: wire::exited_at(Some(exit)),
            ..WaitResponse::default()
        })
    }

    async fn kill(&self, _: &TtrpcContext, request: KillRequest) -> ttrpc::Result<Empty> {
        self.pod
            .kill(&request.id, &request.exec_id, request.signal, request.all)
            .await?;
        Ok(Empty::new())
    }

    async fn pids(&self, _: &TtrpcContext, request: PidsRequest) -> ttrpc::Result<PidsResponse> {
        let inside = self.pod.processes(&request.id).await?;
        let pid = self.pid(&request.id);
        let mut processes = Vec::new();
        for exec_id in inside {
            let details = exec_id.map(wire::process_details).transpose()?;
            processes.push(ProcessInfo {
                pid,
                info: details.into(),
                ..ProcessInfo::default()
            });
        }
        Ok(PidsResponse {
            processes,
            ..PidsResponse::default()
        })
    }

    async fn close_io(&self, _: &TtrpcContext, request: CloseIORequest) -> ttrpc::Result<Empty> {
        self.pod.container(&request.id)?;
        if request.stdin {
            self.pod.close_stdin(&request.id, &request.exec_id)?;
        }
        Ok(Empty::new())
    }

    async fn resize_pty(
        &self,
        _: &TtrpcContext,
        request: ResizePtyRequest,
    ) -> ttrpc::Result<Empty> {
        self.pod.container(&request.id)?;
        let side = |name: &str, value: u32| {
            u16::try_from(value).map_err(|_| {
                Error::InvalidArgument(format!("{name} {value} is more than a terminal has"))
            })
        };
        let (width, height) = (
            side("width", request.width)?,
            side("height", request.height)?,
        );
        self.pod
            .resize(&request.id, &request.exec_id, width, height)?;
        Ok(Empty::new())
    }

    async fn pause(&self, _: &TtrpcContext, request: PauseRequest) -> ttrpc::Result<Empty> {
        self.pod.pause(&request.id).await?;
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, request: ResumeRequest) -> ttrpc::Result<Empty> {
        self.pod.resume(&request.id).await?;
        Ok(Empty::new())
    }

    async fn update(&self, _: &TtrpcContext, request: UpdateTaskRequest) -> ttrpc::Result<Empty> {
        self.pod.container(&request.id)?;
        let resources: LinuxResources = json(&request.resources, "the resources")?;
        self.pod.update(&request.id, &resources).await?;
        Ok(Empty::new())
    }

    async fn stats(&self, _: &TtrpcContext, request: StatsRequest) -> ttrpc::Result<StatsResponse> {
        let stats = self.pod.stats(&request.id).await?;
        Ok(StatsResponse {
            stats: MessageField::some(stats),
            ..StatsResponse::default()
        })
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        request: CheckpointTaskRequest,
    ) -> ttrpc::Result<Empty> {
        self.pod
            .checkpoint(&request.id, &request.path, request.options.as_ref())
            .await?;
        Ok(Empty::new())
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        request: ConnectRequest,
    ) -> ttrpc::Result<ConnectResponse> {
        // An unknown id is no error: containerd asks before it creates, too.
        Ok(ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: self.pid(&request.id),
            version: info::VERSION.into(),
            ..ConnectResponse::default()
        })
    }

    async fn shutdown(&self, _: &TtrpcContext, request: ShutdownRequest) -> ttrpc::Result<Empty> {
        self.pod.shutdown(request.now);
        Ok(Empty::new())
    }
}

/// Decodes what containerd packs as JSON in an `Any`.
fn json<T: serde::de::DeserializeOwned>(any: &MessageField<Any>, what: &str) -> Result<T> {
    wire::json_object(&any.value, &format!("decode {what}"))
}
