//! A full disk: deletes go on and give space back, what adds is refused whole, and a start on it serves reads.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Kind, PointId, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_disk::{Disk, Open, Sync};
use ramekin_fields::{Span, Test};
use ramekin_memory::Budget;
use ramekin_vectors::{PayloadChange, Selection, Status, Write};
use std::path::Path;
use std::sync::Arc;
use world::{Model, NAME, Point, World, fields, id, must, on, upsert};

const BUDGET: u64 = 24 << 20;
const BATCH: u64 = 250;

fn full(bytes: u64) -> Faults {
    Faults { bytes_max: Some(bytes), ..Faults::default() }
}

fn open(disk: &Arc<SimDisk>) -> World {
    let disk: Arc<dyn Disk> = disk.clone();
    World::open(&disk, Path::new("/data"), &Budget::new(BUDGET)).unwrap()
}

/// Bytes of all files.
fn used(disk: &SimDisk, folder: &Path) -> u64 {
    let bytes = |entry: ramekin_disk::Entry| match entry.folder {
        true => used(disk, &folder.join(entry.name)),
        false => entry.bytes,
    };
    disk.list(folder).unwrap().into_iter().map(bytes).sum()
}

/// Somebody else writes to the disk, until so many bytes are left.
fn others_fill(disk: &SimDisk, left: u64) {
    let free = disk.space(Path::new("/data")).unwrap().free;
    let junk = disk.open(Path::new("/junk"), Open::Create).unwrap();
    disk.set_len(&junk, free.saturating_sub(left)).unwrap();
    disk.sync(Sync::File(&junk)).and_then(|()| disk.sync(Sync::Folder(Path::new("/")))).unwrap();
}

fn batch(from: u64) -> Vec<(PointId, u64)> {
    (from..from + BATCH).map(|number| (id(number), number)).collect()
}

fn add(model: &mut Model, points: &[(PointId, u64)]) {
    model.extend(points.iter().map(|(id, tag)| (*id, Point { vector: *tag, payload: *tag })));
}

/// Writes until there is no room; returns the first number that was refused.
fn fill(world: &World, model: &mut Model, mut from: u64) -> u64 {
    loop {
        let points = batch(from);
        match world.write(upsert(&points)) {
            Ok(()) => add(model, &points),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                return from;
            }
        }
        world.store.step();
        from += BATCH;
    }
}

/// Lets the background do what it can, and fills what it made room for, until nothing more goes.
fn fill_up(world: &World, model: &mut Model) -> u64 {
    let mut from = fill(world, model, model.len() as u64);
    loop {
        world.settle();
        match fill(world, model, from) {
            same if same == from => return from,
            further => from = further,
        }
    }
}

fn delete(world: &World, model: &mut Model, ids: Vec<PointId>) {
    world.write(Write::Delete(Selection::Ids(ids.clone()))).unwrap();
    ids.iter().for_each(|id| _ = model.remove(id));
}

#[test]
fn a_full_disk_refuses_what_adds_and_nothing_else() {
    let disk = Arc::new(SimDisk::with_block(3, full(7 << 20), 4096));
    let (world, mut model) = (open(&disk), Model::new());
    world.create().unwrap();
    world.index_number().unwrap();
    let next = fill_up(&world, &mut model);
    assert!(model.len() > 3_000, "{}", model.len());
    world.holds(&model).unwrap();
    // It is said, and said of the store: the collection itself is well.
    let refused = world.write(upsert(&batch(next))).unwrap_err();
    assert!(refused.message().contains("the disk is full") && refused.message().contains("must be free"), "{refused}");
    assert!(world.store.faults().iter().any(|fault| fault.contains("full")), "{:?}", world.store.faults());
    assert_ne!(world.store.info(NAME).unwrap().status, Status::Red);
    assert_eq!(world.create_other("other").unwrap_err().kind(), Kind::NoSpace);
    // Pull the plug, with not a byte left, and start there.
    let bytes = used(&disk, Path::new("/data"));
    drop(world);
    let disk = Arc::new(disk.crash());
    disk.set_faults(full(bytes.min(used(&disk, Path::new("/data")))));
    let world = open(&disk);
    world.holds(&model).unwrap();
    assert!(!world.store.faults().is_empty());
    assert_eq!(world.write(upsert(&batch(next))).unwrap_err().kind(), Kind::NoSpace);
    world.holds(&model).unwrap();
    // Deletes of all kinds go on, and stay.
    let doomed: Vec<PointId> = model.keys().copied().collect();
    for ids in doomed[..doomed.len() / 8].chunks(7) {
        delete(&world, &mut model, ids.to_vec());
        world.store.step();
    }
    let half = doomed.len() / 8..doomed.len() / 2;
    delete(&world, &mut model, doomed[half].to_vec());
    let low = Span { lt: Some(700.0), ..Span::default() };
    let filter = must(vec![on("number", Test::Range(low))]);
    world.write(Write::Delete(Selection::Filter(filter))).unwrap();
    model.retain(|_, point| fields(point.payload).number >= 700);
    world.drop_index().unwrap();
    world.holds(&model).unwrap();
    drop(world);
    let disk = Arc::new(disk.crash());
    let world = open(&disk);
    world.holds(&model).unwrap();
    // What they freed is given back, and written again.
    world.settle();
    assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
    let points = batch(next);
    world.write(upsert(&points)).unwrap();
    add(&mut model, &points);
    let before = model.len();
    fill_up(&world, &mut model);
    assert!(model.len() > before + 1_000, "{before} points, then {}", model.len());
    world.holds(&model).unwrap();
    assert!(world.store.drop_collection(NAME).unwrap());
    world.settle();
    assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
}

