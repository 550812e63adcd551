//! Changes of vectors that depend on what is stored: each becomes a whole upsert of the points it
//! names, so that replay never has to read anything else. Changes of payloads: `payload_write.rs`.

use crate::api::{Batch, Column, Parts, PayloadParts, Record, VectorParts};
use crate::collection::Collection;
use crate::inner::StoreInner;
use crate::query::read;
use crate::write::change::POINT_BYTES;
use crate::write::staged::{self, Staged};
use ramekin_base::{PointId, Result};
use ramekin_memory::Reservation;
use std::collections::HashMap;
use std::ops::Range;

/// A change of the vectors of points.
pub(crate) enum VectorChange<'a> {
    /// Replaces those of the batch, which has the same points in the same order.
    Replace(&'a Batch),
    /// Removes those of these names.
    Delete(&'a [String]),
}

/// Points as they will be.
pub(crate) struct Resolved {
    pub(crate) batch: Batch,
    /// Covers the batch.
    pub(crate) memory: Reservation,
    /// The first of the ids that no point has.
    pub(crate) missing: Option<PointId>,
}

/// The points of `range` as they will be, made of what changes `before` left.
pub(crate) fn resolve(
    shared: &StoreInner,
    collection: &Collection,
    before: &Staged,
    (ids, range): (&[PointId], Range<usize>),
    change: &VectorChange<'_>,
) -> Result<Resolved> {
    let ids = &ids[range.clone()];
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    let held = staged::get(&shared.env, collection, before, ids, &parts)?;
    let missing = read::missing(ids, &held.value);
    // What is in the records stands in the batch too before they go, and a new vector in a record besides.
    let stored: usize = held.value.iter().map(bytes_of).sum();
    let new = match change {
        VectorChange::Replace(batch) => batch.bytes_of(range.clone()),
        VectorChange::Delete(_) => 0,
    };
    let mut memory = shared.accounts.queries.try_reserve((stored + 2 * new) as u64)?;
    let mut records: HashMap<PointId, Record> = held.value.into_iter().map(|record| (record.id, record)).collect();
    match change {
        VectorChange::Replace(batch) => replace_vectors(batch, range.start, ids, &mut records),
        VectorChange::Delete(names) => records.values_mut().for_each(|record| {
            record.vectors.get_or_insert_default().retain(|(name, _)| !names.contains(name));
        }),
    }
    let batch = batch(ids, records);
    memory.shrink(memory.bytes().saturating_sub(batch.bytes() as u64));
    Ok(Resolved { batch, memory, missing })
}

/// Bytes of a point of a batch made of this record.
fn bytes_of(record: &Record) -> usize {
    let vectors = record.vectors.iter().flatten().map(|(_, vector)| vector.len() * 4 + 4).sum::<usize>();
    POINT_BYTES + record.payload.as_ref().map_or(0, String::len) + vectors
}

/// `ids` are those of the batch from `from` on.
fn replace_vectors(batch: &Batch, from: usize, ids: &[PointId], records: &mut HashMap<PointId, Record>) {
    for column in &batch.columns {
        for (vector, point) in column.data.chunks_exact(column.dim).zip(&column.present) {
            let id = (*point as usize).checked_sub(from).and_then(|at| ids.get(at));
            if let Some(record) = id.and_then(|id| records.get_mut(id)) {
                let vectors = record.vectors.get_or_insert_default();
                vectors.retain(|(name, _)| *name != column.name);
                vectors.push((column.name.clone(), vector.to_vec()));
            }
        }
    }
}

/// A batch of whole points, each id once.
fn batch(ids: &[PointId], mut records: HashMap<PointId, Record>) -> Batch {
    let mut batch = Batch::default();
    for id in ids {
        let Some(record) = records.remove(id) else { continue };
        let point = batch.ids.len() as u32;
        batch.ids.push(*id);
        let payload = record.payload.unwrap_or_default();
        batch.payloads.push(if payload == "{}" { "".into() } else { payload.into() });
        for (name, vector) in record.vectors.unwrap_or_default() {
            let at = batch.columns.iter().position(|column| column.name == name).unwrap_or_else(|| {
                let has_it = |record: &&Record| record.vectors.iter().flatten().any(|(other, _)| *other == name);
                let (points, dim) = (1 + records.values().filter(has_it).count(), vector.len());
                let (present, data) = (Vec::with_capacity(points), Vec::with_capacity(points * dim));
                batch.columns.push(Column { name, dim, present, data });
                batch.columns.len() - 1
            });
            batch.columns[at].present.push(point);
            batch.columns[at].data.extend(vector);
        }
    }
    batch
}
