//! Builds small indexes on the simulated disk and compares every kind of search with the obvious one.

#![allow(clippy::unwrap_used, reason = "a test may end by a failure")]

mod world;

use ramekin_ann::{
    BuildOptions, ClusterOrder, Index, IndexMeta, Part, Scratch, Search, SearchParams, SliceSource, Source, Work,
    batch_rows, build,
};
use ramekin_base::{Kind, ManualClock};
use ramekin_vecmath::{Datatype, Metric, normalise, score};
use std::path::Path;
use std::sync::Arc;
use world::{World, clustered, found, oracle};

fn recall(world: &World, index: &Index, vectors: &[f32], params: &SearchParams<'_>, k: usize, queries: &[f32]) -> f64 {
    let mut scratch = Scratch::new(&world.account).unwrap();
    let (mut got, mut all) = (0, 0);
    for query in queries.chunks_exact(index.dim()) {
        let hits = index.search(&world.pages, query, k, params, None, &mut scratch).unwrap();
        let wanted = oracle(vectors, query, index.metric(), k, &|row| params.filter.is_none_or(|filter| filter(row)));
        assert_eq!(hits.len(), wanted.len().min(k));
        assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
        for hit in &hits {
            let exact = score(index.metric(), query, &vectors[hit.row as usize * index.dim()..][..index.dim()]);
            let close = (hit.score - exact).abs() <= 1e-4 * (1.0 + exact.abs());
            assert!(!params.rescore || close, "{} is not {exact}", hit.score);
        }
        got += found(&hits, &wanted);
        all += wanted.len();
    }
    got as f64 / all as f64
}

const METRICS: [Metric; 4] = [Metric::Cosine, Metric::Dot, Metric::Euclid, Metric::Manhattan];

fn queries_like(dim: usize, metric: Metric, seed: u64) -> Vec<f32> {
    // The same heaps (their seed comes first), other points.
    clustered(6000 + 40, dim, 60, metric, seed)[6000 * dim..].to_vec()
}

#[test]
fn every_metric_reaches_its_recall_resident_and_paged() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 24);
        let vectors = clustered(6000, dim, 60, metric, 3);
        let index = world.index(&vectors, dim, metric);
        let queries = queries_like(dim, metric, 3);
        let params = SearchParams::default();
        let paged = recall(&world, &index, &vectors, &params, 10, &queries);
        assert!(paged > 0.92, "{metric:?} paged {paged}");
        for (part, section) in index.sections() {
            section.load().unwrap();
            let some = recall(&world, &index, &vectors, &params, 10, &queries);
            assert!(some > 0.92, "{metric:?} with {part:?} resident {some}");
        }
        for k in [1, 3, 50, 200] {
            let many = recall(&world, &index, &vectors, &params, k, &queries);
            assert!(many > 0.9, "{metric:?} k {k} {many}");
        }
        let low = recall(&world, &index, &vectors, &SearchParams { ef: Some(4), ..params }, 10, &queries);
        let high = recall(&world, &index, &vectors, &SearchParams { ef: Some(2000), ..params }, 10, &queries);
        assert!(high > 0.985 && high >= low, "{metric:?} {low} {high}");
        let estimated = SearchParams { rescore: false, ..params };
        let estimated = recall(&world, &index, &vectors, &estimated, 10, &queries);
        assert!(estimated > 0.8, "{metric:?} without rescoring {estimated}");
    }
}

#[test]
fn narrow_codes_alone_find_what_wide_ones_find() {
    let (world, dim, metric) = (World::new(), 48, Metric::Cosine);
    let drawn = clustered(20_400, dim, 400, metric, 9);
    let (vectors, queries) = drawn.split_at(20_000 * dim);
    let index = world.index(vectors, dim, metric);
    let params = SearchParams::default();
    let narrow = recall(&world, &index, vectors, &params, 10, queries);
    index.sections().iter().for_each(|(_, section)| section.load().unwrap());
    let wide = recall(&world, &index, vectors, &params, 10, queries);
    assert!(narrow > 0.95 && narrow > wide - 0.01, "narrow {narrow} wide {wide}");
}

