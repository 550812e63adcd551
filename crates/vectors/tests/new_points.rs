//! Filters over the newest points: which pass is told by what is in memory, and where payloads must be read, few reads bring many.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{PointId, Rng, SystemClock};
use ramekin_disk::{Disk, Engine, probe};
use ramekin_fields::{
    Condition, FieldCondition, Filter, Match, Path, Point, Scalar, Scalars, Schema, Span, Subject, Test,
};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

const DIM: usize = 4;
const FIELDS: [(&str, &str); 4] = [("n", "integer"), ("w", "keyword"), ("t", "text"), ("f", "float")];

struct Here {
    store: Store,
    disk: Arc<dyn Disk>,
    budget: Budget,
    _folder: tempfile::TempDir,
}

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

fn field(name: &str, test: Test) -> Filter {
    let condition = Condition::Field(FieldCondition { path: path(name), tests: [test].into() });
    Filter { must: [condition].into(), ..Filter::default() }
}

fn number(value: i64) -> Test {
    Test::Match(Match::Value(Scalar::Integer(value)))
}

impl Here {
    fn new(megabytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = probe(folder.path(), Some(Engine::Pread)).unwrap();
        let budget = Budget::new(megabytes << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let account = budget.root().child("vectors", "");
        let (at, clock) = (folder.path().to_owned(), Arc::new(SystemClock::new()));
        let options = StoreOptions {
            disk: disk.clone(),
            folder: at,
            pages,
            budget: budget.clone(),
            account,
            clock,
            build_threads: 1,
            threads: false,
        };
        let store = Store::open(options).unwrap();
        let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(DIM, MetricName::Dot))]);
        store.create_collection("c", CollectionConfig::new(vectors)).unwrap();
        Self { store, disk, budget, _folder: folder }
    }

    fn index(&self, name: &str, kind: &str) {
        let schema = Arc::new(Schema::named(kind).unwrap());
        self.store.set_index("c", path(name), Some(FieldConfig { schema, client_config: None })).unwrap();
    }

    fn write(&self, write: Write) {
        let (done, answer) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| done.send(outcome).unwrap());
        self.store.write("c", write, Wait::Visible, Vec::new(), done).unwrap();
        self.store.step_writer();
        answer.recv().unwrap().unwrap();
    }

    fn upsert(&self, points: &[(u64, Value)]) {
        for points in points.chunks(500) {
            let data = points.iter().flat_map(|(id, _)| [*id as f32, 1.0, 0.5, 0.25]).collect();
            let present = (0..points.len() as u32).collect();
            self.write(Write::Upsert(Batch {
                ids: points.iter().map(|(id, _)| PointId::Num(*id)).collect(),
                columns: vec![Column { name: UNNAMED.to_owned(), dim: DIM, present, data }],
                payloads: points.iter().map(|(_, payload)| payload.to_string().into()).collect(),
            }));
        }
    }

    fn query(&self, filter: &Filter, max_reads: Option<usize>) -> (Vec<PointId>, Profile) {
        let target = Target::Vector(vec![1.0, 0.5, 0.5, 0.25]);
        let query = Query { filter: filter.clone(), max_reads, ..Query::new(target, 10) };
        let (found, profile) = self.store.query("c", &query).unwrap();
        (found.value.into_iter().map(|scored| scored.record.id).collect(), profile)
    }

    fn select(&self, filter: &Filter) -> Vec<u64> {
        let page = self.store.scroll("c", None, 10_000, filter, &Parts::default()).unwrap().value;
        let ids = page.records.iter().map(|record| match record.id {
            PointId::Num(number) => number,
            PointId::Uuid(_) => panic!("no such id"),
        });
        ids.collect()
    }
}

