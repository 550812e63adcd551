//! Whether the disk is full, and who works in what is kept for that: what `inner/full.rs` goes by.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[derive(Default)]
pub(crate) struct Full {
    pub(crate) on: AtomicBool,
    pub(crate) looked_ms: AtomicU64,
    /// Who works in what the reserve gave: it is not made whole under them.
    pub(crate) users: AtomicUsize,
}

impl Full {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }
}

/// The reserve has been given to somebody while one lives.
pub(crate) struct Using<'a>(pub(crate) &'a Full);

impl Drop for Using<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}
