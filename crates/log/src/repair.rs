//! Says what a damaged log would lose if it were cut at its first damaged record, and cuts it there.
//!
//! ```text
//!   ├─ file ─────┤├─ file ──▒▒── record ─ record ─┤├─ file ── record ──┤
//!                 kept     ▲ cut here: what follows is lost, and counted
//! ```
//!
//! Cutting is the last resort: a copy of the folder from before the damage keeps more.

use crate::Lsn;
use crate::files::{self, FILE_BYTES_MIN, LogFile};
use crate::format::{FILE_HEADER, FileHeader};
use crate::recover::{settle, zero};
use crate::walk::{Cut, End, Known, scan, walk};
use crate::window::Window;
use ramekin_base::{Error, Result, Size};
use ramekin_disk::{ALIGN, Aligned, Disk, Failed, Open, ReadOp, Sync};
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
    pub end: Lsn,
    /// What a write left that was under way when the process ended; a start drops it, and nothing acknowledged is lost.
    pub cut: Option<Cut>,
    pub damage: Option<Damage>,
    /// The log was cut, at its damage or where a write was under way.
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
            write!(f, "log: {} records, whole up to position {}", self.records, self.end)?;
            let who = if self.repaired { "was dropped" } else { "the next start drops it" };
            return self.cut.map_or(Ok(()), |cut| write!(f, ", then a write that was under way ({cut}); {who}"));
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

/// Reads the log from `durable.start` on, which was durable up to `durable.end`; `begun` as for [`crate::Log::open`].
/// `dry_run` only says what it finds. Nobody else may have the log open. After a cut the log ends at the report's `end`.
pub fn repair(
    disk: &dyn Disk,
    folder: &Path,
    account: &Account,
    durable: Range<Lsn>,
    begun: bool,
    dry_run: bool,
) -> Result<RepairReport> {
    let from = durable.start;
    let starts = files::list(disk, folder)?;
    if starts.is_empty() && durable.end == 0 && !begun {
        return Ok(RepairReport { records: 0, end: 0, cut: None, damage: None, repaired: false });
    }
    let how = if dry_run { Open::Read } else { Open::Write };
    let files: Vec<_> =
        starts.into_iter().map(|start| LogFile::open(disk, folder, account, start, how)).collect::<Result<_>>()?;
    if files.is_empty() {
        return restart(disk, folder, account, from, dry_run);
    }
    let known = Known { durable: durable.end, begun };
    let end = walk(disk, account, &files, from..Lsn::MAX, &known, &mut |_, _| Ok(()))?;
    let salvage = Salvage::of(&files, &end, from);
    let mut report = examine(disk, account, &files, &end, salvage.files)?;
    if !dry_run && report.damage.is_some() {
        cut(disk, folder, account, &files, from, &salvage)?;
        report.repaired = true;
    } else if !dry_run && end.cut.is_some() {
        settle(disk, account, &files[end.file], end.offset, end.durable, true)?;
        report.repaired = true;
    }
    Ok(report)
}

/// What a cut keeps.
struct Salvage {
    /// So many files, the oldest first.
    files: usize,
    /// The end of the last one of them, if it holds anything from where the log is read.
    end: Option<u64>,
}

impl Salvage {
    fn of(files: &[Arc<LogFile>], end: &End, from: Lsn) -> Self {
        let bad = &files[end.file];
        match end.file.checked_sub(1).map(|index| &files[index]) {
            _ if end.offset >= FILE_HEADER && bad.start + end.offset >= from => {
                Self { files: end.file + 1, end: Some(end.offset) }
            }
            // Without its header a file goes whole; the one before it was read to its end, or to the mark that names this one.
            Some(before) if end.offset < FILE_HEADER && bad.start > from => {
                Self { files: end.file, end: Some(end.linked_at.unwrap_or(bad.start - before.start)) }
            }
            _ => Self { files: end.file, end: None },
        }
    }
}

/// There is no file at all.
fn restart(disk: &dyn Disk, folder: &Path, account: &Account, from: Lsn, dry_run: bool) -> Result<RepairReport> {
    let why = format!("the log is missing, and is needed from position {from} on");
    let damage = Damage { file: folder.to_owned(), offset: 0, why, lost_records: 0, lost_bytes: 0, lost_files: 0 };
    if !dry_run {
        cut(disk, folder, account, &[], from, &Salvage { files: 0, end: None })?;
    }
    Ok(RepairReport { records: 0, end: from, cut: None, damage: Some(damage), repaired: !dry_run })
}

fn examine(disk: &dyn Disk, account: &Account, files: &[Arc<LogFile>], end: &End, kept: usize) -> Result<RepairReport> {
    let bad = &files[end.file];
    let lsn = bad.start + end.offset;
    let mut report = RepairReport { records: end.records, end: lsn, cut: end.cut, damage: None, repaired: false };
    if let Some(why) = end.damage.clone() {
        let (mut lost_records, mut lost_bytes) = (0, 0);
        let mut window = Window::new(disk, account)?;
        for (index, file) in files.iter().enumerate().skip(end.file) {
            let offset = if index == end.file { end.offset } else { 0 };
            let before = index.checked_sub(1).map_or(0, |index| files[index].number());
            let number = if file.header().is_ok() { file.number() } else { before + 1 };
            scan(&mut window, file, number, offset, &mut |_, header| {
                if header.has_body() {
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
    from: Lsn,
    salvage: &Salvage,
) -> Result<()> {
    for file in files[salvage.files..].iter().rev() {
        disk.rename(file.file.path(), None)?;
        disk.sync(Sync::Folder(folder))?;
    }
    match (salvage.end, files[..salvage.files].last()) {
        (Some(end), Some(last)) => wipe(disk, account, last, end),
        // Nothing is left to go on from: the log begins anew where the manifest says.
        _ => {
            let mut buffer = Aligned::new(account, FILE_HEADER as usize)?;
            let number = files.iter().map(|file| file.number()).max().unwrap_or(0) + 1;
            let header = FileHeader { start: from, number, bytes: FILE_BYTES_MIN };
            files::create(disk, folder, header, &mut buffer).map(|_| ()).map_err(Failed::into_error)
        }
    }
}

/// Zeros from `offset` on, and makes the file as long as it was made.
fn wipe(disk: &dyn Disk, account: &Account, file: &LogFile, offset: u64) -> Result<()> {
    let align = ALIGN as u64;
    let (start, end) = (offset / align * align, offset.next_multiple_of(align));
    let len = file.made_bytes().unwrap_or(0).max(file.len().next_multiple_of(align)).max(end);
    if file.len() < len {
        file.set_len(disk, len)?;
    }
    let mut block = Aligned::new(account, ALIGN)?;
    zero(disk, file, end, &block)?;
    if start < offset {
        let read = disk.read(&mut [ReadOp { file: &file.file, at: start, buf: &mut block }]);
        read.map_err(|error: Error| {
            error.at("the block of the damage cannot be read; copy the folder to a sound disk")
        })?;
        block[(offset - start) as usize..].fill(0);
        disk.write(&file.file, start, &block)?;
    }
    disk.sync(Sync::File(&file.file))
}
