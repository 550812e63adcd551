//! What accounts promise each other, and that the tree always adds up.

use super::*;
use crate::budget::Budget;
use crate::pressure::Reclaim;
use parking_lot::Mutex;
use ramekin_base::{Kind, Rng};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For tests: gives all that it holds to who asks first.
pub(crate) struct Given(Mutex<Option<Reservation>>);

impl Given {
    pub(crate) fn once(held: Reservation) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(held))))
    }
}

impl Reclaim for Given {
    fn reclaim(&self, _: u64) -> u64 {
        self.0.lock().take().map_or(0, |held| held.bytes())
    }
}

#[test]
fn a_reservation_moves_even_where_nothing_is_free() {
    let budget = Budget::new(100);
    let (a, b) = (budget.root().child("a", ""), budget.root().child("b", "").child("c", ""));
    let small = budget.root().child("small", "").with_limit(10);
    a.set_min_reservation(20).unwrap();
    let mut held = a.try_reserve(100).unwrap();
    assert_eq!(held.hand_over(100, &b).unwrap_err().kind(), Kind::NoMemory, "the minimum of `a` is held besides");
    assert_eq!((a.used(), b.used(), budget.reserved()), (100, 0, 100));
    let mut moved = held.hand_over(80, &b).unwrap();
    assert_eq!((a.used(), b.used(), held.bytes(), moved.bytes(), budget.reserved()), (20, 80, 20, 80, 100));
    // The budget shrinks below what is held: it may still move.
    budget.set_limit(50);
    let back = moved.hand_over(80, &a).unwrap();
    assert_eq!((a.used(), b.used(), budget.reserved()), (100, 0, 100));
    assert!(held.hand_over(20, &small).is_err());
    drop((held, moved, back));
    assert_eq!(budget.reserved(), 20);
}

#[test]
fn what_the_allocator_keeps_goes_to_who_may_not_have_what_is_lent() {
    let budget = Budget::new(100);
    let [merge, kept, cached, names] = ["merge", "kept", "cached", "names"].map(|name| budget.root().child(name, ""));
    let cached = cached.reclaimable();
    merge.set_min_reservation(40).unwrap();
    merge.lend_min_reservation(40);
    let held = [names.try_reserve(30).unwrap(), cached.try_reserve(40).unwrap()];
    budget.add_reclaimer(ReclaimOrder::Allocator, Given::once(kept.try_reserve(20).unwrap()));
    assert!(names.try_reserve(31).is_err());
    let more = names.try_reserve(30).unwrap();
    assert_eq!((held[1].bytes(), more.bytes(), budget.free()), (40, 30, 0));
}

#[test]
fn an_idle_minimum_goes_to_transient_accounts_and_is_raised_again_bit_by_bit() {
    struct Idle(Account);
    impl Reclaim for Idle {
        fn reclaim(&self, wanted: u64) -> u64 {
            self.0.lend_min_reservation(wanted)
        }
    }
    let budget = Budget::new(100);
    let [merge, queries, bodies] = ["merge", "queries", "bodies"].map(|name| budget.root().child(name, ""));
    let (bodies, merge) = (bodies.transient(), merge.idling());
    merge.set_min_reservation(60).unwrap();
    let working = merge.try_reserve(10).unwrap();
    budget.add_reclaimer(ReclaimOrder::Idle, Arc::new(Idle(merge.clone())));
    let query = queries.try_reserve(40).unwrap();
    assert_eq!(queries.try_reserve(1).unwrap_err().kind(), Kind::Busy, "it is not transient");
    // As much as is wanted, and nothing of what is in use.
    let mut body = bodies.try_reserve(20).unwrap();
    assert_eq!((merge.claimed(), merge.used()), (40, 10));
    body.grow(30).unwrap();
    assert_eq!(bodies.try_reserve(1).unwrap_err().kind(), Kind::Busy);
    assert_eq!((merge.claimed(), budget.reserved()), (10, 100));
    // To whom it may be given it is not there for good, so that waiting can help; to others it is.
    assert_eq!(queries.try_reserve(90).unwrap_err().kind(), Kind::NoMemory);
    assert_eq!(bodies.try_reserve(90).unwrap_err().kind(), Kind::Busy);
    // What a transient account releases is still lent.
    body.shrink(10);
    assert_eq!(queries.try_reserve(1).unwrap_err().kind(), Kind::Busy);
    body.grow(10).unwrap();
    for (less, claimed) in [(0, 10), (15, 25), (5, 30)] {
        body.shrink(less);
        merge.raise_min_reservation(60);
        assert_eq!(merge.claimed(), claimed);
    }
    drop((query, body));
    merge.raise_min_reservation(60);
    assert_eq!((merge.claimed(), budget.reserved()), (60, 60));
    drop(working);
    assert_eq!(budget.reserved(), 60);
}

