//! The exact search: every original vector is scored, in stored order, a bounded piece at a time.
//!
//! Resident vectors are scored where they lie; others stream past the cache, so that a scan pushes nothing out of it.

use crate::index::{FETCH_BYTES, Index, floats};
use crate::scratch::{Candidate, Scratch};
use crate::search::{Hit, SearchParams};
use ramekin_base::Result;
use ramekin_pages::Pages;
use ramekin_vecmath::score_block;

/// Vectors scored at a time.
const BLOCK: usize = 64;

#[allow(clippy::too_many_arguments, reason = "a search with all it is handed")]
pub(crate) fn search(
    index: &Index,
    pages: &Pages,
    query: &[f32],
    k: usize,
    params: &SearchParams<'_>,
    threshold: Option<f32>,
    scratch: &mut Scratch,
    hits: &mut Vec<Hit>,
) -> Result<()> {
    let (shape, grid) = (&index.shape, &index.shape.vectors);
    scratch.fit(shape.dim, 0, 0, k.min(shape.rows))?;
    scratch.exact.begin(k.min(shape.rows));
    let mut scan = Exact { index, query, params, threshold, scratch };
    if let Some(vectors) = index.vectors.resident() {
        let mut position = 0;
        while (position as usize) < shape.rows {
            let run = grid.run(position).min(shape.rows - position as usize).min(BLOCK);
            let at = grid.at(position);
            scan.block(pages, position, floats(&vectors[at..at + run * grid.record])?)?;
            position += run as u32;
        }
    } else {
        let mut stream = index.vectors.stream(&scan.scratch.account, FETCH_BYTES / 2)?;
        let mut block = vec![0f32; BLOCK.min(grid.run(0)) * shape.dim];
        let mut position = 0;
        while (position as usize) < shape.rows {
            let run = grid.run(position).min(shape.rows - position as usize).min(BLOCK);
            let values = &mut block[..run * shape.dim];
            stream.read_exact(zerocopy::IntoBytes::as_mut_bytes(values))?;
            scan.block(pages, position, values)?;
            position += run as u32;
            if (position as usize) < shape.rows {
                stream.skip(grid.gap(position - 1) as u64)?;
            }
        }
    }
    let mut chosen = std::mem::take(&mut scratch.chosen);
    scratch.exact.drain(&mut chosen);
    // While scanning, the row of a candidate was kept in `slot`.
    hits.extend(chosen.iter().map(|candidate| Hit { index: 0, row: candidate.slot, score: candidate.estimate }));
    scratch.chosen = chosen;
    scratch.profile.rescored += shape.rows as u64;
    Ok(())
}

struct Exact<'a, 'b> {
    index: &'a Index,
    query: &'a [f32],
    params: &'a SearchParams<'b>,
    threshold: Option<f32>,
    scratch: &'a mut Scratch,
}

impl Exact<'_, '_> {
    /// Scores vectors that lie one after another from `position` on; rows are looked up for those that pass.
    fn block(&mut self, pages: &Pages, position: u32, vectors: &[f32]) -> Result<()> {
        let index = self.index;
        let count = vectors.len() / index.shape.dim;
        let mut scores = [0f32; BLOCK];
        score_block(index.shape.metric, self.query, vectors, index.shape.dim, &mut scores[..count]);
        let wanted =
            |score: f32, least: f32| score > least && self.threshold.is_none_or(|threshold| score >= threshold);
        if !scores[..count].iter().any(|score| wanted(*score, self.scratch.exact.least())) {
            return Ok(());
        }
        let packed = index.packed();
        let range = packed.range(position, count);
        let mut fetch = pages.fetch();
        let want = fetch.want(&index.rows, range.start as u64, range.len())?;
        let pinned = fetch.run()?;
        for (at, score) in scores[..count].iter().enumerate() {
            if !wanted(*score, self.scratch.exact.least()) {
                continue;
            }
            let position = position + at as u32;
            let row = index.checked(packed.get(pinned.bytes(want), range.start, position))?;
            if self.params.filter.is_none_or(|filter| filter(row)) {
                self.scratch.exact.push(Candidate { estimate: *score, margin: 0.0, position, slot: row });
            }
        }
        Ok(())
    }
}
