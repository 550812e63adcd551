//! Payloads that stand in the log: those of new points, and those that changed since their point was flushed.
//!
//! ```text
//!   record ─┬─ head │ ids │ vectors │ text │ text │ ...
//!           └─ PayloadAt: position of the record, where in it the text begins, its length
//! ```

use crate::api::Batch;
use crate::api::op::RECORD_BYTES;
use crate::payload::texts::of_bytes;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result, cancel};
use ramekin_log::{LogReader, Lsn};
use ramekin_memory::Reservation;
use ramekin_pages::Pages;

/// Bytes of records of the log that are read at a time, unless one is longer.
const BATCH_BYTES: usize = 8 * RECORD_BYTES;

/// Where a payload's text stands in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PayloadAt {
    pub(crate) record: Lsn,
    pub(crate) at: u32,
    /// 0: the point has no payload.
    pub(crate) len: u32,
}

/// Reads payloads that stand in the log, each to its place in `found`: a record once for all the points that it has.
pub(crate) fn read_log(
    log: &LogReader,
    pages: &Pages,
    mut places: Vec<(usize, PayloadAt)>,
    memory: &mut Reservation,
    found: &mut [String],
) -> Result<()> {
    places.retain(|(_, place)| place.len > 0);
    places.sort_unstable_by_key(|(_, place)| (place.record, place.at));
    let mut records: Vec<&[(usize, PayloadAt)]> = Vec::with_capacity(places.len());
    records.extend(places.chunk_by(|(_, one), (_, other)| one.record == other.record));
    let mut wanted: Vec<(Lsn, usize)> = Vec::with_capacity(records.len());
    for (at, of) in records.iter().enumerate() {
        let (record, end) = (of[0].1.record, of.iter().map(|(_, place)| (place.at + place.len) as usize).max());
        // Most records are as long as they may be: a shorter guess would be read twice. No record passes the next one.
        let next = records.get(at + 1).map_or(usize::MAX, |next| (next[0].1.record - record) as usize);
        wanted.push((record, end.unwrap_or(0).max(RECORD_BYTES.min(next))));
    }
    let (mut records, mut wanted) = (&records[..], &wanted[..]);
    while !records.is_empty() {
        cancel::check()?;
        let mut bytes = 0;
        let fits = |(_, len): &&(Lsn, usize)| {
            bytes += len;
            bytes <= BATCH_BYTES
        };
        let count = wanted.iter().take_while(fits).count().max(1);
        let (now, later) = records.split_at(count);
        let (asked, rest) = wanted.split_at(count);
        (records, wanted) = (later, rest);
        let bytes: usize = asked.iter().map(|(_, len)| *len).sum();
        pages.count_reads(asked.len() as u64, bytes.div_ceil(PAGE) as u64);
        for (record, of) in log.read_many(asked)?.into_iter().zip(now) {
            for (at, place) in *of {
                let bytes = record.get(place.at as usize..(place.at + place.len) as usize);
                let bytes = bytes.ok_or_else(|| Error::corrupt("a payload's place in the log is broken"))?;
                found[*at] = of_bytes(bytes, "log", memory)?;
            }
        }
    }
    Ok(())
}

/// Where the payload of each point of a batch stands, given the records the batch was logged in.
pub(crate) fn payload_places<'a>(
    batch: &'a Batch,
    first: usize,
    lsn: Lsn,
    payloads_at: &'a [u32],
) -> impl Fn(usize) -> PayloadAt + 'a {
    move |point| match (payloads_at.get(point), batch.payloads.get(first + point)) {
        (Some(at), Some(text)) if !text.is_empty() => PayloadAt { record: lsn, at: *at, len: text.len() as u32 },
        _ => PayloadAt::default(),
    }
}
