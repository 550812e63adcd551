//! Rows against panels: a tile of 12 rows x 32 centroids keeps 24 sums in registers, so that each loaded value of the
//! panel meets 12 rows and each broadcast value of a row meets 32 centroids.
//!
//! ```text
//!   for each block of 96 rows (stays in the second-level cache)
//!     for each panel (stays in the first level, if it fits)
//!       for each tile of 12 rows: 24 sums over all dimensions, then compare with the best so far, lane by lane
//! ```

use super::low16;
use crate::panels::{Line, PANEL, Panels};
use std::arch::x86_64::*;

/// Rows of a tile.
const TILE: usize = 12;
/// Rows of a block: a multiple of the tile.
const BLOCK_ROWS: usize = 8 * TILE;

/// Sums of `R` rows, `dim` apart, against one panel.
///
/// # Safety
/// `rows` has `R` rows of `dim`, `lines` and `start` are those of one panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile<const R: usize>(
    rows: *const f32,
    dim: usize,
    lines: *const Line,
    start: *const Line,
) -> [[__m512; 2]; R] {
    // SAFETY: all reads are inside what the caller vouches for.
    unsafe {
        let first = [_mm512_load_ps(start.cast()), _mm512_load_ps(start.add(1).cast())];
        let mut sums = [first; R];
        for d in 0..dim {
            let low = _mm512_load_ps(lines.add(2 * d).cast());
            let high = _mm512_load_ps(lines.add(2 * d + 1).cast());
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*rows.add(r * dim + d));
                sum[0] = _mm512_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm512_fmadd_ps(x, high, sum[1]);
            }
        }
        sums
    }
}

/// The best of each lane so far, for the rows of a block.
struct Best {
    scores: [Line; BLOCK_ROWS],
    /// Index of the centroid, of each lane.
    places: [[u32; 16]; BLOCK_ROWS],
}

/// # Safety
/// As for [`tile`]; `best` are the `R` entries of the tile's rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile_best<const R: usize>(panels: &Panels, panel: usize, rows: *const f32, best: &mut Best, at: usize) {
    let dim = panels.dim;
    // SAFETY: a panel has two lines a dimension and two to start from.
    let sums: [[__m512; 2]; R] =
        unsafe { tile(rows, dim, panels.lines.as_ptr().add(panel * dim * 2), panels.start.as_ptr().add(panel * 2)) };
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let low = _mm512_add_epi32(lanes, _mm512_set1_epi32((panel * PANEL) as i32));
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(16));
    for (r, sum) in sums.into_iter().enumerate() {
        // SAFETY: entry `at + r` is one of the block's.
        unsafe {
            let scores = best.scores.as_mut_ptr().add(at + r).cast::<f32>();
            let places = best.places.as_mut_ptr().add(at + r).cast::<i32>();
            let (mut score, mut place) = (_mm512_load_ps(scores), _mm512_loadu_si512(places.cast()));
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(sum[0], score);
            score = _mm512_mask_mov_ps(score, better, sum[0]);
            place = _mm512_mask_mov_epi32(place, better, low);
            let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(sum[1], score);
            score = _mm512_mask_mov_ps(score, better, sum[1]);
            place = _mm512_mask_mov_epi32(place, better, high);
            _mm512_store_ps(scores, score);
            _mm512_storeu_si512(places.cast(), place);
        }
    }
}

/// # Safety
/// `rows` holds `best.len()` rows of the panels' dimension, and `scores` is as long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn assign(panels: &Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
    let dim = panels.dim;
    let mut state = Best { scores: [Line([0.0; 16]); BLOCK_ROWS], places: [[0; 16]; BLOCK_ROWS] };
    for ((rows, best), scores) in
        rows.chunks(BLOCK_ROWS * dim).zip(best.chunks_mut(BLOCK_ROWS)).zip(scores.chunks_mut(BLOCK_ROWS))
    {
        state.scores.fill(Line([f32::NEG_INFINITY; 16]));
        state.places.fill([0; 16]);
        let count = best.len();
        for panel in 0..panels.k.div_ceil(PANEL) {
            let mut at = 0;
            // SAFETY: every tile ends at or before row `count`.
            unsafe {
                while at + TILE <= count {
                    tile_best::<TILE>(panels, panel, rows.as_ptr().add(at * dim), &mut state, at);
                    at += TILE;
                }
                while at + 4 <= count {
                    tile_best::<4>(panels, panel, rows.as_ptr().add(at * dim), &mut state, at);
                    at += 4;
                }
                while at < count {
                    tile_best::<1>(panels, panel, rows.as_ptr().add(at * dim), &mut state, at);
                    at += 1;
                }
            }
        }
        for (r, (best, score)) in best.iter_mut().zip(scores).enumerate() {
            // SAFETY: both entries are 64 bytes.
            let (lanes, places) = unsafe {
                (_mm512_load_ps(state.scores[r].0.as_ptr()), _mm512_loadu_si512(state.places[r].as_ptr().cast()))
            };
            *score = _mm512_reduce_max_ps(lanes);
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(lanes, _mm512_set1_ps(*score));
            *best = _mm512_mask_reduce_min_epu32(equal, places);
        }
    }
}

