//! Looks at 64 bytes together, with AVX2.
//!
//! **Invariant.** This is the one module with `unsafe` code. Each function takes and gives plain arrays and words,
//! and stays within them; bit `n` of a word stands for byte `n` of a block. What is `unsafe` is two things: to load
//! a vector from an array that is as long, and to enter code that is compiled for AVX2, with a [`Simd`] as the
//! proof that the processor has it.
//!
//! **What is absent.** The grammar: see [`blocks`]. Other processors: they read byte by byte.

#![expect(unsafe_code, reason = "vector instructions; no other module of the workspace may")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x,
    _mm_set1_epi8, _mm_shuffle_epi8, _mm256_alignr_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srli_epi16,
    _mm256_sub_epi8, _mm256_subs_epu8, _mm256_testz_si256, _mm256_xor_si256,
};

use crate::blocks::{self, Carry};
use crate::nesting::Nesting;
use crate::state::{State, Stop};

/// As many bytes are looked at together.
pub(crate) const BLOCK: usize = 64;

/// What is looked at together.
pub(crate) type Block = [u8; BLOCK];

/// Proves that the processor has AVX2 and what usually comes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simd(());

impl Simd {
    /// The proof, if there is one.
    pub(crate) fn detect() -> Option<Simd> {
        let there = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("popcnt");
        there.then_some(Simd(()))
    }

    /// Reads blocks, up to one that has to be read byte by byte; none if the state is one to go on byte by byte from.
    /// The room is as long as the input.
    #[expect(clippy::unused_self, reason = "that there is one is what is needed of it")]
    pub(crate) fn read(
        self,
        state: State,
        nesting: &mut Nesting,
        input: &[u8],
        room: &mut [u8],
    ) -> Option<Stop> {
        let carry = Carry::from(state)?;
        // SAFETY: `detect` is the only way to a `Simd`, and has found every feature that `read` is compiled for.
        Some(unsafe { blocks::read(carry, nesting, input, room) })
    }
}

/// Which brackets are braces; what it says of other bytes means nothing.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn braces(block: &Block) -> u64 {
    let [low, high] = load(block);
    bits(_mm256_slli_epi16::<2>(low), _mm256_slli_epi16::<2>(high))
}

/// What tells where strings are, and whether they need a closer look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) quote: u64,
    pub(crate) backslash: u64,
    /// Below 0x20.
    pub(crate) control: u64,
    /// Beyond ASCII.
    pub(crate) high: u64,
}

/// What stands between values.
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

/// What numbers are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numeric {
    pub(crate) digit: u64,
    pub(crate) zero: u64,
    pub(crate) minus: u64,
    pub(crate) point: u64,
}

/// What only exponents are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exponents {
    /// `e` and `E`.
    pub(crate) letter: u64,
    /// `+` and `-`.
    pub(crate) sign: u64,
}

/// What may stand behind a backslash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Escape {
    /// `"`, `\`, `/`, `b`, `f`, `n`, `r` and `t`.
    pub(crate) simple: u64,
    /// `u`.
    pub(crate) unicode: u64,
    pub(crate) hex: u64,
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn text(block: &Block) -> Text {
    let both = load(block);
    let [low, high] = both;
    Text {
        quote: equal(both, b'"'),
        backslash: equal(both, b'\\'),
        control: at_most(both, 0x1F),
        high: bits(low, high),
    }
}

