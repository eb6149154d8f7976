//! Where the processes of a pod are, with which limits, and what is left: on v1,
//! hybrid and v2, with and without systemd, for every form of cgroup path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::containerd::{Containerd, Version};
use integration::process::Process;
use integration::shim::TaskClient;
use integration::watch::{self, Watch};
use integration::{cgroups, on_each_containerd, process, skip, tools, wait};
use nix::sys::signal::Signal;
use serde_json::json;

on_each_containerd!(
    every_form_of_path,
    limit_from_above_is_the_guests,
    pod_in_a_directory_of_the_kubelet,
    pod_in_a_slice_of_the_kubelet,
    task_of_nomad,
    limits_are_those_of_the_unit_too,
    killed_sentry_and_killed_shim_leave_nothing,
    what_cannot_be_had_is_said_and_leaves_nothing,
    without_a_bus_nothing_runs_and_all_can_be_removed,
);

const MIB: u64 = 1 << 20;

/// How long a run may take: the test host of a busy machine needs minutes.
const PATIENCE: Duration = wait::LIMIT.saturating_mul(5);

fn every_form_of_path(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let name = &host.name;
    let forms = [
        (None, format!("/{name}/c0")),
        (Some(format!("/{name}/deep/er")), format!("/{name}/deep/er")),
        (
            Some(format!("system.slice:docker:{name}")),
            format!("/system.slice/docker-{name}.scope"),
        ),
        (
            Some(format!("{name}-a.slice:p:n")),
            format!(
                "/{0}.slice/{name}.slice/{name}-a.slice/p-n.scope",
                name.split('-').next().unwrap_or_default()
            ),
        ),
    ];
    // A directory like any other where no systemd keeps processes out of slices.
    let plain = host.plain();
    let inner = (
        Some(format!("{plain}.slice:p:{plain}_in.slice")),
        format!("/{plain}.slice/{plain}_in.slice"),
    );
    let inner = Some(inner).filter(|_| !cgroups::has_systemd());
    let forms = forms.into_iter().chain(inner);
    for (number, (given, place)) in forms.enumerate() {
        let place = &place;
        let id = format!("c{number}");
        let before = host.listing();
        let watch = Watch::over(place);
        let limit = (100 * MIB).to_string();
        let mut options = vec!["--detach", "--memory-limit", &limit];
        if let Some(given) = &given {
            options.extend(["--cgroup", given]);
        }
        host.run(&options, &id, &["sleep", "1000"]).ok();
        let total = host.guest_memory(&id);
        assert!(total <= 100 * MIB && total > 90 * MIB, "{total} bytes");
        host.assert_inside(place);
        assert_eq!(host.memory_limit(place), (100 * MIB).to_string());
        containerd.remove(&id);
        host.assert_programs(watch);
        host.assert_same(&before);
    }
}

/// A sandbox sizes itself by its own cgroup, which nobody has limited here.
fn limit_from_above_is_the_guests(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let parent = format!("/{}", host.name);
    let directory = cgroups::directory("memory", &parent);
    fs::create_dir(&directory).expect("make a cgroup");
    let file = match cgroups::is_unified() {
        true => "memory.max",
        false => "memory.limit_in_bytes",
    };
    fs::write(directory.join(file), (80 * MIB).to_string()).expect("limit it");
    let before = host.listing();
    let place = format!("{parent}/c");
    host.run(&["--detach", "--cgroup", &place], "c", &["sleep", "1000"])
        .ok();
    assert_eq!(host.memory_limit(&place), (80 * MIB).to_string());
    let total = host.guest_memory("c");
    assert!(total <= 80 * MIB, "{total} bytes");
    host.assert_inside(&place);
    containerd.remove("c");
    host.assert_same(&before);
    fs::remove_dir(&directory).expect("nothing is in it");
}

