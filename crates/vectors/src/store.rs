//! The store: all collections of one data folder. This file is its front; the work is next door.
//!
//! ```text
//!   open:  manifest ─► segments ─► log replayed through the writer's own code ─► threads
//!   write: checked here, in the caller's thread ─► queue ─► `writer`
//!   read:  `search`, `read`, in the caller's thread
//! ```

use crate::api::*;
use crate::background;
use crate::catalog::{AliasChange, Catalog, Collections, Places};
use crate::catalog_cost::{self, alias_bytes, collection_bytes, config_bytes};
use crate::change;
use crate::changes::Changes;
use crate::check::check_name;
use crate::collection::{Collection, Located, View};
use crate::field_index::{self, Failures};
use crate::full::Full;
use crate::health::Health;
use crate::manifest::{self, AliasesJson, CatalogJson, CollectionJson, HeadJson};
use crate::op::{self, MetaOp, Op};
use crate::overlay::{self, Run};
use crate::queue::{CHANGES_MAX, Queue, Signal};
use crate::remembered::Remembered;
use crate::rest::{IdleMerge, Rest};
use crate::scratches::KeptScratches;
use crate::segment::Segment;
use crate::shared::{Accounts, Limits, MANIFEST_FLOOR, Plant, QUERIES_FLOOR, Shared};
use crate::writer::{Request, Writer};
use crate::{check, count, facet, lock, ordered, payload_write, read, residency, rest, search};
use parking_lot::{Mutex, RwLock};
use ramekin_base::limits::payload_max;
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Clock, Error, Kind, PointId, Result, Size, cancel};
use ramekin_disk::Disk;
use ramekin_fields::{Bitmaps, Filter, Order, Path as FieldPath};
use ramekin_log::{Log, Position};
use ramekin_memory::{Account, Budget, Reservation, YieldOrder};
use ramekin_pages::Pages;
use ramekin_storage::{Manifest, Storage, read_app};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Called once with what became of a write.
pub type Done = Box<dyn FnOnce(Result<Written>) + Send>;

/// What a store is opened with.
pub struct StoreOptions {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub pages: Pages,
    pub budget: Budget,
    /// Everything of the store is booked below this account.
    pub account: Account,
    pub clock: Arc<dyn Clock>,
    /// Threads of one index build.
    pub build_threads: usize,
    /// False: no threads; the owner calls [`Store::turn`]. The simulator lives in one thread.
    pub threads: bool,
}

/// All collections of one data folder. Clones are handles to the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    /// The writer, where no thread owns it.
    writer: Arc<Mutex<Option<Writer>>>,
    threads: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>,
}

/// Red collections that are named when the store is asked how it is.
const FAULTS_MAX: usize = 16;
/// Of the writer, the sealer and the merger.
const STACK_BYTES: usize = 1 << 20;
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

/// Aliases that are copied at a time while all are told.
const ALIASES_AT_A_TIME: usize = 256;
/// One thread for each change that may be under way.
const CHANGERS: [&str; CHANGES_MAX] = ["changer-0", "changer-1", "changer-2", "changer-3"];
/// Real queries that are kept to be asked again, all collections together.
const RESERVOIR_MAX: u64 = 2 << 20;
/// Writes count as held up for so long after one had to wait.
const HELD_MS: u64 = 1_000;
/// A part is written out for others who need memory once it is one of so many of what it may be.
const WORTH_WRITING: u64 = 8;
/// Between two looks whether who waits for the writer is still there.
const META_LOOK: Duration = Duration::from_millis(50);
/// Between two looks whether new points were written out.
const SHRINK_LOOK: Duration = Duration::from_millis(50);

