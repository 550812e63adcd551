//! Where threads wait for a page or a section that another thread is moving.
//!
//! One gate for all: moves are short, waiting is rare, and the mover pays one load when nobody waits. Whoever waits looks
//! again now and then by itself, hears that its own work was given up, and waits no longer than [`WAIT_MOST`].

use parking_lot::{Condvar, Mutex};
use ramekin_base::{Error, Result, cancel};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Between two looks of one who waits.
const LOOK: Duration = Duration::from_millis(50);
/// A move is one batch of reads, or less: one that takes longer has died, or its disk has.
const WAIT_MOST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Gate {
    waiting: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Gate {
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
        let mut outcome = Ok(());
        self.enter(|gate, guard| {
            let mut looks = WAIT_MOST.as_millis() / LOOK.as_millis();
            while !done() && outcome.is_ok() {
                if gate.moved.wait_for(guard, LOOK).timed_out() {
                    looks -= 1;
                    outcome = match looks {
                        0 => Err(Error::io("another thread has been reading a page for a minute and has not ended")),
                        _ => cancel::check(),
                    };
                }
            }
        });
        outcome
    }

    /// The same for one who cannot go on otherwise.
    pub(crate) fn wait_on(&self, mut done: impl FnMut() -> bool) {
        self.enter(|gate, guard| {
            while !done() {
                gate.moved.wait_for(guard, LOOK);
            }
        });
    }

    /// Waits until `done` holds, for about `at_most`; tells whether it does.
    pub(crate) fn wait_at_most(&self, at_most: Duration, mut done: impl FnMut() -> bool) -> bool {
        let mut holds = false;
        self.enter(|gate, guard| {
            // Each wake-up restarts the time, so the number of them is bounded as well.
            for _ in 0..8 {
                holds = done();
                if holds
                    || gate.moved.wait_for(guard, at_most / 8).timed_out() && {
                        holds = done();
                        holds
                    }
                {
                    break;
                }
            }
        });
        holds
    }

    fn enter(&self, wait: impl FnOnce(&Self, &mut parking_lot::MutexGuard<'_, ()>)) {
        let mut guard = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        wait(self, &mut guard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
