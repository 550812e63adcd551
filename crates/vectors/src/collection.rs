//! A collection: its parts at one moment, and how a write changes them.
//!
//! ```text
//!   View ── active   growing part that takes writes
//!        ├─ frozen   growing parts that wait to be sealed, oldest first
//!        └─ segments sealed parts, in no order: every live id stands in exactly one part
//! ```
//!
//! Readers load a view and keep it; a view never changes, but its active part grows and rows die.
//! The `change` lock is held to apply a batch or to swap a view, never while a segment is written.

use crate::api::{Batch, CollectionConfig, FieldConfig, Progress};
use crate::changes::PATCH_BYTES;
use crate::field_index::FieldIndex;
use crate::growing::{CLEAN, Growing, PayloadAt};
use crate::op::CollectionNumber;
use crate::reservoir::Reservoir;
use crate::residency::Structures;
use crate::segment::Segment;
use crate::usage::Usage;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use ramekin_base::{Error, PointId, Result};
use ramekin_fields::Path;
use ramekin_log::Position;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct View {
    pub(crate) active: Arc<Growing>,
    pub(crate) frozen: Vec<Arc<Growing>>,
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl View {
    /// The growing parts, newest first.
    pub(crate) fn growing(&self) -> impl Iterator<Item = &Arc<Growing>> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev())
    }

    /// The growing parts with their places, oldest first: the order in which a read must look, after the segments, so
    /// that no point that moves meanwhile slips past it.
    pub(crate) fn oldest_growing(&self) -> Vec<(usize, &Arc<Growing>)> {
        let mut parts: Vec<_> = self.growing().enumerate().collect();
        parts.reverse();
        parts
    }

    /// This view and the growing parts that a newer one has besides, or `None` if one of them is gone already.
    pub(crate) fn with_newer(self: &Arc<Self>, newest: &Self) -> Option<Arc<Self>> {
        let last = self.active.number();
        let mut newer: Vec<_> = newest.frozen.iter().filter(|part| part.number() > last).cloned().collect();
        match newest.active.number() - last {
            0 => Some(self.clone()),
            begun if begun == newer.len() as u64 + 1 => {
                let mut frozen = self.frozen.clone();
                frozen.push(self.active.clone());
                frozen.append(&mut newer);
                Some(Arc::new(Self { active: newest.active.clone(), frozen, segments: self.segments.clone() }))
            }
            _ => None,
        }
    }

    /// The first record that changed payloads in memory need; [`CLEAN`]: none.
    pub(crate) fn patched_from(&self) -> Position {
        self.segments.iter().map(|segment| segment.changes.from()).min().unwrap_or(CLEAN)
    }

    /// Rows and slots whose point was replaced or deleted.
    pub(crate) fn dead(&self) -> u64 {
        let growing: usize = self.growing().map(|part| part.read().dead()).sum();
        growing as u64 + self.segments.iter().map(|segment| segment.dead.count()).sum::<u64>()
    }

    pub(crate) fn live(&self) -> u64 {
        let growing: usize = self.growing().map(|part| part.read().live()).sum();
        growing as u64 + self.segments.iter().map(|segment| segment.live()).sum::<u64>()
    }
}

pub(crate) struct Collection {
    pub(crate) number: CollectionNumber,
    pub(crate) config: ArcSwap<CollectionConfig>,
    pub(crate) view: ArcSwap<View>,
    /// Held while a batch is applied or a view is swapped.
    pub(crate) change: Mutex<()>,
    /// Everything before this position is in the manifest's files.
    pub(crate) replay_from: AtomicU64,
    pub(crate) dropped: AtomicBool,
    /// A durable write could not be applied: what is in memory is behind the log until a restart.
    pub(crate) behind: AtomicBool,
    /// Its changed payloads are to be written out, to free memory or the log.
    pub(crate) fold_due: AtomicBool,
    /// What went wrong in the background; the collection is red while it stands.
    pub(crate) error: Mutex<Option<String>>,
    pub(crate) progress: Mutex<Option<Progress>>,
    /// Milliseconds of the clock at the last write.
    pub(crate) written_ms: AtomicU64,
    pub(crate) usage: Usage,
    pub(crate) reservoir: Reservoir,
    /// Who pays for what is resident, once there is something to be.
    pub(crate) structures: OnceLock<Structures>,
    growing_account: Account,
}

