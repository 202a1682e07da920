//! Wait-die: who may wait for whom.
//!
//! **Invariant.** Whoever waits is older than everyone it waits for, holders and earlier waiters
//! alike. So ages strictly rise along every chain of waits, and no chain can close.
//!
//! **What would break it.** To look at holders alone: `B` holds `y`; `C` (the youngest) holds `x`.
//! `A`, the oldest, queues for `x`. `B` queues for `x` behind `A`, younger than `A` but older than `C`.
//! Then `A` gets `x` and asks for `y`, and waits for `B`, which waits for `A`. Judged against waiters
//! too, `B` dies instead of queueing behind the older `A`.

use crate::units::Age;

/// What an attempt that cannot be granted must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may wait: it is older than everyone in its way.
    Wait,
    /// It must give back what it holds and come again with the same age.
    Die,
}

/// Judges an attempt by the ages of the conflicting holders and of the conflicting earlier waiters.
///
/// Equal ages die: no one is older than itself.
pub fn judge(
    attempt: Age,
    holders: impl IntoIterator<Item = Age>,
    waiters: impl IntoIterator<Item = Age>,
) -> Verdict {
    let waiters = waiters.into_iter().filter(|_| !planted!(WaitDieHoldersOnly));
    let older_than_all = holders.into_iter().chain(waiters).all(|other| attempt < other);
    if older_than_all { Verdict::Wait } else { Verdict::Die }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Time;

    fn age(at: u64) -> Age {
        Age { at: Time(at), tie: 0 }
    }

    #[test]
    fn the_oldest_waits_and_everyone_else_dies() {
        assert_eq!(judge(age(1), [age(2), age(3)], []), Verdict::Wait);
        assert_eq!(judge(age(2), [age(2)], []), Verdict::Die);
        assert_eq!(judge(age(1), [age(2)], [age(0)]), Verdict::Die);
        assert_eq!(judge(age(9), [Age::YOUNGEST], []), Verdict::Wait);
    }

    /// A writer stood between an older and a younger reader. An implementation that asked for the first
    /// holder it met let the writer wait or die by the order of a list; it must die, always.
    #[test]
    fn a_mid_age_writer_among_an_older_and_a_younger_reader_dies_in_either_order() {
        assert_eq!(judge(age(2), [age(1), age(3)], []), Verdict::Die);
        assert_eq!(judge(age(2), [age(3), age(1)], []), Verdict::Die);
    }

    #[test]
    fn two_attempts_of_one_millisecond_are_told_apart_by_their_random_bits() {
        let (a, b) = (Age { at: Time(5), tie: 1 }, Age { at: Time(5), tie: 2 });
        assert_eq!((judge(a, [b], []), judge(b, [a], [])), (Verdict::Wait, Verdict::Die));
    }
}
