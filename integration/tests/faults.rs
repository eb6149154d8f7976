//! What becomes of a container when something fails beside it: one table, a row
//! for each victim, fault and moment, with what must be seen afterwards.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use integration::containerd::{Containerd, Version};
use integration::events::Events;
use integration::faults::{self, FaultyRunsc, ORDERED_FAILURE, Order, STATE};
use integration::host::Host;
use integration::inventory::Inventory;
use integration::process::{self, Output, Process};
use integration::setup::Setup;
use integration::shim::{Input, TaskClient};
use integration::wire::TASK_V3;
use integration::{bundle, skip, tools, wait};
use nix::sys::signal::Signal;
use protos::protobuf::Message as _;
use protos::protobuf::well_known_types::any::Any;
use protos::task;
use serde_json::json;

use Fault::*;
use Left::*;
use Moment::*;
use Told::*;
use Victim::*;

/// What is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Shim,
    Sentry,
    Gofer,
    Daemon,
    Runsc,
}

/// By what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL; for containerd with a new start afterwards.
    Killed,
    /// SIGSTOP, for good.
    Stopped,
    /// SIGSTOP, and SIGCONT a second later; a runsc that starts late.
    Slow,
    /// A command that ends with an error.
    Fails,
    /// No room where the shim keeps its state.
    FullDisk,
    /// `/run` is mounted read-only.
    ReadOnlyRun,
    /// No descriptor is left.
    NoDescriptors,
}

/// When: during a call of containerd's for `Create`, `Start` and `Exec`, just
/// before it for `Stop` and `Delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Create,
    Start,
    Running,
    Exec,
    Stop,
    Delete,
}

/// What the client of that call is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// There was no call.
    Nothing,
    /// That it is done.
    Done,
    /// The status of an exec.
    Ends(i32),
    /// An error that holds this text.
    Refused(&'static str),
}

/// What containerd says of the task afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Lives,
    Ended,
    Gone,
}

/// A client's call that is under way.
type Call = JoinHandle<Output>;

struct Row {
    victim: Victim,
    fault: Fault,
    moment: Moment,
    told: Told,
    /// The events of the task, in order, without `/tasks/`.
    events: &'static [&'static str],
    /// What the exit event says, if there is one.
    status: Option<u64>,
    left: Left,
    /// Seconds by which the client has been told and all this can be seen, on a
    /// machine with other work to do: a bound against hanging, no measurement.
    bound: u64,
}

const STARTED: &[&str] = &["create", "start"];
const EXECUTED: &[&str] = &["create", "start", "exec-added", "exec-started", "exit"];
const BOTH_ENDED: &[&str] = &[
    "create",
    "start",
    "exec-added",
    "exec-started",
    "exit",
    "exit",
];
const STOPPED: &[&str] = &["create", "start", "exit"];
const DELETED: &[&str] = &["create", "start", "exit", "delete"];
/// A container whose start failed counts as ended.
const FAILED: &[&str] = &["create", "exit"];

