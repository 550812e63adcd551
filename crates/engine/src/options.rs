//! What an engine is opened with, and the sizes that follow from its share of the budget.

use crate::engine::{THREAD_BYTES, THREADS};
use ramekin_base::Clock;
use ramekin_base::limits::LOG_RECORD_MAX;
use ramekin_disk::Disk;
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_runs::compaction::flush_bytes;
use ramekin_runs::{KEY_MAX, Shape};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// When an answer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When everything that it depends on survives a power cut.
    Each,
    /// At once; the log is synced each time so much time has passed. A power cut loses at most about twice as much.
    Interval(Duration),
    /// At once; the log is synced when its buffer is full, and before a flush.
    No,
}

/// A tree of sorted records.
#[derive(Debug, Clone, Copy)]
pub struct TreeOptions {
    /// Its name in the manifest.
    pub name: &'static str,
    /// How many live elements a value stands for: records carry weights then, and each write looks up what stood there.
    pub weigh: Option<fn(&[u8]) -> i64>,
    /// Its runs carry filters: worth it where keys are asked for that are not there.
    pub filtered: bool,
    /// When the first of what a value holds expires, milliseconds since 1970 or as the store counts; 0: never.
    pub deadline: fn(&[u8]) -> u64,
}

impl TreeOptions {
    /// Without weights, filters and deadlines.
    pub const fn plain(name: &'static str) -> Self {
        Self { name, weigh: None, filtered: false, deadline: |_| 0 }
    }

    /// Of files of about so many bytes.
    pub(crate) fn shape(&self, file_bytes: u64) -> Shape {
        let weighted = self.weigh.is_some();
        Shape { weighted, filtered: self.filtered, deadline: self.deadline, file_bytes, ended: 0 }
    }
}

/// What an engine is opened with.
pub struct EngineOptions {
    pub disk: Arc<dyn Disk>,
    /// The store's own folder.
    pub folder: PathBuf,
    pub pages: Pages,
    pub budget: Budget,
    /// Everything of the store is booked below this account.
    pub account: Account,
    /// Bytes of the budget that the store may use; its page cache not included.
    pub share: u64,
    pub clock: Arc<dyn Clock>,
    pub durability: Durability,
    /// False: no threads; the owner calls [`crate::Engine::step`]. The simulator lives in one thread.
    pub threads: bool,
}

/// What the open of a store of so many trees takes, with the least share: it may have to replay a log, to flush and to merge.
pub fn open_bytes(trees: usize) -> u64 {
    Limits::of(0, trees).awake_bytes() + THREADS * THREAD_BYTES
}

/// What a store of so many trees takes on top of its files' tables, with the least share: writing, its threads, and the largest unit.
pub fn working_bytes(trees: usize) -> u64 {
    open_bytes(trees) + Limits::of(0, trees).large_bytes()
}

/// The log of a store of so many trees at most, with a share: what is not flushed, the file that is written and the next one.
pub fn log_bytes_most(share: u64, trees: usize) -> u64 {
    let limits = Limits::of(share, trees);
    limits.log_bytes + 2 * limits.log_file_bytes()
}

/// Sizes that follow from the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The memtables of all trees together, before the largest of them is flushed.
    pub(crate) memtable_bytes: u64,
    /// How many of them there are.
    trees: u64,
    /// A unit of more effects than this waits for a group that is made for it.
    pub(crate) unit_bytes: usize,
    /// It may take more of memtables than they have left.
    pub(crate) is_large: bool,
    /// A group that has so many bytes takes no other unit.
    pub(crate) group_bytes: usize,
    /// The buffer of one write of the log.
    pub(crate) log_buffer: usize,
    /// The log from the oldest unflushed effect on, before a flush is due whatever the memtable holds.
    pub(crate) log_bytes: u64,
    /// What a flush and what a merge have for good, and a file of what they write.
    pub(crate) flush_work: u64,
    pub(crate) merge_work: u64,
    pub(crate) file_bytes: u64,
}

/// A value that a command may write, read and remove, whatever the share.
pub(crate) const VALUE_BYTES_MAX: u64 = 2 << 20;
/// Effects of one unit in the log at most, whatever the share: the largest value, its key and what is said of it among them.
pub(crate) const UNIT_BYTES_MAX: u64 = VALUE_BYTES_MAX + (128 << 10);
/// In a memtable a unit takes less than so many times what it has: of slots a fifth is lost at most, and of chunks a fourth, where
/// three of the largest slots fill one of four.
pub(crate) const HELD_TIMES: u64 = 2;
/// A group for the largest unit, and as much of memtables; of three quarters of the largest twice as much.
pub(crate) const KEPT_FOR_LARGE: u64 = 2 * UNIT_BYTES_MAX + (256 << 10);
const MEMTABLE_LEAST: u64 = 256 << 10;
/// What an empty memtable takes: its first chunk and its lists. As much is kept for the one that takes the place of another.
pub(crate) const FIRST_BYTES: u64 = 96 << 10;

