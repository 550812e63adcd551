//! Locks that have a place in one order, and that know whether the disk may be waited for under them.
//!
//! ```text
//!   thread: lock(change 50) ─► lock(growing 60) ─► lock(change 50)      panics: 50 is not above 60
//!                        └──► disk.read                                 panics: `change` is not held across I/O
//! ```
//!
//! Builds with debug assertions keep the ranks that a thread holds and check both; others keep nothing.

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The place of a lock: a thread takes locks in ascending order only.
#[derive(Debug)]
#[cfg_attr(not(debug_assertions), allow(dead_code, reason = "looked at where debug assertions are on"))]
pub struct Rank {
    order: u8,
    name: &'static str,
    may_wait: bool,
}

impl Rank {
    /// A lock that is held for steps in memory: whoever holds it neither touches the disk nor waits for memory.
    pub const fn short(order: u8, name: &'static str) -> Self {
        Self { order, name, may_wait: false }
    }

    /// A lock that is held across long work, such as reads and writes of the disk.
    pub const fn long(order: u8, name: &'static str) -> Self {
        Self { order, name, may_wait: true }
    }
}

/// A lock with its rank.
pub struct Ranked<L> {
    rank: &'static Rank,
    lock: L,
}

/// A held lock.
pub struct Guard<G> {
    // The lock goes before the note that it is held.
    guard: G,
    _held: Held,
}

impl<T> Ranked<Mutex<T>> {
    pub const fn mutex(rank: &'static Rank, value: T) -> Self {
        Self { rank, lock: Mutex::new(value) }
    }

    pub fn lock(&self) -> Guard<MutexGuard<'_, T>> {
        let held = Held::in_order(self.rank);
        Guard { guard: self.lock.lock(), _held: held }
    }

    /// Waits for nobody, so it may be asked out of order.
    pub fn try_lock(&self) -> Option<Guard<MutexGuard<'_, T>>> {
        Some(Guard { guard: self.lock.try_lock()?, _held: Held::any(self.rank) })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T> Ranked<RwLock<T>> {
    pub const fn rw(rank: &'static Rank, value: T) -> Self {
        Self { rank, lock: RwLock::new(value) }
    }

    pub fn read(&self) -> Guard<RwLockReadGuard<'_, T>> {
        let held = Held::in_order(self.rank);
        Guard { guard: self.lock.read(), _held: held }
    }

    pub fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    pub fn write(&self) -> Guard<RwLockWriteGuard<'_, T>> {
        let held = Held::in_order(self.rank);
        Guard { guard: self.lock.write(), _held: held }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T> Guard<RwLockReadGuard<'_, T>> {
    /// Lets a writer that waits go first.
    pub fn bump(&mut self) {
        RwLockReadGuard::bump(&mut self.guard);
    }
}

impl<T> Guard<MutexGuard<'_, T>> {
    /// Lets the lock go until `condition` is notified, or `at_most` is over.
    pub fn wait_for(&mut self, condition: &Condvar, at_most: Duration) {
        condition.wait_for(&mut self.guard, at_most);
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The note that this thread holds a lock.
struct Held {
    #[cfg(debug_assertions)]
    rank: &'static Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<&'static Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
impl Held {
    fn in_order(rank: &'static Rank) -> Self {
        let last = HELD.with(|held| held.borrow().iter().copied().max_by_key(|held| held.order));
        if let Some(last) = last.filter(|last| last.order >= rank.order) {
            refuse(&format!("lock `{}` ({}) is taken after `{}` ({})", rank.name, rank.order, last.name, last.order));
        }
        Self::any(rank)
    }

    fn any(rank: &'static Rank) -> Self {
        HELD.with(|held| held.borrow_mut().push(rank));
        Self { rank }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            let at = held.iter().rposition(|rank| std::ptr::eq(*rank, self.rank));
            at.map(|at| held.swap_remove(at));
        });
    }
}

#[cfg(not(debug_assertions))]
impl Held {
    #[inline]
    fn in_order(_: &'static Rank) -> Self {
        Self {}
    }

    #[inline]
    fn any(_: &'static Rank) -> Self {
        Self {}
    }
}

/// Called before the disk, or memory that others must give back first, is waited for.
#[inline]
pub fn about_to_wait(what: &str) {
    #[cfg(debug_assertions)]
    if let Some(rank) = HELD.with(|held| held.borrow().iter().copied().find(|rank| !rank.may_wait)) {
        refuse(&format!("{what} while lock `{}` is held", rank.name));
    }
    _ = what;
}

/// A panic on top of a panic would end the process before the first one is told.
#[cfg(debug_assertions)]
#[allow(clippy::panic, reason = "only in builds that look for mistakes")]
fn refuse(what: &str) {
    if !std::thread::panicking() {
        panic!("{what}");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    static FIRST: Rank = Rank::long(1, "first");
    static SECOND: Rank = Rank::short(2, "second");

    fn panics(work: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn locks_are_taken_in_one_order() {
        let (first, second) = (Ranked::mutex(&FIRST, 1), Ranked::rw(&SECOND, 2));
        {
            let one = first.lock();
            assert_eq!(*one + *second.read(), 3);
            assert!(panics(|| drop(first.lock())), "it would wait for itself");
        }
        let _two = second.write();
        assert!(panics(|| drop(first.lock())));
        assert!(first.try_lock().is_some(), "who does not wait may ask");
        drop(_two);
        assert!(!panics(|| drop(first.lock())));
    }

    #[test]
    fn nobody_waits_for_the_disk_under_a_short_lock() {
        let (first, second) = (Ranked::mutex(&FIRST, ()), Ranked::mutex(&SECOND, ()));
        let _one = first.lock();
        about_to_wait("a read");
        let two = second.lock();
        assert!(panics(|| about_to_wait("a read")));
        drop(two);
        about_to_wait("a read");
    }
}
