//! A search over all parts of a collection.
//!
//! ```text
//!   query vector ─► memtables   every vector scored
//!                ─► segments        by their cluster index, or scanned while the collection is small
//!                ─► the best of all ─► their payloads and vectors
//! ```

use crate::api::{
    CollectionConfig, Held, Parts, PayloadParts, Profile, Query, Record, Scored, Stages, Target, VectorConfig,
    VectorParts, check,
};
use crate::collection::{Collection, MemtableView, View};
use crate::memtable::top::{Found, TopK};
use crate::query::env::QueryEnv;
use crate::query::filter_probe::{ClusterOrderBitmap, FilterProbe};
use crate::query::ordered;
use crate::query::payload_filter::PayloadFilter;
use crate::query::read::{self, Fetcher, Place, TEXTS};
use crate::query::view::ReadView;
use crate::segment::{Named, SegmentView};
use ramekin_ann::{Hit, Search, SearchParams};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_fields::Prepared;
use ramekin_memory::Reservation;
use ramekin_pages::Pages;
use ramekin_vecmath::Metric;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Rank score (larger is better) to what users of the metric expect, and back: both are their own inverse.
fn outward(metric: Metric, score: f32) -> f32 {
    match metric {
        Metric::Dot | Metric::Cosine => score,
        Metric::Euclid | Metric::Manhattan => -score,
    }
}

pub(crate) fn query(env: &QueryEnv, collection: &Collection, query: &Query) -> Result<(Held<Vec<Scored>>, Profile)> {
    let config = collection.config.load_full();
    let wanted = query.limit.saturating_add(query.offset);
    match &query.target {
        Target::Ids => {
            let page = read::scroll(env, collection, None, wanted, &query.filter, &query.parts)?;
            return Ok(in_order(page.value.records.into_iter().skip(query.offset), page.memory));
        }
        Target::Order(order) => {
            let (filter, parts) = (&query.filter, &query.parts);
            let found = ordered::scroll(env, collection, order, query.offset..wanted, filter, parts)?;
            return Ok(in_order(found.value.into_iter(), found.memory));
        }
        Target::Vector(_) | Target::Point(_) => {}
    }
    collection.usage.ask();
    let filter = config.resolve(&query.filter, &env.account)?;
    let view = ReadView::pin(env, collection)?;
    let sealed = from_segments(collection, &config, &view, query, &filter)?;
    answer(&config, &view, query, &filter, sealed)
}

/// How many results are looked for: as many as are asked for, of the points there are.
fn reach(view: &View, query: &Query) -> usize {
    (query.limit.saturating_add(query.offset) as u64).min(view.live()) as usize
}

/// What the segments of a view have found.
struct FromSegments {
    metric: Metric,
    vector: Vec<f32>,
    /// The rank score to beat.
    threshold: Option<f32>,
    excluded: Option<PointId>,
    found: Vec<Found>,
    places: HashMap<PointId, Place>,
    pages: Pages,
    profile: Profile,
    memory: Reservation,
}

fn from_segments(
    collection: &Collection,
    config: &CollectionConfig,
    view: &ReadView<'_>,
    query: &Query,
    filter: &Prepared<'_>,
) -> Result<FromSegments> {
    let (env, wanted) = (view.env, reach(view, query));
    let vector_config = config.vectors.get(&query.using).ok_or_else(|| unknown_vector(&query.using))?;
    let (vector, excluded) = target(view, query, vector_config)?;
    let metric = vector_config.metric.metric();
    let threshold = query.score_threshold.map(|score| outward(metric, score));
    let memory = env.account.try_reserve((wanted as u64 + 1) * HIT_BYTES + 4096)?;
    let mut top = TopK::new(wanted, threshold, excluded);
    let small: u64 = view.segments.iter().map(|segment| segment.vector_bytes()).sum();
    let mut params = SearchParams {
        ef: query.ef,
        // A scan of all reads all.
        exact: query.exact || small < config.full_scan_threshold_kib * 1024 && query.max_reads.is_none(),
        rescore: query.rescore,
        recall: Some(collection.recall_monitor.recall(config.recall)),
        candidates: query.candidates,
        max_reads: query.max_reads.map(|most| most.saturating_sub(wanted * reads_each(view, &query.parts))),
        clock: Some(&*env.clock),
        ..SearchParams::default()
    };
    let asked = wanted + usize::from(excluded.is_some());
    if is_usual(query) && !params.exact {
        collection.recall_monitor.sample(&env.reservoir, &query.using, &vector);
    }
    let pages = env.pages.counted();
    let matching = PayloadFilter::new(&pages, view, filter)?;
    let passed = (!query.filter.is_empty()).then(|| FilterProbe::new(&matching, params.max_reads)).transpose()?;
    if let (Some(most), Some(passed)) = (&mut params.max_reads, &passed) {
        *most = passed.leaves(*most);
    }
    let mut scratch = env.scratches.take(&env.account)?;
    let search = Search::begin(&pages, &vector, asked, top.least(), &mut scratch);
    let hits = segments(view, &query.using, &params, search, passed.as_ref());
    let explain = passed.map(|passed| passed.explain.into_inner());
    let profile = Profile { explain, ..profile(&scratch.profile) };
    env.scratches.put(scratch);
    let places = identify(&pages, view, &hits?, &mut top)?;
    let found = top.into_sorted();
    Ok(FromSegments { metric, vector, threshold, excluded, found, places, pages, profile, memory })
}

