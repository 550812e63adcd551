//! The writer's side of the log.
//!
//! ```text
//!   append ──► buffer ──full──► write            (no sync)
//!   append ──► buffer ──┐
//!   commit ─────────────┴─pad─► write ► fdatasync ► end moves      one write, one sync, for all appended;
//!                                                                  now and then zeros behind it, for the next small ones
//!
//!   file full:   create the next file (all its space reserved) ► commit what is there, and an end mark that
//!                names it, by one sync ► go on in it
//!   after open:  go on in a new file, so that no block that was ever written is written again
//! ```
//!
//! A request may have several records: [`Log::make_room`] for all of them, [`Log::append_part`] each, the last one as a
//! whole. They stand in one file and one group commit, and a start finds all of them or none.
//!
//! What fails, and what then:
//!
//! - The disk is full when a file is to be created: `make_room` fails with `NoSpace` and changes nothing.
//!   What was appended before can still be committed, and a later append tries again.
//! - A write or a sync fails: nobody knows what the disk holds. Every later append and commit
//!   fails with `Closed` until a restart reads the log again. Reading goes on.

use crate::Lsn;
use crate::files::{self, FILE_BYTES, FILE_BYTES_MIN, LogFile};
use crate::format::{FILE_HEADER, FileHeader, Header, RECORD_HEADER, place};
use crate::reader::{LogFiles, LogReader};
use crate::recover::recover;
use crate::walk::{Cut, Known, Visit, walk};
use ramekin_base::{Error, Kind, Result, Size, limits};
use ramekin_disk::{ALIGN, Aligned, Disk, Failed, Open, Sync};
use ramekin_memory::Account;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The commit buffer, unless its owner asks for another one; a longer commit takes several writes, and still one sync.
const BUFFER: usize = 512 << 10;

/// What an open log holds in memory; opening takes a quarter of a MiB more, and what the longest record needs.
pub const OPEN_BYTES: u64 = BUFFER as u64 + FILE_HEADER;

/// The log, open for writing by one thread.
pub struct Log {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    shared: Arc<LogFiles>,
    account: Account,
    /// `None` while the owner writes nothing: see [`Log::set_buffer`].
    buffer: Option<Aligned>,
    /// For the header of the next file.
    page: Aligned,
    current: Current,
    file_bytes: u64,
    /// Files that were trimmed, and are still on the disk: whether one has its name, or only readers that have pinned it.
    trimmed: Vec<(Arc<LogFile>, bool)>,
    /// What the start dropped from the end.
    cut: Option<Cut>,
    /// Why writes are closed.
    failed: Option<String>,
}

/// The file that is written.
struct Current {
    file: Arc<LogFile>,
    /// Where the buffer's first byte goes; a whole number of blocks.
    flushed: u64,
    /// Bytes in the buffer.
    fill: usize,
    /// Zeros were written up to here where nothing else was yet.
    zeroed: u64,
    /// Something was appended since the last sync.
    dirty: bool,
    /// It was there when the log was opened: only its end mark is still written.
    ended: bool,
}

