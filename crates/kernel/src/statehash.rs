//! A running hash of the state: every changed row is folded in.
//!
//! Two kernels that applied the same log have the same hash; a kernel that ever stored something else
//! differs from that record on. It costs a few multiplications per changed row, so it can be compared
//! continuously. It protects against bugs, not against an adversary.

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
        self.pair(word, 0);
    }

    pub(crate) fn words<const N: usize>(&mut self, words: [u64; N]) {
        for pair in words.chunks(2) {
            self.pair(pair[0], pair.get(1).copied().unwrap_or(0));
        }
    }

    /// Folds in bytes and their length.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let mut pairs = bytes.chunks_exact(16);
        for pair in pairs.by_ref() {
            self.pair(word_of(&pair[..8]), word_of(&pair[8..]));
        }
        let mut last = [0; 16];
        last[..pairs.remainder().len()].copy_from_slice(pairs.remainder());
        self.pair(word_of(&last[..8]) ^ (bytes.len() as u64).rotate_left(56), word_of(&last[8..]));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Folds in two words with one multiplication; each has its own constant, so swapping them changes the
    /// hash.
    fn pair(&mut self, a: u64, b: u64) {
        self.0 = fold(self.0 ^ a, b ^ 0x9e37_79b9_7f4a_7c15) ^ self.0.rotate_left(29);
    }

    pub(crate) fn record(&mut self, lsn: Lsn, now: Time, events: &[Event]) {
        self.words([lsn.0, now.0, events.len() as u64]);
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the slice has eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_every_word_and_on_their_order() {
        let of = |words: [u64; 3]| {
            let mut hash = StateHash::default();
            hash.words(words);
            hash
        };
        assert_ne!(of([1, 2, 3]), of([2, 1, 3]));
        assert_ne!(of([1, 2, 3]), of([1, 2, 4]));
        assert_ne!(of([0, 0, 1]), of([0, 1, 0]));
    }

    #[test]
    fn the_hash_depends_on_every_byte_of_a_text_and_on_its_length() {
        let of = |text: &str| {
            let mut hash = StateHash::default();
            hash.text(text);
            hash
        };
        let texts =
            ["", "\0", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghijklmnop", "abcdefghijklmnopq"];
        for (n, one) in texts.iter().enumerate() {
            assert!(texts[n + 1..].iter().all(|other| of(one) != of(other)), "{one:?}");
        }
    }
}
