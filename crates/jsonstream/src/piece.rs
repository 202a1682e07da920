//! A piece of input for the byte reader, with its output buffer.
//!
//! **Invariant.** `filled <= at`: no byte is kept that was not read, so an output buffer as long as the input suffices,
//! and eight bytes may be written wherever eight can be read. Bytes after `filled` are undefined.
//!
//! **What is absent.** The grammar of JSON, except which bytes are whitespace and which are plain in a string.

#![expect(clippy::inline_always, reason = "calls cost a third of the throughput in the benchmark")]

/// Bytes that are examined together.
const WORD: usize = 8;

/// Bytes that are examined together in long strings.
const BLOCK: usize = 32;

/// Length in bytes after which a string is read by blocks; most are shorter.
const LONG: usize = 48;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

pub(crate) struct Piece<'a> {
    input: &'a [u8],
    at: usize,
    output: &'a mut [u8],
    filled: usize,
}

impl<'a> Piece<'a> {
    pub(crate) fn new(input: &'a [u8], output: &'a mut [u8]) -> Piece<'a> {
        assert_eq!(input.len(), output.len(), "the output may be as long as the input");
        Piece { input, at: 0, output, filled: 0 }
    }

    /// Number of bytes read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Number of bytes kept.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// The next byte.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    /// Keeps the next byte, which [`Self::peek`] returned.
    #[inline(always)]
    pub(crate) fn keep(&mut self, byte: u8) {
        self.output[self.filled] = byte;
        self.filled += 1;
        self.at += 1;
    }

    /// Skips whitespace. It is mostly a line break and spaces, so spaces are skipped by the word.
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

    /// Keeps everything up to the next special byte of a string: a quote, a backslash, a control character, or a
    /// non-ASCII byte.
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

    /// Keeps blocks of plain bytes only: long strings are copied by the block.
    #[inline(never)]
    fn keep_blocks(&mut self) {
        while let Some(block) = self.input[self.at..].first_chunk::<BLOCK>().filter(|block| all_plain(block))
        {
            self.output[self.filled..][..BLOCK].copy_from_slice(block);
            self.at += BLOCK;
            self.filled += BLOCK;
        }
    }

    /// Keeps complete characters, ASCII or not, up to the next quote, backslash or control character. Stops before invalid
    /// or incomplete UTF-8.
    pub(crate) fn keep_characters(&mut self) {
        let run = &self.input[self.at..][..self.until_special()];
        let valid = std::str::from_utf8(run).map_or_else(|error| error.valid_up_to(), str::len);
        self.output[self.filled..][..valid].copy_from_slice(&run[..valid]);
        self.at += valid;
        self.filled += valid;
    }

    /// Distance to the next quote, backslash or control character; at most eight blocks.
    fn until_special(&self) -> usize {
        let ahead = &self.input[self.at..];
        let ahead = &ahead[..ahead.len().min(8 * BLOCK)];
        let (words, rest) = ahead.as_chunks::<WORD>();
        let word = |bytes: &[u8; WORD]| leading(special(u64::from_le_bytes(*bytes)));
        match words.iter().position(|bytes| word(bytes) < WORD) {
            Some(position) => position * WORD + word(&words[position]),
            None => ahead.len() - rest.len(),
        }
    }

    /// Keeps the following digits.
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

    /// Keeps the first `bytes` bytes of a word and returns `bytes`; the others are written too, but not counted as filled.
    #[inline(always)]
    fn keep_word(&mut self, word: u64, bytes: usize) -> usize {
        self.output[self.filled..][..WORD].copy_from_slice(&word.to_le_bytes());
        self.at += bytes;
        self.filled += bytes;
        bytes
    }

    #[inline(always)]
    fn word(&self) -> Option<u64> {
        self.input.get(self.at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Number of zero bytes before the first nonzero one.
#[inline(always)]
fn leading(word: u64) -> usize {
    word.trailing_zeros() as usize / 8
}

/// Marks quotes, backslashes and control characters. The first mark is exact; after it a borrow may mark other bytes by
/// mistake.
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
            for position in 0..7 {
                let mut bytes = [b'x'; WORD];
                bytes[position] = first;
                bytes[position + 1] = second;
                let expected = bytes.iter().position(|byte| !plain(*byte)).unwrap_or(WORD);
                let word = u64::from_le_bytes(bytes);
                assert_eq!(leading(special(word) | (word & HIGHS)), expected, "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn the_first_byte_of_a_word_that_is_no_digit_is_found_for_all_pairs_of_bytes() {
        for (first, second) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
            for position in 0..7 {
                let mut bytes = [b'5'; WORD];
                bytes[position] = first;
                bytes[position + 1] = second;
                let expected = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(WORD);
                assert_eq!(leading(no_digits(u64::from_le_bytes(bytes))), expected, "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn a_block_is_plain_unless_one_byte_of_it_is_not() {
        for (byte, position) in (0..=255_u8).flat_map(|byte| (0..BLOCK).map(move |position| (byte, position)))
        {
            let mut block = [b'x'; BLOCK];
            block[position] = byte;
            let plain = (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
            assert_eq!(all_plain(&block), plain, "byte={byte} position={position}");
        }
    }

    #[test]
    fn characters_are_kept_up_to_the_first_invalid_or_incomplete_one() {
        for (tail, valid) in [("\"", 0), ("é", 2), ("\\", 0), ("é\n", 2), ("鍵🔑", 7)] {
            for length in 0..30 {
                let text = ["é".repeat(length), tail.to_owned()].concat();
                for cut in [b"".as_slice(), b"\xF0\x9F\x94", b"\xFF", b"\xC3"] {
                    let bytes = [text.as_bytes(), cut].concat();
                    let mut output = vec![0; bytes.len()];
                    let mut piece = Piece::new(&bytes, &mut output);
                    while piece.at() < 2 * length + valid {
                        let before = piece.at();
                        piece.keep_characters();
                        if before == piece.at() {
                            // The last bytes of a piece are read byte by byte.
                            assert!(bytes.len() - before < WORD + 4);
                            break;
                        }
                    }
                    let (read, kept) = (piece.at(), piece.filled());
                    assert!(read <= 2 * length + valid);
                    assert_eq!(bytes[..read], output[..kept]);
                }
            }
        }
    }

    #[test]
    fn whitespace_is_skipped_wherever_it_ends() {
        for length in 0..40 {
            for behind in 0..20 {
                let text = ["\n\t ".repeat(length / 3), " ".repeat(length), "x".repeat(behind)].concat();
                let mut output = vec![0; text.len()];
                let mut piece = Piece::new(text.as_bytes(), &mut output);
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
                let mut output = vec![0; text.len()];
                let mut piece = Piece::new(text.as_bytes(), &mut output);
                piece.keep_plain();
                assert_eq!((piece.at(), piece.filled()), (length, length));
                assert!(output[..length].iter().all(|byte| *byte == b'y'));
            }
        }
    }
}
