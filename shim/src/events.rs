//! Events to containerd: one ordered queue, sent one at a time.
//!
//! What is in the queue stays there until containerd has taken it, however
//! often it restarts, so nothing is lost or overtaken. Metrics are the one
//! exception: of those only the newest few wait, and never in the way of a
//! task's own events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use protos::events::{
    Client, Envelope, EventsClient, ForwardRequest, TaskCheckpointed, TaskCreate, TaskDelete,
    TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM, TaskPaused, TaskResumed, TaskStart,
};
use protos::metric::Metric;
use protos::protobuf;
use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::well_known_types::timestamp::Timestamp;
use protos::protobuf::{Message, MessageField};
use protos::ttrpc::{self, Code};
use tokio::sync::Notify;

use crate::error::chain;
use crate::lock::lock;

/// What the shim tells containerd.
#[derive(Debug, Clone)]
pub enum Event {
    /// A task was created.
    Create(TaskCreate),
    /// Its process runs.
    Start(TaskStart),
    /// The kernel killed something in it for want of memory.
    Oom(TaskOOM),
    /// The process of the task, or of an exec, ended.
    Exit(TaskExit),
    /// The task was deleted.
    Delete(TaskDelete),
    /// An exec was prepared.
    ExecAdded(TaskExecAdded),
    /// An exec runs.
    ExecStarted(TaskExecStarted),
    /// The task was paused.
    Paused(TaskPaused),
    /// The task was resumed.
    Resumed(TaskResumed),
    /// The task was checkpointed.
    Checkpointed(TaskCheckpointed),
    /// What a task uses; may be dropped.
    Metrics(Metric),
    /// What its devices do; may be dropped.
    Devices(Metric),
    /// Why the kill came that the next [`Event::Oom`] tells of.
    OutOfMemory(Metric),
}

impl Event {
    /// Topic and message type, as containerd's Go shims have them.
    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Create(_) => ("/tasks/create", "containerd.events.TaskCreate"),
            Self::Start(_) => ("/tasks/start", "containerd.events.TaskStart"),
            Self::Oom(_) => ("/tasks/oom", "containerd.events.TaskOOM"),
            Self::Exit(_) => ("/tasks/exit", "containerd.events.TaskExit"),
            Self::Delete(_) => ("/tasks/delete", "containerd.events.TaskDelete"),
            Self::ExecAdded(_) => ("/tasks/exec-added", "containerd.events.TaskExecAdded"),
            Self::ExecStarted(_) => ("/tasks/exec-started", "containerd.events.TaskExecStarted"),
            Self::Paused(_) => ("/tasks/paused", "containerd.events.TaskPaused"),
            Self::Resumed(_) => ("/tasks/resumed", "containerd.events.TaskResumed"),
            Self::Checkpointed(_) => ("/tasks/checkpointed", "containerd.events.TaskCheckpointed"),
            Self::Metrics(_) => ("/tasks/metrics", METRIC),
            Self::Devices(_) => ("/tasks/devices", METRIC),
            Self::OutOfMemory(_) => ("/rampart/oom", METRIC),
        }
    }

    fn encode(&self) -> Result<Vec<u8>, protobuf::Error> {
        match self {
            Self::Create(message) => message.write_to_bytes(),
            Self::Start(message) => message.write_to_bytes(),
            Self::Oom(message) => message.write_to_bytes(),
            Self::Exit(message) => message.write_to_bytes(),
            Self::Delete(message) => message.write_to_bytes(),
            Self::ExecAdded(message) => message.write_to_bytes(),
            Self::ExecStarted(message) => message.write_to_bytes(),
            Self::Paused(message) => message.write_to_bytes(),
            Self::Resumed(message) => message.write_to_bytes(),
            Self::Checkpointed(message) => message.write_to_bytes(),
            Self::Metrics(message) | Self::Devices(message) | Self::OutOfMemory(message) => {
                message.write_to_bytes()
            }
        }
    }

    fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Metrics(_) | Self::Devices(_))
    }
}

