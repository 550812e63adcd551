//! The exact search: every full vector is scored, in stored order, a bounded piece at a time.
//!
//! Resident vectors are scored where they lie; others stream past the cache, so that a scan pushes nothing out of it.

use crate::format::full_vectors::FullVectors;
use crate::format::index::{FETCH_BYTES, Index};
use crate::search::request::{Hit, SearchParams};
use crate::search::scratch::{Candidate, Scratch};
use ramekin_base::{Result, cancel};
use ramekin_pages::Pages;
use zerocopy::IntoBytes;

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
    let (shape, record_layout) = (&index.shape, &index.shape.vectors);
    scratch.fit(shape.dim, 0, 0, k.min(shape.rows))?;
    scratch.exact.begin(k.min(shape.rows));
    let most = shape.full_vectors.together().min(BLOCK);
    let mut scan = Exact { index, query, params, threshold, scratch };
    if let Some(vectors) = index.vectors.resident() {
        let mut position = 0;
        while (position as usize) < shape.rows {
            let run = record_layout.run(position).min(shape.rows - position as usize).min(most);
            let at = record_layout.at(position);
            scan.block(pages, position, &vectors[at..at + run * record_layout.record])?;
            position += run as u32;
        }
    } else {
        let mut stream = index.vectors.stream(&scan.scratch.account, FETCH_BYTES / 2)?;
        // Floats, so that they lie where floats may.
        let mut block = std::mem::take(&mut scan.scratch.streamed);
        block.resize(FullVectors::room(shape.dim), 0.0);
        let mut position = 0;
        while (position as usize) < shape.rows {
            let run = record_layout.run(position).min(shape.rows - position as usize).min(most);
            let records = &mut block.as_mut_bytes()[..run * record_layout.record];
            stream.read_exact(records)?;
            scan.block(pages, position, records)?;
            position += run as u32;
            if (position as usize) < shape.rows {
                stream.skip(record_layout.gap(position - 1) as u64)?;
            }
        }
        scan.scratch.streamed = block;
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
    fn block(&mut self, pages: &Pages, position: u32, records: &[u8]) -> Result<()> {
        cancel::check()?;
        let index = self.index;
        let count = records.len() / index.shape.vectors.record;
        let mut scores = [0f32; BLOCK];
        let room = &mut self.scratch.unpacked;
        index.shape.full_vectors.scores(self.query, records, room, &mut scores[..count])?;
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
