//! Three stores on one budget: two of counters beside that of vectors. Shares follow the load and the budget, and add up.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

mod tenants;

use ramekin_base::{Kind, Result};
use ramekin_node::{IDLE_SHARE, Node};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenants::toy::Command;
use tenants::{Toy, make_collection, node, open_bytes, search, upsert};

const MIB: u64 = 1 << 20;
/// A test that is broken ends after this long instead of never; one that passes does not wait for it.
const BROKEN: Duration = Duration::from_secs(60);
/// The budget moves in this time at most; what the kernel charges may be of other tests too.
const MOVED: Duration = Duration::from_secs(10);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < BROKEN, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of a store in the ledger, and its share there.
fn of_store(node: &Node, name: &str) -> (u64, Option<u64>) {
    let ledger = node.ledger();
    let below = |account: &str| account == name || account.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let own = || ledger.accounts.iter().filter(|account| below(&account.name));
    (own().map(|account| account.bytes).sum(), own().find_map(|account| account.share_bytes))
}

#[test]
fn a_store_alone_has_the_whole_budget_and_the_ledger_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path(), 48 * MIB).unwrap();
    assert_eq!((node.shares(), of_store(&node, "vectors").1), (vec![48 * MIB], None));
    assert!(node.set_budget(32 * MIB, false, BROKEN).is_ok());
    assert_eq!((node.shares(), of_store(&node, "vectors").1), (vec![32 * MIB], None));
    node.close();
}

#[test]
fn three_stores_open_at_24_mib_and_those_without_data_cost_next_to_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path(), 24 * MIB).unwrap();
    let toys = ["one", "two"].map(|name| node.host(name, open_bytes(1), Toy::open).unwrap());
    assert_eq!(node.shares(), [23 * MIB, IDLE_SHARE, IDLE_SHARE]);
    for name in ["one", "two"] {
        let (held, share) = of_store(&node, name);
        assert!(held <= IDLE_SHARE, "{held} bytes of a store without data");
        assert_eq!(share, Some(IDLE_SHARE));
    }
    assert_eq!(of_store(&node, "vectors").1, Some(23 * MIB));
    make_collection(&node).unwrap();
    upsert(&node, 0, 100).unwrap();
    toys[0].add(0, 100).unwrap();
    assert_eq!(search(&node, 7).unwrap(), 10);
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}

#[test]
fn a_budget_without_room_for_stores_that_are_hosted_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path(), 32 * MIB).unwrap();
    let alone = node.least_budget();
    let toys = ["one", "two"].map(|name| node.host(name, open_bytes(1), Toy::open).unwrap());
    toys.iter().for_each(|toy| toy.add(0, 100).unwrap());
    // What they take while they are written to they give back: it counts for nothing here.
    let least = node.least_budget();
    assert!((alone + 2 * IDLE_SHARE..alone + 2 * MIB).contains(&least), "{least} with them, {alone} without");
    let refused = node.set_budget(alone.max(least - 1), false, BROKEN).unwrap_err();
    assert!(refused.kind() == Kind::Invalid && refused.message().contains("is the least"), "{refused}");
    assert_eq!(node.budget().limit(), 32 * MIB);
    until("the store to sleep", || toys.iter().all(is_asleep));
    node.set_budget(node.least_budget(), false, BROKEN).unwrap();
    assert_eq!(node.shares()[1..], [IDLE_SHARE, IDLE_SHARE]);
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}

#[test]
fn shares_follow_the_load_and_come_back() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path(), 64 * MIB).unwrap();
    let toys = ["one", "two"].map(|name| node.host(name, open_bytes(1), Toy::open).unwrap());
    for (busy, idle) in [(0, 1), (1, 0)] {
        let mut written = 0;
        until("the share of the busy store", || {
            toys[busy].add(written, 256).unwrap();
            written += 256;
            let shares = node.shares();
            assert_eq!(shares.iter().sum::<u64>(), 64 * MIB);
            shares[busy + 1] >= 11 * MIB && shares[idle + 1] == IDLE_SHARE
        });
    }
    until("the rest", || node.shares() == [63 * MIB, IDLE_SHARE, IDLE_SHARE] && toys.iter().all(is_asleep));
    assert!(["one", "two"].iter().all(|name| of_store(&node, name).0 <= MIB));
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}

