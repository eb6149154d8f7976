//! Calls that run to their end, whatever becomes of the caller.
//!
//! The ttrpc server drops a handler half-way when the client's deadline passes
//! or its connection closes. A task half created or half deleted would be left
//! behind, so such work runs detached, and a client that asks again joins it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::lock::lock;

/// The calls of one kind that are under way, by what they work on.
#[derive(Debug)]
pub struct Calls<T> {
    running: Arc<Mutex<HashMap<String, Pending<T>>>>,
}

/// A call under way, seen from those who wait for it.
type Pending<T> = watch::Receiver<Option<Outcome<T>>>;

type Outcome<T> = std::result::Result<T, Arc<Error>>;

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Self {
            running: Arc::default(),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Calls<T> {
    /// Runs `work` detached under `key`, or joins the call that already runs
    /// there, and waits for its outcome.
    ///
    /// # Errors
    /// That of the work, or of its panic.
    pub async fn join<F>(&self, key: &str, work: F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut receiver = {
            let mut running = lock(&self.running);
            match running.get(key) {
                Some(receiver) => receiver.clone(),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    running.insert(key.to_owned(), receiver.clone());
                    let running = Arc::clone(&self.running);
                    let key = key.to_owned();
                    tokio::spawn(async move {
                        // Apart, so that a panic ends the work and not what
                        // is owed to those who wait for it.
                        let outcome = tokio::spawn(work).await.unwrap_or_else(|error| {
                            Err(Error::System {
                                action: format!("finish the call for {key}"),
                                source: std::io::Error::other(error),
                            })
                        });
                        let outcome = outcome.map_err(Arc::new);
                        lock(&running).remove(&key);
                        sender.send_replace(Some(outcome));
                    });
                    receiver
                }
            }
        };
        let outcome = receiver
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|outcome| outcome.clone())
            .ok_or_else(|| Error::System {
                action: format!("finish the call for {key}"),
                source: std::io::Error::other("it ended without an outcome"),
            })?;
        outcome.map_err(|error| error.shared())
    }

    /// Waits until no call runs under `key`.
    pub async fn settled(&self, key: &str) {
        let receiver = lock(&self.running).get(key).cloned();
        if let Some(mut receiver) = receiver {
            // An error means that the call is gone, which is as good.
            let _ = receiver.wait_for(Option::is_some).await;
        }
    }

    /// Whether nothing runs at all.
    pub fn is_idle(&self) -> bool {
        lock(&self.running).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_work_outlives_its_caller_and_is_done_once() {
        let calls = Arc::new(Calls::<usize>::default());
        let go = Arc::new(Notify::new());
        let runs = Arc::new(AtomicUsize::new(0));
        let work = |go: Arc<Notify>, runs: Arc<AtomicUsize>| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            go.notified().await;
            Ok(7)
        };
        {
            let first = calls.join("a", work(go.clone(), runs.clone()));
            tokio::select! {
                biased;
                _ = first => panic!("it cannot be done yet"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert!(!calls.is_idle(), "the caller is gone, the work is not");
        let second = calls.join("a", work(go.clone(), runs.clone()));
        let (second, ()) = tokio::join!(second, async { go.notify_one() });
        assert_eq!(second.unwrap(), 7);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert!(calls.is_idle());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_is_an_error_and_leaves_nothing_running() {
        let calls = Calls::<()>::default();
        let work = async { panic!("on purpose") };
        let error = calls.join("a", work).await.unwrap_err();
        assert!(
            error.to_string().contains("finish the call for a"),
            "{error}"
        );
        assert!(calls.is_idle());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn errors_reach_every_caller_with_their_code() {
        let calls = Calls::<()>::default();
        let fail = || async { Err(Error::NotFound("gone".into())) };
        let (first, second) = tokio::join!(calls.join("a", fail()), calls.join("a", fail()));
        for outcome in [first, second] {
            assert_eq!(outcome.unwrap_err().code(), protos::ttrpc::Code::NOT_FOUND);
        }
    }
}
