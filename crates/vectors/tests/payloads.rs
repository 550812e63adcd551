//! Changes of payloads, wherever a point stands: what is read back, and that no vector moves for it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{Clock, Kind, ManualClock, PointId, Rng, SystemClock};
use ramekin_disk::{Engine, probe};
use ramekin_fields::{Condition, FieldCondition, Filter, Match, Point, Scalar, Span, Subject, Test, parts};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const DIM: usize = 4;

fn open(folder: &Path, megabytes: u64, threads: bool) -> Store {
    open_at(folder, megabytes, threads, Arc::new(SystemClock::new()))
}

fn open_at(folder: &Path, megabytes: u64, threads: bool, clock: Arc<dyn Clock>) -> Store {
    let (disk, _) = probe(folder, Some(Engine::Pread)).unwrap();
    let budget = Budget::new(megabytes << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
    let account = budget.root().child("vectors", "");
    let folder = folder.to_owned();
    Store::open(StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads }).unwrap()
}

fn create(store: &Store) {
    let vector = VectorConfig::new(DIM, MetricName::Dot);
    let config = CollectionConfig {
        vacuum_min_vectors: 100,
        ..CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), vector)]))
    };
    store.create_collection("c", config).unwrap();
}

fn write(store: &Store, write: Write) {
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome| done.send(outcome).unwrap());
    store.write("c", write, Wait::Visible, Vec::new(), done).unwrap();
    store.step_writer();
    match answer.recv().unwrap() {
        // Those that exist were changed.
        Err(error) if error.kind() == Kind::NotFound => {}
        written => drop(written.unwrap()),
    }
}

type Model = BTreeMap<PointId, (Vec<f32>, Map<String, Value>)>;

/// Seals, folds and merges all that wants it.
fn settle(store: &Store) {
    while store.step() {}
}

fn sealed(store: &Store) {
    assert!(store.rotate_for_tests("c").unwrap());
    settle(store);
}

fn folded(store: &Store) {
    store.fold_for_tests("c").unwrap();
    settle(store);
    assert_eq!(store.patches_for_tests("c").unwrap().0, 0, "nothing is left in memory");
}

fn id(number: u64) -> PointId {
    if number % 3 == 1 { PointId::Uuid(ramekin_base::rng::mix(number).into()) } else { PointId::Num(number) }
}

fn upsert(store: &Store, model: &mut Model, rng: &mut Rng, ids: impl Iterator<Item = PointId>) {
    let mut batch = Batch::default();
    let mut column = Column { name: String::new(), dim: DIM, present: Vec::new(), data: Vec::new() };
    for (at, id) in ids.enumerate() {
        let vector: Vec<f32> = (0..DIM).map(|_| rng.normal()).collect();
        let mut payload = Map::new();
        if rng.chance(0.8) {
            payload.insert("n".into(), rng.below(1000).into());
        }
        column.present.push(at as u32);
        column.data.extend(&vector);
        batch.ids.push(id);
        batch.payloads.push(text(&payload).into());
        model.insert(id, (vector, payload));
    }
    batch.columns.push(column);
    write(store, Write::Upsert(batch));
}

fn text(payload: &Map<String, Value>) -> String {
    if payload.is_empty() { String::new() } else { Value::Object(payload.clone()).to_string() }
}

fn change(store: &Store, model: &mut Model, ids: Vec<PointId>, change: PayloadChange) {
    for id in &ids {
        let Some((_, payload)) = model.get_mut(id) else { continue };
        match &change {
            PayloadChange::Merge { keys: new, .. } => payload.extend(serde_json::from_str::<Map<_, _>>(new).unwrap()),
            PayloadChange::Overwrite(new) => *payload = serde_json::from_str(new).unwrap(),
            PayloadChange::DeleteKeys(keys) => keys.iter().for_each(|key| parts::remove(payload, key)),
            PayloadChange::Clear => payload.clear(),
        }
    }
    write(store, Write::Payload { points: Selection::Ids(ids), change });
}

