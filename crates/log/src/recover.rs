//! What a start does to the files of a log before it goes on: it drops what is not whole and removes what nobody needs.
//!
//! ```text
//!   … record ─ record │ torn ▒▒▒▒▒▒▒▒▒▒▒▒ ─ ─ ─           1 zeros over what is dropped, synced
//!   … record ─ record ─ pad │ ─ ─ ─ ─ ─ ─ ─ ─ ─           2 what may not have reached the disk once more, and a pad, synced
//!                           ▲ end: the next append puts an end mark here, and goes on in a new file
//! ```
//!
//! A crash between the two steps leaves a torn write, shorter than before. The file keeps its length: only an end mark
//! ends it earlier.

use crate::Lsn;
use crate::files::LogFile;
use crate::format::{FILE_HEADER, Header, RECORD_HEADER, place};
use crate::walk::{Cut, Known, Visit, walk};
use ramekin_base::Result;
use ramekin_disk::{ALIGN, Aligned, Disk, ReadOp, Sync};
use ramekin_memory::Account;
use std::path::Path;
use std::sync::Arc;

/// Bytes at a time of the file's end that a start writes again.
const SETTLE: usize = 64 << 10;

/// Replays, drops a torn end, and removes what is not needed. Returns where the last file goes on, whole blocks,
/// and what was dropped; no file may be left.
pub(crate) fn recover(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    files: &mut Vec<Arc<LogFile>>,
    from: Lsn,
    known: &Known,
    replay: &mut Visit<'_>,
) -> Result<(u64, Option<Cut>)> {
    if let Some(last) = files.last().filter(|file| file.made_bytes().is_none()) {
        // Cut by others inside a block, a file of version 1 could not be read to its end.
        let whole = last.len().next_multiple_of(ALIGN as u64);
        if whole != last.len() {
            last.set_len(disk, whole)?;
        }
    }
    let end = walk(disk, account, files, from..Lsn::MAX, known, replay)?;
    end.sound(files)?;
    // A crash came while a file was made that none names yet.
    let kept = end.file + usize::from(end.offset >= FILE_HEADER);
    let offset = match files.get(kept.wrapping_sub(1)) {
        Some(_) if kept > end.file => end.offset,
        // Only files of version 1 end without a mark: the one before was read to where this one begins.
        Some(before) => files[end.file].start - before.start,
        None => 0,
    };
    for file in files.drain(kept..).rev() {
        disk.rename(file.file.path(), None)?;
    }
    if let [before @ .., last] = &files[..] {
        // No record proves yet that the file was linked for good: the sync of the mark may have failed.
        if let Some(before) = before.last().filter(|_| end.linked_at.is_some() && end.durable < last.start) {
            settle(disk, account, before, last.start - before.start, end.durable, false)?;
        }
        settle(disk, account, last, offset, end.durable, end.cut.is_some())?;
    }
    disk.sync(Sync::Folder(folder))?;
    // Trimmed before, but a crash brought their names back. What cannot be removed now is left to the next trim.
    let needed = files.partition_point(|file| file.start <= from).saturating_sub(1);
    let removed = files[..needed].iter().take_while(|file| disk.rename(file.file.path(), None).is_ok()).count();
    files.drain(..removed);
    Ok((offset.next_multiple_of(ALIGN as u64), end.cut))
}

/// Makes the last file durable as it was read, up to its last record, at `end`, and zeros what is torn behind it.
///
/// What was written after `durable` may have failed to reach the disk, with the process ended by that, and
/// the kernel would neither say so again nor write it again by itself. So it is written once more, byte for byte.
pub(crate) fn settle(
    disk: &dyn Disk,
    account: &Account,
    file: &LogFile,
    end: u64,
    durable: Lsn,
    is_torn: bool,
) -> Result<()> {
    let align = ALIGN as u64;
    let used = end.next_multiple_of(align);
    let mut buffer = Aligned::new(account, SETTLE)?;
    if is_torn {
        buffer.fill(0);
        zero(disk, file, used, &buffer)?;
    }
    // No record is written before the file's header is durable.
    let doubted = durable.saturating_sub(file.start);
    let mut at = if doubted <= FILE_HEADER { 0 } else { doubted / align * align };
    while at < used {
        let piece = &mut buffer[..(used - at).min(SETTLE as u64) as usize];
        disk.read(&mut [ReadOp { file: &file.file, at, buf: piece }])?;
        if end < at + piece.len() as u64 {
            let here = (end - at) as usize;
            piece[here..].fill(0);
            // The last block is padded, so that what follows begins on a new one.
            let pad = (place(end) - at) as usize;
            if pad < piece.len() {
                let header = Header::pad(piece.len() - pad - RECORD_HEADER, durable);
                piece[pad..pad + RECORD_HEADER].copy_from_slice(&header.encode(file.place(place(end))));
            }
        }
        disk.write(&file.file, at, piece)?;
        at += piece.len() as u64;
    }
    disk.sync(Sync::File(&file.file))
}

/// Writes zeros from `at` to the file's last whole block, and syncs them.
pub(crate) fn zero(disk: &dyn Disk, file: &LogFile, mut at: u64, zeros: &[u8]) -> Result<()> {
    let end = file.len() - file.len() % disk.block() as u64;
    while at < end {
        let bytes = (end - at).min(zeros.len() as u64) as usize;
        disk.write(&file.file, at, &zeros[..bytes])?;
        at += bytes as u64;
    }
    disk.sync(Sync::File(&file.file))
}
