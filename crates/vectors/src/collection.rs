//! A collection: its parts at one moment, and how a write changes them.
//!
//! ```text
//!   View ─┬─ active     memtable that takes writes
//!         ├─ immutable  memtables that wait to be flushed, oldest first
//!         └─ segments   immutable files, in no order: every live id stands in exactly one part
//! ```
//!
//! Readers load a view and keep it; a view never changes, but its active part grows and rows die.
//! The `change` lock is held to apply a batch or to swap a view: for steps in memory only, so whatever a batch needs of the
//! disk is looked up before ([`Located`]).

use crate::api::{Batch, FieldConfig, Progress};
use crate::catalog_cost::HeldConfig;
use crate::field_index::FieldIndex;
use crate::health::{FaultKind, Health};
use crate::lock;
use crate::memtable::{CLEAN, Memtable, PayloadAt};
use crate::memtable_fields::BatchFields;
use crate::op::CollectionId;
use crate::patch_tree::PATCH_BYTES;
use crate::recall_monitor::RecallMonitor;
use crate::residency::Structures;
use crate::segment::Segment;
use crate::usage::Usage;
use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard, RwLock};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{Error, Kind, PointId, Result};
use ramekin_fields::Path;
use ramekin_log::Lsn;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct View {
    pub(crate) active: Arc<Memtable>,
    pub(crate) immutable: Vec<Arc<Memtable>>,
    pub(crate) segments: Vec<Arc<Segment>>,
}

impl View {
    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.immutable.iter().rev())
    }

    /// The memtables with their places, oldest first: the order in which a read must look, after the segments, so
    /// that no point that moves meanwhile slips past it.
    pub(crate) fn oldest_memtables(&self) -> Vec<(usize, &Arc<Memtable>)> {
        let mut parts: Vec<_> = self.memtables().enumerate().collect();
        parts.reverse();
        parts
    }

    /// How many points a read of it can find at most: what a client asks for beyond them costs nothing.
    pub(crate) fn points_at_most(&self) -> usize {
        let sealed: usize = self.segments.iter().map(|segment| segment.meta.points as usize).sum();
        sealed + self.memtables().map(|part| part.read().slots()).sum::<usize>()
    }

    /// This view and the memtables that a newer one has besides, or `None` if one of them is gone already.
    pub(crate) fn with_newer(self: &Arc<Self>, newest: &Self) -> Option<Arc<Self>> {
        let last = self.active.generation();
        let mut newer: Vec<_> = newest.immutable.iter().filter(|part| part.generation() > last).cloned().collect();
        match newest.active.generation() - last {
            0 => Some(self.clone()),
            begun if begun == newer.len() as u64 + 1 => {
                let mut immutable = self.immutable.clone();
                immutable.push(self.active.clone());
                immutable.append(&mut newer);
                Some(Arc::new(Self { active: newest.active.clone(), immutable, segments: self.segments.clone() }))
            }
            _ => None,
        }
    }

    fn holds(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|held| Arc::ptr_eq(held, segment))
    }

    /// The first record that changed payloads in memory need; [`CLEAN`]: none.
    pub(crate) fn patched_from(&self) -> Lsn {
        self.segments.iter().map(|segment| segment.patches.from()).min().unwrap_or(CLEAN)
    }

    /// Rows and slots whose point was replaced or deleted.
    pub(crate) fn dead(&self) -> u64 {
        let growing: usize = self.memtables().map(|part| part.read().dead()).sum();
        growing as u64 + self.segments.iter().map(|segment| segment.dead.count()).sum::<u64>()
    }

    pub(crate) fn live(&self) -> u64 {
        let growing: usize = self.memtables().map(|part| part.read().live()).sum();
        growing as u64 + self.segments.iter().map(|segment| segment.live()).sum::<u64>()
    }
}

pub(crate) struct Collection {
    pub(crate) number: CollectionId,
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
    pub(crate) compaction_due: AtomicBool,
    pub(crate) health: Health,
    pub(crate) progress: Progresses,
    /// Milliseconds of the clock at the last write.
    pub(crate) written_ms: AtomicU64,
    pub(crate) usage: Usage,
    pub(crate) recall_monitor: RecallMonitor,
    /// Who pays for what is resident, once there is something to be.
    pub(crate) structures: OnceLock<Box<Structures>>,
    growing_account: Account,
    _memory: Reservation,
}

/// Where a request stands in the log, and its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub(crate) lsn: Lsn,
    pub(crate) seqno: u64,
}

