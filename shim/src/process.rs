//! The life of one process, a container's first or an exec: a state and the
//! moves that are legal in it.

use std::time::SystemTime;

use tokio::sync::watch;

use crate::error::{Error, Result};

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exit {
    /// Exit code, or 128 + the signal's number.
    pub code: u32,
    /// When.
    pub at: SystemTime,
}

impl Exit {
    /// What a process reports that was killed by `signal`.
    pub fn by_signal(signal: u32) -> Self {
        Self {
            code: 128 + signal,
            at: SystemTime::now(),
        }
    }
}

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Prepared, not started.
    Created,
    /// Being started.
    Starting,
    /// Started.
    Running,
    /// Stopped for a while.
    Paused,
    /// Ended.
    Stopped(Exit),
}

impl State {
    /// Whether the process is no more.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Stopped(_))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Starting => "being started",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped(_) => "stopped",
        }
    }

    /// Whether a process in state `self` may come into state `next`.
    fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // A failed start leaves it as it was.
            (Self::Created, Self::Starting) | (Self::Starting, Self::Created | Self::Running) => {
                true
            }
            (Self::Running, Self::Paused) | (Self::Paused, Self::Running) => true,
            (Self::Created | Self::Running | Self::Paused, Self::Stopped(_)) => true,
            _ => false,
        }
    }
}

/// A process's state, which others can wait for.
#[derive(Debug)]
pub struct Life {
    /// How errors call it, such as `task abc`.
    name: String,
    state: watch::Sender<State>,
}

impl Life {
    /// A process that is prepared; `name` appears in errors.
    pub fn new(name: String) -> Self {
        Self {
            name,
            state: watch::Sender::new(State::Created),
        }
    }

    /// The state now.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// The exit, if the process has ended.
    pub fn exit(&self) -> Option<Exit> {
        match self.state() {
            State::Stopped(exit) => Some(exit),
            State::Created | State::Starting | State::Running | State::Paused => None,
        }
    }

    /// Moves to `next`.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if that is not legal now; nothing changes.
    pub fn become_state(&self, next: State) -> Result<()> {
        let mut before = State::Created;
        let moved = self.state.send_if_modified(|state| {
            before = *state;
            let legal = state.may_become(next);
            if legal {
                *state = next;
            }
            legal
        });
        if moved {
            return Ok(());
        }
        Err(Error::FailedPrecondition(format!(
            "{} is {} and cannot become {}",
            self.name,
            before.name(),
            next.name()
        )))
    }

    /// Waits until no start is under way, and says what came of it.
    pub async fn settled(&self) -> State {
        let mut receiver = self.state.subscribe();
        // The sender is `self`, so the channel cannot be closed meanwhile.
        match receiver.wait_for(|state| *state != State::Starting).await {
            Ok(state) => *state,
            Err(_) => self.state(),
        }
    }

    /// Waits for the end.
    pub async fn wait(&self) -> Exit {
        let mut receiver = self.state.subscribe();
        loop {
            if let State::Stopped(exit) = *receiver.borrow_and_update() {
                return exit;
            }
            if receiver.changed().await.is_err() {
                return self.exit().unwrap_or_else(|| Exit::by_signal(9));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Exit = Exit {
        code: 0,
        at: SystemTime::UNIX_EPOCH,
    };
    const ALL: [State; 5] = [
        State::Created,
        State::Starting,
        State::Running,
        State::Paused,
        State::Stopped(END),
    ];

    #[test]
    fn every_pair_of_states() {
        let legal = [
            (State::Created, State::Starting),
            (State::Created, State::Stopped(END)),
            (State::Starting, State::Created),
            (State::Starting, State::Running),
            (State::Running, State::Paused),
            (State::Running, State::Stopped(END)),
            (State::Paused, State::Running),
            (State::Paused, State::Stopped(END)),
        ];
        for from in ALL {
            for to in ALL {
                let life = Life::new("task a".into());
                life.state.send_replace(from);
                let moved = life.become_state(to);
                assert_eq!(
                    moved.is_ok(),
                    legal.contains(&(from, to)),
                    "{from:?} to {to:?}"
                );
                let now = if moved.is_ok() { to } else { from };
                assert_eq!(life.state(), now);
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiters_see_the_end_whenever_they_come() {
        let life = Life::new("task a".into());
        let early = life.wait();
        life.become_state(State::Stopped(END)).unwrap();
        assert_eq!(early.await, END);
        assert_eq!(life.wait().await, END);
    }
}
