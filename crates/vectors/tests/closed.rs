//! A store that cannot go on says so, and a start finds all that it acknowledged.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Kind, PointId, Rng};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_memory::Budget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use world::{Fault, Model, Point, World, id, upsert};

const BATCH: u64 = 20;

fn open(disk: &Arc<SimDisk>) -> World {
    let disk: Arc<dyn ramekin_disk::Disk> = disk.clone();
    World::open(&disk, Path::new("/data"), &Budget::new(32 << 20)).unwrap()
}

fn batch(from: u64) -> Vec<(PointId, u64)> {
    (from..from + BATCH).map(|number| (id(number), number)).collect()
}

fn add(model: &mut Model, from: u64) {
    model.extend(batch(from).into_iter().map(|(id, tag)| (id, Point { vector: tag, payload: tag })));
}

fn holds(world: &World, model: &Model) {
    if let Err(Fault::Failed(error)) = world.holds(model) {
        panic!("{error}");
    }
    world.holds(model).map_err(|fault| format!("{fault:?}")).unwrap();
}

/// Each sync of a flush fails once. Where no manifest can be written after that the store is not well, takes no write, and
/// loses none.
#[test]
fn a_store_whose_manifest_cannot_be_written_says_so_and_takes_no_more() {
    let mut closed = 0;
    for failing in 0..60 {
        let (disk, mut model) = (Arc::new(SimDisk::new(failing, Faults::default())), Model::new());
        let world = open(&disk);
        world.create().unwrap();
        world.write(upsert(&batch(0))).unwrap();
        add(&mut model, 0);
        let sync_fails = Trigger::chance(0.02 * (1 + failing % 10) as f64);
        disk.set_faults(Faults { sync_fails, ..Faults::default() });
        _ = world.flush();
        disk.set_faults(Faults::default());
        let faults = world.store.faults();
        let is_closed = faults.iter().any(|fault| fault.contains("the manifest cannot be written"));
        match world.write(upsert(&batch(BATCH))) {
            Ok(()) => {
                assert!(!is_closed, "{faults:?}");
                add(&mut model, BATCH);
            }
            Err(error) => assert_eq!(error.kind(), Kind::Closed, "{error}"),
        }
        if is_closed {
            closed += 1;
            world.settle();
            holds(&world, &model);
            assert!(!world.store.faults().is_empty());
        } else {
            // Nobody is left with a manifest that stays as it was.
            world.flush().unwrap();
        }
        drop(world);
        let world = open(&Arc::new(if failing % 2 == 0 { disk.crash() } else { disk.crashed_copy(failing) }));
        holds(&world, &model);
        assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
        world.write(upsert(&batch(BATCH))).unwrap();
    }
    assert!(closed >= 5, "{closed}");
}

/// Whatever it was that closed the log: a write of points, or of names.
#[test]
fn a_log_that_takes_no_more_says_so() {
    for of_names in [true, false] {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let world = open(&disk);
        world.create().unwrap();
        disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
        let failed = if of_names { world.create_other("other") } else { world.write(upsert(&batch(0))) };
        assert!(failed.is_err());
        disk.set_faults(Faults::default());
        let faults = world.store.faults();
        assert!(faults.iter().any(|fault| fault.contains("writes are refused")), "{faults:?}");
        assert_eq!(world.write(upsert(&batch(0))).unwrap_err().kind(), Kind::Closed);
    }
}

/// What is durable and could not be applied is what a start applies, whatever was written out meanwhile.
#[test]
fn a_write_that_is_logged_and_not_applied_is_there_after_a_restart() {
    for seed in 0..4 {
        let (disk, mut model) = (Arc::new(SimDisk::new(seed, Faults::default())), Model::new());
        let (world, on) = (open(&disk), Arc::new(AtomicBool::new(false)));
        let (planted, mut rng) = (on.clone(), Rng::new(seed));
        world.store.plant_for_tests(Box::new(move |place| {
            assert!(place != "apply" || !planted.load(Ordering::SeqCst), "planted by a test");
        }));
        world.create().unwrap();
        world.create_other("other").unwrap();
        world.write(upsert(&batch(0))).unwrap();
        add(&mut model, 0);
        // Nothing of the collection pins the log now.
        world.flush().unwrap();
        on.store(true, Ordering::SeqCst);
        let refused = catch_unwind(AssertUnwindSafe(|| world.write(upsert(&batch(BATCH))))).unwrap().unwrap_err();
        assert!(refused.message().contains("shows after a restart"), "{refused}");
        add(&mut model, BATCH);
        on.store(false, Ordering::SeqCst);
        assert_eq!(world.write(upsert(&batch(2 * BATCH))).unwrap_err().kind(), Kind::Closed);
        // Others go on, and manifests are written.
        for number in 0..3 + rng.below(3) {
            world.create_other(&format!("more {number}")).unwrap();
            world.settle();
        }
        world.store.close();
        drop(world);
        let world = open(&Arc::new(disk.crash()));
        holds(&world, &model);
        assert!(world.store.faults().is_empty());
    }
}
