//! Classifies 64 bytes at a time, with vector instructions.
//!
//! **Invariant.** Only this module and its submodules have `unsafe` code. Their interface is safe: callers pass arrays, which
//! are never accessed out of bounds, and get masks in which bit `n` stands for byte `n` of a block. `unsafe` is used for two
//! things: to load or store a vector in an array of the same length, and to execute instructions whose presence a value
//! proves.
//!
//! **What is absent.** The grammar: see [`blocks`](crate::blocks). Other processors: they read byte by byte.

#![expect(unsafe_code, reason = "vector instructions; no other module of the workspace has unsafe code")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics become instructions only inside a function with their target features"
)]

mod avx2;
mod avx512;

use self::avx2::Avx2;
use self::avx512::Avx512;
use crate::blocks::Carry;
use crate::nesting::Nesting;
use crate::state::{State, Stop};

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// The unit of the block reader.
pub(crate) type Block = [u8; BLOCK];

/// A vector instruction set. The value proves that the processor has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Simd {
    Avx512(Avx512),
    Avx2(Avx2),
}

impl Simd {
    /// The best instruction set of the processor.
    pub(crate) fn detect() -> Option<Simd> {
        Simd::all().next()
    }

    /// All supported instruction sets of the processor, best first.
    pub(crate) fn all() -> impl Iterator<Item = Simd> {
        let wide = Avx512::detect().map(Simd::Avx512);
        wide.into_iter().chain(Avx2::detect().map(Simd::Avx2))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Simd::Avx512(_) => "AVX-512",
            Simd::Avx2(_) => "AVX2",
        }
    }

    /// Reads blocks up to one that must be read byte by byte; `None` if blocks cannot start in this state. `output` is as
    /// long as `input`.
    pub(crate) fn read(
        self,
        state: State,
        nesting: &mut Nesting,
        input: &[u8],
        output: &mut [u8],
    ) -> Option<Stop> {
        let carry = Carry::from(state)?;
        Some(match self {
            Simd::Avx512(proof) => proof.read(carry, nesting, input, output),
            Simd::Avx2(proof) => proof.read(carry, nesting, input, output),
        })
    }
}

/// Masks of bytes that are special in strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) quote: u64,
    pub(crate) backslash: u64,
    /// Below 0x20.
    pub(crate) control: u64,
    /// Non-ASCII bytes.
    pub(crate) high: u64,
}

/// Masks of whitespace and punctuation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    pub(crate) space: u64,
    /// `[` and `{`.
    pub(crate) open: u64,
    /// `]` and `}`.
    pub(crate) close: u64,
    pub(crate) comma: u64,
    pub(crate) colon: u64,
}

/// Masks of bytes of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numeric {
    pub(crate) digit: u64,
    pub(crate) zero: u64,
    pub(crate) minus: u64,
    pub(crate) point: u64,
}

/// Masks of bytes that only exponents have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exponents {
    /// `e` and `E`.
    pub(crate) letter: u64,
    /// `+` and `-`.
    pub(crate) sign: u64,
}

/// Masks of bytes that may follow a backslash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Escape {
    /// `"`, `\`, `/`, `b`, `f`, `n`, `r` and `t`.
    pub(crate) simple: u64,
    /// `u`.
    pub(crate) unicode: u64,
    pub(crate) hex: u64,
}

/// The operations of one instruction set. The value proves that the processor has it.
pub(crate) trait Vectors: Copy {
    /// A block in registers.
    type Bytes: Copy;

    fn load(self, block: &Block) -> Self::Bytes;

    /// The bytes equal to `byte`.
    fn equal(self, bytes: Self::Bytes, byte: u8) -> u64;

    /// The bytes less than or equal to `byte`, unsigned.
    fn at_most(self, bytes: Self::Bytes, byte: u8) -> u64;

    /// The whitespace bytes.
    fn spaces(self, bytes: Self::Bytes) -> u64;

    /// The non-ASCII bytes.
    fn high(self, bytes: Self::Bytes) -> u64;

    /// Which of the brackets are braces; undefined for other bytes.
    fn braces(self, bytes: Self::Bytes) -> u64;

    /// Each byte, OR-ed with `bits`.
    fn with(self, bytes: Self::Bytes, bits: u8) -> Self::Bytes;

    /// Each byte minus `byte`, wrapping.
    fn less(self, bytes: Self::Bytes, byte: u8) -> Self::Bytes;

    /// Copies the bytes in `keep` to the front of `output`, and returns their number. The rest of `output` is undefined.
    fn compress(self, block: &Block, keep: u64, output: &mut Block) -> usize;

    /// Whether the block is valid UTF-8 after `before`. The last character may be incomplete: the next block checks it.
    fn is_utf8(self, before: &Block, block: &Block) -> bool;

    /// Prefix parity: for each bit, whether an odd number of bits are set up to and including it.
    fn parity(self, word: u64) -> u64;