fn pod_in_a_directory_of_the_kubelet(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let parent = format!("/kubepods/burstable/pod{}", host.name);
    let before = host.listing();
    // Nobody says what the pod gets: its containers together, and the sandbox.
    let watch = Watch::over(&parent);
    let pod = containerd.run_pod("sums", &json!({ "linux": { "cgroup_parent": parent } }));
    let home = format!("{parent}/{pod}");
    let limit = |mib: u64| json!({"linux": {"resources": {"memory_limit_in_bytes": mib * MIB}}});
    let one = containerd.run_in_pod(&pod, "one", &["sleep", "1000"], &limit(64));
    let two = containerd.run_in_pod(&pod, "two", &["sleep", "1000"], &limit(32));
    host.assert_inside(&home);
    host.assert_empty(&format!("{parent}/{one}"));
    assert_eq!(host.memory_limit(&home), (128 * MIB).to_string());
    assert_eq!(
        host.memory_limit(&format!("{parent}/{one}")),
        (64 * MIB).to_string()
    );
    assert_eq!(
        host.memory_limit(&format!("{parent}/{two}")),
        (32 * MIB).to_string()
    );

    let more = (80 * MIB).to_string();
    containerd.crictl(&["update", "--memory", &more, &one]).ok();
    assert_eq!(host.memory_limit(&format!("{parent}/{one}")), more);
    assert_eq!(host.memory_limit(&home), (144 * MIB).to_string());
    containerd.crictl(&["exec", "--sync", &two, "true"]).ok();
    containerd.remove_pod(&pod);
    host.assert_programs(watch);
    host.assert_same(&before);
}

fn pod_in_a_slice_of_the_kubelet(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let slice = format!("kubepods-burstable-pod{}.slice", host.plain());
    let directory = format!("/kubepods.slice/kubepods-burstable.slice/{slice}");
    let before = host.listing();
    // The last part of the parent decides, as the kubelet's driver has it.
    let settings = json!({ "linux": {
        "cgroup_parent": slice,
        "resources": {
            "memory_limit_in_bytes": 128 * MIB,
            "cpu_shares": 512,
            "cpu_period": 100_000,
            "cpu_quota": 50_000,
        },
    } });
    let watch = Watch::over(&directory);
    let pod = containerd.run_pod("sliced", &settings);
    let home = format!("{directory}/cri-containerd-{pod}.scope");
    let app = containerd.run_in_pod(&pod, "app", &["sleep", "1000"], &json!({}));
    host.assert_inside(&home);
    host.assert_empty(&format!("{directory}/cri-containerd-{app}.scope"));
    assert_eq!(host.memory_limit(&home), (160 * MIB).to_string());
    assert_eq!(
        cgroups::read(&home, "cpu.shares", "cpu.weight"),
        if cgroups::is_unified() { "59" } else { "512" }
    );
    let meminfo = containerd.crictl(&["exec", "--sync", &app, "cat", "/proc/meminfo"]);
    let total = memory_total(&meminfo.ok());
    assert!(total <= 160 * MIB && total > 150 * MIB, "{total} bytes");

    // The kubelet resizes the pod.
    let mut task = TaskClient::of_bundle(
        containerd.host(),
        &containerd.bundle_in("k8s.io", &pod),
        &pod,
    );
    let more = json!({"memory": {"limit": 200 * MIB}, "cpu": {"shares": 1024}});
    task.update(&more).expect("update the sandbox");
    assert_eq!(host.memory_limit(&home), (200 * MIB).to_string());
    host.reload();
    assert_eq!(host.memory_limit(&home), (200 * MIB).to_string());
    host.assert_inside(&home);
    containerd.remove_pod(&pod);
    host.assert_programs(watch);
    host.assert_same(&before);
}