/// Not in the table, because there is nothing to see: what a shim or a daemon that
/// stays stopped does (nothing; its callers' deadlines end the calls); faults of a
/// disk or of descriptors that another program than the shim has; a runsc at
/// `Running`, `Exec` and `Stop`, which call none; a sentry or gofer at `Delete`,
/// which has ended by then; a gofer that stands still, which the sentry does not
/// ask (it opens files by itself).
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // victim, fault, moment, told, events, status, left, bound
    row(Shim, Killed, Create, Refused("ttrpc: closed"), &[], None, Gone, 30),
    row(Shim, Killed, Start, Refused("ttrpc: closed"), &["create", "exit", "delete"], Some(137), Gone, 30),
    row(Shim, Killed, Running, Nothing, &["create", "start", "exit", "delete"], Some(137), Gone, 30),
    row(Shim, Killed, Exec, Refused("ttrpc: closed"), &["create", "start", "exec-added", "exec-started", "exit", "delete"], Some(137), Gone, 30),
    row(Shim, Killed, Stop, Refused(""), &["create", "start", "exit", "delete"], Some(137), Gone, 30),
    // containerd tells the end of what it takes for running once more.
    row(Shim, Killed, Delete, Refused(""), &["create", "start", "exit", "exit", "delete"], Some(137), Gone, 30),
    row(Shim, Slow, Create, Done, STARTED, None, Lives, 30),
    row(Shim, Slow, Exec, Ends(5), EXECUTED, None, Lives, 30),
    row(Shim, Slow, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Shim, Slow, Delete, Done, DELETED, Some(137), Gone, 30),
    row(Shim, FullDisk, Create, Refused("No space left on device"), &[], None, Gone, 30),
    row(Shim, FullDisk, Start, Done, STARTED, None, Lives, 30),
    row(Shim, FullDisk, Exec, Ends(5), EXECUTED, None, Lives, 30),
    row(Shim, FullDisk, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Shim, FullDisk, Delete, Done, DELETED, Some(137), Gone, 30),
    row(Shim, ReadOnlyRun, Create, Refused("ead-only file system"), &[], None, Gone, 30),
    row(Shim, ReadOnlyRun, Start, Refused("read-only file system"), FAILED, Some(128), Ended, 30),
    row(Shim, ReadOnlyRun, Exec, Ends(5), EXECUTED, None, Lives, 30),
    row(Shim, ReadOnlyRun, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Shim, ReadOnlyRun, Delete, Refused("Read-only file system"), STOPPED, Some(137), Ended, 30),
    row(Shim, NoDescriptors, Create, Refused("Too many open files"), &[], None, Gone, 30),
    row(Shim, NoDescriptors, Start, Done, STARTED, None, Lives, 30),
    row(Shim, NoDescriptors, Exec, Refused("Too many open files"), &["create", "start", "exec-added"], None, Lives, 30),
    row(Shim, NoDescriptors, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Shim, NoDescriptors, Delete, Refused("Too many open files"), STOPPED, Some(137), Ended, 30),
    row(Sentry, Killed, Create, Refused("the sentry ended at once"), &[], None, Gone, 30),
    row(Sentry, Killed, Start, Refused("in state stopped"), FAILED, Some(137), Ended, 30),
    row(Sentry, Killed, Running, Nothing, STOPPED, Some(137), Ended, 30),
    row(Sentry, Killed, Exec, Ends(137), BOTH_ENDED, Some(137), Ended, 30),
    row(Sentry, Killed, Stop, Refused(""), STOPPED, Some(137), Ended, 30),
    row(Sentry, Stopped, Exec, Refused("is the sentry stopped"), &["create", "start", "exec-added"], None, Lives, 30),
    row(Sentry, Stopped, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Sentry, Slow, Start, Done, STARTED, None, Lives, 30),
    row(Sentry, Slow, Exec, Ends(5), EXECUTED, None, Lives, 30),
    row(Sentry, Slow, Stop, Done, STOPPED, Some(137), Ended, 30),
    row(Gofer, Killed, Create, Refused("runsc start"), FAILED, Some(128), Ended, 30),
    row(Gofer, Killed, Start, Refused("runsc start"), FAILED, Some(128), Ended, 30),
    row(Gofer, Killed, Running, Nothing, STOPPED, Some(137), Ended, 30),
    row(Gofer, Killed, Exec, Ends(137), BOTH_ENDED, Some(137), Ended, 30),
    row(Gofer, Slow, Start, Done, STARTED, None, Lives, 30),
    row(Daemon, Slow, Exec, Ends(5), EXECUTED, None, Lives, 30),
    row(Daemon, Slow, Stop, Done, STOPPED, Some(137), Ended, 30),
    // Who follows the events of a daemon ends with it: none are compared.
    row(Daemon, Killed, Create, Refused(""), &[], None, Lives, 30),
    row(Daemon, Killed, Start, Refused(""), &[], None, Lives, 30),
    row(Daemon, Killed, Exec, Refused(""), &[], None, Lives, 30),
    row(Runsc, Fails, Create, Refused(ORDERED_FAILURE), &[], None, Gone, 30),
    row(Runsc, Fails, Start, Refused(ORDERED_FAILURE), FAILED, Some(128), Ended, 30),
    row(Runsc, Fails, Delete, Refused(ORDERED_FAILURE), STOPPED, Some(137), Ended, 30),
    row(Runsc, Killed, Create, Refused("killed by signal 9"), &[], None, Gone, 30),
    row(Runsc, Killed, Start, Refused("killed by signal 9"), FAILED, Some(128), Ended, 30),
    row(Runsc, Killed, Delete, Refused("killed by signal 9"), STOPPED, Some(137), Ended, 30),
    row(Runsc, Slow, Create, Done, STARTED, None, Lives, 30),
    row(Runsc, Slow, Start, Done, STARTED, None, Lives, 30),
    row(Runsc, Slow, Delete, Done, DELETED, Some(137), Gone, 30),
    // A minute is what the shim gives a command. One row stands for all three.
    row(Runsc, Stopped, Create, Refused("did not end within 60s"), &[], None, Gone, 100),
];