    #[inline(always)]
    fn text(self, bytes: Self::Bytes) -> Text {
        Text {
            quote: self.equal(bytes, b'"'),
            backslash: self.equal(bytes, b'\\'),
            control: self.at_most(bytes, 0x1F),
            high: self.high(bytes),
        }
    }

    /// Whether no byte is special in strings.
    #[inline(always)]
    fn is_plain(self, bytes: Self::Bytes) -> bool {
        let Text { quote, backslash, control, high } = self.text(bytes);
        quote | backslash | control | high == 0
    }

    #[inline(always)]
    fn structure(self, bytes: Self::Bytes) -> Structure {
        // Brackets and braces differ in one bit.
        let lower = self.with(bytes, 0x20);
        Structure {
            space: self.spaces(bytes),
            open: self.equal(lower, b'{'),
            close: self.equal(lower, b'}'),
            comma: self.equal(bytes, b','),
            colon: self.equal(bytes, b':'),
        }
    }

    #[inline(always)]
    fn numeric(self, bytes: Self::Bytes) -> Numeric {
        Numeric {
            digit: self.at_most(self.less(bytes, b'0'), 9),
            zero: self.equal(bytes, b'0'),
            minus: self.equal(bytes, b'-'),
            point: self.equal(bytes, b'.'),
        }
    }

    #[inline(always)]
    fn exponents(self, bytes: Self::Bytes) -> Exponents {
        Exponents {
            letter: self.equal(self.with(bytes, 0x20), b'e'),
            sign: self.equal(bytes, b'+') | self.equal(bytes, b'-'),
        }
    }

    #[inline(always)]
    fn escape(self, bytes: Self::Bytes) -> Escape {
        let simple = b"\"\\/bfnrt".iter().fold(0, |seen, byte| seen | self.equal(bytes, *byte));
        let letter = self.at_most(self.less(self.with(bytes, 0x20), b'a'), 5);
        let digit = self.at_most(self.less(bytes, b'0'), 9);
        Escape { simple, unicode: self.equal(bytes, b'u'), hex: letter | digit }
    }
}

