//! The shim's side of the runtime contract, seen by a stand-in for containerd:
//! bootstrap, sockets, grouping, error codes, `delete`, and when it ends.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{fs, thread};

use integration::host::Host;
use integration::inventory::Inventory;
use integration::mock::MockContainerd;
use integration::shim::{Input, Reply, Shim, TaskClient};
use integration::wire::{TASK_V2, TASK_V3, code};
use integration::{bundle, process, tools, wait};
use nix::sys::signal::Signal;
use protos::protobuf::Message;
use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::well_known_types::empty::Empty;
use protos::task;
use serde_json::json;

/// A corner and a containerd in it, or nothing where there is no shim to drive.
fn set_up() -> Option<(Host, MockContainerd)> {
    MockContainerd::for_rampart("other shims keep only a part of this contract")
}

/// A bundle and a started shim for it.
fn started<'a>(
    host: &'a Host,
    mock: &MockContainerd,
    id: &str,
    program: &[&str],
) -> (Shim<'a>, TaskClient) {
    bundle::make(host, host.name(), id, program, &[]);
    let shim = Shim::new(host, mock, id);
    let reply = shim.start(&Input::Bootstrap);
    let client = shim.connect(&reply);
    (shim, client)
}

fn options(type_url: &str, value: Vec<u8>) -> Input {
    Input::Options(Any {
        type_url: type_url.to_owned(),
        value,
        ..Any::default()
    })
}

#[test]
fn every_form_of_bootstrap_gets_its_reply() {
    let Some((host, mock)) = set_up() else { return };
    let runtime_options = protos::runtimeoptions::Options {
        type_url: "io.containerd.rampart.options".to_owned(),
        ..Default::default()
    };
    let runtime_options = runtime_options.write_to_bytes().unwrap();
    let runc_options = protos::runc::Options::new().write_to_bytes().unwrap();
    let forms = [
        ("nothing", Input::Nothing, false),
        (
            "own",
            options("runtimeoptions.v1.Options", runtime_options),
            false,
        ),
        (
            "runc",
            options("containerd.runc.v1.Options", runc_options),
            false,
        ),
        ("bootstrap", Input::Bootstrap, true),
    ];
    for (id, input, is_new) in forms {
        bundle::make(&host, host.name(), id, &["true"], &[]);
        let shim = Shim::new(&host, &mock, id);
        let reply = shim.start(&input);
        match &reply {
            Reply::Plain(_) => assert!(!is_new, "{id}"),
            Reply::Bootstrap(version, _) => assert!(is_new && *version == 3, "{id}"),
        }
        let address = format!("unix://{}", reply.path().display());
        assert_eq!(shim.address_file().as_deref(), Some(address.as_str()));
        // No task yet, but it answers, as runc's shim does.
        assert_eq!(shim.connect(&reply).identify().unwrap().task_pid, 0);
    }
}

#[test]
fn the_socket_is_where_containerd_expects_it() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, _client) = started(&host, &mock, "socket", &["true"]);
    let name = format!(
        "{}/{}/socket",
        shim.grpc_address().display(),
        shim.namespace()
    );
    let hash = process::run_with_input(
        &mut host.command(Path::new("sha256sum")),
        name.as_bytes(),
        wait::LIMIT,
    )
    .ok();
    let hash = hash.split(' ').next().unwrap();
    let path = host.outside(format!("/run/containerd/s/{hash}"));
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_live_socket_is_used_again_and_a_dead_one_replaced() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, mut client) = started(&host, &mock, "again", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    let pid = client.identify().unwrap().shim_pid;
    let first = shim.start(&Input::Bootstrap);
    assert_eq!(shim.start(&Input::Bootstrap), first);
    assert_eq!(shim.connect(&first).identify().unwrap().shim_pid, pid);
    assert_eq!(
        shim.start(&Input::Nothing),
        Reply::Plain(format!("unix://{}", first.path().display()))
    );

    process::signal(pid, Signal::SIGKILL);
    wait::until("the shim to end", || !process::is_alive(pid));
    shim.delete();
    assert!(
        !host.outside(first.path()).exists(),
        "delete leaves the dead shim's socket"
    );
    fs::write(host.outside(first.path()), "").unwrap();
    fs::remove_file(host.outside(first.path())).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(host.outside(first.path()));
    drop(listener); // a socket file that no one serves
    let second = shim.start(&Input::Bootstrap);
    let error = shim.connect(&second).state("").unwrap_err();
    assert_eq!(error.code, code::NOT_FOUND, "{error:?}");
}

