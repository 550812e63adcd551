//! An open folder: the life of its files between manifests.
//!
//! ```text
//!   new_path ─► (pages writes it) ─► commit names it ─► open_file ─► commit names it no more ─► last reader ─► gone
//!        └──────────── crash or discard: no manifest names it, so it goes ───────────┘
//! ```
//!
//! A file is alive while the manifest names it *or* a reader holds it. Removing waits until a crash
//! cannot bring the old manifest back.

use crate::aside::{self, Failed};
use crate::manifest::{self, FOLDER, Manifest};
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Disk, Entry, Sync};
use ramekin_log::{Log, Position};
use ramekin_memory::Account;
use ramekin_pages::{PageFile, Pages};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// What a manifest takes in memory while it is read or written, in units of its bytes: the text and what is made of it.
const MANIFEST_COPIES: u64 = 2;

/// A store's folder, open. One process has it at a time; its owner holds the folder's lock.
pub struct Storage {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    pages: Pages,
    account: Account,
    next_file: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// The files that the manifest on disk names.
    named: HashSet<String>,
    /// The files that somebody may have open.
    open: HashMap<String, Weak<PageFile>>,
    /// Why commits are closed.
    failed: Option<String>,
}

impl Storage {
    /// Opens `folder`, made if it is missing, and its manifest; `None` if nothing was ever committed.
    ///
    /// Files that no manifest names are leftovers of a crash and are removed. A file that the manifest
    /// names and that is not there is `Corrupt`, and so is a folder with data and no manifest.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        pages: Pages,
        account: &Account,
    ) -> Result<(Self, Option<Manifest>)> {
        disk.make_folder(&folder.join(FOLDER))?;
        disk.make_folder(&log_folder(folder))?;
        let manifest = match read_manifest(&*disk, folder, account)? {
            Some(manifest) => manifest,
            None => start(&*disk, folder, account)?,
        };
        // The manifest that was read may have been renamed but a moment ago; what it does not name goes now.
        disk.sync(Sync::Folder(folder))?;
        let found = found_files(&*disk, folder)?;
        verify_present(folder, &manifest, &found)?;
        remove_leftovers(&*disk, folder, &manifest, &found)?;
        let state = State { named: manifest.files.iter().cloned().collect(), open: HashMap::new(), failed: None };
        let next_file = AtomicU64::new(manifest.next_file);
        let (account, folder) = (account.clone(), folder.to_owned());
        let storage = Self { disk, folder, pages, account, next_file, state: Mutex::new(state) };
        Ok((storage, (!manifest.is_empty()).then_some(manifest)))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// A name that no file has had: `files/000123.kind`. `kind` is up to eight small letters.
    pub fn new_name(&self, kind: &str) -> String {
        let name = manifest::file_name(self.next_file.fetch_add(1, Ordering::Relaxed), kind);
        debug_assert!(manifest::number(&name).is_some(), "'{kind}' is no kind of file");
        name
    }

    /// The path of a new file; its name in a manifest is [`Storage::name_of`] it.
    pub fn new_path(&self, kind: &str) -> PathBuf {
        self.path(&self.new_name(kind))
    }

    /// Where the file of this name is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The name under which a manifest knows the file at `path`.
    pub fn name_of(&self, path: &Path) -> Result<String> {
        let name = path.strip_prefix(&self.folder).ok().and_then(Path::to_str).map(str::to_owned);
        name.filter(|name| manifest::number(name).is_some())
            .ok_or_else(|| Error::bug(format!("{} is no data file of this store", path.display())))
    }

    /// Opens a file, or hands out the one that is open already.
    pub fn open_file(&self, name: &str) -> Result<Arc<PageFile>> {
        if manifest::number(name).is_none() {
            return Err(Error::bug(format!("'{name}' is no name of a data file")));
        }
        let mut state = self.state.lock();
        if let Some(file) = state.open.get(name).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = self.pages.open(&self.path(name), &self.account)?;
        state.open.retain(|_, file| file.strong_count() > 0);
        state.open.insert(name.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    /// Makes `manifest` the one that a start will find. The files that it names are finished and synced.
    ///
    /// Files that the one before named and this one does not are removed once their last reader leaves.
    /// An error of kind `NoSpace` or of memory changes nothing; after a failed sync every commit
    /// is `Closed` until a restart.
    pub fn commit(&self, manifest: &Manifest) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(why) = &state.failed {
            return Err(Error::closed(why.clone()));
        }
        let mut manifest = manifest.clone();
        manifest.next_file = manifest.next_file.max(self.next_file.load(Ordering::Relaxed));
        let named: HashSet<String> = manifest.files.iter().cloned().collect();
        if let Some(name) = named.iter().find(|name| manifest::number(name).is_none()) {
            return Err(Error::bug(format!("'{name}' is no name of a data file")));
        }
        let new_files = named.iter().any(|name| !state.named.contains(name));
        write_manifest(&*self.disk, &self.folder, &self.account, &manifest, new_files).map_err(|failed| match failed {
            Failed::Clean(error) => error.at("the manifest was not written"),
            Failed::Unknown(error) => {
                state.failed = Some(format!(
                    "writes are closed since the manifest could not be written ({error}); restart to open them again"
                ));
                error.at("the manifest could not be written; writes are closed until a restart")
            }
        })?;
        let before = std::mem::replace(&mut state.named, named);
        let gone: Vec<_> = before.difference(&state.named).cloned().collect();
        for name in gone {
            self.remove(&mut state, &name);
        }
        Ok(())
    }

    /// Removes a file that was written and that no manifest is to name.
    pub fn discard(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        if state.named.contains(name) || manifest::number(name).is_none() {
            return Err(Error::bug(format!("'{name}' is named by the manifest or is no data file")));
        }
        self.remove(&mut state, name);
        Ok(())
    }

    /// Opens the log of this folder; see [`Log::open`].
    pub fn open_log(
        &self,
        account: &Account,
        durable: Range<Position>,
        replay: &mut dyn FnMut(Position, &[u8]) -> Result<()>,
    ) -> Result<Log> {
        Log::open(self.disk.clone(), &log_folder(&self.folder), account, durable, replay)
    }

    /// Bytes of all data files.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        Ok(found_files(&*self.disk, &self.folder)?.iter().map(|entry| entry.bytes).sum())
    }

    /// The file goes when its last reader does. A failure leaves it for the next start to remove.
    fn remove(&self, state: &mut State, name: &str) {
        match state.open.remove(name).and_then(|file| file.upgrade()) {
            Some(file) => file.remove_on_drop(),
            None => {
                let _ = self.disk.rename(&self.path(name), None);
            }
        }
    }
}