#[test]
fn wide_codes_without_narrow_ones_find_what_both_find() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 40);
        let drawn = clustered(8_200, dim, 80, metric, 11);
        let (vectors, queries) = drawn.split_at(8_000 * dim);
        let index = world.index(vectors, dim, metric);
        let section =
            |wanted| index.sections().into_iter().find(|(part, _)| *part == wanted).map(|(_, section)| section);
        let third = |row: u32| row % 3 == 1;
        let filters: [Option<&dyn Fn(u32) -> bool>; 2] = [None, Some(&third)];
        for (wide, filter) in
            [Part::Codes6, Part::Codes3].into_iter().flat_map(|wide| filters.map(|filter| (wide, filter)))
        {
            let Some(wide) = section(wide) else { continue };
            let params = SearchParams { filter, ..SearchParams::default() };
            index.sections().iter().for_each(|(_, section)| section.unload());
            wide.load().unwrap();
            section(Part::Rows).into_iter().for_each(|rows| rows.load().unwrap());
            let alone = recall(&world, &index, vectors, &params, 10, queries);
            section(Part::Codes1).into_iter().for_each(|narrow| narrow.load().unwrap());
            let both = recall(&world, &index, vectors, &params, 10, queries);
            assert!(alone > 0.93 && alone > both - 0.01, "{metric:?} alone {alone} both {both}");
        }
    }
}

#[test]
fn reads_stay_below_what_is_allowed() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 64);
        let drawn = clustered(20_100, dim, 200, metric, 13);
        let (vectors, queries) = drawn.split_at(20_000 * dim);
        let index = world.index(vectors, dim, metric);
        let mut scratch = Scratch::new(&world.account).unwrap();
        let mut found_before = 0.0;
        for (resident, max_reads) in [(false, 60), (true, 0), (true, 4), (true, 40)] {
            let always = [Part::Centroids, Part::Clusters];
            for (part, section) in index.sections() {
                let codes = [Part::Codes1, Part::Codes8, Part::Rows].contains(&part);
                if always.contains(&part) || resident && codes { section.load().unwrap() } else { section.unload() }
            }
            let params = SearchParams { max_reads: Some(max_reads), ..SearchParams::default() };
            let (mut found_here, mut most) = (0, 0);
            for query in queries.chunks_exact(dim) {
                world.pages.evict_all();
                let pages = world.pages.counted();
                let hits = index.search(&pages, query, 10, &params, None, &mut scratch).unwrap();
                assert_eq!(hits.len(), 10);
                assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
                // By rows: the score of a hit may be an estimate.
                let wanted = oracle(vectors, query, metric, 10, &|_| true);
                found_here += wanted.iter().filter(|wanted| hits.iter().any(|hit| hit.row == wanted.row)).count();
                most = most.max(pages.fetch_stats().reads);
            }
            assert!(most <= max_reads as u64, "{metric:?}: {most} reads where {max_reads} are allowed");
            let share = found_here as f64 / 1000.0;
            assert!(share >= found_before, "{metric:?}: more reads find more: {share} and {found_before}");
            found_before = if resident { share } else { 0.0 };
        }
        assert!(found_before > 0.8, "{metric:?} {found_before}");
    }
}

#[test]
fn exact_is_the_oracle() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 17);
        let vectors = clustered(900, dim, 9, metric, 5);
        let index = world.index(&vectors, dim, metric);
        let params = SearchParams { exact: true, ..SearchParams::default() };
        let filter = |row: u32| row % 3 == 1;
        let filtered = SearchParams { filter: Some(&filter), ..params };
        for _ in 0..2 {
            assert_eq!(recall(&world, &index, &vectors, &params, 25, &vectors[..40 * dim]), 1.0);
            assert_eq!(recall(&world, &index, &vectors, &filtered, 25, &vectors[..40 * dim]), 1.0);
            index.sections().iter().for_each(|(_, section)| section.load().unwrap());
        }
    }
}

