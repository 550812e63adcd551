//! The values of a field by point, as small as their codes.
//!
//! ```text
//!   code     a value's place in the sorted dictionary; then one for "no value"; all bits set: "several"
//!
//!   block    64 codes, bit behind bit, the first lowest                 width x 8 bytes
//!
//!   several  of each block: which points have several values, and where its record starts; only where points have several
//!   record   of a block with such points: which of their values are the last of their point, a word for 64 of them; then
//!            their codes, in blocks
//! ```
//!
//! A point with one value costs the bits of its code and nothing else, but for a bit and a half where others have several. One
//! point's code lies in one or two lines of the
//! processor's cache however many values the field has; whole blocks are taken apart eight codes at a time (`wanted.rs`). An index
//! is built with `pack.rs`.

mod pack;
mod wanted;

pub use pack::{ColumnValue, Packer};
pub(crate) use pack::{EachBytes, OPEN_BYTES, VALUES_MAX};
pub(crate) use wanted::PIECES_MAX;
pub use wanted::Wanted;

use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Points of a block.
pub const BLOCK: usize = 64;

/// Blocks whose memory is asked for together.
const TOGETHER: usize = 16;

/// Bytes of a word.
const WORD: usize = 8;

/// Bits of a code where there are so many values.
pub fn width(distinct: u32, has_nothing: bool, has_several: bool) -> usize {
    let codes = u64::from(distinct) + u64::from(has_nothing) + u64::from(has_several);
    (u64::BITS - codes.saturating_sub(1).leading_zeros()) as usize
}

/// Bytes of a block.
pub(crate) fn block_bytes(width: usize) -> usize {
    width * BLOCK / 8
}

/// Of a block the points that have several values, and the words of records before its own. Behind the last block stands one
/// more, whose record is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MultiValueDirectory {
    points: U64,
    start: U32,
}

impl MultiValueDirectory {
    /// Bytes of records before its own.
    pub(crate) fn start(self) -> usize {
        self.start.get() as usize * WORD
    }
}

/// Where a code lies: the first of eight bytes that hold it, and by how many bits it is shifted there.
#[inline(always)]
fn place(len: usize, at: usize, width: usize) -> (usize, usize) {
    let bit = at * width;
    let byte = (bit / 8).min(len - WORD);
    (byte, bit - byte * 8)
}

/// The code at a place of blocks; `width` is 1 to 32, and the place is in the blocks.
#[inline(always)]
fn get(blocks: &[u8], at: usize, width: usize) -> u32 {
    let (byte, shift) = place(blocks.len(), at, width);
    (word(blocks, byte) >> shift & ((1 << width) - 1)) as u32
}

/// The word that begins at a byte; 0 behind the end.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

/// Asks for the memory at a byte, if there is any: what is asked for together is waited for together.
#[inline(always)]
fn touch(bytes: &[u8], at: usize) {
    std::hint::black_box(bytes.get(at).copied());
}

/// A column to be read.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    /// Bits of a code.
    pub width: usize,
    /// The blocks.
    pub codes: &'a [u8],
    pub several: &'a [MultiValueDirectory],
    /// From the first block's on.
    pub records: &'a [u8],
}

/// Whether the processor has what the fast functions were compiled for.
#[cfg(target_arch = "x86_64")]
fn is_fast() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

/// Runs the second of two functions, which differ only in what the processor must have.
macro_rules! fastest {
    ($fast:ident, $plain:ident, $($argument:expr),*) => {{
        #[cfg(target_arch = "x86_64")]
        if is_fast() {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { $fast($($argument),*) };
        }
        $plain($($argument),*)
    }};
}

