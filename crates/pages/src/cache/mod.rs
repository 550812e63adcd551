//! The cache: one bounded set of pages over all open files.
//!
//! ```text
//!   Fetch ──► state.pin ── hit ──────────────────────────► Pinned
//!               │ miss                                       ▲
//!               ▼                                            │
//!             claim ─► quota.take ─► one batch of reads ─► check ─► publish
//!                        │ short
//!                        ▼
//!                      the clock's hand (evict.rs) ─► madvise ─► quota.give
//! ```
//!
//! Locks, none of which is held during I/O: `ring` (which pages are cached), `quota` (their bytes),
//! `residents` (which sections are resident; taken alone). A page is in the ring exactly while its state is `Cached`. Only
//! `memory_waiter`, who waits for memory longest, is held while it fetches.

pub(crate) mod evict;
pub(crate) mod fetch;
pub(crate) mod file;
pub(crate) mod fill;
pub(crate) mod load;
pub(crate) mod section;
pub(crate) mod stream;

use crate::cache::file::PageFile;
use crate::residency::bypass::{BYPASS_PAGES, BypassBuffers};
use crate::residency::event_count::EventCount;
use crate::residency::quota::{PAGE_COST, PageQuota};
use crate::residency::space::Space;
use parking_lot::Mutex;
use ramekin_base::limits::PAGE;
use ramekin_base::lock::{Rank, Ranked};
use ramekin_base::{Error, Kind, Result, Size, nonblocking};
use ramekin_disk::Disk;
use ramekin_memory::{Account, Budget};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// In this order; that of all locks stands in `vectors/lib.rs`.
static MEMORY_WAITER: Rank = Rank::long(80, "pages.memory_waiter");
static RING: Rank = Rank::short(90, "pages.ring");
static QUOTA: Rank = Rank::short(95, "pages.quota");

/// Pages that leave memory at one time, if there are many, to make room for others: each time, the other cores must
/// forget their addresses, which costs more than a read of the disk does.
pub(crate) const EVICT_STEP: usize = 64;

/// Most pages that leave memory at one time to make room for a section.
const ROOM_STEP: usize = 256;

/// Rounds that a fetch waits for other readers' pins before it gives up as busy, and how long each is.
const RETRY: (u32, Duration) = (100, Duration::from_millis(2));

/// What some fetches took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Pages that were in memory.
    pub hits: u64,
    /// Reads of the disk, and the pages that they brought.
    pub reads: u64,
    pub read_pages: u64,
}

#[derive(Default)]
pub(crate) struct FetchTally {
    pub(crate) hits: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_pages: AtomicU64,
}

/// What the cache did and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages asked for that were in memory.
    pub hits: u64,
    /// Pages asked for that had to be read, or that another thread was reading.
    pub misses: u64,
    /// Pages that left memory for others.
    pub evictions: u64,
    /// Bytes of pages that the clock may take.
    pub cached_bytes: u64,
    /// Bytes of sections that are wholly resident.
    pub resident_bytes: u64,
}

pub(crate) struct Cache {
    pub(crate) disk: Arc<dyn Disk>,
    account: Account,
    budget: Budget,
    pub(crate) space: Space,
    pub(crate) bypass: BypassBuffers,
    pub(crate) ring: Ranked<Mutex<VecDeque<u32>>>,
    pub(crate) quota: Ranked<Mutex<PageQuota>>,
    pub(crate) residents: Mutex<Vec<(Weak<PageFile>, u32)>>,
    pub(crate) events: EventCount,
    /// Files that are to be removed by [`Pages::remove_dropped`]; `None`: they go at once.
    removals: Mutex<Option<Vec<PathBuf>>>,
    /// Pages of all open files.
    open_pages: AtomicU64,
    /// Fetches that found no memory try again one at a time, in the order in which they came, under this lock.
    memory_waiter: Ranked<Mutex<()>>,
    pub(crate) tally: Tally,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) evictions: AtomicU64,
    /// Places of the ring that were looked at by those who take pages out of its middle.
    pub(crate) walked: AtomicU64,
}

impl Cache {
    /// An empty cache. `virtual_bytes` are addresses, not memory.
    pub(crate) fn new(disk: Arc<dyn Disk>, account: Account, budget: &Budget, virtual_bytes: u64) -> Result<Arc<Self>> {
        let account = account.reclaimable();
        let space = Space::new(virtual_bytes + u64::from(BYPASS_PAGES) * PAGE as u64)?;
        Ok(Arc::new(Self {
            disk,
            bypass: BypassBuffers::at(space.take(BYPASS_PAGES)?),
            space,
            quota: Ranked::mutex(&QUOTA, PageQuota::new(&account)?),
            account,
            budget: budget.clone(),
            open_pages: AtomicU64::new(0),
            ring: Ranked::mutex(&RING, VecDeque::new()),
            residents: Mutex::default(),
            events: EventCount::default(),
            memory_waiter: Ranked::mutex(&MEMORY_WAITER, ()),
            removals: Mutex::new(None),
            tally: Tally::default(),
        }))
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let (cached, resident) = self.quota.lock().pages();
        let page = PAGE as u64;
        CacheStats {
            hits: self.tally.hits.load(Ordering::Relaxed),
            misses: self.tally.misses.load(Ordering::Relaxed),
            evictions: self.tally.evictions.load(Ordering::Relaxed),
            cached_bytes: cached * page,
            resident_bytes: resident * page,
        }
    }

