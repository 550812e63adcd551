//! An open folder: the life of its files between manifests.
//!
//! ```text
//!   new_path ─► (pages writes it) ─► commit names it ─► open_file ─► commit names it no more ─► last reader ─► gone
//!        └──────────── crash or discard: no manifest names it, so it goes ───────────┘
//! ```
//!
//! A file is alive while the manifest names it *or* a reader holds it. Removing waits until a crash
//! cannot bring the old manifest back.

use crate::begun;
use crate::edits::{self, Edits, Named, Target, Window, Write, files_bytes};
use crate::manifest::{self, FOLDER, Head, Layout, Record, Source, VERSION, scan};
use crate::reserve::Reserve;
use crate::whole::{self, WHOLE_MAX, WholeManifest};
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Disk, Entry, Failed, Sync};
use ramekin_log::{Log, Lsn};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageFile, Pages};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// What a manifest of the format before takes in memory while it is read, in units of its bytes: the text and what is
/// made of it.
const WHOLE_COPIES: u64 = 3;
/// The key of the files that a manifest of the format before names.
const WHOLE_KEY: u64 = u64::MAX;
/// What a part of a manifest takes in memory while the store reads them.
const PART_BYTES: u64 = 48;

/// A store's folder, open. One process has it at a time; its owner holds the folder's lock.
pub struct Storage {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    pages: Pages,
    account: Account,
    /// What the manifest takes while it is read and written, and what it names.
    manifest_account: Account,
    reserve: Reserve,
    next_file: AtomicU64,
    /// Locked while a commit is written; before `open`.
    committed: Mutex<Committed>,
    /// The files that somebody may have open.
    open: Mutex<HashMap<String, Weak<PageFile>>>,
}

struct Committed {
    edits: Edits,
    /// The files that the manifest on disk names, by their part.
    named: BTreeMap<u64, Vec<String>>,
    /// Of `named`.
    memory: Reservation,
    /// Why commits are closed.
    failed: Option<String>,
}

/// A manifest as a start finds it. It is read in pieces, as the store asks for them.
pub struct Manifest {
    pub head: Head,
    window: Window,
    parts: BTreeMap<u64, u64>,
    notes: Vec<u64>,
    whole: Option<Box<RawValue>>,
    layout: Layout,
    _memory: Reservation,
}

impl Manifest {
    /// The store's one JSON, of a manifest in the format before: there are no notes and no parts then.
    pub fn whole(&self) -> Option<&RawValue> {
        self.whole.as_deref()
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Calls `each` with every note, in order.
    pub fn each_note(&mut self, each: &mut dyn FnMut(&RawValue) -> Result<()>) -> Result<()> {
        for at in &self.notes {
            if let (Record::Note { app }, ..) = manifest::record(&mut self.window, *at)? {
                each(&app)?;
            }
        }
        Ok(())
    }

    /// Calls `each` with what was said last of every part, by their keys.
    pub fn each_part(&mut self, each: &mut dyn FnMut(u64, &RawValue) -> Result<()>) -> Result<()> {
        for (key, at) in &self.parts {
            if let (Record::Part { app, .. }, ..) = manifest::record(&mut self.window, *at)? {
                each(*key, &app)?;
            }
        }
        Ok(())
    }

    /// Whether any store ever committed it.
    fn is_empty(&self) -> bool {
        let is_null = |app: &RawValue| app.get() == RawValue::NULL.get();
        let has_none = self.parts.is_empty() && self.notes.is_empty() && self.whole().is_none_or(is_null);
        has_none && self.head.log_from == 0 && is_null(&self.head.app)
    }
}

/// What a manifest names, with its memory.
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    pub(crate) named: BTreeMap<u64, Vec<String>>,
    memory: Reservation,
}

impl Found {
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        self.named.values().flatten()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.manifest.layout
    }
}

