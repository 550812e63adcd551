//! Events that are counted, so that whoever waits for the next one misses none that comes before it looks.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Counts events, and lets threads wait for the next.
#[derive(Default)]
pub struct Signal {
    count: Mutex<u64>,
    moved: Condvar,
}

impl Signal {
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    pub fn raise(&self) {
        *self.count.lock() += 1;
        self.moved.notify_all();
    }

    /// Waits until the count has passed `seen`, or `at_most` is over. Returns the count.
    pub fn wait_past(&self, seen: u64, at_most: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count <= seen {
            self.moved.wait_for(&mut count, at_most);
        }
        *count
    }
}