impl Accounts {
    fn new(parent: &Account, limits: Limits) -> Result<Self> {
        let growing = parent.child(
            "growing",
            "points x (112 + vectors x (dim x 4 + 16)) + an open chunk a vector name, in steps of 64 KiB",
        );
        let accounts = Self {
            catalog: parent.child("catalog", catalog_cost::FORMULA).lasting(),
            patches: growing.child("patches", "changed payloads of sealed points x 64"),
            growing: growing.with_limit(limits.growing_bytes),
            segments: parent.child(
                "segments",
                "segments x 4 KiB + points / 8 + pages x 8 + ids pages x 16 + overlays + indexes of fields",
            ),
            seal: parent.child("seal", "buffers and index build of one seal").with_limit(limits.seal_work),
            merge: parent
                .child("merge", "rows x 4 + buffers and index build of one merge")
                .with_limit(limits.merge_work)
                .idling(),
            log: parent.child("log", "commit buffer + reads of payloads under way").lasting(),
            filters: parent.child(
                "filters",
                "rows of segments / 8, of filters that are asked or remembered; budget / 128 + 512 KiB",
            ),
            queries: parent
                .child("queries", "results x (336 + 208 x growing parts) + payloads and vectors returned + scratches")
                .brief(),
            reservoir: parent
                .child("reservoir", "real queries that are kept x dim x 4")
                .with_limit(RESERVOIR_MAX.min(limits.growing_bytes / 8)),
            manifest: parent.child("manifest", "collections x their configuration, while it is written"),
        };
        // What frees memory has its memory for good.
        accounts.seal.set_floor(limits.seal_work)?;
        accounts.merge.set_floor(limits.merge_work)?;
        accounts.manifest.set_floor(MANIFEST_FLOOR)?;
        accounts.queries.set_floor(QUERIES_FLOOR)?;
        Ok(accounts)
    }
}

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
        let remembered = Remembered::new(options.budget.clone(), accounts.filters.clone());
        let shared = Arc::new(Shared {
            pages: options.pages.clone(),
            budget: options.budget.clone(),
            storage,
            accounts,
            catalog: RwLock::new(catalog),
            queue: Queue::default(),
            log_reader: OnceLock::new(),
            operation: AtomicU64::new(head.operation),
            applied: AtomicU64::new(log_from),
            log_from: AtomicU64::new(log_from),
            trim_to: AtomicU64::new(log_from),
            manifest: Ranked::mutex(&lock::MANIFEST, ()),
            aliasing: Ranked::mutex(&lock::ALIASING, ()),
            seal_opens: Mutex::new(false),
            closed: OnceLock::new(),
            diverged: AtomicBool::new(false),
            watermark: manifest::Watermark::new(durable.end),
            manifest_dirty: AtomicBool::new(false),
            opening: AtomicBool::new(true),
            temp,
            sealed: Signal::default(),
            work: Signal::default(),
            scratches: Arc::default(),
            bitmaps,
            remembered,
            closing: AtomicBool::new(false),
            inline: AtomicBool::new(true),
            rest: Rest::default(),
            full: Full::default(),
            field_failures: Failures::default(),
            health: Health::default(),
            threads: Threads::default(),
            plant: OnceLock::new(),
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
        if !rest::turn(&shared) {
            residency::plan(&shared);
        }
        shared.budget.add_yielder(YieldOrder::Allocator, Arc::new(KeptScratches(Arc::downgrade(&shared.scratches))));
        shared.budget.add_yielder(YieldOrder::Idle, Arc::new(IdleMerge(Arc::downgrade(&shared))));
        let writer = Writer::new(shared.clone(), log);
        let store = Self { shared, writer: Arc::new(Mutex::new(Some(writer))), threads: Arc::default() };
        if store.shared.options.threads {
            store.start_threads()?;
        }
        Ok(store)
    }

    fn start_threads(&self) -> Result<()> {
        self.shared.inline.store(false, Ordering::SeqCst);
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
            spawn(name, Box::new(move || change::run(&shared)))?;
        }
        let shared = self.shared.clone();
        let write = move || {
            // However it ends: nobody waits for a writer that is gone.
            let _end = Closing(shared);
            while writer.turn(true) {}
        };
        spawn("writer", Box::new(write))?;
        let shared = self.shared.clone();
        spawn("sealer", Box::new(move || background::run(&shared, background::seal_turn)))?;
        let shared = self.shared.clone();
        spawn("merger", Box::new(move || background::run(&shared, background::merge_turn)))
    }

    /// One step of all that threads would do; for owners without threads. False: nothing was to be done.
    pub fn turn(&self) -> bool {
        let mut did = false;
        if let Some(writer) = self.writer.lock().as_mut() {
            did |= writer.has_work();
            writer.turn(false);
        }
        did |= background::seal_turn(&self.shared).unwrap_or(false);
        did | background::merge_turn(&self.shared).unwrap_or(false)
    }

    /// Only the writer's part of [`Store::turn`].
    pub fn turn_writer(&self) {
        if let Some(writer) = self.writer.lock().as_mut() {
            writer.turn(false);
        }
    }

    /// Has something happen at places of the store's work, by their names: `write`, `apply`, `seal`, `fold`, `merge`, `index`.
    #[doc(hidden)]
    pub fn plant_for_tests(&self, plant: Plant) {
        _ = self.shared.plant.set(plant);
    }

    /// Makes the newest points of a collection wait for a seal, however few they are.
    #[doc(hidden)]
    pub fn freeze_for_tests(&self, name: &str) -> Result<bool> {
        self.shared.find(name)?.freeze()
    }

    /// Makes the changed payloads of a collection's sealed points wait to be written out, however few they are.
    #[doc(hidden)]
    pub fn fold_for_tests(&self, name: &str) -> Result<()> {
        self.shared.find(name)?.fold_due.store(true, Ordering::SeqCst);
        self.shared.wake_background();
        Ok(())
    }

    /// Changed payloads of sealed points: how many are in memory, and how many files hold others.
    #[doc(hidden)]
    pub fn patches_for_tests(&self, name: &str) -> Result<(usize, usize)> {
        let view = self.shared.find(name)?.view.load_full();
        let changes = || view.segments.iter().map(|segment| &segment.changes);
        Ok((changes().map(Changes::len).sum(), changes().map(|changes| changes.runs().len()).sum()))
    }

    /// Sees through what was accepted, then stops the threads. Nothing is accepted any more.
    pub fn close(&self) {
        self.shared.queue.close();
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.work.raise();
        self.shared.sealed.raise();
        if let Some(writer) = self.writer.lock().as_mut() {
            while writer.turn(false) {}
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

    /// The budget has moved: floors and residency follow.
    pub fn rebudget(&self) -> Result<()> {
        rest::set_limits(&self.shared, self.shared.limits())?;
        residency::plan(&self.shared);
        self.shared.begin_reserve()?;
        Ok(())
    }

    /// The budget is about to become smaller: floors shrink, and new points that would have no room are written out,
    /// while there is memory for that. Waits for it, `at_most` so long.
    pub fn shrink(&self, budget: u64, at_most: Duration) -> Result<()> {
        let (shared, limits) = (&self.shared, Limits::of(budget));
        rest::set_limits(shared, limits)?;
        let until = shared.options.clock.now() + at_most;
        while shared.accounts.growing.used() > limits.growing_bytes && shared.options.clock.now() < until {
            let seen = shared.sealed.count();
            let largest = shared.largest_active();
            match largest {
                Some(collection) => shared.queue.put(Request::Freeze(collection))?,
                None if !shared.has_frozen() => break,
                None => {}
            }
            if shared.inline.load(Ordering::SeqCst) {
                self.turn();
            } else {
                shared.wake_background();
                shared.sealed.wait_past(seen, SHRINK_LOOK);
            }
        }
        Ok(())
    }

    fn meta(&self, op: impl FnOnce(&Shared) -> Result<Option<MetaOp>> + Send + 'static) -> Result<bool> {
        let (answer, answered) = mpsc::sync_channel(1);
        let done = Box::new(move |outcome| _ = answer.send(outcome));
        let asker = cancel::current();
        self.shared.queue.put(Request::Meta { op: Box::new(op), asker, done })?;
        if self.shared.inline.load(Ordering::SeqCst) {
            self.turn_writer();
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
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Error::closed("the server is shutting down")),
            }
        }
    }

    pub fn create_collection(&self, name: &str, config: CollectionConfig) -> Result<()> {
        check_name(name)?;
        check::config(&config)?;
        let name = name.to_owned();
        let create = move |shared: &Shared| {
            let number = shared.catalog.read().next_number;
            Ok(Some(MetaOp::Create { number, name, config }))
        };
        self.meta(create).map(|_| ())
    }

    pub fn patch_collection(&self, name: &str, patch: CollectionPatch) -> Result<()> {
        let name = name.to_owned();
        let change = move |shared: &Shared| {
            let collection = shared.find(&name)?;
            check::config(&patch.apply(&collection.config.load()))?;
            Ok(Some(MetaOp::Patch { number: collection.number, patch }))
        };
        self.meta(change).map(|_| ())
    }

    /// Gives a field of payloads an index, in the place of one that it may have, or takes its index. The index is built in
    /// the background; until then its answers are made from payloads. Returns the number of the last operation.
    pub fn set_index(&self, name: &str, path: FieldPath, index: Option<FieldConfig>) -> Result<u64> {
        let name = name.to_owned();
        let set = move |shared: &Shared| {
            let collection = shared.find(&name)?;
            let config = collection.config.load();
            let is_new = config.indexes.get(&path) != index.as_ref();
            Ok(is_new.then(|| MetaOp::Index { number: collection.number, path, index }))
        };
        self.meta(set)?;
        Ok(self.shared.operation.load(Ordering::SeqCst))
    }

    /// Whether the index of a field is still to be built for some segment.
    pub fn lacks_index(&self, name: &str, path: &FieldPath) -> Result<bool> {
        Ok(field_index::is_lacking(&*self.shared.find(name)?, Some(path)))
    }

    /// Removes a collection and the aliases that name it. False: it was not there.
    pub fn drop_collection(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.meta(move |shared| {
            let catalog = shared.catalog.read();
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

    pub fn info(&self, name: &str) -> Result<Info> {
        let collection = self.shared.find(name)?;
        let view = collection.view.load_full();
        let error = collection.fault();
        let status = match (&error, background::is_busy(&self.shared, &collection)) {
            (Some(_), _) => Status::Red,
            (None, true) => Status::Yellow,
            (None, false) => Status::Green,
        };
        let vectors = vector_counts(&view);
        let progress = collection.progress.lock().clone();
        let config = collection.config.load_full();
        Ok(Info {
            recall_measured: collection.reservoir.measured(),
            warnings: collection.reservoir.warning(config.recall).into_iter().collect(),
            indexed_points: field_index::points(&view, &config),
            new_points: field_index::new_points(&self.shared, &view, &config),
            config,
            status,
            optimizer: error.map_or(Ok(()), Err),
            points: view.live(),
            indexed_vectors: vectors.values().map(|count| count.sealed).sum(),
            vectors,
            segments: (view.segments.len() + view.frozen.len() + 1) as u64,
            progress,
            bytes_on_disk: view.segments.iter().map(|segment| segment.bytes_on_disk()).sum(),
            last_operation: self.shared.operation.load(Ordering::SeqCst),
        })
    }

    /// Why the store is not well, a line each: dead threads, writes that are refused, collections that are red. Empty: it is.
    pub fn faults(&self) -> Vec<String> {
        let shared = &self.shared;
        let dead =
            shared.threads.dead().into_iter().map(|(name, cause)| format!("the thread `{name}` is dead: {cause}"));
        let mut faults: Vec<String> = dead.chain(shared.health.worst()).collect();
        let collections = shared.collections();
        let red = collections.iter().filter_map(|held| Some(format!("collection `{}`: {}", held.name, held.fault()?)));
        faults.extend(red.take(FAULTS_MAX));
        faults
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
        self.shared.queue.put(Request::Write { collection, write, wait, memory, asker, done })
    }

    /// `Busy` where no write can be taken at the moment: whoever asks first need not decode what is refused.
    pub fn may_write(&self) -> Result<()> {
        self.shared.queue.has_place()
    }

    /// Writes out what is new, if that is worth it, for somebody who finds no memory: nobody else would do it before the next
    /// write, and in a store at rest what is new stays in memory. False: there is nothing that could be written out.
    pub fn write_out(&self) -> bool {
        let shared = &self.shared;
        if shared.has_waiting() {
            shared.wake_background();
            return true;
        }
        let least = shared.limits().seal_bytes / WORTH_WRITING;
        let largest = shared.largest_active().filter(|found| found.view.load().active.read().bytes() >= least);
        largest.is_some_and(|collection| shared.queue.put(Request::Freeze(collection)).is_ok())
    }

    /// Did a write have to wait within the last second, for a seal or because merges are behind?
    pub fn holds_writes(&self) -> bool {
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
        self.shared.read(&collection, || search::query(&self.shared, &collection, query))
    }

    /// Points by id, in the order asked; what is not there is left out.
    pub fn get(&self, name: &str, ids: &[PointId], parts: &Parts) -> Result<Held<Vec<Record>>> {
        let collection = self.find_with(name, parts)?;
        self.shared.read(&collection, || read::get(&self.shared, &collection, ids, parts))
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
        self.shared.read(&collection, || read::scroll(&self.shared, &collection, from, limit, filter, parts))
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
        self.shared.read(&collection, || ordered::scroll(&self.shared, &collection, order, 0..limit, filter, parts))
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
        self.shared.read(&collection, || facet::facet(&self.shared, &collection, path, limit, filter))
    }

    /// How many points pass a filter; where an estimate is enough, about.
    pub fn count(&self, name: &str, filter: &Filter, exact: bool) -> Result<u64> {
        let collection = self.shared.find(name)?;
        if !filter.is_empty() {
            return self.shared.read(&collection, || count::count(&self.shared, &collection, filter, exact));
        }
        // Of one moment: no point is on its way from one part to another.
        let _change = collection.change.lock();
        Ok(collection.view.load().live())
    }
}

/// Of each name, the vectors in segments and in memory.
fn vector_counts(view: &View) -> BTreeMap<String, VectorCount> {
    let mut counts = BTreeMap::<String, VectorCount>::new();
    for (meta, named) in view.segments.iter().flat_map(|segment| segment.vectors()) {
        counts.entry(meta.name.clone()).or_default().sealed += named.index.len() as u64;
    }
    for part in view.growing() {
        let part = part.read();
        for (name, _) in part.columns() {
            counts.entry(name.to_owned()).or_default().new += part.live_vectors(name);
        }
    }
    counts
}

/// The folder of builds' temporary files. What a crash left there is worth nothing.
fn empty_temp(disk: &dyn Disk, folder: &Path) -> Result<PathBuf> {
    let temp = folder.join("temp");
    for user in [background::SEAL, background::MERGE] {
        let folder = temp.join(user);
        disk.make_folder(&folder)?;
        for left in disk.list(&folder)? {
            disk.rename(&folder.join(left.name), None)?;
        }
    }
    Ok(temp)
}

/// Ends the queue with the writer.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.queue.end();
    }
}

