//! Stores of several trees: one that fails keeps no other from its work, and what touches several is one unit.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../../vectors/tests/gate/mod.rs"]
mod gate;

use gate::{Call, Gate, Gated};
use ramekin_base::{Kind, ManualClock, Result};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::{Bulk, Durability, Engine, EngineOptions, Source, Staged, Store, TreeOptions, Unit};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Keys without weights, of which ranges are deleted, and keys with weights.
const PLAIN: usize = 0;
const WEIGHED: usize = 1;
const KEYS: u64 = 2_000;

struct Pair([TreeOptions; 2]);

enum Command {
    Put(usize, u64),
    /// So many, from one on.
    PutMany(usize, u64, u64),
    Get(usize, u64),
    DeleteRange(u64, u64),
    /// Whether the keys from one on and below another are these: all of a third range but those of a fourth.
    Are((u64, u64), (u64, u64)),
}

fn key_of(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

impl Store for Pair {
    type Command = Command;
    type Reply = bool;

    fn trees(&self) -> &[TreeOptions] {
        &self.0
    }

    fn stage(&self, unit: &mut Unit<'_>, command: &Command) -> Result<Staged<bool>> {
        let done = match command {
            Command::Put(tree, key) => unit.put(*tree, &key_of(*key), b"value").map(|()| true),
            Command::PutMany(tree, first, count) => {
                (*first..first + count).try_for_each(|key| unit.put(*tree, &key_of(key), &[7; 100])).map(|()| true)
            }
            Command::Get(tree, key) => unit.get(*tree, &key_of(*key), |value| value.is_some()),
            Command::Are((from, to), (gone, back)) => {
                let (mut expected, mut is_right) = ((*from..*to).filter(|key| !(*gone..*back).contains(key)), true);
                unit.range(PLAIN, (&key_of(*from), &key_of(*to)), &mut |key, _| {
                    is_right &= expected.next().is_some_and(|it| key_of(it) == key);
                    Ok(true)
                })?;
                Ok(is_right && expected.next().is_none())
            }
            Command::DeleteRange(from, to) => unit.delete_range(PLAIN, &key_of(*from), &key_of(*to)).map(|()| true),
        };
        done.map(Staged::Done)
    }
}

struct Opened {
    disk: Arc<SimDisk>,
    gate: Gate,
    clock: Arc<ManualClock>,
    engine: Engine<Pair>,
}

fn opened(disk: Arc<SimDisk>) -> Opened {
    let (gate, clock) = (Gate::default(), Arc::new(ManualClock::default()));
    let behind = Arc::new(Gated { disk: disk.clone(), gate: gate.clone() });
    let budget = Budget::new(64 << 20);
    let pages = Pages::new(behind.clone(), budget.root().child("pages", ""), &budget, 4 << 30).unwrap();
    let options = EngineOptions {
        disk: behind,
        folder: Path::new("/data/pair").to_owned(),
        pages,
        budget: budget.clone(),
        account: budget.root().child("pair", ""),
        share: 12 << 20,
        clock: clock.clone(),
        durability: Durability::No,
        threads: false,
    };
    let weighed = TreeOptions { weigh: Some(|_| 1), filtered: true, ..TreeOptions::plain("weighed") };
    let engine = Engine::open(options, Pair([TreeOptions::plain("plain"), weighed])).unwrap();
    Opened { disk, gate, clock, engine }
}

fn new() -> Opened {
    opened(Arc::new(SimDisk::new(1, Faults::default())))
}

impl Opened {
    fn submit(&self, command: Command) -> Receiver<Result<bool>> {
        let (tell, told) = sync_channel(1);
        self.engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
        told
    }

    fn steps(&self) {
        while self.engine.step() {}
    }

    fn is_there(&self, tree: usize, key: u64) -> bool {
        self.engine.execute(Command::Get(tree, key)).unwrap()
    }

    /// The next so many files of runs cannot be made.
    fn next_files_fail(&self, files: u32) {
        let left = AtomicU32::new(files);
        self.gate.close(move |call, path| {
            let is_run =
                call == Call::Create && path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".run"));
            if is_run {
                let counted = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                assert!(counted.is_err(), "planted by a test");
            }
            false
        });
    }

    fn faults(&self) -> Vec<Source> {
        self.engine.faults().into_iter().map(|fault| fault.kind).collect()
    }

    fn runs(&self) -> [usize; 2] {
        let stats = self.engine.stats();
        [stats.trees[PLAIN].runs, stats.trees[WEIGHED].runs]
    }
}