#[test]
fn what_is_booked_from_pages_takes_all_that_they_leave() {
    let budget = Budget::new(100);
    let cached = budget.root().child("pages", "").try_reserve(30).unwrap();
    budget.add_reclaimer(ReclaimOrder::Pages, Given::once(cached));
    let _other = budget.root().child("other", "").try_reserve(50).unwrap();
    let mut kept = budget.root().child("kept", "").try_reserve(0).unwrap();
    kept.grow_from_pages(15);
    assert_eq!((kept.bytes(), budget.reserved()), (15, 95));
    kept.grow_from_pages(50);
    assert_eq!((kept.bytes(), budget.reserved()), (50, 100));
}

#[test]
fn what_is_lent_comes_back_whatever_others_hold() {
    let budget = Budget::new(100);
    let (seal, crowd) = (budget.root().child("seal", ""), budget.root().child("crowd", ""));
    let pages = budget.root().child("pages", "").reclaimable();
    pages.set_min_reservation(10).unwrap();
    seal.set_min_reservation(40).unwrap();
    assert_eq!(seal.lend_min_reservation(u64::MAX), 40);
    assert_eq!(budget.reserved(), 10);
    let mut held = pages.try_reserve(70).unwrap();
    seal.raise_min_reservation(40);
    // Others may have what is left, and what is reclaimable, but not what is lent.
    let most = crowd.try_reserve(30).unwrap();
    assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy);
    held.shrink(60);
    let more = crowd.try_reserve(20).unwrap();
    assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy, "10 of the minimum of `pages`, 40 are lent");
    assert_eq!(crowd.try_reserve(91).unwrap_err().kind(), Kind::NoMemory);
    let again = pages.try_reserve(40).unwrap();
    assert!(seal.set_min_reservation(40).is_err(), "nothing was reclaimed");
    drop(again);
    seal.set_min_reservation(40).unwrap();
    drop((most, more));
    assert!(crowd.try_reserve(50).is_ok());
}

#[test]
fn a_parents_limit_holds_for_its_children() {
    let budget = Budget::new(100);
    let a = budget.root().child("a", "").with_limit(60);
    let (b, c) = (a.child("b", ""), a.child("c", ""));
    let held = b.try_reserve(50).unwrap();
    assert_eq!(c.try_reserve(20).unwrap_err().kind(), Kind::Busy);
    assert_eq!(c.try_reserve(61).unwrap_err().kind(), Kind::NoMemory);
    drop(held);
    assert_eq!(c.try_reserve(60).unwrap().bytes(), 60);
    assert_eq!(budget.reserved(), 0);
}

#[test]
fn a_minimum_that_is_given_to_somebody_is_nobody_elses() {
    let budget = Budget::new(100);
    let [seal, segments, other] = ["seal", "segments", "other"].map(|name| budget.root().child(name, ""));
    seal.set_min_reservation(40).unwrap();
    let (_held, _theirs) = (segments.try_reserve(10).unwrap(), other.try_reserve(50).unwrap());
    assert!(segments.try_reserve(1).is_err());
    assert_eq!(seal.give_min_reservation_to(15, &segments), 15);
    assert!(other.try_reserve(1).is_err());
    let _opened = segments.try_reserve(15).unwrap();
    assert!(segments.try_reserve(1).is_err());
    segments.set_min_reservation(0).unwrap();
    assert_eq!((budget.reserved(), seal.secured()), (100, 25));
    // What is lent is given as well, but for what others have of it.
    let merge = budget.root().child("merge", "").idling();
    drop((_theirs, _opened));
    merge.set_min_reservation(40).unwrap();
    assert_eq!(merge.lend_min_reservation(30), 30);
    assert_eq!((merge.give_min_reservation_to(35, &segments), segments.claimed(), merge.secured()), (35, 45, 5));
    segments.set_min_reservation(0).unwrap();
    merge.set_min_reservation(40).unwrap();
    assert_eq!(merge.lend_min_reservation(40), 40);
    let _body = budget.root().child("bodies", "").transient().try_reserve(60).unwrap();
    assert_eq!((merge.give_min_reservation_to(35, &segments), segments.claimed(), merge.secured()), (0, 10, 40));
}

