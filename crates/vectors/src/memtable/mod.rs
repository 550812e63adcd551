//! The newest points of a collection, in memory, until they are flushed.
//!
//! ```text
//!   slot      0    1    2    3  ...       appended, and never changed
//!   ids       7    9    7    4            a later slot of the same id kills the earlier one
//!   previous  -    -    0    -            the slot of that id before
//!   payload   (log position, offset, length): the text stays in the log
//!   column    chunks of 32 vectors, f32 of any datatype | slot of each vector | vector of each slot
//!
//!   Moment    slots 0 to n, who of them is dead, whose payload is another one      what a reader keeps of it
//! ```
//!
//! Whoever reads does so at a moment: what is appended, dies or is given another payload later does not show.
//!
//! Every byte is reserved before it is used; the formula is [`Memtable::bytes_for`].

pub(crate) mod delete_bitmap;
pub(crate) mod fields;
pub(crate) mod moment;
pub(crate) mod patches;
pub(crate) mod top;

use crate::api::catalog_cost::HeldConfig;
use crate::api::{Batch, VectorConfig};
use crate::lock;
use crate::memtable::delete_bitmap::DeleteBitmap;
use crate::memtable::fields::BatchFields;
use crate::memtable::moment::Moment;
use crate::memtable::patches::{PATCH_BYTES, PatchMemtable};
use crate::payload::log::PayloadAt;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{PointId, Result};
use ramekin_fields::{FieldMemtable, Path, Schema};
use ramekin_log::Lsn;
use ramekin_memory::{Account, Reservation, allocator_purge};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Vectors of a chunk.
const CHUNK: usize = 32;
/// Bytes of a slot besides its vectors: id, payload place, table, the slot before, and the slack of doubling lists.
const SLOT_BYTES: usize = 120;
/// Bytes of a vector besides its floats.
const VECTOR_BYTES: usize = 16;
/// A column besides its name and its vectors.
const COLUMN_BYTES: usize = 320;
/// A part of so many bytes goes back to the kernel at once when it ends.
const PURGE_FROM: u64 = 1 << 20;
/// Bytes by which the reservation moves.
const STEP: u64 = 64 << 10;
/// Ids that are looked up under one lock.
const STEP_IDS: usize = 1024;

/// Bytes of a point that has vectors of these dimensions.
pub(crate) fn point_bytes(dims: impl Iterator<Item = usize>) -> usize {
    SLOT_BYTES + dims.map(vector_bytes).sum::<usize>()
}

fn vector_bytes(dim: usize) -> usize {
    dim * 4 + VECTOR_BYTES
}

pub(crate) struct Memtable {
    /// Of the collection when it was begun.
    config: Arc<HeldConfig>,
    inner: Ranked<RwLock<Inner>>,
    /// What its points take, and those that are on their way. Apart from them: more of it may have to be waited for.
    reserved: Mutex<Reservation>,
    /// Position of the first record whose effects stand here, or in deletes made meanwhile; [`CLEAN`]: none.
    from: AtomicU64,
}

/// Position of a memtable that no record has touched.
pub(crate) const CLEAN: Lsn = Lsn::MAX;

pub(crate) struct Inner {
    ids: Vec<PointId>,
    /// The last slot of each id, alive or dead.
    table: HashTable<u32>,
    /// Of each slot the one that its id had before; [`NONE`]: there was none.
    previous: Vec<u32>,
    dead: DeleteBitmap,
    payloads: Vec<PayloadAt>,
    changed: PatchMemtable,
    columns: BTreeMap<String, ColumnData>,
    /// Of each field that has an index what the points hold; beside the bytes of the points.
    fields: Vec<FieldMemtable>,
    fields_memory: Reservation,
    /// How often a field got an index, or lost it.
    fields_set: u64,
    /// Some point's fields found no memory.
    is_short: bool,
    /// Bytes of payloads, which stand in the log.
    payload_bytes: u64,
    bytes: u64,
    /// Bytes reserved for points that are on their way through the log.
    promised: u64,
    /// Kept for payloads that changed since the memtable became immutable: where the flush has read the old one
    /// already, the change becomes a patch of the segment.
    owed: Option<Reservation>,
    seqno: u64,
}

