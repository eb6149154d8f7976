//! A container's life through a real containerd, old and new: run, exec, stdio,
//! terminal, signals, pause, events, and nothing left behind.

use std::fs;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use integration::containerd::{Containerd, Version};
use integration::process::{self, Process};
use integration::{cgroups, on_each_containerd, tools, wait};

on_each_containerd!(
    output_and_exit_status,
    standard_input_is_closed,
    settings_of_the_process,
    exec_in_a_running_container,
    exec_that_cannot_start_leaves_the_container_alone,
    ten_execs_at_once,
    missing_program_is_named,
    terminal_has_size_and_interrupt,
    kill_then_kill_again,
    pids_are_those_of_the_host,
    pause_and_resume,
    order_of_events,
    fifty_short_containers,
    a_gibibyte_through_the_pipe,
    reader_that_stops_and_goes_on,
    background_child_does_not_hold_the_exec,
    containers_beside_each_other,
    the_very_first_container_leaves_nothing,
);

fn output_and_exit_status(containerd: &mut Containerd) {
    let before = containerd.inventory();
    for code in [0, 1, 3, 127, 255] {
        let script = format!("echo out; echo err >&2; exit {code}");
        let output = containerd.run(&format!("exit-{code}"), &["sh", "-c", &script]);
        assert_eq!(output.code, code, "{}", output.stderr);
        assert_eq!(output.stdout, "out\n");
        assert!(output.stderr.contains("err\n"), "{}", output.stderr);
    }
    before.assert_same(containerd.host());
}

fn standard_input_is_closed(containerd: &mut Containerd) {
    let mut command = containerd.run_command(&["--rm"], "reads", &["cat"]);
    let mut run = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut input = run.child().stdin.take().expect("it is piped");
    let mut output = run.child().stdout.take().expect("it is piped");
    input.write_all(b"one\ntwo\n").expect("write to ctr");
    let mut echo = [0; 8];
    output.read_exact(&mut echo).expect("read from ctr");
    assert_eq!(&echo, b"one\ntwo\n");
    // ctr misses an end of input that comes before the task is there.
    drop(input);
    assert_eq!(run.wait(wait::LIMIT), 0);
}

fn settings_of_the_process(containerd: &mut Containerd) {
    let mut options = vec![
        "--rm",
        "--read-only",
        "--env",
        "KEY=a value",
        "--cwd",
        "/tmp",
    ];
    let mut expected = "0\n0\n/tmp\na value\nread-only";
    if containerd.version() != Version::V1_6 {
        // Its ctr has no such option.
        options.extend(["--user", "1000:1001"]);
        expected = "1000\n1001\n/tmp\na value\nread-only";
    }
    let script = "id -u; id -g; pwd; echo $KEY; touch /new 2>/dev/null || echo read-only";
    let mut command = containerd.run_command(&options, "settings", &["sh", "-c", script]);
    let output = process::run(&mut command, wait::LIMIT).ok();
    assert_eq!(output, expected);
}

fn exec_in_a_running_container(containerd: &mut Containerd) {
    let before = containerd.inventory();
    containerd.run_detached("long", &["sleep", "1000"]);
    let script = "echo $((6 * 7)); echo err >&2; echo kept >/tmp/file; exit 5";
    let output = containerd.exec("long", "first", &["sh", "-c", script]);
    assert_eq!((output.code, output.stdout.as_str()), (5, "42\n"));
    assert!(output.stderr.contains("err\n"), "{}", output.stderr);
    let output = containerd.exec("long", "second", &["cat", "/tmp/file"]);
    assert_eq!(output.ok(), "kept");
    containerd.remove("long");
    before.assert_same(containerd.host());
}

fn exec_that_cannot_start_leaves_the_container_alone(containerd: &mut Containerd) {
    containerd.run_detached("long", &["sleep", "1000"]);
    let error = containerd.exec("long", "bad", &["/no/such/program"]).err();
    assert!(error.contains("/no/such/program"), "{error}");
    containerd.exec("long", "good", &["true"]).ok();
    containerd.remove("long");
}