pub(crate) fn log_folder(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// The manifest of `folder`, with the place in front of what is wrong with it.
pub(crate) fn read_manifest(disk: &dyn Disk, folder: &Path, account: &Account) -> Result<Option<Manifest>> {
    let Some(bytes) = aside::read(disk, folder, account)? else { return Ok(None) };
    let _copies = account.try_reserve(bytes.len() as u64 * MANIFEST_COPIES)?;
    manifest::decode(&bytes).map(Some).map_err(|error| error.at(folder.join(aside::NAME).display()))
}

pub(crate) fn write_manifest(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    manifest: &Manifest,
    new_files: bool,
) -> Result<(), Failed> {
    let names: usize = manifest.files.iter().map(String::len).sum();
    let size = (manifest.app.get().len() + 2 * names) as u64;
    let _copies = account.try_reserve(size * MANIFEST_COPIES).map_err(Failed::Clean)?;
    let bytes = manifest::encode(manifest).map_err(Failed::Clean)?;
    if new_files {
        disk.sync(Sync::Folder(&folder.join(FOLDER))).map_err(Failed::Unknown)?;
    }
    aside::replace(disk, folder, account, &bytes)
}

/// Begins a new store. From here on a folder without a manifest has lost it.
fn start(disk: &dyn Disk, folder: &Path, account: &Account) -> Result<Manifest> {
    let log = disk.list(&log_folder(folder))?;
    if !found_files(disk, folder)?.is_empty() || log.iter().any(|entry| entry.name.ends_with(".log")) {
        return Err(Error::corrupt(format!(
            "{} holds data, but its manifest is missing; restore it from a copy, or choose an empty folder",
            folder.display()
        )));
    }
    let manifest = Manifest::empty();
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync(Sync::Folder(parent))?;
    }
    write_manifest(disk, folder, account, &manifest, true)
        .map_err(|failed| failed.into_error().at("the first manifest could not be written"))?;
    Ok(manifest)
}

/// The data files in `folder`, with their names as a manifest has them. Files of other names are not ours.
pub(crate) fn found_files(disk: &dyn Disk, folder: &Path) -> Result<Vec<Entry>> {
    let entries = disk.list(&folder.join(FOLDER))?.into_iter();
    let ours =
        entries.filter(|entry| !entry.folder).map(|entry| Entry { name: format!("{FOLDER}/{}", entry.name), ..entry });
    Ok(ours.filter(|entry| manifest::number(&entry.name).is_some()).collect())
}

fn verify_present(folder: &Path, manifest: &Manifest, found: &[Entry]) -> Result<()> {
    let found: HashSet<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
    let lost: Vec<&str> = manifest.files.iter().map(String::as_str).filter(|name| !found.contains(name)).collect();
    let Some(first) = lost.first() else { return Ok(()) };
    let others = if lost.len() > 1 { format!(" and {} others", lost.len() - 1) } else { String::new() };
    Err(Error::corrupt(format!(
        "{}{others}, named by the manifest, is missing; restore it from a copy of the folder",
        folder.join(first).display()
    )))
}

/// Removes data files that no manifest names, and a replacement of the manifest that was not finished.
fn remove_leftovers(disk: &dyn Disk, folder: &Path, manifest: &Manifest, found: &[Entry]) -> Result<()> {
    let named: HashSet<&str> = manifest.files.iter().map(String::as_str).collect();
    for entry in found.iter().filter(|entry| !named.contains(entry.name.as_str())) {
        disk.rename(&folder.join(&entry.name), None)?;
    }
    match disk.rename(&folder.join(aside::NAME_NEW), None) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}