#[test]
fn any_number_of_any_dimension() {
    for metric in METRICS {
        for (count, dim) in
            [(1, 1), (1, 100), (2, 3), (31, 5), (33, 4), (255, 8), (257, 9), (600, 1), (40, 1500), (9, 4096)]
        {
            let world = World::new();
            let vectors = clustered(count, dim, 4, metric, 11);
            let index = world.index(&vectors, dim, metric);
            let all =
                recall(&world, &index, &vectors, &SearchParams::default(), count + 5, &vectors[..dim * count.min(5)]);
            assert_eq!(all, 1.0, "{metric:?} {count} x {dim}");
            let some = recall(&world, &index, &vectors, &SearchParams::default(), 10, &vectors[..dim * count.min(20)]);
            assert!(some > 0.85, "{metric:?} {count} x {dim} {some}");
        }
    }
}

#[test]
fn a_vector_of_the_largest_dimension() {
    let (world, dim) = (World::new(), ramekin_base::limits::DIM_MAX);
    let vectors = clustered(5, dim, 2, Metric::Cosine, 1);
    let (file, meta) =
        world.build("large.seg", &mut SliceSource::new(&vectors, dim), Metric::Cosine, 128 << 20).unwrap();
    let index = Index::open(&file, 32, &meta, &world.account).unwrap();
    assert_eq!(recall(&world, &index, &vectors, &SearchParams::default(), 3, &vectors), 1.0);
}

/// Their squares are no f32: an index of them can be opened, and finds each vector.
#[test]
fn the_largest_values_that_there_are() {
    for metric in [Metric::Dot, Metric::Euclid, Metric::Manhattan] {
        let (world, dim, count) = (World::new(), 24, 1500);
        let mut vectors = clustered(count, dim, 9, metric, 5);
        for (at, x) in vectors.chunks_exact_mut(dim).enumerate().step_by(7) {
            match at % 4 {
                0 => x.fill(3e38),
                1 => x.fill(f32::MIN),
                2 => x[0] = f32::MAX,
                _ => x[..2].copy_from_slice(&[3e38, -3e38]),
            }
        }
        let (file, meta) = world.build("large.seg", &mut SliceSource::new(&vectors, dim), metric, 64 << 20).unwrap();
        let kept: IndexMeta = serde_json::from_str(&serde_json::to_string(&meta).unwrap()).unwrap();
        assert_eq!(kept, meta);
        let index = Index::open(&file, 32, &kept, &world.account).unwrap();
        index.check(&world.pages, &world.account).unwrap();
        for exact in [true, false] {
            let params = SearchParams { exact, ..SearchParams::default() };
            for query in [&vectors[..dim], &vectors[dim..2 * dim], &vectors[14 * dim..15 * dim], &[1e-38; 24]] {
                assert_eq!(recall(&world, &index, &vectors, &params, count, query), 1.0, "{metric:?} {exact}");
            }
        }
    }
}

#[test]
fn equal_and_constant_vectors() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 8);
        let mut vectors = vec![0.5; 700 * dim];
        vectors[..300 * dim].fill(0.0);
        vectors.extend(clustered(200, dim, 5, metric, 2));
        if metric == Metric::Cosine {
            vectors.chunks_exact_mut(dim).for_each(|x| assert!(normalise(x) || x[0] == 0.0));
        }
        let index = world.index(&vectors, dim, metric);
        let recall = recall(&world, &index, &vectors, &SearchParams::default(), 10, &vectors[690 * dim..720 * dim]);
        assert!(recall > 0.9, "{metric:?} {recall}");
    }
}