/// # Safety
/// `out` has a score for each row and centroid.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn scores(panels: &Panels, rows: &[f32], out: &mut [f32]) {
    let (dim, k) = (panels.dim, panels.k);
    if rows.len() == dim {
        // SAFETY: passed on.
        return unsafe { scores_of_one(panels, rows, out) };
    }
    for (rows, out) in rows.chunks(BLOCK_ROWS * dim).zip(out.chunks_mut(BLOCK_ROWS * k)) {
        let count = out.len() / k;
        for panel in 0..k.div_ceil(PANEL) {
            let mut at = 0;
            // SAFETY: every tile ends at or before row `count`.
            unsafe {
                while at + TILE <= count {
                    tile_scores::<TILE>(panels, panel, rows.as_ptr().add(at * dim), &mut out[at * k..]);
                    at += TILE;
                }
                while at + 4 <= count {
                    tile_scores::<4>(panels, panel, rows.as_ptr().add(at * dim), &mut out[at * k..]);
                    at += 4;
                }
                while at < count {
                    tile_scores::<1>(panels, panel, rows.as_ptr().add(at * dim), &mut out[at * k..]);
                    at += 1;
                }
            }
        }
    }
}

/// # Safety
/// As for [`tile`]; `out` begins with the scores of the tile's rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile_scores<const R: usize>(panels: &Panels, panel: usize, rows: *const f32, out: &mut [f32]) {
    let (dim, k) = (panels.dim, panels.k);
    // SAFETY: a panel has two lines a dimension and two to start from; the masks end with the row's scores.
    unsafe {
        let sums: [[__m512; 2]; R] =
            tile(rows, dim, panels.lines.as_ptr().add(panel * dim * 2), panels.start.as_ptr().add(panel * 2));
        let left = k - panel * PANEL;
        for (r, sum) in sums.into_iter().enumerate() {
            let to = out.as_mut_ptr().add(r * k + panel * PANEL);
            _mm512_mask_storeu_ps(to, low16(left), sum[0]);
            _mm512_mask_storeu_ps(to.wrapping_add(16), low16(left.saturating_sub(16)), sum[1]);
        }
    }
}

/// One row: four panels side by side, so that enough sums are under way at a time.
///
/// # Safety
/// As for [`scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn scores_of_one(panels: &Panels, row: &[f32], out: &mut [f32]) {
    let count = panels.k.div_ceil(PANEL);
    let mut panel = 0;
    // SAFETY: every call stays below `count` panels.
    unsafe {
        while panel + 4 <= count {
            one_row::<4>(panels, panel, row, out);
            panel += 4;
        }
        match count - panel {
            3 => one_row::<3>(panels, panel, row, out),
            2 => one_row::<2>(panels, panel, row, out),
            1 => one_row::<1>(panels, panel, row, out),
            _ => {}
        }
    }
}

/// # Safety
/// Panels `panel .. panel + P` are there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn one_row<const P: usize>(panels: &Panels, panel: usize, row: &[f32], out: &mut [f32]) {
    let dim = panels.dim;
    // SAFETY: lines and starts of `P` panels are there; the masks end with the scores.
    unsafe {
        let lines = panels.lines.as_ptr().add(panel * dim * 2);
        let start = panels.start.as_ptr().add(panel * 2);
        let mut sums = [[_mm512_setzero_ps(); 2]; P];
        for (p, sum) in sums.iter_mut().enumerate() {
            *sum = [_mm512_load_ps(start.add(2 * p).cast()), _mm512_load_ps(start.add(2 * p + 1).cast())];
        }
        for (d, x) in row.iter().enumerate() {
            let x = _mm512_set1_ps(*x);
            for (p, sum) in sums.iter_mut().enumerate() {
                let line = lines.add((p * dim + d) * 2);
                sum[0] = _mm512_fmadd_ps(x, _mm512_load_ps(line.cast()), sum[0]);
                sum[1] = _mm512_fmadd_ps(x, _mm512_load_ps(line.add(1).cast()), sum[1]);
            }
        }
        for (p, sum) in sums.into_iter().enumerate() {
            let left = panels.k - (panel + p) * PANEL;
            let to = out.as_mut_ptr().add((panel + p) * PANEL);
            _mm512_mask_storeu_ps(to, low16(left), sum[0]);
            _mm512_mask_storeu_ps(to.wrapping_add(16), low16(left.saturating_sub(16)), sum[1]);
        }
    }
}
