//! The manifest's file: read as a stream, edits appended, and now and then a snapshot written aside.
//!
//! ```text
//!   append   records ─► buffer ─► after the last edit ─► sync ─► "synced up to here" (not synced itself)
//!            └── an error here: its first block is ──┘└── an error here: nobody knows whether a start finds it
//!                made zeros, and nothing has changed
//!   replace  records ─► buffer ─► MANIFEST.new ─► sync ─► rename over MANIFEST ─► sync the folder
//!            └──── an error here changes nothing ───────┘└── an error here: nobody knows which one a crash leaves
//! ```
//!
//! A snapshot is due when the edits are longer than the last one, and the disk has room for it. So a commit costs what it
//! changes, and as much again for snapshots. Neither holds more than a buffer and one record.

use crate::manifest::{BLOCK, Head, LINE, Layout, Record, Source, VERSION, frame_head, line, mark};
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Aligned, Disk, Failed, File, Open, ReadOp, Sync};
use ramekin_memory::{Account, Reservation};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

pub(crate) const NAME: &str = "MANIFEST";
pub(crate) const NAME_NEW: &str = "MANIFEST.new";

/// Bytes that are read or written at a time.
const BUFFER: usize = 64 << 10;
/// The file grows by so much: its space is taken before anything is written there.
const STEP: u64 = 64 << 10;
/// Edits up to this length are never worth a snapshot.
const EDITS_LEAST: u64 = 256 << 10;
/// What naming a data file takes in memory, besides its name.
const NAMED_BYTES: u64 = 96;

/// What counts of a manifest's length: a crash while it was made longer may leave it anywhere between.
fn whole_blocks(len: u64) -> u64 {
    len / BLOCK * BLOCK
}

/// A manifest file as a source of bytes: a window that moves over it.
pub(crate) struct Window {
    disk: Arc<dyn Disk>,
    pub(crate) file: File,
    len: u64,
    buffer: Aligned,
    at: u64,
    filled: usize,
    /// A record that is larger than the window, with its memory.
    long: Vec<u8>,
    memory: Reservation,
}

impl Window {
    /// `None` if there is no manifest.
    pub(crate) fn open(disk: &Arc<dyn Disk>, folder: &Path, account: &Account) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let file = match disk.open(&path, Open::Read) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            opened => opened?,
        };
        let len = whole_blocks(disk.len(&file)?);
        let (buffer, memory) = (Aligned::new(account, BUFFER)?, account.try_reserve(0)?);
        let (disk, long) = (disk.clone(), Vec::new());
        Ok(Some(Self { disk, file, len, buffer, at: 0, filled: 0, long, memory }))
    }

    /// Fills the window from the block that `at` lies in.
    fn fill(&mut self, at: u64) -> Result<()> {
        let block = self.disk.block() as u64;
        self.at = at / block * block;
        self.filled = (self.len - self.at).min(BUFFER as u64) as usize;
        let buf = &mut self.buffer[..self.filled];
        let read = self.disk.read(&mut [ReadOp { file: &self.file, at: self.at, buf }]);
        if read.is_err() {
            self.filled = 0;
        }
        read
    }
}

impl Source for Window {
    fn end(&self) -> u64 {
        self.len
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let end = at + len as u64;
        if at >= self.at && end <= self.at + self.filled as u64 {
            return Ok(&self.buffer[(at - self.at) as usize..][..len]);
        }
        if len <= BUFFER - self.disk.block() {
            self.fill(at)?;
            return Ok(&self.buffer[(at - self.at) as usize..][..len]);
        }
        // What is made of the record comes on top of its text, about as long.
        self.memory.resize(3 * len as u64)?;
        self.long = Vec::with_capacity(len);
        while self.long.len() < len {
            let from = at + self.long.len() as u64;
            self.fill(from)?;
            let start = (from - self.at) as usize;
            let more = (self.filled - start).min(len - self.long.len());
            self.long.extend_from_slice(&self.buffer[start..start + more]);
        }
        Ok(&self.long)
    }
}

/// Takes the records of one commit.
pub struct Sink<'a> {
    out: Out<'a>,
    account: &'a Account,
    named: Vec<(u64, Vec<String>)>,
    memory: Reservation,
}

