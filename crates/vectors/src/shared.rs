//! What the threads of a store share: the catalog, the files, the signals between them.
//!
//! ```text
//!   doors ──► queue ──► writer ──freeze──► sealer ──► files ──► manifest ──► trim_to ──► writer
//!                                          merger ──► files ──► manifest
//! ```

use crate::api::Batch;
use crate::catalog::Catalog;
use crate::changes::PATCH_BYTES;
use crate::collection::Collection;
use crate::field_index::Failures;
use crate::growing::Growing;
use crate::op::MetaOp;
use crate::queue::{Queue, Signal};
use crate::remembered::Remembered;
use crate::rest::{self, Rest};
use crate::store::StoreOptions;
use crate::writer::payload_places;
use parking_lot::{Mutex, RwLock};
use ramekin_ann::Scratch;
use ramekin_base::{Error, Result};
use ramekin_fields::Bitmaps;
use ramekin_log::{LogReader, Position};
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
    pub(crate) growing: Account,
    pub(crate) patches: Account,
    pub(crate) segments: Account,
    pub(crate) seal: Account,
    pub(crate) merge: Account,
    pub(crate) log: Account,
    pub(crate) queries: Account,
    /// Bits of rows that pass filters, kept for the next search.
    pub(crate) filters: Account,
    pub(crate) reservoir: Account,
    pub(crate) manifest: Account,
}

/// What one query and one manifest have for good.
pub(crate) const QUERIES_FLOOR: u64 = 1 << 20;
pub(crate) const MANIFEST_FLOOR: u64 = 512 << 10;

/// A write that fills a growing part waits so long for each segment that merges are behind, ...
const PAUSE_FOR_ONE: Duration = Duration::from_millis(50);
/// ... and no longer than this.
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// What opening the file of a seal takes for a moment, besides its tables.
const OPEN_BYTES: u64 = 128 << 10;
/// A scratch that a query with a great many results has made larger is not kept for the next one.
const SCRATCH_KEPT_MAX: u64 = 1 << 20;

/// Sizes that follow from the budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// All growing parts together.
    pub(crate) growing_bytes: u64,
    /// Changed payloads of sealed points, before they are written out.
    pub(crate) patch_bytes: u64,
    /// One growing part, before it is sealed.
    pub(crate) seal_bytes: u64,
    /// Log that may be pinned before the oldest part is sealed; writes wait at twice as much.
    pub(crate) log_bytes: u64,
    pub(crate) seal_work: u64,
    pub(crate) merge_work: u64,
}

impl Limits {
    pub(crate) fn of(budget: u64) -> Self {
        let growing_bytes = (budget / 8).clamp(2 << 20, 64 << 20);
        Self {
            growing_bytes,
            patch_bytes: growing_bytes / 8,
            seal_bytes: growing_bytes / 2,
            log_bytes: growing_bytes * 3 / 2,
            seal_work: (budget / 16).clamp(3 << 20, 64 << 20),
            merge_work: (budget * 3 / 16).clamp(4 << 20, 512 << 20),
        }
    }
}

pub(crate) struct Shared {
    pub(crate) options: StoreOptions,
    pub(crate) pages: Pages,
    pub(crate) budget: Budget,
    pub(crate) storage: Storage,
    pub(crate) accounts: Accounts,
    pub(crate) catalog: RwLock<Catalog>,
    pub(crate) queue: Queue,
    pub(crate) log_reader: OnceLock<LogReader>,
    /// Number of the last operation.
    pub(crate) operation: AtomicU64,
    /// All records before this position are applied.
    pub(crate) applied: AtomicU64,
    /// The log is needed from here on, as the last manifest says.
    pub(crate) log_from: AtomicU64,
    pub(crate) trim_to: AtomicU64,
    /// One manifest is written at a time.
    pub(crate) manifest: Mutex<()>,
    pub(crate) manifest_dirty: AtomicBool,
    /// Where builds keep what is too big for memory; emptied at start.
    pub(crate) temp: PathBuf,
    /// Raised after each seal and fold (done or failed).
    pub(crate) sealed: Signal,
    /// Raised when the background has something to look at.
    pub(crate) work: Signal,
    pub(crate) scratches: Mutex<Vec<Scratch>>,
    /// Of rows that pass filters.
    pub(crate) bitmaps: Arc<Bitmaps>,
    pub(crate) remembered: Remembered,
    pub(crate) closing: AtomicBool,
    /// Seals run in the writer's thread: no thread in the background (the simulator, and replay).
    pub(crate) inline: AtomicBool,
    pub(crate) rest: Rest,
    pub(crate) field_failures: Failures,
    /// When a write last waited for a seal, by [`Shared::now_ms`]; 0: never.
    pub(crate) waited_ms: AtomicU64,
}

