//! What a store takes of the budget: next to nothing while nobody writes, what follows from its share while somebody does.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{Kind, ManualClock, Result, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_engine::{Durability, Engine};
use ramekin_memory::Budget;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, TREE, key_of};

const MIB: u64 = 1 << 20;

struct Opened {
    engine: Engine<Counters>,
    budget: Budget,
    clock: Arc<ManualClock>,
}

fn open(disk: &Arc<SimDisk>, setup: Setup) -> Opened {
    let clock = Arc::new(ManualClock::default());
    let (engine, budget) = toy::open(disk.clone(), Path::new("/data/counters"), clock.clone(), setup).unwrap();
    Opened { engine, budget, clock }
}

fn sim(seed: u64) -> Arc<SimDisk> {
    Arc::new(SimDisk::new(seed, Faults::default()))
}

fn add(key: u64) -> Command {
    Command::Add { key, by: 1, least: 0 }
}

fn live(engine: &Engine<Counters>) -> i64 {
    let view = engine.view();
    view.tree(TREE).unwrap().count(view.pages().0, &[], &[0xff; 17]).unwrap()
}

#[test]
fn a_store_that_nobody_writes_to_gives_back_what_writes_need() {
    let Opened { engine, budget, clock } = open(&sim(1), Setup { share: 24 * MIB, ..Setup::SMALL });
    let asleep = budget.reserved();
    assert!(engine.least_share() <= 512 << 10, "{}", engine.least_share());
    assert_eq!(engine.execute(Command::Get(1)).unwrap(), Reply::Count(None));
    assert_eq!(budget.reserved(), asleep, "a read wakes nobody");
    for round in 1..4 {
        engine.execute(add(1)).unwrap();
        assert!(budget.reserved() > asleep + 4 * MIB && engine.least_share() > 2 * MIB);
        clock.advance(Duration::from_secs(3));
        while engine.step() {}
        clock.advance(Duration::from_secs(3));
        while engine.step() {}
        assert!(budget.reserved() <= asleep + (128 << 10), "{} beside {asleep}", budget.reserved());
        assert_eq!(engine.execute(Command::Get(1)).unwrap(), Reply::Count(Some(round)));
    }
}

#[test]
fn a_store_that_finds_no_memory_to_wake_refuses_writes_and_answers_reads() {
    let Opened { engine, budget, .. } = open(&sim(2), Setup { budget: 12 * MIB, ..Setup::SMALL });
    let hog = budget.root().child("others", "").try_reserve(budget.free() - MIB).unwrap();
    let (tell, told) = mpsc::sync_channel::<Result<Reply>>(10);
    let submit = |command| {
        let tell = tell.clone();
        engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
    };
    assert!(engine.execute(add(1)).unwrap_err().kind().is_memory());
    submit(add(1));
    submit(Command::Get(1));
    while engine.step() {}
    let mut kinds: Vec<Option<Kind>> = told.try_iter().map(|reply| reply.err().map(|error| error.kind())).collect();
    kinds.sort_by_key(Option::is_some);
    assert!(kinds.len() == 2 && kinds[0].is_none() && kinds[1].is_some_and(|kind| kind.is_memory()), "{kinds:?}");
    drop(hog);
    assert_eq!(engine.execute(add(1)).unwrap(), Reply::Count(Some(1)));
    assert!(engine.faults().is_empty());
}

/// The log of a large share is many memtables of the least one, and more runs than a view takes.
#[test]
fn a_log_that_a_larger_share_wrote_opens_with_the_least() {
    let disk = sim(4);
    let Opened { engine, .. } = open(&disk, Setup { share: 64 * MIB, budget: 96 * MIB, ..Setup::SMALL });
    const KEYS: u64 = 100_000;
    for first in (0..KEYS).step_by(1000) {
        engine
            .execute(Command::Both((first..first + 1000).map(|key| add(ramekin_base::rng::mix(key))).collect()))
            .unwrap();
    }
    assert!(engine.stats().log_bytes > 3 * MIB, "{:?}", engine.stats());
    let Opened { engine, .. } = open(&Arc::new(disk.crash()), Setup { share: 0, ..Setup::SMALL });
    assert_eq!(live(&engine), KEYS as i64);
    assert!(engine.stats().trees[TREE].runs <= 8, "{:?}", engine.stats());
    engine.execute(add(ramekin_base::rng::mix(7))).unwrap();
    assert_eq!(live(&engine), KEYS as i64);
}

