//! Indexes of vectors whose values are float16 or uint8: the same searches, the same values back, smaller sections.

#![allow(clippy::unwrap_used, reason = "a test may end by a failure")]

mod world;

use ramekin_ann::{Index, IndexMeta, Part, Scratch, SearchParams, SliceSource, Source};
use ramekin_vecmath::{Datatype, Metric, normalise, score};
use std::path::Path;
use world::{World, clustered, found, oracle};

const METRICS: [Metric; 4] = [Metric::Cosine, Metric::Dot, Metric::Euclid, Metric::Manhattan];
const COMPACT: [Datatype; 2] = [Datatype::Float16, Datatype::Uint8];

fn each() -> impl Iterator<Item = (Metric, Datatype)> {
    METRICS.into_iter().flat_map(|metric| COMPACT.map(|datatype| (metric, datatype)))
}

/// Values that the datatype has, as points have them when they were written.
fn values(count: usize, dim: usize, centres: usize, metric: Metric, datatype: Datatype) -> Vec<f32> {
    let of_length_one = metric == Metric::Cosine && datatype == Datatype::Float16;
    let mut values = clustered(count, dim, centres, if of_length_one { metric } else { Metric::Dot }, 3);
    if datatype == Datatype::Uint8 {
        values.iter_mut().for_each(|x| *x = *x * 35.0 + 100.0);
    }
    datatype.round(&mut values);
    values
}

/// What scores are made of.
fn views(values: &[f32], dim: usize, metric: Metric, datatype: Datatype) -> Vec<f32> {
    let mut views = values.to_vec();
    if metric == Metric::Cosine && datatype == Datatype::Uint8 {
        views.chunks_exact_mut(dim).for_each(|x| _ = normalise(x));
    }
    views
}

/// Indexes are asked for the nearest to some of these views; returns the recall. `apart`: how far scores may be from the
/// truth, relatively.
fn recall(world: &World, index: &Index, views: &[f32], params: &SearchParams<'_>, queries: &[f32], apart: f32) -> f64 {
    let (mut scratch, dim, k) = (Scratch::new(&world.account).unwrap(), index.dim(), 10);
    let (mut got, mut all) = (0, 0);
    for query in queries.chunks_exact(dim) {
        let hits = index.search(&world.pages, query, k, params, None, &mut scratch).unwrap();
        let wanted = oracle(views, query, index.metric(), k, &|row| params.filter.is_none_or(|filter| filter(row)));
        assert_eq!(hits.len(), wanted.len());
        for hit in &hits {
            let truth = score(index.metric(), query, &views[hit.row as usize * dim..][..dim]);
            let off = (hit.score - truth).abs() / (truth.abs() + 1e-3);
            assert!(off <= apart, "{:?} {:?} {} is not {truth}", world.datatype, index.metric(), hit.score);
        }
        got += found(&hits, &wanted);
        all += wanted.len();
    }
    got as f64 / all as f64
}

#[test]
fn every_metric_reaches_its_recall_resident_and_paged() {
    for (metric, datatype) in each() {
        let (world, dim) = (World::of(datatype), 24);
        let drawn = values(6040, dim, 60, metric, datatype);
        let all = views(&drawn, dim, metric, datatype);
        let (views, queries) = all.split_at(6000 * dim);
        let index = world.index(&drawn[..6000 * dim], dim, metric);
        let plain = SearchParams::default();
        let third = |row: u32| row % 3 == 1;
        let filtered = SearchParams { filter: Some(&third), ..plain };
        for resident in [false, true] {
            // One-bit codes are right within so much that only the order tells something; six bits are near the truth.
            let (estimated, apart) = if resident { (0.8, 0.2) } else { (0.3, f32::INFINITY) };
            for (params, least, apart) in [
                (plain, 0.92, 2e-5),
                (filtered, 0.88, 2e-5),
                (SearchParams { exact: true, ..plain }, 1.0, 2e-5),
                (SearchParams { exact: true, ..filtered }, 1.0, 2e-5),
                (SearchParams { rescore: false, ..plain }, estimated, apart),
            ] {
                let found = recall(&world, &index, views, &params, queries, apart);
                assert!(found >= least, "{metric:?} {datatype:?} resident {resident} {found} of {least}");
            }
            index.sections().iter().for_each(|(_, section)| section.load().unwrap());
        }
    }
}

