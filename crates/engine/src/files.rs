//! The files of a store's runs: how they come, are opened, and go.

use crate::engine::Accounts;
use crate::options::TreeOptions;
use ramekin_base::Result;
use ramekin_runs::compaction;
use ramekin_runs::{Root, Run, RunFile, RunWriter};
use ramekin_storage::Storage;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of a store, and who pays for what is open of it.
pub(crate) struct Files {
    pub(crate) storage: Storage,
    pub(crate) accounts: Accounts,
}

impl Files {
    /// Opens a file by its name; it goes with its last reader once no manifest names it.
    pub(crate) fn open(&self, name: &str, from: &[u8]) -> Result<Arc<RunFile>> {
        let (pages, account) = (self.storage.pages(), &self.accounts.runs);
        let file = RunFile::of(pages, self.storage.open_file(name)?, from, account)?;
        match file.load() {
            // Index and filter are in memory as long as there is room; without it they are read.
            Err(error) if !error.kind().is_memory() => Err(error),
            _ => Ok(file),
        }
    }

    /// Opens files that were written, as a run. `None`: there are none.
    pub(crate) fn open_run(&self, paths: &[PathBuf]) -> Result<Option<Arc<Run>>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let open = |path: &PathBuf| self.open_one(path);
        Ok(Some(Arc::new(Run::new(paths.iter().map(open).collect::<Result<_>>()?)?)))
    }

    /// Writes a run by `write`, which is given what names the files. What was written goes again if it fails.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut dyn FnMut() -> PathBuf) -> Result<T>) -> Result<T> {
        let mut made: Vec<PathBuf> = Vec::new();
        let written = write(&mut || {
            let path = self.storage.new_path("run");
            made.push(path.clone());
            path
        });
        if written.is_err() {
            for path in made {
                // What cannot be removed now is removed by the next start.
                _ = self.storage.name_of(&path).and_then(|name| self.storage.discard(&name));
            }
        }
        written
    }

    /// A memtable as a run; `bottom`: there is no older one.
    pub(crate) fn flush(&self, root: &Arc<Root>, options: &TreeOptions, bottom: bool) -> Result<Option<Arc<Run>>> {
        self.write(|name| {
            let (pages, account) = (self.storage.pages(), &self.accounts.flush);
            let paths = compaction::flush(pages, account, root, (options.shape(), bottom), name)?;
            self.open_run(&paths)
        })
    }

    /// A run of what `make` hands over.
    pub(crate) fn made(
        &self,
        options: &TreeOptions,
        make: impl FnOnce(&mut RunWriter<'_>) -> Result<()>,
    ) -> Result<Option<Arc<Run>>> {
        self.write(|name| {
            let mut writer = RunWriter::new(self.storage.pages(), &self.accounts.merge, options.shape(), name);
            make(&mut writer)?;
            let paths = writer.finish()?;
            self.open_run(&paths)
        })
    }

    /// The file that one step of a merge wrote.
    pub(crate) fn open_one(&self, path: &Path) -> Result<Arc<RunFile>> {
        self.open(&self.storage.name_of(path)?, &[])
    }
}
