//! Makes a column, point by point, where the index of a field is built.
//!
//! ```text
//!   points ─► codes of the open block ─► 64 of them: blocks and records that are whole ─► drained into a file
//! ```

use super::{BLOCK, Column, MultiValueDirectory, WORD, block_bytes, place, width};
use ramekin_base::Result;
use zerocopy::little_endian::{U32, U64};

/// Values of the points of a block at most, of those that have several: a field with more has no column.
pub(crate) const VALUES_MAX: usize = 1 << 14;

/// What the values of an open block take at most: as they came, and as a record.
pub(crate) const OPEN_BYTES: usize = VALUES_MAX * 16;

/// What one point has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnValue<'a> {
    Nothing,
    One(u32),
    /// Codes in any order, two at least.
    Many(&'a [u32]),
}

/// Called with bytes of blocks and of records.
pub(crate) type EachBytes<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Packs points one after another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packer {
    distinct: u32,
    width: usize,
    rows: usize,
    codes: Vec<u8>,
    several: Vec<MultiValueDirectory>,
    records: Vec<u8>,
    /// Of the record that is being made.
    values: Vec<u32>,
    lasts: Vec<u64>,
    overflows: bool,
}

impl Packer {
    /// Of so many points that have codes below `distinct`, and what else some of them have.
    pub fn new(distinct: u32, has_nothing: bool, has_several: bool, rows: usize) -> Self {
        let width = width(distinct, has_nothing, has_several);
        let mut several = Vec::with_capacity(if has_several { rows.div_ceil(BLOCK) + 1 } else { 0 });
        several.extend(has_several.then(MultiValueDirectory::default));
        Self { distinct, width, several, ..Self::default() }
    }

    pub fn push(&mut self, cell: ColumnValue<'_>) {
        let bit = self.rows % BLOCK;
        if bit == 0 {
            self.codes.resize(self.codes.len() + block_bytes(self.width), 0);
        }
        let code = match cell {
            ColumnValue::One(code) => code,
            ColumnValue::Nothing => self.distinct,
            ColumnValue::Many(codes) => {
                self.push_values(bit, codes);
                ((1u64 << self.width) - 1) as u32
            }
        };
        let block = self.codes.len() - block_bytes(self.width);
        put(&mut self.codes[block..], bit, self.width, code);
        self.rows += 1;
        if self.rows.is_multiple_of(BLOCK) {
            self.end();
        }
    }

    fn push_values(&mut self, bit: usize, codes: &[u32]) {
        let Some(block) = self.several.last_mut().filter(|_| self.values.len() + codes.len() <= VALUES_MAX) else {
            self.overflows = true;
            return;
        };
        block.points |= U64::new(1 << bit);
        self.values.extend(codes);
        let last = self.values.len() - 1;
        self.lasts.resize(last / BLOCK + 1, 0);
        self.lasts[last / BLOCK] |= 1 << (last % BLOCK);
    }

    /// Ends the last block: no more points come. Of a block that has ended, nothing changes.
    pub fn end(&mut self) {
        let is_open = self.several.len() <= self.rows.div_ceil(BLOCK);
        let Some(last) = self.several.last().copied().filter(|_| is_open) else { return };
        let from = self.records.len();
        self.lasts.iter().for_each(|word| self.records.extend_from_slice(&word.to_le_bytes()));
        for values in self.values.chunks(BLOCK) {
            let block = self.records.len();
            self.records.resize(block + block_bytes(self.width), 0);
            for (at, code) in values.iter().enumerate() {
                put(&mut self.records[block..], at, self.width, *code);
            }
        }
        let start = last.start + U32::new(((self.records.len() - from) / WORD) as u32);
        self.several.push(MultiValueDirectory { points: U64::ZERO, start });
        self.values.clear();
        self.lasts.clear();
    }

    /// The column of the blocks that have ended.
    pub fn column(&self) -> Column<'_> {
        let Self { width, codes, several, records, .. } = self;
        Column { width: *width, codes, several, records }
    }

    /// Shows the bytes of blocks and records that are whole, or of all where no more points come, and lets go of them.
    pub(crate) fn drain(&mut self, is_end: bool, each: &mut EachBytes<'_>) -> Result<()> {
        if is_end {
            self.end();
        }
        if is_end || self.rows.is_multiple_of(BLOCK) {
            each(&self.codes, &self.records)?;
            self.codes.clear();
            self.records.clear();
        }
        Ok(())
    }

    /// Where the records are. `None` where a block has too many values.
    pub(crate) fn into_several(self) -> Option<Vec<MultiValueDirectory>> {
        (!self.overflows).then_some(self.several)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.records.len() + size_of_val(&*self.several)
    }
}

/// Sets a code of a block that has none there.
fn put(block: &mut [u8], at: usize, width: usize, code: u32) {
    if width == 0 {
        return;
    }
    let (byte, shift) = place(block.len(), at, width);
    let shifted = (u64::from(code) << shift).to_le_bytes();
    block[byte..byte + WORD].iter_mut().zip(shifted).for_each(|(byte, new)| *byte |= new);
}
