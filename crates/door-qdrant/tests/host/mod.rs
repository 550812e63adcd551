//! A door over a real store in a fresh folder.

use ramekin_base::{Error, Lane, SystemClock};
use ramekin_disk::Disk;
use ramekin_door_qdrant::{Door, Host, Job, Keys, Planner, router};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::{Store, StoreOptions};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};

/// A budget that the charge does not come under in time.
#[allow(dead_code, reason = "each test uses a part")]
pub const NEVER_REACHED: u64 = 333 << 20;

#[allow(dead_code, reason = "each test uses a part")]
pub struct House {
    pub door: Door,
    pub budget: Budget,
    is_shut: Arc<(Mutex<bool>, Condvar)>,
    pub store: Store,
    _folder: tempfile::TempDir,
}

#[allow(dead_code, reason = "each test uses a part")]
impl House {
    /// While it is shut, the pool begins no job but short ones.
    pub fn shut_pool(&self, shut: bool) {
        *self.is_shut.0.lock().unwrap() = shut;
        self.is_shut.1.notify_all();
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// Opens a door on a budget of so many MiB.
#[allow(dead_code, reason = "each test uses a part")]
pub fn open(megabytes: u64, keys: Keys) -> House {
    open_with(megabytes, keys, Arc::new(|wanted| Ok(serde_json::json!({"planned": wanted.expected.len()}))))
}

/// The same with another planner: the one piece of work of a request that a test can hand in.
#[allow(dead_code, reason = "each test uses a part")]
pub fn open_with(megabytes: u64, keys: Keys, plan: Arc<Planner>) -> House {
    open_for(megabytes, keys, plan, None)
}

/// The same for pages of an origin.
#[allow(dead_code, reason = "each test uses a part")]
pub fn open_for(megabytes: u64, keys: Keys, plan: Arc<Planner>, cors: Option<String>) -> House {
    let folder = tempfile::tempdir().unwrap();
    let (disk, _) = ramekin_disk::probe(folder.path(), None).unwrap();
    build(megabytes, keys, plan, cors, disk, folder)
}

/// A door on a disk that a test has in its hands.
#[allow(dead_code, reason = "each test uses a part")]
pub fn open_on(disk: Arc<dyn Disk>, megabytes: u64) -> House {
    let plan: Arc<Planner> = Arc::new(|_| Ok(serde_json::Value::Null));
    build(megabytes, Keys::default(), plan, None, disk, tempfile::tempdir().unwrap())
}

/// Threads for what is not short.
const LONG_THREADS: usize = 2;

/// So many threads, which begin a job only where they are not shut.
fn pool(threads: usize, is_shut: Arc<(Mutex<bool>, Condvar)>) -> SyncSender<Job> {
    let (jobs, queue) = sync_channel::<Job>(64);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..threads {
        let (queue, is_shut) = (queue.clone(), is_shut.clone());
        std::thread::spawn(move || {
            let next = || queue.lock().unwrap().recv();
            while let Ok(job) = next() {
                let (is_shut, changed) = &*is_shut;
                drop(changed.wait_while(is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
                job();
            }
        });
    }
    jobs
}

fn build(
    megabytes: u64,
    keys: Keys,
    plan: Arc<Planner>,
    cors: Option<String>,
    disk: Arc<dyn Disk>,
    folder: tempfile::TempDir,
) -> House {
    let budget = Budget::new(megabytes << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
    let options = StoreOptions {
        disk,
        folder: folder.path().to_owned(),
        pages,
        budget: budget.clone(),
        account: budget.root().child("vectors", ""),
        clock: Arc::new(SystemClock::new()),
        build_threads: 1,
        threads: true,
    };
    let store = Store::open(options).unwrap();
    let is_shut: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let (long, short) = (pool(LONG_THREADS, is_shut.clone()), pool(1, Arc::default()));
    let of_door = budget.clone();
    let host = Host {
        store: store.clone(),
        budget: budget.clone(),
        run: Arc::new(move |lane, job| {
            let jobs = if lane == Lane::Short { &short } else { &long };
            jobs.try_send(job).map_err(|_| Error::busy("the pool is full"))
        }),
        set_budget: Arc::new(move |bytes, _, at_most| {
            of_door.set_limit(bytes);
            if bytes == NEVER_REACHED {
                // Nobody notifies it.
                drop(Condvar::new().wait_timeout(Mutex::new(()).lock().unwrap(), at_most).unwrap());
            }
            Ok(bytes != NEVER_REACHED)
        }),
        least_budget: 20 << 20,
        faults: {
            let store = store.clone();
            Arc::new(move || store.faults())
        },
        plan,
        clock: Arc::new(SystemClock::new()),
        cors,
        connections: None,
        version: "0.0.0",
        engine: "pread".to_owned(),
        account: budget.root().child("door", "").child("http", ""),
    };
    House { door: router(host, keys).unwrap(), budget, is_shut, store, _folder: folder }
}
