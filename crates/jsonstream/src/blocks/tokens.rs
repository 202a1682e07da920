//! Checks the order of all tokens of a block at once.
//!
//! **Invariant.** Every pair of neighbouring tokens is checked: the token after `{`, `[`, a comma, a colon, a key and a
//! value. The last token of a block passes its constraint to the next block. [`Nesting`](crate::nesting::Nesting) checks
//! that brackets match.

#![expect(clippy::inline_always, reason = "keeps the masks in registers, as the benchmark shows")]

use super::Bits;
use super::strings::StringMasks;
use crate::state::Next;

/// The state that one block passes to the next, one bit each.
#[derive(Clone, Copy, Default)]
pub(super) struct Tokens {
    /// A value must follow.
    value: u64,
    /// A value or `]` must follow.
    element: u64,
    /// A key or `}` must follow; together with `value`, a key.
    key: u64,
    /// A colon must follow.
    colon: u64,
    /// A comma, `]` or `}` must follow.
    end: u64,
    /// The block ends inside a key.
    inside_key: u64,
}

/// The positions of tokens outside of strings.
pub(super) struct TokenMasks {
    pub(super) space: Bits,
    pub(super) open: Bits,
    pub(super) close: Bits,
    pub(super) brace: Bits,
    pub(super) comma: Bits,
    pub(super) colon: Bits,
    /// The first bytes of numbers and literals.
    pub(super) scalar: Bits,
    /// The first bytes after them.
    pub(super) after_scalar: Bits,
    /// The positions at which the innermost container is an object.
    pub(super) in_object: Bits,
}

impl Tokens {
    pub(super) fn before(next: Next) -> Option<Tokens> {
        let none = Tokens::default();
        Some(match next {
            Next::Value => Tokens { value: 1, ..none },
            Next::ValueOrEnd => Tokens { element: 1, ..none },
            Next::KeyOrEnd => Tokens { key: 1, ..none },
            Next::Key => Tokens { key: 1, value: 1, ..none },
            Next::Colon => Tokens { colon: 1, ..none },
            Next::CommaOrEnd => Tokens { end: 1, ..none },
            Next::Nothing => return None,
        })
    }

    pub(super) fn in_string(key: bool) -> Tokens {
        Tokens { inside_key: u64::from(key), ..Tokens::default() }
    }

    pub(super) fn inside_key(&self) -> bool {
        self.inside_key != 0
    }

    /// The expected token, if the block ended neither in a string nor in a number or literal.
    pub(super) fn next(&self) -> Next {
        match (self.key, self.value) {
            (1, 1) => Next::Key,
            (1, _) => Next::KeyOrEnd,
            (_, 1) => Next::Value,
            _ if self.element == 1 => Next::ValueOrEnd,
            _ if self.colon == 1 => Next::Colon,
            _ => Next::CommaOrEnd,
        }
    }

    /// The positions of invalid tokens.
    #[inline(always)]
    pub(super) fn wrong(&mut self, found: &TokenMasks, strings: &StringMasks) -> Bits {
        let space = found.space;
        let value = strings.open | found.open | found.scalar;
        let (opens_object, opens_array) = (found.open & found.brace, found.open & !found.brace);

        let key = next_token(opens_object | found.comma & found.in_object, &mut self.key, space);
        let mut wrong = key & !(strings.open | found.close);
        // The addition carries through the string, to its closing quote.
        let (sum, inside_key) = strings.inside.overflowing_add(key & strings.open | self.inside_key);
        self.inside_key = u64::from(inside_key);
        let key_ends = sum & !strings.inside;

        wrong |= next_token(key_ends, &mut self.colon, space) & !found.colon;
        wrong |= next_token(found.comma | found.colon, &mut self.value, space) & !value;
        wrong |= next_token(opens_array, &mut self.element, space) & !(value | found.close);
        self.end |= found.after_scalar & 1;
        let value_ends = strings.close & !key_ends | found.close | found.after_scalar >> 1;
        wrong | next_token(value_ends, &mut self.end, space) & !(found.comma | found.close)
    }
}

/// The first non-whitespace bytes after these positions. `carry` is set if one is still to be found for a position in the
/// block before; on return, for one in this block.
///
/// An addition carries through each run of whitespace in which it begins.
#[inline(always)]
fn next_token(positions: Bits, carry: &mut u64, space: Bits) -> Bits {
    let (sum, over) = space.overflowing_add(positions << 1 | *carry);
    *carry = positions >> 63 | u64::from(over);
    sum & !space
}
