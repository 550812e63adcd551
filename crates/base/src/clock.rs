//! Time, handed in. Code below the doors asks a [`Clock`]; tests and the simulator hand in a
//! [`ManualClock`] that moves only when told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time since some fixed moment; never goes back.
pub trait Clock: Send + Sync {
    fn now(&self) -> Duration;
}

/// The machine's own monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place where real time enters")]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
}
