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
/// Bits of a slot in lists that double: empty, null, held, known, partly told, foreign.
const SLOT_BYTES: u64 = 2;
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
    empty: Vec<u64>,
    null: Vec<u64>,
    /// The slot has a key at least.
    held: Vec<u64>,
    /// Its keys do not tell all of its values.
    partly: Vec<u64>,
    foreign: Vec<u64>,
    known: Vec<u64>,
    unknown: usize,
    slots: u32,
    bytes: u64,
}

impl FieldMemtable {
    /// Of so many slots that are not known.
    pub fn new(path: Path, schema: Arc<Schema>, slots: usize) -> Self {
        let none = || vec![0; slots.div_ceil(64)];
        let (empty, null, held, partly, foreign, known) = (none(), none(), none(), none(), none(), none());
        Self {
            path,
            schema,
            entries: BTreeSet::new(),
            empty,
            null,
            held,
            partly,
            foreign,
            known,
            unknown: slots,
            slots: slots as u32,
            bytes: 0,
        }
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
        let (mut keys, mut grown) = (BTreeSet::<Box<[u8]>>::new(), memory.grow(SLOT_BYTES));
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

    /// Adds the next slot; `None`: what it holds is not known.
    pub fn push(&mut self, values: Option<FieldValues>) {
        let (word, bit) = (self.slots as usize / 64, self.slots % 64);
        let Self { empty, null, held, partly, foreign, known, .. } = self;
        for bits in [empty, null, held, partly, foreign, known] {
            bits.resize(word + 1, 0);
        }
        match values {
            Some(values) => {
                self.empty[word] |= u64::from(values.is_empty) << bit;
                self.null[word] |= u64::from(values.is_null) << bit;
                self.held[word] |= u64::from(!values.keys.is_empty()) << bit;
                self.partly[word] |= u64::from(values.rest.partly) << bit;
                self.foreign[word] |= u64::from(values.rest.foreign) << bit;
                self.known[word] |= 1 << bit;
                self.bytes += values.bytes;
                self.entries.extend(values.keys.into_iter().map(|key| (key, self.slots)));
            }
            None => self.unknown += 1,
        }
        self.slots += 1;
    }

    /// The payload of a slot has changed.
    pub fn forget(&mut self, slot: u32) {
        let bit = 1u64 << (slot % 64);
        if let Some(known) = self.known.get_mut(slot as usize / 64)
            && *known & bit != 0
        {
            *known &= !bit;
            self.unknown += 1;
        }
    }

    /// Whether a slot has a value in the index; `None`: it is not known.
    pub fn held(&self, slot: u32) -> Option<bool> {
        let is_set = |bits: &[u64]| bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1);
        is_set(&self.known).then(|| is_set(&self.held))
    }

    /// Adds the slots that are not known to `unknown`, which is of as many as there are here.
    pub fn add_unknown(&self, unknown: &mut Bitmap) {
        if self.unknown > 0 {
            unknown.words_mut().iter_mut().zip(&self.known).for_each(|(word, known)| *word |= !known);
            unknown.trim();
        }
    }

    fn flags_of(&self, untold: Untold) -> &[u64] {
        match untold {
            Untold::Partly => &self.partly,
            Untold::Foreign => &self.foreign,
        }
    }

    /// Whether the keys of some slot do not tell all of its field.
    pub(crate) fn has_untold(&self, untold: Untold) -> bool {
        self.flags_of(untold).iter().any(|word| *word != 0)
    }

    /// Takes out of `passing` the slots of which keys tell all.
    pub(crate) fn keep_untold(&self, untold: Untold, passing: &mut Bitmap) {
        passing.words_mut().iter_mut().zip(self.flags_of(untold)).for_each(|(word, flags)| *word &= flags);
    }

    /// Takes out of `passing` the slots that are known not to pass. False: those that are left may pass.
    pub(crate) fn keep(&self, asked: &Asked, passing: &mut Bitmap) -> Result<bool> {
        let flags = match asked {
            Asked::Empty(wanted) => Some((&self.empty, *wanted)),
            Asked::Null(wanted) => Some((&self.null, *wanted)),
            _ => None,
        };
        if let Some((flags, wanted)) = flags {
            let others = if wanted { 0 } else { u64::MAX };
            passing.words_mut().iter_mut().zip(flags).for_each(|(word, flags)| *word &= flags ^ others);
            return Ok(true);
        }
        let mut found = passing.none_like()?;
        match asked {
            Asked::Keys(ranges) => {
                for range in ranges {
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
