//! How much a collection is asked, lately: what its share of the memory follows.
//!
//! ```text
//!   each search ─► asked ──each look──► recent = recent x 7/8 + asked       halves in about ten seconds
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Usage {
    asked: AtomicU64,
    recent: AtomicU64,
    /// Its share when sections were last chosen, in thousandths.
    planned: AtomicU64,
}

impl Usage {
    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// What was asked since the last look joins what was asked before.
    pub(crate) fn look(&self) {
        let recent = self.recent.load(Ordering::Relaxed) / 8 * 7 + self.asked.swap(0, Ordering::Relaxed);
        self.recent.store(recent, Ordering::Relaxed);
    }

    /// Never zero: what nobody asks has a share too.
    pub(crate) fn weight(&self) -> u64 {
        1 + self.recent.load(Ordering::Relaxed)
    }

    pub(crate) fn plan(&self, share: u64) {
        self.planned.store(share, Ordering::Relaxed);
    }

    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }
}
