//! How long the steps took that requests wait for, and those that run behind them: `/metrics` shows them.

use ramekin_base::Histogram;

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