pub(crate) struct ColumnData {
    pub(crate) dim: usize,
    /// Its vectors are brought to length 1 only where they are scored.
    is_normalised_late: bool,
    chunks: Vec<Box<[f32]>>,
    slot_of: Vec<u32>,
    vector_of: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl ColumnData {
    fn new(config: &VectorConfig) -> Self {
        Self {
            dim: config.dim,
            is_normalised_late: config.is_normalised_late(),
            chunks: Vec::new(),
            slot_of: Vec::new(),
            vector_of: Vec::new(),
        }
    }

    fn vector(&self, index: u32) -> &[f32] {
        let at = (index as usize % CHUNK) * self.dim;
        &self.chunks[index as usize / CHUNK][at..at + self.dim]
    }

    fn push(&mut self, slot: u32, vector: &[f32]) {
        let index = self.slot_of.len();
        if index.is_multiple_of(CHUNK) {
            self.chunks.push(vec![0.0; CHUNK * self.dim].into_boxed_slice());
        }
        let at = (index % CHUNK) * self.dim;
        self.chunks[index / CHUNK][at..at + self.dim].copy_from_slice(vector);
        self.slot_of.push(slot);
        self.vector_of.resize(slot as usize, NONE);
        self.vector_of.push(index as u32);
    }

    /// The vector of a slot, if the point has one under this name.
    pub(crate) fn of_slot(&self, slot: u32) -> Option<&[f32]> {
        self.vector_of.get(slot as usize).filter(|index| **index != NONE).map(|index| self.vector(*index))
    }

    /// Slots that have a vector here, in order.
    pub(crate) fn slots(&self) -> &[u32] {
        &self.slot_of
    }
}

impl Memtable {
    /// Takes next to nothing until points are promised to it: most collections of a store hold none.
    pub(crate) fn new(config: Arc<HeldConfig>, account: &Account) -> Result<Self> {
        let inner = Inner {
            ids: Vec::new(),
            table: HashTable::new(),
            previous: Vec::new(),
            dead: DeleteBitmap::default(),
            payloads: Vec::new(),
            changed: PatchMemtable::default(),
            columns: BTreeMap::new(),
            fields: config
                .indexes
                .iter()
                .map(|(path, field)| FieldMemtable::new(path.clone(), field.schema.clone(), 0))
                .collect(),
            fields_memory: account.try_reserve(0)?,
            fields_set: 0,
            is_short: false,
            payload_bytes: 0,
            bytes: 0,
            promised: 0,
            owed: None,
            seqno: 0,
        };
        let reserved = Mutex::new(account.try_reserve(0)?);
        Ok(Self { config, inner: Ranked::rw(&lock::MEMTABLE, inner), reserved, from: AtomicU64::new(CLEAN) })
    }

    /// Bytes that the points of a batch take here; an open chunk a column comes on top, once.
    pub(crate) fn bytes_for(batch: &Batch) -> u64 {
        let columns = batch.columns.iter().map(|column| (column.present.len() * vector_bytes(column.dim)) as u64);
        (batch.ids.len() * SLOT_BYTES) as u64 + columns.sum::<u64>()
    }

    /// Reserves what points of this many bytes will take; only then may they be logged and inserted. Only the writer promises.
    pub(crate) fn promise(&self, bytes: u64) -> Result<()> {
        let column = |(name, vector): (&String, &VectorConfig)| CHUNK * vector.dim * 4 + name.len() + COLUMN_BYTES;
        let open: usize = self.config.vectors.iter().map(column).sum();
        let held = {
            let inner = self.inner.read();
            inner.bytes + inner.promised
        };
        let wanted = held + bytes + open as u64;
        let mut reserved = self.reserved.lock();
        if wanted > reserved.bytes() {
            reserved.resize(wanted.next_multiple_of(STEP))?;
        }
        let mut inner = self.inner.write();
        if inner.columns.is_empty() {
            let column = |(name, vector): (&String, &VectorConfig)| (name.clone(), ColumnData::new(vector));
            inner.columns = self.config.vectors.iter().map(column).collect();
        }
        inner.promised += bytes;
        Ok(())
    }

    /// Takes back a promise whose points will not come.
    pub(crate) fn forget(&self, bytes: u64) {
        let mut inner = self.inner.write();
        inner.promised = inner.promised.saturating_sub(bytes);
    }

    /// Notes that the effects of the record at `position` are kept by this part.
    pub(crate) fn touch(&self, lsn: Lsn) {
        self.from.fetch_min(lsn, Ordering::SeqCst);
    }

    pub(crate) fn from(&self) -> Lsn {
        self.from.load(Ordering::SeqCst)
    }