/// Work in the background that goes on, one of a kind: a flush may go on beside a merge or the build of an index.
#[derive(Default)]
pub(crate) struct Progresses(Mutex<Vec<(&'static str, Progress)>>);

impl Progresses {
    pub(crate) fn tell(&self, kind: &'static str, progress: Progress) {
        let mut all = self.0.lock();
        match all.iter_mut().find(|(own, _)| *own == kind) {
            Some((_, own)) => *own = progress,
            None => all.push((kind, progress)),
        }
    }

    pub(crate) fn end(&self, kind: &str) {
        self.0.lock().retain(|(own, _)| *own != kind);
    }

    /// Of what began first and goes on.
    pub(crate) fn first(&self) -> Option<Progress> {
        self.0.lock().first().map(|(_, progress)| progress.clone())
    }
}

impl Collection {
    /// Without points. `memory` holds what it takes by `catalog_cost`.
    pub(crate) fn new(
        number: CollectionId,
        name: &str,
        config: Arc<HeldConfig>,
        memory: Reservation,
        growing: &Account,
        replay_from: Lsn,
    ) -> Result<Self> {
        let active = Arc::new(Memtable::new(0, config.clone(), growing)?);
        Ok(Self {
            number,
            name: name.into(),
            config: ArcSwap::new(config),
            view: ArcSwap::from_pointee(View { active, immutable: Vec::new(), segments: Vec::new() }),
            change: Ranked::mutex(&lock::CHANGE, ()),
            still: Ranked::rw(&lock::STILL, ()),
            replay_from: AtomicU64::new(replay_from),
            unwritten: AtomicBool::new(true),
            written: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
            compaction_due: AtomicBool::new(false),
            health: Health::default(),
            progress: Progresses::default(),
            written_ms: AtomicU64::new(0),
            usage: Usage::default(),
            recall_monitor: RecallMonitor::default(),
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
        self.view.load().memtables().for_each(|part| part.set_field(path, index.map(|index| &index.schema)));
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
        view.active.touch(logged.lsn);
        view.active.insert(batch, payloads, fields, logged.seqno);
        view.immutable.iter().for_each(|part| part.kill(&batch.ids));
        located.kill();
        Ok(())
    }

    pub(crate) fn apply_delete(&self, pages: &Pages, ids: &[PointId], lsn: Lsn, mut located: Located) -> Result<()> {
        let (_change, view) = self.begin(pages, ids, &mut located)?;
        view.active.touch(lsn);
        view.memtables().for_each(|part| part.kill(ids));
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
            for part in &view.immutable {
                if part.set_payload(*id, *payload, Some(&mut *memory))? {
                    break;
                }
            }
        }
        for (segment, rows) in located.segments.iter().filter(|(segment, _)| view.holds(segment)) {
            let alive = rows.iter().flatten().filter(|(_, row)| !segment.dead.get(*row));
            segment.patches.put(alive.map(|(at, row)| (*row, payloads[*at as usize])), memory)?;
        }
        Ok(())
    }

    /// Bytes of changed payloads of flushed points in memory.
    pub(crate) fn patch_bytes(&self) -> u64 {
        self.view.load().segments.iter().map(|segment| segment.patches.len() as u64 * PATCH_BYTES).sum()
    }

    /// Rotates: the active memtable becomes an immutable one; only the writer thread calls this, with no write in flight.
    pub(crate) fn rotate(&self) -> Result<bool> {
        let _change = self.change.lock();
        let view = self.view.load_full();
        if view.active.from() == CLEAN {
            return Ok(false);
        }
        let active =
            Arc::new(Memtable::new(view.active.generation() + 1, self.config.load_full(), &self.growing_account)?);
        let mut immutable = view.immutable.clone();
        immutable.push(view.active.clone());
        self.view.store(Arc::new(View { active, immutable, segments: view.segments.clone() }));
        Ok(true)
    }

    /// The first position that a replay needs for this collection; `applied`: all records before it are applied.
    pub(crate) fn pinned_from(&self, applied: Lsn) -> Lsn {
        let view = self.view.load();
        let oldest = view.memtables().map(|part| part.from()).min().unwrap_or(CLEAN);
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
const RETRIES: u32 = 50;

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
            for _ in 1..RETRIES {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_one_kind_is_told_until_it_ends_whatever_goes_on_beside_it() {
        let (all, progress) = (Progresses::default(), |what: &str, done| {
            let what = what.to_owned();
            Progress { what, done, total: 10, rate_per_s: 1.0, left_s: 1.0 }
        });
        let told = || all.first().map(|progress| (progress.what, progress.done));
        all.tell("merge", progress("merge: rows", 1));
        all.tell("flush", progress("flush: rows", 7));
        all.tell("merge", progress("merge: codes", 2));
        assert_eq!(told(), Some(("merge: codes".to_owned(), 2)));
        all.end("flush");
        assert_eq!(told(), Some(("merge: codes".to_owned(), 2)), "the end of one is not that of the other");
        all.tell("flush", progress("flush: rows", 3));
        all.end("merge");
        assert_eq!(told(), Some(("flush: rows".to_owned(), 3)));
        all.end("flush");
        assert_eq!(told(), None);
    }
}
