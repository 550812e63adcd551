//! Reads the index of a field: from keys to codes, from codes to rows.

use super::{BARE, CODES, EMPTY, ENDS, FOREIGN, KEYS, Meta, NULLS, PARTLY, RECORDS, ROWS, SEVERAL, STARTS};
use crate::bitmap::Bitmap;
use crate::column::{BLOCK, Column, MultiValueDirectory, PIECES_MAX, Wanted, block_bytes};
use crate::key::{self, Untold};
use crate::predicate::{KeyRange, ValuePredicate};
use crate::text::{Having, Words};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Packed, Result, cancel, message};
use ramekin_memory::{BookedVec, SharedReservation};
use ramekin_pages::{PageFile, Pages, Section};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes that one fetch names at most: a query's pins stay within the cache's reserve.
const FETCH_BYTES: usize = 256 << 10;
/// A run of rows is read, rather than the column checked, where the rows are fewer than one of so many.
const FEW: u64 = 24;

/// Bytes of a column that are copied, where points have several values, while those are read; with where these are.
const COPIED_BYTES: usize = 16 << 10;
/// Keys that are read all together when several are looked for.
const DICTIONARY_BYTES: u64 = 32 << 10;

/// Codes that are asked for, ascending and apart, and how many values they have: as many rows at most.
pub(crate) struct Found {
    codes: BookedVec<Range<u32>>,
    pub(crate) values: u64,
}

/// An open index.
pub struct Index {
    meta: Meta,
    keys: Option<Section>,
    ends: Option<Section>,
    starts: Option<Section>,
    rows: Option<Section>,
    codes: Option<Section>,
    several: Option<Section>,
    records: Option<Section>,
    empty: Option<Section>,
    nulls: Option<Section>,
    partly: Option<Section>,
    foreign: Option<Section>,
    bare: Option<Section>,
    file: Arc<PageFile>,
}

