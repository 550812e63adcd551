//! Commands that wait: in the order in which they came, until what they wait for ends or they are cancelled, and never without a word.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../../vectors/tests/gate/mod.rs"]
mod gate;
mod toy;

use gate::{BROKEN, Call, Gate, Gated};
use ramekin_base::{Clock, Kind, ManualClock, Result, Rng, SystemClock};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_engine::{CommandId, Durability, Engine, Source};
use ramekin_memory::Budget;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toy::{Command, Counters, Reply, Setup, TREE, add, key_of, value_of};

const KEYS: u64 = 20_000;
/// Not there before, which the filter knows: nobody waits for it.
const NEW: u64 = KEYS + 1;

/// A store, and who is told what.
struct Opened {
    disk: Arc<SimDisk>,
    gate: Gate,
    engine: Engine<Counters>,
    budget: Budget,
    tell: SyncSender<(u32, Result<Reply>)>,
    told: Receiver<(u32, Result<Reply>)>,
}

fn opened_on(disk: Arc<SimDisk>, durability: Durability) -> Opened {
    let gate = Gate::default();
    let behind = Arc::new(Gated { disk: disk.clone(), gate: gate.clone() });
    let setup = Setup { durability, ..Setup::SMALL };
    let clock = Arc::new(ManualClock::default());
    let (engine, budget) = toy::open(behind, Path::new("/data/counters"), clock, setup).unwrap();
    let (tell, told) = sync_channel(40_000);
    Opened { disk, gate, engine, budget, tell, told }
}

fn opened() -> Opened {
    opened_on(Arc::new(SimDisk::new(1, Faults::default())), Durability::No)
}

/// All counters lie in runs, and nothing but the indexes of these is in memory.
fn cold() -> Opened {
    let store = opened();
    for first in (0..KEYS).step_by(100) {
        store.engine.execute(Command::Both((first..first + 100).map(add).collect())).unwrap();
    }
    store.engine.flush().unwrap();
    store.engine.close().unwrap();
    let store = opened_on(store.disk.clone(), Durability::No);
    // It is awake, and has an empty memtable.
    store.engine.execute(add(NEW)).unwrap();
    store.engine.flush().unwrap();
    store
}

impl Opened {
    fn submit(&self, who: u32, command: Command) -> CommandId {
        let tell = self.tell.clone();
        self.engine.submit(command, None, Box::new(move |reply| tell.send((who, reply)).unwrap()))
    }

    fn steps(&self) {
        while self.engine.step() {}
    }

    /// Who was told, in order.
    fn whom(&self) -> Vec<u32> {
        self.told.try_iter().map(|(who, _)| who).collect()
    }

    fn kinds(&self) -> Vec<(u32, Kind)> {
        self.told.try_iter().map(|(who, reply)| (who, reply.unwrap_err().kind())).collect()
    }

    fn count(&self, key: u64) -> Option<i64> {
        match self.engine.execute(Command::Get(key)).unwrap() {
            Reply::Count(count) => count,
            Reply::Counts(_) => None,
        }
    }
}

#[test]
fn a_store_that_was_closed_keeps_nobody() {
    let store = cold();
    store.submit(1, Command::Get(77));
    store.submit(2, Command::AtLeast(NEW, 9));
    store.engine.close().unwrap();
    store.submit(3, Command::Get(77));
    store.submit(4, Command::AtLeast(NEW, 9));
    let mut told = store.kinds();
    told.sort_unstable_by_key(|(who, _)| *who);
    assert_eq!(told, [1, 2, 3, 4].map(|who| (who, Kind::Closed)));
    assert_eq!(store.engine.execute(Command::Get(78)).unwrap_err().kind(), Kind::Closed);
    assert_eq!(store.engine.flush().unwrap_err().kind(), Kind::Closed);
}

#[test]
fn whoever_waits_for_a_write_is_told_when_a_commit_fails() {
    let store = opened_on(Arc::new(SimDisk::new(2, Faults::default())), Durability::Each);
    store.engine.execute(add(1)).unwrap();
    store.submit(1, Command::AtLeast(1, 9));
    store.disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
    assert!(store.engine.execute(add(1)).is_err());
    store.submit(2, Command::AtLeast(1, 9));
    assert_eq!(store.kinds(), [(1, Kind::Closed), (2, Kind::Closed)]);
}

