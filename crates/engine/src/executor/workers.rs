//! The executor of a server: threads that are started when there is work and end when there has been none for a while.
//!
//! Appends and background jobs have threads of their own: a dozen snapshots at once must not keep an append waiting.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{Executor, Job, OnDue, Timer};

/// Maximum number of threads for appends. More shards than this that all append at once wait for each other.
const THREADS_MAX: usize = 24;
/// Maximum number of threads for background jobs.
const BACKGROUND_MAX: usize = 4;
/// A thread without work ends after this long.
const IDLE: Duration = Duration::from_secs(10);

/// A pool of threads. Clones share it.
#[derive(Clone)]
pub struct Workers {
    appends: Arc<Pool>,
    background: Arc<Pool>,
    timers: Arc<Timers>,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::with_appends(THREADS_MAX)
    }
}

impl Workers {
    /// Threads for this many appends at once: for logs whose appends wait for another machine.
    pub fn with_appends(threads_max: usize) -> Workers {
        let appends = Arc::new(Pool::new(threads_max.max(THREADS_MAX), false));
        let timers =
            Arc::new(Timers { pool: Arc::clone(&appends), state: Mutex::default(), changed: Condvar::new() });
        Workers { appends, background: Arc::new(Pool::new(BACKGROUND_MAX, true)), timers }
    }

    /// The number of threads, the one that waits for timers included.
    pub fn threads(&self) -> usize {
        let pools = [&self.appends, &self.background].map(|pool| lock(&pool.state).threads);
        pools.iter().sum::<usize>() + usize::from(lock(&self.timers.state).is_watched)
    }
}

impl Executor for Workers {
    fn spawn(&self, job: Job) {
        self.appends.spawn(job);
    }

    fn spawn_background(&self, job: Job) {
        self.background.spawn(job);
    }

    fn timer(&self, on_due: OnDue) -> Box<dyn Timer> {
        let mut state = lock(&self.timers.state);
        state.next_id += 1;
        let id = state.next_id;
        state.works.insert(id, on_due);
        Box::new(PoolTimer { id, timers: Arc::clone(&self.timers) })
    }
}

/// A queue of jobs and the threads that take from it.
struct Pool {
    threads_max: usize,
    low_priority: bool,
    state: Mutex<PoolState>,
    arrived: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

impl Pool {
    fn new(threads_max: usize, low_priority: bool) -> Pool {
        Pool { threads_max, low_priority, state: Mutex::default(), arrived: Condvar::new() }
    }

    fn spawn(self: &Arc<Pool>, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            drop(state);
            self.arrived.notify_one();
        } else if state.threads < self.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(self: &Arc<Pool>) {
        let pool = Arc::clone(self);
        let name = if self.low_priority { "background" } else { "append" };
        let started = std::thread::Builder::new().name(name.into()).spawn(move || pool.work());
        if started.is_err() {
            // The job stays in the queue for the other threads. Without any, the process cannot do its work.
            let mut state = lock(&self.state);
            state.threads -= 1;
            assert!(state.threads > 0, "the system cannot start a thread");
        }
    }

    fn work(self: Arc<Pool>) {
        if self.low_priority {
            lower_priority();
        }
        // Also when a job panics: another thread takes its place.
        let _leaves = ThreadGuard(&self);
        while let Some(job) = self.next() {
            job();
        }
    }

    /// The next job; `None` if there was none for a while.
    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let (again, waited) =
                self.arrived.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                return None;
            }
        }
    }
}

/// Counts a thread out of its pool.
struct ThreadGuard<'a>(&'a Arc<Pool>);

impl Drop for ThreadGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.threads -= 1;
        let needed = !state.jobs.is_empty() && state.idle < state.jobs.len();
        if needed && state.threads < self.0.threads_max {
            state.threads += 1;
            drop(state);
            self.0.start_thread();
        }
    }
}

/// On Linux each thread has its own priority. If that fails, background jobs compete with requests for the processor.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

