//! A read view: one moment of a tree, pinned. What is written, flushed or merged later does not show in it.
//!
//! ```text
//!   roots of memtables, newest first ─┐
//!   runs, oldest first ───────────────┴─► get · get_many · range · weight_below (rank) · select · count
//! ```
//!
//! A view holds files and roots, so disk and memory that were given up stay taken until it is dropped: whoever hands views out
//! says for how long.

use crate::block::Block;
use crate::cursor::RunCursor;
use crate::entry::{Entry, Extent, Value};
use crate::file::RunFile;
use crate::format::BlockAt;
use crate::memtable::{MemoryCursor, Memtable, Root, UnitCursor};
use crate::merge::{Merge, Source};
use crate::run::Run;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Pages of one batch of look-ups at most: a fetch of 1 MiB always finds room.
const BATCH: usize = 128;
/// A piece of a big value that is read at a time.
const PIECE: usize = 64 << 10;

/// One moment of a tree.
#[derive(Clone)]
pub struct View {
    /// The newest first.
    pub(crate) roots: Vec<Arc<Root>>,
    /// The oldest first.
    pub(crate) runs: Arc<[Arc<Run>]>,
}

/// A big value: where its bytes are.
#[derive(Clone)]
pub struct Big {
    file: Arc<RunFile>,
    extent: Extent,
}

/// A record that was found.
pub struct Found<'a> {
    pub entry: Entry<'a>,
    file: Option<&'a Arc<RunFile>>,
}

impl Found<'_> {
    /// The value, if it is big.
    pub fn big(&self) -> Option<Big> {
        match (self.entry.value, self.file) {
            (Value::Big(extent), Some(file)) => Some(Big { file: file.clone(), extent }),
            _ => None,
        }
    }
}

