//! Budget and accounts: handles to the tree of `tree.rs`.
//!
//! ```text
//!   try_reserve ─► the tree has room ──────────────────────────────────────────────► Reservation
//!        ▲             │ short
//!        │             ▼
//!        └──── cached pages yield ─► one asker after the other: still short? ─► sections yield, then idle floors
//! ```

use crate::held;
use crate::kernel::allocator_purge;
use crate::pressure::{Pressure, Yield, YieldOrder};
use crate::reservation::Reservation;
use crate::tree::{Node, Short, Tree};
use parking_lot::{Condvar, Mutex};
use ramekin_base::lock::about_to_wait;
use ramekin_base::{Error, Result, nonblocking};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The one number, and the tree below it.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) tree: Mutex<Tree>,
    pub(crate) released: Condvar,
    yielders: Mutex<Vec<(YieldOrder, Arc<dyn Yield>)>>,
    /// Serialises expensive reclaim (anything beyond dropping cached pages): one reclaim often frees enough for every waiter.
    turn: Mutex<()>,
    pub(crate) failing: Failing,
}

/// Lets one reservation fail, for tests of what happens then.
#[derive(Default)]
pub(crate) struct Failing {
    asked: AtomicU64,
    nth: AtomicU64,
}

impl Failing {
    pub(crate) fn check(&self) -> Result<()> {
        if self.asked.fetch_add(1, Ordering::Relaxed) + 1 == self.nth.load(Ordering::Relaxed) {
            return Err(Error::busy("a reservation that a test lets fail"));
        }
        Ok(())
    }
}

/// A named part of the budget. Clones are handles to the same account; the last one removes it.
pub struct Account {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                tree: Mutex::new(Tree::new(bytes)),
                released: Condvar::new(),
                yielders: Mutex::new(Vec::new()),
                turn: Mutex::new(()),
                failing: Failing::default(),
            }),
        }
    }

    /// The account of the whole process.
    pub fn root(&self) -> Account {
        self.shared.tree.lock().nodes[0].handles += 1;
        Account { shared: self.shared.clone(), index: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[0].limit
    }

    /// Bytes claimed now: in use, or held by a floor.
    pub fn reserved(&self) -> u64 {
        self.shared.tree.lock().nodes[0].used
    }

    /// Bytes that could be reserved now without asking anyone to yield.
    pub fn free(&self) -> u64 {
        self.shared.tree.lock().unclaimed()
    }

    /// Bytes that could be reserved when all have yielded who can: what is free, cached pages and sections, but no floor that
    /// is lent.
    pub fn room(&self) -> u64 {
        self.shared.tree.lock().room()
    }

    /// Bytes that nobody has asked for and that are held for the moment, as those are that the allocator keeps: whoever asks
    /// what there is room for in the long run counts them as free.
    pub fn passing(&self) -> u64 {
        self.shared.tree.lock().nodes.iter().filter(|node| node.passes && node.handles > 0).map(|node| node.own).sum()
    }

    pub fn peak(&self) -> u64 {
        self.shared.tree.lock().peak
    }

    /// Moves the budget. Below what is claimed, those who yield are asked first; returns the bytes
    /// by which the claims still pass the new limit (0: done).
    pub fn set_limit(&self, bytes: u64) -> u64 {
        self.shared.tree.lock().nodes[0].limit = bytes;
        let over = |tree: &mut Tree| match tree.nodes[0].used.saturating_sub(bytes) {
            0 => Ok(()),
            missing => Err(Short { index: 0, missing, firm: false }),
        };
        let short = self.shared.ease(YieldOrder::Residency, over);
        self.shared.released.notify_all();
        short.map_or_else(|short| short.missing, |()| 0)
    }

    pub fn pressure(&self) -> Pressure {
        let tree = self.shared.tree.lock();
        Pressure::of(tree.nodes[0].used, tree.nodes[0].limit)
    }

    /// Lets the `nth` reservation from now on fail as one does that waiting may help; 0: none. Returns how many there were.
    #[doc(hidden)]
    pub fn fail_nth_for_tests(&self, nth: u64) -> u64 {
        self.shared.failing.nth.store(nth, Ordering::Relaxed);
        self.shared.failing.asked.swap(0, Ordering::Relaxed)
    }

    /// Registers someone who can give bytes back when the budget is short.
    pub fn add_yielder(&self, order: YieldOrder, yielder: Arc<dyn Yield>) {
        let mut yielders = self.shared.yielders.lock();
        yielders.push((order, yielder));
        yielders.sort_by_key(|(order, _)| *order);
    }

    /// Bytes that the accounts hold themselves, all together: what floors keep and nobody uses is not among them.
    pub(crate) fn booked(&self) -> u64 {
        let tree = self.shared.tree.lock();
        tree.nodes.iter().skip(1).filter(|node| node.handles > 0).map(|node| node.own).sum()
    }

    /// How many accounts there may be, at most.
    pub(crate) fn accounts(&self) -> usize {
        self.shared.tree.lock().nodes.len()
    }

    /// Every account with its path, root first, parents before children.
    pub(crate) fn nodes(&self) -> Vec<(String, Node)> {
        let tree = self.shared.tree.lock();
        let live = |index: &usize| tree.nodes[*index].handles > 0;
        (0..tree.nodes.len()).filter(live).map(|index| (tree.path(index), tree.nodes[index].clone())).collect()
    }
}

