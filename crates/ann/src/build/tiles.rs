//! Many rows against all centroids, with the panels of only so many centroids in memory at a time.
//!
//! ```text
//!   centroids (compact)  |  tile 0  |  tile 1  |  tile 2  |      one tile: unpacked once and kept
//!                             │                                  several: unpacked again for each batch
//!   rows of a batch  ─────────┴─► best centroid so far, its score
//! ```

use crate::format::compact::Compact;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use ramekin_vecmath::Panels;

/// Finds the nearest centroid of each row of a batch.
pub(crate) struct Tiles<'a> {
    centroids: &'a Compact,
    tile: usize,
    threads: usize,
    whole: Option<Panels>,
    _room: Reservation,
}

impl<'a> Tiles<'a> {
    pub(crate) fn new(centroids: &'a Compact, tile: usize, threads: usize, account: &Account) -> Result<Self> {
        let (k, dim) = (centroids.len(), centroids.dim());
        let tile = tile.min(k);
        // The unpacked rows live only while a tile is packed.
        let unpacked = (tile * dim * 4) as u64;
        let mut room = account.try_reserve(Panels::bytes(tile, dim) as u64 + unpacked)?;
        let whole = (tile >= k).then(|| pack(centroids, 0, k));
        if whole.is_some() {
            room.shrink(unpacked);
        }
        Ok(Self { centroids, tile, threads, whole, _room: room })
    }

    /// `best[i]` becomes the centroid nearest to row `i`.
    pub(crate) fn assign(&self, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
        if let Some(panels) = &self.whole {
            return assign(panels, rows, best, scores, self.threads);
        }
        scores.fill(f32::NEG_INFINITY);
        let mut near = vec![0; best.len()];
        let mut near_scores = vec![0.0; best.len()];
        for from in (0..self.centroids.len()).step_by(self.tile) {
            let to = (from + self.tile).min(self.centroids.len());
            assign(&pack(self.centroids, from, to), rows, &mut near, &mut near_scores, self.threads);
            for ((best, score), (near, near_score)) in
                best.iter_mut().zip(scores.iter_mut()).zip(near.iter().zip(&near_scores))
            {
                if near_score > score {
                    (*best, *score) = (*near + from as u32, *near_score);
                }
            }
        }
    }
}

fn pack(centroids: &Compact, from: usize, to: usize) -> Panels {
    let dim = centroids.dim();
    let mut rows = vec![0.0; (to - from) * dim];
    centroids.unpack(from, to, &mut rows);
    Panels::pack(&rows, to - from, dim)
}

/// One panel set, the rows shared out over threads.
fn assign(panels: &Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32], threads: usize) {
    let part = best.len().div_ceil(threads.max(1)).next_multiple_of(16).max(64);
    std::thread::scope(|scope| {
        let mut parts = rows.chunks(part * panels.dim()).zip(best.chunks_mut(part)).zip(scores.chunks_mut(part));
        let own = parts.next();
        for ((rows, best), scores) in parts {
            scope.spawn(|| panels.assign(rows, best, scores));
        }
        if let Some(((rows, best), scores)) = own {
            panels.assign(rows, best, scores);
        }
    });
}
