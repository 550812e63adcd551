//! The bytes that the cache holds from its account, and what they are for.
//!
//! ```text
//!   held from the account  =  bypass  +  resident  -  owned  +  max(cached, LEAST_CACHED)
//!                             │          │            │         │
//!                             │          │            │         pages that the clock may take
//!                             │          │            what of it stands on the accounts of the sections' owners
//!                             │          pages of sections that are wholly resident
//!                             what is read once goes through them
//! ```
//!
//! The reserve is taken when the cache is made and never given back: however much memory sections,
//! builds and requests hold, one query's worth of pages can be cached.

use crate::residency::bypass::BYPASS_BYTES;
use ramekin_base::Result;
use ramekin_base::limits::PAGE;
use ramekin_memory::{Account, Reservation};

/// What a page in memory costs: itself, and its place in the clock (4 bytes in a queue that doubles).
pub const PAGE_COST: u64 = PAGE as u64 + 8;

/// Bytes in memory of a section of so many bytes, as they are booked.
pub fn resident_cost(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64) * PAGE_COST
}

/// Memory for cached pages that nobody else can have: 256 pages, 1 MiB.
pub const LEAST_CACHED: u64 = 256 * PAGE_COST;

/// Memory that is always the cache's own: the least of cached pages, and the bypass buffers.
pub const RESERVE: u64 = LEAST_CACHED + BYPASS_BYTES;

pub(crate) struct PageQuota {
    held: Reservation,
    cached: u64,
    resident: u64,
    owned: u64,
}

impl PageQuota {
    pub(crate) fn new(account: &Account) -> Result<Self> {
        account.set_min_reservation(RESERVE)?;
        Ok(Self { held: account.try_reserve(RESERVE)?, cached: 0, resident: 0, owned: 0 })
    }

    /// Pages in memory: cached and resident.
    pub(crate) fn pages(&self) -> (u64, u64) {
        (self.cached / PAGE_COST, self.resident / PAGE_COST)
    }

    /// Pages that would return something to the account if they left.
    pub(crate) fn above_reserve(&self) -> u64 {
        self.cached.saturating_sub(LEAST_CACHED).div_ceil(PAGE_COST)
    }

    /// Bytes that are held for cached pages, used or not.
    pub(crate) fn for_cached(&self) -> u64 {
        self.cached.max(LEAST_CACHED)
    }

    /// Bytes that are held for cached pages and not used.
    pub(crate) fn unused(&self) -> u64 {
        self.for_cached() - self.cached
    }

    pub(crate) fn take_cached(&mut self, pages: usize) -> Result<()> {
        let cached = self.cached + pages as u64 * PAGE_COST;
        self.held.grow_no_reclaim(cached.max(LEAST_CACHED) - self.cached.max(LEAST_CACHED))?;
        self.cached = cached;
        Ok(())
    }

    pub(crate) fn take_resident(&mut self, pages: usize) -> Result<()> {
        self.held.grow_no_reclaim(pages as u64 * PAGE_COST)?;
        self.resident += pages as u64 * PAGE_COST;
        Ok(())
    }

    /// Cached pages left memory; returns the bytes that went back to the account.
    pub(crate) fn give_cached(&mut self, pages: usize) -> u64 {
        self.cached -= pages as u64 * PAGE_COST;
        self.settle()
    }

    pub(crate) fn give_resident(&mut self, pages: usize) -> u64 {
        self.resident -= pages as u64 * PAGE_COST;
        self.settle()
    }

    /// Resident pages became cached ones. Never needs more than is held.
    pub(crate) fn resident_to_cached(&mut self, pages: usize) {
        self.resident -= pages as u64 * PAGE_COST;
        self.cached += pages as u64 * PAGE_COST;
        self.settle();
    }

    /// Resident pages are booked on the account of the section's owner from now on.
    pub(crate) fn give_to(&mut self, owner: &Account, pages: usize) -> Result<Reservation> {
        let owned = self.held.hand_over(pages as u64 * PAGE_COST, owner)?;
        self.owned += owned.bytes();
        Ok(owned)
    }

    /// Resident pages are booked here again, before they leave.
    pub(crate) fn take_back(&mut self, mut owned: Reservation, account: &Account) {
        let bytes = owned.bytes();
        match owned.hand_over(bytes, account) {
            Ok(held) => {
                self.owned -= bytes;
                let joined = self.held.join(held);
                debug_assert!(joined.is_ok(), "both are of the cache's account");
            }
            Err(_) => debug_assert!(false, "the cache's account has no limit of its own"),
        }
    }

    fn settle(&mut self) -> u64 {
        let surplus = self.held.bytes() - (BYPASS_BYTES + self.resident - self.owned + self.cached.max(LEAST_CACHED));
        if surplus > 0 {
            self.held.shrink(surplus);
        }
        surplus
    }
}