fn any_change(rng: &mut Rng) -> PayloadChange {
    match rng.below(5) {
        0 | 1 => {
            PayloadChange::Merge { keys: format!("{{\"m{}\":{}}}", rng.below(3), rng.below(1000)).into(), path: None }
        }
        2 => PayloadChange::Overwrite(format!("{{\"o\":\"{}\"}}", "x".repeat(rng.below(900) as usize)).into()),
        3 => PayloadChange::DeleteKeys(vec![ramekin_fields::Path::of_key("n"), ramekin_fields::Path::of_key("m1")]),
        _ => PayloadChange::Clear,
    }
}

fn same(model: &Model, store: &Store) {
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), model.len() as u64);
    let (mut from, mut seen) = (None, Vec::new());
    loop {
        let page = store.scroll("c", from, 200, &Filter::default(), &parts).unwrap().value;
        seen.extend(page.records);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), model.len());
    for record in seen {
        let (vector, payload) = &model[&record.id];
        assert_eq!(record.vectors.unwrap()[0].1, *vector, "{}", record.id);
        let held: Value = serde_json::from_str(&record.payload.unwrap()).unwrap();
        assert_eq!(held, Value::Object(payload.clone()), "{}", record.id);
    }
    filters().iter().for_each(|filter| selects_the_same(filter, model, store));
}

/// One of each kind that looks at what changes here.
fn filters() -> Vec<Filter> {
    let path = |text: &str| ramekin_fields::Path::parse(text).unwrap();
    let field = |text: &str, test| Condition::Field(FieldCondition { path: path(text), tests: [test].into() });
    let one = || field("a", Test::Match(Match::Value(Scalar::Integer(1))));
    let several = Span { gte: Some(2), ..Span::default() };
    vec![
        Filter { must: [one()].into(), ..Filter::default() },
        Filter { must_not: [one(), Condition::IsEmpty(path("n"))].into(), ..Filter::default() },
        Filter {
            should: [field("b[]", Test::Range(Span::default())), Condition::IsNull(path("d.e"))].into(),
            ..Filter::default()
        },
        Filter { must: [field("b", Test::Count(several))].into(), ..Filter::default() },
        Filter { must: [Condition::HasId((0..40).step_by(3).map(PointId::Num).collect())].into(), ..Filter::default() },
        Filter { must: [Condition::HasVector("none".into())].into(), ..Filter::default() },
    ]
}

fn selects_the_same(filter: &Filter, model: &Model, store: &Store) {
    let has_vector = |name: &str| name.is_empty();
    let budget = ramekin_memory::Budget::new(1 << 20);
    let prepared = filter.prepare(None, &budget.root()).unwrap();
    let passes = |(id, (_, payload)): &(&PointId, &(Vec<f32>, Map<String, Value>))| {
        prepared.passes(&Subject { payload, point: Some(Point { id: **id, has_vector: &has_vector }) })
    };
    let expected: Vec<_> = model.iter().filter(passes).collect();
    assert_eq!(store.count("c", filter, true).unwrap(), expected.len() as u64, "{filter:?}");
    let ids: Vec<PointId> = expected.iter().map(|(id, _)| **id).collect();
    let (mut from, mut seen) = (None, Vec::new());
    loop {
        let page = store.scroll("c", from, 37, filter, &Parts::default()).unwrap().value;
        seen.extend(page.records.iter().map(|record| record.id));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids, "{filter:?}");
    let asked = [1.0, -0.5, 0.25, 2.0];
    let dot = |vector: &[f32]| vector.iter().zip(asked).map(|(a, b)| a * b).sum::<f32>();
    let mut scores: Vec<f32> = expected.iter().map(|(_, (vector, _))| dot(vector)).collect();
    scores.sort_unstable_by(|a, b| b.total_cmp(a));
    let query = Query { filter: filter.clone(), ..Query::new(Target::Vector(asked.to_vec()), 12) };
    let found = store.query("c", &query).unwrap().0.value;
    assert_eq!(found.len(), scores.len().min(12), "{filter:?}");
    found.iter().zip(scores).for_each(|(found, score)| assert!((found.score - score).abs() < 1e-4, "{filter:?}"));
}

