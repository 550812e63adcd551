//! The newest points of a collection, in memory, until they are sealed.
//!
//! ```text
//!   slot     0    1    2    3  ...        appended; only its payload's place ever changes
//!   ids      7    9    7    4             a later slot of the same id kills the earlier one
//!   dead     x    .    .    .
//!   payload  (log position, offset, length): the text stays in the log
//!   column   chunks of 32 vectors, f32 of any datatype | slot of each vector | vector of each slot
//! ```
//!
//! Every byte is reserved before it is used; the formula is [`Growing::bytes_for`].

use crate::api::{Batch, CollectionConfig, VectorConfig};
use crate::bits::newly_set;
use crate::changes::PATCH_BYTES;
use crate::top::Top;
use hashbrown::HashTable;
use parking_lot::{RwLock, RwLockReadGuard};
use ramekin_base::{PointId, Result};
use ramekin_log::Position;
use ramekin_memory::{Account, Reservation, allocator_purge};
use ramekin_vecmath::{Metric, divide_by_lengths, score_block};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Vectors of a chunk.
const CHUNK: usize = 32;
/// Bytes of a slot besides its vectors: id, payload place, table, and the slack of doubling lists.
const SLOT_BYTES: usize = 112;
/// Bytes of a vector besides its floats.
const VECTOR_BYTES: usize = 16;
/// A part of so many bytes goes back to the kernel at once when it ends.
const PURGE_FROM: u64 = 1 << 20;
/// Bytes by which the reservation moves.
const STEP: u64 = 64 << 10;

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
    pub(crate) record: Position,
    pub(crate) at: u32,
    /// 0: the point has no payload.
    pub(crate) len: u32,
}

pub(crate) struct Growing {
    /// Parts of a collection are numbered as they are begun.
    number: u64,
    inner: RwLock<Inner>,
    /// Position of the first record whose effects stand here, or in deletes made meanwhile; [`CLEAN`]: none.
    from: AtomicU64,
}

/// Position of a growing part that no record has touched.
pub(crate) const CLEAN: Position = Position::MAX;

