//! The queue of a shard's maintenance: tasks run one after the other, on background threads of the executor.
//!
//! **Invariant.** Blobs are collected once per period, however many tasks arrive, and one task runs at a time.
//!
//! **What would break it.** Treating the collection as one more task of the queue: a store with steady traffic, whose
//! queue is never empty or is full, would never be collected. So it is a flag that a timer sets, and goes first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::checkpoint::Mark;
use crate::documents::BlobId;
use crate::executor::{Executor, Timer};

/// Maximum number of queued tasks. Superseded blobs beyond it are left to garbage collection.
const TASKS_MAX: usize = 10_000;

/// Work for maintenance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Takes a snapshot at this mark, and truncates the log.
    Checkpoint(Mark),
    /// Deletes a blob that a durable record has superseded.
    Delete(BlobId),
    /// Deletes blobs without a reference.
    CollectBlobs,
}

/// Carries out tasks.
pub(super) trait Worker: Send {
    /// Carries out one task. Returns early if `stopped` becomes true.
    fn work(&mut self, task: Task, stopped: &AtomicBool);
}

/// The queue. Clones share it.
#[derive(Clone)]
pub(super) struct TaskQueue(Arc<Shared>);

struct Shared {
    state: Mutex<QueueState>,
    /// Signalled when no job is running.
    idle: Condvar,
    is_stopped: AtomicBool,
    executor: Arc<dyn Executor>,
    period: Duration,
    /// `None` until it is started, and once it is stopped.
    worker: Mutex<Option<Box<dyn Worker>>>,
    timer: Mutex<Option<Box<dyn Timer>>>,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Task>,
    collects: bool,
    /// A job takes tasks, or is about to.
    is_running: bool,
}

impl QueueState {
    fn next(&mut self) -> Option<Task> {
        let collects = self.collects && (self.tasks.is_empty() || !planted!(CollectionStarves));
        if collects {
            self.collects = false;
            return Some(Task::CollectBlobs);
        }
        self.tasks.pop_front()
    }
}

impl TaskQueue {
    /// A queue whose tasks wait until [`TaskQueue::start`].
    pub(super) fn new(executor: &Arc<dyn Executor>, period: Duration) -> TaskQueue {
        TaskQueue(Arc::new(Shared {
            state: Mutex::default(),
            idle: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            executor: Arc::clone(executor),
            period,
            worker: Mutex::new(None),
            timer: Mutex::new(None),
        }))
    }

    /// Starts with a collection of blobs: a crash may have left some.
    pub(super) fn start(&self, worker: Box<dyn Worker>) {
        *lock(&self.0.worker) = Some(worker);
        let shared: Weak<Shared> = Arc::downgrade(&self.0);
        let on_due = move || {
            if let Some(shared) = shared.upgrade() {
                TaskQueue(shared).collect();
            }
        };
        *lock(&self.0.timer) = Some(self.0.executor.timer(Arc::new(on_due)));
        self.collect();
    }

    /// Queues a task. Dropped if the queue is full or stopped: the next checkpoint or collection makes up for it.
    pub(super) fn push(&self, task: Task) {
        let mut state = lock(&self.0.state);
        if state.tasks.len() < TASKS_MAX {
            state.tasks.push_back(task);
            self.run(state);
        }
    }

    fn collect(&self) {
        let mut state = lock(&self.0.state);
        state.collects = true;
        self.run(state);
    }

    /// Makes sure that a job runs.
    fn run(&self, mut state: MutexGuard<'_, QueueState>) {
        if state.is_running || self.is_stopped() {
            return;
        }
        state.is_running = true;
        drop(state);
        let queue = self.clone();
        self.0.executor.spawn_background(Box::new(move || queue.work()));
    }

    /// Carries out all tasks.
    fn work(&self) {
        let _guard = PanicGuard(&self.0);
        while let Some(task) = self.next() {
            let collects = task == Task::CollectBlobs;
            if let Some(worker) = &mut *lock(&self.0.worker) {
                worker.work(task, &self.0.is_stopped);
            }
            if collects && let Some(timer) = &*lock(&self.0.timer) {
                timer.set(self.0.period);
            }
        }
    }