/// Also by a store that was asleep, whose share is that of one that nobody writes to. A budget of 24 MiB has room for one of 1.5 MiB;
/// the largest ones are taken where there is somewhat more, and refused for the moment where there is not.
#[test]
fn a_large_unit_is_taken_at_every_budget() {
    for (budget, trees) in [24, 32, 64].into_iter().flat_map(|budget| [(budget, 1), (budget, 3)]) {
        let temp = tempfile::tempdir().unwrap();
        let node = node(temp.path(), budget * MIB).unwrap();
        make_collection(&node).unwrap();
        upsert(&node, 0, 1_000).unwrap();
        let toy = node.host("one", open_bytes(trees), |place| Toy::of(place, trees)).unwrap();
        for round in 0..2 {
            let many = (0..1_400).map(|key| Command::Put(10 * key + round, 1_030)).collect();
            let units = [Command::Put(round, 1_536 << 10), Command::Both(many), Command::Put(round, 2 << 20)];
            for unit in units.into_iter().take(if budget < 32 { 1 } else { 3 }) {
                let done = toy.0.execute(unit);
                assert!(done.is_ok(), "{budget} MiB, {trees} trees: {done:?} {:?}", toy.0.stats());
            }
            until("the store to sleep", || is_asleep(&toy) && node.shares()[1] == IDLE_SHARE);
        }
        assert!(toy.0.faults().is_empty(), "{:?}", toy.0.faults());
        toy.0.close().unwrap();
        node.close();
    }
}

fn is_asleep(toy: &Arc<Toy>) -> bool {
    toy.0.least_share() < MIB
}

/// Ends the rounds of all when the test does, also where it fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` round after round until `is_over`, and counts the rounds that were not refused for the moment.
fn rounds(is_over: &AtomicBool, done: &AtomicU64, mut work: impl FnMut(u64) -> Option<Result<()>>) {
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        match work(round) {
            Some(Ok(())) => _ = done.fetch_add(1, Ordering::Relaxed),
            // What waiting cannot help against is never the answer.
            Some(Err(error)) => assert_eq!(error.kind(), Kind::Busy, "{error}"),
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn budget_and_load_move_together_and_nothing_is_refused_for_good() {
    let temp = tempfile::tempdir().unwrap();
    let node = node(temp.path(), 64 * MIB).unwrap();
    make_collection(&node).unwrap();
    let toys = ["one", "two"].map(|name| node.host(name, open_bytes(1), Toy::open).unwrap());
    let (is_over, busy, done) = (AtomicBool::new(false), AtomicUsize::new(0), [const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        for (at, toy) in toys.iter().enumerate() {
            let (is_over, busy, done) = (&is_over, &busy, &done[at]);
            scope.spawn(move || {
                rounds(is_over, done, |round| {
                    (busy.load(Ordering::Relaxed) == at).then(|| toy.add(round * 50 % 100_000, 100))
                });
            });
        }
        scope.spawn(|| {
            rounds(&is_over, &done[2], |round| {
                let written = upsert(&node, round * 100 % 20_000, 100);
                Some(written.and_then(|()| search(&node, round).map(|_| ())))
            });
        });
        let _ends = Ends(&is_over);
        // What fails once in a hundred moves is found here sooner or later.
        for (budget, at) in [(24, 0), (64, 0), (24, 1), (40, 0)].into_iter().cycle().take(8) {
            busy.store(at, Ordering::Relaxed);
            let count = |at: usize| done[at].load(Ordering::Relaxed);
            let before = [count(at), count(2)];
            node.set_budget(budget * MIB, false, MOVED).unwrap();
            until("claims below the budget", || node.budget().reserved() <= budget * MIB);
            let shares = node.shares();
            assert!(shares.iter().sum::<u64>() <= budget * MIB, "{shares:?} of {budget} MiB");
            until("work of both stores in use", || {
                assert!(node.budget().reserved() <= budget * MIB);
                count(at) > before[0] + 20 && count(2) > before[1] + 20
            });
        }
    });
    toys.iter().for_each(|toy| toy.0.close().unwrap());
    node.close();
}
