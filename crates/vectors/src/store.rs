//! The store: all collections of one data folder. This file is its front; the work is next door.
//!
//! ```text
//!   open:  manifest ─► segments ─► log replayed through the writer's own code ─► threads
//!   write: checked here, in the caller's thread ─► queue ─► `writer`
//!   read:  `search`, `read`, in the caller's thread
//! ```

use crate::api::*;
use crate::background;
use crate::catalog::{Catalog, CatalogJson, CollectionJson};
use crate::changes::Changes;
use crate::collection::{Collection, View};
use crate::field_index::{self, Failures};
use crate::op::{self, MetaOp, Op};
use crate::overlay::{self, Run};
use crate::queue::{Queue, Signal};
use crate::remembered::Remembered;
use crate::rest::{IdleMerge, Rest};
use crate::segment::Segment;
use crate::shared::{Accounts, Limits, MANIFEST_FLOOR, QUERIES_FLOOR, Shared};
use crate::writer::{Request, Writer};
use crate::{check, count, facet, ordered, payload_write, read, residency, rest, search};
use parking_lot::{Mutex, RwLock};
use ramekin_base::limits::{RESULTS_MAX, payload_max};
use ramekin_base::{Clock, Error, PointId, Result};
use ramekin_disk::Disk;
use ramekin_fields::{Bitmaps, Filter, Order, Path as FieldPath};
use ramekin_log::{Log, Position};
use ramekin_memory::{Account, Budget, Reservation, YieldOrder};
use ramekin_pages::Pages;
use ramekin_storage::Storage;
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

/// Real queries that are kept to be asked again, all collections together.
const RESERVOIR_MAX: u64 = 2 << 20;
/// Writes count as held up for so long after one had to wait.
const HELD_MS: u64 = 1_000;
/// Between two looks whether new points were written out.
const SHRINK_LOOK: Duration = Duration::from_millis(50);