/// The bits that are set in some words.
pub(crate) fn count_ones(words: &[u64]) -> u64 {
    fastest!(count_ones_fast, count_ones_plain, words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn count_ones_fast(words: &[u64]) -> u64 {
    count_ones_plain(words)
}

#[inline(always)]
fn count_ones_plain(words: &[u64]) -> u64 {
    let mut count = 0;
    for word in words {
        count += u64::from(word.count_ones());
    }
    count
}

impl Column<'_> {
    /// Which of some rows have a wanted code: a bit each in `passed`, the first lowest, a word for 64 rows.
    pub fn check(&self, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
        fastest!(check_fast, check_plain, self, rows, wanted, passed)
    }

    /// Takes out of `passed`, a word for each of some blocks, the points that have no wanted code. Bits behind the last row
    /// mean nothing.
    pub fn check_some(&self, blocks: &[u32], wanted: &Wanted, passed: &mut [u64]) {
        fastest!(check_some_fast, check_some_plain, self, blocks, wanted, passed)
    }

    /// The same for all blocks from the first on.
    pub fn check_blocks(&self, wanted: &Wanted, passed: &mut [u64]) {
        let (mut numbers, mut words) = ([0; TOGETHER], [0; TOGETHER]);
        let mut from = 0;
        while from < passed.len() {
            let mut count = 0;
            while from < passed.len() && count < TOGETHER {
                (numbers[count], words[count]) = (from as u32, passed[from]);
                count += usize::from(passed[from] != 0);
                from += 1;
            }
            self.check_some(&numbers[..count], wanted, &mut words);
            numbers[..count].iter().zip(words).for_each(|(number, word)| passed[*number as usize] = word);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn check_fast(column: &Column<'_>, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    column.check_each::<true>(rows, wanted, passed);
}

fn check_plain(column: &Column<'_>, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    column.check_each::<false>(rows, wanted, passed);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn check_some_fast(column: &Column<'_>, blocks: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    column.check_together::<true>(blocks, wanted, passed);
}

fn check_some_plain(column: &Column<'_>, blocks: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    column.check_together::<false>(blocks, wanted, passed);
}

impl Column<'_> {
    #[inline(always)]
    fn check_each<const FAST: bool>(&self, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
        if self.width == 0 {
            return passed.fill(if wanted.holds(0) { u64::MAX } else { 0 });
        }
        let several_code = if self.several.is_empty() { u64::MAX } else { (1 << self.width) - 1 };
        for (rows, passed) in rows.chunks(BLOCK).zip(passed) {
            rows.iter().for_each(|row| touch(self.codes, *row as usize * self.width / 8));
            let mut codes = [0u32; BLOCK];
            codes.iter_mut().zip(rows).for_each(|(code, row)| *code = get(self.codes, *row as usize, self.width));
            let (mut found, mut several) = (0, 0);
            for (at, code) in codes[..rows.len()].iter().enumerate() {
                found |= u64::from(wanted.holds(*code)) << at;
                several |= u64::from(u64::from(*code) == several_code) << at;
            }
            *passed =
                if several == 0 { found } else { found & !several | self.check_several::<FAST>(rows, several, wanted) };
        }
    }

    /// Of at most 64 rows those that have several values and a wanted one. Each step is made for all of them before
    /// the next, so that they wait for memory together.
    #[inline(always)]
    fn check_several<const FAST: bool>(&self, rows: &[u32], several: u64, wanted: &Wanted) -> u64 {
        let (mut records, mut values) = ([const { (0, Record::NONE) }; BLOCK], [const { (&[] as &[u8], 0, 0) }; BLOCK]);
        for at in bits(several) {
            let row = rows[at] as usize;
            let (points, record) = self.record(row / BLOCK);
            touch(record.lasts, 0);
            records[at] = ((points & ((1 << (row % BLOCK)) - 1)).count_ones(), record);
        }
        for at in bits(several) {
            let (before, Record { blocks, .. }) = records[at];
            let own = records[at].1.values_of::<FAST>(before);
            touch(blocks, own.start * self.width / 8);
            values[at] = (blocks, own.start, own.end);
        }
        let mut found = 0;
        for at in bits(several) {
            let (blocks, from, to) = values[at];
            let is_wanted = |is_any, value| is_any | wanted.holds(get(blocks, value, self.width));
            found |= u64::from((from..to).fold(false, is_wanted)) << at;
        }
        found
    }

    #[inline(always)]
    fn check_together<const FAST: bool>(&self, blocks: &[u32], wanted: &Wanted, passed: &mut [u64]) {
        for (blocks, passed) in blocks.chunks(TOGETHER).zip(passed.chunks_mut(TOGETHER)) {
            blocks.iter().for_each(|number| touch(self.codes, *number as usize * block_bytes(self.width)));
            for (number, passed) in blocks.iter().zip(passed) {
                *passed &= self.of_block::<FAST>(*number as usize, wanted);
            }
        }
    }

    /// The points of a block that have a wanted code.
    #[inline(always)]
    fn of_block<const FAST: bool>(&self, number: usize, wanted: &Wanted) -> u64 {
        let found = wanted.of_block::<FAST>(self.codes, number, self.width);
        match self.record(number) {
            (0, _) => found,
            (points, record) => found & !points | deposit::<FAST>(record.wanted::<FAST>(self.width, wanted), points),
        }
    }

    /// Which points of a block have several values, and these.
    #[inline(always)]
    fn record(&self, block: usize) -> (u64, Record<'_>) {
        let Some([own, next, ..]) = self.several.get(block..) else { return (0, Record::NONE) };
        let groups = next.start().saturating_sub(own.start()) / (1 + self.width) / WORD;
        let from = own.start().saturating_sub(self.several[0].start());
        let lasts = from..from + groups * WORD;
        let blocks = lasts.end..lasts.end + groups * block_bytes(self.width);
        match (self.records.get(lasts), self.records.get(blocks)) {
            (Some(lasts), Some(blocks)) => (own.points.get(), Record { lasts, blocks }),
            _ => (0, Record::NONE),
        }
    }
}

/// The values of the points of a block that have several. What contradicts itself has none.
#[derive(Clone, Copy)]
struct Record<'a> {
    /// Which values are the last of their point.
    lasts: &'a [u8],
    /// The values' codes.
    blocks: &'a [u8],
}

impl Record<'_> {
    const NONE: Self = Self { lasts: &[], blocks: &[] };

    /// The values of the point that comes after so many others; none if there is none.
    #[inline(always)]
    fn values_of<const FAST: bool>(&self, mut before: u32) -> Range<usize> {
        for at in (0..self.lasts.len()).step_by(WORD) {
            let lasts = word(self.lasts, at);
            if before < lasts.count_ones() {
                let last = deposit::<FAST>(1 << before, lasts);
                let end = at / WORD * BLOCK + last.trailing_zeros() as usize + 1;
                // The last value of the point before it, here or in an earlier word.
                let (mut earlier, mut at) = (lasts & (last - 1), at);
                while earlier == 0 && at > 0 {
                    at -= WORD;
                    earlier = word(self.lasts, at);
                }
                return at / WORD * BLOCK + (u64::BITS - earlier.leading_zeros()) as usize..end;
            }
            before -= lasts.count_ones();
        }
        0..0
    }

    /// Which of the points have a wanted value, in their order.
    #[inline(always)]
    fn wanted<const FAST: bool>(&self, width: usize, wanted: &Wanted) -> u64 {
        // And whether the values behind the last point that ended hold a wanted one.
        let (mut ended, mut count, mut is_open) = (0u64, 0, false);
        for at in (0..self.lasts.len()).step_by(WORD) {
            let lasts = word(self.lasts, at);
            let hits = wanted.of_block::<FAST>(self.blocks, at / WORD, width) | u64::from(is_open);
            // A point's values but the last are ones, to which its hits are added: with any, they carry into the last.
            let carried = (hits & !lasts).wrapping_add(!lasts);
            ended |= extract::<FAST>(carried | hits, lasts).wrapping_shl(count);
            count += lasts.count_ones();
            is_open = hits & u64::MAX.checked_shl(u64::BITS - lasts.leading_zeros()).unwrap_or(0) != 0;
        }
        ended
    }
}

/// The bits of a word at those of a mask, packed together.
#[inline(always)]
fn extract<const FAST: bool>(word: u64, mask: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        // SAFETY: who says so has seen that the processor has BMI2.
        return unsafe { std::arch::x86_64::_pext_u64(word, mask) };
    }
    bits(mask).enumerate().fold(0, |packed, (at, bit)| packed | (word >> bit & 1) << at)
}

