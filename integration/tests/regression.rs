//! What users of other shims reported, each once: a test is named after the
//! project and the number of the issue or pull request.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, thread};

use integration::host::Host;
use integration::inventory::Inventory;
use integration::mock::Mood;
use integration::setup::Setup;
use integration::shim::{Input, Reply, Shim, TaskClient};
use integration::wire::{TASK_V2, code};
use integration::{bundle, process, wait};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use protos::task;
use serde_json::json;

/// docker exec hung: the exec's exit came after init's, or never.
#[test]
fn containerd_9719_exec_exits_before_init() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    for number in 0..5 {
        let exec = format!("exec{number}");
        client.exec(&exec, &["sleep", "1000"]).unwrap();
        client.start(&exec).unwrap();
    }
    client.kill("", 9).unwrap();
    assert_eq!(client.wait("").unwrap().exit_status, 137);
    wait::until("all exits", || {
        let topics = setup.mock.topics("c");
        topics.iter().filter(|&topic| topic == "exit").count() == 6
    });
    let exits: Vec<_> = setup
        .mock
        .recorded()
        .into_iter()
        .filter(|event| event.topic == "/tasks/exit")
        .map(|event| event.process)
        .collect();
    assert_eq!(exits.last().map(String::as_str), Some("c"), "{exits:?}");
}

/// An exec that failed to start left a counter that held init's exit back.
#[test]
fn containerd_10589_failed_exec_does_not_hold_inits_exit() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    client.exec("bad", &["/no/such/program"]).unwrap();
    let error = client.start("bad").unwrap_err();
    assert!(error.message.contains("/no/such/program"), "{error:?}");
    client.kill("", 9).unwrap();
    client.wait("").unwrap();
    assert_eq!(setup.mock.wait_for("exit", "c").exit_status, 137);
}

/// Of execs that ran at once some never reported their exit.
#[test]
fn containerd_9999_every_exec_at_once_reports_its_exit() {
    let Some(setup) = Setup::new() else { return };
    let (shim, _client, reply) = setup.running("c", &["sleep", "1000"]);
    thread::scope(|scope| {
        for number in 0..10 {
            let (shim, reply) = (&shim, &reply);
            scope.spawn(move || {
                let exec = format!("exec{number}");
                let script = format!("exit {number}");
                let mut client = shim.connect(reply);
                client.exec(&exec, &["sh", "-c", &script]).unwrap();
                client.start(&exec).unwrap();
                assert_eq!(client.wait(&exec).unwrap().exit_status, number);
                client.delete(&exec).unwrap();
            });
        }
    });
    wait::until("ten exits", || {
        let topics = setup.mock.topics("c");
        topics.iter().filter(|&topic| topic == "exit").count() == 10
    });
}

/// A process that ended at once had its exit told before its start.
#[test]
fn containerd_7111_start_is_told_before_exit() {
    let Some(setup) = Setup::new() else { return };
    let (_long, mut client, _) = setup.running("c", &["sleep", "1000"]);
    for number in 0..20 {
        let exec = format!("exec{number}");
        client.exec(&exec, &["true"]).unwrap();
        client.start(&exec).unwrap();
        client.wait(&exec).unwrap();
        client.delete(&exec).unwrap();
    }
    let count = || setup.mock.topics("c").len();
    wait::until("all events", || count() == 2 + 20 * 3);
    let topics = setup.mock.topics("c").split_off(2);
    for events in topics.chunks(3) {
        assert_eq!(events, ["exec-added", "exec-started", "exit"]);
    }
}

/// `delete` answered 137 for a container whose real status was known.
#[test]
fn containerd_4769_delete_knows_the_real_status() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, _) = setup.running("c", &["sh", "-c", "exit 5"]);
    assert_eq!(client.wait("").unwrap().exit_status, 5);
    let pid = client.identify().unwrap().shim_pid;
    process::signal(pid, Signal::SIGKILL);
    wait::until("the shim to end", || !process::is_alive(pid));
    assert_eq!(shim.delete().exit_status, 5);
}

