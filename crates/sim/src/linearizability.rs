//! Linearizability checking of recorded histories: Wing and Gong's search, with Lowe's cache of visited states.
//!
//! **Invariant.** A history is linearizable only if a sequential model accepts an order of all its calls in which no
//! call comes before another that returned before it was invoked.
//!
//! **What would break it.** Caching only the set of placed calls: two orders of the same calls may leave the object in
//! different states, of which only one can be continued.
//!
//! **What is absent.** Threads and clocks: the recorder numbers invocations and returns. Objects are checked
//! separately: linearizability is local, as long as no call concerns two objects. An object here is a group of
//! resources that bundles may join.

pub mod operation;
pub mod resources;

use std::collections::BTreeSet;
use std::fmt;

/// The behaviour of an object under sequential calls.
pub trait SequentialModel {
    /// The state of the object.
    type State: Clone + Ord + fmt::Debug;
    /// A call together with its response.
    type Op: fmt::Debug;

    /// The initial state.
    fn start(&self) -> Self::State;

    /// The possible states after the call; none if it cannot have this response in this state.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Vec<Self::State>;
}

/// A call with the times of its invocation and return, from one counter for the whole history.
#[derive(Clone, Debug)]
pub struct Call<O> {
    /// The call and its response.
    pub op: O,
    /// Counter value before the invocation.
    pub invoked: u64,
    /// Counter value after the return.
    pub returned: u64,
}

/// The history is not linearizable: the longest prefix that the search found.
#[derive(Clone, Debug)]
pub struct NotLinearizable {
    /// The number of calls in the prefix.
    pub placed: usize,
    /// The state after the prefix.
    pub state: String,
    /// The calls of which one would have to come next, and none can.
    pub next: Vec<String>,
    /// The search was given up at `VISITED_MAX` states: the history is not proved wrong.
    pub given_up: bool,
}

/// The maximum number of states that a search visits. A correct history of a few hundred calls needs about as many as
/// it has calls; a wrong one can take exponentially many.
const VISITED_MAX: usize = 300_000;

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict =
            if self.given_up { "no order found, and not all were tried" } else { "not linearizable" };
        write!(f, "{verdict}: after {} calls the state is {}, and none of", self.placed, self.state)?;
        self.next.iter().try_for_each(|op| write!(f, "\n  {op}"))?;
        write!(f, "\ncan come next")
    }
}

/// A set of placed calls and the resulting state. Calls are indexed by the order of their invocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Placement<S> {
    /// All calls before this index are placed.
    first: usize,
    /// Placed calls after it, in order.
    ahead: Vec<usize>,
    state: S,
}

impl<S: Clone> Placement<S> {
    fn placed(&self) -> usize {
        self.first + self.ahead.len()
    }

    fn place(&self, call: usize, state: S) -> Placement<S> {
        let (mut first, mut ahead) = (self.first, self.ahead.clone());
        ahead.insert(ahead.partition_point(|other| *other < call), call);
        let dense = ahead.iter().zip(first..).take_while(|(call, next)| **call == *next).count();
        ahead.drain(..dense);
        first += dense;
        Placement { first, ahead, state }
    }
}

/// Searches for an order of all calls that the model accepts.
pub fn explain<M: SequentialModel>(model: &M, mut calls: Vec<Call<M::Op>>) -> Result<(), NotLinearizable> {
    calls.sort_by_key(|call| call.invoked);
    let start = Placement { first: 0, ahead: Vec::new(), state: model.start() };
    let (mut visited, mut open, mut farthest) = (BTreeSet::new(), vec![start.clone()], start);
    while let Some(position) = open.pop().filter(|_| visited.len() < VISITED_MAX) {
        if position.placed() == calls.len() {
            return Ok(());
        }
        if position.placed() > farthest.placed() {
            farthest = position.clone();
        }
        for call in candidates(&calls, &position) {
            for state in model.step(&position.state, &calls[call].op) {
                let next = position.place(call, state);
                if visited.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    let next = candidates(&calls, &farthest).into_iter().map(|call| format!("{:?}", calls[call])).collect();
    let given_up = visited.len() >= VISITED_MAX;
    Err(NotLinearizable { placed: farthest.placed(), state: format!("{:?}", farthest.state), next, given_up })
}

/// The calls that may come next: those invoked before any unplaced call returned. The call that returned first is
/// last, so that it is popped first.
fn candidates<O, S>(calls: &[Call<O>], position: &Placement<S>) -> Vec<usize> {
    let (mut found, mut first_return) = (Vec::new(), u64::MAX);
    for (number, call) in calls.iter().enumerate().skip(position.first) {
        if call.invoked > first_return {
            break;
        }
        if position.ahead.binary_search(&number).is_err() {
            first_return = first_return.min(call.returned);
            found.push(number);
        }
    }
    found.retain(|number| calls[*number].invoked < first_return);
    found.sort_by_key(|number| std::cmp::Reverse(calls[*number].returned));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: a read returns the last write.
    struct Register;

    #[derive(Debug)]
    enum Op {
        Write(u32),
        Read(u32),
    }

    impl SequentialModel for Register {
        type State = u32;
        type Op = Op;

        fn start(&self) -> u32 {
            0
        }

        fn step(&self, state: &u32, op: &Op) -> Vec<u32> {
            match op {
                Op::Write(number) => vec![*number],
                Op::Read(number) => (number == state).then_some(*state).into_iter().collect(),
            }
        }
    }

    fn is_linearizable(calls: Vec<(u64, u64, Op)>) -> bool {
        let calls = calls.into_iter().map(|(invoked, returned, op)| Call { op, invoked, returned });
        explain(&Register, calls.collect()).is_ok()
    }

    #[test]
    fn overlapping_calls_may_take_either_order() {
        assert!(is_linearizable(vec![(0, 5, Op::Write(1)), (1, 2, Op::Read(0)), (3, 4, Op::Read(1))]));
        assert!(is_linearizable(vec![(0, 9, Op::Write(1)), (1, 8, Op::Write(2)), (10, 11, Op::Read(1))]));
    }

    #[test]
    fn a_call_that_returned_earlier_comes_first() {
        assert!(!is_linearizable(vec![(0, 1, Op::Write(1)), (2, 3, Op::Read(0))]), "a stale read");
        assert!(
            !is_linearizable(vec![(0, 5, Op::Write(1)), (1, 2, Op::Read(1)), (3, 4, Op::Read(0))]),
            "back in time"
        );
    }

    /// The same writes in different orders leave different states, and only some of them allow the read.
    #[test]
    fn the_cache_distinguishes_states_of_the_same_calls() {
        let writes = || vec![(0, 10, Op::Write(1)), (1, 9, Op::Write(2)), (2, 8, Op::Write(3))];
        let last = |number| writes().into_iter().chain([(11, 12, Op::Read(number))]).collect();
        assert!((1..=3).all(|number| is_linearizable(last(number))));
        assert!(!is_linearizable(last(0)));
    }
}
