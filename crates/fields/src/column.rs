//! The values of a field by point, as small as their codes: a bit-sliced column (Li and Patel, BitWeaving, SIGMOD 2013,
//! the vertical layout).
//!
//! ```text
//!   code     a value's place in the sorted dictionary; one more for "no value", one more for "several"
//!
//!   block    64 points: one word for each bit of the codes, the lowest first        width x 8 bytes
//!            a range of codes is checked for all 64 with two or three steps a bit
//!
//!   several  starts   of each block: values of several before it                   only where points have several
//!            lasts    a bit a value: the last one of its point
//!            values   their codes, packed
//! ```
//!
//! A point with one value costs the bits of its code and nothing else.

use std::ops::Range;

/// Points of a block.
pub const BLOCK: usize = 64;

/// What one point has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell<'a> {
    Nothing,
    One(u32),
    /// Codes in any order, two at least.
    Several(&'a [u32]),
}

/// A column in memory, as it is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packed {
    /// Values in the dictionary.
    distinct: u32,
    rows: usize,
    /// Bits of a code.
    width: usize,
    planes: Vec<u64>,
    starts: Vec<u32>,
    lasts: Vec<u64>,
    values: Vec<u64>,
    several: usize,
}

/// A column to be read.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    distinct: u32,
    rows: usize,
    width: usize,
    planes: &'a [u64],
    starts: &'a [u32],
    lasts: &'a [u64],
    values: &'a [u64],
}

/// Bits of a code where there are so many values.
fn width(distinct: u32, has_nothing: bool, has_several: bool) -> usize {
    // "Several" stands above "nothing", which then has its code whether it occurs or not.
    let codes = u64::from(distinct) + if has_several { 2 } else { u64::from(has_nothing) };
    (u64::BITS - codes.saturating_sub(1).leading_zeros()) as usize
}

impl Packed {
    /// Packs the cells of a column with codes below `distinct`. `walk` shows each cell in order; it is called twice.
    pub fn pack(distinct: u32, walk: impl Fn(&mut dyn FnMut(Cell<'_>))) -> Self {
        let (mut rows, mut has_nothing, mut has_several) = (0, false, false);
        walk(&mut |cell| {
            rows += 1;
            has_nothing |= cell == Cell::Nothing;
            has_several |= matches!(cell, Cell::Several(_));
        });
        let width = width(distinct, has_nothing, has_several);
        let mut packed = Self { distinct, rows, width, ..Self::default() };
        packed.planes = vec![0; rows.div_ceil(BLOCK) * width];
        let mut row = 0;
        walk(&mut |cell| {
            if has_several && row % BLOCK == 0 {
                packed.starts.push(packed.several as u32);
            }
            packed.push(row, cell);
            row += 1;
        });
        packed
    }

    fn push(&mut self, row: usize, cell: Cell<'_>) {
        let code = match cell {
            Cell::One(code) => code,
            Cell::Nothing => self.distinct,
            Cell::Several(codes) => {
                self.push_several(codes);
                self.distinct + 1
            }
        };
        let block = &mut self.planes[row / BLOCK * self.width..][..self.width];
        for (bit, plane) in block.iter_mut().enumerate() {
            *plane |= u64::from(code >> bit & 1) << (row % BLOCK);
        }
    }

    fn push_several(&mut self, codes: &[u32]) {
        let width = self.width;
        for (at, code) in codes.iter().enumerate() {
            let (number, is_last) = (self.several, at + 1 == codes.len());
            self.lasts.resize(number / 64 + 1, 0);
            self.lasts[number / 64] |= u64::from(is_last) << (number % 64);
            let from = number * width;
            // One word more, so that a code that straddles two can be read like any other.
            self.values.resize((from + width) / 64 + 2, 0);
            self.values[from / 64] |= u64::from(*code) << (from % 64);
            if from % 64 + width > 64 {
                self.values[from / 64 + 1] |= u64::from(*code) >> (64 - from % 64);
            }
            self.several += 1;
        }
    }

    pub fn column(&self) -> Column<'_> {
        Column {
            distinct: self.distinct,
            rows: self.rows,
            width: self.width,
            planes: &self.planes,
            starts: &self.starts,
            lasts: &self.lasts,
            values: &self.values,
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        (self.planes.len() + self.lasts.len() + self.values.len()) * 8 + self.starts.len() * 4
    }
}

impl Column<'_> {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the point of a row has a value whose code is in one of the ranges, which are ascending and apart.
    pub fn check(&self, row: usize, wanted: &[Range<u32>]) -> bool {
        let block = &self.planes[row / BLOCK * self.width..][..self.width];
        let shift = row % BLOCK;
        let bit = |(bit, plane): (usize, &u64)| ((plane >> shift & 1) as u32) << bit;
        let code = block.iter().enumerate().map(bit).sum::<u32>();
        if code <= self.distinct {
            return holds(wanted, code);
        }
        self.check_several(row, block, wanted)
    }

    fn check_several(&self, row: usize, block: &[u64], wanted: &[Range<u32>]) -> bool {
        let before = several(block, self.distinct) & ((1 << (row % BLOCK)) - 1);
        let mut number = self.starts[row / BLOCK] as usize;
        number = self.skip(number, before.count_ones() as usize);
        loop {
            if holds(wanted, self.value(number)) {
                return true;
            }
            if self.is_last(number) {
                return false;
            }
            number += 1;
        }
    }

    /// Whether a value is the last one of its point.
    fn is_last(&self, number: usize) -> bool {
        self.lasts[number / 64] >> (number % 64) & 1 == 1
    }

    /// The value that follows the values of so many points, from the value `number` on.
    fn skip(&self, number: usize, points: usize) -> usize {
        let (mut word, mut left) = (number / 64, points);
        let mut lasts = self.lasts[word] & (u64::MAX << (number % 64));
        if left == 0 {
            return number;
        }
        while (lasts.count_ones() as usize) < left {
            left -= lasts.count_ones() as usize;
            word += 1;
            lasts = self.lasts[word];
        }
        for _ in 1..left {
            lasts &= lasts - 1;
        }
        word * 64 + lasts.trailing_zeros() as usize + 1
    }

    /// The code of one of the values of points that have several.
    fn value(&self, number: usize) -> u32 {
        let from = number * self.width;
        let (word, shift) = (from / 64, from % 64);
        let both = u128::from(self.values[word + 1]) << 64 | u128::from(self.values[word]);
        (both >> shift) as u32 & ((1u64 << self.width) - 1) as u32
    }

    /// Which points of a block have a value whose code is in one of the ranges: a bit each, the first lowest.
    pub fn check_block(&self, number: usize, wanted: &[Range<u32>]) -> u64 {
        let block = &self.planes[number * self.width..][..self.width];
        let mut passed =
            wanted.iter().fold(0, |passed, range| passed | below(block, range.end) & !below(block, range.start));
        let rows = self.rows - number * BLOCK;
        if rows < BLOCK {
            passed &= (1 << rows) - 1;
        }
        if self.starts.is_empty() {
            return passed;
        }
        let mut left = several(block, self.distinct);
        passed &= !left;
        let mut value = self.starts[number] as usize;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            loop {
                passed |= if holds(wanted, self.value(value)) { bit } else { 0 };
                value += 1;
                if self.is_last(value - 1) {
                    break;
                }
            }
        }
        passed
    }
}

