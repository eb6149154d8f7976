//! What a container's spec asks of the kernel: it holds in the sandbox, or it is
//! refused, or the log says that it does not.

use std::fs::{self, File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

use integration::bundle;
use integration::host::Host;
use integration::inventory::Inventory;
use integration::mock::MockContainerd;
use integration::shim::{Input, Shim, TaskClient};
use integration::wire::code;
use serde_json::{Value, json};

/// What `linux` of a spec always says here.
fn linux(host: &Host, id: &str, more: &Value) -> Value {
    let mut linux = json!({
        "cgroupsPath": format!("/{}/{id}", host.name()),
        "namespaces": [
            { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
            { "type": "mount" }, { "type": "network" },
        ],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        linux[key] = value.clone();
    }
    linux
}

fn process(script: &str, more: &Value) -> Value {
    let mut process = json!({
        "args": ["sh", "-c", script],
        "cwd": "/",
        "env": ["PATH=/bin"],
        "user": { "uid": 0, "gid": 0 },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        process[key] = value.clone();
    }
    process
}

struct Corner {
    mock: MockContainerd,
    host: Host,
}

impl Corner {
    fn new() -> Option<Self> {
        let (host, mock) = MockContainerd::for_rampart("these are Rampart's own promises")?;
        Some(Self { mock, host })
    }

    /// A shim whose container will run `process`.
    fn shim(&self, id: &str, process: Value, linux: Value) -> (Shim<'_>, TaskClient) {
        let more = [("process", process), ("linux", linux)];
        let bundle = bundle::make(&self.host, self.host.name(), id, &[], &more);
        let setuid = bundle.join("rootfs/bin/busybox-setuid");
        fs::copy(bundle.join("rootfs/bin/busybox"), &setuid).expect("copy busybox");
        fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).expect("make it setuid");
        for (file, text) in [
            ("secret/key", "key"),
            ("token", "token"),
            ("data/file", "x"),
        ] {
            let path = bundle.join("rootfs").join(file);
            fs::create_dir_all(path.parent().expect("it is below the root"))
                .expect("make a folder");
            fs::write(path, text).expect("write a file");
        }
        let shim = Shim::new(&self.host, &self.mock, id);
        let reply = shim.start(&Input::Bootstrap);
        let client = shim.connect(&reply);
        (shim, client)
    }

    /// Runs `process` to its end and gives its exit status.
    fn run(&self, id: &str, process: Value, linux: Value) -> u32 {
        let (shim, mut client) = self.shim(id, process, linux);
        client.create(shim.bundle()).expect("create the task");
        client.start("").expect("start the task");
        let exit = client.wait("").expect("wait for the task").exit_status;
        client.delete("").expect("delete the task");
        client.shutdown().expect("end the shim");
        exit
    }
}

#[test]
fn setuid_programs_gain_privileges_unless_that_is_forbidden() {
    let Some(corner) = Corner::new() else { return };
    // busybox says so of an applet that needs it.
    let script =
        "busybox-setuid su root </dev/null 2>&1 | busybox grep -q 'must be suid' && exit 3; exit 0";
    for (number, (no_new, exit)) in [(false, 0), (true, 3)].into_iter().enumerate() {
        let id = format!("c{number}");
        let more = json!({ "user": { "uid": 65534, "gid": 65534 }, "noNewPrivileges": no_new });
        let linux = linux(&corner.host, &id, &json!({}));
        assert_eq!(
            corner.run(&id, process(script, &more), linux),
            exit,
            "noNewPrivileges: {no_new}"
        );
    }
}

#[test]
fn sections_hold() {
    let Some(corner) = Corner::new() else { return };
    let no_mkdir = json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }] });
    for (number, (script, more)) in [
        (
            "mkdir /tmp/a || exit 0; exit 3",
            json!({ "seccomp": no_mkdir }),
        ),
        // Without the filter the same is done, so it is the filter that forbids it.
        ("mkdir /tmp/a && exit 0; exit 3", json!({})),
        (
            "[ -z \"$(cat /token)\" ] && [ -z \"$(ls /secret)\" ] && exit 0; exit 3",
            json!({ "maskedPaths": ["/token", "/secret", "/not/there"] }),
        ),
        (
            "[ -n \"$(cat /token)\" ] && [ -n \"$(ls /secret)\" ] && exit 0; exit 3",
            json!({}),
        ),
        (
            "echo y >/data/file || exit 0; exit 3",
            json!({ "readonlyPaths": ["/data"] }),
        ),
        ("echo y >/data/file && exit 0; exit 3", json!({})),
        (
            "[ \"$(cat /proc/sys/fs/nr_open)\" = 4096 ] && exit 0; exit 3",
            json!({ "sysctl": { "fs.nr_open": "4096" } }),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("c{number}");
        // The image's own busybox has no link for mkdir.
        let script = format!("mkdir() {{ busybox mkdir \"$@\"; }}; {script}");
        let linux = linux(&corner.host, &id, &more);
        assert_eq!(
            corner.run(&id, process(&script, &json!({})), linux),
            0,
            "{script} with {more}"
        );
    }
}

#[test]
fn the_impossible_is_refused_and_leaves_nothing() {
    let Some(corner) = Corner::new() else { return };
    for (number, (in_process, in_linux, named)) in [
        (
            json!({}),
            json!({ "sysctl": { "net.core.somaxconn": "9" } }),
            "net.core.somaxconn=9",
        ),
        (
            json!({}),
            json!({ "sysctl": { "kernel.shm_rmid_forced": "1" } }),
            "kernel.shm_rmid_forced=1",
        ),
        (
            json!({ "apparmorProfile": "mine" }),
            json!({}),
            "apparmorProfile",
        ),
        (
            json!({ "selinuxLabel": "system_u:object_r:a_t:s0" }),
            json!({}),
            "SELinux",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("c{number}");
        let linux = linux(&corner.host, &id, &in_linux);
        let (shim, mut client) = corner.shim(&id, process("true", &in_process), linux);
        let before = Inventory::take(&corner.host);
        let refusal = client.create(shim.bundle()).expect_err(named);
        assert!(refusal.message.contains(named), "{refusal:?}");
        // The directory above all state is made once.
        before.assert_same_but(&corner.host, |line| line == "file /run/rampart");
        client.end_shim();
        if named != "SELinux" {
            assert_eq!(refusal.code, code::INVALID_ARGUMENT, "{refusal:?}");
        }
    }
}

#[test]
fn what_has_no_effect_is_in_the_log() {
    let Some(corner) = Corner::new() else { return };
    let own = ["ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    for (number, (in_process, in_linux, said)) in [
        (
            json!({ "apparmorProfile": "docker-default" }),
            json!({}),
            "docker-default",
        ),
        (
            json!({}),
            json!({ "namespaces": own }),
            "without a PID namespace",
        ),
        (
            json!({}),
            json!({ "personality": { "domain": "LINUX32" } }),
            "linux.personality",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("c{number}");
        let linux = linux(&corner.host, &id, &in_linux);
        let (shim, mut client) = corner.shim(&id, process("true", &in_process), linux);
        client.create(shim.bundle()).expect("create the task");
        let mut log = String::new();
        let mut fifo = File::options()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(shim.bundle().join("log"))
            .expect("open the log");
        // All is there; it ends in "would block".
        let _until_it_is_empty = fifo.read_to_string(&mut log);
        assert!(log.contains(said), "{said}: {log}");
        client.start("").expect("start the task");
        client.wait("").expect("wait for the task");
        client.delete("").expect("delete the task");
        client.shutdown().expect("end the shim");
    }
}
