//! A slab: rows with stable numbers, reused after removal.
//!
//! Rows never move, and growing copies at most one chunk and the list of chunks: a table of ten million
//! rows grows as fast as one of ten. A row's number has no meaning outside the process: nothing observable
//! may depend on it, because a restored kernel numbers its rows differently.

use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 10;
const CHUNK_ROWS: usize = 1 << CHUNK_BITS;

pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
}

/// The number of a row. `Option<Id<T>>` has the same size.
pub(crate) struct Id<T>(NonZeroU32, PhantomData<fn() -> T>);

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK_ROWS;
        full + self.chunks.last().map_or(0, Vec::len) - self.free.len()
    }

    pub(crate) fn insert(&mut self, row: T) -> Id<T> {
        if let Some(index) = self.free.pop() {
            *self.row_mut(index) = Some(row);
            return Id::new(index);
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_ROWS) {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * CHUNK_ROWS;
        let chunk = self.chunks.last_mut().expect("the last chunk has capacity");
        let index = u32::try_from(before + chunk.len()).expect("limits keep tables below 2^32 rows");
        chunk.push(Some(row));
        Id::new(index)
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> T {
        let row = self.row_mut(id.index()).take().expect("an id refers to an occupied entry");
        self.free.push(id.index());
        row
    }

    /// In slab order: for sums and checks, whose result does not depend on it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.iter_from(0)
    }

    /// Like [`Slab::iter`], skipping the first `index` entries.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (Id<T>, &T)> {
        let (chunks_out, rows_out) = ((index >> CHUNK_BITS) as usize, index as usize & (CHUNK_ROWS - 1));
        let first = (chunks_out * CHUNK_ROWS) + rows_out;
        let rows = self.chunks.iter().skip(chunks_out).flatten().skip(rows_out).enumerate();
        rows.filter_map(move |(n, row)| {
            let index = u32::try_from(first + n).expect("limits keep tables below 2^32 rows");
            row.as_ref().map(|row| (Id::new(index), row))
        })
    }

    /// All entries after the first `index`, occupied or not.
    pub(crate) fn entries(&self, index: u32) -> impl Iterator<Item = Option<&T>> {
        let (chunks_out, rows_out) = ((index >> CHUNK_BITS) as usize, index as usize & (CHUNK_ROWS - 1));
        self.chunks.iter().skip(chunks_out).flatten().skip(rows_out).map(Option::as_ref)
    }

    /// The number of entries, occupied or not.
    pub(crate) fn entry_count(&self) -> usize {
        self.len() + self.free.len()
    }

    fn row_mut(&mut self, index: u32) -> &mut Option<T> {
        &mut self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK_ROWS - 1)]
    }
}

impl<T> Index<Id<T>> for Slab<T> {
    type Output = T;

    fn index(&self, id: Id<T>) -> &T {
        let chunk = &self.chunks[(id.index() >> CHUNK_BITS) as usize];
        chunk[id.index() as usize & (CHUNK_ROWS - 1)].as_ref().expect("an id refers to an occupied entry")
    }
}

impl<T> IndexMut<Id<T>> for Slab<T> {
    fn index_mut(&mut self, id: Id<T>) -> &mut T {
        self.row_mut(id.index()).as_mut().expect("an id refers to an occupied entry")
    }
}

impl<T> Id<T> {
    fn new(index: u32) -> Id<T> {
        Id(NonZeroU32::MIN.saturating_add(index), PhantomData)
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }

    /// This row as the parent of rows in another table.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "returns the type of a parent, which may be missing elsewhere"
    )]
    pub(crate) fn as_parent(self) -> Option<NonZeroU32> {
        Some(self.0)
    }

    /// The inverse of [`Id::number`].
    pub(crate) fn from_number(number: NonZeroU32) -> Id<T> {
        Id(number, PhantomData)
    }

    /// The number of the row plus one, for keys that several types of rows share.
    pub(crate) fn number(self) -> NonZeroU32 {
        self.0
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Id<T> {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Id<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Id<T> {}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_reused_and_rows_do_not_move() {
        let mut slab = Slab::new();
        let ids: Vec<_> = (0..3000u32).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.remove(ids[1500]), 1500);
        assert_eq!(slab.len(), 2999);
        let again = slab.insert(9);
        assert_eq!((again, slab[again], slab[ids[2999]]), (ids[1500], 9, 2999));
        assert_eq!(slab.iter().count(), 3000);
        assert_eq!(slab.iter_from(2047).map(|(_, row)| *row).next(), Some(2047));
        assert_eq!(slab.iter_from(2999).count(), 1);
        assert_eq!(slab.iter_from(u32::MAX).count(), 0);
        slab.remove(ids[2047]);
        assert_eq!(slab.entries(2047).take(2).collect::<Vec<_>>(), [None, Some(&2048)]);
        assert_eq!((slab.entry_count(), slab.entries(0).count()), (3000, 3000));
    }
}
