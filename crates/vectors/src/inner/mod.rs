//! What the threads of a store share: the catalog, the files, the signals between them.
//!
//! ```text
//!   doors ──► queue ──► writer ──rotate──► sealer ──► files ──► manifest ──► trim_to ──► writer
//!                                          merger ──► files ──► manifest
//! ```

pub(crate) mod damage;
mod full;
pub(crate) mod idle;
mod names;

use crate::api::Batch;
use crate::collection::catalog::{Catalog, Collections};
use crate::collection::health::{FaultKind, Health};
use crate::collection::{Collection, Located, Logged};
use crate::memtable::Memtable;
use crate::memtable::fields::BatchFields;
use crate::memtable::patches::PATCH_BYTES;
use crate::payload::log::payload_places;
use crate::query::env::QueryEnv;
use crate::state::accounts::{Accounts, Limits};
use crate::state::failures::Failures;
use crate::state::full::Full;
use crate::state::idle::IdleLending;
use crate::state::options::StoreOptions;
use crate::state::queue::Queue;
use crate::state::timings::Timings;
use crate::state::watermark::Watermark;
use parking_lot::{Mutex, RwLock};
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Error, Histogram, Kind, Result, Signal};
use ramekin_log::{LogReader, Lsn};
use ramekin_memory::{Budget, Reservation};
use ramekin_pages::Pages;
use ramekin_storage::Storage;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What opening the file of a flush takes for a moment, besides its tables.
const OPEN_BYTES: u64 = 128 << 10;

pub(crate) struct StoreInner {
    pub(crate) options: StoreOptions,
    pub(crate) pages: Pages,
    pub(crate) budget: Budget,
    /// What it works with, if that is less than the budget.
    pub(crate) share: AtomicU64,
    pub(crate) storage: Storage,
    pub(crate) accounts: Accounts,
    pub(crate) catalog: Ranked<RwLock<Catalog>>,
    pub(crate) queue: Queue,
    pub(crate) env: QueryEnv,
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
    pub(crate) watermark: Watermark,
    /// The store is not open yet: what was booked once is there again.
    pub(crate) opening: AtomicBool,
    /// Where builds keep what is too big for memory; emptied at start.
    pub(crate) temp: PathBuf,
    /// Raised after each flush and patch compaction (done or failed).
    pub(crate) flushed: Signal,
    /// Raised when the background has something to look at.
    pub(crate) work: Signal,
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
    /// When a write last waited for a flush, by [`StoreInner::now_ms`]; 0: never.
    pub(crate) waited_ms: AtomicU64,
}

impl StoreInner {
    pub(crate) fn limits(&self) -> Limits {
        Limits::of(self.share.load(Ordering::Relaxed).min(self.budget.limit()))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.options.clock.now().as_millis() as u64
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A place where a test may plant a panic.
    pub(crate) fn reach(&self, place: &'static str) {
        self.env.reach(place);
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
        self.env.log().cloned()
    }

    /// The number of an operation that begins.
    pub(crate) fn next_seqno(&self) -> u64 {
        self.seqno.fetch_add(1, Ordering::SeqCst) + 1
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
        if self.are_patches_full(points) {
            return Err(Error::busy(format!(
                "writes are stalled: {} of payload patches wait for compaction, which is the limit; retry",
                ramekin_base::Size(self.limits().patch_bytes)
            )));
        }
        self.accounts.patches.try_reserve(points as u64 * PATCH_BYTES)
    }

    /// Whether so many more would be above the limit of changed payloads, however much memory there is.
    pub(crate) fn are_patches_full(&self, points: usize) -> bool {
        self.accounts.patches.used() + points as u64 * PATCH_BYTES > self.limits().patch_bytes
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

    /// Rotates the active part with the most changed payloads: they go when it is flushed. False: none has any.
    pub(crate) fn rotate_most_changed(&self) -> Result<bool> {
        let changed = |collection: &Arc<Collection>| collection.view.load().active.moment.changes();
        let collections = self.collections();
        let sized = collections.iter().map(|collection| (changed(collection), collection));
        let most = sized.max_by_key(|(changes, _)| *changes).filter(|(changes, _)| *changes > 0);
        most.map_or(Ok(false), |(_, collection)| collection.rotate())
    }

    /// Bytes of the changed payloads of the collection that has the most of them.
    pub(crate) fn largest_patches(&self) -> u64 {
        self.collections().iter().map(|collection| collection.patch_bytes()).max().unwrap_or(0)
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
            let of_flush = collection.health.of(&FaultKind::Flush).filter(|_| is_immutable);
            of_flush.or_else(|| collection.health.of(&FaultKind::PatchCompaction))
        });
        match failed {
            Some(fault) if fault.error.kind() == Kind::NoSpace => {
                Err(Error::no_space(format!("the disk is full: the memtable cannot be flushed: {fault}")))
            }
            Some(fault) => Err(Error::busy(format!("writes are stalled: the memtable cannot be flushed: {fault}"))),
            None => Ok(()),
        }
    }

    /// Does `work` and notes how long it took, where it succeeded: what fails says so elsewhere.
    pub(crate) fn timed<T, E>(&self, to: &Histogram, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let began: Duration = self.options.clock.now();
        let done = work();
        if done.is_ok() {
            to.note(self.options.clock.now().saturating_sub(began));
        }
        done
    }
}
