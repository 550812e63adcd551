//! Opening, moving and closing a node.
//!
//! ```text
//!   Folder::take(data)        made if missing, engine probed, locked: nobody else is in it now
//!        │                    (the server binds its port here, before any work is done)
//!        ▼
//!   Node::open(folder, ..)    budget, base, pages, store (replays its log), readers, watch
//!        ▼
//!   set_budget · ledger · readers ... · close
//! ```

use crate::arbiter::{Arbiter, IDLE_SHARE, Tenant};
use crate::base::{BASE_FORMULA, BaseCounts, base_bytes};
use crate::budget::{self, SavedBudget};
use crate::layout;
use crate::readers::{READERS, Readers};
use crate::shares::Wants;
use crate::watch::{Fault, Watch};
use parking_lot::Mutex;
use ramekin_base::supervise::Threads;
use ramekin_base::{Clock, Error, Kind, Result, Size};
use ramekin_disk::{Disk, Engine, FolderLock};
use ramekin_memory::{Account, Budget, Ledger, Reservation, allocator_decay, cgroup_limit, charge};
use ramekin_pages::Pages;
use ramekin_vectors::{Store, StoreOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Addresses for all page files together. Addresses cost nothing until they are used.
const VIRTUAL_BYTES: u64 = 1 << 40;
/// Threads of one index build.
const BUILD_THREADS: usize = 2;
/// Threads of the store that live as long as it does, each of which reads from the disk: writer, changers, sealer, merger.
const STORE_THREADS: u64 = ramekin_vectors::THREADS as u64;
/// The watch.
const NODE_THREADS: u64 = 1;
/// Longest sleep between two looks at the charge while the budget moves.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A data folder that is ours alone until this, and the node on it, are gone.
pub struct Folder {
    data: PathBuf,
    disk: Arc<dyn Disk>,
    lock: Arc<FolderLock>,
    note: String,
}

impl Folder {
    /// Makes the folder if it is missing, chooses the engine (`None`: the best that works) and locks it:
    /// `Busy` if another process has it.
    pub fn take(data: &Path, io: Option<Engine>) -> Result<Self> {
        let lock = Arc::new(FolderLock::make_and_take(data)?);
        let (disk, note) = ramekin_disk::probe(data, io)?;
        Ok(Self { data: data.to_owned(), disk, lock, note })
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }
}

/// What a node is opened with.
pub struct NodeOptions {
    /// The configured budget, bytes; `PUT /memory` may have kept another one.
    pub memory: u64,
    /// Bytes of the binary that are mapped, and threads of the process that are not the node's: for the `base` line.
    pub code_bytes: u64,
    pub other_threads: u64,
    /// What the doors take of a budget for good when they open: a start that fills memory again leaves it to them.
    pub doors: fn(u64) -> u64,
    pub clock: Arc<dyn Clock>,
    /// Called once if going on is pointless: the data folder is gone.
    pub on_fault: Fault,
}

/// An open data folder. Clones are handles to the same one.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    data: PathBuf,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    budget: Budget,
    /// Small buffers of the node itself.
    account: Account,
    configured: u64,
    least: u64,
    notes: Vec<String>,
    pages: Pages,
    store: Store,
    arbiter: Arbiter,
    readers: Readers,
    threads: Threads,
    watch: Mutex<Option<Watch>>,
    /// Kept until the doors open.
    doors: Mutex<Option<Reservation>>,
    /// The process itself: never given back.
    base: Reservation,
    _lock: Arc<FolderLock>,
}

