//! Reads a text 64 bytes at a time, with bit masks in which each bit stands for a byte.
//!
//! **Invariant.** A block is either valid and accepted completely, or rejected completely: then the byte reader finds the
//! error and its offset, so only one reader reports errors. An accepted block leaves exactly the output and the state
//! that the byte reader would have left.
//!
//! **What would break it.** Accepting a block that contains the first invalid byte. Hence each constraint on a byte is
//! checked in the block of that byte, not in the next.
//!
//! **What is absent.** The beginning and the end of a text, containers close to the depth limit, the last bytes of a
//! piece: they are read byte by byte.

#![expect(
    clippy::inline_always,
    reason = "everything is compiled into one function for each instruction set"
)]

mod numbers;
mod strings;
mod tokens;

use self::numbers::Numbers;
use self::strings::{StringMasks, Strings};
use self::tokens::{TokenMasks, Tokens};
use crate::nesting::Nesting;
use crate::simd::{BLOCK, Block, Vectors};
use crate::state::{Next, State, Stop};
use crate::string::StringState;

/// A mask with one bit for each byte of a block, the lowest for the first.
type Bits = u64;

/// The current block and its surroundings.
struct BlockInput<'a, V: Vectors> {
    vectors: V,
    /// The block, in registers.
    bytes: V::Bytes,
    /// The block before; zeros if there is none.
    before: &'a Block,
    block: &'a Block,
    /// The input from the block on.
    ahead: &'a [u8],
}

/// The state that one block passes to the next.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    strings: Strings,
    tokens: Tokens,
    numbers: Numbers,
}

impl Carry {
    /// The carry for a parser state; `None` if blocks cannot start there.
    pub(crate) fn from(state: State) -> Option<Carry> {
        let (inside, tokens) = match state {
            State::Before(next) => (false, Tokens::before(next)?),
            State::Key(StringState::Plain) => (true, Tokens::in_string(true)),
            State::Text(StringState::Plain) => (true, Tokens::in_string(false)),
            _ => return None,
        };
        Some(Carry { strings: Strings::new(inside), tokens, numbers: Numbers::default() })
    }

    /// The parser state after these bytes, and the number of trailing bytes that it excludes: an unfinished number,
    /// literal, character or escape is left to the byte reader.
    fn state(&self, read: &[u8]) -> (State, usize) {
        if self.strings.inside() {
            let state = if self.tokens.inside_key() { State::Key } else { State::Text };
            return (state(StringState::Plain), self.strings.unfinished(read));
        }
        if self.numbers.unfinished() {
            let part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
            return (State::Before(Next::Value), read.iter().rev().take_while(part).count());
        }
        (State::Before(self.tokens.next()), 0)
    }
}

/// Reads blocks up to the first rejected one.
#[inline(always)]
pub(crate) fn read<V: Vectors>(
    vectors: V,
    carry: Carry,
    nesting: &mut Nesting,
    input: &[u8],
    output: &mut [u8],
) -> Stop {
    let (mut at, mut filled, mut carry) = (0, 0, carry);
    let mut before = &[0; BLOCK];
    while let Some(block) = input[at..].first_chunk::<BLOCK>()
        && let Some(output) = output[filled..].first_chunk_mut::<BLOCK>()
    {
        let bytes = vectors.load(block);
        if carry.strings.long() && vectors.is_plain(bytes) {
            *output = *block;
            (at, filled, before) = (at + BLOCK, filled + BLOCK, block);
            continue;
        }
        let current = BlockInput { vectors, bytes, before, block, ahead: &input[at..] };
        let Some((next, space)) = carry.accept(&current, nesting) else { break };
        carry = next;
        filled += match space {
            0 => {
                *output = *block;
                BLOCK
            }
            u64::MAX => 0,
            _ => vectors.compress(block, !space, output),
        };
        at += BLOCK;
        before = block;
    }
    let (state, unfinished) = carry.state(&input[..at]);
    Stop { read: at - unfinished, kept: filled - unfinished, state, refused: at }
}

impl Carry {
    /// The carry after the block, and its whitespace; `None` to reject it.
    #[inline(always)]
    fn accept<V: Vectors>(
        mut self,
        current: &BlockInput<'_, V>,
        nesting: &mut Nesting,
    ) -> Option<(Carry, Bits)> {
        let BlockInput { vectors, bytes, before, block, .. } = *current;
        let mut text = vectors.text(bytes);
        if text.high != 0 || self.strings.cut() {
            if !vectors.is_utf8(before, block) {
                return None;
            }
            self.strings.note_cut(text.high, block);
        }
        if self.strings.note_plain(&text) {
            return (text.control == 0).then_some((self, 0));
        }
        let mut wrong = 0;
        if self.strings.may_escape(&text) {
            wrong = self.strings.escapes(&mut text, &vectors.escape(bytes));
        }
        let strings = self.strings.masks(text.quote, vectors.parity(text.quote));
        wrong |= strings.inside & text.control;
        self.outside(current, text.quote, &strings, nesting, wrong)
    }

