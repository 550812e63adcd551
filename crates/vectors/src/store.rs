//! The store: all collections of one data folder. This file is its front; the work is next door.
//!
//! ```text
//!   open:  manifest ─► segments ─► log replayed through the writer's own code ─► threads
//!   write: checked here, in the caller's thread ─► queue ─► `writer`
//!   read:  `search`, `read`, in the caller's thread
//! ```

use crate::api::check::{self, check_name};
use crate::api::op::MetaOp;
use crate::api::*;
use crate::background::field_index;
use crate::background::{self, manifest, progress};
use crate::collection::Collection;
use crate::collection::catalog::{Catalog, Collections};
use crate::collection::health::Health;
use crate::inner::StoreInner;
use crate::inner::idle::{self, IdleMerge};
use crate::lock;
use crate::query::env::{Plant, QueryEnv};
use crate::query::filter_cache::FilterCache;
use crate::query::scratches::KeptScratches;
use crate::query::{count, facet, ordered, read, search};
use crate::recovery::{Short, head_of, open_catalog, replay};
use crate::residency::{self, idle_step};
use crate::segment::patch_tree::PatchTree;
use crate::state::accounts::{Accounts, Limits};
use crate::state::failures::Failures;
use crate::state::full::Full;
use crate::state::idle::IdleLending;
use crate::state::options::StoreOptions;
use crate::state::queue::{CHANGES_MAX, Queue};
use crate::state::request::{Done, Request};
use crate::state::timings::Timings;
use crate::state::watermark::Watermark;
use crate::write::{Writer, group};
use parking_lot::Mutex;
use ramekin_base::limits::payload_max;
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Error, Kind, PointId, Result, Signal, cancel};
use ramekin_disk::Disk;
use ramekin_fields::{Bitmaps, Filter, Order, Path as FieldPath};
use ramekin_memory::{ReclaimOrder, Reservation, held_by_job};
use ramekin_storage::Storage;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// All collections of one data folder. Clones are handles to the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<StoreInner>,
    /// The writer, where no thread owns it.
    writer: Arc<Mutex<Option<Writer>>>,
    threads: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>,
}

/// Of the writer, the sealer and the merger.
const STACK_BYTES: usize = 1 << 20;
/// Threads of an open store: those, and its changers.
pub const THREADS: usize = 3 + CHANGERS.len();
/// Aliases that are copied at a time while all are told.
const ALIASES_AT_A_TIME: usize = 256;
/// One thread for each change that may be under way.
const CHANGERS: [&str; CHANGES_MAX] = ["changer-0", "changer-1", "changer-2", "changer-3"];

/// The names of all collections at one moment, in order.
pub struct Names(Collections);

impl Names {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|collection| &*collection.name)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes count as held up for so long after one had to wait.
const HELD_MS: u64 = 1_000;
/// A part is written out for others who need memory once it is one of so many of what it may be.
const WORTH_WRITING: u64 = 8;
/// Between two looks whether who waits for the writer is still there.
const META_LOOK: Duration = Duration::from_millis(50);
/// Between two looks whether new points were written out.
const SHRINK_LOOK: Duration = Duration::from_millis(50);

