//! A search: from a query to its nearest vectors.
//!
//! ```text
//!   coarse    all centroids in int8 ──► the nearest lists, their <q, c> and |q - c|
//!   scan      their 1-bit codes: what passes the known by its error bound ...
//!             ... is refined with the widest resident code ──► the best few
//!   widen     more lists where a filter lets little through
//!   rescore   those of all indexes by the full vectors, all reads in one batch ──► the k nearest, exact
//! ```
//!
//! What is resident is a plain slice. What is not is named, fetched in one batch a step, and pinned while it is used.

pub(crate) mod direct;
pub(crate) mod exact;
pub(crate) mod request;
pub(crate) mod rescore;
pub(crate) mod scan;
pub(crate) mod scratch;
pub(crate) mod widen;

use crate::format::coarse::Coarse;
use crate::format::curve::{SearchEffort, recall_of_ef, with_safety_margin};
use crate::format::index::{FETCH_BYTES, Index};
use crate::format::layout::InvertedList;
use crate::search::request::{Hit, IndexSearchContext, Profile, Scanned, SearchParams, SearchRequest, Watch};
use crate::search::scratch::{ProbedList, Reads, Scratch};
use ramekin_base::{Error, Result};
use ramekin_pages::{Pages, Section};
use ramekin_vecmath::{Metric, dot, select_best};
use std::ops::Range;

/// A search over several indexes: each is scanned by itself, then the best of all are rescored together, so that all
/// reads of a round are one batch, and what one index found is the bar for the next.
pub struct Search<'a> {
    pub(crate) request: SearchRequest<'a>,
    pub(crate) scratch: &'a mut Scratch,
    /// Of an exact search: the best of the indexes so far, and how many they are.
    exact: Vec<Hit>,
    exact_count: u32,
}

impl<'a> Search<'a> {
    /// A search for the `k` nearest vectors that score above `threshold`, if there is one. Under Cosine the query has
    /// length 1.
    pub fn begin(
        pages: &'a Pages,
        query: &'a [f32],
        k: usize,
        threshold: Option<f32>,
        scratch: &'a mut Scratch,
    ) -> Self {
        scratch.profile = Profile::default();
        scratch.chosen.clear();
        scratch.counted = 0;
        scratch.exact.begin(k);
        let request = SearchRequest { pages, query, square: dot(query, query), k, threshold, scanned: Vec::new() };
        Self { request, scratch, exact: Vec::new(), exact_count: 0 }
    }

    /// How many hits are asked for.
    pub fn wanted(&self) -> usize {
        self.request.k
    }

    /// The best of some indexes, best first, into `hits`. The indexes have one metric, and are searched exactly all or
    /// none; that with the most vectors that pass its filter is first best.
    pub fn run(mut self, parts: &[(&'a Index, SearchParams<'_>)], hits: &mut Vec<Hit>) -> Result<()> {
        let most = parts.first().and_then(|(_, params)| params.max_reads);
        self.scratch.reads = most.map_or(Reads::ENDLESS, |most| Reads::of(most, self.request.k));
        // Estimates of what has no square would be no numbers, and lose points.
        let is_huge = !self.request.square.is_finite() || parts.iter().any(|(index, _)| index.meta.has_huge());
        let is_exact = is_huge || parts.first().is_some_and(|(_, params)| params.exact);
        for (index, params) in parts {
            index.check_query(self.request.query)?;
            match is_exact {
                true => self.scan_exactly(index, params)?,
                false => self.scan(index, params)?,
            }
        }
        for (which, (_, params)) in parts.iter().enumerate().take(self.request.scanned.len()) {
            self.widen(which, params)?;
        }
        let params = parts.first().map_or(SearchParams::default(), |(_, params)| *params);
        self.finish(&params, hits)
    }

    /// Takes the candidates of an index.
    fn scan(&mut self, index: &'a Index, params: &SearchParams<'_>) -> Result<()> {
        let Self { request, scratch, .. } = self;
        if request.k == 0 {
            return Ok(());
        }
        let context = index.context(request, params, rescore::raise_bar(scratch));
        let which = request.scanned.len() as u32;
        let mut lists = context.effort.nprobe.min(index.shape.lists);
        let few = params.positions.filter(|found| found.each);
        let is_direct = few.map_or(Ok(false), |found| context.collect_found(scratch, which, &found))?;
        match is_direct {
            true => lists = index.shape.lists,
            false => context.collect(scratch, which, 0..lists)?,
        }
        let (kept, wide, tally) = (context.kept(), !context.narrow, scratch.tally);
        let IndexSearchContext { vectors, rows, .. } = context;
        request.scanned.push(Scanned { index, vectors, rows, wide, kept, lists, tally });
        Ok(())
    }

