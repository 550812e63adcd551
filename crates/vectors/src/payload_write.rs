//! Changes of payloads, which touch no vector: set, overwrite, delete keys, clear.
//!
//! ```text
//!   ids ─ 64 at a time ─► stored payload ─► changed text ─► log ─► applied where each point stands:
//!         growing    the slot's place in the log is another one
//!         sealed     a patch of the segment: row ─► place in the log (see `changes.rs`)
//! ```
//!
//! The log has the whole new payload, so replay reads nothing. A change done twice gives what it gives
//! once, so the pieces of one change need not see each other, even if an id is named again.

use crate::api::{Parts, PayloadChange, PayloadParts};
use crate::collection::Collection;
use crate::growing::PayloadAt;
use crate::shared::Shared;
use crate::writer::{Pending, RECORD_BYTES, REWRITE_POINTS, Writer};
use crate::{background, op, payload, read};
use ramekin_base::limits::payload_max;
use ramekin_base::{Error, PointId, Result};
use ramekin_log::Position;
use ramekin_memory::Reservation;
use std::sync::Arc;

/// Pieces that share an fsync.
const GROUP_PIECES: usize = 16;

/// Points with their new payloads, and the memory that the texts hold.
struct Changed {
    points: Vec<(PointId, Box<str>)>,
    /// The first of the ids that no point has.
    missing: Option<PointId>,
    _memory: Vec<Reservation>,
}

impl Writer {
    /// Changes the payloads of the points that exist, durably. Returns the first id that no point has.
    pub(crate) fn change_payloads(
        &mut self,
        collection: &Arc<Collection>,
        ids: &[PointId],
        change: &PayloadChange,
        sequence: u64,
    ) -> Result<Option<PointId>> {
        self.catch_up(collection)?;
        let (mut from, mut most, mut pieces) = (0, REWRITE_POINTS, 0);
        let mut missing = None;
        while from < ids.len() {
            let piece = &ids[from..(from + most).min(ids.len())];
            match changed(&self.shared, collection, piece, change) {
                // Big payloads: fewer at a time may fit.
                Err(error) if error.kind().is_memory() && piece.len() > 1 => most = piece.len() / 2,
                changed => {
                    let changed = changed?;
                    self.log_payloads(collection, &changed.points, sequence)?;
                    missing = missing.or(changed.missing);
                    from += piece.len();
                    pieces += 1;
                    if pieces % GROUP_PIECES == 0 {
                        self.flush_checked()?;
                        self.keep_bounds();
                    }
                }
            }
        }
        self.flush_checked().map(|()| missing)
    }

    /// Logs new payloads in records of a bounded size. Memory for them is promised first, so that
    /// nothing that was made durable can fail to fit.
    fn log_payloads(
        &mut self,
        collection: &Arc<Collection>,
        points: &[(PointId, Box<str>)],
        sequence: u64,
    ) -> Result<()> {
        let bytes = |(_, text): &(PointId, Box<str>)| 17 + 4 + text.len();
        let mut left = points;
        while !left.is_empty() {
            let (mut count, mut sum) = (1, bytes(&left[0]));
            while count < left.len() && sum + bytes(&left[count]) <= RECORD_BYTES {
                sum += bytes(&left[count]);
                count += 1;
            }
            let (now, later) = left.split_at(count);
            left = later;
            let memory = self.promise_patches(count)?;
            self.record.clear();
            let texts = op::encode_payloads(&mut self.record, sequence, collection.number, now);
            let record = self.log.append(&self.record)?;
            let place =
                |(at, (_, text)): (&u32, &(PointId, Box<str>))| PayloadAt { record, at: *at, len: text.len() as u32 };
            self.pending.push(Pending::Payloads {
                collection: collection.clone(),
                ids: now.iter().map(|(id, _)| *id).collect(),
                payloads: texts.iter().zip(now).map(place).collect(),
                memory,
            });
        }
        Ok(())
    }

    /// Promises memory for changed payloads; where there is none, lets the background write some out, or new points.
    fn promise_patches(&mut self, points: usize) -> Result<Reservation> {
        loop {
            let before = self.shared.sealed.count();
            match self.shared.promise_patches(points) {
                Err(error) if error.kind().is_memory() => {
                    self.flush();
                    if !self.shared.fold_largest() && !self.shared.freeze_largest()? && !self.shared.has_waiting() {
                        return Err(error);
                    }
                    self.shared.seal_or_wait(before)?;
                }
                promised => return promised,
            }
        }
    }
}

/// The points that exist and whose payload the change makes another one.
fn changed(shared: &Shared, collection: &Collection, ids: &[PointId], change: &PayloadChange) -> Result<Changed> {
    let payload = match change {
        PayloadChange::Overwrite(_) | PayloadChange::Clear => PayloadParts::None,
        PayloadChange::Merge { .. } | PayloadChange::DeleteKeys(_) => PayloadParts::All,
    };
    let mut held = read::get(shared, collection, ids, &Parts { payload, ..Parts::default() })?;
    let mut memory = shared.accounts.queries.try_reserve(0)?;
    let added = match change {
        PayloadChange::Overwrite(text) | PayloadChange::Merge { keys: text, .. } => text.len(),
        PayloadChange::DeleteKeys(_) | PayloadChange::Clear => 0,
    };
    let most = payload_max(shared.budget.limit());
    let missing = read::missing(ids, &held.value);
    let mut points = Vec::with_capacity(held.value.len());
    for record in held.value {
        let stored = record.payload.unwrap_or_default();
        memory.grow((stored.len() + added) as u64)?;
        let text = payload::change(&stored, change)?;
        // One that was written under a larger budget may shrink.
        if text.len() > most.max(stored.len()) {
            return Err(Error::too_large(format!(
                "the payload of point {} would have {} bytes; at most {most} are allowed under this budget",
                record.id,
                text.len()
            )));
        }
        points.push((record.id, text));
    }
    held.memory.push(memory);
    Ok(Changed { points, missing, _memory: held.memory })
}

/// Applies a record again. Where the memory for changes fills up, they are written out at once, so that
/// replay fits a smaller budget than the one that wrote the log.
pub(crate) fn replay(
    shared: &Shared,
    collection: &Collection,
    ids: &[PointId],
    texts: &[(u32, u32)],
    record: Position,
) -> Result<()> {
    for (ids, texts) in ids.chunks(REWRITE_POINTS).zip(texts.chunks(REWRITE_POINTS)) {
        let mut memory = loop {
            match shared.promise_patches(ids.len()) {
                Err(error) if error.kind().is_memory() => {
                    if !shared.fold_largest() && !shared.freeze_largest()? && !shared.has_waiting() {
                        return Err(error);
                    }
                    while background::seal_one(shared)? {}
                }
                promised => break promised?,
            }
        };
        let payloads: Vec<_> = texts.iter().map(|(at, len)| PayloadAt { record, at: *at, len: *len }).collect();
        collection.apply_payloads(&shared.pages, ids, &payloads, &mut memory)?;
    }
    Ok(())
}
