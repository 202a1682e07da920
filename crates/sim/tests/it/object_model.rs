//! A model of the log in an object store, checked in every interleaving: ownership, takeover, truncation and floors,
//! recovery, reads, garbage collection of blobs, and planned hand-over.
//!
//! Three servers share one log: the first owns it, the others follow, and any of them may take over at any moment, because
//! safety needs no clock. Puts of batches get lost, land late, and are repeated. A step is one request to the object store
//! or the processing of one response, so a server can be paused between any two. The argument that the model checks, with
//! the code of each step, is in `docs/internals/object-store.md`; that page also lists where the model is coarser.
//!
//! **Two parts.** The protocol keeps every promise in all states within some bounds ([`scenes`]), and the search has seen
//! what it is about (a late put, two candidates, a dead successor, …). Then each safeguard is removed in turn
//! ([`variant::Variant`]), and a promise breaks: `ownership` and `outcomes` pin which, and the shortest way there.

mod state;
mod action;
mod step;
mod variant;
mod property;
mod ownership;
mod outcomes;

use std::collections::BTreeSet;

use stateright::{Checker, Expectation, Model, Property};

use action::Action;
use state::{Budget, State};
use variant::Variant;

use crate::sized;

struct ObjectModel {
    variant: Variant,
    budget: Budget,
}

impl Model for ObjectModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self.budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.apply(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<ObjectModel>> {
        property::properties()
    }
}

/// Nothing happens but takeovers.
const QUIET: Budget = Budget {
    log: 4,
    commands: 0,
    reads: 0,
    timeouts: 0,
    duplicates: 0,
    crashes: 0,
    floors: 0,
    closes: 0,
    collections: 0,
};

/// The bounds that are searched, each to its end. All kinds of events in one run have too many states.
fn scenes() -> Vec<(&'static str, Budget)> {
    let one = Budget { commands: 1, ..QUIET };
    let two = Budget { commands: 2, ..QUIET };
    if sized(0, 1) == 0 {
        vec![
            ("late puts", Budget { log: 5, timeouts: 1, floors: 2, ..two }),
            ("crashes", Budget { timeouts: 1, crashes: 1, floors: 1, ..one }),
            ("reads", Budget { reads: 1, timeouts: 1, floors: 1, ..one }),
            ("hand-over", Budget { log: 3, crashes: 1, closes: 1, ..one }),
            ("blobs", Budget { timeouts: 1, collections: 1, ..two }),
        ]
    } else {
        vec![
            ("late puts", Budget { log: 5, timeouts: 2, duplicates: 1, floors: 2, ..two }),
            ("crashes", Budget { timeouts: 1, crashes: 1, floors: 1, ..one }),
            ("reads", Budget { reads: 2, timeouts: 1, ..two }),
            ("hand-over", Budget { timeouts: 1, crashes: 1, closes: 1, ..one }),
            ("hand-over and reads", Budget { reads: 1, timeouts: 1, floors: 1, closes: 1, ..one }),
            ("hand-over and truncation", Budget { log: 5, timeouts: 1, floors: 1, closes: 1, ..one }),
            ("blobs", Budget { log: 5, timeouts: 1, floors: 1, collections: 1, ..two }),
        ]
    }
}

/// At least 500,000 states, or ten million with `LOCKD_LONG=1`; `--nocapture` prints how many.
#[test]
fn every_interleaving_keeps_the_promises() {
    let (mut states, mut seen) = (0, BTreeSet::new());
    for (scene, budget) in scenes() {
        let model = ObjectModel { variant: Variant::Correct, budget };
        let checker = model.checker().threads(2).spawn_bfs().join();
        let (count, depth) = (checker.unique_state_count(), checker.max_depth());
        println!("{scene}: all {count} states, at most {depth} steps");
        for (name, path) in checker.discoveries() {
            let broken = property::always().iter().any(|always| always.name == name);
            assert!(!broken, "{scene}: {name}: {:#?}", path.into_actions());
            seen.insert(name);
        }
        states += count;
    }
    println!("all scenes: {states} states");
    assert!(states as u64 >= sized(500_000, 10_000_000), "only {states} states");
    for property in property::properties() {
        let is_unseen = property.expectation == Expectation::Sometimes && !seen.contains(property.name);
        assert!(!is_unseen, "no scene has seen: {}", property.name);
    }
}

/// A broken variant breaks this promise before any other, in as few steps as these.
fn assert_breaks(variant: Variant, budget: Budget, promise: &str, steps: &[&str]) {
    let (broken, found) = counterexample(variant, budget, None);
    assert_eq!((broken, found), (vec![promise], steps.iter().map(ToString::to_string).collect()));
}

/// The same for a promise that is not the first to break.
fn assert_breaks_later(variant: Variant, budget: Budget, promise: &str, steps: &[&str]) {
    let (broken, found) = counterexample(variant, budget, Some(promise));
    assert_eq!((broken, found), (vec![promise], steps.iter().map(ToString::to_string).collect()));
}

/// The promises that break first, or `only` this one, and the shortest way there. The checker itself does not return
/// the shortest, so its depth is raised step by step.
fn counterexample(variant: Variant, budget: Budget, only: Option<&str>) -> (Vec<&'static str>, Vec<String>) {
    for depth in 1.. {
        let checker = ObjectModel { variant, budget }.checker().target_max_depth(depth).spawn_bfs().join();
        let mut found = checker.discoveries();
        let is_wanted = |name: &&str| found.contains_key(name) && only.is_none_or(|only| only == *name);
        let names = property::always().into_iter().map(|always| always.name);
        let broken: Vec<&'static str> = names.filter(is_wanted).collect();
        if let Some(first) = broken.first() {
            let steps = found.remove(first).expect("it was found").into_actions();
            return (broken, steps.iter().map(|step| format!("{step:?}")).collect());
        }
        let states = checker.unique_state_count();
        assert!(checker.max_depth() >= depth, "{variant:?} keeps every promise in all {states} states");
    }
    unreachable!("a search without bounds ends by itself")
}
