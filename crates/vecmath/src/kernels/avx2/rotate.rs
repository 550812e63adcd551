//! A round of the structured rotation: the first three steps of the Hadamard transform inside a register, the rest as
//! the compiler makes them of plain loops.

use crate::kernels::plain;
use std::arch::x86_64::*;

/// # Safety
/// `signs` is as long as `row`, and `front` a power of two that is not above it.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn mix(row: &mut [f32], signs: &[f32], front: usize, round: usize) {
    if front < 8 {
        return plain::mix(row, signs, front, round);
    }
    for (x, sign) in row.iter_mut().zip(signs) {
        *x *= sign;
    }
    let start = if round.is_multiple_of(2) { 0 } else { row.len() - front };
    let part = &mut row[start..start + front];
    let scale = _mm256_set1_ps(1.0 / (front as f32).sqrt());
    for eight in part.as_chunks_mut::<8>().0 {
        // SAFETY: a chunk is a register.
        unsafe {
            let x = _mm256_mul_ps(_mm256_loadu_ps(eight.as_ptr()), scale);
            _mm256_storeu_ps(eight.as_mut_ptr(), within(x));
        }
    }
    plain::steps(part, 8);
    plain::pair_up(row, front);
}

/// The steps over distances 1, 2 and 4.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn within(x: __m256) -> __m256 {
    // The upper one of each pair is subtracted from the lower: other + x * (+1 or -1).
    let ones = _mm256_setr_ps(1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0);
    let x = _mm256_fmadd_ps(x, ones, _mm256_permute_ps::<0b10_11_00_01>(x));
    let twos = _mm256_setr_ps(1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0);
    let x = _mm256_fmadd_ps(x, twos, _mm256_permute_ps::<0b01_00_11_10>(x));
    let fours = _mm256_setr_ps(1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0);
    _mm256_fmadd_ps(x, fours, _mm256_permute2f128_ps::<0x01>(x, x))
}
