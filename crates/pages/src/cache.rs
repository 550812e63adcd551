//! The cache: one bounded set of pages over all open files.
//!
//! ```text
//!   Fetch ──► word.pin ── hit ──────────────────────────► Pinned
//!               │ miss                                       ▲
//!               ▼                                            │
//!             claim ─► purse.take ─► one batch of reads ─► check ─► publish
//!                        │ short
//!                        ▼
//!                      the clock's hand (evict.rs) ─► madvise ─► purse.give
//! ```
//!
//! Locks, none of which is held during I/O: `ring` (which pages are cached), `purse` (their bytes),
//! `residents` (which sections are resident). A page is in the ring exactly while its word is `Cached`.

use crate::evict::{EVICT_STEP, PageYield, SectionYield};
use crate::fetch::Fetch;
use crate::file::PageFile;
use crate::frames::{FRAMES, Frames};
use crate::gate::Gate;
use crate::purse::{PAGE_COST, Purse};
use crate::space::Space;
use crate::writer::PageWriter;
use parking_lot::Mutex;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Kind, Result, Size, nonblocking};
use ramekin_disk::Disk;
use ramekin_memory::{Account, Budget, YieldOrder};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Most pages that leave memory at one time to make room for a section.
const ROOM_STEP: usize = 256;

/// Rounds that a fetch waits for other readers' pins before it gives up as busy, and how long each is.
const PATIENCE: (u32, Duration) = (100, Duration::from_millis(2));

/// The page cache. Clones are handles to the same one.
#[derive(Clone)]
pub struct Pages {
    pub(crate) cache: Arc<Cache>,
    trip: Option<Arc<TripTally>>,
}

/// What some fetches took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trip {
    /// Pages that were in memory.
    pub hits: u64,
    /// Reads of the disk, and the pages that they brought.
    pub reads: u64,
    pub read_pages: u64,
}

#[derive(Default)]
pub(crate) struct TripTally {
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
    pub(crate) frames: Frames,
    pub(crate) ring: Mutex<VecDeque<u32>>,
    pub(crate) purse: Mutex<Purse>,
    pub(crate) residents: Mutex<Vec<(Weak<PageFile>, u32)>>,
    pub(crate) gate: Gate,
    /// Files that are to be removed by [`Pages::remove_dropped`]; `None`: they go at once.
    removals: Mutex<Option<Vec<PathBuf>>>,
    /// Pages of all open files.
    open_pages: AtomicU64,
    /// Fetches that found no memory try again one at a time, in the order in which they came, under this lock.
    hungry: Mutex<()>,
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

impl Pages {
    /// A cache that takes what is free below `account` and yields it when `budget` is short.
    /// `virtual_bytes` are addresses, not memory: all files open at one time must fit them.
    pub fn new(disk: Arc<dyn Disk>, account: Account, budget: &Budget, virtual_bytes: u64) -> Result<Pages> {
        let account = account.yielding();
        let space = Space::new(virtual_bytes + u64::from(FRAMES) * PAGE as u64)?;
        let cache = Arc::new(Cache {
            disk,
            frames: Frames::at(space.take(FRAMES)?),
            space,
            purse: Mutex::new(Purse::new(&account)?),
            account,
            budget: budget.clone(),
            open_pages: AtomicU64::new(0),
            ring: Mutex::default(),
            residents: Mutex::default(),
            gate: Gate::default(),
            hungry: Mutex::default(),
            removals: Mutex::new(None),
            tally: Tally::default(),
        });
        budget.add_yielder(YieldOrder::Pages, Arc::new(PageYield(Arc::downgrade(&cache))));
        budget.add_yielder(YieldOrder::Residency, Arc::new(SectionYield(Arc::downgrade(&cache))));
        Ok(Pages { cache, trip: None })
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.cache.disk
    }

    /// A new page file; `account` pays for the write buffer. Its name must be free.
    pub fn create(&self, path: &Path, account: &Account) -> Result<PageWriter> {
        PageWriter::create(self.cache.disk.clone(), path, account)
    }

    /// Opens a page file; `account` pays for what stays in memory while it is open: see [`PageFile::open_cost`].
    pub fn open(&self, path: &Path, account: &Account) -> Result<Arc<PageFile>> {
        PageFile::open(&self.cache, path, account)
    }

