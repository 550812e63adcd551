//! Sorts records of a key and a value, as many as there are, in the memory that there is (external merge sort).
//!
//! ```text
//!   push ─► [arena] ──full──► sorted ─► a run in a temporary file
//!                                        runs ─► merged, 16 at a time ─► one: each record once, by key and then by value
//!   record: bytes of the key, bytes of the value: varints │ key │ value
//! ```

use crate::entry::KEY_MAX;
use crate::merge::{Merge, Sorted as Source};
use ramekin_base::varint;
use ramekin_base::{Error, Result};
use ramekin_disk::{Disk, SpillFile, SpillReader};
use ramekin_memory::{Account, Reservation};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs that are merged at a time.
const FAN_IN: usize = 16;
/// Buffer of a run, bytes.
const BUFFER: usize = 16 << 10;
/// Runs at most, each of which is an open file: some are merged before there are more.
const RUNS_MAX: usize = 4 * FAN_IN;
/// Bytes of a record at most.
const RECORD_MAX: usize = 2 * KEY_MAX;
/// Records between two looks whether to stop.
const CHECK_EVERY: u64 = 65_536;

/// Where a sort works.
pub struct Scratch<'a> {
    pub disk: Arc<dyn Disk>,
    /// A folder for temporary files, whose owner empties it at start.
    pub folder: PathBuf,
    pub account: Account,
    /// An error where the sort is to stop.
    pub check: &'a dyn Fn() -> Result<()>,
}

/// Takes records in any order.
pub struct Sorter<'w> {
    scratch: &'w Scratch<'w>,
    name: String,
    arena: Vec<u8>,
    /// Where in the arena each record begins.
    places: Vec<u32>,
    runs: VecDeque<SpillFile>,
    /// Runs so far, so that each file has a name of its own.
    made: usize,
    held: Option<Reservation>,
}

/// All records in order, each once.
pub struct Sorted {
    spool: SpillFile,
    /// How many there are.
    pub records: u64,
    /// Different keys.
    pub distinct: u64,
    /// Bytes of each key, where all have as many.
    pub key_len: Option<usize>,
}

impl<'w> Sorter<'w> {
    /// Memory for runs that are merged, and the one that is written.
    pub const MERGE_BYTES: u64 = ((FAN_IN + 1) * BUFFER) as u64;

    /// With so many bytes of memory; its files have `name` in theirs.
    pub fn new(scratch: &'w Scratch<'w>, name: &str, bytes: usize) -> Result<Self> {
        let held = scratch.account.try_reserve(bytes as u64)?;
        let (arena, places) = (Vec::with_capacity(bytes / 3 * 2), Vec::with_capacity(bytes / 3 / 4));
        let name = name.to_owned();
        Ok(Self { scratch, name, arena, places, runs: VecDeque::new(), made: 0, held: Some(held) })
    }

    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let len = varint::len(key.len() as u64) + varint::len(value.len() as u64) + key.len() + value.len();
        if self.arena.len() + len > self.arena.capacity() || self.places.len() == self.places.capacity() {
            self.spill()?;
        }
        if len > self.arena.capacity() || len > RECORD_MAX {
            return Err(Error::too_large(format!("a record of {len} bytes is too long to be sorted")));
        }
        self.places.push(self.arena.len() as u32);
        put(&mut self.arena, key, value);
        Ok(())
    }

    fn create(&mut self) -> Result<SpillFile> {
        self.made += 1;
        let path = self.scratch.folder.join(format!("sort-{}-{}", self.name, self.made));
        SpillFile::create(&self.scratch.disk, &path, &self.scratch.account, BUFFER)
    }

    /// Writes what is in memory as a run.
    fn spill(&mut self) -> Result<()> {
        let arena = &self.arena;
        self.places.sort_unstable_by(|a, b| record(arena, *a).0.cmp(&record(arena, *b).0));
        self.places.dedup_by(|a, b| record(arena, *a).1 == record(arena, *b).1);
        let mut run = self.create()?;
        for place in &self.places {
            run.append(record(&self.arena, *place).1)?;
        }
        run.finish()?;
        self.runs.push_back(run);
        self.arena.clear();
        self.places.clear();
        if self.runs.len() == RUNS_MAX {
            let oldest: Vec<SpillFile> = self.runs.drain(..FAN_IN).collect();
            let merged = self.merge(&oldest)?;
            self.runs.push_back(merged.spool);
        }
        (self.scratch.check)()
    }

    pub fn finish(mut self) -> Result<Sorted> {
        self.spill()?;
        (self.arena, self.places, self.held) = (Vec::new(), Vec::new(), None);
        loop {
            let is_last = self.runs.len() <= FAN_IN;
            let runs: Vec<SpillFile> = self.runs.drain(..self.runs.len().min(FAN_IN)).collect();
            let merged = self.merge(&runs)?;
            // Here, not at the end of the block: what a drop that panics finds already returned is
            // never dropped itself (rust-lang/rust#47949), and a spool is a file and its memory.
            drop(runs);
            if is_last {
                return Ok(merged);
            }
            self.runs.push_back(merged.spool);
        }
    }

    fn merge(&mut self, runs: &[SpillFile]) -> Result<Sorted> {
        let mut out = Sorted { spool: self.create()?, records: 0, distinct: 0, key_len: None };
        let sources = runs.iter().map(|run| Records::open(run, &self.scratch.account)).collect::<Result<_>>()?;
        let mut merge = Merge::new(sources);
        merge.start();
        let (mut last, mut bytes, mut lens) = (Vec::new(), Vec::new(), (usize::MAX, 0));
        while let Some((key, value)) = merge.key() {
            out.distinct += u64::from(out.records == 0 || last != key);
            lens = (lens.0.min(key.len()), lens.1.max(key.len()));
            last.clear();
            last.extend_from_slice(key);
            bytes.clear();
            put(&mut bytes, key, value);
            out.spool.append(&bytes)?;
            out.records += 1;
            if out.records.is_multiple_of(CHECK_EVERY) {
                (self.scratch.check)()?;
            }
            merge.advance()?;
        }
        out.spool.finish()?;
        out.key_len = (lens.0 == lens.1).then_some(lens.0);
        Ok(out)
    }
}

