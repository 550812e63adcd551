//! What fails is named, costs what it must and no more, and ends with its own success.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test damages files, and ends where something is not as expected"
)]

use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::{Clock, Error, Kind, ManualClock, PointId, SystemClock};
use ramekin_disk::{Engine, probe};
use ramekin_fields::{Condition, FieldCondition, Filter, Match, Order, Path as FieldPath, Scalar, Schema, Test};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const POINTS: u64 = 2_000;
/// In each payload, so that its pages are found.
const MARK: &str = "a mark that stands in no other place";

fn open(folder: &Path, threads: bool) -> Store {
    open_by(folder, threads, Arc::new(SystemClock::new()))
}

fn open_by(folder: &Path, threads: bool, clock: Arc<dyn Clock>) -> Store {
    open_with(folder, threads, clock, &Budget::new(64 << 20))
}

fn open_with(folder: &Path, threads: bool, clock: Arc<dyn Clock>, budget: &Budget) -> Store {
    let (disk, _) = probe(folder, Some(Engine::Pread)).unwrap();
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), budget, 1 << 36).unwrap();
    let account = budget.root().child("vectors", "");
    let (folder, budget) = (folder.to_owned(), budget.clone());
    Store::open(StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads }).unwrap()
}

fn config() -> CollectionConfig {
    CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(4, MetricName::Dot))]))
}

fn points(ids: std::ops::Range<u64>) -> Batch {
    let count = ids.end - ids.start;
    let data = ids.clone().flat_map(|id| [id as f32, 1.0, 2.0, 3.0]).collect();
    let column = Column { name: UNNAMED.to_owned(), dim: 4, present: (0..count as u32).collect(), data };
    let payloads = ids.clone().map(|id| format!("{{\"n\":{id},\"free\":{id},\"text\":\"{MARK}\"}}").as_str().into());
    Batch { payloads: payloads.collect(), ids: ids.map(PointId::Num).collect(), columns: vec![column] }
}

/// Waits for a write; one that nobody answers is an error.
fn write(store: &Store, name: &str, write: Write) -> Result<Written, Error> {
    let (done, answer) = mpsc::sync_channel(1);
    store.write(name, write, Wait::Visible, Vec::new(), Box::new(move |outcome| _ = done.send(outcome)))?;
    store.step_writer();
    answer.recv().unwrap_or_else(|_| Err(Error::bug("nobody answered")))
}

fn path(text: &str) -> FieldPath {
    FieldPath::parse(text).unwrap()
}

fn equal(field: &str, value: i64) -> Filter {
    let tests = vec![Test::Match(Match::Value(Scalar::Integer(value)))];
    let field = FieldCondition { path: path(field), tests: tests.into() };
    Filter { must: [Condition::Field(field)].into(), ..Filter::default() }
}

/// A folder with a segment and an index of the field `n`.
fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    store.create_collection("c", config()).unwrap();
    let index = FieldConfig { schema: Arc::new(Schema::Integer { lookup: true, range: true }), client_config: None };
    store.set_index("c", path("n"), Some(index)).unwrap();
    write(&store, "c", Write::Upsert(points(0..POINTS))).unwrap();
    store.rotate_for_tests("c").unwrap();
    while store.step() {}
    assert!(!store.lacks_index("c", &path("n")).unwrap());
    store.close();
    folder
}

fn file(folder: &Path, end: &str) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|own| own == end) {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Flips a byte in each page of a file that `is_chosen`.
fn damage(file: &Path, is_chosen: impl Fn(usize, &[u8]) -> bool) {
    let mut bytes = std::fs::read(file).unwrap();
    let mut hit = 0;
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        if is_chosen(number, page) {
            page[100] ^= 0x55;
            hit += 1;
        }
    }
    assert!(hit > 0, "nothing of {} is damaged", file.display());
    std::fs::write(file, bytes).unwrap();
}

fn has_mark(page: &[u8]) -> bool {
    page.windows(MARK.len()).any(|window| window == MARK.as_bytes())
}

/// Counts the errors in the log of the thread that has it.
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn lines<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let count = Arc::new(AtomicUsize::new(0));
    let done = tracing::subscriber::with_default(Lines(count.clone()), work);
    (done, count.load(Ordering::SeqCst))
}

type Read = fn(&Store) -> Result<(), Error>;