#[test]
fn containers_of_a_pod_share_one_shim() {
    let Some((host, mock)) = set_up() else { return };
    let mut connections = Vec::new();
    for annotation in [
        "io.kubernetes.cri.sandbox-id",
        "io.containerd.runc.v2.group",
    ] {
        let pod = format!("pod{}", annotation.len());
        let member = format!("{pod}-member");
        let annotations = [("annotations", json!({ annotation: pod }))];
        bundle::make(&host, host.name(), &pod, &["sleep", "1000"], &annotations);
        bundle::make(
            &host,
            host.name(),
            &member,
            &["sleep", "1000"],
            &annotations,
        );
        let shim = Shim::new(&host, &mock, &pod);
        let first = shim.start(&Input::Bootstrap);
        // A shim that nobody is connected to and that has no task soon ends.
        connections.push(shim.connect(&first));
        let count = servers();
        let second = Shim::new(&host, &mock, &member);
        assert_eq!(second.start(&Input::Bootstrap), first);
        assert_eq!(servers(), count);
        let address = format!("unix://{}", first.path().display());
        assert_eq!(second.address_file(), Some(address));
    }
}

#[test]
fn both_names_of_the_service_are_served_and_no_other() {
    let Some((host, mock)) = set_up() else { return };
    let (_shim, mut client) = started(&host, &mock, "names", &["true"]);
    let request = task::StateRequest {
        id: "names".to_owned(),
        ..Default::default()
    };
    for service in [TASK_V2, TASK_V3] {
        let error = client
            .raw()
            .call::<task::StateResponse>(service, "State", &request)
            .unwrap_err();
        assert_eq!(error.code, code::NOT_FOUND, "{service}: {error:?}");
        let error = client
            .raw()
            .call::<Empty>(service, "NoSuchMethod", &Empty::new())
            .unwrap_err();
        assert_eq!(error.code, code::UNIMPLEMENTED, "{service}: {error:?}");
    }
    let service = "containerd.runtime.sandbox.v1.Sandbox";
    for method in ["Platform", "PingSandbox", "NoSuchMethod"] {
        let error = client
            .raw()
            .call::<Empty>(service, method, &Empty::new())
            .unwrap_err();
        assert_eq!(error.code, code::UNIMPLEMENTED, "{method}: {error:?}");
    }
}

#[test]
fn calls_for_a_container_that_is_not_there_answer_not_found() {
    let Some((host, mock)) = set_up() else { return };
    let (_shim, mut client) = started(&host, &mock, "absent", &["true"]);
    // `id` is field 1 of all these requests.
    let request = task::StateRequest {
        id: "absent".to_owned(),
        ..Default::default()
    };
    let methods = [
        "State",
        "Start",
        "Delete",
        "Pids",
        "Pause",
        "Resume",
        "Kill",
        "ResizePty",
        "CloseIO",
        "Update",
        "Wait",
        "Stats",
    ];
    for method in methods {
        let answer = client.raw().call::<Empty>(TASK_V2, method, &request);
        let code = answer.as_ref().map_err(|error| error.code);
        assert_eq!(code.err(), Some(code::NOT_FOUND), "{method}: {answer:?}");
    }
    let error = client.exec("exec", &["true"]).unwrap_err();
    assert_eq!(error.code, code::NOT_FOUND, "Exec: {error:?}");
}