pub(crate) struct Inner {
    ids: Vec<PointId>,
    table: HashTable<u32>,
    dead: Vec<u64>,
    dead_count: usize,
    payloads: Vec<PayloadAt>,
    columns: BTreeMap<String, ColumnData>,
    reserved: Reservation,
    bytes: u64,
    /// Bytes reserved for points that are on their way through the log.
    promised: u64,
    /// Kept for payloads that changed since the part was frozen: where the seal has read the old one
    /// already, the change becomes a patch of the segment.
    owed: Option<Reservation>,
    version: u64,
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

impl Growing {
    pub(crate) fn new(number: u64, config: &CollectionConfig, account: &Account) -> Result<Self> {
        let column = |vector: &VectorConfig| ColumnData {
            dim: vector.dim,
            is_normalised_late: vector.is_normalised_late(),
            chunks: Vec::new(),
            slot_of: Vec::new(),
            vector_of: Vec::new(),
        };
        let columns = config.vectors.iter().map(|(name, vector)| (name.clone(), column(vector))).collect();
        let inner = Inner {
            ids: Vec::new(),
            table: HashTable::new(),
            dead: Vec::new(),
            dead_count: 0,
            payloads: Vec::new(),
            columns,
            reserved: account.try_reserve(0)?,
            bytes: 0,
            promised: 0,
            owed: None,
            version: 0,
        };
        Ok(Self { number, inner: RwLock::new(inner), from: AtomicU64::new(CLEAN) })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes that the points of a batch take here; an open chunk a column comes on top, once.
    pub(crate) fn bytes_for(batch: &Batch) -> u64 {
        let columns = batch.columns.iter().map(|column| (column.present.len() * vector_bytes(column.dim)) as u64);
        (batch.ids.len() * SLOT_BYTES) as u64 + columns.sum::<u64>()
    }

    /// Reserves what points of this many bytes will take; only then may they be logged and inserted.
    pub(crate) fn promise(&self, bytes: u64) -> Result<()> {
        let mut inner = self.inner.write();
        let open: usize = inner.columns.values().map(|column| CHUNK * column.dim * 4).sum();
        let wanted = inner.bytes + inner.promised + bytes + open as u64;
        if wanted > inner.reserved.bytes() {
            inner.reserved.resize(wanted.next_multiple_of(STEP))?;
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
    pub(crate) fn touch(&self, position: Position) {
        self.from.fetch_min(position, Ordering::SeqCst);
    }

    pub(crate) fn from(&self) -> Position {
        self.from.load(Ordering::SeqCst)
    }

    /// Adds the points of a batch, for which memory was promised. An id that stands here already is replaced.
    pub(crate) fn insert(&self, batch: &Batch, payloads: impl Fn(usize) -> PayloadAt, version: u64) {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let bytes = Self::bytes_for(batch);
        inner.bytes += bytes;
        inner.promised = inner.promised.saturating_sub(bytes);
        inner.version = version;
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

    /// Gives a point another payload; true if it is alive here. `frozen`: memory to keep a patch's share of.
    pub(crate) fn set_payload(&self, id: PointId, payload: PayloadAt, frozen: Option<&mut Reservation>) -> bool {
        let mut inner = self.inner.write();
        let Some(slot) = inner.find(id) else { return false };
        inner.payloads[slot as usize] = payload;
        if let Some(memory) = frozen {
            let taken = memory.split(PATCH_BYTES);
            match &mut inner.owed {
                Some(owed) => owed.join(taken),
                None => inner.owed = Some(taken),
            }
        }
        true
    }

    /// Memory for the changes since the part was frozen.
    pub(crate) fn take_owed(&self) -> Option<Reservation> {
        self.inner.write().owed.take()
    }

    /// Marks the point dead; true if it was alive here.
    pub(crate) fn kill(&self, id: PointId) -> bool {
        self.inner.write().kill(id)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }
}

impl Drop for Growing {
    /// Many small blocks go at one time: the kernel has them back before their reservation ends.
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let held = inner.bytes;
        (inner.ids, inner.payloads, inner.dead) = Default::default();
        (inner.table, inner.columns) = Default::default();
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
        self.dead.resize(self.ids.len().div_ceil(64), 0);
        let ids = &self.ids;
        self.table.insert_unique(id.hash64(), slot, |slot| ids[*slot as usize].hash64());
        slot
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

    /// Number of the newest operation in here.
    pub(crate) fn version(&self) -> u64 {
        self.version
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

    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, &ColumnData)> {
        self.columns.iter().map(|(name, column)| (name.as_str(), column))
    }

    /// The dead slots now, to be compared with later ones by [`Inner::died_since`].
    pub(crate) fn dead_words(&self) -> Vec<u64> {
        self.dead.clone()
    }

    pub(crate) fn died_since(&self, before: &[u64], each: impl FnMut(u32)) {
        newly_set(before, &self.dead, each);
    }

    /// Offers every live vector of a column to `top`.
    pub(crate) fn search(&self, name: &str, metric: Metric, query: &[f32], top: &mut Top) {
        let Some(column) = self.columns.get(name) else { return };
        let mut scores = [0.0f32; CHUNK];
        for (index, chunk) in column.chunks.iter().enumerate() {
            let slots = &column.slot_of[index * CHUNK..(index * CHUNK + CHUNK).min(column.slot_of.len())];
            let scores = &mut scores[..slots.len()];
            let vectors = &chunk[..slots.len() * column.dim];
            score_block(metric, query, vectors, column.dim, scores);
            if column.is_normalised_late {
                divide_by_lengths(vectors, column.dim, scores);
            }
            for (slot, score) in slots.iter().zip(scores.iter()) {
                if top.accepts(*score) && !self.is_dead(*slot) {
                    top.offer(*score, self.ids[*slot as usize]);
                }
            }
        }
    }

    /// The `limit` smallest live ids that are not below `from`, ascending, with their slots.
    pub(crate) fn ids_from(&self, from: Option<PointId>, limit: usize) -> Vec<(PointId, u32)> {
        let mut found: Vec<(PointId, u32)> = Vec::with_capacity(limit.min(self.ids.len()) + 1);
        for (slot, id) in self.ids.iter().enumerate() {
            if from.is_some_and(|from| *id < from) || self.is_dead(slot as u32) {
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
