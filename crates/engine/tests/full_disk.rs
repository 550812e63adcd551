//! A full disk refuses what adds and nothing is lost: units are staged only where the log has room for them, and when there is room
//! again they are taken again. What is closed for good stays closed, and says why.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../../vectors/tests/gate/mod.rs"]
mod gate;
mod toy;

use gate::{Gate, Gated};
use ramekin_base::{Kind, ManualClock, Result, Rng, SystemClock};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_engine::{Durability, Engine};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, add, count};

const MIB: u64 = 1 << 20;
const TREES: [usize; 2] = [1, 3];

/// A store on a disk that may be full, behind a gate.
struct Opened {
    disk: Arc<SimDisk>,
    gate: Gate,
    engine: Engine<Counters>,
    clock: Arc<ManualClock>,
    tell: SyncSender<Result<Reply>>,
    told: Receiver<Result<Reply>>,
}

fn opened(disk: SimDisk, trees: usize) -> Opened {
    let (disk, gate, clock) = (Arc::new(disk), Gate::default(), Arc::new(ManualClock::default()));
    let behind = Arc::new(Gated { disk: disk.clone(), gate: gate.clone() });
    let setup = Setup { budget: 128 * MIB, trees, ..Setup::SMALL };
    let (engine, _) = toy::open(behind, Path::new("/data/counters"), clock.clone(), setup).unwrap();
    let (tell, told) = sync_channel(1000);
    Opened { disk, gate, engine, clock, tell, told }
}

impl Opened {
    fn new(seed: u64, trees: usize) -> Self {
        opened(SimDisk::new(seed, Faults::default()), trees)
    }

    fn submit(&self, command: Command) {
        submit(&self.engine, command, &self.tell);
    }

    /// No byte more.
    fn fill_disk(&self) {
        self.disk.set_faults(full());
    }

    fn give_room(&self) {
        self.disk.set_faults(Faults::default());
        while self.engine.step() {}
    }

    /// When the log is given another file, `commands` come, one after the other, and the disk is full by then.
    fn when_the_log_grows(&self, commands: Vec<Command>) {
        let (engine, disk, tell, once) =
            (self.engine.clone(), self.disk.clone(), self.tell.clone(), OnceLock::<()>::new());
        self.gate.close(move |call, path| {
            let grows = call == gate::Call::Create && path.components().any(|part| part.as_os_str() == "log");
            if grows && once.set(()).is_ok() {
                commands.iter().for_each(|command| submit(&engine, command.clone(), &tell));
                disk.set_faults(full());
            }
            false
        });
    }

    fn count(&self, key: u64) -> Option<i64> {
        count(&self.engine, key)
    }
}

fn submit(engine: &Engine<Counters>, command: Command, tell: &SyncSender<Result<Reply>>) {
    let tell = tell.clone();
    engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
}

fn full() -> Faults {
    Faults { bytes_max: Some(0), ..Faults::default() }
}

fn kind<T: std::fmt::Debug>(outcome: Result<T>) -> Kind {
    outcome.unwrap_err().kind()
}

#[test]
fn a_store_that_wakes_on_a_full_disk_keeps_no_unit_without_room() {
    for trees in TREES {
        let store = Opened::new(1, trees);
        store.when_the_log_grows(vec![add(2)]);
        assert_eq!(kind(store.engine.execute(add(1))), Kind::NoSpace);
        store.engine.step();
        assert_eq!(kind(store.told.try_recv().unwrap()), Kind::NoSpace);
        assert_eq!((store.count(2), store.engine.faults().len()), (None, 0));
        store.give_room();
        store.engine.execute(add(2)).unwrap();
        let after = opened(store.disk.crash(), trees);
        assert_eq!((after.count(1), after.count(2)), (None, Some(1)));
    }
}

