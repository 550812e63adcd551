//! int8 dots by VNNI: b-bit codes with a query, and all centroids with a query.
//!
//! ```text
//!   64 bytes of a plane of p bits: shift down by 0, p, 2p .., keep p bits each time, multiply with the query's bytes
//!   that [`QueryCodes`] laid out in just this order
//!   the last 1 to 32 bytes of a plane are copied to 2 or 4 lanes, so that one step takes 2 or 4 shifts at once
//! ```

use super::{low16, low64};
use crate::centroids::{Centroids8, HEAD, LANES};
use crate::codes::{Width, code_bytes, plane_bytes};
use crate::query::QueryCodes;
use std::arch::x86_64::*;

/// Codes that are fetched ahead of the one at work.
const AHEAD: usize = 8;

/// # Safety
/// All codes lie inside the slice; `which` and `sums` are of one length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) unsafe fn dots(
    query: &QueryCodes,
    width: Width,
    codes: &[u8],
    stride: usize,
    which: &[u32],
    sums: &mut [i32],
) {
    let bytes = code_bytes(width, query.dim());
    let code = |at: usize| codes.as_ptr().wrapping_add(which[at] as usize * stride);
    for at in 0..which.len().min(AHEAD) {
        fetch(code(at), bytes);
    }
    let mut at = 0;
    // SAFETY: the pointers are those of codes inside the slice.
    unsafe {
        while at + 4 <= which.len() {
            for ahead in at + AHEAD..(at + AHEAD + 4).min(which.len()) {
                fetch(code(ahead), bytes);
            }
            let found = code_sums(query, width, [code(at), code(at + 1), code(at + 2), code(at + 3)]);
            _mm_storeu_si128(sums.as_mut_ptr().add(at).cast(), sum4(found));
            at += 4;
        }
        while at < which.len() {
            sums[at] = _mm512_reduce_add_epi32(code_sums(query, width, [code(at)])[0]);
            at += 1;
        }
    }
}

/// Asks for all lines of a code.
#[inline(always)]
fn fetch(code: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(code.wrapping_add(line).cast()) };
    }
    // SAFETY: as above. The last byte may lie on one more line.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(code.wrapping_add(bytes - 1).cast()) };
}

/// # Safety
/// `codes` are codes of this width and the query's dimension.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn code_sums<const N: usize>(query: &QueryCodes, width: Width, codes: [*const u8; N]) -> [__m512i; N] {
    let dim = query.dim();
    let none = [_mm512_setzero_si512(); N];
    // SAFETY: each plane starts where the one before it ends.
    unsafe {
        let after = |bits| codes.map(|code| code.add(plane_bytes(bits, dim)));
        match width.bits() {
            1 => sign_sums(query, codes),
            2 => plane::<2, N>(query.plane(2), plane_bytes(2, dim), codes, none),
            3 => {
                let high = plane::<2, N>(query.plane(2), plane_bytes(2, dim), codes, none);
                let high = high.map(|sum| _mm512_slli_epi32::<1>(sum));
                plane::<1, N>(query.plane(1), plane_bytes(1, dim), after(2), high)
            }
            bits => {
                let high = plane::<4, N>(query.plane(4), plane_bytes(4, dim), codes, none);
                match bits {
                    4 => high,
                    5 => {
                        let high = high.map(|sum| _mm512_slli_epi32::<1>(sum));
                        plane::<1, N>(query.plane(1), plane_bytes(1, dim), after(4), high)
                    }
                    6 | 7 => {
                        let high = high.map(|sum| _mm512_slli_epi32::<2>(sum));
                        let high = plane::<2, N>(query.plane(2), plane_bytes(2, dim), after(4), high);
                        if bits == 6 {
                            return high;
                        }
                        let high = high.map(|sum| _mm512_slli_epi32::<1>(sum));
                        let codes = after(4).map(|code| code.add(plane_bytes(2, dim)));
                        plane::<1, N>(query.plane(1), plane_bytes(1, dim), codes, high)
                    }
                    _ => {
                        let high = high.map(|sum| _mm512_slli_epi32::<4>(sum));
                        plane::<4, N>(query.plane(4), plane_bytes(4, dim), after(4), high)
                    }
                }
            }
        }
    }
}

