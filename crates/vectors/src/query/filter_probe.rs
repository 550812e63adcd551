//! What a search asks of a filter while it scans: which rows pass, each asked once, and which positions of an index those are.

use crate::api::Explain;
use crate::query::index_filter::IndexFilterResult;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::TEXTS;
use crate::segment::{Named, SegmentView};
use ramekin_ann::{ClusterOrder, SearchParams};
use ramekin_base::{Error, Result};
use ramekin_fields::Bitmap;
use ramekin_memory::Reservation;
use std::cell::RefCell;
use std::sync::Arc;

/// What a row costs that is found before the search begins, of what a vector costs that is scanned with its list.
const FOUND_COST: f64 = 0.5;
/// Rows whose payloads are asked before a search at most.
const ASKED_MAX: u64 = 512;

/// The positions that pass a filter.
pub(crate) struct ClusterOrderBitmap {
    bits: Arc<Bitmap>,
    count: usize,
    each: bool,
}

impl ClusterOrderBitmap {
    pub(crate) fn positions(&self) -> ClusterOrder<'_> {
        ClusterOrder { words: self.bits.words(), count: self.count, each: self.each }
    }
}

/// Rows that were asked whether they pass a filter, and what they said: one is asked once.
pub(crate) struct FilterProbe<'a> {
    matching: &'a PayloadFilter<'a>,
    /// Of each segment the rows that may pass.
    passing: Vec<IndexFilterResult>,
    /// Of each segment two bits a row: asked, passed.
    rows: RefCell<Vec<Vec<u64>>>,
    failed: RefCell<Option<Error>>,
    pub(crate) explain: RefCell<Explain>,
    /// Reads that the indexes and the payloads of rows may take together.
    reads_max: u64,
    _memory: Reservation,
}

/// Reads that a row takes whose payload is asked: where it ends, and the text; or its record of the log.
const ASKED_READS: u64 = 2;

impl<'a> FilterProbe<'a> {
    /// With so many reads allowed for all of the search.
    pub(crate) fn new(matching: &'a PayloadFilter<'a>, reads_max: Option<usize>) -> Result<Self> {
        let passing = (0..matching.view.segments.len()).map(|at| matching.passing(at)).collect::<Result<Vec<_>>>()?;
        // Where all is known nothing is asked.
        let words = |passing: &IndexFilterResult| if passing.is_sure() { 0 } else { passing.rows.rows().div_ceil(32) };
        let memory = matching.view.env.account.try_reserve(passing.iter().map(words).sum::<usize>() as u64 * 8)?;
        let rows = RefCell::new(passing.iter().map(|passing| vec![0; words(passing)]).collect());
        let explain = Explain {
            estimate: passing.iter().map(|passing| passing.estimate).sum(),
            passing: passing.iter().map(|passing| passing.count).sum(),
            remembered: passing.iter().filter(|passing| passing.cached.is_some()).count() as u64,
            ..Explain::default()
        };
        let (failed, explain) = (RefCell::default(), RefCell::new(explain));
        // Half of what the indexes have left is for the search itself.
        let taken = matching.pages.fetch_stats().reads;
        let reads_max = reads_max.map_or(u64::MAX, |most| taken + (most as u64).saturating_sub(taken) / 2);
        Ok(Self { matching, passing, rows, failed, explain, reads_max, _memory: memory })
    }

    /// Of so many reads those that are left, whatever rows are asked.
    pub(crate) fn leaves(&self, most: usize) -> usize {
        let is_sure = self.passing.iter().all(IndexFilterResult::is_sure);
        let taken = if is_sure { self.matching.pages.fetch_stats().reads } else { self.reads_max };
        most.saturating_sub(taken as usize)
    }

    pub(crate) fn row(&self, segment: usize, row: u32) -> bool {
        let passing = &self.passing[segment];
        if !passing.rows.get(row) || !passing.is_unsure(row) {
            return passing.rows.get(row);
        }
        let (word, bit) = (row as usize / 32, row % 32 * 2);
        let seen = self.rows.borrow()[segment][word] >> bit & 3;
        if seen > 0 || self.failed.borrow().is_some() {
            return seen == 3;
        }
        // What may not be read any more passes no more, as new points do.
        if self.matching.pages.fetch_stats().reads.saturating_add(ASKED_READS) > self.reads_max {
            return false;
        }
        self.ask(segment, &[row]);
        self.rows.borrow()[segment][word] >> bit & 3 == 3
    }

