//! An index read back as a source: (row, values of its vector) in stored order, for the merge that replaces it.

use crate::format::buffer::Buffer;
use crate::format::full_vectors::FullVectors;
use crate::format::index::Index;
use crate::format::layout::RecordLayout;
use crate::source::{Source, batch_rows};
use ramekin_base::Packed;
use ramekin_base::packed::PACKED_TAIL;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::{Section, Stream};
use zerocopy::IntoBytes;

/// Rows that are unpacked at a time: a multiple of 8, so that they end on a whole byte.
const ROWS: usize = 4096;
/// Bytes of the buffers that sections are read through.
const VECTORS_BUFFER: usize = 256 << 10;
const ROWS_BUFFER: usize = 16 << 10;

/// All vectors of an index with their rows.
pub struct IndexSource {
    vectors: Section,
    rows: Section,
    account: Account,
    record_layout: RecordLayout,
    packed: Packed,
    count: usize,
    full_vectors: FullVectors,
    streams: Option<(Stream, Stream)>,
    /// Records that are packed, as they are read.
    packed_records: Option<Buffer<u8>>,
    /// Rows from `unpacked_from` on.
    unpacked: Vec<u32>,
    unpacked_from: usize,
    at: usize,
}

impl Index {
    /// Reads the whole index through buffers that `account` pays for: 272 KiB, a page or a record of packed values, and the
    /// rows of a block.
    pub fn stream(&self, account: &Account) -> IndexSource {
        IndexSource {
            vectors: self.vectors.clone(),
            rows: self.rows.clone(),
            account: account.clone(),
            record_layout: self.shape.vectors,
            packed: self.shape.packed,
            count: self.shape.rows,
            full_vectors: self.shape.full_vectors,
            streams: None,
            packed_records: None,
            unpacked: Vec::new(),
            unpacked_from: 0,
            at: 0,
        }
    }
}

impl IndexSource {
    fn row(&mut self, position: usize) -> Result<u32> {
        if position >= self.unpacked_from + self.unpacked.len() {
            let Some((_, stream)) = &mut self.streams else { return Err(not_begun()) };
            self.unpacked_from += self.unpacked.len();
            let count = ROWS.min(self.count - self.unpacked_from);
            // A block of rows begins on a whole byte; the tail lets the last be read as one word.
            let mut bytes = vec![0; (count * self.packed.bits as usize).div_ceil(8) + PACKED_TAIL];
            let own = bytes.len() - PACKED_TAIL;
            stream.read_exact(&mut bytes[..own])?;
            self.unpacked.clear();
            self.unpacked.extend((0..count as u32).map(|at| self.packed.get(&bytes, 0, at)));
        }
        let row = self.unpacked[position - self.unpacked_from];
        if row as usize >= self.count {
            let text = format!("row {row} stands in an index of {}", self.count);
            return Err(Error::corrupt(text).at(self.rows.file().path().display()));
        }
        Ok(row)
    }
}

fn not_begun() -> Error {
    Error::bug("an index is streamed before it is rewound")
}

impl Source for IndexSource {
    fn len(&self) -> usize {
        self.count
    }

    fn dim(&self) -> usize {
        self.full_vectors.dim
    }

    fn rewind(&mut self) -> Result<()> {
        // The old buffers go before new ones are asked for.
        (self.streams, self.packed_records) = (None, None);
        let vectors = self.vectors.stream(&self.account, VECTORS_BUFFER.max(self.record_layout.record))?;
        self.streams = Some((vectors, self.rows.stream(&self.account, ROWS_BUFFER)?));
        if !self.full_vectors.is_plain() {
            self.packed_records =
                Some(Buffer::new(&self.account, self.record_layout.record * self.record_layout.run(0))?);
        }
        self.unpacked.clear();
        (self.unpacked_from, self.at) = (0, 0);
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        if self.streams.is_none() {
            self.rewind()?;
        }
        rows.clear();
        let dim = self.full_vectors.dim;
        let end = (self.at + batch_rows(dim)).min(self.count);
        vectors.resize((end - self.at) * dim, 0.0);
        let mut filled = 0;
        while self.at < end {
            let run = self.record_layout.run(self.at as u32).min(end - self.at);
            let Some((stream, _)) = &mut self.streams else { return Err(not_begun()) };
            let values = &mut vectors[filled * dim..(filled + run) * dim];
            match &mut self.packed_records {
                Some(records) => {
                    let records = &mut records[..run * self.record_layout.record];
                    stream.read_exact(records)?;
                    self.full_vectors.unpack(records, values);
                }
                None => stream.read_exact(values.as_mut_bytes())?,
            }
            let next = self.at + run;
            if next < self.count {
                stream.skip(self.record_layout.gap(next as u32 - 1) as u64)?;
            }
            for position in self.at..next {
                let row = self.row(position)?;
                rows.push(row);
            }
            self.at = next;
            filled += run;
        }
        Ok(!rows.is_empty())
    }
}
