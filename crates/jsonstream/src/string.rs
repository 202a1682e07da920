//! The grammar of strings between their quotes, byte by byte.
//!
//! **Invariant.** Everything that [`StringState::next`] accepts is UTF-8 by table 3-7 of the Unicode standard (no
//! overlong forms, no surrogates, nothing over U+10FFFF), has no control character, and only the escapes of
//! RFC 8259. An escaped surrogate may stand alone: it is ASCII, and the RFC allows it.
//!
//! **What is absent.** The closing quote: the scanner checks for it in [`StringState::Plain`].

use crate::error::JsonErrorKind;

/// The state within a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StringState {
    /// Between characters.
    Plain,
    /// After a backslash.
    Escape,
    /// In `\uXXXX`, with this many digits to come.
    Hex(u8),
    /// In a multi-byte character.
    Tail(Tail),
}

/// The rest of a multi-byte character: one to three bytes. After some lead bytes the next one has a narrower range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    One,
    Two,
    Three,
    /// After 0xE0: overlong forms are excluded.
    E0,
    /// After 0xED: surrogates are excluded.
    Ed,
    /// After 0xF0: overlong forms are excluded.
    F0,
    /// After 0xF4: code points above U+10FFFF are excluded.
    F4,
}

impl StringState {
    /// The state after the next byte.
    #[inline]
    pub(crate) fn next(self, byte: u8) -> Result<StringState, JsonErrorKind> {
        match self {
            StringState::Plain => character(byte),
            StringState::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(StringState::Plain),
                b'u' => Ok(StringState::Hex(4)),
                _ => Err(JsonErrorKind::InvalidEscape),
            },
            StringState::Hex(_) if !byte.is_ascii_hexdigit() => Err(JsonErrorKind::InvalidEscape),
            StringState::Hex(1) => Ok(StringState::Plain),
            StringState::Hex(left) => Ok(StringState::Hex(left - 1)),
            StringState::Tail(tail) => tail.next(byte),
        }
    }
}

/// The first byte of a character.
#[inline]
fn character(byte: u8) -> Result<StringState, JsonErrorKind> {
    let tail = match byte {
        0..0x20 => return Err(JsonErrorKind::ControlCharacter),
        b'\\' => return Ok(StringState::Escape),
        0x20..0x80 => return Ok(StringState::Plain),
        0xC2..=0xDF => Tail::One,
        0xE0 => Tail::E0,
        0xED => Tail::Ed,
        0xE1..=0xEF => Tail::Two,
        0xF0 => Tail::F0,
        0xF1..=0xF3 => Tail::Three,
        0xF4 => Tail::F4,
        _ => return Err(JsonErrorKind::InvalidUtf8),
    };
    Ok(StringState::Tail(tail))
}

impl Tail {
    #[inline]
    fn next(self, byte: u8) -> Result<StringState, JsonErrorKind> {
        let (range, then) = match self {
            Tail::One => (0x80..=0xBF, StringState::Plain),
            Tail::Two => (0x80..=0xBF, StringState::Tail(Tail::One)),
            Tail::Three => (0x80..=0xBF, StringState::Tail(Tail::Two)),
            Tail::E0 => (0xA0..=0xBF, StringState::Tail(Tail::One)),
            Tail::Ed => (0x80..=0x9F, StringState::Tail(Tail::One)),
            Tail::F0 => (0x90..=0xBF, StringState::Tail(Tail::Two)),
            Tail::F4 => (0x80..=0x8F, StringState::Tail(Tail::Two)),
        };
        if range.contains(&byte) { Ok(then) } else { Err(JsonErrorKind::InvalidUtf8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(bytes: &[u8]) -> bool {
        let end = bytes.iter().try_fold(StringState::Plain, |inside, byte| inside.next(*byte));
        end == Ok(StringState::Plain)
    }

    #[test]
    fn every_sequence_of_three_bytes_is_utf8_exactly_when_the_standard_library_says_so() {
        for first in 0x80..=0xFF_u8 {
            for second in 0..=0xFF_u8 {
                for third in 0x20..=0xFF_u8 {
                    let bytes = [first, second, third];
                    // After a complete two-byte character, a backslash begins an escape.
                    assert_eq!(accepts(&bytes), third != b'\\' && str_ok(&bytes), "{bytes:02x?}");
                }
            }
        }
    }

    #[test]
    fn every_character_is_accepted() {
        for character in '\u{20}'..=char::MAX {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
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