fn ten_execs_at_once(containerd: &mut Containerd) {
    let events = containerd.events();
    containerd.run_detached("long", &["sleep", "1000"]);
    let containerd = &*containerd;
    thread::scope(|scope| {
        for number in 0..10 {
            scope.spawn(move || {
                let name = format!("exec{number}");
                let script = format!("echo {number}; exit {number}");
                let output = containerd.exec("long", &name, &["sh", "-c", &script]);
                assert_eq!(output.code, number, "{}", output.stderr);
                assert_eq!(output.stdout, format!("{number}\n"));
            });
        }
    });
    for number in 0..10 {
        let name = format!("exec{number}");
        let exit = events.wait_where(&format!("exit of {name}"), |event| {
            event.topic == "/tasks/exit" && event.is_of("long") && event.process() == name
        });
        assert_eq!(exit.exit_status(), number);
    }
    containerd.remove("long");
}

fn missing_program_is_named(containerd: &mut Containerd) {
    let before = containerd.inventory();
    let error = containerd.run("missing", &["/no/such/program"]).err();
    assert!(error.contains("/no/such/program"), "{error}");
    before.assert_same(containerd.host());
}

fn terminal_has_size_and_interrupt(containerd: &mut Containerd) {
    let before = containerd.inventory();
    // The size is set after the start, so it is waited for. The pause before the exit:
    // when the leader of a session ends, the kernel hangs its terminal up and may drop
    // what was written last, with every runtime.
    let script = "trap 'trap \"\" INT; echo interrupted; sleep 0.3; exit 5' INT; \
                  until [ \"$(stty size)\" = '33 99' ]; do sleep 0.1; done; \
                  echo ready; while :; do sleep 0.1; done";
    let ctr = containerd.run_command(&["--rm", "--tty"], "tty", &["sh", "-c", script]);
    // `script` gives ctr a terminal of its own; what is inside the quotes runs in it.
    let line = format!("stty rows 33 cols 99; exec {}", shell_line(&ctr));
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut terminal = Process::spawn(&mut command);
    let mut input = terminal.child().stdin.take().expect("it is piped");
    let mut output = terminal.child().stdout.take().expect("it is piped");
    let reader = thread::spawn(move || {
        let mut seen = String::new();
        let mut buffer = [0; 1024];
        let mut typed = false;
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
            // Once: with each ^C the terminal drops what nobody has read yet.
            if seen.contains("ready") && !typed {
                input.write_all(b"\x03").expect("type ^C");
                typed = true;
            }
        }
        seen
    });
    let code = terminal.wait(wait::LIMIT);
    let seen = reader.join().expect("the reader of the terminal");
    assert!(seen.contains("interrupted"), "{seen:?}");
    assert_eq!(code, 5, "{seen:?}");
    before.assert_same(containerd.host());
}

fn kill_then_kill_again(containerd: &mut Containerd) {
    let events = containerd.events();
    let script = "trap 'exit 7' TERM; : >/tmp/ready; while :; do sleep 0.1; done";
    containerd.run_detached("killed", &["sh", "-c", script]);
    let mut looks = 0;
    wait::until("the trap to be set", || {
        looks += 1;
        let look = containerd.exec("killed", &format!("look{looks}"), &["ls", "/tmp/ready"]);
        look.code == 0
    });
    let signal = ["tasks", "kill", "--signal", "SIGTERM", "killed"];
    containerd.ctr(&signal).ok();
    containerd.until_task("killed", "STOPPED");
    let exit = events.wait_where("exit of init", |event| {
        event.topic == "/tasks/exit" && event.process() == "killed"
    });
    assert_eq!(exit.exit_status(), 7);
    // That the code is NotFound is the contract's test; ctr shows the text alone.
    containerd.ctr(&["tasks", "kill", "killed"]).err();
    containerd.remove("killed");

    containerd.run_detached("killed-hard", &["sleep", "1000"]);
    let kill = [
        "tasks",
        "kill",
        "--all",
        "--signal",
        "SIGKILL",
        "killed-hard",
    ];
    containerd.ctr(&kill).ok();
    assert_eq!(events.wait_for("exit", "killed-hard").exit_status(), 137);
    containerd.remove("killed-hard");
}