impl Index {
    pub fn open(file: Arc<PageFile>) -> Result<Self> {
        let meta: Meta = serde_json::from_slice(file.meta()).map_err(|error| {
            Error::corrupt(message(format_args!("an index of a field does not describe itself: {error}")))
        })?;
        let blocks = u64::from(meta.rows).div_ceil(BLOCK as u64);
        let values = u64::from(meta.values);
        let section = |tag: u32| file.section(tag);
        let index = Self {
            keys: section(KEYS),
            ends: section(ENDS),
            starts: section(STARTS),
            rows: section(ROWS),
            codes: section(CODES),
            several: section(SEVERAL),
            records: section(RECORDS),
            empty: section(EMPTY),
            nulls: section(NULLS),
            partly: section(PARTLY),
            foreign: section(FOREIGN),
            bare: section(BARE),
            file: file.clone(),
            meta,
        };
        let meta = &index.meta;
        let distinct = u64::from(meta.distinct);
        let is = |section: &Option<Section>, bytes: u64| match section {
            Some(section) => section.len() == bytes,
            None => bytes == 0,
        };
        let or_none = |section: &Option<Section>, bytes: u64| section.is_none() || is(section, bytes);
        let fits = is(&index.starts, if values > distinct { (distinct + 1) * 4 } else { 0 })
            && is(
                &index.rows,
                if values > 0 { Packed::for_count(meta.rows as usize).bytes(meta.values as usize) } else { 0 },
            )
            && meta.key_len.is_none_or(|len| is(&index.keys, distinct * len as u64))
            && is(&index.ends, if distinct > 0 && meta.key_len.is_none() { (distinct + 1) * 8 } else { 0 })
            && or_none(&index.codes, blocks * block_bytes(meta.width()) as u64)
            && or_none(&index.empty, blocks * 8)
            && or_none(&index.nulls, blocks * 8)
            && or_none(&index.bare, blocks * 8)
            && is(&index.partly, if meta.partly > 0 { blocks * 8 } else { 0 })
            && is(&index.foreign, if meta.foreign > 0 { blocks * 8 } else { 0 })
            && is(
                &index.several,
                if meta.column && meta.has_several {
                    (blocks + 1) * size_of::<MultiValueDirectory>() as u64
                } else {
                    0
                },
            )
            && (!meta.column || index.codes.is_some() || meta.width() == 0)
            && values >= distinct
            && meta.held <= meta.rows;
        if fits { Ok(index) } else { Err(Error::corrupt("the tables of an index of a field do not fit each other")) }
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn file(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// Its tables.
    pub fn sections(&self) -> impl Iterator<Item = Section> + use<> {
        let own = [&self.keys, &self.ends, &self.starts, &self.rows, &self.codes].map(Option::clone);
        let others = [&self.several, &self.records, &self.empty, &self.nulls, &self.partly, &self.foreign, &self.bare];
        own.into_iter().chain(others.map(Option::clone)).flatten()
    }

    /// The key of a code.
    pub fn key(&self, pages: &Pages, code: u32) -> Result<Box<[u8]>> {
        let keys = self.keys.as_ref().ok_or_else(broken)?;
        let (from, len) = match (self.meta.key_len, &self.ends) {
            (Some(len), _) => (u64::from(code) * len as u64, len as u64),
            (None, Some(ends)) => {
                let mut fetch = pages.fetch();
                let want = fetch.want(ends, u64::from(code) * 8, 16)?;
                let pinned = fetch.run()?;
                let (from, to) = pinned.bytes(want).split_at(8);
                let (from, to) = (number(from), number(to));
                (from, to.checked_sub(from).filter(|len| *len <= key::KEY_MAX as u64).ok_or_else(broken)?)
            }
            (None, None) => return Err(broken()),
        };
        let mut fetch = pages.fetch();
        let want = fetch.want(keys, from, len as usize)?;
        Ok(fetch.run()?.bytes(want).into())
    }

    /// How many keys are below this one.
    pub fn rank(&self, pages: &Pages, key: &[u8]) -> Result<u32> {
        // Of keys that have one length a page is read at a time, once it is known which.
        let (group, len) = self.meta.key_len.map_or((1, 0), |len| ((PAGE / len.max(1)).max(1), len));
        let (mut low, mut high) = (0, self.meta.distinct.div_ceil(group as u32));
        while low < high {
            let middle = low + (high - low) / 2;
            if *self.key(pages, middle * group as u32)? < *key { low = middle + 1 } else { high = middle }
        }
        // The first keys of `low` groups are below it.
        let Some(last) = low.checked_sub(1).filter(|_| group > 1) else { return Ok(low * group as u32) };
        let (from, keys) = (last * group as u32, self.keys.as_ref().ok_or_else(broken)?);
        let count = group.min((self.meta.distinct - from) as usize);
        let mut fetch = pages.fetch();
        let want = fetch.want(keys, u64::from(from) * len as u64, count * len)?;
        let pinned = fetch.run()?;
        let bytes = pinned.bytes(want);
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if bytes[middle * len..(middle + 1) * len] < *key { low = middle + 1 } else { high = middle }
        }
        Ok(from + low as u32)
    }

    /// The codes of ranges of keys, ascending and apart; empty ones are left out.
    pub fn codes(&self, pages: &Pages, ranges: &[KeyRange], room: &SharedReservation) -> Result<BookedVec<Range<u32>>> {
        let len = |section: &Option<Section>| section.as_ref().map_or(0, Section::len);
        if ranges.len() > 1 && len(&self.keys) + len(&self.ends) <= DICTIONARY_BYTES {
            return self.codes_of_few(pages, ranges, room);
        }
        self.codes_by(ranges, |key| self.rank(pages, key), |code, key| Ok(*self.key(pages, code)? == *key), room)
    }

    /// The same where all keys are few: they are read together.
    fn codes_of_few(
        &self,
        pages: &Pages,
        ranges: &[KeyRange],
        room: &SharedReservation,
    ) -> Result<BookedVec<Range<u32>>> {
        let Some(keys) = &self.keys else { return Ok(BookedVec::new(room)) };
        let mut fetch = pages.fetch();
        let keys = fetch.want(keys, 0, keys.len() as usize)?;
        let ends = self.ends.as_ref().map(|ends| fetch.want(ends, 0, ends.len() as usize)).transpose()?;
        let pinned = fetch.run()?;
        let (keys, ends) = (pinned.bytes(keys), ends.map(|ends| pinned.bytes(ends)));
        let end = |code: usize| match (self.meta.key_len, ends) {
            (Some(len), _) => code * len,
            (None, Some(ends)) => number(&ends[code * 8..][..8]) as usize,
            (None, None) => 0,
        };
        let key_of = |code: u32| keys.get(end(code as usize)..end(code as usize + 1)).ok_or_else(broken);
        let rank = |key: &[u8]| {
            let (mut low, mut high) = (0, self.meta.distinct);
            while low < high {
                let middle = low + (high - low) / 2;
                if *key_of(middle)? < *key { low = middle + 1 } else { high = middle }
            }
            Ok(low)
        };
        self.codes_by(ranges, rank, |code, key| Ok(*key_of(code)? == *key), room)
    }

    /// The codes of ranges, by how many keys are below one, and by whether a code's key is this one.
    fn codes_by(
        &self,
        ranges: &[KeyRange],
        rank: impl Fn(&[u8]) -> Result<u32>,
        is_key: impl Fn(u32, &[u8]) -> Result<bool>,
        room: &SharedReservation,
    ) -> Result<BookedVec<Range<u32>>> {
        let mut codes = BookedVec::<Range<u32>>::new(room);
        codes.reserve(ranges.len())?;
        for range in ranges {
            cancel::check()?;
            let from = if range.from.is_empty() { 0 } else { rank(&range.from)? };
            let to = match &range.to {
                None => self.meta.distinct,
                Some(_) if range.is_one() => from + u32::from(from < self.meta.distinct && is_key(from, &range.from)?),
                Some(to) => rank(to)?,
            };
            match codes.last_mut() {
                Some(last) if last.end == from => last.end = to,
                _ if from < to => codes.push(from..to)?,
                _ => {}
            }
        }
        Ok(codes)
    }

    /// Where in `rows` the rows of some codes stand.
    pub fn places(&self, pages: &Pages, codes: &Range<u32>) -> Result<Range<u32>> {
        let Some(starts) = &self.starts else { return Ok(codes.clone()) };
        let mut fetch = pages.fetch();
        let wants =
            [fetch.want(starts, u64::from(codes.start) * 4, 4)?, fetch.want(starts, u64::from(codes.end) * 4, 4)?];
        let pinned = fetch.run()?;
        let [from, to] = wants.map(|want| number(pinned.bytes(want)) as u32);
        if from <= to && to <= self.meta.values { Ok(from..to) } else { Err(broken()) }
    }

    /// The code that has its rows at this place and around, and where they stand.
    pub fn code_at(&self, pages: &Pages, place: u32) -> Result<(u32, Range<u32>)> {
        if self.starts.is_none() {
            return Ok((place, place..place + 1));
        }
        let (mut low, mut high) = (0, self.meta.distinct);
        while low < high {
            let middle = low + (high - low) / 2;
            let places = self.places(pages, &(middle..middle + 1))?;
            match places.end <= place {
                true => low = middle + 1,
                false if places.start <= place => return Ok((middle, places)),
                false => high = middle,
            }
        }
        Err(broken())
    }

    /// How many values some codes have together: as many rows at most.
    pub fn values(&self, pages: &Pages, codes: &[Range<u32>]) -> Result<u64> {
        codes.iter().try_fold(0, |sum, codes| Ok(sum + self.places(pages, codes)?.len() as u64))
    }

    /// Shows the rows at some places.
    pub fn rows_at(&self, pages: &Pages, places: Range<u32>, each: &mut dyn FnMut(u32)) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let (section, packed) = (self.rows.as_ref().ok_or_else(broken)?, Packed::for_count(self.meta.rows as usize));
        let step = (FETCH_BYTES * 8 / packed.bits as usize) as u32;
        let mut from = places.start;
        while from < places.end {
            cancel::check()?;
            let to = places.end.min(from.saturating_add(step));
            let range = packed.range(from, (to - from) as usize);
            let mut fetch = pages.fetch();
            let want = fetch.want(section, range.start as u64, range.len())?;
            let pinned = fetch.run()?;
            let bytes = pinned.bytes(want);
            for place in from..to {
                let row = packed.get(bytes, range.start, place);
                if row >= self.meta.rows {
                    return Err(broken());
                }
                each(row);
            }
            from = to;
        }
        Ok(())
    }

