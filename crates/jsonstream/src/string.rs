//! What may stand between the quotes of a string, byte by byte.
//!
//! **Invariant.** Everything that [`Inside::next`] accepts is UTF-8 by table 3-7 of the Unicode standard (no
//! overlong forms, no surrogates, nothing over U+10FFFF), has no control character, and only the escapes of
//! RFC 8259. An escaped surrogate may stand alone: it is ASCII, and the RFC allows it.
//!
//! **What is absent.** The closing quote: the scanner looks for it while it is at [`Inside::Plain`].

use crate::error::JsonErrorKind;

/// How far a string has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// Between characters.
    Plain,
    /// Behind a backslash.
    Escape,
    /// In `\uXXXX`, with so many digits to come.
    Hex(u8),
    /// In a character of several bytes.
    Tail(Tail),
}

/// What is still to come of a character: so many bytes, of which some first ones have a narrower range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    One,
    Two,
    Three,
    /// Behind 0xE0: shorter forms are excluded.
    E0,
    /// Behind 0xED: surrogates are excluded.
    Ed,
    /// Behind 0xF0: shorter forms are excluded.
    F0,
    /// Behind 0xF4: what is over U+10FFFF is excluded.
    F4,
}

impl Inside {
    /// The state behind the next byte.
    #[inline]
    pub(crate) fn next(self, byte: u8) -> Result<Inside, JsonErrorKind> {
        match self {
            Inside::Plain => character(byte),
            Inside::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(Inside::Plain),
                b'u' => Ok(Inside::Hex(4)),
                _ => Err(JsonErrorKind::InvalidEscape),
            },
            Inside::Hex(_) if !byte.is_ascii_hexdigit() => Err(JsonErrorKind::InvalidEscape),
            Inside::Hex(1) => Ok(Inside::Plain),
            Inside::Hex(left) => Ok(Inside::Hex(left - 1)),
            Inside::Tail(tail) => tail.next(byte),
        }
    }
}

/// The first byte of a character.
#[inline]
fn character(byte: u8) -> Result<Inside, JsonErrorKind> {
    let tail = match byte {
        0..0x20 => return Err(JsonErrorKind::ControlCharacter),
        b'\\' => return Ok(Inside::Escape),
        0x20..0x80 => return Ok(Inside::Plain),
        0xC2..=0xDF => Tail::One,
        0xE0 => Tail::E0,
        0xED => Tail::Ed,
        0xE1..=0xEF => Tail::Two,
        0xF0 => Tail::F0,
        0xF1..=0xF3 => Tail::Three,
        0xF4 => Tail::F4,
        _ => return Err(JsonErrorKind::InvalidUtf8),
    };
    Ok(Inside::Tail(tail))
}

impl Tail {
    #[inline]
    fn next(self, byte: u8) -> Result<Inside, JsonErrorKind> {
        let (range, then) = match self {
            Tail::One => (0x80..=0xBF, Inside::Plain),
            Tail::Two => (0x80..=0xBF, Inside::Tail(Tail::One)),
            Tail::Three => (0x80..=0xBF, Inside::Tail(Tail::Two)),
            Tail::E0 => (0xA0..=0xBF, Inside::Tail(Tail::One)),
            Tail::Ed => (0x80..=0x9F, Inside::Tail(Tail::One)),
            Tail::F0 => (0x90..=0xBF, Inside::Tail(Tail::Two)),
            Tail::F4 => (0x80..=0x8F, Inside::Tail(Tail::Two)),
        };
        if range.contains(&byte) { Ok(then) } else { Err(JsonErrorKind::InvalidUtf8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(bytes: &[u8]) -> bool {
        let end = bytes.iter().try_fold(Inside::Plain, |inside, byte| inside.next(*byte));
        end == Ok(Inside::Plain)
    }

    #[test]
    fn every_sequence_of_up_to_three_bytes_is_utf8_exactly_when_the_standard_library_says_so() {
        for first in 0x80..=0xFF_u8 {
            for second in 0..=0xFF_u8 {
                for third in 0x20..=0xFF_u8 {
                    let bytes = [first, second, third];
                    // Behind a whole character of two bytes a backslash begins an escape.
                    assert_eq!(accepts(&bytes), third != b'\\' && str_ok(&bytes), "{bytes:02x?}");
                }
            }
        }
    }

    #[test]
    fn every_character_is_accepted() {
        for character in '\u{20}'..=char::MAX {
            let mut room = [0; 4];
            let bytes = character.encode_utf8(&mut room).as_bytes();
            assert_eq!(accepts(bytes), character != '\\', "{character:?}");
        }
    }

    #[test]
    fn four_bytes_are_checked_against_the_standard_library() {
        let edges = [0x20, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF];
        for first in 0xF0..=0xFF_u8 {
            for second in 0x20..=0xFF_u8 {
                for (third, fourth) in edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))) {
                    let bytes = [first, second, third, fourth];
                    assert_eq!(accepts(&bytes), str_ok(&bytes), "{bytes:02x?}");
                }
            }
        }
    }

    fn str_ok(bytes: &[u8]) -> bool {
        std::str::from_utf8(bytes).is_ok()
    }
}
