//! The shim's command line and services, driven as containerd drives them.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use protos::bootstrap::{BootstrapParams, BootstrapResult};
use protos::protobuf::Message as _;
use protos::protobuf::well_known_types::any::Any;
use protos::task;

use crate::host::Host;
use crate::mock::MockContainerd;
use crate::process::{self, Output};
use crate::wire::{Client, Refusal, TASK_V2, TASK_V3};
use crate::{bundle, tools, wait};

/// What containerd writes to the standard input of `start`.
#[derive(Debug, Clone)]
pub enum Input {
    /// Nothing: containerd up to 2.2 for a runtime without options.
    Nothing,
    /// The runtime's options: containerd up to 2.2.
    Options(Any),
    /// The bootstrap protocol: containerd from 2.3 on.
    Bootstrap,
    /// Anything at all.
    Bytes(Vec<u8>),
}

/// What `start` answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `unix://…` and nothing else.
    Plain(String),
    /// A protobuf BootstrapResult: version and address.
    Bootstrap(i32, String),
}

impl Reply {
    /// The address without `unix://`.
    pub fn path(&self) -> PathBuf {
        let (Self::Plain(address) | Self::Bootstrap(_, address)) = self;
        PathBuf::from(address.strip_prefix("unix://").unwrap_or(address))
    }
}

/// One container's shim, as containerd knows it.
#[derive(Debug)]
pub struct Shim<'a> {
    host: &'a Host,
    id: String,
    namespace: String,
    events: PathBuf,
    bundle: PathBuf,
    /// Open for both directions as containerd has it, so that no end waits.
    _log: Option<File>,
}

impl<'a> Shim<'a> {
    /// Describes the shim of container `id`, whose bundle is at its place.
    pub fn new(host: &'a Host, mock: &MockContainerd, id: &str) -> Self {
        let namespace = host.name().to_owned();
        let bundle = bundle::path(host, &namespace, id);
        let log = File::options()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(bundle.join("log"));
        Self {
            host,
            id: id.to_owned(),
            events: mock.path().to_owned(),
            bundle,
            namespace,
            _log: log.ok(),
        }
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The container's bundle.
    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// containerd's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The gRPC address that the shim is told; its socket's name depends on it.
    pub fn grpc_address(&self) -> PathBuf {
        self.host.directory().join("grpc.sock")
    }

    /// A call of the binary with containerd's flags and environment, and
    /// `arguments` behind the flags.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let directory = if self.bundle.exists() {
            self.bundle.as_path()
        } else {
            Path::new("/")
        };
        let mut command = self.host.command_in(directory, tools::shim());
        command
            .args(["-namespace", &self.namespace])
            .arg("-address")
            .arg(self.grpc_address())
            .args(["-publish-binary", "/bin/true"])
            .args(["-id", &self.id])
            .args(arguments)
            .env("TTRPC_ADDRESS", &self.events)
            .env("GRPC_ADDRESS", self.grpc_address())
            .env("NAMESPACE", &self.namespace)
            .env("MAX_SHIM_VERSION", "2")
            .env("GOMAXPROCS", "2");
        command
    }

    /// Calls `start`.
    pub fn call_start(&self, input: &Input) -> Output {
        let bytes = match input {
            Input::Nothing => Vec::new(),
            Input::Options(any) => any.write_to_bytes().expect("options are complete"),
            Input::Bootstrap => self
                .bootstrap()
                .write_to_bytes()
                .expect("the parameters are complete"),
            Input::Bytes(bytes) => bytes.clone(),
        };
        process::run_with_input(&mut self.command(&["start"]), &bytes, wait::LIMIT)
    }

    /// Calls `start`, which has to succeed without a stray byte, and reads the
    /// reply as containerd does.
    #[track_caller]
    pub fn start(&self, input: &Input) -> Reply {
        let output = self.call_start(input);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        assert_eq!(output.stderr, "", "containerd would read this as address");
        parse(&output.bytes)
    }

    /// What containerd 2.3 and later write to `start`.
    pub fn bootstrap(&self) -> BootstrapParams {
        BootstrapParams {
            instance_id: self.id.clone(),
            namespace: self.namespace.clone(),
            containerd_version: "2.4.2".to_owned(),
            containerd_ttrpc_address: self.events.to_string_lossy().into_owned(),
            containerd_grpc_address: self.grpc_address().to_string_lossy().into_owned(),
            containerd_binary: "/bin/true".to_owned(),
            socket_dir: Some("/run/containerd/s".to_owned()),
            ..BootstrapParams::default()
        }
    }

    /// Calls `delete` as containerd does after it lost the shim.
    pub fn call_delete(&self) -> Output {
        let bundle = self.bundle.to_string_lossy().into_owned();
        let mut command = self.command(&["-bundle", &bundle, "delete"]);
        process::run(&mut command, wait::LIMIT)
    }

    /// Calls `delete`, which has to succeed, and reads its answer.
    #[track_caller]
    pub fn delete(&self) -> task::DeleteResponse {
        let output = self.call_delete();
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        task::DeleteResponse::parse_from_bytes(&output.bytes)
            .unwrap_or_else(|error| panic!("not a DeleteResponse: {error}: {:?}", output.bytes))
    }

    /// Connects to a started shim, and speaks the version of its reply.
    #[track_caller]
    pub fn connect(&self, reply: &Reply) -> TaskClient {
        let path = self.host.outside(reply.path());
        let client =
            Client::connect(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let service = match reply {
            Reply::Bootstrap(3, _) => TASK_V3,
            Reply::Bootstrap(..) | Reply::Plain(_) => TASK_V2,
        };
        TaskClient {
            client,
            service: service.to_owned(),
            id: self.id.clone(),
        }
    }

    /// The address file's text.
    pub fn address_file(&self) -> Option<String> {
        fs::read_to_string(self.bundle.join("address")).ok()
    }
}

