//! Reads a log from a position to its end, and decides what stands at the end. Open, check and repair
//! all stand on this one reading.
//!
//! ```text
//!   … record ─ record ─ pad │ record ─ record ─ ▒▒▒▒▒▒▒▒▒▒▒▒ ─ ─ ─
//!                                               ▲ the first bytes that are no whole record
//!
//!   in any but the last file                                         ► damaged: all of it was synced
//!   a header after it says that it was durable                       ► damaged: it had been acknowledged
//!   a record of the same commit after it, and no sector was lost     ► damaged: bits changed at rest
//!   else                                                             ► the end, or a write torn by a crash
//! ```
//!
//! The last two lines are there since a commit of many sectors may reach the disk in any order: after a
//! power loss its last record may be whole and its first one gone. But a sector that was not
//! written still reads as the zeros of the reserved space.

use crate::Position;
use crate::files::LogFile;
use crate::format::{FILE_HEADER, Header, Kind, RECORD_HEADER, SECTOR, decode_file_header};
use crate::window::Window;
use ramekin_base::{Error, Kind as ErrorKind, Result};
use ramekin_disk::Disk;
use ramekin_memory::Account;
use std::ops::Range;
use std::sync::Arc;

/// Called with each record.
pub(crate) type Visit<'a> = dyn FnMut(Position, &[u8]) -> Result<()> + 'a;

/// Where the whole records end.
pub(crate) struct End {
    /// Which file, and where in it.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) records: u64,
    /// A record of the last file, or the start of reading, says that everything before was durable.
    pub(crate) durable: Position,
    /// Why this is not the log's end; `None` if it is.
    pub(crate) damage: Option<String>,
    /// Whether a write was under way here.
    pub(crate) torn: bool,
}

impl End {
    /// An error that names file and offset, if the log is damaged.
    pub(crate) fn sound(&self, files: &[Arc<LogFile>]) -> Result<()> {
        let Some(why) = &self.damage else { return Ok(()) };
        let error = files[self.file].corrupt(self.offset, why);
        Err(Error::corrupt(format!("{error}; `ramekin check --repair` says what can be kept, and keeps it")))
    }
}

/// Hands every record of `span` to `visit`; it ends between two records, or behind the log. Everything before
/// `durable` was durable once. An error is a failed read, a newer format, or the visitor's own.
pub(crate) fn walk(
    disk: &dyn Disk,
    account: &Account,
    files: &[Arc<LogFile>],
    span: Range<Position>,
    durable: Position,
    visit: &mut Visit<'_>,
) -> Result<End> {
    let from = span.start;
    if let Some(file) = files.first().filter(|file| file.start > from) {
        let why = format!("the log from position {from} to {} is missing", file.start);
        return Ok(End { file: 0, offset: 0, records: 0, durable: from, damage: Some(why), torn: false });
    }
    let mut window = Window::new(disk, account)?;
    let first = files.partition_point(|file| file.start <= from).saturating_sub(1);
    let mut seen = Seen { records: 0, durable: from };
    for (index, file) in files.iter().enumerate().skip(first) {
        let limit = files.get(index + 1).map_or(window.readable(file), |next| next.start - file.start);
        let limit = limit.min(span.end.saturating_sub(file.start).max(FILE_HEADER));
        let Stop { offset, why } = read_file(&mut window, file, limit, from, &mut seen, visit)?;
        let last = index + 1 == files.len();
        let (damage, torn) = match why {
            Why::Limit if !last => continue,
            Why::Limit | Why::Bad(_) if last && file.start + offset < durable => {
                let why = format!("the log ends here, and was durable up to position {durable} by the manifest");
                (Some(why), false)
            }
            Why::Limit => (None, false),
            Why::Missing(why) => (Some(why), false),
            // A crash while a file is made leaves the one before it, if there ever was one.
            Why::Bad(why) if last && index == 0 && from > 0 && offset < FILE_HEADER => (Some(why), false),
            Why::Bad(why) if last => match judge(&mut window, file, offset)? {
                Verdict::End => (None, false),
                Verdict::Torn => (None, true),
                Verdict::Damaged(proof) => (Some(format!("{why}; {proof}")), false),
            },
            Why::Bad(why) => (Some(format!("{why}; a later log file proves that it had been durable")), false),
        };
        let Seen { records, durable } = seen;
        return Ok(End { file: index, offset, records, durable, damage, torn });
    }
    Err(Error::bug("a log without files was walked"))
}

/// What was read so far.
struct Seen {
    records: u64,
    durable: Position,
}

/// Where the reading of one file stopped.
struct Stop {
    offset: u64,
    why: Why,
}

enum Why {
    /// At the end of what the file may hold.
    Limit,
    /// At bytes that are no record.
    Bad(String),
    /// The position to start from is not in the file.
    Missing(String),
}

