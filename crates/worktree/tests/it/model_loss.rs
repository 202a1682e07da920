//! A model of a sequence that loses entries, checked in every interleaving: two processes that take the lock and
//! release it at once, and an operator who removes any entry at any moment and accepts the loss at any moment.
//!
//! The model has the steps between which a process can be paused: read, append, confirm. A trace (the copy of the
//! lock) is written after an append was confirmed. Each safeguard is shown to be needed.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

/// Which safeguard is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// None: the protocol of this crate.
    Ours,
    /// The end is the last number before the first hole.
    Bisection,
    /// The end is the largest number; holes and traces are ignored, except that holes are refused.
    NoTraces,
    /// An appended entry counts at once.
    NoConfirmation,
    /// After a loss the sequence goes on with the number after the largest existing one.
    ResumeAfterEntries,
}

const MOST_ENTRIES: u8 = 6;
const MOST_REMOVALS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Acquiring {
    Idle,
    /// It has read that the lock is free, and will append entry `n`.
    Decided {
        n: u8,
        prev: u8,
        lost: u16,
    },
    /// It has appended entry `n`, with an identity of its own.
    Appended {
        n: u8,
        attempt: u8,
    },
    Refused,
}

/// An entry: its identity, that of its predecessor, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Link {
    n: u8,
    attempt: u8,
    prev: u8,
    /// The numbers that were declared lost, as bits.
    lost: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LossState {
    entries: BTreeSet<Link>,
    /// The copy of the lock: its token, and the identity of the entry that granted it.
    traced: Option<(u8, u8)>,
    removals: u8,
    attempts: u8,
    processes: [Acquiring; 2],
    granted: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Read { process: usize },
    Append { process: usize },
    Confirm { process: usize },
    Remove { n: u8 },
    AcceptLoss,
}

struct LosingSequence(Protocol);

impl LossState {
    fn newest(&self) -> Option<Link> {
        self.entries.last().copied()
    }

    fn at(&self, n: u8) -> Option<Link> {
        self.entries.iter().copied().find(|link| link.n == n)
    }

    fn holes(&self) -> Vec<u8> {
        let newest = self.newest().map_or(0, |link| link.n);
        (1..newest).filter(|n| self.at(*n).is_none() && !self.is_declared(*n)).collect()
    }

    /// The number in the copy, if the entry of that number is another one.
    fn replaced(&self) -> Option<u8> {
        let (n, attempt) = self.traced?;
        let is_other = self.at(n).is_some_and(|link| link.attempt != attempt);
        (is_other && !self.is_declared(n)).then_some(n)
    }

    fn traced_number(&self) -> u8 {
        self.traced.map_or(0, |(n, _)| n)
    }

    /// Whether the newest entry declares `n` lost.
    fn is_declared(&self, n: u8) -> bool {
        self.newest().is_some_and(|link| link.lost & (1 << n) != 0)
    }

    fn grant(&mut self, process: usize, n: u8, attempt: u8) {
        self.granted.push(n);
        // A late holder does not replace the copy of a later one.
        self.traced = self.traced.max(Some((n, attempt)));
        self.processes[process] = Acquiring::Idle;
    }

    fn push(&mut self, n: u8, prev: u8, lost: u16) -> u8 {
        self.attempts += 1;
        self.entries.insert(Link { n, attempt: self.attempts, prev, lost });
        self.attempts
    }
}

impl LosingSequence {
    /// The end that a reader believes in; none if it refuses.
    fn end(&self, state: &LossState) -> Option<u8> {
        let newest = state.newest().map_or(0, |link| link.n);
        match self.0 {
            Protocol::Bisection => {
                Some((1..=newest).take_while(|n| state.at(*n).is_some()).last().unwrap_or(0))
            }
            Protocol::NoTraces => state.holes().is_empty().then_some(newest),
            _ => {
                let is_whole = state.holes().is_empty() && state.traced_number() <= newest;
                (is_whole && state.replaced().is_none()).then_some(newest)
            }
        }
    }

    fn accept_loss(&self, state: &mut LossState) {
        let newest = state.newest().map_or(0, |link| link.n);
        let used =
            if self.0 == Protocol::ResumeAfterEntries { newest } else { newest.max(state.traced_number()) };
        let lost: Vec<u8> = (1..=used).filter(|n| state.at(*n).is_none()).chain(state.replaced()).collect();
        let before = state.newest().map_or(0, |link| link.lost);
        let lost = lost.iter().fold(before, |bits, n| bits | 1 << n);
        let good = state.entries.iter().rev().find(|link| lost & (1 << link.n) == 0);
        let prev = good.map_or(0, |link| link.attempt);
        state.push(used + 1, prev, lost);
    }

