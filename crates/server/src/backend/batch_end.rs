//! Work that a thread postpones to the end of the batch whose replies it publishes.
//!
//! A connection with many calls in flight gets many replies from one batch. Written one by one, each costs a call of the
//! system; postponed, they are one.
//!
//! **Invariant.** What was postponed runs on the same thread, after the last reply of the batch, before anything else is
//! published by this thread.

use std::cell::RefCell;
use std::sync::Arc;

/// Work at the end of a batch. Must not block.
pub(crate) trait AtBatchEnd: Send + Sync {
    /// Does it.
    fn run(&self);
}

#[derive(Default)]
struct Postponed {
    /// Batches whose replies this thread publishes: a reply may submit a command to a log in memory, whose batch is
    /// published within.
    batches: u32,
    work: Vec<Arc<dyn AtBatchEnd>>,
}

thread_local! {
    static POSTPONED: RefCell<Postponed> = RefCell::default();
}

/// This thread publishes the replies of a batch from here on.
pub(crate) fn begin() {
    POSTPONED.with_borrow_mut(|postponed| postponed.batches += 1);
}

/// The replies are published: what was postponed runs, unless this batch is within another.
pub(crate) fn end() {
    let work = POSTPONED.with_borrow_mut(|postponed| {
        postponed.batches = postponed.batches.saturating_sub(1);
        if postponed.batches == 0 { std::mem::take(&mut postponed.work) } else { Vec::new() }
    });
    for one in work {
        one.run();
    }
}

/// Postpones work to the end of the batch. Returns false if this thread publishes none: the caller does it now.
pub(crate) fn postpone(work: impl FnOnce() -> Arc<dyn AtBatchEnd>) -> bool {
    POSTPONED.with_borrow_mut(|postponed| {
        let is_publishing = postponed.batches > 0;
        if is_publishing {
            postponed.work.push(work());
        }
        is_publishing
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl AtBatchEnd for Count {
        fn run(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn work_runs_at_the_end_of_the_outermost_batch_and_only_there() {
        let count = Arc::new(Count::default());
        let postponed = || postpone(|| Arc::clone(&count) as Arc<dyn AtBatchEnd>);
        assert!(!postponed(), "no batch");
        begin();
        begin();
        assert!(postponed());
        end();
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "the batch around it is not over");
        end();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(!postponed());
    }
}
