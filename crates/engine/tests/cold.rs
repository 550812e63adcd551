//! Commands on records that are not in memory: parked until these are read, while others go on unless they touch the same keys.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod toy;

use ramekin_base::{ManualClock, Result, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_engine::{Durability, Engine};
use std::path::Path;
use std::sync::{Arc, mpsc};
use toy::{Command, Counters, Reply, Setup, add};

const KEYS: u64 = 20_000;
const SETUP: Setup = Setup { durability: Durability::No, ..Setup::SMALL };

fn open(disk: &Arc<SimDisk>) -> Engine<Counters> {
    toy::open(disk.clone(), Path::new("/data/counters"), Arc::new(ManualClock::default()), SETUP).unwrap().0
}

/// A store whose counters all lie in runs, opened anew: nothing but their indexes is in memory.
fn cold() -> (Arc<SimDisk>, Engine<Counters>) {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let engine = open(&disk);
    for first in (0..KEYS).step_by(100) {
        engine.execute(Command::Both((first..first + 100).map(add).collect())).unwrap();
    }
    engine.flush().unwrap();
    engine.close().unwrap();
    let engine = open(&disk);
    (disk, engine)
}

type Told = mpsc::Receiver<(u32, Result<Reply>)>;

fn submitter(engine: &Engine<Counters>) -> (impl Fn(u32, Command), Told) {
    let (tell, told) = mpsc::sync_channel(10_000);
    let engine = engine.clone();
    let submit = move |who, command| {
        let tell = tell.clone();
        engine.submit(command, None, Box::new(move |reply| tell.send((who, reply)).unwrap()));
    };
    (submit, told)
}

fn counts(told: &Told) -> Vec<(u32, Option<i64>)> {
    let count = |(who, reply): (u32, Result<Reply>)| match reply.unwrap() {
        Reply::Count(count) => (who, count),
        Reply::Counts(counts) => (who, counts[0]),
    };
    told.try_iter().map(count).collect()
}

#[test]
fn others_pass_a_command_that_waits_for_a_page_unless_they_touch_its_key() {
    let (_, engine) = cold();
    // A new key is known to be new by the filter, which is in memory.
    engine.execute(add(KEYS + 1)).unwrap();
    let (submit, told) = submitter(&engine);
    submit(1, add(77));
    submit(2, add(KEYS + 1));
    submit(3, add(77));
    submit(4, Command::Both(Box::new([add(77), add(KEYS + 1)])));
    assert_eq!(counts(&told), [(2, Some(2))]);
    assert_eq!(engine.stats().waiting, 3);
    while engine.step() {}
    let mut answers = counts(&told);
    answers.sort_unstable();
    assert_eq!(answers, [(1, Some(2)), (3, Some(3)), (4, Some(4))]);
    assert_eq!(engine.stats().waiting, 0);
}

#[test]
fn pages_of_all_that_wait_are_read_in_one_batch() {
    let (disk, engine) = cold();
    let (submit, told) = submitter(&engine);
    let mut rng = Rng::new(1);
    let before = disk.counters().batches;
    for who in 0..200 {
        submit(who, add(rng.below(KEYS)));
    }
    while engine.step() {}
    assert_eq!(counts(&told).len(), 200);
    let batches = disk.counters().batches - before;
    assert!(batches <= 20, "{batches} batches for 200 commands");
}

#[test]
fn commands_that_hold_what_others_need_all_come_to_an_end() {
    let (_, engine) = cold();
    let (submit, told) = submitter(&engine);
    let mut rng = Rng::new(3);
    let mut expected = 0;
    for who in 0..500 {
        // Keys of few pages, in any order: each may find what another holds.
        let keys: Vec<u64> = (0..1 + rng.below(4)).map(|_| rng.below(40) * 500).collect();
        expected += keys.len() as i64;
        submit(who, Command::Both(keys.into_iter().map(add).collect()));
    }
    while engine.step() {}
    assert_eq!(counts(&told).len(), 500);
    let sum: i64 = (0..40)
        .map(|key| match engine.execute(Command::Get(key * 500)).unwrap() {
            Reply::Count(Some(count)) => count,
            other => unreachable!("{other:?}"),
        })
        .sum();
    assert_eq!(sum, 40 + expected);
}

#[test]
fn a_page_that_cannot_be_read_fails_the_commands_that_need_it_and_no_weight_is_guessed() {
    let (disk, engine) = cold();
    disk.set_faults(Faults { read_fails: Trigger::chance(1.0), ..Faults::default() });
    assert!(engine.execute(add(77)).is_err());
    assert_eq!(engine.execute(add(KEYS + 1)).unwrap(), Reply::Count(Some(1)));
    disk.set_faults(Faults::default());
    assert_eq!(engine.execute(add(77)).unwrap(), Reply::Count(Some(2)));
}

#[test]
fn a_walk_and_a_count_wait_for_what_lies_in_runs_and_see_what_the_unit_wrote() {
    let (_, engine) = cold();
    let (submit, told) = submitter(&engine);
    let within = |from, to, most| Command::Within { tree: 0, from, to, most };
    submit(1, Command::Both(Box::new([add(100), add(KEYS + 5), Command::Delete(102), within(100, KEYS + 10, 4)])));
    submit(2, add(3));
    assert_eq!(told.try_iter().count(), 0, "both wait for the disk");
    while engine.step() {}
    let mut answers: Vec<(u32, Reply)> = told.try_iter().map(|(who, reply)| (who, reply.unwrap())).collect();
    answers.sort_by_key(|(who, _)| *who);
    // One was deleted, one is new; the first counts two.
    let counts: Vec<Option<i64>> = [2, 1, 1, KEYS as i64 - 100, 2, 1, 1, 1].into_iter().map(Some).collect();
    assert_eq!(answers, [(1, Reply::Counts(counts)), (2, Reply::Count(Some(2)))]);
    // More than one piece: of each record the cache forgets again, a copy stays with the command.
    submit(3, within(0, KEYS + 10, 1 << 20));
    while engine.step() {}
    let Reply::Counts(all) = told.try_recv().unwrap().1.unwrap() else { panic!("counts") };
    assert_eq!((all.len() as u64, all[0]), (KEYS + 1, Some(KEYS as i64)));
    assert_eq!(engine.stats().waiting, 0);
}
