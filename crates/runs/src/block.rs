//! A block: sorted records in one page, or, where one record is larger than that, in several.
//!
//! ```text
//!   codec 1 │ weights 1 │ records 2 │ bytes of weights 2 │ restarts 2 each │ weights │ records ... │ zeros
//!
//!   restart   where every 16th record begins; its key is whole
//!   weights   a signed varint a record; none where each is 1, or where the tree has none
//!   record    shared, unshared: varints │ head 1 │ [length: varint] │ rest of the key │ value
//!   head      bits 0-1 kind │ bit 2 first │ bits 3-7 length of the value, 31: 31 and the varint
//! ```
//!
//! `shared` is how many bytes the key has in common with the one before it (prefix compression with restart points, as in
//! LevelDB's table format). The codec is 0: the bytes are as they are. Decoders check every length; they never panic.

use crate::entry::{Entry, Extent, Value};
use ramekin_base::limits::PAGE;
use ramekin_base::varint;
use ramekin_base::{Error, Result};

const HEADER: usize = 6;
/// Records from one restart to the next.
const INTERVAL: usize = 16;
/// The length in a head that says that more follows.
const LONG: usize = 31;
const RECORDS_MAX: usize = u16::MAX as usize;

/// What a block says about weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    None = 0,
    AllOne = 1,
    Stored = 2,
}

const INLINE: u8 = 0;
const BIG: u8 = 1;
const DELETED: u8 = 2;
const DELETED_TO: u8 = 3;

/// Gathers sorted records into a block.
pub(crate) struct BlockBuilder {
    weighted: bool,
    records: Vec<u8>,
    restarts: Vec<u16>,
    weights: Vec<u8>,
    all_one: bool,
    count: usize,
    last_key: Vec<u8>,
    value: Vec<u8>,
}

impl BlockBuilder {
    pub(crate) fn new(weighted: bool) -> Self {
        Self {
            weighted,
            records: Vec::with_capacity(PAGE),
            restarts: Vec::with_capacity(PAGE / 2 / INTERVAL),
            weights: Vec::with_capacity(PAGE / 2),
            all_one: true,
            count: 0,
            last_key: Vec::new(),
            value: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The key that was added last, in this block or, where it is empty, in the one before.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Whether the record fits what is left of one page. An empty block takes any record.
    pub(crate) fn fits(&self, entry: &Entry<'_>) -> bool {
        let value = match entry.value {
            Value::Inline(bytes) | Value::DeletedTo(bytes) => bytes.len(),
            Value::Big(_) => 2 * varint::VARINT_MAX,
            Value::Deleted => 0,
        };
        let shared = if self.count.is_multiple_of(INTERVAL) { 0 } else { common(&self.last_key, entry.key) };
        let record = varint::len(shared as u64)
            + varint::len((entry.key.len() - shared) as u64)
            + 1
            + if value < LONG { 0 } else { varint::len((value - LONG) as u64) }
            + (entry.key.len() - shared)
            + value;
        // The weight of each record is stored before it is known whether all are 1.
        let weight = if self.weighted { varint::VARINT_MAX } else { 0 };
        let restarts = 2 * (self.count / INTERVAL + 1);
        self.count == 0 || self.count < RECORDS_MAX && self.bytes() + record + weight + restarts <= PAGE
    }

    fn bytes(&self) -> usize {
        HEADER + self.weights.len() + self.records.len()
    }

    /// Adds a record. Its key is greater than the last one's.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        debug_assert!(self.count == 0 || self.last_key.as_slice() < entry.key, "keys of a block ascend");
        let shared = if self.count.is_multiple_of(INTERVAL) {
            self.restarts.push(self.records.len() as u16);
            0
        } else {
            common(&self.last_key, entry.key)
        };
        self.value.clear();
        let kind = match entry.value {
            Value::Inline(bytes) => {
                self.value.extend_from_slice(bytes);
                INLINE
            }
            Value::Big(extent) => {
                varint::put(&mut self.value, extent.at);
                varint::put(&mut self.value, extent.len);
                BIG
            }
            Value::Deleted => DELETED,
            Value::DeletedTo(end) => {
                self.value.extend_from_slice(end);
                DELETED_TO
            }
        };
        let (len, unshared) = (self.value.len(), &entry.key[shared..]);
        varint::put(&mut self.records, shared as u64);
        varint::put(&mut self.records, unshared.len() as u64);
        self.records.push(kind | u8::from(entry.first) << 2 | (len.min(LONG) as u8) << 3);
        if len >= LONG {
            varint::put(&mut self.records, (len - LONG) as u64);
        }
        self.records.extend_from_slice(unshared);
        self.records.extend_from_slice(&self.value);
        if self.weighted {
            varint::put_signed(&mut self.weights, entry.weight);
            self.all_one &= entry.weight == 1;
        }
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(unshared);
        self.count += 1;
    }

    /// Appends the block, padded to whole pages, to `out` and begins the next one. Returns its pages.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> usize {
        let weights = match (self.weighted, self.all_one) {
            (false, _) => Weights::None,
            (true, true) => Weights::AllOne,
            (true, false) => Weights::Stored,
        };
        let stored = if weights == Weights::Stored { self.weights.len() } else { 0 };
        let start = out.len();
        out.extend_from_slice(&[0, weights as u8]);
        out.extend_from_slice(&(self.count as u16).to_le_bytes());
        out.extend_from_slice(&(stored as u16).to_le_bytes());
        self.restarts.iter().for_each(|at| out.extend_from_slice(&at.to_le_bytes()));
        out.extend_from_slice(&self.weights[..stored]);
        out.extend_from_slice(&self.records);
        let pages = (out.len() - start).div_ceil(PAGE);
        out.resize(start + pages * PAGE, 0);
        // What one long record made large is not kept.
        self.records.clear();
        self.records.shrink_to(PAGE);
        self.value.shrink_to(PAGE);
        self.restarts.clear();
        self.weights.clear();
        (self.all_one, self.count) = (true, 0);
        pages
    }
}

