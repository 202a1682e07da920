//! Finds live and ended leases by LSN: a seeded hash index, never iterated.
//!
//! Split into parts that grow independently, as in [`Table`](crate::table::Table).

use alloc::vec::Vec;

use hashbrown::HashTable;

use crate::history::EndedRef;
use crate::lease::LeaseRef;
use crate::table::fold;
use crate::units::Lsn;

/// The row of a lease, live or ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IndexEntry {
    Live(LeaseRef),
    Ended(EndedRef),
}

const PART_BITS: u32 = 6;

pub(crate) struct LeaseIndex {
    parts: Vec<HashTable<(Lsn, IndexEntry)>>,
    seed: u64,
    len: usize,
}

impl Default for LeaseIndex {
    fn default() -> LeaseIndex {
        LeaseIndex::new(0)
    }
}

impl LeaseIndex {
    pub(crate) fn new(seed: u64) -> LeaseIndex {
        LeaseIndex { parts: (0..1 << PART_BITS).map(|_| HashTable::new()).collect(), seed, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, lsn: Lsn) -> Option<IndexEntry> {
        let (part, hash) = self.address(lsn);
        self.parts[part].find(hash, |(found, _)| *found == lsn).map(|(_, entry)| *entry)
    }

    /// The lease must not be indexed yet.
    pub(crate) fn insert(&mut self, lsn: Lsn, entry: IndexEntry) {
        let (part, hash) = self.address(lsn);
        let seed = self.seed;
        self.parts[part].insert_unique(hash, (lsn, entry), |(lsn, _)| hash_of(seed, *lsn));
        self.len += 1;
    }

    /// Updates the entry of an indexed lease.
    pub(crate) fn update(&mut self, lsn: Lsn, entry: IndexEntry) {
        let (part, hash) = self.address(lsn);
        let known = self.parts[part].find_mut(hash, |(found, _)| *found == lsn);
        known.expect("every known lease is indexed").1 = entry;
    }

    pub(crate) fn remove(&mut self, lsn: Lsn) {
        let (part, hash) = self.address(lsn);
        match self.parts[part].find_entry(hash, |(found, _)| *found == lsn) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every known lease is indexed"),
        }
        self.len -= 1;
    }

    fn address(&self, lsn: Lsn) -> (usize, u64) {
        let hash = hash_of(self.seed, lsn);
        // The hash table uses the lowest and highest bits; take bits from the middle.
        let part = (hash >> 40) & ((1 << PART_BITS) - 1);
        (usize::try_from(part).expect("PART_BITS fit a usize"), hash)
    }
}

fn hash_of(seed: u64, lsn: Lsn) -> u64 {
    fold(lsn.0 ^ seed, 0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Id;
    use core::num::NonZeroU32;

    #[test]
    fn leases_are_found_until_they_are_removed() {
        let mut index = LeaseIndex::new(3);
        let (row, ended) = (Id::from_number(NonZeroU32::MIN), Id::from_number(NonZeroU32::MAX));
        for lsn in 1..5000 {
            index.insert(Lsn(lsn), IndexEntry::Live(row));
        }
        index.update(Lsn(7), IndexEntry::Ended(ended));
        index.remove(Lsn(8));
        assert!(matches!(index.get(Lsn(7)), Some(IndexEntry::Ended(_))));
        assert!(matches!(index.get(Lsn(9)), Some(IndexEntry::Live(_))));
        assert!(index.get(Lsn(8)).is_none() && index.get(Lsn(5000)).is_none());
        assert_eq!(index.len(), 4998);
    }
}
