//! Input that no containerd sends: frames, ids, calls at once, configurations. Each
//! is answered with its cause, and neither the shim nor anything on disk is moved.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::{fs, thread};

use integration::inventory::Inventory;
use integration::setup::Setup;
use integration::shim::{Input, Reply, Shim, TaskClient};
use integration::wire::{REQUEST, Refusal, TASK_V2, TASK_V3, code, read_frame};
use integration::{bundle, process, wait};
use protos::protobuf::Message;
use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::well_known_types::empty::Empty;
use protos::task;
use protos::ttrpc::{Request, Response};
use serde_json::{Value, json};

/// Ids that are none: empty, ways out of a directory, too long, foreign letters.
const BAD_IDS: [&str; 9] = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/passwd",
    "a\0b",
    "ä",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678",
];

/// The container `c` is as it was, and served.
#[track_caller]
fn assert_unmoved(shim: &Shim<'_>, reply: &Reply, what: &str) {
    let state = shim.connect(reply).state("");
    let state = state.unwrap_or_else(|error| panic!("after {what}: {error:?}"));
    assert_eq!(
        state.status.enum_value(),
        Ok(task::Status::RUNNING),
        "after {what}"
    );
}

fn frame(length: u32, stream: u32, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(length.to_be_bytes());
    bytes.extend(stream.to_be_bytes());
    bytes.extend([kind, flags]);
    bytes.extend(payload);
    bytes
}

/// A frame that is right but for what the test makes of it.
fn whole(stream: u32, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short");
    frame(length, stream, kind, flags, payload)
}

fn state_call(service: &str, method: &str) -> Vec<u8> {
    let state = task::StateRequest {
        id: "c".to_owned(),
        ..Default::default()
    };
    let call = Request {
        service: service.to_owned(),
        method: method.to_owned(),
        payload: state.write_to_bytes().expect("it is complete"),
        ..Request::default()
    };
    call.write_to_bytes().expect("it is complete")
}

#[test]
fn frames() {
    let Some(setup) = Setup::new() else { return };
    let (shim, _client, reply) = setup.running("c", &["sleep", "1000"]);
    let before = Inventory::take(&setup.host);
    let call = state_call(TASK_V2, "State");
    let too_long = 4 * 1024 * 1024 + 1;
    // What is sent, and the code of the answer if there has to be one.
    let cases: Vec<(&str, Vec<u8>, Option<i32>)> = vec![
        ("nothing", vec![], None),
        (
            "half a header",
            frame(10, 1, REQUEST, 0, &[])[..5].to_vec(),
            None,
        ),
        ("half a call", frame(100, 1, REQUEST, 0, &call[..10]), None),
        (
            "the longest length",
            frame(u32::MAX, 1, REQUEST, 0, b"x"),
            None,
        ),
        (
            "a call that is too long",
            frame(too_long, 1, REQUEST, 0, &vec![0; too_long as usize]),
            Some(code::INVALID_ARGUMENT),
        ),
        (
            "an even stream",
            whole(2, REQUEST, 0, &call),
            Some(code::INVALID_ARGUMENT),
        ),
        (
            "stream 0",
            whole(0, REQUEST, 0, &call),
            Some(code::INVALID_ARGUMENT),
        ),
        (
            "a call that is none",
            whole(1, REQUEST, 0, &[0xff; 64]),
            Some(code::INVALID_ARGUMENT),
        ),
        (
            "data of no stream",
            whole(1, 3, 0, b"x"),
            Some(code::INVALID_ARGUMENT),
        ),
        ("odd flags", whole(1, REQUEST, 0xff, &call), None),
        ("type 0", whole(1, 0, 0, &call), None),
        ("a response", whole(1, 2, 0, &call), None),
        ("type 255", whole(1, 255, 0, &call), None),
        (
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            None,
        ),
        ("noise", (0..=255).cycle().take(1 << 16).collect(), None),
    ];
    for (what, bytes, answer) in cases {
        let path = setup.host.outside(reply.path());
        let mut stream = UnixStream::connect(path).expect("connect to the shim");
        stream
            .set_read_timeout(Some(wait::LIMIT))
            .expect("set a limit");
        // It may hang up half-way.
        let sent = stream.write_all(&bytes);
        if let Some(expected) = answer {
            sent.unwrap_or_else(|error| panic!("{what}: {error}"));
            let (_, _, payload) = read_frame(&mut stream).unwrap_or_else(|e| panic!("{what}: {e}"));
            let response = Response::parse_from_bytes(&payload).expect("it is a response");
            assert_eq!(
                response.status().code() as i32,
                expected,
                "{what}: {response}"
            );
            assert_ne!(response.status().message(), "", "{what}");
        }
        // While the connection still stands, and when it is gone.
        assert_unmoved(&shim, &reply, what);
        drop(stream);
        assert_unmoved(&shim, &reply, what);
    }
    before.assert_same(&setup.host);
}

