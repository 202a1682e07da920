//! Validates JSON and takes out its insignificant whitespace, piece by piece as it arrives.
//!
//! **Invariant.** The state has a fixed size, whatever comes: where in a value the text is, and one bit for
//! each open array or object. What comes out, and which error at which offset, does not depend on how the
//! text is cut into pieces. Everything but whitespace between tokens is kept byte for byte.
//!
//! **What is absent.** Values: no number is computed, no escape decoded, no key compared. So duplicate keys,
//! numbers beyond every type and lone escaped surrogates pass as they are.

#![expect(clippy::inline_always, reason = "calls cost a third of the speed; the benchmark shows it")]

use crate::error::{JsonError, JsonErrorKind};
use crate::nesting::{Container, Nesting};
use crate::number::Number;
use crate::piece::Piece;
use crate::simd::{BLOCK, Simd};
use crate::state::{Next, State};
use crate::string::Inside;

/// Input is taken in parts of this size, so that the room for each is still in the cache when it is used.
const PART: usize = 16 << 10;

/// What a caller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes that are taken, whitespace included.
    pub bytes_max: u64,
}

/// What a whole text came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The length of the text.
    pub received_bytes: u64,
    /// The length of the compact text.
    pub compact_bytes: u64,
}

/// Takes a JSON text in pieces and gives it back without insignificant whitespace.
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
    /// A compactor that has seen nothing. It uses the vector instructions that the processor has.
    pub fn new(limits: Limits) -> Compactor {
        Compactor { simd: Simd::detect(), ..Compactor::scalar(limits) }
    }

    /// One for each kind of vector instructions that the processor has, by name, the best first. They do exactly the same.
    pub fn vector(limits: Limits) -> impl Iterator<Item = (&'static str, Compactor)> {
        Simd::all()
            .map(move |simd| (simd.name(), Compactor { simd: Some(simd), ..Compactor::scalar(limits) }))
    }

    /// One that reads byte by byte whatever the processor has. It does exactly what the others do, only slower: it
    /// is what they are tested and measured against.
    pub fn scalar(limits: Limits) -> Compactor {
        let (state, nesting) = (State::Before(Next::Value), Nesting::default());
        Compactor { limits, state, nesting, received: 0, compact: 0, failed: None, simd: None }
    }

    /// Takes the next piece, and appends what is to be kept of it. After an error every further call gives the
    /// same one, and what was appended is of no use.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), JsonError> {
        let allowed = self.allowed(input);
        for part in allowed.chunks(PART) {
            let start = out.len();
            out.resize(start + part.len(), 0);
            let kept = self.part(part, &mut out[start..])?;
            out.truncate(start + kept);
        }
        self.end_piece(allowed.len() == input.len())
    }

    /// Likewise, into room that is there already, and is no shorter than the piece: nothing is cleared first. Gives back how
    /// much of it was filled; what is behind that is scrap.
    pub fn push_into(&mut self, input: &[u8], room: &mut [u8]) -> Result<usize, JsonError> {
        assert!(room.len() >= input.len(), "all of a piece may have to be kept");
        let allowed = self.allowed(input);
        let kept = self.part(allowed, &mut room[..allowed.len()])?;
        self.end_piece(allowed.len() == input.len())?;
        Ok(kept)
    }

    fn end_piece(&mut self, whole: bool) -> Result<(), JsonError> {
        self.failed.map_or(Ok(()), Err)?;
        if whole { Ok(()) } else { self.fail(JsonErrorKind::TooLarge) }
    }

    /// What the limit allows of it.
    fn allowed<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        let allowed = usize::try_from(self.limits.bytes_max.saturating_sub(self.received));
        &input[..allowed.unwrap_or(usize::MAX).min(input.len())]
    }

    /// Says that nothing more comes.
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

    /// Fills room of the same length; says how much of it.
    fn part(&mut self, input: &[u8], room: &mut [u8]) -> Result<usize, JsonError> {
        self.failed.map_or(Ok(()), Err)?;
        let (mut read, mut kept) = (0, 0);
        let mut end = Ok(());
        while read < input.len() && end.is_ok() {
            let upto = self.by_blocks(input, room, &mut read, &mut kept);
            let mut piece = Piece::new(&input[read..upto], &mut room[kept..][..upto - read]);
            end = self.scan(&mut piece);
            read += piece.at();
            kept += piece.filled();
        }
        self.received += read as u64;
        self.compact += kept as u64;
        match end {
            Ok(()) => Ok(kept),
            Err(kind) => self.fail(self.at_the_start(input).unwrap_or(kind)).map(|()| kept),
        }
    }

    /// Takes whole blocks as long as that goes, and gives back how far to go on byte by byte.
    fn by_blocks(&mut self, input: &[u8], room: &mut [u8], read: &mut usize, kept: &mut usize) -> usize {
        let Some(simd) = self.simd else { return input.len() };
        let (rest, room) = (&input[*read..], &mut room[*kept..]);
        let mut block = *read;
        if let Some(stop) = simd.read(self.state, &mut self.nesting, rest, room) {
            block += stop.refused;
            *read += stop.read;
            *kept += stop.kept;
            self.state = stop.state;
        }
        input.len().min(block + BLOCK)
    }

    /// What is wrong with a text whose very first byte is.
    fn at_the_start(&self, input: &[u8]) -> Option<JsonErrorKind> {
        let marked = self.received == 0 && input.first() == Some(&0xEF);
        marked.then_some(JsonErrorKind::ByteOrderMark)
    }

    fn fail(&mut self, kind: JsonErrorKind) -> Result<(), JsonError> {
        let error = JsonError { kind, offset: self.received };
        self.failed = Some(error);
        Err(error)
    }

    /// Reads to the end of the piece, or up to the first wrong byte.
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

    /// Passes over whitespace, and takes the byte behind it.
    #[inline(always)]
    fn token(&mut self, piece: &mut Piece<'_>, next: Next) -> Step {
        piece.skip_whitespace();
        let Some(byte) = piece.peek() else { return Ok(State::Before(next)) };
        let state = match (next, byte) {
            (Next::Colon, b':') => State::Before(Next::Value),
            (Next::CommaOrEnd, b',') => self.behind_comma(),
            (Next::KeyOrEnd | Next::Key, b'"') => State::Key(Inside::Plain),
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
            b'"' => Ok(State::Text(Inside::Plain)),
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
            Ok(self.behind_value())
        } else {
            Err(JsonErrorKind::UnexpectedByte)
        }
    }

    #[inline(always)]
    fn behind_comma(&self) -> State {
        match self.nesting.innermost() {
            Some(Container::Object) => State::Before(Next::Key),
            _ => State::Before(Next::Value),
        }
    }

    #[inline(always)]
    fn behind_value(&self) -> State {
        match self.nesting.innermost() {
            Some(_) => State::Before(Next::CommaOrEnd),
            None => State::Before(Next::Nothing),
        }
    }

    /// Takes the token that is to be expected behind the last one at once: it costs less than the way round.
    #[inline(always)]
    fn and(&mut self, piece: &mut Piece<'_>, state: State, next: Next) -> Step {
        match state {
            State::Before(expected) if expected == next => self.token(piece, next),
            _ => Ok(state),
        }
    }

    #[inline(always)]
    fn in_key(&mut self, piece: &mut Piece<'_>, inside: Inside) -> Step {
        let state = in_string(piece, inside, State::Key, State::Before(Next::Colon))?;
        let state = self.and(piece, state, Next::Colon)?;
        self.and(piece, state, Next::Value)
    }

    #[inline(always)]
    fn in_text(&mut self, piece: &mut Piece<'_>, inside: Inside) -> Step {
        let state = in_string(piece, inside, State::Text, self.behind_value())?;
        let state = self.and(piece, state, Next::CommaOrEnd)?;
        self.and(piece, state, Next::Key)
    }

    #[inline(always)]
    fn in_number(&mut self, piece: &mut Piece<'_>, mut number: Number) -> Step {
        while let Some(byte) = piece.peek() {
            match number.next(byte)? {
                Some(next) => number = next,
                None => return self.and(piece, self.behind_value(), Next::CommaOrEnd),
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
        while let Some((expected, behind)) = rest.split_first() {
            let Some(byte) = piece.peek() else { return Ok(State::Literal(rest)) };
            if byte != *expected {
                return Err(JsonErrorKind::UnexpectedByte);
            }
            piece.keep(byte);
            rest = behind;
        }
        Ok(self.behind_value())
    }
}

/// Goes on in a string, up to its closing quote or the end of the piece.
#[inline(always)]
fn in_string(piece: &mut Piece<'_>, mut inside: Inside, role: fn(Inside) -> State, behind: State) -> Step {
    loop {
        if inside == Inside::Plain {
            piece.keep_plain();
        }
        let Some(byte) = piece.peek() else { return Ok(role(inside)) };
        if inside == Inside::Plain && byte == b'"' {
            piece.keep(byte);
            return Ok(behind);
        }
        inside = inside.next(byte)?;
        piece.keep(byte);
        if byte >= 0x80 && inside == Inside::Plain {
            // Where one character is beyond ASCII, others will be.
            piece.keep_characters();
        }
    }
}

/// A whole text without its insignificant whitespace.
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

/// Is it JSON, within the limits? Takes no more memory for a long text than for a short one.
pub fn check(bytes: &[u8], limits: Limits) -> Result<Summary, JsonError> {
    let mut scrap = Vec::new();
    let mut compactor = Compactor::new(limits);
    for part in bytes.chunks(PART) {
        scrap.clear();
        compactor.push(part, &mut scrap)?;
    }
    compactor.finish()
}