fn task_of_nomad(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    const NAMESPACE: &str = "nomad.slice";
    let images = tools::images().expect("they are there, or nothing would run");
    let mut import = containerd.ctr_in(NAMESPACE, &["images", "import"]);
    process::run(import.arg(images), wait::LIMIT).ok();
    let before = host.listing();
    let id = format!("{}.web.scope", host.name);
    let place = format!("/{NAMESPACE}/{id}");
    let made = make_as_nomad_does(&place);
    let command = |memory: u64| {
        let memory = memory.to_string();
        let mut command = containerd.ctr_in(NAMESPACE, &["run", "--detach"]);
        command
            .args(["--runtime", tools::RAMPART, "--memory-limit", &memory])
            .args([tools::IMAGE, &id, "sleep", "1000"]);
        command
    };
    let run = |memory: u64| process::run(&mut command(memory), PATIENCE);
    let ctr = |arguments: &[&str]| {
        process::run(&mut containerd.ctr_in(NAMESPACE, arguments), wait::LIMIT)
    };
    let cpus = || cgroups::read(&place, "cpuset.cpus", "cpuset.cpus");

    let watch = Watch::over(&place);
    run(33 * MIB).ok();
    assert_eq!(host.memory_limit(&place), "34603008");
    assert_eq!(cpus(), "0", "create and start left the CPUs alone");
    let nproc = ctr(&["tasks", "exec", "--exec-id", "n", &id, "nproc"]).ok();
    assert_eq!(nproc, "1");
    host.assert_inside(&place);
    if cgroups::has_systemd() {
        assert_eq!(host.units_named(&id), "", "it is a directory, no unit");
    }

    let file = cgroups::directory("cpuset", &place).join("cpuset.cpus");
    fs::write(&file, "0-1").expect("rewrite the CPUs as Nomad does");
    ctr(&["tasks", "exec", "--exec-id", "e", &id, "true"]).ok();
    assert_eq!(cpus(), "0-1", "an exec left the CPUs alone");
    let bundle = containerd.bundle_in(NAMESPACE, &id);
    let mut task = TaskClient::of_bundle(containerd.host(), &bundle, &id);
    let more = json!({"memory": {"limit": 64 * MIB}});
    task.update(&more).expect("update the task");
    assert_eq!(host.memory_limit(&place), (64 * MIB).to_string());
    assert_eq!(cpus(), "0-1", "an update left the CPUs alone");
    drop(task);
    ctr(&["tasks", "rm", "--force", &id]).ok();
    ctr(&["containers", "rm", &id]).ok();
    host.assert_programs(watch);
    for directory in &made {
        assert!(directory.is_dir(), "{} is Nomad's", directory.display());
    }

    // Hardly enough, which is the task's affair: v2 counts more, and runsc may not
    // get its root mounted in it.
    let mut small = Process::spawn(&mut command(22 * MIB));
    wait::until("the limit of 22 MiB", || {
        host.memory_limit(&place) == "23068672"
    });
    small.wait(PATIENCE);
    ctr(&["tasks", "rm", "--force", &id]);
    ctr(&["containers", "rm", &id]).ok();
    // This cannot be.
    let error = run(11 * MIB).err();
    assert!(
        error.contains("11534336") && error.contains("20971520"),
        "{error}"
    );
    ctr(&["containers", "rm", &id]);
    for directory in made.iter().rev() {
        fs::remove_dir(directory).expect("nothing is in Nomad's directories");
    }
    host.assert_same(&before);
}

fn limits_are_those_of_the_unit_too(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd).filter(Mine::has_systemd) else {
        return;
    };
    let unit = format!("docker-{}.scope", host.name);
    let place = format!("/system.slice/{unit}");
    let path = format!("system.slice:docker:{}", host.name);
    let before = host.listing();
    let limit = (128 * MIB).to_string();
    let options = [
        "--detach",
        "--cgroup",
        &path,
        "--memory-limit",
        &limit,
        "--cpu-shares",
        "4096",
        "--cpus",
        "1.5",
        "--annotation",
        "org.systemd.property.CollectMode='inactive-or-failed'",
    ];
    host.run(&options, "unit", &["sleep", "1000"]).ok();
    let unified = cgroups::is_unified();
    let (memory, cpu, weight) = match unified {
        true => ("MemoryMax", "CPUWeight", "303"),
        false => ("MemoryLimit", "CPUShares", "4096"),
    };
    let expect = |limit: u64| {
        assert_eq!(host.property(&unit, memory), limit.to_string());
        assert_eq!(host.memory_limit(&place), limit.to_string());
        assert_eq!(host.property(&unit, cpu), weight);
        assert_eq!(cgroups::read(&place, "cpu.shares", "cpu.weight"), weight);
        let quota = cgroups::read(&place, "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(quota.split(' ').next(), Some("150000"));
    };
    expect(128 * MIB);
    assert_eq!(host.property(&unit, "CPUQuotaPerSecUSec"), "1.500000s");
    assert_eq!(host.property(&unit, "Delegate"), "yes");
    assert_eq!(host.property(&unit, "CollectMode"), "inactive-or-failed");
    host.reload();
    expect(128 * MIB);
    let mut task = TaskClient::of_bundle(containerd.host(), &containerd.bundle("unit"), "unit");
    let more = json!({"memory": {"limit": 256 * MIB}});
    task.update(&more).expect("update the task");
    drop(task);
    expect(256 * MIB);
    host.reload();
    expect(256 * MIB);
    host.assert_inside(&place);
    containerd.remove("unit");
    host.assert_same(&before);
}