    /// Takes out of `passing` the rows that do not pass. False: the index alone cannot tell, those that are left may pass.
    pub(crate) fn keep(
        &self,
        pages: &Pages,
        predicate: &ValuePredicate,
        passing: &mut Bitmap,
        room: &SharedReservation,
    ) -> Result<bool> {
        match predicate {
            ValuePredicate::Keys(ranges) => {
                self.keep_codes(pages, &self.find(pages, ranges, room)?, passing, room).map(|()| true)
            }
            ValuePredicate::Area(area) => {
                let mut found = passing.none_like()?;
                for (from, to) in &*area.stretches() {
                    let to = to.checked_add(1).map(|to| to.to_be_bytes().into());
                    for codes in &*self.codes(pages, &[KeyRange { from: from.to_be_bytes().into(), to }], room)? {
                        self.add_places_in(pages, area, codes.clone(), &mut found, room)?;
                    }
                }
                passing.and(&found);
                Ok(true)
            }
            ValuePredicate::Words(words) => {
                self.keep_words(pages, words, passing)?;
                // Which word follows which no index says.
                Ok(!words.is_in_a_row())
            }
            ValuePredicate::Empty(wanted) => keep_flagged(pages, self.empty.as_ref(), *wanted, passing).map(|()| true),
            ValuePredicate::Null(wanted) => keep_flagged(pages, self.nulls.as_ref(), *wanted, passing).map(|()| true),
        }
    }