#[test]
fn a_filter_of_an_indexed_field_reads_no_new_payload() {
    let here = Here::new(256);
    FIELDS.iter().for_each(|(name, kind)| here.index(name, kind));
    let long = "x".repeat(1000);
    let points: Vec<_> =
        (0..3000).map(|id| (id, json!({ "n": id, "w": format!("w{}", id % 7), "long": long }))).collect();
    here.upsert(&points);
    for (filter, passing) in [
        (field("n", number(99_999)), 0),
        (field("n", Test::Range(Span { lt: Some(500.0), ..Span::default() })), 500),
        (field("w", Test::Match(Match::Any(Scalars::words(["w3".into(), "none".into()].into())))), 429),
        (Filter { must_not: [Condition::IsEmpty(path("t"))].into(), ..Filter::default() }, 0),
    ] {
        let (found, profile) = here.query(&filter, None);
        assert_eq!((found.len(), profile.reads), (passing.min(10), 0), "{filter:?}");
        assert_eq!(here.store.count("c", &filter, true).unwrap(), passing as u64);
        assert_eq!(here.select(&filter).len(), passing);
    }
}

#[test]
fn payloads_of_new_points_are_read_by_the_record_and_counted() {
    let here = Here::new(256);
    let long = "x".repeat(1000);
    let points: Vec<_> = (0..3000).map(|id| (id, json!({ "n": id, "long": long }))).collect();
    here.upsert(&points);
    let (found, profile) = here.query(&field("n", number(99_999)), None);
    assert_eq!(found, []);
    // A record has some 30 of these points; neighbours of a batch may share one.
    assert!((90..600).contains(&profile.reads) && profile.read_bytes > 3_000_000, "{profile:?}");
    for most in [0, 1, 5, 40] {
        let (found, profile) = here.query(&field("n", number(99_999)), Some(most));
        assert!(found.is_empty() && profile.reads <= most as u64, "{most}: {profile:?}");
    }
    let (found, _) = here.query(&field("n", number(2999)), Some(1));
    assert_eq!(found, [PointId::Num(2999)], "the nearest is asked first");
}

#[test]
fn changed_payloads_of_sealed_points_are_read_by_the_record_and_counted() {
    let here = Here::new(256);
    let points: Vec<_> = (0..3000).map(|id| (id, json!({ "n": id }))).collect();
    here.upsert(&points);
    assert!(here.store.rotate_for_tests("c").unwrap());
    while here.store.step() {}
    let all = here.query(&field("n", number(99_999)), None);
    assert_eq!((all.0.len(), all.1.explain.map(|explain| explain.asked)), (0, Some(3000)));
    let long = format!("{{\"n\":7,\"long\":\"{}\"}}", "x".repeat(1000));
    for ids in (0..3000).collect::<Vec<u64>>().chunks(500) {
        let points = Selection::Ids(ids.iter().map(|id| PointId::Num(*id)).collect());
        here.write(Write::Payload { points, change: PayloadChange::Overwrite(long.as_str().into()) });
    }
    let (found, profile) = here.query(&field("n", number(99_999)), None);
    assert!(found.is_empty() && profile.reads >= 3000, "{profile:?}");
    for most in [0, 1, 5, 40] {
        let (found, profile) = here.query(&field("n", number(99_999)), Some(most));
        assert!(found.is_empty() && profile.reads <= most as u64, "{most}: {profile:?}");
    }
    // Where they are asked together a record is read once for all its points, a few records at a time.
    let before = here.disk.counters();
    assert_eq!(here.store.count("c", &field("n", number(99_999)), true).unwrap(), 0);
    let after = here.disk.counters();
    assert!(after.batches - before.batches < 200, "{} batches", after.batches - before.batches);
}

#[test]
fn what_points_hold_is_booked_and_given_back() {
    let here = Here::new(64);
    here.index("n", "integer");
    let before = here.budget.reserved();
    let points: Vec<_> =
        (0..2000).map(|id| (id, json!({ "n": (0..20).map(|at| id * 20 + at).collect::<Vec<u64>>() }))).collect();
    here.upsert(&points);
    let held = here.budget.reserved() - before;
    assert!(held > 1 << 20, "{held}");
    // More than that there is no room for: other points are asked by their payloads.
    let one = field("n", number(1999 * 20 + 7));
    assert_eq!((here.select(&one), here.store.count("c", &one, true).unwrap()), (vec![1999], 1));
    assert!(here.store.rotate_for_tests("c").unwrap());
    while here.store.step() {}
    assert_eq!(here.select(&one), [1999]);
    drop(here.store);
    assert_eq!(here.budget.reserved(), 0);
}