/// Each way in which a payload is read.
const READS: [(&str, Read); 8] = [
    ("scroll", |store| store.scroll("c", None, 10, &Filter::default(), &payloads()).map(drop)),
    ("retrieve", |store| store.get("c", &[PointId::Num(7)], &payloads()).map(drop)),
    ("search", |store| {
        let query = Query { parts: payloads(), ..Query::new(Target::Vector(vec![1.0; 4]), 3) };
        store.query("c", &query).map(drop)
    }),
    ("count", |store| store.count("c", &equal("free", 7), true).map(drop)),
    ("ordered", |store| {
        let order = Order { path: path("n"), descending: false, start: None };
        store.scroll_ordered("c", &order, 3, &Filter::default(), &payloads()).map(drop)
    }),
    ("facet", |store| store.facet("c", &path("n"), 3, &equal("free", 7)).map(drop)),
    ("delete by filter", |store| write(store, "c", Write::Delete(Selection::Filter(equal("free", 7)))).map(drop)),
    ("conditional", |store| {
        let (batch, filter) = (points(7..8), equal("free", 7));
        write(store, "c", Write::Conditional { batch, mode: Mode::UpdateOnly, filter: Box::new(filter) }).map(drop)
    }),
];

fn payloads() -> Parts {
    Parts { payload: PayloadParts::All, ..Parts::default() }
}

#[test]
fn a_damaged_page_that_any_read_meets_turns_the_collection_red_with_one_line() {
    let folder = made();
    let segment = file(folder.path(), "seg");
    damage(&segment, |_, page| has_mark(page));
    let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
    for (how, read) in READS {
        let own = tempfile::tempdir().unwrap();
        copy(folder.path(), own.path());
        let store = open(own.path(), false);
        assert_eq!(store.info("c").unwrap().status, Status::Green, "{how}");
        let ((), said) = lines(|| {
            for _ in 0..3 {
                let error = read(&store).unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt, "{how}: {error}");
            }
        });
        assert_eq!(said, 1, "{how}");
        let info = store.info("c").unwrap();
        assert_eq!(info.status, Status::Red, "{how}");
        assert!(info.optimizer.unwrap_err().contains(&name), "{how}");
        assert!(store.faults().iter().any(|fault| fault.contains(&name)), "{how}");
        // What needs none of these pages goes on, and what it does mends nothing.
        assert_eq!(store.count("c", &equal("n", 7), true).unwrap(), 1, "{how}");
        write(&store, "c", Write::Upsert(points(POINTS..POINTS + 10))).unwrap();
        store.rotate_for_tests("c").unwrap();
        for _ in 0..20 {
            store.step();
        }
        assert_eq!(store.info("c").unwrap().status, Status::Red, "{how}: after a seal");
        store.drop_collection("c").unwrap();
        assert!(store.faults().is_empty(), "{how}");
        store.close();
    }
}

/// A folder with a segment whose ids stand in pages of their own.
fn with_ids() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    store.create_collection("c", config()).unwrap();
    let mut batch = points(0..POINTS);
    batch.ids = (0..POINTS).map(|id| PointId::Num(id * 2)).collect();
    write(&store, "c", Write::Upsert(batch)).unwrap();
    store.rotate_for_tests("c").unwrap();
    while store.step() {}
    store.close();
    folder
}

fn damage_ids(folder: &Path) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    damage(&file(folder, "seg"), |_, page| {
        let first = number(page);
        (1..100).all(|at| number(&page[at * 8..]) == first.wrapping_add(at as u64 * 2))
    });
}

#[test]
fn damage_that_a_plain_write_meets_turns_the_collection_red_with_one_line() {
    let folder = with_ids();
    let upsert = || Write::Upsert(Batch { ids: vec![PointId::Num(100)], ..points(0..1) });
    let delete = || Write::Delete(Selection::Ids(vec![PointId::Num(100)]));
    for (how, make) in [("upsert", &upsert as &dyn Fn() -> Write), ("delete", &delete)] {
        let own = tempfile::tempdir().unwrap();
        copy(folder.path(), own.path());
        let budget = Budget::new(64 << 20);
        let store = open_with(own.path(), false, Arc::new(SystemClock::new()), &budget);
        // What is resident makes way, and is read again.
        budget.set_limit(1 << 20);
        budget.set_limit(64 << 20);
        damage_ids(own.path());
        assert_eq!(store.info("c").unwrap().status, Status::Green, "{how}");
        let ((), said) = lines(|| {
            for _ in 0..3 {
                assert_eq!(write(&store, "c", make()).unwrap_err().kind(), Kind::Corrupt, "{how}");
            }
        });
        assert_eq!((said, store.info("c").unwrap().status), (1, Status::Red), "{how}");
        assert!(store.faults()[0].contains("checksum"), "{how}: {:?}", store.faults());
        store.close();
    }
}