    fn scan_exactly(&mut self, index: &Index, params: &SearchParams<'_>) -> Result<()> {
        let SearchRequest { pages, query, k, threshold, .. } = self.request;
        if k == 0 {
            return Ok(());
        }
        let last = self.exact.get(k - 1).map(|hit| hit.score);
        let bar = last.into_iter().chain(threshold).reduce(f32::max);
        let from = self.exact.len();
        exact::search(index, pages, query, k, params, bar, self.scratch, &mut self.exact)?;
        self.exact[from..].iter_mut().for_each(|hit| hit.index = self.exact_count);
        self.exact_count += 1;
        self.exact.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.exact.truncate(k);
        Ok(())
    }

    fn finish(self, params: &SearchParams<'_>, hits: &mut Vec<Hit>) -> Result<()> {
        hits.clear();
        hits.extend_from_slice(&self.exact);
        let mut watch = Watch::start(params.clock);
        self.request.rescored(params.rescore, self.scratch, hits)?;
        self.scratch.profile.rescore_us += watch.lap();
        if let Some(threshold) = self.request.threshold {
            hits.retain(|hit| hit.score >= threshold);
        }
        Ok(())
    }
}

/// Without rescoring the codes' errors cost recall, too: of the misses that lists may cause otherwise this share is left to them.
const UNRESCORED: f32 = 0.75;

impl Index {
    /// The `k` nearest vectors to `query`, best first, as exact and as many as `params` ask for. Hits score above
    /// `threshold`, if there is one.
    pub fn search(
        &self,
        pages: &Pages,
        query: &[f32],
        k: usize,
        params: &SearchParams<'_>,
        threshold: Option<f32>,
        scratch: &mut Scratch,
    ) -> Result<Vec<Hit>> {
        let mut hits = Vec::with_capacity(k.min(self.shape.rows));
        self.search_into(pages, query, k, params, threshold, scratch, &mut hits)?;
        Ok(hits)
    }

    /// [`Index::search`] into a list that is used again.
    #[allow(clippy::too_many_arguments, reason = "a search with all it is handed")]
    pub fn search_into(
        &self,
        pages: &Pages,
        query: &[f32],
        k: usize,
        params: &SearchParams<'_>,
        threshold: Option<f32>,
        scratch: &mut Scratch,
        hits: &mut Vec<Hit>,
    ) -> Result<()> {
        Search::begin(pages, query, k, threshold, scratch).run(&[(self, *params)], hits)
    }

    /// What a search with these parameters scans and rescores; `narrow`: where only one-bit codes are at hand.
    pub fn effort(&self, k: usize, params: &SearchParams<'_>, narrow: bool) -> SearchEffort {
        let recall = match (params.ef, params.recall) {
            (Some(ef), _) => recall_of_ef(ef.max(k.min(64))),
            (None, recall) => {
                let target_recall = recall.unwrap_or(self.meta.recall);
                match (narrow, params.rescore) {
                    (true, _) => self.meta.curve.with_measured_margin(target_recall),
                    (false, true) => with_safety_margin(target_recall),
                    // Wide codes that nobody corrects miss some of the best by themselves: lists make up for it.
                    (false, false) => 1.0 - (1.0 - self.meta.curve.with_measured_margin(target_recall)) * UNRESCORED,
                }
            }
        };
        let curve = &self.meta.curve;
        let paged = || !self.codes1.as_ref().is_some_and(Section::is_resident);
        let mut effort = if narrow { curve.at_narrow(recall, k, paged()) } else { curve.at(recall, k) };
        // Where k is large against a list, the nearest fill whole lists, and twice as many again hold the strays.
        let lists_of_k = k as u64 * self.shape.lists as u64 / self.shape.rows as u64;
        effort.nprobe = effort.nprobe.max(lists_of_k as usize * 3);
        if let Some(nprobe) = params.nprobe {
            effort.nprobe = nprobe.max(1);
        }
        effort
    }

