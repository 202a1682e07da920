//! Is there an order in which a recorded history makes sense? The search of Wing and Gong, with Lowe's memory of
//! where it has been.
//!
//! **Invariant.** A history is explained only by an order of all its calls that a sequential model accepts, and
//! in which no call comes before one that was answered before it was made.
//!
//! **What would break it.** To remember only which calls were placed: two orders of the same calls may leave
//! the object in different states, and one of them may lead on where the other does not.
//!
//! What is absent: threads and clocks. Whoever records a history numbers what happened. Objects are checked one by
//! one: if each has an order, all of them together have one, as long as no call is about two of them.

pub mod key;

use std::collections::BTreeSet;
use std::fmt;

/// How an object behaves when one thing happens after the other.
pub trait Model {
    /// What is known of the object.
    type State: Clone + Ord + fmt::Debug;
    /// A call together with its answer.
    type Op: fmt::Debug;

    /// Before anything happened.
    fn start(&self) -> Self::State;

    /// The states that the call may leave behind; none, if it cannot have been answered like this here.
    fn step(&self, state: &Self::State, op: &Self::Op) -> Vec<Self::State>;
}

/// A call, and when it was made and answered, by one counter for the whole history.
#[derive(Clone, Debug)]
pub struct Call<O> {
    /// What was asked and answered.
    pub op: O,
    /// Counted before it was asked.
    pub asked: u64,
    /// Counted after it was answered.
    pub answered: u64,
}

/// No order explains the history: the farthest that the search came.
#[derive(Clone, Debug)]
pub struct Unexplained {
    /// So many calls could be placed.
    pub placed: usize,
    /// The object then.
    pub state: String,
    /// The calls of which one had to come next, and none can.
    pub next: Vec<String>,
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no order explains it: after {} calls the state is {}, and one of",
            self.placed, self.state
        )?;
        self.next.iter().try_for_each(|op| write!(f, "\n  {op}"))?;
        write!(f, "\nshould come next, which none can")
    }
}

/// Calls that were placed, and what they left behind. The calls are in the order in which they were made.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Position<S> {
    /// All calls before this one are placed.
    first: usize,
    /// And these behind it, in order.
    ahead: Vec<usize>,
    state: S,
}

impl<S: Clone> Position<S> {
    fn placed(&self) -> usize {
        self.first + self.ahead.len()
    }

    fn place(&self, call: usize, state: S) -> Position<S> {
        let (mut first, mut ahead) = (self.first, self.ahead.clone());
        ahead.insert(ahead.partition_point(|other| *other < call), call);
        let dense = ahead.iter().zip(first..).take_while(|(call, next)| **call == *next).count();
        ahead.drain(..dense);
        first += dense;
        Position { first, ahead, state }
    }
}

/// Looks for an order of all calls that the model accepts.
pub fn explain<M: Model>(model: &M, mut calls: Vec<Call<M::Op>>) -> Result<(), Unexplained> {
    calls.sort_by_key(|call| call.asked);
    let start = Position { first: 0, ahead: Vec::new(), state: model.start() };
    let (mut been, mut open, mut farthest) = (BTreeSet::new(), vec![start.clone()], start);
    while let Some(position) = open.pop() {
        if position.placed() == calls.len() {
            return Ok(());
        }
        if position.placed() > farthest.placed() {
            farthest = position.clone();
        }
        for call in candidates(&calls, &position) {
            for state in model.step(&position.state, &calls[call].op) {
                let next = position.place(call, state);
                if been.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    let next = candidates(&calls, &farthest).into_iter().map(|call| format!("{:?}", calls[call])).collect();
    Err(Unexplained { placed: farthest.placed(), state: format!("{:?}", farthest.state), next })
}

/// The calls that may come next: those that were made before any that is left was answered. The one that was
/// answered first is the last, to be tried first.
fn candidates<O, S>(calls: &[Call<O>], position: &Position<S>) -> Vec<usize> {
    let (mut found, mut first_answer) = (Vec::new(), u64::MAX);
    for (number, call) in calls.iter().enumerate().skip(position.first) {
        if call.asked > first_answer {
            break;
        }
        if position.ahead.binary_search(&number).is_err() {
            first_answer = first_answer.min(call.answered);
            found.push(number);
        }
    }
    found.retain(|number| calls[*number].asked < first_answer);
    found.sort_by_key(|number| std::cmp::Reverse(calls[*number].answered));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: what is read is what was written last.
    struct Register;

    #[derive(Debug)]
    enum Op {
        Write(u32),
        Read(u32),
    }

    impl Model for Register {
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

    fn explained(calls: Vec<(u64, u64, Op)>) -> bool {
        let calls = calls.into_iter().map(|(asked, answered, op)| Call { op, asked, answered });
        explain(&Register, calls.collect()).is_ok()
    }

    #[test]
    fn what_overlaps_may_have_happened_in_either_order() {
        assert!(explained(vec![(0, 5, Op::Write(1)), (1, 2, Op::Read(0)), (3, 4, Op::Read(1))]));
        assert!(explained(vec![(0, 9, Op::Write(1)), (1, 8, Op::Write(2)), (10, 11, Op::Read(1))]));
    }

    #[test]
    fn what_was_answered_before_the_question_came_first() {
        assert!(!explained(vec![(0, 1, Op::Write(1)), (2, 3, Op::Read(0))]), "a stale read");
        assert!(
            !explained(vec![(0, 5, Op::Write(1)), (1, 2, Op::Read(1)), (3, 4, Op::Read(0))]),
            "back in time"
        );
    }

    /// Both writes are placed in both orders; only one of them explains the two reads.
    #[test]
    fn the_same_calls_in_another_order_are_another_position() {
        let writes = || vec![(0, 10, Op::Write(1)), (1, 9, Op::Write(2)), (2, 8, Op::Write(3))];
        let last = |number| writes().into_iter().chain([(11, 12, Op::Read(number))]).collect();
        assert!((1..=3).all(|number| explained(last(number))));
        assert!(!explained(last(0)));
    }
}
