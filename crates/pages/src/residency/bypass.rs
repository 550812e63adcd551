//! A few pages of memory that never leave: what is probably read once goes through them and not into the cache.
//!
//! ```text
//!   a span of pages is not in memory, and little or nothing is free for the cache to take it
//!        │
//!        ├─ one of its pages was wanted not long ago ──► into the cache, as the doorkeeper of TinyLFU
//!        └─ else ──► a run of free buffers, until the fetch ends      (Einziger et al. 2017, section 3.4.2)
//! ```
//!
//! A page that enters and leaves the cache costs a fault, a page from the kernel and an interrupt of the other cores:
//! together more than the read itself. And a page that is not asked twice is no reason to forget one that is.

use ramekin_base::limits::PAGE;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages of all bypass buffers: about what six queries read at one time.
pub(crate) const BYPASS_PAGES: u32 = u64::BITS;

/// Pages that are remembered as wanted, at most; later ones take the places of others.
const REMEMBERED: usize = 4096;

/// Runs of buffers are handed out by their place in the cache's addresses.
pub(crate) struct BypassBuffers {
    first: u32,
    /// One bit a buffer: set if free.
    free: AtomicU64,
    /// The page that was wanted last of those that share a slot; 0 stands for none.
    wanted: Box<[AtomicU32]>,
}

impl BypassBuffers {
    /// BypassBuffers at the places `first` and on, [`BYPASS_PAGES`] of them.
    pub(crate) fn at(first: u32) -> Self {
        let wanted = (0..REMEMBERED).map(|_| AtomicU32::new(0)).collect();
        Self { first, free: AtomicU64::new(u64::MAX), wanted }
    }

    /// Neighbouring buffers, if so many are free side by side. They are the caller's until it gives them back.
    pub(crate) fn take(&self, pages: u32) -> Option<u32> {
        if pages == 0 || pages > BYPASS_PAGES {
            return None;
        }
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let run = Self::first_run(free, pages)?;
            let taken = Self::mask(run, pages);
            // Acquire: who had them before no longer reads them.
            match self.free.compare_exchange_weak(free, free & !taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(self.first + run),
                Err(now) => free = now,
            }
        }
    }

    pub(crate) fn give(&self, buffer: u32, pages: u32) {
        let mask = Self::mask(buffer - self.first, pages);
        let before = self.free.fetch_or(mask, Ordering::Release);
        debug_assert_eq!(before & mask, 0, "buffers are given back once");
    }

    /// Notes that a page is wanted, and says whether it was not long ago.
    pub(crate) fn wanted_again(&self, page: u32) -> bool {
        // Fibonacci hashing (Knuth, volume 3, section 6.4): neighbours go to slots far apart.
        let slot = (page.wrapping_mul(0x9E37_79B1) >> (u32::BITS - REMEMBERED.ilog2())) as usize;
        self.wanted[slot].swap(page + 1, Ordering::Relaxed) == page + 1
    }

    /// The first of `pages` set bits in a row.
    fn first_run(free: u64, pages: u32) -> Option<u32> {
        // After a step, a bit is set if as many as the step says are set from there on.
        let (mut runs, mut length) = (free, 1);
        while length < pages {
            let step = length.min(pages - length);
            runs &= runs >> step;
            length += step;
        }
        (runs != 0).then(|| runs.trailing_zeros())
    }

    fn mask(run: u32, pages: u32) -> u64 {
        (u64::MAX >> (BYPASS_PAGES - pages)) << run
    }
}

/// Bytes of all bypass buffers and of what is remembered, held for good.
pub(crate) const BYPASS_BYTES: u64 =
    BYPASS_PAGES as u64 * PAGE as u64 + REMEMBERED as u64 * size_of::<AtomicU32>() as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_first_that_fit() {
        assert_eq!(BypassBuffers::first_run(u64::MAX, 64), Some(0));
        assert_eq!(BypassBuffers::first_run(u64::MAX << 1, 64), None);
        assert_eq!(BypassBuffers::first_run(0b0111_0110, 3), Some(4));
        assert_eq!(BypassBuffers::first_run(0b0111_0110, 2), Some(1));
        assert_eq!(BypassBuffers::first_run(0, 1), None);
        // Against the plain way, for all short patterns.
        for free in 0u64..1 << 12 {
            for pages in 1..=12 {
                let plain = (0..64 - pages + 1)
                    .find(|run| free & BypassBuffers::mask(*run, pages) == BypassBuffers::mask(*run, pages));
                assert_eq!(BypassBuffers::first_run(free, pages), plain, "{pages} of {free:b}");
            }
        }
    }

    #[test]
    fn frames_belong_to_one_at_a_time() {
        let bypass = BypassBuffers::at(100);
        assert_eq!((bypass.take(0), bypass.take(65)), (None, None));
        let [a, b] = [bypass.take(40), bypass.take(20)].map(Option::unwrap);
        assert_eq!((a, b, bypass.take(5)), (100, 140, None));
        bypass.give(a, 40);
        assert_eq!(bypass.take(5), Some(100));
        assert_eq!(bypass.take(40), None);
        bypass.give(b, 20);
        bypass.give(100, 5);
        assert_eq!(bypass.take(64), Some(100));
    }

    #[test]
    fn what_was_wanted_is_remembered_until_another_takes_its_slot() {
        let bypass = BypassBuffers::at(0);
        assert!(!bypass.wanted_again(0));
        assert!(bypass.wanted_again(0));
        assert!(!bypass.wanted_again(7));
        assert!(bypass.wanted_again(7));
        (1000..100_000).for_each(|page| _ = bypass.wanted_again(page));
        assert!(!bypass.wanted_again(7));
    }
}
