//! A run: files whose keys do not overlap, in the order of their keys.

use crate::entry::Entry;
use crate::file::RunFile;
use crate::filter;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::sync::Arc;

/// A run of a tree.
#[derive(Clone, Default)]
pub struct Run {
    files: Vec<Arc<RunFile>>,
    /// The weights of all files before each one.
    before: Vec<i64>,
    bytes: u64,
}

impl Run {
    /// A run of these files, in the order of their keys.
    pub fn new(files: Vec<Arc<RunFile>>) -> Result<Self> {
        let overlap = files.windows(2).find(|pair| pair[0].last_key() >= pair[1].first_key());
        if let Some(pair) = overlap {
            let text = format!("holds keys of {} too; restore both from a copy", pair[1].path().display());
            return Err(Error::corrupt(text).at(pair[0].path().display()));
        }
        let mut sum = 0;
        let mut before = Vec::with_capacity(files.len());
        for file in &files {
            before.push(sum);
            sum += file.weight();
        }
        let bytes = files.iter().map(|file| file.bytes()).sum();
        Ok(Self { files, before, bytes })
    }

    /// What of the run is not below a key.
    pub fn cut(&self, pages: &Pages, from: &[u8], account: &Account) -> Result<Self> {
        let rest = &self.files[self.file_of(from)..];
        let cut = |file: &Arc<RunFile>| match file.first_key() < from {
            true => file.cut(pages, from, account),
            false => Ok(file.clone()),
        };
        Self::new(rest.iter().map(cut).collect::<Result<_>>()?)
    }

    pub fn files(&self) -> &[Arc<RunFile>] {
        &self.files
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of the file that may hold a key: the first whose last key is not below it.
    #[inline]
    pub(crate) fn file_of(&self, key: &[u8]) -> usize {
        self.files.partition_point(|file| file.last_key() < key)
    }

    /// Shows the record of a key, if there is one.
    pub(crate) fn get<T>(
        &self,
        pages: &Pages,
        key: &[u8],
        hash: u32,
        read: impl FnOnce(&Entry<'_>, &Arc<RunFile>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.files.get(self.file_of(key)) {
            Some(file) => file.get(pages, key, hash, |entry| read(entry, file)),
            None => Ok(None),
        }
    }

    /// The sum of the weights of all records below a key.
    pub(crate) fn weight_below(&self, pages: &Pages, key: &[u8]) -> Result<i64> {
        let number = self.file_of(key);
        match self.files.get(number) {
            Some(file) => Ok(self.before[number] + file.weight_below(pages, key)?),
            None => Ok(self.before.last().copied().unwrap_or(0) + self.files.last().map_or(0, |file| file.weight())),
        }
    }

    /// The file that may hold a key, unless its filter knows better.
    pub(crate) fn file_for(&self, key: &[u8], hash: u32) -> Option<&Arc<RunFile>> {
        self.files.get(self.file_of(key)).filter(|file| file.may_hold(key, hash))
    }

    /// Raises `low`, a key and what is below it, to the greatest separator of this run for which `below` still says how much
    /// that is: between it and the next separator lies one block at most.
    pub(crate) fn narrow(
        &self,
        pages: &Pages,
        low: &mut (Vec<u8>, i64),
        below: &mut dyn FnMut(&[u8]) -> Result<Option<i64>>,
    ) -> Result<()> {
        let file = last(low, self.files.len(), |number| self.files[number].first_key().to_vec(), below)?;
        let Some(file) = file.map(|number| &self.files[number]) else { return Ok(()) };
        let top = last(low, file.tops().len(), |number| file.separator(number).to_vec(), below)?.unwrap_or(0);
        let separators = file.separators(pages, top)?;
        last(low, separators.len(), |number| separators[number].clone(), below)?;
        Ok(())
    }

    /// What filters are asked with: computed once for all runs.
    pub(crate) fn hash(key: &[u8]) -> u32 {
        filter::hash(key)
    }
}

/// The last of `count` ascending keys for which `below` answers; `low` is raised to it.
fn last(
    low: &mut (Vec<u8>, i64),
    count: usize,
    key: impl Fn(usize) -> Vec<u8>,
    below: &mut dyn FnMut(&[u8]) -> Result<Option<i64>>,
) -> Result<Option<usize>> {
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = from + (to - from) / 2;
        let key = key(middle);
        if key <= low.0 {
            from = middle + 1;
            continue;
        }
        match below(&key)? {
            Some(sum) => {
                *low = (key, sum);
                from = middle + 1;
            }
            None => to = middle,
        }
    }
    Ok(from.checked_sub(1))
}
