//! Slots: the fixed partition of all namespaces, by which they are distributed over shards.
//!
//! **Invariant.** The slot of a namespace never changes: leases and documents of the namespace are in the log
//! that owns its slot, and nowhere else.

use alloc::boxed::Box;
use core::fmt;

use crate::text::Namespace;

/// One of [`Slot::COUNT`] sets of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The number of slots, for ever.
    pub const COUNT: usize = 4096;

    /// The slot with this number; `None` if there is none.
    pub fn new(number: u16) -> Option<Slot> {
        (usize::from(number) < Slot::COUNT).then_some(Slot(number))
    }

    /// The slot of a namespace: the first eight bytes of its BLAKE3 hash, little-endian, modulo the number of
    /// slots.
    pub fn of(namespace: &Namespace) -> Slot {
        let hash = blake3::hash(namespace.as_str().as_bytes());
        let first = u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"));
        Slot(u16::try_from(first % Slot::COUNT as u64).expect("below the number of slots"))
    }

    /// Its number, below [`Slot::COUNT`].
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// All slots, in order.
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..=u16::MAX).map_while(Slot::new)
    }
}

const WORDS: usize = Slot::COUNT / 64;

/// A set of slots.
#[derive(Clone, PartialEq, Eq)]
pub struct Slots(
    /// One bit for each slot; `None` if all are in the set, as in most stores.
    Option<Box<[u64; WORDS]>>,
);

impl Slots {
    /// Every slot: the log of a store with one shard.
    pub const ALL: Slots = Slots(None);

    /// Whether a slot is in the set.
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.as_ref().is_none_or(|bits| bits[slot.number() / 64] >> (slot.number() % 64) & 1 == 1)
    }

    /// Whether every slot is in the set.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// The set as ranges of slot numbers, both ends included: ascending, with a gap before each but the first.
    pub fn ranges(&self) -> impl Iterator<Item = (Slot, Slot)> + '_ {
        let mut slots = Slot::all().filter(|slot| self.contains(*slot)).peekable();
        core::iter::from_fn(move || {
            let first = slots.next()?;
            let mut last = first;
            while let Some(next) = slots.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            Some((first, last))
        })
    }

    /// The words that represent the set in the state hash.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        (0..WORDS).map(|word| self.0.as_ref().map_or(u64::MAX, |bits| bits[word]))
    }
}

impl FromIterator<Slot> for Slots {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Slots {
        let mut bits = Box::new([0; WORDS]);
        for slot in slots {
            bits[slot.number() / 64] |= 1 << (slot.number() % 64);
        }
        if bits.iter().all(|word| *word == u64::MAX) { Slots::ALL } else { Slots(Some(bits)) }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges().map(|(first, last)| first.0..=last.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Every namespace in every store is where these numbers say: they may never change.
    #[test]
    fn the_slot_of_a_namespace_never_changes() {
        let slot = |name| Slot::of(&Namespace::new(name).expect("valid")).number();
        assert_eq!(["default", "team-a", "prod/eu"].map(slot), [2039, 3886, 401]);
    }

    #[test]
    fn a_set_is_its_ranges() {
        let slots = |numbers: &[u16]| -> Slots { numbers.iter().filter_map(|n| Slot::new(*n)).collect() };
        let ranges = |slots: &Slots| -> Vec<(usize, usize)> {
            slots.ranges().map(|(first, last)| (first.number(), last.number())).collect()
        };
        assert_eq!(ranges(&slots(&[])), []);
        assert_eq!(ranges(&slots(&[0, 1, 2, 63, 64, 4095])), [(0, 2), (63, 64), (4095, 4095)]);
        assert_eq!(ranges(&Slots::ALL), [(0, 4095)]);
        assert_eq!(Slot::all().collect::<Slots>(), Slots::ALL);
        assert!(
            !slots(&[5]).contains(Slot(4)) && slots(&[5]).contains(Slot(5)) && Slots::ALL.contains(Slot(9))
        );
        assert_eq!(Slot::new(4096), None);
    }
}
