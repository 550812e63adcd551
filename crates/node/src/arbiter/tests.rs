//! Shares of stores that fail to take them, look by look, without a thread and a clock.

use super::*;
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Rng};
use ramekin_memory::{Reclaim, ReclaimOrder, Reservation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// A store that uses all that it was told of, and fails where a test says.
struct Fake {
    account: Account,
    is_first: bool,
    state: Mutex<State>,
}

struct State {
    wants: Wants,
    share: u64,
    fails: bool,
    told: u32,
}

impl Fake {
    fn told(&self, share: u64) -> Result<()> {
        let mut state = self.state.lock();
        assert!(self.is_first || self.account.claimed() >= share, "it is told of {share} before that is reserved");
        // What fails may have been taken all the same.
        (state.share, state.told) = (share, state.told + 1);
        if state.fails { Err(Error::busy("planted by a test")) } else { Ok(()) }
    }

    fn ask(&self, requests: u64) {
        self.state.lock().wants.requests += requests;
    }

    fn fail(&self, fails: bool) {
        self.state.lock().fails = fails;
    }

    fn state(&self) -> (u64, u32) {
        let state = self.state.lock();
        (state.share, state.told)
    }
}

impl Tenant for Fake {
    fn wants(&self) -> Wants {
        self.state.lock().wants
    }

    fn shrink(&self, share: u64, _: Duration) -> Result<()> {
        self.told(share)
    }

    fn resize(&self, share: u64) -> Result<()> {
        self.told(share)
    }
}

fn fake(budget: &Budget, name: &str, least: u64, most: u64) -> Arc<Fake> {
    let wants = Wants { idle: least, least, needed: least, most, requests: 0 };
    let state = Mutex::new(State { wants, share: 0, fails: false, told: 0 });
    Arc::new(Fake { account: budget.root().child(name, "a test's"), is_first: name == "first", state })
}

/// A store that takes what is left, and so many others.
fn opened(total: u64, others: usize) -> (Budget, Arbiter, Vec<Arc<Fake>>) {
    let budget = Budget::new(total);
    let mut all = vec![fake(&budget, "first", 8 * MIB, u64::MAX)];
    let arbiter = Arbiter::new(&budget, all[0].clone(), &all[0].account);
    for _ in 0..others {
        let other = fake(&budget, "other", MIB, 40 * MIB);
        arbiter.0.seats.lock().push(Seat::new(other.clone(), &other.account));
        all.push(other);
    }
    // A store that was opened counts as in use for a moment.
    (0..4).for_each(|_| arbiter.look());
    (budget, arbiter, all)
}

/// All stores have taken what they have, and it is reserved for them.
fn check(arbiter: &Arbiter, all: &[Arc<Fake>]) {
    let shares = arbiter.shares();
    let taken: Vec<u64> = all.iter().map(|one| one.state().0).collect();
    assert_eq!(taken, shares);
    let reserved: Vec<u64> = all[1..].iter().map(|one| one.account.claimed()).collect();
    assert_eq!(reserved, shares[1..]);
    assert!(shares.iter().sum::<u64>() <= arbiter.0.budget.limit(), "{shares:?}");
}

#[test]
fn a_store_that_did_not_take_a_larger_share_is_told_a_smaller_one() {
    let (_, arbiter, all) = opened(64 * MIB, 1);
    all[1].fail(true);
    all[1].ask(1000);
    arbiter.look();
    assert!(all[1].state().0 > 20 * MIB, "it was told");
    // Nobody asks it any more: the plan is what it had before.
    all[1].fail(false);
    (0..4).for_each(|_| arbiter.look());
    assert_eq!(arbiter.shares(), [63 * MIB, MIB]);
    check(&arbiter, &all);
}

#[test]
fn a_store_that_did_not_take_a_smaller_share_is_told_what_it_has_where_that_is_near_enough() {
    let (_, arbiter, all) = opened(64 * MIB, 1);
    all[1].ask(1000);
    arbiter.look();
    let before = arbiter.shares();
    all[1].fail(true);
    (0..3).for_each(|_| arbiter.look());
    assert_eq!((arbiter.shares()[1], all[1].state().0), (before[1], MIB), "it is told of less, and keeps what it has");
    // It is asked again.
    all[1].fail(false);
    all[1].ask(1000);
    (0..2).for_each(|_| arbiter.look());
    assert_eq!(arbiter.shares()[1], before[1]);
    check(&arbiter, &all);
}

#[test]
fn the_first_computes_anew_after_the_budget_has_moved_though_another_failed_to_shrink() {
    let (budget, arbiter, all) = opened(64 * MIB, 1);
    all[1].ask(1000);
    arbiter.look();
    all[1].fail(true);
    budget.set_limit(24 * MIB);
    assert_eq!(arbiter.settle().unwrap_err().kind(), Kind::Busy);
    let (share, told) = all[0].state();
    assert_eq!(share, arbiter.shares()[0]);
    all[1].fail(false);
    all[1].ask(1000);
    arbiter.look();
    assert!(all[0].state().1 > told, "it has the share that it had, of another budget");
    check(&arbiter, &all);
}

#[test]
fn who_moves_the_budget_again_and_again_takes_no_share_from_a_store_that_is_asked() {
    let (budget, arbiter, all) = opened(64 * MIB, 1);
    all[1].ask(1_000);
    arbiter.look();
    let share = all[1].state().0;
    assert!(share > 16 * MIB, "{share}");
    // Between two looks nobody is asked anything.
    for total in [48, 56, 48, 56, 64] {
        budget.set_limit(total * MIB);
        arbiter.settle().unwrap();
    }
    assert_eq!(all[1].state().0, share);
    check(&arbiter, &all);
}

#[test]
fn nobody_grows_while_one_fails_to_shrink_and_others_shrink_all_the_same() {
    let (_, arbiter, all) = opened(64 * MIB, 3);
    all[1..3].iter().for_each(|one| one.ask(1000));
    arbiter.look();
    all[1].fail(true);
    (0..4).for_each(|_| arbiter.look());
    all[3].ask(1000);
    arbiter.look();
    let shares = arbiter.shares();
    assert!(shares[1] > 10 * MIB && shares[2] == MIB && shares[3] == MIB, "{shares:?}");
    all[1].fail(false);
    all[3].ask(1000);
    arbiter.look();
    assert!(arbiter.shares()[3] > 20 * MIB, "{:?}", arbiter.shares());
    check(&arbiter, &all);
}

#[test]
fn whatever_fails_shares_are_reserved_and_in_the_end_all_have_taken_theirs() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (budget, arbiter, all) = opened(64 * MIB, 3);
        for _ in 0..60 {
            let one = &all[rng.below(4) as usize];
            match rng.below(4) {
                0 => one.ask(1 + rng.below(100_000)),
                1 => one.fail(rng.chance(0.5)),
                2 => {
                    let total = (12 + rng.below(90)) * MIB;
                    _ = arbiter.shrink(total.min(budget.limit()), Duration::ZERO);
                    budget.set_limit(total);
                    _ = arbiter.settle();
                }
                _ => {}
            }
            arbiter.look();
            for (seat, one) in arbiter.shares().iter().zip(&all).skip(1) {
                assert_eq!(one.account.claimed(), *seat, "seed {seed}");
            }
        }
        all.iter().for_each(|one| one.fail(false));
        (0..2 * PAUSE_MAX).for_each(|_| arbiter.look());
        check(&arbiter, &all);
    }
}

