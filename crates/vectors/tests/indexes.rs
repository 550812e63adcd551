//! A filter selects the same points with and without an index of its field.
//!
//! ```text
//!   payloads of all kinds of values ─► segments · payloads that changed · new points
//!   filters                         ─► asked before there is an index, while it is built, and with it;
//!                                      after a flush, a merge, changes and a restart; and when it is gone
//! ```
//!
//! What is right the payloads say, asked one by one. INDEXES_SEEDS (1; more in a long run).

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{PointId, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_fields::{
    Condition, FieldCondition, Filter, GeoBox, GeoPoint, GeoRadius, Match, MinShould, Path as FieldPath, Point, Scalar,
    Scalars, Schema, Span, Subject, Test, Tokenizer, micros,
};
use ramekin_memory::Budget;
use ramekin_vectors::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use world::{DIM, NAME, World};

const IDS: u64 = 300;
const FILTERS: usize = 20;
const PATHS: [&str; 5] = ["m", "m[]", "m[].b", "n", "n[1]"];
const WORDS: [&str; 7] = ["red", "green", "The quick red fox", "fox", "", "Über", "red red"];
const UUIDS: [&str; 4] = [
    "550e8400-e29b-41d4-a716-446655440000",
    "550E8400-E29B-41D4-A716-446655440000",
    "550e8400e29b41d4a716446655440000",
    "650e8400-e29b-41d4-a716-446655440000",
];
const TIMES: [&str; 4] = ["2020-01-01", "2020-01-01T00:00:00Z", "1969-12-31T23:59:59", "never"];
const INTEGERS: [i64; 6] = [(1 << 53) + 1, 1 << 53, -(1 << 53) - 1, i64::MAX, i64::MIN, 0];
const FLOATS: [f64; 8] = [1.5, 2.0, -0.0, 1e300, 9.3e18, 9_007_199_254_740_993.0, -2.5, 0.0];
const LONGITUDES: [f64; 7] = [13.4, 0.0, -0.0, 180.0, -179.5, 373.4, 200.0];
const LATITUDES: [f64; 6] = [52.5, 0.0, 90.0, -90.0, 89.95, 91.0];

fn pick<T: Copy>(rng: &mut Rng, some: &[T]) -> T {
    some[rng.below(some.len() as u64) as usize]
}

fn integer(rng: &mut Rng) -> i64 {
    if rng.chance(0.7) { rng.below(6) as i64 - 2 } else { pick(rng, &INTEGERS) }
}

fn scalar(rng: &mut Rng) -> Value {
    match rng.below(13) {
        0 | 1 => json!(pick(rng, &WORDS)),
        2 => json!(pick(rng, &UUIDS)),
        3 => json!(pick(rng, &TIMES)),
        4 | 5 => json!(integer(rng)),
        6 => json!(pick(rng, &FLOATS)),
        7 => json!(rng.chance(0.5)),
        8 => json!({ "lon": pick(rng, &LONGITUDES), "lat": pick(rng, &LATITUDES) }),
        9 => Value::Null,
        10 => json!(["x".repeat(239 + rng.below(4) as usize), u64::MAX]),
        11 => json!("x".repeat(239 + rng.below(4) as usize)),
        _ => json!({ "b": [integer(rng), pick(rng, &WORDS)] }),
    }
}

fn value(rng: &mut Rng) -> Value {
    if rng.chance(0.6) { scalar(rng) } else { (0..rng.below(4)).map(|_| scalar(rng)).collect() }
}

fn payload(rng: &mut Rng) -> Map<String, Value> {
    let mut payload = Map::new();
    for key in ["m", "n"] {
        if rng.chance(0.85) {
            payload.insert(key.to_owned(), value(rng));
        }
    }
    payload
}

fn bound(rng: &mut Rng) -> Option<f64> {
    rng.chance(0.5).then(|| if rng.chance(0.5) { pick(rng, &FLOATS) } else { integer(rng) as f64 })
}

fn place(rng: &mut Rng) -> GeoPoint {
    GeoPoint { lon: pick(rng, &LONGITUDES[..5]), lat: pick(rng, &LATITUDES[..5]) }
}

fn test(rng: &mut Rng) -> Test {
    let word = |rng: &mut Rng| if rng.chance(0.6) { pick(rng, &WORDS) } else { pick(rng, &UUIDS) };
    let scalars = |rng: &mut Rng| match rng.chance(0.5) {
        true => Scalars::words((0..rng.below(3)).map(|_| word(rng).into()).collect()),
        false => Scalars::integers((0..rng.below(3)).map(|_| integer(rng)).collect()),
    };
    match rng.below(17) {
        0 => Test::Match(Match::Value(Scalar::Word(word(rng).into()))),
        1 => Test::Match(Match::Value(Scalar::Integer(integer(rng)))),
        2 => Test::Match(Match::Value(Scalar::Bool(rng.chance(0.5)))),
        3 => Test::Match(Match::Any(scalars(rng))),
        4 | 5 => Test::Match(Match::Except(scalars(rng))),
        6 => Test::Match(Match::Text(pick(rng, &["red", "fox red", "über", "", "qui"]).into())),
        7 => Test::Match(Match::TextAny(pick(rng, &["fox über", "x", ""]).into())),
        8 => Test::Match(Match::Phrase(pick(rng, &["red fox", "fox", "red red", "fox red", ""]).into())),
        9 => Test::Match(Match::Prefix(pick(rng, &["re", "", "x", "5"]).into())),
        10 | 11 => Test::Range(Span { gt: bound(rng), gte: bound(rng), lt: bound(rng), lte: bound(rng) }),
        12 => Test::Times(Span { gte: micros(pick(rng, &TIMES)), lt: micros(pick(rng, &TIMES)), ..Span::default() }),
        13 => Test::Box(GeoBox { top_left: place(rng), bottom_right: place(rng) }),
        14 => Test::Radius(GeoRadius { center: place(rng), radius: pick(rng, &[1000.0, 2e5, 5e6, 3e7]) }),
        15 => Test::IsEmpty(rng.chance(0.5)),
        _ => Test::IsNull(rng.chance(0.5)),
    }
}

fn path(rng: &mut Rng) -> FieldPath {
    FieldPath::parse(pick(rng, &PATHS)).unwrap()
}

fn condition(rng: &mut Rng) -> Condition {
    let several = if rng.chance(0.8) { 1 } else { 2 + rng.below(2) };
    match rng.below(14) {
        0 => Condition::IsEmpty(path(rng)),
        1 => Condition::IsNull(path(rng)),
        2 => Condition::HasId((0..IDS).filter(|_| rng.chance(0.3)).map(PointId::Num).collect()),
        3 => Condition::Filter(filter(rng)),
        _ => Condition::Field(FieldCondition { path: path(rng), tests: (0..several).map(|_| test(rng)).collect() }),
    }
}

fn filter(rng: &mut Rng) -> Filter {
    let some = |rng: &mut Rng, most: u64| -> Vec<Condition> { (0..rng.below(most)).map(|_| condition(rng)).collect() };
    let (must, should, must_not) = (some(rng, 3), some(rng, 3), some(rng, 2));
    let min_should =
        rng.chance(0.2).then(|| MinShould { conditions: some(rng, 4).into(), least: rng.below(3) as usize });
    Filter { must: must.into(), should: should.into(), must_not: must_not.into(), min_should }
}

/// Each kind, on all paths; of words those that are taken apart as without an index.
fn kinds() -> Vec<Schema> {
    let named = ["keyword", "integer", "float", "bool", "datetime", "uuid", "geo", "text"];
    let mut kinds: Vec<_> = named.iter().map(|name| Schema::named(name).unwrap()).collect();
    kinds.push(Schema::Text(Tokenizer { phrases: true, ..Tokenizer::default() }));
    kinds
}

struct Drawn {
    rng: Rng,
    disk: Arc<dyn Disk>,
    budget: Budget,
    world: Option<World>,
    model: BTreeMap<u64, Map<String, Value>>,
    filters: Vec<Filter>,
}

impl Drawn {
    fn new(seed: u64) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_block(seed, Faults::default(), 4096));
        let (budget, mut rng) = (Budget::new(64 << 20), Rng::new(seed));
        let world = World::open(&disk, Path::new("/data"), &budget).unwrap();
        world.create().unwrap();
        // One of each test by itself, and many joined.
        let mut filters: Vec<Filter> = (0..FILTERS).map(|_| filter(&mut rng)).collect();
        filters.extend((0..FILTERS).map(|_| Filter { must: [condition(&mut rng)].into(), ..Filter::default() }));
        Self { rng, disk, budget, world: Some(world), model: BTreeMap::new(), filters }
    }

    fn world(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn upsert(&mut self, ids: std::ops::Range<u64>) {
        let points: Vec<_> = ids.map(|id| (id, payload(&mut self.rng))).collect();
        let data = points.iter().flat_map(|(id, _)| world::vector(*id)).collect();
        let present = (0..points.len() as u32).collect();
        self.world()
            .write(Write::Upsert(Batch {
                ids: points.iter().map(|(id, _)| PointId::Num(*id)).collect(),
                columns: vec![Column { name: UNNAMED.to_owned(), dim: DIM, present, data }],
                payloads: points.iter().map(|(_, payload)| json!(payload).to_string().into()).collect(),
            }))
            .unwrap();
        self.model.extend(points);
    }

    /// Some points get another payload.
    fn change(&mut self) {
        for _ in 0..5 {
            let ids: Vec<u64> = (0..IDS).filter(|_| self.rng.chance(0.01)).collect();
            let new = payload(&mut self.rng);
            let points = Selection::Ids(ids.iter().map(|id| PointId::Num(*id)).collect());
            let change = PayloadChange::Overwrite(json!(new).to_string().into());
            self.world().write(Write::Payload { points, change }).unwrap();
            ids.iter().for_each(|id| _ = self.model.insert(*id, new.clone()));
        }
    }

    fn restart(&mut self) {
        self.world.take().unwrap().store.close();
        self.world = Some(World::open(&self.disk, Path::new("/data"), &self.budget).unwrap());
    }

    fn index(&self, schema: Option<&Schema>) {
        for path in PATHS {
            let index = schema.map(|schema| FieldConfig { schema: Arc::new(schema.clone()), client_config: None });
            self.world().store.set_index(NAME, FieldPath::parse(path).unwrap(), index).unwrap();
        }
    }

    /// All filters select, count and find what the payloads say.
    fn ask(&self, when: &str, kind: &str) {
        let (store, account) = (&self.world().store, self.budget.root());
        for filter in &self.filters {
            let plain = filter.prepare(None, &account).unwrap();
            let passes = |(id, payload): &(&u64, &Map<String, Value>)| {
                let point = Some(Point { id: PointId::Num(**id), has_vector: &|_: &str| true });
                plain.passes(&Subject { payload, point })
            };
            let expected: Vec<u64> = self.model.iter().filter(passes).map(|(id, _)| *id).collect();
            let page = store.scroll(NAME, None, 2 * IDS as usize, filter, &Parts::default()).unwrap().value;
            let number = |id: PointId| if let PointId::Num(number) = id { number } else { u64::MAX };
            let selected: Vec<u64> = page.records.iter().map(|record| number(record.id)).collect();
            assert_eq!(selected, expected, "{kind}, {when}: {filter:?}");
            let counted = store.count(NAME, filter, true).unwrap();
            assert_eq!(counted, expected.len() as u64, "{kind}, {when}: {filter:?}");
            let query =
                Query { filter: filter.clone(), ..Query::new(Target::Vector(world::vector(7)), 2 * IDS as usize) };
            let mut found: Vec<u64> =
                store.query(NAME, &query).unwrap().0.value.iter().map(|scored| number(scored.record.id)).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{kind}, {when}: {filter:?}");
        }
    }

    fn run(&mut self) {
        self.upsert(0..200);
        self.world().flush().unwrap();
        self.upsert(200..250);
        self.ask("before there was one", "no index");
        for schema in kinds() {
            let kind = schema.name();
            self.index(Some(&schema));
            self.ask("before it is built", kind);
            self.world().settle();
            for path in PATHS {
                assert!(!self.world().store.lacks_index(NAME, &FieldPath::parse(path).unwrap()).unwrap(), "{kind}");
            }
            self.ask("in a segment", kind);
            self.change();
            self.upsert(240..IDS);
            self.ask("changed and new", kind);
            // The same is asked again, and is remembered by now.
            self.ask("remembered", kind);
            self.world().flush().unwrap();
            self.ask("after a flush", kind);
            self.change();
            self.restart();
            self.ask("after a restart", kind);
            self.world().store.fold_for_tests(NAME).unwrap();
            self.world().settle();
            self.ask("after changes were folded, and a merge", kind);
            self.index(None);
            self.ask("when it is gone", kind);
        }
    }
}

