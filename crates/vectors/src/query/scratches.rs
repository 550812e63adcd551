//! Scratches of queries: kept for the next ones, until their memory is wanted elsewhere.
//!
//! ```text
//!   query begins ── take ──► kept? that one, else a new one ── query ends ── put ──► kept, unless it is large or there are many
//!                                     short of memory ── give_back ──► those that are kept go
//! ```

use parking_lot::Mutex;
use ramekin_ann::Scratch;
use ramekin_base::Result;
use ramekin_memory::{Account, Reclaim};
use std::sync::Weak;

/// A scratch that a query with a great many results has made larger is not kept for the next one.
const KEPT_BYTES_MAX: u64 = 1 << 20;
/// As many as there are ever queries at one time, about.
const KEPT_MAX: usize = 16;

/// The scratches that no query uses now. A merge that wants its memory back would wait for them for ever.
#[derive(Default)]
pub(crate) struct Scratches(Mutex<Vec<Scratch>>);

impl Scratches {
    /// A scratch for one query, reserved; it comes back by [`Scratches::put`].
    pub(crate) fn take(&self, account: &Account) -> Result<Scratch> {
        let kept = self.0.lock().pop();
        kept.map_or_else(|| Scratch::new(account), Ok)
    }

    pub(crate) fn put(&self, scratch: Scratch) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX && scratch.reserved_bytes() <= KEPT_BYTES_MAX {
            kept.push(scratch);
        }
    }
}

/// Registered with the budget.
pub(crate) struct KeptScratches(pub(crate) Weak<Scratches>);

impl Reclaim for KeptScratches {
    fn reclaim(&self, wanted: u64) -> u64 {
        let Some(scratches) = self.0.upgrade() else { return 0 };
        let mut given = 0;
        while given < wanted {
            // Dropped outside of the lock: it takes the lock of the accounts.
            let Some(scratch) = scratches.0.lock().pop() else { break };
            given += scratch.reserved_bytes();
        }
        given
    }
}