fn killed_sentry_and_killed_shim_leave_nothing(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let before = host.listing();
    let path = format!("system.slice:docker:{}", host.name);
    for victim in ["sentry", "shim"] {
        host.run(&["--detach", "--cgroup", &path], victim, &["sleep", "1000"])
            .ok();
        let (_, sentry) = containerd.task(victim).expect("the task is there");
        match victim {
            "sentry" => process::signal(sentry, Signal::SIGKILL),
            _ => {
                for shim in containerd.shims(victim) {
                    process::signal(shim, Signal::SIGKILL);
                }
            }
        }
        wait::until("the task to be over", || {
            containerd
                .task(victim)
                .is_none_or(|(state, _)| state == "STOPPED")
        });
        containerd.remove(victim);
        host.assert_same(&before);
    }
}

fn what_cannot_be_had_is_said_and_leaves_nothing(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd) else {
        return;
    };
    let name = host.name.clone();
    let before = host.listing();
    let limit = (64 * MIB).to_string();
    let refused = |path: &str, words: &[&str]| {
        let options = ["--rm", "--cgroup", path, "--memory-limit", &limit];
        let watch = Watch::over("/nowhere");
        let error = host.run(&options, "refused", &["true"]).err();
        for word in words {
            assert!(error.contains(word), "{path}: {error}");
        }
        containerd.ctr(&["containers", "rm", "refused"]);
        assert_eq!(watch.end(), BTreeSet::new(), "{path}: something has run");
    };
    refused("a:b", &["a:b", "slice:prefix:name"]);
    refused("/", &["root"]);
    refused("no-.slice:p:n", &["no-.slice"]);
    if cgroups::has_systemd() {
        let slice = format!("{}.slice", host.plain());
        let inner = format!("{slice}:p:{}_in.slice", host.plain());
        refused(&inner, &[&inner, "no process in a slice"]);
        // A refusal in good order, by systemd itself.
        let file = Path::new("/run/systemd/system").join(&slice);
        std::os::unix::fs::symlink("/dev/null", &file).expect("mask the slice");
        host.reload();
        refused(&format!("{slice}:docker:{name}"), &["start unit", "masked"]);
        fs::remove_file(&file).expect("unmask the slice");
        host.reload();
    }
    host.assert_same(&before);

    let unit = format!("system.slice:docker:{name}");
    host.remount("ro");
    refused(&format!("/{name}/c"), &["Read-only file system"]);
    refused(&unit, &["Read-only file system"]);
    host.remount("rw");
    host.assert_same(&before);

    let full = match cgroups::is_unified() {
        true => PathBuf::from("/sys/fs/cgroup"),
        false => PathBuf::from("/sys/fs/cgroup/unified"),
    }
    .join(&name);
    if full.parent().is_some_and(Path::is_dir) && !host.is_legacy() {
        fs::create_dir(&full).expect("make a cgroup");
        let with_it = host.listing();
        fs::write(full.join("cgroup.max.descendants"), "0").expect("let nothing be below");
        refused(&format!("/{name}/c"), &[&name, "temporarily unavailable"]);
        host.assert_same(&with_it);
        fs::remove_dir(&full).expect("remove the cgroup");
    }

    let few = cgroups::directory("pids", &format!("/{name}"));
    fs::create_dir(&few).expect("make a cgroup");
    if cgroups::is_unified() {
        fs::write(few.join("cgroup.subtree_control"), "+memory +pids").expect("enable");
    }
    let with_it = host.listing();
    fs::write(few.join("pids.max"), "6").expect("limit the number of processes");
    let path = format!("/{name}/c");
    host.run(&["--rm", "--cgroup", &path], "few", &["true"])
        .err();
    containerd.ctr(&["containers", "rm", "few"]);
    host.assert_same(&with_it);
    fs::remove_dir(&few).expect("remove the cgroup");
    host.assert_same(&before);
}

fn without_a_bus_nothing_runs_and_all_can_be_removed(containerd: &mut Containerd) {
    let Some(host) = Mine::of(containerd).filter(Mine::has_systemd) else {
        return;
    };
    let before = host.listing();
    let path = format!("system.slice:docker:{}", host.name);
    host.run(
        &["--detach", "--cgroup", &path],
        "first",
        &["sleep", "1000"],
    )
    .ok();
    let mut hide = containerd.host().command("mount");
    hide.args(["-t", "tmpfs", "none", "/run/dbus"]);
    process::run(&mut hide, wait::LIMIT).ok();
    let watch = Watch::over(&format!("/system.slice/docker-{}.scope", host.name));
    let other = format!("system.slice:docker:{}-2", host.name);
    let error = host
        .run(&["--rm", "--cgroup", &other], "second", &["true"])
        .err();
    assert!(error.contains("connect to systemd"), "{error}");
    containerd.ctr(&["containers", "rm", "second"]);
    watch.end();
    containerd.remove("first");
    let mut show = containerd.host().command("umount");
    process::run(show.arg("/run/dbus"), wait::LIMIT).ok();
    host.assert_same(&before);
}

