//! The writer's side of the log.
//!
//! ```text
//!   append ──► buffer ──full──► write            (no sync)
//!   append ──► buffer ──┐
//!   commit ─────────────┴─pad─► write ► fdatasync ► end moves      one write, one sync, for all appended
//!
//!   file full:   commit what is there ► create the next file (its space reserved) ► go on in it
//!   after open:  go on in a new file, so that no block that was ever written is written again
//! ```
//!
//! What fails, and what then:
//!
//! - The disk is full when a file is to be created: the append fails with `NoSpace` and changes nothing.
//!   What was appended before can still be committed, and a later append tries again.
//!   [`Log::make_room`] finds it out before the first record of a group is appended.
//! - A write or a sync fails: nobody knows what the disk holds. Every later append and commit
//!   fails with `Closed` until a restart reads the log again. Reading goes on.

use crate::Position;
use crate::files::{self, FILE_BYTES, FILE_BYTES_MIN, Failed, LogFile};
use crate::format::{FILE_HEADER, Header, RECORD_HEADER, place};
use crate::reader::{LogReader, Shared};
use crate::walk::{Visit, walk};
use ramekin_base::{Error, Result, limits};
use ramekin_disk::{ALIGN, Aligned, Disk, Open, ReadOp, Sync};
use ramekin_memory::Account;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The commit buffer; a longer commit takes several writes, and still one sync.
const BUFFER: usize = 512 << 10;

/// What an open log holds in memory; opening takes a quarter of a MiB more, and what the longest record needs.
pub const OPEN_BYTES: u64 = BUFFER as u64;

/// Bytes at a time of the file's end that a start writes again.
const SETTLE: usize = 64 << 10;

/// The log, open for writing by one thread.
pub struct Log {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    shared: Arc<Shared>,
    account: Account,
    buffer: Aligned,
    current: Option<Current>,
    file_bytes: u64,
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
    /// Something was appended since the last sync.
    dirty: bool,
}