/// How many points the collection says are in the index of `n`, and how many reads of the disk that took.
fn indexed(here: &Here) -> (u64, u64) {
    let before = here.disk.counters().reads;
    let info = here.store.info("c").unwrap();
    let points = info.indexed_points[&path("n")] + info.new_points[&path("n")];
    (points, here.disk.counters().reads - before)
}

#[test]
fn points_of_an_index_are_those_that_live() {
    let here = Here::new(256);
    here.index("n", "integer");
    // Every third has no value.
    let value = |id: u64| if id.is_multiple_of(3) { json!({ "m": 1 }) } else { json!({ "n": id }) };
    let points: Vec<_> = (0..6000).map(|id| (id, value(id))).collect();
    here.upsert(&points);
    assert!(here.store.rotate_for_tests("c").unwrap());
    while here.store.step() {}
    assert_eq!(indexed(&here), (4000, 0));
    // Again: those that are sealed are dead now.
    here.upsert(&points[..4500]);
    assert_eq!(indexed(&here).0, 4000);
    let gone = (3000..6000).map(PointId::Num).collect();
    here.write(Write::Delete(Selection::Ids(gone)));
    assert_eq!(indexed(&here), (2000, 0));
    assert_eq!(indexed(&here), (2000, 0));
}

#[test]
fn points_that_were_there_before_an_index_count_at_once_and_are_read_once() {
    let here = Here::new(256);
    let points: Vec<_> = (0..5000).map(|id| (id, json!({ "n": id }))).collect();
    here.upsert(&points);
    here.index("n", "integer");
    let (count, reads) = indexed(&here);
    assert!(count == 5000 && reads > 0, "{count}, {reads} reads");
    assert_eq!(indexed(&here), (5000, 0), "asked again");
    // What changes is asked once more.
    let change = |id: u64, text: &str| {
        let points = Selection::Ids(vec![PointId::Num(id)]);
        here.write(Write::Payload { points, change: PayloadChange::Overwrite(text.into()) });
    };
    change(7, "{}");
    change(8, "{\"n\":[1,2]}");
    assert_eq!(indexed(&here).0, 4999);
    change(7, "{\"n\":1}");
    assert_eq!(indexed(&here).0, 5000);
    assert_eq!(indexed(&here), (5000, 0));
    let one = field("n", number(8));
    assert_eq!(here.select(&one), [] as [u64; 0], "it counts, and is asked by its payload all the same");
    // A part that waits for its seal counts, too.
    assert!(here.store.rotate_for_tests("c").unwrap());
    here.index("w", "keyword");
    let info = here.store.info("c").unwrap();
    assert_eq!((info.new_points[&path("n")], info.new_points[&path("w")]), (5000, 0));
}

fn payload(rng: &mut Rng) -> Value {
    let word = |rng: &mut Rng| ["a", "b", "a b", "c a b", ""][rng.below(5) as usize];
    let value = |rng: &mut Rng| match rng.below(9) {
        0 => Value::Null,
        1 => json!(rng.below(4) as f64 - 1.5),
        2 => json!(-0.0),
        3 => json!([rng.below(4), rng.below(4) as f64, word(rng)]),
        4 => json!([]),
        5 => json!({ "n": rng.below(4) }),
        6 => json!(rng.chance(0.5)),
        7 => json!(word(rng)),
        _ => json!(rng.below(5)),
    };
    let mut payload = Map::new();
    for (name, _) in FIELDS {
        if rng.chance(0.8) {
            payload.insert(name.to_owned(), value(rng));
        }
    }
    Value::Object(payload)
}

