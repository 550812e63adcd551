//! What a file of a run says about itself, beside its pages.
//!
//! ```text
//!   page file:  body     blocks and, between them, the bytes of big values
//!               index    blocks again: separator ─► page, pages, weight before, least deadline
//!               filter   lines of a Bloom filter, if the tree has them
//!   meta bytes: version 1 │ flags 1 │ records │ weight │ least deadline │ first key │ last key │ tops: separator, page, pages
//! ```
//!
//! The tops name the blocks of the index, so that a look-up reads one page of it. Lengths and numbers are varints. The meta
//! bytes stay in memory while the file is open; they are a few hundred for a file of 8 MiB whose keys are short.

use ramekin_base::varint;
use ramekin_base::{Error, Result};
use std::ops::Range;

pub(crate) const BODY: u32 = 1;
pub(crate) const INDEX: u32 = 2;
pub(crate) const FILTER: u32 = 3;

const VERSION: u8 = 1;
const WEIGHTED: u8 = 1;

/// How a tree's runs are made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Records carry weights.
    pub weighted: bool,
    /// Files carry filters: not worth it where every key that is asked for is there.
    pub filtered: bool,
    /// A file ends at about so many bytes.
    pub file_bytes: u64,
    /// When the first of what a value holds expires, milliseconds since 1970 or as the tree counts; 0: never. What the index says of
    /// pages.
    pub deadline: fn(&[u8]) -> u64,
    /// Records whose deadline is at most this are not written any more; 0: all are. For trees without weights, whose keys are written
    /// once: no older record can come to light.
    pub ended: u64,
}

impl Shape {
    /// Without weights and filters.
    pub const PLAIN: Self = Self { weighted: false, filtered: false, file_bytes: 8 << 20, deadline: |_| 0, ended: 0 };
}

/// A block of the index, and the first key that it answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Top {
    /// Where its separator stands in the meta bytes.
    pub(crate) separator: Range<u32>,
    pub(crate) page: u32,
    pub(crate) pages: u32,
}

/// The meta bytes, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) weighted: bool,
    pub(crate) records: u64,
    pub(crate) weight: i64,
    pub(crate) deadline: u64,
    pub(crate) first: Range<u32>,
    pub(crate) last: Range<u32>,
    pub(crate) tops: Box<[Top]>,
}

/// Writes meta bytes: the numbers first, then each top.
pub(crate) struct MetaBuilder {
    pub(crate) weighted: bool,
    pub(crate) records: u64,
    pub(crate) weight: i64,
    pub(crate) deadline: u64,
    pub(crate) first: Vec<u8>,
    tops: Vec<u8>,
    count: u64,
}

impl MetaBuilder {
    pub(crate) fn new(weighted: bool) -> Self {
        Self { weighted, records: 0, weight: 0, deadline: 0, first: Vec::new(), tops: Vec::new(), count: 0 }
    }

    pub(crate) fn add_top(&mut self, separator: &[u8], page: u64, pages: usize) {
        put_bytes(&mut self.tops, separator);
        varint::put(&mut self.tops, page);
        varint::put(&mut self.tops, pages as u64);
        self.count += 1;
    }

    /// Bytes of the tops so far.
    pub(crate) fn tops_bytes(&self) -> usize {
        self.tops.len()
    }

