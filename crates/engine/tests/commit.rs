//! Group commit, answers and what a power cut leaves.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../../vectors/tests/gate/mod.rs"]
mod gate;
mod toy;

use gate::{Gate, Gated};
use ramekin_base::{Kind, ManualClock, Result};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_disk::{Disk, Engine as DiskEngine, Local};
use ramekin_engine::{Call, Durability, Engine};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, add, count, key_of};

fn folder() -> &'static Path {
    Path::new("/data/counters")
}

fn sim(seed: u64) -> Arc<SimDisk> {
    Arc::new(SimDisk::new(seed, Faults::default()))
}

fn open(disk: &Arc<SimDisk>, setup: Setup) -> Engine<Counters> {
    toy::open(disk.clone(), folder(), Arc::new(ManualClock::default()), setup).unwrap().0
}

/// A simulated disk whose writes of the log wait where a test says.
fn gated(seed: u64) -> (Arc<SimDisk>, Gate, Engine<Counters>) {
    let (disk, gate) = (sim(seed), Gate::default());
    let behind = Arc::new(Gated { disk: disk.clone(), gate: gate.clone() });
    let engine = toy::open(behind, folder(), Arc::new(ManualClock::default()), Setup::SMALL).unwrap().0;
    engine.execute(add(0)).unwrap();
    (disk, gate, engine)
}

fn writes_the_log(call: gate::Call, path: &Path) -> bool {
    call == gate::Call::Write && path.components().any(|part| part.as_os_str() == "log")
}

/// Begins a commit of one command that waits at the gate, does `work`, and lets it go on.
fn during_a_commit<T>(engine: &Engine<Counters>, gate: &Gate, work: impl FnOnce() -> T) -> (Result<Reply>, T) {
    // Opened also when `work` panics, so that whoever waits at it ends and the test fails.
    struct Opens<'a>(&'a Gate);
    impl Drop for Opens<'_> {
        fn drop(&mut self) {
            self.0.open();
        }
    }
    gate.close(writes_the_log);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| engine.execute(add(1)));
        gate.arrived();
        let opens = Opens(gate);
        let done = work();
        drop(opens);
        (first.join().unwrap(), done)
    })
}

#[test]
fn commands_that_do_not_wait_share_a_sync_and_each_sees_the_one_before() {
    let (disk, gate, engine) = gated(1);
    let before = disk.counters().syncs;
    let (tell, told) = mpsc::sync_channel::<Result<Reply>>(2000);
    let (first, ()) = during_a_commit(&engine, &gate, || {
        for _ in 0..1000 {
            let tell = tell.clone();
            engine.submit(add(1), None, Box::new(move |reply| tell.send(reply).unwrap()));
        }
        assert!(told.try_recv().is_err(), "it is told before it is durable");
    });
    assert_eq!(first.unwrap(), Reply::Count(Some(1)));
    while engine.step() {}
    let counts: Vec<_> = told.try_iter().map(Result::unwrap).collect();
    assert_eq!(counts, (2..=1001).map(|count| Reply::Count(Some(count))).collect::<Vec<_>>());
    assert_eq!(disk.counters().syncs - before, 2);
}

/// Each unit is longer than what its record has left, so that one goes on behind each record of the group.
#[test]
fn units_that_go_on_behind_each_record_of_a_group_survive_a_power_cut() {
    for count in [1, 7, 400] {
        let (disk, gate, engine) = gated(12);
        let units = (150_000 / (count * 60)).min(2_000);
        let keys = |unit: u64| 100 + unit * count..100 + (unit + 1) * count;
        let (tell, told) = mpsc::sync_channel::<Result<Reply>>(2_000);
        let (first, ()) = during_a_commit(&engine, &gate, || {
            for unit in 0..units {
                let tell = tell.clone();
                let command = Command::Both(keys(unit).map(add).collect());
                engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
            }
        });
        first.unwrap();
        while engine.step() {}
        assert_eq!(told.try_iter().map(Result::unwrap).count() as u64, units);
        for share in [0, Setup::SMALL.share] {
            let after = open(&Arc::new(disk.crashed_copy(share)), Setup { share, ..Setup::SMALL });
            let lost = (0..units).flat_map(keys).filter(|key| self::count(&after, *key) != Some(1)).count();
            assert_eq!(lost, 0, "of {units} units of {count}");
        }
    }
}

