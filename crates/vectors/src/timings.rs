//! How long the steps took that requests wait for, and those that run behind them: `/metrics` shows them.

use crate::store_inner::StoreInner;
use ramekin_base::Histogram;
use std::time::Duration;

/// A histogram each; all live as long as the store.
#[derive(Debug, Default)]
pub struct Timings {
    /// A group of the log: its write and its fsync.
    pub commit: Histogram,
    /// New points become a segment.
    pub flush: Histogram,
    /// Changed payloads become a file.
    pub fold: Histogram,
    /// Segments become one.
    pub merge: Histogram,
}

impl StoreInner {
    /// Does `work` and notes how long it took, where it succeeded: what fails says so elsewhere.
    pub(crate) fn timed<T, E>(&self, to: &Histogram, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let began: Duration = self.options.clock.now();
        let done = work();
        if done.is_ok() {
            to.note(self.options.clock.now().saturating_sub(began));
        }
        done
    }
}
