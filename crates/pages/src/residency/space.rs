//! The cache's addresses: where each file's pages lie, and the state of each page.
//!
//! ```text
//!   memory │ file A: page 0, 1, 2 ...          │ free │ file B ...      one region, 4096 bytes a page
//!   states │ one state a page, same order      │      │                 one region, 2 bytes a page
//! ```
//!
//! A page is named by its place here, a `u32` counted from the start of the region.

use crate::residency::ranges::Ranges;
use crate::residency::region::Region;
use crate::residency::state::PageState;
use parking_lot::Mutex;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result, Size};
use std::ops::Range;

const WORD: usize = size_of::<PageState>();

pub(crate) struct Space {
    memory: Region,
    words: Region,
    pages: u32,
    free: Mutex<Ranges>,
}

impl Space {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let pages = u32::try_from(bytes / PAGE as u64).map_err(|_| {
            Error::invalid(format!("{} of addresses are more than the cache can number; ask for 8 TiB", Size(bytes)))
        })?;
        let words = (pages as usize * WORD).next_multiple_of(PAGE);
        Ok(Self {
            memory: Region::new(pages as usize * PAGE)?,
            words: Region::new(words)?,
            pages,
            free: Mutex::new(Ranges::new(pages)),
        })
    }

    pub(crate) fn take(&self, pages: u32) -> Result<u32> {
        self.free.lock().take(pages).ok_or_else(|| {
            Error::busy(format!(
                "the address range of {} has no room for a file of {}; close files or start with a larger range",
                Size(u64::from(self.pages) * PAGE as u64),
                Size(u64::from(pages) * PAGE as u64)
            ))
        })
    }

    /// Gives a range back with everything in it. No page of it is pinned or moves.
    pub(crate) fn give(&self, first: u32, pages: u32) {
        if pages == 0 {
            return;
        }
        let (start, end) = (first as usize * WORD, (first + pages) as usize * WORD);
        let whole = start.next_multiple_of(PAGE)..end / PAGE * PAGE;
        for page in first..first + pages {
            // Words that fill whole pages of their own are zeroed by giving those pages back.
            if !whole.contains(&(page as usize * WORD)) {
                self.state(page).clear();
            }
        }
        if !whole.is_empty() {
            self.words.discard(whole.start, whole.len());
        }
        // Addresses that the kernel would not map again are lost rather than used.
        if self.memory.scrub(first as usize * PAGE, pages as usize * PAGE) {
            self.free.lock().give(first, pages);
        }
    }

    #[inline]
    pub(crate) fn state(&self, page: u32) -> &PageState {
        debug_assert!(page < self.pages);
        // SAFETY: inside the region of states, which holds atomics or zeros, and zero is a valid state.
        unsafe { &*self.words.at(page as usize * WORD).cast::<PageState>() }
    }

    #[inline]
    pub(crate) fn address(&self, page: u32) -> *mut u8 {
        self.memory.at(page as usize * PAGE)
    }

    /// Takes pages that are `Moving` and ours out of memory, neighbours in one call. `pages` is sorted.
    pub(crate) fn discard(&self, pages: &[u32]) {
        let runs = pages.chunk_by(|a, b| a + 1 == *b);
        self.memory.discard_all(runs.map(|run| (run[0] as usize * PAGE, run.len() * PAGE)));
        for page in pages {
            self.state(*page).clear();
        }
    }

    /// Says whether the kernel may back the range with huge pages where it holds whole ones.
    pub(crate) fn use_huge(&self, pages: Range<u32>, huge: bool) {
        self.memory.use_huge(pages.start as usize * PAGE, pages.len() * PAGE, huge);
    }

    #[cfg(test)]
    pub(crate) fn in_memory(&self, first: u32, pages: u32) -> usize {
        crate::residency::region::in_memory(&self.memory, first as usize * PAGE, pages as usize * PAGE)
    }
}
