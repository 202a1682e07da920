//! Where the strings of a block are, and whether their escapes are right.

#![expect(clippy::inline_always, reason = "the masks stay in registers only so; the benchmark shows it")]

use super::Bits;
use crate::simd::{Block, Escape, Text};

/// What one block leaves to the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Strings {
    /// All bits, if the block ends inside a string.
    inside: u64,
    /// Is the next byte escaped?
    escaped: u64,
    /// Which of the next bytes have to be hexadecimal digits.
    hex: u64,
    /// Is a character cut?
    cut: bool,
    /// Was all of the block inside of a string, and without escapes?
    long: bool,
}

/// Where strings are.
#[derive(Clone, Copy)]
pub(super) struct Quoted {
    /// From each opening quote up to the byte before the closing one.
    pub(super) inside: Bits,
    pub(super) open: Bits,
    pub(super) close: Bits,
}

/// Every other bit, the lowest not.
const ODD: u64 = 0xAAAA_AAAA_AAAA_AAAA;

impl Strings {
    /// Between characters of a string, or outside of one.
    pub(super) fn new(inside: bool) -> Strings {
        Strings { inside: if inside { u64::MAX } else { 0 }, ..Strings::default() }
    }

    pub(super) fn inside(&self) -> bool {
        self.inside != 0
    }

    /// In a string that had a whole block for itself, with nothing unfinished? Then it is worth a short way.
    #[inline(always)]
    pub(super) fn long(&self) -> bool {
        self.long && !self.cut
    }

    /// Is the block in the middle of a string, with nothing to look at but its characters?
    #[inline(always)]
    pub(super) fn note_plain(&mut self, text: &Text) -> bool {
        self.long = self.inside != 0 && text.quote == 0 && !self.may_escape(text);
        self.long
    }

    /// Are there escapes to be checked?
    #[inline(always)]
    pub(super) fn may_escape(&self, text: &Text) -> bool {
        text.backslash | self.escaped | self.hex != 0
    }

    /// Is a character to be gone on with?
    pub(super) fn cut(&self) -> bool {
        self.cut
    }

    /// Does the block end in the middle of a character?
    #[inline(always)]
    pub(super) fn note_cut(&mut self, high: u64, block: &Block) {
        self.cut = high >> 61 != 0 && (block[63] >= 0xC0 || block[62] >= 0xE0 || block[61] >= 0xF0);
    }

    /// Takes away the quotes that are escaped, and gives the places of bad escapes. What is outside of strings is
    /// looked at as well: a backslash there is wrong anyhow.
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

    /// Where strings are, by the `parity` of their quotes.
    #[inline(always)]
    pub(super) fn quoted(&mut self, quote: Bits, parity: u64) -> Quoted {
        let inside = parity ^ self.inside;
        self.inside = 0_u64.wrapping_sub(inside >> 63);
        Quoted { inside, open: quote & inside, close: quote & !inside }
    }

    /// How far back the character or escape began that the last block has cut.
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

/// Which bytes are escaped, and whether the first of the next block is: those behind an odd number of backslashes.
///
/// Backslashes that begin a run at an even place are told from those at an odd one by what a subtraction borrows
/// through the run.
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

    /// Byte by byte.
    fn slowly(backslash: Bits, first: u64) -> (Bits, u64) {
        let (mut all, mut escaped) = (0, first == 1);
        for place in 0..64 {
            all |= u64::from(escaped) << place;
            escaped = !escaped && backslash >> place & 1 == 1;
        }
        (all, u64::from(escaped))
    }

    #[test]
    fn what_is_behind_an_odd_number_of_backslashes_is_escaped() {
        for pattern in 0..1 << 16_u64 {
            for place in [0, 1, 7, 47, 48] {
                for first in [0, 1] {
                    let backslash = pattern << place;
                    assert_eq!(escaped(backslash, first), slowly(backslash, first), "{backslash:b}");
                    assert_eq!(escaped(!backslash, first), slowly(!backslash, first), "{backslash:b}");
                }
            }
        }
    }
}