impl Big {
    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "no big value is empty")]
    pub fn len(&self) -> u64 {
        self.extent.len
    }

    /// Reads `out.len()` bytes from byte `from` of the value on.
    pub fn read(&self, pages: &Pages, from: u64, out: &mut [u8]) -> Result<()> {
        let mut at = from;
        for piece in out.chunks_mut(PIECE) {
            self.file.read_big(pages, self.extent, at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl View {
    pub fn new(roots: Vec<Arc<Root>>, runs: Arc<[Arc<Run>]>) -> Self {
        Self { roots, runs }
    }

    /// The roots of memtables, the newest first.
    pub fn roots(&self) -> &[Arc<Root>] {
        &self.roots
    }

    /// The runs, the oldest first.
    pub fn runs(&self) -> &Arc<[Arc<Run>]> {
        &self.runs
    }

    /// Shows the newest record of a key, be it a tombstone.
    pub fn get<T>(&self, pages: &Pages, key: &[u8], read: impl FnOnce(&Found<'_>) -> Result<T>) -> Result<Option<T>> {
        for root in &self.roots {
            if let Some(entry) = root.get(key) {
                return read(&Found { entry, file: None }).map(Some);
            }
        }
        let (hash, mut read) = (Run::hash(key), Some(read));
        for run in self.runs.iter().rev() {
            let found = run.get(pages, key, hash, |entry, file| match read.take() {
                Some(read) => read(&Found { entry: *entry, file: Some(file) }),
                None => Err(Error::bug("a record was found twice")),
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Shows the newest record of each key, in whatever order, with the number of the key. All pages of a step are read as one
    /// batch.
    pub fn get_many(
        &self,
        pages: &Pages,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Option<&Found<'_>>) -> Result<()>,
    ) -> Result<()> {
        let mut missing = Vec::with_capacity(keys.len().min(BATCH));
        for (number, key) in keys.iter().enumerate() {
            match self.roots.iter().find_map(|root| root.get(key)) {
                Some(entry) => each(number, Some(&Found { entry, file: None }))?,
                None => missing.push(number),
            }
            if missing.len() * self.runs.len().max(1) >= BATCH {
                self.get_batch(pages, keys, &missing, each)?;
                missing.clear();
            }
        }
        self.get_batch(pages, keys, &missing, each)
    }

    fn get_batch(
        &self,
        pages: &Pages,
        keys: &[&[u8]],
        numbers: &[usize],
        each: &mut dyn FnMut(usize, Option<&Found<'_>>) -> Result<()>,
    ) -> Result<()> {
        // The newest run first for each key.
        let mut asked = Vec::with_capacity(numbers.len() * self.runs.len());
        for number in numbers {
            let hash = Run::hash(keys[*number]);
            let files = self.runs.iter().rev().filter_map(|run| run.file_for(keys[*number], hash));
            asked.extend(files.map(|file| (*number, file)));
        }
        let mut fetch = pages.fetch();
        let mut wants = Vec::with_capacity(asked.len());
        for (number, file) in &asked {
            wants.push(file.want_index(&mut fetch, keys[*number])?);
        }
        let index = fetch.run()?;
        let locate =
            |((number, file), want): (&(usize, &Arc<RunFile>), &_)| file.locate_in(index.bytes(*want), keys[*number]);
        let blocks: Vec<BlockAt> = asked.iter().zip(&wants).map(locate).collect::<Result<_>>()?;
        drop(index);
        let mut fetch = pages.fetch();
        wants.clear();
        for ((_, file), at) in asked.iter().zip(&blocks) {
            wants.push(file.want_block(&mut fetch, at)?);
        }
        let bodies = fetch.run()?;
        let mut rest = asked.iter().zip(&wants).peekable();
        for number in numbers {
            let mut found = None;
            while let Some(((_, file), want)) = rest.next_if(|((other, _), _)| other == number) {
                if found.is_none() {
                    let named = |error| file.named(error);
                    let block = Block::open(bodies.bytes(*want)).map_err(named)?;
                    let (place, is_there) = block.lower_bound(keys[*number]).map_err(named)?;
                    if is_there {
                        let entry = block.entry_of(place, keys[*number]).map_err(named)?;
                        found = Some(Found { entry, file: Some(file) });
                    }
                }
            }
            each(*number, found.as_ref())?;
        }
        Ok(())
    }

    /// All records between two keys, in either direction; `account` pays for a window a run.
    pub fn range(&self, pages: &Pages, account: &Account) -> Result<Range> {
        self.range_of(None, pages, account)
    }

    /// The same with a memtable on top, which is newer than all that is in the view.
    pub fn range_below<'m>(&self, newest: UnitCursor<'m>, pages: &Pages, account: &Account) -> Result<UnitRange<'m>> {
        let range = self.range_of(Some(newest.unbound()), pages, account)?;
        Ok(UnitRange { range, _memtable: PhantomData })
    }

    fn range_of(&self, newest: Option<MemoryCursor>, pages: &Pages, account: &Account) -> Result<Range> {
        let roots = self.roots.iter().map(|root| MemoryCursor::new(root.clone()));
        let memory = newest.into_iter().chain(roots).map(|cursor| Ok(Source::Memory(cursor)));
        let runs = self.runs.iter().rev().map(|run| Ok(Source::Run(RunCursor::new(run.clone(), pages, account)?)));
        Ok(Range(Merge::new(memory.chain(runs).collect::<Result<_>>()?)))
    }

    /// The sum of the weights of all records below a key: how many live elements there are before it.
    pub fn weight_below(&self, pages: &Pages, key: &[u8]) -> Result<i64> {
        let memory: i64 = self.roots.iter().map(|root| root.weight_below(key)).sum();
        self.runs.iter().try_fold(memory, |sum, run| Ok(sum + run.weight_below(pages, key)?))
    }

    /// Live elements from one key on and below another.
    pub fn count(&self, pages: &Pages, from: &[u8], to: &[u8]) -> Result<i64> {
        if to <= from {
            return Ok(0);
        }
        Ok(self.weight_below(pages, to)? - self.weight_below(pages, from)?)
    }

    /// The key that holds live element `number` of those from `from` on and below `to`, and how many elements of it stand
    /// before that one; `None`: there are not so many. The first is 0.
    pub fn select(
        &self,
        pages: &Pages,
        account: &Account,
        (from, to): (&[u8], &[u8]),
        number: i64,
    ) -> Result<Option<(Vec<u8>, i64)>> {
        let before = self.weight_below(pages, from)?;
        let target = before.checked_add(number).filter(|_| number >= 0);
        let target = target.ok_or_else(|| Error::invalid(format!("there is no element number {number}")))?;
        let mut low = (from.to_vec(), before);
        // The longest runs narrow most.
        let mut runs: Vec<&Arc<Run>> = self.runs.iter().collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.bytes()));
        for run in runs {
            // Beyond `to` another range of numbers may begin, which no count crosses.
            run.narrow(pages, &mut low, &mut |key| match key < to {
                true => Ok(Some(self.weight_below(pages, key)?).filter(|below| *below <= target)),
                false => Ok(None),
            })?;
        }
        let (key, mut sum) = low;
        let mut range = self.range(pages, account)?;
        range.seek(&key)?;
        while let Some(found) = range.entry()?.filter(|found| found.entry.key < to) {
            if sum + found.entry.weight > target {
                return Ok(Some((found.entry.key.to_vec(), target - sum)));
            }
            sum += found.entry.weight;
            range.advance()?;
        }
        Ok(None)
    }
}

/// A walk along the records of a view: the newest of each key, with the sum of its weights. Tombstones show.
pub struct Range(Merge<Source>);

impl Range {
    /// Goes to the first key that is at least `key`, to walk forwards.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.0.seek(key)
    }

    /// Goes to the last key below `key`, or to the last of all, to walk backwards.
    pub fn seek_back(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.0.seek_back(key)
    }

    /// Goes to the next key in the direction of the walk.
    pub fn advance(&mut self) -> Result<()> {
        self.0.advance()
    }

    /// The key that the walk stands on.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// The record that the walk stands on.
    pub fn entry(&self) -> Result<Option<Found<'_>>> {
        Ok(self.0.entry()?.map(|merged| Found { entry: merged.entry, file: merged.file }))
    }
}

/// A walk with a memtable on top that nobody writes meanwhile.
pub struct UnitRange<'m> {
    range: Range,
    _memtable: PhantomData<&'m Memtable>,
}

impl Deref for UnitRange<'_> {
    type Target = Range;

    fn deref(&self) -> &Range {
        &self.range
    }
}

impl DerefMut for UnitRange<'_> {
    fn deref_mut(&mut self) -> &mut Range {
        &mut self.range
    }
}