/// Whether KVM works is tried before; that process leaves an empty scope.
#[test]
fn a_scope_is_made_again_after_a_probe() {
    let Some(containerd) = Containerd::with_settings(Version::V2_4, "platform = \"auto\"\n") else {
        return;
    };
    let Some(host) = Mine::of(&containerd).filter(Mine::has_systemd) else {
        return;
    };
    let kvm = Path::new("/dev/kvm");
    let missing = !kvm.exists();
    if missing {
        fs::write(kvm, "").expect("stand in for KVM");
    }
    let before = host.listing();
    let place = format!("/system.slice/docker-{}.scope", host.name);
    let path = format!("system.slice:docker:{}", host.name);
    host.run(&["--detach", "--cgroup", &path], "c", &["sleep", "1000"])
        .ok();
    host.assert_inside(&place);
    containerd.remove("c");
    host.assert_same(&before);
    if missing {
        fs::remove_file(kvm).expect("remove what stood in for KVM");
    }
}

/// What is there before and after: cgroups, and systemd's units.
type Listing = BTreeSet<String>;

/// The test's host, seen from outside of the shim.
struct Mine<'a> {
    containerd: &'a Containerd,
    name: String,
}

impl<'a> Mine<'a> {
    /// Nothing for the reference, which makes no such promises.
    fn of(containerd: &'a Containerd) -> Option<Self> {
        if !tools::is_rampart() {
            skip("these are Rampart's own promises");
            return None;
        }
        // What containerd and ctr make once is not counted.
        containerd.inventory();
        let name = containerd.host().name().to_owned();
        Some(Self { containerd, name })
    }

    /// Where there is none, the test is skipped.
    fn has_systemd(&self) -> bool {
        let there = cgroups::has_systemd();
        if !there {
            skip("this host has no systemd; the test host has");
        }
        there
    }

    /// The name without a dash, which in the name of a slice would be a level.
    fn plain(&self) -> String {
        self.name.replace('-', "_")
    }

    fn is_legacy(&self) -> bool {
        !cgroups::is_unified() && !Path::new("/sys/fs/cgroup/unified").exists()
    }

    fn run(&self, options: &[&str], id: &str, program: &[&str]) -> process::Output {
        let mut command = self.containerd.run_command(options, id, program);
        process::run(&mut command, PATIENCE)
    }

    fn memory_limit(&self, place: &str) -> String {
        cgroups::read(place, "memory.limit_in_bytes", "memory.max")
    }

    /// `MemTotal` as the guest sees it, in bytes.
    fn guest_memory(&self, id: &str) -> u64 {
        let exec = self.containerd.exec(id, "look", &["cat", "/proc/meminfo"]);
        memory_total(&exec.ok())
    }

    /// All that works for a shim is in `place` itself, in every hierarchy, and
    /// nobody else is.
    #[track_caller]
    fn assert_inside(&self, place: &str) {
        let workers = watch::workers();
        assert!(workers.len() >= 2, "sentry and gofers: {workers:?}");
        for worker in &workers {
            let wrong = watch::misplaced(worker.pid, place);
            assert_eq!(wrong, None, "{worker:?}");
        }
        let workers: BTreeSet<u32> = workers.iter().map(|worker| worker.pid).collect();
        for hierarchy in cgroups::hierarchies() {
            let directory = hierarchy.join(&place[1..]);
            let listed = BTreeSet::from_iter(cgroups::pids(&directory));
            assert!(
                listed.is_superset(&workers),
                "{}: {listed:?}, not {workers:?}",
                directory.display()
            );
        }
        let colons: Vec<_> = cgroups::named(":");
        assert_eq!(colons, Vec::<PathBuf>::new(), "a name with a colon");
    }

    /// The cgroup is there and nobody is in it.
    #[track_caller]
    fn assert_empty(&self, place: &str) {
        for hierarchy in cgroups::hierarchies() {
            let directory = hierarchy.join(&place[1..]);
            assert!(directory.is_dir(), "{} is missing", directory.display());
            assert_eq!(cgroups::pids(&directory), Vec::<u32>::new());
        }
    }