#[test]
fn a_minimum_is_given_or_stays_where_the_budget_has_shrunk() {
    let budget = Budget::new(100);
    let [seal, segments] = ["seal", "segments"].map(|name| budget.root().child(name, ""));
    seal.set_min_reservation(40).unwrap();
    let other = budget.root().child("other", "").try_reserve(60).unwrap();
    assert_eq!(budget.set_limit(50), 50);
    assert_eq!((seal.give_min_reservation_to(15, &segments), seal.claimed(), segments.claimed()), (15, 25, 15));
    // There is no room for what is lent and others hold, and nothing of the rest is lost for it.
    segments.set_min_reservation(0).unwrap();
    drop(other);
    budget.set_limit(100);
    let merge = budget.root().child("merge", "").idling();
    merge.set_min_reservation(40).unwrap();
    assert_eq!(merge.lend_min_reservation(20), 20);
    let _body = budget.root().child("bodies", "").transient().try_reserve(55).unwrap();
    budget.set_limit(50);
    assert_eq!((merge.give_min_reservation_to(35, &segments), merge.claimed(), merge.secured()), (20, 0, 20));
    assert_eq!((segments.claimed(), budget.reserved()), (20, 100));
}

#[test]
fn what_somebody_has_lent_does_not_stand_between_others() {
    let budget = Budget::new(100);
    let [seal, segments] = ["seal", "segments"].map(|name| budget.root().child(name, ""));
    let merge = budget.root().child("merge", "").idling();
    merge.set_min_reservation(40).unwrap();
    seal.set_min_reservation(30).unwrap();
    assert_eq!(merge.lend_min_reservation(40), 40);
    let _other = budget.root().child("other", "").try_reserve(30).unwrap();
    budget.set_limit(80);
    assert!(segments.try_reserve(1).is_err(), "that is lent to those who give it back soon");
    assert_eq!((seal.give_min_reservation_to(15, &segments), seal.claimed(), segments.claimed()), (15, 15, 15));
    let opened = segments.try_reserve(15).unwrap();
    drop(opened);
    assert_eq!((segments.give_min_reservation_to(15, &seal), seal.claimed(), segments.claimed()), (15, 30, 0));
}

#[test]
fn what_may_not_move_stays_with_who_had_it() {
    let budget = Budget::new(100);
    let [seal, from, to] = ["seal", "from", "to"].map(|name| budget.root().child(name, ""));
    seal.set_min_reservation(40).unwrap();
    let mut held = from.try_reserve(60).unwrap();
    seal.lend_min_reservation(40);
    // What is lent is beyond the budget now: nobody may have any more, who had it neither.
    budget.set_limit(50);
    assert!(held.hand_over(60, &to).is_err());
    assert_eq!((held.bytes(), from.used(), to.used(), budget.reserved()), (60, 60, 0, 60));
    drop(held);
    assert_eq!((from.used(), budget.reserved()), (0, 0));
}

#[test]
fn what_is_below_a_brief_account_is_brief() {
    let budget = Budget::new(100);
    let [merge, bodies, other] = ["merge", "bodies", "other"].map(|name| budget.root().child(name, ""));
    let (merge, small) = (merge.idling(), bodies.transient().child("small", ""));
    merge.set_min_reservation(60).unwrap();
    merge.lend_min_reservation(60);
    assert!(other.try_reserve(50).is_err());
    assert!(small.try_reserve(50).is_ok());
}

