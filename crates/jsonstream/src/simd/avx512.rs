//! [`Vectors`] with AVX-512 and its byte compression (VBMI2): a block in a register.

use std::arch::x86_64::{
    __m512i, _mm_set_epi64x, _mm512_alignr_epi8, _mm512_alignr_epi32, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_cmpeq_epi8_mask, _mm512_cmple_epu8_mask, _mm512_loadu_si512,
    _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_or_si512, _mm512_set1_epi8, _mm512_shuffle_epi8,
    _mm512_srli_epi16, _mm512_storeu_si512, _mm512_sub_epi8, _mm512_subs_epu8, _mm512_test_epi8_mask,
    _mm512_xor_si512,
};

use super::avx2::{Avx2, PAIRS, parity};
use super::{Block, Vectors, vectors};
use crate::blocks::{self, Carry};
use crate::nesting::Nesting;
use crate::state::Stop;

/// Proves that the processor has AVX2 and the subsets of AVX-512 used here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Avx512> {
        let there = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi2");
        there.then_some(Avx512(()))
    }

    pub(super) fn read(self, carry: Carry, nesting: &mut Nesting, input: &[u8], output: &mut [u8]) -> Stop {
        // SAFETY: only `detect` creates an `Avx512`, after it found every target feature of this function.
        unsafe { self.compiled(carry, nesting, input, output) }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,pclmulqdq,popcnt,avx512f,avx512bw,avx512vbmi2")]
    fn compiled(self, carry: Carry, nesting: &mut Nesting, input: &[u8], output: &mut [u8]) -> Stop {
        blocks::read(self, carry, nesting, input, output)
    }
}

vectors!(Avx512, __m512i);

#[target_feature(enable = "avx512bw")]
#[inline]
fn load(block: &Block) -> __m512i {
    // SAFETY: reads 64 bytes, which the array has; they need not be aligned.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn equal(bytes: __m512i, byte: u8) -> u64 {
    _mm512_cmpeq_epi8_mask(bytes, all(byte))
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn at_most(bytes: __m512i, byte: u8) -> u64 {
    _mm512_cmple_epu8_mask(bytes, all(byte))
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn spaces(bytes: __m512i) -> u64 {
    equal(bytes, b' ') | equal(bytes, b'\n') | equal(bytes, b'\r') | equal(bytes, b'\t')
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn high(bytes: __m512i) -> u64 {
    _mm512_movepi8_mask(bytes)
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn braces(bytes: __m512i) -> u64 {
    _mm512_test_epi8_mask(bytes, all(0x20))
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn with(bytes: __m512i, bits: u8) -> __m512i {
    _mm512_or_si512(bytes, all(bits))
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn less(bytes: __m512i, byte: u8) -> __m512i {
    _mm512_sub_epi8(bytes, all(byte))
}

#[target_feature(enable = "avx512bw,avx512vbmi2,popcnt")]
#[inline]
fn compress(block: &Block, keep: u64, output: &mut Block) -> usize {
    let kept = _mm512_maskz_compress_epi8(keep, load(block));
    // SAFETY: writes 64 bytes, which the array has; they need not be aligned.
    unsafe { _mm512_storeu_si512(output.as_mut_ptr().cast(), kept) }
    keep.count_ones() as usize
}

/// The algorithm of [`avx2`](super::avx2).
#[target_feature(enable = "avx512bw")]
#[inline]
fn is_utf8(before: &Block, block: &Block) -> bool {
    let bytes = load(block);
    let joint = _mm512_alignr_epi32::<12>(bytes, load(before));
    let one_back = _mm512_alignr_epi8::<15>(bytes, joint);
    let two_back = _mm512_alignr_epi8::<14>(bytes, joint);
    let three_back = _mm512_alignr_epi8::<13>(bytes, joint);
    let low_half = _mm512_and_si512(one_back, all(0x0F));
    let wrong = _mm512_and_si512(
        _mm512_and_si512(look_up(&PAIRS[0], high_half(one_back)), look_up(&PAIRS[1], low_half)),
        look_up(&PAIRS[2], high_half(bytes)),
    );
    // Two continuation bytes in a row are wrong unless the lead byte requires them.
    let third = _mm512_subs_epu8(two_back, all(0xE0 - 0x80));
    let fourth = _mm512_subs_epu8(three_back, all(0xF0 - 0x80));
    let required = _mm512_and_si512(_mm512_or_si512(third, fourth), all(0x80));
    let wrong = _mm512_xor_si512(required, wrong);
    let never_valid = equal(_mm512_and_si512(bytes, all(0xFE)), 0xC0) | !at_most(bytes, 0xF4);
    never_valid | _mm512_test_epi8_mask(wrong, wrong) == 0
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn look_up(table: &[u8; 16], bytes: __m512i) -> __m512i {
    let (halves, _) = table.as_chunks::<8>();
    let table = _mm_set_epi64x(i64::from_le_bytes(halves[1]), i64::from_le_bytes(halves[0]));
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bytes)
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn high_half(bytes: __m512i) -> __m512i {
    _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), all(0x0F))
}

#[target_feature(enable = "avx512bw")]
#[inline]
fn all(byte: u8) -> __m512i {
    _mm512_set1_epi8(byte.cast_signed())
}