    fn keep_words(&self, pages: &Pages, words: &Words, passing: &mut Bitmap) -> Result<()> {
        let mut found = passing.none_like()?;
        for (at, word) in words.keys().enumerate() {
            cancel::check()?;
            if words.having() != Having::Any && at > 0 {
                passing.and(&found);
                found.words_mut().fill(0);
            }
            if let Some(code) = self.code_of(pages, word)? {
                let places = self.places(pages, &(code..code + 1))?;
                self.rows_at(pages, places, &mut |row| found.set(row))?;
            }
        }
        passing.and(&found);
        Ok(())
    }

    /// Adds the rows of keys that lie in an area.
    fn add_places_in(
        &self,
        pages: &Pages,
        area: &crate::area::Area,
        codes: Range<u32>,
        found: &mut Bitmap,
        room: &SharedReservation,
    ) -> Result<()> {
        let mut inside = BookedVec::<Range<u32>>::new(room);
        let (keys, len) = (self.keys.as_ref().ok_or_else(broken)?, self.meta.key_len.ok_or_else(broken)?);
        let step = (FETCH_BYTES / len.max(1)) as u32;
        let mut from = codes.start;
        while from < codes.end {
            cancel::check()?;
            let to = codes.end.min(from.saturating_add(step));
            inside.clear();
            {
                let mut fetch = pages.fetch();
                let want = fetch.want(keys, u64::from(from) * len as u64, (to - from) as usize * len)?;
                let pinned = fetch.run()?;
                for (code, key) in (from..to).zip(pinned.bytes(want).chunks_exact(len)) {
                    // An area may have corners without number.
                    cancel::check()?;
                    if key::place_of(key).is_some_and(|place| area.holds(place)) {
                        match inside.last_mut() {
                            Some(last) if last.end == code => last.end += 1,
                            _ => inside.push(code..code + 1)?,
                        }
                    }
                }
            }
            for codes in &*inside {
                let places = self.places(pages, codes)?;
                self.rows_at(pages, places, &mut |row| found.set(row))?;
            }
            from = to;
        }
        Ok(())
    }