/// The envelope of all that is not a task's own event: every client of
/// containerd can decode it, whatever is inside.
const METRIC: &str = "containerd.types.Metric";

/// Figures, or a message of our own, of the container `id`, as of now.
pub fn metric(id: &str, data: Any) -> Metric {
    Metric {
        timestamp: MessageField::some(Timestamp::from(SystemTime::now())),
        id: id.to_owned(),
        data: MessageField::some(data),
        ..Metric::default()
    }
}

/// The queue and its sender; clones share them.
#[derive(Debug, Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    namespace: String,
    /// containerd's ttrpc socket; without one, events only go to the log.
    address: Option<String>,
    queue: Mutex<Queue>,
    /// Something was queued.
    queued: Notify,
    /// Something left the queue.
    sent: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Queued>,
    /// The number of the next one.
    next: u64,
    /// Metrics dropped since the last that containerd took.
    dropped: u64,
}

#[derive(Debug, Clone)]
struct Queued {
    /// Numbers rise in the order of the queue.
    number: u64,
    at: SystemTime,
    event: Event,
}

impl Events {
    /// Starts the sender task; needs a tokio runtime.
    pub fn new(namespace: &str, address: Option<String>) -> Self {
        let shared = Arc::new(Shared {
            namespace: namespace.to_owned(),
            address,
            queue: Mutex::default(),
            queued: Notify::new(),
            sent: Notify::new(),
        });
        let events = Self { shared };
        let sender = events.clone();
        tokio::spawn(async move { sender.run().await });
        events
    }

    /// Queues an event; never waits.
    pub fn publish(&self, event: Event) {
        log::debug!("event {}", event.names().0);
        let mut queue = self.queue();
        if event.may_be_dropped() {
            let mut droppable = (0..queue.waiting.len())
                .filter(|index| queue.waiting[*index].event.may_be_dropped());
            let oldest = droppable.next();
            if let Some(oldest) = oldest
                && droppable.count() + 1 >= MOST_DROPPABLE
            {
                queue.waiting.remove(oldest);
                queue.dropped += 1;
            }
        }
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(Queued {
            number,
            at: SystemTime::now(),
            event,
        });
        drop(queue);
        self.shared.queued.notify_one();
    }

    /// Waits until all is sent, but no longer than `patience`.
    pub async fn flush(&self, patience: Duration) {
        let flushed = async {
            loop {
                let sent = self.shared.sent.notified();
                if self.queue().waiting.is_empty() {
                    return;
                }
                sent.await;
            }
        };
        if tokio::time::timeout(patience, flushed).await.is_err() {
            let left = self.queue().waiting.len();
            log::warn!("{left} events could not be sent to containerd and are lost");
        }
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        lock(&self.shared.queue)
    }

    /// The oldest lifecycle event, else the oldest of the metrics: those give
    /// way.
    fn next(&self) -> Option<Queued> {
        let queue = self.queue();
        let lifecycle = queue
            .waiting
            .iter()
            .find(|queued| !queued.event.may_be_dropped());
        lifecycle.or_else(|| queue.waiting.front()).cloned()
    }