/// Panics once on the thread of a name, when it is told to.
struct Ill {
    clock: SystemClock,
    name: &'static str,
    is_armed: Arc<AtomicBool>,
}

impl Clock for Ill {
    fn now(&self) -> Duration {
        let is_named = std::thread::current().name() == Some(self.name);
        assert!(!(is_named && self.is_armed.swap(false, Ordering::SeqCst)), "planted by a test");
        self.clock.now()
    }
}

#[test]
fn a_thread_that_dies_closes_the_store_is_named_and_leaves_nobody_waiting() {
    for name in ["committer", "flusher", "merger"] {
        let disk = Arc::new(SimDisk::new(3, Faults::default()));
        let is_armed = Arc::new(AtomicBool::new(false));
        let clock = Arc::new(Ill { clock: SystemClock::new(), name, is_armed: is_armed.clone() });
        let setup = Setup { threads: true, durability: Durability::No, ..Setup::SMALL };
        let engine = toy::open(disk, Path::new("/data/counters"), clock, setup).unwrap().0;
        engine.execute(add(1)).unwrap();
        let (tell, told) = sync_channel(2);
        let submit = |command| {
            let tell = tell.clone();
            engine.submit(command, None, Box::new(move |reply| tell.send(reply).unwrap()));
        };
        submit(Command::AtLeast(1, 9));
        is_armed.store(true, Ordering::SeqCst);
        let error = told.recv_timeout(BROKEN).unwrap().unwrap_err();
        assert!(error.kind() == Kind::Closed && error.message().contains(name), "{error}");
        submit(add(1));
        assert_eq!(told.recv_timeout(BROKEN).unwrap().unwrap_err().kind(), Kind::Closed);
        assert!(engine.faults().iter().any(|fault| fault.kind == Source::Thread), "{:?}", engine.faults());
        assert_eq!(engine.close().unwrap_err().kind(), Kind::Closed);
    }
}

#[test]
fn what_happens_beside_those_who_wait_stages_none_of_them() {
    let store = cold();
    let staged = |work: &dyn Fn()| {
        let before = store.engine.stats().staged;
        work();
        store.engine.stats().staged - before
    };
    let waiting = 1_000;
    assert_eq!(staged(&|| (0..waiting).for_each(|who| _ = store.submit(who, add(77)))), u64::from(waiting));
    // Others go on as if nobody waited.
    assert_eq!(staged(&|| (0..50).for_each(|_| _ = store.submit(waiting, add(NEW)))), 50);
    let once_more = staged(&|| store.steps());
    assert!(once_more <= u64::from(waiting) + 100, "{once_more} stagings for {waiting} commands");
    let told: Vec<_> = store.whom().into_iter().filter(|who| *who != waiting).collect();
    assert!(told.iter().copied().eq(0..waiting), "not in the order in which they came");
    // Of those who wait for a write, whose key is written.
    (0..waiting).for_each(|who| _ = store.submit(who, Command::AtLeast(NEW + 1 + u64::from(who), 1)));
    assert_eq!((staged(&|| _ = store.engine.execute(add(NEW + 5))), store.whom()), (2, vec![4]));
    assert_eq!(store.engine.stats().blocked, 999);
}

#[test]
fn a_command_that_is_cancelled_changes_nothing_and_holds_nothing() {
    let store = cold();
    let (first, second) = (store.submit(1, add(77)), store.submit(2, add(77)));
    assert!(store.engine.cancel(second) && !store.engine.cancel(second));
    assert!(store.engine.cancel(first));
    assert_eq!(store.kinds(), [(2, Kind::Cancelled), (1, Kind::Cancelled)]);
    let pop = |who| store.submit(who, Command::Both(Box::new([Command::AtLeast(NEW, 2), add(NEW)])));
    let (third, fourth) = (pop(3), pop(4));
    assert!(store.engine.cancel(third));
    assert_eq!(store.kinds(), [(3, Kind::Cancelled)]);
    store.engine.execute(add(NEW)).unwrap();
    assert_eq!((store.whom(), store.count(NEW)), (vec![4], Some(3)));
    assert!(!store.engine.cancel(fourth));
    assert_eq!((store.count(77), store.engine.stats().waiting), (Some(1), 0));
}