impl Storage {
    /// Opens `folder`, made if it is missing, and its manifest; `None` if nothing was ever committed. Files are opened on
    /// `account`, the manifest is read and written on `manifest_account`.
    ///
    /// Files that no manifest names are leftovers of a crash and are removed. A file that the manifest
    /// names and that is not there is `Corrupt`, and so is a folder with data and no manifest.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        pages: Pages,
        account: &Account,
        manifest_account: &Account,
    ) -> Result<(Self, Option<Manifest>)> {
        let found = read_manifest(&disk, folder, manifest_account, account)?;
        if found.is_some() {
            begun::verify_log_folder(&*disk, folder)?;
        }
        disk.make_folder(&folder.join(FOLDER))?;
        disk.make_folder(&log_folder(folder))?;
        let found = match found {
            Some(found) => found,
            None => start(&disk, folder, manifest_account, account)?,
        };
        // The manifest that was read may have been renamed but a moment ago; what it does not name goes now.
        disk.sync(Sync::Folder(folder))?;
        let on_disk = found_files(&*disk, folder)?;
        verify_present(folder, &found, &on_disk)?;
        let edits = Edits::after(&*disk, folder, manifest_account, found.layout().clone())?;
        remove_leftovers(&*disk, folder, &found, &on_disk)?;
        if found.layout().torn {
            tracing::warn!(
                "the last edit of the manifest was not finished: it is left out from byte {} on",
                found.layout().end
            );
        }
        let Found { manifest, named, memory } = found;
        let committed = Mutex::new(Committed { edits, named, memory, failed: None });
        let next_file = AtomicU64::new(manifest.head.next_file);
        let reserve = Reserve::open(&disk, folder)?;
        let (account, manifest_account) = (account.clone(), manifest_account.clone());
        let (folder, open) = (folder.to_owned(), Mutex::new(HashMap::new()));
        let storage = Self { disk, folder, pages, account, manifest_account, reserve, next_file, committed, open };
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

    /// Room for what frees space.
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
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
        let mut open = self.open.lock();
        if let Some(file) = open.get(name).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = self.pages.open(&self.path(name), &self.account)?;
        open.retain(|_, file| file.strong_count() > 0);
        open.insert(name.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    /// Makes what `write` writes what a start will find: those parts that changed, or all of them where it is asked for
    /// all.
    ///
    /// Files that a part named before and does not name now are removed once their last reader leaves.
    /// An error of kind `NoSpace` or of memory changes nothing; after a failed sync every commit
    /// is `Closed` until a restart.
    pub fn commit(&self, mut head: Head, write: &mut Write<'_>) -> Result<()> {
        let mut committed = self.committed.lock();
        let Committed { edits, named, memory, failed } = &mut *committed;
        if let Some(why) = failed {
            return Err(Error::closed(why.clone()));
        }
        head.next_file = head.next_file.max(self.next_file.load(Ordering::Relaxed));
        let mut sync_new = |files: &Named| {
            let known = |key: &u64, name: &String| named.get(key).is_some_and(|known| known.contains(name));
            let is_new = |(key, files): &(u64, Vec<String>)| files.iter().any(|name| !known(key, name));
            match files.iter().any(is_new) {
                true => self.disk.sync(Sync::Folder(&self.folder.join(FOLDER))),
                false => Ok(()),
            }
        };
        let (disk, folder) = (&*self.disk, &*self.folder);
        let to = Target { disk, folder, account: &self.manifest_account, names: &self.account };
        let done = edits.commit(&to, &head, write, &mut sync_new).map_err(|error| match error {
            Failed::Clean(error) => error.at("the manifest was not written"),
            Failed::Unknown(error) => {
                *failed = Some(format!(
                    "writes are closed since the manifest could not be written ({error}); restart to open them again"
                ));
                error.at("the manifest could not be written; writes are closed until a restart")
            }
        })?;
        let mut before: Vec<String> = Vec::new();
        // What all names before took is held until they go.
        let mut _before = None;
        if done.whole {
            before = std::mem::take(named).into_values().flatten().collect();
            _before = Some(memory.split(u64::MAX));
        }
        memory.join(done.memory)?;
        for (key, files) in done.named {
            let old = if files.is_empty() { named.remove(&key) } else { named.insert(key, files) };
            // A part that names no files is not kept.
            memory.shrink(if named.contains_key(&key) { 0 } else { files_bytes(&[]) });
            if let Some(old) = old {
                memory.shrink(files_bytes(&old));
                before.extend(old);
            }
        }
        self.remove_unnamed(before, named);
        Ok(())
    }

    /// Why no manifest can be written until a restart; `None`: one can be.
    pub fn closed(&self) -> Option<String> {
        self.committed.lock().failed.clone()
    }

    /// Removes those of some files that no part names any more.
    fn remove_unnamed(&self, mut before: Vec<String>, named: &BTreeMap<u64, Vec<String>>) {
        if before.is_empty() {
            return;
        }
        before.sort_unstable();
        before.dedup();
        let mut is_named = vec![false; before.len()];
        for name in named.values().flatten() {
            if let Ok(at) = before.binary_search(name) {
                is_named[at] = true;
            }
        }
        for (name, _) in before.iter().zip(is_named).filter(|(_, is_named)| !is_named) {
            self.remove(name);
        }
    }

    /// Removes a file that was written and that no manifest is to name.
    pub fn discard(&self, name: &str) -> Result<()> {
        let committed = self.committed.lock();
        if let Some(why) = &committed.failed {
            // Nobody knows whether the manifest on disk names it.
            return Err(Error::closed(why.clone()));
        }
        let is_named = committed.named.values().flatten().any(|named| named == name);
        if is_named || manifest::number(name).is_none() {
            return Err(Error::bug(format!("'{name}' is named by the manifest or is no data file")));
        }
        self.remove(name);
        Ok(())
    }

    /// Opens the log of this folder; see [`Log::open`].
    pub fn open_log(
        &self,
        account: &Account,
        durable: Range<Lsn>,
        replay: &mut dyn FnMut(Lsn, &[u8]) -> Result<()>,
    ) -> Result<Log> {
        let begun = begun::is_marked(&*self.disk, &self.folder)?;
        let log = Log::open(self.disk.clone(), &log_folder(&self.folder), account, durable, begun, replay)?;
        if !begun {
            begun::mark(&*self.disk, &self.folder)?;
        }
        Ok(log)
    }

    /// Bytes of all data files.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        Ok(found_files(&*self.disk, &self.folder)?.iter().map(|entry| entry.bytes).sum())
    }

    /// The file goes when its last reader does. A failure leaves it for the next start to remove.
    fn remove(&self, name: &str) {
        match self.open.lock().remove(name).and_then(|file| file.upgrade()) {
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
/// `names` pays for the files that it names.
pub(crate) fn read_manifest(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    account: &Account,
    names: &Account,
) -> Result<Option<Found>> {
    let Some(window) = Window::open(disk, folder, account)? else { return Ok(None) };
    read_found(window, account, names).map(Some).map_err(|error| error.at(folder.join(edits::NAME).display()))
}

fn read_found(mut window: Window, account: &Account, names: &Account) -> Result<Found> {
    let (mut parts, mut notes, mut named) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    let (mut memory, mut of_names) = (account.try_reserve(0)?, names.try_reserve(0)?);
    let (mut head, mut whole) = (None, None);
    let mut note = |at: u64, record: Record| {
        match record {
            Record::Part { key, files, .. } => {
                memory.grow(PART_BYTES)?;
                parts.insert(key, at);
                named.remove(&key).into_iter().for_each(|old: Vec<String>| of_names.shrink(files_bytes(&old)));
                if !files.is_empty() {
                    of_names.grow(files_bytes(&files))?;
                    named.insert(key, files);
                }
            }
            Record::Gone { key } => {
                parts.remove(&key);
                named.remove(&key).into_iter().for_each(|old: Vec<String>| of_names.shrink(files_bytes(&old)));
            }
            Record::Note { .. } => {
                memory.grow(PART_BYTES)?;
                notes.push(at);
            }
            Record::Head(new) => head = Some(new),
        }
        Ok(())
    };
    let layout = scan(&mut window, &mut note)?;
    if layout.version < VERSION {
        let json = layout.body.clone();
        let len = json.end - json.start;
        if len > WHOLE_MAX {
            return Err(manifest::corrupt(0, &format!("a length of {len}")));
        }
        memory.grow(len * WHOLE_COPIES)?;
        let WholeManifest { files, app, .. } = {
            let read = whole::decode(window.bytes(json.start, len as usize)?)?;
            head = Some(read.head());
            read
        };
        of_names.grow(files_bytes(&files))?;
        named.insert(WHOLE_KEY, files);
        whole = Some(app);
    }
    let head = head.ok_or_else(|| manifest::corrupt(0, "it has no head"))?;
    check_names(&named, head.next_file)?;
    let manifest = Manifest { head, window, parts, notes, whole, layout, _memory: memory };
    Ok(Found { manifest, named, memory: of_names })
}

/// Every file has one of our names, and a number of its own that was given out.
fn check_names(named: &BTreeMap<u64, Vec<String>>, next_file: u64) -> Result<()> {
    let mut numbers = HashSet::new();
    for name in named.values().flatten() {
        let number = manifest::number(name)
            .ok_or_else(|| manifest::corrupt(0, &format!("'{name}' is no name of a data file")))?;
        if number >= next_file || !numbers.insert(number) {
            return Err(manifest::corrupt(0, &format!("the number of '{name}' is not one of its own")));
        }
    }
    Ok(())
}

/// Notes that the log ends at another place now, after it was cut.
pub(crate) fn set_log_end(disk: &Arc<dyn Disk>, folder: &Path, account: &Account, end: Lsn) -> Result<()> {
    let Some(Found { manifest, .. }) = read_manifest(disk, folder, account, account)? else { return Ok(()) };
    let Manifest { mut head, mut window, layout, .. } = manifest;
    if layout.version < VERSION {
        let len = (layout.body.end - layout.body.start) as usize;
        let mut old = whole::decode(window.bytes(layout.body.start, len)?)?;
        old.log_durable = end;
        return edits::replace_whole(&**disk, folder, account, &whole::encode(&old)?);
    }
    head.log_durable = end;
    edits::append_head(&**disk, folder, account, layout, &head)
}

/// Begins a new store. From here on a folder without a manifest has lost it.
fn start(disk: &Arc<dyn Disk>, folder: &Path, account: &Account, names: &Account) -> Result<Found> {
    let log = disk.list(&log_folder(folder))?;
    let has_data = !found_files(&**disk, folder)?.is_empty() || log.iter().any(|entry| entry.name.ends_with(".log"));
    if has_data || begun::is_marked(&**disk, folder)? {
        return Err(Error::corrupt(format!(
            "{} holds data, but its manifest is missing; restore it from a copy, or choose an empty folder",
            folder.display()
        )));
    }
    let to = Target { disk: &**disk, folder, account, names: account };
    let mut sync = |_: &Named| disk.sync(Sync::Folder(&folder.join(FOLDER)));
    Edits::none()
        .commit(&to, &Head::empty(), &mut |_, _| Ok(()), &mut sync)
        .map_err(|failed| failed.into_error().at("the first manifest could not be written"))?;
    read_manifest(disk, folder, account, names)?.ok_or_else(|| Error::io("the first manifest cannot be found"))
}

/// The data files in `folder`, with their names as a manifest has them. Files of other names are not ours.
pub(crate) fn found_files(disk: &dyn Disk, folder: &Path) -> Result<Vec<Entry>> {
    let entries = disk.list(&folder.join(FOLDER))?.into_iter();
    let ours =
        entries.filter(|entry| !entry.folder).map(|entry| Entry { name: format!("{FOLDER}/{}", entry.name), ..entry });
    Ok(ours.filter(|entry| manifest::number(&entry.name).is_some()).collect())
}

fn verify_present(folder: &Path, manifest: &Found, found: &[Entry]) -> Result<()> {
    let found: HashSet<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
    let lost: Vec<&str> = manifest.files().map(String::as_str).filter(|name| !found.contains(name)).collect();
    let Some(first) = lost.first() else { return Ok(()) };
    let others = if lost.len() > 1 { format!(" and {} others", lost.len() - 1) } else { String::new() };
    Err(Error::corrupt(format!(
        "{}{others}, named by the manifest, is missing; restore it from a copy of the folder",
        folder.join(first).display()
    )))
}

/// Removes data files that no manifest names, and a replacement of the manifest that was not finished.
fn remove_leftovers(disk: &dyn Disk, folder: &Path, manifest: &Found, found: &[Entry]) -> Result<()> {
    let named: HashSet<&str> = manifest.files().map(String::as_str).collect();
    for entry in found.iter().filter(|entry| !named.contains(entry.name.as_str())) {
        disk.rename(&folder.join(&entry.name), None)?;
    }
    match disk.rename(&folder.join(edits::NAME_NEW), None) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}