#[test]
fn a_task_goes_its_way_with_the_right_codes_and_events() {
    let Some((host, mock)) = set_up() else { return };
    let script = "sleep 1000 & exit 9";
    let (shim, mut client) = started(&host, &mock, "life", &["sh", "-c", script]);
    client.create(shim.bundle()).unwrap();
    assert_eq!(
        client.create(shim.bundle()).unwrap_err().code,
        code::ALREADY_EXISTS
    );
    let state = client.state("").unwrap();
    assert_eq!(state.status.enum_value(), Ok(task::Status::CREATED));
    client.start("").unwrap();
    assert_eq!(
        client.start("").unwrap_err().code,
        code::FAILED_PRECONDITION
    );
    let exit = client.wait("").unwrap();
    assert_eq!(exit.exit_status, 9);
    assert!(exit.exited_at.seconds > 1_600_000_000, "{exit:?}");

    let state = client.state("").unwrap();
    assert_eq!(state.status.enum_value(), Ok(task::Status::STOPPED));
    assert_eq!(state.exit_status, 9);
    assert!(
        !client.pids().unwrap().processes.is_empty(),
        "2.4 takes it for a leak"
    );
    client.stats().unwrap();
    assert_eq!(client.kill("", 9).unwrap_err().code, code::NOT_FOUND);
    let error = client.exec("late", &["true"]).unwrap_err();
    assert_eq!(error.code, code::FAILED_PRECONDITION, "{error:?}");

    let deleted = client.delete("").unwrap();
    assert_eq!(deleted.exit_status, 9);
    assert_eq!(client.delete("").unwrap_err().code, code::NOT_FOUND);
    mock.wait_for("delete", "life");
    assert_eq!(mock.topics("life"), ["create", "start", "exit", "delete"]);
    for event in mock.recorded() {
        assert_eq!(event.namespace, host.name());
        assert!(event.seconds > 1_600_000_000, "{event:?}");
    }
}

#[test]
fn execs_go_their_way_too() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, mut client) = started(&host, &mock, "execs", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    client.exec("one", &["sh", "-c", "exit 4"]).unwrap();
    assert_eq!(
        client.exec("one", &["true"]).unwrap_err().code,
        code::ALREADY_EXISTS
    );
    client.start("one").unwrap();
    assert_eq!(client.wait("one").unwrap().exit_status, 4);
    assert_eq!(client.delete("one").unwrap().exit_status, 4);
    assert_eq!(client.state("one").unwrap_err().code, code::NOT_FOUND);
    // One that is added and never started is no obstacle.
    client.exec("idle", &["true"]).unwrap();
    client.kill("", 9).unwrap();
    assert_eq!(client.wait("").unwrap().exit_status, 137);
    client.delete("").unwrap();
    mock.wait_for("delete", "execs");
    let topics = mock.topics("execs");
    let expected = [
        "create",
        "start",
        "exec-added",
        "exec-started",
        "exit",
        "exec-added",
        "exit",
        "delete",
    ];
    assert_eq!(topics, expected);
}

#[test]
fn a_container_that_was_never_started_can_be_killed() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, mut client) = started(&host, &mock, "created", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.kill("", 9).unwrap();
    assert_eq!(client.wait("").unwrap().exit_status, 137);
    assert_eq!(client.delete("").unwrap().exit_status, 137);
    mock.wait_for("delete", "created");
    assert_eq!(mock.topics("created"), ["create", "exit", "delete"]);
}

#[test]
fn a_running_container_is_not_deleted() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, mut client) = started(&host, &mock, "running", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    assert_eq!(
        client.delete("").unwrap_err().code,
        code::FAILED_PRECONDITION
    );
    let state = client.state("").unwrap();
    assert_eq!(state.status.enum_value(), Ok(task::Status::RUNNING));
}

