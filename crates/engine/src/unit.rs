//! A unit: the changes of one command, whole or dropped.
//!
//! ```text
//!   get ─► memtable (private) ─► what was fetched for it ─► frozen memtables ─► runs, of what is in memory
//!                                                                                └─ not there: a miss, named
//!   put ─► weight against the newest record ─► memtable + the group's bytes
//! ```
//!
//! Nothing here waits, for a disk or for anybody.

use crate::effects;
use crate::fetch::{Fetched, copied};
use crate::group::Group;
use crate::keylocks::{Key, KeyLocks, Owner};
use crate::options::{HELD_TIMES, UNIT_BYTES_MAX};
use crate::tree::{Draft, Tree};
use crate::view::Roots;
use crate::walk::Look;
use ramekin_base::{Error, Kind, Result, nonblocking};
use ramekin_log::Lsn;
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Value};
use std::sync::Arc;
use std::time::Duration;

/// Keys that one command may name before it is staged again.
pub(crate) const NEEDS_MAX: usize = 1024;

/// What a memtable takes for a record besides its key and value.
const EFFECT_COST: usize = 64;

/// Why a command could not be staged, though nothing is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    /// It needs records that are not in memory.
    Pages,
    /// Somebody else holds a key that it touches.
    Locked,
    /// Memtables are full: that of this tree is the largest.
    Full(usize),
    /// The group takes no other unit before it is committed, or this one before it is made larger or the store is awake; or nothing
    /// is staged for the moment.
    Group,
}

/// What units change before it is published: all of it under the executor's lock.
pub(crate) struct Core {
    pub(crate) drafts: Box<[Draft]>,
    pub(crate) group: Group,
    pub(crate) locks: KeyLocks,
    /// The number of the last unit that was kept.
    pub(crate) seqno: u64,
    /// What the effects of the unit under way cost: their bytes, and what a memtable adds.
    pub(crate) unit_cost: usize,
    /// What memtables may hold together, and what they may at the end of the unit under way.
    pub(crate) memtable_bytes: u64,
    held_most: u64,
    /// No memtable held anything when the unit began.
    was_fresh: bool,
    /// A command waits for a group that takes a unit of so many bytes; 0: none does.
    pub(crate) wants_large: usize,
    /// Since when somebody waits for a share with which the store can be woken, or its group be made larger.
    pub(crate) without_share: Option<Duration>,
    /// What memtables have for good for the one in the group that was made for it.
    pub(crate) large_bytes: u64,
    /// Why the store could not be woken, or its group be made larger, while those are told who waited for that.
    pub(crate) cannot_wake: Option<Error>,
    /// Records that the command under way needs, by tree and key.
    pub(crate) needs: Vec<Key>,
    /// Ranges that it walks or counts, in the same way.
    pub(crate) looks: Vec<Look>,
    /// Bytes of records that the command under way has walked along.
    pub(crate) walked: u64,
    /// The key that somebody else holds, for which it waits.
    pub(crate) locked: Option<Key>,
    pub(crate) asked: Asked,
}

/// The key that a command looked up last in a tree with weights, and what is alive under it: most commands write what they have
/// looked up, and are spared to look for it again.
#[derive(Default)]
pub(crate) struct Asked {
    tree: Option<usize>,
    key: Vec<u8>,
    weight: Option<i64>,
}

/// A longer key is looked up again.
const ASKED_MAX: usize = 256;

impl Asked {
    fn note(&mut self, tree: usize, key: &[u8], weight: Option<i64>) {
        self.forget();
        if key.len() <= ASKED_MAX {
            self.key.clear();
            self.key.extend_from_slice(key);
            (self.tree, self.weight) = (Some(tree), weight);
        }
    }

    /// Something was written, or another command begins.
    pub(crate) fn forget(&mut self) {
        self.tree = None;
    }

    fn weight_of(&self, tree: usize, key: &[u8]) -> Option<Option<i64>> {
        (self.tree == Some(tree) && self.key == key).then_some(self.weight)
    }
}

