//! A bit for each row of a segment.
//!
//! ```text
//!   a search ─► a bitmap or two for each segment ─► words that are kept for the next one
//! ```
//!
//! Bitmaps of large segments are large pieces that come and go with each search: an allocator that is asked for them
//! again and again holds more than it handed out.

use crate::column::{BLOCK, bits, count_ones};
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use std::sync::Arc;

/// Words that nobody uses, of all sizes together at most, and pieces of them.
const KEPT_BYTES: u64 = 512 << 10;
const KEPT_MAX: usize = 64;

/// Words of bitmaps, with what pays for them.
struct Words {
    words: Vec<u64>,
    memory: Reservation,
    /// By the reserve, which is for searches under way.
    is_lent: bool,
}

/// Where bitmaps come from and go to.
pub struct Bitmaps {
    account: Account,
    /// Pays where the account cannot.
    reserve: Account,
    kept: Mutex<Vec<Words>>,
}

impl Bitmaps {
    /// Paid for by `account`, those that are kept, too: half a MiB at most; where it has nothing left, by `reserve`.
    pub fn new(account: &Account, reserve: &Account) -> Arc<Self> {
        Arc::new(Self { account: account.clone(), reserve: reserve.clone(), kept: Mutex::default() })
    }

    /// So many words, all zero.
    fn take(&self, count: usize) -> Result<Words> {
        let fits = |kept: &Words| (count..=count * 2).contains(&kept.words.capacity());
        let kept = {
            let mut all = self.kept.lock();
            all.iter().position(fits).map(|at| all.swap_remove(at))
        };
        if let Some(mut kept) = kept {
            kept.words.clear();
            kept.words.resize(count, 0);
            return Ok(kept);
        }
        let bytes = count as u64 * 8;
        let own = self.account.try_reserve(bytes).or_else(|_| {
            // What is kept may be what is missing.
            self.kept.lock().clear();
            self.account.try_reserve(bytes)
        });
        let is_lent = own.is_err();
        let memory = own.or_else(|_| self.reserve.try_reserve(bytes))?;
        Ok(Words { words: vec![0; count], memory, is_lent })
    }

    fn keep(&self, words: Words) {
        let mut kept = self.kept.lock();
        if words.memory.bytes() > KEPT_BYTES || words.is_lent {
            return;
        }
        kept.push(words);
        // Sizes that are no longer asked for go.
        while kept.len() > KEPT_MAX || kept.iter().map(|kept| kept.memory.bytes()).sum::<u64>() > KEPT_BYTES {
            kept.remove(0);
        }
    }
}

pub struct Bitmap {
    words: Vec<u64>,
    rows: usize,
    pool: Arc<Bitmaps>,
    memory: Option<Reservation>,
    is_lent: bool,
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.keep(Words { words: std::mem::take(&mut self.words), memory, is_lent: self.is_lent });
        }
    }
}

impl Bitmap {
    /// No row of so many.
    pub fn none(rows: usize, pool: &Arc<Bitmaps>) -> Result<Self> {
        let Words { words, memory, is_lent } = pool.take(rows.div_ceil(BLOCK))?;
        Ok(Self { words, rows, pool: pool.clone(), memory: Some(memory), is_lent })
    }

    /// All rows of so many.
    pub fn all(rows: usize, pool: &Arc<Bitmaps>) -> Result<Self> {
        let mut all = Self::none(rows, pool)?;
        all.words.fill(u64::MAX);
        all.trim();
        Ok(all)
    }

    /// No row of as many.
    pub fn none_like(&self) -> Result<Self> {
        Self::none(self.rows, &self.pool)
    }

    pub fn copy(&self) -> Result<Self> {
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

    /// Bytes that it was charged.
    pub fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, Reservation::bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn words_are_used_again_and_come_back_empty() {
        let budget = Budget::new(4 << 20);
        let pool = Bitmaps::new(&budget.root().child("bits", ""), &budget.root());
        let first = Bitmap::all(100_000, &pool).unwrap();
        let at = first.words().as_ptr();
        assert_eq!((first.count(), budget.reserved()), (100_000, 12_504));
        drop(first);
        assert_eq!(budget.reserved(), 12_504);
        let second = Bitmap::none(90_000, &pool).unwrap();
        assert_eq!((second.words().as_ptr(), second.count()), (at, 0));
        assert_eq!(Bitmap::all(90_000, &pool).unwrap().chunks(64).map(|some| some.len()).sum::<usize>(), 90_000);
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_where_memory_is_missing() {
        let budget = Budget::new(4 << 20);
        let pool = Bitmaps::new(&budget.root().child("bits", ""), &budget.root());
        let many: Vec<_> = (0..20).map(|_| Bitmap::none(1_000_000, &pool).unwrap()).collect();
        drop(many);
        assert!(budget.reserved() <= KEPT_BYTES && budget.reserved() > KEPT_BYTES / 2);
        let all = Bitmap::none(32 << 20, &pool).unwrap();
        assert!(Bitmap::none(64, &pool).is_err());
        drop(all);
        assert!(Bitmap::none(64, &pool).is_ok());
    }
}
