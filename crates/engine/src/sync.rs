//! The sequencer's synchronisation primitives: the standard library's, or Shuttle's under the feature `shuttle`, where a
//! scheduler that explores interleavings runs the same code.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::mpsc::sync_channel;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::mpsc::sync_channel;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks what is never left half changed, so that a panic of another thread does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
