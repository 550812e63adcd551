//! A collection: its parts at one moment, and how a write changes them.
//!
//! ```text
//!   View ─┬─ active     memtable that takes writes
//!         ├─ immutable  memtables that wait to be flushed, oldest first       each part with the moment at which the
//!         └─ segments   immutable files, in no order                          view was published
//! ```
//!
//! Every live id stands in exactly one part. Readers load a view and keep it: it never changes, whatever is written, flushed or
//! merged meanwhile. The `change` lock is held to apply a batch and to publish the view that shows it: for steps in memory
//! only, so whatever a batch needs of the disk is looked up before ([`Located`]).

pub(crate) mod catalog;
pub(crate) mod health;
pub(crate) mod recall_monitor;
pub(crate) mod structures;
pub(crate) mod usage;

use crate::api::catalog_cost::HeldConfig;
use crate::api::op::CollectionId;
use crate::api::{Batch, FieldConfig, Progress};
use crate::collection::health::{FaultKind, Health};
use crate::collection::recall_monitor::RecallMonitor;
use crate::collection::structures::Structures;
use crate::collection::usage::Usage;
use crate::lock;
use crate::memtable::delete_bitmap::CHUNK_BYTES;
use crate::memtable::fields::BatchFields;
use crate::memtable::moment::{Moment, MomentRead};
use crate::memtable::patches::PATCH_BYTES;
use crate::memtable::{CLEAN, Memtable};
use crate::payload::log::PayloadAt;
use crate::segment::field::FieldIndex;
use crate::segment::{Segment, SegmentView};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{Error, Kind, PointId, Result};
use ramekin_fields::Path;
use ramekin_log::Lsn;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) struct View {
    pub(crate) active: MemtableView,
    pub(crate) immutable: Vec<MemtableView>,
    pub(crate) segments: Vec<SegmentView>,
}

/// A memtable at one moment.
#[derive(Clone)]
pub(crate) struct MemtableView {
    pub(crate) own: Arc<Memtable>,
    pub(crate) moment: Moment,
}

impl Deref for MemtableView {
    type Target = Arc<Memtable>;

    fn deref(&self) -> &Arc<Memtable> {
        &self.own
    }
}

impl MemtableView {
    pub(crate) fn new(own: Arc<Memtable>) -> Self {
        Self { moment: own.moment(), own }
    }

    /// What it held at the moment; its lists are locked meanwhile.
    pub(crate) fn read(&self) -> MomentRead<'_> {
        self.moment.read(&self.own)
    }

    fn again(&self) -> Self {
        Self::new(self.own.clone())
    }
}

impl View {
    /// The same parts, as they are now.
    fn again(&self) -> Self {
        Self {
            active: self.active.again(),
            immutable: self.immutable.iter().map(MemtableView::again).collect(),
            segments: self.segments.iter().map(|segment| segment.own.view()).collect(),
        }
    }

    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &MemtableView> {
        std::iter::once(&self.active).chain(self.immutable.iter().rev())
    }
    /// The first record that its changed payloads in memory need; [`CLEAN`]: none.
    pub(crate) fn patched_from(&self) -> Lsn {
        self.segments.iter().map(|segment| segment.patches.from()).min().unwrap_or(CLEAN)
    }

    /// The first record of the log that it needs; [`CLEAN`]: none.
    pub(crate) fn needs_from(&self) -> Lsn {
        self.memtables().map(|part| part.from()).min().unwrap_or(CLEAN).min(self.patched_from())
    }

    pub(crate) fn live(&self) -> u64 {
        let growing: u64 = self.memtables().map(|part| part.moment.live()).sum();
        growing + self.segments.iter().map(SegmentView::live).sum::<u64>()
    }
}

