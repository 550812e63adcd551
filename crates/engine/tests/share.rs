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
use toy::{Command, Counters, Reply, Setup, add, key_of};

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

fn live(engine: &Engine<Counters>) -> i64 {
    let view = engine.view();
    let count = |tree| view.tree(tree).unwrap().count(view.pages().0, &[], &[0xff; 17]).unwrap();
    (0..engine.stats().trees.len()).map(count).sum()
}

/// Of all trees: records in memtables, frozen memtables, runs.
fn sums(engine: &Engine<Counters>) -> (u64, usize, usize) {
    let add = |(records, frozen, runs), tree: &ramekin_engine::TreeStats| {
        (records + tree.records, frozen + tree.frozen, runs + tree.runs)
    };
    engine.stats().trees.iter().fold((0, 0, 0), add)
}

/// Until it sleeps, or nothing is left to do.
fn rest(engine: &Engine<Counters>, clock: &ManualClock) {
    for _ in 0..2 {
        while engine.step() {}
        clock.advance(Duration::from_secs(3));
    }
    while engine.step() {}
}

const TREES: [usize; 2] = [1, 3];

#[test]
fn a_store_that_nobody_writes_to_gives_back_what_writes_need() {
    for (trees, most) in [(1, 512 << 10), (3, 512 << 10), (6, (512 + 3 * 96) << 10)] {
        let setup = Setup { share: 24 * MIB, trees, ..Setup::SMALL };
        let Opened { engine, budget, clock } = open(&sim(1), setup);
        let asleep = budget.reserved();
        assert!(engine.least_share() <= most, "{} with {trees} trees", engine.least_share());
        assert_eq!(engine.execute(Command::Get(1)).unwrap(), Reply::Count(None));
        assert_eq!(budget.reserved(), asleep, "a read wakes nobody");
        for round in 1..4 {
            engine.execute(add(1)).unwrap();
            assert!(budget.reserved() > asleep + 4 * MIB && engine.least_share() > 2 * MIB);
            rest(&engine, &clock);
            assert!(budget.reserved() <= asleep + (128 << 10), "{} beside {asleep}", budget.reserved());
            assert_eq!(engine.execute(Command::Get(1)).unwrap(), Reply::Count(Some(round)));
        }
    }
}

/// Another store takes all that the share leaves, so that whatever is written must find its place in what was taken for good.
#[test]
fn a_store_of_any_number_of_trees_goes_on_in_the_memory_of_its_share() {
    for trees in 1..=6 {
        let setup = Setup { share: 24 * MIB, trees, ..Setup::SMALL };
        let Opened { engine, budget, clock } = open(&sim(7), setup);
        engine.execute(add(0)).unwrap();
        let others = budget.root().child("others", "").try_reserve(budget.free() - MIB / 2).unwrap();
        const KEYS: u64 = 30_000;
        for first in (1..KEYS).step_by(100) {
            let keys = (first..KEYS.min(first + 100)).map(|key| Command::Put(ramekin_base::rng::mix(key), 500));
            let done = engine.execute(Command::Both(keys.collect()));
            assert!(done.is_ok(), "{trees} trees, at {first}: {done:?} {:?} {:?}", engine.stats(), engine.faults());
        }
        drop(others);
        assert_eq!(live(&engine), KEYS as i64, "{trees} trees");
        rest(&engine, &clock);
        assert!(engine.faults().is_empty() && engine.least_share() < MIB, "{:?}", engine.faults());
    }
}

/// Many values of one key each, one value, and values whose slots are nearly three times as long as they are.
fn large_units(first: u64) -> Vec<(Command, u64)> {
    let of = |count: u64, bytes: usize| {
        let puts = (first..first + count).map(|key| Command::Put(ramekin_base::rng::mix(key), bytes));
        (Command::Both(puts.collect()), count)
    };
    vec![of(1, 1_536 << 10), of(1, 2 << 20), of(1_400, 1_030), of(120, 16_300), of(15_000, 16)]
}