/// A record whose store's part is not made into text of its own first.
#[derive(Serialize)]
enum Written<'a, T> {
    Part { key: u64, files: &'a [String], app: &'a T },
    Gone { key: u64 },
    Note { app: &'a T },
}

impl Sink<'_> {
    /// All of one part, in the place of what was said of it before. The files that it names are finished and synced.
    pub fn part(&mut self, key: u64, files: Vec<String>, app: &impl Serialize) -> Result<()> {
        if let Some(name) = files.iter().find(|name| crate::manifest::number(name).is_none()) {
            return Err(Error::bug(format!("'{name}' is no name of a data file")));
        }
        self.put(&Written::Part { key, files: &files, app }, false)?;
        self.name(key, files)
    }

    /// A part that is no more, nor are its files.
    pub fn gone(&mut self, key: u64) -> Result<()> {
        self.put(&Written::Gone::<()> { key }, false)?;
        self.name(key, Vec::new())
    }

    /// Notes are kept in their order until the next snapshot.
    pub fn note(&mut self, app: &impl Serialize) -> Result<()> {
        self.put(&Written::Note { app }, false)
    }

    fn name(&mut self, key: u64, files: Vec<String>) -> Result<()> {
        self.memory.grow(files_bytes(&files))?;
        self.named.push((key, files));
        Ok(())
    }

    fn put(&mut self, record: &impl Serialize, is_last: bool) -> Result<()> {
        let mut text = Booked { text: Vec::new(), memory: self.account.try_reserve(0)?, short: None };
        let written = serde_json::to_writer(&mut text, record);
        if let Some(short) = text.short {
            return Err(short);
        }
        written.map_err(|error| Error::bug(format!("a record of the manifest cannot be written: {error}")))?;
        self.out.push(&frame_head(self.out.at(), &text.text, is_last))?;
        self.out.push(&text.text)
    }
}

/// What a part's files take in memory while the manifest names them.
pub(crate) fn files_bytes(files: &[String]) -> u64 {
    64 + files.iter().map(|name| name.len() as u64 + NAMED_BYTES).sum::<u64>()
}

/// The text of one record, booked as it grows.
struct Booked {
    text: Vec<u8>,
    memory: Reservation,
    short: Option<Error>,
}

impl std::io::Write for Booked {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let wanted = self.text.len() + bytes.len();
        if wanted > self.text.capacity() {
            let capacity = (wanted + wanted / 2).next_multiple_of(4096);
            // While the text moves, both places are in use.
            if let Err(short) = self.memory.resize((self.text.capacity() + capacity) as u64) {
                self.short = Some(short);
                return Err(std::io::ErrorKind::OutOfMemory.into());
            }
            self.text.reserve_exact(capacity - self.text.len());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A buffer before a file.
struct Out<'a> {
    disk: &'a dyn Disk,
    file: &'a File,
    buffer: Aligned,
    /// Where the buffer's first byte goes, and how many it has.
    start: u64,
    fill: usize,
    /// Length of the file.
    len: u64,
    /// Checksum of all that was pushed.
    crc: u32,
}

impl<'a> Out<'a> {
    /// Goes on at `start`, a whole block, in a file of so many bytes.
    fn new(disk: &'a dyn Disk, file: &'a File, account: &Account, start: u64, len: u64) -> Result<Self> {
        Ok(Self { disk, file, buffer: Aligned::new(account, BUFFER)?, start, fill: 0, len, crc: 0 })
    }