#[test]
fn shutdown_waits_for_the_last_container_and_leaves_nothing() {
    let Some((host, mock)) = set_up() else { return };
    let before = Inventory::take(&host);
    let (shim, mut client) = started(&host, &mock, "last", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    let _pid = client.identify().unwrap().shim_pid;
    client.shutdown().unwrap();
    client.state("").unwrap();
    client.kill("", 9).unwrap();
    client.wait("").unwrap();
    client.delete("").unwrap();
    mock.wait_for("delete", "last");
    client.end_shim();
    before.assert_same_but(&host, made_once);
}

#[test]
fn without_container_and_client_it_ends_by_itself() {
    let Some((host, mock)) = set_up() else { return };
    let before = Inventory::take(&host);
    let (shim, mut client) = started(&host, &mock, "alone", &["true"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    client.wait("").unwrap();
    client.delete("").unwrap();
    drop(client);
    // How long it waits for a next caller is its own affair.
    let ended = wait::within(2 * wait::LIMIT, || (servers_now() == 0).then_some(()));
    assert!(ended.is_some(), "it still runs");
    before.assert_same_but(&host, made_once);
}

#[test]
fn sigterm_ends_an_idle_shim_and_removes_its_socket() {
    let Some((host, mock)) = set_up() else { return };
    let before = Inventory::take(&host);
    let (_shim, _client) = started(&host, &mock, "idle", &["true"]);
    let server = process::descendants()
        .into_iter()
        .find(|process| process.command.contains("containerd-shim-rampart"))
        .expect("the shim runs");
    process::signal(server.pid, Signal::SIGTERM);
    before.assert_same_but(&host, made_once);
}

#[test]
fn delete_needs_nothing_but_the_id() {
    let Some((host, mock)) = set_up() else { return };
    let shim = Shim::new(&host, &mock, "never-was");
    for _ in 0..2 {
        let response = shim.delete();
        assert_eq!(response.exit_status, 137);
    }
}

#[test]
fn delete_ends_what_a_dead_shim_left() {
    let Some((host, mock)) = set_up() else { return };
    let before = Inventory::take(&host);
    let (shim, mut client) = started(&host, &mock, "orphan", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    let pid = client.identify().unwrap().shim_pid;
    process::signal(pid, Signal::SIGKILL);
    wait::until("the shim to end", || !process::is_alive(pid));
    assert_eq!(shim.delete().exit_status, 137);
    before.assert_same_but(&host, made_once);
    assert_eq!(shim.delete().exit_status, 137);
}

#[test]
fn delete_beside_a_living_shim_does_no_harm() {
    let Some((host, mock)) = set_up() else { return };
    let annotations = [(
        "annotations",
        json!({ "io.kubernetes.cri.sandbox-id": "pod" }),
    )];
    bundle::make(&host, host.name(), "pod", &["sleep", "1000"], &annotations);
    let member = [(
        "annotations",
        json!({
            "io.kubernetes.cri.sandbox-id": "pod",
            "io.kubernetes.cri.container-type": "container",
        }),
    )];
    bundle::make(&host, host.name(), "member", &["true"], &member);
    let pod = Shim::new(&host, &mock, "pod");
    let reply = pod.start(&Input::Nothing);
    let mut client = pod.connect(&reply);
    client.create(pod.bundle()).unwrap();
    client.start("").unwrap();
    // containerd 2 calls it for each container of a version 2 shim that it deletes.
    Shim::new(&host, &mock, "member").delete();
    let state = client.state("").unwrap();
    assert_eq!(state.status.enum_value(), Ok(task::Status::RUNNING));
}

#[test]
fn odd_input_gets_no_odd_reply() {
    let Some((host, mock)) = set_up() else { return };
    let foreign = {
        bundle::make(&host, host.name(), "foreign", &["true"], &[]);
        let mut params = Shim::new(&host, &mock, "foreign").bootstrap();
        params.instance_id = "someone-else".to_owned();
        params.write_to_bytes().unwrap()
    };
    let inputs = [
        ("foreign", foreign),
        ("noise", (0..=255).cycle().take(4096).collect()),
        ("zeros", vec![0; 1 << 20]),
        ("huge", vec![b'x'; 11 << 20]),
        ("text", b"{\"version\":3}".to_vec()),
    ];
    for (id, bytes) in inputs {
        if id != "foreign" {
            bundle::make(&host, host.name(), id, &["true"], &[]);
        }
        let output = Shim::new(&host, &mock, id).call_start(&Input::Bytes(bytes));
        if output.code == 0 {
            // Taken for options of no known type: the old form's reply.
            assert!(output.bytes.starts_with(b"unix://"), "{id}: {output:?}");
            assert_eq!(output.stderr, "", "{id}");
        } else {
            assert_ne!(output.stderr, "", "{id}: no reason given");
            assert_eq!(output.stdout, "", "{id}");
        }
    }
}

#[test]
fn info_and_version_tell_who_it_is() {
    let Some((host, mock)) = set_up() else { return };
    let shim = Shim::new(&host, &mock, "any");
    let info = process::run(&mut shim.command(&["-info"]), wait::LIMIT);
    assert_eq!((info.code, info.stderr.as_str()), (0, ""));
    let info = protos::info::RuntimeInfo::parse_from_bytes(&info.bytes).unwrap();
    assert_eq!(info.name, tools::RAMPART);
    assert_ne!(info.version.version, "");
    let version = process::run(&mut shim.command(&["-v"]), wait::LIMIT).ok();
    assert!(version.contains(&info.version.version), "{version}");
}

#[test]
fn start_with_a_broken_bundle_says_why() {
    let Some((host, mock)) = set_up() else { return };
    let before = Inventory::take(&host);
    let bundle = bundle::make(&host, host.name(), "broken", &["true"], &[]);
    fs::write(bundle.join("config.json"), "{ not json").unwrap();
    let error = Shim::new(&host, &mock, "broken")
        .call_start(&Input::Bootstrap)
        .err();
    assert!(error.contains("config.json"), "{error}");
    before.assert_same_but(&host, made_once);
}

#[test]
fn one_slow_container_does_not_hold_up_another() {
    let Some((host, mock)) = set_up() else { return };
    let (shim, mut client) = started(&host, &mock, "waited", &["sleep", "1000"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    let reply = shim.start(&Input::Bootstrap);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| shim.connect(&reply).wait("").unwrap().exit_status);
        for number in 0..5 {
            let exec = format!("exec{number}");
            client.exec(&exec, &["true"]).unwrap();
            client.start(&exec).unwrap();
            assert_eq!(client.wait(&exec).unwrap().exit_status, 0);
        }
        client.kill("", 9).unwrap();
        assert_eq!(waiting.join().unwrap(), 137);
    });
}

#[test]
fn start_does_not_need_containerd_to_listen() {
    let Some((host, mut mock)) = set_up() else {
        return;
    };
    mock.stop();
    let (shim, mut client) = started(&host, &mock, "early", &["sh", "-c", "exit 3"]);
    client.create(shim.bundle()).unwrap();
    client.start("").unwrap();
    assert_eq!(client.wait("").unwrap().exit_status, 3);
    mock.listen();
    client.delete("").unwrap();
    mock.wait_for("delete", "early");
    assert_eq!(mock.topics("early"), ["create", "start", "exit", "delete"]);
}

/// How many shim processes run, once there is one.
fn servers() -> usize {
    wait::until_some("a shim", || Some(servers_now()).filter(|&count| count > 0))
}

fn servers_now() -> usize {
    process::descendants()
        .iter()
        .filter(|process| !process.zombie && process.command.contains("containerd-shim-rampart"))
        .count()
}

/// Directories that the first shim of a machine makes.
fn made_once(line: &str) -> bool {
    ["/run/containerd", "/run/containerd/s", "/run/rampart"]
        .iter()
        .any(|made| line == format!("file {made}"))
}