/// The lowest bits of a word, put where a mask has its bits.
#[inline(always)]
fn deposit<const FAST: bool>(word: u64, mask: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        // SAFETY: who says so has seen that the processor has BMI2.
        return unsafe { std::arch::x86_64::_pdep_u64(word, mask) };
    }
    bits(mask).enumerate().fold(0, |put, (at, bit)| put | (word >> at & 1) << bit)
}

/// The bits that are set, lowest first.
pub fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < BLOCK).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cell(codes: &[u32]) -> ColumnValue<'_> {
        match codes {
            [] => ColumnValue::Nothing,
            [code] => ColumnValue::One(*code),
            codes => ColumnValue::Many(codes),
        }
    }

    fn packed(distinct: u32, rows: &[Vec<u32>]) -> Packer {
        let has = |holds: fn(usize) -> bool| rows.iter().any(|codes| holds(codes.len()));
        let mut packer = Packer::new(distinct, has(|len| len == 0), has(|len| len > 1), rows.len());
        rows.iter().for_each(|codes| packer.push(cell(codes)));
        packer.end();
        packer
    }

    #[test]
    fn a_value_costs_its_bits() {
        let bytes = |distinct: u32, codes: &dyn Fn(u32) -> Vec<u32>| {
            packed(distinct, &(0..6400).map(codes).collect::<Vec<_>>()).bytes()
        };
        assert_eq!(bytes(3, &|row| vec![row % 3]), 6400 / 4);
        assert_eq!(bytes(3, &|row| if row % 2 == 0 { vec![] } else { vec![row % 3] }), 6400 / 4);
        assert_eq!(bytes(1, &|_| vec![0]), 0);
        assert_eq!(bytes(0, &|_| vec![]), 0);
    }

    #[test]
    fn bits_by_their_number() {
        for word in [1u64, 0x8000_0000_0000_0000, 0xF0F0_1234_5678_9ABC, u64::MAX] {
            for (before, bit) in bits(word).enumerate() {
                assert_eq!(deposit::<false>(1 << before, word), 1 << bit);
                assert_eq!(extract::<false>(1 << bit, word), 1 << before);
            }
        }
        assert_eq!(bits(0).count(), 0);
    }

    proptest! {
        /// Also where the tables are not what was written.
        #[test]
        fn each_level_finds_the_same(
            width in 1usize..33,
            words in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..300], 64..200),
            bounds in prop::collection::btree_set(any::<u32>(), 0..12),
            near in prop::collection::btree_set(0u32..200, 0..12),
            starts in prop::collection::vec(0u32..220, 0..5),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let most = ((1u64 << width) - 1) as u32;
            let bounds: Vec<u32> = near.into_iter().chain(bounds).map(|bound| bound & most).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
            let ranges: Vec<_> = bounds.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let wanted = Wanted::new(&ranges).unwrap();
            let several = |start: &u32| MultiValueDirectory { points: U64::new(words[*start as usize % 64]), start: U32::new(*start) };
            let several: Vec<_> = starts.iter().map(several).collect();
            let column = Column { width, codes: &bytes, several: &several, records: &bytes };
            let (mut fast, mut plain) = ([u64::MAX; 3], [u64::MAX; 3]);
            column.check_blocks(&wanted, &mut fast);
            check_some_plain(&column, &[0, 1, 2], &wanted, &mut plain);
            prop_assert_eq!(fast, plain);
            let rows: Vec<u32> = (0..64).collect();
            column.check(&rows, &wanted, &mut fast[..1]);
            check_plain(&column, &rows, &wanted, &mut plain[..1]);
            prop_assert_eq!(fast[0], plain[0]);
        }

        #[test]
        fn as_one_by_one(
            distinct in 1u32..400,
            most in 0usize..5,
            least in 0usize..2,
            rows in prop::collection::vec(prop::collection::vec(any::<u32>(), 1..5), 0..300),
            bounds in prop::collection::vec(any::<u32>(), 4),
            asked in prop::collection::vec(any::<u32>(), 0..200),
        ) {
            let rows: Vec<Vec<u32>> = rows.into_iter().enumerate().map(|(at, codes)| {
                let most = if at % 3 == 0 { least } else { most.max(least) };
                codes.into_iter().take(most).map(|code| code % distinct).collect()
            }).collect();
            let packer = packed(distinct, &rows);
            let column = packer.column();
            let mut bounds: Vec<u32> = bounds.into_iter().map(|bound| bound % (distinct + 1)).collect();
            bounds.sort_unstable();
            let ranges: Vec<_> = [bounds[0]..bounds[1], bounds[2]..bounds[3]].into_iter().filter(|range| !range.is_empty()).collect();
            let expected: Vec<bool> = rows.iter().map(|codes| codes.iter().any(|code| ranges.iter().any(|range| range.contains(code)))).collect();
            let wanted = Wanted::new(&ranges).unwrap();
            if !rows.is_empty() {
                let asked: Vec<u32> = asked.into_iter().map(|row| row % rows.len() as u32).collect();
                let mut passed = vec![0; asked.len().div_ceil(BLOCK)];
                column.check(&asked, &wanted, &mut passed);
                for (at, row) in asked.iter().enumerate() {
                    prop_assert_eq!(passed[at / BLOCK] >> (at % BLOCK) & 1 == 1, expected[*row as usize], "row {}", row);
                }
            }
            let mut passed = vec![u64::MAX; rows.len().div_ceil(BLOCK)];
            column.check_blocks(&wanted, &mut passed);
            for (row, expected) in expected.iter().enumerate() {
                prop_assert_eq!(passed[row / BLOCK] >> (row % BLOCK) & 1 == 1, *expected, "row {}", row);
            }
        }
    }
}
