//! [`Vectors`] with AVX2: 32 bytes in a register.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x,
    _mm_set1_epi8, _mm_shuffle_epi8, _mm256_alignr_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srli_epi16,
    _mm256_sub_epi8, _mm256_subs_epu8, _mm256_testz_si256, _mm256_xor_si256,
};

use super::{BLOCK, Block, Vectors, vectors};
use crate::blocks::{self, Carry};
use crate::nesting::Nesting;
use crate::state::Stop;

/// Proves that the processor has AVX2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Avx2> {
        let detected = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("popcnt");
        detected.then_some(Avx2(()))
    }

    pub(super) fn read(self, carry: Carry, nesting: &mut Nesting, input: &[u8], output: &mut [u8]) -> Stop {
        // SAFETY: only `detect` creates an `Avx2`, after it found every target feature of this function.
        unsafe { self.compiled(carry, nesting, input, output) }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt")]
    fn compiled(self, carry: Carry, nesting: &mut Nesting, input: &[u8], output: &mut [u8]) -> Stop {
        blocks::read(self, carry, nesting, input, output)
    }
}

vectors!(Avx2, [__m256i; 2]);

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

/// At most one whitespace byte has each low nibble: a byte is whitespace if it equals the one with its low nibble.
#[target_feature(enable = "avx2")]
#[inline]
fn spaces([low, high]: [__m256i; 2]) -> u64 {
    const OF_HALF: [u8; 16] = [b' ', 0, 0, 0, 0, 0, 0, 0, 0, b'\t', b'\n', 0, 0, b'\r', 0, 0];
    let space = |bytes| _mm256_cmpeq_epi8(look_up(&OF_HALF, bytes), bytes);
    bits(space(low), space(high))
}

#[target_feature(enable = "avx2")]
#[inline]
fn high([low, high]: [__m256i; 2]) -> u64 {
    bits(low, high)
}

#[target_feature(enable = "avx2")]
#[inline]
fn braces([low, high]: [__m256i; 2]) -> u64 {
    bits(_mm256_slli_epi16::<2>(low), _mm256_slli_epi16::<2>(high))
}

#[target_feature(enable = "avx2")]
#[inline]
fn with([low, high]: [__m256i; 2], bits: u8) -> [__m256i; 2] {
    [_mm256_or_si256(low, all(bits)), _mm256_or_si256(high, all(bits))]
}

#[target_feature(enable = "avx2")]
#[inline]
fn less([low, high]: [__m256i; 2], byte: u8) -> [__m256i; 2] {
    [_mm256_sub_epi8(low, all(byte)), _mm256_sub_epi8(high, all(byte))]
}

#[target_feature(enable = "avx2,popcnt")]
#[inline]
fn compress(block: &Block, keep: u64, output: &mut Block) -> usize {
    let (groups, _) = block.as_chunks::<GROUP>();
    for (group, position) in groups.iter().zip((0..BLOCK).step_by(GROUP)) {
        let kept_before = (keep & ((1 << position) - 1)).count_ones() as usize;
        let order = ORDER[(keep >> position & 0xFF) as usize];
        let group = _mm_shuffle_epi8(half(*group), half(order));
        let group = _mm_cvtsi128_si64(group).to_le_bytes();
        output[kept_before..][..GROUP].copy_from_slice(&group);
    }
    keep.count_ones() as usize
}

/// Bytes that are compressed at a time.
const GROUP: usize = 8;

/// For each subset of eight bytes, the shuffle that moves it to the front.
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

#[target_feature(enable = "avx2,pclmulqdq")]
#[inline]
pub(super) fn parity(word: u64) -> u64 {
    let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, word.cast_signed()), _mm_set1_epi8(-1));
    _mm_cvtsi128_si64(product).cast_unsigned()
}

/// The algorithm of Keiser and Lemire, "Validating UTF-8 in less than one instruction per byte" (2020): three nibbles
/// are looked up for each pair of bytes, and have a bit in common if the pair is invalid. Unlike there, bytes that never
/// occur in UTF-8 are rejected at once, not with the byte after them.
#[target_feature(enable = "avx2")]
#[inline]
fn is_utf8(before: &Block, block: &Block) -> bool {
    let ([_, before], [low, high]) = (load(before), load(block));
    let wrong = _mm256_or_si256(wrong_pairs(before, low), wrong_pairs(low, high));
    let never_valid = equal([_mm256_and_si256(low, all(0xFE)), _mm256_and_si256(high, all(0xFE))], 0xC0)
        | !at_most([low, high], 0xF4);
    never_valid == 0 && _mm256_testz_si256(wrong, wrong) == 1
}

/// Nonzero for each byte that cannot follow the three before it.
#[target_feature(enable = "avx2")]
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
    // Two continuation bytes in a row are invalid unless the lead byte requires them.
    let third = _mm256_subs_epu8(two_back, all(0xE0 - 0x80));
    let fourth = _mm256_subs_epu8(three_back, all(0xF0 - 0x80));
    let required = _mm256_and_si256(_mm256_or_si256(third, fourth), all(0x80));
    _mm256_xor_si256(required, wrong)
}

/// For each error in two bytes: the high nibbles of the first byte, its low nibbles, and the high nibbles of the second
/// byte, each as a bit set. The last one is no error in the third or fourth byte of a character.
const ERRORS: [[u16; 3]; 8] = [
    [0xF000, 0xFFFF, 0xF0FF], // a lead byte without a continuation
    [0x00FF, 0xFFFF, 0x0F00], // a continuation after ASCII
    [0x4000, 0x0001, 0x0300], // overlong, three bytes
    [0x4000, 0x2000, 0x0C00], // a surrogate
    [0x8000, 0x0001, 0x0100], // overlong, four bytes
    [0x8000, 0x0010, 0x0E00], // above U+10FFFF
    [0, 0, 0],
    [0x0F00, 0xFFFF, 0x0F00], // two continuations
];

pub(super) static PAIRS: [[u8; 16]; 3] = pairs();

const fn pairs() -> [[u8; 16]; 3] {
    let mut tables = [[0; 16]; 3];
    let mut index = 0;
    while index < 3 * 16 * 8 {
        let (table, half, error) = (index / 128, index / 8 % 16, index % 8);
        if ERRORS[error][table] >> half & 1 == 1 {
            tables[table][half] |= 1 << error;
        }
        index += 1;
    }
    tables
}

/// Eight bytes, then eight zeros.
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

/// The table's entry for the low nibble of each byte; zero for non-ASCII bytes.
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