#[test]
fn a_filter_selects_the_same_points_with_and_without_an_index() {
    let seeds: u64 = std::env::var("INDEXES_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 0..seeds {
        let ran = std::panic::catch_unwind(|| Drawn::new(seed).run());
        assert!(ran.is_ok(), "seed {seed}");
    }
}

/// A store under 48 MiB with a segment of points that have these values.
fn with_values(values: &[String]) -> (World, Budget) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_block(1, Faults::default(), 4096));
    let budget = Budget::new(48 << 20);
    let world = World::open(&disk, Path::new("/data"), &budget).unwrap();
    world.create().unwrap();
    for (id, value) in values.iter().enumerate() {
        let column = Column { name: UNNAMED.to_owned(), dim: DIM, present: vec![0], data: world::vector(id as u64) };
        let payload = format!("{{\"a\":{value}}}").as_str().into();
        let ids = vec![PointId::Num(id as u64)];
        world.write(Write::Upsert(Batch { ids, columns: vec![column], payloads: vec![payload] })).unwrap();
    }
    world.flush().unwrap();
    (world, budget)
}

fn matching(test: Match) -> Filter {
    let field = FieldCondition { path: FieldPath::of_key("a"), tests: [Test::Match(test)].into() };
    Filter { must: [Condition::Field(field)].into(), ..Filter::default() }
}

