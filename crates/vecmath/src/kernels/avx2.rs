//! AVX2 and FMA. Where a kernel is not much used, plain code compiled with these instructions does.

use super::{Kernels, plain};
use crate::level::Level;
use std::arch::x86_64::*;

mod codes;
mod datatype;
mod distance;
mod dots;
mod rotate;
mod scan;
mod tile;

pub(crate) static TABLE: Kernels = Kernels {
    level: Level::Avx2,
    dot: distance::dot,
    l2_squared: distance::l2_squared,
    l1: distance::l1,
    sad: distance::sad,
    dot_rows: distance::dot_rows,
    l2_rows: distance::l2_rows,
    l1_rows: distance::l1_rows,
    unpack_halves: datatype::unpack_halves,
    unpack_bytes: datatype::unpack_bytes,
    assign: tile::assign,
    scores: tile::scores,
    mix: rotate::mix,
    trials: codes::trials,
    quantise: codes::quantise,
    pack: codes::pack,
    query_sizes: codes::query_sizes,
    query_bytes: codes::query_bytes,
    query_tables: codes::query_tables,
    dots: dots::dots,
    dot_code: dots::dot_code,
    scan_sums: scan::scan_sums,
    scan_block: scan::scan_block,
    scan: |query, blocks, next, lanes, probe, out| {
        // Without a place in between to fetch the next blocks from, the first of them are asked for at once.
        fetch(next.as_ptr(), next.len().min(512));
        // SAFETY: passed on.
        unsafe { plain::scan_with(scan::scan_block, query, blocks, lanes, probe, out) }
    },
    centroids: dots::centroids,
    along: dots::along,
    at_least,
    group_best,
};

#[target_feature(enable = "avx2,fma,popcnt,bmi1")]
fn at_least(scores: &[f32], floor: f32, out: &mut Vec<u32>) {
    let limit = _mm256_set1_ps(floor);
    let (chunks, rest) = scores.as_chunks::<8>();
    for (chunk, values) in chunks.iter().enumerate() {
        // SAFETY: a chunk is a register.
        let values = unsafe { _mm256_loadu_ps(values.as_ptr()) };
        let mut found = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(values, limit));
        while found != 0 {
            out.push((chunk * 8) as u32 + found.trailing_zeros());
            found &= found - 1;
        }
    }
    for (at, score) in rest.iter().enumerate() {
        if *score >= floor {
            out.push((chunks.len() * 8 + at) as u32);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
fn group_best(scores: &[f32], best: &mut [f32; 256]) -> usize {
    plain::group_best(scores, best)
}

/// Asks for all lines of some bytes.
#[inline(always)]
pub(super) fn fetch(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast()) };
    }
    // SAFETY: as above. The last byte may lie on one more line.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(bytes.saturating_sub(1)).cast()) };
}

/// All bits of the lowest `count` of 8 lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn low8(count: usize) -> __m256i {
    const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: 8 lanes from any place up to 8 are there.
    unsafe { _mm256_loadu_si256(BITS.as_ptr().add(8 - count.min(8)).cast()) }
}

/// The sum of the lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum8(x: __m256) -> f32 {
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

/// The largest lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn max8(x: __m256) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}

/// The sum of the lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum8_epi32(x: __m256i) -> i32 {
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
}
