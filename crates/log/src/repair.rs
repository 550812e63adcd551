//! Says what a damaged log would lose if it were cut at its first damaged record, and cuts it there.
//!
//! ```text
//!   ├─ file ─────┤├─ file ──▒▒── record ─ record ─┤├─ file ── record ──┤
//!                 kept     ▲ cut here: what follows is lost, and counted
//! ```
//!
//! Cutting is the last resort: a copy of the folder from before the damage keeps more.

use crate::files::{self, Failed, LogFile};
use crate::format::{FILE_HEADER, Kind};
use crate::walk::{End, scan, walk};
use crate::window::Window;
use crate::{Position, files::FILE_BYTES_MIN};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::{ALIGN, Aligned, Disk, Open, ReadOp, Sync};
use ramekin_memory::Account;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a reading of the whole log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairReport {
    /// Whole records before the damage, from the position that was asked for.
    pub records: u64,
    /// The log ends, or would be cut, before this position.
    pub end: Position,
    /// A write was under way when the process ended; a start cuts it, and nothing acknowledged is lost.
    pub torn: bool,
    pub damage: Option<Damage>,
    /// The log was cut.
    pub repaired: bool,
}

/// The first damaged place, and what cutting there loses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub file: PathBuf,
    pub offset: u64,
    pub why: String,
    /// Readable records behind the damage.
    pub lost_records: u64,
    pub lost_bytes: u64,
    /// Whole files that would go.
    pub lost_files: usize,
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(damage) = &self.damage else {
            let torn = if self.torn { ", then a torn write, which the next start cuts" } else { "" };
            return write!(f, "log: {} records, whole up to position {}{torn}", self.records, self.end);
        };
        let (is, are) = if self.repaired { ("was", "were") } else { ("would be", "would be") };
        write!(f, "log: {} damaged at offset {}: {}. ", damage.file.display(), damage.offset, damage.why)?;
        write!(
            f,
            "{} records before it are whole. Repair: the log {is} cut there, and the damaged record and ",
            self.records
        )?;
        write!(f, "{} readable ones ({}) behind it {are} lost", damage.lost_records, Size(damage.lost_bytes))?;
        if damage.lost_files > 0 {
            write!(f, ", {} whole files among them", damage.lost_files)?;
        }
        Ok(())
    }
}

/// Reads the log from `durable.start` on, which was durable up to `durable.end`; `dry_run` only says what it finds.
/// Nobody else may have the log open. After a cut the log ends at the report's `end`.
pub fn repair(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    durable: Range<Position>,
    dry_run: bool,
) -> Result<RepairReport> {
    let from = durable.start;
    let starts = files::list(disk, folder)?;
    if starts.is_empty() && durable.end == 0 {
        return Ok(RepairReport { records: 0, end: 0, torn: false, damage: None, repaired: false });
    }
    let how = if dry_run { Open::Read } else { Open::Write };
    let files: Vec<_> =
        starts.into_iter().map(|start| LogFile::open(disk, folder, start, how)).collect::<Result<_>>()?;
    if files.is_empty() {
        return restart(disk, folder, account, from, dry_run);
    }
    let end = walk(disk, account, &files, from..Position::MAX, durable.end, &mut |_, _| Ok(()))?;
    let keep = Keep::of(&files, &end, from);
    let mut report = examine(disk, account, &files, &end, keep.files)?;
    if !dry_run && report.damage.is_some() {
        cut(disk, folder, account, &files, from, &keep)?;
        report.repaired = true;
    }
    Ok(report)
}

/// What a cut keeps.
struct Keep {
    /// So many files, the oldest first.
    files: usize,
    /// The end of the last one of them, if it holds anything from where the log is read.
    end: Option<u64>,
}

