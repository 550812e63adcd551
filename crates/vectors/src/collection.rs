//! A collection: its parts at one moment, and how a write changes them.
//!
//! ```text
//!   View ── active   growing part that takes writes
//!        ├─ frozen   growing parts that wait to be sealed, oldest first
//!        └─ segments sealed parts, in no order: every live id stands in exactly one part
//! ```
//!
//! Readers load a view and keep it; a view never changes, but its active part grows and rows die.
//! The `change` lock is held to apply a batch or to swap a view: for steps in memory only, so whatever a batch needs of the
//! disk is looked up before ([`Located`]).

use crate::api::{Batch, FieldConfig, Progress};
use crate::catalog_cost::HeldConfig;
use crate::changes::PATCH_BYTES;
use crate::field_index::FieldIndex;
use crate::growing::{CLEAN, Growing, PayloadAt};
use crate::growing_fields::BatchFields;
use crate::health::{FaultKind, Health};
use crate::lock;
use crate::op::CollectionNumber;
use crate::reservoir::Reservoir;
use crate::residency::Structures;
use crate::segment::Segment;
use crate::usage::Usage;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard, RwLock};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{Error, Kind, PointId, Result};
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

    /// How many points a read of it can find at most: what a client asks for beyond them costs nothing.
    pub(crate) fn points_at_most(&self) -> usize {
        let sealed: usize = self.segments.iter().map(|segment| segment.meta.points as usize).sum();
        sealed + self.growing().map(|part| part.read().slots()).sum::<usize>()
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

    fn holds(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|held| Arc::ptr_eq(held, segment))
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
    pub(crate) name: Arc<str>,
    pub(crate) config: ArcSwap<HeldConfig>,
    pub(crate) view: ArcSwap<View>,
    /// Held while a batch is applied or a view is swapped.
    pub(crate) change: Ranked<Mutex<()>>,
    /// Held for reading by a read that was overtaken by changes again and again: no part is swapped out and no new write
    /// begins before it ends.
    pub(crate) still: Ranked<RwLock<()>>,
    /// Everything before this position is in the manifest's files.
    pub(crate) replay_from: AtomicU64,
    /// It is new or configured otherwise since a manifest was written.
    pub(crate) unwritten: AtomicBool,
    /// The hash of its files as a manifest has them, by `manifest::fingerprint`.
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicBool,
    /// Its changed payloads are to be written out, to free memory or the log.
    pub(crate) fold_due: AtomicBool,
    pub(crate) health: Health,
    pub(crate) progress: Mutex<Option<Progress>>,
    /// Milliseconds of the clock at the last write.
    pub(crate) written_ms: AtomicU64,
    pub(crate) usage: Usage,
    pub(crate) reservoir: Reservoir,
    /// Who pays for what is resident, once there is something to be.
    pub(crate) structures: OnceLock<Box<Structures>>,
    growing_account: Account,
    _memory: Reservation,
}

/// Where a request stands in the log, and its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub(crate) position: Position,
    pub(crate) sequence: u64,
}