#[test]
fn threads_that_came_during_a_commit_share_the_next_one() {
    let (disk, gate, engine) = gated(2);
    let before = disk.counters().syncs;
    std::thread::scope(|scope| {
        let (first, ()) = during_a_commit(&engine, &gate, || {
            let staged = engine.stats().seqno;
            for key in 2..34 {
                let engine = &engine;
                scope.spawn(move || engine.execute(add(key)).unwrap());
            }
            while engine.stats().seqno < staged + 32 {
                std::thread::yield_now();
            }
        });
        first.unwrap();
    });
    assert_eq!(disk.counters().syncs - before, 2);
}

#[test]
fn whoever_waits_for_a_commit_that_fails_is_told() {
    let (disk, gate, engine) = gated(3);
    let (tell, told) = mpsc::sync_channel::<Result<Reply>>(10);
    let submit = |command| {
        let tell = tell.clone();
        engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
    };
    let (first, ()) = during_a_commit(&engine, &gate, || {
        submit(add(2));
        disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
    });
    assert!(first.is_err());
    assert_eq!(told.try_recv().unwrap().unwrap_err().kind(), Kind::Closed);
    // It would show what is not durable.
    submit(Command::Get(2));
    assert_eq!(told.try_recv().unwrap().unwrap_err().kind(), Kind::Closed);
}

#[test]
fn a_read_during_a_commit_waits_for_what_it_saw() {
    for fails in [false, true] {
        let (disk, gate, engine) = gated(11);
        let (tell, told) = mpsc::sync_channel::<Result<Reply>>(10);
        let submit = |command| {
            let tell = tell.clone();
            engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
        };
        let (first, ()) = during_a_commit(&engine, &gate, || {
            submit(Command::Get(1));
            submit(Command::Add { key: 1, by: -2, least: 0 });
            assert!(told.try_recv().is_err(), "it is told of what is not durable");
            if fails {
                disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
            }
        });
        assert_eq!(first.is_err(), fails);
        // The commit that it waited for tells it: no other one comes.
        let (read, refused) = (told.try_recv().unwrap(), told.try_recv().unwrap());
        match fails {
            false => assert_eq!((read.unwrap(), refused.unwrap_err().kind()), (Reply::Count(Some(1)), Kind::Invalid)),
            true => assert!([read, refused].iter().all(|reply| reply.as_ref().unwrap_err().kind() == Kind::Closed)),
        }
    }
}

#[test]
fn whoever_waits_for_a_commit_that_panics_is_told() {
    let (_, gate, engine) = gated(4);
    gate.close(|call, path| {
        assert!(!writes_the_log(call, path), "planted by a test");
        false
    });
    std::thread::scope(|scope| {
        let ask = |key| {
            let engine = &engine;
            scope.spawn(move || engine.execute(add(key)))
        };
        let waiting: Vec<_> = (1..9).map(ask).collect();
        assert!(waiting.into_iter().all(|thread| thread.join().unwrap().is_err()));
    });
    gate.open();
    assert_eq!(engine.execute(add(1)).unwrap_err().kind(), Kind::Closed);
    assert_eq!(engine.view().get(0, &key_of(0), toy::count_of).unwrap(), Some(1));
}