#[allow(clippy::too_many_arguments, reason = "so that a row is one line")]
const fn row(
    victim: Victim,
    fault: Fault,
    moment: Moment,
    told: Told,
    events: &'static [&'static str],
    status: Option<u64>,
    left: Left,
    bound: u64,
) -> Row {
    Row {
        victim,
        fault,
        moment,
        told,
        events,
        status,
        left,
        bound,
    }
}

#[test]
fn every_row_on_containerd_2_4() {
    every(Version::V2_4, |_| true);
}

#[test]
fn killed_processes_on_containerd_1_6() {
    every(Version::V1_6, |row| {
        row.fault == Killed && matches!(row.victim, Shim | Sentry)
    });
}

/// A container of a pod that could not be asked for its end, for want of a
/// descriptor, was taken for dead.
#[test]
fn who_cannot_be_asked_is_not_dead() {
    let Some(setup) = Setup::new() else { return };
    let runsc = FaultyRunsc::new();
    let shim = setup.shim("first", &[]);
    let reply = shim.start(&Input::Bootstrap);
    let mut pod = shim.connect(&reply).of("pod");
    let mut member = shim.connect(&reply).of("member");
    create_in_pod(&setup.host, &runsc, &mut pod, "pod", "sandbox");
    pod.start("").expect("start the sandbox");
    create_in_pod(&setup.host, &runsc, &mut member, "member", "container");
    let pid = pod.identify().expect("it serves").shim_pid;

    runsc.order("start", Order::HoldBefore);
    thread::scope(|scope| {
        let started = scope.spawn(|| member.start(""));
        runsc.until_reached();
        faults::refuse_descriptors(pid);
        runsc.go();
        let started = started.join().expect("it is answered");
        started.expect("runsc ran already");
    });
    let state = member.state("").expect("it is there").status.enum_value();
    assert_eq!(state, Ok(task::Status::RUNNING));
    faults::free_descriptors(pid);
    member.kill("", 9).expect("it lives, so it can be killed");
    assert_eq!(member.wait("").expect("its end").exit_status, 137);
    setup.mock.wait_for("exit", "member");
    assert_eq!(setup.mock.topics("member"), STOPPED);
}

/// A containerd that was restarted during a Create asks for the processes of the
/// task at once; it was told that there is no such task, and deleted it.
#[test]
fn who_is_being_created_is_there() {
    let Some(setup) = Setup::new() else { return };
    let runsc = FaultyRunsc::new();
    let shim = setup.shim("first", &[]);
    let reply = shim.start(&Input::Bootstrap);
    let mut pod = shim.connect(&reply).of("pod");
    let mut restarted = shim.connect(&reply).of("pod");

    runsc.order("create", Order::HoldAfter);
    thread::scope(|scope| {
        scope.spawn(|| create_in_pod(&setup.host, &runsc, &mut pod, "pod", "sandbox"));
        runsc.until_reached();
        // It takes longer than containerd waits for an answer.
        let inside = restarted.pids().expect("it will be there");
        assert_eq!(inside.processes.len(), 1);
        let request = task::PidsRequest {
            id: "pod".to_owned(),
            ..Default::default()
        };
        let asked = restarted.raw().send(TASK_V3, "Pids", &request);
        let asked = asked.expect("the shim serves");
        // By the time this is answered, too early an answer to the other is there.
        restarted.identify().expect("it serves");
        runsc.go();
        let answer = restarted.raw().answer(asked);
        let answer = answer.expect("it is answered, once the task is there");
        assert_eq!(answer.status().code() as i32, 0, "{}", answer.status());
        let inside = task::PidsResponse::parse_from_bytes(&answer.payload);
        assert_eq!(inside.expect("a list").processes.len(), 1);
    });
    pod.delete("").expect("it can be removed");
}

