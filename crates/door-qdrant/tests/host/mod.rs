//! A door over a real store in a fresh folder.

use ramekin_base::{Error, SystemClock};
use ramekin_door_qdrant::{Door, Host, Job, Keys, router};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::{Store, StoreOptions};
use std::sync::Arc;

pub struct House {
    pub door: Door,
    pub budget: Budget,
    store: Store,
    _folder: tempfile::TempDir,
}

impl Drop for House {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// Opens a door on a budget of so many MiB.
pub fn open(megabytes: u64, keys: Keys) -> House {
    let folder = tempfile::tempdir().unwrap();
    let budget = Budget::new(megabytes << 20);
    let (disk, _) = ramekin_disk::probe(folder.path(), None).unwrap();
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
    let (jobs, queue) = std::sync::mpsc::sync_channel::<Job>(64);
    std::thread::spawn(move || queue.iter().for_each(|job| job()));
    let of_door = budget.clone();
    let host = Host {
        store: store.clone(),
        budget: budget.clone(),
        run: Arc::new(move |_, job| jobs.try_send(job).map_err(|_| Error::busy("the pool is full"))),
        set_budget: Arc::new(move |bytes, _, _| {
            of_door.set_limit(bytes);
            Ok(true)
        }),
        least_budget: 20 << 20,
        plan: Arc::new(|wanted| Ok(serde_json::json!({"planned": wanted.expected.len()}))),
        clock: Arc::new(SystemClock::new()),
        version: "0.0.0",
        engine: "pread".to_owned(),
        account: budget.root().child("door", "").child("http", ""),
    };
    House { door: router(host, keys).unwrap(), budget, store, _folder: folder }
}
