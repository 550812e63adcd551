//! Measures the index while it is built: held-out points ask, and every vector that streams by answers.
//!
//! ```text
//!   chunk of vectors and codes ──► for each held-out point q
//!                                   all vectors            exact score ──► the true nearest
//!                                   lists near q           1 bit, 3 bits, 6 bits ──► best of each
//!   at the end: for every true neighbour t of q
//!       in the how-manieth list of q does it lie             ──► nprobe
//!       how many errors below the known is its 1-bit code    ──► slack
//!       how many errors below the tenth is its 1-bit code    ──► bound
//!       how many stand before it at each width               ──► candidates
//! ```
//!
//! A point never meets itself. So the curve is measured in the one pass in which everything is in memory anyway,
//! and needs no file that is readable yet.

use crate::format::buffer::Buffer;
use crate::format::coarse::Coarse;
use crate::format::curve::{Curve, MISSED_CANDIDATES, MISSED_LISTS, MISSED_SLACK, NEAREST, RECALLS, Step};
use crate::format::encode::{Coded, Coding, ERROR, estimate, linear, query_bytes, widths};
use crate::format::layout::InvertedList;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use ramekin_vecmath::{
    BLOCK, Metric, Panels, Probe, QueryCodes, Survivors, block_bytes, dot, record_bytes, sad, score, select_best,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// True neighbours kept of each held-out point.
const TRUE_KEPT: usize = 100;
/// Candidates kept at 1 bit, 3 bits and 6 bits.
const KEPT: [usize; 3] = [384, 64, 48];
/// Lists near a held-out point whose codes are tried.
pub(crate) const LISTS_TRIED: usize = 192;
/// A 1-bit code further than this many errors below the known is not looked at.
const SLACK_MOST: f32 = 3.0;

/// Points whose true neighbours are found by brute force, to measure the index on.
pub(crate) struct HeldOut {
    pub(crate) rows: Vec<u32>,
    /// Their vectors, one after another.
    pub(crate) vectors: Buffer<f32>,
    pub(crate) dim: usize,
}

impl HeldOut {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        &self.vectors[index * self.dim..(index + 1) * self.dim]
    }
}

/// A vector that was seen: ordered by its score, then by its position.
#[derive(Clone, Copy, PartialEq)]
struct Seen {
    score: f32,
    position: u32,
    /// Of the 1-bit estimate, one standard error.
    error: f32,
    /// The how-manieth list of the query it lies in.
    rank: u32,
}

impl Eq for Seen {}

impl Ord for Seen {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.position.cmp(&self.position))
    }
}

impl PartialOrd for Seen {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The best few seen so far.
struct TopK {
    kept: usize,
    heap: BinaryHeap<Reverse<Seen>>,
}

impl TopK {
    fn new(kept: usize) -> Self {
        Self { kept, heap: BinaryHeap::with_capacity(kept + 1) }
    }

    fn least(&self) -> f32 {
        match self.heap.peek() {
            Some(Reverse(seen)) if self.heap.len() >= self.kept => seen.score,
            _ => f32::NEG_INFINITY,
        }
    }

    fn push(&mut self, seen: Seen) {
        if seen.score > self.least() {
            self.heap.push(Reverse(seen));
            if self.heap.len() > self.kept {
                self.heap.pop();
            }
        }
    }