impl Log {
    /// Opens the log in `folder`, made if it is missing, and hands every record from `durable.start` on to `replay`, those of
    /// requests only that are there as a whole. Everything before `durable.end` was durable when that was noted elsewhere;
    /// `begun`: the log was open before, so there is a file at least.
    ///
    /// A write torn by a crash is cut: [`Log::cut`]. Where acknowledged records are damaged or missing the error is
    /// `Corrupt` and names file and offset; nothing is changed then.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        account: &Account,
        durable: Range<Lsn>,
        begun: bool,
        replay: &mut Visit<'_>,
    ) -> Result<Self> {
        disk.make_folder(folder)?;
        let starts = files::list(&*disk, folder)?.into_iter();
        let mut files: Vec<_> =
            starts.map(|start| LogFile::open(&*disk, folder, account, start, Open::Write)).collect::<Result<_>>()?;
        if files.is_empty() && (durable.end > 0 || begun) {
            return Err(missing(folder, durable.start));
        }
        let known = Known { durable: durable.end, begun };
        let (mut page, mut cut, mut offset) = (Aligned::new(account, FILE_HEADER as usize)?, None, FILE_HEADER);
        if !files.is_empty() {
            (offset, cut) = recover(&*disk, folder, account, &mut files, durable.start, &known, replay)?;
        }
        let ended = !files.is_empty();
        if files.is_empty() {
            let header = FileHeader { start: 0, number: 1, bytes: FILE_BYTES_MIN };
            let made = files::create(&*disk, folder, header, &mut page).map_err(Failed::into_error)?;
            (offset, cut) = (FILE_HEADER, None);
            files.push(made);
        }
        let Some(file) = files.last().cloned() else { return Err(Error::bug("a log without a file")) };
        let buffer = Some(Aligned::new(account, BUFFER)?);
        let shared = LogFiles::new(disk.clone(), files, file.start + offset);
        let current = Current { file, flushed: offset, fill: 0, zeroed: 0, dirty: false, ended };
        let (account, folder) = (account.clone(), folder.to_owned());
        let (file_bytes, trimmed, failed) = (FILE_BYTES, Vec::new(), None);
        Ok(Self { disk, folder, shared, account, buffer, page, current, file_bytes, trimmed, cut, failed })
    }

    /// What the start dropped from the log's end: requests that are not there as a whole.
    pub fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Hands every committed record from `from` on to `visit` once more; it may read the log itself meanwhile. One that can
    /// no longer be read is damage, at the very end too: all of them have been read before, or are of this log's own commits.
    pub fn replay(&self, from: Lsn, visit: &mut Visit<'_>) -> Result<()> {
        let files = self.shared.files();
        let known = Known { durable: self.end(), begun: true };
        walk(&*self.disk, &self.account, &files, from..self.end(), &known, visit)?.sound(&files)
    }

    /// Files made from now on have this many bytes, or what the record that they are made for needs.
    ///
    /// On disk are at most the bytes that are still needed and two files more: the first one is removed only
    /// as a whole, and the last one is reserved ahead. A new file costs three syncs, one of them that of the commit.
    pub fn set_file_bytes(&mut self, bytes: u64) {
        self.file_bytes = bytes.max(FILE_BYTES_MIN).next_multiple_of(ALIGN as u64);
    }

    /// Another commit buffer, of whole pages; 0: none, and nothing can be appended until there is one again. While something
    /// waits in the buffer it stays as it is, and where there is no memory for another one.
    pub fn set_buffer(&mut self, bytes: usize) -> Result<()> {
        if self.current.fill > 0 || self.buffer.as_ref().map_or(0, |buffer| buffer.len()) == bytes {
            return Ok(());
        }
        self.buffer = if bytes > 0 { Some(Aligned::new(&self.account, bytes)?) } else { None };
        Ok(())
    }

    /// Appends a record that is a request of its own; it is durable, and can be read, after the next [`Log::commit`].
    pub fn append(&mut self, record: &[u8]) -> Result<Lsn> {
        check_len(record)?;
        self.make_room(1, record.len())?;
        self.append_part(0, record, true)
    }

    /// Appends a record of a request, for all of whose records room was made; a start finds it only together with the last
    /// one. Numbers of requests that are under way at one time differ in their lowest 32 bits.
    pub fn append_part(&mut self, request: u64, record: &[u8], is_last: bool) -> Result<Lsn> {
        self.check_open()?;
        check_len(record)?;
        if !self.has_room(1, record.len()) {
            return Err(Error::bug("a record was appended for which no room was made"));
        }
        self.place()?;
        let offset = self.current.offset();
        let header = Header::record(record, self.end(), request as u32, is_last);
        self.current.dirty = true;
        self.put(&header.encode(self.current.file.place(offset)))?;
        self.put(record)?;
        let gap = record.len().next_multiple_of(8) - record.len();
        self.put(&[0; 8][..gap])?;
        Ok(self.current.file.start + offset)
    }

    fn has_room(&self, records: usize, bytes: usize) -> bool {
        !self.current.ended && self.current.offset() + room(records, bytes) <= self.current.file.len()
    }

    /// Makes sure that `records` records with `bytes` bytes of body together can be appended without
    /// a new file, so that a full disk shows before the first of them is.
    pub fn make_room(&mut self, records: usize, bytes: usize) -> Result<()> {
        self.make_room_in(self.file_bytes, records, bytes)
    }

    /// The same, and a file that is made for it has so many bytes, or what these records need: for a full disk.
    pub fn make_room_in(&mut self, file_bytes: u64, records: usize, bytes: usize) -> Result<()> {
        self.check_open()?;
        if self.has_room(records, bytes) {
            return Ok(());
        }
        let align = ALIGN as u64;
        let file_bytes = file_bytes.max(FILE_BYTES_MIN).next_multiple_of(align);
        let bytes = file_bytes.max((FILE_HEADER + room(records, bytes)).next_multiple_of(align));
        let block = self.disk.block() as u64;
        // The end mark has a block of its own behind the commit, which leaves no gap of less than a header.
        let mark = place(self.current.offset()).next_multiple_of(block);
        let start = self.current.file.start + mark + block;
        if self.current.file.len() < mark + block {
            // A file of version 1 may be full to its end.
            self.current.file.set_len(&*self.disk, (mark + block).next_multiple_of(align))?;
        }
        let header = FileHeader { start, number: self.current.file.number() + 1, bytes };
        match files::create(&*self.disk, &self.folder, header, &mut self.page) {
            Ok(file) => self.link(file),
            Err(Failed::Clean(error)) => Err(error.at(format!("the log cannot grow by {}", Size(bytes)))),
            Err(Failed::Unknown(error)) => Err(self.close(&error)),
        }
    }

    /// Ends the file that is written with a mark that names `next`, by the sync of what was appended, and goes on there.
    fn link(&mut self, next: Arc<LogFile>) -> Result<()> {
        self.pad()?;
        let (durable, offset, block) = (self.end(), self.current.offset(), self.disk.block());
        let mark = Header::end(block - RECORD_HEADER, durable).encode(self.current.file.place(offset));
        self.put(&mark)?;
        self.put(&ZEROS.0[..block - RECORD_HEADER])?;
        self.current.dirty = true;
        self.sync()?;
        let used = self.current.flushed.next_multiple_of(ALIGN as u64);
        let ended = std::mem::replace(
            &mut self.current,
            Current { file: next.clone(), flushed: FILE_HEADER, fill: 0, zeroed: 0, dirty: false, ended: false },
        );
        self.shared.add(next);
        if used < ended.file.len() {
            // What is left is worth nothing; it may stay, so an error changes nothing.
            _ = ended.file.set_len(&*self.disk, used);
        }
        Ok(())
    }

    /// Makes everything that was appended durable. Everything before the position that it returns is.
    pub fn commit(&mut self) -> Result<Lsn> {
        self.check_open()?;
        if self.current.dirty {
            self.pad()?;
            self.sync()?;
        }
        Ok(self.end())
    }

    /// Writes and syncs what is in the buffer, whole blocks; the end moves.
    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.disk.sync(Sync::File(&self.current.file.file));
        self.current.dirty = false;
        synced.map_err(|error| self.close(&error))?;
        self.shared.set_end(self.current.file.start + self.current.flushed);
        Ok(())
    }

    /// A handle that reads committed records. It lives on when the log is gone.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.shared.clone(), self.account.clone())
    }

    /// Removes the files that hold nothing from `before` on, and those that could not be removed the last time. Readers that
    /// are at them go on; a file is closed here once they have left it, since that gives its space back, which may take a while.
    pub fn trim(&mut self, before: Lsn) -> Result<()> {
        self.trimmed.extend(self.shared.trim(before).into_iter().map(|file| (file, true)));
        let mut outcome = Ok(());
        self.trimmed.retain_mut(|(file, has_name)| {
            if *has_name {
                // The names need not be gone after a crash: the next open removes them.
                match self.disk.rename(file.file.path(), None) {
                    Err(error) if error.kind() != Kind::NotFound => outcome = Err(error),
                    _ => *has_name = false,
                }
            }
            *has_name || Arc::strong_count(file) > 1
        });
        outcome
    }

    /// Everything before this position is durable.
    pub fn end(&self) -> Lsn {
        self.shared.end()
    }

    /// Bytes that the next commit makes durable, headers included.
    pub fn uncommitted_bytes(&self) -> u64 {
        (self.current.file.start + self.current.offset())
            .saturating_sub(self.end().max(self.current.file.start + FILE_HEADER))
    }

    /// Bytes of all files, reserved space included.
    pub fn bytes_on_disk(&self) -> u64 {
        self.shared.bytes() + self.trimmed.iter().map(|(file, _)| file.len()).sum::<u64>()
    }

    /// `Closed` after a write or a sync that failed.
    pub fn check_open(&self) -> Result<()> {
        match &self.failed {
            Some(why) => Err(Error::closed(why.clone())),
            None => Ok(()),
        }
    }

    /// Closes writes and says why. What the disk holds of the last commit is known only after a restart.
    fn close(&mut self, error: &Error) -> Error {
        let why = format!("writes are closed since the log could not be written ({error}); restart to open them again");
        self.failed = Some(why);
        // Not even a disk that is full refuses it: it may be there after a restart.
        error.clone().after("the log could not be written; writes are closed until a restart")
    }

    /// Skips what is left of a sector if a header does not fit there.
    fn place(&mut self) -> Result<()> {
        let offset = self.current.offset();
        let gap = (place(offset) - offset) as usize;
        self.put(&[0; RECORD_HEADER][..gap])
    }

    /// Fills the last block, so that the next commit begins on a new one.
    fn pad(&mut self) -> Result<()> {
        self.place()?;
        let block = self.disk.block() as u64;
        let offset = self.current.offset();
        let gap = (offset.next_multiple_of(block) - offset) as usize;
        if gap == 0 {
            return Ok(());
        }
        let header = Header::pad(gap - RECORD_HEADER, self.end()).encode(self.current.file.place(offset));
        self.put(&header)?;
        self.put(&ZEROS.0[..gap - RECORD_HEADER])
    }

    /// Before small commits come, writes zeros over some of the reserved space behind them, which reads as zeros before. A file system
    /// notes of reserved space which of it was written: without this each sync would have to write that note, too, which costs
    /// as much as the commit. An error is met again by the commit that comes there.
    fn zero_ahead(&mut self) {
        let Current { file, flushed, fill, zeroed, .. } = &mut self.current;
        let from = *flushed + *fill as u64;
        if from <= *zeroed || *fill as u64 > AHEAD / 4 {
            return;
        }
        *zeroed = (from + AHEAD).min(file.len());
        let mut at = from;
        while at < *zeroed {
            let bytes = (*zeroed - at).min(ZEROS.0.len() as u64);
            if self.disk.write(&file.file, at, &ZEROS.0[..bytes as usize]).is_err() {
                return;
            }
            at += bytes;
        }
    }

    /// Copies bytes behind what is in the buffer; writes it out whenever it is full.
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (current, buffer) = (&mut self.current, self.buffer.as_mut().ok_or_else(no_buffer)?);
            let now = bytes.len().min(buffer.len() - current.fill);
            buffer[current.fill..current.fill + now].copy_from_slice(&bytes[..now]);
            current.fill += now;
            bytes = &bytes[now..];
            if current.fill == buffer.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the buffer, whole blocks, without a sync.
    fn flush(&mut self) -> Result<()> {
        if self.current.fill == 0 {
            return Ok(());
        }
        self.zero_ahead();
        let current = &mut self.current;
        let buffer = self.buffer.as_ref().ok_or_else(no_buffer)?;
        let written = self.disk.write(&current.file.file, current.flushed, &buffer[..current.fill]);
        current.flushed += current.fill as u64;
        current.fill = 0;
        written.map_err(|error| self.close(&error))
    }
}

