//! What changes that wait for one commit have made of points, and what was stored of others that they name.
//!
//! ```text
//!   stored ─► change 1 ─► Staged ─► change 2 is made of that ─► ... ─► one commit for all
//! ```
//!
//! Of a point only what was written or fetched is kept; the rest is as it is stored.

use crate::api::{Batch, Held, NamedVectors, Parts, PayloadParts, Record, VectorParts};
use crate::collection::Collection;
use crate::query::env::QueryEnv;
use crate::query::read;
use crate::state::request::What;
use ramekin_base::{PointId, Result};
use ramekin_memory::Reservation;
use std::collections::HashMap;

/// Points by their ids; `None`: no point has it.
#[derive(Default)]
pub(crate) struct Staged {
    points: HashMap<PointId, Option<Record>>,
    memory: Vec<Reservation>,
}

/// What a point takes here beside its payload and vectors.
const ENTRY_BYTES: u64 = 2 * size_of::<(PointId, Option<Record>)>() as u64;

impl Staged {
    pub(crate) fn is_known(&self, id: &PointId) -> bool {
        self.points.contains_key(id)
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.iter().map(Reservation::bytes).sum()
    }

    /// Reads what is stored of points that changes will ask for, at one go, unless it is known.
    pub(crate) fn fetch(
        &mut self,
        env: &QueryEnv,
        collection: &Collection,
        ids: &[PointId],
        parts: &Parts,
    ) -> Result<()> {
        let ids: Vec<PointId> = ids.iter().copied().filter(|id| !self.is_known(id)).collect();
        self.memory.push(env.account.try_reserve(ids.len() as u64 * ENTRY_BYTES)?);
        let held = read::get(env, collection, &ids, parts)?;
        self.memory.extend(held.memory);
        self.points.extend(ids.into_iter().map(|id| (id, None)));
        self.points.extend(held.value.into_iter().map(|record| (record.id, Some(record))));
        Ok(())
    }

    /// Takes note of what a change does. It sees all points or, where there is no memory, none.
    pub(crate) fn stage(&mut self, env: &QueryEnv, what: &What) -> Result<()> {
        let bytes = match what {
            What::Delete(ids) => ids.len() as u64 * ENTRY_BYTES,
            What::Upserts(batches) => batches.iter().map(|batch| batch.staged_bytes()).sum(),
            What::Payloads(points) => points.iter().map(|(_, text)| text.len() as u64 + ENTRY_BYTES).sum(),
        };
        self.memory.push(env.account.try_reserve(bytes)?);
        match what {
            What::Delete(ids) => self.points.extend(ids.iter().map(|id| (*id, None))),
            What::Upserts(batches) => batches.iter().for_each(|batch| self.stage_batch(batch)),
            What::Payloads(points) => points.iter().for_each(|(id, text)| {
                let vectors = self.points.remove(id).flatten().and_then(|before| before.vectors);
                self.points
                    .insert(*id, Some(Record { id: *id, payload: Some(shown(text)), vectors, order_value: None }));
            }),
        }
        Ok(())
    }

    fn stage_batch(&mut self, batch: &Batch) {
        let record = |(at, id): (usize, &PointId)| {
            let payload = batch.payloads.get(at).map_or_else(|| shown(""), |text| shown(text));
            (*id, Some(Record { id: *id, payload: Some(payload), vectors: Some(Vec::new()), order_value: None }))
        };
        // Of an id that is named twice the last one counts.
        let mut records: Vec<_> = batch.ids.iter().enumerate().map(record).collect();
        for column in &batch.columns {
            for (vector, at) in column.data.chunks_exact(column.dim).zip(&column.present) {
                if let Some((_, Some(record))) = records.get_mut(*at as usize) {
                    record.vectors.get_or_insert_default().push((column.name.clone(), vector.to_vec()));
                }
            }
        }
        self.points.extend(records);
    }
}

/// A payload as records have it.
fn shown(text: &str) -> String {
    if text.is_empty() { "{}".to_owned() } else { text.to_owned() }
}

impl Batch {
    /// What its points take once they are staged.
    fn staged_bytes(&self) -> u64 {
        let names: usize = self.columns.iter().map(|column| column.present.len() * (column.name.len() + 48)).sum();
        (self.bytes() + names) as u64 + self.ids.len() as u64 * ENTRY_BYTES
    }
}

/// Points by id in the order asked, as the changes before left them; what is not there is left out.
pub(crate) fn get(
    env: &QueryEnv,
    collection: &Collection,
    staged: &Staged,
    ids: &[PointId],
    parts: &Parts,
) -> Result<Held<Vec<Record>>> {
    if staged.points.is_empty() {
        return read::get(env, collection, ids, parts);
    }
    let (no_payload, no_vectors) = (parts.payload == PayloadParts::None, parts.vectors == VectorParts::None);
    let lacks = |id: &PointId| match staged.points.get(id) {
        Some(Some(record)) => !no_vectors && record.vectors.is_none() || !no_payload && record.payload.is_none(),
        Some(None) => false,
        None => true,
    };
    let asked: Vec<PointId> = ids.iter().copied().filter(lacks).collect();
    let Held { value, memory } = read::get(env, collection, &asked, parts)?;
    let (mut read, mut own) = (value.into_iter().peekable(), env.account.try_reserve(0)?);
    let mut records = Vec::with_capacity(ids.len());
    for id in ids {
        let stored = if lacks(id) { read.next_if(|record| record.id == *id) } else { None };
        let Some(known) = staged.points.get(id) else {
            records.extend(stored);
            continue;
        };
        let Some(Record { payload, vectors, .. }) = known else { continue };
        let payload = if no_payload { None } else { payload.as_ref() };
        let vectors = if no_vectors { None } else { vectors.as_ref() };
        own.grow(bytes_of(payload, vectors))?;
        let stored = stored.map_or((None, None), |record| (record.payload, record.vectors));
        let (payload, vectors) = (payload.cloned().or(stored.0), vectors.cloned().or(stored.1));
        records.push(Record { id: *id, payload, vectors, order_value: None });
    }
    Ok(Held { value: records, memory: memory.into_iter().chain([own]).collect() })
}

fn bytes_of(payload: Option<&String>, vectors: Option<&NamedVectors>) -> u64 {
    let vectors = vectors.into_iter().flatten().map(|(name, vector)| name.len() + 48 + vector.len() * 4);
    ENTRY_BYTES + (payload.map_or(0, String::len) + vectors.sum::<usize>()) as u64
}
