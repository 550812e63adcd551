//! Few rows may be found: of the nearest lists only those are looked at.
//!
//! ```text
//!   rows, a bit each ─► their positions, a bit each
//!   the nearest lists, as many as hold k of them ─► those with a bit ─► its widest resident code ─► the best few
//! ```
//!
//! So a list without one of the rows costs next to nothing, and where the rows are very few all lists are gone through.
//! Where the tables that this needs are not resident, lists are scanned as ever.

use crate::format::coarse::Coarse;
use crate::format::encode::{ERROR, linear};
use crate::format::index::Index;
use crate::format::layout::InvertedList;
use crate::search::request::{ClusterOrder, IndexSearchContext, SearchParams, Watch};
use crate::search::rescore;
use crate::search::scan::{WAITING, prefetch, refine};
use crate::search::scratch::{Candidate, Scratch, Tally};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result, cancel};
use ramekin_pages::{Pages, Section};
use ramekin_vecmath::{BLOCK, Probe, select_unordered};

/// Bytes of positions that are read together.
const SPAN_BYTES: usize = 128 << 10;
/// Positions between two looks whether the search is still wanted.
const STEP: usize = 4096;
/// Lists that are looked at before what waits is refined.
const SLOTS: usize = 256;
/// The nearest lists hold so many times as many of the rows as are wanted, or all lists are gone through.
const ENOUGH: usize = 4;

impl IndexSearchContext<'_, '_> {
    /// Adds the best of `found` to the candidates of the other indexes. False: the tables are not resident.
    pub(crate) fn collect_found(&self, scratch: &mut Scratch, which: u32, found: &ClusterOrder<'_>) -> Result<bool> {
        let (index, shape) = (self.index, &self.index.shape);
        let (Some(centroids), Some(clusters)) = (index.centroids.resident(), index.clusters.resident()) else {
            return Ok(false);
        };
        let Some(rotation) = index.rotation().filter(|_| self.wide.is_some() || self.codes1.is_some()) else {
            return Ok(false);
        };
        scratch.fit(shape.dim, shape.lists, SLOTS, self.kept().max(self.k) + scratch.chosen.len())?;
        let mut watch = Watch::start(self.params.clock);
        if let Some(codes) = &mut scratch.codes {
            scratch.rotated.resize(shape.dim, 0.0);
            rotation.rotate(self.query, &mut scratch.rotated);
            codes.prepare(&scratch.rotated);
        }
        let coarse = Coarse::new(&centroids, shape.lists, shape.dim, shape.metric, index.meta.length)?;
        let share = found.count as f64 / shape.rows.max(1) as f64;
        let near = index.lists_for(self.k, share, self.params, self.narrow);
        // Where most lists are wanted, it costs less to go through all of them than to choose.
        let are_chosen = near * 2 < shape.lists;
        if are_chosen {
            scratch.scores.resize(shape.lists, 0.0);
            coarse.scores(self.query, &mut scratch.scaled, &mut scratch.bytes, &mut scratch.scores);
            select_unordered(&scratch.scores, near, &mut scratch.near);
        }
        coarse.prepare(self.query, &mut scratch.scaled);
        scratch.profile.coarse_us += watch.lap();
        let mut looked = 0;
        if are_chosen {
            let near = std::mem::take(&mut scratch.near);
            looked = self.look(scratch, &coarse, &clusters, within(found.words, &clusters, &near))?;
            scratch.near = near;
        }
        if looked < found.count.min(self.k * ENOUGH) {
            looked = self.look(scratch, &coarse, &clusters, of_all(found.words, &clusters))?;
        }
        scratch.tally = Tally::default();
        scratch.profile.codes += looked as u64;
        scratch.profile.scan_us += watch.lap();
        rescore::gather(scratch, which);
        Ok(true)
    }

    /// Takes the best of some positions, each with its list, list by list; returns how many there are.
    fn look(
        &self,
        scratch: &mut Scratch,
        coarse: &Coarse<'_>,
        clusters: &[u8],
        found: impl Iterator<Item = (u32, u32)>,
    ) -> Result<usize> {
        scratch.best.begin(self.kept());
        scratch.pending.clear();
        scratch.slots.clear();
        let (mut looked, mut newest) = (0, None);
        for (number, position) in found {
            if looked % STEP == 0 {
                cancel::check()?;
            }
            if newest != Some(number) {
                newest = Some(number);
                let list = self.index.list(clusters, number as usize, 0)?;
                if scratch.slots.len() == SLOTS {
                    refine(self, scratch);
                    scratch.slots.clear();
                }
                let centroid_dot = coarse.along(&scratch.scaled, number as usize);
                scratch.slots.push(self.slot(number, list, centroid_dot));
                scratch.profile.clusters += 1;
            }
            self.look_at(scratch, position);
            looked += 1;
        }
        refine(self, scratch);
        Ok(looked)
    }