fn pids_are_those_of_the_host(containerd: &mut Containerd) {
    containerd.run_detached("listed", &["sleep", "1000"]);
    let (_, init) = containerd.task("listed").expect("the task is there");
    let listing = containerd.ctr(&["tasks", "ps", "listed"]).ok();
    let pids: Vec<u32> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    assert!(pids.contains(&init), "{init} is not in {listing}");
    let there = process::descendants();
    for pid in pids {
        assert!(
            there.iter().any(|process| process.pid == pid),
            "{pid}: {listing}"
        );
    }
    containerd.remove("listed");
}

fn pause_and_resume(containerd: &mut Containerd) {
    let events = containerd.events();
    containerd.run_detached("paused", &["sleep", "1000"]);
    containerd.ctr(&["tasks", "pause", "paused"]).ok();
    containerd.until_task("paused", "PAUSED");
    events.wait_for("paused", "paused");
    containerd.ctr(&["tasks", "resume", "paused"]).ok();
    containerd.until_task("paused", "RUNNING");
    events.wait_for("resumed", "paused");
    containerd.exec("paused", "after", &["true"]).ok();

    // A paused container can be killed and removed.
    containerd.ctr(&["tasks", "pause", "paused"]).ok();
    containerd.remove("paused");
}

fn order_of_events(containerd: &mut Containerd) {
    if !tools::is_rampart() && containerd.version() == Version::V2_4 {
        return integration::skip("runc's shim of 2.4 ends before it has sent its last events");
    }
    let events = containerd.events();
    containerd.run("plain", &["sh", "-c", "exit 4"]);
    events.wait_for("delete", "plain");
    assert_eq!(
        events.topics("plain"),
        ["create", "start", "exit", "delete"]
    );
    for topic in ["exit", "delete"] {
        assert_eq!(events.wait_for(topic, "plain").exit_status(), 4, "{topic}");
    }

    containerd.run_detached("execs", &["sleep", "1000"]);
    containerd.exec("execs", "one", &["sh", "-c", "exit 6"]);
    containerd.remove("execs");
    events.wait_for("delete", "execs");
    let topics = events.topics("execs");
    let expected = [
        "create",
        "start",
        "exec-added",
        "exec-started",
        "exit",
        "exit",
        "delete",
    ];
    assert_eq!(topics, expected);
    let exits: Vec<_> = events
        .of("execs")
        .into_iter()
        .filter(|event| event.topic == "/tasks/exit")
        .map(|event| (event.process().to_owned(), event.exit_status()))
        .collect();
    assert_eq!(exits, [("one".to_owned(), 6), ("execs".to_owned(), 137)]);
}

fn fifty_short_containers(containerd: &mut Containerd) {
    let before = containerd.inventory();
    for number in 0..50 {
        let script = format!("exit {number}");
        let output = containerd.run(&format!("short{number}"), &["sh", "-c", &script]);
        assert_eq!(output.code, number, "{}", output.stderr);
    }
    before.assert_same(containerd.host());
}

