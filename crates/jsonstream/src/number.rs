//! The grammar of numbers: `-? (0 | [1-9][0-9]*) (\. [0-9]+)? ([eE] [+-]? [0-9]+)?`.
//!
//! **Invariant.** A number is never converted: its digits stay as they are, however many.

use crate::error::JsonErrorKind;

/// The state within a number: the part that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Minus,
    /// A leading zero, which no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    /// The letter `e`.
    Exponent,
    /// The sign of the exponent.
    Sign,
    Power,
}

impl Number {
    /// The state after the first byte of a number.
    #[inline]
    pub(crate) fn begin(byte: u8) -> Option<Number> {
        match byte {
            b'-' => Some(Number::Minus),
            b'0' => Some(Number::Zero),
            b'1'..=b'9' => Some(Number::Whole),
            _ => None,
        }
    }

    /// The state after the next byte; `None` if the number ended before it.
    #[inline]
    pub(crate) fn next(self, byte: u8) -> Result<Option<Number>, JsonErrorKind> {
        let next = match (self, byte) {
            (Number::Minus, b'0') => Number::Zero,
            (Number::Minus, b'1'..=b'9') | (Number::Whole, b'0'..=b'9') => Number::Whole,
            (Number::Zero | Number::Whole, b'.') => Number::Point,
            (Number::Point | Number::Fraction, b'0'..=b'9') => Number::Fraction,
            (Number::Zero | Number::Whole | Number::Fraction, b'e' | b'E') => Number::Exponent,
            (Number::Exponent, b'+' | b'-') => Number::Sign,
            (Number::Exponent | Number::Sign | Number::Power, b'0'..=b'9') => Number::Power,
            (Number::Zero, b'0'..=b'9') => return Err(JsonErrorKind::InvalidNumber),
            _ if self.may_end() => return Ok(None),
            _ => return Err(JsonErrorKind::InvalidNumber),
        };
        Ok(Some(next))
    }

    /// Whether digits may follow without a change of state.
    #[inline]
    pub(crate) fn takes_digits(self) -> bool {
        matches!(self, Number::Whole | Number::Fraction | Number::Power)
    }

    /// Whether the bytes so far are a complete number.
    #[inline]
    pub(crate) fn may_end(self) -> bool {
        matches!(self, Number::Zero | Number::Whole | Number::Fraction | Number::Power)
    }
}
