//! Builds the index of a field: every payload once, then sorts.
//!
//! ```text
//!   payloads ─► (key, row)s ─► sorted by key ─► keys, starts, rows
//!                                  └─► (row, code)s ─► sorted by row ─► the column
//!           └─► rows whose field is empty, where it is null, whose keys do not tell all of it
//! ```
//!
//! Memory: what the sorts are given, a bit a row for each flag that some row has, and three more and 256 KiB where points have several values.

use super::{BARE, CODES, EMPTY, ENDS, FOREIGN, FORM, KEYS, Meta, NULLS, PARTLY, RECORDS, ROWS, SEVERAL, STARTS};
use crate::check::{is_empty, is_null};
use crate::column::{self, ColumnValue, MultiValueDirectory};
use crate::path::Path;
use crate::schema::Schema;
use ramekin_base::{Error, Packed, Packer, Result};
use ramekin_disk::Disk;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageWriter, Priority};
use ramekin_runs::sort::{Records, Scratch, Sorted, Sorter};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What a build works with.
pub struct Work<'a> {
    pub disk: Arc<dyn Disk>,
    /// A folder for temporary files, whose owner empties it at start.
    pub temp: PathBuf,
    pub account: Account,
    /// Takes as little memory as there can be: with more it has failed.
    pub sparing: bool,
    /// Whether to stop.
    pub cancelled: &'a dyn Fn() -> bool,
}

impl Work<'_> {
    pub(crate) fn check(&self) -> Result<()> {
        if (self.cancelled)() { Err(Error::closed("the index is not wanted any more")) } else { Ok(()) }
    }
}

/// Called with a row and its payload.
pub type EachPayload<'a> = dyn FnMut(u32, &Map<String, Value>) -> Result<()> + 'a;

