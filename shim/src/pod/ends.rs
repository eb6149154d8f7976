//! The end of processes: waited for, and told in the right order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use protos::events::{TaskExit, TaskOOM};
use sandbox::Target;

use super::Pod;
use crate::container::Container;
use crate::events::{Event, metric};
use crate::exec::Exec;
use crate::process::{Exit, State};
use crate::{metrics, wire};

impl Pod {
    /// Waits for the end of a container's first process and tells everybody.
    pub(super) async fn watch(self: Arc<Self>, container: Arc<Container>) {
        let (mut exit, with_sandbox) = match container.sandbox.wait(&container.id).await {
            Ok(exit) => (
                Exit {
                    code: exit.code,
                    at: exit.at,
                },
                exit.by_sandbox_death,
            ),
            Err(error) => {
                log::error!("the end of {} is unknown: {error}", container.id);
                (Exit::by_signal(Signal::SIGKILL as u32), true)
            }
        };
        // The order matters: the start before the exit, the execs' exits before
        // the container's, the want of memory before what it caused, the event
        // before anybody who waits can delete the task.
        container.life.settled().await;
        if !with_sandbox && !container.is_root() {
            // Where the pod shares a PID namespace, the container's other
            // processes live on, and hold its output.
            let all = container
                .sandbox
                .signal(&container.id, Target::All, Signal::SIGKILL as i32);
            if let Ok(Err(error)) = tokio::time::timeout(EXECS_PATIENCE, all).await {
                log::debug!("the rest of {}: {error}", container.id);
            }
        }
        container.end_execs(EXECS_PATIENCE).await;
        let of_memory = container.died_of_memory(exit, with_sandbox);
        if of_memory {
            container.kills.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(error) = metrics::refresh(&container).await {
            log::warn!("last figures of {}: {error}", container.id);
        }
        container.streams.process_exited();
        if of_memory {
            exit.code = 128 + Signal::SIGKILL as u32;
            self.publish_oom(&container);
        }
        container.remember_exit(exit);
        self.publish_exit(&container, &container.id, exit);
        if let Err(error) = container.life.become_state(State::Stopped(exit)) {
            log::error!("{error}");
        }
    }

    /// Tells of kills that no exit of a container answers for: of a process
    /// beside its first one.
    pub(super) async fn watch_memory(self: Arc<Self>, root: Arc<Container>) {
        loop {
            tokio::select! {
                () = root.oom.next() => {}
                _ = root.life.wait() => return,
            }
            // Time for the exit that may follow.
            tokio::select! {
                () = tokio::time::sleep(CLAIM_PATIENCE) => {}
                _ = root.life.wait() => return,
            }
            if root.oom.claim() > 0 {
                let largest = self.largest(&root).await;
                largest.kills.fetch_add(1, Ordering::Relaxed);
                self.publish_oom(&largest);
            }
        }
    }

    /// The container of a sandbox that uses the most memory, as far as is known:
    /// the one that a kill has most likely hit.
    async fn largest(&self, root: &Arc<Container>) -> Arc<Container> {
        let mut members = self.members(&root.id);
        members.retain(|member| !member.life.state().has_ended());
        let mut largest = (Arc::clone(root), 0);
        for member in members {
            let usage =
                tokio::time::timeout(metrics::SHARE_PATIENCE, member.sandbox.usage(&member.id));
            let used = usage
                .await
                .ok()
                .and_then(|usage| usage.ok()?.memory)
                .map_or(0, |b| b.0);
            if largest.0.is_root() || used > largest.1 {
                largest = (member, used);
            }
        }
        largest.0
    }

    fn publish_oom(&self, container: &Container) {
        let hit = container.limit_that_was_hit();
        log::warn!("out of memory in {}: it ran into {hit}", container.id);
        match wire::pack("rampart.v1.OutOfMemory", &hit.message()) {
            Ok(data) => self
                .events
                .publish(Event::OutOfMemory(metric(&container.id, data))),
            Err(error) => log::warn!("why {} is out of memory: {error}", container.id),
        }
        self.events.publish(Event::Oom(TaskOOM {
            container_id: container.id.clone(),
            ..TaskOOM::default()
        }));
    }

    pub(super) async fn watch_exec(self: Arc<Self>, container: Arc<Container>, exec: Arc<Exec>) {
        let Some(pid) = exec.inner_pid() else { return };
        let exit = match container.sandbox.wait_exec(&container.id, pid).await {
            Ok(exit) => Exit {
                code: exit.code,
                at: exit.at,
            },
            Err(error) => {
                log::error!("the end of exec {} is unknown: {error}", exec.id);
                Exit::by_signal(Signal::SIGKILL as u32)
            }
        };
        if let Some(streams) = exec.streams() {
            streams.process_exited();
        }
        self.publish_exit(&container, &exec.id, exit);
        if let Err(error) = exec.life.become_state(State::Stopped(exit)) {
            log::error!("{error}");
        }
    }

    fn publish_exit(&self, container: &Container, process: &str, exit: Exit) {
        self.events.publish(Event::Exit(TaskExit {
            container_id: container.id.clone(),
            id: process.to_owned(),
            pid: wire::pid(container.pid),
            exit_status: exit.code,
            exited_at: wire::exited_at(Some(exit)),
            ..TaskExit::default()
        }));
    }
}

/// How long the ends of execs may hold up that of their container.
const EXECS_PATIENCE: Duration = Duration::from_secs(2);

/// How long a kill waits for the exit that answers for it: a machine without
/// memory is slow.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
