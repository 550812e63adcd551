//! Distances: four sums of 8 lanes.

use super::{low8, sum8};
use std::arch::x86_64::*;

macro_rules! distance {
    ($pair:ident, $rows:ident, $step:ident, |$acc:ident, $a:ident, $b:ident| $term:expr) => {
        #[inline]
        #[target_feature(enable = "avx2,fma")]
        fn $step($acc: __m256, $a: __m256, $b: __m256) -> __m256 {
            $term
        }

        /// # Safety
        /// Both slices have the same length.
        #[target_feature(enable = "avx2,fma")]
        pub(in super::super) unsafe fn $pair(a: &[f32], b: &[f32]) -> f32 {
            let (len, a, b) = (a.len(), a.as_ptr(), b.as_ptr());
            let mut sums = [_mm256_setzero_ps(); 4];
            let mut at = 0;
            // SAFETY: every load lies below `len`, the last one by its mask.
            unsafe {
                while at + 32 <= len {
                    for (lane, sum) in sums.iter_mut().enumerate() {
                        let x = at + lane * 8;
                        *sum = $step(*sum, _mm256_loadu_ps(a.add(x)), _mm256_loadu_ps(b.add(x)));
                    }
                    at += 32;
                }
                while at < len {
                    let mask = low8(len - at);
                    let (x, y) = (_mm256_maskload_ps(a.add(at), mask), _mm256_maskload_ps(b.add(at), mask));
                    sums[at / 8 % 4] = $step(sums[at / 8 % 4], x, y);
                    at += 8;
                }
            }
            sum8(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])))
        }

        /// # Safety
        /// `block` holds `out.len()` rows of `q.len()`.
        #[target_feature(enable = "avx2,fma")]
        pub(in super::super) unsafe fn $rows(q: &[f32], block: &[f32], out: &mut [f32]) {
            for (x, out) in block.chunks_exact(q.len()).zip(out) {
                // SAFETY: a row has the length of the query.
                *out = unsafe { $pair(q, x) };
            }
        }
    };
}

distance!(dot, dot_rows, dot_step, |acc, a, b| _mm256_fmadd_ps(a, b, acc));
distance!(l2_squared, l2_rows, l2_step, |acc, a, b| {
    let apart = _mm256_sub_ps(a, b);
    _mm256_fmadd_ps(apart, apart, acc)
});
distance!(l1, l1_rows, l1_step, |acc, a, b| {
    _mm256_add_ps(acc, _mm256_andnot_ps(_mm256_set1_ps(-0.0), _mm256_sub_ps(a, b)))
});

/// # Safety
/// Both slices have the same length.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn sad(a: &[u8], b: &[u8]) -> u32 {
    let mut sum = _mm256_setzero_si256();
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    for (a, b) in a.iter().zip(b) {
        // SAFETY: a chunk is a register.
        let (a, b) = unsafe { (_mm256_loadu_si256(a.as_ptr().cast()), _mm256_loadu_si256(b.as_ptr().cast())) };
        sum = _mm256_add_epi64(sum, _mm256_sad_epu8(a, b));
    }
    let rest: u32 = a_rest.iter().zip(b_rest).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
    // The upper words are zero: a sum stays below 2^32.
    super::sum8_epi32(sum) as u32 + rest
}