    /// Vectors that a search scans, about, where a filter lets this share of them through.
    pub fn scanned(&self, k: usize, share: f64, params: &SearchParams<'_>) -> f64 {
        let narrow = self.wide.as_ref().is_none_or(|wide| !wide.is_resident()) && !self.narrow.is_resident();
        let lists = self.lists_for(k, share, params, narrow);
        lists as f64 * self.shape.rows as f64 / self.shape.lists.max(1) as f64
    }

    /// How many of the nearest lists hold the `k` nearest of those that a filter lets through, where it does so with this
    /// share of the vectors.
    pub(crate) fn lists_for(&self, k: usize, share: f64, params: &SearchParams<'_>, narrow: bool) -> usize {
        let depth = (k as f64 / share.max(1e-9)).min(self.shape.rows as f64) as usize;
        self.effort(depth.max(k), params, narrow).nprobe.min(self.shape.lists)
    }

    fn check_query(&self, query: &[f32]) -> Result<()> {
        let (asked, own) = (query.len(), self.shape.dim);
        if asked == own {
            return Ok(());
        }
        Err(Error::malformed(format!("the query has {asked} dimensions, the vectors have {own}")))
    }

    /// What a search has at hand here; rank scores at or below `bar` are not wanted either.
    pub(crate) fn context<'a, 'p>(
        &'a self,
        request: &SearchRequest<'a>,
        params: &'p SearchParams<'p>,
        bar: f32,
    ) -> IndexSearchContext<'a, 'p> {
        let k = request.k.min(self.shape.rows);
        let resident = |section: &'a Section| section.resident();
        // Vectors at hand cost less than the widest codes save; where they must be read, the widest save most.
        let vectors = resident(&self.vectors);
        let widest = || self.wide.as_ref().and_then(resident).map(|bytes| (2, bytes));
        let narrower = || self.codes1.as_ref().and_then(|_| resident(&self.narrow)).map(|bytes| (1, bytes));
        let wide = if self.shape.metric == Metric::Manhattan { None } else { widest().or_else(narrower) };
        let narrow = wide.is_none() && self.shape.metric != Metric::Manhattan;
        IndexSearchContext {
            index: self,
            pages: request.pages,
            query: request.query,
            square: request.square,
            k,
            params,
            effort: self.effort(k, params, narrow),
            score_bar: request.score_bar(self).max(bar),
            codes1: self.codes1.as_ref().and_then(resident),
            wide,
            narrow,
            vectors,
            rows: resident(&self.rows),
        }
    }

    /// The rank score of a hit's score; estimates are of rank scores.
    pub(crate) fn rank(&self, score: f32, square: f32) -> f32 {
        match self.shape.metric {
            Metric::Euclid if score > 0.0 => f32::INFINITY,
            Metric::Euclid => (square - score * score) / 2.0,
            _ => score,
        }
    }

    /// The score of a hit of which the rank score is known.
    pub(crate) fn score_of_rank(&self, rank: f32, square: f32) -> f32 {
        match self.shape.metric {
            Metric::Euclid => -(square - 2.0 * rank).max(0.0).sqrt(),
            _ => rank,
        }
    }
}

impl IndexSearchContext<'_, '_> {
    /// Candidates that the scan keeps.
    pub(crate) fn kept(&self) -> usize {
        let kept = match (&self.wide, self.index.shape.metric) {
            (Some((width, _)), _) => self.effort.wide[width - 1],
            (None, Metric::Manhattan) => self.effort.wide[0],
            (None, _) => self.effort.narrow,
        };
        kept.max(self.k).max(self.params.candidates).min(self.index.shape.rows)
    }

    /// Adds the candidates of some of the nearest lists to those of the other indexes, as of number `which`.
    pub(crate) fn collect(&self, scratch: &mut Scratch, which: u32, lists: Range<usize>) -> Result<()> {
        let shape = &self.index.shape;
        scratch.fit(shape.dim, shape.lists, shape.lists, self.kept().max(self.k) + scratch.chosen.len())?;
        let mut watch = Watch::start(self.params.clock);
        self.coarse(lists.end, scratch)?;
        scratch.profile.coarse_us += watch.lap();
        scan::scan(self, scratch, lists.start)?;
        scratch.profile.scan_us += watch.lap();
        rescore::gather(scratch, which);
        Ok(())
    }

