//! How far the log is durable, as the manifest on disk knows it.

use ramekin_log::Lsn;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far the last manifest knows the log to be durable. A log that ends before that is damaged, not cut by a crash, even
/// where nothing of its tail is left to be seen.
pub(crate) struct Watermark {
    durable: AtomicU64,
    at_ms: AtomicU64,
}

impl Watermark {
    /// That of the manifest which a start found.
    pub(crate) fn new(durable: Lsn) -> Self {
        Self { durable: AtomicU64::new(durable), at_ms: AtomicU64::new(0) }
    }

    pub(crate) fn set(&self, durable: Lsn, now_ms: u64) {
        self.durable.store(durable, Ordering::SeqCst);
        self.at_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Whether the log has grown since, and the last manifest is not of just now.
    pub(crate) fn is_old(&self, end: Lsn, now_ms: u64, every_ms: u64) -> bool {
        let is_due = now_ms.saturating_sub(self.at_ms.load(Ordering::SeqCst)) >= every_ms;
        is_due && self.durable.load(Ordering::SeqCst) < end
    }
}
