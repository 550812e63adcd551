//! A round of the structured rotation: the first four steps of the Hadamard transform inside a register, the rest two
//! at a time over memory.

use super::low16;
use crate::kernels::plain;
use std::arch::x86_64::*;

/// # Safety
/// `signs` is as long as `row`, and `front` a power of two that is not above it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn mix(row: &mut [f32], signs: &[f32], front: usize, round: usize) {
    if front < 16 {
        return plain::mix(row, signs, front, round);
    }
    let len = row.len();
    let scale = _mm512_set1_ps(1.0 / (front as f32).sqrt());
    let start = if round.is_multiple_of(2) { 0 } else { len - front };
    // SAFETY: masks and bounds keep every access inside the row.
    unsafe {
        let (x, sign) = (row.as_mut_ptr(), signs.as_ptr());
        // What the transform does not reach takes its signs only.
        let (from, to) = if start == 0 { (front, len) } else { (0, start) };
        for at in (from..to).step_by(16) {
            let mask = low16(to - at);
            let (value, sign) = (_mm512_maskz_loadu_ps(mask, x.add(at)), _mm512_maskz_loadu_ps(mask, sign.add(at)));
            _mm512_mask_storeu_ps(x.add(at), mask, _mm512_mul_ps(value, sign));
        }
        let (x, sign) = (x.add(start), sign.add(start));
        for at in (0..front).step_by(16) {
            let signed = _mm512_mul_ps(_mm512_loadu_ps(x.add(at)), _mm512_loadu_ps(sign.add(at)));
            _mm512_storeu_ps(x.add(at), within(_mm512_mul_ps(signed, scale)));
        }
        steps(x, front);
    }
    pairs(row, front);
}

/// The steps over distances 1, 2, 4 and 8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn within(x: __m512) -> __m512 {
    // The upper one of each pair is subtracted from the lower: other + x * (+1 or -1).
    let signs = |mask: u16| _mm512_mask_blend_ps(mask, _mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
    let x = _mm512_fmadd_ps(x, signs(0xAAAA), _mm512_permute_ps::<0b10_11_00_01>(x));
    let x = _mm512_fmadd_ps(x, signs(0xCCCC), _mm512_permute_ps::<0b01_00_11_10>(x));
    let x = _mm512_fmadd_ps(x, signs(0xF0F0), _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
    _mm512_fmadd_ps(x, signs(0xFF00), _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x))
}

/// The steps over distances 16 and above: two at a time, and a single one where their number is odd.
///
/// # Safety
/// `x` holds `len` values, a power of two of at least 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn steps(x: *mut f32, len: usize) {
    let mut half = 16;
    // SAFETY: `base + offset + 3 * half < len` throughout.
    unsafe {
        if (len / 16).ilog2() % 2 == 1 {
            for base in (0..len).step_by(32) {
                let (a, b) = (_mm512_loadu_ps(x.add(base)), _mm512_loadu_ps(x.add(base + 16)));
                _mm512_storeu_ps(x.add(base), _mm512_add_ps(a, b));
                _mm512_storeu_ps(x.add(base + 16), _mm512_sub_ps(a, b));
            }
            half = 32;
        }
        while half < len {
            for base in (0..len).step_by(half * 4) {
                for at in (base..base + half).step_by(16) {
                    let p = x.add(at);
                    let (a, b) = (_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(half)));
                    let (c, d) = (_mm512_loadu_ps(p.add(2 * half)), _mm512_loadu_ps(p.add(3 * half)));
                    let (e, f, g, h) =
                        (_mm512_add_ps(a, b), _mm512_sub_ps(a, b), _mm512_add_ps(c, d), _mm512_sub_ps(c, d));
                    _mm512_storeu_ps(p, _mm512_add_ps(e, g));
                    _mm512_storeu_ps(p.add(half), _mm512_add_ps(f, h));
                    _mm512_storeu_ps(p.add(2 * half), _mm512_sub_ps(e, g));
                    _mm512_storeu_ps(p.add(3 * half), _mm512_sub_ps(f, h));
                }
            }
            half *= 4;
        }
    }
}

/// Mixes what the transform reached with what it did not.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pairs(row: &mut [f32], front: usize) {
    if front == row.len() {
        return;
    }
    let half = row.len() / 2;
    let scale = _mm512_set1_ps(std::f32::consts::FRAC_1_SQRT_2);
    let (low, high) = row.split_at_mut(half);
    for at in (0..half).step_by(16) {
        let mask = low16(half - at);
        // SAFETY: the mask ends with the lower half, and the upper one is no shorter.
        unsafe {
            let (low, high) = (low.as_mut_ptr().add(at), high.as_mut_ptr().add(at));
            let (a, b) = (_mm512_maskz_loadu_ps(mask, low), _mm512_maskz_loadu_ps(mask, high));
            _mm512_mask_storeu_ps(low, mask, _mm512_mul_ps(_mm512_add_ps(a, b), scale));
            _mm512_mask_storeu_ps(high, mask, _mm512_mul_ps(_mm512_sub_ps(a, b), scale));
        }
    }
}
