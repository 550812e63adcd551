//! A door over a store in memory, for tests.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use crate::door::{Door, Host, Job};
use crate::metrics::Usage;
use ramekin_base::{ManualClock, Result};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_versions::{Command, DeleteRange, KeyRange, Op, Options, Put, Txn, Versions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// An open store.
pub(crate) struct Store {
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) account: Account,
    pub(crate) versions: Versions,
}

pub(crate) fn store(disk: Arc<SimDisk>) -> Store {
    let budget = Budget::new(48 << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 4 << 30).unwrap();
    let account = budget.root().child("versions", "");
    let options = Options {
        disk: disk.clone() as Arc<dyn Disk>,
        folder: Path::new("/data/versions").to_owned(),
        pages,
        account: account.clone(),
        budget,
        share: 6 << 20,
        clock: Arc::new(ManualClock::default()),
        threads: true,
        changed: Box::new(|_| {}),
    };
    Store { disk, versions: Versions::open(options).unwrap(), account }
}

pub(crate) fn new_store() -> Store {
    store(Arc::new(SimDisk::new(1, Faults::default())))
}

pub(crate) fn door(store: &Store) -> Door {
    let run = |_, job: Job| -> Result<()> {
        std::thread::spawn(job);
        Ok(())
    };
    Door::open(Host {
        versions: store.versions.clone(),
        run: Arc::new(run),
        changed: watch::channel(1).1,
        account: store.account.child("door", ""),
        connections: 10,
        name: "default".to_owned(),
        client_urls: vec!["http://127.0.0.1:2379".to_owned()],
        peer_urls: vec!["http://localhost:2380".to_owned()],
        cluster_token: "etcd-cluster".to_owned(),
        progress_every: Duration::from_secs(600),
        max_txn_ops: 128,
        max_request_bytes: 1_572_864,
        quota: None,
        auth_token: "simple".to_owned(),
        auth_token_ttl: Duration::from_secs(300),
        bcrypt_cost: 4,
        listening: Vec::new(),
        gateway: true,
        cors: Vec::new(),
        host_whitelist: Vec::new(),
        usage: Usage::default,
    })
    .unwrap()
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn put_of(key: &str, value: &str) -> Put {
    Put { key: key.into(), value: value.into(), ..Put::default() }
}

impl Store {
    pub(crate) fn execute(&self, command: Command) {
        self.versions.execute(command).unwrap();
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        self.execute(Command::Put(put_of(key, value)));
    }

    pub(crate) fn put_all(&self, all: &[(&str, &str)]) {
        let success = all.iter().map(|(key, value)| Op::Put(put_of(key, value))).collect();
        self.execute(Command::Txn(Txn { success, ..Txn::default() }));
    }

    pub(crate) fn delete(&self, key: &str) {
        self.execute(Command::Delete(DeleteRange { keys: KeyRange::one(key), prev_kv: false }));
    }
}
