//! The last step of a search: the best candidates of all indexes by their full vectors.
//!
//! ```text
//!   candidates, best estimate first ──► full vectors (all reads of a round in one batch) ──► the k best, exact
//! ```
//!
//! Where only one-bit codes decided, there are many candidates: a first round reads those that are likely, and a second
//! one only those whose error still lets them pass the k-th best.

use crate::format::index::FETCH_BYTES;
use crate::search::request::{Hit, Scanned, SearchRequest};
use crate::search::scan::prefetch;
use crate::search::scratch::{Candidate, Scratch};
use ramekin_base::Result;
use ramekin_base::limits::PAGE;
use ramekin_pages::{Fetch, FetchTicket};

/// Full vectors that are asked for ahead of the one that is scored.
const AHEAD: usize = 4;

/// Moves the candidates of the index that was just scanned, as number `which`, to those of the others.
pub(crate) fn gather(scratch: &mut Scratch, which: u32) {
    let Scratch { best, chosen, .. } = scratch;
    chosen.extend(best.take().map(|candidate| Candidate { slot: which, ..candidate }));
}

/// The bar for what is scanned next: each candidate scores at least its estimate less its error, so the k-th best of that
/// is certain. Candidates that cannot pass are let go. Returns the bar.
pub(crate) fn raise_bar(scratch: &mut Scratch) -> f32 {
    let Scratch { chosen, counted, exact, .. } = scratch;
    for candidate in &chosen[*counted..] {
        exact.push(Candidate { estimate: candidate.estimate - candidate.margin, ..*candidate });
    }
    let certain = exact.least();
    chosen.retain(|candidate| candidate.estimate + candidate.margin >= certain);
    *counted = chosen.len();
    certain
}

