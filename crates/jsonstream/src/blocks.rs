//! Reads a text 64 bytes at a time, by words in which each bit stands for a byte.
//!
//! **Invariant.** A block is either right from end to end, and then taken whole, or not taken at all: whoever reads
//! byte by byte finds out what is wrong with it, and where. So every error is told by one reader only. A block that
//! is taken leaves exactly the bytes and the state that reading byte by byte would have left.
//!
//! The interleaving that would break it: a block is taken, and the first wrong byte was in it. Hence each demand on
//! a byte is checked with the block in which that byte is, not with the next.
//!
//! **What is absent.** The beginning and the end of a text, containers that are nearly too deep, the last bytes of
//! a piece: they are read byte by byte.

#![expect(clippy::inline_always, reason = "it is compiled once for each kind of vectors, as one function")]

mod numbers;
mod strings;
mod tokens;

use self::numbers::Numbers;
use self::strings::{Quoted, Strings};
use self::tokens::{Found, Tokens};
use crate::nesting::Nesting;
use crate::simd::{BLOCK, Block, Vectors};
use crate::state::{Next, State, Stop};
use crate::string::Inside;

/// One bit for each byte of a block, the lowest for the first.
type Bits = u64;

/// What is looked at.
struct Here<'a, V: Vectors> {
    vectors: V,
    /// The block.
    bytes: V::Bytes,
    /// The block before; zeros, if there is none.
    before: &'a Block,
    block: &'a Block,
    /// From the block on.
    ahead: &'a [u8],
}

/// What one block leaves to the next.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    strings: Strings,
    tokens: Tokens,
    numbers: Numbers,
}

impl Carry {
    /// What blocks can go on from.
    pub(crate) fn from(state: State) -> Option<Carry> {
        let (inside, tokens) = match state {
            State::Before(next) => (false, Tokens::before(next)?),
            State::Key(Inside::Plain) => (true, Tokens::in_string(true)),
            State::Text(Inside::Plain) => (true, Tokens::in_string(false)),
            _ => return None,
        };
        Some(Carry { strings: Strings::new(inside), tokens, numbers: Numbers::default() })
    }

    /// The state behind these bytes, and how many of them it does not include: an unfinished number, literal,
    /// character or escape is left to whoever reads byte by byte.
    fn state(&self, read: &[u8]) -> (State, usize) {
        if self.strings.inside() {
            let state = if self.tokens.inside_key() { State::Key } else { State::Text };
            return (state(Inside::Plain), self.strings.unfinished(read));
        }
        if self.numbers.unfinished() {
            let part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
            return (State::Before(Next::Value), read.iter().rev().take_while(part).count());
        }
        (State::Before(self.tokens.next()), 0)
    }
}

/// Takes block after block, up to the first that is not to be taken.
#[inline(always)]
pub(crate) fn read<V: Vectors>(
    vectors: V,
    carry: Carry,
    nesting: &mut Nesting,
    input: &[u8],
    room: &mut [u8],
) -> Stop {
    let (mut at, mut filled, mut carry) = (0, 0, carry);
    let mut before = &[0; BLOCK];
    while let Some(block) = input[at..].first_chunk::<BLOCK>()
        && let Some(room) = room[filled..].first_chunk_mut::<BLOCK>()
    {
        let bytes = vectors.load(block);
        if carry.strings.long() && vectors.is_plain(bytes) {
            *room = *block;
            (at, filled, before) = (at + BLOCK, filled + BLOCK, block);
            continue;
        }
        let here = Here { vectors, bytes, before, block, ahead: &input[at..] };
        let Some((next, space)) = carry.take(&here, nesting) else { break };
        carry = next;
        filled += match space {
            0 => {
                *room = *block;
                BLOCK
            }
            u64::MAX => 0,
            _ => vectors.compress(block, !space, room),
        };
        at += BLOCK;
        before = block;
    }
    let (state, unfinished) = carry.state(&input[..at]);
    Stop { read: at - unfinished, kept: filled - unfinished, state, refused: at }
}

impl Carry {
    /// What is behind the block, and the whitespace in it; none if it is not to be taken.
    #[inline(always)]
    fn take<V: Vectors>(mut self, here: &Here<'_, V>, nesting: &mut Nesting) -> Option<(Carry, Bits)> {
        let Here { vectors, bytes, before, block, .. } = *here;
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
        let quoted = self.strings.quoted(text.quote, vectors.parity(text.quote));
        wrong |= quoted.inside & text.control;
        self.outside(here, text.quote, &quoted, nesting, wrong)
    }

