//! What takes long stops nobody else: the disk is held at a gate, and what others ask must get through meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is not as expected")]

mod gate;

use gate::{BROKEN, Call, Gate, Gated};
use parking_lot::Mutex;
use ramekin_base::{PointId, SystemClock, cancel};
use ramekin_disk::{Engine, probe};
use ramekin_fields::{Condition, FieldCondition, Filter, Match, Scalar, Scalars, Schema, Test};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

const DIM: usize = 4;

/// A store with its threads, on a disk behind a gate.
struct Held {
    store: Store,
    budget: Budget,
    gate: Gate,
    _folder: tempfile::TempDir,
}

impl Held {
    fn new(collections: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gate = Gate::default();
        let budget = Budget::new(64 << 20);
        let store = open(folder.path(), &gate, &budget);
        collections.iter().for_each(|name| create(&store, name));
        Self { store, budget, gate, _folder: folder }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gate.open();
        self.store.close();
    }
}

fn open(folder: &Path, gate: &Gate, budget: &Budget) -> Store {
    let (disk, _) = probe(folder, Some(Engine::Pread)).unwrap();
    let disk = Arc::new(Gated { disk, gate: gate.clone() });
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), budget, 1 << 36).unwrap();
    let account = budget.root().child("vectors", "");
    let (folder, clock, budget) = (folder.to_owned(), Arc::new(SystemClock::new()), budget.clone());
    Store::open(StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads: true }).unwrap()
}

fn create(store: &Store, name: &str) {
    let vector = VectorConfig::new(DIM, MetricName::Dot);
    let config = CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), vector)]));
    store.create_collection(name, config).unwrap();
}

fn write(store: &Store, name: &str, write: Write) {
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome| done.send(outcome).unwrap());
    store.write(name, write, Wait::Visible, Vec::new(), done).unwrap();
    answer.recv().unwrap().unwrap();
}

/// Points with these ids, each with a payload of so many bytes.
fn points(ids: std::ops::Range<u64>, payload: usize) -> Write {
    let count = ids.end - ids.start;
    let column = Column {
        name: String::new(),
        dim: DIM,
        present: (0..count as u32).collect(),
        data: ids.clone().flat_map(|id| [id as f32, 1.0, 0.0, 0.0]).collect(),
    };
    let text = format!("{{\"t\":\"{}\"}}", "x".repeat(payload));
    let payloads = ids.clone().map(|_| text.as_str().into()).collect();
    Write::Upsert(Batch { ids: ids.map(PointId::Num).collect(), columns: vec![column], payloads })
}

fn query(store: &Store, name: &str) -> Vec<PointId> {
    let query = Query::new(Target::Vector(vec![1.0, 0.0, 0.0, 0.0]), 3);
    let (found, _) = store.query(name, &query).unwrap();
    found.value.iter().map(|scored| scored.record.id).collect()
}

fn count(store: &Store, name: &str) -> u64 {
    store.count(name, &Filter::default(), true).unwrap()
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
}

fn is_log(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "log")
}

#[test]
fn a_flush_that_reads_its_log_stops_neither_writes_nor_queries() {
    let held = Held::new(&["c", "other"]);
    let (store, gate) = (&held.store, &held.gate);
    write(store, "c", points(0..200, 1000));
    gate.close(|call, path| call == Call::Read && is_log(path));
    assert!(store.rotate_for_tests("c").unwrap());
    gate.arrived();
    gate.while_closed(|| {
        write(store, "other", points(0..1, 0));
        // One that is new, one that is in the part that is being written, and one of it that goes.
        write(store, "c", points(1000..1001, 0));
        write(store, "c", points(199..200, 0));
        write(store, "c", Write::Delete(Selection::Ids(vec![PointId::Num(7)])));
        assert_eq!(query(store, "c"), [1000, 199, 198].map(PointId::Num));
        assert_eq!(query(store, "other"), [PointId::Num(0)]);
        assert_eq!(count(store, "c"), 200);
    });
    gate.open();
    while store.info("c").unwrap().bytes_on_disk == 0 {
        std::thread::yield_now();
    }
    assert_eq!((count(store, "c"), query(store, "c")), (200, [1000, 199, 198].map(PointId::Num).to_vec()));
}

