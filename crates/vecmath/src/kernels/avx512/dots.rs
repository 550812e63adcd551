//! int8 dots by VNNI: b-bit codes with a query, and all centroids with a query.
//!
//! ```text
//!   64 bytes of a plane of p bits: shift down by 0, p, 2p .., keep p bits each time, multiply with the query's bytes
//!   that [`QueryCodes`] laid out in just this order
//!   the last 1 to 32 bytes of a plane are copied to 2 or 4 lanes, so that one step takes 2 or 4 shifts at once
//! ```

use super::low16;
use crate::centroids::{Centroids8, HEAD, LANES};
use crate::codes::{Width, plane_bytes};
use crate::kernels::avx2::fetch;
use crate::query::QueryCodes;
use std::arch::x86_64::*;

/// Codes that are fetched ahead of the one at work.
const AHEAD: usize = 12;

/// # Safety
/// All codes lie inside the slice; `starts` and `sums` are of one length.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) unsafe fn dots(
    query: &QueryCodes,
    width: Width,
    codes: &[u8],
    starts: &[usize],
    sums: &mut [i32],
) {
    let codes = codes.as_ptr();
    // SAFETY: passed on.
    unsafe {
        match width.bits() {
            1 => run::<1>(query, codes, starts, sums),
            2 => run::<2>(query, codes, starts, sums),
            3 => run::<3>(query, codes, starts, sums),
            4 => run::<4>(query, codes, starts, sums),
            5 => run::<5>(query, codes, starts, sums),
            6 => run::<6>(query, codes, starts, sums),
            7 => run::<7>(query, codes, starts, sums),
            _ => run::<8>(query, codes, starts, sums),
        }
    }
}

/// # Safety
/// The code has its size.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) unsafe fn dot_code(query: &QueryCodes, width: Width, code: &[u8]) -> i32 {
    let code = [code.as_ptr()];
    // SAFETY: passed on.
    let [sum] = unsafe {
        match width.bits() {
            1 => code_sums::<1, 1>(query, code),
            2 => code_sums::<2, 1>(query, code),
            3 => code_sums::<3, 1>(query, code),
            4 => code_sums::<4, 1>(query, code),
            5 => code_sums::<5, 1>(query, code),
            6 => code_sums::<6, 1>(query, code),
            7 => code_sums::<7, 1>(query, code),
            _ => code_sums::<8, 1>(query, code),
        }
    };
    _mm512_reduce_add_epi32(sum)
}

/// Four codes at a time, each of `B` bits a dimension.
///
/// # Safety
/// As for [`dots`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<const B: u32>(query: &QueryCodes, codes: *const u8, starts: &[usize], sums: &mut [i32]) {
    let bytes = (query.dim() * B as usize).div_ceil(8);
    let (fours, rest) = starts.as_chunks::<4>();
    let (sums, sums_rest) = sums.as_chunks_mut::<4>();
    // SAFETY: the pointers are those of codes inside the slice.
    unsafe {
        for start in starts.iter().take(AHEAD).skip(1) {
            fetch(codes.wrapping_add(*start), bytes);
        }
        for (at, (four, sums)) in fours.iter().zip(sums).enumerate() {
            for ahead in starts.iter().skip(at * 4 + AHEAD).take(4) {
                fetch(codes.wrapping_add(*ahead), bytes);
            }
            let places = [codes.add(four[0]), codes.add(four[1]), codes.add(four[2]), codes.add(four[3])];
            let found = code_sums::<B, 4>(query, places);
            _mm_storeu_si128(sums.as_mut_ptr().cast(), sum4(found));
        }
        for (start, sum) in rest.iter().zip(sums_rest) {
            *sum = _mm512_reduce_add_epi32(code_sums::<B, 1>(query, [codes.add(*start)])[0]);
        }
    }
}

/// The sums of `N` codes, each as 16 parts. Like all below it, always inlined: its registers stay registers, and its
/// instructions are those of the caller.
///
/// # Safety
/// `codes` are codes of `B` bits and the query's dimension, and the caller has the instructions.
#[inline(always)]
unsafe fn code_sums<const B: u32, const N: usize>(query: &QueryCodes, mut codes: [*const u8; N]) -> [__m512i; N] {
    // SAFETY: each plane starts where the one before it ends.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); N];
        if B == 1 {
            sign_sums(query, codes, &mut sums);
            return sums;
        }
        if B >= 4 {
            codes = plane::<4, N>(query, codes, &mut sums);
        }
        if B == 8 {
            codes = plane::<4, N>(query, codes, &mut sums);
        }
        if B & 2 == 2 {
            codes = plane::<2, N>(query, codes, &mut sums);
        }
        if B & 1 == 1 {
            plane::<1, N>(query, codes, &mut sums);
        }
        sums
    }
}

