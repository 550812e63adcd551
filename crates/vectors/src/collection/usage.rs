//! How much a collection is asked, lately: what its share of the memory follows.
//!
//! ```text
//!   each search ─► asked ──each look──► recent = recent x 7/8 + asked       halves in about ten seconds
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// So that little is not rounded to nothing.
const SCALE: u64 = 256;
/// So many queries weigh as much as being there.
const FEW: u64 = 32;

#[derive(Default)]
pub(crate) struct Usage {
    /// Since it was opened, and up to the last look.
    asked: AtomicU64,
    looked: AtomicU64,
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
        let asked = self.asked();
        let since = asked - self.looked.swap(asked, Ordering::Relaxed);
        let recent = self.recent.load(Ordering::Relaxed) * 7 / 8 + since * SCALE;
        self.recent.store(recent, Ordering::Relaxed);
    }

    /// Searches since it was opened.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Never zero: what nobody asks has a share too, and a few queries move nothing.
    pub(crate) fn weight(&self) -> u64 {
        FEW + self.recent.load(Ordering::Relaxed) / SCALE
    }

    pub(crate) fn plan(&self, share: u64) {
        self.planned.store(share, Ordering::Relaxed);
    }

    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }
}