/// How many bytes two keys have in common from their start.
#[inline]
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    let most = a.len().min(b.len());
    let words = a.chunks_exact(8).zip(b.chunks_exact(8));
    let same = words.take_while(|(a, b)| a == b).count() * 8;
    same + a[same..most].iter().zip(&b[same..most]).take_while(|(a, b)| a == b).count()
}

/// The bytes of a block, its header checked.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    restarts: &'a [u8],
    stored: &'a [u8],
    records: &'a [u8],
    weights: Weights,
    count: usize,
}

/// A place in a block: the record there, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    /// Where the record begins.
    at: usize,
}

/// A record as it stands in a block.
struct Raw<'a> {
    shared: usize,
    unshared: &'a [u8],
    head: u8,
    value: &'a [u8],
    /// Where the next record begins.
    end: usize,
}

fn damaged() -> Error {
    Error::corrupt("a block contradicts itself; restore the file from a copy")
}

impl<'a> Block<'a> {
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or_else(damaged)?;
        let [codec, weights, a, b, c, d] = *header;
        if codec != 0 {
            let text = format!("a block has codec {codec}, which this program does not know; open it with a newer one");
            return Err(Error::unsupported(text));
        }
        let weights = match weights {
            0 => Weights::None,
            1 => Weights::AllOne,
            2 => Weights::Stored,
            _ => return Err(damaged()),
        };
        let count = usize::from(u16::from_le_bytes([a, b]));
        let restarts = 2 * count.div_ceil(INTERVAL);
        let (restarts, rest) = rest.split_at_checked(restarts).ok_or_else(damaged)?;
        let stored = usize::from(u16::from_le_bytes([c, d]));
        let (stored, records) = rest.split_at_checked(stored).ok_or_else(damaged)?;
        if count == 0 || weights == Weights::Stored && stored.len() < count {
            return Err(damaged());
        }
        Ok(Self { restarts, stored, records, weights, count })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    fn restart(&self, number: usize) -> usize {
        usize::from(u16::from_le_bytes([self.restarts[number * 2], self.restarts[number * 2 + 1]]))
    }

