//! One piece of input on its way through the scanner, and the room for what is kept of it.
//!
//! **Invariant.** `filled <= at`: no byte is kept that was not read, so a room as long as the input is
//! enough, and eight bytes may be written wherever eight can be read. What lies behind `filled` is scrap.
//!
//! **What is absent.** Any idea of JSON but which bytes are whitespace and which are plain in a string.

#![expect(clippy::inline_always, reason = "calls cost a third of the speed; the benchmark shows it")]

/// As many bytes are looked at together.
const WORD: usize = 8;

/// And as many where nothing special is expected.
const BLOCK: usize = 32;

/// A string that has come so far is worth trying blocks on: most are shorter.
const LONG: usize = 48;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

pub(crate) struct Piece<'a> {
    input: &'a [u8],
    at: usize,
    room: &'a mut [u8],
    filled: usize,
}

impl<'a> Piece<'a> {
    pub(crate) fn new(input: &'a [u8], room: &'a mut [u8]) -> Piece<'a> {
        assert_eq!(input.len(), room.len(), "all of a piece can be kept");
        Piece { input, at: 0, room, filled: 0 }
    }

    /// How many bytes were read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// How many of them were kept.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// The next byte.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    /// Keeps the next byte, which [`Self::peek`] has shown.
    #[inline(always)]
    pub(crate) fn keep(&mut self, byte: u8) {
        self.room[self.filled] = byte;
        self.filled += 1;
        self.at += 1;
    }

    /// Passes over whitespace: mostly a line's end and spaces, so spaces go by the word.
    #[inline(always)]
    pub(crate) fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
            self.skip_spaces();
        }
    }

    #[inline(always)]
    fn skip_spaces(&mut self) {
        while let Some(word) = self.word() {
            let spaces = leading(word ^ (ONES * u64::from(b' ')));
            self.at += spaces;
            if spaces < WORD {
                return;
            }
        }
    }

    /// Keeps everything up to the next byte that means something in a string: a quote, a backslash, a
    /// control character, or a byte beyond ASCII.
    #[inline(always)]
    pub(crate) fn keep_plain(&mut self) {
        let begin = self.at;
        while let Some(word) = self.word() {
            if self.keep_word(word, leading(special(word) | (word & HIGHS))) < WORD {
                return;
            }
            if self.at - begin >= LONG {
                self.keep_blocks();
            }
        }
        while let Some(byte @ (0x20..0x80)) = self.peek().filter(|byte| !matches!(byte, b'"' | b'\\')) {
            self.keep(byte);
        }
    }

    /// Keeps blocks that are plain from end to end: long strings are copied by the block.
    #[inline(never)]
    fn keep_blocks(&mut self) {
        while let Some(block) = self.input[self.at..].first_chunk::<BLOCK>().filter(|block| all_plain(block))
        {
            self.room[self.filled..][..BLOCK].copy_from_slice(block);
            self.at += BLOCK;
            self.filled += BLOCK;
        }
    }

    /// Keeps whole characters, ASCII or not, up to the next quote, backslash or control character. What is not
    /// UTF-8, or not complete, is left where it is.
    pub(crate) fn keep_characters(&mut self) {
        let run = &self.input[self.at..][..self.until_special()];
        let sound = std::str::from_utf8(run).map_or_else(|error| error.valid_up_to(), str::len);
        self.room[self.filled..][..sound].copy_from_slice(&run[..sound]);
        self.at += sound;
        self.filled += sound;
    }

    /// How far the next quote, backslash or control character is; at most a block.
    fn until_special(&self) -> usize {
        let ahead = &self.input[self.at..];
        let ahead = &ahead[..ahead.len().min(8 * BLOCK)];
        let (words, rest) = ahead.as_chunks::<WORD>();
        let word = |bytes: &[u8; WORD]| leading(special(u64::from_le_bytes(*bytes)));
        match words.iter().position(|bytes| word(bytes) < WORD) {
            Some(place) => place * WORD + word(&words[place]),
            None => ahead.len() - rest.len(),
        }
    }

    /// Keeps the digits that come next.
    #[inline(always)]
    pub(crate) fn keep_digits(&mut self) {
        while let Some(word) = self.word() {
            if self.keep_word(word, leading(no_digits(word))) < WORD {
                return;
            }
        }
        while let Some(byte @ b'0'..=b'9') = self.peek() {
            self.keep(byte);
        }
    }

    /// Keeps the first bytes of a word; the others are written too, as scrap. Gives their number back.
    #[inline(always)]
    fn keep_word(&mut self, word: u64, bytes: usize) -> usize {
        self.room[self.filled..][..WORD].copy_from_slice(&word.to_le_bytes());
        self.at += bytes;
        self.filled += bytes;
        bytes
    }

    #[inline(always)]
    fn word(&self) -> Option<u64> {
        self.input.get(self.at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// How many bytes come before the first that is not zero.
#[inline(always)]
fn leading(word: u64) -> usize {
    word.trailing_zeros() as usize / 8
}

/// Marks quotes, backslashes and control characters. Behind the first marked byte a borrow may mark others by
/// mistake; before it none is marked, and none is missed.
#[inline(always)]
fn special(word: u64) -> u64 {
    let below = |word: u64, bound: u8| word.wrapping_sub(ONES * u64::from(bound)) & !word;
    let equal = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | equal(b'"') | equal(b'\\')) & HIGHS
}

/// Marks what is no digit; right up to the first mark, like [`special`].
#[inline(always)]
fn no_digits(word: u64) -> u64 {
    let value = word ^ (ONES * u64::from(b'0'));
    (value.wrapping_add(ONES * 0x76) | value) & HIGHS
}

/// Has a block neither quotes, backslashes, control characters nor anything beyond ASCII? Written so that the
/// compiler makes vector instructions of it.
#[inline(always)]
fn all_plain(block: &[u8; BLOCK]) -> bool {
    let special =
        |byte: u8| u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte.cast_signed() < 0x20);
    block.iter().fold(0, |seen, byte| seen | special(*byte)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_special_byte_of_a_word_is_found_for_all_pairs_of_bytes() {
        let plain = |byte: u8| (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
        for (first, second) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
            for place in 0..7 {
                let mut bytes = [b'x'; WORD];
                bytes[place] = first;
                bytes[place + 1] = second;
                let expected = bytes.iter().position(|byte| !plain(*byte)).unwrap_or(WORD);
                let word = u64::from_le_bytes(bytes);
                assert_eq!(leading(special(word) | (word & HIGHS)), expected, "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn the_first_byte_of_a_word_that_is_no_digit_is_found_for_all_pairs_of_bytes() {
        for (first, second) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
            for place in 0..7 {
                let mut bytes = [b'5'; WORD];
                bytes[place] = first;
                bytes[place + 1] = second;
                let expected = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(WORD);
                assert_eq!(leading(no_digits(u64::from_le_bytes(bytes))), expected, "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn a_block_is_plain_unless_one_byte_of_it_is_not() {
        for (byte, place) in (0..=255_u8).flat_map(|byte| (0..BLOCK).map(move |place| (byte, place))) {
            let mut block = [b'x'; BLOCK];
            block[place] = byte;
            let plain = (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
            assert_eq!(all_plain(&block), plain, "byte={byte} place={place}");
        }
    }

    #[test]
    fn characters_are_kept_up_to_the_first_that_is_broken_or_cut() {
        for (tail, sound) in [("\"", 0), ("é", 2), ("\\", 0), ("é\n", 2), ("鍵🔑", 7)] {
            for length in 0..30 {
                let text = ["é".repeat(length), tail.to_owned()].concat();
                for cut in [b"".as_slice(), b"\xF0\x9F\x94", b"\xFF", b"\xC3"] {
                    let bytes = [text.as_bytes(), cut].concat();
                    let mut room = vec![0; bytes.len()];
                    let mut piece = Piece::new(&bytes, &mut room);
                    while piece.at() < 2 * length + sound {
                        let before = piece.at();
                        piece.keep_characters();
                        if before == piece.at() {
                            // The last bytes of a piece are left to whoever goes byte by byte.
                            assert!(bytes.len() - before < WORD + 4);
                            break;
                        }
                    }
                    let (read, kept) = (piece.at(), piece.filled());
                    assert!(read <= 2 * length + sound);
                    assert_eq!(bytes[..read], room[..kept]);
                }
            }
        }
    }

    #[test]
    fn whitespace_is_passed_over_wherever_it_ends() {
        for length in 0..40 {
            for behind in 0..20 {
                let text = ["\n\t ".repeat(length / 3), " ".repeat(length), "x".repeat(behind)].concat();
                let mut room = vec![0; text.len()];
                let mut piece = Piece::new(text.as_bytes(), &mut room);
                piece.skip_whitespace();
                assert_eq!(piece.at(), text.len() - behind);
                assert_eq!(piece.filled(), 0);
            }
        }
    }

    #[test]
    fn plain_bytes_are_kept_wherever_they_end() {
        for length in 0..140 {
            for end in ["", "\"", "\\n", "\n", "é", "\"abcdefghijk"] {
                let text = ["y".repeat(length), end.to_owned()].concat();
                let mut room = vec![0; text.len()];
                let mut piece = Piece::new(text.as_bytes(), &mut room);
                piece.keep_plain();
                assert_eq!((piece.at(), piece.filled()), (length, length));
                assert!(room[..length].iter().all(|byte| *byte == b'y'));
            }
        }
    }
}