    /// Checks the tokens outside of strings. `wrong` marks errors found before.
    #[inline(always)]
    fn outside<V: Vectors>(
        mut self,
        current: &BlockInput<'_, V>,
        quote: Bits,
        strings: &StringMasks,
        nesting: &mut Nesting,
        mut wrong: Bits,
    ) -> Option<(Carry, Bits)> {
        let BlockInput { vectors, bytes, ahead, .. } = *current;
        let structure = vectors.structure(bytes);
        if structure.space == u64::MAX && strings.inside == 0 && !self.numbers.unfinished() {
            // Only whitespace: the expected token comes later.
            return Some((self, u64::MAX));
        }
        let outside = !(strings.inside | quote);
        let space = structure.space & outside;
        let (open, close) = (structure.open & outside, structure.close & outside);
        let (comma, colon) = (structure.comma & outside, structure.colon & outside);
        let scalars = outside & !(space | open | close | comma | colon);
        let (scalar, after_scalar) = self.numbers.edges(scalars);
        if scalars | after_scalar != 0 {
            let numeric = vectors.numeric(bytes);
            let words = scalar & !(numeric.digit | numeric.minus);
            let words = self.numbers.literals(words, |position| ahead[position..].first_chunk().copied())?;
            wrong |= self.numbers.wrong(&numeric, scalars & !words, scalar, || vectors.exponents(bytes));
        }
        let mut inner = None;
        let (brace, in_object) = if open | close == 0 {
            (0, nesting.in_object()?)
        } else {
            let brace = vectors.braces(bytes);
            (brace, inner.insert(nesting.clone()).pass(open, close, brace)?)
        };
        let found = TokenMasks { space, open, close, brace, comma, colon, scalar, after_scalar, in_object };
        wrong |= self.tokens.wrong(&found, strings);
        if wrong != 0 {
            return None;
        }
        if let Some(inner) = inner {
            *nesting = inner;
        }
        Some((self, space))
    }
}

#[cfg(test)]
mod tests {
    use crate::nesting::{Container, Nesting};
    use crate::simd::Simd;
    use crate::state::{Next, State, Stop};
    use crate::string::StringState;

    /// Reads the input by blocks, inside an array, with each instruction set.
    fn read(state: State, input: &[u8]) -> impl Iterator<Item = Stop> {
        Simd::all().map(move |simd| {
            let mut nesting = Nesting::default();
            assert!(nesting.open(Container::Array));
            let mut output = vec![0; input.len()];
            simd.read(state, &mut nesting, input, &mut output).expect("a state that blocks can start from")
        })
    }

    /// If all blocks were rejected, the block reader would be correct but useless.
    #[test]
    fn valid_text_is_accepted() {
        let text = "{\"key\" : \"some \\u00e9\\n é鍵🔑\",\n\"n\":[-12.50e+3, 0,true,false,null,{},[] ] },\n";
        for shift in 0..130 {
            let text = [" ".repeat(shift), text.repeat(20)].concat();
            for stop in read(State::Before(Next::ValueOrEnd), text.as_bytes()) {
                assert_eq!(stop.refused, text.len() / 64 * 64, "shift={shift}");
                assert!(stop.refused - stop.read < 20, "only the last token is left");
            }
        }
    }

    #[test]
    fn an_unfinished_token_is_left_to_the_byte_reader() {
        let text = |behind| (State::Text(StringState::Plain), behind);
        let before = |next, behind| (State::Before(next), behind);
        for (end, (state, behind)) in [
            ("\"abc", text(0)),
            ("\"abc\\", text(1)),
            ("\"abc\\\\", text(0)),
            ("\"abc\\u", text(2)),
            ("\"abc\\u12", text(4)),
            ("\"abc\\u1234", text(0)),
            ("\"abcé", text(0)),
            ("-12.5e+", before(Next::Value, 7)),
            ("false", before(Next::Value, 5)),
            ("12 ", before(Next::CommaOrEnd, 0)),
            ("[ ", before(Next::ValueOrEnd, 0)),
            ("[0,", before(Next::Value, 0)),
            ("{", before(Next::KeyOrEnd, 0)),
            ("{\"k\" ", before(Next::Colon, 0)),
            ("{\"k\":1, ", before(Next::Key, 0)),
            ("{\"k\" :", before(Next::Value, 0)),
            ("{\"k", (State::Key(StringState::Plain), 0)),
        ] {
            let input = [" ".repeat(128 - end.len()), end.to_owned()].concat();
            // A literal is only accepted if the byte after it is visible.
            for stop in read(State::Before(Next::Value), format!("{input}    ,      ").as_bytes()) {
                assert_eq!((stop.refused, 128 - stop.read, stop.state), (128, behind, state), "{end}");
            }
        }
    }

    #[test]
    fn an_incomplete_character_is_left_to_the_byte_reader() {
        for (cut, character) in [(1, "é"), (1, "鍵"), (2, "鍵"), (1, "🔑"), (2, "🔑"), (3, "🔑")] {
            let input = format!("\"{}{character}{}", "x".repeat(127 - cut), "x".repeat(64));
            let (front, _) = input.as_bytes().split_at(128);
            for stop in read(State::Before(Next::Value), front) {
                assert_eq!((stop.refused, stop.read, stop.kept), (128, 128 - cut, 128 - cut), "{character}");
                assert_eq!(stop.state, State::Text(StringState::Plain));
            }
        }
    }
}
