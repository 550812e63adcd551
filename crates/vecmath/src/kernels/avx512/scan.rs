//! The fast scan, four groups of dimensions and 32 codes a register.
//!
//! ```text
//!   64 bytes of a block   | group g | g + 1 | g + 2 | g + 3 |     low nibbles: codes 0..16, high: codes 16..32
//!   64 bytes of tables    | group g | g + 1 | g + 2 | g + 3 |
//!   two shuffles           64 entries each, at most 63: four rounds add up in bytes, then widen to u16
//!   at the end             add the four lanes: 32 sums in order
//! ```

use crate::query::QueryCodes;
use crate::scan::{BLOCK, Probe, Survivors, block_bytes, lane_mask};
use std::arch::x86_64::*;
use std::ops::Range;

/// Groups whose sums stay within u16: 1024 * 63 < 65,536.
const GROUPS: usize = 1024;

/// The sums of codes 0..16 and 16..32.
///
/// # Safety
/// `block` is a block of the query's dimension.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums(query: &QueryCodes, block: *const u8) -> [__m512i; 2] {
    let groups = query.dim().div_ceil(4);
    let tables = query.tables.as_ptr();
    // SAFETY: reads past the last group stay inside the block, since 128 bytes of factors follow, and meet tables of
    // zeros, which fill up the last four groups.
    unsafe {
        let mut total = sums_u16(tables, block, groups.min(GROUPS));
        let mut at = GROUPS;
        while at < groups {
            let more = sums_u16(tables.add(at * 16), block.add(at * 16), (groups - at).min(GROUPS));
            total = [_mm512_add_epi32(total[0], more[0]), _mm512_add_epi32(total[1], more[1])];
            at += GROUPS;
        }
        total
    }
}

/// # Safety
/// There are at least `groups` groups, at most [`GROUPS`], in both; each may be read up to a multiple of four.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums_u16(tables: *const u8, block: *const u8, groups: usize) -> [__m512i; 2] {
    let nibble = _mm512_set1_epi8(15);
    // Words of (even, odd) bytes as they are, and of the odd bytes alone: the even ones follow by subtraction.
    let (mut low, mut low_odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let (mut high, mut high_odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let end = groups * 16;
    let mut at = 0;
    while at < end {
        let stop = (at + 256).min(end);
        let (mut low_bytes, mut high_bytes) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        while at < stop {
            // SAFETY: `at` is below `end`, and 64 bytes from there may be read.
            let (codes, table) =
                unsafe { (_mm512_loadu_si512(block.add(at).cast()), _mm512_loadu_si512(tables.add(at).cast())) };
            let low_index = _mm512_and_si512(codes, nibble);
            let high_index = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble);
            low_bytes = _mm512_add_epi8(low_bytes, _mm512_shuffle_epi8(table, low_index));
            high_bytes = _mm512_add_epi8(high_bytes, _mm512_shuffle_epi8(table, high_index));
            at += 64;
        }
        low = _mm512_add_epi16(low, low_bytes);
        low_odd = _mm512_add_epi16(low_odd, _mm512_srli_epi16::<8>(low_bytes));
        high = _mm512_add_epi16(high, high_bytes);
        high_odd = _mm512_add_epi16(high_odd, _mm512_srli_epi16::<8>(high_bytes));
    }
    let low_even = _mm512_sub_epi16(low, _mm512_slli_epi16::<8>(low_odd));
    let high_even = _mm512_sub_epi16(high, _mm512_slli_epi16::<8>(high_odd));
    // Each of a, b, c, d holds 8 codes in order, once for each of its four lanes.
    let (a, b) = (_mm512_unpacklo_epi16(low_even, low_odd), _mm512_unpackhi_epi16(low_even, low_odd));
    let (c, d) = (_mm512_unpacklo_epi16(high_even, high_odd), _mm512_unpackhi_epi16(high_even, high_odd));
    let ordered = fold(fold(a, b), fold(c, d));
    [
        _mm512_cvtepu16_epi32(_mm512_castsi512_si256(ordered)),
        _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(ordered)),
    ]
}

/// Adds lanes 0 to 1 and 2 to 3: those of `x` become the lower half, those of `y` the upper.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fold(x: __m512i, y: __m512i) -> __m512i {
    _mm512_add_epi16(_mm512_shuffle_i64x2::<0b10_00_10_00>(x, y), _mm512_shuffle_i64x2::<0b11_01_11_01>(x, y))
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn scan_sums(query: &QueryCodes, block: &[u8], out: &mut [u32; BLOCK]) {
    // SAFETY: passed on; `out` has 32 entries.
    unsafe {
        let sums = sums(query, block.as_ptr());
        _mm512_storeu_si512(out.as_mut_ptr().cast(), sums[0]);
        _mm512_storeu_si512(out.as_mut_ptr().add(16).cast(), sums[1]);
    }
}

