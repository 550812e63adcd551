//! The index of a field over the newest points, in memory: what a filter asks of them is told without reading a payload.
//!
//! ```text
//!   upsert ─► keys of each point ─► (key, slot) ascending        a slot is a point's place in the memtable
//!                                   empty, null, known, and what keys do not tell: a bit a slot
//!   a condition ─► its ranges of keys ─► slots
//! ```
//!
//! A slot is known while what stands here is what its payload says. Slots that found no memory, and those whose payload has
//! changed, are not: they are asked one by one. Each byte is reserved before it is used.

use crate::asked::{Asked, KeyRange};
use crate::bitmap::Bitmap;
use crate::check::{is_empty, is_null};
use crate::key::{Rest, Untold};
use crate::path::Path;
use crate::schema::Schema;
use crate::text::Having;
use ramekin_base::{Result, cancel};
use ramekin_memory::Reservation;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A value in a tree whose nodes are half full, beside its key, which is an allocation of its own.
const ENTRY_BYTES: u64 = 72;
/// Which bit of a slot says what: its field is empty; it is null; the slot has a key at least; its keys do not tell all of
/// its values; it has one of another kind; what stands here of it is what its payload says.
const EMPTY: usize = 0;
const NULL: usize = 1;
const HELD: usize = 2;
const PARTLY: usize = 3;
const FOREIGN: usize = 4;
const KNOWN: usize = 5;
/// A word of each for 64 slots.
type Flags = [u64; 6];
/// Values between two looks whether the answer is still wanted.
const CHECK: usize = 4096;

/// What one point holds under the field.
pub struct FieldValues {
    keys: BTreeSet<Box<[u8]>>,
    bytes: u64,
    is_empty: bool,
    is_null: bool,
    rest: Rest,
}

/// The index of a field over the slots of a memtable.
pub struct FieldMemtable {
    path: Path,
    schema: Arc<Schema>,
    entries: BTreeSet<(Box<[u8]>, u32)>,
    /// Slots behind its end are not known.
    flags: Vec<Flags>,
    unknown: usize,
    slots: u32,
    bytes: u64,
}

impl FieldMemtable {
    /// Of so many slots that are not known.
    pub fn new(path: Path, schema: Arc<Schema>, slots: usize) -> Self {
        let (entries, flags) = Default::default();
        Self { path, schema, entries, flags, unknown: slots, slots: slots as u32, bytes: 0 }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Bytes that were reserved for what stands here.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What a payload holds under a field; `memory` grows by what is kept, also once it stands in the index.
    pub fn values(
        path: &Path,
        schema: &Schema,
        payload: &Map<String, Value>,
        memory: &mut Reservation,
    ) -> Result<FieldValues> {
        let before = memory.bytes();
        let (mut keys, mut grown) = (BTreeSet::<Box<[u8]>>::new(), Ok(()));
        let rest = schema.keys_and_rest(path, payload, &mut |key| {
            if grown.is_ok() && !keys.contains(key) {
                grown = memory.grow(ENTRY_BYTES + (key.len() as u64).next_multiple_of(16));
                if grown.is_ok() {
                    keys.insert(key.into());
                }
            }
        });
        if let Err(error) = grown {
            memory.shrink(memory.bytes() - before);
            return Err(error);
        }
        let bytes = memory.bytes() - before;
        Ok(FieldValues { keys, bytes, is_empty: is_empty(path, payload), is_null: is_null(path, payload), rest })
    }

    /// Adds the next slot; `None`: what it holds is not known. `memory` stands as long as the index, and grows by its flags.
    /// False: there is none for them, and the slot is not known, either.
    pub fn push(&mut self, values: Option<FieldValues>, memory: &mut Reservation) -> bool {
        let (slot, word, bit) = (self.slots, self.slots as usize / 64, self.slots % 64);
        self.slots += 1;
        let is_known = values.is_some();
        let Some(values) = values.filter(|_| self.has_flags(word, memory)) else {
            self.unknown += 1;
            return !is_known;
        };
        let rest = values.rest;
        let set = [values.is_empty, values.is_null, !values.keys.is_empty(), rest.partly, rest.foreign, true];
        self.flags[word].iter_mut().zip(set).for_each(|(word, is_set)| *word |= u64::from(is_set) << bit);
        self.bytes += values.bytes;
        self.entries.extend(values.keys.into_iter().map(|key| (key, slot)));
        true
    }

    /// Makes sure that there is a word of each flag. False: there is no memory for it.
    fn has_flags(&mut self, word: usize, memory: &mut Reservation) -> bool {
        let (size, before) = (size_of::<Flags>(), self.flags.capacity());
        if word >= before {
            let wanted = (word + 1).max(before + before / 2).max(4);
            // While they move, their old and their new place are both in use. Who yields is not asked: here others wait.
            if memory.grow_calm((wanted * size) as u64).is_err() {
                return false;
            }
            self.flags.reserve_exact(wanted - self.flags.len());
            memory.shrink((before * size) as u64);
            self.bytes += ((wanted - before) * size) as u64;
        }
        self.flags.resize(self.flags.len().max(word + 1), [0; 6]);
        true
    }

    /// A flag of all slots, 64 in a word.
    fn words(&self, flag: usize) -> impl Iterator<Item = u64> + '_ {
        self.flags.iter().map(move |flags| flags[flag]).chain(std::iter::repeat_with(|| 0))
    }

