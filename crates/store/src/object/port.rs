//! The object-store calls that logs and blobs use, and nothing else.
//!
//! **Invariant.** Assumed of an implementation: once a put has succeeded, every get, head and list that
//! starts later sees the object; of all puts to one name while it is in use, exactly one succeeds; an object
//! is created completely or not at all. A request that timed out may still take effect, at any later time.
//!
//! **What would break it.** An implementation that reports a timeout as a failure, that retries a put itself
//! and reports its own first attempt as [`ObjectsErrorKind::Taken`], or that lists from a cache.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::part::Part;
use crate::port::{ErrorKind, StoreError};

/// An object store: immutable objects by name.
pub trait Objects: Send + Sync {
    /// Creates an object; fails with [`ObjectsErrorKind::Taken`] if the name is in use.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError>;
    /// Reads a whole object.
    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError>;
    /// Reads at most `length` bytes from `offset`; fewer only at the end, none past it.
    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError>;
    /// Begins to read a range by one request, however long it is; `None` if the client has ranges only.
    fn open_range(&self, range: &ObjectRange) -> Result<Option<Box<dyn ObjectStream>>, ObjectsError> {
        let _ = range;
        Ok(None)
    }
    /// The length of an object in bytes.
    fn head(&self, name: &str) -> Result<u64, ObjectsError>;
    /// One page of the names that begin with `prefix` and sort after `after`.
    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError>;
    /// Deletes an object; succeeds if there is none.
    fn delete(&self, name: &str) -> Result<(), ObjectsError>;

    /// Creates an object, or replaces it. For hints only: nothing that decides is ever replaced.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError>;

    /// Creates an object like [`Objects::put_if_absent`]. A client may send the bytes without having them in memory.
    fn put_part_if_absent(&self, name: &str, content: &Part) -> Result<(), ObjectsError> {
        self.put_if_absent(name, &content.bytes()?)
    }

    /// Begins an upload in parts, for objects that are too large for one request. The object appears when the upload is
    /// completed, whether the name is in use or not: so the name must be one that is never used twice.
    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError>;

    /// Aborts uploads of names with this prefix that were begun long ago, by writers that have ended since. Returns
    /// their number.
    fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError>;

    /// Reads several ranges; the results are in the order of the requests. A client may send them at once.
    fn get_ranges(&self, ranges: &[ObjectRange]) -> Vec<Result<Vec<u8>, ObjectsError>> {
        ranges.iter().map(|range| self.get_range(&range.name, range.offset, range.length)).collect()
    }

    /// Creates several objects, each like [`Objects::put_if_absent`]; the results are in the order of the requests. A client
    /// may send them at once.
    fn put_all_if_absent(&self, objects: &[NewObject]) -> Vec<Result<(), ObjectsError>> {
        objects.iter().map(|object| self.put_if_absent(&object.name, &object.bytes)).collect()
    }

    /// Deletes objects; succeeds for names that are not in use. After a failure some may be deleted.
    fn delete_all(&self, names: &[String]) -> Result<(), ObjectsError> {
        names.iter().try_for_each(|name| self.delete(name))
    }
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The object.
    pub name: String,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; fewer are read only at the end.
    pub length: usize,
}

/// An object to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Its name.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// An object that is being uploaded in parts. Each call may be retried. Dropped before it is completed, the upload is
/// aborted in the background, as well as that can be done.
pub trait ObjectUpload: Send {
    /// Sends one part; they are numbered from 0. All but the last have the same length.
    fn put_part(&mut self, number: usize, part: &Part) -> Result<(), ObjectsError>;

    /// Creates the object from the parts. After a failure that is transient, the object may exist.
    fn complete(&mut self) -> Result<(), ObjectsError>;
}

/// An object that is being read. After a failure it yields nothing more: begin again where it ended.
pub trait ObjectStream: Send {
    /// The next bytes, at most `length`; fewer only at the end.
    fn read(&mut self, length: usize) -> Result<Vec<u8>, ObjectsError>;
}

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The names, sorted.
    pub names: Vec<String>,
    /// There may be further names after the last of these.
    pub more: bool,
}

/// The kinds of failure that the protocol handles differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectsErrorKind {
    /// 412: the name is in use. The object may be the caller's own, from an attempt that seemed to fail.
    Taken,
    /// 409: conflicts with a concurrent request. Undecided; retry.
    Conflict,
    /// 503 and throttling: no effect, or an unknown one.
    Unavailable,
    /// No response. The request may have taken effect, or may do so later.
    TimedOut,
    /// 404: no such object.
    NotFound,
    /// A retry cannot help: permissions, configuration.
    Denied,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsError {
    /// For callers that handle failures differently.
    pub kind: ObjectsErrorKind,
    /// The message for people.
    pub what: String,
}

