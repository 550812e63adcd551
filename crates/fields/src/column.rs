//! The values of a field by point, as small as their codes: a bit-sliced column (Li and Patel, BitWeaving, SIGMOD 2013,
//! the vertical layout).
//!
//! ```text
//!   code     a value's place in the sorted dictionary; then one for "no value"; all bits set: "several"
//!
//!   block    64 points: one word for each bit of their codes, the lowest first          width x 8 bytes
//!   quad     four blocks, word by word: a range of codes is checked for all 256 points with a few wide steps a bit
//!
//!   starts   of each block: values of several before it                                  only where points have several
//!   groups   of 64 such values: which are the last of their point, then a block of their codes
//! ```
//!
//! A point with one value costs the bits of its code and nothing else.

use ramekin_base::Result;
use std::ops::Range;

/// Points of a block.
pub const BLOCK: usize = 64;
/// Blocks of a quad, and its points.
pub const LANES: usize = 4;
pub const QUAD: usize = BLOCK * LANES;

/// A word of each block of a quad: the processor has words as wide.
pub type Lanes = [u64; LANES];

/// What one point has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell<'a> {
    Nothing,
    One(u32),
    /// Codes in any order, two at least.
    Several(&'a [u32]),
}

/// Bits of a code where there are so many values.
pub fn width(distinct: u32, has_nothing: bool, has_several: bool) -> usize {
    // "Several" stands above "nothing", which then has its code whether it occurs or not.
    let codes = u64::from(distinct) + if has_several { 2 } else { u64::from(has_nothing) };
    (u64::BITS - codes.saturating_sub(1).leading_zeros()) as usize
}

/// Called with words of quads and of groups.
pub(crate) type EachWords<'a> = dyn FnMut(&[Lanes], &[u64]) -> Result<()> + 'a;

/// Packs points one after another.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packer {
    distinct: u32,
    width: usize,
    rows: usize,
    has_several: bool,
    planes: Vec<Lanes>,
    starts: Vec<u32>,
    groups: Vec<u64>,
    several: usize,
}

impl Packer {
    /// Of points that have codes below `distinct`, and what else some of them have.
    pub fn new(distinct: u32, has_nothing: bool, has_several: bool) -> Self {
        let width = width(distinct, has_nothing, has_several);
        Self { distinct, width, has_several, ..Self::default() }
    }

    pub fn push(&mut self, cell: Cell<'_>) {
        if self.rows.is_multiple_of(QUAD) {
            self.planes.resize(self.planes.len() + self.width, [0; LANES]);
        }
        if self.rows.is_multiple_of(BLOCK) && self.has_several {
            self.starts.push(self.several as u32);
        }
        let code = match cell {
            Cell::One(code) => u64::from(code),
            Cell::Nothing => u64::from(self.distinct),
            Cell::Several(codes) => {
                codes.iter().enumerate().for_each(|(at, code)| self.push_value(*code, at + 1 == codes.len()));
                u64::MAX
            }
        };
        let (quad, lane, bit) = (self.planes.len() - self.width, self.rows / BLOCK % LANES, self.rows % BLOCK);
        let words = self.planes[quad..].iter_mut().map(|plane| &mut plane[lane]);
        set(words, bit, code);
        self.rows += 1;
    }

    fn push_value(&mut self, code: u32, is_last: bool) {
        let bit = self.several % BLOCK;
        if bit == 0 {
            self.groups.resize(self.groups.len() + 1 + self.width, 0);
        }
        let group = self.groups.len() - 1 - self.width;
        self.groups[group] |= u64::from(is_last) << bit;
        set(self.groups[group + 1..].iter_mut(), bit, u64::from(code));
        self.several += 1;
    }

    pub fn column(&self) -> Column<'_> {
        let Self { distinct, width, rows, planes, starts, groups, .. } = self;
        Column { distinct: *distinct, rows: *rows, width: *width, planes, starts, groups }
    }

    /// Shows the words of quads and groups that are whole, or of all where no more points come, and lets go of them.
    pub(crate) fn drain(&mut self, is_end: bool, each: &mut EachWords<'_>) -> Result<()> {
        let planes = if is_end || self.rows.is_multiple_of(QUAD) { self.planes.len() } else { 0 };
        // The last group is open, unless it is full.
        let open = if is_end || self.several.is_multiple_of(BLOCK) { 0 } else { 1 + self.width };
        let groups = self.groups.len() - open;
        if planes + groups > 0 {
            each(&self.planes[..planes], &self.groups[..groups])?;
            self.planes.drain(..planes);
            self.groups.drain(..groups);
        }
        Ok(())
    }

    /// Of each block the values of several before it, and of all.
    pub(crate) fn into_starts(mut self) -> Vec<u32> {
        self.starts.push(self.several as u32);
        self.starts
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.planes) + self.groups.len() * 8 + self.starts.len() * 4
    }
}