/// Upper bound on waiting for the reclaim lock. A waiter may itself hold memory that the lock's owner waits for, so after this
/// it goes on without the lock.
const TURN_WAIT: Duration = Duration::from_millis(20);

/// So often those who yield are asked: what they gave may be taken by someone else in between.
const ROUNDS: usize = 4;

impl Shared {
    /// Adds `bytes` to an account, for who holds `handles` of it besides.
    pub(crate) fn take(&self, index: usize, bytes: u64, handles: usize) -> Result<()> {
        self.failing.check()?;
        // Mostly there is room: then the tree is locked once.
        let last = {
            let mut tree = self.tree.lock();
            match tree.add(index, bytes) {
                Ok(()) => {
                    tree.nodes[index].handles += handles;
                    return Ok(());
                }
                // Whoever is brief waits for others of his kind: what the allocator keeps is soon needed again.
                Err(short) if !short.can_be_eased() || short.firm && tree.nodes[index].brief => {
                    return Err(tree.error(&short, index, bytes));
                }
                Err(_) if tree.nodes[index].brief => YieldOrder::Idle,
                Err(_) => YieldOrder::Residency,
            }
        };
        self.take_from(index, bytes, handles, last)
    }

    /// `last` is who is asked last for it.
    pub(crate) fn take_from(&self, index: usize, bytes: u64, handles: usize, last: YieldOrder) -> Result<()> {
        let eased = self.ease(last, |tree| {
            tree.add(index, bytes)?;
            tree.nodes[index].handles += handles;
            Ok(())
        });
        eased.map_err(|short| self.tree.lock().error(&short, index, bytes))
    }

    /// Gives bytes back, and perhaps the handle that held them. What was in so many is free by now, but not with the kernel
    /// yet: whoever takes them next would be charged beside it.
    pub(crate) fn give(&self, index: usize, bytes: u64, is_last: bool) {
        let mut tree = self.tree.lock();
        if tree.is_large(index, bytes) {
            drop(tree);
            allocator_purge();
            tree = self.tree.lock();
        }
        tree.sub(index, bytes);
        if is_last {
            tree.drop_handle(index);
        }
        drop(tree);
        if bytes > 0 {
            self.released.notify_all();
        }
    }

    /// Repeats `attempt` as long as those who yield, up to `last` of them, give something for it.
    fn ease(&self, last: YieldOrder, mut attempt: impl FnMut(&mut Tree) -> Result<(), Short>) -> Result<(), Short> {
        for _ in 0..ROUNDS {
            let Err(mut short) = attempt(&mut self.tree.lock()) else { return Ok(()) };
            if !short.can_be_eased() {
                return Err(short);
            }
            // The list is copied so that a yielder may itself release reservations.
            let yielders = self.yielders.lock().clone();
            let mut given = 0;
            for (order, yielder) in yielders.into_iter().filter(|(order, _)| *order <= last) {
                if !short.is_eased_by(order) {
                    continue;
                }
                let is_costly = order > YieldOrder::Pages;
                if is_costly && nonblocking::is_set() {
                    return Err(short);
                }
                if is_costly {
                    about_to_wait("memory that others give back");
                }
                let _turn = if is_costly { self.turn.try_lock_for(TURN_WAIT) } else { None };
                if is_costly {
                    short = match attempt(&mut self.tree.lock()) {
                        Ok(()) => return Ok(()),
                        Err(short) if short.can_be_eased() => short,
                        Err(short) => return Err(short),
                    };
                }
                // What they give back is not what the job on this thread holds.
                let more = held::aside(|| yielder.give_back(short.missing));
                given += more;
                if more >= short.missing {
                    break;
                }
            }
            if given == 0 {
                return Err(short);
            }
        }
        attempt(&mut self.tree.lock())
    }
}