    /// What is outside of strings, and whether anything is wrong with it or already was.
    #[inline(always)]
    fn outside<V: Vectors>(
        mut self,
        here: &Here<'_, V>,
        quote: Bits,
        quoted: &Quoted,
        nesting: &mut Nesting,
        mut wrong: Bits,
    ) -> Option<(Carry, Bits)> {
        let Here { vectors, bytes, ahead, .. } = *here;
        let structure = vectors.structure(bytes);
        if structure.space == u64::MAX && quoted.inside == 0 && !self.numbers.unfinished() {
            // Whatever has to come, has to come later.
            return Some((self, u64::MAX));
        }
        let outside = !(quoted.inside | quote);
        let space = structure.space & outside;
        let (open, close) = (structure.open & outside, structure.close & outside);
        let (comma, colon) = (structure.comma & outside, structure.colon & outside);
        let scalars = outside & !(space | open | close | comma | colon);
        let (scalar, behind_scalar) = self.numbers.edges(scalars);
        if scalars | behind_scalar != 0 {
            let numeric = vectors.numeric(bytes);
            let words = scalar & !(numeric.digit | numeric.minus);
            let words = self.numbers.literals(words, |place| ahead[place..].first_chunk().copied())?;
            wrong |= self.numbers.wrong(&numeric, scalars & !words, scalar, || vectors.exponents(bytes));
        }
        let mut inner = None;
        let (brace, in_object) = if open | close == 0 {
            (0, nesting.in_object()?)
        } else {
            let brace = vectors.braces(bytes);
            (brace, inner.insert(nesting.clone()).pass(open, close, brace)?)
        };
        let found = Found { space, open, close, brace, comma, colon, scalar, behind_scalar, in_object };
        wrong |= self.tokens.wrong(&found, quoted);
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
    use crate::string::Inside;

    /// What blocks take of this, inside an array, with each kind of vectors.
    fn read(state: State, input: &[u8]) -> impl Iterator<Item = Stop> {
        Simd::all().map(move |simd| {
            let mut nesting = Nesting::default();
            assert!(nesting.open(Container::Array));
            let mut room = vec![0; input.len()];
            simd.read(state, &mut nesting, input, &mut room).expect("a state to go on from")
        })
    }

    /// If blocks were all refused, reading by blocks would be right, and of no use.
    #[test]
    fn sound_text_is_taken() {
        let text = "{\"key\" : \"some \\u00e9\\n é鍵🔑\",\n\"n\":[-12.50e+3, 0,true,false,null,{},[] ] },\n";
        for shift in 0..130 {
            let text = [" ".repeat(shift), text.repeat(20)].concat();
            for stop in read(State::Before(Next::ValueOrEnd), text.as_bytes()) {
                assert_eq!(stop.refused, text.len() / 64 * 64, "shift={shift}");
                assert!(stop.refused - stop.read < 20, "only the last token is given back");
            }
        }
    }

    #[test]
    fn what_is_unfinished_is_given_back() {
        let text = |behind| (State::Text(Inside::Plain), behind);
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
            ("{\"k", (State::Key(Inside::Plain), 0)),
        ] {
            let input = [" ".repeat(128 - end.len()), end.to_owned()].concat();
            // A literal is only taken if what follows it is seen.
            for stop in read(State::Before(Next::Value), format!("{input}    ,      ").as_bytes()) {
                assert_eq!((stop.refused, 128 - stop.read, stop.state), (128, behind, state), "{end}");
            }
        }
    }

    #[test]
    fn a_character_that_is_cut_is_given_back() {
        for (cut, character) in [(1, "é"), (1, "鍵"), (2, "鍵"), (1, "🔑"), (2, "🔑"), (3, "🔑")] {
            let input = format!("\"{}{character}{}", "x".repeat(127 - cut), "x".repeat(64));
            let (front, _) = input.as_bytes().split_at(128);
            for stop in read(State::Before(Next::Value), front) {
                assert_eq!((stop.refused, stop.read, stop.kept), (128, 128 - cut, 128 - cut), "{character}");
                assert_eq!(stop.state, State::Text(Inside::Plain));
            }
        }
    }
}
