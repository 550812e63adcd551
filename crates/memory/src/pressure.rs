//! What is reclaimed when memory is short, and in which order.
//!
//! ```text
//!   1. Pages       cached pages nobody holds: costs a read later
//!   2. Allocator   what the allocator keeps of what was freed goes back to the kernel, and what is kept to be used again is
//!                  freed: costs page faults
//!   3. Residency   whole sections go from resident to paged, widest codes first
//!   4. Idle        the reserve of merges, while none runs: only transient accounts borrow it; the next merge waits for them
//!   5. (writes)    new writes wait up to their timeout, then 429
//!   6. (refusal)   what can never fit: 507
//!   reads go on; flush, delete and a merge under way live on minimum reservations, which are never reclaimed
//! ```

/// The order in which bytes are asked back. Lower variants go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReclaimOrder {
    Pages,
    Allocator,
    Residency,
    Idle,
}

/// Holds reserved bytes that it can release on demand.
pub trait Reclaim: Send + Sync {
    /// Tries to release about `wanted` bytes; returns how many were released.
    fn reclaim(&self, wanted: u64) -> u64;
}

/// How short the budget is. Pages fill what is free by design, so this looks at all claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Calm,
    Tight,
    Full,
}

impl Pressure {
    pub(crate) fn of(used: u64, limit: u64) -> Self {
        match limit.saturating_sub(used) {
            free if free > limit / 10 => Self::Calm,
            free if free > limit / 50 => Self::Tight,
            _ => Self::Full,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Tight => "tight",
            Self::Full => "full",
        }
    }
}