impl Accounts {
    fn new(parent: &Account, limits: Limits) -> Result<Self> {
        let growing = parent.child(
            "growing",
            "points x (112 + vectors x (dim x 4 + 16)) + an open chunk a vector name, in steps of 64 KiB",
        );
        let accounts = Self {
            patches: growing.child("patches", "changed payloads of sealed points x 64"),
            growing: growing.with_limit(limits.growing_bytes),
            segments: parent.child(
                "segments",
                "segments x 4 KiB + points / 8 + pages x 8 + ids pages x 16 + overlays + indexes of fields",
            ),
            seal: parent.child("seal", "buffers and index build of one seal").with_limit(limits.seal_work),
            merge: parent
                .child("merge", "rows x 4 + buffers and index build of one merge")
                .with_limit(limits.merge_work),
            log: parent.child("log", "commit buffer + reads of payloads under way"),
            filters: parent.child(
                "filters",
                "rows of segments / 8, of filters that are asked or remembered; budget / 128 + 512 KiB",
            ),
            queries: parent
                .child("queries", "results x (336 + 208 x growing parts) + payloads and vectors returned + scratches"),
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
        let (storage, manifest) =
            Storage::open(options.disk.clone(), &options.folder, options.pages.clone(), &accounts.segments)?;
        let temp = empty_temp(&*options.disk, &options.folder)?;
        let json = match &manifest {
            Some(manifest) => manifest.app()?,
            None => CatalogJson::default(),
        };
        let durable = manifest.map_or(0..0, |manifest| manifest.log());
        let log_from = durable.start;
        let bitmaps = Bitmaps::new(&accounts.filters, &accounts.queries);
        let remembered = Remembered::new(options.budget.clone(), accounts.filters.clone());
        let shared = Arc::new(Shared {
            pages: options.pages.clone(),
            budget: options.budget.clone(),
            storage,
            accounts,
            catalog: RwLock::new(Catalog {
                next_number: json.next_number,
                aliases: json.aliases.clone(),
                meta_from: json.meta_from,
                ..Catalog::default()
            }),
            queue: Queue::default(),
            log_reader: OnceLock::new(),
            operation: AtomicU64::new(json.operation),
            applied: AtomicU64::new(log_from),
            log_from: AtomicU64::new(log_from),
            trim_to: AtomicU64::new(log_from),
            manifest: Mutex::new(()),
            manifest_dirty: AtomicBool::new(false),
            temp,
            sealed: Signal::default(),
            work: Signal::default(),
            scratches: Mutex::new(Vec::new()),
            bitmaps,
            remembered,
            closing: AtomicBool::new(false),
            inline: AtomicBool::new(true),
            rest: Rest::default(),
            field_failures: Failures::default(),
            waited_ms: AtomicU64::new(0),
            options,
        });
        for collection in &json.collections {
            let opened = open_collection(&shared, collection).map_err(|error| error.at(&collection.name))?;
            shared.catalog.write().collections.insert(collection.name.clone(), Arc::new(opened));
        }
        let log = replay(&shared, durable, json.meta_from)?;
        // With nothing to do it rests at once, and what is to be resident is there before the first query.
        if !rest::turn(&shared) {
            residency::plan(&shared);
        }
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
        let mut writer = self.writer.lock().take().ok_or_else(|| Error::bug("the writer was taken twice"))?;
        let mut threads = self.threads.lock();
        threads.push(spawn("writer", move || while writer.turn(true) {})?);
        let shared = self.shared.clone();
        threads.push(spawn("sealer", move || background::run(&shared, background::seal_turn))?);
        let shared = self.shared.clone();
        threads.push(spawn("merger", move || background::run(&shared, background::merge_turn))?);
        Ok(())
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
    }

    /// The budget has moved: floors and residency follow.
    pub fn rebudget(&self) -> Result<()> {
        rest::set_limits(&self.shared, self.shared.limits())?;
        residency::plan(&self.shared);
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
        self.shared.queue.put(Request::Meta { op: Box::new(op), done })?;
        if self.shared.inline.load(Ordering::SeqCst) {
            self.turn_writer();
        }
        answered.recv().map_err(|_| Error::closed("the server is shutting down"))?
    }

    pub fn create_collection(&self, name: &str, config: CollectionConfig) -> Result<()> {
        check::name("collection", name)?;
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
            Ok(catalog.collections.get(&name).map(|collection| MetaOp::Drop { number: collection.number }))
        })
    }

    pub fn change_aliases(&self, actions: Vec<AliasAction>) -> Result<()> {
        for action in &actions {
            if let AliasAction::Create { alias: new, .. } | AliasAction::Rename { to: new, .. } = action {
                check::name("alias", new)?;
            }
        }
        self.meta(move |_| Ok(Some(MetaOp::Aliases { actions }))).map(|_| ())
    }

    pub fn collections(&self) -> Vec<String> {
        self.shared.catalog.read().collections.keys().cloned().collect()
    }

    /// Each alias with its collection.
    pub fn aliases(&self) -> Vec<(String, String)> {
        self.shared.catalog.read().aliases.iter().map(|(alias, name)| (alias.clone(), name.clone())).collect()
    }

    pub fn info(&self, name: &str) -> Result<Info> {
        let collection = self.shared.find(name)?;
        let view = collection.view.load_full();
        let error = collection.error.lock().clone();
        let status = match (&error, background::is_busy(&self.shared, &collection)) {
            (Some(_), _) => Status::Red,
            (None, true) => Status::Yellow,
            (None, false) => Status::Green,
        };
        let indexed =
            |segment: &Arc<Segment>| segment.vectors().map(|(_, named)| named.index.len() as u64).sum::<u64>();
        let progress = collection.progress.lock().clone();
        let config = (**collection.config.load()).clone();
        Ok(Info {
            recall_measured: collection.reservoir.measured(),
            warnings: collection.reservoir.warning(config.recall).into_iter().collect(),
            indexed_points: field_index::points(&view, &config),
            config,
            status,
            optimizer: error.map_or(Ok(()), Err),
            points: view.live(),
            indexed_vectors: view.segments.iter().map(indexed).sum(),
            segments: (view.segments.len() + view.frozen.len() + 1) as u64,
            progress,
            bytes_on_disk: view.segments.iter().map(|segment| segment.bytes_on_disk()).sum(),
            last_operation: self.shared.operation.load(Ordering::SeqCst),
        })
    }

    pub fn config(&self, name: &str) -> Result<CollectionConfig> {
        Ok((**self.shared.find(name)?.config.load()).clone())
    }

    /// Hands a write to the writer; never blocks. `done` is called once, from the writer's thread, if
    /// and only if this returns `Ok`. `memory` is what the write's data holds; it is dropped with it.
    pub fn write(&self, name: &str, mut write: Write, wait: Wait, memory: Vec<Reservation>, done: Done) -> Result<()> {
        let collection = self.shared.find(name)?;
        let payload_max = payload_max(self.shared.budget.limit());
        check::write(&mut write, &collection.config.load(), payload_max)?;
        self.shared.queue.put(Request::Write { collection, write, wait, memory, done })
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
        search::query(&self.shared, &collection, query)
    }

    /// Points by id, in the order asked; what is not there is left out.
    pub fn get(&self, name: &str, ids: &[PointId], parts: &Parts) -> Result<Held<Vec<Record>>> {
        let collection = self.find_with(name, parts)?;
        read::get(&self.shared, &collection, ids, parts)
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
        check_limit(limit)?;
        let collection = self.find_with(name, parts)?;
        read::scroll(&self.shared, &collection, from, limit, filter, parts)
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
        check_limit(limit)?;
        ordered::scroll(&self.shared, &*self.find_with(name, parts)?, order, 0..limit, filter, parts)
    }

    /// The values of an indexed field that most of the points have that pass a filter, each with how many do.
    pub fn facet(&self, name: &str, path: &FieldPath, limit: usize, filter: &Filter) -> Result<Vec<(FacetValue, u64)>> {
        check_limit(limit)?;
        facet::facet(&self.shared, &*self.shared.find(name)?, path, limit, filter)
    }

    /// How many points pass a filter; where an estimate is enough, about.
    pub fn count(&self, name: &str, filter: &Filter, exact: bool) -> Result<u64> {
        let collection = self.shared.find(name)?;
        if !filter.is_empty() {
            return count::count(&self.shared, &collection, filter, exact);
        }
        // Of one moment: no point is on its way from one part to another.
        let _change = collection.change.lock();
        Ok(collection.view.load().live())
    }
}

