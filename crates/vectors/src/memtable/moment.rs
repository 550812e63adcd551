//! A memtable as it was at one moment: what is appended, dies or is given another payload later does not show.
//!
//! ```text
//!   slots   0 1 2 3 4 │ 5 6 ...       behind the moment: not there
//!   dead    . x . . x                 as a bitmap had it that is copied when it changes
//!   an id   last slot ─► previous ─► previous: the first that is not behind the moment has it, dead or alive
//! ```

use crate::memtable::delete_bitmap::DeleteBitmap;
use crate::memtable::patches::PatchMemtable;
use crate::memtable::top::TopK;
use crate::memtable::{CHUNK, ColumnData, Inner, Memtable, NONE};
use crate::payload::log::PayloadAt;
use parking_lot::RwLockReadGuard;
use ramekin_base::PointId;
use ramekin_base::lock::Guard;
use ramekin_vecmath::{Metric, divide_by_lengths, score_block};
use std::ops::Deref;

/// Vectors that are scored under one lock: a write waits for no more of a scan.
const SCAN_BYTES: usize = 1 << 20;

/// What a reader keeps of a memtable to see it as it was at one moment.
#[derive(Clone)]
pub(crate) struct Moment {
    /// Slots, dead ones included.
    pub(crate) slots: u32,
    pub(crate) dead: DeleteBitmap,
    /// Payloads that changed since their slot was appended.
    pub(super) changed: PatchMemtable,
}

/// A memtable at one moment, of which the lists are locked while it lives.
pub(crate) struct MomentRead<'a> {
    inner: Guard<RwLockReadGuard<'a, Inner>>,
    moment: &'a Moment,
}

/// What is not of a moment.
impl Deref for MomentRead<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Moment {
    pub(crate) fn read<'a>(&'a self, memtable: &'a Memtable) -> MomentRead<'a> {
        MomentRead { inner: memtable.read(), moment: self }
    }

    /// Payloads that changed since their slot was appended, those that changed again included.
    pub(crate) fn changes(&self) -> usize {
        self.changed.len()
    }

    pub(crate) fn live(&self) -> u64 {
        u64::from(self.slots) - self.dead.count()
    }

    /// The live slots, 64 in a word.
    pub(crate) fn live_words(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self.slots as usize;
        (0..slots.div_ceil(64)).map(move |at| {
            let here = if slots - at * 64 >= 64 { u64::MAX } else { (1 << (slots % 64)) - 1 };
            here & !self.dead.word(at)
        })
    }
}

impl MomentRead<'_> {
    /// The live slot of an id.
    pub(crate) fn find(&self, id: PointId) -> Option<u32> {
        let mut slot = self.inner.last(id)?;
        while slot >= self.moment.slots {
            slot = Some(self.inner.previous[slot as usize]).filter(|before| *before != NONE)?;
        }
        (!self.moment.dead.get(slot)).then_some(slot)
    }

    pub(crate) fn is_dead(&self, slot: u32) -> bool {
        self.moment.dead.get(slot)
    }

    pub(crate) fn payload(&self, slot: u32) -> PayloadAt {
        self.moment.changed.get(slot).unwrap_or(self.inner.payloads[slot as usize])
    }

    /// Live vectors under a name.
    pub(crate) fn live_vectors(&self, name: &str) -> u64 {
        let slots = self.inner.columns.get(name).map_or(&[][..], ColumnData::slots);
        slots.iter().filter(|slot| **slot < self.moment.slots && !self.is_dead(**slot)).count() as u64
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
        let column = self.inner.columns.get(name)?;
        let vectors = column.slot_of.partition_point(|slot| *slot < self.moment.slots);
        let mut scores = [0.0f32; CHUNK];
        let (all, end) = (vectors.div_ceil(CHUNK), from + (SCAN_BYTES / (CHUNK * column.dim * 4)).max(1));
        for (index, chunk) in column.chunks.iter().enumerate().take(end.min(all)).skip(from) {
            let slots = &column.slot_of[index * CHUNK..(index * CHUNK + CHUNK).min(vectors)];
            let scores = &mut scores[..slots.len()];
            let vectors = &chunk[..slots.len() * column.dim];
            score_block(metric, query, vectors, column.dim, scores);
            if column.is_normalised_late {
                divide_by_lengths(vectors, column.dim, scores);
            }
            for (slot, score) in slots.iter().zip(scores.iter()) {
                if top.accepts(*score) && !self.is_dead(*slot) && may_pass(*slot) {
                    top.offer(*score, self.inner.ids[*slot as usize]);
                }
            }
        }
        (end < all).then_some(end)
    }

    /// The `limit` smallest live ids of slots that may pass and are not below `from`, ascending, with their slots.
    pub(crate) fn ids_from(
        &self,
        from: Option<PointId>,
        limit: usize,
        may_pass: &dyn Fn(u32) -> bool,
    ) -> Vec<(PointId, u32)> {
        let ids = &self.inner.ids[..self.moment.slots as usize];
        let mut found: Vec<(PointId, u32)> = Vec::with_capacity(limit.min(ids.len()) + 1);
        for (slot, id) in ids.iter().enumerate() {
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
