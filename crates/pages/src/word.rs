//! The state of one page in 16 bits, and every way in which it may change.
//!
//! ```text
//!    15 14  13   10  9        0
//!   │state │ heat  │   pins    │          all zero: Out, so a fresh mapping of words is right
//!
//!            claim              publish(Cached)          keep
//!     Out ──────────► Moving ──────────────────► Cached ──────► Kept
//!      ▲    only one    │ ▲  publish(Kept) ─────────────────────►│
//!      │    can win     │ │                        │             │
//!      └──── clear ─────┘ └── cool: no pins, ◄─────┘             │
//!                         │    no heat left                      │
//!                         └── unkeep: no pins ◄──────────────────┘   (with pins: back to Cached)
//! ```
//!
//! A page may be read only under a pin, or under a guard on its section while it is `Kept`. Pins are
//! taken only in `Cached` and `Kept`; nobody gives a page back to the kernel but in `Moving`, which is
//! entered only without pins. So no reader ever sees the zeros of a page that was given back.

use std::sync::atomic::{AtomicU16, Ordering};

const PIN: u16 = 1;
const PINS: u16 = (1 << 10) - 1;
const HEAT_SHIFT: u32 = 10;
const HEAT: u16 = 15 << HEAT_SHIFT;
const STATE: u16 = 3 << 14;
const OUT: u16 = 0;
const MOVING: u16 = 1 << 14;
const CACHED: u16 = 2 << 14;
const KEPT: u16 = 3 << 14;

/// The few operations that a word needs, so that a model checker can stand in for the real thing.
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
pub(crate) struct Word<A = AtomicU16>(A);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    Done,
    /// Not in memory.
    Out,
    /// Someone reads it or gives it back just now.
    Moving,
    /// As many pins as fit the word.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cool {
    /// Now `Moving` and ours to give back.
    Taken,
    /// One sweep nearer to its end.
    Cooler,
    /// Pinned.
    Held,
    /// Not a cached page.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unkeep {
    /// Now `Moving` and ours to give back.
    Taken,
    /// Pinned by someone; now an ordinary cached page.
    Cached,
}

impl<A: Atomic> Word<A> {
    /// Pins the page if it is in memory, and makes it at least as warm as `heat`.
    #[inline]
    pub(crate) fn pin(&self, heat: u16) -> Pin {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            match old & STATE {
                OUT => return Pin::Out,
                MOVING => return Pin::Moving,
                _ if old & PINS == PINS => return Pin::Full,
                _ => {}
            }
            let warm = (old & HEAT).max(heat << HEAT_SHIFT);
            match self.0.swap_if(old, (old & !HEAT | warm) + PIN, Ordering::Acquire) {
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
    pub(crate) fn publish_cached(&self, heat: u16, pins: u16) {
        self.0.store(CACHED | heat << HEAT_SHIFT | pins, Ordering::Release);
    }

    /// Moving to Kept.
    pub(crate) fn publish_kept(&self) {
        self.0.store(KEPT, Ordering::Release);
    }

    /// Moving to Out.
    pub(crate) fn clear(&self) {
        self.0.store(OUT, Ordering::Release);
    }

    /// The clock's hand passes: takes a cold page, cools a warm one, leaves a pinned one.
    pub(crate) fn cool(&self) -> Cool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (new, outcome) = match old {
                _ if old & STATE != CACHED => return Cool::Other,
                _ if old & PINS > 0 => return Cool::Held,
                _ if old & HEAT == 0 => (MOVING, Cool::Taken),
                _ => (old - (1 << HEAT_SHIFT), Cool::Cooler),
            };
            match self.0.swap_if(old, new, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => old = now,
            }
        }
    }

    /// Cached to Kept, pins and all; false if it was not cached.
    pub(crate) fn keep(&self) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & STATE == CACHED {
            match self.0.swap_if(old, KEPT | old & !STATE, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Takes a kept page, or turns it into a cached one if it is pinned. `None` if it was not kept.
    pub(crate) fn unkeep(&self) -> Option<Unkeep> {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & STATE == KEPT {
            let (new, outcome) =
                if old & PINS == 0 { (MOVING, Unkeep::Taken) } else { (CACHED | old & !STATE, Unkeep::Cached) };
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

    pub(crate) fn is_kept(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == KEPT
    }

    #[cfg(test)]
    pub(crate) fn is_out(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == OUT
    }
}