/// Whether a query leaves it to the collection how right it is.
fn is_usual(query: &Query) -> bool {
    query.filter.is_empty() && query.ef.is_none() && query.rescore && query.candidates == 0 && query.max_reads.is_none()
}

/// The results of a query.
fn answer(
    config: &CollectionConfig,
    view: &ReadView<'_>,
    query: &Query,
    filter: &Prepared<'_>,
    sealed: FromSegments,
) -> Result<(Held<Vec<Scored>>, Profile)> {
    let (env, wanted) = (view.env, reach(view, query));
    let mut memory = env.account.try_reserve((wanted as u64 + 1) * (FOUND_BYTES + RESULT_BYTES))?;
    let mut found: Vec<(Found, Place)> = Vec::with_capacity(sealed.found.len());
    found.extend(sealed.found.iter().filter_map(|found| Some((*found, *sealed.places.get(&found.id)?))));
    // A part that is small enough to be scanned counts as indexed.
    let most = if query.indexed_only { config.full_scan_threshold_kib * 1024 } else { u64::MAX };
    let is_searched = |part: &MemtableView| part.moment.live() > 0 && part.read().bytes() <= most;
    for (at, part) in view.memtables().enumerate().filter(|(_, part)| is_searched(part)) {
        cancel::check()?;
        memory.grow((wanted as u64 + 1) * FOUND_BYTES)?;
        let best = match query.filter.is_empty() {
            true => best_of(part, query, &sealed, wanted, &|_| true),
            false => passing_of((at, part), view, query, filter, &sealed)?,
        };
        let inner = part.read();
        found.extend(best.into_iter().filter_map(|found| Some((found, Place::Memtable(at, inner.find(found.id)?)))));
    }
    // Each id is alive in one part of a view.
    found.sort_unstable();
    let page: Vec<(Found, Place)> = found.into_iter().take(wanted).skip(query.offset).collect();
    let started = env.clock.now();
    let mut fetcher = Fetcher::new(&sealed.pages, view, &query.parts)?;
    let places: Vec<_> = page.iter().map(|(found, place)| (found.id, *place)).collect();
    let records = fetcher.records(&places)?;
    let mut profile = Profile { reserved_bytes: sealed.memory.bytes() + memory.bytes(), ..sealed.profile };
    profile.stages_us.payload = (env.clock.now() - started).as_micros() as u64;
    let trip = sealed.pages.fetch_stats();
    (profile.reads, profile.cache_hits) = (trip.reads, trip.hits);
    profile.read_bytes = trip.read_pages * PAGE as u64;
    let scored = scored(view, page, records, sealed.metric);
    Ok((Held { value: scored, memory: vec![memory, fetcher.memory] }, profile))
}

/// The best of a memtable of those that may pass. It is scanned a little at a time, so that writes and, behind them, other
/// reads never wait for a whole scan.
fn best_of(
    part: &MemtableView,
    query: &Query,
    sealed: &FromSegments,
    wanted: usize,
    may_pass: &dyn Fn(u32) -> bool,
) -> Vec<Found> {
    let mut top = TopK::new(wanted, sealed.threshold, sealed.excluded);
    let mut next = Some(0);
    while let Some(from) = next {
        next = part.read().search(&query.using, sealed.metric, &sealed.vector, may_pass, from, &mut top);
    }
    top.into_sorted()
}