    /// The codes of some keys, with how many values they have.
    pub(crate) fn find(&self, pages: &Pages, ranges: &[KeyRange], room: &SharedReservation) -> Result<Found> {
        let codes = self.codes(pages, ranges, room)?;
        Ok(Found { values: self.values(pages, &codes)?, codes })
    }

    /// Takes out of `passing` the rows that have none of some codes.
    pub(crate) fn keep_codes(
        &self,
        pages: &Pages,
        found: &Found,
        passing: &mut Bitmap,
        room: &SharedReservation,
    ) -> Result<()> {
        let few = u64::from(self.meta.rows) / FEW;
        let Found { codes, values } = found;
        if *values > few
            && self.meta.column
            && codes.len() <= PIECES_MAX
            && let Some(wanted) = Wanted::new(codes)
        {
            return self.keep_by_column(pages, &wanted, passing, room);
        }
        let mut found = passing.none_like()?;
        for codes in &**codes {
            let places = self.places(pages, codes)?;
            self.rows_at(pages, places, &mut |row| found.set(row))?;
        }
        passing.and(&found);
        Ok(())
    }

    fn keep_by_column(
        &self,
        pages: &Pages,
        wanted: &Wanted,
        passing: &mut Bitmap,
        room: &SharedReservation,
    ) -> Result<()> {
        let (blocks, width) = ((self.meta.rows as usize).div_ceil(BLOCK), self.meta.width());
        if width == 0 {
            // One value, which all have.
            if wanted.is_empty() {
                passing.words_mut().fill(0);
            }
            return Ok(());
        }
        let section = self.codes.as_ref().ok_or_else(broken)?;
        let step = match self.meta.has_several {
            true => COPIED_BYTES / (block_bytes(width) + size_of::<MultiValueDirectory>()),
            false => FETCH_BYTES / 2 / block_bytes(width),
        };
        let step = step.max(1);
        for first in (0..blocks).step_by(step) {
            cancel::check()?;
            let last = blocks.min(first + step);
            if passing.words()[first..last].iter().all(|word| *word == 0) {
                continue;
            }
            let mut fetch = pages.fetch();
            let codes =
                fetch.want(section, (first * block_bytes(width)) as u64, (last - first) * block_bytes(width))?;
            let bytes = |blocks: usize| blocks * size_of::<MultiValueDirectory>();
            let several =
                self.several.as_ref().map(|several| fetch.want(several, bytes(first) as u64, bytes(last - first + 1)));
            let several = several.transpose()?;
            let pinned = fetch.run()?;
            let column = Column { width, codes: pinned.bytes(codes), several: &[], records: &[] };
            let Some(several) = several else {
                column.check_blocks(wanted, &mut passing.words_mut()[first..last]);
                continue;
            };
            // No pages are held while others are asked for.
            let several = <[MultiValueDirectory]>::ref_from_bytes(pinned.bytes(several)).map_err(|_| broken())?;
            let several = BookedVec::copied(several, room)?;
            let codes = BookedVec::copied(pinned.bytes(codes), room)?;
            drop(pinned);
            let column = Column { width, codes: &codes, several: &several, records: &[] };
            self.keep_several(pages, &column, wanted, &mut passing.words_mut()[first..last])?;
        }
        passing.trim();
        Ok(())
    }

    /// The same where points have several values: their records are read for as many blocks as a fetch may name.
    fn keep_several(&self, pages: &Pages, column: &Column<'_>, wanted: &Wanted, passing: &mut [u64]) -> Result<()> {
        let section = self.records.as_ref().ok_or_else(broken)?;
        if !column.several.is_sorted_by_key(|several| several.start()) {
            return Err(broken());
        }
        let mut first = 0;
        while first < passing.len() {
            let from = column.several[first].start();
            let bytes = |last: usize| column.several[last].start() - from;
            if bytes(first + 1) > FETCH_BYTES {
                return Err(broken());
            }
            let more = (first + 2..=passing.len()).take_while(|last| bytes(*last) <= FETCH_BYTES).count();
            let last = first + 1 + more;
            let mut fetch = pages.fetch();
            let want = fetch.want(section, from as u64, bytes(last))?;
            let pinned = fetch.run()?;
            let codes = &column.codes[first * block_bytes(column.width)..last * block_bytes(column.width)];
            let several = &column.several[first..=last];
            let part = Column { codes, several, records: pinned.bytes(want), ..*column };
            part.check_blocks(wanted, &mut passing[first..last]);
            first = last;
        }
        Ok(())
    }