/// A page of zeros, and more, that any disk can write from.
#[repr(align(4096))]
struct Zeros([u8; 32 << 10]);

static ZEROS: Zeros = Zeros([0; 32 << 10]);

/// So much is zeroed at one time, before commits of no more than a quarter of it.
const AHEAD: u64 = 128 << 10;

fn check_len(record: &[u8]) -> Result<()> {
    match record.len() {
        ..=limits::LOG_RECORD_MAX => Ok(()),
        len => {
            let most = limits::LOG_RECORD_MAX;
            Err(Error::too_large(format!("a log record of {len} bytes; at most {most} are allowed")))
        }
    }
}

fn no_buffer() -> Error {
    Error::bug("something was appended to a log that has no buffer")
}

/// Bytes of a file that so many records with so many bytes of body take at most, with the rest of their commit and
/// the file's end mark behind them.
pub fn room(records: usize, bytes: usize) -> u64 {
    // A record needs its header, up to 7 bytes behind it and what is left of a sector before it.
    (bytes + records * (2 * RECORD_HEADER + 8)) as u64 + 2 * ALIGN as u64
}

impl Current {
    fn offset(&self) -> u64 {
        self.flushed + self.fill as u64
    }
}

fn missing(folder: &Path, from: Lsn) -> Error {
    Error::corrupt(format!(
        "{} holds no log, and held one that is needed from position {from} on; restore the folder or run `ramekin check --repair`",
        folder.display()
    ))
}