impl Account {
    /// A new account below this one. `formula` says in words what its bytes are made of.
    pub fn child(&self, name: &str, formula: &'static str) -> Account {
        let index = self.shared.tree.lock().add_child(self.index, name, formula);
        Account { shared: self.shared.clone(), index }
    }

    /// This account may never use more than `bytes`.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Account {
        self.set_limit(bytes);
        self
    }

    pub fn set_limit(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].limit = bytes;
        self.shared.released.notify_all();
    }

    /// Takes `bytes` from the parent for good: reserving up to them on this account cannot fail. Where the budget is
    /// short, those who yield are asked first; a floor that shrinks cannot fail.
    pub fn set_floor(&self, bytes: u64) -> Result<()> {
        if self.index == 0 {
            return Err(Error::bug("the budget itself has no floor"));
        }
        if bytes > self.shared.tree.lock().nodes[self.index].floor {
            self.shared.failing.check()?;
        }
        self.ease(bytes, YieldOrder::Residency, |tree| tree.set_floor(self.index, bytes))
    }

    /// Marks this account as one that gives back when others are short. In return it may borrow floors that their owners have lent.
    #[must_use]
    pub fn yielding(self) -> Account {
        let mut tree = self.shared.tree.lock();
        if !std::mem::replace(&mut tree.nodes[self.index].yields, true) {
            tree.yielding += tree.nodes[self.index].above_floor();
        }
        drop(tree);
        self
    }

    /// This account's reservations are held briefly, and so are those of accounts made below it from now on: they may come from
    /// floors that are idle.
    #[must_use]
    pub fn brief(self) -> Account {
        self.shared.tree.lock().make_brief(self.index);
        self
    }

    /// What is reserved here is given back bit by bit, and was in many small blocks: it counts together.
    #[must_use]
    pub fn scattered(self) -> Account {
        self.shared.tree.lock().nodes[self.index].scattered = Some(0);
        self
    }

    /// This account's floor is idle now and then, and is lent then to accounts that are brief too: who lends it is registered
    /// as [`YieldOrder::Idle`].
    #[must_use]
    pub fn idling(self) -> Account {
        self.shared.tree.lock().nodes[self.index].idles = true;
        self
    }

    /// What is reserved on this account stays: whoever needs it is told at once that waiting does not help.
    #[must_use]
    pub fn lasting(self) -> Account {
        self.shared.tree.lock().nodes[self.index].lasts = true;
        self
    }

    /// What is reserved on this account is there for the moment: see [`Budget::passing`].
    #[must_use]
    pub fn passing(self) -> Account {
        self.shared.tree.lock().nodes[self.index].passes = true;
        self
    }

    /// Lends up to `bytes` of the floor, as far as it is not in use, to accounts that yield, until it is set again; where the
    /// floor idles, to those that are brief too. Returns how many.
    pub fn lend_floor(&self, bytes: u64) -> u64 {
        let lent = self.shared.tree.lock().lend_floor(self.index, bytes);
        self.shared.released.notify_all();
        lent
    }

    /// Gives up to `bytes` of the floor to another account, as far as they are not in use: its floor covers that much more than
    /// it has, and nobody else can take it in between. What is lent of the floor is given too, unless somebody has it just
    /// then. Returns how many.
    pub fn give_floor_to(&self, bytes: u64, other: &Account) -> u64 {
        self.shared.tree.lock().give_floor_to(self.index, bytes, other.index)
    }

    /// Raises the floor towards `bytes` as far as there is room, without asking anyone to yield. A floor that is lent to those
    /// who yield stays so: nobody else can take it meanwhile, and it comes back as a whole.
    pub fn raise_floor(&self, bytes: u64) {
        self.shared.tree.lock().raise_floor(self.index, bytes);
    }

    /// Bytes that are in use here, held by the floor, or lent from it: nobody else can reserve these for long.
    pub fn secured(&self) -> u64 {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        node.used.max(node.floor + node.lent)
    }

    /// Bytes that are in use here, or held by the floor.
    pub fn claimed(&self) -> u64 {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        node.claim(node.used)
    }

    /// States what a formula over counts alone says that this account should hold.
    pub fn predict(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].predicted = Some(bytes);
    }

    /// States how much this account would use if the budget had no end.
    pub fn want(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].wanted = Some(bytes);
    }

    /// Bytes in use by this account and those below it.
    pub fn used(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].used
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].limit
    }

    /// Bytes that its own limit leaves; `None` without a limit.
    pub fn left(&self) -> Option<u64> {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        (node.limit < u64::MAX).then(|| node.limit.saturating_sub(node.used))
    }

    pub fn path(&self) -> String {
        self.shared.tree.lock().path(self.index)
    }

    /// Reserves without asking anyone to yield.
    pub fn try_reserve_calm(&self, bytes: u64) -> Result<Reservation> {
        Reservation::calm(&self.shared, self.index, bytes)
    }

    /// Reserves `bytes`; where the budget is short, those who yield are asked first.
    /// `Busy` if waiting can help, `NoMemory` if it cannot.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation> {
        Reservation::eased(&self.shared, self.index, bytes)
    }

    fn ease(&self, bytes: u64, last: YieldOrder, attempt: impl FnMut(&mut Tree) -> Result<(), Short>) -> Result<()> {
        let eased = self.shared.ease(last, attempt);
        eased.map_err(|short| self.shared.tree.lock().error(&short, self.index, bytes))
    }

    /// Blocks until something is released anywhere in the tree, or `at_most` has passed.
    pub fn wait_for_release(&self, at_most: Duration) {
        let mut tree = self.shared.tree.lock();
        self.shared.released.wait_for(&mut tree, at_most);
    }
}