/// A client of the task service for one container.
#[derive(Debug)]
pub struct TaskClient {
    client: Client,
    service: String,
    id: String,
}

impl TaskClient {
    /// Connects to the shim of the container `id` that containerd has started,
    /// from what it keeps in the container's bundle.
    ///
    /// # Panics
    ///
    /// If there is nobody.
    #[track_caller]
    pub fn of_bundle(host: &Host, bundle: &Path, id: &str) -> Self {
        let read = |name: &str| fs::read_to_string(bundle.join(name)).ok();
        let (address, service) = match read("bootstrap.json") {
            Some(text) => {
                let value: serde_json::Value =
                    serde_json::from_str(&text).expect("bootstrap.json is JSON");
                let address = value["address"].as_str().expect("an address").to_owned();
                let newest = value["version"] == 3;
                (address, if newest { TASK_V3 } else { TASK_V2 })
            }
            None => (read("address").expect("an address in the bundle"), TASK_V2),
        };
        let path = host.outside(Reply::Plain(address).path());
        let client =
            Client::connect(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self {
            client,
            service: service.to_owned(),
            id: id.to_owned(),
        }
    }

    /// Gives the container other limits: `linux.resources` of the OCI spec.
    pub fn update(&mut self, resources: &serde_json::Value) -> Result<task::Empty, Refusal> {
        let resources = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned(),
            value: resources.to_string().into_bytes(),
            ..Default::default()
        };
        let request = task::UpdateTaskRequest {
            id: self.id.clone(),
            resources: Some(resources).into(),
            ..Default::default()
        };
        self.call("Update", &request)
    }

    /// Speaks under another name of the service from now on.
    pub fn speak(mut self, service: &str) -> Self {
        service.clone_into(&mut self.service);
        self
    }