    fn at(&self) -> u64 {
        self.start + self.fill as u64
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        while !bytes.is_empty() {
            let more = bytes.len().min(BUFFER - self.fill);
            self.buffer[self.fill..self.fill + more].copy_from_slice(&bytes[..more]);
            (self.fill, bytes) = (self.fill + more, &bytes[more..]);
            if self.fill == BUFFER {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Writes what is in the buffer, with zeros up to a whole block.
    fn write(&mut self) -> Result<()> {
        let whole = self.fill.next_multiple_of(BLOCK as usize);
        self.buffer[self.fill..whole].fill(0);
        let end = self.start + whole as u64;
        if end > self.len {
            self.len = end.next_multiple_of(STEP);
            self.disk.set_len(self.file, self.len)?;
        }
        if whole > 0 {
            self.disk.write(self.file, self.start, &self.buffer[..whole])?;
        }
        (self.start, self.fill) = (end, 0);
        Ok(())
    }
}

/// What a commit calls to have its records written; `true`: all of them, `false`: those that changed.
pub type Write<'a> = dyn FnMut(&mut Sink<'_>, bool) -> Result<()> + 'a;

/// What a commit did.
pub(crate) struct Committed {
    /// It was a snapshot: what it does not name is gone.
    pub(crate) whole: bool,
    pub(crate) named: Named,
    pub(crate) memory: Reservation,
}

/// Where a manifest is written, and who pays: for buffers, and for the names of files that are remembered.
pub(crate) struct Target<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) folder: &'a Path,
    pub(crate) account: &'a Account,
    pub(crate) names: &'a Account,
}

/// The manifest of a folder, open for commits.
pub(crate) struct Edits {
    /// `None`: there is nothing to append to.
    place: Option<Place>,
}

/// Where edits go.
struct Place {
    file: File,
    len: u64,
    layout: Layout,
}

impl Place {
    /// Takes the space of the next edit, if it is not longer than most.
    fn lengthen(&mut self, disk: &dyn Disk) -> Result<()> {
        let wanted = (self.layout.end + BUFFER as u64).next_multiple_of(STEP);
        if self.len < wanted {
            disk.set_len(&self.file, wanted)?;
            self.len = wanted;
        }
        Ok(())
    }

    /// A write that failed may have reached the disk all the same, and a start would then find an edit of which the store
    /// was told that it failed. Its first block is made zeros; returns what is known of the commit then.
    fn void(&self, disk: &dyn Disk, zeros: &[u8], error: Error) -> Failed {
        let voided = disk.write(&self.file, self.layout.end, zeros);
        match voided.and_then(|()| disk.sync(Sync::File(&self.file))) {
            Ok(()) => Failed::Clean(error),
            Err(_) => Failed::Unknown(error),
        }
    }
}

impl Edits {
    /// The first commit writes a snapshot.
    pub(crate) fn none() -> Self {
        Self { place: None }
    }

    /// After what was read, of which all is durable now: an edit that nobody knows to be synced may be one whose sync
    /// failed, which reads well and is gone after a crash. What a crash tore is never written over: a snapshot is due.
    pub(crate) fn after(disk: &dyn Disk, folder: &Path, account: &Account, mut layout: Layout) -> Result<Self> {
        if layout.version < VERSION {
            return Ok(Self::none());
        }
        let file = disk.open(&folder.join(NAME), Open::Write)?;
        let len = whole_blocks(disk.len(&file)?);
        if layout.end > layout.synced {
            write_again(disk, &file, account, &mut layout)?;
        }
        let place = Place { file, len, layout };
        Ok(Self { place: (!place.layout.torn).then_some(place) })
    }

    /// Whether the next commit should be a snapshot.
    fn is_due(&self) -> bool {
        self.place.as_ref().is_none_or(|place| {
            let layout = &place.layout;
            layout.end - layout.mark() > (layout.body.end - layout.body.start).max(EDITS_LEAST)
        })
    }

    /// Commits what `write` writes, with a head. `before_head` is called once with the files that were named; before it has
    /// returned nobody can read of them.
    pub(crate) fn commit(
        &mut self,
        to: &Target<'_>,
        head: &Head,
        write: &mut Write<'_>,
        before_head: &mut BeforeHead<'_>,
    ) -> Result<Committed, Failed> {
        let is_due = self.is_due();
        if let Some(place) = &mut self.place {
            // Before anything is written: on a full disk all stays as it is, and an edit needs no more than this.
            place.lengthen(to.disk).map_err(Failed::Clean)?;
        }
        if is_due {
            match self.replace(to, head, write, before_head) {
                // A snapshot that finds no room is written later.
                Err(Failed::Clean(full)) if full.kind() == Kind::NoSpace && self.place.is_some() => {}
                replaced => return replaced,
            }
        }
        // What makes a begun edit void finds its memory before there is one.
        let zeros = Aligned::new(to.account, BLOCK as usize).map_err(Failed::Clean)?;
        let appended = self.append(to, head, write, before_head);
        let Err(failed) = appended else { return appended };
        // What was begun may stand where the next edit would: a snapshot is due.
        let begun = self.place.take();
        match (failed, begun) {
            (Failed::Clean(error), Some(place)) => Err(place.void(to.disk, &zeros, error)),
            (failed, _) => Err(failed),
        }
    }

