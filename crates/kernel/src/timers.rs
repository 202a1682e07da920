//! Timers of live leases: deadlines and ends of holds.
//!
//! **Invariant.** Timers fire in the order of `(time, lease id)`, each once.
//!
//! Leases that were granted one after the other often expire at the same time and are renewed together. So
//! leases in the same block of 64 LSNs share an entry, with one bit each: changing the timer of such a lease
//! mostly flips two bits. In the worst case each lease has its own entry.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use crate::units::{Lsn, Time};

#[derive(Default)]
pub(crate) struct Timers(BTreeMap<(Time, Block), u64>);

const MISSING: &str = "a timer must exist to be removed";

/// The index of a block of 64 consecutive LSNs.
type Block = u64;

impl Timers {
    pub(crate) fn insert(&mut self, at: Time, lsn: Lsn) {
        let (block, bit) = block_and_bit(lsn);
        *self.0.entry((at, block)).or_default() |= bit;
    }

    /// The timer must exist.
    pub(crate) fn remove(&mut self, at: Time, lsn: Lsn) {
        let (block, bit) = block_and_bit(lsn);
        let Entry::Occupied(mut leases) = self.0.entry((at, block)) else { panic!("{MISSING}") };
        assert!(*leases.get() & bit != 0, "{MISSING}");
        *leases.get_mut() &= !bit;
        if *leases.get() == 0 {
            leases.remove();
        }
    }

    /// The next timer: its time, and its lease.
    pub(crate) fn first(&self) -> Option<(Time, Lsn)> {
        let ((at, block), leases) = self.0.first_key_value()?;
        Some((*at, first_of(*block, *leases)))
    }

    /// All timers, in order.
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
    fn timers_are_ordered_by_time_and_then_by_lease_id() {
        let mut timers = Timers::default();
        let mut plain = BTreeSet::new();
        // Neighbours, both ends of a block, and far apart; inserted out of order.
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
    #[should_panic(expected = "a timer must exist to be removed")]
    fn removing_a_missing_timer_panics() {
        let mut timers = Timers::default();
        timers.insert(Time(1), Lsn(5));
        timers.remove(Time(1), Lsn(6));
    }
}