pub(crate) struct Collection {
    pub(crate) number: CollectionId,
    pub(crate) name: Arc<str>,
    pub(crate) config: ArcSwap<HeldConfig>,
    pub(crate) view: ArcSwap<View>,
    /// Held while a batch is applied or a view is swapped.
    pub(crate) change: Ranked<Mutex<()>>,
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
    /// Pays for copies of what says who is dead.
    deaths_account: Account,
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
        (growing, deaths): (&Account, &Account),
        replay_from: Lsn,
    ) -> Result<Self> {
        let active = MemtableView::new(Arc::new(Memtable::new(config.clone(), growing)?));
        Ok(Self {
            number,
            name: name.into(),
            config: ArcSwap::new(config),
            view: ArcSwap::from_pointee(View { active, immutable: Vec::new(), segments: Vec::new() }),
            change: Ranked::mutex(&lock::CHANGE, ()),
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
            deaths_account: deaths.clone(),
            _memory: memory,
        })
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
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
            let mut fields = segment.own.fields.write();
            let is_kept = |field: &Arc<FieldIndex>| {
                field.path != *path || index.is_some_and(|index| index.schema == field.schema)
            };
            *fields = fields.iter().filter(|field| is_kept(field)).cloned().collect();
        }
        self.publish();
    }

    /// Shows readers its parts as they are now.
    pub(crate) fn publish(&self) {
        let old = {
            let _change = self.change.lock();
            self.swap(View::again)
        };
        drop(old);
    }

    /// Replaces the view by what `make` makes of the present one. The caller holds `change`, and drops what comes back after it:
    /// the last user of a file closes it.
    #[must_use]
    pub(crate) fn swap(&self, make: impl FnOnce(&View) -> View) -> Arc<View> {
        let view = make(&self.view.load());
        self.view.swap(Arc::new(view))
    }

    /// Looks up where points stand in segments, and books what their deaths take.
    pub(crate) fn locate(&self, pages: &Pages, ids: &[PointId], kills: Kills) -> Result<Located> {
        let (mut located, view) = (Located::default(), self.view.load_full());
        located.look(pages, ids, view.segments.iter().map(|segment| segment.own.clone()))?;
        located.memory = Some(self.deaths_account.try_reserve(located.deaths_ahead_bytes(&view, ids.len(), kills))?);
        Ok(located)
    }

    /// Keeps changes out, with every segment of the view looked at and all deaths booked: a segment that came since `located` was
    /// made is looked at before, and what writes of the same group have added is booked.
    fn begin(
        &self,
        pages: &Pages,
        ids: &[PointId],
        located: &mut Located,
        kills: Kills,
    ) -> Result<(Guard<MutexGuard<'_, ()>>, Arc<View>, Reservation)> {
        loop {
            let change = self.change.lock();
            let view = self.view.load_full();
            let missing: Vec<_> =
                view.segments.iter().map(|held| &held.own).filter(|held| !located.knows(held)).collect();
            let needed = located.deaths_bytes(&view, ids.len(), kills);
            let is_booked = located.memory.as_ref().is_some_and(|memory| memory.bytes() >= needed);
            if missing.is_empty()
                && is_booked
                && let Some(memory) = located.memory.take()
            {
                return Ok((change, view, memory));
            }
            drop(change);
            located.look_patiently(pages, ids, &missing)?;
            let needed = located.deaths_bytes(&view, ids.len(), kills);
            // What is booked stays so: others would have it at once where memory is short.
            let mut memory = match located.memory.take() {
                Some(memory) => memory,
                None => self.deaths_account.try_reserve(0)?,
            };
            let more = needed.saturating_sub(memory.bytes());
            retry_while_busy(|| memory.grow(more))?;
            located.memory = Some(memory);
        }
    }

    /// Applies an upsert, and shows it: a reader sees both the new points and the death of the old ones, or neither.
    pub(crate) fn apply_upsert(
        &self,
        pages: &Pages,
        batch: &Batch,
        logged: Logged,
        payloads: impl Fn(usize) -> PayloadAt,
        fields: Option<BatchFields>,
        mut located: Located,
    ) -> Result<()> {
        let (change, view, mut memory) = self.begin(pages, &batch.ids, &mut located, Kills::All)?;
        view.active.touch(logged.lsn);
        view.active.insert(batch, payloads, fields, logged.seqno, &mut memory);
        view.immutable.iter().for_each(|part| part.kill(&batch.ids, &mut memory));
        located.kill(&mut memory);
        let old = self.swap(View::again);
        drop(change);
        drop((old, view));
        Ok(())
    }

    pub(crate) fn apply_delete(&self, pages: &Pages, ids: &[PointId], lsn: Lsn, mut located: Located) -> Result<()> {
        let (change, view, mut memory) = self.begin(pages, ids, &mut located, Kills::All)?;
        view.active.touch(lsn);
        view.memtables().for_each(|part| part.kill(ids, &mut memory));
        located.kill(&mut memory);
        let old = self.swap(View::again);
        drop(change);
        drop((old, view));
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
        let (change, view, _) = self.begin(pages, ids, &mut located, Kills::None)?;
        let mut changes: Vec<_> = ids.iter().copied().zip(payloads.iter().copied()).map(Some).collect();
        for (at, part) in view.memtables().enumerate() {
            part.set_payloads(&mut changes, at > 0, memory)?;
        }
        // In a replay a point may stand in two segments, the older one of which it leaves by a later record.
        for held in view.segments.iter().rev() {
            let rows = located.rows_in(&held.own);
            let dead = held.own.dead();
            let alive = rows.filter(|(_, row)| !dead.get(*row));
            let take = |(at, row): &Found| Some((*row, changes.get_mut(*at as usize)?.take()?.1));
            let changed: Vec<_> = alive.filter_map(take).collect();
            held.own.patches.put(changed, memory);
        }
        let old = self.swap(View::again);
        drop(change);
        drop((old, view));
        Ok(())
    }

    /// Bytes of changed payloads of flushed points in memory.
    pub(crate) fn patch_bytes(&self) -> u64 {
        self.view.load().segments.iter().map(|segment| segment.patches.len() as u64 * PATCH_BYTES).sum()
    }

    /// Rotates: the active memtable becomes an immutable one; only the writer thread calls this, with no write in flight.
    pub(crate) fn rotate(&self) -> Result<bool> {
        let change = self.change.lock();
        if self.view.load().active.from() == CLEAN {
            return Ok(false);
        }
        let new = Arc::new(Memtable::new(self.config.load_full(), &self.growing_account)?);
        let old = self.swap(|view| {
            let View { active, mut immutable, segments } = view.again();
            immutable.push(active);
            View { active: MemtableView::new(new), immutable, segments }
        });
        drop(change);
        drop(old);
        Ok(true)
    }

    /// The first position that a replay needs for this collection; `applied`: all records before it are applied.
    pub(crate) fn pinned_from(&self, applied: Lsn) -> Lsn {
        self.view.load().needs_from().min(applied)
    }
}