impl Shared {
    pub(crate) fn limits(&self) -> Limits {
        Limits::of(self.budget.limit())
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.options.clock.now().as_millis() as u64
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_background(&self) {
        self.work.raise();
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Collection>> {
        self.catalog.read().find(name).cloned()
    }

    pub(crate) fn collections(&self) -> Vec<(String, Arc<Collection>)> {
        let catalog = self.catalog.read();
        catalog.collections.iter().map(|(name, collection)| (name.clone(), collection.clone())).collect()
    }

    pub(crate) fn log_reader(&self) -> Result<LogReader> {
        self.log_reader.get().cloned().ok_or_else(|| Error::bug("the log is not open yet"))
    }

    pub(crate) fn log_from(&self) -> Position {
        self.log_from.load(Ordering::SeqCst)
    }

    /// The last manifest needs the log from `position` on.
    pub(crate) fn set_log_from(&self, position: Position) {
        self.log_from.store(position, Ordering::SeqCst);
        self.trim_to.store(position, Ordering::SeqCst);
    }

    /// Applies an operation on names. Replay may meet one that the manifest holds already.
    pub(crate) fn apply_meta(&self, op: &MetaOp, position: Position, end: Position) -> Result<()> {
        let mut catalog = self.catalog.write();
        match op {
            MetaOp::Create { number, name, config } => {
                let collection = Collection::new(*number, config.clone(), &self.accounts.growing, position)?;
                catalog.next_number = catalog.next_number.max(number + 1);
                catalog.collections.insert(name.clone(), Arc::new(collection));
            }
            MetaOp::Drop { number } => {
                if let Some(collection) = catalog.remove(*number) {
                    collection.dropped.store(true, Ordering::SeqCst);
                    self.manifest_dirty.store(true, Ordering::SeqCst);
                    rest::plan_again(self);
                }
            }
            MetaOp::Patch { number, patch } => {
                if let Some(collection) = catalog.by_number(*number) {
                    collection.config.store(Arc::new(patch.apply(&collection.config.load())));
                    rest::plan_again(self);
                }
            }
            MetaOp::Index { number, path, index } => {
                if let Some(collection) = catalog.by_number(*number) {
                    collection.set_index(path, index.as_ref());
                    self.manifest_dirty.store(true, Ordering::SeqCst);
                    // Tables that are gone leave their room to others.
                    rest::plan_again(self);
                }
            }
            MetaOp::Aliases { actions } => catalog.apply_aliases(actions),
        }
        catalog.meta_from = end;
        Ok(())
    }

    /// Applies the points of an upsert that was logged in `parts`: position, points, places of their payloads.
    pub(crate) fn apply_parts(
        &self,
        collection: &Collection,
        batch: &Batch,
        parts: &[(Position, Range<usize>, &[u32])],
        sequence: u64,
    ) -> Result<()> {
        let Some((first, _, _)) = parts.first() else { return Ok(()) };
        let place = |point: usize| {
            let part = parts.partition_point(|(_, points, _)| points.end <= point);
            let (position, points, payloads_at) = &parts[part];
            payload_places(batch, points.start, *position, payloads_at)(point - points.start)
        };
        collection.apply_upsert(&self.pages, batch, *first, place, sequence)
    }

    /// Frees the log before `position`: freezes the part that pins it furthest back, and asks for the
    /// changed payloads that pin it to be written out.
    pub(crate) fn unpin(&self, position: Position) -> Result<()> {
        let collections = self.collections();
        for (_, collection) in collections.iter().filter(|(_, held)| held.view.load().patched_from() < position) {
            collection.fold_due.store(true, Ordering::SeqCst);
        }
        let pinned = collections.iter().map(|(_, held)| (held.view.load().active.from(), held));
        if let Some((_, collection)) = pinned.filter(|(from, _)| *from < position).min_by_key(|(from, _)| *from) {
            collection.freeze()?;
        }
        // What pins it no more may still be what the last manifest speaks of.
        if !self.has_waiting() {
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
        self.wake_background();
        Ok(())
    }

    /// Asks for the changed payloads of the collection that has the most of them to be written out. False: none has any.
    pub(crate) fn fold_largest(&self) -> bool {
        let sized = self.collections().into_iter().map(|(_, collection)| (collection.patch_bytes(), collection));
        match sized.max_by_key(|(bytes, _)| *bytes) {
            Some((bytes, collection)) if bytes > 0 => {
                collection.fold_due.store(true, Ordering::SeqCst);
                self.wake_background();
                true
            }
            _ => false,
        }
    }

    /// Memory for new points. They leave room to open the file that they will become: writing it has memory for good, but
    /// if opening it had to wait for memory that only it can free, both would wait for ever.
    pub(crate) fn promise_points(&self, active: &Growing, bytes: u64) -> Result<()> {
        let _to_open = self.accounts.segments.try_reserve(OPEN_BYTES + self.limits().seal_bytes / 16)?;
        active.promise(bytes)
    }

    /// Memory for the changed payloads of so many points; only then may they be logged and applied.
    pub(crate) fn promise_patches(&self, points: usize) -> Result<Reservation> {
        let (bytes, most) = (points as u64 * PATCH_BYTES, self.limits().patch_bytes);
        if self.accounts.patches.used() + bytes > most {
            return Err(Error::busy(format!(
                "changed payloads wait to be written out and hold all of {}; try again",
                ramekin_base::Size(most)
            )));
        }
        self.accounts.patches.try_reserve(bytes)
    }

    /// The collection whose active part holds the most memory, if one holds any.
    pub(crate) fn largest_active(&self) -> Option<Arc<Collection>> {
        let held = |collection: &Arc<Collection>| collection.view.load().active.read().bytes();
        let sized = self.collections().into_iter().map(|(_, collection)| (held(&collection), collection));
        sized.max_by_key(|(bytes, _)| *bytes).filter(|(bytes, _)| *bytes > 0).map(|(_, collection)| collection)
    }

    /// Freezes the active part that holds the most memory. False: none holds any.
    pub(crate) fn freeze_largest(&self) -> Result<bool> {
        self.largest_active().map_or(Ok(false), |collection| collection.freeze())
    }

    pub(crate) fn has_frozen(&self) -> bool {
        self.collections().iter().any(|(_, collection)| !collection.view.load().frozen.is_empty())
    }

    /// Does anything wait to be sealed or folded?
    pub(crate) fn has_waiting(&self) -> bool {
        self.collections().iter().any(|(_, collection)| {
            !collection.view.load().frozen.is_empty() || collection.fold_due.load(Ordering::SeqCst)
        })
    }

    /// Lets one seal or fold happen: in this thread where there is no background, else by waiting for it.
    pub(crate) fn seal_or_wait(&self, seen: u64) -> Result<()> {
        if self.inline.load(Ordering::SeqCst) {
            return crate::background::seal_one(self).map(|_| ());
        }
        if self.is_closing() {
            return Err(Error::closed("the server is shutting down"));
        }
        self.wake_background();
        self.waited_ms.store(self.now_ms(), Ordering::Relaxed);
        self.sealed.wait_past(seen, Duration::from_millis(500));
        self.waited_ms.store(self.now_ms(), Ordering::Relaxed);
        let failed = self.collections().into_iter().find_map(|(_, collection)| collection.error.lock().clone());
        match failed {
            Some(error) if self.has_waiting() => {
                Err(Error::busy(format!("what is new cannot be written out: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Slows writes down while merges are behind: searches pay for each segment. Never stops them, however long
    /// a merge takes.
    pub(crate) fn pause_for(&self, debt: usize) {
        if debt == 0 || self.inline.load(Ordering::SeqCst) {
            return;
        }
        let pause = PAUSE_FOR_ONE.saturating_mul(debt as u32).min(PAUSE_MOST);
        let until = self.options.clock.now() + pause;
        while !self.is_closing() && self.options.clock.now() < until {
            self.waited_ms.store(self.now_ms(), Ordering::Relaxed);
            self.sealed.wait_past(self.sealed.count(), until.saturating_sub(self.options.clock.now()));
        }
    }

    /// A scratch for one query, reserved; put back by [`Shared::put_scratch`].
    pub(crate) fn scratch(&self) -> Result<Scratch> {
        let kept = self.scratches.lock().pop();
        kept.map_or_else(|| Scratch::new(&self.accounts.queries), Ok)
    }

    pub(crate) fn put_scratch(&self, scratch: Scratch) {
        let mut scratches = self.scratches.lock();
        if scratches.len() < 16 && scratch.reserved_bytes() <= SCRATCH_KEPT_MAX {
            scratches.push(scratch);
        }
    }
}