/// Implements [`Vectors`] for a proof by the functions of its module, which are compiled for its target features.
macro_rules! vectors {
    ($proof:ty, $bytes:ty) => {
        $crate::simd::vectors! { $proof, $bytes:
            load(block: &Block) -> $bytes,
            equal(bytes: $bytes, byte: u8) -> u64,
            at_most(bytes: $bytes, byte: u8) -> u64,
            spaces(bytes: $bytes) -> u64,
            high(bytes: $bytes) -> u64,
            braces(bytes: $bytes) -> u64,
            with(bytes: $bytes, bits: u8) -> $bytes,
            less(bytes: $bytes, byte: u8) -> $bytes,
            compress(block: &Block, keep: u64, output: &mut Block) -> usize,
            is_utf8(before: &Block, block: &Block) -> bool,
            parity(word: u64) -> u64,
        }
    };
    ($proof:ty, $bytes:ty: $($name:ident($($given:ident: $of:ty),*) -> $result:ty,)*) => {
        impl Vectors for $proof {
            type Bytes = $bytes;

            $(
                #[inline(always)]
                fn $name(self, $($given: $of),*) -> $result {
                    // SAFETY: the proof exists only if every target feature of the function was detected.
                    unsafe { $name($($given),*) }
                }
            )*
        }
    };
}
use vectors;

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test with each instruction set of the processor.
    macro_rules! with_each {
        ($test:ident) => {
            Avx2::detect().map($test);
            Avx512::detect().map($test);
        };
    }

    /// Every byte at every position, among bytes of every class.
    fn blocks() -> impl Iterator<Item = Block> {
        let others = b"x\"\\{}[]:, \n0e-\x00\x7f\x80\xff";
        let every = (0..=255_u8).flat_map(|byte| (0..BLOCK).map(move |position| (byte, position)));
        every.map(|(byte, position)| {
            let mut block = [0; BLOCK];
            for (at, other) in block.iter_mut().enumerate() {
                *other = others[(at * 7 + position + usize::from(byte)) % others.len()];
            }
            block[position] = byte;
            block
        })
    }

    fn positions(block: &Block, of: impl Fn(u8) -> bool) -> u64 {
        block.iter().rev().fold(0, |positions, byte| positions << 1 | u64::from(of(*byte)))
    }

    fn every_byte_has_its_classes<V: Vectors>(vectors: V) {
        for block in blocks() {
            let bytes = vectors.load(&block);
            let of = |bytes: &'static [u8]| positions(&block, |byte| bytes.contains(&byte));
            let expected = Text {
                quote: of(b"\""),
                backslash: of(b"\\"),
                control: positions(&block, |byte| byte < 0x20),
                high: positions(&block, |byte| byte >= 0x80),
            };
            assert_eq!(vectors.text(bytes), expected);
            let special = expected.quote | expected.backslash | expected.control | expected.high;
            assert_eq!(vectors.is_plain(bytes), special == 0);
            let expected = Structure {
                space: of(b" \t\r\n"),
                open: of(b"[{"),
                close: of(b"]}"),
                comma: of(b","),
                colon: of(b":"),
            };
            assert_eq!(vectors.structure(bytes), expected);
            assert_eq!(vectors.braces(bytes) & of(b"[]{}"), of(b"{}"));
            let digit = positions(&block, |byte| byte.is_ascii_digit());
            assert_eq!(
                vectors.numeric(bytes),
                Numeric { digit, zero: of(b"0"), minus: of(b"-"), point: of(b".") }
            );
            assert_eq!(vectors.exponents(bytes), Exponents { letter: of(b"eE"), sign: of(b"+-") });
            let hex = positions(&block, |byte| byte.is_ascii_hexdigit());
            assert_eq!(vectors.escape(bytes), Escape { simple: of(b"\"\\/bfnrt"), unicode: of(b"u"), hex });
        }
    }

    #[test]
    fn every_byte_has_its_classes_at_every_position() {
        with_each!(every_byte_has_its_classes);
    }

    /// Words with many and with few bits set.
    fn words() -> impl Iterator<Item = u64> {
        (1..5000_u64).flat_map(|n| {
            let word = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            [
                word,
                word & word.rotate_left(17),
                word | word.rotate_left(29),
                1 << (n % 64),
                !(1 << (n % 64)),
                0,
            ]
        })
    }

    fn words_have_their_parity_and_blocks_are_compressed<V: Vectors>(vectors: V) {
        let block: Block = std::array::from_fn(|position| u8::try_from(position).expect("short"));
        for word in words() {
            let odd = |position: usize| (word << (63 - position)).count_ones() % 2 == 1;
            assert_eq!(
                vectors.parity(word),
                (0..64).fold(0, |all, position| all | u64::from(odd(position)) << position)
            );
            let mut output = [0; BLOCK];
            let kept = vectors.compress(&block, word, &mut output);
            let expected: Vec<u8> = (0..64_u8).filter(|position| word >> position & 1 == 1).collect();
            assert_eq!(output[..kept], expected);
        }
    }

    #[test]
    fn parity_and_compression_are_those_of_single_bits() {
        with_each!(words_have_their_parity_and_blocks_are_compressed);
    }

    /// Up to four bytes, of which `cut` are at the end of the block before.
    fn sequences_are_utf8_where_the_standard_library_says_so<V: Vectors>(vectors: V) {
        let edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE1, 0xF4, 0xFF];
        for first in 0x7F..=0xFF_u8 {
            for second in 0x7F..=0xFF_u8 {
                for (third, fourth) in edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))) {
                    let bytes = [first, second, third, fourth];
                    let valid = std::str::from_utf8(&bytes).is_ok();
                    for at in [0, 1, 29, 30, 31, 32, 59] {
                        let mut block = [b'x'; BLOCK];
                        block[at..at + 4].copy_from_slice(&bytes);
                        assert_eq!(vectors.is_utf8(&[0; BLOCK], &block), valid, "{bytes:02x?} at {at}");
                    }
                    for cut in 1..4 {
                        let (mut before, mut block) = ([b'x'; BLOCK], [b'x'; BLOCK]);
                        before[BLOCK - cut..].copy_from_slice(&bytes[..cut]);
                        block[..4 - cut].copy_from_slice(&bytes[cut..]);
                        let both = vectors.is_utf8(&[0; BLOCK], &before) && vectors.is_utf8(&before, &block);
                        assert_eq!(both, valid, "{bytes:02x?} cut at {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn utf8_is_what_the_standard_library_says() {
        with_each!(sequences_are_utf8_where_the_standard_library_says_so);
    }

    /// An invalid byte is rejected with its own block, not with the next.
    fn last_bytes_are_checked<V: Vectors>(vectors: V) {
        for first in 0..=255_u8 {
            let mut block = [b'x'; BLOCK];
            block[BLOCK - 1] = first;
            let may_go_on =
                std::str::from_utf8(&block).map_or_else(|error| error.error_len().is_none(), |_| true);
            assert_eq!(vectors.is_utf8(&[0; BLOCK], &block), may_go_on, "{first:02x}");
            for second in 0..=255_u8 {
                block[BLOCK - 2..].copy_from_slice(&[first, second]);
                let may_go_on =
                    std::str::from_utf8(&block).map_or_else(|error| error.error_len().is_none(), |_| true);
                assert_eq!(vectors.is_utf8(&[0; BLOCK], &block), may_go_on, "{first:02x} {second:02x}");
            }
        }
    }

    #[test]
    fn an_invalid_byte_is_rejected_at_the_end_of_its_block() {
        with_each!(last_bytes_are_checked);
    }
}