    /// Chooses the nearest lists and fills their slots, nearest first.
    pub(crate) fn coarse(&self, slots: usize, scratch: &mut Scratch) -> Result<()> {
        let index = self.index;
        let shape = &index.shape;
        scratch.slots.clear();
        scratch.scores.resize(shape.lists, 0.0);
        if let (Some(rotation), Some(codes)) = (index.rotation(), &mut scratch.codes) {
            scratch.rotated.resize(shape.dim, 0.0);
            rotation.rotate(self.query, &mut scratch.rotated);
            codes.prepare(&scratch.rotated);
        }
        let (centroids, clusters) = (index.centroids.resident(), index.clusters.resident());
        if let (Some(centroids), Some(clusters)) = (&centroids, &clusters) {
            let coarse = Coarse::new(centroids, shape.lists, shape.dim, shape.metric, index.meta.length)?;
            coarse.scores(self.query, &mut scratch.scaled, &mut scratch.bytes, &mut scratch.scores);
            select_best(&scratch.scores, slots, &mut scratch.near);
            coarse.prepare(self.query, &mut scratch.scaled);
            for list in &scratch.near {
                scan::prefetch(clusters, *list as usize * size_of::<InvertedList>(), size_of::<InvertedList>() + 63);
            }
            for list in &scratch.near {
                let centroid_dot = coarse.along(&scratch.scaled, *list as usize);
                scratch.slots.push(self.slot(*list, index.list(clusters, *list as usize, 0)?, centroid_dot));
            }
            return Ok(());
        }
        self.coarse_paged(slots, scratch)
    }

    /// The same where centroids are not resident: they pass by in pieces, each scored in full precision on the way.
    fn coarse_paged(&self, slots: usize, scratch: &mut Scratch) -> Result<()> {
        let (index, shape) = (self.index, &self.index.shape);
        scratch.centroid_dots.resize(shape.lists, 0.0);
        let mut fetch = self.pages.fetch();
        let scales = fetch.want(&index.centroids, 0, shape.dim * 4)?;
        scratch.profile.pages += fetch.pages() as u64;
        let pinned = fetch.run()?;
        let scales = pinned.bytes(scales);
        let piece = Coarse::lists_within(FETCH_BYTES / 2, shape.dim);
        for from in (0..shape.lists).step_by(piece) {
            let to = (from + piece).min(shape.lists);
            let range = Coarse::range(from, to, shape.dim);
            let mut fetch = self.pages.fetch();
            let want = fetch.want(&index.centroids, range.start as u64, range.len())?;
            scratch.profile.pages += fetch.pages() as u64;
            let pinned = fetch.run()?;
            let packed = pinned.bytes(want);
            let coarse = Coarse::of_parts(scales, packed, to - from, shape.dim, shape.metric, index.meta.length);
            coarse.scores(self.query, &mut scratch.scaled, &mut scratch.bytes, &mut scratch.scores[from..to]);
            coarse.prepare(self.query, &mut scratch.scaled);
            for list in from..to {
                scratch.centroid_dots[list] = coarse.along(&scratch.scaled, list - from);
            }
        }
        drop(pinned);
        select_best(&scratch.scores, slots, &mut scratch.near);
        for lists in scratch.near.chunks(FETCH_BYTES / 8192) {
            let mut fetch = self.pages.fetch();
            let mut wants = Vec::with_capacity(lists.len());
            for list in lists {
                let bytes = size_of::<InvertedList>();
                wants.push(fetch.want(&index.clusters, u64::from(*list) * bytes as u64, bytes)?);
            }
            scratch.profile.pages += fetch.pages() as u64;
            let pinned = fetch.run()?;
            for (list, want) in lists.iter().zip(wants) {
                let entry = index.list(pinned.bytes(want), *list as usize, *list as usize)?;
                let slot = self.slot(*list, entry, scratch.centroid_dots[*list as usize]);
                scratch.slots.push(slot);
            }
        }
        Ok(())
    }

    pub(crate) fn slot(&self, index: u32, list: InvertedList, centroid_dot: f32) -> ProbedList {
        let shared_term =
            if self.index.shape.metric == Metric::Euclid { centroid_dot - list.square / 2.0 } else { centroid_dot };
        let centroid_distance = (self.square + list.square - 2.0 * centroid_dot).max(0.0).sqrt();
        let f = list.factors[0][0];
        ProbedList {
            list,
            index,
            shared_term,
            centroid_distance,
            max_error_factor: f.least + f32::from(u16::MAX) * f.step,
        }
    }
}