    fn flags_of(&self, untold: Untold) -> Option<&Section> {
        match untold {
            Untold::Partly => self.partly.as_ref(),
            Untold::Foreign => self.foreign.as_ref(),
        }
    }

    /// Whether the keys of some row do not tell all of its field.
    pub(crate) fn has_untold(&self, untold: Untold) -> bool {
        self.flags_of(untold).is_some()
    }

    /// Takes out of `passing` the rows of which keys tell all.
    pub(crate) fn keep_untold(&self, pages: &Pages, untold: Untold, passing: &mut Bitmap) -> Result<()> {
        keep_flagged(pages, self.flags_of(untold), true, passing)
    }

    /// Takes out of `rows` those that have no value. False: an index of earlier code does not say which these are.
    pub fn keep_held(&self, pages: &Pages, rows: &mut Bitmap) -> Result<bool> {
        if self.bare.is_none() {
            return Ok(self.meta.held == self.meta.rows);
        }
        keep_flagged(pages, self.bare.as_ref(), false, rows).map(|()| true)
    }

    /// How many rows pass at most, by their keys.
    pub(crate) fn most(&self, pages: &Pages, predicate: &ValuePredicate, room: &SharedReservation) -> Result<u64> {
        match predicate {
            ValuePredicate::Keys(ranges) => Ok(self.find(pages, ranges, room)?.values),
            ValuePredicate::Area(_) => Ok(u64::from(self.meta.held)),
            ValuePredicate::Empty(_) | ValuePredicate::Null(_) => Ok(u64::from(self.meta.rows)),
            ValuePredicate::Words(words) => {
                let (mut least, mut sum) = (None::<u64>, 0);
                for word in words.keys() {
                    cancel::check()?;
                    let values = self.values_of(pages, word)?;
                    (least, sum) = (Some(least.map_or(values, |least| least.min(values))), values + sum);
                }
                Ok(if words.having() == Having::Any { sum } else { least.unwrap_or(0) })
            }
        }
    }

    /// The code of a key, if there is one.
    fn code_of(&self, pages: &Pages, key: &[u8]) -> Result<Option<u32>> {
        let code = self.rank(pages, key)?;
        let is_there = code < self.meta.distinct && *self.key(pages, code)? == *key;
        Ok(is_there.then_some(code))
    }

    fn values_of(&self, pages: &Pages, key: &[u8]) -> Result<u64> {
        match self.code_of(pages, key)? {
            Some(code) => Ok(self.places(pages, &(code..code + 1))?.len() as u64),
            None => Ok(0),
        }
    }
}

/// Keeps the rows that are flagged, or the others.
fn keep_flagged(pages: &Pages, flags: Option<&Section>, wanted: bool, passing: &mut Bitmap) -> Result<()> {
    let Some(flags) = flags else {
        if wanted {
            passing.words_mut().fill(0);
        }
        return Ok(());
    };
    let others = if wanted { 0 } else { u64::MAX };
    for (first, words) in passing.words_mut().chunks_mut(FETCH_BYTES / 8).enumerate() {
        let mut fetch = pages.fetch();
        let want = fetch.want(flags, (first * FETCH_BYTES) as u64, words.len() * 8)?;
        let pinned = fetch.run()?;
        let flags = <[u64]>::ref_from_bytes(pinned.bytes(want)).map_err(|_| broken())?;
        words.iter_mut().zip(flags).for_each(|(word, flags)| *word &= flags ^ others);
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn broken() -> Error {
    Error::corrupt("an index of a field is not what was written")
}
