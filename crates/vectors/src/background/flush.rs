//! The rows of a memtable, in id order, as a segment is written from them.
//!
//! ```text
//!   order    slot of each row   (sorted by id)        payloads lie in the log in order of arrival,
//!   row_of   row of each slot   (NONE: dead)          so they are gathered a range of rows at a time:
//!                                                     each range reads the log once, front to back
//! ```

use crate::memtable::delete_bitmap::DeleteBitmap;
use crate::memtable::{Inner, Memtable};
use crate::payload::log::PayloadAt;
use crate::segment::meta::Walk;
use crate::segment::write::{Row, Rows};
use parking_lot::RwLockReadGuard;
use ramekin_ann::Source;
use ramekin_base::lock::Guard;
use ramekin_base::{Error, PointId, Result};
use ramekin_log::{LogReader, Lsn, Record};
use ramekin_memory::{Account, Reservation};
use std::cell::{Cell, RefCell};
use std::ops::Range;

pub(crate) const NONE: u32 = u32::MAX;
/// Payload bytes gathered at a time, at most; a tenth of the account where that is less.
const GATHER_BYTES: usize = 2 << 20;
/// Vectors that a source hands out at a time.
const BATCH: usize = 1024;
/// Ids that are copied, or compared, before a write that waits for the part's lock has its turn.
const STEP: usize = 1024;

pub(crate) struct FlushRows<'a> {
    growing: &'a Memtable,
    log: LogReader,
    account: Account,
    order: Vec<u32>,
    row_of: Vec<u32>,
    /// Each slot's payload when the flush began: what changes meanwhile must not move what is written.
    payloads: Vec<PayloadAt>,
    /// The slots that were dead when the flush began.
    pub(crate) dead_before: DeleteBitmap,
    _memory: Reservation,
}

impl<'a> FlushRows<'a> {
    /// `dead_before`: who was dead at a moment at which nobody died, so that no write is seen by half.
    pub(crate) fn new(
        growing: &'a Memtable,
        dead_before: DeleteBitmap,
        log: LogReader,
        account: &Account,
    ) -> Result<Self> {
        // The part is immutable: no slot is added any more.
        let slots = growing.read().slots();
        let memory = account.try_reserve(slots as u64 * 24)?;
        let inner = growing.read();
        let payloads = (0..slots as u32).map(|slot| inner.payload(slot)).collect();
        let mut order: Vec<u32> = (0..slots as u32).filter(|slot| !dead_before.get(*slot)).collect();
        sort_by_id(&mut order, inner);
        let mut row_of = vec![NONE; slots];
        order.iter().enumerate().for_each(|(row, slot)| row_of[*slot as usize] = row as u32);
        Ok(Self { growing, log, account: account.clone(), order, row_of, payloads, dead_before, _memory: memory })
    }

    /// The row that a slot became.
    pub(crate) fn row_of(&self, slot: u32) -> Option<u32> {
        self.row_of.get(slot as usize).copied().filter(|row| *row != NONE)
    }