/// All four changes, each on points of its own, and one that names an id twice and one that is not there.
fn all_changes(store: &Store, model: &mut Model) {
    let ids = |from: u64| (from..from + 100).map(id).collect::<Vec<_>>();
    change(store, model, ids(0), PayloadChange::Merge { keys: "{\"a\":1}".into(), path: None });
    change(store, model, ids(50), PayloadChange::Overwrite("{\"b\":[1,2],\"c\":\"é\"}".into()));
    change(
        store,
        model,
        ids(100),
        PayloadChange::DeleteKeys(vec![ramekin_fields::Path::of_key("n"), ramekin_fields::Path::of_key("b")]),
    );
    change(store, model, ids(180), PayloadChange::Clear);
    change(
        store,
        model,
        vec![id(7), id(99_999), id(7)],
        PayloadChange::Merge { keys: "{\"d\":{\"e\":null}}".into(), path: None },
    );
}

#[test]
fn changes_wherever_points_stand_and_after_restarts() {
    // Where the points stand when they change, and what happens then.
    for (before, after) in (0..4).flat_map(|before| (0..4).map(move |after| (before, after))) {
        let folder = tempfile::tempdir().unwrap();
        let (mut rng, mut model, clock) = (Rng::new(9), Model::new(), Arc::new(ManualClock::default()));
        let mut store = open_at(folder.path(), 32, false, clock.clone());
        create(&store);
        upsert(&store, &mut model, &mut rng, (0..400).map(id));
        match before {
            0 => {}
            1 => _ = store.rotate_for_tests("c").unwrap(),
            2 => sealed(&store),
            _ => {
                sealed(&store);
                change(
                    &store,
                    &mut model,
                    (0..300).map(id).collect(),
                    PayloadChange::Merge { keys: "{\"z\":0}".into(), path: None },
                );
                folded(&store);
                upsert(&store, &mut model, &mut rng, (350..380).map(id));
            }
        }
        all_changes(&store, &mut model);
        same(&model, &store);
        match after {
            0 => {}
            1 => settle(&store),
            2 => folded(&store),
            _ => {
                // A quarter dies, so that the segment is rewritten in the next quiet moment.
                store.rotate_for_tests("c").unwrap();
                settle(&store);
                let dead: Vec<PointId> = (0..110).map(|at| id(at * 2)).collect();
                dead.iter().for_each(|id| _ = model.remove(id));
                write(&store, Write::Delete(Selection::Ids(dead)));
                clock.advance(Duration::from_secs(60));
                settle(&store);
                assert_eq!(store.patches_for_tests("c").unwrap(), (0, 0), "the rewrite took all in");
            }
        }
        same(&model, &store);
        store.close();
        drop(store);
        store = open(folder.path(), 24, false);
        same(&model, &store);
        store.rotate_for_tests("c").unwrap();
        folded(&store);
        same(&model, &store);
        store.close();
        drop(store);
        same(&model, &open(folder.path(), 32, false));
    }
}

#[test]
fn no_vector_moves_for_a_payload() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(4), Model::new());
    let store = open(folder.path(), 32, false);
    create(&store);
    upsert(&store, &mut model, &mut rng, (0..500).map(id));
    sealed(&store);
    let before = store.info("c").unwrap();
    all_changes(&store, &mut model);
    assert_eq!(store.patches_for_tests("c").unwrap(), (280, 0));
    let after = store.info("c").unwrap();
    assert_eq!((after.points, after.segments, after.bytes_on_disk), (500, before.segments, before.bytes_on_disk));
    assert!(!store.rotate_for_tests("c").unwrap(), "the growing part saw nothing");
    folded(&store);
    assert_eq!(store.patches_for_tests("c").unwrap(), (0, 1));
    let after = store.info("c").unwrap();
    assert_eq!((after.segments, after.indexed_vectors), (before.segments, before.indexed_vectors));
    assert!(!store.rotate_for_tests("c").unwrap());
    same(&model, &store);
}