impl Clone for Account {
    fn clone(&self) -> Self {
        self.shared.tree.lock().nodes[self.index].handles += 1;
        Self { shared: self.shared.clone(), index: self.index }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shared.tree.lock().drop_handle(self.index);
    }
}

/// For tests: gives all that it holds to who asks first.
#[cfg(test)]
pub(crate) struct Given(Mutex<Option<Reservation>>);

#[cfg(test)]
impl Given {
    pub(crate) fn once(held: Reservation) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(held))))
    }
}

#[cfg(test)]
impl Yield for Given {
    fn give_back(&self, _: u64) -> u64 {
        self.0.lock().take().map_or(0, |held| held.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Kind, Rng};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_reservation_moves_even_where_nothing_is_free() {
        let budget = Budget::new(100);
        let (a, b) = (budget.root().child("a", ""), budget.root().child("b", "").child("c", ""));
        let small = budget.root().child("small", "").with_limit(10);
        a.set_floor(20).unwrap();
        let mut held = a.try_reserve(100).unwrap();
        assert_eq!(held.hand_over(100, &b).unwrap_err().kind(), Kind::NoMemory, "the floor of `a` is held besides");
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
        let [merge, kept, cached, names] =
            ["merge", "kept", "cached", "names"].map(|name| budget.root().child(name, ""));
        let cached = cached.yielding();
        merge.set_floor(40).unwrap();
        merge.lend_floor(40);
        let held = [names.try_reserve(30).unwrap(), cached.try_reserve(40).unwrap()];
        budget.add_yielder(YieldOrder::Allocator, Given::once(kept.try_reserve(20).unwrap()));
        assert!(names.try_reserve(31).is_err());
        let more = names.try_reserve(30).unwrap();
        assert_eq!((held[1].bytes(), more.bytes(), budget.free()), (40, 30, 0));
    }

    #[test]
    fn an_idle_floor_goes_to_what_is_brief_and_is_raised_again_bit_by_bit() {
        struct Idle(Account);
        impl Yield for Idle {
            fn give_back(&self, wanted: u64) -> u64 {
                self.0.lend_floor(wanted)
            }
        }
        let budget = Budget::new(100);
        let [merge, queries, bodies] = ["merge", "queries", "bodies"].map(|name| budget.root().child(name, ""));
        let (bodies, merge) = (bodies.brief(), merge.idling());
        merge.set_floor(60).unwrap();
        let working = merge.try_reserve(10).unwrap();
        budget.add_yielder(YieldOrder::Idle, Arc::new(Idle(merge.clone())));
        let query = queries.try_reserve(40).unwrap();
        assert_eq!(queries.try_reserve(1).unwrap_err().kind(), Kind::Busy, "it is not brief");
        // As much as is wanted, and nothing of what is in use.
        let mut body = bodies.try_reserve(20).unwrap();
        assert_eq!((merge.claimed(), merge.used()), (40, 10));
        body.grow(30).unwrap();
        assert_eq!(bodies.try_reserve(1).unwrap_err().kind(), Kind::Busy);
        assert_eq!((merge.claimed(), budget.reserved()), (10, 100));
        // To whom it may be given it is not there for good, so that waiting can help; to others it is.
        assert_eq!(queries.try_reserve(90).unwrap_err().kind(), Kind::NoMemory);
        assert_eq!(bodies.try_reserve(90).unwrap_err().kind(), Kind::Busy);
        // What a brief one lets go of is still lent.
        body.shrink(10);
        assert_eq!(queries.try_reserve(1).unwrap_err().kind(), Kind::Busy);
        body.grow(10).unwrap();
        for (less, claimed) in [(0, 10), (15, 25), (5, 30)] {
            body.shrink(less);
            merge.raise_floor(60);
            assert_eq!(merge.claimed(), claimed);
        }
        drop((query, body));
        merge.raise_floor(60);
        assert_eq!((merge.claimed(), budget.reserved()), (60, 60));
        drop(working);
        assert_eq!(budget.reserved(), 60);
    }

    #[test]
    fn what_is_booked_from_pages_takes_all_that_they_leave() {
        let budget = Budget::new(100);
        let cached = budget.root().child("pages", "").try_reserve(30).unwrap();
        budget.add_yielder(YieldOrder::Pages, Given::once(cached));
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
        let pages = budget.root().child("pages", "").yielding();
        pages.set_floor(10).unwrap();
        seal.set_floor(40).unwrap();
        assert_eq!(seal.lend_floor(u64::MAX), 40);
        assert_eq!(budget.reserved(), 10);
        let mut held = pages.try_reserve(70).unwrap();
        seal.raise_floor(40);
        // Others may have what is left, and what yields, but not what is lent.
        let most = crowd.try_reserve(30).unwrap();
        assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy);
        held.shrink(60);
        let more = crowd.try_reserve(20).unwrap();
        assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy, "10 of the floor of `pages`, 40 are lent");
        assert_eq!(crowd.try_reserve(91).unwrap_err().kind(), Kind::NoMemory);
        let again = pages.try_reserve(40).unwrap();
        assert!(seal.set_floor(40).is_err(), "nobody was asked to yield");
        drop(again);
        seal.set_floor(40).unwrap();
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
    fn a_floor_that_is_given_to_somebody_is_nobody_elses() {
        let budget = Budget::new(100);
        let [seal, segments, other] = ["seal", "segments", "other"].map(|name| budget.root().child(name, ""));
        seal.set_floor(40).unwrap();
        let (_held, _theirs) = (segments.try_reserve(10).unwrap(), other.try_reserve(50).unwrap());
        assert!(segments.try_reserve(1).is_err());
        assert_eq!(seal.give_floor_to(15, &segments), 15);
        assert!(other.try_reserve(1).is_err());
        let _opened = segments.try_reserve(15).unwrap();
        assert!(segments.try_reserve(1).is_err());
        segments.set_floor(0).unwrap();
        assert_eq!((budget.reserved(), seal.secured()), (100, 25));
        // What is lent is given as well, but for what others have of it.
        let merge = budget.root().child("merge", "").idling();
        drop((_theirs, _opened));
        merge.set_floor(40).unwrap();
        assert_eq!(merge.lend_floor(30), 30);
        assert_eq!((merge.give_floor_to(35, &segments), segments.claimed(), merge.secured()), (35, 45, 5));
        segments.set_floor(0).unwrap();
        merge.set_floor(40).unwrap();
        assert_eq!(merge.lend_floor(40), 40);
        let _body = budget.root().child("bodies", "").brief().try_reserve(60).unwrap();
        assert_eq!((merge.give_floor_to(35, &segments), segments.claimed(), merge.secured()), (0, 10, 40));
    }

