//! The state of one page in 16 bits, and every way in which it may change.
//!
//! ```text
//!    15 14  13   10  9        0
//!   │state │ usage │   pins    │          all zero: Out, so a fresh mapping of states is right
//!
//!            claim              publish(Cached)         promote
//!     Out ──────────► Moving ──────────────────► Cached ──────► Resident
//!      ▲    only one    │ ▲  publish(Resident) ─────────────────►│
//!      │    can win     │ │                        │             │
//!      └──── clear ─────┘ └── age: no pins, ◄──────┘             │
//!                         │    usage is 0                        │
//!                         └── demote: no pins ◄──────────────────┘   (with pins: back to Cached)
//! ```
//!
//! A page may be read only under a pin, or under a guard on its section while it is `Resident`. Pins are
//! taken only in `Cached` and `Resident`; nobody gives a page back to the kernel but in `Moving`, which is
//! entered only without pins. So no reader ever sees the zeros of a page that was given back.

use std::sync::atomic::{AtomicU16, Ordering};

const PIN: u16 = 1;
const PINS: u16 = (1 << 10) - 1;
const USAGE_SHIFT: u32 = 10;
const USAGE: u16 = 15 << USAGE_SHIFT;
const STATE: u16 = 3 << 14;
const OUT: u16 = 0;
const MOVING: u16 = 1 << 14;
const CACHED: u16 = 2 << 14;
const RESIDENT: u16 = 3 << 14;

/// The few operations that a page's state needs, so that a model checker can stand in for the real thing.
pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u16;
    fn store(&self, value: u16, order: Ordering);
    fn swap_if(&self, old: u16, new: u16, order: Ordering) -> Result<u16, u16>;
    fn sub(&self, value: u16, order: Ordering) -> u16;
}

impl Atomic for AtomicU16 {
    #[inline]
    fn load(&self, order: Ordering) -> u16 {
        AtomicU16::load(self, order)
    }

    #[inline]
    fn store(&self, value: u16, order: Ordering) {
        AtomicU16::store(self, value, order);
    }

    #[inline]
    fn swap_if(&self, old: u16, new: u16, order: Ordering) -> Result<u16, u16> {
        self.compare_exchange_weak(old, new, order, Ordering::Relaxed)
    }

    #[inline]
    fn sub(&self, value: u16, order: Ordering) -> u16 {
        self.fetch_sub(value, order)
    }
}

#[derive(Default)]
#[repr(transparent)]
pub(crate) struct PageState<A = AtomicU16>(A);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    Done,
    /// Not in memory.
    Out,
    /// Someone reads it or gives it back just now.
    Moving,
    /// As many pins as fit the 16 bits.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Now `Moving` and ours to give back.
    Taken,
    /// One sweep nearer to its end.
    Aged,
    /// Pinned.
    Held,
    /// Not a cached page.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demote {
    /// Now `Moving` and ours to give back.
    Taken,
    /// Pinned by someone; now an ordinary cached page.
    Cached,
}

impl<A: Atomic> PageState<A> {
    /// Pins the page if it is in memory, and raises its usage count to at least `usage`.
    #[inline]
    pub(crate) fn pin(&self, usage: u16) -> Pin {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            match old & STATE {
                OUT => return Pin::Out,
                MOVING => return Pin::Moving,
                _ if old & PINS == PINS => return Pin::Full,
                _ => {}
            }
            let warm = (old & USAGE).max(usage << USAGE_SHIFT);
            match self.0.swap_if(old, (old & !USAGE | warm) + PIN, Ordering::Acquire) {
                Ok(_) => return Pin::Done,
                Err(now) => old = now,
            }
        }
    }

    #[inline]
    pub(crate) fn unpin(&self) {
        let old = self.0.sub(PIN, Ordering::Release);
        debug_assert!(old & PINS > 0 && old & STATE >= CACHED, "unpinned a page that was not pinned: {old:#06x}");
    }

    /// Out to Moving. Whoever wins reads the page.
    pub(crate) fn claim(&self) -> bool {
        loop {
            match self.0.swap_if(OUT, MOVING, Ordering::Acquire) {
                Ok(_) => return true,
                Err(OUT) => {}
                Err(_) => return false,
            }
        }
    }

    /// Moving to Cached, with our pins on it.
    pub(crate) fn publish_cached(&self, usage: u16, pins: u16) {
        self.0.store(CACHED | usage << USAGE_SHIFT | pins, Ordering::Release);
    }

    /// Moving to Resident.
    pub(crate) fn publish_resident(&self) {
        self.0.store(RESIDENT, Ordering::Release);
    }

    /// Moving to Out.
    pub(crate) fn clear(&self) {
        self.0.store(OUT, Ordering::Release);
    }

    /// The clock's hand passes: takes a page whose usage is 0, lowers that of others, leaves a pinned one.
    pub(crate) fn age(&self) -> Age {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (new, outcome) = match old {
                _ if old & STATE != CACHED => return Age::Other,
                _ if old & PINS > 0 => return Age::Held,
                _ if old & USAGE == 0 => (MOVING, Age::Taken),
                _ => (old - (1 << USAGE_SHIFT), Age::Aged),
            };
            match self.0.swap_if(old, new, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => old = now,
            }
        }
    }

    /// Cached to Resident, pins and all; false if it was not cached.
    pub(crate) fn promote(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & STATE == CACHED {
            match self.0.swap_if(old, RESIDENT | old & !STATE, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Takes a resident page, or turns it into a cached one if it is pinned. `None` if it was not resident.
    pub(crate) fn demote(&self) -> Option<Demote> {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & STATE == RESIDENT {
            let (new, outcome) =
                if old & PINS == 0 { (MOVING, Demote::Taken) } else { (CACHED | old & !STATE, Demote::Cached) };
            match self.0.swap_if(old, new, Ordering::Acquire) {
                Ok(_) => return Some(outcome),
                Err(now) => old = now,
            }
        }
        None
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == MOVING
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == RESIDENT
    }

    #[cfg(test)]
    pub(crate) fn is_out(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == OUT
    }
}