/// What the catalog takes, counted while a store opens. Where it finds no memory it is let go of, and counted to its end:
/// then the least budget can be told.
#[derive(Default)]
struct Short {
    needed: u64,
    configs: HashSet<u64>,
    first: Option<Error>,
}

impl Short {
    fn count(&mut self, name: &str, config: &CollectionConfig) {
        self.needed += collection_bytes(name);
        if self.configs.insert(catalog_cost::hash(config)) {
            self.needed += config_bytes(config);
        }
    }

    /// What was made, or `None` if the memory is short.
    fn pass<T>(&mut self, shared: &Shared, made: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.is_short() {
            return Ok(None);
        }
        match made() {
            Err(error) if error.kind().is_memory() => {
                self.first = Some(error);
                shared.catalog.write().clear();
                Ok(None)
            }
            made => made.map(Some),
        }
    }

    fn is_short(&self) -> bool {
        self.first.is_some()
    }

    /// Nothing was short, or an error that names a budget that is enough. Of a larger one others have a share.
    fn check(&self, shared: &Shared) -> Result<()> {
        let Some(first) = &self.first else { return Ok(()) };
        let (budget, free) = (shared.budget.limit(), shared.budget.free());
        let missing = (self.needed + LEAVES_TO_OPEN).saturating_sub(free);
        let least = (budget + missing * 3 / 2 + (1 << 20)).next_multiple_of(1 << 20);
        Err(Error::no_memory(format!(
            "collections and aliases take {}, and {} are free for them, so it takes a budget of at least {} ({first})",
            Size(self.needed),
            Size(free),
            Size(least)
        )))
    }
}