#[test]
fn room_again_ends_it_without_a_write() {
    let disk = Arc::new(SimDisk::with_block(3, full(8 << 20), 4096));
    let (world, mut model) = (open(&disk), Model::new());
    world.create().unwrap();
    fill_up(&world, &mut model);
    assert!(!world.store.faults().is_empty());
    disk.set_faults(full(64 << 20));
    world.store.step();
    assert!(world.store.faults().is_empty(), "{:?}", world.store.faults());
}

/// The disk fills up at any moment of a life: deletes are never refused, what is refused is not there, and all that was
/// acknowledged is.
#[test]
fn a_disk_may_be_full_at_any_moment() {
    let (mut refused, mut deleted) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut disk = Arc::new(SimDisk::with_block(seed, full(32 << 20), 4096));
        let (mut world, mut model) = (open(&disk), Model::new());
        world.create().unwrap();
        world.index_number().unwrap();
        let mut next = 0;
        for step in 0..40 {
            if step == 5 + seed % 20 {
                others_fill(&disk, rng.below(1 << 18));
            }
            match rng.below(9) {
                0..=3 => {
                    let points = batch(next);
                    match world.write(upsert(&points)) {
                        Ok(()) => add(&mut model, &points),
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::NoSpace, "seed {seed}: {error}");
                            refused += 1;
                        }
                    }
                    next += BATCH;
                }
                4 | 5 => {
                    let ids = model.keys().copied().filter(|_| rng.chance(0.1)).collect::<Vec<_>>();
                    deleted += 1;
                    delete(&world, &mut model, ids);
                }
                6 => _ = world.flush(),
                _ => {
                    drop(world);
                    disk = Arc::new(disk.crash());
                    world = open(&disk);
                    world.holds(&model).unwrap_or_else(|fault| panic!("seed {seed}, step {step}: {fault:?}"));
                }
            }
        }
        world.holds(&model).unwrap_or_else(|fault| panic!("seed {seed}: {fault:?}"));
    }
    assert!(refused > 10 && deleted > 50, "{refused} refused, {deleted} deleted");
}

#[test]
fn a_write_that_finds_the_disk_full_takes_none_with_it_that_waits_behind_it() {
    let disk = Arc::new(SimDisk::with_block(5, Faults::default(), 4096));
    let world = open(&disk);
    world.create().unwrap();
    world.write(upsert(&batch(0))).unwrap();
    disk.set_faults(full(used(&disk, Path::new("/data")) + (1 << 20)));
    let text = format!(r#"{{"long":"{}"}}"#, "x".repeat(50_000));
    let set = |number| Write::Payload {
        points: Selection::Ids(vec![id(number)]),
        change: PayloadChange::Overwrite(text.as_str().into()),
    };
    for turn in 0..BATCH / 2 {
        // Deletes of other points, and one of a point that was to be changed.
        let ids = vec![id(BATCH - 1 - turn), id(1)];
        let answers = world.writes(&[set(0), set(1), Write::Delete(Selection::Ids(ids)), set(2)]);
        assert!(answers[2].is_ok(), "{answers:?}");
        if let Some(Err(error)) =
            answers.iter().find(|answer| answer.as_ref().is_err_and(|it| it.kind() != Kind::NotFound))
        {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
            return;
        }
    }
    panic!("the disk was never full");
}