    /// Works on another container of the same shim from now on.
    pub fn of(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    /// The connection, for calls that no method here makes.
    pub fn raw(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Creates the container from its bundle, without stdio.
    pub fn create(&mut self, bundle: &Path) -> Result<task::CreateTaskResponse, Refusal> {
        let request = task::CreateTaskRequest {
            id: self.id.clone(),
            bundle: bundle.to_string_lossy().into_owned(),
            ..Default::default()
        };
        self.call("Create", &request)
    }

    /// Starts the container's init, or an exec of that id.
    pub fn start(&mut self, exec: &str) -> Result<task::StartResponse, Refusal> {
        let request = task::StartRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call("Start", &request)
    }

    /// Tells the state of init or of an exec.
    pub fn state(&mut self, exec: &str) -> Result<task::StateResponse, Refusal> {
        let request = task::StateRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call("State", &request)
    }

    /// Waits for the end of init or of an exec.
    pub fn wait(&mut self, exec: &str) -> Result<task::WaitResponse, Refusal> {
        let request = task::WaitRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call("Wait", &request)
    }

    /// Sends a signal to init or to an exec.
    pub fn kill(&mut self, exec: &str, signal: u32) -> Result<task::Empty, Refusal> {
        let request = task::KillRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            signal,
            ..Default::default()
        };
        self.call("Kill", &request)
    }

    /// Adds an exec that runs `program`.
    pub fn exec(&mut self, exec: &str, program: &[&str]) -> Result<task::Empty, Refusal> {
        let process = serde_json::json!({
            "args": program, "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 },
        });
        let spec = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned(),
            value: process.to_string().into_bytes(),
            ..Default::default()
        };
        let request = task::ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            spec: Some(spec).into(),
            ..Default::default()
        };
        self.call("Exec", &request)
    }

    /// Lists the container's processes.
    pub fn pids(&mut self) -> Result<task::PidsResponse, Refusal> {
        let request = task::PidsRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.call("Pids", &request)
    }

    /// Asks for the container's figures.
    pub fn stats(&mut self) -> Result<task::StatsResponse, Refusal> {
        let request = task::StatsRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.call("Stats", &request)
    }

    /// Asks for the shim's and the task's pid.
    pub fn identify(&mut self) -> Result<task::ConnectResponse, Refusal> {
        let request = task::ConnectRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.call("Connect", &request)
    }

    /// Removes init, and the container with it, or an exec.
    pub fn delete(&mut self, exec: &str) -> Result<task::DeleteResponse, Refusal> {
        let request = task::DeleteRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            ..Default::default()
        };
        self.call("Delete", &request)
    }

    /// Asks the shim to end if it has nothing left to do.
    pub fn shutdown(&mut self) -> Result<task::Empty, Refusal> {
        let request = task::ShutdownRequest {
            id: self.id.clone(),
            ..Default::default()
        };
        self.call("Shutdown", &request)
    }

    /// Ends the shim, which has nothing left to do, and waits until it is gone; that
    /// may be before it has answered.
    #[track_caller]
    pub fn end_shim(&mut self) {
        let pid = self.identify().expect("it serves").shim_pid;
        let request = task::ShutdownRequest::default();
        let _end_of_stream = self.client.try_call(&self.service, "Shutdown", &request);
        wait::until("the shim to end", || !process::is_alive(pid));
    }

    fn call<A: protos::protobuf::Message>(
        &mut self,
        method: &str,
        request: &impl protos::protobuf::Message,
    ) -> Result<A, Refusal> {
        let service = self.service.clone();
        self.client.call(&service, method, request)
    }
}

/// Reads a reply in containerd 2.3's order: protobuf first, then a plain address.
fn parse(bytes: &[u8]) -> Reply {
    if bytes.starts_with(b"unix://") {
        let text = String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            text.trim(),
            text,
            "containerd 1.6 takes white space as part of it"
        );
        return Reply::Plain(text);
    }
    let result = BootstrapResult::parse_from_bytes(bytes)
        .unwrap_or_else(|error| panic!("no reply of `start`: {error}: {bytes:?}"));
    assert_eq!(result.protocol, "ttrpc");
    Reply::Bootstrap(result.version, result.address)
}
