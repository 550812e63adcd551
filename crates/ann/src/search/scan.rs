//! The middle step of a search: the codes of the nearest lists.
//!
//! ```text
//!   list ──► 1-bit scan, bound against the known ──► filter ──► wait for their wider code to arrive ──► refine
//!              (the next list is scanned meanwhile)                                                      │
//!              the known = the least of the best few  ◄──────────────────────────────────────────────────┘
//! ```

use crate::format::encode::{ERROR, estimate_of, linear, query_bytes, widths};
use crate::format::index::FETCH_BYTES;
use crate::format::layout::InvertedList;
use crate::search::request::IndexSearchContext;
use crate::search::scratch::{Candidate, SCAN_AT_A_TIME, Scratch, Tally};
use ramekin_base::limits::PAGE;
use ramekin_base::{Result, cancel};
use ramekin_vecmath::{BLOCK, Metric, Probe, sad};
use std::ops::Range;

/// Survivors that wait for their wider codes before they are refined together.
pub(crate) const WAITING: usize = 32;

/// Blocks of the next list's codes that are fetched from memory while one is scanned.
const AHEAD_BLOCKS: usize = 16;

/// Scans the slots from `first` on.
pub(crate) fn scan(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, first: usize) -> Result<()> {
    scratch.best.begin(context.kept());
    scratch.pending.clear();
    scratch.tally = Tally::default();
    let slots = first..scratch.slots.len();
    scratch.profile.clusters += slots.len() as u64;
    if context.codes_resident() {
        for slot in slots {
            cancel::check()?;
            scan_resident(context, scratch, slot)?;
        }
    } else {
        scan_paged(context, scratch, slots)?;
    }
    refine(context, scratch);
    Ok(())
}

fn scan_resident(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, slot: usize) -> Result<()> {
    let list = scratch.slots[slot].list;
    let shape = &context.index.shape;
    let rows = context.rows.as_deref().unwrap_or_default();
    if let Some(codes) = context.codes1.as_deref() {
        let block = shape.block_bytes();
        let start = list.block as usize * block;
        let next = scratch.slots.get(slot + 1).map_or(&[][..], |next| {
            let from = next.list.block as usize * block;
            &codes[from..from + (next.list.count as usize).div_ceil(BLOCK).min(AHEAD_BLOCKS) * block]
        });
        for lanes in pieces(list.count) {
            let from = start + lanes.start / BLOCK * block;
            let to = start + lanes.end.div_ceil(BLOCK) * block;
            let piece = Piece { slot, lanes, codes: &codes[from..to], next, rows, rows_from: 0 };
            scan_piece(context, scratch, &piece)?;
        }
        return Ok(());
    }
    // Where wide codes alone are at hand, each of the list is looked at.
    for lanes in pieces(list.count) {
        scratch.profile.codes += lanes.len() as u64;
        let positions = list.start + lanes.start as u32..list.start + lanes.end as u32;
        let piece = Piece { slot, lanes, codes: &[], next: &[], rows, rows_from: 0 };
        for position in positions {
            if passes(context, &piece, position, &mut scratch.tally) {
                let slot = slot as u32;
                scratch.pending.push(Candidate { estimate: f32::INFINITY, margin: 0.0, position, slot });
            }
        }
        refine(context, scratch);
    }
    Ok(())
}

/// Lanes of a list, so many at a time that what passes has room.
fn pieces(count: u32) -> impl Iterator<Item = Range<usize>> {
    let count = count as usize;
    (0..count).step_by(SCAN_AT_A_TIME).map(move |from| from..(from + SCAN_AT_A_TIME).min(count))
}

/// Lists that are not in memory: as many at a time as one fetch may name, with their rows if a filter asks for those.
fn scan_paged(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, slots: Range<usize>) -> Result<()> {
    let shape = &context.index.shape;
    let mut todo = slots.flat_map(|slot| pieces(scratch.slots[slot].list.count).map(move |lanes| (slot, lanes)));
    let todo: Vec<(usize, Range<usize>)> = todo.by_ref().collect();
    let mut at = 0;
    // Of the first index one list is scanned in any case.
    let first = scratch.chosen.is_empty();
    let reads = context.reads_codes();
    while at < todo.len() && (!reads || scratch.reads.has_for_codes() || first && at == 0) {
        let mut fetch = context.pages.fetch();
        let mut wants = Vec::new();
        while let Some((slot, lanes)) = todo.get(at) {
            let list = &scratch.slots[*slot].list;
            let range = context.codes_range(list, lanes);
            let is_full = fetch.pages() * PAGE + range.len() > FETCH_BYTES;
            if !wants.is_empty() && (is_full || reads && !scratch.reads.has_for_codes()) {
                break;
            }
            let before = fetch.pages();
            let section = context.index.codes1.as_ref().unwrap_or(&context.index.narrow);
            let codes = fetch.want(section, range.start as u64, range.len())?;
            let rows = if context.asks_rows() {
                let range = shape.packed.range(list.start + lanes.start as u32, lanes.len());
                Some((fetch.want(&context.index.rows, range.start as u64, range.len())?, range.start))
            } else {
                None
            };
            scratch.reads.spend(fetch.pages() - before);
            wants.push((codes, rows));
            at += 1;
        }
        scratch.profile.pages += fetch.pages() as u64;
        let pinned = fetch.run()?;
        for ((slot, lanes), (codes, rows)) in todo[at - wants.len()..at].iter().zip(&wants) {
            let rows_from = rows.map_or(0, |(_, from)| from);
            let rows = rows.map_or(&[][..], |(rows, _)| pinned.bytes(rows));
            let piece =
                Piece { slot: *slot, lanes: lanes.clone(), codes: pinned.bytes(*codes), next: &[], rows, rows_from };
            scan_piece(context, scratch, &piece)?;
        }
    }
    Ok(())
}