#[test]
fn a_frame_of_an_unknown_type_holds_up_none_behind_it() {
    let Some(setup) = Setup::new() else { return };
    let (_shim, _client, reply) = setup.running("c", &["sleep", "1000"]);
    let path = setup.host.outside(reply.path());
    let mut stream = UnixStream::connect(path).expect("connect to the shim");
    stream
        .set_read_timeout(Some(wait::LIMIT))
        .expect("set a limit");
    let call = state_call(TASK_V3, "State");
    stream.write_all(&whole(1, 77, 0, &call)).expect("send");
    stream
        .write_all(&whole(3, REQUEST, 0, &call))
        .expect("send");
    let (of, _, _) = read_frame(&mut stream).expect("the call is answered");
    assert_eq!(of, 3);
}

#[test]
fn services_and_methods() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    for (service, method) in [
        (TASK_V3, "NoSuchMethod"),
        (TASK_V2, ""),
        (TASK_V2, "state"),
        ("containerd.task.v9.Task", "State"),
        ("", ""),
        ("../../x", "State"),
    ] {
        let answer = client.raw().call::<Empty>(service, method, &Empty::new());
        let refusal = answer.expect_err("there is no such method");
        assert!(
            [code::UNIMPLEMENTED, code::INVALID_ARGUMENT].contains(&refusal.code),
            "{service}/{method}: {refusal:?}"
        );
    }
    assert_unmoved(&shim, &reply, "unknown methods");
}

#[test]
fn ids() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    let before = Inventory::take(&setup.host);
    // `id` is field 1 and `exec_id`, where there is one, field 2 of these requests.
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
        "Checkpoint",
        "Exec",
    ];
    for id in BAD_IDS {
        for method in methods {
            let request = task::StateRequest {
                id: id.to_owned(),
                ..Default::default()
            };
            let answer = client.raw().call::<Empty>(TASK_V2, method, &request);
            let code = answer.as_ref().map_err(|refusal| refusal.code);
            assert_eq!(
                code.err(),
                Some(code::NOT_FOUND),
                "{method} {id:?}: {answer:?}"
            );
        }
        let request = task::CreateTaskRequest {
            id: id.to_owned(),
            bundle: shim.bundle().to_string_lossy().into_owned(),
            ..Default::default()
        };
        let created = client
            .raw()
            .call::<task::CreateTaskResponse>(TASK_V2, "Create", &request);
        let refusal = created.expect_err("no task has such an id");
        assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{id:?}: {refusal:?}");
        let refusal = client
            .exec(id, &["true"])
            .expect_err("no exec has such an id");
        assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{id:?}: {refusal:?}");
        if !id.is_empty() {
            let answers = [
                client.state(id).map(drop),
                client.start(id).map(drop),
                client.kill(id, 9).map(drop),
                client.wait(id).map(drop),
                client.delete(id).map(drop),
            ];
            for answer in answers {
                let code = answer.map_err(|refusal| refusal.code);
                assert_eq!(code, Err(code::NOT_FOUND), "exec {id:?}");
            }
        }
    }
    assert_unmoved(&shim, &reply, "bad ids");
    before.assert_same(&setup.host);
}