/// Everything in a random order, against the model, through restarts.
#[test]
fn changes_mixed_with_all_other_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(21), Model::new());
    let mut store = open(folder.path(), 32, false);
    create(&store);
    let mut runs = 0;
    for step in 0..200 {
        let some = |rng: &mut Rng, most: u64| {
            let mut ids: Vec<PointId> = (0..1 + rng.below(most)).map(|_| id(rng.below(1500))).collect();
            ids.sort();
            ids.dedup();
            ids
        };
        match rng.below(12) {
            0 | 1 => {
                let ids = some(&mut rng, 120);
                upsert(&store, &mut model, &mut rng, ids.into_iter());
            }
            2 => {
                let ids = some(&mut rng, 20);
                ids.iter().for_each(|id| _ = model.remove(id));
                write(&store, Write::Delete(Selection::Ids(ids)));
            }
            3 => _ = store.rotate_for_tests("c").unwrap(),
            4 => store.fold_for_tests("c").unwrap(),
            5 => settle(&store),
            6 if step % 3 == 0 => {
                store.close();
                drop(store);
                store = open(folder.path(), 24 + rng.below(20), false);
                same(&model, &store);
            }
            _ => {
                let ids = some(&mut rng, 100);
                let made = any_change(&mut rng);
                change(&store, &mut model, ids, made);
            }
        }
        runs = runs.max(store.patches_for_tests("c").unwrap().1);
    }
    assert!(runs > 1, "overlays were written");
    same(&model, &store);
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| entry.metadata().unwrap().len()).sum()
}

/// A key of every point: patches stay within their share, the log is let go, and few files are left.
#[test]
fn a_key_of_many_points_stays_within_memory_and_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(30), Model::new());
    let store = open(folder.path(), 24, false);
    create(&store);
    for first in (0..20_000).step_by(1000) {
        upsert(&store, &mut model, &mut rng, (first..first + 1000).map(id));
    }
    sealed(&store);
    let value = "y".repeat(300);
    for round in 0..2 {
        for first in (0..20_000).step_by(2000) {
            let ids = (first..first + 2000).map(id).collect();
            let new = format!("{{\"k{round}\":\"{value}\"}}");
            change(&store, &mut model, ids, PayloadChange::Merge { keys: new.into(), path: None });
            let (patches, runs) = store.patches_for_tests("c").unwrap();
            // A row and the place of its payload.
            assert!(patches as u64 * 24 <= (24 << 20) / 8 / 8, "{patches} patches");
            assert!(runs <= 8 * store.info("c").unwrap().segments as usize, "{runs} runs");
        }
        settle(&store);
    }
    let log = bytes_below(&folder.path().join("log"));
    assert!(log <= 24 << 20, "{log} bytes of log where some 20 MB were logged in each round");
    same(&model, &store);
    store.close();
    drop(store);
    same(&model, &open(folder.path(), 20, false));
}

/// Few points that change again and again: it is the log, not the memory, that asks for a fold.
#[test]
fn changes_do_not_pin_the_log_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rng, mut model) = (Rng::new(31), Model::new());
    let store = open(folder.path(), 24, false);
    create(&store);
    upsert(&store, &mut model, &mut rng, (0..200).map(id));
    sealed(&store);
    for round in 0..300 {
        let new = format!("{{\"r\":{round},\"v\":\"{}\"}}", "z".repeat(8000));
        change(&store, &mut model, (0..10).map(id).collect(), PayloadChange::Overwrite(new.into()));
        store.step();
    }
    let log = bytes_below(&folder.path().join("log"));
    assert!(log <= 12 << 20, "{log} bytes of log");
    same(&model, &store);
}