    #[inline]
    fn raw(&self, at: usize) -> Result<Raw<'a>> {
        self.parse(at).ok_or_else(damaged)
    }

    #[inline]
    fn parse(&self, mut at: usize) -> Option<Raw<'a>> {
        let bytes = self.records;
        let shared = varint::get(bytes, &mut at)? as usize;
        let unshared = usize::try_from(varint::get(bytes, &mut at)?).ok()?;
        let head = *bytes.get(at)?;
        at += 1;
        let mut len = usize::from(head >> 3);
        if len == LONG {
            len = LONG.checked_add(usize::try_from(varint::get(bytes, &mut at)?).ok()?)?;
        }
        let value_at = at.checked_add(unshared)?;
        let end = value_at.checked_add(len)?;
        Some(Raw { shared, unshared: bytes.get(at..value_at)?, head, value: bytes.get(value_at..end)?, end })
    }

    /// The first record whose key is at least `key`, and whether it is that key.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> Result<(Place, bool)> {
        // The last restart whose key is not greater.
        let (mut low, mut high) = (0, self.count.div_ceil(INTERVAL));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.raw(self.restart(middle))?.unshared <= key { low = middle } else { high = middle }
        }
        let mut place = Place { index: low * INTERVAL, at: self.restart(low) };
        // Bytes that the record before this one has in common with `key`, which is greater.
        let mut matched = 0;
        while place.index < self.count {
            let raw = self.raw(place.at)?;
            if raw.shared < matched {
                break;
            }
            if raw.shared == matched {
                let rest = &key[matched..];
                let same = common(raw.unshared, rest);
                match (same == raw.unshared.len(), same == rest.len()) {
                    (true, true) => return Ok((place, true)),
                    (false, true) => break,
                    (false, false) if raw.unshared[same] > rest[same] => break,
                    _ => matched += same,
                }
            }
            place = Place { index: place.index + 1, at: raw.end };
        }
        Ok((place, false))
    }

    /// The record at a place that [`Block::lower_bound`] found, whose key is the one that was looked for.
    pub(crate) fn entry_of<'k>(&self, place: Place, key: &'k [u8]) -> Result<Entry<'k>>
    where
        'a: 'k,
    {
        let raw = self.raw(place.at)?;
        let (value, first) = value_of(&raw)?;
        Ok(Entry { key, value, weight: self.weight(place.index)?, first })
    }

    /// The value alone of the record before a place that was found, or of the one there where it was `found`: how an index is asked.
    pub(crate) fn value_at_or_before(&self, key: &[u8]) -> Result<&'a [u8]> {
        let (place, found) = self.lower_bound(key)?;
        let index = if found { place.index } else { place.index.checked_sub(1).ok_or_else(damaged)? };
        let raw = if found { self.raw(place.at)? } else { self.nth(index)? };
        Ok(raw.value)
    }

    fn nth(&self, index: usize) -> Result<Raw<'a>> {
        let mut raw = self.raw(self.restart(index / INTERVAL))?;
        for _ in 0..index % INTERVAL {
            raw = self.raw(raw.end)?;
        }
        Ok(raw)
    }

    /// The weight of one record.
    #[inline]
    pub(crate) fn weight(&self, index: usize) -> Result<i64> {
        match self.weights {
            Weights::None => Ok(0),
            Weights::AllOne => Ok(1),
            Weights::Stored => {
                let mut at = self.weight_at(index)?;
                varint::get_signed(self.stored, &mut at).ok_or_else(damaged)
            }
        }
    }

    /// Where the weight of a record stands.
    fn weight_at(&self, index: usize) -> Result<usize> {
        if self.stored.len() == self.count {
            return Ok(index);
        }
        let mut at = 0;
        for _ in 0..index {
            varint::get(self.stored, &mut at).ok_or_else(damaged)?;
        }
        Ok(at)
    }

    /// The sum of the weights of the first `count` records.
    pub(crate) fn weight_before(&self, count: usize) -> Result<i64> {
        match self.weights {
            Weights::None => Ok(0),
            Weights::AllOne => Ok(count as i64),
            Weights::Stored => {
                let (mut at, mut sum) = (0, 0i64);
                for _ in 0..count {
                    let weight = varint::get_signed(self.stored, &mut at).ok_or_else(damaged)?;
                    sum = sum.checked_add(weight).ok_or_else(damaged)?;
                }
                Ok(sum)
            }
        }
    }
}