    pub(crate) fn finish(&self, last: &[u8]) -> Vec<u8> {
        let mut out = vec![VERSION, if self.weighted { WEIGHTED } else { 0 }];
        varint::put(&mut out, self.records);
        varint::put_signed(&mut out, self.weight);
        varint::put(&mut out, self.deadline);
        put_bytes(&mut out, &self.first);
        put_bytes(&mut out, last);
        varint::put(&mut out, self.count);
        out.extend_from_slice(&self.tops);
        out
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn get_bytes(bytes: &[u8], at: &mut usize) -> Option<Range<u32>> {
    let len = usize::try_from(varint::get(bytes, at)?).ok()?;
    let start = *at;
    *at = start.checked_add(len)?;
    bytes.get(start..*at)?;
    Some(u32::try_from(start).ok()?..u32::try_from(*at).ok()?)
}

impl Meta {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let version = *bytes.first().unwrap_or(&0);
        if version > VERSION {
            let text =
                format!("is a run of version {version}, and this program reads up to {VERSION}; use a newer one");
            return Err(Error::unsupported(text));
        }
        Self::parse(bytes).ok_or_else(|| Error::corrupt("the head of a run contradicts itself; restore the file"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.get(1).filter(|_| bytes[0] == VERSION)?;
        let at = &mut 2;
        let records = varint::get(bytes, at)?;
        let weight = varint::get_signed(bytes, at)?;
        let deadline = varint::get(bytes, at)?;
        let (first, last) = (get_bytes(bytes, at)?, get_bytes(bytes, at)?);
        let count = usize::try_from(varint::get(bytes, at)?).ok()?;
        // Each takes three bytes at least.
        if count == 0 || count > bytes.len() / 3 || flags & !WEIGHTED != 0 {
            return None;
        }
        let mut tops: Vec<Top> = Vec::with_capacity(count);
        for _ in 0..count {
            let separator = get_bytes(bytes, at)?;
            let page = u32::try_from(varint::get(bytes, at)?).ok()?;
            let pages = u32::try_from(varint::get(bytes, at)?).ok()?;
            let text = |range: &Range<u32>| &bytes[range.start as usize..range.end as usize];
            let ascends = tops.last().is_none_or(|before| text(&before.separator) < text(&separator));
            if !ascends || tops.is_empty() != separator.is_empty() {
                return None;
            }
            tops.push(Top { separator, page, pages });
        }
        let weighted = flags & WEIGHTED != 0;
        (*at == bytes.len()).then(|| Self { weighted, records, weight, deadline, first, last, tops: tops.into() })
    }

    /// Bytes in memory beside the meta bytes, for a file with so many tops.
    pub(crate) fn cost(&self) -> u64 {
        (self.tops.len() * size_of::<Top>()) as u64
    }
}

/// What the index says of a block of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BlockAt {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    /// The sum of the weights of all records before it in the file.
    pub(crate) weight: i64,
    /// When the first of its records expires; 0: never.
    pub(crate) deadline: u64,
}

impl BlockAt {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, u64::from(self.page));
        varint::put(out, u64::from(self.pages));
        varint::put_signed(out, self.weight);
        varint::put(out, self.deadline);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parse = |at: &mut usize| {
            let page = u32::try_from(varint::get(bytes, at)?).ok()?;
            let pages = u32::try_from(varint::get(bytes, at)?).ok()?;
            Some(Self { page, pages, weight: varint::get_signed(bytes, at)?, deadline: varint::get(bytes, at)? })
        };
        parse(&mut 0).ok_or_else(|| Error::corrupt("an index of a run contradicts itself; restore the file"))
    }
}

/// The shortest key that is greater than `before` and not greater than `from`.
pub(crate) fn separator<'a>(before: &[u8], from: &'a [u8]) -> &'a [u8] {
    &from[..(crate::block::common(before, from) + 1).min(from.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..3, 0..6)
    }

    proptest! {
        #[test]
        fn a_head_comes_back(
            separators in proptest::collection::btree_set(keys(), 1..20),
            (records, weight, deadline) in any::<(u64, i64, u64)>(),
            last in keys(),
        ) {
            let mut builder = MetaBuilder { records, weight, deadline, first: last.clone(), ..MetaBuilder::new(true) };
            let all: Vec<Vec<u8>> = [Vec::new()].into_iter().chain(separators.into_iter().filter(|it| !it.is_empty())).collect();
            (1..).zip(&all).for_each(|(page, separator)| builder.add_top(separator, page, 1));
            let bytes = builder.finish(&last);
            let meta = Meta::decode(&bytes).unwrap();
            prop_assert_eq!((meta.records, meta.weight, meta.deadline), (records, weight, deadline));
            let text = |range: &Range<u32>| bytes[range.start as usize..range.end as usize].to_vec();
            prop_assert_eq!((text(&meta.first), text(&meta.last)), (last.clone(), last));
            let tops: Vec<Vec<u8>> = meta.tops.iter().map(|top| text(&top.separator)).collect();
            prop_assert_eq!(tops, all);
            for cut in 0..bytes.len() {
                prop_assert!(Meta::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn decoders_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            _ = Meta::decode(&bytes);
            _ = Meta::decode(&[&[1, 1][..], &bytes].concat());
            _ = BlockAt::decode(&bytes);
        }

        #[test]
        fn a_separator_lies_between(a in keys(), b in keys()) {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assume!(low != high);
            let between = separator(&low, &high);
            prop_assert!(&low[..] < between && between <= &high[..]);
        }
    }
}