/// Events were lost or came in another order when containerd was slow, refused
/// them, or was restarted.
#[test]
fn containerd_3177_no_event_is_lost_or_overtaken() {
    let Some(mut setup) = Setup::new() else {
        return;
    };
    let script = "exit 3";
    for (id, mood) in [
        ("slow", Mood::Slow(Duration::from_millis(300))),
        ("failing", Mood::Failing),
    ] {
        setup.mock.set_mood(mood);
        let (_shim, mut client, _) = setup.running(id, &["sh", "-c", script]);
        assert_eq!(client.wait("").unwrap().exit_status, 3);
        client.delete("").unwrap();
        if mood == Mood::Failing {
            assert_eq!(setup.mock.topics(id), Vec::<String>::new());
        }
        setup.mock.set_mood(Mood::Prompt);
        setup.mock.wait_for("delete", id);
        assert_eq!(setup.mock.topics(id), ["create", "start", "exit", "delete"]);
    }
    let shim = setup.shim("restarted", &["sh", "-c", script]);
    let mut client = shim.connect(&shim.start(&Input::Bootstrap));
    let bundle = shim.bundle().to_owned();
    drop(shim);
    client.create(&bundle).unwrap();
    setup.mock.wait_for("create", "restarted");
    setup.mock.stop();
    client.start("").unwrap();
    client.wait("").unwrap();
    setup.mock.listen();
    client.delete("").unwrap();
    setup.mock.wait_for("delete", "restarted");
    let topics = setup.mock.topics("restarted");
    assert_eq!(topics, ["create", "start", "exit", "delete"]);
}

/// A caller that gave up in the middle left a container that could be neither
/// used nor removed.
#[test]
fn containerd_7496_a_call_given_up_is_done_all_the_same() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    let shim = setup.shim("c", &["sleep", "1000"]);
    let reply = shim.start(&Input::Bootstrap);
    // The connection is closed before the answer can have come.
    give_up(
        &shim,
        &reply,
        "Create",
        &task::CreateTaskRequest {
            id: "c".to_owned(),
            bundle: shim.bundle().to_string_lossy().into_owned(),
            ..Default::default()
        },
    );
    let mut client = shim.connect(&reply);
    wait::until("the container to be there", || client.state("").is_ok());
    give_up(
        &shim,
        &reply,
        "Start",
        &task::StartRequest {
            id: "c".to_owned(),
            ..Default::default()
        },
    );
    wait::until("the container to run", || {
        let state = client.state("").unwrap().status.enum_value();
        state == Ok(task::Status::RUNNING)
    });
    client.kill("", 9).unwrap();
    client.wait("").unwrap();
    give_up(
        &shim,
        &reply,
        "Delete",
        &task::DeleteRequest {
            id: "c".to_owned(),
            ..Default::default()
        },
    );
    // The second call joins the first, or finds that it is done.
    match client.delete("") {
        Ok(response) => assert_eq!(response.exit_status, 137),
        Err(error) => assert_eq!(error.code, code::NOT_FOUND, "{error:?}"),
    }
    setup.mock.wait_for("delete", "c");
    assert_eq!(
        setup.mock.topics("c"),
        ["create", "start", "exit", "delete"]
    );
    let request = task::ShutdownRequest::default();
    let _end_of_stream = client.raw().try_call(TASK_V2, "Shutdown", &request);
    before.assert_same_but(&setup.host, made_once);
}

