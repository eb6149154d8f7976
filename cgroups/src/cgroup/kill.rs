//! Ending all that is in a cgroup.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};

use super::{Cgroup, POLL};
use crate::error::{Error, Result};
use crate::file;

/// How long one attempt at freezing may take before the processes are killed
/// unfrozen. Freezing only keeps a fork bomb from outrunning us.
const FREEZE: Duration = Duration::from_millis(200);

pub(super) fn kill(cgroup: &Cgroup, deadline: Instant) -> Result<()> {
    cgroup.refuse_caller()?;
    loop {
        let pids = cgroup.pids()?;
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut {
                path: cgroup.path().into(),
                what: "killing",
                pids,
            });
        }
        if !at_once(cgroup) {
            one_by_one(cgroup, deadline)?;
        }
        wait_until_empty(
            cgroup,
            deadline.min(Instant::now() + Duration::from_millis(100)),
        )?;
    }
}

/// `cgroup.kill` (Linux 5.14) leaves no gap for a fork. Only on version 2: on
/// a hybrid host the processes may be elsewhere in the version 2 hierarchy.
fn at_once(cgroup: &Cgroup) -> bool {
    let Cgroup::V2(v2) = cgroup else {
        return false;
    };
    file::try_write(&v2.directory().join(Path::new("cgroup.kill")), "1").is_ok()
}

fn one_by_one(cgroup: &Cgroup, deadline: Instant) -> Result<()> {
    // A cgroup that cannot be frozen is killed all the same.
    let _ = cgroup.freeze(deadline.min(Instant::now() + FREEZE));
    for pid in cgroup.pids()? {
        let _ = signal::kill(pid, Signal::SIGKILL);
    }
    // On version 1 a frozen process dies only once it is thawed.
    let _ = cgroup.thaw();
    Ok(())
}

fn wait_until_empty(cgroup: &Cgroup, until: Instant) -> Result<()> {
    while Instant::now() < until && !cgroup.pids()?.is_empty() {
        thread::sleep(POLL);
    }
    Ok(())
}
