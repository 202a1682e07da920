//! Whether the numbers and literals of a block are right, all of them at once.
//!
//! **Invariant.** The grammar of [`Number`](crate::number::Number), as demands on neighbouring bytes: what follows a
//! sign, a point, an `e`, a leading zero; and what may follow a run of digits, by what came before the run. That a
//! point or an `e` stands behind a digit follows: what begins with one is taken for a literal, and neither a literal
//! nor any other byte of a number lets one follow.

#![expect(clippy::inline_always, reason = "the masks stay in registers only so; the benchmark shows it")]

use super::Bits;
use crate::simd::{Exponents, Numeric};

/// What one block leaves to the next: one bit each for what its last byte is, but for `literal`.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    /// The block ends in a number or literal.
    scalar: u64,
    /// A minus that begins a number.
    minus: u64,
    /// A zero that no digit may follow.
    zero: u64,
    point: u64,
    /// In the digits behind a point, or about to be.
    fraction: u64,
    exponent: Exponent,
    /// The bytes of a literal that are still to come.
    literal: Bits,
}

#[derive(Clone, Copy, Default)]
struct Exponent {
    letter: u64,
    sign: u64,
    /// In the digits of an exponent, or about to be.
    power: u64,
}

impl Numbers {
    /// Does the block end in a number or literal?
    pub(super) fn unfinished(&self) -> bool {
        self.scalar != 0
    }

    /// The first bytes of numbers and literals, and the first behind them.
    #[inline(always)]
    pub(super) fn edges(&mut self, scalar: Bits) -> (Bits, Bits) {
        let behind = shifted(scalar, &mut self.scalar);
        (scalar & !behind, behind & !scalar)
    }

    /// The bytes of literals, by where they begin; none if one is not right. `ahead` gives the eight bytes from a
    /// place on.
    #[inline(always)]
    pub(super) fn literals(
        &mut self,
        begins: Bits,
        ahead: impl Fn(usize) -> Option<[u8; 8]>,
    ) -> Option<Bits> {
        let mut literals = std::mem::take(&mut self.literal);
        let mut begins = begins;
        while begins != 0 {
            let place = begins.trailing_zeros();
            let length = literal(ahead(place as usize)?)?;
            let bytes = u128::from((1_u64 << length) - 1) << place;
            literals |= low(bytes);
            self.literal |= low(bytes >> 64);
            begins &= begins - 1;
        }
        Some(literals)
    }

    /// The places where something stands that must not. `bytes` are those of numbers, and `exponents` finds what only
    /// exponents have: most numbers have none.
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
        let behind_fraction = behind_digits(point, &mut self.fraction, digit);
        let behind_minus = shifted(minus & begins, &mut self.minus);
        let behind_zero = shifted(zero & (begins | behind_minus), &mut self.zero);
        let behind_point = shifted(point, &mut self.point);
        let wrong = (behind_minus | behind_point) & !digit | behind_zero & digit | behind_fraction & point;
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

    /// The same for exponents, in what is neither a digit, a point nor a first minus.
    #[inline(always)]
    fn wrong(&mut self, found: &Exponents, digit: Bits, point: Bits, others: Bits) -> Bits {
        let (letter, sign) = (found.letter & others, found.sign & others);
        let behind_letter = shifted(letter, &mut self.letter);
        let behind_sign = shifted(sign, &mut self.sign);
        let behind_power = behind_digits(letter | sign, &mut self.power, digit);
        others & !(letter | sign)
            | sign & !behind_letter
            | behind_letter & !(digit | sign)
            | behind_sign & !digit
            | behind_power & (point | letter)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low(word: u128) -> u64 {
    word as u64
}

/// How long the literal is that these bytes begin with; none if it is none, or does not end there.
#[inline(always)]
fn literal(bytes: [u8; 8]) -> Option<u32> {
    let (length, end) = match bytes {
        [b't', b'r', b'u', b'e', end, ..] | [b'n', b'u', b'l', b'l', end, ..] => (4, end),
        [b'f', b'a', b'l', b's', b'e', end, ..] => (5, end),
        _ => return None,
    };
    matches!(end, b',' | b'\n' | b'\r' | b' ' | b'\t' | b']' | b'}').then_some(length)
}

/// The next places.
#[inline(always)]
fn shifted(places: Bits, carry: &mut u64) -> Bits {
    let shifted = places << 1 | *carry;
    *carry = places >> 63;
    shifted
}

/// The first bytes behind the digits that follow these places.
///
/// An addition carries through each run of digits in which it begins.
#[inline(always)]
fn behind_digits(places: Bits, carry: &mut u64, digit: Bits) -> Bits {
    let (sum, over) = digit.overflowing_add(places << 1 | *carry);
    *carry = places >> 63 | u64::from(over);
    sum & !digit
}