fn holds(wanted: &[Range<u32>], code: u32) -> bool {
    wanted.iter().any(|range| range.contains(&code))
}

/// The points of a block that have several values.
fn several(block: &[u64], distinct: u32) -> u64 {
    !below(block, distinct + 1)
}

/// The points of a block whose code is below `bound`.
fn below(block: &[u64], bound: u32) -> u64 {
    if u64::from(bound) >> block.len() != 0 {
        return u64::MAX;
    }
    let (mut below, mut equal) = (0, u64::MAX);
    for (bit, plane) in block.iter().enumerate().rev() {
        match bound >> bit & 1 {
            1 => {
                below |= equal & !plane;
                equal &= plane;
            }
            _ => equal &= !plane,
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cell(codes: &[u32]) -> Cell<'_> {
        match codes {
            [] => Cell::Nothing,
            [code] => Cell::One(*code),
            codes => Cell::Several(codes),
        }
    }

    #[test]
    fn a_value_costs_its_bits() {
        let bytes = |distinct: u32, cell: &dyn Fn(u32) -> Cell<'static>| {
            Packed::pack(distinct, |each| (0..6400).for_each(|row| each(cell(row)))).bytes()
        };
        assert_eq!(bytes(3, &|row| Cell::One(row % 3)), 6400 / 4);
        assert_eq!(bytes(3, &|row| if row % 2 == 0 { Cell::Nothing } else { Cell::One(row % 3) }), 6400 / 4);
        assert_eq!(bytes(1, &|_| Cell::One(0)), 0);
        assert_eq!(bytes(0, &|_| Cell::Nothing), 0);
        assert_eq!(Packed::pack(0, |_| {}).column().rows(), 0);
    }

    proptest! {
        #[test]
        fn as_one_by_one(
            distinct in 1u32..70,
            most in 0usize..4,
            rows in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..4), 0..300),
            bounds in prop::collection::vec(0u32..75, 4),
        ) {
            let rows: Vec<Vec<u32>> = rows.into_iter().map(|codes| codes.into_iter().take(most).map(|code| code % distinct).collect()).collect();
            let packed = Packed::pack(distinct, |each| rows.iter().for_each(|codes| each(cell(codes))));
            let column = packed.column();
            let mut bounds = bounds;
            bounds.sort_unstable();
            let cut = |bound: u32| bound.min(distinct);
            let wanted = [cut(bounds[0])..cut(bounds[1]), cut(bounds[2])..cut(bounds[3])];
            for (row, codes) in rows.iter().enumerate() {
                let expected = codes.iter().any(|code| holds(&wanted, *code));
                prop_assert_eq!(column.check(row, &wanted), expected, "row {}", row);
                prop_assert_eq!(column.check_block(row / BLOCK, &wanted) >> (row % BLOCK) & 1 == 1, expected, "row {}", row);
            }
        }
    }
}