/// What is to be free beside the catalog when a store has opened.
const LEAVES_TO_OPEN: u64 = 2 << 20;

fn head_of(manifest: &Manifest) -> Result<HeadJson> {
    read_app(manifest.whole().unwrap_or(&manifest.head.app))
}

/// Some of the aliases after one, each with its collection's name.
fn some_aliases(catalog: &Catalog, after: &str) -> Vec<(Box<str>, Arc<str>)> {
    let name = |number| catalog.by_number(number).map(|collection| collection.name.clone());
    let named = catalog.aliases_after(after).filter_map(|(alias, number)| Some((alias.clone(), name(number)?)));
    named.take(ALIASES_AT_A_TIME).collect()
}

/// Opens the collections and aliases that a manifest has.
fn open_catalog(shared: &Shared, manifest: &mut Manifest, short: &mut Short) -> Result<()> {
    let mut open = |json: CollectionJson| {
        short.count(&json.name, &json.config);
        let opened = || open_collection(shared, &json).map_err(|error| error.at(&json.name));
        if let Some((opened, places)) = short.pass(shared, opened)? {
            shared.catalog.write().insert(Arc::new(opened), places);
        }
        Ok(())
    };
    if let Some(whole) = manifest.whole() {
        let CatalogJson { collections, aliases } = read_app(whole)?;
        collections.into_iter().try_for_each(&mut open)?;
        let number = |name: &str| shared.catalog.read().by_name(name).map(|collection| collection.number);
        let aliases = aliases.into_iter().map(|(alias, name)| (alias.into(), number(&name))).collect();
        return restore_aliases(shared, aliases, short);
    }
    manifest.each_part(&mut |_, app| open(read_app(app)?))?;
    manifest.each_note(&mut |app| {
        let AliasesJson { aliases } = read_app(app)?;
        restore_aliases(shared, aliases, short)
    })?;
    if !short.is_short() {
        shared.catalog.write().drop_dangling();
    }
    Ok(())
}

