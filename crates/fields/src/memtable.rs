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
//!
//! A filter asks in [steps](Stepped) of so much work: whatever it asks, others who want what stands here wait for one of them.

use crate::bitmap::Bitmap;
use crate::check::{is_empty, is_null};
use crate::key::{Rest, Untold};
use crate::path::Path;
use crate::predicate::{KeyRange, ValuePredicate};
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
/// its values; it has one of another kind; what stands here of it is what its payload says; it is not known but for whether
/// it has a key.
const EMPTY: usize = 0;
const NULL: usize = 1;
const HELD: usize = 2;
const PARTLY: usize = 3;
const FOREIGN: usize = 4;
const KNOWN: usize = 5;
const COUNTED: usize = 6;
/// A word of each for 64 slots.
type Flags = [u64; 7];
/// What is done under one lock, and between two looks whether the answer is still wanted: about a tenth of a millisecond,
/// measured in entries that are only passed; and what it costs to find the first one of a range.
const STEP: usize = 4096;
const SEEK: usize = 8;

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
            if memory.grow_no_reclaim((wanted * size) as u64).is_err() {
                return false;
            }
            self.flags.reserve_exact(wanted - self.flags.len());
            memory.shrink((before * size) as u64);
            self.bytes += ((wanted - before) * size) as u64;
        }
        self.flags.resize(self.flags.len().max(word + 1), Flags::default());
        true
    }

    /// A flag of all slots, 64 in a word.
    fn words(&self, flag: usize) -> impl Iterator<Item = u64> + '_ {
        self.flags.iter().map(move |flags| flags[flag]).chain(std::iter::repeat_with(|| 0))
    }

    /// The payload of a slot has changed.
    pub fn forget(&mut self, slot: u32) {
        let bit = 1u64 << (slot % 64);
        if let Some(flags) = self.flags.get_mut(slot as usize / 64) {
            self.unknown += usize::from(flags[KNOWN] & bit != 0);
            flags[KNOWN] &= !bit;
            flags[COUNTED] &= !bit;
        }
    }

    /// Of the 64 slots of a word which have a value, and of which this is known.
    pub fn held(&self, word: usize) -> (u64, u64) {
        let flags = self.flags.get(word).copied().unwrap_or_default();
        let known = flags[KNOWN] | flags[COUNTED];
        (flags[HELD] & known, known)
    }

    /// Keeps whether the payload of a slot that is not known has a value, until it changes; the rest of it stays unknown.
    /// `memory` is that of [`FieldMemtable::push`]; where there is none, nothing is kept.
    pub fn count(&mut self, slot: u32, has_value: bool, memory: &mut Reservation) {
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        if slot < self.slots && self.has_flags(word, memory) && self.flags[word][KNOWN] & bit == 0 {
            self.flags[word][COUNTED] |= bit;
            self.flags[word][HELD] = self.flags[word][HELD] & !bit | if has_value { bit } else { 0 };
        }
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

    /// Takes out of `passing` the slots whose flag is not as it should be.
    fn keep_flagged(&self, flag: usize, wanted: bool, passing: &mut Bitmap) {
        let others = if wanted { 0 } else { u64::MAX };
        passing.words_mut().iter_mut().zip(self.words(flag)).for_each(|(word, flags)| *word &= flags ^ others);
    }

    /// Adds slots of some ranges to `found`, from where a walk stands, for as much work as a step may be. True: it is done.
    fn add(&self, walk: &mut Walk<'_>, found: &mut Bitmap) -> bool {
        let (mut left, rows) = (STEP, found.rows());
        while let Some(range) = walk.ranges.get(walk.at) {
            let from = walk.from.take().unwrap_or_else(|| (range.from.clone(), 0));
            for (key, slot) in self.entries.range(from..) {
                if range.to.as_ref().is_some_and(|to| *key >= *to) {
                    break;
                }
                if left == 0 {
                    walk.from = Some((key.clone(), *slot));
                    return false;
                }
                left = left.saturating_sub(walk.cost);
                // Slots may have come since the bitmap was made.
                if (*slot as usize) < rows && walk.predicate.is_none_or(|predicate| predicate.holds(key)) {
                    found.set(*slot);
                }
            }
            walk.at += 1;
            left = left.saturating_sub(SEEK);
            if left == 0 {
                break;
            }
        }
        walk.at >= walk.ranges.len()
    }
}