#[test]
fn threads_that_wait_share_syncs_and_no_add_is_lost() {
    let temp = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Local::new(DiskEngine::Pread, temp.path()).unwrap());
    let setup = Setup { threads: true, ..Setup::SMALL };
    let (engine, _) = toy::open(disk.clone(), temp.path(), Arc::new(ramekin_base::SystemClock::new()), setup).unwrap();
    let sum = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (engine, sum) = (&engine, &sum);
            scope.spawn(move || {
                for _ in 0..50 {
                    let mut calls = [Call::new(add(7)), Call::new(add(100 + thread)), Call::new(Command::Get(7))];
                    engine.run(&mut calls);
                    assert!(calls.iter().all(|call| call.reply.as_ref().is_some_and(Result::is_ok)));
                    sum.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(count(&engine, 7), Some(sum.into_inner()));
    engine.close().unwrap();
    let (engine, _) = toy::open(disk, temp.path(), Arc::new(ramekin_base::SystemClock::new()), setup).unwrap();
    assert_eq!((count(&engine, 7), count(&engine, 100)), (Some(800), Some(50)));
    engine.close().unwrap();
}

#[test]
fn a_power_cut_after_any_answer_takes_nothing_that_was_told() {
    for durability in [Durability::Each, Durability::Interval(Duration::from_secs(1)), Durability::No] {
        let disk = sim(3);
        let engine = open(&disk, Setup { durability, ..Setup::SMALL });
        let mut durable = 0;
        for step in 1..=120i64 {
            engine.execute(add(1)).unwrap();
            if durability == Durability::Each || step % 17 == 0 {
                engine.sync().unwrap();
                durable = step;
            }
            if step % 29 == 0 {
                engine.flush().unwrap();
                durable = step;
            }
            // What a reader of the view was shown is there after the cut, where answers are to be.
            let shown = engine.view().get(0, &key_of(1), toy::count_of).unwrap();
            let survivor = Arc::new(disk.crashed_copy(step as u64));
            let after = open(&survivor, Setup { durability, ..Setup::SMALL });
            let left = count(&after, 1).unwrap_or(0);
            assert!((durable..=step).contains(&left), "{durability:?}: {left} of {step}, {durable} durable");
            if durability == Durability::Each {
                assert_eq!((left, shown), (step, Some(step)));
            }
        }
    }
}

#[test]
fn a_failed_commit_closes_the_store_and_what_is_durable_can_be_read() {
    let disk = sim(5);
    let engine = open(&disk, Setup::SMALL);
    engine.execute(add(1)).unwrap();
    disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
    assert!(engine.execute(add(1)).is_err());
    disk.set_faults(Faults::default());
    let closed = engine.execute(add(2)).unwrap_err();
    assert_eq!(closed.kind(), Kind::Closed, "{closed}");
    assert_eq!(engine.view().get(0, &key_of(1), toy::count_of).unwrap(), Some(1));
    assert!(!engine.faults().is_empty());
    let engine = open(&Arc::new(disk.crash()), Setup::SMALL);
    assert!(matches!(count(&engine, 1), Some(1 | 2)));
}

#[test]
fn a_command_that_fails_or_panics_leaves_nothing() {
    let disk = sim(7);
    let engine = open(&disk, Setup::SMALL);
    engine.execute(add(1)).unwrap();
    let both = Command::Both(Box::new([add(1), add(2), Command::Add { key: 3, by: -1, least: 0 }]));
    assert_eq!(engine.execute(both).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(engine.execute(Command::Panic(4)).unwrap_err().kind(), Kind::Bug);
    assert_eq!([1, 2, 3, 4].map(|key| count(&engine, key)), [Some(1), None, None, None]);
    let engine = open(&Arc::new(disk.crash()), Setup::SMALL);
    assert_eq!([1, 2, 3, 4].map(|key| count(&engine, key)), [Some(1), None, None, None]);
}

#[test]
fn who_waits_for_a_counter_is_served_when_it_is_written() {
    let disk = sim(9);
    let clock = Arc::new(ManualClock::default());
    let engine = toy::open(disk, folder(), clock.clone(), Setup::SMALL).unwrap().0;
    let (tell, told) = mpsc::sync_channel::<(u32, Result<Reply>)>(10);
    let wait = |who, least, until| {
        let tell = tell.clone();
        engine.submit(Command::AtLeast(1, least), until, Box::new(move |reply| tell.send((who, reply)).unwrap()));
    };
    wait(1, 2, None);
    wait(2, 1, None);
    wait(3, 50, Some(Duration::from_secs(1)));
    assert!(told.try_recv().is_err());
    engine.execute(add(1)).unwrap();
    engine.step();
    let (who, reply) = told.try_recv().unwrap();
    assert_eq!((who, reply.unwrap()), (2, Reply::Count(Some(1))));
    engine.execute(add(1)).unwrap();
    engine.step();
    assert_eq!(told.try_recv().unwrap().0, 1);
    clock.advance(Duration::from_secs(2));
    engine.step();
    let (who, reply) = told.try_recv().unwrap();
    assert_eq!((who, reply.unwrap_err().kind()), (3, Kind::Cancelled));
    wait(4, 50, None);
    engine.close().unwrap();
    assert_eq!(told.try_recv().unwrap().1.unwrap_err().kind(), Kind::Closed);
}

#[test]
fn a_file_of_the_log_takes_many_small_commits_whatever_room_is_kept_for_large_ones() {
    for share in [Setup::SMALL.share, 8 << 20, 24 << 20] {
        let disk = sim(8);
        let engine = open(&disk, Setup { share, budget: 64 << 20, ..Setup::SMALL });
        engine.execute(add(0)).unwrap();
        let before = disk.counters().syncs;
        (0..100).for_each(|number| _ = engine.execute(add(number)).unwrap());
        let syncs = disk.counters().syncs - before;
        assert!(syncs <= 103, "{syncs} syncs for 100 commits with a share of {share}");
    }
}