    /// Takes a vector of the newest slot as a candidate.
    fn look_at(&self, scratch: &mut Scratch, position: u32) {
        let slot = scratch.slots.len() - 1;
        if let Some((width, bytes)) = &self.wide {
            let record_layout = if *width == 2 { &self.index.shape.wide } else { &self.index.shape.narrow };
            prefetch(bytes, record_layout.at(position), record_layout.record);
            scratch.pending.push(Candidate { estimate: f32::INFINITY, margin: 0.0, position, slot: slot as u32 });
            if scratch.pending.len() >= WAITING {
                refine(self, scratch);
            }
            return;
        }
        let Scratch { codes: Some(codes), slots, best, .. } = scratch else { return };
        let (own, Some(bytes)) = (&slots[slot], self.codes1.as_deref()) else { return };
        let (block, place) = (self.index.shape.block_bytes(), (position - own.list.start) as usize);
        let slack = self.effort.bound * ERROR * own.centroid_distance;
        let probe = Probe { linear: linear(&own.list.factors[0]), base: own.shared_term, slack, threshold: 0.0 };
        let one = &bytes[(own.list.block as usize + place / BLOCK) * block..][..block];
        let (estimate, margin) = codes.scan_one(one, place % BLOCK, &probe);
        if estimate + margin > self.score_bar {
            best.push(Candidate { estimate, margin, position, slot: slot as u32 });
        }
    }
}

/// The bits that are set, the lowest bit of the first word being `first`.
fn each(words: &[u64], first: u32) -> impl Iterator<Item = u32> + '_ {
    words.iter().zip((first..).step_by(64)).flat_map(|(word, first)| {
        let mut word = *word;
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros();
            word &= word.wrapping_sub(1);
            (bit < 64).then_some(first + bit)
        })
    })
}

impl Index {
    /// Whether a search may look at some positions only: what that needs is resident.
    pub fn can_look(&self, params: &SearchParams<'_>) -> bool {
        let codes = [self.wide.as_ref(), Some(&self.narrow), self.codes1.as_ref()];
        let has_codes = self.rotation().is_some() && codes.into_iter().flatten().any(Section::is_resident);
        let resident = [&self.centroids, &self.clusters].into_iter().all(Section::is_resident);
        // Positions are read without being counted.
        resident && has_codes && (params.max_reads.is_none() || self.positions.is_resident())
    }

    /// Sets the bits of the positions of some rows; both have a bit for each row of the index.
    pub fn positions_of(&self, pages: &Pages, rows: &[u64], positions: &mut [u64]) -> Result<()> {
        let packed = self.packed();
        let mut set = |position: u32| {
            let position = self.checked(position)?;
            positions[position as usize / 64] |= 1 << (position % 64);
            Ok::<_, Error>(())
        };
        if let Some(section) = self.positions.resident() {
            return each(rows, 0).try_for_each(|row| set(packed.get(&section, 0, row)));
        }
        // Rows of whole words.
        let span = SPAN_BYTES / packed.bits as usize / 8;
        for (number, words) in rows.chunks(span).enumerate() {
            let first = (number * span * 64) as u32;
            let mut near = each(words, first);
            let count = words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            let mut fetch = pages.fetch();
            // Where most pages of a span hold one of the rows, it is read in one piece.
            if count * PAGE * 2 >= SPAN_BYTES {
                let end = (first as usize + words.len() * 64).min(self.shape.rows) as u32;
                let range = packed.range(first, (end - first) as usize);
                let want = fetch.want(&self.positions, range.start as u64, range.len())?;
                let pinned = fetch.run()?;
                let bytes = pinned.bytes(want);
                near.try_for_each(|row| set(packed.get(bytes, range.start, row)))?;
                continue;
            }
            let mut wants = Vec::with_capacity(count);
            for row in near {
                let range = packed.range(row, 1);
                wants.push((row, fetch.want(&self.positions, range.start as u64, range.len())?, range.start));
            }
            let pinned = fetch.run()?;
            wants.into_iter().try_for_each(|(row, want, from)| set(packed.get(pinned.bytes(want), from, row)))?;
        }
        Ok(())
    }
}

/// The positions in some lists that have a bit, each with its list.
fn within<'a>(words: &'a [u64], clusters: &'a [u8], lists: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
    let of = move |list: u32| {
        let positions = InvertedList::positions_at(clusters, list as usize);
        let from = positions.start / 64;
        // What is wrong with a list is seen when it is read.
        let to = (positions.end.div_ceil(64) as usize).min(words.len());
        let words = words.get(from as usize..to).unwrap_or_default();
        each(words, from * 64)
            .filter(move |position| positions.contains(position))
            .map(move |position| (list, position))
    };
    lists.iter().copied().flat_map(of)
}

/// All positions that have a bit, each with its list: lists lie one behind the other.
fn of_all<'a>(words: &'a [u64], clusters: &'a [u8]) -> impl Iterator<Item = (u32, u32)> + 'a {
    let (mut list, mut positions) = (0, InvertedList::positions_at(clusters, 0));
    let lists = (clusters.len() / size_of::<InvertedList>()) as u32;
    each(words, 0).filter_map(move |position| {
        while position >= positions.end && list + 1 < lists {
            list += 1;
            positions = InvertedList::positions_at(clusters, list as usize);
        }
        positions.contains(&position).then_some((list, position))
    })
}