/// Whether nothing in it means anything to a string.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn is_plain(block: &Block) -> bool {
    let Text { quote, backslash, control, high } = text(block);
    quote | backslash | control | high == 0
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn structure(block: &Block) -> Structure {
    let both = load(block);
    let lower = with(both, 0x20);
    Structure {
        space: spaces(both),
        // The brackets and the braces differ in one bit.
        open: equal(lower, b'{'),
        close: equal(lower, b'}'),
        comma: equal(both, b','),
        colon: equal(both, b':'),
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn numeric(block: &Block) -> Numeric {
    let both = load(block);
    Numeric {
        digit: at_most(less(both, b'0'), 9),
        zero: equal(both, b'0'),
        minus: equal(both, b'-'),
        point: equal(both, b'.'),
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn exponents(block: &Block) -> Exponents {
    let both = load(block);
    Exponents { letter: equal(with(both, 0x20), b'e'), sign: equal(both, b'+') | equal(both, b'-') }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn escape(block: &Block) -> Escape {
    let both = load(block);
    let simple = b"\"\\/bfnrt".iter().fold(0, |seen, byte| seen | equal(both, *byte));
    let letter = at_most(less(with(both, 0x20), b'a'), 5);
    Escape { simple, unicode: equal(both, b'u'), hex: letter | at_most(less(both, b'0'), 9) }
}

/// For each place, whether an odd number of bits are set up to it and with it.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn parity(word: u64) -> u64 {
    let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, word.cast_signed()), _mm_set1_epi8(-1));
    _mm_cvtsi128_si64(product).cast_unsigned()
}

/// Copies the bytes that are to be kept to the front of the room, and gives back how many they are. What is behind
/// them in the room is scrap.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn compress(block: &Block, keep: u64, room: &mut Block) -> usize {
    let (groups, _) = block.as_chunks::<GROUP>();
    for (group, place) in groups.iter().zip((0..BLOCK).step_by(GROUP)) {
        let kept_before = (keep & ((1 << place) - 1)).count_ones() as usize;
        let order = ORDER[(keep >> place & 0xFF) as usize];
        let group = _mm_shuffle_epi8(half(*group), half(order));
        let group = _mm_cvtsi128_si64(group).to_le_bytes();
        room[kept_before..][..GROUP].copy_from_slice(&group);
    }
    keep.count_ones() as usize
}

/// As many bytes are put together at once.
const GROUP: usize = 8;

/// For each choice among eight bytes, which of them go where.
static ORDER: [[u8; GROUP]; 256] = orders();

const fn orders() -> [[u8; GROUP]; 256] {
    let mut orders = [[0; GROUP]; 256];
    let mut choice = 0;
    while choice < 256 {
        let (mut from, mut to) = (0, 0);
        while from < 8 {
            if choice >> from & 1 == 1 {
                orders[choice][to] = from;
                to += 1;
            }
            from += 1;
        }
        choice += 1;
    }
    orders
}

/// Is the block UTF-8, behind the one before? The last character may be cut: then the next block tells.
///
/// The way is that of Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2020): three
/// half bytes are looked up for each pair of bytes, and have a bit in common if the pair is wrong. Bytes that
/// stand nowhere in UTF-8 are refused where they are, and not with the next byte as there.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
pub(crate) fn is_utf8(before: &Block, block: &Block) -> bool {
    let ([_, before], [low, high]) = (load(before), load(block));
    let wrong = _mm256_or_si256(wrong_pairs(before, low), wrong_pairs(low, high));
    let nowhere = equal([_mm256_and_si256(low, all(0xFE)), _mm256_and_si256(high, all(0xFE))], 0xC0)
        | !at_most([low, high], 0xF4);
    nowhere == 0 && _mm256_testz_si256(wrong, wrong) == 1
}

/// Not zero for each byte that cannot follow the three before it.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
#[inline]
fn wrong_pairs(before: __m256i, bytes: __m256i) -> __m256i {
    let joint = _mm256_permute2x128_si256::<0x21>(before, bytes);
    let one_back = _mm256_alignr_epi8::<15>(bytes, joint);
    let two_back = _mm256_alignr_epi8::<14>(bytes, joint);
    let three_back = _mm256_alignr_epi8::<13>(bytes, joint);
    let low_half = _mm256_and_si256(one_back, all(0x0F));
    let wrong = _mm256_and_si256(
        _mm256_and_si256(look_up(&PAIRS[0], high_half(one_back)), look_up(&PAIRS[1], low_half)),
        look_up(&PAIRS[2], high_half(bytes)),
    );
    // Two continuation bytes in a row are wrong unless the lead byte asked for them.
    let third = _mm256_subs_epu8(two_back, all(0xE0 - 0x80));
    let fourth = _mm256_subs_epu8(three_back, all(0xF0 - 0x80));
    let asked = _mm256_and_si256(_mm256_or_si256(third, fourth), all(0x80));
    _mm256_xor_si256(asked, wrong)
}

/// For each way in which two bytes are wrong: the high halves of the first byte, its low halves, and the high halves
/// of the second byte, each as a set of bits. The last way is the one that a third or fourth byte makes right.
const WAYS: [[u16; 3]; 8] = [
    [0xF000, 0xFFFF, 0xF0FF], // a lead byte, and no continuation
    [0x00FF, 0xFFFF, 0x0F00], // a continuation behind ASCII
    [0x4000, 0x0001, 0x0300], // three bytes for what fits in two
    [0x4000, 0x2000, 0x0C00], // a surrogate
    [0x8000, 0x0001, 0x0100], // four bytes for what fits in three
    [0x8000, 0x0010, 0x0E00], // over U+10FFFF
    [0, 0, 0],
    [0x0F00, 0xFFFF, 0x0F00], // two continuations
];

static PAIRS: [[u8; 16]; 3] = pairs();

const fn pairs() -> [[u8; 16]; 3] {
    let mut tables = [[0; 16]; 3];
    let mut index = 0;
    while index < 3 * 16 * 8 {
        let (table, half, way) = (index / 128, index / 8 % 16, index % 8);
        if WAYS[way][table] >> half & 1 == 1 {
            tables[table][half] |= 1 << way;
        }
        index += 1;
    }
    tables
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(block: &Block) -> [__m256i; 2] {
    let (halves, _) = block.as_chunks::<32>();
    [load_half(&halves[0]), load_half(&halves[1])]
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_half(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads 32 bytes, which the array has; they need not be aligned.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Eight bytes, and eight zeros.
#[target_feature(enable = "avx2")]
#[inline]
fn half(bytes: [u8; GROUP]) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(bytes))
}

#[target_feature(enable = "avx2")]
#[inline]
fn all(byte: u8) -> __m256i {
    _mm256_set1_epi8(byte.cast_signed())
}

#[target_feature(enable = "avx2")]
#[inline]
fn with([low, high]: [__m256i; 2], bits: u8) -> [__m256i; 2] {
    [_mm256_or_si256(low, all(bits)), _mm256_or_si256(high, all(bits))]
}

/// Wraps around.
#[target_feature(enable = "avx2")]
#[inline]
fn less([low, high]: [__m256i; 2], byte: u8) -> [__m256i; 2] {
    [_mm256_sub_epi8(low, all(byte)), _mm256_sub_epi8(high, all(byte))]
}

#[target_feature(enable = "avx2")]
#[inline]
fn equal([low, high]: [__m256i; 2], byte: u8) -> u64 {
    bits(_mm256_cmpeq_epi8(low, all(byte)), _mm256_cmpeq_epi8(high, all(byte)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn at_most([low, high]: [__m256i; 2], byte: u8) -> u64 {
    let most = |bytes| _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, all(byte)), bytes);
    bits(most(low), most(high))
}

/// Each low half byte has one kind of whitespace at most: a byte is whitespace if it is the one of its half.
#[target_feature(enable = "avx2")]
#[inline]
fn spaces([low, high]: [__m256i; 2]) -> u64 {
    const OF_HALF: [u8; 16] = [b' ', 0, 0, 0, 0, 0, 0, 0, 0, b'\t', b'\n', 0, 0, b'\r', 0, 0];
    let space = |bytes| _mm256_cmpeq_epi8(look_up(&OF_HALF, bytes), bytes);
    bits(space(low), space(high))
}

/// What the table has for each low half byte; zero for bytes beyond ASCII.
#[target_feature(enable = "avx2")]
#[inline]
fn look_up(table: &[u8; 16], bytes: __m256i) -> __m256i {
    let (halves, _) = table.as_chunks::<8>();
    let table = _mm_set_epi64x(i64::from_le_bytes(halves[1]), i64::from_le_bytes(halves[0]));
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bytes)
}

#[target_feature(enable = "avx2")]
#[inline]
fn high_half(bytes: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), all(0x0F))
}