    fn append(
        &mut self,
        to: &Target<'_>,
        head: &Head,
        write: &mut Write<'_>,
        before_head: &mut BeforeHead<'_>,
    ) -> Result<Committed, Failed> {
        let place = self.place.as_mut().ok_or_else(|| Failed::Clean(Error::bug("no place for an edit")))?;
        let disk = to.disk;
        let out = Out::new(disk, &place.file, to.account, place.layout.end, place.len).map_err(Failed::Clean)?;
        let (mut out, named, memory) = records(out, to, head, write, false, before_head)?;
        out.write().map_err(Failed::Clean)?;
        disk.sync(Sync::File(&place.file)).map_err(Failed::Unknown)?;
        (place.layout.synced, place.layout.end, place.len) = (out.start, out.start, out.len);
        let mut buffer = out.buffer;
        let marked = put_mark(disk, &place.file, &mut buffer, &place.layout);
        if let Err(error) = marked {
            tracing::warn!("the manifest is written anew with the next commit: {error}");
            self.place = None;
        }
        Ok(Committed { whole: false, named, memory })
    }

    fn replace(
        &mut self,
        to: &Target<'_>,
        head: &Head,
        write: &mut Write<'_>,
        before_head: &mut BeforeHead<'_>,
    ) -> Result<Committed, Failed> {
        let (disk, folder) = (to.disk, to.folder);
        let path = folder.join(NAME_NEW);
        let written = snapshot(to, &path, head, write, before_head);
        let (place, named, memory) = written.inspect_err(|_| {
            // If removing fails, too, the next attempt or the next start removes it.
            let _ = disk.rename(&path, None);
        })?;
        disk.rename(&path, Some(&folder.join(NAME)))
            .and_then(|()| disk.sync(Sync::Folder(folder)))
            .map_err(Failed::Unknown)?;
        self.place = Some(place);
        Ok(Committed { whole: true, named, memory })
    }
}

/// Makes a file at `path`, whatever stood there.
fn create(disk: &dyn Disk, path: &Path) -> Result<File> {
    match disk.open(path, Open::Create) {
        Err(error) if error.kind() == Kind::Exists => {
            disk.rename(path, None)?;
            disk.open(path, Open::Create)
        }
        opened => opened,
    }
}

/// The files of each part that was written.
pub(crate) type Named = Vec<(u64, Vec<String>)>;

/// Called with the files that a commit names, when all but its head is written.
pub(crate) type BeforeHead<'a> = dyn FnMut(&Named) -> Result<()> + 'a;

/// Writes the records of one group and its head.
fn records<'a>(
    out: Out<'a>,
    to: &Target<'a>,
    head: &Head,
    write: &mut Write<'_>,
    whole: bool,
    before_head: &mut BeforeHead<'_>,
) -> Result<(Out<'a>, Named, Reservation), Failed> {
    let memory = to.names.try_reserve(0).map_err(Failed::Clean)?;
    let mut sink = Sink { out, account: to.account, named: Vec::new(), memory };
    write(&mut sink, whole).map_err(Failed::Clean)?;
    before_head(&sink.named).map_err(Failed::Unknown)?;
    sink.put(&Record::Head(head.clone()), true).map_err(Failed::Clean)?;
    let Sink { out, named, memory, .. } = sink;
    Ok((out, named, memory))
}

