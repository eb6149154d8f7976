//! Watches where the processes are that a shim starts, from their first
//! instruction to their last.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::{self, Seen};
use crate::{tools, wait};

/// A watch over all shims of this test; it looks until it is asked.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Found>,
}

/// What a watch has seen.
#[derive(Debug, Default)]
struct Found {
    /// Each process that was where it belongs, by pid and name.
    inside: BTreeSet<(u32, String)>,
    /// Each one that was not, with the place.
    outside: BTreeSet<String>,
}

impl Watch {
    /// Watches that all that shims start is in `cgroup` or below it, in each
    /// hierarchy.
    pub fn over(cgroup: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, cgroup) = (Arc::clone(&stop), cgroup.to_owned());
        let watcher = thread::spawn(move || {
            let mut found = Found::default();
            while !asked.load(Ordering::Relaxed) {
                let began = Instant::now();
                look(&cgroup, &mut found);
                // Leaves the larger part of a slow machine to those it watches.
                thread::sleep(began.elapsed() * 2);
            }
            found
        });
        Self { stop, watcher }
    }

    /// Ends the watch and gives the names of the programs that it saw.
    ///
    /// # Panics
    ///
    /// If a process was elsewhere at any time.
    #[track_caller]
    pub fn end(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        let found = self.watcher.join().expect("the watching thread");
        assert!(
            found.outside.is_empty(),
            "not in the pod's cgroup:\n{}",
            Vec::from_iter(found.outside).join("\n")
        );
        found.inside.into_iter().map(|(_, name)| name).collect()
    }
}

/// Every process that now works for a shim of this test and is a program
/// already, not the shim itself on the way to become one.
pub fn workers() -> Vec<Seen> {
    let shim = tools::shim();
    let is_shim = |pid| program(pid).is_some_and(|path| path == shim);
    let mut workers = BTreeSet::new();
    for process in process::descendants() {
        if is_shim(process.pid) {
            workers.extend(process::descendants_of(process.pid));
        }
    }
    workers
        .into_iter()
        .filter(|process| !process.zombie && program(process.pid).is_some_and(|path| path != shim))
        .collect()
}

fn look(cgroup: &str, found: &mut Found) {
    for process in workers() {
        let wrong = misplaced(process.pid, cgroup);
        // An exiting process of v1 is shown in the root, before it is a zombie.
        let exits = || {
            let dead = wait::within(Duration::from_secs(1), || {
                (!process::is_alive(process.pid)).then_some(())
            });
            dead.is_some()
        };
        let name = process.command.split(' ').next().unwrap_or_default();
        match wrong {
            None => {
                found.inside.insert((process.pid, name.to_owned()));
            }
            Some(line) if line.ends_with(":/") && exits() => {}
            Some(line) => {
                found.outside.insert(format!("{process:?}: {line}"));
            }
        }
    }
}

/// The first line of a process's cgroups that is neither `cgroup` nor below it;
/// none if there is no such line, or if the process is gone.
pub fn misplaced(pid: u32, cgroup: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = mounts();
    text.lines()
        .find(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
            mounts
                .iter()
                .find(|(names, _)| controllers.split(',').any(|name| names.contains(name)))
                .is_some_and(|(_, root)| !Path::new(path).starts_with(root.join(&cgroup[1..])))
        })
        .map(str::to_owned)
}

/// The hierarchies that are mounted: controllers (v2 has the empty one) and root.
fn mounts() -> Vec<(BTreeSet<String>, PathBuf)> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let root = PathBuf::from(left.split(' ').nth(3)?);
            let mut right = right.split(' ');
            let names = match right.next()? {
                "cgroup" => right.nth(1)?.split(',').map(str::to_owned).collect(),
                "cgroup2" => BTreeSet::from([String::new()]),
                _ => return None,
            };
            Some((names, root))
        })
        .collect()
}

fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}
