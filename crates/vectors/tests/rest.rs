//! A store at rest lends the memory of seal and merge to resident sections, and has it back before it accepts a write.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{ManualClock, PointId, Rng};
use ramekin_disk::{Engine, probe};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const DIM: usize = 64;
const BUDGET: u64 = 24 << 20;

struct World {
    store: Store,
    budget: Budget,
    pages: Pages,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = probe(folder.path(), Some(Engine::Pread)).unwrap();
        let budget = Budget::new(BUDGET);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let clock = Arc::new(ManualClock::default());
        let store = Store::open(StoreOptions {
            disk,
            folder: folder.path().to_owned(),
            pages: pages.clone(),
            budget: budget.clone(),
            account: budget.root().child("vectors", ""),
            clock: clock.clone(),
            build_threads: 1,
            threads: false,
        })
        .unwrap();
        let vector = VectorConfig { dim: DIM, metric: MetricName::Cosine, datatype: Datatype::Float32, echo: None };
        let config = CollectionConfig {
            vectors: BTreeMap::from([(UNNAMED.to_owned(), vector)]),
            full_scan_threshold_kib: 100,
            deleted_threshold: 0.2,
            vacuum_min_vectors: 1000,
            recall: 0.95,
            echo: BTreeMap::new(),
        };
        store.create_collection("c", config).unwrap();
        Self { store, budget, pages, clock, _folder: folder }
    }

    fn write(&self, rng: &mut Rng, ids: std::ops::Range<u64>) -> Result<Written, ramekin_base::Error> {
        let mut column = Column { name: String::new(), dim: DIM, present: Vec::new(), data: Vec::new() };
        let mut batch = Batch::default();
        for (at, id) in ids.enumerate() {
            column.present.push(at as u32);
            column.data.extend((0..DIM).map(|_| rng.normal()));
            batch.ids.push(PointId::Num(id));
            batch.payloads.push("".into());
        }
        batch.columns.push(column);
        let (done, answer) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| done.send(outcome).unwrap());
        self.store.write("c", Write::Upsert(batch), Wait::Visible, Vec::new(), done)?;
        self.store.turn_writer();
        answer.recv().unwrap()
    }

    /// Lets `ms` pass, and everything be done that is due then.
    fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        while self.store.turn() {}
    }

    fn resident(&self) -> u64 {
        self.pages.stats().resident_bytes
    }

    fn found(&self, rng: &mut Rng) -> Vec<Scored> {
        let vector: Vec<f32> = (0..DIM).map(|_| rng.normal()).collect();
        self.store.query("c", &Query::new(Target::Vector(vector), 10)).unwrap().0.value
    }
}

#[test]
fn memory_is_lent_at_rest_and_back_before_a_write() {
    let (world, mut rng) = (World::new(), Rng::new(1));
    for from in (0..60_000).step_by(500) {
        world.write(&mut rng, from..from + 500).unwrap();
        world.pass(1);
    }
    world.pass(10_000);
    world.write(&mut rng, 0..1).unwrap();
    world.pass(1);
    let awake = world.resident();
    world.pass(10_000);
    let at_rest = world.resident();
    assert!(at_rest > awake + (2 << 20), "resident awake {awake}, at rest {at_rest}");
    assert_eq!(world.found(&mut rng).len(), 10);

    // Sections that gave way to a crowd of requests come back.
    let crowd = world.budget.root().child("crowd", "");
    let held = crowd.try_reserve(world.budget.limit() - world.budget.reserved() + at_rest / 2).unwrap();
    assert!(world.resident() < at_rest);
    assert_eq!(world.found(&mut rng).len(), 10);
    world.pass(1_000);
    assert!(world.resident() < at_rest);
    drop(held);
    world.pass(10_000);
    assert_eq!(world.resident(), at_rest);

    // Nothing is left for others: a write is not accepted without the memory of its seal, and is with it.
    world.write(&mut rng, 0..10).unwrap();
    assert!(world.resident() < at_rest);
    let rest = crowd.try_reserve(world.budget.limit() - world.budget.reserved() + world.resident() / 2);
    for from in (0..20_000).step_by(500) {
        world.write(&mut rng, from..from + 500).unwrap();
    }
    drop(rest);
    world.pass(10_000);
    assert_eq!(world.store.count("c").unwrap(), 60_000);
    assert_eq!(world.found(&mut rng).len(), 10);
}

#[test]
fn a_write_that_finds_no_memory_for_its_seal_is_refused() {
    let (world, mut rng) = (World::new(), Rng::new(2));
    world.write(&mut rng, 0..500).unwrap();
    world.pass(10_000);
    let crowd = world.budget.root().child("crowd", "");
    // At rest the floors are free, and someone takes them.
    let held = crowd.try_reserve(world.budget.limit() - world.budget.reserved() - (1 << 20)).unwrap();
    let refused = world.write(&mut rng, 500..1000).unwrap_err();
    assert_eq!(refused.kind(), ramekin_base::Kind::Busy);
    assert_eq!(world.store.count("c").unwrap(), 500);
    drop(held);
    world.write(&mut rng, 500..1000).unwrap();
    assert_eq!(world.store.count("c").unwrap(), 1000);
}

#[test]
fn a_write_now_and_then_does_not_make_sections_come_and_go() {
    let (world, mut rng) = (World::new(), Rng::new(3));
    for from in (0..30_000).step_by(500) {
        world.write(&mut rng, from..from + 500).unwrap();
        world.pass(1);
    }
    let mut rests = 0;
    for _ in 0..20 {
        let awake = world.resident();
        world.pass(3_000);
        rests += u32::from(world.resident() > awake);
        world.write(&mut rng, 0..1).unwrap();
        world.pass(1);
    }
    assert!((1..=2).contains(&rests), "{rests} rests of 3 s");
}