impl Core {
    /// Nothing is staged, and the store is asleep.
    pub(crate) fn new(drafts: Box<[Draft]>, seqno: u64, memtable_bytes: u64) -> Self {
        Self {
            drafts,
            group: Group::asleep(),
            locks: KeyLocks::default(),
            seqno,
            unit_cost: 0,
            memtable_bytes,
            held_most: 0,
            was_fresh: false,
            wants_large: 0,
            without_share: None,
            large_bytes: 0,
            cannot_wake: None,
            needs: Vec::new(),
            looks: Vec::new(),
            walked: 0,
            locked: None,
            asked: Asked::default(),
        }
    }

    /// Bytes that the memtables have booked together.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.drafts.iter().map(|draft| draft.memtable.held_bytes() as u64).sum()
    }

    /// The memtable whose flush gives most back.
    pub(crate) fn largest(&self) -> Option<usize> {
        let held = |tree: &usize| self.drafts[*tree].memtable.held_bytes();
        (0..self.drafts.len()).filter(|tree| !self.drafts[*tree].is_fresh()).max_by_key(held)
    }

    /// Before a record is written: a memtable may take what all of them together may have. A unit that a group was made for may
    /// pass that, but no other one comes after it before there is less.
    fn give_room(&mut self, tree: usize) {
        let held = self.held_bytes();
        if self.unit_cost == 0 {
            let more = if self.group.is_large { HELD_TIMES * self.group.unit_max as u64 } else { 0 };
            self.held_most = if held < self.memtable_bytes { self.memtable_bytes + more } else { 0 };
            self.was_fresh = self.drafts.iter().all(Draft::is_fresh);
        }
        self.drafts[tree].memtable.set_room(self.held_most.saturating_sub(held) as usize);
    }

    /// What memtables hold now, for readers.
    pub(crate) fn roots(&mut self) -> Roots {
        self.drafts.iter_mut().map(|draft| (draft.number, Some(draft.publish()))).collect()
    }

    /// The unit under way is whole; `log_end`: its records will stand behind this position. Its number; 0: it changed nothing.
    pub(crate) fn keep_unit(&mut self, log_end: Lsn) -> u64 {
        self.unit_cost = 0;
        if self.group.unit_bytes() == 0 {
            return 0;
        }
        self.seqno += 1;
        self.group.keep_unit(self.seqno);
        for draft in &mut self.drafts {
            if draft.memtable.unit_len() > 0 {
                draft.memtable.keep_unit();
                draft.from = draft.from.min(log_end);
                draft.last = self.seqno;
                draft.is_dirty = true;
            }
        }
        self.seqno
    }

    /// The unit under way is no more.
    pub(crate) fn drop_unit(&mut self) {
        self.unit_cost = 0;
        self.group.drop_unit();
        self.drafts
            .iter_mut()
            .filter(|draft| draft.memtable.unit_len() > 0)
            .for_each(|draft| draft.memtable.drop_unit());
    }
}

/// A unit under way, as the store's code sees it.
pub struct Unit<'e> {
    pub(crate) core: &'e mut Core,
    pub(crate) trees: &'e [Tree],
    pub(crate) pages: &'e Pages,
    /// Pays for big values while they are looked at.
    pub(crate) reads: &'e Account,
    /// Records that were fetched for it.
    pub(crate) fetched: Option<&'e Fetched>,
    pub(crate) owner: Owner,
    pub(crate) miss: Option<Miss>,
}

