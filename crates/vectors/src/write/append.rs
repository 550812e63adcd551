//! The records of a request: what it needs of the log, and what stands in which of them.
//!
//! ```text
//!   points of a request ─► ranges of at most 32 KiB ─► room for all of them ─► a record each, the last one marks the commit
//!                                                      └ all that can fail, then it begins ┘
//! ```

use crate::api::Batch;
use crate::api::op::{self, RECORD_BYTES};
use crate::collection::health::FaultKind;
use crate::collection::{Collection, Kills, Located};
use crate::memtable::{CLEAN, Memtable};
use crate::payload::log::PayloadAt;
use crate::state::request::Tell;
use crate::write::Writer;
use ramekin_base::{Kind, PointId, Result, cancel};
use ramekin_log::Lsn;
use ramekin_memory::Reservation;
use ramekin_storage::ReserveClaim;
use std::ops::Range;
use std::sync::Arc;

/// Of so many points it is not booked where they stand: the writer writes one request at a time.
const LOOKED_FREE: usize = 4096;
/// Ids of one delete record.
const DELETE_IDS: usize = RECORD_BYTES / 17;

/// Who waits for a write, if anybody may give it up.
pub(crate) type Asker<'a> = Option<&'a cancel::Token>;

/// Just before the first record of a write: from here on it is seen through, whoever waits.
pub(crate) fn begin(asker: Asker<'_>) -> Result<()> {
    asker.map_or(Ok(()), cancel::Token::begin)
}

/// A logged operation that waits for the fsync.
pub(crate) struct Pending {
    pub(crate) collection: Arc<Collection>,
    pub(crate) what: Logged,
    /// Where its points stood in segments before it was logged.
    pub(crate) located: Located,
    /// Covers `located`, where the points are many.
    pub(crate) _looked: Option<Reservation>,
    pub(crate) answer: Option<Tell>,
}

pub(crate) enum Logged {
    Upsert { batch: Batch, parts: Vec<Part>, seqno: u64 },
    Delete { ids: Vec<PointId>, lsn: Lsn },
    Payloads { ids: Vec<PointId>, payloads: Vec<PayloadAt>, memory: Reservation },
}

/// A record of an upsert: its points and where their payloads stand in it.
pub(crate) struct Part {
    lsn: Lsn,
    points: Range<usize>,
    payloads_at: Vec<u32>,
}

impl Writer {
    /// Whether deletes are logged as one. On a full disk those of many ids are a change, which is logged piece by piece: the
    /// room that is kept for deletes is not for one of them.
    pub(crate) fn is_at_once(&mut self, ids: &[PointId]) -> bool {
        let (records, bytes) = delete_bytes(ids.len());
        records <= 1 || !self.room_to_add(records, bytes).is_err_and(|error| error.kind() == Kind::NoSpace)
    }

    /// Room in the log for what frees space: where the disk is full, the least, and of what is kept for it.
    pub(crate) fn room_to_free(&mut self, records: usize, bytes: usize) -> Result<()> {
        let (shared, log) = (&self.shared, &mut self.log);
        shared.frees(ReserveClaim::Delete, || match shared.full.is_on() {
            true => log.make_room_in(shared.full_log_bytes(), records, bytes),
            false => log.make_room(records, bytes),
        })
    }

    /// Room in the log for what needs more: of a disk that is not full.
    pub(crate) fn room_to_add(&mut self, records: usize, bytes: usize) -> Result<()> {
        let made = self.log.make_room(records, bytes);
        if let Err(error) = &made
            && error.kind() == Kind::NoSpace
        {
            self.shared.set_full(error);
        }
        made
    }

    /// Logs batches for all of which memory was promised. A log that cannot grow for all of them has none of them.
    pub(crate) fn log_upserts(
        &mut self,
        asker: Asker<'_>,
        collection: &Arc<Collection>,
        batches: Vec<Batch>,
        mut located: impl Iterator<Item = Located>,
    ) -> Result<()> {
        let (records, bytes) = batches
            .iter()
            .map(upsert_records)
            .fold((0, 0), |(records, sum), (ranges, bytes)| (records + ranges.len(), sum + bytes));
        let mut failed = self.room_to_add(records, bytes);
        for batch in batches {
            match failed {
                Ok(()) => failed = self.log_upsert(asker, collection, batch, located.next()).map(|_| ()),
                Err(_) => collection.view.load().active.forget(Memtable::bytes_for(&batch)),
            }
        }
        failed
    }

    /// Logs an upsert, for which memory was promised, in records of a bounded size. All that can fail comes before the log.
    pub(crate) fn log_upsert(
        &mut self,
        asker: Asker<'_>,
        collection: &Arc<Collection>,
        batch: Batch,
        located: Option<Located>,
    ) -> Result<u64> {
        let seqno = self.shared.next_seqno();
        let looked = located.map_or_else(|| self.locate(collection, &batch.ids), |located| Ok((located, None)));
        let logged = looked.and_then(|looked| Ok((looked, self.append_upsert(asker, collection, &batch, seqno)?)));
        match logged {
            Ok(((located, looked), parts)) => {
                let (collection, what) = (collection.clone(), Logged::Upsert { batch, parts, seqno });
                self.pending.push(Pending { collection, what, located, _looked: looked, answer: None });
                Ok(seqno)
            }
            Err(error) => {
                collection.view.load().active.forget(Memtable::bytes_for(&batch));
                Err(error)
            }
        }
    }