/// Adds one plane of `P` bits of each code below what was added before. Returns where the next plane starts.
///
/// # Safety
/// A plane of the query's dimension starts at each of `codes`, and the caller has the instructions.
#[inline(always)]
unsafe fn plane<const P: u32, const N: usize>(
    query: &QueryCodes,
    mut codes: [*const u8; N],
    sums: &mut [__m512i; N],
) -> [*const u8; N] {
    let (plane, q) = query.plane::<P>();
    let mut q = q.cast::<__m512i>();
    // SAFETY: loads of codes end with the plane; the query has a register for each step (see `arrange`).
    unsafe {
        for sum in sums.iter_mut() {
            *sum = _mm512_slli_epi32::<P>(*sum);
        }
        let mut x = [_mm512_setzero_si512(); N];
        let mut at = 0;
        while at < plane.whole {
            for (x, code) in x.iter_mut().zip(codes) {
                *x = _mm512_loadu_si512(code.add(at).cast());
            }
            registers::<P, N>(q, x, sums);
            q = q.add(8 / P as usize);
            at += 64;
        }
        match plane.copies {
            0 => {}
            1 => {
                for (x, code) in x.iter_mut().zip(codes) {
                    *x = _mm512_maskz_loadu_epi8(plane.left, code.add(at).cast());
                }
                registers::<P, N>(q, x, sums);
            }
            2 => {
                for (x, code) in x.iter_mut().zip(codes) {
                    let left = _mm256_maskz_loadu_epi8(plane.left as u32, code.add(at).cast());
                    *x = _mm512_broadcast_i64x4(left);
                }
                copies::<P, 2, N>(q, x, sums);
            }
            _ => {
                for (x, code) in x.iter_mut().zip(codes) {
                    let left = _mm_maskz_loadu_epi8(plane.left as u16, code.add(at).cast());
                    *x = _mm512_broadcast_i32x4(left);
                }
                copies::<P, 4, N>(q, x, sums);
            }
        }
        for code in &mut codes {
            *code = code.add(plane.bytes);
        }
    }
    codes
}

/// Adds 64 bytes of a plane of each code, shift by shift.
///
/// # Safety
/// `q` has a register for each shift, and the caller has the instructions.
#[inline(always)]
unsafe fn registers<const P: u32, const N: usize>(q: *const __m512i, mut x: [__m512i; N], sums: &mut [__m512i; N]) {
    // SAFETY: as said.
    unsafe {
        let low_bits = _mm512_set1_epi8((1i8 << P) - 1);
        for shift in 0..8 / P as usize {
            let bytes = _mm512_loadu_si512(q.add(shift));
            for (x, sum) in x.iter_mut().zip(sums.iter_mut()) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_and_si512(*x, low_bits), bytes);
                *x = _mm512_srli_epi16::<P>(*x);
            }
        }
    }
}

/// Adds the last bytes of a plane, of which each register holds `C` copies: `C` shifts at a time.
///
/// # Safety
/// As for [`registers`].
#[inline(always)]
unsafe fn copies<const P: u32, const C: usize, const N: usize>(
    q: *const __m512i,
    x: [__m512i; N],
    sums: &mut [__m512i; N],
) {
    // SAFETY: as said.
    unsafe {
        let low_bits = _mm512_set1_epi8((1i8 << P) - 1);
        for step in 0..(8 / P as usize).div_ceil(C) {
            let bytes = _mm512_loadu_si512(q.add(step));
            // A rotation: what other bytes shift in is masked off, or meets zeros of the query.
            let by = _mm512_loadu_si512(const { shifts(C, P) }[step].as_ptr().cast());
            for (x, sum) in x.iter().zip(sums.iter_mut()) {
                let levels = _mm512_and_si512(_mm512_rorv_epi64(*x, by), low_bits);
                *sum = _mm512_dpbusd_epi32(*sum, levels, bytes);
            }
        }
    }
}

/// For each step and each eighth of a register of `copies` copies: how far down that copy's bits are.
const fn shifts(copies: usize, bits: u32) -> [[u64; 8]; 4] {
    let mut shifts = [[0; 8]; 4];
    let mut at = 0;
    while at < 32 {
        let copy = at / 8 * copies + at % 8 * copies / 8;
        shifts[at / 8][at % 8] = copy as u64 * bits as u64;
        at += 1;
    }
    shifts
}

/// Sums over the set bits of codes of width 1, whose bits lie in order.
///
/// # Safety
/// `codes` are codes of width 1 and the query's dimension, and the caller has the instructions.
#[inline(always)]
unsafe fn sign_sums<const N: usize>(query: &QueryCodes, codes: [*const u8; N], sums: &mut [__m512i; N]) {
    let bytes = plane_bytes(1, query.dim());
    for at in (0..bytes).step_by(8) {
        // SAFETY: the query is readable 64 bytes past its end; loads of codes end with the code.
        unsafe {
            let ones = _mm512_set1_epi8(1);
            let q = _mm512_loadu_si512(query.bytes.as_ptr().add(at * 8).cast());
            let mask = low16((bytes - at).min(8));
            for (code, sum) in codes.iter().zip(sums.iter_mut()) {
                let bits = _mm_maskz_loadu_epi8(mask, code.add(at).cast());
                let set = _mm512_maskz_mov_epi8(_mm_cvtsi128_si64(bits) as u64, ones);
                *sum = _mm512_dpbusd_epi32(*sum, set, q);
            }
        }
    }
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