#[test]
fn filters_leave_k_hits() {
    for metric in [Metric::Cosine, Metric::Manhattan] {
        let (world, dim) = (World::new(), 24);
        let vectors = clustered(6000, dim, 60, metric, 3);
        let index = world.index(&vectors, dim, metric);
        let queries = queries_like(dim, metric, 3);
        for resident in [false, true] {
            for every in [2, 10, 100, 1500] {
                let filter = |row: u32| row.is_multiple_of(every);
                let params = SearchParams { filter: Some(&filter), ..SearchParams::default() };
                let recall = recall(&world, &index, &vectors, &params, 10, &queries[..20 * dim]);
                assert!(recall > 0.85, "{metric:?} resident {resident} every {every} {recall}");
            }
            let none = SearchParams { filter: Some(&|_| false), ..SearchParams::default() };
            let mut scratch = Scratch::new(&world.account).unwrap();
            assert!(index.search(&world.pages, &queries[..dim], 10, &none, None, &mut scratch).unwrap().is_empty());
            index.sections().iter().for_each(|(_, section)| section.load().unwrap());
        }
    }
}

#[test]
fn rows_that_are_few_are_each_looked_at() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 24);
        let vectors = clustered(6000, dim, 60, metric, 3);
        let index = world.index(&vectors, dim, metric);
        let queries = queries_like(dim, metric, 3);
        // Nothing resident; the narrowest codes and the tables; all but the positions; everything.
        for round in 0..4 {
            for (part, section) in index.sections() {
                let is_resident = match round {
                    0 => false,
                    1 => matches!(part, Part::Centroids | Part::Clusters | Part::Codes1 | Part::Rows),
                    2 => part != Part::Positions,
                    _ => true,
                };
                if is_resident { section.load().unwrap() } else { section.unload() }
            }
            for every in [40, 300, 1500, 5999] {
                let filter = |row: u32| row % every == 1;
                let mut words = vec![0u64; 6000usize.div_ceil(64)];
                (0..6000).filter(|row| filter(*row)).for_each(|row| words[row as usize / 64] |= 1 << (row % 64));
                let mut places = vec![0; words.len()];
                index.positions_of(&world.pages, &words, &mut places).unwrap();
                let count = (0..6000).filter(|row| filter(*row)).count();
                assert_eq!(places.iter().map(|word| word.count_ones() as usize).sum::<usize>(), count);
                let positions = |each| Some(ClusterOrder { words: &places, count, each });
                let asked = SearchParams { filter: Some(&filter), ..SearchParams::default() };
                let params = SearchParams { positions: positions(true), ..asked };
                let recall = recall(&world, &index, &vectors, &params, 10, &queries[..20 * dim]);
                assert!(recall > 0.93, "{metric:?} round {round} every {every} {recall}");
                // Where lists are scanned, the filter and the positions say the same.
                let scanned = SearchParams { positions: positions(false), ..asked };
                for query in queries[..20 * dim].chunks_exact(dim) {
                    let mut scratch = Scratch::new(&world.account).unwrap();
                    let mut search =
                        |params| index.search(&world.pages, query, 10, params, None, &mut scratch).unwrap();
                    assert_eq!(search(&asked), search(&scanned), "{metric:?} round {round} every {every}");
                }
            }
            let positions = Some(ClusterOrder { words: &[0; 94], count: 0, each: true });
            let none = SearchParams { filter: Some(&|_| false), positions, ..SearchParams::default() };
            let mut scratch = Scratch::new(&world.account).unwrap();
            assert!(index.search(&world.pages, &queries[..dim], 10, &none, None, &mut scratch).unwrap().is_empty());
        }
    }
}