fn set<'a>(planes: impl Iterator<Item = &'a mut u64>, bit: usize, code: u64) {
    planes.enumerate().for_each(|(at, plane)| *plane |= (code >> at & 1) << bit);
}

/// Codes that are asked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Ascending and apart.
    ranges: Vec<Range<u32>>,
    /// A bit for each of the lowest codes.
    table: u64,
}

impl Wanted {
    /// `ranges` are ascending and apart.
    pub fn new(ranges: Vec<Range<u32>>) -> Self {
        let ones = |count: u32| if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 };
        let table = ranges.iter().fold(0, |table, range| table | ones(range.end) & !ones(range.start));
        Self { ranges, table }
    }

    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    #[inline(always)]
    fn holds(&self, code: u32) -> bool {
        if code < u64::BITS {
            return self.table >> code & 1 == 1;
        }
        let before = self.ranges.partition_point(|range| range.end <= code);
        self.ranges.get(before).is_some_and(|range| range.start <= code)
    }

    /// Which codes of some blocks are wanted: a bit each.
    #[inline(always)]
    fn of_blocks(&self, planes: &[Lanes]) -> Lanes {
        let mut passed = [0; LANES];
        for range in &self.ranges {
            let own = match range.len() {
                1 => equal(planes, range.start),
                _ => {
                    let (end, start) = (below(planes, range.end), below(planes, range.start));
                    std::array::from_fn(|lane| end[lane] & !start[lane])
                }
            };
            for lane in 0..LANES {
                passed[lane] |= own[lane];
            }
        }
        passed
    }
}

/// A column to be read.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    pub distinct: u32,
    pub rows: usize,
    /// Bits of a code.
    pub width: usize,
    /// The quads.
    pub planes: &'a [Lanes],
    pub starts: &'a [u32],
    pub groups: &'a [u64],
}

