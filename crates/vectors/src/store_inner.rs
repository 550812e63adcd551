//! What the threads of a store share: the catalog, the files, the signals between them.
//!
//! ```text
//!   doors ──► queue ──► writer ──rotate──► sealer ──► files ──► manifest ──► trim_to ──► writer
//!                                          merger ──► files ──► manifest
//! ```

use crate::api::{Batch, CollectionConfig, FieldConfig};
use crate::append::payload_places;
use crate::catalog::{Catalog, Change, Collections, Places, actions_bytes};
use crate::catalog_cost::{HeldConfig, collection_bytes, config_bytes, json_bytes};
use crate::collection::{Collection, Located, Logged};
use crate::field_index::{self, Failures};
use crate::filter_cache::FilterCache;
use crate::full::Full;
use crate::health::{FaultKind, Health};
use crate::idle::{self, IdleLending};
use crate::manifest;
use crate::memtable::{CLEAN, Memtable};
use crate::memtable_fields::BatchFields;
use crate::op::MetaOp;
use crate::patch_tree::PATCH_BYTES;
use crate::queue::Queue;
use crate::scratches::Scratches;
use crate::store::StoreOptions;
use crate::timings::Timings;
use parking_lot::{Mutex, RwLock};
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Error, Kind, Result, Signal, Size};
use ramekin_fields::{Bitmaps, Path};
use ramekin_log::{LogReader, Lsn};
use ramekin_memory::{Account, Budget, Reservation};
use ramekin_pages::Pages;
use ramekin_storage::Storage;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The accounts of a store.
pub(crate) struct Accounts {
    /// Collections, their configurations and their aliases, which stay in memory.
    pub(crate) catalog: Account,
    pub(crate) growing: Account,
    pub(crate) patches: Account,
    pub(crate) segments: Account,
    pub(crate) flush: Account,
    pub(crate) merge: Account,
    pub(crate) log: Account,
    pub(crate) queries: Account,
    /// Bits of rows that pass filters, kept for the next search.
    pub(crate) filters: Account,
    pub(crate) reservoir: Account,
    pub(crate) manifest: Account,
}

/// What one query and one manifest have for good.
pub(crate) const QUERIES_MIN_RESERVATION: u64 = 1 << 20;
pub(crate) const MANIFEST_MIN_RESERVATION: u64 = 512 << 10;

/// What the catalog leaves free at the moment, besides a share of the budget and what merges have lent, when it grows.
const NAMES_LEAVE: u64 = 512 << 10;

/// The share of the budget that what the allocator keeps counts as.
const KEPT_PART: u64 = 32;

/// Memory of a connection and of an answer, about: who asks for a name holds it until the answer is sent.
const ASKER_HOLDS: u64 = 64 << 10;

/// What it leaves while a store opens: less, so that what was accepted is accepted again.
const OPENING_LEAVES: u64 = 512 << 10;
/// Changes of names that wait for something else to write a manifest; the next one asks for it.
const CHANGES_WAIT: usize = 1024;

/// What opening the file of a flush takes for a moment, besides its tables.
const OPEN_BYTES: u64 = 128 << 10;

/// Sizes that follow from the budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// All memtables together.
    pub(crate) memtable_bytes: u64,
    /// Changed payloads of flushed points, before they are written out.
    pub(crate) patch_bytes: u64,
    /// One memtable, before it is flushed.
    pub(crate) flush_bytes: u64,
    /// Log that may be pinned before the oldest part is flushed; writes to what pins it wait at twice as much, all others at
    /// four times as much.
    pub(crate) log_bytes: u64,
    pub(crate) flush_work: u64,
    pub(crate) merge_work: u64,
}

impl Limits {
    pub(crate) fn of(budget: u64) -> Self {
        let memtable_bytes = (budget / 8).clamp(2 << 20, 64 << 20);
        Self {
            memtable_bytes,
            patch_bytes: memtable_bytes / 8,
            flush_bytes: memtable_bytes / 2,
            log_bytes: memtable_bytes * 3 / 2,
            flush_work: (budget / 16).clamp(3 << 20, 64 << 20),
            merge_work: (budget * 3 / 16).clamp(4 << 20, 512 << 20),
        }
    }
}

