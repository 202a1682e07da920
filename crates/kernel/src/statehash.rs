//! A running hash of the state: every row, as it is after each change, is folded in.
//!
//! Two kernels that went through the same log have the same hash; one that ever kept something else
//! has another from that record on. It costs a few multiplications for each row that changes, so it
//! can be compared continuously. It guards against our own mistakes, not against an adversary.

use crate::outcome::Event;
use crate::table::fold;
use crate::units::{Lsn, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateHash(pub(crate) u64);

impl Default for StateHash {
    fn default() -> StateHash {
        StateHash(0x6c6f_636b_645f_7631)
    }
}

impl StateHash {
    pub(crate) fn word(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, 0x9e37_79b9_7f4a_7c15) ^ self.0.rotate_left(29);
    }

    pub(crate) fn words<const N: usize>(&mut self, words: [u64; N]) {
        for word in words {
            self.word(word);
        }
    }

    /// Of a length that is a multiple of eight.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(8) {
            self.word(u64::from_le_bytes(word.try_into().expect("a chunk has eight bytes")));
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        let mut words = text.as_bytes().chunks_exact(8);
        for word in words.by_ref() {
            self.word(u64::from_le_bytes(word.try_into().expect("a chunk has eight bytes")));
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.words([u64::from_le_bytes(last), text.len() as u64]);
    }

    pub(crate) fn record(&mut self, lsn: Lsn, now: Time, events: &[Event]) {
        self.words([lsn.0, now.0, events.len() as u64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_every_word_matter() {
        let of = |words: [u64; 3]| {
            let mut hash = StateHash::default();
            hash.words(words);
            hash
        };
        assert_ne!(of([1, 2, 3]), of([2, 1, 3]));
        assert_ne!(of([1, 2, 3]), of([1, 2, 4]));
        assert_ne!(of([0, 0, 1]), of([0, 1, 0]));
    }
}
