//! Where threads wait for a page or a section that another thread is moving.
//!
//! One event count for all: moves are short, waiting is rare, and the mover pays one load when nobody waits. Whoever waits looks
//! again now and then by itself, and waits no longer than [`WAIT_MOST`]: what is claimed is let go of however the work ends
//! that has it (`fill.rs`), so only a disk that does not answer takes longer. Who waits for pages hears that its own work was given
//! up; who closes a file does not, since it cannot be left half closed.

use parking_lot::{Condvar, Mutex, MutexGuard};
use ramekin_base::{Clock, Error, Result, SystemClock, cancel};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Between two looks of one who waits.
const LOOK: Duration = Duration::from_millis(50);
/// A move is one batch of reads, or less: one that takes longer has died, or its disk has.
const WAIT_MOST: Duration = Duration::from_secs(60);

pub(crate) struct EventCount {
    waiting: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
    clock: Box<dyn Clock>,
}

impl Default for EventCount {
    /// Whom it keeps waiting is a disk, whose time is the machine's.
    fn default() -> Self {
        Self::new(Box::new(SystemClock::new()))
    }
}

impl EventCount {
    fn new(clock: Box<dyn Clock>) -> Self {
        Self { waiting: AtomicU32::new(0), lock: Mutex::default(), moved: Condvar::new(), clock }
    }

    /// Called after a state has changed.
    pub(crate) fn notify(&self) {
        // With the fence in `wait`: either we see the waiter, or the waiter sees the new state.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock());
            self.moved.notify_all();
        }
    }

    /// Waits until `done` holds. Fails where the work of this thread is given up, or where it takes too long.
    pub(crate) fn wait(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        let from = self.clock.now();
        self.enter(|events, guard| {
            while !done() {
                // At each wake-up: on a busy server others move pages all the time, and no look ever times out.
                cancel::check()?;
                if events.clock.now().saturating_sub(from) >= WAIT_MOST {
                    return Err(Error::io("another thread has been reading a page for a minute and has not ended"));
                }
                events.moved.wait_for(guard, LOOK);
            }
            Ok(())
        })
    }

    /// The same for one whose work nobody gives up. False: it takes too long.
    pub(crate) fn wait_on(&self, mut done: impl FnMut() -> bool) -> bool {
        let from = self.clock.now();
        self.enter(|events, guard| {
            while !done() {
                if events.clock.now().saturating_sub(from) >= WAIT_MOST {
                    return false;
                }
                events.moved.wait_for(guard, LOOK);
            }
            true
        })
    }

    /// Waits until `done` holds, for about `at_most`; tells whether it does.
    pub(crate) fn wait_at_most(&self, at_most: Duration, mut done: impl FnMut() -> bool) -> bool {
        self.enter(|events, guard| {
            let mut holds = false;
            // Each wake-up restarts the time, so the number of them is bounded as well.
            for _ in 0..8 {
                holds = done();
                if holds
                    || events.moved.wait_for(guard, at_most / 8).timed_out() && {
                        holds = done();
                        holds
                    }
                {
                    break;
                }
            }
            holds
        })
    }

    fn enter<T>(&self, wait: impl FnOnce(&Self, &mut MutexGuard<'_, ()>) -> T) -> T {
        let mut guard = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let outcome = wait(self, &mut guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Kind, ManualClock};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Far more looks than any wait here has; so many are no end.
    const LOOKS: u32 = 100_000;

    struct Handed(Arc<ManualClock>);

    impl Clock for Handed {
        fn now(&self) -> Duration {
            self.0.now()
        }
    }

    /// Waits while others move pages all the time; `look` is called at each look.
    fn wait_among_others(clock: &Arc<ManualClock>, mut look: impl FnMut()) -> Result<()> {
        let (events, is_over) = (EventCount::new(Box::new(Handed(clock.clone()))), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    events.notify();
                }
            });
            let mut looks = 0;
            let waited = events.wait(|| {
                look();
                looks += 1;
                looks == LOOKS
            });
            is_over.store(true, Ordering::Relaxed);
            waited
        })
    }

    #[test]
    fn who_waits_on_a_busy_server_hears_that_its_work_was_given_up() {
        let token = cancel::Token::new();
        let waited = cancel::scope(&token, || wait_among_others(&Arc::default(), || _ = token.cancel()));
        assert_eq!(waited.unwrap_err().kind(), Kind::Cancelled);
    }

    #[test]
    fn who_waits_on_a_busy_server_waits_no_longer_than_a_minute() {
        let clock = Arc::new(ManualClock::default());
        let waited = wait_among_others(&clock, || clock.advance(Duration::from_secs(1)));
        assert_eq!((waited.unwrap_err().kind(), clock.now()), (Kind::Io, WAIT_MOST));
    }

    #[test]
    fn who_cannot_give_up_waits_no_longer_either() {
        let clock = Arc::new(ManualClock::default());
        let events = EventCount::new(Box::new(Handed(clock.clone())));
        let look = || {
            clock.advance(WAIT_MOST / 4);
            false
        };
        assert!(!events.wait_on(look));
        assert!(events.wait_on(|| true));
        assert_eq!(clock.now(), WAIT_MOST);
    }
}
