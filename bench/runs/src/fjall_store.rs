//! fjall: an LSM-tree with a journal that is not synced, caches of 64 MiB, one worker.

use crate::{Key, Store};
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use std::path::Path;

pub struct Fjall {
    database: Database,
    keys: Keyspace,
}

impl Fjall {
    pub fn open(folder: &Path) -> Self {
        let database = Database::builder(folder.join("fjall"))
            .cache_size(64 << 20)
            .worker_threads(1)
            .manual_journal_persist(true)
            .open()
            .expect("fjall opens");
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(16 << 20)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        let keys = database.keyspace("keys", options).expect("a keyspace opens");
        Self { database, keys }
    }
}

impl Store for Fjall {
    fn put(&mut self, key: &Key, value: &Key) {
        self.keys.insert(key, value).expect("fjall takes a key");
    }

    fn settle(&mut self) {
        self.keys.rotate_memtable_and_wait().expect("fjall flushes");
        while self.database.active_compactions() > 0 {
            std::thread::yield_now();
        }
    }

    fn scan(&mut self) -> (u64, u64) {
        self.keys.iter().fold((0, 0), |(sum, count), item| {
            let value = item.value().expect("fjall reads");
            (sum + u64::from(value[15]), count + 1)
        })
    }

    fn get(&mut self, key: &Key) -> Option<Key> {
        let value = self.keys.get(key).expect("fjall reads")?;
        value[..].try_into().ok()
    }

    fn facts(&self) -> String {
        format!("\"disk_bytes\": {}", self.keys.disk_space())
    }
}
