//! Waiting for a condition, with a deadline instead of a sleep.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything that happens in a moment on an idle machine may take.
///
/// Far beyond what is ever needed: a test host without KVM is ten times slower.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Asks `probe` until it answers, or panics with `what` after [`LIMIT`].
pub fn until_some<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    within(LIMIT, probe).unwrap_or_else(|| panic!("waited {LIMIT:?} in vain for {what}"))
}

/// Asks `probe` until it holds, or panics with `what` after [`LIMIT`].
pub fn until(what: &str, mut probe: impl FnMut() -> bool) {
    until_some(what, || probe().then_some(()));
}

/// Asks `probe` until it answers or `limit` has passed.
pub fn within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