/// The payloads of the rows that an index is of.
pub trait Payloads {
    fn rows(&self) -> u32;
    /// Shows each row's payload, or at least the field's first key of it, in the order of the rows.
    fn walk(&mut self, each: &mut EachPayload<'_>) -> Result<()>;
}

/// Rows between two looks whether to stop.
const CHECK_ROWS: u32 = 8192;
/// The most that the sorts of a build use.
const SORT_BYTES: u64 = 8 << 20;
/// And the least.
const SORT_LEAST: u64 = 256 << 10;

/// Writes the index of a field. What it returns describes it, and is the file's meta data.
pub fn build(
    payloads: &mut dyn Payloads,
    path: &Path,
    schema: &Schema,
    out: &mut PageWriter,
    work: &Work<'_>,
) -> Result<Meta> {
    let rows = payloads.rows() as usize;
    let [mut empty, mut nulls, mut partly, mut foreign, mut bare] =
        [EMPTY, NULLS, PARTLY, FOREIGN, BARE].map(Flags::new);
    // The payloads that are walked want memory too.
    let left = || work.account.left().unwrap_or(SORT_BYTES).saturating_sub(Sorter::MERGE_BYTES) / 3;
    let sort_bytes = if work.sparing { 0 } else { left() }.clamp(SORT_LEAST, SORT_BYTES) as usize;
    let check = || work.check();
    let (disk, folder, account) = (work.disk.clone(), work.temp.clone(), work.account.clone());
    let scratch = Scratch { disk, folder, account, check: &check };
    let mut sorter = Sorter::new(&scratch, "keys", sort_bytes)?;
    let mut held = 0;
    payloads.walk(&mut |row, payload| {
        if row % CHECK_ROWS == 0 {
            work.check()?;
        }
        let (mut pushed, mut is_held) = (Ok(()), false);
        let rest = schema.keys_and_rest(path, payload, &mut |key| {
            is_held = true;
            if pushed.is_ok() {
                pushed = sorter.push(key, &row.to_be_bytes());
            }
        });
        held += u32::from(is_held);
        for (flags, is_set) in [
            (&mut empty, is_empty(path, payload)),
            (&mut nulls, is_null(path, payload)),
            (&mut partly, rest.partly),
            (&mut foreign, rest.foreign),
            (&mut bare, !is_held),
        ] {
            if is_set {
                flags.set(row, rows, &work.account)?;
            }
        }
        pushed
    })?;
    let sorted = sorter.finish()?;
    if sorted.records > u64::from(u32::MAX) {
        return Err(Error::too_large("an index holds at most 4 billion values"));
    }
    let mut meta = Meta {
        rows: rows as u32,
        values: sorted.records as u32,
        distinct: sorted.distinct as u32,
        key_len: sorted.key_len,
        held,
        has_several: false,
        column: !matches!(schema, Schema::Text(_) | Schema::Geo),
        tokens: schema.tokens(),
        form: FORM,
        partly: partly.count,
        foreign: foreign.count,
    };
    write_keys(&sorted, &meta, out, work)?;
    for flags in [empty, nulls, partly, foreign, bare] {
        flags.write(out)?;
    }
    let mut by_row = if meta.column { Some(Sorter::new(&scratch, "rows", sort_bytes)?) } else { None };
    write_rows(&sorted, &meta, out, work, by_row.as_mut())?;
    drop(sorted);
    if let Some(by_row) = by_row {
        let by_row = by_row.finish()?;
        meta.has_several = by_row.records > by_row.distinct;
        meta.column = write_column(&by_row, &meta, out, work)?;
    }
    Ok(meta)
}

fn write_keys(sorted: &Sorted, meta: &Meta, out: &mut PageWriter, work: &Work<'_>) -> Result<()> {
    if meta.distinct == 0 {
        return Ok(());
    }
    out.begin(KEYS, Priority::Fields)?;
    each_key(sorted, work, &mut |key, _| out.write(key))?;
    out.end()?;
    if meta.key_len.is_none() {
        let mut end = 0u64;
        out.begin(ENDS, Priority::Fields)?;
        out.write(&end.to_le_bytes())?;
        each_key(sorted, work, &mut |key, _| {
            end += key.len() as u64;
            out.write(&end.to_le_bytes())
        })?;
        out.end()?;
    }
    if meta.values > meta.distinct {
        out.begin(STARTS, Priority::Fields)?;
        each_key(sorted, work, &mut |_, start| out.write(&start.to_le_bytes()))?;
        out.write(&meta.values.to_le_bytes())?;
        out.end()?;
    }
    Ok(())
}

/// Shows each different key, and the place of its first row.
fn each_key(sorted: &Sorted, work: &Work<'_>, each: &mut dyn FnMut(&[u8], u32) -> Result<()>) -> Result<()> {
    let (mut records, mut last, mut place) = (sorted.read(&work.account)?, Vec::new(), 0u32);
    while let Some((key, _)) = records.record() {
        if place == 0 || last != key {
            each(key, place)?;
            last.clear();
            last.extend_from_slice(key);
        }
        place += 1;
        records.next()?;
    }
    Ok(())
}

/// A key and its number, as it was pushed: four bytes, the great end first, so that numbers of one key ascend.
fn pair<'a>(records: &'a Records<'_>) -> Option<(&'a [u8], u32)> {
    let (key, number) = records.record()?;
    Some((key, u32::from_be_bytes(*number.first_chunk()?)))
}

/// Rows of which something is so: a bit each, where there is one.
struct Flags {
    tag: u32,
    words: Vec<u64>,
    count: u32,
    memory: Option<Reservation>,
}

impl Flags {
    fn new(tag: u32) -> Self {
        Self { tag, words: Vec::new(), count: 0, memory: None }
    }

    fn set(&mut self, row: u32, rows: usize, account: &Account) -> Result<()> {
        if self.memory.is_none() {
            let words = rows.div_ceil(column::BLOCK);
            self.memory = Some(account.try_reserve(words as u64 * 8)?);
            self.words = vec![0; words];
        }
        self.words[row as usize / column::BLOCK] |= 1 << (row as usize % column::BLOCK);
        self.count += 1;
        Ok(())
    }