    fn append(&self, state: &mut LossState, process: usize, n: u8, prev: u8, lost: u16) {
        if state.at(n).is_some() {
            state.processes[process] = Acquiring::Idle;
            return;
        }
        let attempt = state.push(n, prev, lost);
        state.processes[process] = Acquiring::Appended { n, attempt };
        if self.0 == Protocol::NoConfirmation {
            state.grant(process, n, attempt);
        }
    }

    fn confirm(state: &mut LossState, process: usize, n: u8, attempt: u8) {
        let follows = match state.at(n + 1) {
            Some(next) => next.prev == attempt && state.traced_number() != n,
            None => state.traced_number() < n,
        };
        let is_there = state.at(n).is_some_and(|link| link.attempt == attempt);
        if follows && is_there {
            state.grant(process, n, attempt);
        } else {
            state.processes[process] = Acquiring::Refused;
        }
    }
}

impl Model for LosingSequence {
    type State = LossState;
    type Action = Action;

    fn init_states(&self) -> Vec<LossState> {
        let mut state = LossState {
            entries: BTreeSet::new(),
            traced: None,
            removals: 0,
            attempts: 0,
            processes: [Acquiring::Idle; 2],
            granted: Vec::new(),
        };
        state.push(1, 0, 0);
        vec![state]
    }

    fn actions(&self, state: &LossState, actions: &mut Vec<Action>) {
        for (process, doing) in state.processes.iter().enumerate() {
            match doing {
                Acquiring::Idle => actions.push(Action::Read { process }),
                Acquiring::Decided { .. } => actions.push(Action::Append { process }),
                Acquiring::Appended { .. } => actions.push(Action::Confirm { process }),
                Acquiring::Refused => {}
            }
        }
        if state.removals < MOST_REMOVALS {
            actions.extend(state.entries.iter().map(|link| Action::Remove { n: link.n }));
        }
        if self.end(state).is_none() {
            actions.push(Action::AcceptLoss);
        }
    }

    fn next_state(&self, state: &LossState, action: Action) -> Option<LossState> {
        let mut next = state.clone();
        match action {
            Action::Read { process } => {
                next.processes[process] = self.end(state).map_or(Acquiring::Idle, |end| {
                    let (prev, lost) = state.at(end).map_or((0, 0), |link| (link.attempt, link.lost));
                    Acquiring::Decided { n: end + 1, prev, lost }
                });
            }
            Action::Append { process } => {
                if let Acquiring::Decided { n, prev, lost } = state.processes[process] {
                    self.append(&mut next, process, n, prev, lost);
                }
            }
            Action::Confirm { process } => {
                if let Acquiring::Appended { n, attempt } = state.processes[process] {
                    Self::confirm(&mut next, process, n, attempt);
                }
            }
            Action::Remove { n } => {
                next.entries.retain(|link| link.n != n);
                next.removals += 1;
            }
            Action::AcceptLoss => self.accept_loss(&mut next),
        }
        let small = next.newest().is_none_or(|link| link.n <= MOST_ENTRIES) && next.attempts <= 8;
        small.then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &LossState| {
                let distinct: BTreeSet<u8> = state.granted.iter().copied().collect();
                distinct.len() == state.granted.len()
            }),
            Property::sometimes("a grant follows an accepted loss", |_, state: &LossState| {
                let lost = state.newest().map_or(0, |link| link.lost);
                lost != 0 && state.granted.iter().any(|token| lost >> token == 0)
            }),
        ]
    }
}

const ONCE: &str = "no token is granted twice";

fn grants_a_token_twice(protocol: Protocol) -> bool {
    let checker = LosingSequence(protocol).checker().spawn_bfs().join();
    checker.discoveries().contains_key(ONCE)
}

#[test]
fn whatever_is_lost_no_token_is_granted_twice() {
    let checker = LosingSequence(Protocol::Ours).checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1_000, "only {} states", checker.unique_state_count());
}

#[test]
fn each_safeguard_against_lost_entries_is_needed() {
    for protocol in
        [Protocol::Bisection, Protocol::NoTraces, Protocol::NoConfirmation, Protocol::ResumeAfterEntries]
    {
        assert!(grants_a_token_twice(protocol), "{protocol:?} is as safe as ours");
    }
}
