//! A model of the log in an object store.

mod state;
mod variant;
mod action;
mod step;
mod property;

use stateright::{Checker, Model, Property};

use action::Action;
use state::{Budget, State};
use variant::Variant;

struct ObjectModel {
    variant: Variant,
    budget: Budget,
    /// How far below the end of its log an owner may put the floor.
    floor_depth: u8,
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

#[test]
fn explore() {
    let get = |name: &str, usual: u8| std::env::var(name).map_or(usual, |v| v.parse().unwrap());
    let budget = Budget {
        log: get("B_LOG", 4), commands: get("B_COMMANDS", 1), reads: get("B_READS", 1),
        timeouts: get("B_TIMEOUTS", 1), duplicates: get("B_DUPLICATES", 0), crashes: get("B_CRASHES", 0),
        floors: get("B_FLOORS", 1), closes: get("B_CLOSES", 0), collections: get("B_COLLECTIONS", 0),
    };
    let model = ObjectModel { variant: Variant::Correct, budget, floor_depth: get("B_DEPTH", 0) };
    let begin = std::time::Instant::now();
    let mut checker = model.checker().threads(2);
    if let Ok(n) = std::env::var("B_TARGET") { checker = checker.target_state_count(n.parse().unwrap()); }
    let checker = checker.spawn_bfs().join();
    eprintln!("{budget:?} unique={} generated={} depth={} done={} {:?}", checker.unique_state_count(), checker.state_count(), checker.max_depth(), checker.is_done(), begin.elapsed());
    let found = checker.discoveries();
    for property in property::properties() {
        let path = found.get(property.name);
        eprintln!("{:?} {} {:?}", property.expectation, property.name, path.map(|p| p.clone().into_actions().len()));
        if property.expectation == stateright::Expectation::Always && let Some(p) = path {
            for a in p.clone().into_actions() { eprintln!("    {a:?}"); }
        }
    }
}
