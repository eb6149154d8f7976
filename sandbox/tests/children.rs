//! The reaper against real children. It takes every child of the process, so this
//! is the only test of its file.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox::{Children, Status};
use tokio::time::timeout;

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

async fn status(children: &Children, pid: Pid) -> Status {
    let end = timeout(Duration::from_secs(20), children.wait(pid));
    end.await.expect("the end of a child is told").status
}

#[tokio::test]
async fn every_end_is_told_to_everybody_who_asks() {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let children = Children::new().unwrap();

    for (script, expected) in [
        ("exit 0", Status::Exited(0)),
        ("exit 7", Status::Exited(7)),
        ("kill -9 $$", Status::Signaled(9)),
        // A realtime signal, which not every library knows.
        ("kill -40 $$", Status::Signaled(40)),
    ] {
        let pid = children.spawn(&mut shell(script)).unwrap();
        assert_eq!(status(&children, pid).await, expected, "{script}");
        assert_eq!(
            status(&children, pid).await,
            expected,
            "{script}, asked late"
        );
    }

    // Several wait at once; one of them gives up.
    let pid = children.spawn(&mut shell("exec sleep 1000")).unwrap();
    let gave_up = timeout(Duration::from_millis(1), children.wait(pid)).await;
    assert!(gave_up.is_err());
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let children = children.clone();
            tokio::spawn(async move { status(&children, pid).await })
        })
        .collect();
    tokio::task::yield_now().await;
    kill(pid, Signal::SIGTERM).unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), Status::Signaled(15));
    }

    // A grandchild is adopted, in a process group of its own as the sentry is.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = format!("setsid sleep 1000 & echo $! > {}", file.display());
    let parent = children.spawn(&mut shell(&script)).unwrap();
    assert_eq!(status(&children, parent).await, Status::Exited(0));
    let adopted = std::fs::read_to_string(&file).unwrap();
    let adopted = Pid::from_raw(adopted.trim().parse().unwrap());
    kill(adopted, Signal::SIGKILL).unwrap();
    assert_eq!(status(&children, adopted).await, Status::Signaled(9));

    // A program that does not exist is an error, and nobody's child.
    let error = children.spawn(&mut Command::new("/nowhere")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    // Far more than one signal can announce.
    let pids: Vec<Pid> = (0..100)
        .map(|_| children.spawn(&mut shell("exit 3")).unwrap())
        .collect();
    for pid in pids {
        assert_eq!(status(&children, pid).await, Status::Exited(3));
    }
}