impl Collection {
    /// Without points. `memory` holds what it takes by `catalog_cost`.
    pub(crate) fn new(
        number: CollectionNumber,
        name: &str,
        config: Arc<HeldConfig>,
        memory: Reservation,
        growing: &Account,
        replay_from: Position,
    ) -> Result<Self> {
        let active = Arc::new(Growing::new(0, config.clone(), growing)?);
        Ok(Self {
            number,
            name: name.into(),
            config: ArcSwap::new(config),
            view: ArcSwap::from_pointee(View { active, frozen: Vec::new(), segments: Vec::new() }),
            change: Ranked::mutex(&lock::CHANGE, ()),
            still: Ranked::rw(&lock::STILL, ()),
            replay_from: AtomicU64::new(replay_from),
            unwritten: AtomicBool::new(true),
            written: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
            fold_due: AtomicBool::new(false),
            health: Health::default(),
            progress: Mutex::new(None),
            written_ms: AtomicU64::new(0),
            usage: Usage::default(),
            reservoir: Reservoir::default(),
            structures: OnceLock::new(),
            growing_account: growing.clone(),
            _memory: memory,
        })
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Whether a read asks writes to wait for it.
    pub(crate) fn is_read_still(&self) -> bool {
        self.still.is_locked()
    }

    /// Fails if memory has diverged from the log: a change that is made of what is read, or that is logged behind what
    /// memory lacks, would end elsewhere in a replay.
    pub(crate) fn check_current(&self) -> Result<()> {
        self.health.of(&FaultKind::Diverged).map_or(Ok(()), |cause| {
            Err(Error::closed(format!("the collection is closed to changes until a restart: {cause}")))
        })
    }

    /// What turns it red, if anything does: a damaged file that it needs, or the worst of its faults.
    pub(crate) fn fault(&self) -> Option<String> {
        let damage = || self.view.load().segments.iter().find_map(|segment| segment.damage());
        self.health.worst().or_else(damage)
    }

    /// What is built of another index of a field than this is worth nothing; its files go with the next manifest.
    /// The configuration says it already.
    pub(crate) fn keep_index(&self, path: &Path, index: Option<&FieldConfig>) {
        let config = self.config.load();
        self.health.keep_indexes(|path| config.indexes.contains_key(path));
        self.view.load().active.set_field(path, index.map(|index| &index.schema));
        for segment in &self.view.load().segments {
            let mut fields = segment.fields.write();
            let is_kept = |field: &Arc<FieldIndex>| {
                field.path != *path || index.is_some_and(|index| index.schema == field.schema)
            };
            *fields = fields.iter().filter(|field| is_kept(field)).cloned().collect();
        }
    }

    /// Replaces the view by what `make` makes of the present one. The caller holds `change`, and drops what comes back after it:
    /// the last user of a file closes it.
    #[must_use]
    pub(crate) fn swap(&self, make: impl FnOnce(&View) -> View) -> Arc<View> {
        let view = make(&self.view.load());
        self.view.swap(Arc::new(view))
    }

    /// Looks up where points stand in segments.
    pub(crate) fn locate(&self, pages: &Pages, ids: &[PointId]) -> Result<Located> {
        let mut located = Located::default();
        located.look(pages, ids, self.view.load().segments.iter().cloned())?;
        Ok(located)
    }

    /// Keeps changes out, with every segment of the view looked at: one that came since `located` was made is looked at before.
    fn begin(
        &self,
        pages: &Pages,
        ids: &[PointId],
        located: &mut Located,
    ) -> Result<(Guard<MutexGuard<'_, ()>>, Arc<View>)> {
        loop {
            let change = self.change.lock();
            let view = self.view.load_full();
            let missing: Vec<_> = view.segments.iter().filter(|segment| !located.knows(segment)).cloned().collect();
            if missing.is_empty() {
                return Ok((change, view));
            }
            drop(change);
            located.look_patiently(pages, ids, &missing)?;
        }
    }

    /// Applies an upsert: the new points first, then the death of the old ones, so that a reader may
    /// see both (and drops one) but never neither.
    pub(crate) fn apply_upsert(
        &self,
        pages: &Pages,
        batch: &Batch,
        logged: Logged,
        payloads: impl Fn(usize) -> PayloadAt,
        fields: Option<BatchFields>,
        mut located: Located,
    ) -> Result<()> {
        let (_change, view) = self.begin(pages, &batch.ids, &mut located)?;
        view.active.touch(logged.position);
        view.active.insert(batch, payloads, fields, logged.sequence);
        view.frozen.iter().for_each(|part| part.kill(&batch.ids));
        located.kill();
        Ok(())
    }

    pub(crate) fn apply_delete(
        &self,
        pages: &Pages,
        ids: &[PointId],
        position: Position,
        mut located: Located,
    ) -> Result<()> {
        let (_change, view) = self.begin(pages, ids, &mut located)?;
        view.active.touch(position);
        view.growing().for_each(|part| part.kill(ids));
        located.kill();
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
        mut located: Located,
    ) -> Result<()> {
        let (_change, view) = self.begin(pages, ids, &mut located)?;
        for (id, payload) in ids.iter().zip(payloads) {
            if view.active.set_payload(*id, *payload, None)? {
                continue;
            }
            for part in &view.frozen {
                if part.set_payload(*id, *payload, Some(&mut *memory))? {
                    break;
                }
            }
        }
        for (segment, rows) in located.segments.iter().filter(|(segment, _)| view.holds(segment)) {
            let alive = rows.iter().flatten().filter(|(_, row)| !segment.dead.get(*row));
            segment.changes.put(alive.map(|(at, row)| (*row, payloads[*at as usize])), memory)?;
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
        let active = Arc::new(Growing::new(view.active.number() + 1, self.config.load_full(), &self.growing_account)?);
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

/// Where the points of a write stand in segments: looked up before it is logged, so that neither an error of the disk nor a
/// wait for it can come after.
#[derive(Default)]
pub(crate) struct Located {
    /// Of each segment that was looked at, which of the points stand in it, and their rows.
    segments: Vec<(Arc<Segment>, Lists)>,
}

/// How often memory to read with is asked for where a write is logged already: each time waits for who reads now, and in the
/// end the collection takes no write until a restart.
const LOOKS: u32 = 50;

/// Which of the points, and its row.
type Found = (u32, u32);

/// A list for each points that were looked up together.
type Lists = Vec<Box<[Found]>>;

/// Points that are looked up together: what a lookup holds of each while it goes on is not booked.
const LOOK_IDS: usize = 1024;

impl Located {
    fn knows(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|(known, _)| Arc::ptr_eq(known, segment))
    }

    fn look(&mut self, pages: &Pages, ids: &[PointId], segments: impl Iterator<Item = Arc<Segment>>) -> Result<()> {
        for segment in segments {
            let mut lists = Vec::with_capacity(ids.len().div_ceil(LOOK_IDS));
            let mut at = 0u32;
            for ids in ids.chunks(LOOK_IDS) {
                let rows = segment.find(pages, ids)?;
                let found = (at..).zip(rows).filter_map(|(at, row)| Some((at, row?)));
                // A dead row stays dead.
                lists.push(found.filter(|(_, row)| !segment.dead.get(*row)).collect());
                at += ids.len() as u32;
            }
            self.segments.push((segment, lists));
        }
        Ok(())
    }

    /// For what is in the log already: where memory to read with is short for the moment, it is asked for again.
    fn look_patiently(&mut self, pages: &Pages, ids: &[PointId], segments: &[Arc<Segment>]) -> Result<()> {
        for segment in segments {
            let mut looked = self.look(pages, ids, std::iter::once(segment.clone()));
            for _ in 1..LOOKS {
                if !looked.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
                    break;
                }
                looked = self.look(pages, ids, std::iter::once(segment.clone()));
            }
            looked?;
        }
        Ok(())
    }

    /// Bytes of where so many points stand: each is alive in one segment at most.
    pub(crate) fn bytes(points: usize) -> u64 {
        (points * size_of::<Found>()) as u64
    }

    /// All of them are dead from now on.
    fn kill(self) {
        for (segment, rows) in self.segments {
            rows.iter().flatten().for_each(|(_, row)| _ = segment.dead.set(*row));
        }
    }
}