/// A probe spread over registers.
#[derive(Clone, Copy)]
struct Spread {
    f_min: __m512,
    f_step: __m512,
    k_min: __m512,
    k_step: __m512,
    slack: __m512,
    threshold: __m512,
    table_step: __m512,
    table_base: __m512,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spread(query: &QueryCodes, probe: &Probe) -> Spread {
    Spread {
        f_min: _mm512_set1_ps(probe.linear.f_min),
        f_step: _mm512_set1_ps(probe.linear.f_step),
        k_min: _mm512_set1_ps(probe.linear.k_min + probe.base),
        k_step: _mm512_set1_ps(probe.linear.k_step),
        slack: _mm512_set1_ps(probe.slack),
        threshold: _mm512_set1_ps(probe.threshold),
        table_step: _mm512_set1_ps(query.table_step),
        table_base: _mm512_set1_ps(query.table_base),
    }
}

/// The estimates of a block and the mask of those that pass.
///
/// # Safety
/// `block` is a block of the query's dimension.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn estimate(query: &QueryCodes, block: *const u8, probe: &Spread) -> ([__m512; 2], u32) {
    // SAFETY: the factors lie behind the groups, 64 bytes of each.
    let (sums, factors) = unsafe { (sums(query, block), block.add(query.dim().div_ceil(4) * 16)) };
    let mut mask = 0;
    let mut estimates = [_mm512_setzero_ps(); 2];
    for (half, estimate) in estimates.iter_mut().enumerate() {
        // SAFETY: as above; the second half starts 32 bytes on.
        let (f, k) = unsafe {
            (_mm256_loadu_si256(factors.add(half * 32).cast()), _mm256_loadu_si256(factors.add(64 + half * 32).cast()))
        };
        let f = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(f));
        let k = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(k));
        let f = _mm512_fmadd_ps(f, probe.f_step, probe.f_min);
        let k = _mm512_fmadd_ps(k, probe.k_step, probe.k_min);
        let dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[half]), probe.table_step, probe.table_base);
        *estimate = _mm512_fmadd_ps(f, dot, k);
        let upper = _mm512_fmadd_ps(f, probe.slack, *estimate);
        mask |= u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(upper, probe.threshold)) << (half * 16);
    }
    (estimates, mask)
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn scan_block(
    query: &QueryCodes,
    block: &[u8],
    probe: &Probe,
    out: &mut [f32; BLOCK],
) -> u32 {
    // SAFETY: passed on; `out` has 32 entries.
    unsafe {
        let (estimates, mask) = estimate(query, block.as_ptr(), &spread(query, probe));
        _mm512_storeu_ps(out.as_mut_ptr(), estimates[0]);
        _mm512_storeu_ps(out.as_mut_ptr().add(16), estimates[1]);
        mask
    }
}

/// # Safety
/// `blocks` are whole blocks of the query's dimension, and `lanes` lie within them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt")]
pub(in super::super) unsafe fn scan(
    query: &QueryCodes,
    blocks: &[u8],
    lanes: Range<usize>,
    probe: &Probe,
    out: &mut Survivors,
) {
    let bytes = block_bytes(query.dim());
    let spread = spread(query, probe);
    let order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for at in lanes.start / BLOCK..lanes.end.div_ceil(BLOCK) {
        // SAFETY: block `at` lies within `blocks`.
        let (estimates, mask) = unsafe { estimate(query, blocks.as_ptr().add(at * bytes), &spread) };
        let mask = mask & lane_mask(at, &lanes);
        if mask == 0 {
            continue;
        }
        out.places.reserve(BLOCK);
        out.estimates.reserve(BLOCK);
        for (half, estimates) in estimates.into_iter().enumerate() {
            let mask = (mask >> (half * 16)) as u16;
            let places = _mm512_add_epi32(order, _mm512_set1_epi32((at * BLOCK + half * 16) as i32));
            // SAFETY: 16 more fit each; as many become part of the vectors as passed.
            unsafe {
                let len = out.places.len();
                let found = len + mask.count_ones() as usize;
                _mm512_storeu_si512(out.places.as_mut_ptr().add(len).cast(), _mm512_maskz_compress_epi32(mask, places));
                out.places.set_len(found);
                _mm512_storeu_ps(out.estimates.as_mut_ptr().add(len), _mm512_maskz_compress_ps(mask, estimates));
                out.estimates.set_len(found);
            }
        }
    }
}
