//! Writes that depend on what is stored and wait behind each other share a commit, and each sees what those before it did.
//!
//! ```text
//!   the same drawn writes ─┬─ one by one ──────► answers, contents ─┐
//!                          └─ many in the queue ► answers, contents ─┴─ equal, also after a crash and a start
//! ```
//!
//! GROUPED_CASES (40; 3,000 in full).

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Kind, PointId, Result, Rng, SystemClock};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_disk::{Disk, Engine, probe};
use ramekin_fields::{Condition, Filter, Match, Path as FieldPath, Scalar, Span, Test};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use world::{NAME, World, must, on};

const NAMES: [&str; 2] = ["a", "b"];
const DIM: usize = 3;

fn config() -> CollectionConfig {
    let vector = |name: &str| (name.to_owned(), VectorConfig::new(DIM, MetricName::Dot));
    CollectionConfig::new(NAMES.map(vector).into())
}

fn text(rng: &mut Rng) -> Box<str> {
    match rng.below(6) {
        0 => "{}".into(),
        1 => format!(r#"{{"long":"{}","n":{}}}"#, "x".repeat(rng.below(3000) as usize), rng.below(4)).into(),
        2 => format!(r#"{{"deep":{{"k":{}}},"n":{}}}"#, rng.below(9), rng.below(4)).into(),
        _ => format!(r#"{{"n":{}}}"#, rng.below(4)).into(),
    }
}

fn ids(rng: &mut Rng, known: u64) -> Vec<PointId> {
    let most = if rng.chance(0.1) { 80 } else { 4 };
    let mut ids: Vec<PointId> = (0..1 + rng.below(most)).map(|_| PointId::Num(rng.below(known))).collect();
    ids.sort();
    ids.dedup();
    ids
}

fn batch(rng: &mut Rng, ids: Vec<PointId>, payloads: bool) -> Batch {
    let mut columns = Vec::new();
    for name in NAMES {
        let present: Vec<u32> = (0..ids.len() as u32).filter(|_| rng.chance(0.7)).collect();
        let data: Vec<f32> = (0..present.len() * DIM).map(|_| rng.normal()).collect();
        if !present.is_empty() {
            columns.push(Column { name: name.into(), dim: DIM, present, data });
        }
    }
    let payloads = if payloads { ids.iter().map(|_| text(rng)).collect() } else { Vec::new() };
    Batch { ids, columns, payloads }
}

fn filter(rng: &mut Rng) -> Filter {
    let word = |n| Test::Match(Match::Value(Scalar::Integer(n)));
    must(vec![match rng.below(5) {
        0 => Condition::HasVector("a".into()),
        1 => on("n", Test::Range(Span { gte: Some(2.0), ..Span::default() })),
        2 => Condition::IsEmpty(FieldPath::of_key("deep")),
        3 => Condition::HasId((0..rng.below(30)).map(PointId::Num).collect::<Vec<_>>().into()),
        _ => on("n", word(rng.below(4) as i64)),
    }])
}

/// A write of a few points out of `known`, drawn by chance.
fn write(rng: &mut Rng, known: u64) -> Write {
    let named = ids(rng, known);
    let some = if rng.chance(0.05) { Selection::Filter(filter(rng)) } else { Selection::Ids(named.clone()) };
    match rng.below(10) {
        0 => Write::Upsert(batch(rng, named, true)),
        1 => Write::Delete(some),
        2 => Write::UpdateVectors(batch(rng, named, false)),
        3 => Write::DeleteVectors { points: some, names: vec![NAMES[rng.below(2) as usize].into()] },
        4 => Write::Payload { points: some, change: PayloadChange::Overwrite(text(rng)) },
        5 => Write::Payload { points: some, change: PayloadChange::DeleteKeys(vec![FieldPath::of_key("n")]) },
        6 => Write::Payload { points: some, change: PayloadChange::Clear },
        7 => Write::Payload { points: some, change: PayloadChange::Merge { keys: text(rng), path: None } },
        _ => {
            let mode = [Mode::Upsert, Mode::InsertOnly, Mode::UpdateOnly, Mode::Vectors][rng.below(4) as usize];
            let batch = batch(rng, named, mode != Mode::Vectors);
            Write::Conditional { batch, mode, filter: Box::new(filter(rng)) }
        }
    }
}

/// What each of the writes was answered, that waited for the writer together.
fn burst(world: &World, writes: &[Write]) -> Vec<Result<(), Kind>> {
    world.writes(writes).into_iter().map(|answer| answer.map_err(|error| error.kind())).collect()
}

fn open(disk: &Arc<dyn Disk>) -> World {
    let budget = Budget::new(64 << 20);
    World::open(disk, Path::new("/data"), &budget).unwrap()
}

/// A point's id, its payload, and its vectors by name.
type Stored = (PointId, Option<String>, BTreeMap<String, Vec<f32>>);

fn contents(world: &World) -> Vec<Stored> {
    let named = |record: Record| (record.id, record.payload, record.vectors.into_iter().flatten().collect());
    world.contents().unwrap().into_iter().map(named).collect()
}

#[test]
fn writes_made_together_do_what_they_do_one_by_one() {
    let cases = std::env::var("GROUPED_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    for seed in 0..cases {
        let mut rng = Rng::new(seed);
        let mut disks: [Arc<SimDisk>; 2] =
            std::array::from_fn(|_| Arc::new(SimDisk::with_block(seed, Faults::default(), 4096)));
        let mut worlds = disks.clone().map(|disk| open(&(disk as Arc<dyn Disk>)));
        worlds.iter().for_each(|world| world.store.create_collection(NAME, config()).unwrap());
        let known = 4 + rng.below(60);
        for _ in 0..8 {
            let writes: Vec<Write> = (0..1 + rng.below(40)).map(|_| write(&mut rng, known)).collect();
            let one_by_one: Vec<_> =
                writes.iter().flat_map(|write| burst(&worlds[0], std::slice::from_ref(write))).collect();
            let before = disks[1].counters().syncs;
            let together = burst(&worlds[1], &writes);
            let syncs = disks[1].counters().syncs - before;
            assert_eq!(one_by_one, together, "seed {seed}: {writes:?}");
            assert_eq!(contents(&worlds[0]), contents(&worlds[1]), "seed {seed}: {writes:?}");
            assert!(syncs <= writes.len() as u64 + 4, "seed {seed}: {syncs} syncs of {}", writes.len());
            if rng.chance(0.3) {
                worlds.iter().for_each(|world| world.flush().unwrap());
            }
            if rng.chance(0.3) {
                // What was answered is there after a power cut.
                drop(worlds);
                disks = disks.map(|disk| Arc::new(disk.crash()));
                worlds = disks.clone().map(|disk| open(&(disk as Arc<dyn Disk>)));
                assert_eq!(contents(&worlds[0]), contents(&worlds[1]), "seed {seed}, after a crash");
            }
        }
    }
}

/// A store with its threads on the real disk.
struct Real {
    store: Store,
    disk: Arc<dyn Disk>,
    _folder: tempfile::TempDir,
}

impl Real {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = probe(folder.path(), Some(Engine::Pread)).unwrap();
        let disk: Arc<dyn Disk> = disk;
        let budget = Budget::new(64 << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let account = budget.root().child("vectors", "");
        let store = Store::open(StoreOptions {
            disk: disk.clone(),
            folder: folder.path().to_owned(),
            pages,
            budget,
            account,
            clock: Arc::new(SystemClock::new()),
            build_threads: 1,
            threads: true,
        });
        let store = store.unwrap();
        store.create_collection(NAME, config()).unwrap();
        Self { store, disk, _folder: folder }
    }

    fn submit(&self, write: Write) -> mpsc::Receiver<Result<Written>> {
        let (done, answer) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| _ = done.send(outcome));
        self.store.write(NAME, write, Wait::Visible, Vec::new(), done).unwrap();
        answer
    }

    fn number(&self, id: u64) -> String {
        let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::None };
        let held = self.store.get(NAME, &[PointId::Num(id)], &parts).unwrap();
        held.value[0].payload.clone().unwrap()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// Sets a point's number to the next one, if it is what the writer thinks.
fn next(id: u64, seen: u64) -> Write {
    let column = Column { name: "a".into(), dim: DIM, present: vec![0], data: vec![seen as f32; DIM] };
    let payloads = vec![format!(r#"{{"n":{}}}"#, seen + 1).into()];
    let batch = Batch { ids: vec![PointId::Num(id)], columns: vec![column], payloads };
    let filter = must(vec![on("n", Test::Match(Match::Value(Scalar::Integer(seen as i64))))]);
    Write::Conditional { batch, mode: Mode::Upsert, filter: Box::new(filter) }
}

#[test]
fn a_thousand_conditional_writes_of_one_point_share_a_few_syncs_and_each_sees_the_one_before() {
    const WRITES: u64 = 1000;
    let real = Real::new();
    // It is there, so that none is written that comes before its turn.
    real.submit(next(1, 0)).recv().unwrap().unwrap();
    let before = real.disk.counters().syncs;
    let answers: Vec<_> = (1..WRITES).map(|seen| real.submit(next(1, seen))).collect();
    answers.into_iter().for_each(|answer| _ = answer.recv().unwrap().unwrap());
    let syncs = real.disk.counters().syncs - before;
    assert_eq!(real.number(1), format!(r#"{{"n":{WRITES}}}"#));
    // The first may be made alone, before others are there.
    assert!(syncs <= 16, "{syncs} syncs");
}
