//! What the fields that have an index hold in the points of a batch, on its way into the newest points.
//!
//! ```text
//!   payloads of a batch ─► keys of each indexed field ─► the part's memtables of these fields (`fields/memtable.rs`)
//! ```
//!
//! This comes beside the points: where it finds no memory they are taken all the same, are asked by their payloads, and the
//! part is written out the sooner.

use crate::api::Batch;
use crate::memtable::Memtable;
use crate::payload;
use ramekin_fields::{FieldMemtable, FieldValues, Path, Schema};
use ramekin_memory::{Account, Reservation};
use std::sync::Arc;

/// A point's place in a list of what it holds.
const PLACE_BYTES: u64 = size_of::<Option<FieldValues>>() as u64;
/// What a field of a part may hold, or as much as the part's points where that is more.
const FIELD_BYTES: u64 = 1 << 20;

/// What the points of a batch hold under the fields that a part has.
pub(crate) struct BatchFields {
    pub(crate) fields: Vec<BatchField>,
    /// Of what the values keep.
    pub(crate) memory: Reservation,
    pub(crate) is_short: bool,
}

pub(crate) struct BatchField {
    pub(crate) path: Path,
    pub(crate) schema: Arc<Schema>,
    /// Of each point; `None`: it found no memory.
    pub(crate) values: Vec<Option<FieldValues>>,
}

impl BatchFields {
    /// `None`: the part has no such fields, or there is no memory at all.
    pub(crate) fn read(part: &Memtable, batch: &Batch, account: &Account) -> Option<Self> {
        // Of each field what it is, and what it may still take: a field of long texts takes none of that from others.
        let (kinds, mut left): (Vec<(Path, Arc<Schema>)>, Vec<u64>) = {
            let inner = part.read();
            let most = inner.bytes().max(FIELD_BYTES);
            let fields = inner.fields().iter();
            let kind = |field: &FieldMemtable| (field.path().clone(), field.schema().clone());
            fields.map(|field| (kind(field), most.saturating_sub(field.bytes()))).unzip()
        };
        if kinds.is_empty() {
            return None;
        }
        let places = (batch.ids.len() * kinds.len()) as u64 * PLACE_BYTES;
        let (_places, mut parsed) = (account.try_reserve(places).ok()?, account.try_reserve(0).ok()?);
        let keys: Vec<&str> = kinds.iter().map(|(path, _)| path.first()).collect();
        let values = |_: &_| Vec::with_capacity(batch.ids.len());
        let mut read = Self { fields: Vec::new(), memory: account.try_reserve(0).ok()?, is_short: false };
        let mut values: Vec<Vec<_>> = kinds.iter().map(values).collect();
        for point in 0..batch.ids.len() {
            let text = batch.payloads.get(point).map_or("", |text| text);
            let payload = payload::parse_keys(text, &keys, &mut parsed).ok();
            for (((path, schema), left), values) in kinds.iter().zip(&mut left).zip(&mut values) {
                let before = read.memory.bytes();
                let made = payload.as_ref().filter(|_| *left > 0);
                let made = made.and_then(|payload| FieldMemtable::values(path, schema, payload, &mut read.memory).ok());
                // What is missing once is missing from there on: the rest of the part is asked by payloads.
                *left = if made.is_some() { left.saturating_sub(read.memory.bytes() - before) } else { 0 };
                read.is_short |= made.is_none();
                values.push(made);
            }
        }
        let field = |((path, schema), values)| BatchField { path, schema, values };
        read.fields = kinds.into_iter().zip(values).map(field).collect();
        Some(read)
    }
}
