//! How the sections of one index lie in its page file.
//!
//! ```text
//!   base_tag +0 centroids   dim x f32 scales, then blocks of 16 centroids of i8
//!            +1 clusters    one [`InvertedList`] each: where its vectors start, how many, how its factors are packed
//!            +2 codes1      lists one after another, each in blocks of 32 codes with their factors
//!            +3 codes3      one record a vector: packed code, two u16 factors
//!            +4 codes6      the same, wider (Manhattan: codes8, and neither 1, 3 nor 6)
//!            +5 vectors     one record a vector: the original values in its datatype
//!            +6 rows        position -> row, packed
//!            +7 positions   row -> position, packed
//! ```
//!
//! A *position* is a vector's place in cluster order; codes, vectors and rows share it, so a place in any
//! section follows from the position alone.

use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What one section of an index holds; its tag is the index's base tag plus this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Part {
    Centroids,
    Clusters,
    Codes1,
    Codes3,
    Codes6,
    Vectors,
    Rows,
    Positions,
    Codes8,
}

/// Tags that one index may use: `base_tag .. base_tag + TAGS`.
pub const TAGS: u32 = 16;

impl Part {
    pub const ALL: [Part; 9] = [
        Part::Centroids,
        Part::Clusters,
        Part::Codes1,
        Part::Codes3,
        Part::Codes6,
        Part::Vectors,
        Part::Rows,
        Part::Positions,
        Part::Codes8,
    ];

    pub fn tag(self, base_tag: u32) -> u32 {
        base_tag + self as u32
    }

    /// Bits a dimension, of parts that are codes; 0 of others.
    pub fn code_bits(self) -> u32 {
        match self {
            Self::Codes1 => 1,
            Self::Codes3 => 3,
            Self::Codes6 => 6,
            Self::Codes8 => 8,
            _ => 0,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Centroids => "centroids",
            Self::Clusters => "clusters",
            Self::Codes1 => "codes1",
            Self::Codes3 => "codes3",
            Self::Codes6 => "codes6",
            Self::Vectors => "vectors",
            Self::Rows => "rows",
            Self::Positions => "positions",
            Self::Codes8 => "codes8",
        }
    }
}

/// Records of one length in pages: as many whole ones a page as fit; a record longer than a page starts on a
/// page of its own. So none straddles more pages than it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) record: usize,
    /// Records a page; 0 if a record is longer than a page.
    per_page: usize,
    /// Bytes from a record's start to the next group of pages.
    stride: usize,
    /// `2^44 / per_page`, rounded up: divides by multiplication.
    magic: u64,
}

impl RecordLayout {
    pub(crate) fn new(record: usize) -> Self {
        let per_page = PAGE / record;
        let (stride, magic) = match per_page {
            0 => (record.next_multiple_of(PAGE), 0),
            per_page => (PAGE, (1u64 << 44).div_ceil(per_page as u64)),
        };
        Self { record, per_page, stride, magic }
    }

    /// Where a record starts.
    #[inline]
    pub(crate) fn at(&self, position: u32) -> usize {
        if self.per_page == 0 {
            return position as usize * self.stride;
        }
        // Exact for every u32: the magic number is too large by less than per_page (at most 2^12) parts of 2^44,
        // which over 2^32 positions stays below one step of the quotient.
        let page = ((u128::from(position) * u128::from(self.magic)) >> 44) as usize;
        page * PAGE + (position as usize - page * self.per_page) * self.record
    }

    /// How many records stand one after another without a gap from `position` on.
    #[inline]
    pub(crate) fn run(&self, position: u32) -> usize {
        match self.per_page {
            0 => 1,
            per_page => per_page - position as usize % per_page,
        }
    }

    /// Bytes of a section of `count` records; the last page ends with its last record.
    pub(crate) fn bytes(&self, count: usize) -> u64 {
        match count {
            0 => 0,
            count => (self.at(count as u32 - 1) + self.record) as u64,
        }
    }

    /// Zero bytes between the record at `position` and the next one.
    pub(crate) fn gap(&self, position: u32) -> usize {
        match self.per_page {
            0 => self.stride - self.record,
            _ if self.run(position) == 1 => PAGE - self.per_page * self.record,
            _ => 0,
        }
    }
}

/// A value stored as a u16 (or u8) lies at `least + step * stored`.
#[derive(Debug, Clone, Copy, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Span {
    pub(crate) least: f32,
    pub(crate) step: f32,
}

/// Widths of codes that lie side by side, in bits a dimension, narrowest first.
pub const WIDTHS: [u32; 3] = [1, 3, 6];

/// One entry of the cluster table: 76 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InvertedList {
    /// Position of its first vector.
    pub(crate) start: u32,
    pub(crate) count: u32,
    /// Its first block among all blocks of one-bit codes.
    pub(crate) block: u32,
    /// The centroid is `scale * dimension's scale * i8`.
    pub(crate) scale: f32,
    /// Squared length of the centroid.
    pub(crate) square: f32,
    /// Root of the mean squared distance of its vectors to the centroid.
    pub(crate) spread: f32,
    /// Largest such distance.
    pub(crate) radius: f32,
    /// For each of [`WIDTHS`], how the factors f and k of its codes are packed. (Manhattan: `[0].0.step` is the
    /// step of its 8-bit codes.)
    pub(crate) factors: [[Span; 2]; 3],
}

const _: () = assert!(size_of::<InvertedList>() == 76);

impl InvertedList {
    pub(crate) fn positions(&self) -> std::ops::Range<u32> {
        self.start..self.start + self.count
    }

    /// The positions of the table's entry at `index`, which is not checked; none where there is no entry.
    #[inline]
    pub(crate) fn positions_at(table: &[u8], index: usize) -> std::ops::Range<u32> {
        let at = index * size_of::<InvertedList>();
        let field = |offset: usize| {
            let bytes = table.get(at + offset..at + offset + 4).and_then(<[u8]>::first_chunk::<4>);
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let start = field(std::mem::offset_of!(InvertedList, start));
        start..start.saturating_add(field(std::mem::offset_of!(InvertedList, count)))
    }

    /// Reads the table's entry at `index`.
    #[inline]
    pub(crate) fn read(table: &[u8], index: usize) -> Result<InvertedList> {
        let at = index * size_of::<InvertedList>();
        let bytes = table.get(at..at + size_of::<InvertedList>());
        bytes
            .and_then(|bytes| InvertedList::read_from_bytes(bytes).ok())
            .ok_or_else(|| Error::corrupt(format!("the cluster table has no entry {index}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_stay_inside_pages() {
        for record in [1, 3, 40, 79, 400, 1000, 2048, 2049, 4096, 4097, 10_000] {
            let record_layout = RecordLayout::new(record);
            let mut expected = 0;
            for position in 0..3000u32 {
                assert_eq!(record_layout.at(position), expected, "record {record} position {position}");
                let pages = (expected + record - 1) / PAGE - expected / PAGE + 1;
                assert_eq!(pages, record.div_ceil(PAGE));
                expected += record + record_layout.gap(position);
            }
            for position in [u32::MAX, u32::MAX - 1, u32::MAX / 2, 1 << 31] {
                let per_page = (PAGE / record) as u64;
                let wide = u64::from(position);
                let plain = match per_page {
                    0 => wide * (record.next_multiple_of(PAGE) as u64),
                    _ => wide / per_page * PAGE as u64 + wide % per_page * record as u64,
                };
                assert_eq!(record_layout.at(position) as u64, plain, "record {record} position {position}");
            }
        }
    }
}
