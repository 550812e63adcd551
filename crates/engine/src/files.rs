//! The files of a store's runs: how they come, are opened, and go.
//!
//! ```text
//!   write with what a flush or a merge has for good ─► it is free again ─► lent: open the file, name it in the manifest ─► taken back
//! ```
//!
//! What is open stays, so it is paid by another account than what wrote it. Where the budget has nothing left, only that would stand
//! between a memtable and its end: so a file is opened and named with the memory that wrote it.

use crate::engine::Accounts;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_memory::Account;
use ramekin_runs::compaction;
use ramekin_runs::{Root, Run, RunFile, RunWriter, Shape};
use ramekin_storage::Storage;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Runs = Vec<Arc<Run>>;
/// Is given all files of a merge so far, and what is left of the runs; and says how many of the files somebody uses from now on.
pub(crate) type EachFile<'a> = &'a mut dyn FnMut((&[Arc<RunFile>], &[Arc<Run>]), &mut usize) -> Result<()>;

/// The folder of a store, and who pays for what is open of it.
pub(crate) struct Files {
    pub(crate) storage: Storage,
    pub(crate) accounts: Accounts,
    /// How many open or name files with what is lent to them.
    lent: Mutex<usize>,
}

/// What opens and names files has what its lender has for good, while one lives.
pub(crate) struct Lent<'a> {
    files: &'a Files,
    lender: &'a Account,
    bytes: u64,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let (mut lent, runs) = (self.files.lent.lock(), &self.files.accounts.runs);
        *lent -= 1;
        // Nobody else can take it in between, also where the budget has become smaller than what is in use.
        runs.give_min_reservation_to(self.bytes.saturating_sub(self.lender.claimed()), self.lender);
        if *lent == 0 {
            // A minimum reservation that shrinks cannot fail.
            _ = runs.set_min_reservation(0);
        }
        drop(lent);
        // Instead of what open files keep: out of what the share has left, or of what nobody has.
        if self.lender.set_min_reservation(self.bytes).is_err() {
            self.lender.raise_min_reservation(self.bytes);
        }
    }
}

impl Files {
    pub(crate) fn new(storage: Storage, accounts: Accounts) -> Self {
        Self { storage, accounts, lent: Mutex::new(0) }
    }

    pub(crate) fn lend<'a>(&'a self, lender: &'a Account) -> Lent<'a> {
        let mut lent = self.lent.lock();
        *lent += 1;
        let bytes = lender.claimed();
        lender.give_min_reservation_to(bytes, &self.accounts.runs);
        Lent { files: self, lender, bytes }
    }

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
        run_of(paths.iter().map(|path| self.open_one(path)).collect::<Result<_>>()?)
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
            made.iter().for_each(|path| self.discard(path));
        }
        written
    }

    /// A memtable as a run; `bottom`: there is no older one.
    pub(crate) fn flush(&self, root: &Arc<Root>, (shape, bottom): (Shape, bool)) -> Result<Option<Arc<Run>>> {
        self.write(|name| {
            let (pages, account) = (self.storage.pages(), &self.accounts.flush);
            let paths = compaction::flush(pages, account, root, (shape, bottom), name)?;
            let _lent = self.lend(account);
            self.open_run(&paths)
        })
    }

    /// A run of what `make` hands over.
    pub(crate) fn made(
        &self,
        shape: Shape,
        make: impl FnOnce(&mut RunWriter<'_>) -> Result<()>,
    ) -> Result<Option<Arc<Run>>> {
        self.write(|name| {
            let mut writer = RunWriter::new(self.storage.pages(), &self.accounts.merge, shape, name);
            make(&mut writer)?;
            let paths = writer.finish()?;
            let _lent = self.lend(&self.accounts.merge);
            self.open_run(&paths)
        })
    }

    /// Merges neighbouring runs, the oldest first, file by file; `bottom`: there is no older one. `each` is called
    /// after each file but the last. Files that nobody uses go again if the merge fails.
    pub(crate) fn merge(
        &self,
        mut inputs: Runs,
        (shape, bottom): (Shape, bool),
        each: EachFile<'_>,
    ) -> Result<Option<Arc<Run>>> {
        let (mut outputs, mut used): (Vec<Arc<RunFile>>, usize) = (Vec::new(), 0);
        let mut step = || {
            let (file, rest) = self.merge_one(&inputs, (shape, bottom))?;
            outputs.extend(file);
            let Some(rest) = rest else { return Ok(false) };
            inputs = rest;
            each((&outputs, &inputs), &mut used).map(|()| true)
        };
        let merged = loop {
            match step() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if merged.is_err() {
            outputs[used..].iter().for_each(|file| self.discard(file.path()));
        }
        merged.and_then(|()| run_of(outputs))
    }

    /// One file of a merge, and what is left of the runs.
    fn merge_one(&self, inputs: &[Arc<Run>], how: (Shape, bool)) -> Result<(Option<Arc<RunFile>>, Option<Runs>)> {
        self.write(|name| {
            let pages = self.storage.pages();
            let step = compaction::merge_file(pages, &self.accounts.merge, inputs, how, name)?;
            let _lent = self.lend(&self.accounts.merge);
            let file = step.file.map(|path| self.open_one(&path)).transpose()?;
            let cut = |next: Vec<u8>| {
                let cut = |run: &Arc<Run>| Ok(Arc::new(run.cut(pages, &next, &self.accounts.runs)?));
                inputs.iter().map(cut).collect::<Result<Runs>>()
            };
            Ok((file, step.next.map(cut).transpose()?))
        })
    }

    /// Removes a file that nothing names. What cannot be removed now is removed by the next start.
    pub(crate) fn discard(&self, path: &Path) {
        _ = self.storage.name_of(path).and_then(|name| self.storage.discard(&name));
    }

    fn open_one(&self, path: &Path) -> Result<Arc<RunFile>> {
        self.open(&self.storage.name_of(path)?, &[])
    }
}

/// `None`: there are no files.
fn run_of(files: Vec<Arc<RunFile>>) -> Result<Option<Arc<Run>>> {
    if files.is_empty() { Ok(None) } else { Run::new(files).map(|run| Some(Arc::new(run))) }
}
