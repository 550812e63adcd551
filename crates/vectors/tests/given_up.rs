//! Writes that nobody waits for any more: what was given up is never done, what has begun is seen through, and what ends half-way
//! is not called refused.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Kind, PointId, Result, cancel};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_fields::Schema;
use ramekin_memory::Budget;
use ramekin_vectors::{AliasAction, Batch, CollectionPatch, PayloadChange, Record, Selection, Wait, Write, Written};
use std::path::Path;
use std::sync::{Arc, mpsc};
use world::{Model, NAME, Point, World, id, must, upsert};

fn open(disk: &Arc<SimDisk>) -> World {
    let disk: Arc<dyn Disk> = disk.clone();
    World::open(&disk, Path::new("/data"), &Budget::new(24 << 20)).unwrap()
}

/// A collection of so many points.
fn filled(disk: &Arc<SimDisk>, points: u64) -> (World, Model) {
    let (world, mut model) = (open(disk), Model::new());
    world.create().unwrap();
    for from in (0..points).step_by(500) {
        let points: Vec<_> = (from..(from + 500).min(points)).map(|number| (id(number), number)).collect();
        world.write(upsert(&points)).unwrap();
        model.extend(points.iter().map(|(id, tag)| (*id, Point { vector: *tag, payload: *tag })));
    }
    (world, model)
}

/// Hands a write to the queue for somebody who may give it up.
fn ask(world: &World, token: &cancel::Token, write: Write) -> mpsc::Receiver<Result<Written>> {
    let (done, answer) = mpsc::sync_channel(1);
    let done = Box::new(move |outcome| _ = done.send(outcome));
    cancel::scope(token, || world.store.write(NAME, write, Wait::Visible, Vec::new(), done)).unwrap();
    answer
}

fn everything() -> Selection {
    Selection::Filter(must(Vec::new()))
}

/// Writes of each way to the log.
fn writes() -> Vec<Write> {
    let ids = || Selection::Ids((0..5).map(id).collect());
    let change = || PayloadChange::Clear;
    vec![
        upsert(&[(id(1), 77), (id(5_000), 78)]),
        Write::Delete(ids()),
        Write::Delete(everything()),
        Write::Payload { points: ids(), change: change() },
        Write::Payload { points: everything(), change: change() },
    ]
}

#[test]
fn what_was_given_up_before_it_began_is_never_done() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let (world, model) = filled(&disk, 200);
    for write in writes() {
        let token = cancel::Token::new();
        let answer = ask(&world, &token, write);
        assert!(token.cancel());
        world.store.step_writer();
        assert_eq!(answer.try_recv().unwrap().unwrap_err().kind(), Kind::Cancelled);
        world.holds(&model).unwrap();
    }
    drop(world);
    open(&Arc::new(disk.crash())).holds(&model).unwrap();
}

/// Changes of names, each of which changes what [`names`] tells of a store with a collection `c`.
fn changes_of_names() -> Vec<ChangeNames> {
    let alias = || AliasAction::Create { alias: "second".into(), collection: "c".into() };
    vec![
        Box::new(|world| world.create_other("new")),
        Box::new(|world| world.store.drop_collection("c").map(|_| ())),
        Box::new(move |world| world.store.change_aliases(vec![alias()])),
        Box::new(|world| {
            world.store.patch_collection("c", CollectionPatch { recall: Some(0.8), ..Default::default() })
        }),
        Box::new(|world| world.index_of("c", "number", Schema::Keyword).map(|_| ())),
    ]
}

type ChangeNames = Box<dyn Fn(&World) -> Result<()>>;

/// Collections with what is configured of them, and aliases.
fn names(world: &World) -> String {
    let mut told = String::new();
    for name in world.store.collections().iter() {
        let config = world.store.config(name).unwrap();
        told += &format!("{name} {} {:?}; ", config.recall, config.indexes.keys());
    }
    let mut alias = |alias: &str, of: &str| {
        told += &format!("{alias} of {of}; ");
        Ok(())
    };
    world.store.each_alias(&mut alias).unwrap();
    told
}