    /// Adds the points of a batch, for which memory was promised. An id that stands here already is replaced; `deaths` pays for
    /// that, see [`DeleteBitmap::set`].
    pub(crate) fn insert(
        &self,
        batch: &Batch,
        payloads: impl Fn(usize) -> PayloadAt,
        fields: Option<BatchFields>,
        seqno: u64,
        deaths: &mut Reservation,
    ) {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let bytes = Self::bytes_for(batch);
        inner.bytes += bytes;
        inner.promised = inner.promised.saturating_sub(bytes);
        inner.seqno = seqno;
        inner.add_fields(batch.ids.len(), fields);
        let mut cursors = vec![0usize; batch.columns.len()];
        for (point, id) in batch.ids.iter().enumerate() {
            let slot = inner.push(*id, payloads(point), deaths);
            for (column, cursor) in batch.columns.iter().zip(&mut cursors) {
                if column.present.get(*cursor) == Some(&(point as u32)) {
                    let vector = &column.data[*cursor * column.dim..(*cursor + 1) * column.dim];
                    if let Some(data) = inner.columns.get_mut(&column.name) {
                        data.push(slot, vector);
                    }
                    *cursor += 1;
                }
            }
        }
    }

    /// A field has an index from now on, or has none. Points that are here already are asked by their payloads, and more
    /// than a few of them are written out soon.
    pub(crate) fn set_field(&self, path: &Path, schema: Option<&Arc<Schema>>) {
        let mut inner = self.inner.write();
        let slots = inner.slots();
        inner.fields_set += 1;
        inner.fields.retain(|field| field.path() != path);
        if let Some(schema) = schema {
            inner.fields.push(FieldMemtable::new(path.clone(), schema.clone(), slots));
            inner.is_short |= slots > 0;
        }
    }

    /// Gives points other payloads: takes from `changes` those of points that are alive here. `memory` holds
    /// [`PATCH_BYTES`] for each change. `is_immutable`: half of that is kept for the patch that it becomes.
    pub(crate) fn set_payloads(
        &self,
        changes: &mut [Option<(PointId, PayloadAt)>],
        is_immutable: bool,
        memory: &mut Reservation,
    ) -> Result<()> {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let mut own = Vec::new();
        for change in changes.iter_mut() {
            let Some((id, payload)) = *change else { continue };
            if let Some(slot) = inner.find(id) {
                own.push((slot, payload));
                *change = None;
            }
        }
        if own.is_empty() {
            return Ok(());
        }
        for (slot, payload) in &own {
            inner.payload_bytes += u64::from(payload.len);
            inner.fields.iter_mut().for_each(|field| field.forget(*slot));
        }
        let mut taken = memory.split(own.len() as u64 * PATCH_BYTES);
        if is_immutable {
            let kept = taken.split(taken.bytes() / 2);
            match &mut inner.owed {
                Some(owed) => owed.join(kept)?,
                None => inner.owed = Some(kept),
            }
        }
        inner.changed = inner.changed.with(own, &mut taken);
        Ok(())
    }

    /// Keeps of slots that an index does not know whether their payloads have a value for it, if they are still those.
    pub(crate) fn count_held(
        &self,
        (path, schema): (&Path, &Schema),
        slots: impl Iterator<Item = (u32, PayloadAt, bool)>,
    ) {
        let mut inner = self.inner.write();
        let Inner { fields, fields_memory, payloads, changed, .. } = &mut *inner;
        if let Some(own) = fields.iter_mut().find(|own| own.path() == path && **own.schema() == *schema) {
            let now = |slot: u32| changed.get(slot).unwrap_or(payloads[slot as usize]);
            let is_same = |(slot, at, _): &(u32, PayloadAt, bool)| now(*slot) == *at;
            slots.filter(is_same).for_each(|(slot, _, has_value)| own.count(slot, has_value, fields_memory));
        }
    }

    /// Memory for the changes since the memtable became immutable.
    pub(crate) fn take_owed(&self) -> Option<Reservation> {
        self.inner.write().owed.take()
    }

    /// Marks points dead. Reads wait only where one of them is alive here: most parts hold none of a batch. Only the writer
    /// adds and kills, so who was not here when it looked is not here after.
    pub(crate) fn kill(&self, ids: &[PointId], deaths: &mut Reservation) {
        for ids in ids.chunks(STEP_IDS) {
            let here: Vec<u32> = {
                let inner = self.inner.read();
                ids.iter().filter_map(|id| inner.find(*id)).collect()
            };
            if !here.is_empty() {
                let mut inner = self.inner.write();
                here.into_iter().for_each(|slot| _ = inner.dead.set(slot, deaths));
            }
        }
    }