/// Lets all of [`points`] with so long a payload pass.
fn filter(payload: usize) -> Filter {
    let test = Test::Match(Match::Value(Scalar::Word("x".repeat(payload).into())));
    let field = FieldCondition { path: ramekin_fields::Path::of_key("t"), tests: [test].into() };
    Filter { must: [Condition::Field(field)].into(), ..Filter::default() }
}

#[test]
fn a_long_change_stops_only_the_writes_of_its_own_collection() {
    let held = Held::new(&["c", "other"]);
    let (store, gate) = (&held.store, &held.gate);
    write(store, "c", points(0..3000, 100));
    assert!(store.rotate_for_tests("c").unwrap());
    while store.info("c").unwrap().bytes_on_disk == 0 {
        std::thread::yield_now();
    }
    gate.close(|call, path| call == Call::Read && is_segment(path));
    let (done, answer) = mpsc::sync_channel(2);
    let then = |write: Write| {
        let done = done.clone();
        store
            .write("c", write, Wait::Visible, Vec::new(), Box::new(move |outcome| done.send(outcome).unwrap()))
            .unwrap();
    };
    // The change reads what it is to delete; the write behind it is of its collection and must not overtake it.
    then(Write::Delete(Selection::Filter(filter(100))));
    then(points(5..6, 100));
    gate.arrived();
    gate.while_closed(|| {
        write(store, "other", points(0..1, 0));
        write(
            store,
            "other",
            Write::Payload { points: Selection::Ids(vec![PointId::Num(0)]), change: PayloadChange::Clear },
        );
        write(store, "other", Write::Delete(Selection::Ids(vec![PointId::Num(0)])));
        create(store, "new");
        write(store, "new", points(0..2, 0));
    });
    assert!(answer.try_recv().is_err());
    gate.open();
    answer.recv().unwrap().unwrap();
    answer.recv().unwrap().unwrap();
    assert_eq!((count(store, "c"), count(store, "new")), (1, 2));
}

#[test]
fn a_change_for_which_a_store_at_rest_has_no_memory_waits_and_stops_no_other_request() {
    let held = Held::new(&["c"]);
    let (store, budget) = (&held.store, &held.budget);
    write(store, "c", points(0..200, 100));
    assert!(store.rotate_for_tests("c").unwrap());
    while store.info("c").unwrap().bytes_on_disk == 0 {
        std::thread::yield_now();
    }
    let awake = budget.reserved();
    let (arrived, came) = mpsc::sync_channel(1);
    let (go, goes_on) = mpsc::sync_channel::<()>(1);
    let goes_on = Mutex::new(goes_on);
    store.plant_for_tests(Box::new(move |place| {
        if place == "change" {
            arrived.send(()).unwrap();
            _ = goes_on.lock().recv();
        }
    }));
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome| done.send(outcome).unwrap());
    let delete = Write::Delete(Selection::Filter(filter(100)));
    let token = cancel::Token::new();
    cancel::scope(&token, || store.write("c", delete, Wait::Visible, Vec::new(), done)).unwrap();
    came.recv_timeout(BROKEN).unwrap();
    // The store lies down before the change has logged anything.
    while budget.reserved() + (2 << 20) > awake {
        std::thread::yield_now();
    }
    let mut lent = budget.root().child("held", "").reclaimable().try_reserve(0).unwrap();
    while lent.grow(64 << 10).is_ok() {}
    go.send(()).unwrap();
    // It would have been refused long before, and the writer would have waited with it.
    let waited = answer.recv_timeout(std::time::Duration::from_millis(2500));
    assert!(waited.is_err(), "{:?}", waited.map(|waited| waited.map(drop)));
    store.set_index("c", ramekin_fields::Path::of_key("t"), None).unwrap();
    drop(lent);
    answer.recv().unwrap().unwrap();
    assert_eq!(count(store, "c"), 0);
}

