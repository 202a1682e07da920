//! Wait-die: which attempts may wait.
//!
//! **Invariant.** A waiting attempt is older than every holder and every earlier waiter that it waits for.
//! So ages strictly increase along every chain of waits, and no deadlock cycle can form.
//!
//! **What would break it.** Comparing with holders only. `B` holds `y`; `C`, the youngest, holds `x`. `A`,
//! the oldest, queues for `x`. `B` queues for `x` behind `A`: younger than `A` but older than `C`. Then
//! `A` is granted `x`, requests `y` and waits for `B`, which waits for `A`. Compared with waiters as well,
//! `B` dies instead of queueing behind the older `A`.

use crate::kernel::Kernel;
use crate::units::{Age, Time};

impl Kernel {
    /// The ages of the attempts that were granted a lease at `since` or later, as far as leases and history tell. Visits
    /// every row: for the opening of a log.
    pub fn attempts_granted_since(&self, since: Time) -> impl Iterator<Item = Age> {
        let live = self.leases.iter().map(|(_, lease)| lease).filter(move |lease| lease.granted_at >= since);
        let live = live.filter_map(|lease| lease.optional.as_ref()?.details.age);
        let ended = self.history.iter().filter(move |ended| ended.granted_at >= since);
        live.chain(ended.filter_map(|ended| ended.details.as_ref()?.age))
    }
}

/// What an attempt that cannot be granted must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait: it is older than everything it conflicts with.
    Wait,
    /// Release everything it holds and retry with the same age.
    Die,
}

/// Judges an attempt by the ages of the conflicting holders and of the conflicting earlier waiters.
///
/// An attempt of equal age dies.
pub fn judge(
    attempt: Age,
    holders: impl IntoIterator<Item = Age>,
    waiters: impl IntoIterator<Item = Age>,
) -> Verdict {
    let waiters = waiters.into_iter().filter(|_| !planted!(WaitDieHoldersOnly));
    let older_than_all = holders
        .into_iter()
        .chain(waiters)
        .all(|other| attempt < other || planted!(EqualAgeWaits) && attempt == other);
    if older_than_all { Verdict::Wait } else { Verdict::Die }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A writer was between an older and a younger reader in age. An implementation that compared it with
    /// the first holder found made it wait or die depending on list order; it must always die.
    #[test]
    fn a_mid_age_writer_among_an_older_and_a_younger_reader_dies_in_either_order() {
        assert_eq!(judge(age(2), [age(1), age(3)], []), Verdict::Die);
        assert_eq!(judge(age(2), [age(3), age(1)], []), Verdict::Die);
    }

    #[test]
    fn random_bits_break_ties_between_attempts_of_the_same_millisecond() {
        let (a, b) = (Age { at: Time(5), tie: 1 }, Age { at: Time(5), tie: 2 });
        assert_eq!((judge(a, [b], []), judge(b, [a], [])), (Verdict::Wait, Verdict::Die));
    }
}