#[test]
fn several_indexes_are_searched_as_one() {
    for metric in METRICS {
        let (world, dim, k) = (World::new(), 24, 10);
        let vectors = clustered(6000, dim, 60, metric, 3);
        let starts = [0, 3000, 3040, 4000, 6000];
        let part = |at: usize| &vectors[starts[at] * dim..starts[at + 1] * dim];
        let indexes: Vec<Index> = (0..4).map(|at| world.index(part(at), dim, metric)).collect();
        let mut scratch = Scratch::new(&world.account).unwrap();
        // Nothing resident; the largest only; narrow codes of all; everything.
        for round in 0..4 {
            match round {
                1 => indexes[0].sections().iter().for_each(|(_, section)| section.load().unwrap()),
                2 => indexes[1..].iter().flat_map(Index::sections).for_each(|(part, section)| {
                    if !matches!(part, Part::Codes3 | Part::Codes6 | Part::Vectors) {
                        section.load().unwrap();
                    }
                }),
                3 => indexes.iter().flat_map(Index::sections).for_each(|(_, section)| section.load().unwrap()),
                _ => {}
            }
            for exact in [false, true] {
                let (mut got, mut all) = (0, 0);
                for (number, query) in queries_like(dim, metric, 3).chunks_exact(dim).enumerate() {
                    let odd = |row: u32| row % 2 == 1;
                    let filter: Option<&dyn Fn(u32) -> bool> = if number % 2 == 1 { Some(&odd) } else { None };
                    let params = SearchParams { exact, filter, ..SearchParams::default() };
                    let parts: Vec<_> = indexes.iter().map(|index| (index, params)).collect();
                    let mut hits = Vec::new();
                    Search::begin(&world.pages, query, k, None, &mut scratch).run(&parts, &mut hits).unwrap();
                    assert_eq!(hits.len(), k);
                    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
                    for hit in &hits {
                        let row = starts[hit.index as usize] + hit.row as usize;
                        let truth = score(metric, query, &vectors[row * dim..(row + 1) * dim]);
                        assert!(
                            (hit.score - truth).abs() <= 1e-4 * (1.0 + truth.abs()),
                            "{} is not {truth}",
                            hit.score
                        );
                        assert!(filter.is_none_or(|filter| filter(hit.row)));
                    }
                    // All starts are even, so a row is odd in its index and in the whole.
                    let wanted = oracle(&vectors, query, metric, k, &|row| filter.is_none_or(|filter| filter(row)));
                    got += found(&hits, &wanted);
                    all += k;
                }
                let recall = got as f64 / all as f64;
                assert!(recall >= if exact { 1.0 } else { 0.93 }, "{metric:?} round {round} exact {exact}: {recall}");
            }
        }
    }
}

/// What passes the filter may stand in the other index: then the one of which little passes is not searched for it. But
/// where nothing near the query passes in either, both are searched further.
#[test]
fn a_filter_is_weighed_over_all_indexes() {
    for metric in METRICS {
        let (world, dim, k) = (World::new(), 16, 10);
        let vectors = clustered(12_000, dim, 60, metric, 3);
        const FIRST: u32 = 7000;
        let (first, second) = vectors.split_at(FIRST as usize * dim);
        let indexes = [first, second].map(|part| world.index(part, dim, metric));
        indexes.iter().flat_map(Index::sections).for_each(|(_, section)| section.load().unwrap());
        let mut scratch = Scratch::new(&world.account).unwrap();
        let mut search = |query: &[f32], filters: [&dyn Fn(u32) -> bool; 2]| {
            let with = |filter| SearchParams { filter: Some(filter), ..SearchParams::default() };
            let parts = [(&indexes[0], with(filters[0])), (&indexes[1], with(filters[1]))];
            let mut hits = Vec::new();
            Search::begin(&world.pages, query, k, None, &mut scratch).run(&parts, &mut hits).unwrap();
            (hits, scratch.profile.codes)
        };
        let (mut plain, mut mostly_dead, mut got, mut got_far, mut all) = (0, 0, 0, 0, 0);
        for query in queries_like(dim, metric, 3).chunks_exact(dim) {
            plain += search(query, [&|_| true, &|_| true]).1;
            let few = |row: u32| row.is_multiple_of(50);
            let (hits, codes) = search(query, [&|_| true, &few]);
            mostly_dead += codes;
            got += found(&hits, &oracle(&vectors, query, metric, k, &|row| row < FIRST || few(row - FIRST)));
            // The nearest are dead in both.
            let near = oracle(&vectors, query, metric, 4 * k, &|_| true);
            let far = |row: u32| near.iter().all(|hit| hit.row != row);
            let (hits, _) = search(query, [&far, &|row| far(row + FIRST)]);
            got_far += found(&hits, &oracle(&vectors, query, metric, k, &far));
            all += k;
        }
        assert!(mostly_dead < plain * 2, "{metric:?}: {mostly_dead} codes scanned, {plain} without a filter");
        assert!(got * 100 >= all * 93, "{metric:?}: {got} of {all}");
        assert!(got_far * 100 >= all * 88, "{metric:?}: {got_far} of {all} where the nearest are dead");
    }
}