const _: () =
    assert!(VALUE_BYTES_MAX + (KEY_MAX as u64) + 128 <= UNIT_BYTES_MAX, "any key with the largest value is a unit");
const _: () = assert!(UNIT_BYTES_MAX < LOG_RECORD_MAX as u64, "an effect is one record of the log at most");

/// A merge of eight runs takes this besides the filter of the file that it writes, of which a page costs about an eighth.
const MERGE_BESIDE_FILTER: u64 = 2 << 20;

impl Limits {
    pub(crate) fn of(share: u64, trees: usize) -> Self {
        let (trees, others) = (trees as u64, (trees as u64).saturating_sub(1) * FIRST_BYTES);
        let flush_work = (share / 16).clamp(flush_bytes(MEMTABLE_LEAST), 8 << 20);
        let merge_work = (share / 8).clamp(2176 << 10, 16 << 20);
        let rest = share.saturating_sub(flush_work + merge_work + trees * FIRST_BYTES);
        let memtable_bytes = (share / 6).min(rest / 4).clamp(MEMTABLE_LEAST + others, (64 << 20) + others);
        // What the first chunks leave.
        let part = (memtable_bytes - others) / 4;
        Self {
            memtable_bytes,
            trees,
            unit_bytes: part.min(UNIT_BYTES_MAX) as usize,
            is_large: part >= UNIT_BYTES_MAX,
            group_bytes: part.min(512 << 10) as usize,
            log_buffer: part.next_multiple_of(128 << 10).min(512 << 10) as usize,
            log_bytes: memtable_bytes * 2,
            flush_work: flush_work.max(flush_bytes(memtable_bytes)),
            merge_work,
            file_bytes: ((merge_work - MERGE_BESIDE_FILTER) * 8).clamp(1 << 20, 8 << 20),
        }
    }

    /// Of a share, of which what a large unit takes for the moment is kept where no group takes one: nobody else may have it to give.
    pub(crate) fn within(share: u64, trees: usize) -> Self {
        let whole = Self::of(share, trees);
        if whole.is_large { whole } else { Self::of(share.saturating_sub(KEPT_FOR_LARGE), trees) }
    }

    /// The same with a group that takes a unit of so many bytes.
    pub(crate) fn with_unit(self, unit_bytes: usize) -> Self {
        Self { unit_bytes, is_large: true, ..self }
    }

    /// The same where no merge has anything for good.
    pub(crate) fn without_merge(self) -> Self {
        Self { merge_work: 0, ..self }
    }

    /// A file of the log holds about so much.
    pub(crate) fn log_file_bytes(&self) -> u64 {
        (self.log_bytes / 2).clamp(1 << 20, 16 << 20)
    }

    /// What a memtable is made for: all that there is for memtables, and a large unit on top.
    pub(crate) fn memtable_most(&self) -> u64 {
        self.memtable_bytes + HELD_TIMES * UNIT_BYTES_MAX
    }

    /// For memtables: those that hold `held` by now, flushed ones among them, as much again as there may be, and the next ones.
    pub(crate) fn memtables_for(&self, held: u64) -> u64 {
        self.memtable_bytes + held.max(self.memtable_bytes) + self.trees * FIRST_BYTES
    }

    /// What a store that is written to takes: memtables that are written and that are flushed, two groups, the log's buffer, one
    /// flush and one merge.
    pub(crate) fn awake_bytes(&self) -> u64 {
        let groups = 2 * (self.group_bytes + self.unit_bytes) + self.log_buffer;
        self.memtables_for(0) + groups as u64 + self.flush_work + self.merge_work
    }

    /// What the largest unit takes on top for the moment.
    pub(crate) fn large_bytes(&self) -> u64 {
        UNIT_BYTES_MAX + HELD_TIMES * UNIT_BYTES_MAX * 9 / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_holds_what_follows_from_it() {
        for (share, trees) in (6..512).flat_map(|mib| (1..=8).map(move |trees| (mib << 20, trees))) {
            let limits = Limits::of(share, trees);
            assert!(limits.awake_bytes() <= share, "{share}: {limits:?}");
            let within = Limits::within(share, trees);
            let kept = if within.is_large { 0 } else { KEPT_FOR_LARGE };
            let is_awake = share >= kept + Limits::of(0, trees).awake_bytes();
            assert!(!is_awake || within.awake_bytes() + kept <= share, "{share}: {within:?}");
            assert!(limits.merge_work >= MERGE_BESIDE_FILTER + limits.file_bytes / 8);
            assert!(limits.flush_work >= flush_bytes(limits.memtable_bytes));
        }
        for trees in 1..=8 {
            let limits = Limits::of(0, trees as usize);
            let most = (3616 << 10) + (trees - 1) * (3 * FIRST_BYTES + FIRST_BYTES / 8);
            assert!(limits.awake_bytes() <= most, "{limits:?}");
        }
    }
}