/// containerd was ended during `start`, and `start` with it: a shim that nobody has
/// heard of left its socket.
#[test]
fn a_shim_whose_start_was_killed_leaves_no_socket() {
    let Some(setup) = Setup::new() else { return };
    let shim = setup.shim("c", &["true"]);
    let path = setup.host.directory().join("s");
    let listener = UnixListener::bind(&path).expect("bind, as start does");
    let (start, theirs) = std::io::pipe().expect("make start's pipe");
    drop(start);
    let mut command = shim.command(&["-socket"]);
    command
        .arg(&path)
        .arg("serve")
        .stdin(OwnedFd::from(listener))
        .stdout(theirs);
    Process::spawn(&mut command).wait(wait::LIMIT);
    assert!(!path.exists());
}

/// A Pause whose caller died while the sentry was about it: the sandbox stood still,
/// the task counted as running, and nobody could resume it.
#[test]
fn a_pause_outlives_its_caller() {
    let Some(setup) = Setup::new() else { return };
    let (shim, mut restarted, reply) = setup.running("c", &["sleep", "1000"]);
    let sentry = restarted.state("").expect("it is there").pid;

    let mut caller = shim.connect(&reply);
    process::signal(sentry, Signal::SIGSTOP);
    let request = task::PauseRequest {
        id: "c".to_owned(),
        ..Default::default()
    };
    let asked = caller.raw().send(TASK_V3, "Pause", &request);
    asked.expect("the shim serves");
    // By the time this is answered, the other is under way.
    caller.identify().expect("it serves");
    drop(caller);
    restarted.identify().expect("it serves still");
    process::signal(sentry, Signal::SIGCONT);

    wait::until("the task to be paused", || {
        let state = restarted.state("").expect("it is there");
        state.status.enum_value() == Ok(task::Status::PAUSED)
    });
    let request = task::ResumeRequest {
        id: "c".to_owned(),
        ..Default::default()
    };
    let resumed = restarted.raw().call(TASK_V3, "Resume", &request);
    let _: task::Empty = resumed.expect("it can be resumed");
    restarted.exec("after", &["true"]).expect("prepare an exec");
    restarted.start("after").expect("it runs");
    let end = restarted.wait("after").expect("its end");
    assert_eq!(end.exit_status, 0);
    restarted.kill("", 9).expect("it lives");
    restarted.wait("").expect("its end");
    restarted.delete("").expect("it can be removed");
}

/// A containerd that was restarted during the start of a pod's container kills what
/// is created and not started. It waits for the end of its output, and has given the
/// container up if that took 10 s.
#[test]
fn a_container_whose_start_a_restart_interrupts_is_as_created() {
    if !tools::is_rampart() {
        return skip("these are Rampart's own promises");
    }
    for version in [Version::V1_6, Version::V2_4] {
        let runsc = FaultyRunsc::new();
        let settings = format!("runsc = {:?}\n", runsc.path());
        let Some(mut containerd) = Containerd::with_settings(version, &settings) else {
            continue;
        };
        let pod = containerd.run_pod("pod", &json!({}));
        let id = containerd.create_in_pod(&pod, "late", &["sleep", "1000"], &json!({}));
        runsc.order("create", Order::HoldAfter);
        let mut start = containerd.crictl_command(&["start", &id]);
        let client = thread::spawn(move || process::run(&mut start, wait::LIMIT));
        runsc.until_reached();
        containerd.kill9();
        runsc.go();
        containerd.launch();
        client.join().expect("the client ends").err();
        runsc.relent();
        wait::until("the pods to be known again", || {
            containerd.crictl(&["pods"]).code == 0
        });
        let said = containerd.crictl(&["inspect", &id]).ok();
        assert!(said.contains("CONTAINER_CREATED"), "{said}");
        assert_eq!(containerd.shims(&pod).len(), 1, "the pod lives");
        containerd.remove_pod(&pod);
    }
}

