//! Several sources as one: the newest record of each key, and the sum of the weights of all of them.
//!
//! ```text
//!   memtable  a:3   c:9                  newest
//!   run       a:1      d:tombstone         │         ─► a:3, b:7, c:9, d:tombstone
//!   run          b:7   d:4               oldest
//! ```
//!
//! The sum of the weights of a key over all sources of a tree is what is alive of it: 0, 1, or the length of a node. Among few
//! sources the least key is found by looking at each.

use crate::cursor::RunCursor;
use crate::entry::{Entry, Value};
use crate::file::RunFile;
use crate::memtable::MemoryCursor;
use ramekin_base::Result;
use std::cmp::Ordering;
use std::sync::Arc;

/// Sources of one merge at most.
pub(crate) const SOURCES_MAX: usize = 32;

/// What can be merged: something that stands on one key at a time.
pub(crate) trait Sorted {
    /// What is compared.
    type Key<'k>: Ord
    where
        Self: 'k;

    /// The key that it stands on; `None`: it is past its end.
    fn key(&self) -> Option<Self::Key<'_>>;

    /// Goes to the next key, or to the one before.
    fn step(&mut self, forward: bool) -> Result<()>;
}

/// A sorted source of records.
pub(crate) enum Source {
    Memory(MemoryCursor),
    Run(RunCursor),
}

/// Several sources in one order.
pub(crate) struct Merge<S> {
    /// The newest first.
    sources: Vec<S>,
    forward: bool,
    /// The source of the newest record of the current key.
    newest: Option<usize>,
    /// The sources that have the current key, a bit each.
    equal: u32,
}

impl Sorted for Source {
    type Key<'k> = &'k [u8];

    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(cursor) => cursor.entry().map(|entry| entry.key),
            Self::Run(cursor) => cursor.is_valid().then(|| cursor.key()),
        }
    }

    fn step(&mut self, forward: bool) -> Result<()> {
        match (self, forward) {
            (Self::Memory(cursor), true) => cursor.next(),
            (Self::Memory(cursor), false) => cursor.back(),
            (Self::Run(cursor), true) => return cursor.next(),
            (Self::Run(cursor), false) => return cursor.back(),
        }
        Ok(())
    }
}

impl Source {
    fn entry(&self) -> Result<Option<Merged<'_>>> {
        match self {
            Self::Memory(cursor) => Ok(cursor.entry().map(|entry| Merged { entry, file: None })),
            Self::Run(cursor) if !cursor.is_valid() => Ok(None),
            Self::Run(cursor) => cursor.entry().map(|(entry, file)| Some(Merged { entry, file: Some(file) })),
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Self::Memory(cursor) => {
                cursor.seek(key);
                Ok(())
            }
            Self::Run(cursor) => cursor.seek(key),
        }
    }

    fn seek_back(&mut self, key: Option<&[u8]>) -> Result<()> {
        match self {
            Self::Memory(cursor) => {
                cursor.seek_back(key);
                Ok(())
            }
            Self::Run(cursor) => cursor.seek_back(key),
        }
    }
}

impl<S: Sorted> Merge<S> {
    /// Of these sources, the newest first. It stands nowhere until it is told where to go.
    pub(crate) fn new(sources: Vec<S>) -> Self {
        debug_assert!(sources.len() <= SOURCES_MAX, "a merge has a bit for each source");
        Self { sources, forward: true, newest: None, equal: 0 }
    }

    /// Stands on the least key that its sources stand on.
    pub(crate) fn start(&mut self) {
        let (mut best, mut equal): (Option<(usize, S::Key<'_>)>, u32) = (None, 0);
        for (number, source) in self.sources.iter().enumerate() {
            let Some(key) = source.key() else { continue };
            let order = best.as_ref().map_or(Ordering::Less, |(_, least)| key.cmp(least));
            match if self.forward || best.is_none() { order } else { order.reverse() } {
                Ordering::Less => (best, equal) = (Some((number, key)), 1 << number),
                Ordering::Equal => equal |= 1 << number,
                Ordering::Greater => {}
            }
        }
        (self.newest, self.equal) = (best.map(|(number, _)| number), equal);
    }

    /// Goes to the next key in the direction of the walk.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let (equal, forward) = (self.equal, self.forward);
        // After an error it stands nowhere.
        (self.newest, self.equal) = (None, 0);
        for (number, source) in self.sources.iter_mut().enumerate() {
            if equal & 1 << number != 0 {
                source.step(forward)?;
            }
        }
        self.start();
        Ok(())
    }

    /// The key that it stands on.
    pub(crate) fn key(&self) -> Option<S::Key<'_>> {
        self.sources[self.newest?].key()
    }
}

impl Merge<Source> {
    /// Goes to the first key that is at least `key`, to walk forwards.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        (self.forward, self.newest, self.equal) = (true, None, 0);
        self.sources.iter_mut().try_for_each(|source| source.seek(key))?;
        self.start();
        Ok(())
    }

    /// Goes to the last key below `key`, or to the last of all, to walk backwards.
    pub(crate) fn seek_back(&mut self, key: Option<&[u8]>) -> Result<()> {
        (self.forward, self.newest, self.equal) = (false, None, 0);
        self.sources.iter_mut().try_for_each(|source| source.seek_back(key))?;
        self.start();
        Ok(())
    }

    /// The newest record of the key, with the weights of all its records, and the file of a big value. It is the first of its
    /// key if the oldest of them is.
    pub(crate) fn entry(&self) -> Result<Option<Merged<'_>>> {
        let Some(newest) = self.newest else { return Ok(None) };
        let Some(Merged { mut entry, file }) = self.sources[newest].entry()? else { return Ok(None) };
        for (number, source) in self.sources.iter().enumerate().skip(newest + 1) {
            if self.equal & 1 << number == 0 {
                continue;
            }
            if let Some(older) = source.entry()? {
                entry.weight += older.entry.weight;
                entry.first = older.entry.first;
            }
        }
        Ok(Some(Merged { entry, file }))
    }
}

/// What all records of a key come to.
pub(crate) struct Merged<'a> {
    pub(crate) entry: Entry<'a>,
    pub(crate) file: Option<&'a Arc<RunFile>>,
}

impl Merged<'_> {
    /// Where the bytes of its value are, for who reads them later.
    pub(crate) fn big(&self) -> Option<(Arc<RunFile>, crate::Extent)> {
        match (self.entry.value, self.file) {
            (Value::Big(extent), Some(file)) => Some((file.clone(), extent)),
            _ => None,
        }
    }
}