    async fn run(&self) {
        let mut connection = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(next) = self.next() else {
                self.shared.queued.notified().await;
                continue;
            };
            match self.send(&mut connection, next.at, &next.event).await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    self.remove(next.number);
                    self.tell_of_dropped();
                }
                Err(Failure::Refused(reason)) => {
                    log::error!(
                        "containerd refused event {}: {reason}",
                        next.event.names().0
                    );
                    self.remove(next.number);
                }
                Err(Failure::Away(reason)) => {
                    log::debug!("event {} waits: {reason}", next.event.names().0);
                    connection = None;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Takes out what was sent, unless it was dropped meanwhile.
    fn remove(&self, number: u64) {
        self.queue()
            .waiting
            .retain(|queued| queued.number != number);
        self.shared.sent.notify_waiters();
    }

    fn tell_of_dropped(&self) {
        let dropped = std::mem::take(&mut self.queue().dropped);
        if dropped > 0 {
            log::warn!("{dropped} metrics events were dropped while containerd took none");
        }
    }

    async fn send(
        &self,
        connection: &mut Option<EventsClient>,
        at: SystemTime,
        event: &Event,
    ) -> Result<(), Failure> {
        let Some(address) = &self.shared.address else {
            return Ok(());
        };
        let (topic, type_name) = event.names();
        let value = event
            .encode()
            .map_err(|error| Failure::Refused(chain(&error)))?;
        let any = Any {
            type_url: type_name.into(),
            value,
            ..Any::default()
        };
        let envelope = Envelope {
            timestamp: MessageField::some(Timestamp::from(at)),
            namespace: self.shared.namespace.clone(),
            topic: topic.into(),
            event: MessageField::some(any),
            ..Envelope::default()
        };
        let request = ForwardRequest {
            envelope: MessageField::some(envelope),
            ..ForwardRequest::default()
        };
        let client = match connection {
            Some(client) => client,
            None => {
                let client = Client::connect(&format!("unix://{address}"))
                    .await
                    .map_err(|error| Failure::Away(chain(&error)))?;
                connection.insert(EventsClient::new(client))
            }
        };
        let patience = if event.may_be_dropped() {
            PATIENCE_FOR_METRICS
        } else {
            PATIENCE
        };
        let context = ttrpc::context::with_duration(patience);
        match client.forward(context, &request).await {
            Ok(_) => Ok(()),
            Err(ttrpc::Error::RpcStatus(status))
                if matches!(
                    status.code.enum_value_or_default(),
                    Code::INVALID_ARGUMENT | Code::UNIMPLEMENTED | Code::NOT_FOUND
                ) =>
            {
                Err(Failure::Refused(status.message))
            }
            Err(error) => Err(Failure::Away(chain(&error))),
        }
    }
}

enum Failure {
    /// containerd will never take this event.
    Refused(String),
    /// containerd is not there, or too busy; the event waits.
    Away(String),
}

/// Most metrics events that wait for containerd at a time.
const MOST_DROPPABLE: usize = 32;

/// How long containerd may take for one event (its own shims give it 5 s).
const PATIENCE: Duration = Duration::from_secs(5);

/// How long for metrics: what may have to be told behind them does not wait.
const PATIENCE_FOR_METRICS: Duration = Duration::from_secs(1);

/// Pauses between two tries while containerd is away.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(events: &Events) -> Vec<&'static str> {
        events
            .queue()
            .waiting
            .iter()
            .map(|queued| queued.event.names().0)
            .collect()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn metrics_are_dropped_oldest_first_and_give_way() {
        let events = Events::new("ns", Some("/nowhere".into()));
        for number in 0..=MOST_DROPPABLE {
            let metric = metric(&number.to_string(), Any::default());
            events.publish(Event::Metrics(metric));
        }
        events.publish(Event::Exit(TaskExit::new()));
        assert_eq!(queue_of(&events).len(), MOST_DROPPABLE + 1);
        assert_eq!(events.queue().dropped, 1);
        let next = events.next().unwrap();
        assert_eq!(next.event.names().0, "/tasks/exit");
        let first = events
            .queue()
            .waiting
            .front()
            .map(|queued| queued.event.clone());
        assert!(matches!(first, Some(Event::Metrics(metric)) if metric.id == "1"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_dropped_while_it_was_sent_takes_nothing_else_along() {
        let events = Events::new("ns", Some("/nowhere".into()));
        events.publish(Event::Metrics(metric("sent", Any::default())));
        let sent = events.next().unwrap();
        for number in 0..MOST_DROPPABLE {
            events.publish(Event::Metrics(metric(&number.to_string(), Any::default())));
        }
        assert_eq!(events.queue().dropped, 1);
        events.remove(sent.number);
        assert_eq!(queue_of(&events).len(), MOST_DROPPABLE);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn without_an_address_the_queue_still_drains() {
        let events = Events::new("ns", None);
        events.publish(Event::Start(TaskStart::new()));
        events.flush(Duration::from_secs(5)).await;
        assert!(queue_of(&events).is_empty());
    }
}
