//! Rows against panels: a tile of 6 rows x 16 centroids keeps 12 sums in registers; a panel takes two such tiles.

use super::low8;
use crate::panels::{Line, PANEL, Panels};
use std::arch::x86_64::*;

/// Rows of a tile.
const TILE: usize = 6;
/// Rows of a block: a multiple of the tile.
const BLOCK_ROWS: usize = 8 * TILE;
/// Dimensions of a panel that are used up before the next tile of rows.
const DEPTH: usize = 128;

/// The sums of a block's rows against one panel.
type Sums = [[Line; 2]; BLOCK_ROWS];

/// Adds `depth` dimensions of `R` rows, `dim` apart, to their sums with one half of a panel.
///
/// # Safety
/// `rows` has `R` rows of `depth`, `dim` apart; `lines` are the panel's for these dimensions.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const R: usize>(
    rows: *const f32,
    dim: usize,
    lines: *const Line,
    half: usize,
    depth: usize,
    kept: &mut [[Line; 2]; R],
) {
    // SAFETY: all reads are inside what the caller vouches for.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for (sum, kept) in sums.iter_mut().zip(kept.iter()) {
            let kept = kept[half].0.as_ptr();
            *sum = [_mm256_load_ps(kept), _mm256_load_ps(kept.add(8))];
        }
        for d in 0..depth {
            let line = lines.add(2 * d + half).cast::<f32>();
            let (low, high) = (_mm256_load_ps(line), _mm256_load_ps(line.add(8)));
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*rows.add(r * dim + d));
                sum[0] = _mm256_fmadd_ps(x, low, sum[0]);
                sum[1] = _mm256_fmadd_ps(x, high, sum[1]);
            }
        }
        for (sum, kept) in sums.into_iter().zip(kept) {
            let kept = kept[half].0.as_mut_ptr();
            _mm256_store_ps(kept, sum[0]);
            _mm256_store_ps(kept.add(8), sum[1]);
        }
    }
}

/// The sums of up to a block of rows against one panel.
///
/// # Safety
/// `rows` holds `count` rows, at most a block.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn panel_sums(panels: &Panels, panel: usize, rows: *const f32, count: usize, sums: &mut Sums) {
    let dim = panels.dim;
    sums[..count].fill([panels.start[panel * 2], panels.start[panel * 2 + 1]]);
    for from in (0..dim).step_by(DEPTH) {
        let depth = (dim - from).min(DEPTH);
        let lines = panels.lines[(panel * dim + from) * 2..][..depth * 2].as_ptr();
        let (tiles, ones) = sums[..count].as_chunks_mut::<TILE>();
        // SAFETY: tiles and ones are the block's rows, one after another.
        unsafe {
            let mut rows = rows.add(from);
            for sums in tiles {
                tile::<TILE>(rows, dim, lines, 0, depth, sums);
                tile::<TILE>(rows, dim, lines, 1, depth, sums);
                rows = rows.wrapping_add(TILE * dim);
            }
            for sums in ones.as_chunks_mut::<1>().0 {
                tile::<1>(rows, dim, lines, 0, depth, sums);
                tile::<1>(rows, dim, lines, 1, depth, sums);
                rows = rows.wrapping_add(dim);
            }
        }
    }
}

/// The best of each lane so far, for a row.
#[derive(Clone, Copy)]
struct Best {
    scores: __m256,
    /// Indices of centroids.
    places: __m256i,
}

/// # Safety
/// `rows` holds `best.len()` rows of the panels' dimension, and `scores` is as long.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn assign(panels: &Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
    let none = Best { scores: _mm256_set1_ps(f32::NEG_INFINITY), places: _mm256_setzero_si256() };
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
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
            for (sums, found) in sums.iter().zip(found.iter_mut()) {
                let sums = sums.as_ptr().cast::<f32>();
                for eight in 0..PANEL / 8 {
                    // SAFETY: the sums of a row are 32.
                    let sum = unsafe { _mm256_load_ps(sums.add(eight * 8)) };
                    let places = _mm256_add_epi32(lanes, _mm256_set1_epi32((panel * PANEL + eight * 8) as i32));
                    let better = _mm256_cmp_ps::<_CMP_GT_OQ>(sum, found.scores);
                    found.scores = _mm256_blendv_ps(found.scores, sum, better);
                    found.places = _mm256_blendv_epi8(found.places, places, _mm256_castps_si256(better));
                }
            }
        }
        for ((best, score), found) in best.iter_mut().zip(scores).zip(found) {
            let (mut lanes, mut places) = ([0.0; 8], [0u32; 8]);
            // SAFETY: both are a register.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), found.scores);
                _mm256_storeu_si256(places.as_mut_ptr().cast(), found.places);
            }
            (*best, *score) = (u32::MAX, f32::NEG_INFINITY);
            for (lane, place) in lanes.into_iter().zip(places) {
                if lane > *score || (lane == *score && place < *best) {
                    (*best, *score) = (place, lane);
                }
            }
        }
    }
}

/// # Safety
/// `out` has a score for each row and centroid.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn scores(panels: &Panels, rows: &[f32], out: &mut [f32]) {
    let (dim, k) = (panels.dim, panels.k);
    let mut sums: Sums = [[Line([0.0; 16]); 2]; BLOCK_ROWS];
    for (rows, out) in rows.chunks(BLOCK_ROWS * dim).zip(out.chunks_mut(BLOCK_ROWS * k)) {
        for panel in 0..k.div_ceil(PANEL) {
            // SAFETY: there are as many rows as rows of results.
            unsafe { panel_sums(panels, panel, rows.as_ptr(), out.len() / k, &mut sums) };
            for (out, sums) in out.chunks_exact_mut(k).zip(&sums) {
                let (out, sums) = (&mut out[panel * PANEL..], sums.as_ptr().cast::<f32>());
                for eight in 0..out.len().min(PANEL).div_ceil(8) {
                    let mask = low8(out.len() - eight * 8);
                    // SAFETY: the mask ends with the row's scores.
                    unsafe {
                        _mm256_maskstore_ps(out.as_mut_ptr().add(eight * 8), mask, _mm256_load_ps(sums.add(eight * 8)));
                    }
                }
            }
        }
    }
}