impl Node {
    pub fn open(folder: Folder, options: NodeOptions) -> Result<Self> {
        let Folder { data, disk, lock, note } = folder;
        let NodeOptions { memory: configured, code_bytes, other_threads, doors, clock, on_fault } = options;

        let base = base_of(code_bytes, other_threads, cgroup_limit().is_some());
        let least = budget::least_of_all(base);
        let (budget, account, mut notes) = open_budget(&*disk, &data, configured, least)?;
        notes.insert(0, note);

        let base_account = budget.root().child("base", BASE_FORMULA);
        base_account.predict(base);
        base_account.set_min_reservation(base)?;
        let base = base_account.try_reserve(base)?;

        let pages_account = budget.root().child("pages", "resident pages x 4 KiB");
        let too_small = |error| too_small(error, &budget);
        let doors =
            budget.root().child("doors", "until they open").try_reserve(doors(budget.limit())).map_err(too_small)?;
        let pages = Pages::new(disk.clone(), pages_account, &budget, VIRTUAL_BYTES).map_err(too_small)?;
        let of_vectors = budget.root().child("vectors", "all collections");
        let store = open_store(&disk, &data, &budget, &of_vectors, &pages, &clock).map_err(too_small)?;
        let first = Vectors { store: store.clone(), least: base.bytes() + budget::LEAST_BESIDE_BASE };
        let arbiter = Arbiter::new(&budget, Arc::new(first), &of_vectors);
        let asked = store.clone();
        let threads = Threads::default();
        let readers = Readers::start(READERS, &threads, move || asked.is_write_stalled())?;
        let watch = Watch::start(budget.clone(), lock.clone(), &threads, on_fault)?;
        let inner = Inner {
            data,
            disk,
            clock,
            budget,
            account,
            configured,
            least,
            notes,
            pages,
            store,
            arbiter,
            readers,
            threads,
            watch: Mutex::new(Some(watch)),
            doors: Mutex::new(Some(doors)),
            base,
            _lock: lock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Lets go of what is kept for the doors, which open now.
    pub fn make_way_for_doors(&self) {
        drop(self.inner.doors.lock().take());
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    pub fn pages(&self) -> &Pages {
        &self.inner.pages
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.inner.disk
    }

    /// Threads for work that blocks on the disk.
    pub fn readers(&self) -> &Readers {
        &self.inner.readers
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::take(&self.inner.budget)
    }

    /// Why the node is not well, a line each; empty: it is. Reads no disk.
    pub fn faults(&self) -> Vec<String> {
        let dead = self.inner.threads.dead().into_iter();
        let dead = dead.map(|(name, cause)| format!("the thread `{name}` is dead: {cause}"));
        dead.chain(self.inner.store.faults()).collect()
    }

    /// What was found and chosen at the start, a line each, for people.
    pub fn notes(&self) -> &[String] {
        &self.inner.notes
    }

    pub fn data(&self) -> &Path {
        &self.inner.data
    }

    /// Bytes of the process itself.
    pub fn base_bytes(&self) -> u64 {
        self.inner.base.bytes()
    }

    /// The least budget that [`Node::set_budget`] takes: what the store of vectors needs, and what others must be able to have.
    pub fn least_budget(&self) -> u64 {
        self.inner.least + self.inner.arbiter.least_beside_first()
    }

    /// Moves the budget; `keep` also over restarts. Returns true once the kernel's charge is under it,
    /// false if that takes longer than `at_most` (it goes on meanwhile). Blocks.
    pub fn set_budget(&self, bytes: u64, keep: bool, at_most: Duration) -> Result<bool> {
        let inner = &self.inner;
        budget::check(bytes, self.least_budget())?;
        let deadline = inner.clock.now() + at_most;
        if bytes < inner.budget.limit() {
            // What has memory for good asks for less of it, and new points are written out, before others must yield:
            // under the smaller budget there may be no memory left to do so.
            inner.arbiter.shrink(bytes, at_most.min(SHRINK_MOST))?;
        }
        inner.budget.set_limit(bytes);
        while let Err(error) = inner.arbiter.settle() {
            let now = inner.clock.now();
            if !error.kind().is_memory() || now >= deadline {
                return Err(error);
            }
            // Requests under way still have what a store needs, or stores that nobody asks any more: they let go of it.
            inner.budget.root().wait_for_release(LOOK_EVERY.min(deadline - now));
            inner.budget.set_limit(bytes);
        }
        let mut over = inner.budget.set_limit(bytes);
        tracing::info!("budget moved to {}{}", Size(bytes), if keep { ", kept over restarts" } else { "" });
        if keep {
            let kept = SavedBudget { budget_bytes: bytes, configured_bytes: inner.configured };
            budget::write(&*inner.disk, &inner.data, &inner.account, kept)
                .map_err(|error| error.at("the budget holds now but could not be kept over restarts"))?;
        }
        loop {
            allocator_decay();
            if over == 0 && charge().charged <= bytes {
                return Ok(true);
            }
            let now = inner.clock.now();
            // A second request may have moved the budget again; its own answer counts then.
            if now >= deadline || inner.budget.limit() != bytes {
                return Ok(false);
            }
            inner.budget.root().wait_for_release(LOOK_EVERY.min(deadline - now));
            over = inner.budget.set_limit(bytes);
        }
    }

    /// Opens another store beside that of vectors, in a folder of its name: with what an idle store has, which the arbiter then
    /// changes as it is used. While it is opened it takes `open_bytes`: it may have to replay its log. Whoever opened it closes
    /// it, before the node.
    pub fn host<T: Tenant + 'static>(
        &self,
        name: &str,
        open_bytes: u64,
        open: impl FnOnce(Place) -> Result<T>,
    ) -> Result<Arc<T>> {
        let inner = &self.inner;
        let short = |error| too_small(error, &inner.budget);
        inner.arbiter.make_room(open_bytes.max(IDLE_SHARE), SHRINK_MOST).map_err(short)?;
        let account = inner.budget.root().child(name, "a store").movable();
        let place = Place {
            disk: inner.disk.clone(),
            folder: inner.data.join(name),
            pages: inner.pages.clone(),
            budget: inner.budget.clone(),
            account: account.clone(),
            share: IDLE_SHARE,
            clock: inner.clock.clone(),
        };
        let tenant = Arc::new(open(place).map_err(short)?);
        inner.arbiter.add(tenant.clone(), &account, &inner.threads)?;
        budget::check(inner.budget.limit(), self.least_budget())?;
        Ok(tenant)
    }

    /// What each store has of the budget: that of vectors, then others in the order in which they came.
    pub fn shares(&self) -> Vec<u64> {
        self.inner.arbiter.shares()
    }

    /// Drains the readers, flushes the store, joins the threads. Nothing is accepted afterwards.
    pub fn close(&self) {
        self.inner.arbiter.stop();
        self.inner.readers.close();
        if let Some(mut watch) = self.inner.watch.lock().take() {
            watch.stop();
        }
        self.inner.store.close();
    }
}

/// What a store of a node is opened with.
pub struct Place {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub pages: Pages,
    pub budget: Budget,
    /// All that the store takes is booked below it.
    pub account: Account,
    pub share: u64,
    pub clock: Arc<dyn Clock>,
}

/// The store of vectors as one that shares the budget: what it has of it counts the process itself, as a budget does.
struct Vectors {
    store: Store,
    least: u64,
}

impl Tenant for Vectors {
    fn wants(&self) -> Wants {
        Wants {
            idle: self.least,
            least: self.least,
            needed: self.least,
            most: u64::MAX,
            requests: self.store.requests(),
        }
    }

    fn shrink(&self, share: u64, at_most: Duration) -> Result<()> {
        self.store.shrink(share, at_most)?;
        self.store.set_share(share);
        Ok(())
    }

    fn resize(&self, share: u64) -> Result<()> {
        self.store.set_share(share);
        self.store.rebudget()
    }
}

/// What a node's process costs, of so many bytes of code and with so many threads that are not the node's.
pub fn base_of(code_bytes: u64, other_threads: u64, in_cgroup: bool) -> u64 {
    base_bytes(BaseCounts {
        code_bytes,
        threads: other_threads + READERS as u64 + STORE_THREADS + NODE_THREADS,
        rings: READERS as u64 + STORE_THREADS,
        in_cgroup,
    })
}

/// A smaller budget waits so long for new points to be written out.
const SHRINK_MOST: Duration = Duration::from_secs(10);

/// While a node opens nobody will release memory, so being short of it is final.
fn too_small(error: Error, budget: &Budget) -> Error {
    match error.kind() {
        kind if kind.is_memory() => Error::no_memory(format!(
            "a budget of {} is too small for the data in this folder: {error}; start with more memory",
            Size(budget.limit())
        )),
        _ => error,
    }
}

/// The budget that holds, and what to tell people about it.
fn open_budget(disk: &dyn Disk, data: &Path, configured: u64, least: u64) -> Result<(Budget, Account, Vec<String>)> {
    budget::check(configured, least)?;
    let budget = Budget::new(configured);
    let account = budget.root().child("node", "buffers of one page");
    let mut notes = Vec::new();
    match budget::read(disk, data, &account) {
        Ok(Some(kept)) if kept.configured_bytes == configured => match budget::check(kept.budget_bytes, least) {
            Ok(()) => {
                budget.set_limit(kept.budget_bytes);
                notes.push(format!("budget {}, kept from a PUT /memory", Size(kept.budget_bytes)));
            }
            Err(error) => notes.push(format!("the budget kept from a PUT /memory no longer holds: {error}")),
        },
        Ok(Some(kept)) => notes.push(format!(
            "the budget of {} kept from a PUT /memory gives way: the configured one was {} then and is {} now",
            Size(kept.budget_bytes),
            Size(kept.configured_bytes),
            Size(configured)
        )),
        Ok(None) => {}
        // A budget is a setting, not data: say so and go on with the configured one.
        Err(error) if error.kind() == Kind::Corrupt => notes.push(format!("the kept budget is passed over: {error}")),
        Err(error) => return Err(error),
    }
    notes.extend(budget::margin_warning(budget.limit()));
    Ok((budget, account, notes))
}

/// The one place that knows how the store is opened.
fn open_store(
    disk: &Arc<dyn Disk>,
    data: &Path,
    budget: &Budget,
    account: &Account,
    pages: &Pages,
    clock: &Arc<dyn Clock>,
) -> Result<Store> {
    Store::open(StoreOptions {
        disk: disk.clone(),
        folder: layout::open_vectors(&**disk, data)?,
        pages: pages.clone(),
        budget: budget.clone(),
        account: account.clone(),
        clock: clock.clone(),
        build_threads: BUILD_THREADS,
        threads: true,
    })
}