#[test]
fn what_lasts_is_not_waited_for() {
    let budget = Budget::new(100);
    let [log, other, asks] = ["log", "other", "asks"].map(|name| budget.root().child(name, ""));
    let log = log.lasting();
    let (_log, _other) = (log.try_reserve(30).unwrap(), other.try_reserve(30).unwrap());
    assert_eq!(asks.try_reserve(70).map(|_| ()).unwrap_err().kind(), Kind::Busy);
    let error = asks.try_reserve(71).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), Kind::NoMemory);
    assert!(error.message().contains("at most 70"), "{error}");
    // What stands below one's own minimum is others' as well.
    asks.set_min_reservation(20).unwrap();
    let small = asks.child("small", "");
    small.set_min_reservation(10).unwrap();
    assert_eq!(asks.try_reserve(61).map(|_| ()).unwrap_err().kind(), Kind::NoMemory);
}

#[test]
fn waiting_does_not_help_against_minimum_reservations() {
    let budget = Budget::new(100);
    let (seal, bodies) = (budget.root().child("seal", ""), budget.root().child("bodies", ""));
    let queries = budget.root().child("store", "").child("queries", "");
    seal.set_min_reservation(30).unwrap();
    bodies.set_min_reservation(10).unwrap();
    let held = queries.try_reserve(20).unwrap();
    // 100 - 30 could be free for bodies, whose own minimum counts for them.
    assert_eq!(bodies.try_reserve(70).unwrap_err().kind(), Kind::Busy);
    assert_eq!(bodies.try_reserve(71).unwrap_err().kind(), Kind::NoMemory);
    assert_eq!(queries.try_reserve(61).unwrap_err().kind(), Kind::NoMemory);
    drop(held);
    assert_eq!(bodies.try_reserve(70).unwrap().bytes(), 70);
}

#[test]
fn a_reservation_splits_and_joins() {
    let budget = Budget::new(100);
    let mut whole = budget.root().try_reserve(60).unwrap();
    let part = whole.split(25);
    assert_eq!((whole.bytes(), part.bytes(), budget.reserved()), (35, 25, 60));
    assert_eq!(whole.split(99).bytes(), 35);
    assert_eq!(budget.reserved(), 25);
    whole.join(part).unwrap();
    assert_eq!((whole.bytes(), budget.reserved()), (25, 25));
    drop(whole);
    assert_eq!(budget.reserved(), 0);
}

#[test]
fn a_minimum_is_taken_once_and_never_fails_below_it() {
    let budget = Budget::new(100);
    let (build, rest) = (budget.root().child("build", ""), budget.root().child("rest", ""));
    build.set_min_reservation(40).unwrap();
    let all = rest.try_reserve(60).unwrap();
    assert!(rest.try_reserve(1).is_err());
    let inside = build.try_reserve(40).unwrap();
    assert!(build.try_reserve(1).is_err());
    drop(all);
    let above = build.try_reserve(10).unwrap();
    assert_eq!(budget.reserved(), 50);
    drop((inside, above));
    assert_eq!(budget.reserved(), 40);
    drop(build);
    assert_eq!(budget.reserved(), 0);
}

