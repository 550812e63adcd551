//! Units larger than the log takes: whole or absent, wherever they are stopped, and others go on meanwhile.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{Error, Kind, ManualClock};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::Engine;
use std::path::Path;
use std::sync::Arc;
use toy::{Command, Counters, Reply, Setup, TREE, add, key_of, value_of};

const KEYS: u64 = 3000;
/// A key that no large unit touches.
const OTHER: u64 = 1 << 40;

fn open(disk: &Arc<SimDisk>) -> Engine<Counters> {
    toy::open(disk.clone(), Path::new("/data/counters"), Arc::new(ManualClock::default()), Setup::SMALL).unwrap().0
}

fn filled(seed: u64) -> (Arc<SimDisk>, Engine<Counters>) {
    let disk = Arc::new(SimDisk::new(seed, Faults::default()));
    let engine = open(&disk);
    for first in (0..KEYS).step_by(100) {
        engine.execute(Command::Both((first..first + 100).map(add).collect())).unwrap();
        if first == KEYS / 2 {
            engine.flush().unwrap();
        }
    }
    (disk, engine)
}

fn live(engine: &Engine<Counters>, from: u64, to: u64) -> i64 {
    let view = engine.view();
    view.tree(TREE).unwrap().count(view.pages().0, &key_of(from), &key_of(to)).unwrap()
}

fn delete_all(engine: &Engine<Counters>) -> ramekin_base::Result<u64> {
    engine.bulk(TREE, (&key_of(0), &key_of(KEYS)), |bulk| (0..KEYS).try_for_each(|key| bulk.delete(&key_of(key))))
}

#[test]
fn a_large_unit_is_whole_or_absent_wherever_it_is_stopped() {
    let (mut whole, mut absent) = (0, 0);
    for stop in 0..400 {
        let (disk, engine) = filled(stop);
        let operations_max = Some(disk.operations() + stop);
        disk.set_faults(Faults { operations_max, ..Faults::default() });
        let told = delete_all(&engine);
        disk.set_faults(Faults::default());
        let survivor = Arc::new(disk.crashed_copy(stop));
        drop(engine);
        let engine = open(&survivor);
        let left = live(&engine, 0, KEYS);
        assert!(left == 0 || left == KEYS as i64, "stopped at {stop}: {left} left");
        assert!(told.is_err() || left == 0, "stopped at {stop}: it was said to be done");
        // What comes after it is right, too.
        engine.execute(add(5)).unwrap();
        let expected = if left == 0 { 1 } else { left };
        assert_eq!(live(&engine, 0, KEYS), expected, "stopped at {stop}");
        whole += u32::from(left == 0);
        absent += u32::from(left != 0);
        if told.is_ok() && whole > 5 {
            break;
        }
    }
    assert!(whole > 5 && absent > 20, "{whole} whole, {absent} absent");
}

#[test]
fn others_go_on_while_a_large_unit_is_made_and_who_touches_its_range_waits() {
    let (_, engine) = filled(1);
    let (tell, told) = std::sync::mpsc::sync_channel(10);
    engine
        .bulk(TREE, (&key_of(0), &key_of(KEYS)), |bulk| {
            assert_eq!(engine.execute(add(OTHER))?, Reply::Count(Some(1)));
            let tell = tell.clone();
            engine.submit(add(7), None, Box::new(move |reply| tell.send(reply).unwrap()));
            engine.step();
            assert!(told.try_recv().is_err(), "it is answered while the range is held");
            (0..KEYS).try_for_each(|key| bulk.put(&key_of(key), &value_of(100)))
        })
        .unwrap();
    while engine.step() {}
    // It came after the unit.
    assert_eq!(told.try_recv().unwrap().unwrap(), Reply::Count(Some(101)));
    assert_eq!((live(&engine, 0, KEYS), live(&engine, KEYS, u64::MAX)), (KEYS as i64, 1));
}

#[test]
fn a_large_unit_that_fails_leaves_nothing() {
    let (disk, engine) = filled(2);
    let failed = engine.bulk(TREE, (&key_of(0), &key_of(KEYS)), |bulk| {
        (0..KEYS / 2).try_for_each(|key| bulk.delete(&key_of(key)))?;
        Err(Error::invalid("not after all"))
    });
    assert_eq!(failed.unwrap_err().kind(), Kind::Invalid);
    let outside = engine.bulk(TREE, (&key_of(10), &key_of(20)), |bulk| bulk.put(&key_of(20), &value_of(1)));
    assert_eq!(outside.unwrap_err().kind(), Kind::Bug);
    engine.execute(add(1)).unwrap();
    assert_eq!(live(&engine, 0, KEYS), KEYS as i64);
    let engine = open(&Arc::new(disk.crash()));
    assert_eq!(live(&engine, 0, KEYS), KEYS as i64);
}

#[test]
fn a_command_that_changes_too_much_is_refused_with_what_is_allowed() {
    let (_, engine) = filled(3);
    let error = engine.execute(Command::Both((0..50_000).map(add).collect())).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge, "{error}");
    assert_eq!(live(&engine, 0, u64::MAX), KEYS as i64);
}