/// Creates the container `id` of the pod `pod` with a `runsc` that has orders.
#[track_caller]
fn create_in_pod(host: &Host, runsc: &FaultyRunsc, client: &mut TaskClient, id: &str, kind: &str) {
    let annotations = json!({
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "pod",
    });
    let more = [("annotations", annotations)];
    let bundle = bundle::make(host, host.name(), id, &["sleep", "1000"], &more);
    let options = protos::runtimeoptions::Options {
        config_body: format!("runsc = {:?}", runsc.path()).into_bytes(),
        ..Default::default()
    };
    let options = Any {
        type_url: "runtimeoptions.v1.Options".to_owned(),
        value: options.write_to_bytes().expect("they are complete"),
        ..Any::default()
    };
    let request = task::CreateTaskRequest {
        id: id.to_owned(),
        bundle: bundle.to_string_lossy().into_owned(),
        options: Some(options).into(),
        ..Default::default()
    };
    let created = client.raw().call(TASK_V3, "Create", &request);
    let _: task::CreateTaskResponse = created.expect("create the container");
}

/// Runs the rows that `chosen` picks, all of them, and then tells which were not
/// as they must be.
fn every(version: Version, chosen: fn(&Row) -> bool) {
    if !tools::is_rampart() {
        return skip("these are Rampart's own promises");
    }
    let runsc = FaultyRunsc::new();
    let settings = format!("runsc = {:?}\n", runsc.path());
    let Some(mut containerd) = Containerd::with_settings(version, &settings) else {
        return;
    };
    containerd.inventory(); // what the first container of a machine makes
    let rows: Vec<_> = ROWS.iter().filter(|row| chosen(row)).collect();
    let mut wrong = Vec::new();
    let mut longest = Duration::ZERO;
    for (number, &row) in rows.iter().enumerate() {
        let name = format!("{:?} {:?} at {:?}", row.victim, row.fault, row.moment);
        let mut trial = Trial {
            containerd: &mut containerd,
            runsc: &runsc,
            row,
            id: &format!("row{number}"),
            waker: None,
        };
        match catch_unwind(AssertUnwindSafe(|| trial.run())) {
            Ok(took) => {
                longest = longest.max(took);
                eprintln!("{name}: as it must be, after {} ms", took.as_millis());
            }
            Err(_) => wrong.push(name),
        }
    }
    eprintln!(
        "{} of {} faults survived; the last right answer came after {} ms",
        rows.len() - wrong.len(),
        rows.len(),
        longest.as_millis()
    );
    assert!(wrong.is_empty(), "not as they must be: {wrong:#?}");
}

/// One row, tried out.
struct Trial<'a> {
    containerd: &'a mut Containerd,
    runsc: &'a FaultyRunsc,
    row: &'a Row,
    id: &'a str,
    /// Who lets a slow victim go on.
    waker: Option<JoinHandle<()>>,
}

/// What a row is about, as it was seen.
#[derive(Debug, PartialEq)]
struct Seen {
    events: Vec<String>,
    status: Option<u64>,
    left: Left,
}

