//! A disk whose reads of one file can be sent through another engine and another path to the same bytes.
//!
//! ```text
//!   Pages ─► Redirect ─┬─ nothing set: the disk below
//!                      └─ set: the engine that is measured, on its own handle of the file (local, or mounted slow)
//! ```
//!
//! So one index with its resident codes serves all cells, and each cell gets a handle, and a mapping, of its own.

use ramekin_base::{Error, Result};
use ramekin_disk::{Counters, Disk, Entry, File, Open, ReadOp, Space, Sync};
use std::path::Path;
use std::sync::{Arc, RwLock};

pub(super) struct Redirect {
    below: Arc<dyn Disk>,
    active: RwLock<Option<Active>>,
}

struct Active {
    disk: Arc<dyn Disk>,
    file: File,
}

impl Redirect {
    pub(super) fn new(below: Arc<dyn Disk>) -> Self {
        Self { below, active: RwLock::default() }
    }

    /// From now on reads go through `disk` to the file at `path`, which holds the same bytes.
    pub(super) fn set(&self, disk: Arc<dyn Disk>, path: &Path) -> Result<()> {
        let file = disk.open(path, Open::Read)?;
        *self.lock() = Some(Active { disk, file });
        Ok(())
    }

    /// Closes the handle, and with it the mapping.
    pub(super) fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::RwLockWriteGuard<'_, Option<Active>> {
        self.active.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Disk for Redirect {
    fn open(&self, path: &Path, how: Open) -> Result<File> {
        self.below.open(path, how)
    }

    fn read(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        let active = self.active.read().map_err(|_| Error::bug("a thread panicked while it changed the engine"))?;
        let Some(Active { disk, file }) = &*active else { return self.below.read(ops) };
        let mut theirs: Vec<ReadOp<'_>> =
            ops.iter_mut().map(|op| ReadOp { file, at: op.at, buf: &mut *op.buf }).collect();
        disk.read(&mut theirs)
    }

    fn write(&self, file: &File, at: u64, data: &[u8]) -> Result<()> {
        self.below.write(file, at, data)
    }

    fn sync(&self, what: Sync<'_>) -> Result<()> {
        self.below.sync(what)
    }

    fn list(&self, folder: &Path) -> Result<Vec<Entry>> {
        self.below.list(folder)
    }

    fn rename(&self, from: &Path, to: Option<&Path>) -> Result<()> {
        self.below.rename(from, to)
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        self.below.make_folder(folder)
    }

    fn len(&self, file: &File) -> Result<u64> {
        self.below.len(file)
    }

    fn set_len(&self, file: &File, bytes: u64) -> Result<()> {
        self.below.set_len(file, bytes)
    }

    fn space(&self, folder: &Path) -> Result<Space> {
        self.below.space(folder)
    }

    fn block(&self) -> usize {
        self.below.block()
    }

    fn engine_name(&self) -> &str {
        self.below.engine_name()
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }
}