fn restore_aliases(shared: &Shared, aliases: Vec<AliasChange>, short: &mut Short) -> Result<()> {
    let bytes = aliases.iter().filter(|(_, number)| number.is_some()).map(|(alias, _)| alias_bytes(alias)).sum();
    short.needed += bytes;
    if let Some(mut memory) = short.pass(shared, || shared.book_names(bytes, shared.room_beside_names()))? {
        let mut catalog = shared.catalog.write();
        aliases.into_iter().for_each(|alias| catalog.restore_alias(alias, &mut memory));
    }
    Ok(())
}

fn open_collection(shared: &Shared, json: &CollectionJson) -> Result<(Collection, Places)> {
    let config = shared.hold_config(json.config.clone(), shared.room_beside_names())?;
    let mut memory = shared.book_names(collection_bytes(&json.name), shared.room_beside_names())?;
    let (places, growing) = (Places::of(&mut memory), &shared.accounts.growing);
    let collection = Collection::new(json.number, &json.name, config, memory, growing, json.replay_from)?;
    let mut segments = Vec::with_capacity(json.segments.len());
    for kept in &json.segments {
        let file = shared.storage.open_file(&kept.file)?;
        let segment = Segment::open(&kept.file, file, &shared.accounts.segments)?;
        segment.listed.store(true, Ordering::SeqCst);
        if let Some(name) = &kept.dead {
            overlay::read_dead(shared, &segment, name, &shared.accounts.segments)?;
        }
        for name in &kept.payloads {
            let file = shared.storage.open_file(name)?;
            let run = Run::open(name, file, segment.meta.points, &shared.accounts.segments)?;
            segment.changes.add_run(Arc::new(run));
        }
        *segment.fields.write() = field_index::open_all(shared, &kept.fields, segment.meta.points)?;
        segments.push(Arc::new(segment));
    }
    _ = collection.swap(|view| View { active: view.active.clone(), frozen: Vec::new(), segments });
    collection.unwritten.store(false, Ordering::SeqCst);
    collection.written.store(manifest::fingerprint(&collection), Ordering::SeqCst);
    Ok((collection, places))
}

