//! Whether a whole section is resident, and who reads it: one word, one atomic step to enter and one
//! to leave.
//!
//! ```text
//!    31 30  29                 0
//!   │state │      readers       │
//!
//!     Paged ──start──► Moving ──finish(true)──► Resident ◄──► Draining
//!       ▲                │ ▲                       │             │
//!       └─finish(false)──┘ └────── drain, no readers ─── the last reader leaves
//! ```
//!
//! A reader that comes too late adds itself, sees the state and takes itself off again; if it was the
//! one that kept a draining section from being empty, the unloading falls to it.

use std::sync::atomic::{AtomicU32, Ordering};

const READERS: u32 = (1 << 30) - 1;
const STATE: u32 = !READERS;
const PAGED: u32 = 0;
const MOVING: u32 = 1 << 30;
const RESIDENT: u32 = 2 << 30;
const DRAINING: u32 = 3 << 30;

pub(crate) trait Atomic {
    fn load(&self, order: Ordering) -> u32;
    fn add(&self, value: u32, order: Ordering) -> u32;
    fn sub(&self, value: u32, order: Ordering) -> u32;
    fn swap_if(&self, old: u32, new: u32, order: Ordering) -> Result<u32, u32>;
}

impl Atomic for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline]
    fn add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn sub(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_sub(value, order)
    }

    #[inline]
    fn swap_if(&self, old: u32, new: u32, order: Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, order, Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct SectionLatch<A = AtomicU32>(A);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enter {
    Inside,
    NotResident,
    /// Not resident, and the unloading (now `Moving`) falls to the caller.
    Unload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Now `Moving`: the caller loads.
    Load,
    /// Resident already, or again: a drain that had not ended was called off.
    Resident,
    /// Someone else moves it.
    Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drain {
    /// Now `Moving`: the caller unloads.
    Unload,
    /// The last reader will unload.
    Later,
    /// Not resident.
    Nothing,
}

impl<A: Atomic> SectionLatch<A> {
    #[inline]
    pub(crate) fn enter(&self) -> Enter {
        if self.0.load(Ordering::Relaxed) & STATE != RESIDENT {
            return Enter::NotResident;
        }
        if self.0.add(1, Ordering::Acquire) & STATE == RESIDENT {
            return Enter::Inside;
        }
        if self.leave() { Enter::Unload } else { Enter::NotResident }
    }

    /// True: the section is now `Moving`, and the caller unloads it.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        let old = self.0.sub(1, Ordering::Release);
        debug_assert!(old & READERS > 0);
        // A latecomer may be counted for a moment; then it is the one to find the section empty.
        old == DRAINING | 1 && self.0.swap_if(DRAINING, MOVING, Ordering::Acquire).is_ok()
    }

    pub(crate) fn start(&self) -> Start {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (new, outcome) = match old & STATE {
                RESIDENT => return Start::Resident,
                MOVING => return Start::Wait,
                PAGED => (MOVING | old & READERS, Start::Load),
                _ => (RESIDENT | old & READERS, Start::Resident),
            };
            match self.0.swap_if(old, new, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => old = now,
            }
        }
    }

    /// Ends a move. Latecomers may be counted at this moment, so the count is left alone.
    pub(crate) fn finish(&self, resident: bool) {
        let old = if resident {
            self.0.add(RESIDENT - MOVING, Ordering::Release)
        } else {
            self.0.sub(MOVING - PAGED, Ordering::Release)
        };
        debug_assert!(old & STATE == MOVING);
    }

    pub(crate) fn drain(&self) -> Drain {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (new, outcome) = match old {
                RESIDENT => (MOVING, Drain::Unload),
                _ if old & STATE == RESIDENT => (DRAINING | old & READERS, Drain::Later),
                _ if old & STATE == DRAINING => return Drain::Later,
                _ => return Drain::Nothing,
            };
            match self.0.swap_if(old, new, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => old = now,
            }
        }
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == MOVING
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == RESIDENT
    }

    pub(crate) fn is_paged(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == PAGED
    }
}
