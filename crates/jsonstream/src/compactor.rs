//! Validates JSON and removes its insignificant whitespace, chunk by chunk as it arrives.
//!
//! **Invariant.** The state has a fixed size for any input: the parser state, and one bit for each open array or
//! object. Neither the output nor the error and its offset depend on how the text is split into chunks. Everything
//! but whitespace between tokens is kept byte for byte.
//!
//! **What is absent.** Values: no number is computed, no escape decoded, no key compared. So duplicate keys, numbers
//! out of any type's range and lone escaped surrogates are accepted.

#![expect(clippy::inline_always, reason = "calls cost a third of the throughput in the benchmark")]

use crate::error::{JsonError, JsonErrorKind};
use crate::nesting::{Container, Nesting};
use crate::number::Number;
use crate::piece::Piece;
use crate::simd::{BLOCK, Simd};
use crate::state::{Next, State};
use crate::string::StringState;

/// Input is processed in parts of this size, so that the output buffer of each is still in the cache when it is used.
const PART: usize = 16 << 10;

/// Limits that the caller sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the input in bytes, whitespace included.
    pub bytes_max: u64,
}

/// The lengths of a complete text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Length of the input, in bytes.
    pub received_bytes: u64,
    /// Length of the compact output, in bytes.
    pub compact_bytes: u64,
}

/// Reads a JSON text in chunks and writes it without insignificant whitespace.
///
/// ```
/// use jsonstream::{Compactor, Limits};
///
/// let mut out = Vec::new();
/// let mut compactor = Compactor::new(Limits { bytes_max: 1000 });
/// compactor.push(b"{ \"big\": 1234567890123", &mut out)?;
/// compactor.push(b"4567890.10 }\n", &mut out)?;
/// let summary = compactor.finish()?;
/// assert_eq!(out, br#"{"big":12345678901234567890.10}"#);
/// assert_eq!(summary.compact_bytes, 31);
/// # Ok::<(), jsonstream::JsonError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compactor {
    limits: Limits,
    state: State,
    nesting: Nesting,
    received: u64,
    compact: u64,
    failed: Option<JsonError>,
    simd: Option<Simd>,
}

type Step = Result<State, JsonErrorKind>;

impl Compactor {
    /// A new compactor that uses the best vector instructions of the processor.
    pub fn new(limits: Limits) -> Compactor {
        Compactor { simd: Simd::detect(), ..Compactor::scalar(limits) }
    }

    /// One compactor for each kind of vector instructions of the processor, by name, best first. All behave the same.
    pub fn vector(limits: Limits) -> impl Iterator<Item = (&'static str, Compactor)> {
        Simd::all()
            .map(move |simd| (simd.name(), Compactor { simd: Some(simd), ..Compactor::scalar(limits) }))
    }

    /// A compactor without vector instructions. It behaves exactly like the others, only slower: the reference for tests
    /// and benchmarks.
    pub fn scalar(limits: Limits) -> Compactor {
        let (state, nesting) = (State::Before(Next::Value), Nesting::default());
        Compactor { limits, state, nesting, received: 0, compact: 0, failed: None, simd: None }
    }