impl Collection {
    pub(crate) fn new(
        number: CollectionNumber,
        config: CollectionConfig,
        growing: &Account,
        replay_from: Position,
    ) -> Result<Self> {
        let active = Arc::new(Growing::new(0, &config, growing)?);
        Ok(Self {
            number,
            config: ArcSwap::from_pointee(config),
            view: ArcSwap::from_pointee(View { active, frozen: Vec::new(), segments: Vec::new() }),
            change: Mutex::new(()),
            replay_from: AtomicU64::new(replay_from),
            dropped: AtomicBool::new(false),
            behind: AtomicBool::new(false),
            fold_due: AtomicBool::new(false),
            error: Mutex::new(None),
            progress: Mutex::new(None),
            written_ms: AtomicU64::new(0),
            usage: Usage::default(),
            reservoir: Reservoir::default(),
            structures: OnceLock::new(),
            growing_account: growing.clone(),
        })
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Whether a change may be made of what is stored: what the log has and memory has not would make
    /// replay end elsewhere.
    pub(crate) fn check_current(&self) -> Result<()> {
        match self.behind.load(Ordering::SeqCst) {
            true => Err(Error::closed(
                "a write is in the log and could not be applied; restart to change points by what they hold",
            )),
            false => Ok(()),
        }
    }

    /// Gives a field an index, or takes it.
    pub(crate) fn set_index(&self, path: &Path, index: Option<&FieldConfig>) {
        let mut config = (**self.config.load()).clone();
        match index {
            Some(index) => config.indexes.insert(path.clone(), index.clone()),
            None => config.indexes.remove(path),
        };
        self.config.store(Arc::new(config));
        // What is built of another index is worth nothing; its files go with the next manifest.
        for segment in &self.view.load().segments {
            let mut fields = segment.fields.write();
            let is_kept = |field: &Arc<FieldIndex>| {
                field.path != *path || index.is_some_and(|index| index.schema == field.schema)
            };
            *fields = fields.iter().filter(|field| is_kept(field)).cloned().collect();
        }
    }

    /// Replaces the view by what `make` makes of the present one. The caller holds `change`.
    pub(crate) fn swap(&self, make: impl FnOnce(&View) -> View) {
        let view = make(&self.view.load());
        self.view.store(Arc::new(view));
    }

    /// Applies an upsert: the new points first, then the death of the old ones, so that a reader may
    /// see both (and drops one) but never neither.
    pub(crate) fn apply_upsert(
        &self,
        pages: &Pages,
        batch: &Batch,
        position: Position,
        payloads: impl Fn(usize) -> PayloadAt,
        sequence: u64,
    ) -> Result<()> {
        let _change = self.change.lock();
        let view = self.view.load_full();
        let sealed = find_sealed(&view, pages, &batch.ids)?;
        view.active.touch(position);
        view.active.insert(batch, payloads, sequence);
        for part in &view.frozen {
            for id in &batch.ids {
                part.kill(*id);
            }
        }
        sealed.into_iter().for_each(|(segment, row)| _ = view.segments[segment].dead.set(row));
        Ok(())
    }

    pub(crate) fn apply_delete(&self, pages: &Pages, ids: &[PointId], position: Position) -> Result<()> {
        let _change = self.change.lock();
        let view = self.view.load_full();
        let sealed = find_sealed(&view, pages, ids)?;
        view.active.touch(position);
        for part in view.growing() {
            for id in ids {
                part.kill(*id);
            }
        }
        sealed.into_iter().for_each(|(segment, row)| _ = view.segments[segment].dead.set(row));
        Ok(())
    }

    /// Gives points other payloads, each where it stands; who is not there any more is passed over.
    /// `memory` holds a patch's bytes for each point.
    pub(crate) fn apply_payloads(
        &self,
        pages: &Pages,
        ids: &[PointId],
        payloads: &[PayloadAt],
        memory: &mut Reservation,
    ) -> Result<()> {
        let _change = self.change.lock();
        let view = self.view.load_full();
        // All that can fail comes before the first change.
        let rows = view.segments.iter().map(|segment| segment.find(pages, ids)).collect::<Result<Vec<_>>>()?;
        for (id, payload) in ids.iter().zip(payloads) {
            _ = view.active.set_payload(*id, *payload, None)
                || view.frozen.iter().any(|part| part.set_payload(*id, *payload, Some(&mut *memory)));
        }
        for (segment, rows) in view.segments.iter().zip(rows) {
            let alive = |(row, payload): (Option<u32>, &PayloadAt)| Some((row?, *payload));
            let alive = rows.into_iter().zip(payloads).filter_map(alive).filter(|(row, _)| !segment.dead.get(*row));
            segment.changes.put(alive, memory);
        }
        Ok(())
    }

    /// Bytes of changed payloads of sealed points in memory.
    pub(crate) fn patch_bytes(&self) -> u64 {
        self.view.load().segments.iter().map(|segment| segment.changes.len() as u64 * PATCH_BYTES).sum()
    }

    /// Moves the active part to the frozen ones; only the writer thread calls this, with no write in flight.
    pub(crate) fn freeze(&self) -> Result<bool> {
        let _change = self.change.lock();
        let view = self.view.load_full();
        if view.active.from() == CLEAN {
            return Ok(false);
        }
        let active = Arc::new(Growing::new(view.active.number() + 1, &self.config.load(), &self.growing_account)?);
        let mut frozen = view.frozen.clone();
        frozen.push(view.active.clone());
        self.view.store(Arc::new(View { active, frozen, segments: view.segments.clone() }));
        Ok(true)
    }

    /// The first position that a replay needs for this collection; `applied`: all records before it are applied.
    pub(crate) fn pinned_from(&self, applied: Position) -> Position {
        let view = self.view.load();
        let oldest = view.growing().map(|part| part.from()).min().unwrap_or(CLEAN);
        oldest.min(view.patched_from()).min(applied)
    }
}

/// Segment (by its place in the view) and row of every id that stands in a sealed segment.
fn find_sealed(view: &View, pages: &Pages, ids: &[PointId]) -> Result<Vec<(usize, u32)>> {
    let mut found = Vec::new();
    for (at, segment) in view.segments.iter().enumerate() {
        let rows = segment.find(pages, ids)?;
        found.extend(rows.into_iter().flatten().map(|row| (at, row)));
    }
    Ok(found)
}
