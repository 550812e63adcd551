//! A bit for each row of a segment.

use crate::column::{BLOCK, bits, count_ones};
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};

pub struct Bitmap {
    words: Vec<u64>,
    rows: usize,
    account: Account,
    _memory: Reservation,
}

impl Bitmap {
    /// No row of so many.
    pub fn none(rows: usize, account: &Account) -> Result<Self> {
        let words = rows.div_ceil(BLOCK);
        let memory = account.try_reserve(words as u64 * 8)?;
        Ok(Self { words: vec![0; words], rows, account: account.clone(), _memory: memory })
    }

    /// All rows of so many.
    pub fn all(rows: usize, account: &Account) -> Result<Self> {
        let mut all = Self::none(rows, account)?;
        all.words.fill(u64::MAX);
        all.trim();
        Ok(all)
    }

    /// No row of as many.
    pub fn none_like(&self) -> Result<Self> {
        Self::none(self.rows, &self.account)
    }

    pub(crate) fn copy(&self) -> Result<Self> {
        let mut copy = self.none_like()?;
        copy.words.copy_from_slice(&self.words);
        Ok(copy)
    }

    /// Takes out the bits behind the last row.
    pub(crate) fn trim(&mut self) {
        if !self.rows.is_multiple_of(BLOCK)
            && let Some(last) = self.words.last_mut()
        {
            *last &= (1 << (self.rows % BLOCK)) - 1;
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn get(&self, row: u32) -> bool {
        self.words[row as usize / BLOCK] >> (row as usize % BLOCK) & 1 == 1
    }

    pub fn set(&mut self, row: u32) {
        self.words[row as usize / BLOCK] |= 1 << (row as usize % BLOCK);
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    pub fn count(&self) -> u64 {
        count_ones(&self.words)
    }

    /// The rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| bits(*word).map(move |bit| (at * BLOCK + bit) as u32))
    }

    /// The rows, ascending, so many at a time.
    pub fn chunks(&self, most: usize) -> impl Iterator<Item = Vec<u32>> + '_ {
        let mut rows = self.iter();
        std::iter::from_fn(move || Some(rows.by_ref().take(most).collect::<Vec<_>>()).filter(|some| !some.is_empty()))
    }

    /// The first row from this one on.
    pub fn next(&self, from: u32) -> Option<u32> {
        let (first, bit) = (from as usize / BLOCK, from as usize % BLOCK);
        let word = self.words.get(first)? & (u64::MAX << bit);
        let rest = self.words.iter().enumerate().skip(first + 1).map(|(at, word)| (at, *word));
        let (at, word) = std::iter::once((first, word)).chain(rest).find(|(_, word)| *word != 0)?;
        Some((at * BLOCK) as u32 + word.trailing_zeros())
    }

    pub fn and(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    pub fn or(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub fn and_not(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }
}
