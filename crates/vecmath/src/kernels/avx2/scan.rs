//! The fast scan, two groups of dimensions and 32 codes a register; see the AVX-512 form for the picture.

use crate::query::QueryCodes;
use crate::scan::{BLOCK, Probe};
use std::arch::x86_64::*;

/// Groups whose sums stay within u16: 1024 * 31 < 65,536.
const GROUPS: usize = 1024;

/// The sums of codes 0..8, 8..16, 16..24 and 24..32.
///
/// # Safety
/// `block` is a block of the query's dimension.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums(query: &QueryCodes, block: *const u8) -> [__m256i; 4] {
    let groups = query.dim().div_ceil(4);
    let mut total = [_mm256_setzero_si256(); 4];
    for at in (0..groups).step_by(GROUPS) {
        // SAFETY: reads past the last group stay inside the block, since 128 bytes of factors follow, and meet tables
        // of zeros, which fill up the last four groups.
        let more =
            unsafe { sums_u16(query.tables.as_ptr().add(at * 16), block.add(at * 16), (groups - at).min(GROUPS)) };
        for (total, more) in total.iter_mut().zip(more) {
            *total = _mm256_add_epi32(*total, _mm256_cvtepu16_epi32(more));
        }
    }
    total
}

/// # Safety
/// There are at least `groups` groups, at most [`GROUPS`], in both; each may be read up to a multiple of two.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums_u16(tables: *const u8, block: *const u8, groups: usize) -> [__m128i; 4] {
    let nibble = _mm256_set1_epi8(15);
    // Words of (even, odd) bytes as they are, and of the odd bytes alone: the even ones follow by subtraction.
    let (mut low, mut low_odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let (mut high, mut high_odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let end = groups * 16;
    let mut at = 0;
    while at < end {
        let stop = (at + 256).min(end);
        let (mut low_bytes, mut high_bytes) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        while at < stop {
            // SAFETY: `at` is below `end`, and 32 bytes from there may be read.
            let (codes, table) =
                unsafe { (_mm256_loadu_si256(block.add(at).cast()), _mm256_loadu_si256(tables.add(at).cast())) };
            let low_index = _mm256_and_si256(codes, nibble);
            let high_index = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
            low_bytes = _mm256_add_epi8(low_bytes, _mm256_shuffle_epi8(table, low_index));
            high_bytes = _mm256_add_epi8(high_bytes, _mm256_shuffle_epi8(table, high_index));
            at += 32;
        }
        low = _mm256_add_epi16(low, low_bytes);
        low_odd = _mm256_add_epi16(low_odd, _mm256_srli_epi16::<8>(low_bytes));
        high = _mm256_add_epi16(high, high_bytes);
        high_odd = _mm256_add_epi16(high_odd, _mm256_srli_epi16::<8>(high_bytes));
    }
    let low_even = lanes(_mm256_sub_epi16(low, _mm256_slli_epi16::<8>(low_odd)));
    let high_even = lanes(_mm256_sub_epi16(high, _mm256_slli_epi16::<8>(high_odd)));
    let (low_odd, high_odd) = (lanes(low_odd), lanes(high_odd));
    [
        _mm_unpacklo_epi16(low_even, low_odd),
        _mm_unpackhi_epi16(low_even, low_odd),
        _mm_unpacklo_epi16(high_even, high_odd),
        _mm_unpackhi_epi16(high_even, high_odd),
    ]
}

/// Both lanes, added.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn lanes(x: __m256i) -> __m128i {
    _mm_add_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn scan_sums(query: &QueryCodes, block: &[u8], out: &mut [u32; BLOCK]) {
    // SAFETY: passed on; `out` has 32 entries.
    unsafe {
        for (at, sums) in sums(query, block.as_ptr()).into_iter().enumerate() {
            _mm256_storeu_si256(out.as_mut_ptr().add(at * 8).cast(), sums);
        }
    }
}

/// # Safety
/// `block` is a block of the query's dimension.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn scan_block(
    query: &QueryCodes,
    block: &[u8],
    probe: &Probe,
    out: &mut [f32; BLOCK],
) -> u32 {
    let (f_min, f_step) = (_mm256_set1_ps(probe.linear.f_min), _mm256_set1_ps(probe.linear.f_step));
    let (k_min, k_step) = (_mm256_set1_ps(probe.linear.k_min + probe.base), _mm256_set1_ps(probe.linear.k_step));
    let (slack, threshold) = (_mm256_set1_ps(probe.slack), _mm256_set1_ps(probe.threshold));
    let (table_step, table_base) = (_mm256_set1_ps(query.table_step), _mm256_set1_ps(query.table_base));
    // SAFETY: the factors lie behind the groups, 64 bytes of each.
    let (sums, factors) = unsafe { (sums(query, block.as_ptr()), block.as_ptr().add(query.dim().div_ceil(4) * 16)) };
    let mut mask = 0;
    for (at, sums) in sums.into_iter().enumerate() {
        // SAFETY: as above; each eight take 16 bytes.
        let (f, k) = unsafe {
            (_mm_loadu_si128(factors.add(at * 16).cast()), _mm_loadu_si128(factors.add(64 + at * 16).cast()))
        };
        let f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(f)), f_step, f_min);
        let k = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(k)), k_step, k_min);
        let dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), table_step, table_base);
        let estimate = _mm256_fmadd_ps(f, dot, k);
        // SAFETY: `out` has 32 entries.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(at * 8), estimate) };
        let upper = _mm256_fmadd_ps(f, slack, estimate);
        let passed = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(upper, threshold));
        mask |= (passed as u32) << (at * 8);
    }
    mask
}