impl Log {
    /// Opens the log in `folder`, made if it is missing, and hands every record from `durable.start` on to `replay`.
    /// Everything before `durable.end` was durable when that was noted elsewhere.
    ///
    /// A write torn by a crash is cut. Where acknowledged records are damaged or missing the error is
    /// `Corrupt` and names file and offset; nothing is changed then.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        account: &Account,
        durable: Range<Position>,
        replay: &mut Visit<'_>,
    ) -> Result<Self> {
        disk.make_folder(folder)?;
        if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
            disk.sync(Sync::Folder(above))?;
        }
        let starts = files::list(&*disk, folder)?.into_iter();
        let mut files: Vec<_> =
            starts.map(|start| LogFile::open(&*disk, folder, start, Open::Write)).collect::<Result<_>>()?;
        let end = if files.is_empty() && durable.end == 0 {
            0
        } else if files.is_empty() {
            return Err(missing(folder, durable.start));
        } else {
            recover(&*disk, folder, account, &mut files, durable, replay)?
        };
        let buffer = Aligned::new(account, BUFFER)?;
        let shared = Shared::new(disk.clone(), files, end);
        let account = account.clone();
        let folder = folder.to_owned();
        Ok(Self { disk, folder, shared, account, buffer, current: None, file_bytes: FILE_BYTES, failed: None })
    }

    /// Hands every committed record from `from` on to `visit` once more; it may read the log itself meanwhile.
    pub fn replay(&self, from: Position, visit: &mut Visit<'_>) -> Result<()> {
        let files = self.shared.files();
        if files.is_empty() {
            return Ok(());
        }
        walk(&*self.disk, &self.account, &files, from..self.end(), from, visit)?.sound(&files)
    }

    /// Files made from now on have this many bytes, or what the record that they are made for needs.
    ///
    /// On disk are at most the bytes that are still needed and two files more: the first one is removed only
    /// as a whole, and the last one is reserved ahead. A new file costs three syncs.
    pub fn set_file_bytes(&mut self, bytes: u64) {
        self.file_bytes = bytes.max(FILE_BYTES_MIN).next_multiple_of(ALIGN as u64);
    }

    /// Appends a record; it is durable, and can be read, after the next [`Log::commit`].
    pub fn append(&mut self, record: &[u8]) -> Result<Position> {
        if record.len() > limits::LOG_RECORD_MAX {
            return Err(Error::too_large(format!(
                "a log record of {} bytes; at most {} are allowed",
                record.len(),
                limits::LOG_RECORD_MAX
            )));
        }
        self.make_room(1, record.len())?;
        self.place()?;
        let durable = self.end();
        let Some(current) = &mut self.current else { return Err(no_file()) };
        let position = current.file.start + current.offset();
        current.dirty = true;
        let header = Header::record(record, durable).encode(position);
        self.put(&header)?;
        self.put(record)?;
        let gap = record.len().next_multiple_of(8) - record.len();
        self.put(&[0; 8][..gap])?;
        Ok(position)
    }

    /// Makes sure that `records` records with `bytes` bytes of body together can be appended without
    /// a new file, so that a full disk shows before the first of them is.
    pub fn make_room(&mut self, records: usize, bytes: usize) -> Result<()> {
        self.check_open()?;
        // A record needs its header, up to 7 bytes behind it and what is left of a sector before it.
        let needed = (bytes + records * (2 * RECORD_HEADER + 8)) as u64 + ALIGN as u64;
        if self.current.as_ref().is_some_and(|current| current.offset() + needed <= current.file.len()) {
            return Ok(());
        }
        self.commit()?;
        let bytes = self.file_bytes.max((FILE_HEADER + needed).next_multiple_of(ALIGN as u64));
        match files::create(&*self.disk, &self.folder, self.end(), bytes, &mut self.buffer) {
            Ok(file) => {
                self.shared.add(file.clone());
                self.current = Some(Current { file, flushed: FILE_HEADER, fill: 0, dirty: false });
                Ok(())
            }
            Err(Failed::Clean(error)) => Err(error.at("the log cannot grow")),
            Err(Failed::Unknown(error)) => Err(self.close(&error)),
        }
    }

    /// Makes everything that was appended durable. Everything before the position that it returns is.
    pub fn commit(&mut self) -> Result<Position> {
        self.check_open()?;
        if self.current.as_ref().is_none_or(|current| !current.dirty) {
            return Ok(self.end());
        }
        self.pad()?;
        self.flush()?;
        let Some(current) = &mut self.current else { return Err(no_file()) };
        let synced = self.disk.sync(Sync::File(&current.file.file));
        current.dirty = false;
        let end = current.file.start + current.flushed;
        synced.map_err(|error| self.close(&error))?;
        self.shared.set_end(end);
        Ok(end)
    }

    /// A handle that reads committed records. It lives on when the log is gone.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.shared.clone(), self.account.clone())
    }

    /// Removes the files that hold nothing from `before` on. Readers that are at them go on.
    pub fn trim(&mut self, before: Position) -> Result<()> {
        for file in self.shared.trim(before) {
            // The names need not be gone after a crash: the next open removes them.
            self.disk.rename(file.file.path(), None)?;
        }
        Ok(())
    }

    /// Everything before this position is durable.
    pub fn end(&self) -> Position {
        self.shared.end()
    }

    /// Bytes that the next commit makes durable, headers included.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.current
            .as_ref()
            .map_or(0, |current| current.file.start + current.offset() - self.end().max(current.file.start))
    }

    /// Bytes of all files, reserved space included.
    pub fn bytes_on_disk(&self) -> u64 {
        self.shared.bytes()
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
        error.clone().at("the log could not be written; writes are closed until a restart")
    }

    /// Skips what is left of a sector if a header does not fit there.
    fn place(&mut self) -> Result<()> {
        let Some(current) = &self.current else { return Err(no_file()) };
        let offset = current.offset();
        let gap = (place(offset) - offset) as usize;
        self.put(&[0; RECORD_HEADER][..gap])
    }

    /// Fills the last block, so that the next commit begins on a new one.
    fn pad(&mut self) -> Result<()> {
        self.place()?;
        let durable = self.end();
        let block = self.disk.block() as u64;
        let Some(current) = &self.current else { return Err(no_file()) };
        let offset = current.offset();
        let gap = (offset.next_multiple_of(block) - offset) as usize;
        if gap == 0 {
            return Ok(());
        }
        let header = Header::pad(gap - RECORD_HEADER, durable).encode(current.file.start + offset);
        self.put(&header)?;
        const ZEROS: [u8; ALIGN] = [0; ALIGN];
        self.put(&ZEROS[..gap - RECORD_HEADER])
    }

    /// Copies bytes behind what is in the buffer; writes it out whenever it is full.
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some(current) = &mut self.current else { return Err(no_file()) };
            let now = bytes.len().min(BUFFER - current.fill);
            self.buffer[current.fill..current.fill + now].copy_from_slice(&bytes[..now]);
            current.fill += now;
            bytes = &bytes[now..];
            if current.fill == BUFFER {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the buffer, whole blocks, without a sync.
    fn flush(&mut self) -> Result<()> {
        let Some(current) = &mut self.current else { return Err(no_file()) };
        if current.fill == 0 {
            return Ok(());
        }
        let written = self.disk.write(&current.file.file, current.flushed, &self.buffer[..current.fill]);
        current.flushed += current.fill as u64;
        current.fill = 0;
        written.map_err(|error| self.close(&error))
    }
}