/// The highest bit of each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn bits(low: __m256i, high: __m256i) -> u64 {
    let word = |bytes| u64::from(_mm256_movemask_epi8(bytes).cast_unsigned());
    word(low) | word(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test where it can run.
    fn with_avx2(test: unsafe fn()) {
        if Simd::detect().is_some() {
            // SAFETY: the features are there.
            unsafe { test() }
        }
    }

    /// Every byte at every place, among bytes of every kind.
    fn blocks() -> impl Iterator<Item = Block> {
        let others = b"x\"\\{}[]:, \n0e-\x00\x7f\x80\xff";
        let every = (0..=255_u8).flat_map(|byte| (0..BLOCK).map(move |place| (byte, place)));
        every.map(|(byte, place)| {
            let mut block = [0; BLOCK];
            for (at, other) in block.iter_mut().enumerate() {
                *other = others[(at * 7 + place + usize::from(byte)) % others.len()];
            }
            block[place] = byte;
            block
        })
    }

    fn places(block: &Block, of: impl Fn(u8) -> bool) -> u64 {
        block.iter().rev().fold(0, |places, byte| places << 1 | u64::from(of(*byte)))
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
    fn every_byte_has_its_classes() {
        for block in blocks() {
            let of = |bytes: &'static [u8]| places(&block, |byte| bytes.contains(&byte));
            let expected = Text {
                quote: of(b"\""),
                backslash: of(b"\\"),
                control: places(&block, |byte| byte < 0x20),
                high: places(&block, |byte| byte >= 0x80),
            };
            assert_eq!(text(&block), expected);
            let special = expected.quote | expected.backslash | expected.control | expected.high;
            assert_eq!(is_plain(&block), special == 0);
            let expected = Structure {
                space: of(b" \t\r\n"),
                open: of(b"[{"),
                close: of(b"]}"),
                comma: of(b","),
                colon: of(b":"),
            };
            assert_eq!(structure(&block), expected);
            assert_eq!(braces(&block) & of(b"[]{}"), of(b"{}"));
            let digit = places(&block, |byte| byte.is_ascii_digit());
            assert_eq!(numeric(&block), Numeric { digit, zero: of(b"0"), minus: of(b"-"), point: of(b".") });
            assert_eq!(exponents(&block), Exponents { letter: of(b"eE"), sign: of(b"+-") });
            let hex = places(&block, |byte| byte.is_ascii_hexdigit());
            assert_eq!(escape(&block), Escape { simple: of(b"\"\\/bfnrt"), unicode: of(b"u"), hex });
        }
    }

    #[test]
    fn every_byte_has_its_classes_at_every_place() {
        with_avx2(every_byte_has_its_classes);
    }

    /// Words with many bits and with few.
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

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
    fn words_have_their_parity_and_blocks_are_compressed() {
        let block: Block = std::array::from_fn(|place| u8::try_from(place).expect("short"));
        for word in words() {
            let odd = |place: usize| (word << (63 - place)).count_ones() % 2 == 1;
            assert_eq!(parity(word), (0..64).fold(0, |all, place| all | u64::from(odd(place)) << place));
            let mut room = [0; BLOCK];
            let kept = compress(&block, word, &mut room);
            let expected: Vec<u8> = (0..64_u8).filter(|place| word >> place & 1 == 1).collect();
            assert_eq!(room[..kept], expected);
        }
    }

    #[test]
    fn parity_and_compression_are_those_of_single_bits() {
        with_avx2(words_have_their_parity_and_blocks_are_compressed);
    }

    /// Up to four bytes, of which `cut` stand at the end of the block before.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
    fn sequences_are_utf8_where_the_standard_library_says_so() {
        let edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE1, 0xF4, 0xFF];
        for first in 0x7F..=0xFF_u8 {
            for second in 0x7F..=0xFF_u8 {
                for (third, fourth) in edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))) {
                    let bytes = [first, second, third, fourth];
                    let sound = std::str::from_utf8(&bytes).is_ok();
                    for at in [0, 1, 29, 30, 31, 32, 59] {
                        let mut block = [b'x'; BLOCK];
                        block[at..at + 4].copy_from_slice(&bytes);
                        assert_eq!(is_utf8(&[0; BLOCK], &block), sound, "{bytes:02x?} at {at}");
                    }
                    for cut in 1..4 {
                        let (mut before, mut block) = ([b'x'; BLOCK], [b'x'; BLOCK]);
                        before[BLOCK - cut..].copy_from_slice(&bytes[..cut]);
                        block[..4 - cut].copy_from_slice(&bytes[cut..]);
                        let both = is_utf8(&[0; BLOCK], &before) && is_utf8(&before, &block);
                        assert_eq!(both, sound, "{bytes:02x?} cut at {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn utf8_is_what_the_standard_library_says() {
        with_avx2(sequences_are_utf8_where_the_standard_library_says_so);
    }

    /// What is wrong already is refused with this block, although the next would tell.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
    fn last_bytes_are_judged() {
        for first in 0..=255_u8 {
            let mut block = [b'x'; BLOCK];
            block[BLOCK - 1] = first;
            let may_go_on =
                std::str::from_utf8(&block).map_or_else(|error| error.error_len().is_none(), |_| true);
            assert_eq!(is_utf8(&[0; BLOCK], &block), may_go_on, "{first:02x}");
            for second in 0..=255_u8 {
                block[BLOCK - 2..].copy_from_slice(&[first, second]);
                let may_go_on =
                    std::str::from_utf8(&block).map_or_else(|error| error.error_len().is_none(), |_| true);
                assert_eq!(is_utf8(&[0; BLOCK], &block), may_go_on, "{first:02x} {second:02x}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_wrong_already_is_refused_at_the_end_of_a_block() {
        with_avx2(last_bytes_are_judged);
    }
}
