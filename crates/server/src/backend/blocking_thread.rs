//! Marks a thread that may block: a command that it submits is appended there, if the log is not in use.
//!
//! **What would break it.** A mark on the connection, and not on the thread: the thread that publishes a batch polls the
//! connection's request, holds the lock of publication, and would append the request's next command itself.

use std::cell::Cell;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Does this on the current thread, which may block.
pub(crate) fn while_blocking<T>(work: impl FnOnce() -> T) -> T {
    let _end = Mark(MAY_BLOCK.replace(true));
    work()
}

/// Whether the current thread may block.
pub(crate) fn may_block() -> bool {
    MAY_BLOCK.get()
}

/// Returns to the state before, also after a panic.
struct Mark(bool);

impl Drop for Mark {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_of_this_thread_and_ends_with_a_panic() {
        let panicked = std::panic::catch_unwind(|| {
            while_blocking(|| {
                assert!(may_block());
                assert!(!std::thread::spawn(may_block).join().expect("no panic"));
                panic!("a panic of this test")
            })
        });
        assert!(panicked.is_err());
        assert!(!may_block());
    }
}
