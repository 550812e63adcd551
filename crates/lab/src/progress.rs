//! What the lab says on standard error while it works, so that nobody has to guess whether it still does.

use ramekin_base::{Clock, SystemClock};
use std::cell::Cell;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(5);

/// Says steps with the seconds since the start.
pub struct Progress {
    clock: SystemClock,
    said: Cell<Duration>,
}

impl Progress {
    pub fn new() -> Self {
        Self { clock: SystemClock::new(), said: Cell::default() }
    }

    pub fn say(&self, text: impl std::fmt::Display) {
        self.said.set(self.clock.now());
        eprintln!("[{:>6.1} s] {text}", self.clock.now().as_secs_f64());
    }

    /// Says it if nothing was said for a while: for loops.
    pub fn tick(&self, text: impl FnOnce() -> String) {
        if self.clock.now() - self.said.get() >= EVERY {
            self.say(text());
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