    #[test]
    fn a_floor_is_given_or_stays_where_the_budget_has_shrunk() {
        let budget = Budget::new(100);
        let [seal, segments] = ["seal", "segments"].map(|name| budget.root().child(name, ""));
        seal.set_floor(40).unwrap();
        let other = budget.root().child("other", "").try_reserve(60).unwrap();
        assert_eq!(budget.set_limit(50), 50);
        assert_eq!((seal.give_floor_to(15, &segments), seal.claimed(), segments.claimed()), (15, 25, 15));
        // Neither is there room for what is lent and others hold, nor is anything lost for it.
        segments.set_floor(0).unwrap();
        drop(other);
        budget.set_limit(100);
        let merge = budget.root().child("merge", "").idling();
        merge.set_floor(40).unwrap();
        assert_eq!(merge.lend_floor(20), 20);
        let _body = budget.root().child("bodies", "").brief().try_reserve(55).unwrap();
        budget.set_limit(50);
        assert_eq!((merge.give_floor_to(35, &segments), merge.claimed(), merge.secured()), (0, 20, 40));
        assert_eq!((segments.claimed(), budget.reserved()), (0, 100));
    }

    #[test]
    fn what_may_not_move_stays_with_who_had_it() {
        let budget = Budget::new(100);
        let [seal, from, to] = ["seal", "from", "to"].map(|name| budget.root().child(name, ""));
        seal.set_floor(40).unwrap();
        let mut held = from.try_reserve(60).unwrap();
        seal.lend_floor(40);
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
        let (merge, small) = (merge.idling(), bodies.brief().child("small", ""));
        merge.set_floor(60).unwrap();
        merge.lend_floor(60);
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
        // What stands below one's own floor is others' as well.
        asks.set_floor(20).unwrap();
        let small = asks.child("small", "");
        small.set_floor(10).unwrap();
        assert_eq!(asks.try_reserve(61).map(|_| ()).unwrap_err().kind(), Kind::NoMemory);
    }