impl Current {
    fn offset(&self) -> u64 {
        self.flushed + self.fill as u64
    }
}

fn no_file() -> Error {
    Error::bug("the log has no file to write")
}

fn missing(folder: &Path, from: Position) -> Error {
    Error::corrupt(format!(
        "{} holds no log, but the manifest names position {from} of it; restore the folder or run `ramekin check --repair`",
        folder.display()
    ))
}

/// Replays, cuts a torn end, and removes what is not needed; the position where the log goes on.
fn recover(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    files: &mut Vec<Arc<LogFile>>,
    durable: Range<Position>,
    replay: &mut Visit<'_>,
) -> Result<Position> {
    let from = durable.start;
    for file in files.iter() {
        // Cut by others inside a block, it could not be read to its end.
        let whole = file.len().next_multiple_of(ALIGN as u64);
        if whole != file.len() {
            file.set_len(disk, whole)?;
        }
    }
    let end = walk(disk, account, files, from..Position::MAX, durable.end, replay)?;
    end.sound(files)?;
    let position = files[end.file].start + end.offset;
    if end.offset < FILE_HEADER {
        // A crash came while the file was made, so the one before it ends the log.
        let path = files[end.file].file.path().to_owned();
        files.truncate(end.file);
        disk.rename(&path, None)?;
    } else {
        settle(disk, account, &files[end.file], end.offset, end.durable)?;
    }
    disk.sync(Sync::Folder(folder))?;
    // Trimmed before, but a crash brought their names back.
    let needed = files.partition_point(|file| file.start <= from).saturating_sub(1);
    for file in files.drain(..needed) {
        disk.rename(file.file.path(), None)?;
    }
    Ok(position)
}

/// Makes the last file durable as it was read, and cuts it behind its last record, at `end`.
///
/// What was written after `durable` may have failed to reach the disk, with the process ended by that, and
/// the kernel would neither say so again nor write it again by itself. So it is written once more, byte for byte.
fn settle(disk: &dyn Disk, account: &Account, file: &LogFile, end: u64, durable: Position) -> Result<()> {
    let align = ALIGN as u64;
    let used = end.next_multiple_of(align);
    if used < file.len() {
        file.set_len(disk, used)?;
    }
    // No record is written before the file's header is durable.
    let doubted = durable.saturating_sub(file.start);
    let mut at = if doubted <= FILE_HEADER { 0 } else { doubted / align * align };
    let mut buffer = Aligned::new(account, SETTLE)?;
    while at < used {
        let piece = &mut buffer[..(used - at).min(SETTLE as u64) as usize];
        disk.read(&mut [ReadOp { file: &file.file, at, buf: piece }])?;
        let valid = (end - at).min(piece.len() as u64) as usize;
        piece[valid..].fill(0);
        disk.write(&file.file, at, piece)?;
        at += piece.len() as u64;
    }
    disk.sync(Sync::File(&file.file))
}