#[test]
fn damage_that_is_met_while_a_section_is_loaded_turns_the_collection_red_with_one_line() {
    let folder = with_ids();
    damage_ids(folder.path());
    let (store, said) = lines(|| open(folder.path(), false));
    assert_eq!((said, store.info("c").unwrap().status), (1, Status::Red));
    assert!(store.faults()[0].contains("checksum"), "{:?}", store.faults());
    store.close();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() { copy(&path, &to.join(name)) } else { _ = std::fs::copy(&path, to.join(name)).unwrap() }
    }
}

#[test]
fn a_damaged_index_of_a_field_is_built_again_and_the_answers_are_right_meanwhile() {
    let folder = made();
    damage(&file(folder.path(), "field"), |number, _| number == 0);
    // Whoever meets it first says so: the load of its sections, or a search.
    let ((store, found), said) = lines(|| {
        let store = open(folder.path(), false);
        let found: Vec<u64> = (0..3).map(|_| store.count("c", &equal("n", 7), true).unwrap()).collect();
        (store, found)
    });
    assert_eq!((found, said), (vec![1; 3], 1));
    let info = store.info("c").unwrap();
    assert_eq!(info.status, Status::Red);
    assert!(info.optimizer.unwrap_err().contains("built again"));
    while store.step() {}
    assert!(!store.lacks_index("c", &path("n")).unwrap());
    assert_eq!(store.info("c").unwrap().status, Status::Green);
    assert_eq!(store.count("c", &equal("n", 7), true).unwrap(), 1);
    store.close();
}

#[test]
fn a_merge_that_meets_damage_is_said_once_and_not_tried_again() {
    let folder = made();
    damage(&file(folder.path(), "seg"), |_, page| has_mark(page));
    let clock = Arc::new(ManualClock::default());
    let store = open_by(folder.path(), false, clock.clone());
    // More dead than the vacuum bears: it reads the segment to its end.
    write(&store, "c", Write::Delete(Selection::Ids((0..POINTS * 3 / 4).map(PointId::Num).collect()))).unwrap();
    let ((), said) = lines(|| {
        for _ in 0..50 {
            clock.advance(Duration::from_secs(10));
            store.step();
        }
    });
    assert_eq!(said, 1);
    assert_eq!(store.info("c").unwrap().status, Status::Red);
    store.close();
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A store with threads of which one panics at a place while `on` is set.
fn panicking(folder: &Path, at: &'static str) -> (Store, Arc<AtomicBool>) {
    let (store, on) = (open(folder, true), Arc::new(AtomicBool::new(false)));
    let planted = on.clone();
    let panic = move |place| assert!(place != at || !planted.load(Ordering::SeqCst), "planted by a test");
    store.plant_for_tests(Box::new(panic));
    store.create_collection("c", config()).unwrap();
    store.create_collection("other", config()).unwrap();
    (store, on)
}

#[test]
fn a_panic_in_the_background_costs_one_job_which_is_done_later() {
    for place in ["seal", "index"] {
        let folder = tempfile::tempdir().unwrap();
        let (store, on) = panicking(folder.path(), place);
        on.store(true, Ordering::SeqCst);
        let index =
            FieldConfig { schema: Arc::new(Schema::Integer { lookup: true, range: true }), client_config: None };
        store.set_index("c", path("n"), Some(index)).unwrap();
        write(&store, "c", Write::Upsert(points(0..POINTS))).unwrap();
        store.rotate_for_tests("c").unwrap();
        until(place, || store.info("c").unwrap().status == Status::Red);
        let cause = store.info("c").unwrap().optimizer.unwrap_err();
        assert!(cause.contains("planted by a test"), "{cause}");
        assert!(store.faults()[0].contains("collection `c`"), "{:?}", store.faults());
        assert_eq!(store.info("other").unwrap().status, Status::Green);
        write(&store, "other", Write::Upsert(points(0..10))).unwrap();
        write(&store, "c", Write::Upsert(points(0..10))).unwrap();
        on.store(false, Ordering::SeqCst);
        until(place, || store.faults().is_empty() && !store.lacks_index("c", &path("n")).unwrap());
        assert_eq!(store.count("c", &Filter::default(), true).unwrap(), POINTS);
        store.close();
    }
}

#[test]
fn a_panic_of_the_writer_before_it_logs_costs_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "write");
    on.store(true, Ordering::SeqCst);
    assert_eq!(write(&store, "c", Write::Upsert(points(0..10))).unwrap_err().kind(), Kind::Bug);
    on.store(false, Ordering::SeqCst);
    for name in ["c", "other"] {
        write(&store, name, Write::Upsert(points(0..10))).unwrap();
        assert_eq!(store.count(name, &Filter::default(), true).unwrap(), 10);
    }
    assert!(store.faults().is_empty());
    store.close();
}

