//! Distances: four sums of 16 lanes for a pair of vectors; four rows side by side for a block.

use super::{low16, low64};
use std::arch::x86_64::*;

macro_rules! distance {
    ($pair:ident, $rows:ident, $step:ident, |$acc:ident, $a:ident, $b:ident| $term:expr) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $step($acc: __m512, $a: __m512, $b: __m512) -> __m512 {
            $term
        }

        /// # Safety
        /// Both slices have the same length.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        pub(in super::super) unsafe fn $pair(a: &[f32], b: &[f32]) -> f32 {
            let (len, a, b) = (a.len(), a.as_ptr(), b.as_ptr());
            let mut sums = [_mm512_setzero_ps(); 4];
            let mut at = 0;
            // SAFETY: every load lies below `len`, the last one by its mask.
            unsafe {
                while at + 64 <= len {
                    for (lane, sum) in sums.iter_mut().enumerate() {
                        let x = at + lane * 16;
                        *sum = $step(*sum, _mm512_loadu_ps(a.add(x)), _mm512_loadu_ps(b.add(x)));
                    }
                    at += 64;
                }
                let mut lane = 0;
                while at + 16 <= len {
                    sums[lane] = $step(sums[lane], _mm512_loadu_ps(a.add(at)), _mm512_loadu_ps(b.add(at)));
                    at += 16;
                    lane += 1;
                }
                if at < len {
                    let mask = low16(len - at);
                    let (x, y) = (_mm512_maskz_loadu_ps(mask, a.add(at)), _mm512_maskz_loadu_ps(mask, b.add(at)));
                    sums[3] = $step(sums[3], x, y);
                }
            }
            _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])))
        }

        /// # Safety
        /// `block` holds `out.len()` rows of `q.len()`.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        pub(in super::super) unsafe fn $rows(q: &[f32], block: &[f32], out: &mut [f32]) {
            let dim = q.len();
            let whole = out.len() / 4 * 4;
            for at in (0..whole).step_by(4) {
                // SAFETY: rows at .. at + 4 are inside the block, and each load inside its row.
                unsafe {
                    let row = block.as_ptr().add(at * dim);
                    let mut sums = [_mm512_setzero_ps(); 4];
                    let mut d = 0;
                    while d + 16 <= dim {
                        let x = _mm512_loadu_ps(q.as_ptr().add(d));
                        for (lane, sum) in sums.iter_mut().enumerate() {
                            *sum = $step(*sum, x, _mm512_loadu_ps(row.add(lane * dim + d)));
                        }
                        d += 16;
                    }
                    if d < dim {
                        let mask = low16(dim - d);
                        let x = _mm512_maskz_loadu_ps(mask, q.as_ptr().add(d));
                        for (lane, sum) in sums.iter_mut().enumerate() {
                            *sum = $step(*sum, x, _mm512_maskz_loadu_ps(mask, row.add(lane * dim + d)));
                        }
                    }
                    _mm_storeu_ps(out.as_mut_ptr().add(at), sum4(sums));
                }
            }
            for (x, out) in block.chunks_exact(dim).zip(out).skip(whole) {
                // SAFETY: a row has the length of the query.
                *out = unsafe { $pair(q, x) };
            }
        }
    };
}

distance!(dot, dot_rows, dot_step, |acc, a, b| _mm512_fmadd_ps(a, b, acc));
distance!(l2_squared, l2_rows, l2_step, |acc, a, b| {
    let apart = _mm512_sub_ps(a, b);
    _mm512_fmadd_ps(apart, apart, acc)
});
distance!(l1, l1_rows, l1_step, |acc, a, b| _mm512_add_ps(acc, _mm512_abs_ps(_mm512_sub_ps(a, b))));

/// The sums of the lanes of four registers, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum4(x: [__m512; 4]) -> __m128 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    let abcd = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xEE>(ab, cd));
    let half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps::<1>(abcd));
    _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half))
}

/// # Safety
/// Both slices have the same length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn sad(a: &[u8], b: &[u8]) -> u32 {
    let mut sum = _mm512_setzero_si512();
    for at in (0..a.len()).step_by(64) {
        let mask = low64(a.len() - at);
        // SAFETY: the mask ends with the slices.
        let (x, y) = unsafe {
            (
                _mm512_maskz_loadu_epi8(mask, a.as_ptr().add(at).cast()),
                _mm512_maskz_loadu_epi8(mask, b.as_ptr().add(at).cast()),
            )
        };
        sum = _mm512_add_epi64(sum, _mm512_sad_epu8(x, y));
    }
    _mm512_reduce_add_epi64(sum) as u32
}
