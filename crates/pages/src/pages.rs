//! The front of the cache: opens and makes page files, fetches pages, counts what was fetched.
//!
//! ```text
//!   Pages ─┬─ create ──► PageWriter        open ──► PageFile ──► Section
//!          ├─ fetch ───► Fetch             what several sections' pages are named in, for one batch
//!          └─ counted ─► Pages             the same cache, with counters of its own
//! ```

use crate::cache::evict::{PageReclaim, SectionReclaim};
use crate::cache::fetch::Fetch;
use crate::cache::file::PageFile;
use crate::cache::{Cache, CacheStats, FetchStats, FetchTally};
use crate::format::writer::PageWriter;
use ramekin_base::Result;
use ramekin_disk::Disk;
use ramekin_memory::{Account, Budget, ReclaimOrder};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page cache. Clones are handles to the same one.
#[derive(Clone)]
pub struct Pages {
    pub(crate) cache: Arc<Cache>,
    fetch_stats: Option<Arc<FetchTally>>,
}

impl Pages {
    /// A cache that takes what is free below `account`, and from which it is reclaimed when `budget` is short.
    /// `virtual_bytes` are addresses, not memory: all files open at one time must fit them.
    pub fn new(disk: Arc<dyn Disk>, account: Account, budget: &Budget, virtual_bytes: u64) -> Result<Pages> {
        let cache = Cache::new(disk, account, budget, virtual_bytes)?;
        budget.add_reclaimer(ReclaimOrder::Pages, Arc::new(PageReclaim(Arc::downgrade(&cache))));
        budget.add_reclaimer(ReclaimOrder::Residency, Arc::new(SectionReclaim(Arc::downgrade(&cache))));
        Ok(Pages { cache, fetch_stats: None })
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
        Fetch::new(&self.cache, self.fetch_stats.as_deref())
    }

    /// The same cache; what is fetched through this handle is counted, see [`Pages::fetch_stats`].
    pub fn counted(&self) -> Pages {
        Pages { cache: self.cache.clone(), fetch_stats: Some(Arc::default()) }
    }

    /// Counts reads that bring what no page file has, such as records of the log.
    pub fn count_reads(&self, reads: u64, pages: u64) {
        if let Some(fetch_stats) = &self.fetch_stats {
            fetch_stats.reads.fetch_add(reads, Ordering::Relaxed);
            fetch_stats.read_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// What was fetched through a handle that counts.
    pub fn fetch_stats(&self) -> FetchStats {
        let Some(fetch_stats) = &self.fetch_stats else { return FetchStats::default() };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FetchStats {
            hits: count(&fetch_stats.hits),
            reads: count(&fetch_stats.reads),
            read_pages: count(&fetch_stats.read_pages),
        }
    }

    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// From now on files that are to go stay until [`Pages::remove_dropped`]: taking a large file from the disk takes long, and
    /// its last reader is a query.
    pub fn defer_removals(&self) {
        self.cache.defer_removals();
    }

    /// Removes the files that were dropped since.
    pub fn remove_dropped(&self) {
        self.cache.remove_dropped();
    }

    /// Takes every page out of memory that nobody holds and no resident section needs.
    pub fn evict_all(&self) {
        self.cache.evict_all();
    }
}