/// A run of codes of one list.
struct Piece<'a> {
    slot: usize,
    /// Places within the list; a multiple of a block at the start.
    lanes: Range<usize>,
    codes: &'a [u8],
    /// The codes that are scanned after these, or none.
    next: &'a [u8],
    /// Bytes of the rows' section that hold the run's, and where in the section they begin.
    rows: &'a [u8],
    rows_from: usize,
}

impl IndexSearchContext<'_, '_> {
    /// Whether a scan reads pages that are not resident.
    pub(crate) fn reads_codes(&self) -> bool {
        let section = self.index.codes1.as_ref().unwrap_or(&self.index.narrow);
        !self.codes_resident() && !(section.is_resident() && (!self.asks_rows() || self.rows.is_some()))
    }

    /// Whether the filter is asked by rows.
    fn asks_rows(&self) -> bool {
        self.params.filter.is_some() && self.params.positions.is_none()
    }

    fn codes_resident(&self) -> bool {
        (self.codes1.is_some() || self.wide.is_some()) && (!self.asks_rows() || self.rows.is_some())
    }

    /// Where the narrowest codes of some places of a list lie in their section.
    fn codes_range(&self, list: &InvertedList, lanes: &Range<usize>) -> Range<usize> {
        let shape = &self.index.shape;
        match shape.metric {
            Metric::Manhattan => {
                let last = shape.narrow.at(list.start + lanes.end as u32 - 1);
                shape.narrow.at(list.start + lanes.start as u32)..last + shape.narrow.record
            }
            _ => {
                let block = shape.block_bytes();
                let first = list.block as usize + lanes.start / BLOCK;
                first * block..(list.block as usize + lanes.end.div_ceil(BLOCK)) * block
            }
        }
    }
}

fn scan_piece(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, piece: &Piece<'_>) -> Result<()> {
    scratch.profile.codes += piece.lanes.len() as u64;
    if context.index.shape.metric == Metric::Manhattan {
        return scan_bytes(context, scratch, piece);
    }
    let Scratch { codes: Some(codes), survivors, slots, best, dots, .. } = scratch else { return Ok(()) };
    let slot = &slots[piece.slot];
    // Where nothing wider is at hand, the estimate itself decides.
    let slack = if context.narrow { context.effort.bound } else { context.effort.slack };
    let error = slack * ERROR * slot.centroid_distance;
    let line = linear(&slot.list.factors[0]);
    let (slack, threshold) = match context.wide {
        Some(_) => (error, best.least().max(context.score_bar)),
        None => (0.0, best.least().max(context.score_bar - slot.max_error_factor * error)),
    };
    let probe = Probe { linear: line, base: slot.shared_term, slack, threshold };
    survivors.clear();
    codes.scan_ahead(piece.codes, piece.next, 0..piece.lanes.len(), &probe, survivors);
    let (margin, first) = (slot.max_error_factor * error, best.kept() * 2);
    if context.narrow {
        keep_survivors(context, scratch, piece, &Probe { slack: error, ..probe });
        return Ok(());
    }
    let mut rest = f32::INFINITY;
    if !best.is_full() && survivors.len() > first * 2 {
        // While nothing is known everything passes: the most promising go first, so that most of the rest need not.
        dots.clear();
        dots.extend_from_slice(&survivors.estimates);
        rest = *dots.select_nth_unstable_by(first - 1, |a, b| b.total_cmp(a)).1;
        send_survivors(context, scratch, piece, rest..f32::INFINITY);
        refine(context, scratch);
    }
    let known = scratch.best.least().max(context.score_bar);
    send_survivors(context, scratch, piece, known - margin..rest);
    if scratch.pending.len() >= WAITING {
        refine(context, scratch);
    }
    Ok(())
}

/// Survivors of these estimates are to be refined by their wider codes, which are asked for.
fn send_survivors(
    context: &IndexSearchContext<'_, '_>,
    scratch: &mut Scratch,
    piece: &Piece<'_>,
    estimates: Range<f32>,
) {
    let Some((width, bytes)) = &context.wide else { return };
    let record_layout = if *width == 2 { &context.index.shape.wide } else { &context.index.shape.narrow };
    let Scratch { survivors, slots, pending, tally, .. } = scratch;
    let first = slots[piece.slot].list.start + piece.lanes.start as u32;
    for (place, estimate) in survivors.places.iter().zip(&survivors.estimates) {
        let position = first + place;
        if estimates.contains(estimate) && passes(context, piece, position, tally) {
            prefetch(bytes, record_layout.at(position), record_layout.record);
            pending.push(Candidate { estimate: *estimate, margin: 0.0, position, slot: piece.slot as u32 });
        }
    }
}