/// Opens the log and applies what the manifest does not hold. Where the growing part fills up, it is
/// sealed at once, so that replay fits a smaller budget than the one that wrote the log.
fn replay(shared: &Arc<Shared>, durable: Range<Position>, meta_from: Position, short: &mut Short) -> Result<Log> {
    let log_from = durable.start;
    let mut log = shared.storage.open_log(&shared.accounts.log, durable, &mut |_, _| Ok(()))?;
    if let Some(cut) = log.cut() {
        tracing::warn!(
            "the log ended in a write that was under way and is dropped, nobody was told that it was done: {cut}"
        );
    }
    _ = shared.log_reader.set(log.reader());
    log.replay(log_from, &mut |position, record| {
        let (sequence, op) = op::decode(record).map_err(|error| error.at(format!("log position {position}")))?;
        shared.operation.fetch_max(sequence, Ordering::SeqCst);
        // This record is not applied yet, and all before it are.
        shared.applied.store(position, Ordering::SeqCst);
        match op {
            Op::Meta(_) if position < meta_from => Ok(()),
            Op::Meta(op) => replay_meta(shared, op, position, short),
            // Nothing may be made of points while collections are missing.
            _ if short.is_short() => Ok(()),
            Op::Upsert { collection, batch, payloads_at } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                replay_room(shared, &collection, &batch)?;
                let parts = [(position, 0..batch.ids.len(), &payloads_at[..])];
                shared.apply_parts(&collection, &batch, &parts, sequence, Located::default())
            }
            Op::Delete { collection, ids } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                collection.apply_delete(&shared.pages, &ids, position, Located::default())
            }
            Op::Payloads { collection, ids, texts } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                payload_write::replay(shared, &collection, &ids, &texts, position)
            }
        }
    })?;
    short.check(shared)?;
    shared.applied.store(log.end(), Ordering::SeqCst);
    log.set_file_bytes(shared.limits().log_file_bytes());
    log.trim(log_from)?;
    Ok(log)
}

