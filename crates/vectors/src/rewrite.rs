//! Changes of vectors that depend on what is stored: each becomes a whole upsert of the points it
//! names, so that replay never has to read anything else. Changes of payloads: `payload_write.rs`.

use crate::api::{Batch, Column, Parts, PayloadParts, Record, VectorParts, Write};
use crate::collection::Collection;
use crate::read;
use crate::shared::Shared;
use ramekin_base::{Error, PointId, Result};
use std::collections::HashMap;
use std::ops::Range;

/// The points that a change names.
pub(crate) fn ids(change: &Write) -> &[PointId] {
    match change {
        Write::UpdateVectors(batch) => &batch.ids,
        Write::DeleteVectors { ids, .. } | Write::Payload { ids, .. } | Write::Delete(ids) => ids,
        Write::Upsert(batch) => &batch.ids,
    }
}

/// The points of `range` as they will be, and the first of their ids that no point has.
pub(crate) fn resolve(
    shared: &Shared,
    collection: &Collection,
    change: &Write,
    range: Range<usize>,
) -> Result<(Batch, Option<PointId>)> {
    let ids = &ids(change)[range.clone()];
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    let held = read::get(shared, collection, ids, &parts)?;
    let missing = read::missing(ids, &held.value);
    let mut records: HashMap<PointId, Record> = held.value.into_iter().map(|record| (record.id, record)).collect();
    match change {
        Write::UpdateVectors(batch) => replace_vectors(batch, range, &mut records),
        Write::DeleteVectors { names, .. } => records.values_mut().for_each(|record| {
            record.vectors.get_or_insert_default().retain(|(name, _)| !names.contains(name));
        }),
        Write::Upsert(_) | Write::Delete(_) | Write::Payload { .. } => {
            return Err(Error::bug("a write that is no change of vectors was to be resolved"));
        }
    }
    Ok((batch(ids, records), missing))
}

fn replace_vectors(batch: &Batch, range: Range<usize>, records: &mut HashMap<PointId, Record>) {
    for column in &batch.columns {
        for (vector, point) in column.data.chunks_exact(column.dim).zip(&column.present) {
            let point = *point as usize;
            if !range.contains(&point) {
                continue;
            }
            if let Some(record) = records.get_mut(&batch.ids[point]) {
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
