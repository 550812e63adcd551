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
use ramekin_base::{Few, Result};
use ramekin_memory::{Account, BookedSlice};
use std::sync::Arc;

/// Words that nobody uses, of all sizes together at most, and pieces of them.
const KEPT_BYTES: u64 = 512 << 10;
const KEPT_MAX: usize = 64;

/// Words of bitmaps, with what pays for them.
#[derive(Default)]
struct Words {
    words: BookedSlice<u64>,
    /// By the reserve, which is for searches under way.
    is_lent: bool,
}

/// Where bitmaps come from and go to.
pub struct Bitmaps {
    account: Account,
    /// Pays where the account cannot.
    reserve: Account,
    /// The newest first.
    kept: Mutex<[Option<Words>; KEPT_MAX]>,
}

impl Bitmaps {
    /// Paid for by `account`, those that are kept, too: half a MiB at most; where it has nothing left, by `reserve`.
    pub fn new(account: &Account, reserve: &Account) -> Arc<Self> {
        let kept = Mutex::new([const { None }; KEPT_MAX]);
        Arc::new(Self { account: account.clone(), reserve: reserve.clone(), kept })
    }

    /// So many words, all zero, and perhaps more of them.
    fn take(&self, count: usize) -> Result<Words> {
        let fits = |kept: &Words| (count..=count * 2).contains(&kept.words.len());
        let kept = self.kept.lock().iter_mut().find(|kept| kept.as_ref().is_some_and(fits)).and_then(Option::take);
        if let Some(mut kept) = kept {
            kept.words[..count].fill(0);
            return Ok(kept);
        }
        let own = BookedSlice::filled(0, count, &self.account).or_else(|_| {
            // What is kept may be what is missing.
            self.kept.lock().fill_with(|| None);
            BookedSlice::filled(0, count, &self.account)
        });
        let is_lent = own.is_err();
        let words = own.or_else(|_| BookedSlice::filled(0, count, &self.reserve))?;
        Ok(Words { words, is_lent })
    }

    fn keep(&self, words: Words) {
        if words.words.bytes() > KEPT_BYTES || words.is_lent {
            return;
        }
        let mut kept = self.kept.lock();
        // Into the place of one that went, or of the oldest. Sizes that are no longer asked for go.
        let place = kept.iter().position(Option::is_none).unwrap_or(KEPT_MAX - 1);
        kept[..=place].rotate_right(1);
        kept[0] = Some(words);
        let mut sum = 0;
        for kept in kept.iter_mut() {
            match kept.as_ref().map_or(0, |kept| kept.words.bytes()) {
                bytes if sum + bytes > KEPT_BYTES => *kept = None,
                bytes => sum += bytes,
            }
        }
    }
}

pub struct Bitmap {
    /// Perhaps more than it has rows for.
    words: Words,
    rows: usize,
    pool: Arc<Bitmaps>,
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        self.pool.keep(std::mem::take(&mut self.words));
    }
}

impl Bitmap {
    /// No row of so many.
    pub fn none(rows: usize, pool: &Arc<Bitmaps>) -> Result<Self> {
        Ok(Self { words: pool.take(rows.div_ceil(BLOCK))?, rows, pool: pool.clone() })
    }

    /// All rows of so many.
    pub fn all(rows: usize, pool: &Arc<Bitmaps>) -> Result<Self> {
        let mut all = Self::none(rows, pool)?;
        all.words_mut().fill(u64::MAX);
        all.trim();
        Ok(all)
    }

    /// No row of as many.
    pub fn none_like(&self) -> Result<Self> {
        Self::none(self.rows, &self.pool)
    }

    pub fn copy(&self) -> Result<Self> {
        let mut copy = self.none_like()?;
        copy.words_mut().copy_from_slice(self.words());
        Ok(copy)
    }

    /// Takes out the bits behind the last row.
    pub(crate) fn trim(&mut self) {
        if !self.rows.is_multiple_of(BLOCK)
            && let rest = self.rows % BLOCK
            && let Some(last) = self.words_mut().last_mut()
        {
            *last &= (1 << rest) - 1;
        }
    }

    /// Bytes that it was charged.
    pub fn bytes(&self) -> u64 {
        self.words.words.bytes()
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn get(&self, row: u32) -> bool {
        self.words.words[row as usize / BLOCK] >> (row as usize % BLOCK) & 1 == 1
    }

    pub fn set(&mut self, row: u32) {
        self.words.words[row as usize / BLOCK] |= 1 << (row as usize % BLOCK);
    }

    pub fn words(&self) -> &[u64] {
        &self.words.words[..self.rows.div_ceil(BLOCK)]
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words.words[..self.rows.div_ceil(BLOCK)]
    }

    pub fn count(&self) -> u64 {
        count_ones(self.words())
    }

    /// The rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words().iter().enumerate().flat_map(|(at, word)| bits(*word).map(move |bit| (at * BLOCK + bit) as u32))
    }

    /// The rows, ascending, so many at a time.
    pub fn chunks<const MOST: usize>(&self) -> impl Iterator<Item = Few<u32, MOST>> + '_ {
        let mut rows = self.iter();
        std::iter::from_fn(move || {
            let mut some = Few::new();
            while some.len() < MOST
                && let Some(row) = rows.next()
            {
                _ = some.push(row);
            }
            (!some.is_empty()).then_some(some)
        })
    }

    /// The first row from this one on.
    pub fn next(&self, from: u32) -> Option<u32> {
        let (first, bit) = (from as usize / BLOCK, from as usize % BLOCK);
        let word = self.words().get(first)? & (u64::MAX << bit);
        let rest = self.words().iter().enumerate().skip(first + 1).map(|(at, word)| (at, *word));
        let (at, word) = std::iter::once((first, word)).chain(rest).find(|(_, word)| *word != 0)?;
        Some((at * BLOCK) as u32 + word.trailing_zeros())
    }

    pub fn and(&mut self, other: &Self) {
        self.words_mut().iter_mut().zip(other.words()).for_each(|(word, other)| *word &= other);
    }

    pub fn or(&mut self, other: &Self) {
        self.words_mut().iter_mut().zip(other.words()).for_each(|(word, other)| *word |= other);
    }

    pub fn and_not(&mut self, other: &Self) {
        self.words_mut().iter_mut().zip(other.words()).for_each(|(word, other)| *word &= !other);
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
        assert_eq!(Bitmap::all(90_000, &pool).unwrap().chunks::<64>().map(|some| some.len()).sum::<usize>(), 90_000);
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