#[test]
fn long_texts_and_long_lists_are_indexed_under_the_least_budget() {
    let text = |at: usize| format!("\"{}, number{at}\"", "of a word, and [another]: ".repeat(40_000));
    let list = |at: usize| format!("{:?}", (at * 60_000..(at + 1) * 60_000).collect::<Vec<_>>());
    let text_of = Match::Text("number2".into());
    let list_of = Match::Value(Scalar::Integer(150_000));
    for (kind, values, asked) in [("text", [0, 1, 2].map(text), text_of), ("integer", [0, 1, 2].map(list), list_of)] {
        assert!(values[0].len() > 400_000, "{kind}");
        let (world, _budget) = with_values(&values);
        world.index("a", Schema::named(kind).unwrap()).unwrap();
        world.settle();
        let info = world.store.info(NAME).unwrap();
        assert!(!world.store.lacks_index(NAME, &FieldPath::of_key("a")).unwrap(), "{kind}: {:?}", info.optimizer);
        assert_eq!((info.status, info.indexed_points[&FieldPath::of_key("a")]), (Status::Green, 3), "{kind}");
        assert_eq!(world.store.count(NAME, &matching(asked), true).unwrap(), 1, "{kind}");
    }
}

#[test]
fn an_index_that_no_memory_is_enough_for_is_given_up_and_said_until_the_budget_is_another() {
    let (world, budget) = with_values(&[format!("[{}0]", "0,".repeat(600_000))]);
    let tries = Arc::new(AtomicUsize::new(0));
    let tried = tries.clone();
    let count = move |place| _ = tried.fetch_add(usize::from(place == "index"), Ordering::SeqCst);
    world.store.plant_for_tests(Box::new(count));
    world.index("a", Schema::named("integer").unwrap()).unwrap();
    for _ in 0..5 {
        world.settle();
    }
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    let info = world.store.info(NAME).unwrap();
    let said = info.optimizer.unwrap_err();
    assert!(
        info.status == Status::Red && said.contains("too large to be taken apart under the budget of 48.0 MiB"),
        "{said}"
    );
    budget.set_limit(512 << 20);
    world.store.rebudget().unwrap();
    world.settle();
    let info = world.store.info(NAME).unwrap();
    assert_eq!((info.status, tries.load(Ordering::SeqCst)), (Status::Green, 3), "{:?}", info.optimizer);
    assert_eq!(info.indexed_points[&FieldPath::of_key("a")], 1);
}