#[test]
fn a_share_that_grows_on_a_full_disk_lets_no_unit_in_that_has_no_room() {
    for trees in TREES {
        let store = Opened::new(2, trees);
        (0..100).for_each(|key| _ = store.engine.execute(add(key)).unwrap());
        let large = |first: u64| Command::Both((first..first + 200).map(|key| Command::Put(key, 8_000)).collect());
        store.when_the_log_grows(vec![large(1_000), large(2_000)]);
        store.engine.resize(64 * MIB).unwrap();
        while store.engine.step() {}
        for reply in store.told.try_iter() {
            assert!(matches!(kind(reply), Kind::NoSpace | Kind::TooLarge));
        }
        assert!(store.engine.faults().is_empty(), "{:?}", store.engine.faults());
        store.give_room();
        // The group of the new size comes with the next commit.
        store.engine.execute(add(7)).unwrap();
        store.engine.execute(large(1_000)).unwrap();
        let after = opened(store.disk.crash(), trees);
        assert_eq!([7, 1_000, 1_199, 2_000].map(|key| after.count(key)), [Some(2), Some(1), Some(1), None]);
    }
}

#[test]
fn whatever_fills_the_disk_writes_come_back_and_what_was_acknowledged_is_there() {
    for trees in TREES {
        let store = Opened::new(3, trees);
        let mut written = 0;
        for round in 1..6 {
            let before = written;
            store.fill_disk();
            loop {
                match store.engine.execute(Command::Both((0..200).map(|at| add(written * 200 + at)).collect())) {
                    Ok(_) => written += 1,
                    Err(error) => break assert_eq!(error.kind(), Kind::NoSpace, "{error}"),
                }
                store.engine.step();
            }
            // Shares move, and the store sleeps and wakes, while the disk is full.
            store.engine.resize(round * 8 * MIB).unwrap();
            store.clock.advance(Duration::from_secs(3));
            (0..10).for_each(|_| _ = store.engine.step());
            // A small one may still have room.
            let small = store.engine.execute(add(u64::MAX - round));
            assert!(small.as_ref().map_or_else(|error| error.kind() == Kind::NoSpace, |_| true), "{small:?}");
            assert_eq!(store.count(before * 200), (written > before).then_some(1));
            store.give_room();
            store.engine.execute(Command::Both((0..200).map(|at| add(written * 200 + at)).collect())).unwrap();
            written += 1;
        }
        let after = opened(store.disk.crash(), trees);
        assert!((0..written * 200).all(|key| after.count(key) == Some(1)));
    }
}

#[test]
fn a_store_that_was_closed_takes_no_command_again() {
    for trees in TREES {
        for is_full in [false, true] {
            let store = Opened::new(4, trees);
            store.engine.execute(add(1)).unwrap();
            if is_full {
                store.fill_disk();
                store.engine.resize(64 * MIB).unwrap();
                assert_eq!(kind(store.engine.execute(add(1))), Kind::NoSpace);
            }
            store.engine.close().unwrap();
            // Both look for room in the log, as threads do that are still under way.
            store.give_room();
            store.engine.resize(32 * MIB).unwrap();
            assert_eq!(kind(store.engine.execute(add(1))), Kind::Closed);
            store.submit(add(1));
            assert_eq!(kind(store.told.try_recv().unwrap()), Kind::Closed);
            let after = opened(store.disk.crash(), trees);
            assert_eq!(after.count(1), Some(1));
        }
    }
}

#[test]
fn a_store_that_is_closed_asleep_tells_whoever_comes() {
    for trees in TREES {
        let store = Opened::new(5, trees);
        store.engine.close().unwrap();
        store.submit(add(1));
        assert_eq!(kind(store.told.try_recv().unwrap()), Kind::Closed);
    }
}

#[test]
fn whoever_waits_for_place_in_a_store_that_a_failed_commit_closes_is_told_why() {
    for trees in TREES {
        let store = Opened::new(6, trees);
        store.engine.execute(add(0)).unwrap();
        let commands = |first: u64| Command::Both((first..first + 400).map(add).collect());
        store
            .gate
            .close(|call, path| call == gate::Call::Write && path.components().any(|part| part.as_os_str() == "log"));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| store.engine.execute(add(1)));
            store.gate.arrived();
            // More than a group holds: the rest waits for the commit.
            (0..20).for_each(|number| store.submit(commands(1_000 * number)));
            assert!(store.engine.stats().waiting > 0);
            store.disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
            store.gate.open();
            assert!(first.join().unwrap().is_err());
        });
        let told: Vec<_> = store.told.try_iter().collect();
        assert_eq!(told.len(), 20);
        let says_why = |error: &ramekin_base::Error| {
            assert!(error.kind() == Kind::Closed && error.message().contains("could not be written"), "{error}");
        };
        told.iter().for_each(|reply| says_why(reply.as_ref().unwrap_err()));
        // Neither sleep nor another share, nor room in the log, opens it again.
        store.disk.set_faults(Faults::default());
        for _ in 0..3 {
            store.clock.advance(Duration::from_secs(3));
            while store.engine.step() {}
            store.engine.resize(32 * MIB).unwrap();
            says_why(&store.engine.execute(add(1)).unwrap_err());
            store.submit(add(1));
            says_why(&store.told.try_recv().unwrap().unwrap_err());
        }
        assert_eq!(store.engine.faults().len(), 1);
    }
}