    /// Appends the records of an upsert: a start finds all of them or none.
    fn append_upsert(
        &mut self,
        asker: Asker<'_>,
        collection: &Arc<Collection>,
        batch: &Batch,
        seqno: u64,
    ) -> Result<Vec<Part>> {
        let (ranges, bytes) = upsert_records(batch);
        self.room_to_add(ranges.len(), bytes)?;
        begin(asker)?;
        let count = ranges.len();
        let mut parts = Vec::with_capacity(count);
        for (at, points) in ranges.into_iter().enumerate() {
            self.record.clear();
            let payloads_at = op::encode_upsert(&mut self.record, seqno, collection.number, batch, points.clone());
            let lsn = self.log.append_part(seqno, &self.record, at + 1 == count)?;
            parts.push(Part { lsn, points, payloads_at });
        }
        Ok(parts)
    }

    /// Where points stand in segments, and the memory for knowing that of many.
    fn locate(&self, collection: &Collection, ids: &[PointId]) -> Result<(Located, Option<Reservation>)> {
        let bytes = Located::bytes(ids.len());
        let book = || self.shared.accounts.queries.try_reserve(bytes);
        let looked = (ids.len() > LOOKED_FREE).then(book).transpose()?;
        let located = collection.locate(&self.shared.pages, ids, Kills::All);
        let located = located.inspect_err(|error| self.shared.noted(collection, FaultKind::Read, error))?;
        Ok((located, looked))
    }

    /// Logs deletes; those of many ids in several records, each well below the log's limit.
    pub(crate) fn log_deletes(
        &mut self,
        asker: Asker<'_>,
        collection: &Arc<Collection>,
        ids: Vec<PointId>,
        located: Option<Located>,
    ) -> Result<u64> {
        let seqno = self.shared.next_seqno();
        let (located, looked) = match located {
            Some(located) => (located, None),
            None => self.locate(collection, &ids)?,
        };
        let mut lsn = CLEAN;
        let (count, bytes) = delete_bytes(ids.len());
        self.room_to_free(count, bytes)?;
        begin(asker)?;
        for (at, ids) in ids.chunks(DELETE_IDS).enumerate() {
            self.record.clear();
            op::encode_delete(&mut self.record, seqno, collection.number, ids);
            lsn = lsn.min(self.log.append_part(seqno, &self.record, at + 1 == count)?);
        }
        let (collection, what) = (collection.clone(), Logged::Delete { ids, lsn });
        self.pending.push(Pending { collection, what, located, _looked: looked, answer: None });
        Ok(seqno)
    }

    /// Logs new payloads in records of a bounded size: a start finds all of them or none. `memory` was promised for them, so
    /// that nothing that was made durable can fail to fit.
    pub(crate) fn log_payloads(
        &mut self,
        asker: Asker<'_>,
        collection: &Arc<Collection>,
        points: &[(PointId, Box<str>)],
        located: Located,
        memory: Reservation,
    ) -> Result<()> {
        let seqno = self.shared.next_seqno();
        let (ranges, bytes) = ranges(points.len(), |point| 17 + 4 + points[point].1.len());
        let count = ranges.len();
        self.room_to_add(count, bytes + count * op::HEAD_BYTES)?;
        begin(asker)?;
        let mut payloads = Vec::with_capacity(points.len());
        for (at, range) in ranges.into_iter().enumerate() {
            let now = &points[range];
            self.record.clear();
            let texts = op::encode_payloads(&mut self.record, seqno, collection.number, now);
            let record = self.log.append_part(seqno, &self.record, at + 1 == count)?;
            let place =
                |(at, (_, text)): (&u32, &(PointId, Box<str>))| PayloadAt { record, at: *at, len: text.len() as u32 };
            payloads.extend(texts.iter().zip(now).map(place));
        }
        let ids = points.iter().map(|(id, _)| *id).collect();
        let (collection, what) = (collection.clone(), Logged::Payloads { ids, payloads, memory });
        self.pending.push(Pending { collection, what, located, _looked: None, answer: None });
        Ok(())
    }
}

/// The points of each record of an upsert, and the bytes of all records.
fn upsert_records(batch: &Batch) -> (Vec<Range<usize>>, usize) {
    let vectors: usize = batch.columns.iter().map(|column| column.dim * 4 + 4).sum();
    let point_bytes = |point: usize| 17 + vectors + batch.payloads.get(point).map_or(0, |payload| payload.len() + 4);
    let (ranges, bytes) = ranges(batch.ids.len(), point_bytes);
    let head = op::UPSERT_HEAD_BYTES + batch.columns.iter().map(|column| column.name.len() + 12).sum::<usize>();
    let heads = ranges.len() * head;
    (ranges, bytes + heads)
}

/// Points that share a record, and the bytes of all: as many as it has bytes for, and at least one.
fn ranges(points: usize, bytes_of: impl Fn(usize) -> usize) -> (Vec<Range<usize>>, usize) {
    let (mut ranges, mut bytes, mut from) = (Vec::new(), 0, 0);
    while from < points {
        let (mut to, mut sum) = (from + 1, bytes_of(from));
        while to < points && sum + bytes_of(to) <= RECORD_BYTES {
            sum += bytes_of(to);
            to += 1;
        }
        bytes += sum;
        ranges.push(from..to);
        from = to;
    }
    (ranges, bytes)
}

pub(crate) fn parts_of(parts: &[Part]) -> Vec<(Lsn, Range<usize>, &[u32])> {
    parts.iter().map(|part| (part.lsn, part.points.clone(), &part.payloads_at[..])).collect()
}

/// The records of deletes of so many points, and bytes of all.
fn delete_bytes(ids: usize) -> (usize, usize) {
    let records = ids.div_ceil(DELETE_IDS);
    (records, ids * 17 + records * op::HEAD_BYTES)
}
