//! The last step of a search: the best candidates by their original vectors.
//!
//! ```text
//!   candidates, best estimate first ──► originals (all reads of a round in one batch) ──► the k best, exact
//! ```
//!
//! Where only one-bit codes decided, there are many candidates: a first round reads those that are likely, and a second
//! one only those whose error still lets them pass the k-th best.

use crate::index::{FETCH_BYTES, floats};
use crate::scan::prefetch;
use crate::scratch::{Candidate, Scratch};
use crate::search::{Hit, Means};
use ramekin_base::Result;
use ramekin_vecmath::{Metric, score};

/// Originals that are asked for ahead of the one that is scored.
const AHEAD: usize = 4;

pub(crate) fn rescore(means: &Means<'_>, scratch: &mut Scratch, hits: &mut Vec<Hit>) -> Result<()> {
    let mut chosen = std::mem::take(&mut scratch.chosen);
    scratch.best.drain(&mut chosen);
    let done = if !means.params.rescore {
        chosen.truncate(means.k);
        for candidate in &mut chosen {
            candidate.estimate = means.index.score_of_rank(candidate.estimate, means.square);
        }
        Ok(())
    } else {
        rescore_chosen(means, scratch, &mut chosen)
    };
    let done = done.and_then(|()| take_rows(means, scratch, &chosen, hits));
    scratch.chosen = chosen;
    done
}

/// Leaves in `chosen` the k best with their exact scores.
fn rescore_chosen(means: &Means<'_>, scratch: &mut Scratch, chosen: &mut Vec<Candidate>) -> Result<()> {
    let index = means.index;
    scratch.exact.begin(means.k);
    if let Some(vectors) = means.vectors.as_deref() {
        let grid = &index.shape.vectors;
        let ask = |candidate: &Candidate| prefetch(vectors, grid.at(candidate.position), grid.record);
        chosen.iter().take(AHEAD).for_each(ask);
        for at in 0..chosen.len() {
            chosen.get(at + AHEAD).into_iter().for_each(ask);
            let from = grid.at(chosen[at].position);
            let x = floats(&vectors[from..from + grid.record])?;
            let estimate = score(index.shape.metric, means.query, x);
            scratch.exact.push(Candidate { estimate, ..chosen[at] });
        }
        scratch.profile.rescored += chosen.len() as u64;
        scratch.exact.drain(chosen);
        return Ok(());
    }
    // The first round takes all where the codes are wide, and the likely half more than k where they are not.
    let narrow = means.wide.is_none() && index.shape.metric != Metric::Manhattan;
    if means.wide.is_none() {
        // Candidates were collected while the bar rose; those that cannot reach it cost no read.
        chosen.retain(|candidate| candidate.estimate + candidate.margin > means.floor);
    }
    let first = if narrow { (means.k + means.k / 2 + 6).min(chosen.len()) } else { chosen.len() };
    let (likely, rest) = chosen.split_at(first);
    read_and_score(means, scratch, likely)?;
    if !rest.is_empty() {
        let known = index.rank(scratch.exact.least(), means.square);
        let rest: Vec<Candidate> =
            rest.iter().filter(|candidate| candidate.estimate + candidate.margin > known).copied().collect();
        read_and_score(means, scratch, &rest)?;
    }
    scratch.exact.drain(chosen);
    Ok(())
}

/// Reads originals, as many in one batch as one fetch may name, and scores them.
fn read_and_score(means: &Means<'_>, scratch: &mut Scratch, candidates: &[Candidate]) -> Result<()> {
    let index = means.index;
    let grid = &index.shape.vectors;
    let together = (FETCH_BYTES / grid.record.next_multiple_of(4096)).max(1);
    for candidates in candidates.chunks(together) {
        let mut fetch = means.pages.fetch();
        let mut wants = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            wants.push(fetch.want(&index.vectors, grid.at(candidate.position) as u64, grid.record)?);
        }
        scratch.profile.pages += fetch.pages() as u64;
        let pinned = fetch.run()?;
        for (candidate, want) in candidates.iter().zip(wants) {
            let estimate = score(index.shape.metric, means.query, floats(pinned.bytes(want))?);
            scratch.exact.push(Candidate { estimate, ..*candidate });
        }
        scratch.profile.rescored += candidates.len() as u64;
    }
    Ok(())
}

/// Turns positions to rows.
fn take_rows(means: &Means<'_>, scratch: &mut Scratch, chosen: &[Candidate], hits: &mut Vec<Hit>) -> Result<()> {
    let (index, packed) = (means.index, means.index.packed());
    if let Some(rows) = means.rows.as_deref() {
        for candidate in chosen {
            let row = index.checked(packed.get(rows, 0, candidate.position))?;
            hits.push(Hit { row, score: candidate.estimate });
        }
        return Ok(());
    }
    for candidates in chosen.chunks(FETCH_BYTES / 8192) {
        let mut fetch = means.pages.fetch();
        let mut wants = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let range = packed.range(candidate.position, 1);
            wants.push((fetch.want(&index.rows, range.start as u64, range.len())?, range.start));
        }
        scratch.profile.pages += fetch.pages() as u64;
        let pinned = fetch.run()?;
        for (candidate, (want, from)) in candidates.iter().zip(wants) {
            let row = index.checked(packed.get(pinned.bytes(want), from, candidate.position))?;
            hits.push(Hit { row, score: candidate.estimate });
        }
    }
    Ok(())
}