#[test]
fn the_largest_unit_is_taken_at_every_share_also_by_a_store_that_slept() {
    for (trees, share) in TREES.into_iter().flat_map(|trees| [0, 6, 24, 96].map(|share| (trees, share * MIB))) {
        for durability in [Durability::Each, Durability::No] {
            let (disk, budget_bytes) = (sim(8), share.max(8 * MIB) + 24 * MIB);
            let setup = Setup { budget: budget_bytes, share, trees, durability, ..Setup::SMALL };
            let Opened { engine, budget, clock } = open(&disk, setup);
            for round in 0..2 {
                for (unit, keys) in large_units(round << 32) {
                    let done = engine.execute(unit);
                    assert!(done.is_ok(), "{trees} trees, {share} bytes, {keys} keys: {done:?}");
                    if round > 0 {
                        rest(&engine, &clock);
                        assert!(engine.least_share() < MIB, "{}", engine.least_share());
                    }
                }
                engine.execute(add(round)).unwrap();
                while engine.step() {}
                // What it took it gives back when the next units are written.
                (0..3).for_each(|_| _ = engine.execute(add(round)).unwrap());
                let others = budget_bytes - share.max(5 * MIB) - MIB;
                let others = budget.root().child("others", "").try_reserve(others);
                assert!(others.is_ok(), "{others:?} {trees} trees, {share} bytes");
            }
            engine.sync().unwrap();
            assert!(engine.faults().is_empty(), "{:?}", engine.faults());
            // Those of the last unit, and the one that was added to.
            let expected = 2 * 15_000 + 1;
            assert_eq!(live(&engine), expected);
            let after = open(&Arc::new(disk.crash()), Setup { share: 0, budget: 24 * MIB, ..setup });
            assert_eq!(live(&after.engine), expected, "{trees} trees, {share} bytes");
        }
    }
}

#[test]
fn a_large_unit_that_finds_no_memory_is_refused_for_the_moment_and_others_go_on() {
    for trees in TREES {
        let Opened { engine, budget, .. } = open(&sim(9), Setup { trees, ..Setup::SMALL });
        engine.execute(add(1)).unwrap();
        let hog = budget.root().child("others", "").try_reserve(budget.free() - MIB).unwrap();
        let (tell, told) = mpsc::sync_channel::<Result<Reply>>(10);
        for command in [Command::Put(2, 1_536 << 10), add(1), Command::Put(3, 1_536 << 10)] {
            let tell = tell.clone();
            engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
        }
        while engine.step() {}
        let mut kinds: Vec<_> = told.try_iter().map(|reply| reply.err().map(|error| error.kind())).collect();
        kinds.sort_by_key(Option::is_some);
        let is_memory = |kind: &Option<Kind>| kind.is_some_and(|kind| kind.is_memory());
        assert!(kinds.len() == 3 && kinds[0].is_none() && kinds[1..].iter().all(is_memory), "{kinds:?}");
        assert!(engine.execute(Command::Put(2, 1_536 << 10)).unwrap_err().kind().is_memory());
        assert_eq!(engine.execute(add(1)).unwrap(), Reply::Count(Some(3)));
        drop(hog);
        engine.execute(Command::Put(2, 1_536 << 10)).unwrap();
        assert_eq!((live(&engine), engine.faults().len()), (2, 0));
    }
}

/// Small units come and go while large ones wait for their group.
#[test]
fn large_units_find_their_place_among_many_small_ones() {
    for durability in [Durability::Each, Durability::No] {
        let setup = Setup { trees: 3, threads: true, durability, ..Setup::SMALL };
        let clock = Arc::new(ramekin_base::SystemClock::new());
        let (engine, _) = toy::open(sim(10), Path::new("/data/counters"), clock, setup).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (engine, is_over) = (&engine, &is_over);
                scope.spawn(move || {
                    for at in 0.. {
                        if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                        engine.execute(Command::Put(1_000 * thread + at % 500, 2_000)).unwrap();
                    }
                });
            }
            let large: Vec<_> = (0..10u64).map(|at| engine.execute(Command::Put(10_000 + at, 1_536 << 10))).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(large.iter().all(Result::is_ok), "{large:?}");
        });
        engine.close().unwrap();
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
    const KEYS: u64 = 100_000;
    for trees in TREES {
        let disk = sim(4);
        let Opened { engine, .. } = open(&disk, Setup { share: 64 * MIB, budget: 96 * MIB, trees, ..Setup::SMALL });
        for first in (0..KEYS).step_by(1000) {
            engine
                .execute(Command::Both((first..first + 1000).map(|key| add(ramekin_base::rng::mix(key))).collect()))
                .unwrap();
        }
        assert!(engine.stats().log_bytes > 3 * MIB, "{:?}", engine.stats());
        let Opened { engine, .. } = open(&Arc::new(disk.crash()), Setup { share: 0, trees, ..Setup::SMALL });
        assert_eq!(live(&engine), KEYS as i64);
        assert!(engine.stats().trees.iter().all(|tree| tree.runs <= 8), "{:?}", engine.stats());
        engine.execute(add(ramekin_base::rng::mix(7))).unwrap();
        assert_eq!(live(&engine), KEYS as i64);
    }
}