fn a_gibibyte_through_the_pipe(containerd: &mut Containerd) {
    const SIZE: usize = 1 << 30;
    let size = SIZE.to_string();
    let mut command =
        containerd.run_command(&["--rm"], "pours", &["head", "-c", &size, "/dev/zero"]);
    let mut run = Process::spawn(command.stdout(Stdio::piped()));
    let mut output = run.child().stdout.take().expect("it is piped");
    let mut buffer = vec![0; 1 << 20];
    let (mut read, mut peak) = (0, 0);
    while let count @ 1.. = output.read(&mut buffer).expect("read from ctr") {
        read += count;
        if peak == 0 && read > SIZE / 2 {
            peak = containerd
                .shims("pours")
                .into_iter()
                .map(peak_memory)
                .max()
                .unwrap_or(0);
        }
    }
    assert_eq!(run.wait(wait::LIMIT), 0);
    assert_eq!(read, SIZE);
    assert!(peak > 0, "the shim was not found");
    assert!(
        peak < 64 << 10,
        "the shim took {peak} KiB to hand on {read} bytes"
    );
}

fn reader_that_stops_and_goes_on(containerd: &mut Containerd) {
    const SIZE: usize = 4 << 20;
    let script = format!("head -c {SIZE} /dev/zero; exit 8");
    let mut command = containerd.run_command(&["--rm"], "blocked", &["sh", "-c", &script]);
    let mut run = Process::spawn(command.stdout(Stdio::piped()));
    let mut output = run.child().stdout.take().expect("it is piped");
    containerd.until_task("blocked", "RUNNING");
    // Nothing is read yet; the shim answers all the same.
    containerd.exec("blocked", "meanwhile", &["true"]).ok();
    containerd.ctr(&["tasks", "ps", "blocked"]).ok();
    assert!(
        run.try_wait().is_none(),
        "it ended before its output was read"
    );
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).expect("read from ctr");
    assert_eq!(bytes.len(), SIZE);
    assert_eq!(run.wait(wait::LIMIT), 8);
}

fn background_child_does_not_hold_the_exec(containerd: &mut Containerd) {
    if !tools::is_rampart() && containerd.version() == Version::V2_4 {
        return integration::skip("runc's shim of 2.4 keeps the exec's output open");
    }
    containerd.run_detached("long", &["sleep", "1000"]);
    let script = "sleep 900 & echo started; exit 3";
    let output = containerd.exec("long", "leaves", &["sh", "-c", script]);
    assert_eq!((output.code, output.stdout.as_str()), (3, "started\n"));
    containerd.remove("long");
}

fn containers_beside_each_other(containerd: &mut Containerd) {
    let before = containerd.inventory();
    for name in ["one", "two", "three"] {
        containerd.run_detached(name, &["sleep", "1000"]);
    }
    containerd.remove("two");
    for name in ["one", "three"] {
        let output = containerd.exec(name, "still", &["echo", name]);
        assert_eq!(output.ok(), name);
        containerd.remove(name);
    }
    before.assert_same(containerd.host());
}

/// The inventories of the other tests begin after a first container; here is what
/// that one leaves.
fn the_very_first_container_leaves_nothing(containerd: &mut Containerd) {
    if !tools::is_rampart() {
        return integration::skip("runc's shim leaves the namespace's cgroups");
    }
    let before = integration::inventory::Inventory::take(containerd.host());
    containerd.run("first", &["true"]).ok();
    let namespace = containerd.namespace().to_owned();
    before.assert_same_but(containerd.host(), |line| {
        // Made once: the fifos' directory by ctr, the socket's by the shim, a
        // namespace's directory by containerd.
        [
            "/run/containerd",
            "/run/containerd/fifo",
            "/run/containerd/s",
            "/run/rampart",
        ]
        .iter()
        .any(|made| line == format!("file {made}"))
            || (line.starts_with("file /tmp/") && line.ends_with(&namespace))
    });
    assert_eq!(cgroups::named(&namespace), Vec::<std::path::PathBuf>::new());
}

/// The highest resident memory of a process so far, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmHWM:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// The command as a line for a shell.
fn shell_line(command: &Command) -> String {
    let quote = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy();
        format!("'{}'", word.replace('\'', r"'\''"))
    };
    let environment = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={}", key.display(), quote(value?))));
    let words = command.get_args().map(quote);
    std::iter::once("env".to_owned())
        .chain(environment)
        .chain([quote(command.get_program())])
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}
