//! Packed values become floats: eight halves an instruction.

use super::plain;
use std::arch::x86_64::*;

/// # Safety
/// `bytes` holds a half for each of `out`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn unpack_halves(bytes: &[u8], out: &mut [f32]) {
    let (wholes, rest) = out.as_chunks_mut::<8>();
    let (halves, last) = bytes.as_chunks::<16>();
    for (out, halves) in wholes.iter_mut().zip(halves) {
        // SAFETY: both chunks are registers.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()))) };
    }
    if !rest.is_empty() {
        let (mut halves, mut values) = ([0; 16], [0.0; 8]);
        halves[..rest.len() * 2].copy_from_slice(&last[..rest.len() * 2]);
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()))) };
        rest.copy_from_slice(&values[..rest.len()]);
    }
}

#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn unpack_bytes(bytes: &[u8], out: &mut [f32]) {
    plain::unpack_bytes(bytes, out);
}