/// Runs the second of two functions, which differ only in what the processor must have.
macro_rules! fastest {
    ($fast:ident, $plain:ident, $($argument:expr),*) => {{
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
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

    /// Takes out of `passed`, a word a block from block `first` on, the points that have no wanted code.
    /// Bits behind the last row mean nothing.
    pub fn check_blocks(&self, first: usize, wanted: &Wanted, passed: &mut [u64]) {
        fastest!(check_blocks_fast, check_blocks_plain, self, first, wanted, passed)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn check_fast(column: &Column<'_>, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    check_plain(column, rows, wanted, passed);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn check_blocks_fast(column: &Column<'_>, first: usize, wanted: &Wanted, passed: &mut [u64]) {
    check_blocks_plain(column, first, wanted, passed);
}

#[inline(always)]
fn check_plain(column: &Column<'_>, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
    match column.width {
        0 => passed.fill(if wanted.holds(0) && column.distinct > 0 { u64::MAX } else { 0 }),
        1 => column.check_rows::<1>(rows, wanted, passed),
        2 => column.check_rows::<2>(rows, wanted, passed),
        3 => column.check_rows::<3>(rows, wanted, passed),
        4 => column.check_rows::<4>(rows, wanted, passed),
        5 => column.check_rows::<5>(rows, wanted, passed),
        6 => column.check_rows::<6>(rows, wanted, passed),
        7 => column.check_rows::<7>(rows, wanted, passed),
        8 => column.check_rows::<8>(rows, wanted, passed),
        10 => column.check_rows::<10>(rows, wanted, passed),
        _ => column.check_each(rows, wanted, passed, |row| gather_lane(column.quad(row as usize / QUAD), row as usize)),
    }
}

#[inline(always)]
fn check_blocks_plain(column: &Column<'_>, first: usize, wanted: &Wanted, passed: &mut [u64]) {
    let last = first + passed.len();
    for quad in first / LANES..last.div_ceil(LANES) {
        let blocks = (quad * LANES).max(first)..((quad + 1) * LANES).min(last);
        let passed = &mut passed[blocks.start - first..blocks.end - first];
        if passed.iter().all(|passed| *passed == 0) {
            continue;
        }
        let found = wanted.of_blocks(&column.planes[quad * column.width..][..column.width]);
        for (number, passed) in blocks.zip(passed) {
            *passed &= match column.starts.is_empty() || *passed == 0 {
                true => found[number % LANES],
                false => column.add_several(number, found[number % LANES], wanted),
            };
        }
    }
}

impl Column<'_> {
    #[inline(always)]
    fn check_rows<const W: usize>(&self, rows: &[u32], wanted: &Wanted, passed: &mut [u64]) {
        let (quads, _) = self.planes.as_chunks::<W>();
        self.check_each(rows, wanted, passed, |row| gather_lane(&quads[row as usize / QUAD], row as usize));
    }

    #[inline(always)]
    fn check_each(&self, rows: &[u32], wanted: &Wanted, passed: &mut [u64], code_of: impl Fn(u32) -> u64) {
        let several_code = if self.starts.is_empty() { u64::MAX } else { (1 << self.width) - 1 };
        let is_narrow = self.width <= 6;
        for (rows, passed) in rows.chunks(BLOCK).zip(passed) {
            // All codes first: one does not wait for another.
            let mut codes = [0u32; BLOCK];
            codes.iter_mut().zip(rows).for_each(|(code, row)| *code = code_of(*row) as u32);
            let (mut found, mut several) = (0, 0);
            for (at, code) in codes[..rows.len()].iter().enumerate() {
                let holds = if is_narrow { wanted.table >> code & 1 } else { u64::from(wanted.holds(*code)) };
                found |= holds << at;
                several |= u64::from(u64::from(*code) == several_code) << at;
            }
            *passed = if several == 0 { found } else { found & !several | self.check_several(rows, several, wanted) };
        }
    }

    #[inline(always)]
    fn quad(&self, number: usize) -> &[Lanes] {
        &self.planes[number * self.width..][..self.width]
    }

    /// The points of a block that have several values.
    #[inline(always)]
    fn several_of(&self, block: usize) -> u64 {
        let mut several = u64::MAX;
        for plane in self.quad(block / LANES) {
            several &= plane[block % LANES];
        }
        several
    }

    /// Of at most 64 rows those that have several values and a wanted one. Each step is made for all of them before
    /// the next, so that they wait for memory together.
    #[inline(always)]
    fn check_several(&self, rows: &[u32], several: u64, wanted: &Wanted) -> u64 {
        let mut numbers = [(0u32, 0u32); BLOCK];
        for at in bits(several) {
            let row = rows[at] as usize;
            let before = self.several_of(row / BLOCK) & ((1 << (row % BLOCK)) - 1);
            numbers[at] = (self.starts[row / BLOCK], before.count_ones());
        }
        let mut found = 0;
        for at in bits(several) {
            let (start, before) = numbers[at];
            found |= u64::from(self.has_wanted(self.skip(start as usize, before), wanted)) << at;
        }
        found
    }

    #[inline(always)]
    fn group(&self, number: usize) -> (u64, &[u64]) {
        let bytes = number * (1 + self.width)..(number + 1) * (1 + self.width);
        // What contradicts itself ends there.
        self.groups.get(bytes).and_then(<[u64]>::split_first).map_or((u64::MAX, &[]), |(lasts, block)| (*lasts, block))
    }

    /// The value that follows the values of so many points, from the value `number` on.
    #[inline(always)]
    fn skip(&self, number: usize, mut points: u32) -> usize {
        if points == 0 {
            return number;
        }
        let mut group = number / BLOCK;
        let mut lasts = self.group(group).0 & (u64::MAX << (number % BLOCK));
        while lasts.count_ones() < points {
            points -= lasts.count_ones();
            group += 1;
            lasts = self.group(group).0;
        }
        group * BLOCK + nth_bit(lasts, points - 1) + 1
    }

    /// Whether one of the values of the point whose first value this is is wanted.
    #[inline(always)]
    fn has_wanted(&self, mut number: usize, wanted: &Wanted) -> bool {
        loop {
            let (lasts, block) = self.group(number / BLOCK);
            if wanted.holds(gather(block, number % BLOCK) as u32) {
                return true;
            }
            if lasts >> (number % BLOCK) & 1 == 1 {
                return false;
            }
            number += 1;
        }
    }

    /// What passes of a block of which `found` is what would pass if each had one value.
    #[inline(always)]
    fn add_several(&self, number: usize, found: u64, wanted: &Wanted) -> u64 {
        let several = self.several_of(number);
        let mut passed = found & !several;
        let mut value = self.starts[number] as usize;
        for at in bits(several) {
            let mut is_wanted = false;
            loop {
                let (lasts, block) = self.group(value / BLOCK);
                is_wanted |= wanted.holds(gather(block, value % BLOCK) as u32);
                value += 1;
                if lasts >> ((value - 1) % BLOCK) & 1 == 1 {
                    break;
                }
            }
            passed |= u64::from(is_wanted) << at;
        }
        passed
    }
}

/// The code of a row of a quad.
#[inline(always)]
fn gather_lane(quad: &[Lanes], row: usize) -> u64 {
    let (lane, bit) = (row / BLOCK % LANES, row % BLOCK);
    let mut code = 0;
    for (at, plane) in quad.iter().enumerate() {
        code |= (plane[lane] >> bit & 1) << at;
    }
    code
}

/// The code at a bit of a block.
#[inline(always)]
fn gather(block: &[u64], bit: usize) -> u64 {
    let mut code = 0;
    for (at, plane) in block.iter().enumerate() {
        code |= (plane >> bit & 1) << at;
    }
    code
}

/// The bits that are set, lowest first.
pub fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < BLOCK).then_some(bit)
    })
}