/// With all threads at work: whoever reads sees at least what was acknowledged before he asked.
#[test]
fn readers_never_see_an_older_payload_while_seals_folds_and_merges_run() {
    const POINTS: u64 = 1200;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 32, true);
    create(&store);
    let mut rng = Rng::new(77);
    upsert(&store, &mut Model::new(), &mut rng, (0..POINTS).map(id));
    let all: Vec<PointId> = (0..POINTS).map(id).collect();
    write(&store, Write::Payload { points: Selection::Ids(all), change: PayloadChange::Overwrite("{\"v\":0}".into()) });
    let known: Vec<AtomicU64> = (0..POINTS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let version = |record: &Record| {
        let payload: Value = serde_json::from_str(record.payload.as_ref().unwrap()).unwrap();
        payload["v"].as_u64().unwrap_or_else(|| panic!("{record:?}"))
    };
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::None };
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (store, known, done, parts, version) = (&store, &known, &done, &parts, &version);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !done.load(Ordering::SeqCst) {
                    let numbers: Vec<u64> = (0..20).map(|_| rng.below(POINTS)).collect();
                    let least: Vec<u64> = numbers.iter().map(|at| known[*at as usize].load(Ordering::SeqCst)).collect();
                    let ids: Vec<PointId> = numbers.iter().map(|number| id(*number)).collect();
                    let found = store.get("c", &ids, parts).unwrap().value;
                    assert_eq!(found.len(), ids.len());
                    for (record, least) in found.iter().zip(&least) {
                        assert!(version(record) >= *least, "{} is {record:?}, {least} was acknowledged", record.id);
                    }
                }
            });
        }
        for round in 1..250u64 {
            let numbers: Vec<u64> = (0..1 + rng.below(200)).map(|_| rng.below(POINTS)).collect();
            let ids: Vec<PointId> = numbers.iter().map(|number| id(*number)).collect();
            let new: Box<str> = format!("{{\"v\":{round}}}").into();
            if rng.chance(0.3) {
                let mut batch = Batch { ids, ..Batch::default() };
                let (present, data) = ((0..numbers.len() as u32).collect(), vec![1.0; numbers.len() * DIM]);
                batch.columns.push(Column { name: String::new(), dim: DIM, present, data });
                batch.payloads = vec![new; numbers.len()];
                write(&store, Write::Upsert(batch));
            } else {
                write(
                    &store,
                    Write::Payload {
                        points: Selection::Ids(ids),
                        change: PayloadChange::Merge { keys: new, path: None },
                    },
                );
            }
            numbers.iter().for_each(|number| known[*number as usize].store(round, Ordering::SeqCst));
            match rng.below(4) {
                0 => _ = store.rotate_for_tests("c").unwrap(),
                1 => store.fold_for_tests("c").unwrap(),
                _ => {}
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    store.close();
    drop(store);
    let store = open(folder.path(), 24, false);
    let found = store.scroll("c", None, POINTS as usize, &Filter::default(), &parts).unwrap().value.records;
    let versions: BTreeMap<PointId, u64> = found.iter().map(|record| (record.id, version(record))).collect();
    for (number, known) in known.iter().enumerate() {
        assert_eq!(versions[&id(number as u64)], known.load(Ordering::SeqCst));
    }
}

/// With all threads at work: no reader misses a point because it is being replaced.
#[test]
fn scrolls_and_searches_never_miss_a_point_that_is_replaced() {
    const POINTS: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 32, true);
    create(&store);
    let mut rng = Rng::new(78);
    upsert(&store, &mut Model::new(), &mut rng, (0..POINTS).map(id));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::None };
                let target = Target::Vector(vec![1.0; DIM]);
                let query = Query { exact: true, parts: parts.clone(), ..Query::new(target, POINTS as usize) };
                while !done.load(Ordering::SeqCst) {
                    let found = if seed == 0 {
                        store
                            .scroll("c", None, POINTS as usize, &Filter::default(), &parts)
                            .unwrap()
                            .value
                            .records
                            .len()
                    } else {
                        store.query("c", &query).unwrap().0.value.len()
                    };
                    assert_eq!(found as u64, POINTS, "{}", ["scroll", "search"][seed as usize]);
                }
            });
        }
        for _ in 0..300 {
            let from = rng.below(POINTS);
            upsert(&store, &mut Model::new(), &mut rng, (from..POINTS.min(from + 60)).map(id));
            if rng.chance(0.3) {
                store.rotate_for_tests("c").unwrap();
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    store.close();
}

/// With all threads at work: what a filtered search shows passes the filter as it is shown, with an index of the field and without.
#[test]
fn hits_of_a_filtered_search_pass_it_as_they_are_shown() {
    const POINTS: u64 = 600;
    for is_indexed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 32, true);
        create(&store);
        let path = ramekin_fields::Path::of_key("k");
        if is_indexed {
            let schema = Arc::new(ramekin_fields::Schema::named("keyword").unwrap());
            store.set_index("c", path.clone(), Some(FieldConfig { schema, client_config: None })).unwrap();
        }
        let mut rng = Rng::new(79);
        upsert(&store, &mut Model::new(), &mut rng, (0..POINTS).map(id));
        let payload = |word: &str| PayloadChange::Overwrite(format!("{{\"k\":\"{word}\"}}").into());
        let set = |ids: Vec<PointId>, word| {
            write(&store, Write::Payload { points: Selection::Ids(ids), change: payload(word) });
        };
        set((0..POINTS).map(id).collect(), "a");
        let test = Test::Match(Match::Value(Scalar::Word("a".into())));
        let field = FieldCondition { path, tests: [test].into() };
        let filter = Filter { must: [Condition::Field(field)].into(), ..Filter::default() };
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::None };
        let query = Query { parts, filter, ..Query::new(Target::Vector(vec![1.0; DIM]), 40) };
        let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    for hit in &store.query("c", &query).unwrap().0.value {
                        assert_eq!(hit.record.payload.as_deref(), Some("{\"k\":\"a\"}"), "{}", hit.record.id);
                    }
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
            for round in 0..200u64 {
                let ids = (0..30).map(|_| id(rng.below(POINTS))).collect();
                set(ids, if rng.chance(0.5) { "a" } else { "b" });
                match round % 20 {
                    5 => _ = store.rotate_for_tests("c").unwrap(),
                    15 => store.fold_for_tests("c").unwrap(),
                    _ => {}
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        assert!(asked.into_inner() > 0);
        store.close();
    }
}

/// Of writes that share a commit a later one may replace points of an earlier one, wherever those will stand.
#[test]
fn writes_of_one_group_may_replace_points_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 64, false);
    create(&store);
    let batch = |ids: &[u64]| Batch {
        ids: ids.iter().map(|id| PointId::Num(*id)).collect(),
        columns: vec![Column {
            name: String::new(),
            dim: DIM,
            present: (0..ids.len() as u32).collect(),
            data: vec![1.0; ids.len() * DIM],
        }],
        payloads: vec!["".into(); ids.len()],
    };
    let all: Vec<u64> = (0..20_000).collect();
    let (done, answers) = mpsc::sync_channel(4);
    let put = |write| {
        let done = done.clone();
        let done = Box::new(move |outcome: Result<Written, _>| done.send(outcome).unwrap());
        store.write("c", write, Wait::Visible, Vec::new(), done).unwrap();
    };
    put(Write::Upsert(batch(&all)));
    put(Write::Upsert(batch(&[10, 9_000, 17_000])));
    put(Write::Delete(Selection::Ids([11, 9_001, 17_001].map(PointId::Num).to_vec())));
    store.step_writer();
    for _ in 0..3 {
        answers.recv().unwrap().unwrap();
    }
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 19_997);
}