fn put(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    varint::put(out, key.len() as u64);
    varint::put(out, value.len() as u64);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// A record in the arena: key and value, and all of its bytes.
fn record(arena: &[u8], place: u32) -> ((&[u8], &[u8]), &[u8]) {
    let (from, mut at) = (place as usize, place as usize);
    // What `put` wrote.
    let key = varint::get(arena, &mut at).unwrap_or(0) as usize;
    let value = varint::get(arena, &mut at).unwrap_or(0) as usize;
    ((&arena[at..at + key], &arena[at + key..at + key + value]), &arena[from..at + key + value])
}

/// Records of a file, one after the other.
pub struct Records<'a> {
    reader: SpillReader<'a>,
    /// Key and value.
    bytes: Vec<u8>,
    key: usize,
    there: bool,
}

impl<'a> Records<'a> {
    /// Stands on the first record.
    fn open(spool: &'a SpillFile, account: &Account) -> Result<Self> {
        let mut records = Self { reader: spool.read(account, BUFFER)?, bytes: Vec::new(), key: 0, there: true };
        records.next()?;
        Ok(records)
    }

    /// Goes to the next record.
    #[allow(clippy::should_implement_trait, reason = "a record borrows from its reader, which no Iterator can say")]
    pub fn next(&mut self) -> Result<()> {
        self.there = self.reader.left() > 0;
        if self.there {
            self.key = self.length()?;
            let value = self.length()?;
            self.bytes.resize(self.key + value, 0);
            self.reader.read_exact(&mut self.bytes)?;
        }
        Ok(())
    }

    fn length(&mut self) -> Result<usize> {
        let (mut bytes, mut len) = ([0; varint::VARINT_MAX], 0);
        loop {
            self.reader.read_exact(&mut bytes[len..=len])?;
            len += 1;
            if bytes[len - 1] < 0x80 || len == bytes.len() {
                let length = varint::get(&bytes[..len], &mut 0).filter(|length| *length <= RECORD_MAX as u64);
                let damaged = || Error::corrupt("a temporary file of a sort is not what was written; it is made again");
                return length.map(|length| length as usize).ok_or_else(damaged);
            }
        }
    }

    /// Key and value of the record; `None`: there are no more.
    pub fn record(&self) -> Option<(&[u8], &[u8])> {
        self.there.then(|| self.bytes.split_at(self.key))
    }
}

impl Source for Records<'_> {
    type Key<'k>
        = (&'k [u8], &'k [u8])
    where
        Self: 'k;

    fn key(&self) -> Option<(&[u8], &[u8])> {
        self.record()
    }

    fn step(&mut self, _forward: bool) -> Result<()> {
        self.next()
    }
}

impl Sorted {
    /// All records from the start.
    pub fn read(&self, account: &Account) -> Result<Records<'_>> {
        Records::open(&self.spool, account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_disk::sim::{Faults, SimDisk};
    use ramekin_memory::Budget;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 0..6)
    }

    proptest! {
        #[test]
        fn records_come_out_in_order_each_once(
            all in proptest::collection::vec((bytes(), bytes()), 0..400),
            memory in 200usize..5000,
        ) {
            let budget = Budget::new(8 << 20);
            let disk = SimDisk::new(1, Faults::default());
            disk.make_folder(Path::new("/sort")).unwrap();
            let account = budget.root().child("sort", "");
            let scratch = Scratch {
                disk: Arc::new(disk),
                folder: "/sort".into(),
                account: account.clone(),
                check: &|| Ok(()),
            };
            let mut sorter = Sorter::new(&scratch, "test", memory).unwrap();
            all.iter().for_each(|(key, value)| sorter.push(key, value).unwrap());
            let sorted = sorter.finish().unwrap();
            let expected: BTreeSet<_> = all.iter().cloned().collect();
            let keys: BTreeSet<_> = all.iter().map(|(key, _)| key).collect();
            prop_assert_eq!((sorted.records, sorted.distinct), (expected.len() as u64, keys.len() as u64));
            let mut records = sorted.read(&account).unwrap();
            for (key, value) in &expected {
                prop_assert_eq!(records.record(), Some((&key[..], &value[..])));
                records.next().unwrap();
            }
            prop_assert_eq!(records.record(), None);
            drop(records);
            drop(sorted);
            prop_assert_eq!(account.used(), 0);
        }
    }
}