    /// Begins to name pages that are wanted together.
    pub fn fetch(&self) -> Fetch<'_> {
        Fetch::new(&self.cache, self.trip.as_deref())
    }

    /// The same cache; what is fetched through this handle is counted, see [`Pages::trip`].
    pub fn counted(&self) -> Pages {
        Pages { cache: self.cache.clone(), trip: Some(Arc::default()) }
    }

    /// Counts reads that bring what no page file has, such as records of the log.
    pub fn count_reads(&self, reads: u64, pages: u64) {
        if let Some(trip) = &self.trip {
            trip.reads.fetch_add(reads, Ordering::Relaxed);
            trip.read_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// What was fetched through a handle that counts.
    pub fn trip(&self) -> Trip {
        let Some(trip) = &self.trip else { return Trip::default() };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Trip { hits: count(&trip.hits), reads: count(&trip.reads), read_pages: count(&trip.read_pages) }
    }

    pub fn stats(&self) -> CacheStats {
        let (cached, kept) = self.cache.purse.lock().pages();
        let page = PAGE as u64;
        CacheStats {
            hits: self.cache.tally.hits.load(Ordering::Relaxed),
            misses: self.cache.tally.misses.load(Ordering::Relaxed),
            evictions: self.cache.tally.evictions.load(Ordering::Relaxed),
            cached_bytes: cached * page,
            resident_bytes: kept * page,
        }
    }

    /// From now on files that are to go stay until [`Pages::remove_dropped`]: taking a large file from the disk takes long, and
    /// its last reader is a query.
    pub fn defer_removals(&self) {
        self.cache.removals.lock().get_or_insert_default();
    }

    /// Removes the files that were dropped since.
    pub fn remove_dropped(&self) {
        let dropped = self.cache.removals.lock().as_mut().map(std::mem::take).unwrap_or_default();
        dropped.iter().for_each(|path| self.cache.remove_now(path));
    }

    /// Takes every page out of memory that nobody holds and no resident section needs.
    pub fn evict_all(&self) {
        while self.cache.evict(ROOM_STEP).0 > 0 {}
    }
}

impl Cache {
    /// True if `pages` fit without eviction, with two steps of eviction left over for pages that are known to be read again.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        let unused = self.purse.lock().unused();
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
            let taken = self.purse.lock().take_cached(pages);
            let Err(short) = taken else { return Ok(()) };
            let (hopeless, cached) = {
                let purse = self.purse.lock();
                (Self::cost(pages as u32) > self.budget.free() + purse.for_cached(), purse.pages().0 as usize)
            };
            let step = EVICT_STEP.min(cached / 4).max(pages);
            if hopeless || self.evict(step).0 == 0 {
                return Err(short);
            }
        }
    }

    /// Fails where a section of so many pages would not fit even if every cached page made way.
    pub(crate) fn could_keep(&self, pages: usize) -> Result<()> {
        let most = self.budget.free() + self.purse.lock().above_reserve() * PAGE_COST;
        if Self::cost(pages as u32) <= most {
            return Ok(());
        }
        let [needed, most] = [Self::cost(pages as u32), most].map(Size);
        Err(Error::busy(format!("{needed} needed to keep a section in memory, {most} could be free")))
    }

    /// Room for pages of a section. Cached pages make way, resident sections do not.
    pub(crate) fn take_kept(&self, pages: usize) -> Result<()> {
        loop {
            let taken = self.purse.lock().take_kept(pages);
            let Err(short) = taken else { return Ok(()) };
            let step = ROOM_STEP.min(pages).min(self.purse.lock().above_reserve() as usize);
            if self.evict(step).0 == 0 {
                return Err(short);
            }
        }
    }

    /// Repeats `attempt` while it fails as busy, one thread after the other, for a limited time; a thread that may not wait
    /// tries once. `attempt` holds nothing when it has failed.
    pub(crate) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut outcome = attempt();
        let busy = |outcome: &Result<T>| outcome.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
        if !busy(&outcome) || nonblocking::is_set() {
            return outcome;
        }
        let _turn = self.hungry.lock();
        for _ in 0..PATIENCE.0 {
            outcome = attempt();
            if !busy(&outcome) {
                break;
            }
            self.account.wait_for_release(PATIENCE.1);
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