    fn into_sorted(self) -> Vec<Seen> {
        let mut seen: Vec<Seen> = self.heap.into_iter().map(|Reverse(seen)| seen).collect();
        seen.sort_unstable_by(|a, b| b.cmp(a));
        seen
    }
}

/// One held-out point.
struct HeldOutPoint {
    row: u32,
    index: usize,
    codes: Option<QueryCodes>,
    /// Lists tried, in order of list, with their rank.
    tried: Vec<(u32, u32)>,
    next: usize,
    truth: TopK,
    best: [TopK; 3],
}

/// All held-out points.
pub(crate) struct RecallCalibration {
    held: HeldOut,
    calibration: Vec<HeldOutPoint>,
    _room: Reservation,
}

/// A chunk of the build as the calibration see it.
pub(crate) struct CalibrationChunk<'a> {
    pub(crate) coding: Coding<'a>,
    /// Lists of the chunk, and the index of the first.
    pub(crate) lists: &'a [InvertedList],
    pub(crate) first_list: usize,
    pub(crate) rows: &'a [u32],
    pub(crate) vectors: &'a [f32],
    /// What each thread coded, in order of list.
    pub(crate) coded: Vec<&'a Coded>,
    pub(crate) coarse: Coarse<'a>,
}

impl RecallCalibration {
    /// Bytes of one held-out point with all it keeps.
    pub(crate) fn bytes_each(dim: usize) -> usize {
        let kept = TRUE_KEPT + KEPT.iter().sum::<usize>() + 4;
        // Its vector twice: the second time in the panels of the brute force.
        8 * dim + QueryCodes::bytes(dim) + kept * size_of::<Seen>() + LISTS_TRIED * 8 + size_of::<HeldOutPoint>()
    }

    pub(crate) fn new(
        held: HeldOut,
        coding: Coding<'_>,
        coarse: &Coarse<'_>,
        lists: usize,
        account: &Account,
    ) -> Result<Self> {
        let room = account.try_reserve((held.len() * Self::bytes_each(coding.dim)) as u64)?;
        let mut rotated = vec![0.0; coding.dim];
        let (mut scores, mut scaled, mut bytes) = (Buffer::<f32>::new(account, lists)?, Vec::new(), Vec::new());
        let mut near = Vec::new();
        let mut calibration = Vec::with_capacity(held.len());
        for index in 0..held.len() {
            let codes = coding.rotation.map(|rotation| {
                rotation.rotate(held.vector(index), &mut rotated);
                let mut codes = QueryCodes::new(coding.dim);
                codes.prepare(&rotated);
                codes
            });
            coarse.scores(held.vector(index), &mut scaled, &mut bytes, &mut scores);
            select_best(&scores, LISTS_TRIED, &mut near);
            let mut tried: Vec<(u32, u32)> = near.iter().enumerate().map(|(rank, list)| (*list, rank as u32)).collect();
            tried.sort_unstable();
            calibration.push(HeldOutPoint {
                row: held.rows[index],
                index,
                codes,
                tried,
                next: 0,
                truth: TopK::new(TRUE_KEPT),
                best: KEPT.map(TopK::new),
            });
        }
        Ok(Self { held, calibration, _room: room })
    }

    /// All points look at a chunk; they are shared out over threads.
    pub(crate) fn see(&mut self, chunk: &CalibrationChunk<'_>, threads: usize) {
        let held = &self.held;
        let part = self.calibration.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for calibration in self.calibration.chunks_mut(part) {
                scope.spawn(move || {
                    see_all(held, calibration, chunk);
                    calibration.iter_mut().for_each(|held_out_point| held_out_point.try_lists(held, chunk));
                });
            }
        });
    }

    /// The curve that all of it makes.
    pub(crate) fn curve(self, coarse: &Coarse<'_>, lists: &[InvertedList], account: &Account) -> Result<Curve> {
        let mut scores = Buffer::<f32>::new(account, lists.len())?;
        let (mut scaled, mut bytes) = (Vec::new(), Vec::new());
        let mut answers = Vec::with_capacity(self.calibration.len());
        for held_out_point in self.calibration {
            coarse.scores(self.held.vector(held_out_point.index), &mut scaled, &mut bytes, &mut scores);
            let mut truth = held_out_point.truth.into_sorted();
            for seen in &mut truth {
                let list = lists.partition_point(|list| list.start <= seen.position) - 1;
                seen.rank = scores.iter().filter(|score| **score > scores[list]).count() as u32;
            }
            answers.push(HeldOutResult { truth, best: held_out_point.best.map(TopK::into_sorted) });
        }
        Ok(make_curve(&answers))
    }
}

