//! Rows keyed by a parent row and a text: resources in a namespace, agents, accounts, sessions.
//!
//! The index is a seeded hash table that is never iterated. It is split into parts that grow
//! independently, and stores each row's hash, so that the longest growth step touches one part and no
//! rows.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::slab::{Id, Slab};

const PART_BITS: u32 = 6;

pub(crate) struct Table<T> {
    rows: Slab<Row<T>>,
    parts: Vec<HashTable<Slot<T>>>,
    seed: u64,
}

/// A row with its key.
pub(crate) struct Row<T> {
    /// The parent row, if any: a namespace for a resource, an account for a session.
    pub(crate) parent: Parent,
    pub(crate) text: Arc<str>,
    pub(crate) value: T,
}

/// The id of a row in another table, without its type.
pub(crate) type Parent = Option<NonZeroU32>;

pub(crate) type RowId<T> = Id<Row<T>>;

struct Slot<T> {
    hash: u32,
    row: RowId<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new(0)
    }
}

impl<T> Table<T> {
    pub(crate) fn new(seed: u64) -> Table<T> {
        let parts = (0..1 << PART_BITS).map(|_| HashTable::new()).collect();
        Table { rows: Slab::new(), parts, seed }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn find(&self, parent: Parent, text: &str) -> Option<RowId<T>> {
        let (part, hash) = self.address(parent, text);
        let found = self.parts[part].find(spread(hash), |slot| {
            slot.hash == hash && {
                let row = &self.rows[slot.row];
                row.parent == parent && *row.text == *text
            }
        });
        found.map(|slot| slot.row)
    }

    /// The key must not exist yet.
    pub(crate) fn insert(&mut self, parent: Parent, text: &Arc<str>, value: T) -> RowId<T> {
        let (part, hash) = self.address(parent, text);
        let row = self.rows.insert(Row { parent, text: Arc::clone(text), value });
        self.parts[part].insert_unique(spread(hash), Slot { hash, row }, |slot| spread(slot.hash));
        row
    }

    pub(crate) fn remove(&mut self, id: RowId<T>) -> Row<T> {
        let row = self.rows.remove(id);
        let (part, hash) = self.address(row.parent, &row.text);
        match self.parts[part].find_entry(spread(hash), |slot| slot.row == id) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every row is indexed"),
        }
        row
    }

    /// The rows, to be read in pages.
    pub(crate) fn rows(&self) -> &Slab<Row<T>> {
        &self.rows
    }

    /// In slab order: sort before deriving anything observable.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RowId<T>, &Row<T>)> {
        self.rows.iter()
    }

    /// Like [`Table::iter`], skipping the first `index` slab entries.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (RowId<T>, &Row<T>)> {
        self.rows.iter_from(index)
    }

    /// The part is taken from the high bits of the hash, the stored hash from the low ones.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    fn address(&self, parent: Parent, text: &str) -> (usize, u32) {
        let hash = hash(self.seed, parent, text.as_bytes());
        let part = (hash >> (u64::BITS - PART_BITS)) as usize;
        (part, hash as u32)
    }
}

impl<T> Index<RowId<T>> for Table<T> {
    type Output = Row<T>;

    fn index(&self, id: RowId<T>) -> &Row<T> {
        &self.rows[id]
    }
}

impl<T> IndexMut<RowId<T>> for Table<T> {
    fn index_mut(&mut self, id: RowId<T>) -> &mut Row<T> {
        &mut self.rows[id]
    }
}

/// Expands the 32 stored bits to the 64 that the hash table needs.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn hash(seed: u64, parent: Parent, text: &[u8]) -> u64 {
    let mut state = fold(
        seed ^ 0x2545_f491_4f6c_dd1d,
        u64::from(parent.map_or(0, NonZeroU32::get)) ^ 0x9e37_79b9_7f4a_7c15,
    );
    let mut words = text.chunks_exact(8);
    for word in words.by_ref() {
        let word = u64::from_le_bytes(word.try_into().expect("chunks have eight bytes"));
        state = fold(state ^ word, 0xd6e8_feb8_6659_fd93 ^ seed);
    }
    let mut last = [0; 8];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    fold(state ^ u64::from_le_bytes(last), 0xa076_1d64_78bd_642f ^ text.len() as u64)
}

/// Folds both halves of the product into one word: every bit of either factor affects every bit of it.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn parent(number: u32) -> Parent {
        NonZeroU32::new(number)
    }

    #[test]
    fn rows_are_found_by_parent_and_text_until_they_are_removed() {
        let mut table = Table::new(7);
        let ids: Vec<_> =
            (0..10_000u32).map(|n| table.insert(parent(n % 3), &format!("k{n}").into(), n)).collect();
        assert_eq!(table.find(parent(1), "k4"), Some(ids[4]));
        assert_eq!(table.find(parent(2), "k4"), None);
        assert_eq!(table.remove(ids[4]).value, 4);
        assert_eq!(table.find(parent(1), "k4"), None);
        assert!(
            (0..10_000)
                .all(|n| n == 4 || table.find(parent(n % 3), &format!("k{n}")) == Some(ids[n as usize]))
        );
    }

    #[test]
    fn names_that_differ_in_one_byte_or_in_length_hash_differently() {
        let of = |text: &str| hash(1, None, text.as_bytes());
        assert_ne!(of("a"), of("a\0"));
        assert_ne!(of("abcdefgh"), of("abcdefgi"));
        assert_ne!(of("abcdefgh"), of("abcdefgh\0"));
        assert_ne!(hash(1, None, b"a"), hash(2, None, b"a"));
        assert_ne!(hash(1, None, b"a"), hash(1, parent(1), b"a"));
    }

    #[test]
    fn rows_are_distributed_evenly_over_parts() {
        let mut parts = [0u32; 1 << PART_BITS];
        for n in 0..64_000 {
            parts[(hash(3, None, format!("key-{n:012}").as_bytes()) >> (u64::BITS - PART_BITS)) as usize] +=
                1;
        }
        assert!(parts.iter().all(|rows| (800..1200).contains(rows)), "{parts:?}");
    }
}