#[test]
fn a_threshold_cuts() {
    for metric in METRICS {
        let (world, dim) = (World::new(), 16);
        let vectors = clustered(2000, dim, 20, metric, 3);
        let index = world.index(&vectors, dim, metric);
        let mut scratch = Scratch::new(&world.account).unwrap();
        for exact in [false, true] {
            let params = SearchParams { exact, ef: Some(1000), ..SearchParams::default() };
            for query in vectors.chunks_exact(dim).take(20) {
                let all = oracle(&vectors, query, metric, 20, &|_| true);
                let threshold = all[6].score;
                let hits = index.search(&world.pages, query, 20, &params, Some(threshold), &mut scratch).unwrap();
                assert!(hits.iter().all(|hit| hit.score >= threshold));
                assert!(hits.len() >= 6, "{metric:?} exact {exact}: {} hits", hits.len());
            }
        }
    }
}

#[test]
fn vectors_and_streams_give_back_what_came_in() {
    for (count, dim) in [(1, 3), (1000, 5), (5000, 30), (40, 1100)] {
        let world = World::new();
        let vectors = clustered(count, dim, 10, Metric::Euclid, 9);
        let index = world.index(&vectors, dim, Metric::Euclid);
        let rows: Vec<u32> = (0..count as u32).rev().step_by(3).collect();
        let mut out = Vec::new();
        index.vectors(&world.pages, &rows, &mut out).unwrap();
        for (row, x) in rows.iter().zip(out.chunks_exact(dim)) {
            assert_eq!(x, &vectors[*row as usize * dim..][..dim]);
        }
        assert!(index.vectors(&world.pages, &[count as u32], &mut out).is_err());
        let mut source = index.stream(&world.account);
        for _ in 0..2 {
            source.rewind().unwrap();
            let (mut rows, mut values, mut seen) = (Vec::new(), Vec::new(), vec![false; count]);
            while source.next(&mut rows, &mut values).unwrap() {
                assert!(rows.len() <= batch_rows(dim) && rows.len() * dim == values.len());
                for (row, x) in rows.iter().zip(values.chunks_exact(dim)) {
                    assert_eq!(x, &vectors[*row as usize * dim..][..dim]);
                    assert!(!std::mem::replace(&mut seen[*row as usize], true));
                }
            }
            assert!(seen.iter().all(|seen| *seen));
        }
        let (file, meta) = world.build("again.seg", &mut source, Metric::Euclid, 8 << 20).unwrap();
        let again = Index::open(&file, 32, &meta, &world.account).unwrap();
        again.check(&world.pages, &world.account).unwrap();
    }
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let (world, dim) = (World::new(), 20);
    let vectors = clustered(3000, dim, 30, Metric::Cosine, 3);
    let mut files = Vec::new();
    for name in ["a.seg", "b.seg"] {
        let (file, meta) = world.build(name, &mut SliceSource::new(&vectors, dim), Metric::Cosine, 16 << 20).unwrap();
        let mut bytes = Vec::new();
        for part in Part::ALL {
            let Some(section) = file.section(part.tag(32)) else { continue };
            let mut stream = section.stream(&world.account, 1 << 16).unwrap();
            let mut own = vec![0; section.len() as usize];
            stream.read_exact(&mut own).unwrap();
            bytes.push(own);
        }
        files.push((bytes, serde_json::to_string(&meta).unwrap()));
    }
    assert!(files[0] == files[1]);
}