/// The best of a memtable that pass the filter: more and more of the best are looked at until enough of them do.
fn passing_of(
    (at, part): (usize, &MemtableView),
    view: &ReadView<'_>,
    query: &Query,
    filter: &Prepared<'_>,
    sealed: &FromSegments,
) -> Result<Vec<Found>> {
    let wanted = reach(view, query);
    let matching = PayloadFilter::new(&sealed.pages, view, filter)?;
    let new = matching.new_points(at)?;
    let may_pass = |slot: u32| new.may_pass(slot);
    // A payload takes a read at most, also those of the results.
    let of_results = if query.parts.payload == PayloadParts::None { 0 } else { wanted };
    let reads_left = || match query.max_reads {
        Some(most) => most.saturating_sub(of_results).saturating_sub(sealed.pages.fetch_stats().reads as usize),
        None => usize::MAX,
    };
    let mut memory = view.env.account.try_reserve(0)?;
    let mut seen: HashMap<PointId, bool> = HashMap::new();
    let mut depth = wanted.max(64);
    loop {
        cancel::check()?;
        memory.resize(depth.min(part.moment.slots as usize) as u64 * FOUND_BYTES)?;
        let best = best_of(part, query, sealed, depth, &may_pass);
        let inner = part.read();
        let unseen = best.iter().filter(|found| !seen.contains_key(&found.id));
        let unseen: Vec<_> =
            unseen.filter_map(|found| Some((found.id, Place::Memtable(at, inner.find(found.id)?)))).collect();
        drop(inner);
        let mut rest = &unseen[..];
        while !rest.is_empty() && reads_left() > 0 {
            let (some, others) = rest.split_at(rest.len().min(TEXTS).min(reads_left()));
            seen.extend(some.iter().map(|(id, _)| *id).zip(matching.points(some)?));
            rest = others;
        }
        let is_all = best.len() < depth || !rest.is_empty();
        let passed = best.into_iter().filter(|found| seen.get(&found.id) == Some(&true));
        let passed: Vec<Found> = passed.take(wanted).collect();
        if passed.len() == wanted || is_all {
            return Ok(passed);
        }
        depth *= 4;
    }
}

/// Reads that a result takes besides those of the search: of its id, its payload (where it ends, and the text), its vector.
fn reads_each(view: &View, parts: &Parts) -> usize {
    let reads_ids = |segment: &SegmentView| segment.lookup_sections().any(|section| !section.is_resident());
    usize::from(view.segments.iter().any(reads_ids))
        + if parts.payload == PayloadParts::None { 0 } else { 2 }
        + if parts.vectors == VectorParts::None { 0 } else { 2 }
}

/// The best of all segments: of a hit, `index` is the segment's place in the view.
pub(crate) fn segments<'a>(
    view: &'a View,
    using: &str,
    params: &SearchParams<'_>,
    search: Search<'a>,
    passed: Option<&FilterProbe<'_>>,
) -> Result<Vec<Hit>> {
    // The one with the most points first: what it finds is the bar for the others.
    let mut order: Vec<(usize, &Named, &SegmentView)> = Vec::with_capacity(view.segments.len());
    for (at, segment) in view.segments.iter().enumerate() {
        order.extend(segment.vector(using).map(|(_, named)| (at, named, segment)));
    }
    order.sort_by_cached_key(|(.., segment)| Reverse(segment.live()));
    let alive = |(at, named, segment): &(usize, &'a Named, &'a SegmentView)| {
        let (at, named, segment) = (*at, *named, *segment);
        move |ordinal: u32| {
            let row = named.present.row(ordinal);
            !segment.dead.get(row) && passed.is_none_or(|passed| passed.row(at, row))
        }
    };
    let alive: Vec<_> = order.iter().map(alive).collect();
    let found = |(at, named, segment): &(usize, &Named, &SegmentView)| {
        passed.map_or(Ok(None), |passed| passed.found((*at, named, segment), using, search.wanted(), params))
    };
    let found = order.iter().map(found).collect::<Result<Vec<_>>>()?;
    let mut parts = Vec::with_capacity(order.len());
    for (((_, named, segment), alive), found) in order.iter().zip(&alive).zip(&found) {
        let is_filtered = segment.dead.count() > 0 || passed.is_some();
        let filter: Option<&dyn Fn(u32) -> bool> = if is_filtered { Some(alive) } else { None };
        let positions = found.as_ref().map(ClusterOrderBitmap::positions);
        parts.push((&named.index, SearchParams { filter, positions, ..*params }));
    }
    let mut hits = Vec::new();
    search.run(&parts, &mut hits)?;
    if let Some(passed) = passed {
        passed.check()?;
    }
    for hit in &mut hits {
        let (at, named, _) = order[hit.index as usize];
        (hit.index, hit.row) = (at as u32, named.present.row(hit.row));
    }
    Ok(hits)
}