fn filter(rng: &mut Rng) -> Filter {
    let test = |rng: &mut Rng| match rng.below(9) {
        0 => number(rng.below(4) as i64),
        1 => Test::Range(Span { gte: Some(rng.below(4) as f64 - 0.5), lt: Some(3.0), ..Span::default() }),
        2 => Test::Match(Match::Except(Scalars::integers([0, 1].into()))),
        3 => Test::Match(Match::Any(Scalars::words(["a".into(), "b".into()].into()))),
        4 => Test::Match(Match::Text("b a".into())),
        5 => Test::Match(Match::Phrase("a b".into())),
        6 => Test::IsEmpty(rng.chance(0.5)),
        7 => Test::IsNull(rng.chance(0.5)),
        _ => Test::Match(Match::Except(Scalars::words(["a".into()].into()))),
    };
    let mut some = |most: u64| -> Vec<Condition> {
        let name = |rng: &mut Rng| FIELDS[rng.below(4) as usize].0;
        (0..rng.below(most))
            .map(|_| Condition::Field(FieldCondition { path: path(name(rng)), tests: [test(rng)].into() }))
            .collect()
    };
    Filter { must: some(3).into(), should: some(3).into(), must_not: some(2).into(), min_should: None }
}

/// Upserts, changes of payloads, deletes and seals in any order: filters select what the payloads say, wherever points are.
#[test]
fn new_points_answer_as_their_payloads_do() {
    for seed in 0..6 {
        let (here, mut rng, mut model) = (Here::new(64), Rng::new(seed), BTreeMap::<u64, Map<String, Value>>::new());
        let late = rng.below(4) as usize;
        FIELDS.iter().skip(late).for_each(|(name, kind)| here.index(name, kind));
        for step in 0..8 {
            let ids: Vec<u64> = (0..60).map(|_| rng.below(400)).collect();
            match rng.below(6) {
                0..=2 => {
                    let ids: std::collections::BTreeSet<u64> = ids.into_iter().collect();
                    let points: Vec<_> = ids.into_iter().map(|id| (id, payload(&mut rng))).collect();
                    here.upsert(&points);
                    model.extend(points.into_iter().map(|(id, payload)| (id, payload.as_object().unwrap().clone())));
                }
                3 => {
                    let (ids, new) = (model.keys().copied().take(30).collect::<Vec<_>>(), payload(&mut rng));
                    let points = Selection::Ids(ids.iter().map(|id| PointId::Num(*id)).collect());
                    here.write(Write::Payload { points, change: PayloadChange::Overwrite(new.to_string().into()) });
                    ids.iter().for_each(|id| _ = model.insert(*id, new.as_object().unwrap().clone()));
                }
                4 => {
                    let gone: Vec<_> = ids.iter().copied().take(20).collect();
                    here.write(Write::Delete(Selection::Ids(gone.iter().map(|id| PointId::Num(*id)).collect())));
                    gone.iter().for_each(|id| _ = model.remove(id));
                }
                _ => {
                    if here.store.rotate_for_tests("c").unwrap() && rng.chance(0.5) {
                        while here.store.step() {}
                    }
                }
            }
            if step == 4 {
                FIELDS.iter().take(late).for_each(|(name, kind)| here.index(name, kind));
            }
            for _ in 0..6 {
                let drawn = filter(&mut rng);
                let account = here.budget.root();
                let prepared = drawn.prepare(None, &account).unwrap();
                let has_vector = |_: &str| true;
                let passes = |(id, payload): &(&u64, &Map<String, Value>)| {
                    prepared.passes(&Subject {
                        payload,
                        point: Some(Point { id: PointId::Num(**id), has_vector: &has_vector }),
                    })
                };
                let expected: Vec<u64> = model.iter().filter(passes).map(|(id, _)| *id).collect();
                assert_eq!(here.select(&drawn), expected, "seed {seed}, step {step}: {drawn:?}");
                assert_eq!(here.store.count("c", &drawn, true).unwrap(), expected.len() as u64, "{drawn:?}");
                assert_eq!(here.query(&drawn, None).0.len(), expected.len().min(10), "{drawn:?}");
            }
        }
    }
}
