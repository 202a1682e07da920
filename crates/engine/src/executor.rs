//! Where the work of shards runs: a pool of threads that all shards of a process share.
//!
//! A shard owns no thread. It spawns a job when there is a batch to append, and sets a timer for what is due. So a
//! thousand idle shards cost no thread, and the simulator and the model checker can run the same code with a schedule of
//! their own.

mod workers;

use std::sync::Arc;
use std::time::Duration;

pub use self::workers::Workers;

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// The work of a timer, done each time it is due.
pub type OnDue = Arc<dyn Fn() + Send + Sync>;

/// Runs jobs and timers.
pub trait Executor: Send + Sync {
    /// Runs a job soon, on a thread that may block. Requests wait for it.
    fn spawn(&self, job: Job);

    /// Runs a job that may take seconds and that no request waits for: a snapshot, the next segment of a log.
    fn spawn_background(&self, job: Job);

    /// A timer. Its work runs as a job of [`Executor::spawn`].
    fn timer(&self, on_due: OnDue) -> Box<dyn Timer>;
}

/// A timer. Dropping it cancels it.
pub trait Timer: Send + Sync {
    /// Makes it due once, after `delay`, instead of when it was due before.
    fn set(&self, delay: Duration);
}