    /// The watch saw sentry and gofers, and all of them inside.
    #[track_caller]
    fn assert_programs(&self, watch: Watch) {
        let names = watch.end();
        for name in ["runsc-sandbox", "runsc-gofer"] {
            assert!(names.contains(name), "{name} was not seen: {names:?}");
        }
    }

    fn listing(&self) -> Listing {
        let mut lines = Listing::new();
        // Beside this test others may run on a machine without systemd, but not
        // in the test host.
        let cgroups = match cgroups::has_systemd() {
            true => cgroups::all(),
            false => [cgroups::named(&self.name), cgroups::named(&self.plain())].concat(),
        };
        lines.extend(cgroups.iter().map(|path| path.display().to_string()));
        if cgroups::has_systemd() {
            let arguments = ["list-units", "--all", "--plain", "--no-legend"];
            let units = systemctl(&[&arguments[..], &["--type=scope,slice"]].concat());
            let failed = systemctl(&["list-units", "--failed", "--plain", "--no-legend"]);
            let names = |text: &str, what: &str| -> Vec<String> {
                text.lines()
                    .filter_map(|line| Some(format!("{what} {}", line.split_whitespace().next()?)))
                    .collect()
            };
            lines.extend(names(&units, "unit"));
            lines.extend(names(&failed, "failed"));
        }
        lines
    }

    /// Waits until everything is again as it was.
    #[track_caller]
    fn assert_same(&self, before: &Listing) {
        let mut now = Listing::new();
        let same = wait::within(wait::LIMIT / 3, || {
            now = self.listing();
            (now == *before).then_some(())
        });
        assert!(
            same.is_some(),
            "left: {:?}\ngone: {:?}\n{}",
            now.difference(before).collect::<Vec<_>>(),
            before.difference(&now).collect::<Vec<_>>(),
            self.containerd.log()
        );
    }

    fn units_named(&self, name: &str) -> String {
        systemctl(&["list-units", "--all", "--plain", "--no-legend", name])
    }

    fn property(&self, unit: &str, name: &str) -> String {
        systemctl(&["show", "--property", name, "--value", unit])
    }

    /// systemd, if there is one, writes all that it knows again.
    fn reload(&self) {
        if cgroups::has_systemd() {
            systemctl(&["daemon-reload"]);
        }
    }

    /// Makes the hierarchies read-only, or writable, where containerd runs.
    fn remount(&self, how: &str) {
        for hierarchy in cgroups::hierarchies() {
            let mut command = self.containerd.host().command("mount");
            command
                .args(["-o", &format!("remount,bind,{how}")])
                .arg(hierarchy);
            process::run(&mut command, wait::LIMIT).ok();
        }
    }
}

fn systemctl(arguments: &[&str]) -> String {
    process::run(Command::new("systemctl").args(arguments), wait::LIMIT).ok()
}

/// Makes a task's directories before it starts, on CPU 0, and gives them.
fn make_as_nomad_does(place: &str) -> Vec<PathBuf> {
    let mut made = Vec::new();
    let parent = Path::new(place).parent().expect("it is below a slice");
    for hierarchy in cgroups::hierarchies() {
        for path in [parent, Path::new(place)] {
            let below = path.strip_prefix("/").expect("it is absolute");
            let directory = hierarchy.join(below);
            let above = directory.parent().expect("it is below a mount");
            if cgroups::is_unified() {
                fs::write(
                    above.join("cgroup.subtree_control"),
                    "+cpuset +cpu +memory +pids",
                )
                .expect("enable controllers");
            }
            if !directory.exists() {
                fs::create_dir(&directory).expect("make a cgroup");
                made.push(directory.clone());
            }
            if hierarchy.ends_with("cpuset") {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let all = fs::read(above.join(file)).expect("the CPUs above");
                    fs::write(directory.join(file), all).expect("take them over");
                }
            }
        }
    }
    let cpus = cgroups::directory("cpuset", place).join("cpuset.cpus");
    fs::write(cpus, "0").expect("give it CPU 0");
    made
}

/// `MemTotal` of `/proc/meminfo` in bytes.
fn memory_total(meminfo: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map(|kib| kib * 1024)
        .unwrap_or_else(|| panic!("no MemTotal: {meminfo}"))
}