#[test]
fn a_command_is_cancelled_while_its_page_is_read() {
    let store = cold();
    let ticket = store.submit(1, add(77));
    let (engine, was_cancelled) = (store.engine.clone(), Arc::new(AtomicBool::new(false)));
    let seen = was_cancelled.clone();
    store.gate.close(move |call, _| {
        if call == Call::Read && !seen.load(Ordering::SeqCst) {
            seen.store(engine.cancel(ticket), Ordering::SeqCst);
        }
        false
    });
    store.steps();
    assert!(was_cancelled.load(Ordering::SeqCst) && !store.engine.cancel(ticket));
    assert_eq!((store.kinds(), store.count(77)), (vec![(1, Kind::Cancelled)], Some(1)));
}

#[test]
fn who_came_first_has_its_turn_first_however_often_it_waited() {
    let store = opened();
    store.submit(1, Command::Both(Box::new([Command::AtLeast(1, 1), Command::AtLeast(2, 1)])));
    store.submit(2, Command::AtLeast(2, 1));
    store.engine.execute(add(1)).unwrap();
    assert!(store.whom().is_empty());
    store.engine.execute(add(2)).unwrap();
    assert_eq!(store.whom(), [1, 2]);
}

/// A pop of one is woken, finds the group full, and a later one comes when there is place, before anybody else has looked.
#[test]
fn a_command_that_was_woken_keeps_its_turn_though_the_group_is_full() {
    let store = opened_on(Arc::new(SimDisk::new(5, Faults::default())), Durability::Each);
    store.engine.execute(add(0)).unwrap();
    let pop = || Command::Both(Box::new([Command::AtLeast(1, 1), Command::Add { key: 1, by: -1, least: 0 }]));
    let filling = |first: u64, count| (first..first + count).map(|key| Command::Put(key, 8_000));
    let writes_the_log =
        |call, path: &Path| call == Call::Write && path.components().any(|part| part.as_os_str() == "log");
    store.submit(1, pop());
    std::thread::scope(|scope| {
        store.gate.close(writes_the_log);
        let first = scope.spawn(|| store.engine.execute(add(2)));
        store.gate.arrived();
        store.submit(8, Command::Both(filling(100, 26).collect()));
        store.submit(9, Command::Both([add(1)].into_iter().chain(filling(200, 10)).collect()));
        assert_eq!((store.engine.stats().blocked, store.engine.stats().waiting), (0, 1));
        store.gate.open();
        first.join().unwrap().unwrap();
        // The group is handed on, and nobody has looked at those who wait for place.
        store.gate.close(writes_the_log);
        let second = scope.spawn(|| store.engine.step());
        store.gate.arrived();
        store.submit(2, pop());
        store.gate.open();
        second.join().unwrap();
    });
    store.steps();
    assert_eq!((store.whom(), store.engine.stats().blocked), (vec![8, 9, 1], 1));
}

/// Asks for a key again and again, each time when it has its answer.
fn ask_again(engine: Engine<Counters>, key: u64, left: u32) {
    let again = engine.clone();
    let done = move |_: Result<Reply>| {
        if left > 0 {
            ask_again(again, key, left - 1);
        }
    };
    engine.submit(Command::Get(key), None, Box::new(done));
}

#[test]
fn a_command_of_two_keys_has_its_turn_though_one_of_them_is_always_held() {
    let store = opened();
    // The fetcher takes 256 at a time, and half of these wait each time.
    let keys = 512;
    for first in (0..keys).step_by(16) {
        let puts = (first..first + 16).map(|key| Command::Put(key, 2_000));
        store.engine.execute(Command::Both(puts.collect())).unwrap();
    }
    store.engine.flush().unwrap();
    (0..keys).for_each(|key| ask_again(store.engine.clone(), key, 60));
    store.submit(1, Command::Both(Box::new([Command::Get(0), Command::Get(keys / 2)])));
    for _ in 0..40 {
        store.engine.step();
    }
    assert_eq!(store.whom(), [1]);
}

#[test]
fn answers_that_wait_for_the_log_are_bounded() {
    let store = opened_on(Arc::new(SimDisk::new(4, Faults::default())), Durability::Each);
    store.engine.execute(add(1)).unwrap();
    let writes_the_log =
        |call, path: &Path| call == Call::Write && path.components().any(|part| part.as_os_str() == "log");
    store.gate.close(writes_the_log);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.engine.execute(add(1)));
        store.gate.arrived();
        (0..20_000).for_each(|who| _ = store.submit(who, Command::Get(1)));
        let refused = store.kinds();
        store.gate.open();
        first.join().unwrap().unwrap();
        assert_eq!((refused.len(), refused[0]), (20_000 - 16_384, (16_384, Kind::Busy)));
    });
    store.steps();
    assert_eq!(store.whom().len(), 16_384);
}