/// The index of a field over a memtable that others change: it is seen for a step at a time, and they go in between.
pub trait Stepped {
    /// Lets `step` see it, and no longer than that. False: it is not there any more.
    fn step(&self, step: &mut dyn FnMut(&FieldMemtable)) -> bool;
}

impl Stepped for FieldMemtable {
    fn step(&self, step: &mut dyn FnMut(&FieldMemtable)) -> bool {
        step(self);
        true
    }
}

/// Entries that are to be seen, and how far that is.
struct Walk<'a> {
    ranges: &'a [KeyRange],
    /// What the keys of an entry must hold; `None`: each passes.
    predicate: Option<&'a ValuePredicate>,
    /// Of an entry.
    cost: usize,
    at: usize,
    /// Where to go on within a range.
    from: Option<(Box<[u8]>, u32)>,
}

impl<'a> Walk<'a> {
    fn of(ranges: &'a [KeyRange]) -> Self {
        Self { ranges, predicate: None, cost: 1, at: 0, from: None }
    }

    /// Adds the slots of all of its entries to `found`. False: the index is not there any more.
    fn add(mut self, fields: &dyn Stepped, found: &mut Bitmap) -> Result<bool> {
        let mut is_done = false;
        while !is_done {
            cancel::check()?;
            if !fields.step(&mut |fields| is_done = fields.add(&mut self, found)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the keys of some slot do not tell all of its field.
pub(crate) fn has_untold(fields: &dyn Stepped, untold: Untold) -> bool {
    let mut has = false;
    fields.step(&mut |fields| has = fields.has_untold(untold));
    has
}

/// Takes out of `passing` the slots that are known not to pass. False: those that are left may pass. Memory is asked for
/// between the steps only.
pub(crate) fn keep(fields: &dyn Stepped, predicate: &ValuePredicate, passing: &mut Bitmap) -> Result<bool> {
    let flag = match predicate {
        ValuePredicate::Empty(wanted) => Some((EMPTY, *wanted)),
        ValuePredicate::Null(wanted) => Some((NULL, *wanted)),
        _ => None,
    };
    if let Some((flag, wanted)) = flag {
        return Ok(fields.step(&mut |fields| fields.keep_flagged(flag, wanted, passing)));
    }
    let mut found = passing.none_like()?;
    let is_there = match predicate {
        ValuePredicate::Keys(ranges) => Walk::of(ranges).add(fields, &mut found)?,
        ValuePredicate::Words(words) => {
            let mut is_there = true;
            for (at, word) in words.keys().enumerate() {
                if words.having() != Having::Any && at > 0 {
                    passing.and(&found);
                    found.words_mut().fill(0);
                }
                is_there &= Walk::of(&[KeyRange::one(word)]).add(fields, &mut found)?;
            }
            is_there
        }
        predicate => {
            let all = [KeyRange { from: Box::default(), to: None }];
            Walk { predicate: Some(predicate), cost: predicate.cost(), ..Walk::of(&all) }.add(fields, &mut found)?
        }
    };
    if is_there {
        passing.and(&found);
    }
    Ok(is_there && !matches!(predicate, ValuePredicate::Words(words) if words.is_in_a_row()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Area;
    use crate::bitmap::Bitmaps;
    use crate::geo::{GeoPoint, GeoPolygon};
    use parking_lot::Mutex;
    use ramekin_base::{Kind, cancel};
    use ramekin_memory::Budget;
    use serde_json::json;
    use std::cell::RefCell;

    /// An index that counts the steps in which it is seen, and that has something happen after each.
    struct Counted<'a> {
        index: Mutex<FieldMemtable>,
        steps: RefCell<usize>,
        then: &'a dyn Fn(&mut FieldMemtable),
    }

    impl Stepped for Counted<'_> {
        fn step(&self, step: &mut dyn FnMut(&FieldMemtable)) -> bool {
            step(&self.index.lock());
            *self.steps.borrow_mut() += 1;
            (self.then)(&mut self.index.lock());
            true
        }
    }

    fn counted<'a>(
        kind: &str,
        slots: usize,
        value: impl Fn(usize) -> Value,
        memory: &mut Reservation,
        then: &'a dyn Fn(&mut FieldMemtable),
    ) -> Counted<'a> {
        let (path, schema) = (Path::parse("a").unwrap(), Arc::new(Schema::named(kind).unwrap()));
        let mut index = FieldMemtable::new(path, schema, 0);
        (0..slots).for_each(|slot| push(&mut index, value(slot), memory));
        Counted { index: Mutex::new(index), steps: RefCell::new(0), then }
    }

    fn push(index: &mut FieldMemtable, value: Value, memory: &mut Reservation) {
        let payload = json!({ "a": value });
        let values =
            FieldMemtable::values(&index.path.clone(), &index.schema.clone(), payload.as_object().unwrap(), memory);
        assert!(index.push(Some(values.unwrap()), memory));
    }

    fn integers(ranges: impl Iterator<Item = i64>) -> ValuePredicate {
        ValuePredicate::Keys(ranges.map(|at| KeyRange::one(&crate::key::of_integer(at))).collect())
    }

    /// A polygon around the middle of the earth.
    fn polygon(corners: usize) -> ValuePredicate {
        let at = |corner: usize| std::f64::consts::TAU * (corner % corners) as f64 / corners as f64;
        let corner = |corner| GeoPoint { lon: 10.0 * at(corner).cos(), lat: 10.0 * at(corner).sin() };
        ValuePredicate::Area(Area::Polygon(
            GeoPolygon::new((0..=corners).map(corner).collect(), Box::default()).unwrap(),
        ))
    }

    #[test]
    fn a_dear_filter_is_asked_in_steps_of_bounded_work() {
        let budget = Budget::new(64 << 20);
        let pool = Bitmaps::new(&budget.root(), &budget.root());
        let mut memory = budget.root().try_reserve(0).unwrap();
        let numbers = counted("integer", 1000, |slot| json!(slot), &mut memory, &|_| {});
        for (predicate, passing, least) in
            [(integers(0..10), 10, 1), (integers(0..100_000), 1000, 100_000 * SEEK / STEP)]
        {
            *numbers.steps.borrow_mut() = 0;
            let mut rows = Bitmap::all(1000, &pool).unwrap();
            assert!(keep(&numbers, &predicate, &mut rows).unwrap());
            assert_eq!(rows.count(), passing);
            assert!((least..least + 5).contains(&*numbers.steps.borrow()), "{} steps", *numbers.steps.borrow());
        }
        let places = counted("geo", 300, |slot| json!({ "lon": slot as f64 / 10.0, "lat": 0.0 }), &mut memory, &|_| {});
        let mut rows = Bitmap::all(300, &pool).unwrap();
        assert!(keep(&places, &polygon(40_000), &mut rows).unwrap());
        // The tenth degree is the edge.
        assert!((99..=101).contains(&rows.count()), "{}", rows.count());
        assert!(*places.steps.borrow() >= 300, "one place is more than a step's work");
    }

    #[test]
    fn what_comes_between_the_steps_is_left_to_who_asks_later() {
        let budget = Budget::new(64 << 20);
        let pool = Bitmaps::new(&budget.root(), &budget.root());
        let mut memory = budget.root().try_reserve(0).unwrap();
        let more = Mutex::new(budget.root().try_reserve(0).unwrap());
        let grow = |index: &mut FieldMemtable| (0..70).for_each(|_| push(index, json!(7), &mut more.lock()));
        let numbers = counted("integer", 1000, |slot| json!(slot), &mut memory, &grow);
        let mut rows = Bitmap::all(1000, &pool).unwrap();
        assert!(keep(&numbers, &integers(0..5_000), &mut rows).unwrap());
        assert!(*numbers.steps.borrow() > 5);
        assert_eq!((rows.count(), rows.rows()), (1000, 1000));
        let mut rows = Bitmap::all(1000, &pool).unwrap();
        assert!(keep(&numbers, &integers(7..8), &mut rows).unwrap());
        assert_eq!(rows.iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_dear_filter_that_nobody_waits_for_ends_at_its_next_step() {
        let budget = Budget::new(64 << 20);
        let pool = Bitmaps::new(&budget.root(), &budget.root());
        let mut memory = budget.root().try_reserve(0).unwrap();
        let token = cancel::Token::new();
        let give_up = |_: &mut FieldMemtable| _ = token.cancel();
        let place = |slot: usize| json!({ "lon": slot as f64 / 10.0, "lat": 0.0 });
        let places = counted("geo", 300, place, &mut memory, &give_up);
        let mut rows = Bitmap::all(300, &pool).unwrap();
        let error = cancel::scope(&token, || keep(&places, &polygon(40_000), &mut rows)).unwrap_err();
        assert_eq!((error.kind(), *places.steps.borrow()), (Kind::Cancelled, 1));
    }
}
