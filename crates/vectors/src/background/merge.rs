//! The live rows of several segments, in id order, as a bigger segment is written from them.
//!
//! ```text
//!   segment 1   ids ▸ lengths ▸ payloads  ┐
//!   segment 2   ids ▸ lengths ▸ payloads  ├─ k-way by id ─► rows 0, 1, 2, ...
//!   segment 3   ids ▸ lengths ▸ payloads  ┘
//!   new_row     of each row of each segment (NONE: dead), made once, 4 bytes a row
//!   vectors     each segment's in its own stored order, with the new row number
//! ```
//!
//! Payloads that changed before the merge began stand in at most one run a segment, which is compacted in.
//!
//! Everything is read in streams past the page cache: a merge must not push out what queries use.

use crate::api::codec::{read_number, read_uuid};
use crate::background::flush::NONE;
use crate::memtable::delete_bitmap::DeleteBitmap;
use crate::segment::Segment;
use crate::segment::meta::{NUMBERS, PAYLOAD, PAYLOAD_AT, UUIDS, Walk};
use crate::segment::ordinals::Present;
use crate::segment::overlay::{PatchRun, PatchRunCursor};
use crate::segment::write::{Row, Rows};
use ramekin_ann::Source;
use ramekin_base::{Error, PointId, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Stream;
use std::sync::Arc;

/// Buffer of one stream, bytes; a merge of many segments opens up to three a segment.
pub(crate) const STREAM_BYTES: usize = 64 << 10;

pub(crate) struct MergeRows {
    inputs: Vec<Arc<Segment>>,
    /// The changed payloads of each input that are compacted in.
    folded: Vec<Option<Arc<PatchRun>>>,
    /// The dead rows of each input when the merge began.
    pub(crate) dead_before: Vec<DeleteBitmap>,
    new_row: Vec<Vec<u32>>,
    account: Account,
    live: usize,
    _memory: Reservation,
}

impl MergeRows {
    /// `compacted`: what changed in each input, as far as it is to be in the new segment.
    pub(crate) fn new(
        inputs: Vec<Arc<Segment>>,
        folded: Vec<Option<Arc<PatchRun>>>,
        account: &Account,
    ) -> Result<Self> {
        let rows: u64 = inputs.iter().map(|segment| u64::from(segment.meta.points)).sum();
        let memory = account.try_reserve(rows * 4 + 64)?;
        let dead_before = inputs.iter().map(|segment| segment.dead()).collect();
        let new_row = inputs.iter().map(|segment| vec![NONE; segment.meta.points as usize]).collect();
        let mut merge =
            Self { inputs, folded, dead_before, new_row, account: account.clone(), live: 0, _memory: memory };
        let mut new_row = std::mem::take(&mut merge.new_row);
        let mut next = 0u32;
        merge.each_live(Walk::Ids, &mut |input, row, _| {
            new_row[input][row as usize] = next;
            next += 1;
            Ok(())
        })?;
        merge.new_row = new_row;
        merge.live = next as usize;
        Ok(merge)
    }

    /// The row that a row of an input became.
    pub(crate) fn new_row(&self, input: usize, row: u32) -> Option<u32> {
        self.new_row[input].get(row as usize).copied().filter(|row| *row != NONE)
    }

    pub(crate) fn inputs(&self) -> &[Arc<Segment>] {
        &self.inputs
    }

    /// The run of an input that is in the new segment already.
    pub(crate) fn folded(&self, input: usize) -> Option<&Arc<PatchRun>> {
        self.folded[input].as_ref()
    }

    fn was_dead(&self, input: usize, row: u32) -> bool {
        self.dead_before[input].get(row)
    }

    /// Calls `each(input, row, Row)` for every live row in id order.
    fn each_live(&self, what: Walk, each: &mut dyn FnMut(usize, u32, Row<'_>) -> Result<()>) -> Result<()> {
        let mut cursors = Vec::with_capacity(self.inputs.len());
        for (segment, run) in self.inputs.iter().zip(&self.folded) {
            cursors.push(Cursor::open(segment, run.as_deref(), what, &self.account)?);
        }
        loop {
            // Few inputs (a merge's fan-in), so a plain scan beats a heap.
            let smallest = cursors.iter().enumerate().filter_map(|(at, cursor)| Some((cursor.id?, at))).min();
            let Some((id, at)) = smallest else { return Ok(()) };
            let cursor = &mut cursors[at];
            if !self.was_dead(at, cursor.row) {
                let payload_len = cursor.payload_len;
                cursor.read_payload()?;
                each(at, cursor.row, Row { id, payload_len, payload: &cursor.payload })?;
            }
            cursor.advance()?;
        }
    }
}

impl Rows for MergeRows {
    fn walk(&mut self, what: Walk, each: &mut dyn FnMut(Row<'_>) -> Result<()>) -> Result<()> {
        self.each_live(what, &mut |_, _, row| each(row))
    }

    fn vectors(&mut self, name: &str) -> Result<Option<Box<dyn Source + '_>>> {
        let mut len = 0;
        let mut dim = 0;
        for (input, segment) in self.inputs.iter().enumerate() {
            let Some((meta, named)) = segment.vector(name) else { continue };
            dim = meta.dim;
            let rows = (0..named.index.len() as u32).map(|ordinal| named.present.row(ordinal));
            len += rows.filter(|row| self.new_row(input, *row).is_some()).count();
        }
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(MergeSource { merge: self, name: name.to_owned(), len, dim, next: 0, open: None, read: 0 })))
    }

    fn len_at_most(&self) -> usize {
        self.live
    }

    fn version(&self) -> u64 {
        self.inputs.iter().map(|segment| segment.meta.version).max().unwrap_or(0)
    }
}

