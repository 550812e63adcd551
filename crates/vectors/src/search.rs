//! A search over all parts of a collection.
//!
//! ```text
//!   query vector ─► growing parts   every vector scored
//!                ─► segments        by their cluster index, or scanned while the collection is small
//!                ─► the best of all ─► their payloads and vectors
//! ```

use crate::api::{
    CollectionConfig, Held, MetricName, Parts, Profile, Query, Record, Scored, Stages, Target, VectorConfig,
    VectorParts,
};
use crate::collection::{Collection, View};
use crate::read::{self, Fetcher, Place};
use crate::segment::{Named, Segment};
use crate::shared::Shared;
use crate::top::{Found, Top};
use ramekin_ann::{Hit, Search, SearchParams};
use ramekin_base::limits::{PAGE, RESULTS_MAX};
use ramekin_base::{Error, PointId, Result};
use ramekin_pages::Pages;
use ramekin_vecmath::{Metric, normalise};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Rank score (larger is better) to what users of the metric expect, and back: both are their own inverse.
fn outward(metric: Metric, score: f32) -> f32 {
    match metric {
        Metric::Dot | Metric::Cosine => score,
        Metric::Euclid | Metric::Manhattan => -score,
    }
}

pub(crate) fn query(shared: &Shared, collection: &Collection, query: &Query) -> Result<(Held<Vec<Scored>>, Profile)> {
    let config = collection.config.load_full();
    let wanted = query.limit.saturating_add(query.offset);
    if wanted > RESULTS_MAX {
        return Err(Error::invalid(format!("limit + offset is {wanted}; at most {RESULTS_MAX} results are allowed")));
    }
    if query.target == Target::Ids {
        return in_id_order(shared, collection, query);
    }
    read::on_view(collection, |view| query_from(shared, collection, &config, view, query))
}

fn query_from(
    shared: &Shared,
    collection: &Collection,
    config: &CollectionConfig,
    view: &View,
    query: &Query,
) -> Result<(Held<Vec<Scored>>, Profile)> {
    let wanted = query.limit + query.offset;
    let vector_config = config.vectors.get(&query.using).ok_or_else(|| unknown_vector(&query.using))?;
    let (vector, excluded) = target(shared, view, query, vector_config)?;
    let metric = vector_config.metric.metric();
    let threshold = query.score_threshold.map(|score| outward(metric, score));
    let memory = shared.accounts.queries.try_reserve(result_bytes(wanted, view))?;
    let mut top = Top::new(wanted, threshold, excluded);
    let mut profile = Profile { reserved_bytes: memory.bytes(), ..Profile::default() };
    let small: u64 = view.segments.iter().map(|segment| segment.vector_bytes()).sum();
    let params = SearchParams {
        ef: query.ef,
        exact: query.exact || small < config.full_scan_threshold_kib * 1024,
        rescore: query.rescore,
        clock: Some(&*shared.options.clock),
        ..SearchParams::default()
    };
    let asked = wanted + usize::from(excluded.is_some());
    let mut scratch = shared.scratch()?;
    let pages = shared.pages.counted();
    let search = Search::begin(&pages, &vector, asked, top.least(), &mut scratch);
    let hits = segments(view, &query.using, &params, search);
    add(&mut profile, &scratch.profile);
    shared.put_scratch(scratch);
    let hits = hits.map_err(|error| report(collection, error))?;
    let mut rows = identify(&pages, view, &hits, &mut top)?;
    let mut lists = vec![top.into_sorted()];
    // A part that is small enough to be scanned counts as indexed.
    let most = if query.indexed_only { config.full_scan_threshold_kib * 1024 } else { u64::MAX };
    for (_, part) in view.oldest_growing().into_iter().filter(|(_, part)| part.read().bytes() <= most) {
        let mut top = Top::new(wanted, threshold, excluded);
        part.read().search(&query.using, metric, &vector, &mut top);
        lists.push(top.into_sorted());
    }
    let found = settle(view, lists, wanted, &mut rows);
    let page: Vec<Found> = found.into_iter().skip(query.offset).take(query.limit).collect();
    let started = shared.options.clock.now();
    let mut fetcher = Fetcher::new(shared, &pages, view, &query.parts)?;
    let places: Vec<_> = page.iter().filter_map(|found| Some((found.id, *rows.get(&found.id)?))).collect();
    let records = fetcher.records(&places)?;
    profile.stages_us.payload = (shared.options.clock.now() - started).as_micros() as u64;
    let trip = pages.trip();
    (profile.reads, profile.cache_hits) = (trip.reads, trip.hits);
    profile.read_bytes = trip.read_pages * PAGE as u64;
    let scored = scored(view, page, records, &places, metric);
    Ok((Held { value: scored, memory: vec![memory, fetcher.memory] }, profile))
}

/// The best of all segments: of a hit, `index` is the segment's place in the view.
fn segments<'a>(view: &'a View, using: &str, params: &SearchParams<'_>, mut search: Search<'a>) -> Result<Vec<Hit>> {
    // The largest first: what it finds is the bar for the others.
    let mut order: Vec<(usize, &Named, &Segment)> = Vec::with_capacity(view.segments.len());
    for (at, segment) in view.segments.iter().enumerate() {
        order.extend(segment.vector(using).map(|(_, named)| (at, named, &**segment)));
    }
    order.sort_by_key(|(.., segment)| Reverse(segment.vector_bytes()));
    for (_, named, segment) in &order {
        let alive = |ordinal: u32| !segment.dead.get(named.present.row(ordinal));
        let filter: Option<&dyn Fn(u32) -> bool> = if segment.dead.count() > 0 { Some(&alive) } else { None };
        search.scan(&named.index, &SearchParams { filter, ..*params })?;
    }
    let mut hits = Vec::new();
    search.finish(params, &mut hits)?;
    for hit in &mut hits {
        let (at, named, _) = order[hit.index as usize];
        (hit.index, hit.row) = (at as u32, named.present.row(hit.row));
    }
    Ok(hits)
}