/// What a test has happen at a place, by its name.
pub type Plant = Box<dyn Fn(&'static str) + Send + Sync>;

pub(crate) struct StoreInner {
    pub(crate) options: StoreOptions,
    pub(crate) pages: Pages,
    pub(crate) budget: Budget,
    pub(crate) storage: Storage,
    pub(crate) accounts: Accounts,
    pub(crate) catalog: Ranked<RwLock<Catalog>>,
    pub(crate) queue: Queue,
    pub(crate) log_reader: OnceLock<LogReader>,
    /// Number of the last operation.
    pub(crate) seqno: AtomicU64,
    /// All records before this position are applied.
    pub(crate) applied: AtomicU64,
    /// The log is needed from here on, as the last manifest says.
    pub(crate) log_from: AtomicU64,
    pub(crate) trim_to: AtomicU64,
    /// One manifest is written at a time.
    pub(crate) manifest: Ranked<Mutex<()>>,
    /// Held while aliases change, and while all of them are written; before `catalog`.
    pub(crate) aliasing: Ranked<Mutex<()>>,
    pub(crate) manifest_dirty: AtomicBool,
    /// A flush has given memory to open its file: a merge leaves it where it is.
    pub(crate) flush_opens: Mutex<bool>,
    /// Why no manifest can be written until a restart. What is logged could not be written out, so nothing more is taken.
    pub(crate) closed: OnceLock<String>,
    /// The log holds what memory lacks: the log is needed from there on until a restart has applied it.
    pub(crate) diverged: AtomicBool,
    pub(crate) watermark: manifest::Watermark,
    /// The store is not open yet: what was booked once is there again.
    pub(crate) opening: AtomicBool,
    /// Where builds keep what is too big for memory; emptied at start.
    pub(crate) temp: PathBuf,
    /// Raised after each flush and patch compaction (done or failed).
    pub(crate) flushed: Signal,
    /// Raised when the background has something to look at.
    pub(crate) work: Signal,
    pub(crate) scratches: Arc<Scratches>,
    /// Of rows that pass filters.
    pub(crate) bitmaps: Arc<Bitmaps>,
    pub(crate) filter_cache: FilterCache,
    pub(crate) closing: AtomicBool,
    /// Flushes run in the writer's thread: no thread in the background (the simulator, and replay).
    pub(crate) single_threaded: AtomicBool,
    pub(crate) idle: IdleLending,
    pub(crate) full: Full,
    pub(crate) field_failures: Failures,
    /// What is wrong with the store as a whole.
    pub(crate) health: Health,
    pub(crate) threads: Threads,
    pub(crate) timings: Timings,
    /// Called at places where a test plants a panic.
    pub(crate) plant: OnceLock<Plant>,
    /// When a write last waited for a flush, by [`StoreInner::now_ms`]; 0: never.
    pub(crate) waited_ms: AtomicU64,
}

impl StoreInner {
    pub(crate) fn limits(&self) -> Limits {
        Limits::of(self.budget.limit())
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.options.clock.now().as_millis() as u64
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A place where a test may plant a panic.
    pub(crate) fn reach(&self, place: &'static str) {
        if let Some(plant) = self.plant.get() {
            plant(place);
        }
    }

    /// The way of each read of a collection: whatever damage or failure it meets is the collection's fault from then on.
    /// Indexes of fields that are damaged are taken out, and the read is done once more: without them it needs their pages
    /// no longer.
    pub(crate) fn read<T>(&self, collection: &Collection, read: impl Fn() -> Result<T>) -> Result<T> {
        let found = read();
        let Err(error) = &found else {
            collection.health.read_succeeded(|| self.now_ms());
            return found;
        };
        self.noted(collection, FaultKind::Read, error);
        match error.kind() == Kind::Corrupt && field_index::take_out_damaged(self, collection) {
            true => self.read(collection, read),
            false => found,
        }
    }

    /// Takes note of an error of the disk or of what it holds; others are not the collection's.
    pub(crate) fn noted(&self, collection: &Collection, kind: FaultKind, error: &Error) {
        if !matches!(error.kind(), Kind::Corrupt | Kind::Io) {
            return;
        }
        let name = self.catalog.read().name_of(collection.number).unwrap_or_default();
        match error.kind() {
            Kind::Corrupt => {
                let view = collection.view.load();
                let tell = &mut |damage: &str| tracing::error!(collection = &*name, "damage: {damage}");
                view.segments.iter().for_each(|segment| segment.tell_damage(tell));
                if !view.segments.iter().any(|segment| segment.damage().is_some()) {
                    collection.health.raise(FaultKind::Damage, Some(&name), error, self.now_ms());
                }
            }
            _ => collection.health.raise(kind, Some(&name), error, self.now_ms()),
        }
    }

    /// Takes note of what became of work in the background.
    pub(crate) fn note<T>(&self, collection: &Collection, kind: FaultKind, name: &str, outcome: &Result<T>) {
        if let Err(error) = outcome
            && error.kind() == Kind::Corrupt
        {
            self.noted(collection, kind.clone(), error);
        }
        collection.health.note(kind, name, outcome, self.now_ms());
    }

    /// Whether work of a kind failed and is not yet to be tried again. Where there is no background nobody waits.
    pub(crate) fn waits(&self, collection: &Collection, kind: &FaultKind) -> bool {
        !self.single_threaded.load(Ordering::SeqCst) && collection.health.waits(kind, self.now_ms())
    }

    pub(crate) fn wake_background(&self) {
        self.work.raise();
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Collection>> {
        self.catalog.read().find(name).cloned()
    }

    pub(crate) fn collections(&self) -> Collections {
        self.catalog.read().collections()
    }

    pub(crate) fn log_reader(&self) -> Result<LogReader> {
        self.log_reader.get().cloned().ok_or_else(|| Error::bug("the log is not open yet"))
    }

    pub(crate) fn log_from(&self) -> Lsn {
        self.log_from.load(Ordering::SeqCst)
    }

    /// All records before `end` are applied; none is said to be from the first one on that could not be.
    pub(crate) fn set_applied(&self, end: Lsn) {
        if !self.diverged.load(Ordering::SeqCst) {
            self.applied.store(end, Ordering::SeqCst);
        }
    }

    /// Fails where no manifest can be written any more.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.closed.get().map_or(Ok(()), |why| Err(Error::closed(why.clone())))
    }

    /// The last manifest needs the log from `position` on.
    pub(crate) fn set_log_from(&self, lsn: Lsn) {
        self.log_from.store(lsn, Ordering::SeqCst);
        self.trim_to.store(lsn, Ordering::SeqCst);
    }

    /// Checks an operation on names, books what it makes the catalog grow by, and makes it: what comes out cannot fail.
    pub(crate) fn prepare(&self, op: MetaOp) -> Result<Change> {
        let find = |number| self.catalog.read().by_number(number).cloned();
        Ok(match op {
            MetaOp::Create { number, name, config } => {
                let config = self.hold_config(config, self.room_beside_names())?;
                let mut memory = self.book_names(collection_bytes(&name), self.room_beside_names())?;
                let (places, growing) = (Places::of(&mut memory), &self.accounts.growing);
                Change::Create(Arc::new(Collection::new(number, &name, config, memory, growing, CLEAN)?), places)
            }
            MetaOp::Drop { number } => Change::Drop(number),
            MetaOp::Patch { number, patch } => {
                let Some(collection) = find(number) else { return Ok(Change::Nothing) };
                let room = self.room_beside_names();
                let _patch = self.book_names(config_bytes(&collection.config.load()) + json_bytes(&patch), room)?;
                let config = self.hold_config(patch.apply(&collection.config.load()), room)?;
                Change::Configure { collection, config, index: None }
            }
            MetaOp::Index { number, path, index } => {
                let Some(collection) = find(number) else { return Ok(Change::Nothing) };
                // Indexes are few and small, and an index that is taken away must not have to wait for room.
                let _copy = self.book_names(config_bytes(&collection.config.load()), 0)?;
                let mut config = (***collection.config.load()).clone();
                match &index {
                    Some(index) => config.indexes.insert(path.clone(), index.clone()),
                    None => config.indexes.remove(&path),
                };
                let config = self.hold_config(config, 0)?;
                Change::Configure { collection, config, index: Some((path, index)) }
            }
            MetaOp::Aliases { actions } => {
                let [aliases, changes] = actions_bytes(&actions);
                let room = self.room_beside_names();
                let memory = [self.book_names(aliases, room)?, self.book_names(changes, room)?];
                Change::Aliases { actions, memory }
            }
        })
    }

    /// The configuration that others have as well, or this one, booked with `room` left.
    pub(crate) fn hold_config(&self, config: CollectionConfig, room: u64) -> Result<Arc<HeldConfig>> {
        if let Some(held) = self.catalog.read().configs.find(&config) {
            return Ok(held);
        }
        let memory = self.book_names(config_bytes(&config), room)?;
        let held = HeldConfig::new(config, memory);
        self.catalog.write().configs.remember(&held);
        Ok(held)
    }

    /// What the catalog leaves for points and for merges when it grows, or nothing could be done with what it names.
    pub(crate) fn room_beside_names(&self) -> u64 {
        // What merges have for good comes and goes with the writes; a part of it that is missing now must be there again.
        let of_merges = self.limits().merge_work.saturating_sub(self.accounts.merge.secured());
        let of_points = match self.opening.load(Ordering::Relaxed) {
            true => OPENING_LEAVES,
            // In the long run what the allocator keeps is free: it counts as that share.
            false => NAMES_LEAVE + (self.budget.limit() / KEPT_PART).saturating_sub(self.budget.passing()),
        };
        of_points + of_merges.min(self.budget.limit() / 16)
    }

    /// Memory for the catalog, given only where `room` is free beside it.
    pub(crate) fn book_names(&self, bytes: u64, room: u64) -> Result<Reservation> {
        let catalog = &self.accounts.catalog;
        let booked = catalog.try_reserve(bytes + room);
        let mut booked = booked.map_err(|error| {
            // Names stay and so do segments: what does not fit beside them never will. What the allocator keeps was left out of
            // the room and is in use all the same; who asks has a connection, and room for its answer, until it is told.
            let all = catalog.used() + self.accounts.segments.used() + bytes;
            let kept = self.budget.passing().min(self.budget.limit() / KEPT_PART);
            match catalog.try_reserve_no_reclaim(all + room + kept + ASKER_HOLDS) {
                Err(never) if never.kind() == Kind::NoMemory => Error::no_memory(format!(
                    "no room for more collections, configurations or aliases: {} more needed beside the {} that they take, \
                     and {} must stay free for points and merges under the budget of {}",
                    Size(bytes),
                    Size(catalog.used()),
                    Size(room),
                    Size(self.budget.limit()),
                )),
                _ => error,
            }
        })?;
        booked.shrink(room);
        Ok(booked)
    }

    /// Does a change that was prepared and is in the log from `position` to `end`.
    pub(crate) fn apply_meta(&self, change: Change, lsn: Lsn, end: Lsn) {
        let _aliasing = matches!(change, Change::Aliases { .. }).then(|| self.aliasing.lock());
        let change = match change {
            // Before the names are locked: it waits for who reads the collection. Done twice it is the same.
            Change::Configure { collection, config, index } => {
                self.configure(&collection, config, index);
                Change::Nothing
            }
            change => change,
        };
        // Whose last handle this is goes after the lock, with its files.
        let gone;
        let mut catalog = self.catalog.write();
        match change {
            Change::Create(collection, places) => {
                collection.replay_from.store(lsn, Ordering::SeqCst);
                catalog.insert(collection, places);
            }
            Change::Drop(number) => {
                gone = catalog.remove(number);
                if let Some(collection) = &gone {
                    collection.dropped.store(true, Ordering::SeqCst);
                    self.manifest_dirty.store(true, Ordering::SeqCst);
                    idle::plan_again(self);
                }
            }
            Change::Aliases { actions, memory } => catalog.apply_aliases(actions, memory),
            Change::Configure { .. } | Change::Nothing => {}
        }
        catalog.meta_from = end;
        if catalog.unwritten >= CHANGES_WAIT {
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
    }

    fn configure(&self, collection: &Collection, config: Arc<HeldConfig>, index: Option<(Path, Option<FieldConfig>)>) {
        collection.config.store(config);
        collection.unwritten.store(true, Ordering::SeqCst);
        if let Some((path, index)) = index {
            collection.keep_index(&path, index.as_ref());
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
        // Wishes are others, and tables that are gone leave their room.
        idle::plan_again(self);
    }

    /// Applies the points of an upsert that was logged in `parts`: position, points, places of their payloads.
    pub(crate) fn apply_parts(
        &self,
        collection: &Collection,
        batch: &Batch,
        parts: &[(Lsn, Range<usize>, &[u32])],
        seqno: u64,
        located: Located,
    ) -> Result<()> {
        let Some((first, _, _)) = parts.first() else { return Ok(()) };
        let place = |point: usize| {
            let part = parts.partition_point(|(_, points, _)| points.end <= point);
            let (lsn, points, payloads_at) = &parts[part];
            payload_places(batch, points.start, *lsn, payloads_at)(point - points.start)
        };
        // Like the points themselves, it leaves room to open the file that they will become.
        let to_open = self.accounts.segments.try_reserve(OPEN_BYTES + self.limits().flush_bytes / 16).ok();
        let active = collection.view.load().active.clone();
        let fields = to_open.and_then(|_to_open| BatchFields::read(&active, batch, &self.accounts.growing));
        let logged = Logged { lsn: *first, seqno };
        collection.apply_upsert(&self.pages, batch, logged, place, fields, located)
    }

    /// Frees the log before `position`: rotates the part that pins it furthest back, and asks for the
    /// changed payloads that pin it to be written out.
    pub(crate) fn unpin(&self, lsn: Lsn) -> Result<()> {
        let collections = self.collections();
        for collection in collections.iter().filter(|held| held.view.load().patched_from() < lsn) {
            collection.compaction_due.store(true, Ordering::SeqCst);
        }
        let pinned = collections.iter().map(|held| (held.view.load().active.from(), held));
        if let Some((_, collection)) = pinned.filter(|(from, _)| *from < lsn).min_by_key(|(from, _)| *from) {
            collection.rotate()?;
        }
        // What pins it no more may still be what the last manifest speaks of.
        if !self.has_waiting() {
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
        self.wake_background();
        Ok(())
    }

    /// Asks for the changed payloads of the collection that has the most of them to be written out. False: none has any.
    pub(crate) fn compact_largest_patches(&self) -> bool {
        let collections = self.collections();
        let sized = collections.iter().map(|collection| (collection.patch_bytes(), collection));
        match sized.max_by_key(|(bytes, _)| *bytes) {
            Some((bytes, collection)) if bytes > 0 => {
                collection.compaction_due.store(true, Ordering::SeqCst);
                self.wake_background();
                true
            }
            _ => false,
        }
    }

    /// Memory for new points. They leave room to open the file that they will become: writing it has memory for good, but
    /// if opening it had to wait for memory that only it can free, both would wait for ever.
    pub(crate) fn promise_points(&self, active: &Memtable, bytes: u64) -> Result<()> {
        let _to_open = self.accounts.segments.try_reserve(OPEN_BYTES + self.limits().flush_bytes / 16)?;
        active.promise(bytes)
    }

    /// Memory for the changed payloads of so many points; only then may they be logged and applied.
    pub(crate) fn promise_patches(&self, points: usize) -> Result<Reservation> {
        let (bytes, most) = (points as u64 * PATCH_BYTES, self.limits().patch_bytes);
        if self.accounts.patches.used() + bytes > most {
            return Err(Error::busy(format!(
                "writes are stalled: {} of payload patches wait for compaction, which is the limit; retry",
                ramekin_base::Size(most)
            )));
        }
        self.accounts.patches.try_reserve(bytes)
    }

    /// The collection whose active part holds the most memory, if one holds any.
    pub(crate) fn largest_active(&self) -> Option<Arc<Collection>> {
        let held = |collection: &Arc<Collection>| collection.view.load().active.read().bytes();
        let collections = self.collections();
        let sized = collections.iter().map(|collection| (held(collection), collection));
        sized.max_by_key(|(bytes, _)| *bytes).filter(|(bytes, _)| *bytes > 0).map(|(_, collection)| collection.clone())
    }

    /// Rotates the active part that holds the most memory. False: none holds any.
    pub(crate) fn rotate_largest(&self) -> Result<bool> {
        self.largest_active().map_or(Ok(false), |collection| collection.rotate())
    }

    pub(crate) fn has_immutable(&self) -> bool {
        self.collections().iter().any(|collection| !collection.view.load().immutable.is_empty())
    }

    /// Does anything wait to be flushed or compacted, and may succeed? What failed keeps nobody waiting until it is tried again.
    pub(crate) fn has_waiting(&self) -> bool {
        let may_do = |collection: &Arc<Collection>, is_due, kind| is_due && !self.waits(collection, &kind);
        self.collections().iter().any(|collection| {
            may_do(collection, !collection.view.load().immutable.is_empty(), FaultKind::Flush)
                || may_do(collection, collection.compaction_due.load(Ordering::SeqCst), FaultKind::PatchCompaction)
        })
    }

    /// Lets one flush or patch compaction happen: in this thread where there is no background, else by waiting for it.
    pub(crate) fn flush_or_wait(&self, seen: u64) -> Result<()> {
        if self.single_threaded.load(Ordering::SeqCst) {
            return crate::background::flush_one(self).map(|_| ());
        }
        self.check_flushing()?;
        self.wait_for_flush(seen)?;
        self.check_flushing()
    }

    /// Waits for one, as far as there is any to come.
    pub(crate) fn wait_for_flush(&self, seen: u64) -> Result<()> {
        self.check_background()?;
        if self.is_closing() {
            return Err(Error::closed("the server is shutting down"));
        }
        self.wake_background();
        self.waited_ms.store(self.now_ms(), Ordering::Relaxed);
        self.flushed.wait_past(seen, Duration::from_millis(500));
        self.waited_ms.store(self.now_ms(), Ordering::Relaxed);
        Ok(())
    }

    /// What to say to who hears that nothing is taken: of a thread that is dead, its name and its cause.
    pub(crate) fn why_closed(&self, error: Error) -> Error {
        match error.kind() == Kind::Closed {
            true => self.check_background().err().unwrap_or(error),
            false => error,
        }
    }

    /// Fails where nothing can be written out until a restart.
    pub(crate) fn check_background(&self) -> Result<()> {
        self.check_open()?;
        self.threads.dead().into_iter().next().map_or(Ok(()), |(name, cause)| {
            Err(Error::closed(format!("writes are stalled: the thread `{name}` is dead: {cause}")))
        })
    }

    /// Fails where what waits to be written out cannot be, and nothing else is.
    pub(crate) fn check_flushing(&self) -> Result<()> {
        self.check_background()?;
        if self.has_waiting() {
            return Ok(());
        }
        let failed = self.collections().iter().find_map(|collection| {
            let is_immutable = !collection.view.load().immutable.is_empty();
            let of_flush = collection.health.failure(&FaultKind::Flush).filter(|_| is_immutable);
            of_flush.or_else(|| collection.health.failure(&FaultKind::PatchCompaction))
        });
        match failed {
            Some((Kind::NoSpace, error)) => {
                Err(Error::no_space(format!("the disk is full: the memtable cannot be flushed: {error}")))
            }
            Some((_, error)) => {
                Err(Error::busy(format!("writes are stalled: the memtable cannot be flushed: {error}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{MetricName, UNNAMED, VectorConfig};
    use crate::store::Store;
    use ramekin_base::SystemClock;
    use ramekin_disk::{Engine, probe};
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    #[test]
    fn an_index_that_waits_for_a_reader_of_its_collection_stops_no_look_at_names() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = probe(folder.path(), Some(Engine::Pread)).unwrap();
        let budget = Budget::new(64 << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let account = budget.root().child("vectors", "");
        let (folder, clock) = (folder.path().to_owned(), Arc::new(SystemClock::new()));
        let options = StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads: true };
        let store = Store::open(options).unwrap();
        let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(4, MetricName::Dot))]);
        store.create_collection("c", CollectionConfig::new(vectors)).unwrap();
        let collection = store.shared().find("c").unwrap();
        std::thread::scope(|scope| {
            let (go, goes_on) = mpsc::sync_channel::<()>(0);
            let (begun, begins) = mpsc::sync_channel(0);
            let part = collection.view.load().active.clone();
            scope.spawn(move || {
                let _reading = part.read();
                begun.send(()).unwrap();
                _ = goes_on.recv();
            });
            begins.recv().unwrap();
            let path = Path::parse("a").unwrap();
            let index = FieldConfig { schema: Arc::new(ramekin_fields::Schema::Bool), client_config: None };
            let set = scope.spawn(|| store.set_index("c", path, Some(index)).unwrap());
            // From then on the writer waits for who reads.
            while collection.config.load().indexes.is_empty() {
                std::thread::yield_now();
            }
            let (asked, names) = mpsc::sync_channel(1);
            let named = &store;
            scope.spawn(move || _ = asked.send((named.collections().len(), named.config("c").is_ok())));
            let names = names.recv_timeout(Duration::from_secs(30));
            drop(go);
            assert_eq!(names, Ok((1, true)), "the names wait for the reader");
            set.join().unwrap();
        });
        assert!(!collection.view.load().active.read().fields().is_empty());
        store.close();
    }
}
