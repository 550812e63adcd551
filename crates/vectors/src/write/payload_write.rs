//! Changes of payloads, which touch no vector: set, overwrite, delete keys, clear.
//!
//! ```text
//!   ids ─ 64 at a time ─► stored payload ─► changed text ─► log ─► applied where each point stands:
//!         growing    the slot's place in the log is another one
//!         flushed     a patch of the segment: row ─► place in the log (see `patch_tree.rs`)
//! ```
//!
//! The log has the whole new payload, so replay reads nothing. The pieces of a change are made in `change.rs`.

use crate::api::{Parts, PayloadChange, PayloadParts};
use crate::collection::{Collection, Located};
use crate::inner::StoreInner;
use crate::memtable::patches::PATCH_BYTES;
use crate::payload::log::PayloadAt;
use crate::query::read;
use crate::write::change::REWRITE_POINTS;
use crate::write::staged::{self, Staged};
use crate::{background, payload};
use ramekin_base::limits::payload_max;
use ramekin_base::{Error, PointId, Result};
use ramekin_log::Lsn;
use ramekin_memory::Reservation;

/// Points with their new payloads, and the memory that the texts hold.
pub(crate) struct Changed {
    pub(crate) points: Vec<(PointId, Box<str>)>,
    /// The first of the ids that no point has.
    pub(crate) missing: Option<PointId>,
    pub(crate) memory: Vec<Reservation>,
}

/// The points that exist and whose payload the change makes another one.
pub(crate) fn changed(
    shared: &StoreInner,
    collection: &Collection,
    before: &Staged,
    ids: &[PointId],
    change: &PayloadChange,
) -> Result<Changed> {
    let payload = match change {
        PayloadChange::Overwrite(_) | PayloadChange::Clear => PayloadParts::None,
        PayloadChange::Merge { .. } | PayloadChange::DeleteKeys(_) => PayloadParts::All,
    };
    let mut held = staged::get(&shared.env, collection, before, ids, &Parts { payload, ..Parts::default() })?;
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
        let text = payload::change(&stored, change, &shared.accounts.queries)?;
        memory.grow(text.len().saturating_sub(stored.len() + added) as u64)?;
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
    Ok(Changed { points, missing, memory: held.memory })
}

/// Applies a record again. Where the memory for changes fills up, they are written out at once, so that
/// replay fits a smaller budget than the one that wrote the log.
pub(crate) fn replay(
    shared: &StoreInner,
    collection: &Collection,
    ids: &[PointId],
    texts: &[(u32, u32)],
    record: Lsn,
) -> Result<()> {
    for (ids, texts) in ids.chunks(REWRITE_POINTS).zip(texts.chunks(REWRITE_POINTS)) {
        let mut memory = loop {
            match shared.promise_patches(ids.len()) {
                Err(error) if error.kind().is_memory() => {
                    if !shared.compact_largest_patches() && !shared.rotate_largest()? && !shared.has_waiting() {
                        return Err(error);
                    }
                    if !background::flush_waiting(shared)? {
                        // They were in memory before, beside what is there now.
                        break shared.accounts.patches.try_reserve(ids.len() as u64 * PATCH_BYTES)?;
                    }
                }
                promised => break promised?,
            }
        };
        let payloads: Vec<_> = texts.iter().map(|(at, len)| PayloadAt { record, at: *at, len: *len }).collect();
        collection.apply_payloads(&shared.pages, ids, &payloads, &mut memory, Located::default())?;
    }
    Ok(())
}
