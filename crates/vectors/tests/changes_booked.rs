//! What a change holds while it is made is booked; where memory is short it is made of fewer points at a time.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::PointId;
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::{Budget, Ledger, Reservation};
use ramekin_vectors::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{World, id, payload, upsert, vector};

/// Of one payload, and points that have one so long.
const TEXT: usize = 32 << 10;
const POINTS: u64 = 64;

fn world() -> World {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1, Faults::default()));
    let world = World::open(&disk, Path::new("/data"), &Budget::new(24 << 20)).unwrap();
    world.create().unwrap();
    world
}

/// Points with these tags, and payloads that are long.
fn long(tag: u64) -> Write {
    let Write::Upsert(mut batch) = upsert(&points(tag)) else { unreachable!() };
    batch.payloads.fill(format!(r#"{{"t":"{}"}}"#, "x".repeat(TEXT)).into());
    Write::Upsert(batch)
}

fn points(tag: u64) -> Vec<(PointId, u64)> {
    (0..POINTS).map(|number| (id(number), tag)).collect()
}

/// Gives the points the vectors of another tag.
fn other_vectors(tag: u64) -> Batch {
    let Write::Upsert(batch) = upsert(&points(tag)) else { unreachable!() };
    Batch { payloads: Vec::new(), ..batch }
}

fn has_vectors(world: &World, tag: u64) -> bool {
    world.contents().unwrap().iter().all(|record| record.vectors.as_ref().unwrap()[0].1 == vector(tag))
}

/// Holds all of the budget but so much.
fn all_but(budget: &Budget, left: u64) -> Reservation {
    const STEP: u64 = 16 << 10;
    let mut held = budget.root().child("held", "").try_reserve(0).unwrap();
    while held.grow(STEP).is_ok() {}
    held.shrink(left);
    held
}

fn queries(budget: &Budget) -> u64 {
    Ledger::take(budget).accounts.iter().find(|line| line.name.ends_with("queries")).map_or(0, |line| line.bytes)
}

/// The most that was booked for reads and changes while writes were applied.
fn watched(world: &World) -> Arc<AtomicU64> {
    let (most, budget) = (Arc::new(AtomicU64::new(0)), world.budget.clone());
    let seen = most.clone();
    let look = move |place: &'static str| {
        if place == "apply" {
            seen.fetch_max(queries(&budget), Ordering::SeqCst);
        }
    };
    world.store.plant_for_tests(Box::new(look));
    most
}

#[test]
fn points_that_are_written_anew_are_booked_until_they_are_applied() {
    let conditional = || match long(2) {
        Write::Upsert(batch) => Write::Conditional { batch, mode: Mode::Upsert, filter: Default::default() },
        _ => unreachable!(),
    };
    // Half a MiB of them is a piece.
    let least = 15 * TEXT as u64;
    for change in [
        Write::UpdateVectors(other_vectors(2)),
        Write::DeleteVectors { points: everything(), names: vec![String::new()] },
        conditional(),
    ] {
        let world = world();
        world.write(long(1)).unwrap();
        let most = watched(&world);
        let before = queries(&world.budget);
        world.write(change).unwrap();
        let booked = most.load(Ordering::SeqCst);
        assert!(booked >= before + least, "{booked} booked while at least {least} were held");
        assert_eq!(queries(&world.budget), before);
    }
}

fn everything() -> Selection {
    Selection::Ids((0..POINTS).map(id).collect())
}

#[test]
fn of_long_points_as_many_are_changed_at_a_time_as_fit() {
    let world = world();
    world.write(long(1)).unwrap();
    let held = all_but(&world.budget, 1 << 20);
    world.write(Write::UpdateVectors(other_vectors(2))).unwrap();
    drop(held);
    assert!(has_vectors(&world, 2));
    let held = all_but(&world.budget, 1 << 20);
    let conditional = |mode| Write::Conditional { batch: other_vectors(3), mode, filter: Default::default() };
    world.write(conditional(Mode::Vectors)).unwrap();
    drop(held);
    assert!(has_vectors(&world, 3));
    assert!(world.contents().unwrap().iter().all(|record| record.payload.as_ref().unwrap().len() > TEXT));
}

#[test]
fn where_the_points_of_a_long_delete_stand_is_booked() {
    let world = world();
    world.write(upsert(&[(PointId::Num(1), 1), (PointId::Num(3), 1)])).unwrap();
    world.flush().unwrap();
    let delete = || Write::Delete(Selection::Ids((2..1_200_000).map(PointId::Num).collect()));
    let held = all_but(&world.budget, 512 << 10);
    let refused = world.write(delete()).unwrap_err();
    assert!(refused.kind().is_memory(), "{refused}");
    assert_eq!(world.contents().unwrap().len(), 2);
    drop(held);
    world.write(delete()).unwrap();
    let left = world.contents().unwrap();
    assert_eq!(left.iter().map(|record| record.id).collect::<Vec<_>>(), [PointId::Num(1)]);
    assert_eq!(left[0].payload.as_deref(), Some(&*payload(1)));
}