/// A store of which one tree could not be flushed.
fn with_a_failed_flush() -> Opened {
    let store = new();
    for tree in [PLAIN, WEIGHED] {
        // So much that its memtable is written out when nobody writes any more.
        (0..10).for_each(|part| _ = store.engine.execute(Command::PutMany(tree, part * 100, 100)).unwrap());
    }
    store.engine.step();
    store.next_files_fail(1);
    store.clock.advance(Duration::from_millis(2_500));
    store.steps();
    store
}

#[test]
fn a_tree_that_cannot_be_flushed_keeps_no_other_from_it() {
    let store = with_a_failed_flush();
    assert_eq!((store.runs(), store.faults()), ([0, 1], vec![Source::Flush(PLAIN)]));
    // The other one is written out at once whatever failed here, and this one is tried again later.
    assert!(store.engine.flush().is_err());
    store.clock.advance(Duration::from_secs(2));
    store.steps();
    assert_eq!((store.runs()[PLAIN], store.faults()), (1, vec![]));
}

#[test]
fn a_large_unit_asks_only_for_its_own_trees_flush() {
    let store = with_a_failed_flush();
    assert_eq!(store.faults(), [Source::Flush(PLAIN)]);
    store.engine.execute(Command::Put(WEIGHED, 5)).unwrap();
    let range = |bulk: &mut Bulk<'_, '_>| (0..10).try_for_each(|key| bulk.put(&key_of(key), b"other"));
    store.engine.bulk(WEIGHED, (&key_of(0), &key_of(10)), range).unwrap();
    assert!(store.engine.bulk(PLAIN, (&key_of(0), &key_of(10)), range).is_err());
}

#[test]
fn a_tree_that_cannot_be_merged_keeps_no_other_from_it() {
    let store = new();
    // Flushes come without steps, so that merges of both are due at one time.
    let fill = |tree: usize, runs: u64| {
        for run in 0..runs {
            store.engine.bulk(tree, (&key_of(run), &key_of(run + 1)), |bulk| bulk.put(&key_of(run), b"value")).unwrap();
        }
    };
    fill(WEIGHED, 5);
    fill(PLAIN, 6);
    assert_eq!(store.runs(), [6, 5]);
    store.next_files_fail(1);
    // The one with more runs is first.
    store.steps();
    assert_eq!(store.faults(), [Source::Merge(PLAIN)]);
    assert!(store.runs()[WEIGHED] < 5 && store.runs()[PLAIN] == 6, "{:?}", store.runs());
    store.clock.advance(Duration::from_secs(2));
    store.steps();
    assert!(store.runs()[PLAIN] < 6 && store.faults().is_empty());
}

fn filled(seed: u64) -> Opened {
    let store = opened(Arc::new(SimDisk::new(seed, Faults::default())));
    for tree in [PLAIN, WEIGHED] {
        (0..KEYS / 100).for_each(|part| _ = store.engine.execute(Command::PutMany(tree, part * 100, 100)).unwrap());
    }
    store.engine.flush().unwrap();
    store
}

/// Deletes all of one tree but the last ten, and writes a note of it in the other one.
fn compact(store: &Opened, note: u64) -> Result<u64> {
    let (low, high, note, end) = (key_of(0), key_of(KEYS - 10), key_of(note), key_of(note + 1));
    let ranges = [(PLAIN, &note[..], &end[..]), (WEIGHED, &low[..], &high[..])];
    store.engine.bulk_over(&ranges, |bulk| match bulk.tree() {
        PLAIN => bulk.put(&note, b"compacted"),
        _ => (0..KEYS - 10).try_for_each(|key| bulk.delete(&key_of(key))),
    })
}

#[test]
fn a_large_unit_over_several_trees_is_whole_or_absent_wherever_it_is_stopped() {
    let (mut whole, mut absent) = (0, 0);
    for stop in 0..400 {
        let store = filled(stop);
        store.disk.set_faults(Faults { operations_max: Some(store.disk.operations() + stop), ..Faults::default() });
        let told = compact(&store, KEYS + 7);
        store.disk.set_faults(Faults::default());
        let after = opened(Arc::new(store.disk.crashed_copy(stop)));
        let (view, note) = (after.engine.view(), after.is_there(PLAIN, KEYS + 7));
        let left = view.tree(WEIGHED).unwrap().count(view.pages().0, &[], &key_of(KEYS)).unwrap();
        assert_eq!(left, if note { 10 } else { KEYS as i64 }, "stopped at {stop}");
        assert!(told.is_err() || note, "stopped at {stop}: it was said to be done");
        whole += u32::from(note);
        absent += u32::from(!note);
        if told.is_ok() && whole > 3 {
            break;
        }
    }
    assert!(whole > 3 && absent > 10, "{whole} whole, {absent} absent");
}

