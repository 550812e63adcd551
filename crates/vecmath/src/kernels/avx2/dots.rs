//! int8 dots: unsigned levels of up to 4 bits times signed bytes, added up in pairs as i16 and then as i32. A level of 15
//! keeps two products of 127 and all shifts of a byte far below 32,768.

use super::{fetch, sum8_epi32};
use crate::centroids::{Centroids8, HEAD, LANES};
use crate::codes::{Width, code_bytes, plane_bytes};
use crate::query::QueryCodes;
use std::arch::x86_64::*;

/// Codes that are fetched ahead of the one at work.
const AHEAD: usize = 8;

/// # Safety
/// All codes lie inside the slice; `starts` and `sums` are of one length.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn dots(
    query: &QueryCodes,
    width: Width,
    codes: &[u8],
    starts: &[usize],
    sums: &mut [i32],
) {
    let bytes = code_bytes(width, query.dim());
    for (at, (start, sum)) in starts.iter().zip(sums).enumerate() {
        if let Some(ahead) = starts.get(at + AHEAD) {
            fetch(codes.as_ptr().wrapping_add(*ahead), bytes);
        }
        *sum = dot_code(query, width, &codes[*start..][..bytes]);
    }
}

#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn dot_code(query: &QueryCodes, width: Width, code: &[u8]) -> i32 {
    if width == Width::ONE {
        return sum8_epi32(signs(query, code));
    }
    let mut total = _mm256_setzero_si256();
    let mut from = 0;
    for bits in width.planes() {
        let plane = &code[from..from + plane_bytes(*bits, query.dim())];
        from += plane.len();
        total = _mm256_sll_epi32(total, _mm_cvtsi32_si128(*bits as i32));
        let more = match bits {
            4 => plane_sum::<4>(query, plane),
            2 => plane_sum::<2>(query, plane),
            _ => plane_sum::<1>(query, plane),
        };
        total = _mm256_add_epi32(total, more);
    }
    sum8_epi32(total)
}

/// The sums of one plane of `P` bits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn plane_sum<const P: i32>(query: &QueryCodes, plane: &[u8]) -> __m256i {
    let low_bits = _mm256_set1_epi8((1i8 << P) - 1);
    let ones = _mm256_set1_epi16(1);
    let n = plane.len();
    let mut total = _mm256_setzero_si256();
    for (at, bytes) in plane.chunks(32).enumerate() {
        let mut chunk = [0; 32];
        let source = if bytes.len() == 32 {
            bytes.as_ptr()
        } else {
            chunk[..bytes.len()].copy_from_slice(bytes);
            chunk.as_ptr()
        };
        // SAFETY: 32 bytes either way.
        let mut x = unsafe { _mm256_loadu_si256(source.cast()) };
        let mut sum = _mm256_setzero_si256();
        for slice in 0..8 / P as usize {
            // SAFETY: the query is readable 64 bytes and more past its end.
            let q = unsafe { _mm256_loadu_si256(query.bytes.as_ptr().add(slice * n + at * 32).cast()) };
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_and_si256(x, low_bits), q));
            x = _mm256_srli_epi16::<P>(x);
        }
        total = _mm256_add_epi32(total, _mm256_madd_epi16(sum, ones));
    }
    total
}

/// The sums over the set bits of a code of width 1, whose bits lie in order.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn signs(query: &QueryCodes, code: &[u8]) -> __m256i {
    // Each byte of the four to eight lanes, and in each lane its own bit.
    let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let mut total = _mm256_setzero_si256();
    for (at, bytes) in code.chunks(4).enumerate() {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        let x = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(four)), spread);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit);
        // SAFETY: the query is readable 64 bytes and more past its end.
        let q = unsafe { _mm256_loadu_si256(query.bytes.as_ptr().add(at * 32).cast()) };
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_and_si256(q, set));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    total
}

/// # Safety
/// `q` holds the query's bytes in whole groups of four, `packed` and `out` have the size of the shape.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn centroids(shape: &Centroids8, q: &[u8], scale: f32, packed: &[u8], out: &mut [f32]) {
    for (block, out) in packed.chunks_exact(shape.block()).zip(out.chunks_mut(LANES)) {
        let (head, body) = block.split_at(HEAD);
        // Each register: four centroids, two sums of two dimensions each.
        let mut sums = [_mm256_setzero_si256(); 4];
        for (four, dims) in q.as_chunks::<4>().0.iter().zip(body.as_chunks::<64>().0) {
            let four = _mm_cvtepu8_epi16(_mm_set1_epi32(i32::from_le_bytes(*four)));
            let four = _mm256_broadcastsi128_si256(four);
            for (sum, c) in sums.iter_mut().zip(dims.as_chunks::<16>().0) {
                // SAFETY: 16 bytes are there.
                let c = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(c.as_ptr().cast()) });
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(c, four));
            }
        }
        let mut scores = [0.0; LANES];
        for half in 0..2 {
            let dots = _mm256_hadd_epi32(sums[half * 2], sums[half * 2 + 1]);
            let dots = _mm256_permute4x64_epi64::<0b11_01_10_00>(dots);
            // SAFETY: the head has three rows of 16, and the scores are 16.
            unsafe {
                let head = head.as_ptr().add(half * 32);
                let dots = _mm256_add_epi32(dots, _mm256_loadu_si256(head.cast()));
                let (c_scale, bias) = (_mm256_loadu_ps(head.add(64).cast()), _mm256_loadu_ps(head.add(128).cast()));
                let score = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_set1_ps(scale));
                _mm256_storeu_ps(scores.as_mut_ptr().add(half * 8), _mm256_fmadd_ps(score, c_scale, bias));
            }
        }
        out.copy_from_slice(&scores[..out.len()]);
    }
}

/// The same sums in the same order as in plain code: no product is fused with its sum.
///
/// # Safety
/// Four bytes of the lane lie at every 64, as many times as there are fours of the query.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn along(q: &[[f32; 4]], lane: &[u8]) -> f32 {
    let mut sums = _mm_setzero_ps();
    for (at, four) in q.iter().enumerate() {
        // SAFETY: the caller promises that they are there.
        let (dims, four) =
            unsafe { (lane.as_ptr().add(at * 64).cast::<i32>().read_unaligned(), _mm_loadu_ps(four.as_ptr())) };
        let dims = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(dims)));
        sums = _mm_add_ps(sums, _mm_mul_ps(four, dims));
    }
    let pairs = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs)))
}
