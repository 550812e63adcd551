//! Rows against panels: a tile of 12 rows x 32 centroids keeps 24 sums in registers, so that each loaded value of the
//! panel meets 12 rows and each broadcast value of a row meets 32 centroids.
//!
//! ```text
//!   for each block of 96 rows (stays in the second-level cache)
//!     for each panel, for each 128 dimensions of it (stay in the first level)
//!       for each tile of 12 rows: 24 sums over these dimensions; they rest in `sums` until the next 128
//!     after the last: compare with the best so far, lane by lane; or write out
//! ```

use super::low16;
use crate::panels::{Line, PANEL, Panels};
use std::arch::x86_64::*;

/// Rows of a tile.
const TILE: usize = 12;
/// Rows of a block: a multiple of the tile.
const BLOCK_ROWS: usize = 8 * TILE;

/// Dimensions of a panel that are used up before the next tile of rows.
const DEPTH: usize = 128;

/// The sums of a block's rows against one panel.
type Sums = [[Line; 2]; BLOCK_ROWS];

/// Adds `depth` dimensions of `R` rows, `dim` apart, to their sums.
///
/// # Safety
/// `rows` has `R` rows of `depth`, `dim` apart; `lines` are the panel's for these dimensions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile<const R: usize>(
    rows: *const f32,
    dim: usize,
    lines: *const Line,
    depth: usize,
    kept: &mut [[Line; 2]; R],
) {
    // SAFETY: all reads are inside what the caller vouches for.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for (sum, kept) in sums.iter_mut().zip(kept.iter()) {
            *sum = [_mm512_load_ps(kept[0].0.as_ptr()), _mm512_load_ps(kept[1].0.as_ptr())];
        }
        for d in 0..depth {
            let low = _mm512_load_ps(lines.add(2 * d).cast());
            let high = _mm512_load_ps(lines.add(2 * d + 1).cast());
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*rows.add(r * dim + d));
                sum[0] = _mm512_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm512_fmadd_ps(x, high, sum[1]);
            }
        }
        for (sum, kept) in sums.into_iter().zip(kept) {
            _mm512_store_ps(kept[0].0.as_mut_ptr(), sum[0]);
            _mm512_store_ps(kept[1].0.as_mut_ptr(), sum[1]);
        }
    }
}

/// The sums of up to a block of rows against one panel.
///
/// # Safety
/// `rows` holds `count` rows, at most a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn panel_sums(panels: &Panels, panel: usize, rows: *const f32, count: usize, sums: &mut Sums) {
    let dim = panels.dim;
    let start = [panels.start[panel * 2], panels.start[panel * 2 + 1]];
    sums[..count].fill(start);
    for from in (0..dim).step_by(DEPTH) {
        let depth = (dim - from).min(DEPTH);
        let lines = panels.lines[(panel * dim + from) * 2..][..depth * 2].as_ptr();
        let (tiles, rest) = sums[..count].as_chunks_mut::<TILE>();
        let (fours, ones) = rest.as_chunks_mut::<4>();
        // SAFETY: tiles, fours and ones are the block's rows, one after another.
        unsafe {
            let mut rows = rows.add(from);
            for sums in tiles {
                tile::<TILE>(rows, dim, lines, depth, sums);
                rows = rows.wrapping_add(TILE * dim);
            }
            for sums in fours {
                tile::<4>(rows, dim, lines, depth, sums);
                rows = rows.wrapping_add(4 * dim);
            }
            for sums in ones.as_chunks_mut::<1>().0 {
                tile::<1>(rows, dim, lines, depth, sums);
                rows = rows.wrapping_add(dim);
            }
        }
    }
}

/// The best of each lane so far, for a row.
#[derive(Clone, Copy)]
struct Best {
    scores: __m512,
    /// Indices of centroids.
    places: __m512i,
}

/// # Safety
/// `rows` holds `best.len()` rows of the panels' dimension, and `scores` is as long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn assign(panels: &Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
    let none = Best { scores: _mm512_set1_ps(f32::NEG_INFINITY), places: _mm512_setzero_si512() };
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut sums: Sums = [[Line([0.0; 16]); 2]; BLOCK_ROWS];
    let mut found = [none; BLOCK_ROWS];
    for ((rows, best), scores) in
        rows.chunks(BLOCK_ROWS * panels.dim).zip(best.chunks_mut(BLOCK_ROWS)).zip(scores.chunks_mut(BLOCK_ROWS))
    {
        found.fill(none);
        let found = &mut found[..best.len()];
        for panel in 0..panels.k.div_ceil(PANEL) {
            // SAFETY: there are as many rows as results.
            unsafe { panel_sums(panels, panel, rows.as_ptr(), best.len(), &mut sums) };
            let low = _mm512_add_epi32(lanes, _mm512_set1_epi32((panel * PANEL) as i32));
            let places = [low, _mm512_add_epi32(low, _mm512_set1_epi32(16))];
            for (sums, found) in sums.iter().zip(found.iter_mut()) {
                for (sum, places) in sums.iter().zip(places) {
                    // SAFETY: a line is a register.
                    let sum = unsafe { _mm512_load_ps(sum.0.as_ptr()) };
                    let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(sum, found.scores);
                    found.scores = _mm512_mask_mov_ps(found.scores, better, sum);
                    found.places = _mm512_mask_mov_epi32(found.places, better, places);
                }
            }
        }
        for ((best, score), found) in best.iter_mut().zip(scores).zip(found) {
            *score = _mm512_reduce_max_ps(found.scores);
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(found.scores, _mm512_set1_ps(*score));
            *best = _mm512_mask_reduce_min_epu32(equal, found.places);
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
    let mut sums: Sums = [[Line([0.0; 16]); 2]; BLOCK_ROWS];
    for (rows, out) in rows.chunks(BLOCK_ROWS * dim).zip(out.chunks_mut(BLOCK_ROWS * k)) {
        for panel in 0..k.div_ceil(PANEL) {
            // SAFETY: there are as many rows as rows of results.
            unsafe { panel_sums(panels, panel, rows.as_ptr(), out.len() / k, &mut sums) };
            let from = panel * PANEL;
            for (out, sums) in out.chunks_exact_mut(k).zip(&sums) {
                let (low, high) = out[from..k.min(from + PANEL)].split_at_mut(16.min(k - from));
                low.copy_from_slice(&sums[0].0[..low.len()]);
                high.copy_from_slice(&sums[1].0[..high.len()]);
            }
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