#[test]
fn ranges_of_a_large_unit_that_meet_or_are_too_many_are_refused() {
    let store = filled(3);
    let none = |_: &mut Bulk<'_, '_>| Ok(());
    let (a, b, c) = (key_of(1), key_of(2), key_of(3));
    let meet = store.engine.bulk_over(&[(PLAIN, &a[..], &c[..]), (PLAIN, &b[..], &c[..])], none);
    let order = store.engine.bulk_over(&[(WEIGHED, &a[..], &b[..]), (PLAIN, &b[..], &c[..])], none);
    let tree = store.engine.bulk_over(&[(2, &a[..], &b[..])], none);
    assert!([meet, order, tree].into_iter().all(|outcome| outcome.unwrap_err().kind() == Kind::Bug));
    let keys: Vec<[u8; 8]> = (0..66).map(key_of).collect();
    let many: Vec<(usize, &[u8], &[u8])> = keys.windows(2).map(|pair| (PLAIN, &pair[0][..], &pair[1][..])).collect();
    assert_eq!(store.engine.bulk_over(&many, none).unwrap_err().kind(), Kind::TooLarge);
    store.engine.bulk_over(&many[..64], none).unwrap();
}

#[test]
fn a_range_is_deleted_when_nobody_holds_any_key_of_it() {
    // Opened anew, so that a look-up waits for its page.
    let store = filled(4);
    store.engine.close().unwrap();
    let store = opened(store.disk.clone());
    store.engine.execute(Command::Put(PLAIN, KEYS + 1)).unwrap();
    let read = store.submit(Command::Get(PLAIN, 500));
    let deleted = store.submit(Command::DeleteRange(400, 600));
    let beside = store.submit(Command::DeleteRange(600, 700));
    assert!(beside.try_recv().unwrap().unwrap() && deleted.try_recv().is_err());
    store.steps();
    assert!(read.try_recv().unwrap().unwrap() && deleted.try_recv().unwrap().unwrap());
    // The same for a range inside of it that a large unit holds.
    let mut waits = None;
    let made = |bulk: &mut Bulk<'_, '_>| {
        let deleted = store.submit(Command::DeleteRange(1_000, 1_200));
        assert!(deleted.try_recv().is_err(), "it is deleted while a large unit holds a part of it");
        waits = Some(deleted);
        bulk.put(&key_of(1_100), b"other")
    };
    store.engine.bulk(PLAIN, (&key_of(1_100), &key_of(1_110)), made).unwrap();
    assert!(waits.unwrap().try_recv().unwrap().unwrap());
    assert!(store.is_there(PLAIN, 1_200));
}

#[test]
fn a_walk_passes_a_range_that_was_deleted_wherever_its_record_lies() {
    let store = filled(4);
    let are = |store: &Opened, gone: (u64, u64)| {
        let answer = store.submit(Command::Are((100, 1_900), gone));
        store.steps();
        assert!(answer.try_recv().unwrap().unwrap(), "{gone:?}");
    };
    are(&store, (0, 0));
    // In the memtable, over runs; then in a run, and read anew, in pieces.
    store.engine.execute(Command::DeleteRange(400, 600)).unwrap();
    are(&store, (400, 600));
    store.engine.flush().unwrap();
    are(&store, (400, 600));
    store.engine.close().unwrap();
    let store = opened(store.disk.clone());
    are(&store, (400, 600));
    // Over a piece that is copied.
    store.engine.close().unwrap();
    let store = opened(store.disk.clone());
    store.engine.execute(Command::DeleteRange(600, 1_900)).unwrap();
    let answer = store.submit(Command::Are((100, 2_000), (400, 1_900)));
    store.steps();
    assert!(answer.try_recv().unwrap().unwrap());
}

#[test]
fn a_walk_that_is_too_long_is_refused_with_what_is_allowed() {
    let store = filled(4);
    let many = 64 << 10;
    for first in (10_000..10_000 + many).step_by(1_000) {
        store.engine.execute(Command::PutMany(PLAIN, first, 1_000)).unwrap();
    }
    for cold in [false, true] {
        if cold {
            store.engine.flush().unwrap();
        }
        let answer = store.submit(Command::Are((10_000, 10_000 + 2 * many), (0, 0)));
        store.steps();
        let error = answer.try_recv().unwrap().unwrap_err();
        assert!(error.kind() == Kind::TooLarge && error.message().contains("4194304 bytes"), "{error}");
    }
    assert_eq!(store.engine.stats().waiting, 0);
}