#[test]
fn values_come_back_and_pages_hold_more_of_them() {
    for (metric, datatype) in each() {
        for (count, dim) in [(1, 1), (1, 100), (2, 3), (33, 4), (257, 9), (600, 1), (1500, 100), (40, 1500), (9, 5000)]
        {
            let world = World::of(datatype);
            let values = values(count, dim, 4, metric, datatype);
            let index = world.index(&values, dim, metric);
            let rows: Vec<u32> = (0..count as u32).rev().step_by(3).collect();
            let mut out = Vec::new();
            index.vectors(&world.pages, &rows, &mut out).unwrap();
            for (row, x) in rows.iter().zip(out.chunks_exact(dim)) {
                assert_eq!(x, &values[*row as usize * dim..][..dim]);
            }
            let mut source = index.stream(&world.account);
            let (mut rows, mut part, mut seen) = (Vec::new(), Vec::new(), 0);
            while source.next(&mut rows, &mut part).unwrap() {
                seen += rows.len();
                for (row, x) in rows.iter().zip(part.chunks_exact(dim)) {
                    assert_eq!(x, &values[*row as usize * dim..][..dim]);
                }
            }
            assert_eq!(seen, count);
            let (file, meta) = world.build("again.seg", &mut source, metric, 8 << 20).unwrap();
            let again = Index::open(&file, 32, &meta, &world.account).unwrap();
            again.check(&world.pages, &world.account).unwrap();
            for index in [&index, &again] {
                let sections = index.sections();
                let (_, section) = sections.iter().find(|(part, _)| *part == Part::Vectors).unwrap();
                let record = dim * datatype.bytes();
                let most = match 4096 / record {
                    0 => count * record.next_multiple_of(4096),
                    each => count.div_ceil(each) * 4096,
                };
                assert!(section.len() <= most as u64, "{count} x {dim} in {} bytes", section.len());
            }
        }
    }
}

#[test]
fn bytes_without_a_length_are_at_right_angles_to_all() {
    let (world, dim) = (World::of(Datatype::Uint8), 8);
    let mut values = values(900, dim, 9, Metric::Cosine, Datatype::Uint8);
    values[..20 * dim].fill(0.0);
    let views = views(&values, dim, Metric::Cosine, Datatype::Uint8);
    let index = world.index(&values, dim, Metric::Cosine);
    for exact in [false, true] {
        let params = SearchParams { exact, ..SearchParams::default() };
        let (query, mut scratch) = (&views[700 * dim..701 * dim], Scratch::new(&world.account).unwrap());
        let hits = index.search(&world.pages, query, 900, &params, None, &mut scratch).unwrap();
        let zeros: Vec<f32> = hits.iter().filter(|hit| hit.row < 20).map(|hit| hit.score).collect();
        assert_eq!((hits.len(), zeros), (900, vec![0.0; 20]));
        assert!((hits[0].score - 1.0).abs() < 1e-6, "{:?}", hits[0]);
        let nothing = vec![0.0; dim];
        let hits = index.search(&world.pages, &nothing, 5, &params, None, &mut scratch).unwrap();
        assert!(hits.len() == 5 && hits.iter().all(|hit| hit.score == 0.0));
    }
}

#[test]
fn an_index_of_old_is_one_of_floats() {
    let (world, dim) = (World::new(), 6);
    let vectors = clustered(300, dim, 5, Metric::Dot, 3);
    let (file, meta) = world.build("old.seg", &mut SliceSource::new(&vectors, dim), Metric::Dot, 16 << 20).unwrap();
    let mut text: serde_json::Value = serde_json::to_value(&meta).unwrap();
    assert_eq!((&text["datatype"], &text["version"]), (&"float32".into(), &1.into()));
    text.as_object_mut().unwrap().remove("datatype");
    let old: IndexMeta = serde_json::from_value(text).unwrap();
    assert_eq!(old, meta);
    Index::open(&file, 32, &old, &world.account).unwrap().check(&world.pages, &world.account).unwrap();
    // An index of another datatype is not taken for one of floats, not even by a program that knows none.
    let world = World::of(Datatype::Uint8);
    let (file, meta) = world.build("new.seg", &mut SliceSource::new(&vectors, dim), Metric::Dot, 16 << 20).unwrap();
    assert_eq!((meta.version, world.disk.list(Path::new("temp")).unwrap().len()), (2, 0));
    assert!(Index::open(&file, 32, &IndexMeta { datatype: Datatype::Float32, ..meta }, &world.account).is_err());
}