#[test]
fn a_log_that_one_collection_pins_for_long_stops_the_writes_of_that_one_only() {
    let held = Held::new(&["c", "other"]);
    let (store, gate) = (&held.store, &held.gate);
    write(store, "c", points(0..200, 1000));
    // While it is written out the log may not be trimmed, and the writes of others make it longer than it should be: 24 MiB
    // under this budget.
    gate.close(|call, path| call == Call::Read && is_log(path));
    assert!(store.rotate_for_tests("c").unwrap());
    gate.arrived();
    let (done, answer) = mpsc::sync_channel(1);
    let answer = gate.while_closed(move || {
        let others = |from: u64| {
            (0..18).for_each(|at| write(store, "other", points(from + at * 50..from + at * 50 + 50, 16 << 10)))
        };
        others(0);
        others(10_000);
        let done = Box::new(move |outcome| done.send(outcome).unwrap());
        store.write("c", points(1000..1001, 0), Wait::Visible, Vec::new(), done).unwrap();
        write(store, "other", points(0..1, 0));
        assert!(answer.try_recv().is_err(), "the log grows for what pins it");
        assert_eq!(count(store, "other"), 1800);
        answer
    });
    gate.open();
    answer.recv().unwrap().unwrap();
    assert_eq!(count(store, "c"), 201);
}

#[test]
fn a_write_for_which_a_store_at_rest_has_no_memory_waits_and_stops_no_change_of_names() {
    let held = Held::new(&["c"]);
    let (store, budget) = (&held.store, &held.budget);
    // As sections do that have readers, it holds all that a store at rest lends.
    let mut lent = budget.root().child("held", "").reclaimable().try_reserve(0).unwrap();
    while lent.grow(64 << 10).is_ok() {}
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome| done.send(outcome).unwrap());
    let token = cancel::Token::new();
    cancel::scope(&token, || store.write("c", points(0..1, 0), Wait::Visible, Vec::new(), done)).unwrap();
    for _ in 0..20 {
        // There is no such index: the writer has nothing to do for it.
        store.set_index("c", ramekin_fields::Path::of_key("t"), None).unwrap();
        assert!(answer.try_recv().is_err());
    }
    // It would have been refused long before.
    assert!(answer.recv_timeout(std::time::Duration::from_millis(1500)).is_err());
    drop(lent);
    answer.recv().unwrap().unwrap();
    assert_eq!(count(store, "c"), 1);
}

#[test]
fn a_dear_filter_over_new_points_stops_neither_writes_nor_queries() {
    let held = Held::new(&["c", "other"]);
    let store = &held.store;
    let index = FieldConfig { schema: Arc::new(Schema::named("keyword").unwrap()), client_config: None };
    store.set_index("c", ramekin_fields::Path::of_key("t"), Some(index)).unwrap();
    write(store, "c", points(0..100, 5));
    // The filter is held after one of its steps over new points.
    let (arrived, came) = mpsc::sync_channel(1);
    let (go, goes_on) = mpsc::sync_channel::<()>(1);
    let (steps, goes_on) = (AtomicUsize::new(0), Mutex::new(goes_on));
    store.plant_for_tests(Box::new(move |place| {
        if place == "filter" && steps.fetch_add(1, Ordering::SeqCst) == 1 {
            arrived.send(()).unwrap();
            _ = goes_on.lock().recv();
        }
    }));
    let words = (0..100_000).map(|word| format!("w{word}").into()).chain(["xxxxx".into()]);
    let test = Test::Match(Match::Any(Scalars::words(words.collect())));
    let field = FieldCondition { path: ramekin_fields::Path::of_key("t"), tests: [test].into() };
    let filter = Filter { must: [Condition::Field(field)].into(), ..Filter::default() };
    std::thread::scope(|scope| {
        let counted = scope.spawn(|| store.count("c", &filter, true).unwrap());
        came.recv_timeout(BROKEN).expect("the filter is not asked in steps");
        let (done, ended) = mpsc::sync_channel(1);
        scope.spawn(move || {
            write(store, "c", points(100..150, 5));
            write(store, "c", points(0..1, 6));
            write(store, "c", Write::Delete(Selection::Ids(vec![PointId::Num(1)])));
            let points = Selection::Ids(vec![PointId::Num(2)]);
            write(store, "c", Write::Payload { points, change: PayloadChange::Clear });
            write(store, "other", self::points(0..1, 0));
            assert_eq!((count(store, "c"), query(store, "c")), (149, [149, 148, 147].map(PointId::Num).to_vec()));
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(BROKEN);
        go.send(()).unwrap();
        ended.expect("the writes wait for the filter");
        // It sees the moment at which it began: what was written, deleted and changed meanwhile does not show.
        assert_eq!(counted.join().unwrap(), 100);
    });
    assert_eq!(store.count("c", &filter, true).unwrap(), 147);
}
