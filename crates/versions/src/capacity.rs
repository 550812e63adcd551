//! What a store of versions will take, before there is any data: by formulas.
//!
//! ```text
//!   keys, versions, key and value bytes ─► records of each tree x what is said beside them ─► disk
//!                                     disk ─► tables of open files ─► least share
//!   share ─► how long the log is
//! ```
//!
//! Keys count as if no two of them began alike, which blocks of sorted keys do not write twice: names that begin alike take less.

use crate::record::HERE_MAX;
use crate::stage::TREES;

/// A store to be. Of all keys it has 2^32 versions at most, so that their bytes can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub keys: u64,
    /// Of each key, the newest one included, as far as they are not compacted.
    pub versions: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
}

/// What it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The newest versions on disk: what reads of the present ask for.
    pub newest_bytes: u64,
    /// Versions that ended, on disk.
    pub ended_bytes: u64,
    /// What watches read, on disk.
    pub changes_bytes: u64,
    /// Tables of the files, in memory whoever asks.
    pub tables_bytes: u64,
    /// The least share of the budget with which it takes whatever may be written, as a server asks for at its start.
    pub least_share: u64,
    /// Indexes of the files: where they are in the cache, a key is one read.
    pub index_bytes: u64,
}

/// A version's own numbers in a record, and the record's in its block.
const BESIDE_VERSION: u64 = 12;
/// A change besides its key: revision and number, and the record's own.
const CHANGE: u64 = 14;
/// The revision behind a key.
const REVISION: u64 = 9;
/// A record of a long value besides key and value.
const BESIDE_LONG: u64 = 16;
/// Pages are not quite full, and there are indexes: measured over keys of 16 to 64 and values of 32 to 5,000 bytes, per cent.
const PAGES: u64 = 104;
const PAGE: u64 = 4096;
/// A file at about the shares of small budgets, and what it holds in memory while it is open.
const FILE: u64 = 4 << 20;
const OPEN_FILE: u64 = 2 << 10;
/// A request that changes something has no more bytes than these, unless its server is told otherwise: 1.5 MiB.
pub const REQUEST_MAX: usize = 1_572_864;
/// What the largest request takes while it comes: its bytes as they came, and as they are decoded.
pub(crate) const REQUEST_BYTES: u64 = 2 * REQUEST_MAX as u64;
/// Files that wait for a merge; and tables may be a fourth larger than told, so that the least share is not too small.
const UNMERGED: u64 = 8 * TREES as u64;
/// What a page takes in the table of its file, and a block of the index besides its key, which stands there twice.
const OPEN_PAGE: u64 = 8;
const OPEN_BLOCK: u64 = 64;
/// An entry of an index besides its key.
const BESIDE_ENTRY: u64 = 16;

impl Expected {
    /// Versions of all keys.
    pub fn records(&self) -> u64 {
        self.keys * self.versions
    }

    pub fn capacity(&self) -> Capacity {
        let (key, value) = (self.key_bytes, self.value_bytes);
        let long = value > HERE_MAX as u64;
        let here = if long { 8 } else { value };
        let there = if long { key + REVISION + value + BESIDE_LONG } else { 0 };
        let pages = |bytes: u64| bytes * PAGES / 100;
        let newest_bytes = pages(self.keys * (key + here + BESIDE_VERSION + there));
        let ended = self.records() - self.keys.min(self.records());
        let ended_bytes = pages(ended * (key + REVISION + here + BESIDE_VERSION + there));
        let changes_bytes = pages(self.records() * (key + CHANGE));
        let disk = newest_bytes + ended_bytes + changes_bytes;
        let in_page = PAGE / (key + BESIDE_ENTRY);
        let (pages, blocks) = (disk / PAGE, disk / PAGE / in_page.max(1));
        let files = disk / FILE + TREES as u64;
        let tables_bytes = pages * OPEN_PAGE + blocks * (OPEN_BLOCK + 2 * key) + files * OPEN_FILE;
        Capacity {
            newest_bytes,
            ended_bytes,
            changes_bytes,
            tables_bytes,
            least_share: tables_bytes * 5 / 4
                + UNMERGED * OPEN_FILE
                + ramekin_engine::working_bytes(TREES)
                + REQUEST_BYTES,
            index_bytes: (blocks + 1) * PAGE,
        }
    }
}

impl Capacity {
    /// On disk, but for the log.
    pub fn stored_bytes(&self) -> u64 {
        self.newest_bytes + self.ended_bytes + self.changes_bytes
    }

    /// The share with more of which it would do nothing better.
    pub fn most_share(&self) -> u64 {
        ((self.stored_bytes() / 8).max(2 << 20) * 6).max(self.least_share)
    }

    /// The log at most, with so large a share.
    pub fn log_bytes(&self, share: u64) -> u64 {
        ramekin_engine::log_bytes_most(share.clamp(self.least_share, self.most_share()), TREES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_can_be_counted() {
        for (keys, versions) in [(1 << 32, 1), (1, 1 << 32), (0, 1 << 32)] {
            let most = Expected { keys, versions, key_bytes: 32_735, value_bytes: 2 << 20 }.capacity();
            assert!(most.stored_bytes() < 1 << 56 && most.least_share < 1 << 58, "{most:?}");
            assert!(most.log_bytes(0) > 0, "the least share is never more than the most");
        }
    }

    #[test]
    fn what_was_measured_is_near_the_formula() {
        // Keys of drawn letters, written out but for what memtables held, which is added as it would be written.
        for (keys, versions, key_bytes, value_bytes, measured) in [
            (100_000, 1, 64, 256, 42_500_000u64),
            (100_000, 1, 16, 32, 8_650_000),
            (20_000, 5, 64, 256, 43_400_000),
            (20_000, 1, 64, 1500, 35_200_000),
            (2_000, 5, 32, 5000, 52_400_000),
        ] {
            let told = Expected { keys, versions, key_bytes, value_bytes }.capacity();
            let difference = told.stored_bytes().abs_diff(measured) as f64 / measured as f64;
            assert!(difference < 0.1, "{told:?} is {} of {measured}", told.stored_bytes());
        }
    }

    #[test]
    fn tables_of_files_are_a_small_part() {
        for (key_bytes, value_bytes, measured) in [(64, 256, 145_020u64), (16, 32, 36_200)] {
            let told = Expected { keys: 100_000, versions: 1, key_bytes, value_bytes }.capacity().tables_bytes;
            assert!(told > measured * 3 / 4 && told < measured * 5 / 4, "{told} of {measured}");
        }
        let more = Expected { keys: 10_000_000, versions: 1, key_bytes: 64, value_bytes: 256 }.capacity();
        assert!(more.least_share < 32 << 20 && more.log_bytes(0) < more.log_bytes(64 << 20), "{more:?}");
    }
}
