//! The largest that a budget takes is also written out: the widest vectors, and the longest payloads.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::limits::{DIM_MAX, payload_max};
use ramekin_base::{Kind, PointId};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::Budget;
use ramekin_vectors::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use world::{NAME, World};

const BUDGETS: [u64; 4] = [24 << 20, 48 << 20, 64 << 20, 128 << 20];

/// More than one memtable holds of the widest vectors.
const POINTS: u64 = 160;

fn opened(budget: u64) -> (Arc<dyn Disk>, World) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_block(1, Faults::default(), 4096));
    let world = open(&disk, budget);
    (disk, world)
}

fn open(disk: &Arc<dyn Disk>, budget: u64) -> World {
    World::open(disk, Path::new("/data"), &Budget::new(budget)).unwrap()
}

fn create(world: &World, name: &str, dim: usize) -> Result<(), Kind> {
    let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(dim, MetricName::Dot))]);
    world.store.create_collection(name, CollectionConfig::new(vectors)).map_err(|error| error.kind())
}

/// Writes a point; where memory is short what is new is written out first.
fn write(world: &World, id: u64, vector: Vec<f32>, payload: &str) {
    let (dim, data) = (vector.len(), vector);
    let column = Column { name: String::new(), dim, present: vec![0], data };
    let write =
        Write::Upsert(Batch { ids: vec![PointId::Num(id)], columns: vec![column], payloads: vec![payload.into()] });
    if let Err(error) = world.write(write.clone()) {
        assert!(error.kind().is_memory(), "{error}");
        world.settle();
        world.write(write).unwrap();
    }
}

fn is_well(world: &World) {
    world.flush().unwrap();
    assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
    assert_ne!(world.store.info(NAME).unwrap().status, Status::Red);
}

#[test]
fn the_widest_vectors_that_a_budget_takes_are_written_out_and_wider_ones_are_refused() {
    for budget in BUDGETS {
        let (disk, world) = opened(budget);
        let (mut low, mut high) = (1, DIM_MAX + 1);
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            match create(&world, &format!("of {middle}"), middle) {
                Ok(()) => low = middle,
                Err(kind) => {
                    assert_eq!(kind, Kind::NoMemory);
                    high = middle;
                }
            }
        }
        create(&world, NAME, low).unwrap();
        (0..POINTS).for_each(|id| write(&world, id, vec![id as f32; low], ""));
        is_well(&world);
        drop(world);
        let world = open(&disk, budget);
        is_well(&world);
        assert_eq!(world.store.count(NAME, &ramekin_fields::Filter::default(), true).unwrap(), POINTS, "{budget}");
    }
}

#[test]
fn the_longest_payloads_that_a_budget_takes_are_written_out_and_changed() {
    for budget in BUDGETS {
        let (disk, world) = opened(budget);
        create(&world, NAME, 1024).unwrap();
        let payload = format!(r#"{{"t":"{}"}}"#, "x".repeat(payload_max(budget) - 8));
        (0..8).for_each(|id| write(&world, id, vec![1.0; 1024], &payload));
        is_well(&world);
        for id in 0..8 {
            let column = Column { name: String::new(), dim: 1024, present: vec![0], data: vec![2.0; 1024] };
            let batch = Batch { ids: vec![PointId::Num(id)], columns: vec![column], payloads: Vec::new() };
            world.write(Write::UpdateVectors(batch)).unwrap();
            is_well(&world);
        }
        drop(world);
        is_well(&open(&disk, budget));
    }
}

#[test]
fn changed_payloads_are_written_out_where_others_hold_all_memory() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::with_block(1, Faults::default(), 4096));
    let budget = Budget::new(BUDGETS[0]);
    let world = World::open(&disk, Path::new("/data"), &budget).unwrap();
    create(&world, NAME, 8).unwrap();
    (0..200).for_each(|id| write(&world, id, vec![1.0; 8], r#"{"n":1}"#));
    is_well(&world);
    let change = PayloadChange::Overwrite(r#"{"n":2}"#.into());
    let points = Selection::Ids((0..200).map(PointId::Num).collect());
    world.write(Write::Payload { points, change }).unwrap();
    // Requests that wait hold all that there is.
    let mut others = budget.root().child("others", "a test's").try_reserve(0).unwrap();
    for step in [1 << 20, 64 << 10, 4 << 10] {
        while others.grow(step).is_ok() {}
    }
    world.store.fold_for_tests(NAME).unwrap();
    while world.store.step() {}
    assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
    let usage = world.store.info(NAME).unwrap();
    assert_ne!(usage.status, Status::Red);
}
