//! Lets one thread run at a time, from one request to its next, in an order that a seed decides.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sim::objects::SimHandle;
use sim::rng::Rng;
use store::object::{Objects, ObjectsError, Page};

/// What all wait at. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

struct State {
    /// Who runs; nobody, if all wait.
    turn: Option<usize>,
    waiting: Vec<bool>,
    gone: Vec<bool>,
}

impl State {
    fn all_wait(&self) -> bool {
        self.turn.is_none() && self.waiting.iter().zip(&self.gone).all(|(waiting, gone)| *waiting || *gone)
    }
}

impl Gate {
    pub(crate) fn new(parties: usize) -> Gate {
        let state = State { turn: None, waiting: vec![false; parties], gone: vec![false; parties] };
        Gate(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.0.1.wait_while(state, |state| !until(state)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one's turn.
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

    /// Gives turns until all have gone. Now and then somebody sleeps for a long while.
    pub(crate) fn run(&self, rng: &mut Rng) {
        let mut asleep = vec![0; self.state().gone.len()];
        loop {
            let mut state = self.wait(self.state(), State::all_wait);
            let there: Vec<usize> = (0..asleep.len()).filter(|name| !state.gone[*name]).collect();
            if there.is_empty() {
                return;
            }
            let awake: Vec<usize> = there.iter().copied().filter(|name| asleep[*name] == 0).collect();
            let name = *rng.pick(if awake.is_empty() { &there } else { &awake });
            for turns in &mut asleep {
                *turns = u64::saturating_sub(*turns, 1);
            }
            if rng.one_in(25) {
                asleep[name] = rng.below(150);
            }
            state.turn = Some(name);
            self.0.1.notify_all();
        }
    }
}

/// Marks a party as gone, also when it panics.
pub(crate) struct Leaving(pub(crate) Gate, pub(crate) usize);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// A way to the objects that waits for its turn before every request.
#[derive(Clone)]
pub(crate) struct InTurn {
    pub(crate) gate: Gate,
    pub(crate) name: usize,
    pub(crate) handle: SimHandle,
}

impl InTurn {
    fn turn(&self) -> &SimHandle {
        self.gate.pass(self.name);
        &self.handle
    }
}

impl Objects for InTurn {
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
}