/// Survivors are candidates by their estimates alone, each with its error bound.
fn keep_survivors(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, piece: &Piece<'_>, probe: &Probe) {
    let Scratch { codes: Some(codes), survivors, slots, best, tally, .. } = scratch else { return };
    let first = slots[piece.slot].list.start + piece.lanes.start as u32;
    let block = context.index.shape.block_bytes();
    for (place, estimate) in survivors.places.iter().zip(&survivors.estimates) {
        let position = first + place;
        if passes(context, piece, position, tally) {
            let one = &piece.codes[*place as usize / BLOCK * block..][..block];
            let (_, margin) = codes.scan_one(one, *place as usize % BLOCK, probe);
            best.push(Candidate { estimate: *estimate, margin, position, slot: piece.slot as u32 });
        }
    }
}

/// Whether the filter lets a vector through.
#[inline]
fn passes(context: &IndexSearchContext<'_, '_>, piece: &Piece<'_>, position: u32, tally: &mut Tally) -> bool {
    let passed = match (&context.params.positions, context.params.filter) {
        (Some(found), _) => found.holds(position),
        (None, Some(filter)) => filter(context.index.packed().get(piece.rows, piece.rows_from, position)),
        (None, None) => return true,
    };
    tally.asked += 1;
    tally.passed += u64::from(passed);
    passed
}

/// Manhattan: sums of absolute differences of bytes.
fn scan_bytes(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch, piece: &Piece<'_>) -> Result<()> {
    let (shape, slot) = (&context.index.shape, scratch.slots[piece.slot]);
    let step = slot.list.factors[0][0].step;
    context.index.centroid(context.pages, slot.index as usize, &mut scratch.scaled)?;
    let outside = query_bytes(context.query, &scratch.scaled, step, &mut scratch.bytes);
    // Both are rounded evenly, in each dimension: four standard errors of the sum.
    let margin = step * 4.0 * (shape.dim as f32 / 6.0).sqrt();
    let first = slot.list.start + piece.lanes.start as u32;
    let from = shape.narrow.at(first);
    for position in first..first + piece.lanes.len() as u32 {
        let at = shape.narrow.at(position) - from;
        let estimate = -(outside + step * sad(&scratch.bytes, &piece.codes[at..at + shape.dim]) as f32);
        let is_near = estimate > scratch.best.least() && estimate + margin > context.score_bar;
        if is_near && passes(context, piece, position, &mut scratch.tally) {
            scratch.best.push(Candidate { estimate, margin, position, slot: piece.slot as u32 });
        }
    }
    Ok(())
}

/// Refines what waits, but for what no longer passes: its wider codes were asked for, and have arrived by now.
pub(crate) fn refine(context: &IndexSearchContext<'_, '_>, scratch: &mut Scratch) {
    let Some((width, bytes)) = &context.wide else { return };
    let Scratch { codes: Some(codes), slots, best, pending, starts, dots, profile, .. } = scratch else { return };
    let record_layout = if *width == 2 { &context.index.shape.wide } else { &context.index.shape.narrow };
    let known = best.least().max(context.score_bar);
    let (error, bound) = (context.effort.slack * ERROR, context.effort.bound * ERROR);
    let mut kept = 0;
    starts.clear();
    for at in 0..pending.len() {
        let slot = &slots[pending[at].slot as usize];
        if pending[at].estimate + slot.max_error_factor * error * slot.centroid_distance > known {
            starts.push(record_layout.at(pending[at].position));
            pending[kept] = pending[at];
            kept += 1;
        }
    }
    profile.refined += kept as u64;
    dots.resize(kept, 0.0);
    codes.dots_at(widths()[*width], bytes, starts, dots);
    for ((candidate, start), dot) in pending.iter().zip(starts.iter()).zip(dots.iter()) {
        let slot = &slots[candidate.slot as usize];
        let spans = &slot.list.factors[*width];
        let factors = &bytes[start + record_layout.record - 4..start + record_layout.record];
        let estimate = estimate_of(*dot, factors, spans, slot.shared_term);
        // What is scored exactly later may lie under the bar by its estimate alone.
        let margin = (spans[0].least + f32::from(u16::MAX) * spans[0].step) * bound * slot.centroid_distance;
        if estimate > best.least() && estimate + margin > context.score_bar {
            best.push(Candidate { estimate, margin, ..*candidate });
        }
    }
    pending.clear();
}

/// Asks the processor for the cache lines of some bytes.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], at: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let end = (at + len).min(bytes.len());
        let mut line = at;
        while line < end {
            // SAFETY: inside the slice; and a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(line).cast()) };
            line += 64;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at, len);
}