#[test]
fn a_change_of_names_that_was_given_up_is_never_done() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let world = open(&disk);
    world.create_other("c").unwrap();
    let before = names(&world);
    for change in changes_of_names() {
        let token = cancel::Token::new();
        assert!(token.cancel());
        let given_up = cancel::scope(&token, || change(&world));
        assert_eq!((given_up.unwrap_err().kind(), names(&world)), (Kind::Cancelled, before.clone()));
    }
    drop(world);
    assert_eq!(names(&open(&Arc::new(disk.crash()))), before);
}

#[test]
fn a_change_of_names_that_has_begun_cannot_be_given_up() {
    for change in changes_of_names() {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let world = open(&disk);
        world.create_other("c").unwrap();
        let (before, token) = (names(&world), cancel::Token::new());
        cancel::scope(&token, || change(&world)).unwrap();
        assert!(!token.cancel());
        assert_ne!(names(&world), before);
    }
}

#[test]
fn what_has_begun_cannot_be_given_up() {
    for write in writes() {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let (world, model) = filled(&disk, 200);
        let token = cancel::Token::new();
        let answer = ask(&world, &token, write);
        world.store.step_writer();
        assert!(!token.cancel());
        answer.try_recv().unwrap().unwrap();
        assert!(world.holds(&model).is_err(), "it has changed nothing");
    }
}

/// The first piece of a change fits the log's file, and the disk has no room for another file.
#[test]
fn a_change_that_ends_half_way_is_not_called_refused() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let (world, _) = filled(&disk, 3_000);
    let change = || {
        let keys = format!(r#"{{"new":"{}"}}"#, "x".repeat(1_000)).into();
        world.write(Write::Payload { points: everything(), change: PayloadChange::Merge { keys, path: None } })
    };
    disk.set_faults(Faults { bytes_max: Some(1), ..Faults::default() });
    let ended = change().unwrap_err();
    assert_eq!(ended.kind(), Kind::Unfinished, "{ended}");
    assert!(ended.message().contains("a part of the change was done") && ended.message().contains("full"), "{ended}");
    let changed =
        world.contents().unwrap().iter().filter(|record| record.payload.as_deref().unwrap().contains("new")).count();
    assert!(changed > 0 && changed < 3_000, "{changed}");
    // The next one finds the disk full before its first piece.
    assert_eq!(change().unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(world.write(upsert(&[(PointId::Num(1), 1)])).unwrap_err().kind(), Kind::NoSpace);
    // Once there is room it is sent again.
    disk.set_faults(Faults::default());
    change().unwrap();
    assert!(world.contents().unwrap().iter().all(|record| record.payload.as_deref().unwrap().contains("new")));
}

/// A piece of several batches, with more or less room in the log's file, and none for another file.
#[test]
fn a_piece_that_the_log_has_no_room_for_is_refused_whole() {
    let mut seen = [0, 0];
    for filler in 0..16 {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let (world, _) = filled(&disk, 256);
        let long = |bytes: usize| PayloadChange::Overwrite(format!(r#"{{"t":"{}"}}"#, "x".repeat(bytes)).into());
        world.write(Write::Payload { points: everything(), change: long(1_000) }).unwrap();
        for _ in 0..filler {
            let few = Selection::Ids((1_000..1_010).map(PointId::Num).collect());
            world.write(upsert(&[(PointId::Num(1_000), 1)])).unwrap();
            world.write(Write::Payload { points: few, change: long(100_000) }).unwrap();
        }
        disk.set_faults(Faults { bytes_max: Some(1), ..Faults::default() });
        let points: Vec<_> = (0..256).map(|number| (id(number), 9_999)).collect();
        let Write::Upsert(batch) = upsert(&points) else { unreachable!() };
        let done = world.write(Write::UpdateVectors(Batch { payloads: Vec::new(), ..batch }));
        let has_new = |record: &&Record| record.vectors.as_ref().unwrap()[0].1 == world::vector(9_999);
        match (done, world.contents().unwrap().iter().filter(has_new).count()) {
            (Ok(()), 256) => seen[0] += 1,
            (Err(error), 0) if error.kind() == Kind::NoSpace => seen[1] += 1,
            (done, changed) => panic!("{changed} points were changed, and the answer is {done:?}"),
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