/// Units as large as a large share takes them, also of records whose slots are twice as long as they are.
#[test]
fn the_largest_units_of_a_larger_share_are_replayed_with_the_least() {
    const UNIT_BYTES: usize = 2 << 20;
    for value_bytes in [16, 900, 1_100, 2_100, 4_200, 8_200, 16_300, 100_000] {
        let disk = sim(6);
        let Opened { engine, .. } = open(&disk, Setup { share: 96 * MIB, budget: 192 * MIB, ..Setup::SMALL });
        // Besides key and value each effect counts 88 bytes.
        let count = (UNIT_BYTES / (value_bytes + 104)) as u64;
        let unit = |number: u64| {
            let keys = (0..count).map(|at| ramekin_base::rng::mix(number << 32 | at));
            Command::Both(keys.map(|key| Command::Put(key, value_bytes)).collect())
        };
        (0..2).for_each(|number| _ = engine.execute(unit(number)).unwrap());
        assert_eq!(engine.stats().trees[TREE].runs, 0, "{:?}", engine.stats());
        let small = Setup { share: 0, budget: 24 * MIB, ..Setup::SMALL };
        let Opened { engine, .. } = open(&Arc::new(disk.crash()), small);
        assert_eq!(live(&engine), 2 * count as i64, "values of {value_bytes} bytes");
        // What is written from now on has a memtable of the least share.
        (0..10_000).step_by(500).for_each(|first| {
            engine.execute(Command::Both((first..first + 500).map(add).collect())).unwrap();
        });
        assert!(engine.stats().trees[TREE].records < 8_000, "{:?}", engine.stats());
    }
}

#[test]
fn sizes_follow_the_share_while_it_is_written_to() {
    for seed in 0..20 {
        let disk = sim(seed);
        let mut rng = Rng::new(seed);
        let durability = if rng.chance(0.5) { Durability::Each } else { Durability::No };
        let setup = Setup { budget: 128 * MIB, durability, ..Setup::SMALL };
        let Opened { engine, budget, .. } = open(&disk, setup);
        let mut counts = vec![0i64; 2000];
        for _ in 0..60 {
            engine.resize(rng.below(64 * MIB)).unwrap();
            for _ in 0..1 + rng.below(6) {
                let keys: Vec<u64> = (0..1 + rng.below(500)).map(|_| rng.below(2000)).collect();
                keys.iter().for_each(|key| counts[*key as usize] += 1);
                engine.execute(Command::Both(keys.into_iter().map(add).collect())).unwrap();
                engine.step();
            }
        }
        engine.resize(0).unwrap();
        engine.flush().unwrap();
        while engine.step() {}
        assert!(budget.reserved() < 10 * MIB, "{}", budget.reserved());
        let engine = match durability {
            Durability::Each => open(&Arc::new(disk.crash()), setup).engine,
            _ => engine,
        };
        let view = engine.view();
        for (key, count) in counts.iter().enumerate() {
            let found = view.get(TREE, &key_of(key as u64), toy::count_of).unwrap();
            assert_eq!(found.unwrap_or(0), *count, "seed {seed}, key {key}");
        }
    }
}

/// Another store takes all that a smaller share leaves: the memtable of before is flushed all the same.
#[test]
fn what_a_larger_share_left_is_flushed_where_there_is_no_other_memory() {
    let Opened { engine, budget, clock } = open(&sim(5), Setup { share: 40 * MIB, ..Setup::SMALL });
    for first in (0..50_000).step_by(500) {
        engine.execute(Command::Both((first..first + 500).map(add).collect())).unwrap();
    }
    assert!(engine.stats().trees[TREE].runs == 0 && engine.stats().trees[TREE].records == 50_000);
    engine.resize(0).unwrap();
    // What opening the file takes is not held for good.
    let _others = budget.root().child("others", "").try_reserve(budget.free() - (128 << 10)).unwrap();
    while engine.step() {}
    let tree = engine.stats().trees[TREE].clone();
    assert!(tree.runs > 0 && tree.frozen == 0 && engine.faults().is_empty(), "{tree:?} {:?}", engine.faults());
    clock.advance(Duration::from_secs(3));
    while engine.step() {}
    assert_eq!((engine.least_share() < MIB, live(&engine)), (true, 50_000), "{}", engine.least_share());
}