/// Offers hits with their ids, and says where each id stands.
fn identify(pages: &Pages, view: &View, hits: &[Hit], top: &mut TopK) -> Result<HashMap<PointId, Place>> {
    let mut rows = HashMap::with_capacity(hits.len());
    for (at, segment) in view.segments.iter().enumerate() {
        let own = hits.iter().filter(|hit| hit.index as usize == at && top.accepts(hit.score));
        let (own_rows, scores): (Vec<u32>, Vec<f32>) = own.map(|hit| (hit.row, hit.score)).unzip();
        if own_rows.is_empty() {
            continue;
        }
        let ids = segment.ids(pages, &own_rows)?;
        for ((score, row), id) in scores.into_iter().zip(own_rows).zip(ids) {
            top.offer(score, id);
            rows.insert(id, Place::Segment(at, row));
        }
    }
    Ok(rows)
}

/// What a result wanted from the segments holds: the hit, its place in the best, its place by id.
const HIT_BYTES: u64 = 240;
/// A result in the list of a part, and in the best of all lists by id and by score.
const FOUND_BYTES: u64 = 208;
/// A result with its place.
const RESULT_BYTES: u64 = 96;

fn scored(view: &View, page: Vec<(Found, Place)>, records: Vec<Record>, metric: Metric) -> Vec<Scored> {
    let growing: Vec<_> = view.memtables().collect();
    let version = |place: Place| match place {
        Place::Memtable(at, _) => growing[at].read().seqno(),
        Place::Segment(at, _) => view.segments[at].meta.version,
    };
    let scored = |((found, place), record): ((Found, Place), Record)| Scored {
        record,
        score: outward(metric, found.score),
        version: version(place),
    };
    page.into_iter().zip(records).map(scored).collect()
}

fn unknown_vector(name: &str) -> Error {
    match name {
        "" => {
            Error::malformed("Not existing vector name error: the collection has named vectors; say which with `using`")
        }
        name => Error::malformed(format!("Not existing vector name error: {name}")),
    }
}

/// The vector to search with, and the point to leave out.
fn target(view: &ReadView<'_>, query: &Query, config: &VectorConfig) -> Result<(Vec<f32>, Option<PointId>)> {
    match &query.target {
        Target::Vector(vector) => {
            check::check_dim(vector.len(), config.dim)?;
            let mut vector = vector.clone();
            config.keep(&mut vector);
            check::in_range(&vector, config)?;
            config.ask(&mut vector);
            Ok((vector, None))
        }
        Target::Point(id) => {
            let missing = || Error::not_found(format!("No point with id {id} found"));
            let place = read::places(view, &[*id])?[0].ok_or_else(missing)?;
            let parts = Parts { vectors: VectorParts::Names(vec![query.using.clone()]), ..Parts::default() };
            let record = Fetcher::new(&view.env.pages, view, &parts)?.records(&[(*id, place)])?.pop();
            let vectors = record.and_then(|record| record.vectors).unwrap_or_default();
            let vector = vectors.into_iter().next().map(|(_, vector)| vector);
            let mut vector =
                vector.ok_or_else(|| Error::malformed(format!("point {id} has no vector named `{}`", query.using)))?;
            config.ask(&mut vector);
            Ok((vector, Some(*id)))
        }
        Target::Ids | Target::Order(_) => Err(Error::bug("a target without a vector")),
    }
}

/// The answer of a query that has no vector.
fn in_order(records: impl Iterator<Item = Record>, memory: Vec<Reservation>) -> (Held<Vec<Scored>>, Profile) {
    let value = records.map(|record| Scored { record, score: 1.0, version: 0 }).collect();
    (Held { value, memory }, Profile::default())
}

fn profile(of: &ramekin_ann::Profile) -> Profile {
    let stages_us = Stages { coarse: of.coarse_us, scan: of.scan_us, rescore: of.rescore_us, payload: 0 };
    let (clusters, codes, rescored, pages) = (of.clusters, of.codes, of.rescored, of.pages);
    Profile { clusters, codes, rescored, pages, stages_us, ..Profile::default() }
}