/// The shim died while it created: what was there of the container stayed.
#[test]
fn containerd_6860_a_shim_killed_while_it_creates() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    // The first tens of milliseconds hold the record's and the cgroups' making, the
    // rest the sandbox's.
    let delays = (0..10)
        .map(|step| 4 * step)
        .chain((1..4).map(|step| 40 * step));
    for delay in delays {
        let id = format!("c{delay}");
        let shim = setup.shim(&id, &["sleep", "1000"]);
        let reply = shim.start(&Input::Bootstrap);
        let server = server_of(&reply, &shim);
        give_up(
            &shim,
            &reply,
            "Create",
            &task::CreateTaskRequest {
                id: id.clone(),
                bundle: shim.bundle().to_string_lossy().into_owned(),
                ..Default::default()
            },
        );
        // Each time a little later in the life of the call.
        thread::sleep(Duration::from_millis(delay));
        process::signal(server, Signal::SIGKILL);
        wait::until("the shim to end", || !process::is_alive(server));
        shim.delete();
        fs::remove_dir_all(shim.bundle()).unwrap();
    }
    before.assert_same_but(&setup.host, made_once);
}

/// containerd 2 calls Shutdown for each container of a shim: the pod ended.
#[test]
fn containerd_11708_shutdown_is_no_end_while_something_lives() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    client.shutdown().unwrap();
    let request = task::ShutdownRequest {
        id: "another".to_owned(),
        now: true,
        ..Default::default()
    };
    let _refused_or_ignored = client.raw().try_call(TASK_V2, "Shutdown", &request);
    let state = shim.connect(&reply).state("").unwrap();
    assert_eq!(state.status.enum_value(), Ok(task::Status::RUNNING));
}

/// A sandbox that did not answer made every call hang, and containerd with it.
#[test]
fn containerd_13848_calls_are_bounded_when_the_sandbox_is_mute() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    let sentry = client.state("").unwrap().pid;
    process::signal(sentry, Signal::SIGSTOP);
    // Each panics if it stays without an answer.
    assert!(!client.pids().unwrap().processes.is_empty());
    client.stats().unwrap();
    client.state("").unwrap();
    assert!(client.delete("").is_err());
    client.kill("", 9).unwrap();
    let mut second = shim.connect(&reply);
    assert_eq!(second.wait("").unwrap().exit_status, 137);
    second.delete("").unwrap();
}

/// A reader that never came kept Create waiting: the fifo was opened in the wrong
/// way.
#[test]
fn containerd_4905_fifos_without_a_reader_hold_nothing_up() {
    let Some(setup) = Setup::new() else { return };
    let shim = setup.shim("c", &["sh", "-c", "echo out; echo err >&2; exit 2"]);
    let fifo = |name: &str| {
        let path = setup.host.directory().join(name);
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.to_string_lossy().into_owned()
    };
    let reply = shim.start(&Input::Bootstrap);
    let mut client = shim.connect(&reply);
    let request = task::CreateTaskRequest {
        id: "c".to_owned(),
        bundle: shim.bundle().to_string_lossy().into_owned(),
        stdin: fifo("stdin"),
        stdout: fifo("stdout"),
        stderr: fifo("stderr"),
        ..Default::default()
    };
    client
        .raw()
        .call::<task::CreateTaskResponse>(TASK_V2, "Create", &request)
        .unwrap();
    client.start("").unwrap();
    assert_eq!(client.wait("").unwrap().exit_status, 2);
    client.delete("").unwrap();
}

/// What a container wrote before its reader came was lost.
#[test]
fn containerd_4905_a_late_reader_still_gets_it_all() {
    let Some(setup) = Setup::new() else { return };
    let shim = setup.shim("c", &["sh", "-c", "echo first; sleep 1000"]);
    let stdout = setup.host.directory().join("stdout");
    nix::unistd::mkfifo(&stdout, Mode::S_IRWXU).unwrap();
    let mut client = shim.connect(&shim.start(&Input::Bootstrap));
    let request = task::CreateTaskRequest {
        id: "c".to_owned(),
        bundle: shim.bundle().to_string_lossy().into_owned(),
        stdout: stdout.to_string_lossy().into_owned(),
        ..Default::default()
    };
    client
        .raw()
        .call::<task::CreateTaskResponse>(TASK_V2, "Create", &request)
        .unwrap();
    client.start("").unwrap();
    let mut line = [0; 6];
    let mut reader = open_without_waiting(&stdout);
    let read = wait::within(wait::LIMIT, || reader.read_exact(&mut line).ok());
    assert!(read.is_some(), "nothing came");
    assert_eq!(&line, b"first\n");
}