    #[test]
    fn waiting_does_not_help_against_floors() {
        let budget = Budget::new(100);
        let (seal, bodies) = (budget.root().child("seal", ""), budget.root().child("bodies", ""));
        let queries = budget.root().child("store", "").child("queries", "");
        seal.set_floor(30).unwrap();
        bodies.set_floor(10).unwrap();
        let held = queries.try_reserve(20).unwrap();
        // 100 - 30 could be free for bodies, whose own floor counts for them.
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
    fn a_floor_is_taken_once_and_never_fails_below_it() {
        let budget = Budget::new(100);
        let (build, rest) = (budget.root().child("build", ""), budget.root().child("rest", ""));
        build.set_floor(40).unwrap();
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
        impl Yield for Section {
            fn give_back(&self, _: u64) -> u64 {
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
        budget.add_yielder(YieldOrder::Residency, section.clone());
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
        impl Yield for Holder {
            fn give_back(&self, _: u64) -> u64 {
                self.0.lock().pop().map_or(0, |held| held.bytes())
            }
        }
        let budget = Budget::new(100);
        let account = budget.root().child("cache", "");
        let held = (0..10).map(|_| account.try_reserve(10).unwrap()).collect();
        let holder = Arc::new(Holder(Mutex::new(held)));
        budget.add_yielder(YieldOrder::Pages, holder.clone());
        let _mine = budget.root().child("mine", "").try_reserve(35).unwrap();
        assert_eq!(holder.0.lock().len(), 6);
    }

    /// Any sequence of reservations, floors and drops leaves the sums right.
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
                        let _ = accounts.last().unwrap().set_floor(rng.below(500));
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
        let pages = budget.root().child("pages", "").yielding().try_reserve(200 << 20).unwrap();
        PURGED.store(false, Ordering::Relaxed);
        drop(pages);
        assert!(!PURGED.load(Ordering::Relaxed));
    }
}