/// Adds one plane of `P` bits of each code.
///
/// # Safety
/// A plane of `n` bytes starts at each of `codes`, and `q` is the query laid out for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn plane<const P: u32, const N: usize>(
    q: *const i8,
    n: usize,
    codes: [*const u8; N],
    mut sums: [__m512i; N],
) -> [__m512i; N] {
    let low_bits = _mm512_set1_epi8((1i8 << P) - 1);
    let mut q = q.cast::<__m512i>();
    let mut at = 0;
    // SAFETY: loads of codes end with the plane; the query has a register for each step (see `QueryCodes::arrange`).
    unsafe {
        while n - at > 32 {
            let mask = low64(n - at);
            let mut x = codes.map(|code| _mm512_maskz_loadu_epi8(mask, code.add(at).cast()));
            for _ in 0..8 / P {
                let bytes = _mm512_loadu_si512(q);
                q = q.add(1);
                for (x, sum) in x.iter_mut().zip(&mut sums) {
                    *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(*x, low_bits), bytes);
                    *x = _mm512_srli_epi16::<P>(*x);
                }
            }
            at += 64;
            if at >= n {
                return sums;
            }
        }
        let mask = low64(n - at);
        let (steps, shift, wide, x) = if n - at > 16 {
            let x = codes.map(|code| _mm512_broadcast_i64x4(_mm256_maskz_loadu_epi8(mask as u32, code.add(at).cast())));
            (4 / P, const { shifts(2, P) }, 2 * P, x)
        } else {
            let x = codes.map(|code| _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8(mask as u16, code.add(at).cast())));
            (2u32.div_ceil(P), const { shifts(4, P) }, 4 * P, x)
        };
        let mut shift = _mm512_loadu_si512(shift.as_ptr().cast());
        for _ in 0..steps {
            let bytes = _mm512_loadu_si512(q);
            q = q.add(1);
            for (x, sum) in x.iter().zip(&mut sums) {
                let levels = _mm512_and_si512(_mm512_srlv_epi16(*x, shift), low_bits);
                *sum = _mm512_dpbusd_epi32(*sum, levels, bytes);
            }
            shift = _mm512_add_epi16(shift, _mm512_set1_epi16(wide as i16));
        }
    }
    sums
}

/// For each word of a register of `copies` copies: copy number times `bits`.
const fn shifts(copies: usize, bits: u32) -> [u16; 32] {
    let mut shifts = [0; 32];
    let mut at = 0;
    while at < 32 {
        shifts[at] = (at * copies / 32) as u16 * bits as u16;
        at += 1;
    }
    shifts
}

/// Sums over the set bits of codes of width 1, whose bits lie in order.
///
/// # Safety
/// `codes` are codes of width 1 and the query's dimension.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn sign_sums<const N: usize>(query: &QueryCodes, codes: [*const u8; N]) -> [__m512i; N] {
    let bytes = plane_bytes(1, query.dim());
    let ones = _mm512_set1_epi8(1);
    let mut sums = [_mm512_setzero_si512(); N];
    for at in (0..bytes).step_by(8) {
        // SAFETY: the query is readable 64 bytes past its end; loads of codes end with the code.
        unsafe {
            let q = _mm512_loadu_si512(query.bytes.as_ptr().add(at * 8).cast());
            for (code, sum) in codes.iter().zip(&mut sums) {
                let bits = _mm_maskz_loadu_epi8(low16(bytes - at) & 0xFF, code.add(at).cast());
                let set = _mm512_maskz_mov_epi8(_mm_cvtsi128_si64(bits) as u64, ones);
                *sum = _mm512_dpbusd_epi32(*sum, set, q);
            }
        }
    }
    sums
}

/// The sums of the lanes of four registers, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sum4(x: [__m512i; 4]) -> __m128i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    let abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let half = _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64::<1>(abcd));
    _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
}

/// Blocks of centroids that are scored side by side.
const SIDE: usize = 4;

/// # Safety
/// `q` holds the query's bytes in whole groups of four, `packed` and `out` have the size of the shape.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) unsafe fn centroids(shape: &Centroids8, q: &[u8], scale: f32, packed: &[u8], out: &mut [f32]) {
    let size = shape.block();
    let mut blocks = packed.as_ptr();
    let mut out = out.chunks_mut(LANES * SIDE);
    // SAFETY: as many blocks are read as scores are written.
    unsafe {
        for out in &mut out {
            match out.len().div_ceil(LANES) {
                SIDE => side_by_side::<SIDE>(blocks, size, q, scale, out),
                3 => side_by_side::<3>(blocks, size, q, scale, out),
                2 => side_by_side::<2>(blocks, size, q, scale, out),
                _ => side_by_side::<1>(blocks, size, q, scale, out),
            }
            blocks = blocks.wrapping_add(size * SIDE);
        }
    }
}

/// # Safety
/// `N` blocks start at `block`, and `out` has scores for the last of them too.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn side_by_side<const N: usize>(block: *const u8, size: usize, q: &[u8], scale: f32, out: &mut [f32]) {
    // SAFETY: a block has a head of three registers and one for each four dimensions; the mask ends with `out`.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); N];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_loadu_si512(block.add(n * size).cast());
        }
        for (group, four) in q.as_chunks::<4>().0.iter().enumerate() {
            let four = _mm512_set1_epi32(i32::from_le_bytes(*four));
            for (n, sum) in sums.iter_mut().enumerate() {
                let c = _mm512_loadu_si512(block.add(n * size + HEAD + group * 64).cast());
                *sum = _mm512_dpbusd_epi32(*sum, four, c);
            }
        }
        let scale = _mm512_set1_ps(scale);
        for (n, sum) in sums.into_iter().enumerate() {
            let head = block.add(n * size);
            let (c_scale, bias) = (_mm512_loadu_ps(head.add(64).cast()), _mm512_loadu_ps(head.add(128).cast()));
            let score = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), c_scale, bias);
            _mm512_mask_storeu_ps(out.as_mut_ptr().wrapping_add(n * LANES), low16(out.len() - n * LANES), score);
        }
    }
}