#[test]
fn a_panic_of_the_writer_after_it_logged_closes_that_collection_until_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "apply");
    write(&store, "c", Write::Upsert(points(0..10))).unwrap();
    on.store(true, Ordering::SeqCst);
    assert_eq!(write(&store, "c", Write::Upsert(points(10..20))).unwrap_err().kind(), Kind::Bug);
    on.store(false, Ordering::SeqCst);
    let refused = write(&store, "c", Write::Upsert(points(20..30))).unwrap_err();
    assert_eq!(refused.kind(), Kind::Closed);
    assert!(refused.message().contains("planted by a test"), "{refused}");
    assert_eq!(store.info("c").unwrap().status, Status::Red);
    assert!(store.faults()[0].contains("planted by a test"));
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 10);
    write(&store, "other", Write::Upsert(points(0..10))).unwrap();
    store.create_collection("third", config()).unwrap();
    store.close();
    drop(store);
    // All of it or nothing: here the log has all of it.
    let store = open(folder.path(), true);
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 20);
    assert!(store.faults().is_empty());
    write(&store, "c", Write::Upsert(points(20..30))).unwrap();
    store.close();
}

/// The log may be damaged where new points stand in it: then their collection cannot be written out, and pins the log. The
/// writes of others go on, also once the log is longer than it should be.
#[test]
fn a_collection_that_cannot_be_written_out_keeps_no_other_from_writing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), true);
    for name in ["c", "other"] {
        store.create_collection(name, config()).unwrap();
    }
    write(&store, "c", Write::Upsert(points(0..100))).unwrap();
    damage(&file(folder.path(), "log"), |_, page| has_mark(page));
    store.rotate_for_tests("c").unwrap();
    until("the damage is seen", || store.info("c").unwrap().status == Status::Red);
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(16 << 10));
    for turn in 0..60 {
        let mut batch = points(turn * 100..turn * 100 + 100);
        batch.payloads.iter_mut().for_each(|payload| *payload = long.as_str().into());
        write(&store, "other", Write::Upsert(batch)).unwrap();
    }
    assert_eq!(store.info("c").unwrap().status, Status::Red);
    assert_eq!(store.count("other", &Filter::default(), true).unwrap(), 6_000);
    store.close();
}

#[test]
fn a_panic_in_a_fold_costs_that_fold_which_is_done_later() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "fold");
    write(&store, "c", Write::Upsert(points(0..POINTS))).unwrap();
    store.rotate_for_tests("c").unwrap();
    until("a segment", || store.info("c").unwrap().bytes_on_disk > 0);
    let clear = |id: u64| {
        let points = Selection::Ids(vec![PointId::Num(id)]);
        write(&store, "c", Write::Payload { points, change: PayloadChange::Clear }).unwrap();
    };
    clear(7);
    on.store(true, Ordering::SeqCst);
    store.fold_for_tests("c").unwrap();
    until("the fold failed", || store.info("c").unwrap().status == Status::Red);
    let cause = store.info("c").unwrap().optimizer.unwrap_err();
    assert!(cause.contains("patch compaction failed") && cause.contains("planted by a test"), "{cause}");
    write(&store, "other", Write::Upsert(points(0..10))).unwrap();
    clear(8);
    on.store(false, Ordering::SeqCst);
    until("the fold", || store.faults().is_empty() && matches!(store.patches_for_tests("c").unwrap(), (0, 1..)));
    assert_eq!(store.count("c", &equal("free", 9), true).unwrap(), 1);
    assert_eq!(store.count("c", &equal("free", 8), true).unwrap(), 0);
    store.close();
}

#[test]
fn a_panic_in_a_merge_costs_that_merge_which_is_done_later() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "merge");
    write(&store, "c", Write::Upsert(points(0..POINTS))).unwrap();
    store.rotate_for_tests("c").unwrap();
    until("a segment", || store.info("c").unwrap().bytes_on_disk > 0);
    on.store(true, Ordering::SeqCst);
    // More dead than the vacuum bears.
    write(&store, "c", Write::Delete(Selection::Ids((0..POINTS * 3 / 4).map(PointId::Num).collect()))).unwrap();
    until("the merge failed", || store.info("c").unwrap().status == Status::Red);
    let cause = store.info("c").unwrap().optimizer.unwrap_err();
    assert!(cause.contains("merge failed") && cause.contains("planted by a test"), "{cause}");
    for name in ["other", "c"] {
        write(&store, name, Write::Upsert(points(0..10))).unwrap();
    }
    on.store(false, Ordering::SeqCst);
    until("the merge", || store.faults().is_empty());
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), POINTS / 4 + 10);
    store.close();
}

