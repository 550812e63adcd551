//! Making codes, and the forms of a query.

use super::{low8, max8, sum8, sum8_epi32};
use crate::codes::Width;
use crate::query::ENTRY_MAX;
use std::arch::x86_64::*;

/// Level less its offset and 0.5: `floor(x * scale)` within the grid.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn step_of(x: __m256, scale: __m256, half: __m256) -> __m256 {
    let step = _mm256_floor_ps(_mm256_mul_ps(x, scale));
    let highest = _mm256_sub_ps(half, _mm256_set1_ps(1.0));
    _mm256_min_ps(_mm256_max_ps(step, _mm256_sub_ps(_mm256_setzero_ps(), half)), highest)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn half_of(width: Width) -> __m256 {
    _mm256_set1_ps((1u32 << (width.bits() - 1)) as f32)
}

/// The value of a step, and 0 in the lanes beyond `mask`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn value_of(step: __m256, mask: __m256i) -> __m256 {
    _mm256_and_ps(_mm256_add_ps(step, _mm256_set1_ps(0.5)), _mm256_castsi256_ps(mask))
}

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn trials(width: Width, r: &[f32], scales: [f32; 6]) -> [(f32, f32); 6] {
    let half = half_of(width);
    let mut found = [(0.0, 0.0); 6];
    for (found, scale) in found.iter_mut().zip(scales) {
        let (mut along, mut length) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        for at in (0..r.len()).step_by(8) {
            let mask = low8(r.len() - at);
            // SAFETY: the mask ends with the slice.
            let x = unsafe { _mm256_maskload_ps(r.as_ptr().add(at), mask) };
            let value = value_of(step_of(x, _mm256_set1_ps(scale), half), mask);
            along = _mm256_fmadd_ps(x, value, along);
            length = _mm256_fmadd_ps(value, value, length);
        }
        *found = (sum8(along), sum8(length));
    }
    found
}

/// # Safety
/// `centre` and `levels` are as long as `r`.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn quantise(
    width: Width,
    r: &[f32],
    centre: &[f32],
    scale: f32,
    levels: &mut [u8],
) -> [f32; 3] {
    let (half, scale) = (half_of(width), _mm256_set1_ps(scale));
    let mut sums = [_mm256_setzero_ps(); 3];
    for (at, levels) in levels.chunks_mut(8).enumerate() {
        let mask = low8(levels.len());
        // SAFETY: the mask ends with the slices.
        let (x, c) = unsafe {
            (_mm256_maskload_ps(r.as_ptr().add(at * 8), mask), _mm256_maskload_ps(centre.as_ptr().add(at * 8), mask))
        };
        let step = step_of(x, scale, half);
        put(bytes_of(_mm256_cvtps_epi32(_mm256_add_ps(step, half))), levels);
        let value = value_of(step, mask);
        sums[0] = _mm256_fmadd_ps(x, value, sums[0]);
        sums[1] = _mm256_fmadd_ps(value, value, sums[1]);
        sums[2] = _mm256_fmadd_ps(c, value, sums[2]);
    }
    [sum8(sums[0]), sum8(sums[1]), sum8(sums[2])]
}

/// Writes as many of eight as there is room for; all at once where there is.
#[inline(always)]
fn put<T: Copy>(eight: [T; 8], out: &mut [T]) {
    match out.first_chunk_mut() {
        Some(out) => *out = eight,
        None => out.iter_mut().zip(eight).for_each(|(out, value)| *out = value),
    }
}

/// The lowest byte of each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn bytes_of(x: __m256i) -> [u8; 8] {
    let lowest = _mm256_setr_epi8(
        0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1,
        -1, -1, -1,
    );
    let x = _mm256_shuffle_epi8(x, lowest);
    let both = _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    _mm_cvtsi128_si64(both).to_le_bytes()
}

#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn pack(width: Width, levels: &[u8], code: &mut [u8]) {
    crate::codes::pack(width, levels, code);
}

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn query_sizes(rotated: &[f32]) -> [f32; 3] {
    let (mut max, mut widest, mut sum) = (_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps());
    for at in (0..rotated.len()).step_by(8) {
        // SAFETY: the mask ends with the slice.
        let x = unsafe { _mm256_maskload_ps(rotated.as_ptr().add(at), low8(rotated.len() - at)) };
        let x = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        max = _mm256_max_ps(x, max);
        let two = _mm256_add_ps(x, _mm256_permute_ps::<0b10_11_00_01>(x));
        let four = _mm256_add_ps(two, _mm256_permute_ps::<0b01_00_11_10>(two));
        widest = _mm256_max_ps(four, widest);
        sum = _mm256_add_ps(sum, four);
    }
    [max8(max), max8(widest), sum8(sum) * 0.25]
}

/// # Safety
/// `bytes` is no shorter than `rotated`.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn query_bytes(rotated: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
    let (inverse, limit) = (_mm256_set1_ps(inverse), _mm256_set1_ps(127.0));
    let mut sum = _mm256_setzero_si256();
    for (at, bytes) in bytes[..rotated.len()].chunks_mut(8).enumerate() {
        // SAFETY: the mask ends with the slice.
        let x = unsafe { _mm256_maskload_ps(rotated.as_ptr().add(at * 8), low8(bytes.len())) };
        let x = _mm256_max_ps(_mm256_mul_ps(x, inverse), _mm256_sub_ps(_mm256_setzero_ps(), limit));
        let x = _mm256_cvtps_epi32(_mm256_min_ps(x, limit));
        sum = _mm256_add_epi32(sum, x);
        put(bytes_of(x).map(|byte| byte as i8), bytes);
    }
    sum8_epi32(sum)
}

/// # Safety
/// `tables` has 16 entries for each 4 dimensions.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn query_tables(rotated: &[f32], inverse: f32, tables: &mut [u8]) {
    // Entry m has dimension i in it if bit i of m is set: all bits of the lanes where it is.
    let ones = _mm256_castsi256_ps(_mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1));
    let twos = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, -1, -1, 0, 0, -1, -1));
    let fours = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1));
    let (inverse, limit) = (_mm256_set1_ps(inverse), _mm256_set1_ps(ENTRY_MAX));
    for (table, group) in tables.as_chunks_mut::<16>().0.iter_mut().zip(rotated.chunks(4)) {
        let mut x = [0.0; 4];
        x.iter_mut().zip(group).for_each(|(x, value)| *x = *value);
        let set = |mask: __m256, x: f32| _mm256_and_ps(mask, _mm256_set1_ps(x));
        let low = _mm256_add_ps(_mm256_add_ps(set(ones, x[0]), set(twos, x[1])), set(fours, x[2]));
        let lowest = _mm256_set1_ps(x[0].min(0.0) + x[1].min(0.0) + x[2].min(0.0) + x[3].min(0.0));
        for (half, entries) in [low, _mm256_add_ps(low, _mm256_set1_ps(x[3]))].into_iter().enumerate() {
            let entries = _mm256_mul_ps(_mm256_sub_ps(entries, lowest), inverse);
            let entries = _mm256_min_ps(_mm256_max_ps(entries, _mm256_setzero_ps()), limit);
            table[half * 8..half * 8 + 8].copy_from_slice(&bytes_of(_mm256_cvtps_epi32(entries)));
        }
    }
}
