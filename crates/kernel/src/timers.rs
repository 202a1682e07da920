//! When live leases change by themselves: deadlines, and ends of holds.
//!
//! **Invariant.** They come in the order of `(moment, lease id)`, each once.
//!
//! Leases that were granted one after the other often run out at the same moment, and are renewed
//! together. So up to 64 that follow each other share an entry, and have a bit each in it: moving such
//! a lease to another moment mostly flips two bits. In the worst case each has an entry of its own.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use crate::units::{Lsn, Time};

#[derive(Default)]
pub(crate) struct Timers(BTreeMap<(Time, Block), u64>);

const NOT_THERE: &str = "a timer that is to go is there";

/// The number of 64 LSNs in a row.
type Block = u64;

impl Timers {
    pub(crate) fn insert(&mut self, at: Time, lsn: Lsn) {
        let (block, bit) = block_and_bit(lsn);
        *self.0.entry((at, block)).or_default() |= bit;
    }

    /// It must be there.
    pub(crate) fn remove(&mut self, at: Time, lsn: Lsn) {
        let (block, bit) = block_and_bit(lsn);
        let Entry::Occupied(mut leases) = self.0.entry((at, block)) else { panic!("{NOT_THERE}") };
        assert!(*leases.get() & bit != 0, "{NOT_THERE}");
        *leases.get_mut() &= !bit;
        if *leases.get() == 0 {
            leases.remove();
        }
    }

    /// The next moment at which a lease changes, and which one does.
    pub(crate) fn first(&self) -> Option<(Time, Lsn)> {
        let ((at, block), leases) = self.0.first_key_value()?;
        Some((*at, first_of(*block, *leases)))
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, Lsn)> {
        self.0.iter().flat_map(|((at, block), leases)| {
            let rest = |leases: &u64| Some(leases & (leases - 1)).filter(|rest| *rest != 0);
            core::iter::successors(Some(*leases), rest).map(|leases| (*at, first_of(*block, leases)))
        })
    }
}

fn block_and_bit(lsn: Lsn) -> (Block, u64) {
    (lsn.0 / u64::from(u64::BITS), 1 << (lsn.0 % u64::from(u64::BITS)))
}

fn first_of(block: Block, leases: u64) -> Lsn {
    Lsn(block * u64::from(u64::BITS) + u64::from(leases.trailing_zeros()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn leases_come_by_moment_and_then_by_id_until_they_are_taken_out() {
        let mut timers = Timers::default();
        let mut plain = BTreeSet::new();
        // Neighbours, both ends of a block, and far apart; inserted in no order.
        for (n, lsn) in [64, 63, 0, 127, 128, 1, 65, 9000, 62, (1 << 53) - 1].into_iter().enumerate() {
            for at in [n as u64 % 3, 7] {
                timers.insert(Time(at), Lsn(lsn));
                plain.insert((Time(at), Lsn(lsn)));
            }
        }
        assert_eq!(timers.iter().collect::<Vec<_>>(), plain.iter().copied().collect::<Vec<_>>());
        while let Some((at, lsn)) = plain.pop_first() {
            assert_eq!(timers.first(), Some((at, lsn)));
            timers.remove(at, lsn);
        }
        assert_eq!((timers.first(), timers.0.len()), (None, 0));
    }

    #[test]
    #[should_panic(expected = "a timer that is to go is there")]
    fn a_timer_that_is_not_there_is_not_taken_out() {
        let mut timers = Timers::default();
        timers.insert(Time(1), Lsn(5));
        timers.remove(Time(1), Lsn(6));
    }
}