fn check_limit(limit: usize) -> Result<()> {
    match limit <= RESULTS_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!("limit is {limit}; at most {RESULTS_MAX} are allowed"))),
    }
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

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(1 << 20);
    thread.spawn(work).map_err(|error| Error::io(format!("no thread for the {name}: {error}")))
}

fn open_collection(shared: &Shared, json: &CollectionJson) -> Result<Collection> {
    let collection = Collection::new(json.number, json.config.clone(), &shared.accounts.growing, json.replay_from)?;
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
    collection.swap(|view| View { active: view.active.clone(), frozen: Vec::new(), segments });
    Ok(collection)
}

/// Opens the log and applies what the manifest does not hold. Where the growing part fills up, it is
/// sealed at once, so that replay fits a smaller budget than the one that wrote the log.
fn replay(shared: &Arc<Shared>, durable: Range<Position>, meta_from: Position) -> Result<Log> {
    let log_from = durable.start;
    let mut log = shared.storage.open_log(&shared.accounts.log, durable, &mut |_, _| Ok(()))?;
    _ = shared.log_reader.set(log.reader());
    log.replay(log_from, &mut |position, record| {
        let (sequence, op) = op::decode(record).map_err(|error| error.at(format!("log position {position}")))?;
        shared.operation.fetch_max(sequence, Ordering::SeqCst);
        // This record is not applied yet, and all before it are.
        shared.applied.store(position, Ordering::SeqCst);
        match op {
            Op::Meta(_) if position < meta_from => Ok(()),
            Op::Meta(op) => replay_meta(shared, &op, position),
            Op::Upsert { collection, batch, payloads_at } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                replay_room(shared, &collection, &batch)?;
                shared.apply_parts(&collection, &batch, &[(position, 0..batch.ids.len(), &payloads_at)], sequence)
            }
            Op::Delete { collection, ids } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                collection.apply_delete(&shared.pages, &ids, position)
            }
            Op::Payloads { collection, ids, texts } => {
                let Some(collection) = replayed(shared, collection, position) else { return Ok(()) };
                payload_write::replay(shared, &collection, &ids, &texts, position)
            }
        }
    })?;
    shared.applied.store(log.end(), Ordering::SeqCst);
    // A file goes as a whole, so files are small against what the log may pin.
    log.set_file_bytes(shared.limits().growing_bytes / 2);
    log.trim(log_from)?;
    Ok(log)
}

fn replay_meta(shared: &Shared, op: &MetaOp, position: Position) -> Result<()> {
    let known = |number: &u64| shared.catalog.read().by_number(*number).is_some();
    match op {
        MetaOp::Create { number, .. } if known(number) => Ok(()),
        op => shared.apply_meta(op, position, position + 1),
    }
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
            while background::seal_one(shared)? {}
            continue;
        }
        match shared.promise_points(&view.active, bytes) {
            Ok(()) => return Ok(()),
            Err(error) => {
                if !shared.freeze_largest()? {
                    return Err(error);
                }
                while background::seal_one(shared)? {}
            }
        }
    }
}
