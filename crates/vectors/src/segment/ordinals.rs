//! Vectors that only some points have.
//!
//! ```text
//!   rows       0  1  2  3  4  5        an index numbers its vectors 0, 1, 2, ... without gaps,
//!   has one    .  x  x  .  .  x        so row 5 is its vector 2
//!   ordinals      0  1        2
//! ```
//!
//! Where every row has its vector both numbers are the same, and nothing is stored.

use ramekin_ann::Source;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageFile, PageWriter, Priority};
use std::sync::Arc;

/// A source whose rows become ordinals.
pub(crate) struct Ordinals<'a> {
    inner: Box<dyn Source + 'a>,
    /// Bit of each row that has a vector, and how many stand before each word; empty where all have.
    words: Vec<u64>,
    before: Vec<u32>,
    _memory: Reservation,
}

impl<'a> Ordinals<'a> {
    pub(crate) fn new(inner: Box<dyn Source + 'a>, points: usize, account: &Account) -> Result<Self> {
        let count = if inner.len() == points { 0 } else { points.div_ceil(64) };
        let memory = account.try_reserve(count as u64 * 12)?;
        let mut this = Self { inner, words: vec![0; count], before: vec![0; count], _memory: memory };
        if count > 0 {
            this.note_rows()?;
        }
        Ok(this)
    }

    fn note_rows(&mut self) -> Result<()> {
        let (mut rows, mut vectors) = (Vec::new(), Vec::new());
        self.inner.rewind()?;
        while self.inner.next(&mut rows, &mut vectors)? {
            rows.iter().for_each(|row| self.words[*row as usize / 64] |= 1 << (row % 64));
        }
        self.inner.rewind()?;
        let mut total = 0;
        for (before, word) in self.before.iter_mut().zip(&self.words) {
            *before = total;
            total += word.count_ones();
        }
        if total as usize == self.inner.len() { Ok(()) } else { Err(Error::bug("a row came twice, or not at all")) }
    }

    fn ordinal(&self, row: u32) -> u32 {
        let (word, bit) = (row as usize / 64, row % 64);
        self.before[word] + (self.words[word] & ((1 << bit) - 1)).count_ones()
    }

    /// Writes the row of each ordinal, where that is not the same number.
    pub(crate) fn write_present(&self, out: &mut PageWriter, tag: u32) -> Result<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        out.begin(tag, Priority::Ids)?;
        for (index, word) in self.words.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                out.write(&((index * 64) as u32 + word.trailing_zeros()).to_le_bytes())?;
                word &= word - 1;
            }
        }
        out.end().map(|_| ())
    }
}

impl Source for Ordinals<'_> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn dim(&self) -> usize {
        self.inner.dim()
    }

    fn rewind(&mut self) -> Result<()> {
        self.inner.rewind()
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        let more = self.inner.next(rows, vectors)?;
        if !self.words.is_empty() {
            rows.iter_mut().for_each(|row| *row = self.ordinal(*row));
        }
        Ok(more)
    }
}

/// The rows that have a vector, by ordinal; `None` where all have.
pub(crate) struct Present {
    rows: Option<Box<[u32]>>,
    _memory: Option<Reservation>,
}

impl Present {
    pub(crate) fn open(file: &Arc<PageFile>, tag: u32, count: usize, points: u32, account: &Account) -> Result<Self> {
        let Some(section) = file.section(tag) else {
            return match count == points as usize {
                true => Ok(Self { rows: None, _memory: None }),
                false => Err(Error::corrupt(format!("section {tag} is missing"))),
            };
        };
        if section.len() != count as u64 * 4 {
            return Err(Error::corrupt(format!("section {tag} is not {} bytes long", count * 4)));
        }
        let memory = account.try_reserve(section.len())?;
        let mut stream = section.stream(account, 64 << 10)?;
        let mut rows = vec![0u32; count].into_boxed_slice();
        let mut bytes = [0; 4];
        let mut next = 0;
        for row in &mut rows {
            stream.read_exact(&mut bytes)?;
            *row = u32::from_le_bytes(bytes);
            if *row < next || *row >= points {
                return Err(Error::corrupt(format!("section {tag} names rows out of order")));
            }
            next = *row + 1;
        }
        Ok(Self { rows: Some(rows), _memory: Some(memory) })
    }

    /// Whether all rows have a vector: then ordinals are rows.
    pub(crate) fn is_all(&self) -> bool {
        self.rows.is_none()
    }

    pub(crate) fn row(&self, ordinal: u32) -> u32 {
        self.rows.as_ref().map_or(ordinal, |rows| rows[ordinal as usize])
    }

    pub(crate) fn ordinal(&self, row: u32) -> Option<u32> {
        match &self.rows {
            None => Some(row),
            Some(rows) => rows.binary_search(&row).ok().map(|ordinal| ordinal as u32),
        }
    }
}