/// The exact scores of a block of vectors for all points of a thread.
fn see_all(held: &HeldOut, calibration: &mut [HeldOutPoint], chunk: &CalibrationChunk<'_>) {
    let (Some(first), Some(last)) = (calibration.first(), calibration.last()) else { return };
    let dim = chunk.coding.dim;
    let queries = &held.vectors[first.index * dim..(last.index + 1) * dim];
    let panels = chunk.coding.rotation.map(|_| Panels::pack_dot(queries, calibration.len(), dim));
    let mut scores = vec![0.0; 64 * calibration.len()];
    let from = chunk.lists[0].start;
    for (block, (vectors, rows)) in chunk.vectors.chunks(64 * dim).zip(chunk.rows.chunks(64)).enumerate() {
        let scores = &mut scores[..rows.len() * calibration.len()];
        match &panels {
            Some(panels) => panels.scores(vectors, scores),
            None => {
                for (x, scores) in vectors.chunks_exact(dim).zip(scores.chunks_exact_mut(calibration.len())) {
                    for (query, out) in queries.chunks_exact(dim).zip(scores) {
                        *out = score(Metric::Manhattan, query, x);
                    }
                }
            }
        }
        for (at, (row, scores)) in rows.iter().zip(scores.chunks_exact(calibration.len())).enumerate() {
            let position = from + (block * 64 + at) as u32;
            let x = &vectors[at * dim..(at + 1) * dim];
            let less = if chunk.coding.metric == Metric::Euclid { dot(x, x) / 2.0 } else { 0.0 };
            for (held_out_point, score) in calibration.iter_mut().zip(scores) {
                let score = score - less;
                if score > held_out_point.truth.least() && *row != held_out_point.row {
                    held_out_point.truth.push(Seen { score, position, error: 0.0, rank: 0 });
                }
            }
        }
    }
}