/// All timers, and the thread that waits for the next of them.
struct Timers {
    pool: Arc<Pool>,
    state: Mutex<TimersState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimersState {
    next_id: u64,
    works: BTreeMap<u64, OnDue>,
    due: BTreeSet<(Instant, u64)>,
    due_at: BTreeMap<u64, Instant>,
    /// A thread waits for the first of `due`. It ends when there is none.
    is_watched: bool,
}

impl Timers {
    fn set(self: &Arc<Timers>, id: u64, at: Instant) {
        let mut state = lock(&self.state);
        state.cancel(id);
        state.due.insert((at, id));
        state.due_at.insert(id, at);
        let is_first = state.due.first() == Some(&(at, id));
        if !state.is_watched {
            state.is_watched = true;
            drop(state);
            let timers = Arc::downgrade(self);
            let started =
                std::thread::Builder::new().name("timer".into()).spawn(move || Timers::watch(&timers));
            assert!(started.is_ok(), "the system cannot start a thread");
        } else if is_first {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Spawns the work of timers when they are due, until none is set for a while.
    fn watch(timers: &Weak<Timers>) {
        while let Some(timers) = timers.upgrade() {
            if !timers.watch_next() {
                return;
            }
        }
    }

    /// Waits for the next timer, or for a while. Whether there may be more.
    fn watch_next(&self) -> bool {
        let state = lock(&self.state);
        let wait = state.due.first().map_or(IDLE, |(at, _)| until(*at)).min(IDLE);
        let mut state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        while let Some((at, id)) = state.due.first().copied().filter(|(at, _)| until(*at).is_zero()) {
            state.due.remove(&(at, id));
            state.due_at.remove(&id);
            if let Some(work) = state.works.get(&id).cloned() {
                self.pool.spawn(Box::new(move || work()));
            }
        }
        if state.due.is_empty() && wait == IDLE {
            state.is_watched = false;
            return false;
        }
        true
    }
}

impl TimersState {
    fn cancel(&mut self, id: u64) {
        if let Some(at) = self.due_at.remove(&id) {
            self.due.remove(&(at, id));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "timers need the time; no decision depends on it")]
fn now() -> Instant {
    Instant::now()
}

fn until(at: Instant) -> Duration {
    at.saturating_duration_since(now())
}

struct PoolTimer {
    id: u64,
    timers: Arc<Timers>,
}

impl Timer for PoolTimer {
    fn set(&self, delay: Duration) {
        self.timers.set(self.id, now() + delay);
    }
}

impl Drop for PoolTimer {
    fn drop(&mut self) {
        let mut state = lock(&self.timers.state);
        state.cancel(self.id);
        // Dropped outside the lock: it may own what owns timers.
        let work = state.works.remove(&self.id);
        drop(state);
        drop(work);
    }
}

/// A job that panics does not hold these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A pool that counted a thread as idle although its job was taken already let the second job wait for the first.
    #[test]
    fn jobs_that_wait_for_each_other_run_at_the_same_time() {
        let workers = Workers::default();
        let (here, there) = sync_channel::<()>(0);
        let (done, finished) = channel();
        let done_too = done.clone();
        workers.spawn(Box::new(move || done.send(here.send(()).is_ok()).expect("the test waits")));
        workers.spawn(Box::new(move || done_too.send(there.recv().is_ok()).expect("the test waits")));
        for _ in 0..2 {
            assert_eq!(finished.recv_timeout(DEADLINE), Ok(true));
        }
    }

    #[test]
    fn a_job_that_panics_costs_no_thread() {
        let workers = Workers::default();
        for _ in 0..2 * THREADS_MAX {
            workers.spawn(Box::new(|| panic!("a panic of this test")));
        }
        let (done, finished) = channel();
        workers.spawn(Box::new(move || done.send(()).expect("the test waits")));
        assert_eq!(finished.recv_timeout(DEADLINE), Ok(()));
    }

    #[test]
    fn a_timer_that_is_set_anew_is_due_once_and_a_dropped_one_never() {
        let workers = Workers::default();
        let (done, due) = channel();
        let send = Mutex::new(done);
        let timer = workers.timer(Arc::new(move || lock(&send).send(()).expect("the test waits")));
        timer.set(Duration::from_secs(3600));
        timer.set(Duration::ZERO);
        assert_eq!(due.recv_timeout(DEADLINE), Ok(()));
        timer.set(Duration::from_millis(1));
        assert_eq!(due.recv_timeout(DEADLINE), Ok(()));
        timer.set(Duration::from_secs(3600));
        drop(timer);
        assert!(due.recv_timeout(DEADLINE).is_err(), "the work is dropped with the timer");
    }
}
