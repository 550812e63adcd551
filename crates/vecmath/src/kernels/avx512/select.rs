//! Finding the scores above a floor, and a floor to begin with.

use super::low16;
use std::arch::x86_64::*;

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt")]
pub(in super::super) unsafe fn at_least(scores: &[f32], floor: f32, out: &mut Vec<u32>) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let floor = _mm512_set1_ps(floor);
    for at in (0..scores.len()).step_by(16) {
        let mask = low16(scores.len() - at);
        // SAFETY: the mask ends with the slice.
        let found = unsafe {
            let values = _mm512_maskz_loadu_ps(mask, scores.as_ptr().add(at));
            _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(mask, values, floor)
        };
        if found != 0 {
            out.reserve(16);
            let places = _mm512_maskz_compress_epi32(found, _mm512_add_epi32(lanes, _mm512_set1_epi32(at as i32)));
            // SAFETY: 16 more fit; as many become part of the vector as were found.
            unsafe {
                _mm512_storeu_si512(out.as_mut_ptr().add(out.len()).cast(), places);
                out.set_len(out.len() + found.count_ones() as usize);
            }
        }
    }
}

/// # Safety
/// The instructions are there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn group_best(scores: &[f32], best: &mut [f32; 256]) -> usize {
    let none = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut groups = [none; 16];
    let mut at = 0;
    // `max` gives its second operand where the first is not a number.
    // SAFETY: every load lies inside the slice, the last ones by their masks.
    unsafe {
        while at + 256 <= scores.len() {
            for (lane, group) in groups.iter_mut().enumerate() {
                *group = _mm512_max_ps(_mm512_loadu_ps(scores.as_ptr().add(at + lane * 16)), *group);
            }
            at += 256;
        }
        for (lane, group) in groups.iter_mut().enumerate() {
            let from = at + lane * 16;
            if from < scores.len() {
                let mask = low16(scores.len() - from);
                *group = _mm512_max_ps(_mm512_mask_loadu_ps(none, mask, scores.as_ptr().add(from)), *group);
            }
        }
        for (lane, group) in groups.into_iter().enumerate() {
            _mm512_storeu_ps(best.as_mut_ptr().add(lane * 16), group);
        }
    }
    scores.len().min(256)
}