    /// Reads the next chunk and appends its compact form. After an error every further call returns the same error, and
    /// the output must be discarded.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), JsonError> {
        let allowed = self.allowed(input);
        for part in allowed.chunks(PART) {
            let start = out.len();
            out.resize(start + part.len(), 0);
            let kept = self.part(part, &mut out[start..])?;
            out.truncate(start + kept);
        }
        self.end_chunk(allowed.len() == input.len())
    }

    /// Likewise, into an existing buffer that is at least as long as the chunk and is not cleared first. Returns how much of
    /// it was filled; the bytes after that are undefined.
    pub fn push_into(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, JsonError> {
        assert!(output.len() >= input.len(), "the output may be as long as the input");
        let allowed = self.allowed(input);
        let kept = self.part(allowed, &mut output[..allowed.len()])?;
        self.end_chunk(allowed.len() == input.len())?;
        Ok(kept)
    }

    fn end_chunk(&mut self, within_limit: bool) -> Result<(), JsonError> {
        self.failed.map_or(Ok(()), Err)?;
        if within_limit { Ok(()) } else { self.fail(JsonErrorKind::TooLarge) }
    }

    /// The prefix of the chunk that the limit allows.
    fn allowed<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        let allowed = usize::try_from(self.limits.bytes_max.saturating_sub(self.received));
        &input[..allowed.unwrap_or(usize::MAX).min(input.len())]
    }

    /// Ends the text. Fails if its value is incomplete.
    pub fn finish(self) -> Result<Summary, JsonError> {
        self.failed.map_or(Ok(()), Err)?;
        let complete = match self.state {
            State::Before(next) => next == Next::Nothing,
            State::Number(number) => number.may_end() && self.nesting.innermost().is_none(),
            State::Key(_) | State::Text(_) | State::Literal(_) => false,
        };
        if complete {
            Ok(Summary { received_bytes: self.received, compact_bytes: self.compact })
        } else {
            Err(JsonError { kind: JsonErrorKind::UnexpectedEnd, offset: self.received })
        }
    }

    /// Compacts `input` into `output` of the same length. Returns how much of it was filled.
    fn part(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, JsonError> {
        self.failed.map_or(Ok(()), Err)?;
        let (mut read, mut kept) = (0, 0);
        let mut end = Ok(());
        while read < input.len() && end.is_ok() {
            let upto = self.by_blocks(input, output, &mut read, &mut kept);
            let mut piece = Piece::new(&input[read..upto], &mut output[kept..][..upto - read]);
            end = self.scan(&mut piece);
            read += piece.at();
            kept += piece.filled();
        }
        self.received += read as u64;
        self.compact += kept as u64;
        match end {
            Ok(()) => Ok(kept),
            Err(kind) => self.fail(self.byte_order_mark(input).unwrap_or(kind)).map(|()| kept),
        }
    }

    /// Reads blocks until one is rejected, and returns up to where to continue byte by byte.
    fn by_blocks(&mut self, input: &[u8], output: &mut [u8], read: &mut usize, kept: &mut usize) -> usize {
        let Some(simd) = self.simd else { return input.len() };
        let (rest, output) = (&input[*read..], &mut output[*kept..]);
        let mut block = *read;
        if let Some(stop) = simd.read(self.state, &mut self.nesting, rest, output) {
            block += stop.refused;
            *read += stop.read;
            *kept += stop.kept;
            self.state = stop.state;
        }
        input.len().min(block + BLOCK)
    }

    /// The error of a text that begins with a byte order mark.
    fn byte_order_mark(&self, input: &[u8]) -> Option<JsonErrorKind> {
        let marked = self.received == 0 && input.first() == Some(&0xEF);
        marked.then_some(JsonErrorKind::ByteOrderMark)
    }

    fn fail(&mut self, kind: JsonErrorKind) -> Result<(), JsonError> {
        let error = JsonError { kind, offset: self.received };
        self.failed = Some(error);
        Err(error)
    }

    /// Reads byte by byte to the end of the piece, or up to the first invalid byte.
    fn scan(&mut self, piece: &mut Piece<'_>) -> Result<(), JsonErrorKind> {
        let mut state = self.state;
        while piece.peek().is_some() {
            state = match state {
                State::Before(next) => self.token(piece, next)?,
                State::Key(inside) => self.in_key(piece, inside)?,
                State::Text(inside) => self.in_text(piece, inside)?,
                State::Number(number) => self.in_number(piece, number)?,
                State::Literal(rest) => self.in_literal(piece, rest)?,
            }
        }
        self.state = state;
        Ok(())
    }

    /// Skips whitespace, and reads the byte after it.
    #[inline(always)]
    fn token(&mut self, piece: &mut Piece<'_>, next: Next) -> Step {
        piece.skip_whitespace();
        let Some(byte) = piece.peek() else { return Ok(State::Before(next)) };
        let state = match (next, byte) {
            (Next::Colon, b':') => State::Before(Next::Value),
            (Next::CommaOrEnd, b',') => self.after_comma(),
            (Next::KeyOrEnd | Next::Key, b'"') => State::Key(StringState::Plain),
            (Next::KeyOrEnd | Next::CommaOrEnd, b'}') => self.close(Container::Object)?,
            (Next::ValueOrEnd | Next::CommaOrEnd, b']') => self.close(Container::Array)?,
            (Next::Value | Next::ValueOrEnd, _) => self.value(byte)?,
            (Next::Nothing, _) => return Err(JsonErrorKind::TrailingByte),
            _ => return Err(JsonErrorKind::UnexpectedByte),
        };
        piece.keep(byte);
        Ok(state)
    }

    /// A value that begins with this byte.
    #[inline(always)]
    fn value(&mut self, byte: u8) -> Step {
        match byte {
            b'"' => Ok(State::Text(StringState::Plain)),
            b'{' => self.open(Container::Object, Next::KeyOrEnd),
            b'[' => self.open(Container::Array, Next::ValueOrEnd),
            b't' => Ok(State::Literal(b"rue")),
            b'f' => Ok(State::Literal(b"alse")),
            b'n' => Ok(State::Literal(b"ull")),
            _ => Number::begin(byte).map(State::Number).ok_or(JsonErrorKind::UnexpectedByte),
        }
    }

    #[inline(always)]
    fn open(&mut self, container: Container, next: Next) -> Step {
        if self.nesting.open(container) { Ok(State::Before(next)) } else { Err(JsonErrorKind::TooDeep) }
    }

    #[inline(always)]
    fn close(&mut self, container: Container) -> Step {
        if self.nesting.close(container) {
            Ok(self.after_value())
        } else {
            Err(JsonErrorKind::UnexpectedByte)
        }
    }

    #[inline(always)]
    fn after_comma(&self) -> State {
        match self.nesting.innermost() {
            Some(Container::Object) => State::Before(Next::Key),
            _ => State::Before(Next::Value),
        }
    }

    #[inline(always)]
    fn after_value(&self) -> State {
        match self.nesting.innermost() {
            Some(_) => State::Before(Next::CommaOrEnd),
            None => State::Before(Next::Nothing),
        }
    }

    /// Reads the most likely next token at once, which is faster than another round of the main loop.
    #[inline(always)]
    fn and(&mut self, piece: &mut Piece<'_>, state: State, next: Next) -> Step {
        match state {
            State::Before(expected) if expected == next => self.token(piece, next),
            _ => Ok(state),
        }
    }

    #[inline(always)]
    fn in_key(&mut self, piece: &mut Piece<'_>, inside: StringState) -> Step {
        let state = in_string(piece, inside, State::Key, State::Before(Next::Colon))?;
        let state = self.and(piece, state, Next::Colon)?;
        self.and(piece, state, Next::Value)
    }

    #[inline(always)]
    fn in_text(&mut self, piece: &mut Piece<'_>, inside: StringState) -> Step {
        let state = in_string(piece, inside, State::Text, self.after_value())?;
        let state = self.and(piece, state, Next::CommaOrEnd)?;
        self.and(piece, state, Next::Key)
    }

    #[inline(always)]
    fn in_number(&mut self, piece: &mut Piece<'_>, mut number: Number) -> Step {
        while let Some(byte) = piece.peek() {
            match number.next(byte)? {
                Some(next) => number = next,
                None => return self.and(piece, self.after_value(), Next::CommaOrEnd),
            }
            piece.keep(byte);
            if number.takes_digits() {
                piece.keep_digits();
            }
        }
        Ok(State::Number(number))
    }

    #[inline(always)]
    fn in_literal(&self, piece: &mut Piece<'_>, mut rest: &'static [u8]) -> Step {
        while let Some((expected, after)) = rest.split_first() {
            let Some(byte) = piece.peek() else { return Ok(State::Literal(rest)) };
            if byte != *expected {
                return Err(JsonErrorKind::UnexpectedByte);
            }
            piece.keep(byte);
            rest = after;
        }
        Ok(self.after_value())
    }
}

