//! Writes a segment from rows that can be walked several times in id order.
//!
//! ```text
//!   walk 1  count, see whether numbers are dense, fill the filter
//!   walk 2  ids and fences              (only where numbers are not dense, or UUIDs exist)
//!   walk 3  lengths of payloads  ─► payload_at      walk 4  payloads
//!   then    each vector name: crate `ann` streams the vectors as often as it needs
//! ```
//!
//! Flush and merge differ only in what they hand in as [`Rows`]. Memory: the filter (one byte a row),
//! the fences, the writer's buffer, and what the index build takes from its account.

use crate::api::CollectionConfig;
use crate::segment::bloom;
use crate::segment::meta::{
    FENCES, FILTER, NUMBERS, PAYLOAD, PAYLOAD_AT, SegmentMeta, UUIDS, VectorMeta, Walk, index_tag, present_tag,
};
use crate::segment::ordinals::Ordinals;
use ramekin_ann::{BuildOptions, Source, Work};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, PointId, Result};
use ramekin_pages::{PageWriter, Priority};

/// A row as a walk shows it.
pub(crate) struct Row<'a> {
    pub(crate) id: PointId,
    pub(crate) payload_len: u64,
    /// Empty unless the walk asked for payloads.
    pub(crate) payload: &'a [u8],
}

/// The rows of a segment to be, in id order, each id once.
pub(crate) trait Rows {
    fn walk(&mut self, what: Walk, each: &mut dyn FnMut(Row<'_>) -> Result<()>) -> Result<()>;
    /// The vectors under one name, by row; `None` where no row has one.
    fn vectors(&mut self, name: &str) -> Result<Option<Box<dyn Source + '_>>>;
    /// Rows at most: dead ones may still be counted.
    fn len_at_most(&self) -> usize;
    fn version(&self) -> u64;
}

struct Counted {
    points: u32,
    numbers: u32,
    first: Option<u64>,
    last: u64,
    payload_bytes: u64,
}

impl Counted {
    fn dense_from(&self) -> Option<u64> {
        match self.first {
            None => Some(0),
            Some(first) if self.last - first == u64::from(self.numbers) - 1 => Some(first),
            Some(_) => None,
        }
    }
}

/// Writes the whole segment, its indexes planned with `percent` of the memory that is free; returns `None` (and writes nothing of use) where there is no row.
pub(crate) fn write_segment(
    rows: &mut dyn Rows,
    config: &CollectionConfig,
    out: &mut PageWriter,
    work: &Work<'_>,
    percent: u64,
) -> Result<Option<SegmentMeta>> {
    let counted = write_filter(rows, out, work)?;
    if counted.points == 0 {
        return Ok(None);
    }
    write_ids(rows, &counted, out, work)?;
    if counted.payload_bytes > 0 {
        write_payloads(rows, out)?;
    }
    let mut vectors = Vec::new();
    for (at, (name, vector)) in config.vectors.iter().enumerate() {
        let default = BuildOptions::default();
        let ef_construct = vector.placement.ef_construct.unwrap_or(default.ef_construct);
        let options = BuildOptions { recall: config.recall, percent, ef_construct };
        let index = match rows.vectors(name)? {
            Some(source) if !source.is_empty() => {
                let mut source = Ordinals::new(source, counted.points as usize, &work.account)?;
                source.write_present(out, present_tag(at))?;
                let (metric, datatype) = (vector.metric.metric(), vector.datatype);
                Some(ramekin_ann::build(&mut source, metric, datatype, out, index_tag(at), work, &options)?)
            }
            _ => None,
        };
        vectors.push(VectorMeta { name: name.clone(), dim: vector.dim, metric: vector.metric, index });
    }
    Ok(Some(SegmentMeta {
        points: counted.points,
        numbers: counted.numbers,
        dense_from: counted.dense_from(),
        version: rows.version(),
        payload_bytes: counted.payload_bytes,
        vectors,
    }))
}

fn write_filter(rows: &mut dyn Rows, out: &mut PageWriter, work: &Work<'_>) -> Result<Counted> {
    let bytes = bloom::bytes(rows.len_at_most());
    let _held = work.account.try_reserve(bytes as u64)?;
    let mut bits = vec![0u8; bytes];
    let blocks = bytes / bloom::BLOCK;
    let mut counted = Counted { points: 0, numbers: 0, first: None, last: 0, payload_bytes: 0 };
    rows.walk(Walk::Lengths, &mut |row| {
        if counted.points == u32::MAX - 1 {
            return Err(Error::too_large("a segment holds at most 4 billion points"));
        }
        counted.points += 1;
        counted.payload_bytes += row.payload_len;
        if let PointId::Num(number) = row.id {
            counted.numbers += 1;
            counted.first.get_or_insert(number);
            counted.last = number;
        }
        let (block, hash) = bloom::place(row.id, blocks);
        bloom::insert(&mut bits[block * bloom::BLOCK..][..bloom::BLOCK], hash);
        Ok(())
    })?;
    let dense = counted.dense_from().is_some() && counted.numbers == counted.points;
    if counted.points > 0 && !dense {
        out.begin(FILTER, Priority::Ids)?;
        out.write(&bits)?;
        out.end()?;
    }
    Ok(counted)
}

fn write_ids(rows: &mut dyn Rows, counted: &Counted, out: &mut PageWriter, work: &Work<'_>) -> Result<()> {
    let number_count = if counted.dense_from().is_some() { 0 } else { counted.numbers as usize };
    let uuid_count = (counted.points - counted.numbers) as usize;
    let fence_bytes = (number_count * 8).div_ceil(PAGE) * 8 + (uuid_count * 16).div_ceil(PAGE) * 16;
    let _held = work.account.try_reserve(fence_bytes as u64)?;
    let mut fences = Vec::with_capacity(fence_bytes);
    for (tag, count, size) in [(NUMBERS, number_count, 8), (UUIDS, uuid_count, 16)] {
        if count == 0 {
            continue;
        }
        out.begin(tag, Priority::Ids)?;
        let mut at = 0;
        rows.walk(Walk::Ids, &mut |row| {
            let mut bytes = [0; 16];
            match row.id {
                PointId::Num(number) if tag == NUMBERS => bytes[..8].copy_from_slice(&number.to_le_bytes()),
                PointId::Uuid(uuid) if tag == UUIDS => bytes = uuid.to_be_bytes(),
                _ => return Ok(()),
            }
            if at % PAGE == 0 {
                fences.extend_from_slice(&bytes[..size]);
            }
            at += size;
            out.write(&bytes[..size])
        })?;
        out.end()?;
    }
    if !fences.is_empty() {
        out.begin(FENCES, Priority::Ids)?;
        out.write(&fences)?;
        out.end()?;
    }
    Ok(())
}

fn write_payloads(rows: &mut dyn Rows, out: &mut PageWriter) -> Result<()> {
    out.begin(PAYLOAD_AT, Priority::Payload)?;
    let mut end = 0u64;
    out.write(&end.to_le_bytes())?;
    rows.walk(Walk::Lengths, &mut |row| {
        end += row.payload_len;
        out.write(&end.to_le_bytes())
    })?;
    out.end()?;
    out.begin(PAYLOAD, Priority::Payload)?;
    rows.walk(Walk::Payloads, &mut |row| out.write(row.payload))?;
    let written = out.end()?;
    if written == end {
        Ok(())
    } else {
        Err(Error::bug(format!("payloads of {written} bytes where {end} were counted")))
    }
}