fn value_of<'a>(raw: &Raw<'a>) -> Result<(Value<'a>, bool)> {
    let value = match raw.head & 3 {
        INLINE => Value::Inline(raw.value),
        BIG => {
            let mut at = 0;
            let (start, len) = (varint::get(raw.value, &mut at), varint::get(raw.value, &mut at));
            let (Some(start), Some(len)) = (start, len) else { return Err(damaged()) };
            Value::Big(Extent { at: start, len })
        }
        DELETED => Value::Deleted,
        _ => Value::DeletedTo(raw.value),
    };
    Ok((value, raw.head & 4 != 0))
}

/// Where a walk through a block is: the record there with its whole key.
#[derive(Default)]
pub(crate) struct Walk {
    key: Vec<u8>,
    index: usize,
    at: usize,
    end: usize,
}

impl Walk {
    /// Goes to the first record whose key is at least `key`; false: there is none in this block.
    pub(crate) fn seek(&mut self, block: &Block<'_>, key: &[u8]) -> Result<bool> {
        let (place, _) = block.lower_bound(key)?;
        self.go_to(block, place.index)
    }

    /// Goes to a record by its number; false: there are not so many.
    pub(crate) fn go_to(&mut self, block: &Block<'_>, index: usize) -> Result<bool> {
        if index >= block.len() {
            return Ok(false);
        }
        self.key.clear();
        self.index = index / INTERVAL * INTERVAL;
        self.load(block, block.restart(index / INTERVAL))?;
        while self.index < index {
            self.index += 1;
            self.load(block, self.end)?;
        }
        Ok(true)
    }

    /// Goes to the next record; false: this was the last one.
    pub(crate) fn next(&mut self, block: &Block<'_>) -> Result<bool> {
        if self.index + 1 >= block.len() {
            return Ok(false);
        }
        self.index += 1;
        self.load(block, self.end).map(|()| true)
    }

    /// Goes to the record before; false: this was the first one.
    pub(crate) fn back(&mut self, block: &Block<'_>) -> Result<bool> {
        match self.index.checked_sub(1) {
            Some(index) => self.go_to(block, index),
            None => Ok(false),
        }
    }

