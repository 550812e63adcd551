//! The newest points of a collection, in memory, until they are flushed.
//!
//! ```text
//!   slot     0    1    2    3  ...        appended; only its payload's place ever changes
//!   ids      7    9    7    4             a later slot of the same id kills the earlier one
//!   dead     x    .    .    .
//!   payload  (log position, offset, length): the text stays in the log
//!   column   chunks of 32 vectors, f32 of any datatype | slot of each vector | vector of each slot
//! ```
//!
//! Every byte is reserved before it is used; the formula is [`Memtable::bytes_for`].

use crate::api::{Batch, VectorConfig};
use crate::bits::newly_set;
use crate::catalog_cost::HeldConfig;
use crate::lock;
use crate::memtable_fields::BatchFields;
use crate::patch_tree::PATCH_BYTES;
use crate::top::TopK;
use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{PointId, Result};
use ramekin_fields::{FieldMemtable, Path, Schema};
use ramekin_log::Lsn;
use ramekin_memory::{Account, Reservation, allocator_purge};
use ramekin_vecmath::{Metric, divide_by_lengths, score_block};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Vectors of a chunk.
const CHUNK: usize = 32;
/// Bytes of a slot besides its vectors: id, payload place, table, and the slack of doubling lists.
const SLOT_BYTES: usize = 112;
/// Bytes of a vector besides its floats.
const VECTOR_BYTES: usize = 16;
/// A column besides its name and its vectors.
const COLUMN_BYTES: usize = 320;
/// A part of so many bytes goes back to the kernel at once when it ends.
const PURGE_FROM: u64 = 1 << 20;
/// Bytes by which the reservation moves.
const STEP: u64 = 64 << 10;
/// Vectors that are scored under one lock: a write waits for no more of a scan.
const SCAN_BYTES: usize = 1 << 20;
/// Ids that are looked up under one lock.
const STEP_IDS: usize = 1024;

/// Bytes of a point that has vectors of these dimensions.
pub(crate) fn point_bytes(dims: impl Iterator<Item = usize>) -> usize {
    SLOT_BYTES + dims.map(vector_bytes).sum::<usize>()
}

fn vector_bytes(dim: usize) -> usize {
    dim * 4 + VECTOR_BYTES
}

/// Where a payload's text stands in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PayloadAt {
    pub(crate) record: Lsn,
    pub(crate) at: u32,
    /// 0: the point has no payload.
    pub(crate) len: u32,
}