/// One input's rows, front to back.
pub(crate) struct Cursor<'a> {
    segment: &'a Segment,
    what: Walk,
    row: u32,
    id: Option<PointId>,
    numbers: Option<Stream>,
    uuids: Option<Stream>,
    ends: Option<Stream>,
    texts: Option<Stream>,
    /// The payloads that changed since; they stand before the segment's own.
    changed: Option<PatchRunCursor>,
    end: u64,
    /// Bytes of the current row's own text.
    len: u64,
    /// Bytes of texts that were passed over and stand before the current row's.
    skip: u64,
    payload_len: u64,
    payload: Vec<u8>,
    payload_memory: Reservation,
}

impl<'a> Cursor<'a> {
    pub(crate) fn open(
        segment: &'a Arc<Segment>,
        run: Option<&PatchRun>,
        what: Walk,
        account: &Account,
    ) -> Result<Self> {
        let stream = |tag: u32, wanted: bool| match segment.file.section(tag) {
            Some(section) if wanted => section.stream(account, STREAM_BYTES).map(Some),
            _ => Ok(None),
        };
        let mut cursor = Self {
            segment,
            what,
            row: 0,
            id: None,
            numbers: stream(NUMBERS, true)?,
            uuids: stream(UUIDS, true)?,
            ends: stream(PAYLOAD_AT, what != Walk::Ids)?,
            texts: stream(PAYLOAD, what == Walk::Payloads)?,
            changed: run
                .filter(|_| what != Walk::Ids)
                .map(|run| PatchRunCursor::open(run, what, account))
                .transpose()?,
            end: 0,
            len: 0,
            skip: 0,
            payload_len: 0,
            payload: Vec::new(),
            payload_memory: account.try_reserve(0)?,
        };
        if let Some(ends) = &mut cursor.ends {
            ends.skip(8)?;
        }
        cursor.load()?;
        Ok(cursor)
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        // What was not read of this row's text stands before the next one's.
        self.skip += std::mem::take(&mut self.len);
        if self.is_changed()
            && let Some(changed) = &mut self.changed
        {
            changed.advance()?;
        }
        self.row += 1;
        self.load()
    }