/// Continues a string, up to its closing quote or the end of the piece.
#[inline(always)]
fn in_string(
    piece: &mut Piece<'_>,
    mut inside: StringState,
    role: fn(StringState) -> State,
    after: State,
) -> Step {
    loop {
        if inside == StringState::Plain {
            piece.keep_plain();
        }
        let Some(byte) = piece.peek() else { return Ok(role(inside)) };
        if inside == StringState::Plain && byte == b'"' {
            piece.keep(byte);
            return Ok(after);
        }
        inside = inside.next(byte)?;
        piece.keep(byte);
        if byte >= 0x80 && inside == StringState::Plain {
            // One non-ASCII character is usually followed by others.
            piece.keep_characters();
        }
    }
}

/// Compacts a complete text.
///
/// ```
/// use jsonstream::{Limits, compact};
///
/// let limits = Limits { bytes_max: 1000 };
/// assert_eq!(compact(b"[ 1.0, \"a b\" ]", limits)?, br#"[1.0,"a b"]"#);
/// assert_eq!(compact(b"[1,]", limits).unwrap_err().offset, 3);
/// # Ok::<(), jsonstream::JsonError>(())
/// ```
pub fn compact(bytes: &[u8], limits: Limits) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(limits);
    compactor.push(bytes, &mut out)?;
    compactor.finish()?;
    Ok(out)
}

/// Validates a complete text. Memory use does not grow with its length.
pub fn check(bytes: &[u8], limits: Limits) -> Result<Summary, JsonError> {
    let mut discarded = Vec::new();
    let mut compactor = Compactor::new(limits);
    for part in bytes.chunks(PART) {
        discarded.clear();
        compactor.push(part, &mut discarded)?;
    }
    compactor.finish()
}