impl Trial<'_> {
    /// How long it took from the fault to the last right answer.
    fn run(&mut self) -> Duration {
        let before = Inventory::take(self.containerd.host());
        if self.row.fault == FullDisk {
            faults::mount_small_disk(self.containerd.host(), Path::new(STATE));
        }
        let events = self.containerd.events();
        let mut call = self.come_to_the_moment(&events);
        let begin = Instant::now();
        let victim = self.strike();
        self.runsc.go();
        if call.is_none() {
            call = self.next_call();
        }
        let told = call.map(|call| call.join().expect("the client ends in time"));
        let seen = self.observe(&events);
        let took = begin.elapsed();
        drop(events);
        self.undo(victim);
        self.tidy();
        before.assert_same_but(self.containerd.host(), beyond_the_shim);
        self.judge(told.as_ref(), &seen);
        took
    }

    /// Brings the container to where it is hit, with the client's call under way
    /// if the hit is during one.
    fn come_to_the_moment(&self, events: &Events) -> Option<Call> {
        let Row { victim, moment, .. } = *self.row;
        if matches!(moment, Create | Start) {
            let verb = if moment == Create { "create" } else { "start" };
            self.runsc.order(verb, self.order());
            let call = self.call(self.run_command());
            if victim != Runsc {
                self.runsc.until_reached();
            }
            return Some(call);
        }
        if victim == Runsc {
            self.run_pod();
        } else {
            process::run(&mut self.run_command(), wait::LIMIT).ok();
        }
        match moment {
            Exec if self.row.fault == Killed => {
                let call = self.call(self.exec_command("sleep 1000"));
                events.wait_for("exec-started", self.id);
                return Some(call);
            }
            Delete => {
                self.containerd
                    .ctr(&["tasks", "kill", "-s", "KILL", self.id])
                    .ok();
                self.containerd.until_task(self.id, "STOPPED");
                if victim == Runsc {
                    self.runsc.order("delete", self.order());
                }
            }
            _ => {}
        }
        None
    }

    /// What runsc has to do when the container is hit during its call: before it
    /// has started the program, or after it has made the sandbox.
    fn order(&self) -> Order {
        match (self.row.victim, self.row.fault, self.row.moment) {
            (Runsc, Fails, _) => Order::Fail,
            (Runsc, Killed, _) => Order::Die,
            (Runsc, Slow, _) => Order::Dawdle,
            (Runsc, _, _) => Order::Stand,
            (_, _, Create) => Order::HoldAfter,
            _ => Order::HoldBefore,
        }
    }

    /// Does it, and answers whom a signal went to.
    fn strike(&mut self) -> Option<u32> {
        let host = self.containerd.host();
        match self.row.fault {
            _ if self.row.victim == Runsc => return None,
            Fails => unreachable!("only runsc is told to fail"),
            FullDisk => faults::fill_disk(host, Path::new(STATE), 0),
            ReadOnlyRun => faults::read_only_run(host, true),
            NoDescriptors => {
                let shim = self.victim();
                faults::refuse_descriptors(shim);
                return Some(shim);
            }
            Killed if self.row.victim == Daemon => self.containerd.kill9(),
            Killed => {
                let victim = self.victim();
                process::signal(victim, Signal::SIGKILL);
                wait::until("the victim to be reaped", || {
                    process::descendants().iter().all(|one| one.pid != victim)
                });
            }
            Stopped => {
                let victim = self.victim();
                process::signal(victim, Signal::SIGSTOP);
                return Some(victim);
            }
            Slow => {
                let victim = self.victim();
                process::signal(victim, Signal::SIGSTOP);
                self.waker = Some(thread::spawn(move || {
                    thread::sleep(SLOWNESS);
                    if process::is_alive(victim) {
                        process::signal(victim, Signal::SIGCONT);
                    }
                }));
            }
        }
        None
    }

    fn victim(&self) -> u32 {
        let name = match self.row.victim {
            Daemon => return self.containerd.pid(),
            Shim => {
                let shims = self.containerd.shims(self.id);
                return *shims.first().expect("the shim runs");
            }
            Sentry | Runsc => "runsc-sandbox ",
            Gofer => "runsc-gofer ",
        };
        let state = format!("{STATE}/{}/{}", self.containerd.namespace(), self.id);
        let found = process::descendants()
            .into_iter()
            .find(|process| process.command.starts_with(name) && process.command.contains(&state));
        found
            .unwrap_or_else(|| panic!("no {name} of {} runs", self.id))
            .pid
    }

    /// The client's call that comes just after the fault.
    fn next_call(&self) -> Option<Call> {
        let tasks = |words: &[&str]| self.containerd.ctr_command(&[&["tasks"], words].concat());
        match self.row.moment {
            Create | Start | Running => None,
            Exec => Some(self.call(self.exec_command("exit 5"))),
            Stop => Some(self.call(tasks(&["kill", "-s", "KILL", self.id]))),
            Delete => Some(self.call(tasks(&["rm", self.id]))),
        }
    }

    fn call(&self, mut command: Command) -> Call {
        let bound = Duration::from_secs(self.row.bound);
        thread::spawn(move || process::run(&mut command, bound))
    }

    fn run_command(&self) -> Command {
        let options = ["--detach", "--null-io"];
        self.containerd
            .run_command(&options, self.id, &["sleep", "1000"])
    }

    fn exec_command(&self, script: &str) -> Command {
        // ctr's pipes have their place where it can be written.
        let pipes = self.containerd.host().directory().join("pipes");
        let mut command = self
            .containerd
            .ctr_command(&["tasks", "exec", "--fifo-dir"]);
        command
            .arg(pipes)
            .args(["--exec-id", "exec", self.id, "sh", "-c", script]);
        command
    }

    /// The container as a further one of a pod: only such a one is deleted by a
    /// call of runsc.
    fn run_pod(&self) {
        let pod = format!("pod-of-{}", self.id);
        for (id, kind) in [(pod.as_str(), "sandbox"), (self.id, "container")] {
            let kind = format!("io.kubernetes.cri.container-type={kind}");
            let sandbox = format!("io.kubernetes.cri.sandbox-id={pod}");
            let options = [
                "--detach",
                "--null-io",
                "--annotation",
                &kind,
                "--annotation",
                &sandbox,
            ];
            let mut command = self
                .containerd
                .run_command(&options, id, &["sleep", "1000"]);
            process::run(&mut command, wait::LIMIT).ok();
        }
    }

    /// What is seen once it is as it must be, or when the time is over.
    fn observe(&mut self, events: &Events) -> Seen {
        if self.daemon_is_killed() {
            self.containerd.launch();
        }
        let mut seen = self.look(events);
        wait::within(Duration::from_secs(self.row.bound), || {
            seen = self.look(events);
            self.is_right(&seen).then_some(())
        });
        seen
    }

    fn daemon_is_killed(&self) -> bool {
        (self.row.victim, self.row.fault) == (Daemon, Killed)
    }

    fn look(&self, events: &Events) -> Seen {
        let exit = events
            .of(self.id)
            .into_iter()
            .find(|event| event.topic == "/tasks/exit" && event.process() == self.id);
        Seen {
            events: events.topics(self.id),
            status: exit.map(|exit| exit.exit_status()),
            left: match self.containerd.task(self.id) {
                None => Gone,
                Some((state, _)) if state == "STOPPED" => Ended,
                Some(_) => Lives,
            },
        }
    }

    fn is_right(&self, seen: &Seen) -> bool {
        let Row {
            events,
            status,
            left,
            ..
        } = self.row;
        let events_right =
            self.daemon_is_killed() || (seen.events == *events && seen.status == *status);
        events_right && seen.left == *left
    }

    fn undo(&mut self, victim: Option<u32>) {
        if let Some(waker) = self.waker.take() {
            waker.join().expect("it lets the victim go on");
        }
        let host = self.containerd.host();
        self.runsc.relent();
        match (self.row.fault, victim) {
            (FullDisk, _) => faults::empty_disk(host, Path::new(STATE)),
            (ReadOnlyRun, _) => faults::read_only_run(host, false),
            (NoDescriptors, Some(shim)) if process::is_alive(shim) => {
                faults::free_descriptors(shim);
            }
            (Stopped, Some(victim)) if process::is_alive(victim) => {
                process::signal(victim, Signal::SIGCONT);
            }
            _ => {}
        }
    }

    /// Whatever it came to, it can be removed; and what could not be removed at
    /// its time goes with the next container of the same id.
    fn tidy(&self) {
        if self.row.left == Gone && matches!(self.row.fault, FullDisk | ReadOnlyRun) {
            self.containerd.ctr(&["containers", "rm", self.id]);
            process::run(&mut self.run_command(), wait::LIMIT).ok();
        }
        let pod = format!("pod-of-{}", self.id);
        for id in [self.id, &pod] {
            self.containerd.ctr(&["tasks", "rm", "--force", id]);
            // After a failed call ctr has removed it already.
            self.containerd.ctr(&["containers", "rm", id]);
        }
        if self.row.fault == FullDisk {
            wait::until("the shim to end", || {
                self.containerd.shims(self.id).is_empty()
            });
            faults::unmount_disk(self.containerd.host(), Path::new(STATE));
        }
    }

    fn judge(&self, told: Option<&Output>, seen: &Seen) {
        let told_right = match (self.row.told, told) {
            (Nothing, None) => true,
            (Done, Some(output)) => output.code == 0,
            (Ends(code), Some(output)) => output.code == code,
            (Refused(cause), Some(output)) => output.code != 0 && output.stderr.contains(cause),
            _ => false,
        };
        assert!(
            told_right && self.is_right(seen),
            "{seen:?}; the client: {told:?}"
        );
    }
}

/// How long something slow stands still.
const SLOWNESS: Duration = Duration::from_secs(1);

/// What is not held against the shim: the daemon is another process after a new
/// start, and a client that it left alone leaves its pipes.
fn beyond_the_shim(line: &str) -> bool {
    (line.starts_with("process ") && line.contains("/containerd --config "))
        || line.starts_with("file /run/containerd/fifo/")
}