    fn load(&mut self, block: &Block<'_>, at: usize) -> Result<()> {
        let raw = block.raw(at)?;
        if raw.shared > self.key.len() {
            return Err(damaged());
        }
        self.key.truncate(raw.shared);
        self.key.extend_from_slice(raw.unshared);
        (self.at, self.end) = (at, raw.end);
        Ok(())
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    #[cfg(test)]
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The record; `block` is the one that the walk is in.
    pub(crate) fn entry<'b>(&'b self, block: &Block<'b>) -> Result<Entry<'b>> {
        let raw = block.raw(self.at)?;
        let (value, first) = value_of(&raw)?;
        Ok(Entry { key: &self.key, value, weight: block.weight(self.index)?, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    struct Owned {
        kind: u8,
        value: Vec<u8>,
        weight: i64,
        first: bool,
    }

    impl Owned {
        fn value(&self) -> Value<'_> {
            match self.kind {
                INLINE => Value::Inline(&self.value),
                BIG => Value::Big(Extent { at: self.value.len() as u64 * 1000, len: 77 }),
                DELETED => Value::Deleted,
                _ => Value::DeletedTo(&self.value),
            }
        }
    }

    fn owned(weights: std::ops::Range<i64>) -> impl Strategy<Value = Owned> {
        let value = proptest::collection::vec(any::<u8>(), 0..90);
        (0u8..4, value, weights, any::<bool>()).prop_map(|(kind, value, weight, first)| Owned {
            kind,
            value,
            weight,
            first,
        })
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..4, 0..12)
    }

    /// Packs all into blocks.
    fn build(weighted: bool, all: &BTreeMap<Vec<u8>, Owned>) -> Vec<Vec<u8>> {
        let (mut builder, mut blocks) = (BlockBuilder::new(weighted), Vec::new());
        let mut cut = |builder: &mut BlockBuilder| {
            let mut out = Vec::new();
            builder.finish(&mut out);
            blocks.push(out);
        };
        for (key, it) in all {
            let entry = Entry { key, value: it.value(), weight: it.weight, first: it.first };
            if !builder.fits(&entry) {
                cut(&mut builder);
            }
            builder.push(&entry);
        }
        if !builder.is_empty() {
            cut(&mut builder);
        }
        blocks
    }

    proptest! {
        #[test]
        fn records_come_back_forwards_backwards_and_by_key(
            all in proptest::collection::btree_map(keys(), owned(-3..300), 1..300),
            asked in keys(),
            all_one in any::<bool>(),
        ) {
            let mut all = all;
            if all_one {
                all.values_mut().for_each(|it| it.weight = 1);
            }
            let blocks = build(true, &all);
            prop_assert!(blocks.iter().all(|block| block.len() == PAGE));
            let mut rest = all.iter();
            for bytes in &blocks {
                let block = Block::open(bytes).unwrap();
                let mut walk = Walk::default();
                let (mut there, mut before, mut seen) = (walk.go_to(&block, 0).unwrap(), 0, Vec::new());
                while there {
                    let (key, it) = rest.next().unwrap();
                    let entry = walk.entry(&block).unwrap();
                    prop_assert_eq!(entry, Entry { key, value: it.value(), weight: it.weight, first: it.first });
                    prop_assert_eq!(block.weight_before(walk.index()).unwrap(), before);
                    before += it.weight;
                    let (place, found) = block.lower_bound(key).unwrap();
                    prop_assert!(found && place.index == walk.index());
                    prop_assert_eq!(block.entry_of(place, key).unwrap(), entry);
                    seen.push(key.clone());
                    there = walk.next(&block).unwrap();
                }
                let bound = seen.partition_point(|key| *key < asked);
                let (place, found) = block.lower_bound(&asked).unwrap();
                prop_assert_eq!((place.index, found), (bound, seen.get(bound) == Some(&asked)));
                prop_assert_eq!(walk.seek(&block, &asked).unwrap(), bound < seen.len());
                if bound < seen.len() {
                    prop_assert_eq!(walk.key(), &seen[bound][..]);
                }
                walk.go_to(&block, seen.len() - 1).unwrap();
                for key in seen.iter().rev() {
                    prop_assert_eq!(walk.key(), &key[..]);
                    prop_assert_eq!(walk.back(&block).unwrap(), *key != seen[0]);
                }
            }
            prop_assert!(rest.next().is_none());
        }

        #[test]
        fn a_long_record_has_a_block_of_its_own(len in 5000usize..65_536) {
            let key = vec![7; len];
            let mut builder = BlockBuilder::new(false);
            builder.push(&Entry { key: &key, value: Value::Inline(b"x"), weight: 0, first: false });
            let next = Entry { key: &[8], value: Value::Deleted, weight: 0, first: false };
            prop_assert!(!builder.fits(&next));
            let mut out = Vec::new();
            let pages = builder.finish(&mut out);
            prop_assert_eq!((out.len(), pages), (pages * PAGE, (len + 11 + varint::len(len as u64)).div_ceil(PAGE)));
            prop_assert!(Block::open(&out).unwrap().lower_bound(&key).unwrap().1);
        }

        /// Whatever stands in a page, the decoders answer or refuse, and stay in bounds.
        #[test]
        fn decoders_never_panic(
            all in proptest::collection::btree_map(keys(), owned(-3..300), 1..300),
            changes in proptest::collection::vec((0usize..PAGE, any::<u8>()), 1..20),
            asked in keys(),
        ) {
            for mut bytes in build(true, &all) {
                changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
                crate::decode_anything(&bytes, &asked);
            }
        }
    }
}