/// A child in the background held the exec's pipe: Delete took for ever.
#[test]
fn containerd_9568_a_background_child_does_not_hold_delete() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    let stdout = setup.host.directory().join("exec-stdout");
    nix::unistd::mkfifo(&stdout, Mode::S_IRWXU).unwrap();
    let mut reader = open_without_waiting(&stdout);
    let process = json!({
        "args": ["sh", "-c", "sleep 900 & echo out; exit 1"],
        "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 },
    });
    let request = task::ExecProcessRequest {
        id: "c".to_owned(),
        exec_id: "leaves".to_owned(),
        stdout: stdout.to_string_lossy().into_owned(),
        spec: Some(protos::protobuf::well_known_types::any::Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned(),
            value: process.to_string().into_bytes(),
            ..Default::default()
        })
        .into(),
        ..Default::default()
    };
    client
        .raw()
        .call::<task::Empty>(TASK_V2, "Exec", &request)
        .unwrap();
    client.start("leaves").unwrap();
    assert_eq!(client.wait("leaves").unwrap().exit_status, 1);
    assert_eq!(client.delete("leaves").unwrap().exit_status, 1);
    let mut out = [0; 4];
    let read = wait::within(wait::LIMIT, || reader.read_exact(&mut out).ok());
    assert!(read.is_some(), "the output is lost");
    assert_eq!(&out, b"out\n");
}

/// A file that was missing made `delete` fail again and again.
#[test]
fn containerd_11071_delete_takes_what_is_missing_as_done() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    let (shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    let pid = client.identify().unwrap().shim_pid;
    process::signal(pid, Signal::SIGKILL);
    wait::until("the shim to end", || !process::is_alive(pid));
    for file in ["config.json", "address"] {
        fs::remove_file(shim.bundle().join(file)).unwrap();
    }
    shim.delete();
    before.assert_same_but(&setup.host, made_once);
    fs::remove_dir_all(shim.bundle()).unwrap();
    shim.delete();
}

/// The sandbox was killed from outside: kill and delete failed for ever.
#[test]
fn gvisor_5861_kill_and_delete_of_a_sandbox_that_is_gone() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    let sentry = client.state("").unwrap().pid;
    process::signal(sentry, Signal::SIGKILL);
    assert_eq!(client.wait("").unwrap().exit_status, 137);
    assert_eq!(client.kill("", 9).unwrap_err().code, code::NOT_FOUND);
    client.stats().unwrap();
    assert_eq!(client.delete("").unwrap().exit_status, 137);
    setup.mock.wait_for("delete", "c");
    assert_eq!(
        setup.mock.topics("c"),
        ["create", "start", "exit", "delete"]
    );
}

/// Each exec left its pid file, and each line went into one log that grew.
#[test]
fn gvisor_6225_execs_leave_no_files() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    let run = |client: &mut TaskClient, exec: &str| {
        client.exec(exec, &["true"]).unwrap();
        client.start(exec).unwrap();
        client.wait(exec).unwrap();
        client.delete(exec).unwrap();
    };
    run(&mut client, "first");
    let before = Inventory::take(&setup.host);
    let size = size_of_logs(&setup.host);
    for number in 0..30 {
        run(&mut client, &format!("exec{number}"));
    }
    // The sandbox keeps as many of its own processes as it has needed at once.
    let of_the_sandbox = |line: &str| line.starts_with("process ") && line.ends_with("[exe]");
    before.assert_same_but(&setup.host, |line| made_once(line) || of_the_sandbox(line));
    let grown = size_of_logs(&setup.host).saturating_sub(size);
    assert!(grown < 16 << 10, "30 execs left {grown} bytes of logs");
}

