//! Sorts records of a key and a value, as many as there are, in the memory that there is (external merge sort).
//!
//! ```text
//!   push ─► [arena] ──full──► sorted ─► a run in a temporary file
//!                                        runs ─► merged, 16 at a time ─► one: each record once, by key and then by value
//!                                             └─► few enough are merged as they are read, where nobody counts them
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
/// Buffer of a run, bytes; of a long sort they are whole pages.
const BUFFER: usize = 16 << 10;
const BUFFER_STEP: usize = 4 << 10;
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
    /// Of a long sort: runs by how often what they have was merged, fewer than [`FAN_IN`] of each, since each is an open file.
    levels: Option<Vec<Vec<SpillFile>>>,
    /// Of a run.
    buffer: usize,
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
        let (runs, levels, buffer) = (VecDeque::new(), None, BUFFER);
        Ok(Self { scratch, name, arena, places, runs, levels, buffer, made: 0, held: Some(held) })
    }

    /// A sort of any length, with so many bytes of memory for everything until [`Sorter::merged`]: few files are open, and a small
    /// part of what there is is written more than twice.
    pub fn long(scratch: &'w Scratch<'w>, name: &str, bytes: usize) -> Result<Self> {
        let buffer = (bytes / 2 / (FAN_IN + 1) / BUFFER_STEP * BUFFER_STEP).max(BUFFER_STEP);
        let sorter = Self::new(scratch, name, bytes / 2)?;
        Ok(Self { buffer, levels: Some(Vec::new()), ..sorter })
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
        SpillFile::create(&self.scratch.disk, &path, &self.scratch.account, self.buffer)
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
        self.arena.clear();
        self.places.clear();
        match self.levels.take() {
            Some(levels) => self.levels = Some(self.add(levels, run)?),
            None => self.runs.push_back(run),
        }
        (self.scratch.check)()
    }

    /// Adds a run; as many as can be merged become one of the next level.
    fn add(&mut self, mut levels: Vec<Vec<SpillFile>>, mut run: SpillFile) -> Result<Vec<Vec<SpillFile>>> {
        for level in &mut levels {
            level.push(run);
            if level.len() < FAN_IN {
                return Ok(levels);
            }
            let full = std::mem::take(level);
            run = self.merge(&full)?.spool;
        }
        levels.push(vec![run]);
        Ok(levels)
    }

    /// Ends a long sort: what it leaves is merged as it is read.
    pub fn merged(mut self) -> Result<Runs> {
        self.spill()?;
        (self.arena, self.places, self.held) = (Vec::new(), Vec::new(), None);
        // The smallest first.
        let mut runs: VecDeque<SpillFile> = self.levels.take().unwrap_or_default().into_iter().flatten().collect();
        while runs.len() > FAN_IN {
            let few: Vec<SpillFile> = runs.drain(..(runs.len() - FAN_IN + 1).min(FAN_IN)).collect();
            let merged = self.merge(&few)?;
            drop(few);
            runs.push_front(merged.spool);
        }
        Ok(Runs { runs: runs.into(), buffer: self.buffer })
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
        let sources =
            runs.iter().map(|run| Records::open(run, &self.scratch.account, self.buffer)).collect::<Result<_>>()?;
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
    fn open(spool: &'a SpillFile, account: &Account, buffer: usize) -> Result<Self> {
        let mut records = Self { reader: spool.read(account, buffer)?, bytes: Vec::new(), key: 0, there: true };
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
        Records::open(&self.spool, account, BUFFER)
    }
}

/// What a long sort leaves.
pub struct Runs {
    runs: Vec<SpillFile>,
    buffer: usize,
}

/// Records of several files, one after the other.
pub struct MergedRecords<'a>(Merge<Records<'a>>);

impl Runs {
    /// All records from the start.
    pub fn read(&self, account: &Account) -> Result<MergedRecords<'_>> {
        let open = |run| Records::open(run, account, self.buffer);
        let mut merge = Merge::new(self.runs.iter().map(open).collect::<Result<_>>()?);
        merge.start();
        Ok(MergedRecords(merge))
    }
}

impl MergedRecords<'_> {
    /// Key and value of the record; `None`: there are no more.
    pub fn record(&self) -> Option<(&[u8], &[u8])> {
        self.0.key()
    }

    /// Goes to the next record.
    #[allow(clippy::should_implement_trait, reason = "a record borrows from its reader, which no Iterator can say")]
    pub fn next(&mut self) -> Result<()> {
        self.0.advance()
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
            memory in 300usize..5000,
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
            let mut sorter = Sorter::long(&scratch, "long", memory).unwrap();
            all.iter().for_each(|(key, value)| sorter.push(key, value).unwrap());
            prop_assert!(sorter.levels.iter().flatten().all(|level| level.len() < FAN_IN));
            let runs = sorter.merged().unwrap();
            for _ in 0..2 {
                let mut records = runs.read(&account).unwrap();
                for (key, value) in &expected {
                    prop_assert_eq!(records.record(), Some((&key[..], &value[..])));
                    records.next().unwrap();
                }
                prop_assert_eq!(records.record(), None);
            }
            drop(runs);
            prop_assert_eq!(account.used(), 0);
        }
    }
}
