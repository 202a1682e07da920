//! The calls to an object store that a log and blobs are made of, and nothing else.
//!
//! **Invariant.** What is assumed of an implementation: once a put has succeeded, every get, head and list
//! that begins later sees the object; of all puts to one name while it is in use exactly one succeeds;
//! an object is there whole or not at all. A request that timed out may still happen, at any later time.
//!
//! **What would break it.** An implementation that turns a time-out into "it failed", retries a put itself
//! and reports its own first try as [`Answer::Taken`] without that being read back, or lists from a cache.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::port::{ErrorKind, StoreError};

/// An object store: immutable objects by name.
pub trait Objects: Send + Sync {
    /// Makes an object, unless there is one of that name.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError>;
    /// All of an object.
    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError>;
    /// At most `length` bytes from `offset` on; fewer only at the end, none behind it.
    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError>;
    /// How long an object is.
    fn head(&self, name: &str) -> Result<u64, ObjectsError>;
    /// Names that begin with `prefix` and are above `after`, in order, as many as one answer takes.
    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError>;
    /// Removes an object; it is fine if there is none.
    fn delete(&self, name: &str) -> Result<(), ObjectsError>;
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The names, in order.
    pub names: Vec<String>,
    /// There may be others above the last of them.
    pub more: bool,
}

/// What an object store says instead of doing it, as far as the protocol acts differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 412: there is an object of this name. It may be the caller's own, from a try that seemed to fail.
    Taken,
    /// 409: others are at it. Undecided; try again.
    Conflict,
    /// 503 and throttling: nothing happened, or nobody knows.
    Unavailable,
    /// No answer came. It may have happened, and it may happen yet.
    TimedOut,
    /// 404: there is no such object.
    NotFound,
    /// Anything that trying again does not mend: rights, configuration.
    Denied,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsError {
    /// What callers look at.
    pub answer: Answer,
    /// What people read.
    pub what: String,
}

impl ObjectsError {
    /// An answer, in words.
    pub fn new(answer: Answer, what: impl Into<String>) -> ObjectsError {
        ObjectsError { answer, what: what.into() }
    }

    /// May the same request succeed later?
    pub fn may_pass(&self) -> bool {
        matches!(self.answer, Answer::Conflict | Answer::Unavailable | Answer::TimedOut)
    }

    /// As a store's failure, with what was being done.
    pub(super) fn while_doing(&self, doing: impl fmt::Display) -> StoreError {
        let kind = match self.answer {
            Answer::Taken => ErrorKind::Taken,
            Answer::NotFound => ErrorKind::Gone,
            Answer::Denied => ErrorKind::Refused,
            Answer::Conflict | Answer::Unavailable | Answer::TimedOut => ErrorKind::Io,
        };
        StoreError::new(kind, format!("{doing}: {self}"))
    }
}

impl fmt::Display for ObjectsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: answer={:?}", self.what, self.answer)
    }
}

impl std::error::Error for ObjectsError {}

/// What the owner does between two tries: it is told how many have failed, waits as it sees fit, and may
/// say that it is enough. The store itself neither sleeps nor looks at a clock.
pub type Pause = Arc<dyn Fn(u32) -> ControlFlow<()> + Send + Sync>;

/// How often a request is tried, and what happens in between.
#[derive(Clone)]
pub struct Patience {
    tries: u32,
    pause: Pause,
}

impl Patience {
    /// So many tries, at least one, with a pause between any two.
    pub fn new(tries: u32, pause: Pause) -> Patience {
        Patience { tries: tries.max(1), pause }
    }

    /// So many tries without a pause: for tests and trials.
    pub fn without_pause(tries: u32) -> Patience {
        Patience::new(tries, Arc::new(|_| ControlFlow::Continue(())))
    }

    /// After so many failures: pauses if there is to be another try, and says whether there is.
    pub(super) fn again(&self, failed: u32) -> bool {
        failed < self.tries && (self.pause)(failed).is_continue()
    }

    /// Tries a request that may be repeated without harm.
    pub(super) fn keep_trying<T>(
        &self,
        mut request: impl FnMut() -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        let mut failed = 0;
        loop {
            match request() {
                Err(error) if error.may_pass() => {
                    failed += 1;
                    if !self.again(failed) {
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
        ObjectsError::new(Answer::Unavailable, "slow down")
    }

    #[test]
    fn there_is_a_pause_between_tries_and_none_behind_the_last() {
        let pauses = Arc::new(AtomicU32::new(0));
        let counted = pauses.clone();
        let pause: Pause = Arc::new(move |failed| {
            assert_eq!(counted.fetch_add(1, Ordering::Relaxed) + 1, failed);
            ControlFlow::Continue(())
        });
        let mut tries = 0;
        let failed = Patience::new(4, pause).keep_trying(|| {
            tries += 1;
            Err::<(), _>(unavailable())
        });
        assert_eq!((failed, tries, pauses.load(Ordering::Relaxed)), (Err(unavailable()), 4, 3));
    }

    #[test]
    fn the_owner_may_say_that_it_is_enough() {
        let mut tries = 0;
        let patience = Patience::new(100, Arc::new(|_| ControlFlow::Break(())));
        let failed = patience.keep_trying(|| {
            tries += 1;
            Err::<(), _>(unavailable())
        });
        assert_eq!((failed.is_err(), tries), (true, 1));
    }

    #[test]
    fn what_is_decided_is_not_tried_again() {
        for answer in [Answer::Taken, Answer::NotFound, Answer::Denied] {
            let mut tries = 0;
            let failed = Patience::without_pause(5).keep_trying(|| {
                tries += 1;
                Err::<(), _>(ObjectsError::new(answer, "no"))
            });
            assert_eq!((failed.map_err(|error| error.answer), tries), (Err(answer), 1));
        }
    }
}