/// Units as large as a large share takes them, also of records whose slots are twice as long as they are.
#[test]
fn the_largest_units_of_a_larger_share_are_replayed_with_the_least() {
    const UNIT_BYTES: usize = 2 << 20;
    let sizes = [16, 900, 1_100, 2_100, 4_200, 8_200, 16_300, 100_000];
    for (trees, value_bytes) in TREES.into_iter().flat_map(|trees| sizes.map(|bytes| (trees, bytes))) {
        let disk = sim(6);
        let Opened { engine, .. } = open(&disk, Setup { share: 96 * MIB, budget: 192 * MIB, trees, ..Setup::SMALL });
        // Besides key and value each effect counts 88 bytes.
        let count = (UNIT_BYTES / (value_bytes + 104)) as u64;
        let unit = |number: u64| {
            let keys = (0..count).map(|at| ramekin_base::rng::mix(number << 32 | at));
            Command::Both(keys.map(|key| Command::Put(key, value_bytes)).collect())
        };
        (0..2).for_each(|number| _ = engine.execute(unit(number)).unwrap());
        assert_eq!(sums(&engine).2, 0, "{:?}", engine.stats());
        let small = Setup { share: 0, budget: 24 * MIB, trees, ..Setup::SMALL };
        let Opened { engine, .. } = open(&Arc::new(disk.crash()), small);
        assert_eq!(live(&engine), 2 * count as i64, "values of {value_bytes} bytes");
        // What is written from now on has a memtable of the least share.
        (0..10_000).step_by(500).for_each(|first| {
            engine.execute(Command::Both((first..first + 500).map(add).collect())).unwrap();
        });
        assert!(sums(&engine).0 < 8_000, "{:?}", engine.stats());
    }
}

/// It waits for a larger group; by the time that one is made every group is as large.
#[test]
fn a_large_unit_that_waits_while_the_share_grows_is_done() {
    for value_bytes in [60_000, 120_000, 250_000, 500_000] {
        let Opened { engine, .. } = open(&sim(7), Setup { share: 0, budget: 192 * MIB, ..Setup::SMALL });
        engine.execute(add(1)).unwrap();
        let (tell, told) = mpsc::sync_channel(1);
        engine.submit(Command::Put(2, value_bytes), None, Box::new(move |done| _ = tell.send(done.is_ok())));
        engine.resize(96 * MIB).unwrap();
        while engine.step() {}
        assert_eq!(told.try_recv(), Ok(true), "a value of {value_bytes} bytes");
    }
}

#[test]
fn sizes_follow_the_share_while_it_is_written_to() {
    for seed in 0..20 {
        let disk = sim(seed);
        let mut rng = Rng::new(seed);
        let durability = if rng.chance(0.5) { Durability::Each } else { Durability::No };
        let trees = TREES[seed as usize % 2];
        let setup = Setup { budget: 128 * MIB, durability, trees, ..Setup::SMALL };
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
            let tree = toy::tree_of(key as u64, trees);
            let found = view.get(tree, &key_of(key as u64), toy::count_of).unwrap();
            assert_eq!(found.unwrap_or(0), *count, "seed {seed}, key {key}");
        }
    }
}

/// Another store takes all that a smaller share leaves: the memtable of before is flushed all the same.
#[test]
fn what_a_larger_share_left_is_flushed_where_there_is_no_other_memory() {
    for trees in TREES {
        let Opened { engine, budget, clock } = open(&sim(5), Setup { share: 40 * MIB, trees, ..Setup::SMALL });
        for first in (0..50_000).step_by(500) {
            engine.execute(Command::Both((first..first + 500).map(add).collect())).unwrap();
        }
        assert_eq!(sums(&engine), (50_000, 0, 0));
        engine.resize(0).unwrap();
        // What opening the file takes is not held for good.
        let _others = budget.root().child("others", "").try_reserve(budget.free() - (128 << 10)).unwrap();
        while engine.step() {}
        let (_, frozen, runs) = sums(&engine);
        assert!(runs > 0 && frozen == 0 && engine.faults().is_empty(), "{:?} {:?}", engine.stats(), engine.faults());
        clock.advance(Duration::from_secs(3));
        while engine.step() {}
        assert_eq!((engine.least_share() < MIB, live(&engine)), (true, 50_000), "{}", engine.least_share());
    }
}