pub(crate) struct Memtable {
    /// Parts of a collection are numbered as they are begun.
    generation: u64,
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
    table: HashTable<u32>,
    dead: Vec<u64>,
    dead_count: usize,
    payloads: Vec<PayloadAt>,
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
    pub(crate) fn new(generation: u64, config: Arc<HeldConfig>, account: &Account) -> Result<Self> {
        let inner = Inner {
            ids: Vec::new(),
            table: HashTable::new(),
            dead: Vec::new(),
            dead_count: 0,
            payloads: Vec::new(),
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
        Ok(Self {
            generation,
            config,
            inner: Ranked::rw(&lock::MEMTABLE, inner),
            reserved,
            from: AtomicU64::new(CLEAN),
        })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
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

    /// Adds the points of a batch, for which memory was promised. An id that stands here already is replaced.
    pub(crate) fn insert(
        &self,
        batch: &Batch,
        payloads: impl Fn(usize) -> PayloadAt,
        fields: Option<BatchFields>,
        seqno: u64,
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
            let slot = inner.push(*id, payloads(point));
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

    /// Gives a point another payload; true if it is alive here. `immutable`: memory to keep a patch's share of.
    pub(crate) fn set_payload(
        &self,
        id: PointId,
        payload: PayloadAt,
        immutable: Option<&mut Reservation>,
    ) -> Result<bool> {
        let mut inner = self.inner.write();
        let Some(slot) = inner.find(id) else { return Ok(false) };
        inner.payloads[slot as usize] = payload;
        inner.payload_bytes += u64::from(payload.len);
        inner.fields.iter_mut().for_each(|field| field.forget(slot));
        if let Some(memory) = immutable {
            let taken = memory.split(PATCH_BYTES);
            match &mut inner.owed {
                Some(owed) => owed.join(taken)?,
                None => inner.owed = Some(taken),
            }
        }
        Ok(true)
    }

    /// Keeps of slots that an index does not know whether their payloads have a value for it, if they are still those.
    pub(crate) fn count_held(
        &self,
        (path, schema): (&Path, &Schema),
        slots: impl Iterator<Item = (u32, PayloadAt, bool)>,
    ) {
        let mut inner = self.inner.write();
        let Inner { fields, fields_memory, payloads, .. } = &mut *inner;
        if let Some(own) = fields.iter_mut().find(|own| own.path() == path && **own.schema() == *schema) {
            let is_same = |(slot, at, _): &(u32, PayloadAt, bool)| payloads[*slot as usize] == *at;
            slots.filter(is_same).for_each(|(slot, _, has_value)| own.count(slot, has_value, fields_memory));
        }
    }

    /// Memory for the changes since the memtable became immutable.
    pub(crate) fn take_owed(&self) -> Option<Reservation> {
        self.inner.write().owed.take()
    }

    /// Marks points dead. Reads wait only where one of them is alive here: most parts hold none of a batch. Only the writer
    /// adds and kills, so who was not here when it looked is not here after.
    pub(crate) fn kill(&self, ids: &[PointId]) {
        for ids in ids.chunks(STEP_IDS) {
            let here: Vec<PointId> = {
                let inner = self.inner.read();
                ids.iter().copied().filter(|id| inner.find(*id).is_some()).collect()
            };
            if !here.is_empty() {
                let mut inner = self.inner.write();
                here.into_iter().for_each(|id| _ = inner.kill(id));
            }
        }
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
        (inner.ids, inner.payloads, inner.dead) = Default::default();
        (inner.table, inner.columns, inner.fields) = Default::default();
        if held >= PURGE_FROM {
            allocator_purge();
        }
    }
}

impl Inner {
    fn push(&mut self, id: PointId, payload: PayloadAt) -> u32 {
        self.kill(id);
        let slot = self.ids.len() as u32;
        self.ids.push(id);
        self.payloads.push(payload);
        self.payload_bytes += u64::from(payload.len);
        self.dead.resize(self.ids.len().div_ceil(64), 0);
        let ids = &self.ids;
        self.table.insert_unique(id.hash64(), slot, |slot| ids[*slot as usize].hash64());
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

    fn kill(&mut self, id: PointId) -> bool {
        let ids = &self.ids;
        match self.table.find_entry(id.hash64(), |slot| ids[*slot as usize] == id) {
            Ok(entry) => {
                let (slot, _) = entry.remove();
                self.dead[slot as usize / 64] |= 1 << (slot % 64);
                self.dead_count += 1;
                true
            }
            Err(_) => false,
        }
    }

    /// The live slot of an id.
    pub(crate) fn find(&self, id: PointId) -> Option<u32> {
        self.table.find(id.hash64(), |slot| self.ids[*slot as usize] == id).copied()
    }

    pub(crate) fn is_dead(&self, slot: u32) -> bool {
        self.dead[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    /// The live slots, 64 in a word.
    pub(crate) fn live_words(&self) -> impl Iterator<Item = u64> {
        let last = match self.ids.len() % 64 {
            0 => u64::MAX,
            rest => (1 << rest) - 1,
        };
        let words = self.dead.len();
        self.dead.iter().enumerate().map(move |(at, dead)| !dead & if at + 1 == words { last } else { u64::MAX })
    }

    /// Slots, dead ones included.
    pub(crate) fn slots(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn live(&self) -> usize {
        self.ids.len() - self.dead_count
    }

    /// Slots whose point was replaced or deleted.
    pub(crate) fn dead(&self) -> usize {
        self.dead_count
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

    pub(crate) fn payload(&self, slot: u32) -> PayloadAt {
        self.payloads[slot as usize]
    }

    /// Every slot's payload.
    pub(crate) fn payloads(&self) -> &[PayloadAt] {
        &self.payloads
    }

    pub(crate) fn column(&self, name: &str) -> Option<&ColumnData> {
        self.columns.get(name)
    }

    /// Live vectors under a name.
    pub(crate) fn live_vectors(&self, name: &str) -> u64 {
        let slots = self.columns.get(name).map_or(&[][..], ColumnData::slots);
        slots.iter().filter(|slot| !self.is_dead(**slot)).count() as u64
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, &ColumnData)> {
        self.columns.iter().map(|(name, column)| (name.as_str(), column))
    }

    /// The dead slots now, to be compared with later ones by [`Inner::died_since`].
    pub(crate) fn dead_words(&self) -> Vec<u64> {
        self.dead.clone()
    }

    pub(crate) fn died_since(&self, before: &[u64], each: impl FnMut(u32)) {
        newly_set(before, self.dead.iter().copied(), each);
    }

    /// Offers the live vectors of a column to `top` that may pass, from chunk `from` on, about [`SCAN_BYTES`] of them. Returns
    /// where to go on; `None`: those were the last.
    pub(crate) fn search(
        &self,
        name: &str,
        metric: Metric,
        query: &[f32],
        may_pass: &dyn Fn(u32) -> bool,
        from: usize,
        top: &mut TopK,
    ) -> Option<usize> {
        let column = self.columns.get(name)?;
        let mut scores = [0.0f32; CHUNK];
        let end = from + (SCAN_BYTES / (CHUNK * column.dim * 4)).max(1);
        for (index, chunk) in column.chunks.iter().enumerate().take(end).skip(from) {
            let slots = &column.slot_of[index * CHUNK..(index * CHUNK + CHUNK).min(column.slot_of.len())];
            let scores = &mut scores[..slots.len()];
            let vectors = &chunk[..slots.len() * column.dim];
            score_block(metric, query, vectors, column.dim, scores);
            if column.is_normalised_late {
                divide_by_lengths(vectors, column.dim, scores);
            }
            for (slot, score) in slots.iter().zip(scores.iter()) {
                if top.accepts(*score) && !self.is_dead(*slot) && may_pass(*slot) {
                    top.offer(*score, self.ids[*slot as usize]);
                }
            }
        }
        (end < column.chunks.len()).then_some(end)
    }

    /// The `limit` smallest live ids of slots that may pass and are not below `from`, ascending, with their slots.
    pub(crate) fn ids_from(
        &self,
        from: Option<PointId>,
        limit: usize,
        may_pass: &dyn Fn(u32) -> bool,
    ) -> Vec<(PointId, u32)> {
        let mut found: Vec<(PointId, u32)> = Vec::with_capacity(limit.min(self.ids.len()) + 1);
        for (slot, id) in self.ids.iter().enumerate() {
            if from.is_some_and(|from| *id < from) || self.is_dead(slot as u32) || !may_pass(slot as u32) {
                continue;
            }
            found.push((*id, slot as u32));
            // Keeping at most twice the limit bounds both memory and the work of sorting.
            if found.len() >= limit.saturating_mul(2).max(64) {
                found.select_nth_unstable(limit);
                found.truncate(limit);
            }
        }
        found.sort_unstable();
        found.truncate(limit);
        found
    }
}
