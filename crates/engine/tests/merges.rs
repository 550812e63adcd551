//! Merges and the manifest: which tree comes first, how often many files are named, and that whatever was named is found.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../../vectors/tests/gate/mod.rs"]
mod gate;
mod toy;

use gate::{Gate, Gated};
use ramekin_base::ManualClock;
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::Engine;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, add, key_of, one_of};

const SETUP: Setup = Setup { budget: 64 << 20, trees: 3, ..Setup::SMALL };

struct Opened {
    disk: Arc<SimDisk>,
    gate: Gate,
    engine: Engine<Counters>,
    clock: Arc<ManualClock>,
}

fn opened(disk: SimDisk) -> Opened {
    let (disk, gate, clock) = (Arc::new(disk), Gate::default(), Arc::new(ManualClock::default()));
    let behind = Arc::new(Gated { disk: disk.clone(), gate: gate.clone() });
    let (engine, _) = toy::open(behind, Path::new("/data/counters"), clock.clone(), SETUP).unwrap();
    Opened { disk, gate, engine, clock }
}

fn new(seed: u64) -> Opened {
    opened(SimDisk::new(seed, Faults::default()))
}

/// Counter `number` of a tree.
fn key(tree: u64, number: u64) -> u64 {
    3 * number + tree
}

fn is_manifest(call: gate::Call, path: &Path) -> bool {
    let is_named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST"));
    call == gate::Call::Write && is_named
}

fn runs(engine: &Engine<Counters>) -> Vec<usize> {
    engine.stats().trees.iter().map(|tree| tree.runs).collect()
}

/// Keeps merges away meanwhile: a flush alone makes none.
fn flushed(engine: &Engine<Counters>, command: Command) {
    engine.execute(command).unwrap();
    engine.flush().unwrap();
}

#[test]
fn the_tree_that_has_the_most_runs_is_merged_first() {
    let Opened { engine, .. } = new(1);
    (0..5).for_each(|number| flushed(&engine, add(key(0, number))));
    (0..7).for_each(|number| flushed(&engine, add(key(2, number))));
    assert_eq!(runs(&engine), [5, 0, 7]);
    engine.step();
    assert_eq!(runs(&engine)[0], 5);
    assert!(runs(&engine)[2] < 7, "{:?}", runs(&engine));
    while engine.step() {}
    assert!(runs(&engine).iter().all(|runs| *runs <= 4), "{:?}", runs(&engine));
}

/// Four runs that together have about so many files of 1 MiB, merged into one, and how often the manifest was written for that.
fn merged(seed: u64, files: u64) -> (Opened, u64) {
    let opened = new(seed);
    let Opened { engine, gate, .. } = &opened;
    let (value, count) = (one_of(128 << 10), 8 * files);
    for run in 0..4 {
        engine
            .bulk(0, (&[], &[0xff; 17]), |bulk| {
                (0..count).filter(|at| at % 4 == run).try_for_each(|at| bulk.put(&key_of(key(0, at)), &value))
            })
            .unwrap();
    }
    assert_eq!(runs(engine), [4, 0, 0]);
    let written = Arc::new(AtomicU64::new(0));
    let counts = written.clone();
    gate.close(move |call, path| {
        counts.fetch_add(u64::from(is_manifest(call, path)), Ordering::Relaxed);
        false
    });
    while engine.step() {}
    gate.open();
    assert!(engine.faults().is_empty(), "{:?}", engine.faults());
    assert_eq!(runs(engine), [1, 0, 0]);
    assert_eq!(engine.execute(Command::Get(key(0, count / 2))).unwrap(), Reply::Count(Some(1)));
    let written = written.load(Ordering::Relaxed);
    (opened, written)
}

#[test]
fn a_merge_of_many_files_writes_the_manifest_no_more_often_than_one_of_some() {
    let (_, some) = merged(2, 30);
    let (many, times) = merged(3, 90);
    assert!(times <= some + 2, "{some} writes for 30 files, {times} for 90: {:?}", many.engine.stats());
}

#[test]
fn a_flush_names_the_files_of_its_tree_alone() {
    let mut written = Vec::new();
    for files in [1, 60] {
        let Opened { disk, engine, .. } = merged(4, files).0;
        let before = disk.counters().written_bytes;
        (0..8).for_each(|number| flushed(&engine, add(key(1, number))));
        written.push(disk.counters().written_bytes - before);
    }
    assert_eq!(written[0], written[1]);
}

#[test]
fn what_a_failed_edit_did_not_name_the_next_one_does_whichever_tree_it_is_for() {
    let Opened { disk, gate, engine, clock } = new(5);
    flushed(&engine, add(key(1, 0)));
    engine.execute(add(key(0, 1))).unwrap();
    gate.close(|call, path| {
        assert!(!is_manifest(call, path), "planted by a test");
        false
    });
    assert!(engine.flush().is_err());
    gate.open();
    clock.advance(Duration::from_secs(60));
    flushed(&engine, add(key(2, 1)));
    // The log is trimmed as far as the manifest says.
    (0..3).for_each(|_| _ = engine.execute(add(key(1, 2))).unwrap());
    let after = opened(disk.crash());
    for (tree, number, count) in [(1, 0, 1), (0, 1, 1), (2, 1, 1), (1, 2, 3)] {
        let found = after.engine.execute(Command::Get(key(tree, number))).unwrap();
        assert_eq!(found, Reply::Count(Some(count)), "counter {number} of tree {tree}");
    }
}

#[test]
fn all_runs_of_a_tree_are_merged_into_one_when_somebody_asks() {
    let Opened { engine, .. } = new(9);
    for number in 0..3 {
        flushed(&engine, add(key(0, number)));
        flushed(&engine, add(key(1, number)));
    }
    assert_eq!(runs(&engine), [3, 3, 0]);
    engine.merge_all().unwrap();
    assert_eq!(runs(&engine), [1, 1, 0]);
    engine.merge_all().unwrap();
    flushed(&engine, add(key(0, 9)));
    assert_eq!(runs(&engine), [2, 1, 0], "nobody asks any more");
}
