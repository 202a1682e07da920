//! What may stand behind what, for all tokens of a block at once.
//!
//! **Invariant.** Every token is looked at by the one before it, so that each pair of neighbours is judged: what
//! follows `{`, `[`, a comma, a colon, a key and a value. The last token of a block leaves its demand to the next.
//! Whether a bracket closes what is open is for [`Nesting`](crate::nesting::Nesting) to say.

#![expect(clippy::inline_always, reason = "the masks stay in registers only so; the benchmark shows it")]

use super::Bits;
use super::strings::Quoted;
use crate::state::Next;

/// What one block leaves to the next, one bit each.
#[derive(Clone, Copy, Default)]
pub(super) struct Tokens {
    /// A value has to come.
    value: u64,
    /// A value or `]`.
    element: u64,
    /// A key or `}`; with `value`, a key.
    key: u64,
    /// A colon.
    colon: u64,
    /// A comma, `]` or `}`.
    end: u64,
    /// The block ends inside a key.
    inside_key: u64,
}

/// The tokens of a block, outside of strings.
pub(super) struct Found {
    pub(super) space: Bits,
    pub(super) open: Bits,
    pub(super) close: Bits,
    pub(super) brace: Bits,
    pub(super) comma: Bits,
    pub(super) colon: Bits,
    /// The first bytes of numbers and literals.
    pub(super) scalar: Bits,
    /// The first bytes behind them.
    pub(super) behind_scalar: Bits,
    /// Where the innermost container is an object.
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

    /// What has to come, if the block ended neither in a string nor in a number or literal.
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

    /// The places where something stands that must not.
    #[inline(always)]
    pub(super) fn wrong(&mut self, found: &Found, quoted: &Quoted) -> Bits {
        let space = found.space;
        let value = quoted.open | found.open | found.scalar;
        let (opens_object, opens_array) = (found.open & found.brace, found.open & !found.brace);

        let key = behind(opens_object | found.comma & found.in_object, &mut self.key, space);
        let mut wrong = key & !(quoted.open | found.close);
        // Here the addition carries through the string, to its closing quote.
        let (sum, inside_key) = quoted.inside.overflowing_add(key & quoted.open | self.inside_key);
        self.inside_key = u64::from(inside_key);
        let key_ends = sum & !quoted.inside;

        wrong |= behind(key_ends, &mut self.colon, space) & !found.colon;
        wrong |= behind(found.comma | found.colon, &mut self.value, space) & !value;
        wrong |= behind(opens_array, &mut self.element, space) & !(value | found.close);
        self.end |= found.behind_scalar & 1;
        let value_ends = quoted.close & !key_ends | found.close | found.behind_scalar >> 1;
        wrong | behind(value_ends, &mut self.end, space) & !(found.comma | found.close)
    }
}

/// The first bytes behind these that are not whitespace. `carry` says whether one is sought from before the block,
/// and then whether one is still sought behind it.
///
/// An addition carries through each run of whitespace in which it begins.
#[inline(always)]
fn behind(places: Bits, carry: &mut u64, space: Bits) -> Bits {
    let (sum, over) = space.overflowing_add(places << 1 | *carry);
    *carry = places >> 63 | u64::from(over);
    sum & !space
}
