//! Changes of vectors that depend on what is stored: each becomes a whole upsert of the points it
//! names, so that replay never has to read anything else. Changes of payloads: `payload_write.rs`.

use crate::api::{Batch, Column, Parts, PayloadParts, Record, VectorParts};
use crate::collection::Collection;
use crate::read;
use crate::shared::Shared;
use ramekin_base::{PointId, Result};
use std::collections::HashMap;
use std::ops::Range;

/// A change of the vectors of points.
pub(crate) enum VectorChange {
    /// Replaces those of the batch, which has the same points in the same order.
    Replace(Batch),
    /// Removes those of these names.
    Delete(Vec<String>),
}

/// The points of `range` as they will be, and the first of their ids that no point has.
pub(crate) fn resolve(
    shared: &Shared,
    collection: &Collection,
    ids: &[PointId],
    change: &VectorChange,
    range: Range<usize>,
) -> Result<(Batch, Option<PointId>)> {
    let ids = &ids[range.clone()];
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    let held = read::get(shared, collection, ids, &parts)?;
    let missing = read::missing(ids, &held.value);
    let mut records: HashMap<PointId, Record> = held.value.into_iter().map(|record| (record.id, record)).collect();
    match change {
        VectorChange::Replace(batch) => replace_vectors(batch, range.start, ids, &mut records),
        VectorChange::Delete(names) => records.values_mut().for_each(|record| {
            record.vectors.get_or_insert_default().retain(|(name, _)| !names.contains(name));
        }),
    }
    Ok((batch(ids, records), missing))
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
                batch.columns.push(Column { name, dim: vector.len(), present: Vec::new(), data: Vec::new() });
                batch.columns.len() - 1
            });
            batch.columns[at].present.push(point);
            batch.columns[at].data.extend(vector);
        }
    }
    batch
}