impl Unit<'_> {
    /// The number that this unit gets if it changes anything: one more than that of the unit before.
    pub fn seqno(&self) -> u64 {
        self.core.seqno + 1
    }

    /// Shows the value of a key: that which this unit, or the last one before it, left there; `None`: the key is not there.
    pub fn get<T>(&mut self, tree: usize, key: &[u8], read: impl FnOnce(Option<&[u8]>) -> T) -> Result<T> {
        let (weigh, mut weight) = (self.trees[tree].options.weigh, None);
        let shown = self.newest(tree, key, Needs::Value, |entry| {
            weight = weigh.and_then(|weigh| entry.map(|entry| weight_in(entry, weigh)));
            match entry.map(|entry| entry.value) {
                Some(Value::Inline(value)) => read(Some(value)),
                _ => read(None),
            }
        })?;
        if weigh.is_some() {
            self.core.asked.note(tree, key, weight);
        }
        Ok(shown)
    }

    /// Says beforehand which keys the command looks up, so that all that is missing is fetched at once.
    pub fn will_get<'k>(&mut self, tree: usize, keys: impl Iterator<Item = &'k [u8]>) -> Result<()> {
        let mut missing = Ok(());
        for key in keys {
            match self.newest(tree, key, Needs::Value, |_| ()) {
                Err(error) if self.miss == Some(Miss::Pages) => missing = Err(error),
                looked => looked?,
            }
        }
        missing
    }

    /// Writes a value under a key.
    pub fn put(&mut self, tree: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let (weight, first) = match self.trees[tree].options.weigh {
            Some(weigh) => {
                let before = self.weight_of(tree, key, weigh)?;
                (weigh(value) - before.unwrap_or(0), before.is_none())
            }
            None => {
                self.touch(tree, key)?;
                (0, false)
            }
        };
        self.write(tree, &Entry { key, value: Value::Inline(value), weight, first })
    }

    /// Removes a key. In a tree with weights nothing is written where it is not there.
    pub fn delete(&mut self, tree: usize, key: &[u8]) -> Result<()> {
        let weight = match self.trees[tree].options.weigh {
            Some(weigh) => match self.weight_of(tree, key, weigh)? {
                None | Some(0) => return Ok(()),
                Some(weight) => -weight,
            },
            None => {
                self.touch(tree, key)?;
                0
            }
        };
        self.write(tree, &Entry { key, value: Value::Deleted, weight, first: false })
    }

    /// Removes all keys from one on and below another by one record. None of them may ever be written again, and no count may
    /// cross the border of the range. Until a merge has dropped it, a look-up of a key inside, and a walk that begins inside, may
    /// still show its record: whoever deletes a range knows what he deleted. It waits for commands and large units that hold a part of the range.
    pub fn delete_range(&mut self, tree: usize, from: &[u8], to: &[u8]) -> Result<()> {
        self.touch_range(tree, from, to)?;
        self.write(tree, &Entry { key: from, value: Value::DeletedTo(to), weight: 0, first: false })
    }

    /// What is alive under a key by its newest record; `None`: there is no record.
    fn weight_of(&mut self, tree: usize, key: &[u8], weigh: fn(&[u8]) -> i64) -> Result<Option<i64>> {
        match self.core.asked.weight_of(tree, key) {
            Some(weight) => Ok(weight),
            None => self.newest(tree, key, Needs::Weight, |entry| entry.map(|entry| weight_in(entry, weigh))),
        }
    }

    fn write(&mut self, tree: usize, entry: &Entry<'_>) -> Result<()> {
        if self.core.group.is_asleep() {
            return Err(self.wakes("the store takes the memory that writes need"));
        }
        let cost = self.core.unit_cost + effects::size(entry) + EFFECT_COST;
        if cost as u64 > UNIT_BYTES_MAX {
            return Err(Error::too_large(format!(
                "one command changes more than {UNIT_BYTES_MAX} bytes; at most that is allowed"
            )));
        }
        if cost > self.core.group.unit_max {
            return Err(self.outgrows(cost));
        }
        self.core.asked.forget();
        self.core.give_room(tree);
        if let Err(error) = self.core.drafts[tree].memtable.put(entry) {
            return Err(if error.kind() == Kind::Busy {
                self.finds_full(tree, effects::size(entry), error)
            } else {
                error
            });
        }
        let seqno = self.core.seqno + 1;
        self.core.unit_cost = cost;
        self.core.group.put(seqno, tree, entry);
        Ok(())
    }

    /// The command waits until the store has the memory that it needs, or fails where that could not be.
    fn wakes(&mut self, text: &str) -> Error {
        self.core.cannot_wake.clone().unwrap_or_else(|| {
            self.miss = Some(Miss::Group);
            Error::busy(text)
        })
    }

    /// The command waits until there is a group that takes as much as it has come to, or twice what this one takes: how large it is
    /// in the end shows as it is staged.
    fn outgrows(&mut self, cost: usize) -> Error {
        if self.core.cannot_wake.is_none() {
            let wanted = cost.max(2 * self.core.group.unit_max).min(UNIT_BYTES_MAX as usize);
            self.core.wants_large = self.core.wants_large.max(wanted);
        }
        self.wakes("the store takes the memory that a large unit needs")
    }

    /// The command waits until a memtable is flushed. What is full of this unit alone will not be emptier then, and where memory is
    /// short for a large one, who waits would have others flush next to nothing again and again.
    fn finds_full(&mut self, tree: usize, bytes: usize, full: Error) -> Error {
        let is_large = self.core.group.is_large;
        match self.core.largest().filter(|_| !self.core.was_fresh) {
            _ if is_large && self.core.drafts[tree].memtable.has_room(bytes) => {}
            Some(tree) => self.miss = Some(Miss::Full(tree)),
            None if !is_large => return self.outgrows(0),
            None => {}
        }
        full
    }

    /// Fails where somebody else holds the key.
    fn touch(&mut self, tree: usize, key: &[u8]) -> Result<()> {
        if self.core.locks.is_free() || !self.core.locks.is_held(tree, key, self.owner) {
            return Ok(());
        }
        Err(self.locked(tree, key.into()))
    }

    /// Fails where somebody else holds a key of a range.
    fn touch_range(&mut self, tree: usize, from: &[u8], to: &[u8]) -> Result<()> {
        match self.core.locks.held_in(tree, (from, to), self.owner) {
            Some(key) => Err(self.locked(tree, key)),
            None => Ok(()),
        }
    }

    fn locked(&mut self, tree: usize, key: Arc<[u8]>) -> Error {
        self.miss = Some(Miss::Locked);
        self.core.locked = Some((tree, key));
        Error::busy("another command that waits for the disk holds the key")
    }

    /// Shows the newest record of a key. Its value is a big one only where that says its weight.
    fn newest<T>(
        &mut self,
        tree: usize,
        key: &[u8],
        needs: Needs,
        read: impl FnOnce(Option<&Entry<'_>>) -> T,
    ) -> Result<T> {
        self.touch(tree, key)?;
        if let Some(entry) = self.core.drafts[tree].memtable.get(key) {
            return Ok(read(Some(&entry)));
        }
        if let Some(entry) = self.fetched.and_then(|fetched| fetched.get(tree, key)) {
            return Ok(read(entry.as_ref()));
        }
        let (state, mut read) = (self.trees[tree].state(), Some(read));
        let twice = || Error::bug("a record was shown twice");
        let (pages, reads) = (self.pages, self.reads);
        let found = nonblocking::scope(|| {
            state.below.get(pages, key, |found| {
                let big = found.big().filter(|_| needs == Needs::Value || !found.entry.first);
                let copied = big.map(|big| copied(pages, reads, &big)).transpose()?;
                let value = copied.as_ref().map_or(found.entry.value, |(value, _)| Value::Inline(value));
                read.take().map(|read| read(Some(&Entry { value, ..found.entry }))).ok_or_else(twice)
            })
        });
        match found {
            Ok(Some(shown)) => Ok(shown),
            Ok(None) => read.take().map(|read| read(None)).ok_or_else(twice),
            Err(error) if error.kind() == Kind::Busy => {
                self.miss = Some(Miss::Pages);
                if self.core.needs.len() < NEEDS_MAX {
                    self.core.needs.push((tree, key.into()));
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// What a look-up is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Value,
    /// The weight of a record that has no older one is that of its value.
    Weight,
}

/// What is alive under a key by its newest record.
fn weight_in(entry: &Entry<'_>, weigh: fn(&[u8]) -> i64) -> i64 {
    match entry.value {
        Value::Inline(value) => weigh(value),
        Value::Big(_) => entry.weight,
        Value::Deleted | Value::DeletedTo(_) => 0,
    }
}