    /// Of so many points that may die here, the bytes of chunks that their deaths may copy.
    pub(crate) fn deaths_bytes(&self, points: usize) -> u64 {
        let slots = self.inner.read().slots() + points;
        DeleteBitmap::chunks(slots).min(points as u64 * 2) * crate::memtable::delete_bitmap::CHUNK_BYTES
    }

    /// As it is now.
    pub(crate) fn moment(&self) -> Moment {
        self.inner.read().moment()
    }

    pub(crate) fn read(&self) -> Guard<RwLockReadGuard<'_, Inner>> {
        self.inner.read()
    }
}

impl Drop for Memtable {
    /// Many small blocks go at one time: the kernel has them back before their reservation ends.
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let held = inner.bytes;
        (inner.ids, inner.payloads, inner.previous) = Default::default();
        (inner.table, inner.columns, inner.fields) = Default::default();
        if held >= PURGE_FROM {
            allocator_purge();
        }
    }
}

impl Inner {
    fn push(&mut self, id: PointId, payload: PayloadAt, deaths: &mut Reservation) -> u32 {
        let (slot, ids) = (self.ids.len() as u32, &self.ids);
        let is_it = |own: &u32| ids[*own as usize] == id;
        let before = match self.table.entry(id.hash64(), is_it, |own| ids[*own as usize].hash64()) {
            Entry::Occupied(mut last) => std::mem::replace(last.get_mut(), slot),
            Entry::Vacant(place) => {
                place.insert(slot);
                NONE
            }
        };
        if before != NONE {
            self.dead.set(before, deaths);
        }
        self.previous.push(before);
        self.ids.push(id);
        self.payloads.push(payload);
        self.payload_bytes += u64::from(payload.len);
        slot
    }

    /// Adds what the next points hold under the fields; where that is not known, they are asked by their payloads.
    fn add_fields(&mut self, points: usize, fields: Option<BatchFields>) {
        if self.fields.is_empty() {
            return;
        }
        let mut known = Vec::new();
        let mut is_short = true;
        if let Some(batch) = fields
            && self.fields_memory.join(batch.memory).is_ok()
        {
            (known, is_short) = (batch.fields, batch.is_short);
        }
        self.is_short |= is_short;
        for field in &mut self.fields {
            let own = known.iter_mut().find(|known| known.path == *field.path() && known.schema == *field.schema());
            let mut values = own.map(|own| std::mem::take(&mut own.values)).unwrap_or_default().into_iter();
            for _ in 0..points {
                self.is_short |= !field.push(values.next().flatten(), &mut self.fields_memory);
            }
        }
    }

    /// The live slot of an id.
    pub(crate) fn find(&self, id: PointId) -> Option<u32> {
        self.last(id).filter(|slot| !self.dead.get(*slot))
    }

    fn last(&self, id: PointId) -> Option<u32> {
        self.table.find(id.hash64(), |slot| self.ids[*slot as usize] == id).copied()
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { slots: self.ids.len() as u32, dead: self.dead.clone(), changed: self.changed.clone() }
    }

    /// Slots, dead ones included.
    pub(crate) fn slots(&self) -> usize {
        self.ids.len()
    }

    /// Bytes in use and promised.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.promised
    }

    /// The fields that have an index.
    pub(crate) fn fields(&self) -> &[FieldMemtable] {
        &self.fields
    }

    /// Another number after a field has got an index, or has lost it.
    pub(crate) fn fields_set(&self) -> u64 {
        self.fields_set
    }

    /// Whether what some points hold under a field is not known, since there was no memory for it.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Bytes of payloads, those that were replaced included.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Number of the newest operation in here.
    pub(crate) fn seqno(&self) -> u64 {
        self.seqno
    }

    pub(crate) fn id(&self, slot: u32) -> PointId {
        self.ids[slot as usize]
    }

    /// The payload of a slot, as it is now.
    pub(crate) fn payload(&self, slot: u32) -> PayloadAt {
        self.changed.get(slot).unwrap_or(self.payloads[slot as usize])
    }

    pub(crate) fn column(&self, name: &str) -> Option<&ColumnData> {
        self.columns.get(name)
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, &ColumnData)> {
        self.columns.iter().map(|(name, column)| (name.as_str(), column))
    }
}
