//! LMDB: a B+-tree in a mapping; the kernel's page cache is its cache. Nothing is synced while it is loaded.

use crate::{Key, Store};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RwTxn};
use std::path::Path;

/// Keys of one transaction: each dirties a page, and those of 20 times as many are more memory than the run has.
const BATCH: u64 = 5_000;

pub struct Lmdb {
    keys: Database<'static, Bytes, Bytes>,
    write: Option<RwTxn<'static>>,
    pending: u64,
    env: &'static Env,
}

impl Lmdb {
    pub fn open(folder: &Path) -> Self {
        let path = folder.join("lmdb");
        std::fs::create_dir_all(&path).expect("a folder is made");
        let mut options = EnvOpenOptions::new();
        options.map_size(8 << 30);
        // SAFETY: no other process has the files open, and none is lost that anybody misses.
        let env = unsafe {
            options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC | EnvFlags::NO_READ_AHEAD);
            options.open(&path).expect("LMDB opens")
        };
        let env: &'static Env = Box::leak(Box::new(env));
        let write = env.write_txn().expect("a transaction begins");
        let keys = env
            .create_databases_and_commit(write, |opener, write| {
                opener.create_database(write, None).map(CommitOrAbort::<_, ()>::Commit)
            })
            .expect("a database opens")
            .unwrap_commit();
        Self { keys, write: None, pending: 0, env }
    }

    fn commit(&mut self) {
        if let Some(write) = self.write.take() {
            write.commit().expect("LMDB commits");
        }
        self.pending = 0;
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        self.write = None;
        // SAFETY: it was leaked when this was opened, and nothing that borrows it is left.
        let env = unsafe { Box::from_raw(std::ptr::from_ref(self.env).cast_mut()) };
        let closing = env.clone().prepare_for_closing();
        drop(env);
        closing.wait();
    }
}

impl Store for Lmdb {
    fn put(&mut self, key: &Key, value: &Key) {
        if self.write.is_none() {
            self.write = Some(self.env.write_txn().expect("a transaction begins"));
        }
        let write = self.write.as_mut().expect("it was just begun");
        self.keys.put(write, key, value).expect("LMDB takes a key");
        self.pending += 1;
        if self.pending == BATCH {
            self.commit();
        }
    }

    fn settle(&mut self) {
        self.commit();
        self.env.force_sync().expect("LMDB syncs");
    }

    fn scan(&mut self) -> (u64, u64) {
        let read = self.env.read_txn().expect("a transaction begins");
        self.keys.iter(&read).expect("LMDB reads").fold((0, 0), |(sum, count), item| {
            let (_, value) = item.expect("LMDB reads");
            (sum + u64::from(value[15]), count + 1)
        })
    }

    fn get(&mut self, key: &Key) -> Option<Key> {
        // One transaction for a get, as another store has one view for it.
        let read = self.env.read_txn().expect("a transaction begins");
        let value = self.keys.get(&read, key).expect("LMDB reads")?;
        value.try_into().ok()
    }

    fn facts(&self) -> String {
        let info = self.env.info();
        format!("\"disk_bytes\": {}", (info.last_page_number + 1) * 4096)
    }
}