/// Page caches that give what they have where a test says.
#[derive(Default)]
struct Caches {
    asked: AtomicU64,
    held: Mutex<Option<Reservation>>,
    gives: AtomicBool,
}

impl Reclaim for Caches {
    fn reclaim(&self, _: u64) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let held = self.held.lock().take_if(|_| self.gives.load(Ordering::Relaxed));
        held.map_or(0, |held| held.bytes())
    }
}

/// All of the budget that is free but a MiB is held by caches.
fn caches(budget: &Budget) -> Arc<Caches> {
    let caches = Arc::new(Caches::default());
    budget.add_reclaimer(ReclaimOrder::Pages, caches.clone());
    *caches.held.lock() = Some(budget.root().child("caches", "").try_reserve(budget.free() - MIB).unwrap());
    caches
}

#[test]
fn a_share_that_finds_no_memory_takes_caches_away_later_and_later_and_grows_when_there_is_some() {
    let (budget, arbiter, all) = opened(64 * MIB, 1);
    let caches = caches(&budget);
    let looks = |count: u64| {
        let before = caches.asked.load(Ordering::Relaxed);
        (0..count).for_each(|_| {
            all[1].ask(1000);
            arbiter.look();
        });
        caches.asked.load(Ordering::Relaxed) - before
    };
    assert!((3..=8).contains(&looks(64)), "the first 16 seconds");
    assert!(looks(1000) <= 1000 / u64::from(PAUSE_MAX) + 1);
    assert_eq!(arbiter.shares()[1], MIB);
    // Room for another one is there at the next look.
    drop(caches.held.lock().take());
    assert_eq!(looks(1), 0);
    assert!(arbiter.shares()[1] > 20 * MIB);
    check(&arbiter, &all);
}

#[test]
fn a_store_that_gives_way_ends_the_pause_of_others() {
    let (budget, arbiter, all) = opened(64 * MIB, 2);
    all[1].ask(1000);
    arbiter.look();
    let caches = caches(&budget);
    for _ in 0..40 {
        all[1..].iter().for_each(|one| one.ask(1000));
        arbiter.look();
    }
    assert_eq!(arbiter.shares()[2], MIB);
    // The first look after which it is not in use any more. It has not enough for what the other wants, and caches have the rest.
    caches.gives.store(true, Ordering::Relaxed);
    (0..3).for_each(|_| {
        all[2].ask(1000);
        arbiter.look();
    });
    assert_eq!(arbiter.shares()[1..], [MIB, 40 * MIB]);
    check(&arbiter, &all);
}