/// As a reader has it (`node`, which stands above).
const READER_STACK_BYTES: usize = 256 << 10;

#[test]
fn the_deepest_filters_are_asked_of_indexes_and_remembered_on_a_readers_stack() {
    let values: Vec<String> = (0..50).map(|at| (at % 5).to_string()).collect();
    let (world, _budget) = with_values(&values);
    world.index("a", Schema::named("integer").unwrap()).unwrap();
    world.settle();
    // And new points.
    world.write(world::upsert(&[(PointId::Num(1000), 7)])).unwrap();
    let within: [fn(Condition) -> Filter; 4] = [
        |inner| Filter { must: [inner].into(), ..Filter::default() },
        |inner| Filter { should: [inner].into(), ..Filter::default() },
        |inner| Filter { must_not: [inner].into(), ..Filter::default() },
        |inner| Filter { min_should: Some(MinShould { conditions: [inner].into(), least: 1 }), ..Filter::default() },
    ];
    for within in within {
        let mut filter = matching(Match::Value(Scalar::Integer(3)));
        // An even number of times, so that what is turned round is so twice; deeper than a body can say it.
        for _ in 0..ramekin_base::limits::NESTING_MAX {
            filter = within(Condition::Filter(filter));
        }
        std::thread::scope(|scope| {
            let ask = || {
                for _ in 0..3 {
                    assert_eq!(world.store.count(NAME, &filter, true).unwrap(), 10);
                    let query = Query { filter: filter.clone(), ..Query::new(Target::Vector(world::vector(7)), 100) };
                    assert_eq!(world.store.query(NAME, &query).unwrap().0.value.len(), 10);
                    let page = world.store.scroll(NAME, None, 100, &filter, &Parts::default()).unwrap().value;
                    assert_eq!(page.records.len(), 10);
                }
            };
            let thread = std::thread::Builder::new().stack_size(READER_STACK_BYTES).spawn_scoped(scope, ask);
            thread.unwrap().join().unwrap();
        });
    }
}