impl ObjectsError {
    /// A failure with a message.
    pub fn new(kind: ObjectsErrorKind, what: impl Into<String>) -> ObjectsError {
        ObjectsError { kind, what: what.into() }
    }

    /// Whether a retry of the same request may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            ObjectsErrorKind::Conflict | ObjectsErrorKind::Unavailable | ObjectsErrorKind::TimedOut
        )
    }

    /// Converts to a store failure, with the operation and the object's name or prefix.
    pub(super) fn into_store_error(self, doing: &str, name: &str) -> StoreError {
        let kind = match self.kind {
            ObjectsErrorKind::Taken => ErrorKind::Taken,
            ObjectsErrorKind::NotFound => ErrorKind::Gone,
            ObjectsErrorKind::Denied => ErrorKind::Refused,
            ObjectsErrorKind::Conflict | ObjectsErrorKind::Unavailable | ObjectsErrorKind::TimedOut => {
                ErrorKind::Io
            }
        };
        StoreError::new(kind, format!("{doing}: {self} object={name}"))
    }
}

impl fmt::Display for ObjectsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kind={:?}", self.what, self.kind)
    }
}

impl std::error::Error for ObjectsError {}

/// Called between two attempts with the number of failures so far. It waits as long as it sees fit, and may
/// stop the retries. The store itself neither sleeps nor reads a clock.
pub type Pause = Arc<dyn Fn(u32) -> ControlFlow<()> + Send + Sync>;

/// The retry policy: the maximum number of attempts, and the pause between them.
#[derive(Clone)]
pub struct RetryPolicy {
    attempts_max: u32,
    pause: Pause,
}

impl RetryPolicy {
    /// At most `attempts` attempts, at least one, with a pause between any two.
    pub fn new(attempts: u32, pause: Pause) -> RetryPolicy {
        RetryPolicy { attempts_max: attempts.max(1), pause }
    }

    /// At most `attempts` attempts without a pause, for tests.
    pub fn without_pause(attempts: u32) -> RetryPolicy {
        RetryPolicy::new(attempts, Arc::new(|_| ControlFlow::Continue(())))
    }

    /// After `failed` failures: pauses if another attempt is allowed. Whether it is.
    pub(super) fn backoff(&self, failed: u32) -> bool {
        failed < self.attempts_max && (self.pause)(failed).is_continue()
    }

    /// Retries an idempotent request.
    pub(super) fn retry<T>(
        &self,
        mut request: impl FnMut() -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        let mut failed = 0;
        loop {
            match request() {
                Err(error) if error.is_transient() => {
                    failed += 1;
                    if !self.backoff(failed) {
                        return Err(error);
                    }
                }
                decided => return decided,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn unavailable() -> ObjectsError {
        ObjectsError::new(ObjectsErrorKind::Unavailable, "slow down")
    }

    #[test]
    fn pauses_between_attempts_and_not_after_the_last() {
        let pauses = Arc::new(AtomicU32::new(0));
        let counted = pauses.clone();
        let pause: Pause = Arc::new(move |failed| {
            assert_eq!(counted.fetch_add(1, Ordering::Relaxed) + 1, failed);
            ControlFlow::Continue(())
        });
        let mut tries = 0;
        let failed = RetryPolicy::new(4, pause).retry(|| {
            tries += 1;
            Err::<(), _>(unavailable())
        });
        assert_eq!((failed, tries, pauses.load(Ordering::Relaxed)), (Err(unavailable()), 4, 3));
    }

    #[test]
    fn the_pause_can_stop_the_retries() {
        let mut tries = 0;
        let policy = RetryPolicy::new(100, Arc::new(|_| ControlFlow::Break(())));
        let failed = policy.retry(|| {
            tries += 1;
            Err::<(), _>(unavailable())
        });
        assert_eq!((failed.is_err(), tries), (true, 1));
    }

    #[test]
    fn decided_failures_are_not_retried() {
        for kind in [ObjectsErrorKind::Taken, ObjectsErrorKind::NotFound, ObjectsErrorKind::Denied] {
            let mut tries = 0;
            let failed = RetryPolicy::without_pause(5).retry(|| {
                tries += 1;
                Err::<(), _>(ObjectsError::new(kind, "no"))
            });
            assert_eq!((failed.map_err(|error| error.kind), tries), (Err(kind), 1));
        }
    }
}