/// Sockets of ended shims stayed until the file system had no inode left.
#[test]
fn gvisor_13509_no_socket_stays() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    for number in 0..5 {
        let (_shim, mut client, _) = setup.running(&format!("c{number}"), &["true"]);
        client.wait("").unwrap();
        client.delete("").unwrap();
        let request = task::ShutdownRequest::default();
        let _end_of_stream = client.raw().try_call(TASK_V2, "Shutdown", &request);
    }
    before.assert_same_but(&setup.host, made_once);
}

/// A container without CRI's annotations hung.
#[test]
fn gvisor_4544_no_annotation_is_a_sandbox_of_its_own() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, mut client, _) = setup.running("c", &["sh", "-c", "exit 12"]);
    assert_eq!(client.wait("").unwrap().exit_status, 12);
}

/// The error said that a log file was missing, or EOF, instead of the cause.
#[test]
fn gvisor_5865_the_cause_is_in_the_error() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    let mount = json!([
        { "destination": "/proc", "type": "proc", "source": "proc" },
        { "destination": "/x", "type": "bind", "source": "/no/such/source", "options": ["rbind"] },
    ]);
    let cases = [
        ("mount", vec![("mounts", mount)], "/no/such/source"),
        (
            "root",
            vec![("root", json!({ "path": "no-such-rootfs" }))],
            "no-such-rootfs",
        ),
        (
            "program",
            vec![(
                "process",
                json!({
                    "args": ["/no/such/program"], "cwd": "/", "user": { "uid": 0, "gid": 0 },
                }),
            )],
            "/no/such/program",
        ),
    ];
    for (id, more, cause) in cases {
        bundle::make(&setup.host, setup.host.name(), id, &["true"], &more);
        let shim = Shim::new(&setup.host, &setup.mock, id);
        let mut client = shim.connect(&shim.start(&Input::Bootstrap));
        let error = match client.create(shim.bundle()) {
            Err(error) => error,
            Ok(_) => client.start("").unwrap_err(),
        };
        assert!(error.message.contains(cause), "{id}: {error:?}");
        assert!(!error.message.contains("EOF"), "{id}: {error:?}");
        drop(client);
        shim.delete();
    }
    before.assert_same_but(&setup.host, made_once);
}

/// Sends a call and closes the connection without reading the answer.
fn give_up(shim: &Shim<'_>, reply: &Reply, method: &str, request: &impl protos::protobuf::Message) {
    let mut client = shim.connect(reply);
    let sent = client.raw().send(TASK_V2, method, request);
    sent.expect("send the call");
}

/// The pid of the shim that serves, before there is a task to ask for it.
fn server_of(reply: &Reply, shim: &Shim<'_>) -> u32 {
    drop(shim.connect(reply));
    let servers: Vec<u32> = process::descendants()
        .into_iter()
        .filter(|process| !process.zombie && process.command.contains("containerd-shim-rampart"))
        .map(|process| process.pid)
        .collect();
    assert_eq!(servers.len(), 1, "exactly one shim: {servers:?}");
    servers[0]
}

/// Opens a fifo for reading whether or not someone writes.
fn open_without_waiting(path: &PathBuf) -> fs::File {
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All bytes in files named like logs, where a shim may write them.
fn size_of_logs(host: &Host) -> u64 {
    let mut size = 0;
    let mut directories = vec![host.outside("/run"), host.directory().join("bundles")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let kind = entry.file_type().expect("a file has a type");
            if kind.is_dir() && entry.file_name() != "rootfs" {
                directories.push(entry.path());
            } else if kind.is_file() && entry.file_name().to_string_lossy().contains("log") {
                size += entry.metadata().map_or(0, |data| data.len());
            }
        }
    }
    size
}

/// Directories that the first shim of a machine makes.
fn made_once(line: &str) -> bool {
    ["/run/containerd", "/run/containerd/s", "/run/rampart"]
        .iter()
        .any(|made| line == format!("file {made}"))
}