    fn next(&self) -> Option<Task> {
        let mut state = lock(&self.0.state);
        let next = state.next().filter(|_| !self.is_stopped());
        if next.is_none() {
            state.is_running = false;
            self.0.idle.notify_all();
        }
        next
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }

    /// Carries out no further task, and returns when the current one has ended.
    pub(super) fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        let mut state = lock(&self.0.state);
        while state.is_running {
            state = self.0.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        *lock(&self.0.timer) = None;
        *lock(&self.0.worker) = None;
    }
}

/// A job that panics leaves the rest to the next.
struct PanicGuard<'a>(&'a Shared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.state).is_running = false;
            self.0.idle.notify_all();
        }
    }
}

/// No task is lost by a panic of another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::documents::Term;
    use crate::executor::{Job, OnDue};

    /// Runs jobs when the test says so, and a timer when the test says so.
    #[derive(Default)]
    struct ByHand {
        jobs: Mutex<Vec<Job>>,
        timer: Mutex<Option<OnDue>>,
        set: Arc<AtomicBool>,
    }

    impl Executor for ByHand {
        fn spawn(&self, job: Job) {
            lock(&self.jobs).push(job);
        }

        fn spawn_background(&self, job: Job) {
            lock(&self.jobs).push(job);
        }

        fn timer(&self, on_due: OnDue) -> Box<dyn Timer> {
            *lock(&self.timer) = Some(on_due);
            Box::new(TestTimer(Arc::clone(&self.set)))
        }
    }

    struct TestTimer(Arc<AtomicBool>);

    impl Timer for TestTimer {
        fn set(&self, _: Duration) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Recorder(Sender<Task>);

    impl Worker for Recorder {
        fn work(&mut self, task: Task, _: &AtomicBool) {
            self.0.send(task).expect("the test listens");
        }
    }

    fn queue() -> (Arc<ByHand>, TaskQueue, Receiver<Task>) {
        let executor = Arc::new(ByHand::default());
        let shared: Arc<dyn Executor> = Arc::<ByHand>::clone(&executor);
        let queue = TaskQueue::new(&shared, Duration::from_secs(300));
        let (send, done) = channel();
        queue.start(Box::new(Recorder(send)));
        (executor, queue, done)
    }

    fn run(executor: &ByHand) {
        let jobs: Vec<Job> = std::mem::take(&mut *lock(&executor.jobs));
        for job in jobs {
            job();
        }
    }

    fn delete(number: u64) -> Task {
        Task::Delete(BlobId { shard: kernel::Shard(0), term: Term(1), number, random: 0 })
    }

    /// Each task restarted the period. Under steady traffic, a superseded blob every few seconds, blobs without a
    /// reference were never collected and the disk filled up.
    #[test]
    fn steady_tasks_do_not_postpone_the_collection_of_blobs() {
        let (executor, queue, done) = queue();
        run(&executor);
        assert_eq!(done.try_iter().collect::<Vec<_>>(), [Task::CollectBlobs]);
        assert!(
            executor.set.swap(false, Ordering::Relaxed),
            "the period begins with the end of a collection"
        );
        for number in 0..TASKS_MAX as u64 + 5 {
            queue.push(delete(number));
        }
        let due = lock(&executor.timer).clone().expect("a timer");
        due();
        run(&executor);
        let all: Vec<Task> = done.try_iter().collect();
        assert_eq!(all.len(), TASKS_MAX + 1, "what the queue has no room for is left to the collection");
        assert_eq!(all[..3], [Task::CollectBlobs, delete(0), delete(1)], "a full queue does not postpone it");
        assert!(executor.set.load(Ordering::Relaxed));
    }

    #[test]
    fn a_stopped_queue_carries_out_nothing() {
        let (executor, queue, done) = queue();
        queue.push(delete(1));
        let stopped = queue.clone();
        queue.0.is_stopped.store(true, Ordering::Release);
        run(&executor);
        stopped.stop();
        queue.push(delete(2));
        run(&executor);
        assert_eq!(done.try_iter().count(), 0);
    }
}