/// Threads write while the disk is full and is not, and shares move: no commit finds too little room, and none is lost.
#[test]
fn no_unit_without_room_is_staged_whatever_moves_at_one_time() {
    for (trees, durability) in [(1, Durability::Each), (3, Durability::Each), (3, Durability::No)] {
        let disk = Arc::new(SimDisk::new(7, Faults::default()));
        let setup = Setup { budget: 256 * MIB, threads: true, durability, trees, ..Setup::SMALL };
        let open = |disk| toy::open(disk, Path::new("/data/counters"), Arc::new(SystemClock::new()), setup).unwrap().0;
        let engine = open(disk.clone());
        let (is_over, sums) = (AtomicBool::new(false), [const { AtomicI64::new(0) }; 3]);
        std::thread::scope(|scope| {
            for (thread, sum) in sums.iter().enumerate() {
                let (engine, is_over) = (&engine, &is_over);
                scope.spawn(move || {
                    let filling = |at: u64| Command::Put(1_000 * (1 + thread as u64) + at % 900, 2_000);
                    for at in 0..u64::MAX {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let commands =
                            [add(thread as u64)].into_iter().chain((0..20).map(|more| filling(20 * at + more)));
                        match engine.execute(Command::Both(commands.collect())) {
                            Ok(_) => _ = sum.fetch_add(1, Ordering::Relaxed),
                            Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{error}"),
                        }
                    }
                });
            }
            let mut rng = Rng::new(8);
            for round in 0..60 {
                std::thread::sleep(Duration::from_millis(2 + rng.below(20)));
                disk.set_faults(if round % 2 == 0 { full() } else { Faults::default() });
                engine.resize(rng.below(64 * MIB)).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            disk.set_faults(Faults::default());
        });
        let faults: Vec<_> = engine.faults().into_iter().filter(|fault| fault.error.kind() != Kind::NoSpace).collect();
        assert!(faults.is_empty(), "{faults:?}");
        engine.sync().unwrap();
        let after = open(Arc::new(disk.crashed_copy(9)));
        let counted = [0, 1, 2].map(|key| count(&after, key).unwrap_or(0));
        assert_eq!(counted, sums.map(AtomicI64::into_inner), "{durability:?}");
        assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
        engine.close().unwrap();
        after.close().unwrap();
    }
}

/// A large unit asks for more room in the log than small ones: it alone is refused, and where there is room again it is taken.
#[test]
fn a_large_unit_without_room_in_the_log_is_refused_and_small_ones_go_on() {
    for trees in TREES {
        let store = Opened::new(10, trees);
        store.engine.execute(add(1)).unwrap();
        store.fill_disk();
        let large = || Command::Put(2, 1_536 << 10);
        assert_eq!(kind(store.engine.execute(large())), Kind::NoSpace);
        // Its room in the log was made before.
        store.engine.execute(add(1)).unwrap();
        store.submit(large());
        store.submit(add(3));
        while store.engine.step() {}
        let kinds: Vec<_> = store.told.try_iter().map(|reply| reply.err().map(|error| error.kind())).collect();
        assert!(kinds.len() == 2 && kinds.contains(&None) && kinds.contains(&Some(Kind::NoSpace)), "{kinds:?}");
        store.give_room();
        store.engine.execute(large()).unwrap();
        let after = opened(store.disk.crash(), trees);
        assert_eq!([1, 2, 3].map(|key| after.count(key)), [Some(2), Some(1), Some(1)]);
        assert!(store.engine.faults().is_empty(), "{:?}", store.engine.faults());
    }
}