/// Reads one file to `limit`, or to the first bytes that are no record.
fn read_file(
    window: &mut Window<'_>,
    file: &LogFile,
    limit: u64,
    from: Position,
    seen: &mut Seen,
    visit: &mut Visit<'_>,
) -> Result<Stop> {
    let bad = |offset: u64, why: &str| Ok(Stop { offset, why: Why::Bad(why.to_owned()) });
    let missing = |offset: u64, why: &str| Ok(Stop { offset, why: Why::Missing(why.to_owned()) });
    let readable = limit.min(window.readable(file));
    if readable < FILE_HEADER {
        return bad(0, "the file ends inside its header");
    }
    match decode_file_header(window.get(file, 0, FILE_HEADER as usize)?) {
        Ok(start) if start == file.start => {}
        Ok(start) => return bad(0, &format!("the file belongs to position {start}")),
        Err(error) if error.kind() == ErrorKind::Corrupt => return bad(0, error.message()),
        Err(error) => return Err(error.at(file.file.path().display())),
    }
    let mut offset = from.saturating_sub(file.start).max(FILE_HEADER);
    if offset > readable {
        return missing(readable, &format!("the log ends before position {from}, which the manifest names"));
    }
    while offset != limit {
        let position = file.start + offset;
        if offset + RECORD_HEADER as u64 > readable {
            return bad(offset, "the file ends inside a record");
        }
        let Some(header) = Header::decode(window.get(file, offset, RECORD_HEADER)?, position) else {
            return bad(offset, "no record stands here");
        };
        if offset + (RECORD_HEADER + header.len) as u64 > readable {
            return bad(offset, "the file ends inside a record");
        }
        let body = window.get(file, offset + RECORD_HEADER as u64, header.len)?;
        if !header.holds(body) {
            return bad(offset, "a record fails its checksum");
        }
        if header.kind == Kind::Record {
            visit(position, body)?;
            seen.records += 1;
        }
        seen.durable = seen.durable.max(header.durable);
        offset = header.next(offset);
    }
    Ok(Stop { offset, why: Why::Limit })
}

enum Verdict {
    /// Nothing was written here.
    End,
    /// A write of the last commit was under way.
    Torn,
    /// It had been acknowledged, and this proves it.
    Damaged(String),
}

/// What the bad bytes at `offset` of the last file are.
fn judge(window: &mut Window<'_>, file: &LogFile, offset: u64) -> Result<Verdict> {
    let lost = lost_sector(window, file, offset)?;
    let mut proof = None;
    let written = scan(window, file, offset, &mut |at, header| {
        // A file's header is synced before any record is written.
        if header.durable > file.start + offset || offset < FILE_HEADER {
            proof = Some(format!("the record at offset {at} proves that it had been durable"));
        } else if header.kind == Kind::Record && !lost {
            proof = Some(format!("a whole record stands after it, at offset {at}"));
        }
        proof.is_none()
    })?;
    Ok(match proof {
        Some(proof) => Verdict::Damaged(proof),
        None if written => Verdict::Torn,
        None => Verdict::End,
    })
}

/// Whether some sector of the record at `offset` was never written: it reads as zeros, or lies behind the end.
fn lost_sector(window: &mut Window<'_>, file: &LogFile, offset: u64) -> Result<bool> {
    let readable = window.readable(file);
    if offset + RECORD_HEADER as u64 > readable {
        return Ok(true);
    }
    let header = Header::decode(window.get(file, offset, RECORD_HEADER)?, file.start + offset);
    let end = offset + (RECORD_HEADER + header.map_or(0, |header| header.len)) as u64;
    let mut sector = offset - offset % SECTOR;
    while sector < end {
        if sector >= readable || window.get(file, sector, SECTOR as usize)?.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        sector += SECTOR;
    }
    Ok(false)
}

/// Calls `found` with every valid header after `offset` until it says to stop. True if any byte there is not zero.
pub(crate) fn scan(
    window: &mut Window<'_>,
    file: &LogFile,
    offset: u64,
    found: &mut dyn FnMut(u64, Header) -> bool,
) -> Result<bool> {
    let mut written = false;
    let mut sector = offset - offset % SECTOR;
    while sector < window.readable(file) {
        let bytes = window.get(file, sector, SECTOR as usize)?;
        for at in (0..=SECTOR - RECORD_HEADER as u64).step_by(8) {
            let here = &bytes[at as usize..];
            if sector + at < offset || here[0] == 0 {
                continue;
            }
            if let Some(header) = Header::decode(here, file.start + sector + at) {
                // The bad record itself may have a good header; it proves nothing.
                if sector + at > offset && !found(sector + at, header) {
                    return Ok(true);
                }
            }
        }
        let skip = offset.saturating_sub(sector) as usize;
        written |= bytes[skip..].iter().any(|byte| *byte != 0);
        sector += SECTOR;
    }
    Ok(written)
}