#[test]
fn keys_that_commands_wait_with_are_booked() {
    let store = cold();
    let used = || store.budget.root().used();
    let before = used();
    let all = |first: u64| Command::Both((first..first + 1_000).map(add).collect());
    let parked = store.submit(1, all(0));
    let locked = store.submit(2, all(0));
    assert!(used() >= before + 1_000 * 16, "{} bytes are booked", used() - before);
    assert!(store.engine.cancel(parked) && store.engine.cancel(locked));
    let blocked = store.submit(3, Command::AtLeast(NEW, 9));
    assert!(used() > before);
    store.engine.cancel(blocked);
    assert_eq!(used(), before);
}

#[test]
fn answers_and_views_count_and_nothing_else() {
    let store = cold();
    let before = store.engine.stats().answered;
    (0..10).for_each(|who| _ = store.submit(who, add(77)));
    assert_eq!(store.engine.stats().answered, before);
    store.steps();
    _ = store.engine.view();
    assert_eq!(store.engine.stats().answered, before + 11);
}

fn bulk(store: &Opened, (from, to): (u64, u64), count: i64, began: impl FnOnce()) -> Result<u64> {
    store.engine.bulk(TREE, (&key_of(from), &key_of(to)), |bulk| {
        began();
        (from..to).try_for_each(|key| bulk.put(&key_of(key), &value_of(count)))
    })
}

#[test]
fn a_large_unit_waits_for_nobody_outside_of_its_range() {
    let store = cold();
    store.submit(1, add(77));
    bulk(&store, (100, 200), 5, || assert_eq!(store.engine.stats().waiting, 1)).unwrap();
    assert!(store.whom().is_empty());
    store.steps();
    assert_eq!((store.whom(), store.count(77), store.count(100)), (vec![1], Some(2), Some(5)));
}

#[test]
fn who_comes_to_a_range_after_a_large_unit_waits_for_it() {
    let store = cold();
    // Each one that is answered brings the next one.
    let answers = Arc::new(Mutex::new(0));
    fn chain(engine: Engine<Counters>, key: u64, answers: Arc<Mutex<u64>>) {
        let again = engine.clone();
        let done = move |_: Result<Reply>| {
            *answers.lock().unwrap() += 1;
            if key < 50 {
                chain(again, key + 1, answers);
            }
        };
        engine.submit(add(key), None, Box::new(done));
    }
    chain(store.engine.clone(), 0, answers.clone());
    bulk(&store, (0, 100), 5, || assert_eq!(*answers.lock().unwrap(), 1)).unwrap();
    store.steps();
    assert_eq!((*answers.lock().unwrap(), store.count(0), store.count(1)), (51, Some(5), Some(6)));
}

#[test]
fn a_large_unit_wakes_whoever_waits_for_a_key_that_it_writes() {
    let store = cold();
    store.submit(1, Command::AtLeast(NEW + 1, 5));
    let outside = store.submit(2, Command::AtLeast(NEW + 20, 5));
    bulk(&store, (NEW + 1, NEW + 10), 5, || ()).unwrap();
    store.steps();
    assert_eq!(store.whom(), [1]);
    assert!(store.engine.cancel(outside));
}

#[test]
fn a_large_unit_sees_what_others_wrote_outside_of_its_range() {
    let store = cold();
    store.engine.execute(add(NEW)).unwrap();
    // It comes while the tree's memtable is written out for the unit, so it is in the next one.
    let (engine, once) = (store.engine.clone(), AtomicBool::new(false));
    store.gate.close(move |call, path| {
        let is_run = call == Call::Create && path.extension().is_some_and(|end| end == "run");
        if is_run && !once.swap(true, Ordering::SeqCst) {
            engine.submit(add(NEW + 1), None, Box::new(|reply| _ = reply.unwrap()));
        }
        false
    });
    let look = |bulk: &mut ramekin_engine::Bulk<'_, '_>| {
        let view = store.engine.view();
        let is_live = |key: u64| bulk.view().get(view.pages().0, &key_of(key), |found| Ok(found.entry.value.is_live()));
        assert_eq!([NEW, NEW + 1].map(|key| is_live(key).unwrap()), [Some(true); 2]);
        Ok(())
    };
    store.engine.bulk(TREE, (&key_of(0), &key_of(1)), look).unwrap();
    assert_eq!(store.engine.stats().trees[TREE].records, 1);
}