    fn write(self, out: &mut PageWriter) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        out.begin(self.tag, Priority::Fields)?;
        self.words.iter().try_for_each(|word| out.write(&word.to_le_bytes()))?;
        out.end().map(|_| ())
    }
}

/// Writes the rows by key, and hands the codes by row to a sorter.
fn write_rows(
    sorted: &Sorted,
    meta: &Meta,
    out: &mut PageWriter,
    work: &Work<'_>,
    mut by_row: Option<&mut Sorter<'_>>,
) -> Result<()> {
    if meta.values == 0 {
        return Ok(());
    }
    let mut packer = Packer::new(Packed::for_count(meta.rows as usize));
    let (mut records, mut last, mut codes, mut bytes) = (sorted.read(&work.account)?, Vec::new(), 0u32, Vec::new());
    out.begin(ROWS, Priority::Fields)?;
    while let Some((key, row)) = pair(&records) {
        if codes == 0 || last != key {
            codes += 1;
            last.clear();
            last.extend_from_slice(key);
        }
        packer.push(row, &mut bytes);
        out.write(&bytes)?;
        bytes.clear();
        if let Some(by_row) = &mut by_row {
            by_row.push(&row.to_be_bytes(), &(codes - 1).to_be_bytes())?;
        }
        records.next()?;
    }
    packer.finish(&mut bytes);
    out.write(&bytes)?;
    out.end().map(|_| ())
}

/// Writes the column: its blocks first; where points have several values, those in a second pass. False: there is none,
/// the field is read by its keys only.
fn write_column(by_row: &Sorted, meta: &Meta, out: &mut PageWriter, work: &Work<'_>) -> Result<bool> {
    let blocks = (meta.rows as usize).div_ceil(column::BLOCK);
    let bytes = (blocks + 1) * size_of::<MultiValueDirectory>() + column::OPEN_BYTES;
    let _several = work.account.try_reserve(if meta.has_several { bytes as u64 } else { 0 })?;
    out.begin(CODES, Priority::Fields)?;
    let several = pack(by_row, meta, work, &mut |codes, _| out.write(codes).map(|_| ()))?;
    out.end()?;
    if !meta.has_several {
        return Ok(true);
    }
    let Some(several) = several else { return Ok(false) };
    out.begin(SEVERAL, Priority::Fields)?;
    out.write(several.as_bytes())?;
    drop(several);
    out.end()?;
    out.begin(RECORDS, Priority::Fields)?;
    pack(by_row, meta, work, &mut |_, records| out.write(records).map(|_| ()))?;
    out.end()?;
    Ok(true)
}

/// Packs the rows, and shows bytes of blocks and of records as they become whole. Returns which points have several
/// values, and where their records start; `None` where one would be too long.
fn pack(
    by_row: &Sorted,
    meta: &Meta,
    work: &Work<'_>,
    each: &mut column::EachBytes<'_>,
) -> Result<Option<Vec<MultiValueDirectory>>> {
    let mut packer = column::Packer::new(meta.distinct, meta.has_nothing(), meta.has_several, meta.rows as usize);
    let (mut records, mut codes) = (by_row.read(&work.account)?, Vec::new());
    for row in 0..meta.rows {
        codes.clear();
        while let Some((_, code)) = pair(&records).filter(|(key, _)| *key == row.to_be_bytes()) {
            if codes.len() <= column::VALUES_MAX {
                codes.push(code);
            }
            records.next()?;
        }
        packer.push(match codes.as_slice() {
            [] => ColumnValue::Nothing,
            [code] => ColumnValue::One(*code),
            codes => ColumnValue::Many(codes),
        });
        packer.drain(row + 1 == meta.rows, each)?;
    }
    Ok(packer.into_several())
}