    /// The rows whose payload has changed since the flush began.
    pub(crate) fn changed(&self) -> Vec<(u32, PayloadAt)> {
        let inner = self.growing.read();
        let changed = |slot: u32| {
            let now = inner.payload(slot);
            let row = self.row_of(slot).filter(|_| now != self.payloads[slot as usize])?;
            Some((row, now))
        };
        (0..self.payloads.len() as u32).filter_map(changed).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Calls `each` with rows and their ids, ascending.
    fn each_id(&self, rows: Range<usize>, each: &mut dyn FnMut(usize, PointId) -> Result<()>) -> Result<()> {
        let mut ids = Vec::with_capacity(STEP.min(rows.len()));
        for first in rows.clone().step_by(STEP) {
            let step = first..(first + STEP).min(rows.end);
            ids.clear();
            {
                let inner = self.growing.read();
                ids.extend(self.order[step.clone()].iter().map(|slot| inner.id(*slot)));
            }
            step.zip(&ids).try_for_each(|(row, id)| each(row, *id))?;
        }
        Ok(())
    }

    fn walk_payloads(&self, each: &mut dyn FnMut(Row<'_>) -> Result<()>) -> Result<()> {
        let place = |row: usize| self.payloads[self.order[row] as usize];
        let gather = GATHER_BYTES.min((self.account.limit() / 10) as usize);
        let mut first = 0;
        while first < self.order.len() {
            // As many rows as fit the gathering buffer, and at least one.
            let (mut last, mut bytes) = (first, 0);
            while last < self.order.len() && (last == first || bytes + place(last).len as usize <= gather) {
                bytes += place(last).len as usize;
                last += 1;
            }
            let _held = self.account.try_reserve((bytes + (last - first) * 16) as u64)?;
            let mut starts = Vec::with_capacity(last - first);
            let mut end = 0;
            for row in first..last {
                starts.push(end);
                end += place(row).len as usize;
            }
            let mut text = vec![0u8; bytes];
            let mut reader = RecordReader::new(&self.log);
            for slot in 0..self.row_of.len() {
                let row = self.row_of[slot] as usize;
                if (first..last).contains(&row) {
                    let at = self.payloads[slot];
                    text[starts[row - first]..][..at.len as usize].copy_from_slice(reader.payload(at)?);
                }
            }
            self.each_id(first..last, &mut |row, id| {
                let (start, len) = (starts[row - first], place(row).len as usize);
                each(Row { id, payload_len: len as u64, payload: &text[start..start + len] })
            })?;
            first = last;
        }
        Ok(())
    }
}

/// Sorts slots by their ids; a write that waits for the part's lock has it every [`STEP`] comparisons.
fn sort_by_id(slots: &mut [u32], inner: Guard<RwLockReadGuard<'_, Inner>>) {
    let (inner, compared) = (RefCell::new(inner), Cell::new(0));
    slots.sort_unstable_by(|a, b| {
        compared.set(compared.get() + 1);
        if compared.get() % STEP == 0 {
            inner.borrow_mut().bump();
        }
        let inner = inner.borrow();
        inner.id(*a).cmp(&inner.id(*b))
    });
}

impl Rows for FlushRows<'_> {
    fn walk(&mut self, what: Walk, each: &mut dyn FnMut(Row<'_>) -> Result<()>) -> Result<()> {
        if what == Walk::Payloads {
            return self.walk_payloads(each);
        }
        let len = |row: usize| u64::from(self.payloads[self.order[row] as usize].len);
        self.each_id(0..self.order.len(), &mut |row, id| each(Row { id, payload_len: len(row), payload: &[] }))
    }

    fn vectors(&mut self, name: &str) -> Result<Option<Box<dyn Source + '_>>> {
        let inner = self.growing.read();
        let Some(column) = inner.column(name) else { return Ok(None) };
        let len = column.slots().iter().filter(|slot| self.row_of[**slot as usize] != NONE).count();
        let dim = column.dim;
        Ok(Some(Box::new(SealSource { rows: self, name: name.to_owned(), len, dim, next: 0 })))
    }

    fn len_at_most(&self) -> usize {
        self.order.len()
    }

    fn version(&self) -> u64 {
        self.growing.read().seqno()
    }
}

struct SealSource<'a> {
    rows: &'a FlushRows<'a>,
    name: String,
    len: usize,
    dim: usize,
    next: usize,
}

impl Source for SealSource<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn rewind(&mut self) -> Result<()> {
        self.next = 0;
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        rows.clear();
        vectors.clear();
        let inner = self.rows.growing.read();
        let column = inner.column(&self.name).ok_or_else(|| Error::bug("a column vanished"))?;
        while rows.len() < BATCH && self.next < column.slots().len() {
            let slot = column.slots()[self.next];
            self.next += 1;
            if let (Some(row), Some(vector)) = (self.rows.row_of(slot), column.of_slot(slot)) {
                rows.push(row);
                vectors.extend_from_slice(vector);
            }
        }
        Ok(!rows.is_empty())
    }
}

/// Reads payloads out of log records, keeping the last record at hand.
pub(crate) struct RecordReader<'a> {
    log: &'a LogReader,
    held: Option<(Lsn, Record)>,
}

impl<'a> RecordReader<'a> {
    pub(crate) fn new(log: &'a LogReader) -> Self {
        Self { log, held: None }
    }

    /// The text at a place; the record it stands in is checked by the log.
    pub(crate) fn payload(&mut self, at: PayloadAt) -> Result<&[u8]> {
        if at.len == 0 {
            return Ok(&[]);
        }
        if self.held.as_ref().is_none_or(|(lsn, _)| *lsn != at.record) {
            self.held = None;
            self.held = Some((at.record, self.log.read(at.record, (at.at + at.len) as usize)?));
        }
        let record = self.held.as_ref().map_or(&[][..], |(_, record)| &record[..]);
        record
            .get(at.at as usize..(at.at + at.len) as usize)
            .ok_or_else(|| Error::corrupt("a payload's place in the log is broken"))
    }
}