    pub(crate) fn defer_removals(&self) {
        self.removals.lock().get_or_insert_default();
    }

    pub(crate) fn remove_dropped(&self) {
        let dropped = self.removals.lock().as_mut().map(std::mem::take).unwrap_or_default();
        dropped.iter().for_each(|path| self.remove_now(path));
    }

    pub(crate) fn evict_all(&self) {
        while self.evict(ROOM_STEP).0 > 0 {}
    }

    /// True if `pages` fit without eviction, with two steps of eviction left over for pages that are known to be read again.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        let unused = self.quota.lock().unused();
        Self::cost((pages + 2 * EVICT_STEP) as u32) <= self.budget.free() + unused
    }

    /// A file that nobody names any more goes, at once or when somebody sees to it.
    pub(crate) fn remove(&self, path: &Path) {
        match &mut *self.removals.lock() {
            Some(later) => later.push(path.to_owned()),
            None => self.remove_now(path),
        }
    }

    fn remove_now(&self, path: &Path) {
        // What cannot be removed now is not named by any manifest and goes at the next start.
        _ = self.disk.rename(path, None);
    }

    /// Room for pages that will be cached. The budget's other users are not asked; our own cached pages
    /// are. `Busy` if all of them are pinned.
    pub(crate) fn take_cached(&self, pages: usize) -> Result<()> {
        loop {
            // The lock must not be held while pages leave, so the result comes out of it first.
            let taken = self.quota.lock().take_cached(pages);
            let Err(short) = taken else { return Ok(()) };
            let (hopeless, cached) = {
                let quota = self.quota.lock();
                (Self::cost(pages as u32) > self.budget.free() + quota.for_cached(), quota.pages().0 as usize)
            };
            let step = EVICT_STEP.min(cached / 4).max(pages);
            if hopeless || self.evict(step).0 == 0 {
                return Err(short);
            }
        }
    }

    /// Fails where a section of so many pages would not fit even if every cached page made way.
    pub(crate) fn could_load(&self, pages: usize) -> Result<()> {
        let most = self.budget.free() + self.quota.lock().above_reserve() * PAGE_COST;
        if Self::cost(pages as u32) <= most {
            return Ok(());
        }
        let [needed, most] = [Self::cost(pages as u32), most].map(Size);
        Err(Error::busy(format!("{needed} needed to keep a section in memory, {most} could be free")))
    }

    /// Room for pages of a section. Cached pages make way, resident sections do not.
    pub(crate) fn take_resident(&self, pages: usize) -> Result<()> {
        loop {
            let taken = self.quota.lock().take_resident(pages);
            let Err(short) = taken else { return Ok(()) };
            let step = ROOM_STEP.min(pages).min(self.quota.lock().above_reserve() as usize);
            if self.evict(step).0 == 0 {
                return Err(short);
            }
        }
    }

    /// Repeats `attempt` while it fails as busy, one thread after the other, for a limited time; a thread that may not wait
    /// tries once. `attempt` holds nothing when it has failed.
    pub(crate) fn retry_while_busy<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut outcome = attempt();
        let busy = |outcome: &Result<T>| outcome.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
        if !busy(&outcome) || nonblocking::is_set() {
            return outcome;
        }
        let _turn = self.memory_waiter.lock();
        for _ in 0..RETRY.0 {
            outcome = attempt();
            if !busy(&outcome) {
                break;
            }
            self.account.wait_for_release(RETRY.1);
        }
        outcome
    }

    /// Files were opened or closed: states what this cache would hold if memory had no end.
    pub(crate) fn count_open(&self, opened: u32, closed: u32) {
        let (opened, closed) = (u64::from(opened), u64::from(closed));
        let before = self.open_pages.fetch_add(opened.wrapping_sub(closed), Ordering::Relaxed);
        self.account.want((before + opened - closed) * PAGE_COST);
    }

    /// Pays for everything that no section's owner pays for.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Bytes in memory for `pages` pages, as they are booked.
    pub(crate) fn cost(pages: u32) -> u64 {
        u64::from(pages) * PAGE_COST
    }
}