impl Store {
    /// Opens the folder's store, or makes one: reads the manifest, verifies, replays the log.
    pub fn open(options: StoreOptions) -> Result<Self> {
        let limits = Limits::of(options.budget.limit());
        let accounts = Accounts::new(&options.account, limits)?;
        let disk = options.disk.clone();
        let (storage, manifest) =
            Storage::open(disk, &options.folder, options.pages.clone(), &accounts.segments, &accounts.manifest)?;
        let temp = empty_temp(&*options.disk, &options.folder)?;
        let head = manifest.as_ref().map(head_of).transpose()?.unwrap_or_default();
        let durable = manifest.as_ref().map_or(0..0, |manifest| manifest.head.log());
        let log_from = durable.start;
        let catalog = Catalog::new(head.next_number, head.meta_from, &accounts.catalog)?;
        let bitmaps = Bitmaps::new(&accounts.filters, &accounts.queries);
        let filter_cache = FilterCache::new(options.budget.clone(), accounts.filters.clone());
        let env = QueryEnv {
            pages: options.pages.clone(),
            account: accounts.queries.clone(),
            clock: options.clock.clone(),
            reservoir: accounts.reservoir.clone(),
            log: OnceLock::new(),
            scratches: Arc::default(),
            bitmaps,
            filter_cache,
            plant: OnceLock::new(),
        };
        let shared = Arc::new(StoreInner {
            pages: options.pages.clone(),
            budget: options.budget.clone(),
            share: AtomicU64::new(u64::MAX),
            storage,
            accounts,
            catalog: Ranked::rw(&lock::CATALOG, catalog),
            queue: Queue::default(),
            env,
            seqno: AtomicU64::new(head.operation),
            applied: AtomicU64::new(log_from),
            log_from: AtomicU64::new(log_from),
            trim_to: AtomicU64::new(log_from),
            manifest: Ranked::mutex(&lock::MANIFEST, ()),
            aliasing: Ranked::mutex(&lock::ALIASING, ()),
            flush_opens: Mutex::new(false),
            closed: OnceLock::new(),
            diverged: AtomicBool::new(false),
            watermark: Watermark::new(durable.end),
            manifest_dirty: AtomicBool::new(false),
            opening: AtomicBool::new(true),
            temp,
            flushed: Signal::default(),
            work: Signal::default(),
            closing: AtomicBool::new(false),
            single_threaded: AtomicBool::new(true),
            idle: IdleLending::default(),
            full: Full::default(),
            field_failures: Failures::default(),
            health: Health::default(),
            threads: Threads::default(),
            timings: Timings::default(),
            waited_ms: AtomicU64::new(0),
            options,
        });
        shared.storage.reserve().want(limits.reserve_bytes())?;
        let mut short = Short::default();
        if let Some(mut manifest) = manifest {
            open_catalog(&shared, &mut manifest, &mut short)?;
        }
        let log = replay(&shared, durable, head.meta_from, &mut short)?;
        shared.opening.store(false, Ordering::Relaxed);
        shared.begin_reserve()?;
        // With nothing to do it rests at once, and what is to be resident is there before the first query.
        if !idle_step::step(&shared, &|collection| background::is_busy(&shared, collection)) {
            residency::plan(&shared);
        }
        shared
            .budget
            .add_reclaimer(ReclaimOrder::Allocator, Arc::new(KeptScratches(Arc::downgrade(&shared.env.scratches))));
        shared.budget.add_reclaimer(ReclaimOrder::Idle, Arc::new(IdleMerge(Arc::downgrade(&shared))));
        let writer = Writer::new(shared.clone(), log);
        let store = Self { shared, writer: Arc::new(Mutex::new(Some(writer))), threads: Arc::default() };
        if store.shared.options.threads {
            store.start_threads()?;
        }
        Ok(store)
    }

    fn start_threads(&self) -> Result<()> {
        self.shared.single_threaded.store(false, Ordering::SeqCst);
        self.shared.pages.defer_removals();
        let mut writer = self.writer.lock().take().ok_or_else(|| Error::bug("the writer was taken twice"))?;
        let mut threads = self.threads.lock();
        let mut spawn = |name, work: Box<dyn FnOnce() + Send>| -> Result<()> {
            let work = move || {
                work();
                Ok(())
            };
            threads.push(self.shared.threads.spawn(name, STACK_BYTES, work)?);
            Ok(())
        };
        for name in CHANGERS {
            let shared = self.shared.clone();
            spawn(name, Box::new(move || group::run(&shared)))?;
        }
        let shared = self.shared.clone();
        let write = move || {
            // However it ends: nobody waits for a writer that is gone.
            let _end = Closing(shared);
            while writer.step(true) {}
        };
        spawn("writer", Box::new(write))?;
        let shared = self.shared.clone();
        spawn("sealer", Box::new(move || background::run(&shared, background::flush_step)))?;
        let shared = self.shared.clone();
        spawn("merger", Box::new(move || background::run(&shared, background::merge_step)))?;
        debug_assert_eq!(threads.len(), THREADS, "the account of the process counts them");
        Ok(())
    }

    /// One step of all that threads would do; for owners without threads. False: nothing was to be done.
    pub fn step(&self) -> bool {
        let mut did = false;
        if let Some(writer) = self.writer.lock().as_mut() {
            did |= writer.has_work();
            writer.step(false);
        }
        did |= background::flush_step(&self.shared).unwrap_or(false);
        did | background::merge_step(&self.shared).unwrap_or(false)
    }