impl HeldOutPoint {
    /// Looks at the codes of those lists of the chunk that are near.
    fn try_lists(&mut self, held: &HeldOut, chunk: &CalibrationChunk<'_>) {
        let dim = chunk.coding.dim;
        let query = held.vector(self.index);
        let square = dot(query, query);
        let mut centroid = vec![0.0; dim];
        while let Some((list, rank)) = self.tried.get(self.next).copied() {
            let Some(at) = (list as usize).checked_sub(chunk.first_list).filter(|at| *at < chunk.lists.len()) else {
                return;
            };
            self.next += 1;
            chunk.coarse.centroid(list as usize, &mut centroid);
            let centroid_dot = dot(query, &centroid);
            let list = &chunk.lists[at];
            let centroid_distance = (square + list.square - 2.0 * centroid_dot).max(0.0).sqrt();
            let shared_term =
                if chunk.coding.metric == Metric::Euclid { centroid_dot - list.square / 2.0 } else { centroid_dot };
            let Some(codes) = codes_of(chunk, at) else { return };
            if chunk.coding.rotation.is_some() {
                self.try_codes(chunk, list, rank, shared_term, centroid_distance, codes);
            } else {
                self.try_bytes(chunk, list, rank, query, &centroid, codes);
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one list with all that it is scored by")]
    fn try_codes(
        &mut self,
        chunk: &CalibrationChunk<'_>,
        list: &InvertedList,
        rank: u32,
        shared_term: f32,
        centroid_distance: f32,
        list_codes: ListCodes<'_>,
    ) {
        let Some(codes) = &self.codes else { return };
        let (dim, widths) = (chunk.coding.dim, widths());
        let block = block_bytes(dim);
        let blocks = (list.count as usize).div_ceil(BLOCK);
        let bytes = &list_codes.blocks[..blocks * block];
        let mut survivors = Survivors::default();
        let slack = SLACK_MOST * ERROR * centroid_distance;
        for from in (0..blocks).step_by(16) {
            let to = (from + 16).min(blocks);
            let lanes = 0..(list.count as usize - from * BLOCK).min((to - from) * BLOCK);
            let threshold = self.best[0].least().min(self.best[2].least());
            let probe = Probe { linear: linear(&list.factors[0]), base: shared_term, slack, threshold };
            survivors.clear();
            codes.scan(&bytes[from * block..to * block], lanes, &probe, &mut survivors);
            for place in &survivors.places {
                let place = from * BLOCK + *place as usize;
                let position = list.start + place as u32;
                if chunk.rows[(position - chunk.lists[0].start) as usize] == self.row {
                    continue;
                }
                let one = &bytes[place / BLOCK * block..(place / BLOCK + 1) * block];
                let (score, margin) = codes.scan_one(one, place % BLOCK, &probe);
                self.best[0].push(Seen { score, position, error: margin / SLACK_MOST, rank });
                for (width, records) in [(1, list_codes.narrow), (2, list_codes.wide)] {
                    let record_bytes = record_bytes(widths[width], dim);
                    let record = &records[place * record_bytes..][..record_bytes];
                    let score = estimate(codes, width, record, list, shared_term);
                    self.best[width].push(Seen { score, position, error: 0.0, rank });
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one list with all that it is scored by")]
    fn try_bytes(
        &mut self,
        chunk: &CalibrationChunk<'_>,
        list: &InvertedList,
        rank: u32,
        query: &[f32],
        centroid: &[f32],
        list_codes: ListCodes<'_>,
    ) {
        let (dim, step) = (chunk.coding.dim, list.factors[0][0].step);
        let mut bytes = Vec::with_capacity(dim);
        let outside = query_bytes(query, centroid, step, &mut bytes);
        let records = list_codes.narrow.chunks_exact(dim).take(list.count as usize);
        for (position, record) in list.positions().zip(records) {
            if chunk.rows[(position - chunk.lists[0].start) as usize] != self.row {
                let score = -(outside + step * sad(&bytes, record) as f32);
                self.best.iter_mut().for_each(|best| best.push(Seen { score, position, error: 0.0, rank }));
            }
        }
    }
}

/// The codes of one list.
#[derive(Clone, Copy)]
struct ListCodes<'a> {
    blocks: &'a [u8],
    narrow: &'a [u8],
    wide: &'a [u8],
}

/// The codes of the list at `at` of a chunk; each thread coded one run of its lists.
fn codes_of<'a>(chunk: &'a CalibrationChunk<'_>, mut at: usize) -> Option<ListCodes<'a>> {
    for coded in &chunk.coded {
        if let Some([blocks, narrow, wide]) = coded.starts.get(at) {
            let (blocks, narrow, wide) = (&coded.blocks[*blocks..], &coded.narrow[*narrow..], &coded.wide[*wide..]);
            return Some(ListCodes { blocks, narrow, wide });
        }
        at -= coded.starts.len();
    }
    None
}

/// What one held-out point met: its true nearest, and the best by each width.
struct HeldOutResult {
    truth: Vec<Seen>,
    best: [Vec<Seen>; 3],
}

/// The known that a code is measured against: this many good candidates stand before it.
const KNOWN: usize = 15;

fn make_curve(answers: &[HeldOutResult]) -> Curve {
    let ranks = |nearest: usize| {
        let mut ranks: Vec<u32> =
            answers.iter().flat_map(|answer| answer.truth.iter().take(nearest).map(|seen| seen.rank)).collect();
        ranks.sort_unstable();
        ranks
    };
    let (ten, hundred) = (ranks(NEAREST), ranks(TRUE_KEPT));
    let mut curve = Curve { steps: Vec::new(), points: answers.len() };
    if ten.is_empty() {
        return curve;
    }
    for recall in RECALLS {
        let missed = 1.0 - recall;
        let nprobe = quantile(&ten, MISSED_LISTS * missed) + 1;
        let asks = asks(answers, nprobe.min(LISTS_TRIED as u32));
        let place = |width: usize, missed: f32| quantile(&asks.places[width], missed) as f32 + 1.0;
        let errors = |slack: &[Slack]| match slack.len() {
            0 => SLACK_MOST,
            _ => quantile(slack, MISSED_SLACK * missed).0,
        };
        curve.steps.push(Step {
            recall,
            nprobe: nprobe as f32,
            nprobe_hundred: quantile(&hundred, MISSED_LISTS * missed) as f32 + 1.0,
            slack: errors(&asks.slack),
            bound: errors(&asks.bound),
            narrow: place(0, MISSED_CANDIDATES * missed),
            wide: [place(1, MISSED_CANDIDATES * missed), place(2, MISSED_CANDIDATES * missed)],
        });
    }
    curve.make_monotone();
    curve
}

/// What the true neighbours within the first lists ask, each sorted.
#[derive(Default)]
struct Asks {
    /// How far its 1-bit code is below the known, and below the tenth nearest.
    slack: Vec<Slack>,
    bound: Vec<Slack>,
    /// Their place among the candidates of each width.
    places: [Vec<u32>; 3],
}

/// Standard errors, sortable.
#[derive(Clone, Copy, PartialEq, PartialOrd, Default)]
struct Slack(f32);

fn asks(answers: &[HeldOutResult], nprobe: u32) -> Asks {
    let mut asks = Asks::default();
    for answer in answers {
        let within = |width: usize| answer.best[width].iter().filter(move |seen| seen.rank < nprobe);
        let known = within(2).nth(KNOWN).map_or(f32::NEG_INFINITY, |seen| seen.score);
        let tenth = answer.truth.get(NEAREST - 1).map_or(f32::NEG_INFINITY, |seen| seen.score);
        for truth in answer.truth.iter().take(NEAREST).filter(|truth| truth.rank < nprobe) {
            for (width, (places, kept)) in asks.places.iter_mut().zip(KEPT).enumerate() {
                let place = within(width).position(|seen| seen.position == truth.position);
                places.push(place.unwrap_or(kept) as u32);
            }
            let found = within(0).find(|seen| seen.position == truth.position);
            let below = |bar: f32| {
                Slack(match found {
                    Some(seen) if seen.score < bar => ((bar - seen.score) / seen.error.max(1e-30)).min(SLACK_MOST),
                    Some(_) => 0.0,
                    None => SLACK_MOST,
                })
            };
            asks.slack.push(below(known));
            asks.bound.push(below(tenth));
        }
    }
    asks.places.iter_mut().for_each(|places| places.sort_unstable());
    for slack in [&mut asks.slack, &mut asks.bound] {
        slack.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    }
    asks
}

/// The value that all but the share `missed` of sorted values stay at or below.
fn quantile<T: Copy + Default>(sorted: &[T], missed: f32) -> T {
    let above = (sorted.len() as f32 * missed.clamp(0.0, 1.0)) as usize;
    sorted.get((sorted.len() - above.min(sorted.len())).saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_kept_and_ties_go_to_the_first() {
        let mut best = TopK::new(3);
        for (position, score) in [1.0, 5.0, 3.0, 5.0, -1.0, 3.0].into_iter().enumerate() {
            best.push(Seen { score, position: position as u32, error: 0.0, rank: 0 });
        }
        let positions: Vec<u32> = best.into_sorted().iter().map(|seen| seen.position).collect();
        assert_eq!(positions, [1, 3, 2]);
    }

    #[test]
    fn quantiles_leave_out_their_share() {
        let values: Vec<u32> = (0..100).collect();
        assert_eq!(quantile(&values, 0.05), 94);
        assert_eq!(quantile(&values, 0.0), 99);
        assert_eq!(quantile(&values, 1.0), 0);
        assert_eq!(quantile::<u32>(&[], 0.5), 0);
    }
}