    fn is_set(&self, flag: usize, slot: u32) -> bool {
        self.flags.get(slot as usize / 64).is_some_and(|flags| flags[flag] >> (slot % 64) & 1 == 1)
    }

    /// The payload of a slot has changed.
    pub fn forget(&mut self, slot: u32) {
        let bit = 1u64 << (slot % 64);
        if let Some(flags) = self.flags.get_mut(slot as usize / 64)
            && flags[KNOWN] & bit != 0
        {
            flags[KNOWN] &= !bit;
            self.unknown += 1;
        }
    }

    /// Whether a slot has a value in the index; `None`: it is not known.
    pub fn held(&self, slot: u32) -> Option<bool> {
        self.is_set(KNOWN, slot).then(|| self.is_set(HELD, slot))
    }

    /// Adds the slots that are not known to `unknown`, which is of as many as there are here.
    pub fn add_unknown(&self, unknown: &mut Bitmap) {
        if self.unknown > 0 {
            unknown.words_mut().iter_mut().zip(self.words(KNOWN)).for_each(|(word, known)| *word |= !known);
            unknown.trim();
        }
    }

    fn flag_of(untold: Untold) -> usize {
        match untold {
            Untold::Partly => PARTLY,
            Untold::Foreign => FOREIGN,
        }
    }

    /// Whether the keys of some slot do not tell all of its field.
    pub(crate) fn has_untold(&self, untold: Untold) -> bool {
        self.flags.iter().any(|flags| flags[Self::flag_of(untold)] != 0)
    }

    /// Takes out of `passing` the slots of which keys tell all.
    pub(crate) fn keep_untold(&self, untold: Untold, passing: &mut Bitmap) {
        passing.words_mut().iter_mut().zip(self.words(Self::flag_of(untold))).for_each(|(word, flags)| *word &= flags);
    }

    /// Takes out of `passing` the slots that are known not to pass. False: those that are left may pass.
    pub(crate) fn keep(&self, asked: &Asked, passing: &mut Bitmap) -> Result<bool> {
        let flag = match asked {
            Asked::Empty(wanted) => Some((EMPTY, *wanted)),
            Asked::Null(wanted) => Some((NULL, *wanted)),
            _ => None,
        };
        if let Some((flag, wanted)) = flag {
            let others = if wanted { 0 } else { u64::MAX };
            passing.words_mut().iter_mut().zip(self.words(flag)).for_each(|(word, flags)| *word &= flags ^ others);
            return Ok(true);
        }
        let mut found = passing.none_like()?;
        match asked {
            Asked::Keys(ranges) => {
                for range in &**ranges {
                    cancel::check()?;
                    self.add(range, &mut found, |_| true)?;
                }
            }
            Asked::Words(words) => {
                for (at, word) in words.keys().enumerate() {
                    cancel::check()?;
                    if words.having() != Having::Any && at > 0 {
                        passing.and(&found);
                        found.words_mut().fill(0);
                    }
                    self.add(&KeyRange::one(word), &mut found, |_| true)?;
                }
                passing.and(&found);
                return Ok(!words.is_in_a_row());
            }
            asked => {
                let all = KeyRange { from: Box::default(), to: None };
                self.add(&all, &mut found, |key| asked.holds(key))?;
            }
        }
        passing.and(&found);
        Ok(true)
    }

    /// Adds the slots of a range of keys.
    fn add(&self, range: &KeyRange, found: &mut Bitmap, holds: impl Fn(&[u8]) -> bool) -> Result<()> {
        let within = self.entries.range((range.from.clone(), 0)..);
        for (at, (key, slot)) in within.enumerate() {
            if range.to.as_ref().is_some_and(|to| *key >= *to) {
                break;
            }
            if at % CHECK == CHECK - 1 {
                cancel::check()?;
            }
            if holds(key) {
                found.set(*slot);
            }
        }
        Ok(())
    }
}
