//! containerd's events, followed with `ctr events` as any client follows them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::containerd::Containerd;
use crate::process::{self, Process};
use crate::wait;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// containerd's namespace.
    pub namespace: String,
    /// `/tasks/start` and the like.
    pub topic: String,
    /// The payload as ctr prints it.
    pub data: Value,
}

/// A stream of events that a `ctr events` process writes into a file.
#[derive(Debug)]
pub struct Events {
    _reader: Process,
    path: PathBuf,
    namespace: String,
}

impl Event {
    /// Tells whether it has to do with the container `id`.
    pub fn is_of(&self, id: &str) -> bool {
        ["container_id", "id"]
            .iter()
            .any(|key| self.data[key].as_str() == Some(id))
    }

    /// The exec that it has to do with; empty or the container's id for init.
    pub fn process(&self) -> &str {
        self.data["exec_id"]
            .as_str()
            .or_else(|| self.data["id"].as_str())
            .unwrap_or_default()
    }

    /// The exit status; ctr leaves out a zero.
    pub fn exit_status(&self) -> u64 {
        self.data["exit_status"].as_u64().unwrap_or(0)
    }
}

impl Events {
    pub(crate) fn follow(containerd: &Containerd) -> Self {
        let directory = containerd.host().directory();
        let number = (0..)
            .find(|number| !directory.join(format!("events-{number}")).exists())
            .expect("some number is free");
        let path = directory.join(format!("events-{number}"));
        let file = File::create(&path).expect("make the file of events");
        let mut command = containerd.ctr_command(&["events"]);
        let reader = Process::spawn(command.stdout(file).stderr(Stdio::null()));
        let events = Self {
            _reader: reader,
            path,
            namespace: containerd.namespace().to_owned(),
        };
        // ctr does not say when it listens: something is done until it shows.
        let mut attempt = 0;
        wait::until("ctr to follow events", || {
            attempt += 1;
            let label = format!("attempt={attempt}");
            let namespace = containerd.namespace();
            let mut poke = containerd.ctr_command(&["namespaces", "label", namespace, &label]);
            process::run(&mut poke, wait::LIMIT);
            wait::within(Duration::from_millis(200), || {
                (!events.everything().is_empty()).then_some(())
            })
            .is_some()
        });
        events
    }

    /// All events of tasks in the test's namespace or in that of pods, as they came.
    pub fn all(&self) -> Vec<Event> {
        self.everything()
            .into_iter()
            .filter(|event| event.topic.starts_with("/tasks/"))
            .filter(|event| event.namespace == self.namespace || event.namespace == "k8s.io")
            .collect()
    }

    /// The events of one container, as they came.
    pub fn of(&self, id: &str) -> Vec<Event> {
        let mut events = self.all();
        events.retain(|event| event.is_of(id));
        events
    }

    /// The topics of one container's events without the leading `/tasks/`; other
    /// than of its life (figures) are left out.
    pub fn topics(&self, id: &str) -> Vec<String> {
        self.of(id)
            .iter()
            .filter_map(|event| event.topic.strip_prefix("/tasks/"))
            .filter(|topic| !["metrics", "devices"].contains(topic))
            .map(str::to_owned)
            .collect()
    }

    /// Waits for the first event of `topic` (without `/tasks/`) and container.
    #[track_caller]
    pub fn wait_for(&self, topic: &str, id: &str) -> Event {
        self.wait_where(&format!("{topic} of {id}"), |event| {
            event.topic == format!("/tasks/{topic}") && event.is_of(id)
        })
    }

    /// Waits for the first event that `wanted` picks.
    #[track_caller]
    pub fn wait_where(&self, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        wait::within(wait::LIMIT, || self.all().into_iter().find(&wanted))
            .unwrap_or_else(|| panic!("no event {what} came, but: {:#?}", self.all()))
    }

    fn everything(&self) -> Vec<Event> {
        let text = fs::read_to_string(&self.path).expect("read the file of events");
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(parse).collect()
    }
}

/// Reads a line of `ctr events`: date, time, zone, zone's name, namespace, topic,
/// payload.
pub fn parse(line: &str) -> Option<Event> {
    let mut fields = line.splitn(7, ' ').skip(4);
    Some(Event {
        namespace: fields.next()?.to_owned(),
        topic: fields.next()?.to_owned(),
        data: serde_json::from_str(fields.next()?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ctr_is_read() {
        let line = r#"2026-11-29 20:00:00.5 +0000 UTC ns /tasks/exit {"container_id":"a","id":"a","exit_status":7}"#;
        let event = parse(line).unwrap();
        assert_eq!(event.namespace, "ns");
        assert_eq!(event.topic, "/tasks/exit");
        assert_eq!(event.exit_status(), 7);
        assert!(event.is_of("a"));
    }
}