#[test]
fn arguments() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    let before = Inventory::take(&setup.host);
    for bundle in [
        "",
        "relative",
        "/no/such/bundle",
        "/etc/passwd",
        "/",
        "/proc/self",
    ] {
        let refusal = shim
            .connect(&reply)
            .of("other")
            .create(Path::new(bundle))
            .expect_err("there is no bundle");
        assert!(refusal.message.contains(bundle), "{bundle:?}: {refusal:?}");
    }
    for signal in [65, 1000, u32::MAX] {
        let refusal = client
            .kill("", signal)
            .expect_err("there is no such signal");
        assert_eq!(
            refusal.code,
            code::INVALID_ARGUMENT,
            "{signal}: {refusal:?}"
        );
    }
    let any = |text: &str| Any {
        value: text.as_bytes().to_vec(),
        ..Any::default()
    };
    for text in [
        "",
        "{",
        "[]",
        "1",
        r#"{"args":"sh"}"#,
        r#"{"args":[],"cwd":"/"}"#,
        r#"{"args":[""],"cwd":"/","user":{"uid":0,"gid":0}}"#,
    ] {
        let request = task::ExecProcessRequest {
            id: "c".to_owned(),
            exec_id: "exec".to_owned(),
            spec: Some(any(text)).into(),
            ..Default::default()
        };
        let answer = client.raw().call::<Empty>(TASK_V2, "Exec", &request);
        let refusal = answer.expect_err("there is nothing to run");
        assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{text}: {refusal:?}");
    }
    for text in [
        "",
        "{",
        "[]",
        r#"{"memory":1}"#,
        r#"{"memory":{"limit":"x"}}"#,
    ] {
        let request = task::UpdateTaskRequest {
            id: "c".to_owned(),
            resources: Some(any(text)).into(),
            ..Default::default()
        };
        let answer = client.raw().call::<Empty>(TASK_V2, "Update", &request);
        let refusal = answer.expect_err("these are no limits");
        assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{text}: {refusal:?}");
    }
    let request = task::ResizePtyRequest {
        id: "c".to_owned(),
        width: u32::MAX,
        height: 1,
        ..Default::default()
    };
    let answer = client.raw().call::<Empty>(TASK_V2, "ResizePty", &request);
    assert_eq!(answer.expect_err("too wide").code, code::INVALID_ARGUMENT);
    assert_unmoved(&shim, &reply, "odd arguments");
    before.assert_same(&setup.host);
}

/// Eight of each call at the same time: the work is done once, and told to all.
#[test]
fn the_same_call_eight_times_at_once() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    let shim = setup.shim("c", &["sleep", "1000"]);
    let reply = shim.start(&Input::Bootstrap);
    let bundle = shim.bundle();

    let at_once =
        |what: &str,
         others: i32,
         call: &(dyn Fn(&mut TaskClient) -> Result<(), Refusal> + Sync)| {
            let answers: Vec<_> = thread::scope(|scope| {
                let calls: Vec<_> = (0..8)
                    .map(|_| scope.spawn(|| call(&mut shim.connect(&reply))))
                    .collect();
                calls
                    .into_iter()
                    .map(|call| call.join().expect("it is answered"))
                    .collect()
            });
            let done = answers.iter().filter(|answer| answer.is_ok()).count();
            assert!(done > 0, "{what}: {answers:?}");
            for refusal in answers.into_iter().filter_map(Result::err) {
                assert_eq!(refusal.code, others, "{what}: {refusal:?}");
            }
            done
        };
    let none = 0;
    at_once("Create", code::ALREADY_EXISTS, &|c| {
        c.create(bundle).map(drop)
    });
    at_once("Start", code::FAILED_PRECONDITION, &|c| {
        c.start("").map(drop)
    });
    at_once("State", none, &|c| c.state("").map(drop));
    at_once("Pids", none, &|c| c.pids().map(drop));
    at_once("Stats", none, &|c| c.stats().map(drop));
    at_once("Connect", none, &|c| c.identify().map(drop));
    at_once("Update", none, &|c| {
        c.update(&json!({ "cpu": { "shares": 512 } })).map(drop)
    });
    let added = at_once("Exec", code::ALREADY_EXISTS, &|c| {
        c.exec("e", &["sleep", "1000"]).map(drop)
    });
    assert_eq!(added, 1, "Exec");
    at_once("Start of exec", code::FAILED_PRECONDITION, &|c| {
        c.start("e").map(drop)
    });
    at_once("Kill of exec", code::NOT_FOUND, &|c| {
        c.kill("e", 9).map(drop)
    });
    at_once("Wait for exec", none, &|c| {
        c.wait("e").map(|exit| assert_eq!(exit.exit_status, 137))
    });
    at_once("Delete of exec", code::NOT_FOUND, &|c| {
        c.delete("e").map(drop)
    });
    // Who comes when it has just died is told so, as by runc's shim.
    at_once("Kill", code::NOT_FOUND, &|c| c.kill("", 9).map(drop));
    at_once("Wait", none, &|c| {
        c.wait("").map(|exit| assert_eq!(exit.exit_status, 137))
    });
    at_once("Delete", code::NOT_FOUND, &|c| c.delete("").map(drop));
    setup.mock.wait_for("delete", "c");
    assert_eq!(
        setup.mock.topics("c"),
        [
            "create",
            "start",
            "exec-added",
            "exec-started",
            "exit",
            "exit",
            "delete"
        ]
    );
    shim.connect(&reply).end_shim();
    before.assert_same_but(&setup.host, made_once);
}

