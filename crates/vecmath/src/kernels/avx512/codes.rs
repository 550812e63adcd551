//! Making codes, and the forms of a query.

use super::{low16, low64};
use crate::codes::{Width, plane_bytes};
use crate::query::ENTRY_MAX;
use std::arch::x86_64::*;

/// Level less its offset and 0.5: `floor(x * scale)` within the grid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn step_of(x: __m512, scale: __m512, half: __m512) -> __m512 {
    const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    let step = _mm512_roundscale_ps::<DOWN>(_mm512_mul_ps(x, scale));
    let highest = _mm512_sub_ps(half, _mm512_set1_ps(1.0));
    _mm512_min_ps(_mm512_max_ps(step, _mm512_sub_ps(_mm512_setzero_ps(), half)), highest)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn half_of(width: Width) -> __m512 {
    _mm512_set1_ps((1u32 << (width.bits() - 1)) as f32)
}

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn trials(width: Width, r: &[f32], scales: [f32; 6]) -> [(f32, f32); 6] {
    let half = half_of(width);
    let mut sums = [(_mm512_setzero_ps(), _mm512_setzero_ps()); 6];
    for at in (0..r.len()).step_by(16) {
        let mask = low16(r.len() - at);
        // SAFETY: the mask ends with the slice.
        let x = unsafe { _mm512_maskz_loadu_ps(mask, r.as_ptr().add(at)) };
        for ((along, length), scale) in sums.iter_mut().zip(scales) {
            let value = _mm512_maskz_add_ps(mask, step_of(x, _mm512_set1_ps(scale), half), _mm512_set1_ps(0.5));
            *along = _mm512_fmadd_ps(x, value, *along);
            *length = _mm512_fmadd_ps(value, value, *length);
        }
    }
    let mut found = [(0.0, 0.0); 6];
    for (found, (along, length)) in found.iter_mut().zip(sums) {
        *found = (_mm512_reduce_add_ps(along), _mm512_reduce_add_ps(length));
    }
    found
}

/// # Safety
/// `centre` and `levels` are as long as `r`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn quantise(
    width: Width,
    r: &[f32],
    centre: &[f32],
    scale: f32,
    levels: &mut [u8],
) -> [f32; 3] {
    let (half, scale) = (half_of(width), _mm512_set1_ps(scale));
    let mut sums = [_mm512_setzero_ps(); 3];
    for at in (0..r.len()).step_by(16) {
        let mask = low16(r.len() - at);
        // SAFETY: the mask ends with all three slices.
        unsafe {
            let x = _mm512_maskz_loadu_ps(mask, r.as_ptr().add(at));
            let c = _mm512_maskz_loadu_ps(mask, centre.as_ptr().add(at));
            let step = step_of(x, scale, half);
            let level = _mm512_cvtps_epi32(_mm512_add_ps(step, half));
            _mm512_mask_cvtepi32_storeu_epi8(levels.as_mut_ptr().add(at).cast(), mask, level);
            let value = _mm512_maskz_add_ps(mask, step, _mm512_set1_ps(0.5));
            sums[0] = _mm512_fmadd_ps(x, value, sums[0]);
            sums[1] = _mm512_fmadd_ps(value, value, sums[1]);
            sums[2] = _mm512_fmadd_ps(c, value, sums[2]);
        }
    }
    [_mm512_reduce_add_ps(sums[0]), _mm512_reduce_add_ps(sums[1]), _mm512_reduce_add_ps(sums[2])]
}