/// The place of the set bit that has `before` set bits below it.
#[inline(always)]
fn nth_bit(word: u64, before: u32) -> usize {
    let (mut at, mut left) = (0, before);
    for half in [32, 16, 8, 4, 2, 1] {
        let low = (word >> at & ((1 << half) - 1)).count_ones();
        if low <= left {
            left -= low;
            at += half;
        }
    }
    at
}

/// The points whose code is this one.
#[inline(always)]
fn equal(planes: &[Lanes], code: u32) -> Lanes {
    if u64::from(code) >> planes.len() != 0 {
        return [0; LANES];
    }
    let mut equal = [u64::MAX; LANES];
    for (bit, plane) in planes.iter().enumerate() {
        let zeros = u64::from(code >> bit & 1).wrapping_sub(1);
        for lane in 0..LANES {
            equal[lane] &= plane[lane] ^ zeros;
        }
    }
    equal
}

/// The points whose code is below `bound`.
#[inline(always)]
fn below(planes: &[Lanes], bound: u32) -> Lanes {
    if u64::from(bound) >> planes.len() != 0 {
        return [u64::MAX; LANES];
    }
    let (mut below, mut equal) = ([0; LANES], [u64::MAX; LANES]);
    if bound == 0 {
        return below;
    }
    for (bit, plane) in planes.iter().enumerate().rev() {
        let ones = u64::from(bound >> bit & 1).wrapping_neg();
        for lane in 0..LANES {
            below[lane] |= equal[lane] & !plane[lane] & ones;
            equal[lane] &= !(plane[lane] ^ ones);
        }
        // After some bits all points are told apart.
        if bit % 8 == 0 && equal == [0; LANES] {
            break;
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

    fn packed(distinct: u32, rows: &[Vec<u32>]) -> Packer {
        let has = |holds: fn(usize) -> bool| rows.iter().any(|codes| holds(codes.len()));
        let mut packer = Packer::new(distinct, has(|len| len == 0), has(|len| len > 1));
        rows.iter().for_each(|codes| packer.push(cell(codes)));
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
                assert_eq!(nth_bit(word, before as u32), bit);
            }
        }
        assert_eq!(bits(0).count(), 0);
    }

    proptest! {
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
            let wanted = Wanted::new(ranges);
            if !rows.is_empty() {
                let asked: Vec<u32> = asked.into_iter().map(|row| row % rows.len() as u32).collect();
                let mut passed = vec![0; asked.len().div_ceil(BLOCK)];
                column.check(&asked, &wanted, &mut passed);
                for (at, row) in asked.iter().enumerate() {
                    prop_assert_eq!(passed[at / BLOCK] >> (at % BLOCK) & 1 == 1, expected[*row as usize], "row {}", row);
                }
            }
            let mut passed = vec![u64::MAX; rows.len().div_ceil(BLOCK)];
            column.check_blocks(0, &wanted, &mut passed);
            for (row, expected) in expected.iter().enumerate() {
                prop_assert_eq!(passed[row / BLOCK] >> (row % BLOCK) & 1 == 1, *expected, "row {}", row);
            }
        }
    }
}