/// Configurations of containers: what is put over the members of a good one, and
/// what the error says.
#[test]
fn config_json() {
    let Some(setup) = Setup::new() else { return };
    let process = |args: Value, cwd: &str| json!({ "args": args, "cwd": cwd, "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 } });
    let linux = |path: &str| {
        json!({
            "cgroupsPath": path,
            "namespaces": [{ "type": "mount" }, { "type": "network" }],
        })
    };
    let cases = [
        (
            "no-args",
            "process",
            process(Value::Null, "/"),
            "process.args",
        ),
        (
            "empty-args",
            "process",
            process(json!([]), "/"),
            "process.args",
        ),
        (
            "empty-arg",
            "process",
            process(json!([""]), "/"),
            "process.args",
        ),
        (
            "args-text",
            "process",
            process(json!("sh"), "/"),
            "config.json",
        ),
        (
            "args-number",
            "process",
            process(json!([1]), "/"),
            "config.json",
        ),
        (
            "relative-cwd",
            "process",
            process(json!(["true"]), "tmp"),
            "process.cwd",
        ),
        ("no-process", "process", Value::Null, "process"),
        ("process-list", "process", json!([]), "config.json"),
        ("no-root", "root", Value::Null, "root"),
        ("root-without-path", "root", json!({}), "root.path"),
        (
            "root-path-empty",
            "root",
            json!({ "path": "" }),
            "root.path",
        ),
        ("root-path-number", "root", json!({ "path": 1 }), "root"),
        (
            "root-missing",
            "root",
            json!({ "path": "../no-such" }),
            "no-such",
        ),
        (
            "root-a-file",
            "root",
            json!({ "path": "config.json" }),
            "config.json",
        ),
        ("linux-text", "linux", json!("x"), "config.json"),
        ("mounts-object", "mounts", json!({}), "config.json"),
        (
            "mount-without-destination",
            "mounts",
            json!([{ "type": "tmpfs" }]),
            "destination",
        ),
        ("version", "ociVersion", json!(1), "config.json"),
        ("annotations-list", "annotations", json!([]), "config.json"),
        ("slice-no-suffix", "linux", linux("x:y:z"), "x:y:z"),
        ("slice-two-parts", "linux", linux("x.slice:y"), "x.slice:y"),
        (
            "slice-dashes",
            "linux",
            linux("a--b.slice:y:z"),
            "a--b.slice",
        ),
        ("cgroup-root", "linux", linux("/"), "root of the hierarchy"),
        (
            "cgroup-climbs",
            "linux",
            linux("/../../.."),
            "root of the hierarchy",
        ),
        (
            "cgroup-long",
            "linux",
            linux(&format!("/{}", "x".repeat(300))),
            "255",
        ),
        (
            "cgroup-control",
            "linux",
            linux("/a\nb"),
            "control character",
        ),
    ];
    let before = Inventory::take(&setup.host);
    for (id, member, value, cause) in cases {
        let shim = setup.shim_with(id, &["sleep", "1000"], &[(member, value)]);
        refused(&shim, cause);
    }
    let huge = format!("{{\"hostname\":\"{}\"}}", "x".repeat(32 << 20));
    for (id, text, cause) in [
        ("empty", "", "config.json"),
        (
            "half",
            r#"{"ociVersion":"1.0.2","process":{"#,
            "config.json",
        ),
        ("no-json", "\u{7f}ELF", "config.json"),
        ("list", "[]", "config.json"),
        ("deep", &"[".repeat(100_000), "config.json"),
        ("huge", &huge, "process"),
        ("nothing-in-it", "{}", "config.json"),
    ] {
        let shim = setup.shim(id, &["sleep", "1000"]);
        fs::write(shim.bundle().join("config.json"), text).expect("write it");
        refused(&shim, cause);
    }
    before.assert_same_but(&setup.host, made_once);
}

/// `start` or Create says the cause, and if a shim came up it still serves.
#[track_caller]
fn refused(shim: &Shim<'_>, cause: &str) {
    let id = shim.id();
    let output = shim.call_start(&Input::Nothing);
    if output.code != 0 {
        assert!(output.stderr.contains(cause), "{id}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{id}");
    } else {
        let reply = Reply::Plain(output.stdout);
        let mut client = shim.connect(&reply);
        let refusal = client.create(shim.bundle()).expect_err(id);
        assert!(refusal.message.contains(cause), "{id}: {refusal:?}");
        assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{id}: {refusal:?}");
        assert!(!refusal.message.contains('\n'), "{id}: {refusal:?}");
        assert_eq!(client.identify().expect("it serves").task_pid, 0, "{id}");
        shim.connect(&reply).end_shim();
    }
    fs::remove_dir_all(shim.bundle()).expect("remove the bundle");
}

#[test]
fn options_and_configuration_files() {
    let Some(setup) = Setup::new() else { return };
    let before = Inventory::take(&setup.host);
    let shim = setup.shim("c", &["sleep", "1000"]);
    let reply = shim.start(&Input::Bootstrap);
    let file = |name: &str, bytes: &[u8]| {
        let path = setup.host.directory().join(name);
        fs::write(&path, bytes).expect("write a configuration");
        path.to_string_lossy().into_owned()
    };
    let directory = setup.host.directory().to_string_lossy().into_owned();
    let own = |path: &str, body: &[u8]| {
        let options = protos::runtimeoptions::Options {
            config_path: path.to_owned(),
            config_body: body.to_vec(),
            ..Default::default()
        };
        let bytes = options.write_to_bytes().expect("they are complete");
        ("runtimeoptions.v1.Options", bytes)
    };
    let cases = [
        (("x.Options", vec![]), "x.Options"),
        (("runc.v1.Options", vec![0xff]), "runc.v1.Options"),
        (
            ("runtimeoptions.v1.Options", vec![0xff; 100]),
            "runtimeoptions.v1.Options",
        ),
        (own("/no/such.toml", b""), "/no/such.toml"),
        (own(&directory, b""), &directory),
        (own(&file("broken.toml", b"runsc = "), b""), "broken.toml"),
        (own(&file("unknown.toml", b"runscc = \"x\""), b""), "runscc"),
        (
            own(&file("typed.toml", b"overhead_memory = \"x\""), b""),
            "overhead_memory",
        ),
        (
            own(&file("noise.toml", &[0xff, 0, 0xfe]), b""),
            "noise.toml",
        ),
        (own("", &[0xff]), "UTF-8"),
        (own("", b"root = \"relative\""), "root"),
        (own("", b"platform = \"magic\""), "magic"),
        (own("", b"runsc = \"/no/such/runsc\""), "/no/such/runsc"),
        (own("", b"root = \"/proc/none\""), "/proc/none"),
        (
            own("", b"[runsc_flags]\nno-such-flag = \"x\""),
            "no-such-flag",
        ),
    ];
    for ((type_url, value), cause) in cases {
        let request = task::CreateTaskRequest {
            id: "c".to_owned(),
            bundle: shim.bundle().to_string_lossy().into_owned(),
            options: Some(Any {
                type_url: type_url.to_owned(),
                value,
                ..Any::default()
            })
            .into(),
            ..Default::default()
        };
        let mut client = shim.connect(&reply);
        let created = client
            .raw()
            .call::<task::CreateTaskResponse>(TASK_V2, "Create", &request);
        let refusal = created.expect_err(cause);
        assert!(refusal.message.contains(cause), "{cause}: {refusal:?}");
        assert_eq!(client.state("").expect_err(cause).code, code::NOT_FOUND);
    }
    // The same shim still makes the container.
    let mut client = shim.connect(&reply);
    client.create(shim.bundle()).expect("create the task");
    client.kill("", 9).expect("kill the task");
    client.wait("").expect("wait for it");
    client.delete("").expect("delete the task");
    shim.connect(&reply).end_shim();
    fs::remove_dir_all(shim.bundle()).expect("remove the bundle");
    before.assert_same_but(&setup.host, made_once);
}

/// A tidy-up of `/run` that goes too far takes the sandbox's socket: nobody can ask
/// the sandbox any more, but it can be ended.
#[test]
fn a_sandbox_without_its_socket_can_be_killed() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, _) = setup.running("c", &["sleep", "1000"]);
    let state = Path::new("/run/rampart").join(shim.namespace()).join("c");
    let state = setup.host.outside(state);
    let sockets = fs::read_dir(&state).expect("the sandbox's state");
    let sockets = sockets.map(|entry| entry.expect("an entry").path());
    let mut sockets = sockets.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    fs::remove_file(sockets.next().expect("its socket")).expect("remove the socket");
    client.kill("", 9).expect("kill the task");
    assert_eq!(client.wait("").expect("wait for it").exit_status, 137);
    client.delete("").expect("delete the task");
}

