//! An executor on one thread, whose schedule the seed decides.
//!
//! A job runs when the simulation says so: until then an append is in flight, and other commands arrive and are decided.
//! Timers are due by the clock of the simulated machine, and become jobs then. A crash drops all jobs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use engine::Clock;
use engine::internals::executor::{Executor, Job, OnDue, Timer};
use kernel::Span;

use super::clock::Machine;
use crate::rng::Rng;

/// The jobs and timers of one server.
pub struct SimExecutor {
    machine: Machine,
    state: Mutex<ExecutorState>,
}

#[derive(Default)]
struct ExecutorState {
    jobs: Vec<Job>,
    timers: Vec<Weak<SimTimer>>,
    /// The process has ended: nothing runs any more.
    is_dead: bool,
}

struct SimTimer {
    machine: Machine,
    on_due: OnDue,
    /// By the machine's boot clock.
    due: Mutex<Option<Span>>,
}

struct TimerHandle(Arc<SimTimer>);

impl Timer for TimerHandle {
    fn set(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).expect("a timer of at most a few seconds");
        *lock(&self.0.due) = Some(Span(self.0.machine.boot_clock().0 + delay));
    }
}

impl Executor for SimExecutor {
    fn spawn(&self, job: Job) {
        let mut state = lock(&self.state);
        if !state.is_dead {
            state.jobs.push(job);
        }
    }

    fn spawn_background(&self, job: Job) {
        self.spawn(job);
    }

    fn timer(&self, on_due: OnDue) -> Box<dyn Timer> {
        let timer = Arc::new(SimTimer { machine: self.machine.clone(), on_due, due: Mutex::default() });
        lock(&self.state).timers.push(Arc::downgrade(&timer));
        Box::new(TimerHandle(timer))
    }
}

impl SimExecutor {
    /// Without jobs, on this machine.
    pub fn new(machine: &Machine) -> SimExecutor {
        SimExecutor { machine: machine.clone(), state: Mutex::default() }
    }

    /// Runs one of the jobs, chosen at random. False if there is none.
    pub fn run_one(&self, rng: &mut Rng) -> bool {
        if !self.has_jobs() {
            return false;
        }
        let mut state = lock(&self.state);
        let index = usize::try_from(rng.below(state.jobs.len() as u64)).expect("few jobs");
        let job = state.jobs.swap_remove(index);
        drop(state);
        job();
        true
    }

    /// Whether there is something to run now, with the timers that are due.
    pub fn has_jobs(&self) -> bool {
        let timers: Vec<Arc<SimTimer>> = lock(&self.state).timers.iter().filter_map(Weak::upgrade).collect();
        let now = self.machine.boot_clock();
        for timer in timers {
            let is_due = lock(&timer.due).take_if(|due| *due <= now).is_some();
            if is_due {
                let on_due = Arc::clone(&timer.on_due);
                self.spawn(Box::new(move || on_due()));
            }
        }
        !lock(&self.state).jobs.is_empty()
    }

    /// The time until the next timer is due.
    pub fn until_timer(&self) -> Option<Span> {
        let now = self.machine.boot_clock();
        let state = lock(&self.state);
        let due = state.timers.iter().filter_map(Weak::upgrade).filter_map(|timer| *lock(&timer.due));
        due.min().map(|due| Span(due.0.saturating_sub(now.0)))
    }

    /// The process has ended: all jobs are dropped, and none is accepted any more.
    pub fn kill(&self) {
        let mut state = lock(&self.state);
        state.is_dead = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        // Dropping a job may report a lost response, and so spawn another.
        drop(jobs);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