    /// Asks the payloads of rows, which are read as one batch.
    fn ask(&self, segment: usize, rows: &[u32]) {
        self.explain.borrow_mut().asked += rows.len() as u64;
        match self.matching.rows(segment, rows) {
            Ok(passed) => {
                let seen = &mut self.rows.borrow_mut()[segment];
                for (row, passes) in rows.iter().zip(passed) {
                    seen[*row as usize / 32] |= (1 | u64::from(passes) << 1) << (row % 32 * 2);
                }
            }
            Err(error) => _ = self.failed.replace(Some(error)),
        }
    }

    /// Asks all rows that may pass and are alive, as far as reads are allowed.
    fn ask_all(&self, segment: usize, held: &SegmentView) {
        let passing = &self.passing[segment];
        let is_seen = |row: u32| self.rows.borrow()[segment][row as usize / 32] >> (row % 32 * 2) & 3 > 0;
        let asked = |row: &u32| passing.is_unsure(*row) && !held.dead.get(*row) && !is_seen(*row);
        let mut rows = passing.rows.iter().filter(asked);
        while self.failed.borrow().is_none() {
            let some: Vec<u32> = rows.by_ref().take(TEXTS).collect();
            let reads = self.matching.pages.fetch_stats().reads.saturating_add(some.len() as u64 * ASKED_READS);
            if some.is_empty() || reads > self.reads_max {
                return;
            }
            self.ask(segment, &some);
        }
    }

    /// The positions of the vectors of a segment that pass, where that costs less than asking those that are scanned: since
    /// they are few, or since they are remembered.
    pub(crate) fn found(
        &self,
        (segment, named, held): (usize, &Named, &SegmentView),
        using: &str,
        wanted: usize,
        params: &SearchParams<'_>,
    ) -> Result<Option<ClusterOrderBitmap>> {
        let passing = &self.passing[segment];
        let count = passing.count;
        let share = count as f64 / f64::from(held.meta.points.max(1));
        let is_few = count as f64 * FOUND_COST <= named.index.scanned(wanted, share, params)
            && (passing.is_sure() || count <= ASKED_MAX);
        let each = is_few && !params.exact && named.index.can_look(params);
        let mut explain = self.explain.borrow_mut();
        *match (params.exact, each) {
            (true, _) => &mut explain.scanned,
            (false, true) => &mut explain.direct,
            (false, false) => &mut explain.lists,
        } += 1;
        drop(explain);
        let (pool, index) = (&self.matching.view.env.bitmaps, &named.index);
        let positions = |rows: &[u64]| -> Result<Bitmap> {
            let mut positions = Bitmap::none(index.len(), pool)?;
            index.positions_of(self.matching.pages, rows, positions.words_mut())?;
            Ok(positions)
        };
        let is_plain = named.present.is_all() && passing.is_sure() && held.dead.count() == 0;
        let found = match &passing.cached {
            // Reads are counted where they are limited.
            Some(kept) if is_plain && !params.exact && params.max_reads.is_none() => {
                let make = || positions(passing.rows.words());
                match self.matching.view.env.filter_cache.positions(kept, using, make) {
                    // Lists can be scanned without them.
                    Err(error) if error.kind().is_memory() && !each => return Ok(None),
                    made => made?,
                }
            }
            _ if !each => return Ok(None),
            _ if is_plain => Arc::new(positions(passing.rows.words())?),
            _ => {
                let mut ordinals = Bitmap::none(index.len(), pool)?;
                self.ask_all(segment, held);
                for row in passing.rows.iter().filter(|row| !held.dead.get(*row)) {
                    if self.row(segment, row) {
                        named.present.ordinal(row).into_iter().for_each(|ordinal| ordinals.set(ordinal));
                    }
                }
                Arc::new(positions(ordinals.words())?)
            }
        };
        let count = if is_plain { count } else { found.count() } as usize;
        Ok(Some(ClusterOrderBitmap { bits: found, count, each }))
    }

    /// What went wrong while rows were asked.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
