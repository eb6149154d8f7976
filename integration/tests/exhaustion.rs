//! What runs out at any point of a container's life: Create and Start either do
//! their work or say what was wanting, and leave nothing in the second case.

use std::path::Path;

use integration::bundle;
use integration::faults::{self, STATE};
use integration::host::Host;
use integration::inventory::Inventory;
use integration::mock::MockContainerd;
use integration::shim::{Input, Shim, TaskClient};
use integration::wire::Refusal;

fn set_up() -> Option<(Host, MockContainerd)> {
    MockContainerd::for_rampart("these are Rampart's own promises")
}

/// Creates and starts the container; its errors.
fn bring_up(client: &mut TaskClient, bundle: &Path) -> Result<(), Refusal> {
    client.create(bundle)?;
    client.start("").map(drop)
}

/// Removes whatever came of it, and the shim.
fn take_down(client: &mut TaskClient, shim: &Shim<'_>) {
    if client.state("").is_ok() {
        // After a failed start it has ended already.
        let _ended = client.kill("", 9);
        client.wait("").expect("its end");
        client.delete("").expect("delete the task");
    }
    client.end_shim();
    std::fs::remove_dir_all(shim.bundle()).expect("remove the bundle");
}

#[test]
fn room_on_the_disk() {
    let Some((host, mock)) = set_up() else { return };
    faults::mount_small_disk(&host, Path::new(STATE));
    let mut done = Vec::new();
    for pages in 0..12 {
        let id = format!("pages{pages}");
        bundle::make(&host, host.name(), &id, &["sleep", "1000"], &[]);
        let shim = Shim::new(&host, &mock, &id);
        let reply = shim.start(&Input::Bootstrap);
        let mut client = shim.connect(&reply);
        faults::fill_disk(&host, Path::new(STATE), pages);
        let before = Inventory::take(&host);
        let answer = bring_up(&mut client, shim.bundle());
        done.push(answer.is_ok());
        if let Err(refusal) = answer {
            let message = refusal.message.to_lowercase();
            assert!(
                message.contains("no space left"),
                "{pages} pages: {refusal:?}"
            );
            if client.state("").is_err() {
                before.assert_same(&host);
            }
        }
        take_down(&mut client, &shim);
        faults::empty_disk(&host, Path::new(STATE));
    }
    faults::unmount_disk(&host, Path::new(STATE));
    assert!(done.contains(&false) && done.contains(&true), "{done:?}");
}

#[test]
fn descriptors() {
    let Some((host, mock)) = set_up() else { return };
    let mut done = Vec::new();
    for more in (0..24).step_by(2) {
        let id = format!("more{more}");
        bundle::make(&host, host.name(), &id, &["sleep", "1000"], &[]);
        let shim = Shim::new(&host, &mock, &id);
        let reply = shim.start(&Input::Bootstrap);
        let mut client = shim.connect(&reply);
        let pid = client.identify().expect("it serves").shim_pid;
        let before = Inventory::take(&host);
        faults::limit_descriptors(pid, more);
        let answer = bring_up(&mut client, shim.bundle());
        faults::free_descriptors(pid);
        done.push(answer.is_ok());
        if let Err(refusal) = answer {
            let message = refusal.message.to_lowercase();
            assert!(
                message.contains("too many open files"),
                "{more} descriptors: {refusal:?}"
            );
            if client.state("").is_err() {
                before.assert_same_but(&host, |line| line == "file /run/rampart");
            }
        }
        take_down(&mut client, &shim);
    }
    assert!(done.contains(&false) && done.contains(&true), "{done:?}");
}
