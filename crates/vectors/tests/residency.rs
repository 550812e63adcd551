//! What is resident: a store at rest lends the memory of seal and merge to it, and has that back before it accepts a
//! write; collections share by use; what a client wishes is kept.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

use ramekin_base::{ManualClock, PointId, Rng};
use ramekin_disk::{Engine, probe};
use ramekin_fields::Filter;
use ramekin_memory::{Budget, Ledger};
use ramekin_pages::Pages;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::ops::Range;
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
        let world = Self { store, budget, pages, clock, _folder: folder };
        world.create("c", Placement::default());
        world
    }

    fn create(&self, name: &str, placement: Placement) {
        let vector = VectorConfig { placement, ..VectorConfig::new(DIM, MetricName::Cosine) };
        let config = CollectionConfig {
            full_scan_threshold_kib: 100,
            ..CollectionConfig::new(BTreeMap::from([(UNNAMED.to_owned(), vector)]))
        };
        self.store.create_collection(name, config).unwrap();
    }

    fn write(&self, rng: &mut Rng, ids: Range<u64>) -> Result<Written, ramekin_base::Error> {
        self.write_to("c", rng, ids)
    }

    /// Writes so many points in batches, and lets them be indexed.
    fn fill(&self, name: &str, rng: &mut Rng, points: u64) {
        for from in (0..points).step_by(500) {
            self.write_to(name, rng, from..from + 500).unwrap();
            self.pass(1);
        }
        self.pass(10_000);
    }

    fn write_to(&self, name: &str, rng: &mut Rng, ids: Range<u64>) -> Result<Written, ramekin_base::Error> {
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
        self.store.write(name, Write::Upsert(batch), Wait::Visible, Vec::new(), done)?;
        self.store.step_writer();
        answer.recv().unwrap()
    }

    /// Lets `ms` pass, and everything be done that is due then.
    fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        while self.store.step() {}
    }

    fn resident(&self) -> u64 {
        self.pages.stats().resident_bytes
    }

    /// Bytes that the ledger names for a structure of a collection.
    fn held(&self, account: &str) -> u64 {
        let ledger = Ledger::take(&self.budget);
        ledger.accounts.iter().find(|line| line.name == format!("vectors/{account}")).map_or(0, |line| line.bytes)
    }

    fn found(&self, rng: &mut Rng) -> Vec<Scored> {
        self.found_in("c", rng)
    }

    fn found_in(&self, name: &str, rng: &mut Rng) -> Vec<Scored> {
        let vector: Vec<f32> = (0..DIM).map(|_| rng.normal()).collect();
        self.store.query(name, &Query::new(Target::Vector(vector), 10)).unwrap().0.value
    }
}

#[test]
fn memory_is_lent_at_rest_and_back_before_a_write() {
    let (world, mut rng) = (World::new(), Rng::new(1));
    world.fill("c", &mut rng, 60_000);
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
    // The plan follows the crowd, and what it gave up is not forgotten.
    world.pass(5_000);
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
    assert_eq!(world.store.count("c", &Filter::default(), true).unwrap(), 60_000);
    assert_eq!(world.found(&mut rng).len(), 10);
}

#[test]
fn what_is_lent_is_not_for_a_crowd() {
    let (world, mut rng) = (World::new(), Rng::new(2));
    world.write(&mut rng, 0..500).unwrap();
    world.pass(10_000);
    let crowd = world.budget.root().child("crowd", "");
    // At rest the minimum reservations are free, but not for everybody.
    let free = world.budget.limit() - world.budget.reserved();
    assert!(crowd.try_reserve(free - (1 << 20)).is_err());
    let held = crowd.try_reserve(free - (12 << 20)).unwrap();
    world.write(&mut rng, 500..1000).unwrap();
    world.write(&mut rng, 0..10).unwrap();
    drop(held);
    assert_eq!(world.store.count("c", &Filter::default(), true).unwrap(), 1000);
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

#[test]
fn memory_follows_what_is_asked() {
    let (world, mut rng) = (World::new(), Rng::new(4));
    world.create("d", Placement::default());
    for name in ["c", "d"] {
        world.fill(name, &mut rng, 40_000);
    }
    let codes = |name: &str| world.held(&format!("{name}/codes")) + world.held(&format!("{name}/vectors"));
    for (most, other) in [("c", "d"), ("d", "c"), ("c", "d")] {
        for _ in 0..30 {
            (0..20).for_each(|_| assert_eq!(world.found_in(most, &mut rng).len(), 10));
            world.pass(2_000);
        }
        let (held, least) = (codes(most), codes(other));
        assert!(held > least * 5 / 4, "{most} is asked and holds {held}, {other} {least}");
        assert!(least > 40_000 * (DIM as u64 / 8), "{other} keeps its narrowest codes: {least}");
        assert_eq!(world.found_in(other, &mut rng).len(), 10);
    }
}

#[test]
fn the_rate_that_a_client_names_bounds_its_codes() {
    let (world, mut rng) = (World::new(), Rng::new(5));
    world.fill("c", &mut rng, 20_000);
    let per_point = || world.held("c/codes") as f64 / 20_000.0;
    assert!(per_point() > 7.0 / 8.0 * DIM as f64, "{}", per_point());
    let patch = |bits, vectors| {
        let placement = Placement { code_bits_max: bits, vectors, ..Placement::default() };
        let placements = BTreeMap::from([(UNNAMED.to_owned(), placement)]);
        world.store.patch_collection("c", CollectionPatch { placements, ..CollectionPatch::default() }).unwrap();
        world.pass(1);
    };
    for (bits, most) in [(4.0, 4.0), (1.5, 1.0), (0.5, 0.0)] {
        patch(Some(bits), MemoryTier::Cached);
        // Besides the bits of each dimension: factors, and lists that do not fill their blocks.
        let beside = if most > 0.0 { 16.0 } else { 0.0 };
        assert!(per_point() <= most / 8.0 * DIM as f64 + beside, "{bits} bits: {}", per_point());
        assert_eq!(world.found(&mut rng).len(), 10);
    }
    patch(None, MemoryTier::Cached);
    assert!(per_point() > 7.0 / 8.0 * DIM as f64);
}

#[test]
fn the_recall_of_real_queries_is_measured_at_rest() {
    let (world, mut rng) = (World::new(), Rng::new(6));
    world.fill("c", &mut rng, 20_000);
    assert_eq!(world.store.info("c").unwrap().recall_measured, None);
    for _ in 0..24 * 16 {
        world.found(&mut rng);
    }
    (0..24).for_each(|_| world.pass(2_100));
    let info = world.store.info("c").unwrap();
    let measured = info.recall_measured.unwrap();
    assert!(measured > 0.8 && info.warnings.is_empty(), "{measured} {:?}", info.warnings);
}
