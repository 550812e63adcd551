//! Where threads wait for a page or a section that another thread is moving.
//!
//! One gate for all: moves are short, waiting is rare, and the mover pays one load when nobody waits.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

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

    /// Waits until `done` holds.
    pub(crate) fn wait(&self, mut done: impl FnMut() -> bool) {
        self.enter(|gate, guard| {
            while !done() {
                gate.moved.wait(guard);
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