/// Where the points of a write stand in segments, and memory for their deaths: looked up and booked before it is logged, so
/// that neither an error of the disk nor a wait for it can come after.
#[derive(Default)]
pub(crate) struct Located {
    /// Of each segment that was looked at, which of the points stand in it, and their rows.
    segments: Vec<(Arc<Segment>, Lists)>,
    /// For deaths; `None`: it was not booked yet.
    memory: Option<Reservation>,
}

/// How often memory is asked for where a write is logged already: each time waits for who reads now, and in the
/// end the collection takes no write until a restart.
const RETRIES: u32 = 50;

fn retry_while_busy<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tried = attempt();
    for _ in 1..RETRIES {
        if !tried.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            break;
        }
        tried = attempt();
    }
    tried
}

/// Whether points of a write that stand in a part die there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kills {
    All,
    None,
}

/// Which of the points, and its row.
type Found = (u32, u32);

/// A list for each points that were looked up together.
type Lists = Vec<Box<[Found]>>;

/// Points that are looked up together: what a lookup holds of each while it goes on is not booked.
const LOOK_IDS: usize = 1024;

impl Located {
    /// Which of the points stand in a segment.
    fn rows_in<'a>(&'a self, segment: &Arc<Segment>) -> impl Iterator<Item = &'a Found> {
        let found = self.segments.iter().find(|(known, _)| Arc::ptr_eq(known, segment));
        found.into_iter().flat_map(|(_, rows)| rows.iter().flatten())
    }

    fn knows(&self, segment: &Arc<Segment>) -> bool {
        self.segments.iter().any(|(known, _)| Arc::ptr_eq(known, segment))
    }

    fn look(&mut self, pages: &Pages, ids: &[PointId], segments: impl Iterator<Item = Arc<Segment>>) -> Result<()> {
        for segment in segments {
            let (dead, mut at) = (segment.dead(), 0u32);
            let mut lists = Vec::with_capacity(ids.len().div_ceil(LOOK_IDS));
            for ids in ids.chunks(LOOK_IDS) {
                let rows = segment.find(pages, ids)?;
                let found = (at..).zip(rows).filter_map(|(at, row)| Some((at, row?)));
                // A dead row stays dead.
                lists.push(found.filter(|(_, row)| !dead.get(*row)).collect());
                at += ids.len() as u32;
            }
            self.segments.push((segment, lists));
        }
        Ok(())
    }

    /// For what is in the log already: where memory to read with is short for the moment, it is asked for again.
    fn look_patiently(&mut self, pages: &Pages, ids: &[PointId], segments: &[&Arc<Segment>]) -> Result<()> {
        let one =
            |segment: &&Arc<Segment>| retry_while_busy(|| self.look(pages, ids, std::iter::once(Arc::clone(segment))));
        segments.iter().try_for_each(one)
    }

    /// What deaths of so many points may take: chunks that a view holds are copied.
    fn deaths_bytes(&self, view: &View, points: usize, kills: Kills) -> u64 {
        if kills == Kills::None {
            return 0;
        }
        let of_segment =
            |(segment, lists): &(Arc<Segment>, Lists)| segment.deaths_bytes(lists.iter().map(|list| list.len()).sum());
        let sealed: u64 = self.segments.iter().map(of_segment).sum();
        sealed + view.memtables().map(|part| part.deaths_bytes(points)).sum::<u64>()
    }

    /// The same when they are applied: by then writes of the same group may have begun a chunk, and a memtable may have come.
    fn deaths_ahead_bytes(&self, view: &View, points: usize, kills: Kills) -> u64 {
        let ahead = (view.memtables().count() as u64 + 2) * CHUNK_BYTES;
        self.deaths_bytes(view, points, kills) + if kills == Kills::None { 0 } else { ahead }
    }

    /// Bytes of where so many points stand: each is alive in one segment at most.
    pub(crate) fn bytes(points: usize) -> u64 {
        (points * size_of::<Found>()) as u64
    }

    /// All of them are dead from now on.
    fn kill(self, memory: &mut Reservation) {
        for (segment, rows) in self.segments {
            segment.kill(rows.iter().flatten().map(|(_, row)| *row), memory);
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
