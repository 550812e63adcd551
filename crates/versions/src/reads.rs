//! Where versions are read: in a unit under way, which sees its own changes, or in a view that is pinned.

use crate::keys::{COMPACTED, META, REVISION};
use crate::record;
use ramekin_base::{Error, Result, cancel};
use ramekin_engine::{ReadView, Unit};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_runs::Value;
use std::cell::RefCell;

/// Records that a walk in a unit takes at a time, and about how many bytes.
const BATCH_RECORDS: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// Records by tree and key.
pub(crate) trait Reads {
    /// The value of a key.
    fn get(&self, tree: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// A walk along the records of a tree below a key. It stands nowhere until it is told where to go.
    fn walk<'s>(&'s self, tree: usize, to: &[u8]) -> Result<Box<dyn Walk + 's>>;

    /// Keys from one on and below another, of a tree with weights.
    fn count(&self, tree: usize, bounds: (&[u8], &[u8])) -> Result<i64>;

    /// The newest revision.
    fn revision(&self) -> Result<i64> {
        self.get(META, REVISION)?.map_or(Ok(1), |bytes| record::of_number(&bytes))
    }

    /// Up to which one versions are compacted; -1: none ever was.
    fn compacted(&self) -> Result<i64> {
        self.get(META, COMPACTED)?.map_or(Ok(-1), |bytes| record::of_number(&bytes))
    }
}

/// A walk forwards.
pub(crate) trait Walk {
    /// Goes to the first record whose key is at least `key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;

    fn next(&mut self) -> Result<()>;

    /// The key and the value that it stands on; `None`: there are no more.
    fn record(&self) -> Option<(&[u8], &[u8])>;
}

/// A unit under way.
pub(crate) struct InUnit<'u, 'e>(pub(crate) RefCell<&'u mut Unit<'e>>);

impl Reads for InUnit<'_, '_> {
    fn get(&self, tree: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.borrow_mut().get(tree, key, |value| value.map(<[u8]>::to_vec))
    }

    fn walk<'s>(&'s self, tree: usize, to: &[u8]) -> Result<Box<dyn Walk + 's>> {
        Ok(Box::new(UnitWalk { unit: &self.0, tree, to: to.to_vec(), batch: Vec::new(), at: 0, is_last: true }))
    }

    fn count(&self, tree: usize, bounds: (&[u8], &[u8])) -> Result<i64> {
        self.0.borrow_mut().count(tree, bounds)
    }
}

struct UnitWalk<'s, 'u, 'e> {
    unit: &'s RefCell<&'u mut Unit<'e>>,
    tree: usize,
    to: Vec<u8>,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    at: usize,
    is_last: bool,
}

impl Walk for UnitWalk<'_, '_, '_> {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.batch.clear();
        (self.at, self.is_last) = (0, true);
        let (batch, is_last, mut bytes) = (&mut self.batch, &mut self.is_last, 0);
        self.unit.borrow_mut().range(self.tree, (key, &self.to), &mut |key, value| {
            batch.push((key.to_vec(), value.to_vec()));
            bytes += key.len() + value.len();
            *is_last = batch.len() < BATCH_RECORDS && bytes < BATCH_BYTES;
            Ok(*is_last)
        })
    }

    fn next(&mut self) -> Result<()> {
        self.at += 1;
        match self.batch.last() {
            Some((last, _)) if self.at == self.batch.len() && !self.is_last => {
                let after = [&last[..], &[0]].concat();
                self.seek(&after)
            }
            _ => Ok(()),
        }
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.batch.get(self.at).map(|(key, value)| (&key[..], &value[..]))
    }
}

/// A pinned view.
pub(crate) struct InView<'v>(pub(crate) &'v ReadView);

impl Reads for InView<'_> {
    fn get(&self, tree: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.get(tree, key, <[u8]>::to_vec)
    }

    fn walk<'s>(&'s self, tree: usize, to: &[u8]) -> Result<Box<dyn Walk + 's>> {
        let (pages, account) = self.0.pages();
        let range = self.0.tree(tree)?.range(pages, account)?;
        Ok(Box::new(ViewWalk { range, to: to.to_vec(), pages, account, record: None, steps: 0 }))
    }

    fn count(&self, tree: usize, (from, to): (&[u8], &[u8])) -> Result<i64> {
        self.0.tree(tree)?.count(self.0.pages().0, from, to)
    }
}

struct ViewWalk<'v> {
    range: ramekin_runs::Range,
    to: Vec<u8>,
    pages: &'v Pages,
    account: &'v Account,
    record: Option<(Vec<u8>, Vec<u8>)>,
    steps: u32,
}

/// So many records are walked before a walk looks whether anybody still waits for it.
const LOOK: u32 = 1 << 10;

impl ViewWalk<'_> {
    /// From where the range stands on, to the first record that is not deleted.
    fn settle(&mut self) -> Result<()> {
        let (mut key, mut value) = self.record.take().unwrap_or_default();
        while let Some(found) = self.range.entry()?.filter(|found| found.entry.key < &self.to[..]) {
            value.clear();
            let is_live = match (found.entry.value, found.big()) {
                (Value::Inline(inline), _) => {
                    value.extend_from_slice(inline);
                    true
                }
                (_, Some(big)) => {
                    // A record of a walk is short: what is long stands in a tree that nobody walks.
                    let _memory = self.account.try_reserve(big.len())?;
                    value.resize(usize::try_from(big.len()).map_err(|_| Error::corrupt("a record is too long"))?, 0);
                    big.read(self.pages, 0, &mut value)?;
                    true
                }
                _ => false,
            };
            if is_live {
                key.clear();
                key.extend_from_slice(found.entry.key);
                self.record = Some((key, value));
                return Ok(());
            }
            self.range.advance()?;
        }
        Ok(())
    }
}

impl Walk for ViewWalk<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.range.seek(key)?;
        self.settle()
    }

    fn next(&mut self) -> Result<()> {
        // A walk over what is in memory reads no page, and may be long.
        self.steps += 1;
        if self.steps.is_multiple_of(LOOK) {
            cancel::check()?;
        }
        if self.record.is_some() {
            self.range.advance()?;
            self.settle()?;
        }
        Ok(())
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.record.as_ref().map(|(key, value)| (&key[..], &value[..]))
    }
}