/// # Safety
/// `code` has the size of a code of this width.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn pack(width: Width, levels: &[u8], code: &mut [u8]) {
    let dim = levels.len();
    if width == Width::ONE {
        for (at, bytes) in code.chunks_mut(8).enumerate() {
            // SAFETY: the mask ends with the levels.
            let x = unsafe { _mm512_maskz_loadu_epi8(low64(dim - at * 64), levels.as_ptr().add(at * 64).cast()) };
            let bits = _mm512_test_epi8_mask(x, _mm512_set1_epi8(1)).to_le_bytes();
            bytes.copy_from_slice(&bits[..bytes.len()]);
        }
        return;
    }
    let (mut to, mut left) = (code.as_mut_ptr(), width.bits());
    for bits in width.planes() {
        left -= bits;
        let n = plane_bytes(*bits, dim);
        let low_bits = _mm512_set1_epi8(((1u32 << bits) - 1) as i8);
        let down = _mm_cvtsi32_si128(left as i32);
        for at in (0..n).step_by(64) {
            let mut packed = _mm512_setzero_si512();
            for (slice, shift) in (0..8).step_by(*bits as usize).enumerate() {
                let from = slice * n + at;
                if from >= dim {
                    break;
                }
                // SAFETY: the mask ends with the levels.
                let x = unsafe { _mm512_maskz_loadu_epi8(low64(dim - from), levels.as_ptr().add(from).cast()) };
                let x = _mm512_and_si512(_mm512_srl_epi16(x, down), low_bits);
                packed = _mm512_or_si512(packed, _mm512_sll_epi16(x, _mm_cvtsi32_si128(shift)));
            }
            // SAFETY: the mask ends with the plane.
            unsafe { _mm512_mask_storeu_epi8(to.add(at).cast(), low64(n - at), packed) };
        }
        // SAFETY: the planes fill the code.
        to = unsafe { to.add(n) };
    }
}

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn query_sizes(rotated: &[f32]) -> [f32; 3] {
    let (mut max, mut widest, mut sum) = (_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps());
    for at in (0..rotated.len()).step_by(16) {
        let mask = low16(rotated.len() - at);
        // SAFETY: the mask ends with the slice.
        let x = unsafe { _mm512_abs_ps(_mm512_maskz_loadu_ps(mask, rotated.as_ptr().add(at))) };
        max = _mm512_max_ps(x, max);
        let two = _mm512_add_ps(x, _mm512_permute_ps::<0b10_11_00_01>(x));
        let four = _mm512_add_ps(two, _mm512_permute_ps::<0b01_00_11_10>(two));
        widest = _mm512_max_ps(four, widest);
        sum = _mm512_add_ps(sum, four);
    }
    [_mm512_reduce_max_ps(max), _mm512_reduce_max_ps(widest), _mm512_reduce_add_ps(sum) * 0.25]
}

/// # Safety
/// `bytes` is no shorter than `rotated`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn query_bytes(rotated: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
    let (inverse, limit) = (_mm512_set1_ps(inverse), _mm512_set1_ps(127.0));
    let mut sum = _mm512_setzero_si512();
    for at in (0..rotated.len()).step_by(16) {
        let mask = low16(rotated.len() - at);
        // SAFETY: the mask ends with the slice.
        unsafe {
            let x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, rotated.as_ptr().add(at)), inverse);
            let x = _mm512_min_ps(_mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), limit)), limit);
            let x = _mm512_cvtps_epi32(x);
            sum = _mm512_add_epi32(sum, x);
            _mm512_mask_cvtepi32_storeu_epi8(bytes.as_mut_ptr().add(at).cast(), mask, x);
        }
    }
    _mm512_reduce_add_epi32(sum)
}

/// # Safety
/// `tables` has 16 entries for each 4 dimensions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn query_tables(rotated: &[f32], inverse: f32, tables: &mut [u8]) {
    let (inverse, limit) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ENTRY_MAX));
    for (table, group) in tables.chunks_exact_mut(16).zip(rotated.chunks(4)) {
        let mut x = [0.0; 4];
        x[..group.len()].copy_from_slice(group);
        let set = |mask: u16, x: f32| _mm512_maskz_mov_ps(mask, _mm512_set1_ps(x));
        let mut entries = _mm512_add_ps(set(0xAAAA, x[0]), set(0xCCCC, x[1]));
        entries = _mm512_add_ps(entries, set(0xF0F0, x[2]));
        entries = _mm512_add_ps(entries, set(0xFF00, x[3]));
        let lowest = x[0].min(0.0) + x[1].min(0.0) + x[2].min(0.0) + x[3].min(0.0);
        let entries = _mm512_mul_ps(_mm512_sub_ps(entries, _mm512_set1_ps(lowest)), inverse);
        let entries = _mm512_min_ps(_mm512_max_ps(entries, _mm512_setzero_ps()), limit);
        let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(entries));
        // SAFETY: the table has 16 bytes.
        unsafe { _mm_storeu_si128(table.as_mut_ptr().cast(), bytes) };
    }
}
