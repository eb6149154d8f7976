//! What survives: containerd restarted or killed at each step, a killed sandbox, a
//! killed shim.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use integration::containerd::{Containerd, Version};
use integration::process::{self, Process};
use integration::{on_each_containerd, skip, tools, wait};
use nix::sys::signal::Signal;

on_each_containerd!(
    restart_beside_a_running_container,
    killed_beside_a_running_container,
    restart_beside_a_running_exec,
    exit_while_containerd_is_down,
    restart_after_the_exit,
    restart_while_paused,
    restart_beside_a_shim_that_stands_still,
    killed_sandbox,
    killed_shim,
    killed_shim_while_containerd_is_down,
    killed_everything,
);

/// A container that ends with status 9 once the file `go` appears; and that file.
fn start_waiting(containerd: &Containerd, id: &str) -> PathBuf {
    let shared = containerd.host().directory().join(format!("shared-{id}"));
    fs::create_dir(&shared).expect("make the shared directory");
    let mount = format!(
        "type=bind,src={},dst=/shared,options=rbind:rw",
        shared.display()
    );
    let script = "until [ -e /shared/go ]; do sleep 0.1; done; exit 9";
    let mut command =
        containerd.run_command(&["--detach", "--mount", &mount], id, &["sh", "-c", script]);
    process::run(&mut command, wait::LIMIT).ok();
    shared.join("go")
}

/// Removes a stopped task and gives what ctr says of it, the status among it.
fn remove_task(containerd: &Containerd, id: &str) -> String {
    let output = containerd.ctr(&["tasks", "rm", id]);
    containerd.ctr(&["containers", "rm", id]).ok();
    format!("{}{}", output.stdout, output.stderr)
}

fn restart_beside_a_running_container(containerd: &mut Containerd) {
    beside_a_running_container(containerd, Containerd::stop);
}

fn killed_beside_a_running_container(containerd: &mut Containerd) {
    beside_a_running_container(containerd, Containerd::kill9);
}

