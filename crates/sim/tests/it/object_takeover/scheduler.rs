//! A scheduler that runs one thread at a time, from one request to the next, in an order that follows from a seed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sim::objects::SimHandle;
use sim::rng::Rng;
use store::object::{ObjectUpload, Objects, ObjectsError, Page};

/// The scheduler. Clones share the state.
#[derive(Clone)]
pub(crate) struct Scheduler(Arc<(Mutex<SchedulerState>, Condvar)>);

struct SchedulerState {
    /// The thread that runs; none if all wait.
    turn: Option<usize>,
    waiting: Vec<bool>,
    gone: Vec<bool>,
}

impl SchedulerState {
    fn all_wait(&self) -> bool {
        self.turn.is_none() && self.waiting.iter().zip(&self.gone).all(|(waiting, gone)| *waiting || *gone)
    }
}

impl Scheduler {
    pub(crate) fn new(writers: usize) -> Scheduler {
        let state = SchedulerState { turn: None, waiting: vec![false; writers], gone: vec![false; writers] };
        Scheduler(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, SchedulerState>,
        until: impl Fn(&SchedulerState) -> bool,
    ) -> MutexGuard<'a, SchedulerState> {
        self.0.1.wait_while(state, |state| !until(state)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the scheduler selects this thread.
    pub(crate) fn pass(&self, name: usize) {
        let mut state = self.state();
        state.waiting[name] = true;
        state.turn = state.turn.filter(|turn| *turn != name);
        self.0.1.notify_all();
        let mut state = self.wait(state, |state| state.turn == Some(name));
        state.waiting[name] = false;
    }

    fn leave(&self, name: usize) {
        let mut state = self.state();
        state.gone[name] = true;
        state.turn = state.turn.filter(|turn| *turn != name);
        self.0.1.notify_all();
    }

    /// Schedules threads until all have ended. Occasionally pauses one for up to 150 turns.
    pub(crate) fn run(&self, rng: &mut Rng) {
        let mut paused = vec![0; self.state().gone.len()];
        loop {
            let mut state = self.wait(self.state(), SchedulerState::all_wait);
            let alive: Vec<usize> = (0..paused.len()).filter(|name| !state.gone[*name]).collect();
            if alive.is_empty() {
                return;
            }
            let runnable: Vec<usize> = alive.iter().copied().filter(|name| paused[*name] == 0).collect();
            let name = *rng.pick(if runnable.is_empty() { &alive } else { &runnable });
            for turns in &mut paused {
                *turns = u64::saturating_sub(*turns, 1);
            }
            if rng.one_in(25) {
                paused[name] = rng.below(150);
            }
            state.turn = Some(name);
            self.0.1.notify_all();
        }
    }
}

/// Marks a thread as ended, also when it panics.
pub(crate) struct ExitGuard(pub(crate) Scheduler, pub(crate) usize);

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// A connection to the objects that waits for the scheduler before every request.
#[derive(Clone)]
pub(crate) struct ScheduledObjects {
    pub(crate) scheduler: Scheduler,
    pub(crate) name: usize,
    pub(crate) handle: SimHandle,
}

impl ScheduledObjects {
    fn turn(&self) -> &SimHandle {
        self.scheduler.pass(self.name);
        &self.handle
    }
}

impl Objects for ScheduledObjects {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.turn().put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        self.turn().get(name)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.turn().get_range(name, offset, length)
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.turn().head(name)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        self.turn().list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.turn().delete(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.turn().put(name, bytes)
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        self.turn().begin_upload(name)
    }

    fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError> {
        self.turn().abort_old_uploads(prefix)
    }
}
