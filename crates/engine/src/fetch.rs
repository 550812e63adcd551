//! Records that commands need and that are not in memory: read for many commands in one batch, and copied, so that nothing that
//! enters the cache meanwhile takes them away again.
//!
//! ```text
//!   parked commands ─► their keys, of each tree ─► get_many: all pages of a step in one submission ─► each command staged anew
//!   one that walks along a range ─► a piece of it (`walk.rs`), beside the records of its keys       ─► staged anew
//! ```
//!
//! A record stays the newest of its key while the command holds the key.

use crate::keylocks::Key;
use crate::options::VALUE_BYTES_MAX;
use crate::tree::Tree;
use crate::walk::{Look, Walks};
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use ramekin_runs::{Big, Entry, Found, Value};
use std::collections::HashMap;

/// What a record takes besides its key and its value.
const RECORD_BYTES: u64 = 160;

/// A record of its own; `None` inside: the key has none.
struct Record {
    value: Option<Held>,
    weight: i64,
    first: bool,
}

enum Held {
    Value(Box<[u8]>),
    Deleted,
}

/// Records that were read for one command.
pub(crate) struct Fetched {
    records: HashMap<(usize, Box<[u8]>), Record>,
    walks: Walks,
    account: Account,
    memory: Option<Reservation>,
}

impl Fetched {
    pub(crate) fn new(account: &Account) -> Self {
        Self { records: HashMap::new(), walks: Walks::default(), account: account.clone(), memory: None }
    }

    /// What was read of ranges.
    pub(crate) fn walks(&self) -> &Walks {
        &self.walks
    }

    /// Reads below the memtable of a tree what a walk or a count needs.
    pub(crate) fn look(&mut self, tree: &Tree, pages: &Pages, look: &Look) -> Result<()> {
        self.walks.look(tree, (pages, &self.account), look)
    }

    /// What was read under a key: `Some(None)`: there is no record.
    pub(crate) fn get<'a>(&'a self, tree: usize, key: &'a [u8]) -> Option<Option<Entry<'a>>> {
        // A map by pairs is asked by a pair of its own; commands that wait for the disk are few.
        let record = self.records.get(&(tree, Box::from(key)))?;
        let value = match &record.value {
            Some(Held::Value(value)) => Value::Inline(value),
            Some(Held::Deleted) => Value::Deleted,
            None => return Some(None),
        };
        Some(Some(Entry { key, value, weight: record.weight, first: record.first }))
    }

    fn add(&mut self, pages: &Pages, tree: usize, key: &[u8], found: Option<&Found<'_>>) -> Result<()> {
        let len = match found.map(|found| found.entry.value) {
            Some(Value::Inline(value)) => value.len() as u64,
            _ => 0,
        };
        let bytes = RECORD_BYTES + key.len() as u64 + len;
        match &mut self.memory {
            Some(memory) => memory.grow(bytes)?,
            none => *none = Some(self.account.try_reserve(bytes)?),
        }
        let big = found.and_then(Found::big).map(|big| copied(pages, &self.account, &big)).transpose()?;
        let value = match (found.map(|found| found.entry.value), big) {
            (None, _) => None,
            (Some(Value::Inline(value)), _) => Some(Held::Value(value.into())),
            (Some(_), Some((value, memory))) => {
                if let Some(held) = &mut self.memory {
                    held.join(memory)?;
                }
                Some(Held::Value(value))
            }
            _ => Some(Held::Deleted),
        };
        let (weight, first) = found.map_or((0, false), |found| (found.entry.weight, found.entry.first));
        self.records.insert((tree, key.into()), Record { value, weight, first });
        Ok(())
    }
}

/// A big value of its own, and what pays for it.
pub(crate) fn copied(pages: &Pages, account: &Account, big: &Big) -> Result<(Box<[u8]>, Reservation)> {
    let len = big.len();
    if len > VALUE_BYTES_MAX {
        let text = format!("a value of {len} bytes is in the way; at most {VALUE_BYTES_MAX} are read as a whole");
        return Err(Error::too_large(text));
    }
    let memory = account.try_reserve(len)?;
    let mut value = vec![0; len as usize].into_boxed_slice();
    big.read(pages, 0, &mut value)?;
    Ok((value, memory))
}

/// A command's part of a batch: what it needs, and where that goes.
pub(crate) struct Wanted<'a> {
    pub(crate) needs: &'a [Key],
    pub(crate) looks: &'a [Look],
    pub(crate) fetched: &'a mut Fetched,
    pub(crate) outcome: Result<()>,
}

/// Reads what commands need, tree by tree, each in one batch. What fails fails for the commands that need it.
pub(crate) fn fetch<'a>(trees: &[Tree], pages: &Pages, wanted: &mut [Wanted<'a>]) {
    for (number, tree) in trees.iter().enumerate() {
        let mut keys: Vec<(&'a [u8], usize)> = Vec::new();
        for (command, want) in wanted.iter().enumerate() {
            let of_tree = want.needs.iter().filter(|(of, _)| *of == number);
            keys.extend(of_tree.map(|(_, key)| (&**key, command)));
        }
        if keys.is_empty() {
            continue;
        }
        let state = tree.state();
        let asked: Vec<&[u8]> = keys.iter().map(|(key, _)| *key).collect();
        let batch = state.below.get_many(pages, &asked, &mut |at, found| {
            let (key, command) = keys[at];
            let want = &mut wanted[command];
            let added = want.fetched.add(pages, number, key, found);
            if want.outcome.is_ok() {
                want.outcome = added;
            }
            Ok(())
        });
        if batch.is_err() {
            one_by_one(tree, number, pages, &keys, wanted);
        }
    }
    for Wanted { looks, fetched, outcome, .. } in wanted {
        if outcome.is_ok() {
            *outcome = looks.iter().try_for_each(|look| fetched.look(&trees[look.range.tree], pages, look));
        }
    }
}

/// A page of the batch is damaged, or there was no memory for all: each command has its own outcome.
fn one_by_one(tree: &Tree, number: usize, pages: &Pages, keys: &[(&[u8], usize)], wanted: &mut [Wanted<'_>]) {
    let state = tree.state();
    for (key, command) in keys {
        let want = &mut wanted[*command];
        let read = state.below.get_many(pages, &[key], &mut |_, found| want.fetched.add(pages, number, key, found));
        if want.outcome.is_ok() {
            want.outcome = read;
        }
    }
}