    /// The current row's text, once it was read.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn is_changed(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| changed.row() == Some(self.row))
    }

    fn load(&mut self) -> Result<()> {
        self.payload.clear();
        self.payload_len = 0;
        let meta = &self.segment.meta;
        if self.row >= meta.points {
            self.id = None;
            return Ok(());
        }
        let mut bytes = [0; 16];
        self.id = Some(match (self.row < meta.numbers, meta.dense_from) {
            (true, Some(first)) => PointId::Num(first + u64::from(self.row)),
            (true, None) => {
                stream_of(&mut self.numbers)?.read_exact(&mut bytes[..8])?;
                PointId::Num(read_number(&bytes[..8]))
            }
            (false, _) => {
                stream_of(&mut self.uuids)?.read_exact(&mut bytes)?;
                PointId::Uuid(read_uuid(&bytes))
            }
        });
        if let Some(ends) = &mut self.ends {
            ends.read_exact(&mut bytes[..8])?;
            let end = read_number(&bytes[..8]);
            let len = end
                .checked_sub(self.end)
                .ok_or_else(|| Error::corrupt("payload places go backwards").at(&self.segment.name))?;
            (self.len, self.end) = (len, end);
        }
        self.payload_len = match &self.changed {
            Some(changed) if self.is_changed() => changed.len(),
            _ => self.len,
        };
        Ok(())
    }

    pub(crate) fn read_payload(&mut self) -> Result<()> {
        if self.what != Walk::Payloads || self.payload_len == 0 {
            return Ok(());
        }
        let len = self.payload_len as usize;
        if len > ramekin_base::limits::PAYLOAD_MAX {
            return Err(Error::corrupt("a payload is longer than the limit").at(&self.segment.name));
        }
        if self.payload.capacity() < len {
            // Not beside the old one, and with room for those that are a little longer.
            self.payload = Vec::new();
            let bytes = (len + len / 8).min(ramekin_base::limits::PAYLOAD_MAX);
            self.payload_memory.resize(bytes as u64)?;
            self.payload.reserve_exact(bytes);
        }
        if self.is_changed()
            && let Some(changed) = &mut self.changed
        {
            let payload = &mut self.payload;
            return changed.text(&mut |piece| {
                payload.extend_from_slice(piece);
                Ok(())
            });
        }
        let texts = stream_of(&mut self.texts)?;
        texts.skip(std::mem::take(&mut self.skip))?;
        self.payload.resize(len, 0);
        self.len = 0;
        texts.read_exact(&mut self.payload)
    }
}

fn stream_of(stream: &mut Option<Stream>) -> Result<&mut Stream> {
    stream.as_mut().ok_or_else(|| Error::corrupt("a segment misses one of its tables"))
}

struct MergeSource<'a> {
    merge: &'a MergeRows,
    name: String,
    len: usize,
    dim: usize,
    next: usize,
    open: Option<(Box<dyn Source + 'a>, &'a Present)>,
    read: usize,
}

impl Source for MergeSource<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn rewind(&mut self) -> Result<()> {
        (self.next, self.open, self.read) = (0, None, 0);
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        loop {
            let Some((open, present)) = &mut self.open else {
                let Some(segment) = self.merge.inputs.get(self.next) else {
                    rows.clear();
                    vectors.clear();
                    return Ok(false);
                };
                self.next += 1;
                if let Some((_, named)) = segment.vector(&self.name) {
                    self.open = Some((Box::new(named.index.stream(&self.merge.account)), &named.present));
                }
                continue;
            };
            if !open.next(rows, vectors)? {
                self.open = None;
                continue;
            }
            let input = self.next - 1;
            let mut kept = 0;
            for at in 0..rows.len() {
                if let Some(row) = self.merge.new_row(input, present.row(rows[at])) {
                    rows[kept] = row;
                    vectors.copy_within(at * self.dim..(at + 1) * self.dim, kept * self.dim);
                    kept += 1;
                }
            }
            rows.truncate(kept);
            vectors.truncate(kept * self.dim);
            self.read += kept;
            if kept > 0 {
                return Ok(true);
            }
        }
    }
}
