//! Finds the strings of a block, and checks their escapes.

#![expect(clippy::inline_always, reason = "keeps the masks in registers, as the benchmark shows")]

use super::Bits;
use crate::simd::{Block, Escape, Text};

/// The state that one block passes to the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Strings {
    /// All ones if the block ends inside a string, otherwise zero.
    inside: u64,
    /// Whether the next byte is escaped.
    escaped: u64,
    /// Which of the next bytes must be hexadecimal digits.
    hex: u64,
    /// Whether the block ends within a character.
    cut: bool,
    /// Whether the whole block is inside a string, without escapes.
    long: bool,
}

/// The positions of strings.
#[derive(Clone, Copy)]
pub(super) struct StringMasks {
    /// From each opening quote up to the byte before the closing one.
    pub(super) inside: Bits,
    pub(super) open: Bits,
    pub(super) close: Bits,
}

/// The odd bits.
const ODD: u64 = 0xAAAA_AAAA_AAAA_AAAA;

impl Strings {
    /// Between characters of a string, or outside of one.
    pub(super) fn new(inside: bool) -> Strings {
        Strings { inside: if inside { u64::MAX } else { 0 }, ..Strings::default() }
    }

    pub(super) fn inside(&self) -> bool {
        self.inside != 0
    }

    /// Whether the last block was entirely inside a string, with nothing unfinished: then the fast path is tried first.
    #[inline(always)]
    pub(super) fn long(&self) -> bool {
        self.long && !self.cut
    }

    /// Records and returns whether the whole block is inside a string, without escapes.
    #[inline(always)]
    pub(super) fn note_plain(&mut self, text: &Text) -> bool {
        self.long = self.inside != 0 && text.quote == 0 && !self.may_escape(text);
        self.long
    }

    /// Whether there are escapes to check.
    #[inline(always)]
    pub(super) fn may_escape(&self, text: &Text) -> bool {
        text.backslash | self.escaped | self.hex != 0
    }

    /// Whether the block before ended within a character.
    pub(super) fn cut(&self) -> bool {
        self.cut
    }

    /// Records whether the block ends within a character.
    #[inline(always)]
    pub(super) fn note_cut(&mut self, high: u64, block: &Block) {
        self.cut = high >> 61 != 0 && (block[63] >= 0xC0 || block[62] >= 0xE0 || block[61] >= 0xF0);
    }

    /// Removes escaped quotes from `text`, and returns the positions of invalid escapes. It includes bytes outside of
    /// strings, where any backslash is invalid.
    #[inline(always)]
    pub(super) fn escapes(&mut self, text: &mut Text, escape: &Escape) -> Bits {
        let (escaped, last) = escaped(text.backslash, self.escaped);
        text.quote &= !escaped;
        let unicode = escaped & escape.unicode;
        let hex = unicode << 1 | unicode << 2 | unicode << 3 | unicode << 4 | self.hex;
        self.hex = unicode >> 63 | unicode >> 62 | unicode >> 61 | unicode >> 60;
        self.escaped = last;
        escaped & !(escape.simple | escape.unicode) | hex & !escape.hex
    }

    /// The positions of strings, from the prefix parity of their quotes.
    #[inline(always)]
    pub(super) fn masks(&mut self, quote: Bits, parity: u64) -> StringMasks {
        let inside = parity ^ self.inside;
        self.inside = 0_u64.wrapping_sub(inside >> 63);
        StringMasks { inside, open: quote & inside, close: quote & !inside }
    }

    /// Number of trailing bytes that belong to an unfinished character or escape.
    pub(super) fn unfinished(&self, read: &[u8]) -> usize {
        if self.cut {
            let tail = read.iter().rev().take_while(|byte| **byte & 0xC0 == 0x80);
            return tail.count() + 1;
        }
        match (self.escaped, self.hex.count_ones() as usize) {
            (0, 0) => 0,
            (0, digits_to_come) => 6 - digits_to_come,
            _ => 1,
        }
    }
}

/// The escaped bytes, which follow an odd number of backslashes, and whether the first byte of the next block is one.
///
/// A subtraction that borrows through each run of backslashes distinguishes runs that start at an even position from
/// those that start at an odd one.
#[inline(always)]
fn escaped(backslash: Bits, first: u64) -> (Bits, u64) {
    let begins = backslash & !first;
    let turns = ((begins << 1) | ODD).wrapping_sub(begins) ^ ODD;
    let escaped = turns ^ (backslash | first);
    (escaped, (turns & backslash) >> 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference, byte by byte.
    fn escaped_by_bytes(backslash: Bits, first: u64) -> (Bits, u64) {
        let (mut all, mut escaped) = (0, first == 1);
        for position in 0..64 {
            all |= u64::from(escaped) << position;
            escaped = !escaped && backslash >> position & 1 == 1;
        }
        (all, u64::from(escaped))
    }

    #[test]
    fn a_byte_after_an_odd_number_of_backslashes_is_escaped() {
        for pattern in 0..1 << 16_u64 {
            for position in [0, 1, 7, 47, 48] {
                for first in [0, 1] {
                    let backslash = pattern << position;
                    assert_eq!(
                        escaped(backslash, first),
                        escaped_by_bytes(backslash, first),
                        "{backslash:b}"
                    );
                    assert_eq!(
                        escaped(!backslash, first),
                        escaped_by_bytes(!backslash, first),
                        "{backslash:b}"
                    );
                }
            }
        }
    }
}