fn replay_meta(shared: &Shared, op: MetaOp, position: Position, short: &mut Short) -> Result<()> {
    let known = |number: u64| shared.catalog.read().by_number(number).is_some();
    if matches!(op, MetaOp::Create { number, .. } if known(number)) {
        return Ok(());
    }
    match &op {
        MetaOp::Create { name, config, .. } => short.count(name, config),
        op => short.needed += catalog_cost::op_bytes(op),
    }
    // Points that came before may be written out for it.
    let prepare = || loop {
        match shared.prepare(op.clone()) {
            Err(error) if error.kind().is_memory() => {
                if !shared.freeze_largest()? || !background::seal_waiting(shared)? {
                    return Err(error);
                }
            }
            prepared => return prepared,
        }
    };
    if let Some(change) = short.pass(shared, prepare)? {
        shared.apply_meta(change, position, position + 1);
    }
    Ok(())
}

/// The collection of a record, if the record is not yet in its files.
fn replayed(shared: &Shared, number: u64, position: Position) -> Option<Arc<Collection>> {
    let collection = shared.catalog.read().by_number(number).cloned()?;
    (position >= collection.replay_from.load(Ordering::SeqCst)).then_some(collection)
}

fn replay_room(shared: &Shared, collection: &Arc<Collection>, batch: &Batch) -> Result<()> {
    let bytes = crate::growing::Growing::bytes_for(batch);
    loop {
        let view = collection.view.load_full();
        let used = view.active.read().bytes();
        if used > 0 && used + bytes > shared.limits().seal_bytes {
            collection.freeze()?;
            background::seal_waiting(shared)?;
            continue;
        }
        match shared.promise_points(&view.active, bytes) {
            Ok(()) => return Ok(()),
            Err(error) => {
                if !shared.freeze_largest()? {
                    return Err(shared.check_sealing().err().unwrap_or(error));
                }
                background::seal_waiting(shared)?;
            }
        }
    }
}