fn beside_a_running_container(containerd: &mut Containerd, end: fn(&mut Containerd)) {
    let before = containerd.inventory();
    let go = start_waiting(containerd, "long");
    let shims = containerd.shims("long");
    end(containerd);
    containerd.launch();
    assert_eq!(containerd.shims("long"), shims);
    containerd.until_task("long", "RUNNING");
    containerd.exec("long", "after", &["true"]).ok();
    let events = containerd.events();
    fs::write(go, "").expect("let the container end");
    assert_eq!(events.wait_for("exit", "long").exit_status(), 9);
    containerd.until_task("long", "STOPPED");
    remove_task(containerd, "long");
    if tools::is_rampart() || containerd.version() == Version::V1_6 {
        events.wait_for("delete", "long"); // the other may end before it has sent it
    }
    drop(events);
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn restart_beside_a_running_exec(containerd: &mut Containerd) {
    containerd.run_detached("long", &["sleep", "1000"]);
    let script = "until [ -e /tmp/go ]; do sleep 0.1; done; exit 6";
    let mut command = containerd.ctr_command(&[
        "tasks",
        "exec",
        "--exec-id",
        "waits",
        "long",
        "sh",
        "-c",
        script,
    ]);
    let mut client = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    // The exec shows among the processes once it has started.
    wait::until("the exec to run", || {
        containerd
            .exec("long", "looks", &["sh", "-c", "ps | grep -q '[u]ntil'"])
            .code
            == 0
    });
    client.kill();
    containerd.restart();
    let events = containerd.events();
    containerd
        .exec("long", "lets-go", &["sh", "-c", ": >/tmp/go"])
        .ok();
    let exit = events.wait_where("exit of the exec", |event| {
        event.topic == "/tasks/exit" && event.process() == "waits"
    });
    assert_eq!(exit.exit_status(), 6);
    containerd.remove("long");
}

fn exit_while_containerd_is_down(containerd: &mut Containerd) {
    if !tools::is_rampart() && containerd.version() == Version::V2_4 {
        return skip("runc's shim answers no pids for a dead init, and 2.4 then says 255");
    }
    let before = containerd.inventory();
    let go = start_waiting(containerd, "ends");
    let (_, init) = containerd.task("ends").expect("the task is there");
    containerd.kill9();
    fs::write(go, "").expect("let the container end");
    wait::until("the container to end", || !process::is_alive(init));
    containerd.launch();
    containerd.until_task("ends", "STOPPED");
    let said = remove_task(containerd, "ends");
    assert!(said.contains('9'), "the status is lost: {said:?}");
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn restart_after_the_exit(containerd: &mut Containerd) {
    if !tools::is_rampart() && containerd.version() == Version::V2_4 {
        return skip("runc's shim answers no pids for a dead init, and 2.4 then says 255");
    }
    let before = containerd.inventory();
    let go = start_waiting(containerd, "ended");
    fs::write(go, "").expect("let the container end");
    containerd.until_task("ended", "STOPPED");
    containerd.restart();
    containerd.until_task("ended", "STOPPED");
    let said = remove_task(containerd, "ended");
    assert!(said.contains('9'), "the status is lost: {said:?}");
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn restart_while_paused(containerd: &mut Containerd) {
    let before = containerd.inventory();
    containerd.run_detached("paused", &["sleep", "1000"]);
    containerd.ctr(&["tasks", "pause", "paused"]).ok();
    containerd.restart();
    containerd.until_task("paused", "PAUSED");
    containerd.ctr(&["tasks", "resume", "paused"]).ok();
    containerd.exec("paused", "after", &["true"]).ok();
    containerd.remove("paused");
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

/// containerd gives up a shim that does not answer within 5 s, and has its tasks
/// removed by `delete`; but it was only slow.
fn restart_beside_a_shim_that_stands_still(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let ids = ["again", "left"];
    for id in ids {
        containerd.run_detached(id, &["sleep", "1000"]);
    }
    let shims = ids.map(|id| containerd.shims(id)).concat();
    containerd.kill9();
    for shim in &shims {
        process::signal(*shim, Signal::SIGSTOP);
    }
    containerd.launch();
    for shim in shims {
        process::signal(shim, Signal::SIGCONT);
    }
    for id in ids {
        assert_eq!(containerd.task(id), None);
        containerd.ctr(&["containers", "rm", id]).ok();
    }
    containerd.run_detached("again", &["sleep", "1000"]);
    containerd.exec("again", "after", &["true"]).ok();
    containerd.remove("again");
    if !tools::is_rampart() {
        return; // runc's shim stays
    }
    // The connection on which it got no answer stays open until its end.
    containerd.restart();
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn killed_sandbox(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let events = containerd.events();
    containerd.run_detached("hit", &["sleep", "1000"]);
    let (_, init) = containerd.task("hit").expect("the task is there");
    process::signal(init, Signal::SIGKILL);
    assert_eq!(events.wait_for("exit", "hit").exit_status(), 137);
    containerd.until_task("hit", "STOPPED");
    containerd.remove("hit");
    drop(events);
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn killed_shim(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let events = containerd.events();
    containerd.run_detached("hit", &["sleep", "1000"]);
    for shim in containerd.shims("hit") {
        process::signal(shim, Signal::SIGKILL);
    }
    assert_eq!(events.wait_for("exit", "hit").exit_status(), 137);
    events.wait_for("delete", "hit");
    wait::until("the task to be gone", || containerd.task("hit").is_none());
    containerd.ctr(&["containers", "rm", "hit"]).ok();
    drop(events);
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn killed_shim_while_containerd_is_down(containerd: &mut Containerd) {
    let before = containerd.inventory();
    containerd.run_detached("hit", &["sleep", "1000"]);
    containerd.kill9();
    for shim in containerd.shims("hit") {
        process::signal(shim, Signal::SIGKILL);
    }
    containerd.launch();
    wait::until("the task to be gone", || {
        containerd
            .task("hit")
            .is_none_or(|(state, _)| state == "STOPPED")
    });
    containerd.ctr(&["tasks", "rm", "--force", "hit"]);
    containerd.ctr(&["containers", "rm", "hit"]).ok();
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

fn killed_everything(containerd: &mut Containerd) {
    let before = containerd.inventory();
    for name in ["one", "two"] {
        containerd.run_detached(name, &["sleep", "1000"]);
    }
    let pids: Vec<u32> = ["one", "two"]
        .iter()
        .filter_map(|name| Some(containerd.task(name)?.1))
        .collect();
    containerd.kill9();
    for name in ["one", "two"] {
        for shim in containerd.shims(name) {
            process::signal(shim, Signal::SIGKILL);
        }
    }
    for pid in pids {
        process::signal(pid, Signal::SIGKILL);
    }
    containerd.launch();
    for name in ["one", "two"] {
        containerd.ctr(&["tasks", "rm", "--force", name]);
        containerd.ctr(&["containers", "rm", name]).ok();
    }
    before.assert_same_but(containerd.host(), beyond_the_shim);
}

/// What a test here does not hold against the shim: the daemon is another process
/// after a restart, and ctr's pipes stay with a task that ctr did not see end. runc's
/// shim also leaves its socket when it is killed.
fn beyond_the_shim(line: &str) -> bool {
    (line.starts_with("process ") && line.contains("/containerd --config "))
        || line.starts_with("file /run/containerd/fifo/")
        || (!tools::is_rampart() && line.starts_with("file /run/containerd/s/"))
}