#[test]
fn what_one_is_given_is_for_all_who_wait() {
    struct Section(Mutex<Vec<Reservation>>, AtomicUsize);
    impl Reclaim for Section {
        fn reclaim(&self, _: u64) -> u64 {
            self.1.fetch_add(1, Ordering::SeqCst);
            // Others come meanwhile.
            std::thread::yield_now();
            self.0.lock().pop().map_or(0, |given| given.bytes())
        }
    }
    let budget = Budget::new(200);
    let sections = budget.root().child("sections", "");
    let held = (0..2).map(|_| sections.try_reserve(100).unwrap()).collect();
    let section = Arc::new(Section(Mutex::new(held), AtomicUsize::new(0)));
    budget.add_reclaimer(ReclaimOrder::Residency, section.clone());
    let (queries, start) = (budget.root().child("queries", ""), Barrier::new(8));
    let taken: Vec<Reservation> = std::thread::scope(|scope| {
        let ask = || {
            start.wait();
            queries.try_reserve(10).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((taken.len(), section.1.load(Ordering::SeqCst), sections.used()), (8, 1, 100));
}

#[test]
fn yielders_are_asked_in_order() {
    struct Holder(Mutex<Vec<Reservation>>);
    impl Reclaim for Holder {
        fn reclaim(&self, _: u64) -> u64 {
            self.0.lock().pop().map_or(0, |held| held.bytes())
        }
    }
    let budget = Budget::new(100);
    let account = budget.root().child("cache", "");
    let held = (0..10).map(|_| account.try_reserve(10).unwrap()).collect();
    let holder = Arc::new(Holder(Mutex::new(held)));
    budget.add_reclaimer(ReclaimOrder::Pages, holder.clone());
    let _mine = budget.root().child("mine", "").try_reserve(35).unwrap();
    assert_eq!(holder.0.lock().len(), 6);
}

/// Any sequence of reservations, minimum reservations and drops leaves the sums right.
#[test]
fn the_tree_always_adds_up() {
    let mut rng = Rng::new(7);
    for _ in 0..200 {
        let budget = Budget::new(10_000);
        let mut accounts = vec![budget.root()];
        let mut held: Vec<Reservation> = Vec::new();
        for _ in 0..200 {
            let account = accounts[rng.below(accounts.len() as u64) as usize].clone();
            match rng.below(6) {
                0 => accounts.push(account.child("x", "")),
                1 => {
                    let _ = accounts.last().unwrap().set_min_reservation(rng.below(500));
                }
                2 if !held.is_empty() => drop(held.swap_remove(rng.below(held.len() as u64) as usize)),
                _ => held.extend(account.try_reserve(rng.below(900)).ok()),
            }
            let own: u64 = held.iter().map(Reservation::bytes).sum();
            assert!(budget.reserved() >= own && budget.reserved() <= 10_000);
        }
        held.clear();
        accounts.clear();
        assert_eq!(budget.reserved(), 0);
    }
}

#[test]
fn what_was_in_much_memory_goes_to_the_kernel_before_others_may_have_it() {
    use std::sync::atomic::AtomicBool;
    static PURGED: AtomicBool = AtomicBool::new(false);
    let purge = || PURGED.store(true, Ordering::Relaxed);
    crate::set_allocator(crate::Allocator { resident: || None, decay: || {}, purge, at_once: |_| {} });
    let budget = Budget::new(256 << 20);
    for (bytes, purged) in [(256 << 10, false), (4 << 20, false), (8 << 20, true), (200 << 20, true)] {
        let held = budget.root().try_reserve(bytes).unwrap();
        PURGED.store(false, Ordering::Relaxed);
        drop(held);
        assert_eq!(PURGED.load(Ordering::Relaxed), purged, "{bytes}");
    }
    // Many small ones are as much as a large one where it is said so.
    for (account, purged) in [(budget.root(), 0), (budget.root().child("bodies", "").scattered(), 2)] {
        let held: Vec<_> = (0..33).map(|_| account.try_reserve(512 << 10).unwrap()).collect();
        let mut times = 0;
        for one in held {
            PURGED.store(false, Ordering::Relaxed);
            drop(one);
            times += usize::from(PURGED.load(Ordering::Relaxed));
        }
        assert_eq!(times, purged);
    }
    // Pages are not the allocator's.
    let pages = budget.root().child("pages", "").reclaimable().try_reserve(200 << 20).unwrap();
    PURGED.store(false, Ordering::Relaxed);
    drop(pages);
    assert!(!PURGED.load(Ordering::Relaxed));
}

#[test]
fn whoever_is_short_of_what_a_store_gives_back_one_day_may_wait() {
    let budget = Budget::new(100);
    let (other, store) = (budget.root().child("other", ""), budget.root().child("store", ""));
    let merge = store.child("merge", "");
    merge.set_min_reservation(60).unwrap();
    assert_eq!(other.try_reserve(50).unwrap_err().kind(), Kind::NoMemory);
    let store = store.movable();
    assert_eq!(other.try_reserve(50).unwrap_err().kind(), Kind::Busy);
    assert_eq!(store.try_reserve(50).unwrap_err().kind(), Kind::Busy);
    assert_eq!(other.try_reserve(101).unwrap_err().kind(), Kind::NoMemory);
}