impl SearchRequest<'_> {
    /// The best of all candidates in `scratch`, best first, added to `hits`.
    pub(crate) fn rescored(&self, rescore: bool, scratch: &mut Scratch, hits: &mut Vec<Hit>) -> Result<()> {
        let Some(first) = self.scanned.first() else { return Ok(()) };
        let mut chosen = std::mem::take(&mut scratch.chosen);
        chosen.sort_unstable_by(|a, b| b.cmp(a));
        let done = if rescore {
            self.by_originals(scratch, &mut chosen)
        } else {
            chosen.truncate(self.k);
            for candidate in &mut chosen {
                candidate.estimate = first.index.score_of_rank(candidate.estimate, self.square);
            }
            Ok(())
        };
        let done = done.and_then(|()| self.rows(scratch, &chosen, hits));
        scratch.chosen = chosen;
        done
    }

    fn of(&self, candidate: &Candidate) -> &Scanned<'_> {
        &self.scanned[candidate.slot as usize]
    }

    /// Leaves in `chosen` the k best with their exact scores.
    fn by_originals(&self, scratch: &mut Scratch, chosen: &mut Vec<Candidate>) -> Result<()> {
        scratch.exact.begin(self.k);
        if self.scanned.iter().any(|scanned| scanned.rows.is_none()) {
            // What the hits' rows will take.
            scratch.reads.spend(self.k);
        }
        let (likely, unlikely) = self.split(chosen);
        let mut unread = self.read_and_score(scratch, &chosen[..likely])?;
        if unlikely > 0 {
            let index = self.scanned[0].index;
            let known = index.rank(scratch.exact.least(), self.square);
            chosen.drain(..likely);
            chosen.retain(|candidate| candidate.estimate + candidate.margin > known);
            unread.append(&mut self.read_and_score(scratch, chosen)?);
        }
        scratch.exact.drain(chosen);
        self.fill_up(chosen, unread);
        Ok(())
    }

    /// Candidates that no read was left for follow those that were scored, by their estimates.
    fn fill_up(&self, chosen: &mut Vec<Candidate>, mut unread: Vec<Candidate>) {
        let missing = self.k.saturating_sub(chosen.len());
        if missing == 0 || unread.is_empty() {
            return;
        }
        unread.sort_unstable_by(|a, b| b.cmp(a));
        let index = self.scanned[0].index;
        let estimated = unread.into_iter().take(missing);
        chosen.extend(estimated.map(|candidate| {
            let estimate = index.score_of_rank(candidate.estimate, self.square);
            Candidate { estimate, ..candidate }
        }));
        chosen.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Brings those that are read in any case to the front, and drops those that are not to be read. Returns how many are
    /// in front and how many behind.
    ///
    /// Of candidates with wide codes the best count, as many as one large index would keep. Of others a bit more than k are
    /// likely, and what the rest may still be the scores of the likely tell.
    fn split(&self, chosen: &mut Vec<Candidate>) -> (usize, usize) {
        let kept = |wide: bool| {
            let alike = self.scanned.iter().filter(|scanned| scanned.wide == wide);
            alike.map(|scanned| scanned.kept).max().unwrap_or(0).max(self.k)
        };
        let score_bar = self.score_bar(self.scanned[0].index);
        let likely_narrow = self.k + self.k / 2 + 6;
        let (wide_kept, narrow_kept) = (kept(true), kept(false));
        let (mut wide, mut narrow, mut likely) = (0, 0, 0);
        let mut kept = 0;
        for at in 0..chosen.len() {
            let candidate = chosen[at];
            let (count, most, sure) = match self.of(&candidate).wide {
                true => (&mut wide, wide_kept, wide_kept),
                false => (&mut narrow, narrow_kept, likely_narrow),
            };
            // While candidates were collected the bar rose; those that cannot reach it cost no read.
            if *count >= most || candidate.estimate + candidate.margin <= score_bar {
                continue;
            }
            chosen[kept] = candidate;
            if *count < sure {
                chosen.swap(kept, likely);
                likely += 1;
            }
            *count += 1;
            kept += 1;
        }
        chosen.truncate(kept);
        (likely, kept - likely)
    }

    /// Scores candidates by their full vectors: those in memory where they lie, the others as many in one batch as one fetch
    /// may name. Returns those that no read was left for.
    fn read_and_score(&self, scratch: &mut Scratch, candidates: &[Candidate]) -> Result<Vec<Candidate>> {
        let ask = |candidate: &Candidate| {
            let Scanned { index, vectors, .. } = self.of(candidate);
            let record_layout = &index.shape.vectors;
            if let Some(vectors) = vectors {
                prefetch(vectors, record_layout.at(candidate.position), record_layout.record);
            }
        };
        candidates.iter().take(AHEAD).for_each(ask);
        let mut fetch = self.pages.fetch();
        let (mut wants, mut unread, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (at, candidate) in candidates.iter().enumerate() {
            let Scanned { index, vectors, .. } = self.of(candidate);
            let record_layout = &index.shape.vectors;
            let from = record_layout.at(candidate.position);
            candidates.get(at + AHEAD).into_iter().for_each(ask);
            if let Some(vectors) = vectors {
                let record = &vectors[from..from + record_layout.record];
                let estimate = index.shape.full_vectors.score(self.query, record, &mut scratch.unpacked)?;
                scratch.exact.push(Candidate { estimate, ..*candidate });
                continue;
            }
            let pages = record_layout.record.div_ceil(PAGE);
            if !scratch.reads.take(pages) {
                unread.push(*candidate);
                continue;
            }
            if bytes + pages * PAGE > FETCH_BYTES && !wants.is_empty() {
                let full = std::mem::replace(&mut fetch, self.pages.fetch());
                self.score(scratch, full, &mut wants)?;
                bytes = 0;
            }
            bytes += pages * PAGE;
            wants.push((*candidate, fetch.want(&index.vectors, from as u64, record_layout.record)?));
        }
        scratch.profile.rescored += (candidates.len() - unread.len()) as u64;
        if !wants.is_empty() {
            self.score(scratch, fetch, &mut wants)?;
        }
        Ok(unread)
    }

    /// Fetches and scores what is wanted.
    fn score(&self, scratch: &mut Scratch, fetch: Fetch<'_>, wants: &mut Vec<(Candidate, FetchTicket)>) -> Result<()> {
        scratch.profile.pages += fetch.pages() as u64;
        let pinned = fetch.run()?;
        for (candidate, want) in wants.drain(..) {
            let full_vectors = self.of(&candidate).index.shape.full_vectors;
            let estimate = full_vectors.score(self.query, pinned.bytes(want), &mut scratch.unpacked)?;
            scratch.exact.push(Candidate { estimate, ..candidate });
        }
        Ok(())
    }

    /// Turns positions to rows.
    fn rows(&self, scratch: &mut Scratch, chosen: &[Candidate], hits: &mut Vec<Hit>) -> Result<()> {
        if chosen.iter().all(|candidate| self.of(candidate).rows.is_some()) {
            for candidate in chosen {
                hits.push(self.hit(candidate, self.of(candidate).rows.as_deref().unwrap_or_default(), 0)?);
            }
            return Ok(());
        }
        for candidates in chosen.chunks(FETCH_BYTES / 8192) {
            let mut fetch = self.pages.fetch();
            let mut wants = Vec::with_capacity(candidates.len());
            for candidate in candidates {
                let index = self.of(candidate).index;
                let range = index.packed().range(candidate.position, 1);
                wants.push((fetch.want(&index.rows, range.start as u64, range.len())?, range.start));
            }
            scratch.profile.pages += fetch.pages() as u64;
            let pinned = fetch.run()?;
            for (candidate, (want, from)) in candidates.iter().zip(wants) {
                hits.push(self.hit(candidate, pinned.bytes(want), from)?);
            }
        }
        Ok(())
    }

    /// The hit of a candidate, whose row stands in `rows`: bytes of the section that begin at `from`.
    fn hit(&self, candidate: &Candidate, rows: &[u8], from: usize) -> Result<Hit> {
        let index = self.of(candidate).index;
        let row = index.checked(index.packed().get(rows, from, candidate.position))?;
        Ok(Hit { index: candidate.slot, row, score: candidate.estimate })
    }
}