/// Two containerds share `/run` and a namespace, and have a task of one id each.
#[test]
fn the_task_of_another_containerd_is_not_touched() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut client, reply) = setup.running("c", &["sleep", "1000"]);
    for cgroup in [shim.id(), "elsewhere"] {
        let linux = json!({
            "cgroupsPath": format!("/{}/{cgroup}", setup.host.name()),
            "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "network" }],
        });
        let namespace = setup.host.name();
        let bundle = bundle::make(
            &setup.host,
            namespace,
            "other",
            &["true"],
            &[("linux", linux)],
        );
        let of_other = ["-address", "/other.sock", "-bundle"];
        let of_other = [&of_other[..], &[bundle.to_str().expect("a plain path")]].concat();
        let mut start = shim.command(&[&of_other[..], &["start"]].concat());
        let other = process::run_with_input(start.current_dir(&bundle), &[], wait::LIMIT).ok();
        let other = Reply::Plain(other);
        assert_ne!(other.path(), reply.path(), "it is another shim");
        let refusal = shim.connect(&other).create(&bundle).expect_err(cgroup);
        assert_eq!(refusal.code, code::ALREADY_EXISTS, "{refusal:?}");
        assert_unmoved(&shim, &reply, "a refused create");
        // As containerd does after it.
        let mut delete = shim.command(&[&of_other[..], &["delete"]].concat());
        process::run(delete.current_dir(&bundle), wait::LIMIT).ok();
        assert_unmoved(&shim, &reply, "a delete of the refused one");
        shim.connect(&other).end_shim();
        fs::remove_dir_all(&bundle).expect("remove the bundle");
    }
    client
        .exec("e", &["true"])
        .expect("an exec is still possible");
    client.start("e").expect("start the exec");
    assert_eq!(client.wait("e").expect("wait for it").exit_status, 0);
    client.kill("", 9).expect("kill the task");
    assert_eq!(client.wait("").expect("wait for it").exit_status, 137);
    client.delete("").expect("delete the task");
}

/// Directories that the first shim of a machine makes.
fn made_once(line: &str) -> bool {
    ["/run/containerd", "/run/containerd/s", "/run/rampart"]
        .iter()
        .any(|made| line == format!("file {made}"))
}
