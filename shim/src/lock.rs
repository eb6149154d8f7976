//! Mutexes of plain values: what a thread that panicked has left is still good.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever became of an earlier holder. Every value behind a mutex of the
/// shim is whole between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
