//! Checks all numbers and literals of a block at once.
//!
//! **Invariant.** The grammar of [`Number`](crate::number::Number), as constraints on neighbouring bytes: on the byte after
//! a sign, a point, an `e`, a leading zero; and on the byte after a run of digits, by the byte before the run. It follows
//! that a point or an `e` comes after a digit: a scalar that begins with one is treated as a literal, and neither a literal
//! nor any other byte of a number allows one after it.

#![expect(clippy::inline_always, reason = "keeps the masks in registers, as the benchmark shows")]

use super::Bits;
use crate::simd::{Exponents, Numeric};

/// The state that one block passes to the next: one bit each for the kind of its last byte, except `literal`.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    /// The block ends in a number or literal.
    scalar: u64,
    /// A minus that begins a number.
    minus: u64,
    /// A leading zero, which no digit may follow.
    zero: u64,
    point: u64,
    /// At a point, or in the digits after it.
    fraction: u64,
    exponent: Exponent,
    /// The bytes of a literal that are still to come.
    literal: Bits,
}

#[derive(Clone, Copy, Default)]
struct Exponent {
    letter: u64,
    sign: u64,
    /// At the letter or sign of an exponent, or in its digits.
    power: u64,
}

impl Numbers {
    /// Whether the block ends in a number or literal.
    pub(super) fn unfinished(&self) -> bool {
        self.scalar != 0
    }

    /// The first bytes of numbers and literals, and the first bytes after them.
    #[inline(always)]
    pub(super) fn edges(&mut self, scalar: Bits) -> (Bits, Bits) {
        let after = shifted(scalar, &mut self.scalar);
        (scalar & !after, after & !scalar)
    }

    /// The bytes of literals that begin at `begins`; `None` if one is invalid. `ahead` returns the eight bytes from a
    /// position on.
    #[inline(always)]
    pub(super) fn literals(
        &mut self,
        begins: Bits,
        ahead: impl Fn(usize) -> Option<[u8; 8]>,
    ) -> Option<Bits> {
        let mut literals = std::mem::take(&mut self.literal);
        let mut begins = begins;
        while begins != 0 {
            let position = begins.trailing_zeros();
            let length = literal(ahead(position as usize)?)?;
            let bytes = u128::from((1_u64 << length) - 1) << position;
            literals |= low(bytes);
            self.literal |= low(bytes >> 64);
            begins &= begins - 1;
        }
        Some(literals)
    }

    /// The positions of invalid bytes. `bytes` are those of numbers; `exponents` computes the masks that only exponents
    /// need: most numbers have none.
    #[inline(always)]
    pub(super) fn wrong(
        &mut self,
        numeric: &Numeric,
        bytes: Bits,
        begins: Bits,
        exponents: impl Fn() -> Exponents,
    ) -> Bits {
        let Numeric { digit, zero, minus, point } = *numeric;
        let (digit, zero, minus, point) = (digit & bytes, zero & bytes, minus & bytes, point & bytes);
        let others = bytes & !(digit | point) & !(minus & begins);
        let after_fraction = after_digits(point, &mut self.fraction, digit);
        let after_minus = shifted(minus & begins, &mut self.minus);
        let after_zero = shifted(zero & (begins | after_minus), &mut self.zero);
        let after_point = shifted(point, &mut self.point);
        let wrong = (after_minus | after_point) & !digit | after_zero & digit | after_fraction & point;
        if others | self.exponent.any() == 0 {
            return wrong;
        }
        wrong | self.exponent.wrong(&exponents(), digit, point, others)
    }
}

impl Exponent {
    fn any(self) -> u64 {
        self.letter | self.sign | self.power
    }

    /// The same for exponents, among bytes that are neither a digit, a point nor a leading minus.
    #[inline(always)]
    fn wrong(&mut self, found: &Exponents, digit: Bits, point: Bits, others: Bits) -> Bits {
        let (letter, sign) = (found.letter & others, found.sign & others);
        let after_letter = shifted(letter, &mut self.letter);
        let after_sign = shifted(sign, &mut self.sign);
        let after_power = after_digits(letter | sign, &mut self.power, digit);
        others & !(letter | sign)
            | sign & !after_letter
            | after_letter & !(digit | sign)
            | after_sign & !digit
            | after_power & (point | letter)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "returns the low half")]
fn low(word: u128) -> u64 {
    word as u64
}

/// The length of the literal at the start of these bytes; `None` if there is none, or it is followed by another character.
#[inline(always)]
fn literal(bytes: [u8; 8]) -> Option<u32> {
    let (length, end) = match bytes {
        [b't', b'r', b'u', b'e', end, ..] | [b'n', b'u', b'l', b'l', end, ..] => (4, end),
        [b'f', b'a', b'l', b's', b'e', end, ..] => (5, end),
        _ => return None,
    };
    matches!(end, b',' | b'\n' | b'\r' | b' ' | b'\t' | b']' | b'}').then_some(length)
}

/// The positions after these.
#[inline(always)]
fn shifted(positions: Bits, carry: &mut u64) -> Bits {
    let shifted = positions << 1 | *carry;
    *carry = positions >> 63;
    shifted
}

/// The first bytes after the runs of digits that follow these positions.
///
/// An addition carries through each run of digits in which it begins.
#[inline(always)]
fn after_digits(positions: Bits, carry: &mut u64, digit: Bits) -> Bits {
    let (sum, over) = digit.overflowing_add(positions << 1 | *carry);
    *carry = positions >> 63 | u64::from(over);
    sum & !digit
}