/// Offers hits with their ids, and says where each id stands.
fn identify(pages: &Pages, view: &View, hits: &[Hit], top: &mut Top) -> Result<HashMap<PointId, Place>> {
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
            rows.insert(id, Place::Sealed(at, row));
        }
    }
    Ok(rows)
}

/// What the results of a query hold besides their payloads: some candidates of each part, places by id, the page.
fn result_bytes(wanted: usize, view: &View) -> u64 {
    let parts = (1 + view.segments.len() + view.growing().count()) as u64;
    (wanted as u64 + 1) * (192 + 64 * parts) + 4096
}

/// The best of all lists, each id once. The lists are of the segments together, then of the growing parts from old to
/// new: that is the way of a point that is replaced while we look. It may be found in both its places, so each part
/// keeps as many as are wanted, and the newest place is the one that counts.
fn settle(view: &View, lists: Vec<Vec<Found>>, wanted: usize, rows: &mut HashMap<PointId, Place>) -> Vec<Found> {
    let mut newest: HashMap<PointId, f32> = HashMap::with_capacity(lists.iter().map(Vec::len).sum());
    newest.extend(lists.into_iter().flatten().map(|found| (found.id, found.score)));
    let mut found: Vec<Found> = newest.into_iter().map(|(id, score)| Found { score, id }).collect();
    found.sort_unstable();
    let growing = view.oldest_growing();
    found.retain(|found| {
        for (at, part) in &growing {
            if let Some(slot) = part.read().find(found.id) {
                rows.insert(found.id, Place::Growing(*at, slot));
            }
        }
        rows.contains_key(&found.id)
    });
    found.truncate(wanted);
    found
}

fn scored(
    view: &View,
    page: Vec<Found>,
    records: Vec<Record>,
    places: &[(PointId, Place)],
    metric: Metric,
) -> Vec<Scored> {
    let growing: Vec<_> = view.growing().collect();
    let version = |place: &Place| match place {
        Place::Growing(at, _) => growing[*at].read().version(),
        Place::Sealed(at, _) => view.segments[*at].meta.version,
    };
    let versions: Vec<u64> = places.iter().map(|(_, place)| version(place)).collect();
    page.into_iter()
        .zip(records)
        .zip(versions)
        .map(|((found, record), version)| Scored { record, score: outward(metric, found.score), version })
        .collect()
}

/// A page that fails its checksum turns the collection red; the query fails, others go on.
fn report(collection: &Collection, error: Error) -> Error {
    if matches!(error.kind(), ramekin_base::Kind::Corrupt | ramekin_base::Kind::Io) {
        *collection.error.lock() = Some(error.to_string());
    }
    error
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
fn target(shared: &Shared, view: &View, query: &Query, config: &VectorConfig) -> Result<(Vec<f32>, Option<PointId>)> {
    match &query.target {
        Target::Vector(vector) => {
            check_dim(vector.len(), config.dim)?;
            let mut vector = vector.clone();
            if config.metric == MetricName::Cosine {
                normalise(&mut vector);
            }
            Ok((vector, None))
        }
        Target::Point(id) => {
            let missing = || Error::not_found(format!("No point with id {id} found"));
            let place = read::places(shared, view, &[*id])?[0].ok_or_else(missing)?;
            let parts = Parts { vectors: VectorParts::Names(vec![query.using.clone()]), ..Parts::default() };
            let record = Fetcher::new(shared, &shared.pages, view, &parts)?.records(&[(*id, place)])?.pop();
            let vectors = record.and_then(|record| record.vectors).unwrap_or_default();
            let vector = vectors.into_iter().next().map(|(_, vector)| vector);
            let vector =
                vector.ok_or_else(|| Error::malformed(format!("point {id} has no vector named `{}`", query.using)))?;
            Ok((vector, Some(*id)))
        }
        Target::Ids => Err(Error::bug("a target without a vector")),
    }
}

pub(crate) fn check_dim(got: usize, want: usize) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::malformed(format!("Vector dimension error: expected dim: {want}, got {got}"))),
    }
}

/// A query without a vector: points in the order of their ids.
fn in_id_order(shared: &Shared, collection: &Collection, query: &Query) -> Result<(Held<Vec<Scored>>, Profile)> {
    let held = read::scroll(shared, collection, None, query.limit + query.offset, &query.parts)?;
    let records = held.value.records.into_iter().skip(query.offset);
    let value = records.map(|record| Scored { record, score: 1.0, version: 0 }).collect();
    Ok((Held { value, memory: held.memory }, Profile::default()))
}

fn add(total: &mut Profile, more: &ramekin_ann::Profile) {
    total.clusters += more.clusters;
    total.codes += more.codes;
    total.rescored += more.rescored;
    total.pages += more.pages;
    let Stages { coarse, scan, rescore, payload: _ } = &mut total.stages_us;
    *coarse += more.coarse_us;
    *scan += more.scan_us;
    *rescore += more.rescore_us;
}