impl Keep {
    fn of(files: &[Arc<LogFile>], end: &End, from: Position) -> Self {
        let bad = &files[end.file];
        match end.file.checked_sub(1).map(|index| &files[index]) {
            _ if end.offset >= FILE_HEADER && bad.start + end.offset >= from => {
                Self { files: end.file + 1, end: Some(end.offset) }
            }
            // Without its header a file goes whole; the one before it was read to its end.
            Some(before) if end.offset < FILE_HEADER && bad.start > from => {
                Self { files: end.file, end: Some(bad.start - before.start) }
            }
            _ => Self { files: end.file, end: None },
        }
    }
}

/// There is no file at all.
fn restart(disk: &dyn Disk, folder: &Path, account: &Account, from: Position, dry_run: bool) -> Result<RepairReport> {
    let why = format!("the log is missing, but the manifest names position {from} of it");
    let damage = Damage { file: folder.to_owned(), offset: 0, why, lost_records: 0, lost_bytes: 0, lost_files: 0 };
    if !dry_run {
        cut(disk, folder, account, &[], from, &Keep { files: 0, end: None })?;
    }
    Ok(RepairReport { records: 0, end: from, torn: false, damage: Some(damage), repaired: !dry_run })
}

fn examine(disk: &dyn Disk, account: &Account, files: &[Arc<LogFile>], end: &End, kept: usize) -> Result<RepairReport> {
    let bad = &files[end.file];
    let position = bad.start + end.offset;
    let mut report =
        RepairReport { records: end.records, end: position, torn: end.torn, damage: None, repaired: false };
    if let Some(why) = end.damage.clone() {
        let (mut lost_records, mut lost_bytes) = (0, 0);
        let mut window = Window::new(disk, account)?;
        for (index, file) in files.iter().enumerate().skip(end.file) {
            let offset = if index == end.file { end.offset } else { 0 };
            scan(&mut window, file, offset, &mut |_, header| {
                if header.kind == Kind::Record {
                    lost_records += 1;
                    lost_bytes += header.len as u64;
                }
                true
            })?;
        }
        let file = bad.file.path().to_owned();
        let lost_files = files.len() - kept;
        report.damage = Some(Damage { file, offset: end.offset, why, lost_records, lost_bytes, lost_files });
    }
    Ok(report)
}

/// Removes what is not kept, the newest first, so that a crash leaves a log that can be cut again.
fn cut(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    files: &[Arc<LogFile>],
    from: Position,
    keep: &Keep,
) -> Result<()> {
    for file in files[keep.files..].iter().rev() {
        disk.rename(file.file.path(), None)?;
        disk.sync(Sync::Folder(folder))?;
    }
    match (keep.end, files[..keep.files].last()) {
        (Some(end), Some(last)) => wipe(disk, account, last, end),
        // Nothing is left to go on from: the log begins anew where the manifest says.
        _ => {
            let mut buffer = Aligned::new(account, FILE_HEADER as usize)?;
            match files::create(disk, folder, from, FILE_BYTES_MIN, &mut buffer) {
                Ok(_) => Ok(()),
                Err(Failed::Clean(error) | Failed::Unknown(error)) => Err(error),
            }
        }
    }
}

/// Zeros from `offset` to the end of its block, and ends the file there.
fn wipe(disk: &dyn Disk, account: &Account, file: &LogFile, offset: u64) -> Result<()> {
    let align = ALIGN as u64;
    let (start, end) = (offset / align * align, offset.next_multiple_of(align));
    if file.len() < end {
        file.set_len(disk, end)?;
    }
    if start < offset {
        let mut block = Aligned::new(account, ALIGN)?;
        let read = disk.read(&mut [ReadOp { file: &file.file, at: start, buf: &mut block }]);
        read.map_err(|error: Error| {
            error.at("the block of the damage cannot be read; copy the folder to a sound disk")
        })?;
        block[(offset - start) as usize..].fill(0);
        disk.write(&file.file, start, &block)?;
    }
    file.set_len(disk, end)?;
    disk.sync(Sync::File(&file.file))
}