#[test]
fn those_who_wait_for_one_key_are_staged_one_after_the_other() {
    let store = opened();
    // A value of this length is read for each who asks.
    store.engine.execute(Command::Put(1, 2_000)).unwrap();
    store.engine.flush().unwrap();
    let before = store.engine.stats().staged;
    (0..200).for_each(|who| _ = store.submit(who, Command::Get(1)));
    store.steps();
    assert!(store.whom().into_iter().eq(0..200), "not in the order in which they came");
    let staged = store.engine.stats().staged - before;
    assert!(staged <= 3 * 200, "{staged} stagings for 200 commands");
}

#[test]
fn a_large_unit_that_panics_lets_go_of_its_range() {
    let store = cold();
    let failed = bulk(&store, (0, 100), 5, || panic!("planted by a test"));
    assert_eq!(failed.unwrap_err().kind(), Kind::Bug);
    assert_eq!((store.engine.execute(add(7)).unwrap(), store.count(8)), (Reply::Count(Some(2)), Some(1)));
}

#[test]
fn a_large_unit_whose_edit_of_the_manifest_panics_closes_the_store_and_leaves_nobody_waiting() {
    let store = cold();
    store.submit(1, Command::AtLeast(NEW, 9));
    store.gate.close(|call, path| {
        let is_manifest = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST"));
        assert!(!(call == Call::Write && is_manifest), "planted by a test");
        false
    });
    assert_eq!(bulk(&store, (0, 100), 5, || ()).unwrap_err().kind(), Kind::Bug);
    store.gate.open();
    store.submit(2, add(7));
    store.submit(3, add(NEW));
    store.steps();
    let mut told = store.kinds();
    told.sort_unstable_by_key(|(who, _)| *who);
    assert_eq!(told, [1, 2, 3].map(|who| (who, Kind::Closed)));
    let after = opened_on(Arc::new(store.disk.crash()), Durability::No);
    let left = after.count(0).unwrap();
    assert!((left == 1 || left == 5) && (1..100).all(|key| after.count(key) == Some(left)), "{left}");
}

/// Commands of one and of several keys, cold and hot, which wait for each other, for writes and for large units, are cancelled and
/// come while a large unit is made: each is told once.
#[test]
fn whatever_waits_for_whatever_each_is_told_once() {
    for seed in 0..30 {
        let (store, mut rng) = (cold(), Rng::new(seed));
        let (mut tickets, mut who) = (Vec::new(), 0);
        let mut submit = |rng: &mut Rng, store: &Opened| {
            let mut key = || rng.below(60) * 300;
            let command = match key() % 7 {
                0 | 1 => Command::Both((0..6).map(|_| add(key())).collect()),
                2 => Command::Get(key()),
                3 => Command::AtLeast(key(), 3),
                4 => Command::Both(Box::new([Command::AtLeast(key(), 2), add(key()), Command::Get(key())])),
                5 => Command::Put(key(), 3_000),
                _ => add(key()),
            };
            who += 1;
            tickets.push(store.submit(who - 1, command));
            tickets[rng.below(tickets.len() as u64) as usize]
        };
        for _ in 0..400 {
            let some = submit(&mut rng, &store);
            match rng.below(30) {
                0 => _ = store.engine.cancel(some),
                1..6 => _ = store.engine.step(),
                6 => {
                    let from = rng.below(60) * 300;
                    let began = || (0..3).for_each(|_| _ = submit(&mut rng, &store));
                    bulk(&store, (from, from + 600), 1, began).unwrap();
                }
                _ => {}
            }
        }
        store.steps();
        let stats = store.engine.stats();
        assert_eq!(stats.waiting, 0, "seed {seed}");
        tickets.into_iter().for_each(|ticket| _ = store.engine.cancel(ticket));
        let mut told = store.whom();
        told.sort_unstable();
        assert!(told.iter().copied().eq(0..who), "seed {seed}: {} of {who} were told", told.len());
        // Nothing is held by anybody.
        let all = |_: &mut ramekin_engine::Bulk<'_, '_>| Ok(());
        store.engine.bulk(TREE, (&key_of(0), &key_of(u64::MAX)), all).unwrap();
    }
}
