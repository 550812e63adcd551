//! What a search is asked, what it holds on to, and what it tells.

use crate::format::curve::SearchEffort;
use crate::format::index::Index;
use crate::search::scratch::Tally;
use ramekin_base::Clock;
use ramekin_pages::{Pages, Resident};
use std::time::Duration;

/// One found vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Which of the indexes it is in, in the order in which they were scanned.
    pub index: u32,
    pub row: u32,
    /// Larger is better: the product, or the distance negated.
    pub score: f32,
}

/// How to search. The default keeps the index's recall.
#[derive(Clone, Copy)]
pub struct SearchParams<'a> {
    /// The client's `hnsw_ef`: more finds more.
    pub ef: Option<usize>,
    /// Scan every full vector.
    pub exact: bool,
    /// Score by the full vectors; otherwise hits carry the estimates of their codes.
    pub rescore: bool,
    /// Lists to scan, whatever recall would ask for.
    pub nprobe: Option<usize>,
    /// So many candidates are scored by their full vectors, as far as their errors leave them a chance.
    pub candidates: usize,
    /// Reads of the disk at most: pages that are not resident, whether the cache has them or not. Lists that are left
    /// over are not scanned, and candidates that are left over are not scored by their full vectors: they follow those that
    /// are, by their estimates, where there are fewer than `k` of those. What names the lists and the rows of the hits is
    /// read in any case.
    pub max_reads: Option<usize>,
    /// The recall to reach; the index's own by default.
    pub recall: Option<f32>,
    /// Rows that may be found. It is asked only for vectors that would be.
    pub filter: Option<&'a dyn Fn(u32) -> bool>,
    /// All the positions that may be found, in place of the filter: see [`Index::positions_of`].
    pub positions: Option<ClusterOrder<'a>>,
    /// Times the stages of the profile.
    pub clock: Option<&'a dyn Clock>,
}

/// Some positions of an index.
#[derive(Clone, Copy)]
pub struct ClusterOrder<'a> {
    /// A bit for each, the first lowest.
    pub words: &'a [u64],
    /// Bits that are set.
    pub count: usize,
    /// They are few: each in the nearest lists is looked at. Else lists are scanned.
    pub each: bool,
}

impl ClusterOrder<'_> {
    #[inline]
    pub(crate) fn holds(&self, position: u32) -> bool {
        self.words.get(position as usize / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }
}

impl Default for SearchParams<'_> {
    fn default() -> Self {
        Self {
            ef: None,
            exact: false,
            rescore: true,
            nprobe: None,
            candidates: 0,
            max_reads: None,
            recall: None,
            filter: None,
            positions: None,
            clock: None,
        }
    }
}

/// What a search did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Profile {
    /// Lists scanned.
    pub clusters: u64,
    /// Narrowest codes scanned.
    pub codes: u64,
    /// Wider codes looked at.
    pub refined: u64,
    /// Full vectors scored.
    pub rescored: u64,
    /// Pages named for fetches, whether they were in the cache or not.
    pub pages: u64,
    /// Microseconds, where a clock was handed in.
    pub coarse_us: u64,
    pub scan_us: u64,
    pub rescore_us: u64,
}

/// What a search of one index holds from start to end: the query, the effort that the recall curve names, and the sections that
/// are resident meanwhile.
pub(crate) struct IndexSearchContext<'a, 'p> {
    pub(crate) index: &'a Index,
    pub(crate) pages: &'a Pages,
    pub(crate) query: &'a [f32],
    /// Squared length of the query.
    pub(crate) square: f32,
    pub(crate) k: usize,
    pub(crate) params: &'p SearchParams<'p>,
    pub(crate) effort: SearchEffort,
    /// Rank scores at or below this are not wanted.
    pub(crate) score_bar: f32,
    pub(crate) codes1: Option<Resident<'a>>,
    /// The codes that survivors are refined with: their place in `WIDTHS`, and their bytes.
    pub(crate) wide: Option<(usize, Resident<'a>)>,
    /// One-bit codes are all that candidates are chosen by.
    pub(crate) narrow: bool,
    pub(crate) vectors: Option<Resident<'a>>,
    pub(crate) rows: Option<Resident<'a>>,
}

/// What is searched for, and in what: the part of a search that rescoring only reads.
pub(crate) struct SearchRequest<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) query: &'a [f32],
    /// Squared length of the query.
    pub(crate) square: f32,
    pub(crate) k: usize,
    pub(crate) threshold: Option<f32>,
    pub(crate) scanned: Vec<Scanned<'a>>,
}

impl SearchRequest<'_> {
    /// Rank scores at or below this are not wanted.
    pub(crate) fn score_bar(&self, index: &Index) -> f32 {
        self.threshold.map_or(f32::NEG_INFINITY, |threshold| index.rank(threshold, self.square))
    }
}

/// An index that was scanned, with what rescoring needs of it.
pub(crate) struct Scanned<'a> {
    pub(crate) index: &'a Index,
    pub(crate) vectors: Option<Resident<'a>>,
    pub(crate) rows: Option<Resident<'a>>,
    /// Its candidates are ranked by wide codes; those of narrow ones are told apart by their error only.
    pub(crate) wide: bool,
    pub(crate) kept: usize,
    /// Lists of it that were scanned.
    pub(crate) lists: usize,
    /// How its filter answered.
    pub(crate) tally: Tally,
}

/// Laps of the clock that was handed in.
pub(crate) struct Watch<'a> {
    clock: Option<&'a dyn Clock>,
    last: Duration,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(clock: Option<&'a dyn Clock>) -> Self {
        Self { clock, last: clock.map_or(Duration::ZERO, Clock::now) }
    }

    pub(crate) fn lap(&mut self) -> u64 {
        let Some(clock) = self.clock else { return 0 };
        let now = clock.now();
        let lap = now.saturating_sub(self.last);
        self.last = now;
        lap.as_micros() as u64
    }
}