#[test]
fn little_memory_is_enough_and_too_little_is_said() {
    let (world, dim) = (World::new(), 32);
    let vectors = clustered(20_000, dim, 100, Metric::Cosine, 3);
    let mut source = SliceSource::new(&vectors, dim);
    let (file, meta) = world.build("small.seg", &mut source, Metric::Cosine, 3 << 20).unwrap();
    let index = Index::open(&file, 32, &meta, &world.account).unwrap();
    index.check(&world.pages, &world.account).unwrap();
    let recall = recall(&world, &index, &vectors, &SearchParams::default(), 10, &vectors[..50 * dim]);
    assert!(recall > 0.93, "{recall}");
    let error = world.build("none.seg", &mut source, Metric::Cosine, 100 << 10).err().unwrap();
    assert_eq!(error.kind(), Kind::NoMemory, "{error}");
    assert!(world.disk.list(Path::new("temp")).unwrap().is_empty());
}

#[test]
fn a_build_can_be_cancelled_at_every_step() {
    let (world, dim) = (World::new(), 8);
    let vectors = clustered(9000, dim, 10, Metric::Euclid, 3);
    [1, 2].into_iter().for_each(|threads| cancel_at_every_step(&world, &vectors, dim, threads));
}

fn cancel_at_every_step(world: &World, vectors: &[f32], dim: usize, threads: usize) {
    let mut steps = 1;
    loop {
        let (asked, account) = (std::cell::Cell::new(0), world.account.child("build", "").with_limit(4 << 20));
        let cancelled = || {
            asked.set(asked.get() + 1);
            asked.get() >= steps
        };
        let work = Work {
            disk: world.disk.clone(),
            temp: "temp".into(),
            account: account.clone(),
            clock: Arc::new(ManualClock::default()),
            seed: 7,
            threads,
            progress: &|_| {},
            cancelled: &cancelled,
        };
        let mut out = world.pages.create(Path::new("cancelled.seg"), &world.account).unwrap();
        let (mut source, options) = (SliceSource::new(vectors, dim), BuildOptions::default());
        let built = build(&mut source, Metric::Euclid, Datatype::Float32, &mut out, 0, &work, &options);
        drop(out);
        assert_eq!(account.used(), 0);
        assert!(world.disk.list(Path::new("temp")).unwrap().is_empty());
        match built {
            Err(error) => assert_eq!(error.kind(), Kind::Closed),
            Ok(_) => break,
        }
        steps += 1;
    }
    assert!(steps > 10);
}

#[test]
fn a_meta_that_does_not_fit_is_refused() {
    let (world, dim) = (World::new(), 6);
    let vectors = clustered(500, dim, 5, Metric::Cosine, 3);
    let (file, meta) = world.build("meta.seg", &mut SliceSource::new(&vectors, dim), Metric::Cosine, 16 << 20).unwrap();
    let open = |meta: IndexMeta| Index::open(&file, 32, &meta, &world.account).err().map(|error| error.kind());
    assert_eq!(open(meta.clone()), None);
    assert_eq!(open(IndexMeta { version: 99, ..meta.clone() }), Some(Kind::Unsupported));
    for wrong in [
        IndexMeta { dim: 7, ..meta.clone() },
        IndexMeta { rows: 499, ..meta.clone() },
        IndexMeta { rows: 0, ..meta.clone() },
        IndexMeta { lists: 400, ..meta.clone() },
        IndexMeta { blocks: u32::MAX, ..meta.clone() },
        IndexMeta { metric: "nearness".into(), ..meta.clone() },
        IndexMeta { length: f32::NAN, ..meta.clone() },
    ] {
        assert_eq!(open(wrong), Some(Kind::Corrupt));
    }
}