    /// Only the writer's part of [`Store::step`].
    pub fn step_writer(&self) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.step(false);
        }
    }

    /// Has something happen at places of the store's work, by their names: `write`, `apply`, `seal`, `fold`, `merge`, `index`, `change`,
    /// `filter` (after each step over new points), and where a panic ends the thread: `writer`, `changer`, `background`.
    #[doc(hidden)]
    pub fn plant_for_tests(&self, plant: Plant) {
        _ = self.shared.env.plant.set(plant);
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<StoreInner> {
        &self.shared
    }

    /// Makes the newest points of a collection wait for a flush, however few they are.
    #[doc(hidden)]
    pub fn rotate_for_tests(&self, name: &str) -> Result<bool> {
        self.shared.find(name)?.rotate()
    }

    /// Makes the changed payloads of a collection's flushed points wait to be written out, however few they are.
    #[doc(hidden)]
    pub fn fold_for_tests(&self, name: &str) -> Result<()> {
        self.shared.find(name)?.compaction_due.store(true, Ordering::SeqCst);
        self.shared.wake_background();
        Ok(())
    }

    /// Changed payloads of flushed points: how many are in memory, and how many files hold others.
    #[doc(hidden)]
    pub fn patches_for_tests(&self, name: &str) -> Result<(usize, usize)> {
        let view = self.shared.find(name)?.view.load_full();
        let changes = || view.segments.iter().map(|segment| &segment.own.patches);
        Ok((changes().map(PatchTree::rows).sum(), changes().map(|changes| changes.runs().len()).sum()))
    }

    /// Sees through what was accepted, then stops the threads. Nothing is accepted any more.
    pub fn close(&self) {
        self.shared.queue.close();
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.work.raise();
        self.shared.flushed.raise();
        if let Some(writer) = self.writer.lock().as_mut() {
            while writer.step(false) {}
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            _ = thread.join();
        }
        // Without it the next start takes the log's own word for where it ends.
        if let Err(error) = manifest::raise_watermark(&self.shared, 0) {
            tracing::warn!("could not write how far the log is durable: {error}");
        }
        self.shared.pages.remove_dropped();
    }

    /// The budget, or the share of it, has moved: minimum reservations and residency follow.
    pub fn rebudget(&self) -> Result<()> {
        idle::set_limits(&self.shared, self.shared.limits())?;
        self.shared.field_failures.forget();
        residency::plan(&self.shared);
        self.shared.begin_reserve()?;
        Ok(())
    }

    /// What other stores leave of the budget: sizes follow it from now on, as they follow a budget.
    pub fn set_share(&self, share: u64) {
        self.shared.share.store(share, Ordering::Relaxed);
    }

    /// Searches and writes since it was opened, of collections that are there.
    pub fn requests(&self) -> u64 {
        let searches = self.shared.collections().iter().map(|collection| collection.usage.asked()).sum::<u64>();
        searches + self.shared.seqno.load(Ordering::Relaxed)
    }

    /// The budget, or the share of it, is about to become smaller: minimum reservations shrink, and new points that would have no room are written out,
    /// while there is memory for that. Waits for it, `at_most` so long.
    pub fn shrink(&self, budget: u64, at_most: Duration) -> Result<()> {
        let (shared, limits) = (&self.shared, Limits::of(budget));
        idle::set_limits(shared, limits)?;
        let until = shared.options.clock.now() + at_most;
        while shared.accounts.growing.used() > limits.memtable_bytes && shared.options.clock.now() < until {
            let seen = shared.flushed.count();
            let largest = shared.largest_active();
            match largest {
                Some(collection) => shared.queue.put(Request::Rotate(collection))?,
                None if !shared.has_immutable() => break,
                None => {}
            }
            if shared.single_threaded.load(Ordering::SeqCst) {
                self.step();
            } else {
                shared.wake_background();
                shared.flushed.wait_past(seen, SHRINK_LOOK);
            }
        }
        Ok(())
    }

    fn meta(&self, op: impl FnOnce(&Catalog) -> Result<Option<MetaOp>> + Send + 'static) -> Result<bool> {
        let (answer, answered) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| _ = answer.send(outcome));
        let asker = cancel::current();
        let put = self.shared.queue.put(Request::Meta { op: Box::new(op), brought: held_by_job(), asker, done });
        put.map_err(|error| self.shared.why_closed(error))?;
        if self.shared.single_threaded.load(Ordering::SeqCst) {
            self.step_writer();
        }
        loop {
            match answered.recv_timeout(META_LOOK) {
                Ok(outcome) => {
                    if outcome.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
                        // Whoever tries again finds the memory of what is new.
                        self.write_out();
                    }
                    return outcome;
                }
                // What was given up the writer does not begin; what has begun cannot be given up.
                Err(mpsc::RecvTimeoutError::Timeout) => cancel::check()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(match self.shared.queue.has_died() {
                        true => Error::closed("the writer has died, and what became of this only a restart tells"),
                        false => Error::closed("the server is shutting down"),
                    });
                }
            }
        }
    }

    pub fn create_collection(&self, name: &str, config: CollectionConfig) -> Result<()> {
        check_name(name)?;
        check::config(&config)?;
        check::flushes(&config, self.shared.limits().flush_work)?;
        let name = name.to_owned();
        let create = move |catalog: &Catalog| Ok(Some(MetaOp::Create { number: catalog.next_number, name, config }));
        self.meta(create).map(|_| ())
    }

    pub fn patch_collection(&self, name: &str, patch: CollectionPatch) -> Result<()> {
        let name = name.to_owned();
        let change = move |catalog: &Catalog| {
            let collection = catalog.find(&name)?;
            check::config(&patch.apply(&collection.config.load()))?;
            Ok(Some(MetaOp::Patch { number: collection.number, patch }))
        };
        self.meta(change).map(|_| ())
    }

    /// Gives a field of payloads an index, in the place of one that it may have, or takes its index. The index is built in
    /// the background; until then its answers are made from payloads. Returns the number of the last operation.
    pub fn set_index(&self, name: &str, path: FieldPath, index: Option<FieldConfig>) -> Result<u64> {
        let name = name.to_owned();
        let set = move |catalog: &Catalog| {
            let collection = catalog.find(&name)?;
            let config = collection.config.load();
            let is_new = config.indexes.get(&path) != index.as_ref();
            Ok(is_new.then(|| MetaOp::Index { number: collection.number, path, index }))
        };
        self.meta(set)?;
        Ok(self.shared.seqno.load(Ordering::SeqCst))
    }

    /// Whether the index of a field is still to be built for some segment.
    pub fn lacks_index(&self, name: &str, path: &FieldPath) -> Result<bool> {
        Ok(field_index::is_lacking(&*self.shared.find(name)?, Some(path)))
    }

    /// Removes a collection and the aliases that name it. False: it was not there.
    pub fn drop_collection(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.meta(move |catalog| {
            Ok(catalog.by_name(&name).map(|collection| MetaOp::Drop { number: collection.number }))
        })
    }

    pub fn change_aliases(&self, actions: Vec<AliasAction>) -> Result<()> {
        for action in &actions {
            if let AliasAction::Create { alias: new, .. } | AliasAction::Rename { to: new, .. } = action {
                check_name(new)?;
            }
        }
        self.meta(move |_| Ok(Some(MetaOp::Aliases { actions }))).map(|_| ())
    }

    /// All collections, in the order of their names.
    pub fn collections(&self) -> Names {
        Names(self.shared.collections())
    }

    /// Calls `each` with each alias and its collection, in order. What is changed meanwhile may be missed.
    pub fn each_alias(&self, each: &mut dyn FnMut(&str, &str) -> Result<()>) -> Result<()> {
        let mut after: Box<str> = "".into();
        loop {
            let some = some_aliases(&self.shared.catalog.read(), &after);
            some.iter().try_for_each(|(alias, collection)| each(alias, collection))?;
            match some.into_iter().next_back() {
                Some((last, _)) => after = last,
                None => return Ok(()),
            }
        }
    }

    /// How long commits of the log, flushes, patch compactions and merges took.
    pub fn timings(&self) -> &Timings {
        &self.shared.timings
    }

    pub fn config(&self, name: &str) -> Result<Arc<HeldConfig>> {
        Ok(self.shared.find(name)?.config.load_full())
    }

    /// Hands a write to the writer; never blocks. `done` is called once, from a thread of the store, if
    /// and only if this returns `Ok`. `memory` is what the write's data holds; it is dropped with it.
    pub fn write(&self, name: &str, mut write: Write, wait: Wait, memory: Vec<Reservation>, done: Done) -> Result<()> {
        let collection = self.shared.find(name)?;
        let payload_max = payload_max(self.shared.budget.limit());
        check::write(&mut write, &collection.config.load(), payload_max)?;
        let asker = cancel::current();
        let put = self.shared.queue.put(Request::Write { collection, write, wait, memory, asker, done });
        put.map_err(|error| self.shared.why_closed(error))
    }

    /// `Busy` where no write can be taken at the moment: whoever asks first need not decode what is refused.
    pub fn may_write(&self) -> Result<()> {
        self.shared.queue.has_place().map_err(|error| self.shared.why_closed(error))
    }

    /// Writes out what is new, if that is worth it, for somebody who finds no memory: nobody else would do it before the next
    /// write, and in an idle store what is new stays in memory. False: there is nothing that could be written out.
    pub fn write_out(&self) -> bool {
        let shared = &self.shared;
        if shared.has_waiting() {
            shared.wake_background();
            return true;
        }
        let least = shared.limits().flush_bytes / WORTH_WRITING;
        let largest = shared.largest_active().filter(|found| found.view.load().active.read().bytes() >= least);
        largest.is_some_and(|collection| shared.queue.put(Request::Rotate(collection)).is_ok())
    }

    /// Did a write have to wait within the last second, for a flush or because merges are behind?
    pub fn is_write_stalled(&self) -> bool {
        match self.shared.waited_ms.load(Ordering::Relaxed) {
            0 => false,
            waited => self.shared.now_ms().saturating_sub(waited) < HELD_MS,
        }
    }

    /// A collection that has the parts that are asked for.
    fn find_with(&self, name: &str, parts: &Parts) -> Result<Arc<Collection>> {
        let collection = self.shared.find(name)?;
        check::parts(parts, &collection.config.load())?;
        Ok(collection)
    }

    pub fn query(&self, name: &str, query: &Query) -> Result<(Held<Vec<Scored>>, Profile)> {
        let collection = self.find_with(name, &query.parts)?;
        self.shared.read(&collection, || search::query(&self.shared.env, &collection, query))
    }

    /// Points by id, in the order asked; what is not there is left out.
    pub fn get(&self, name: &str, ids: &[PointId], parts: &Parts) -> Result<Held<Vec<Record>>> {
        let collection = self.find_with(name, parts)?;
        self.shared.read(&collection, || read::get(&self.shared.env, &collection, ids, parts))
    }

    /// A page of the points that pass a filter, in id order.
    pub fn scroll(
        &self,
        name: &str,
        from: Option<PointId>,
        limit: usize,
        filter: &Filter,
        parts: &Parts,
    ) -> Result<Held<Page>> {
        let collection = self.find_with(name, parts)?;
        self.shared.read(&collection, || read::scroll(&self.shared.env, &collection, from, limit, filter, parts))
    }

    /// The first points that pass a filter in the order of an indexed field, each with the value it stands at.
    pub fn scroll_ordered(
        &self,
        name: &str,
        order: &Order,
        limit: usize,
        filter: &Filter,
        parts: &Parts,
    ) -> Result<Held<Vec<Record>>> {
        let collection = self.find_with(name, parts)?;
        self.shared.read(&collection, || ordered::scroll(&self.shared.env, &collection, order, 0..limit, filter, parts))
    }

    /// The values of an indexed field that most of the points have that pass a filter, each with how many do.
    pub fn facet(
        &self,
        name: &str,
        path: &FieldPath,
        limit: usize,
        filter: &Filter,
    ) -> Result<Held<Vec<(FacetValue, u64)>>> {
        let collection = self.shared.find(name)?;
        self.shared.read(&collection, || facet::facet(&self.shared.env, &collection, path, limit, filter))
    }

    /// How many points pass a filter; where an estimate is enough, about.
    pub fn count(&self, name: &str, filter: &Filter, exact: bool) -> Result<u64> {
        let collection = self.shared.find(name)?;
        if !filter.is_empty() {
            return self.shared.read(&collection, || count::count(&self.shared.env, &collection, filter, exact));
        }
        Ok(collection.view.load().live())
    }
}

/// The folder of builds' temporary files. What a crash left there is worth nothing.
fn empty_temp(disk: &dyn Disk, folder: &Path) -> Result<PathBuf> {
    let temp = folder.join("temp");
    for user in [progress::FLUSH, progress::MERGE] {
        let folder = temp.join(user);
        disk.make_folder(&folder)?;
        for left in disk.list(&folder)? {
            disk.rename(&folder.join(left.name), None)?;
        }
    }
    Ok(temp)
}

/// Ends the queue with the writer.
struct Closing(Arc<StoreInner>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.queue.end();
    }
}

/// Some of the aliases after one, each with its collection's name.
fn some_aliases(catalog: &Catalog, after: &str) -> Vec<(Box<str>, Arc<str>)> {
    let name = |number| catalog.by_number(number).map(|collection| collection.name.clone());
    let named = catalog.aliases_after(after).filter_map(|(alias, number)| Some((alias.clone(), name(number)?)));
    named.take(ALIASES_AT_A_TIME).collect()
}