fn snapshot(
    to: &Target<'_>,
    path: &Path,
    head: &Head,
    write: &mut Write<'_>,
    before_head: &mut BeforeHead<'_>,
) -> Result<(Place, Named, Reservation), Failed> {
    let (disk, account) = (to.disk, to.account);
    let file = create(disk, path).map_err(Failed::Clean)?;
    let mut out = Out::new(disk, &file, account, 0, 0).map_err(Failed::Clean)?;
    // The first line is written last: it tells the length.
    out.push(&[0; LINE]).map_err(Failed::Clean)?;
    out.crc = 0;
    let (out, named, memory) = records(out, to, head, write, true, before_head)?;
    let (len, layout) = finish(disk, &file, account, out).map_err(Failed::Clean)?;
    // What fails before the rename leaves the manifest as it was.
    disk.sync(Sync::File(&file)).map_err(Failed::Clean)?;
    Ok((Place { file, len, layout }, named, memory))
}

/// Writes what a snapshot begins with and what stands between it and the edits. Returns the file's length, too.
fn finish(disk: &dyn Disk, file: &File, account: &Account, mut out: Out<'_>) -> Result<(u64, Layout)> {
    let (end, crc) = (out.at(), out.crc);
    out.write()?;
    let (line, crc) = line(VERSION, end - LINE as u64, crc);
    let body = LINE as u64..end;
    let start = end.next_multiple_of(BLOCK) + BLOCK;
    let layout = Layout { version: VERSION, body, crc, synced: start, end: start, torn: false };
    let mut block = Aligned::new(account, BLOCK as usize)?;
    disk.read(&mut [ReadOp { file, at: 0, buf: &mut block }])?;
    block[..LINE].copy_from_slice(&line);
    disk.write(file, 0, &block)?;
    let len = out.len.max(layout.end.next_multiple_of(STEP));
    disk.set_len(file, len)?;
    put_mark(disk, file, &mut block, &layout)?;
    Ok((len, layout))
}

/// Writes and syncs the edits that nobody knows to be synced.
fn write_again(disk: &dyn Disk, file: &File, account: &Account, layout: &mut Layout) -> Result<()> {
    let mut block = Aligned::new(account, BLOCK as usize)?;
    for at in (layout.synced..layout.end).step_by(BLOCK as usize) {
        disk.read(&mut [ReadOp { file, at, buf: &mut block }])?;
        disk.write(file, at, &block)?;
    }
    disk.sync(Sync::File(file))?;
    layout.synced = layout.end;
    put_mark(disk, file, &mut block, layout)
}

fn put_mark(disk: &dyn Disk, file: &File, buffer: &mut Aligned, layout: &Layout) -> Result<()> {
    let mark = mark(layout.end, layout.crc);
    buffer[..BLOCK as usize].fill(0);
    buffer[..mark.len()].copy_from_slice(&mark);
    disk.write(file, layout.mark(), &buffer[..BLOCK as usize])
}

/// Appends an edit that is but a head.
pub(crate) fn append_head(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    layout: Layout,
    head: &Head,
) -> Result<()> {
    let file = disk.open(&folder.join(NAME), Open::Write)?;
    let len = whole_blocks(disk.len(&file)?);
    if layout.torn {
        disk.set_len(&file, layout.end)?;
        disk.set_len(&file, len)?;
        disk.sync(Sync::File(&file))?;
    }
    let mut edits = Edits { place: Some(Place { file, len, layout }) };
    let to = Target { disk, folder, account, names: account };
    let appended = edits.append(&to, head, &mut |_, _| Ok(()), &mut |_| Ok(()));
    appended.map(|_| ()).map_err(Failed::into_error)
}

/// Makes `bytes`, whole blocks, the manifest of `folder`: for one in the format before.
pub(crate) fn replace_whole(disk: &dyn Disk, folder: &Path, account: &Account, bytes: &[u8]) -> Result<()> {
    let path = folder.join(NAME_NEW);
    let file = create(disk, &path)?;
    let mut out = Out::new(disk, &file, account, 0, bytes.len() as u64)?;
    disk.set_len(&file, bytes.len() as u64)?;
    out.push(bytes)?;
    out.write()?;
    disk.sync(Sync::File(&file))?;
    disk.rename(&path, Some(&folder.join(NAME)))?;
    disk.sync(Sync::Folder(folder))
}
