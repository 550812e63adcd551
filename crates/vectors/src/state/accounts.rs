//! The accounts of a store, and the sizes that follow from its budget.

use crate::api::catalog_cost;
use crate::api::check::BESIDE_LARGEST;
use ramekin_base::Result;
use ramekin_memory::Account;

/// Real queries that are kept to be asked again, all collections together.
const RESERVOIR_MAX: u64 = 2 << 20;

/// The accounts of a store.
pub(crate) struct Accounts {
    /// Collections, their configurations and their aliases, which stay in memory.
    pub(crate) catalog: Account,
    pub(crate) growing: Account,
    pub(crate) patches: Account,
    pub(crate) segments: Account,
    pub(crate) flush: Account,
    pub(crate) merge: Account,
    pub(crate) log: Account,
    pub(crate) queries: Account,
    /// Bits of rows that pass filters, kept for the next search.
    pub(crate) filters: Account,
    pub(crate) reservoir: Account,
    pub(crate) manifest: Account,
}

/// What one query and one manifest have for good.
pub(crate) const QUERIES_MIN_RESERVATION: u64 = 1 << 20;
pub(crate) const MANIFEST_MIN_RESERVATION: u64 = 512 << 10;

/// Sizes that follow from the budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// All memtables together.
    pub(crate) memtable_bytes: u64,
    /// Changed payloads of flushed points, before they are written out.
    pub(crate) patch_bytes: u64,
    /// One memtable, before it is flushed.
    pub(crate) flush_bytes: u64,
    /// Log that may be pinned before the oldest part is flushed; writes to what pins it wait at twice as much, all others at
    /// four times as much.
    pub(crate) log_bytes: u64,
    pub(crate) flush_work: u64,
    pub(crate) merge_work: u64,
}

impl Limits {
    pub(crate) fn of(budget: u64) -> Self {
        let memtable_bytes = (budget / 8).clamp(2 << 20, 64 << 20);
        Self {
            memtable_bytes,
            patch_bytes: memtable_bytes / 8,
            flush_bytes: memtable_bytes / 2,
            log_bytes: memtable_bytes * 3 / 2,
            flush_work: (budget / 16 + BESIDE_LARGEST).clamp(3 << 20, 64 << 20),
            merge_work: (budget * 3 / 16).clamp(4 << 20, 512 << 20),
        }
    }
}

impl Limits {
    /// Bytes of one file of the log. A file goes as a whole, so it is small against what the log may pin.
    pub(crate) fn log_file_bytes(&self) -> u64 {
        self.memtable_bytes / 2
    }

    /// What is kept for a full disk: three quarters are room to flush what new points may be, and a quarter is for deletes.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        4 * self.log_file_bytes()
    }
}

impl Accounts {
    pub(crate) fn new(parent: &Account, limits: Limits) -> Result<Self> {
        let growing = parent.child(
            "growing",
            "points x (120 + vectors x (dim x 4 + 16)) + an open chunk a vector name, in steps of 64 KiB",
        );
        let accounts = Self {
            catalog: parent.child("catalog", catalog_cost::FORMULA).lasting(),
            patches: growing.child("patches", "changed payloads x 24, x 64 while they are written"),
            growing: growing.with_limit(limits.memtable_bytes),
            segments: parent.child(
                "segments",
                "segments x 4 KiB + points / 8 + chunks of dead rows that views hold + pages x 8 + ids pages x 16 + overlays + indexes of fields",
            ),
            flush: parent.child("seal", "buffers and index build of one seal").with_limit(limits.flush_work),
            merge: parent
                .child("merge", "rows x 4 + buffers and index build of one merge")
                .with_limit(limits.merge_work)
                .idling(),
            log: parent.child("log", "commit buffer + reads of payloads under way").lasting(),
            filters: parent.child(
                "filters",
                "rows of segments / 8, of filters that are asked or remembered; budget / 128 + 512 KiB",
            ),
            queries: parent
                .child("queries", "results x (336 + 208 x growing parts) + payloads and vectors returned + scratches")
                .transient(),
            reservoir: parent
                .child("reservoir", "real queries that are kept x dim x 4")
                .with_limit(RESERVOIR_MAX.min(limits.memtable_bytes / 8)),
            manifest: parent.child("manifest", "collections x their configuration, while it is written"),
        };
        // What frees memory has its memory for good.
        accounts.flush.set_min_reservation(limits.flush_work)?;
        accounts.merge.set_min_reservation(limits.merge_work)?;
        accounts.manifest.set_min_reservation(MANIFEST_MIN_RESERVATION)?;
        accounts.queries.set_min_reservation(QUERIES_MIN_RESERVATION)?;
        Ok(accounts)
    }
}