#[test]
fn a_panic_in_a_change_costs_that_change() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "change");
    write(&store, "c", Write::Upsert(points(0..10))).unwrap();
    on.store(true, Ordering::SeqCst);
    let delete = || Write::Delete(Selection::Filter(equal("free", 7)));
    let error = write(&store, "c", delete()).unwrap_err();
    assert!(error.kind() == Kind::Bug && error.message().contains("planted by a test"), "{error}");
    on.store(false, Ordering::SeqCst);
    assert!(store.faults().is_empty() && store.info("c").unwrap().status == Status::Green);
    write(&store, "c", Write::Upsert(points(10..20))).unwrap();
    write(&store, "c", delete()).unwrap();
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 19);
    store.close();
}

#[test]
fn a_changer_that_dies_is_named_and_others_do_its_work() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "changer");
    write(&store, "c", Write::Upsert(points(0..10))).unwrap();
    let delete = |id| write(&store, "c", Write::Delete(Selection::Filter(equal("free", id)))).map(drop).unwrap();
    on.store(true, Ordering::SeqCst);
    delete(1);
    until("a changer dies", || store.faults().len() == 1);
    on.store(false, Ordering::SeqCst);
    let fault = &store.faults()[0];
    assert!(fault.contains("the thread `changer-") && fault.contains("planted by a test"), "{fault}");
    (2..8).for_each(delete);
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 3);
    store.close();
}

/// Nothing new is written out any more: what there is memory for is taken, and then who writes hears why no more is.
#[test]
fn writes_that_wait_for_a_thread_that_is_dead_are_refused_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "background");
    on.store(true, Ordering::SeqCst);
    until("the threads die", || store.faults().len() == 2);
    assert!(store.faults().iter().any(|fault| fault.contains("the thread `sealer` is dead")), "{:?}", store.faults());
    write(&store, "c", Write::Upsert(points(0..10))).unwrap();
    let more = |batch: u64| Write::Upsert(points(batch * POINTS..(batch + 1) * POINTS));
    let refused = (0..60).find_map(|batch| write(&store, "c", more(batch)).err()).unwrap();
    assert_eq!(refused.kind(), Kind::Closed);
    assert!(refused.message().contains("is dead") && refused.message().contains("planted by a test"), "{refused}");
    assert!(store.count("c", &Filter::default(), true).unwrap() >= POINTS);
    store.close();
}

#[test]
fn who_writes_to_a_store_whose_writer_is_dead_hears_what_it_died_of() {
    let folder = tempfile::tempdir().unwrap();
    let (store, on) = panicking(folder.path(), "writer");
    on.store(true, Ordering::SeqCst);
    // It is taken by the turn that waits for it; the next one begins with the panic.
    write(&store, "c", Write::Upsert(points(0..10))).unwrap();
    until("the writer dies", || store.may_write().is_err() && !store.faults().is_empty());
    let refused = [
        store.may_write().unwrap_err(),
        write(&store, "c", Write::Upsert(points(0..10))).unwrap_err(),
        store.create_collection("third", config()).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), Kind::Closed);
        assert!(error.message().contains("the thread `writer` is dead"), "{error}");
        assert!(error.message().contains("planted by a test"), "{error}");
    }
    assert_eq!(store.count("c", &Filter::default(), true).unwrap(), 10);
    store.close();
}

#[test]
fn a_full_queue_is_told_before_a_write_is_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    store.create_collection("c", config()).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let put = || {
        let done = done.clone();
        let tell = Box::new(move |outcome: Result<Written, Error>| {
            _ = done.fetch_add(outcome.is_ok().into(), Ordering::SeqCst)
        });
        store.write("c", Write::Delete(Selection::Ids(vec![PointId::Num(1)])), Wait::Visible, Vec::new(), tell)
    };
    for waiting in 0..QUEUE_MAX {
        store.may_write().unwrap();
        put().unwrap_or_else(|error| panic!("{waiting}: {error}"));
    }
    for refused in [store.may_write(), put()] {
        assert_eq!(refused.unwrap_err().kind(), Kind::Busy);
    }
    store.step_writer();
    assert_eq!(done.load(Ordering::SeqCst), QUEUE_MAX);
    store.may_write().unwrap();
    put().unwrap();
    store.close();
}
