//! Values of any length that a command may write: read, written over and removed, in memory, in files and after a start.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{Kind, ManualClock};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::Engine;
use std::path::Path;
use std::sync::Arc;
use toy::{Command, Counters, Reply, Setup, TREE, key_of, tree_of};

const MIB: usize = 1 << 20;
const LENGTHS: [usize; 9] = [1_000, 1_024, 1_025, 2_000, 64 << 10, MIB, MIB + 1, 3 * MIB / 2, 2 * MIB];
const SETUP: Setup = Setup { share: 0, budget: 24 << 20, trees: 3, ..Setup::SMALL };

fn sim(seed: u64) -> Arc<SimDisk> {
    Arc::new(SimDisk::new(seed, Faults::default()))
}

fn open(disk: &Arc<SimDisk>, setup: Setup) -> Engine<Counters> {
    toy::open(disk.clone(), Path::new("/data/counters"), Arc::new(ManualClock::default()), setup).unwrap().0
}

fn len_of(engine: &Engine<Counters>, key: u64) -> Option<usize> {
    engine.view().get(tree_of(key, engine.stats().trees.len()), &key_of(key), <[u8]>::len).unwrap()
}

fn live(engine: &Engine<Counters>) -> i64 {
    let view = engine.view();
    let count = |tree| view.tree(tree).unwrap().count(view.pages().0, &[], &[0xff; 17]).unwrap();
    (0..engine.stats().trees.len()).map(count).sum()
}

/// Where a value lies when it is used next.
#[derive(Debug, Clone, Copy)]
enum Lies {
    InMemory,
    InFiles,
    OnDisk,
}

fn moved(disk: &Arc<SimDisk>, engine: Engine<Counters>, lies: Lies) -> Engine<Counters> {
    match lies {
        Lies::InMemory => engine,
        Lies::InFiles => {
            engine.flush().unwrap();
            engine
        }
        Lies::OnDisk => {
            engine.flush().unwrap();
            engine.close().unwrap();
            open(disk, SETUP)
        }
    }
}

#[test]
fn a_value_of_any_length_is_read_written_over_and_removed_wherever_it_lies() {
    for lies in [Lies::InMemory, Lies::InFiles, Lies::OnDisk] {
        let disk = sim(1);
        let mut engine = open(&disk, SETUP);
        for (key, len) in (0..).zip(LENGTHS) {
            // The last one is written over a longer and over a shorter one.
            for len in [len, 2 * MIB, 1_100, len] {
                assert_eq!(engine.execute(Command::Put(key, len)).unwrap(), Reply::Count(Some(1)), "{len} {lies:?}");
                engine = moved(&disk, engine, lies);
                assert_eq!(len_of(&engine, key), Some(len), "{lies:?}");
                assert_eq!(engine.execute(Command::Get(key)).unwrap(), Reply::Count(Some(1)), "{len} {lies:?}");
            }
        }
        assert_eq!(live(&engine), LENGTHS.len() as i64);
        engine = open(&Arc::new(disk.crash()), SETUP);
        for (key, len) in (0..).zip(LENGTHS) {
            assert_eq!(len_of(&engine, key), Some(len), "{lies:?} after a crash");
            assert_eq!(engine.execute(Command::Delete(key)).unwrap(), Reply::Count(Some(1)), "{len} {lies:?}");
            assert_eq!((len_of(&engine, key), engine.execute(Command::Get(key)).unwrap()), (None, Reply::Count(None)));
        }
        assert_eq!((live(&engine), engine.faults().len()), (0, 0), "{lies:?}");
    }
}

#[test]
fn what_is_longer_is_refused_with_what_is_allowed() {
    let engine = open(&sim(2), SETUP);
    let refused = engine.execute(Command::Put(1, 2 * MIB + (128 << 10))).unwrap_err();
    assert_eq!(refused.kind(), Kind::TooLarge, "{refused}");
    assert!(refused.message().contains("at most"), "{refused}");
    assert_eq!(live(&engine), 0);
}

#[test]
fn a_value_whose_pages_are_in_memory_is_read_at_once() {
    for len in [2_000, 100_000, 2 * MIB] {
        let engine = open(&sim(3), Setup { budget: 64 << 20, ..Setup::SMALL });
        engine.execute(Command::Put(1, len)).unwrap();
        engine.flush().unwrap();
        engine.execute(Command::Get(1)).unwrap();
        let before = engine.stats().staged;
        (0..10).for_each(|_| _ = engine.execute(Command::Get(1)).unwrap());
        assert_eq!(engine.stats().staged - before, 10, "{len} bytes");
    }
}

#[test]
fn what_a_value_weighed_is_known_without_it() {
    let disk = sim(4);
    let engine = open(&disk, SETUP);
    engine.execute(Command::Put(3, 2 * MIB)).unwrap();
    engine.flush().unwrap();
    engine.close().unwrap();
    let engine = open(&disk, SETUP);
    engine.execute(Command::Set(4, 16)).unwrap();
    // The page of the record is in memory, those of its value are not.
    let view = engine.view();
    view.tree(TREE).unwrap().get(view.pages().0, &key_of(3), |_| Ok(())).unwrap();
    let before = engine.stats().staged;
    engine.execute(Command::Set(3, 16)).unwrap();
    assert_eq!((engine.stats().staged - before, len_of(&engine, 3), live(&engine)), (1, Some(16), 2));
}
