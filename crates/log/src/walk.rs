//! Reads a log from a position to its end, and decides what stands at the end. Open, check and repair
//! all stand on this one reading.
//!
//! ```text
//!   … record ─ record ─ pad │ part ─ record ─ ▒▒▒▒▒▒▒▒▒▒▒▒ ─ ─ ─
//!                                             ▲ the first bytes that are no whole record
//!
//!   the next file is named, and is not there                         ► damaged
//!   in any but the last file                                         ► damaged: all of it was synced
//!   in the last file, which is shorter than it was made              ► damaged
//!   a header after it says that it was durable                       ► damaged: it had been acknowledged
//!   a record of the same commit after it, and no sector was lost     ► damaged: bits changed at rest
//!   else                                                             ► the end, or a write torn by a crash
//! ```
//!
//! The last two lines are there since a commit of many sectors may reach the disk in any order: after a
//! power loss its last record may be whole and its first one gone. But a sector that was not
//! written still reads as the zeros of the reserved space.
//!
//! Parts are handed on only where the record follows that completes their request: see `group`. What a torn write leaves
//! behind is counted, so that it can be said.

use crate::Lsn;
use crate::files::LogFile;
use crate::format::{FILE_HEADER, Header, Kind, RECORD_HEADER, SECTOR};
use crate::group::Group;
use crate::window::Window;
use ramekin_base::{Error, Result, Size};
use ramekin_disk::Disk;
use ramekin_memory::Account;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Called with each record.
pub(crate) type Visit<'a> = dyn FnMut(Lsn, &[u8]) -> Result<()> + 'a;

/// Where the whole records end.
pub(crate) struct End {
    /// Which file, and where in it.
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) records: u64,
    /// A record of the last file, or the start of reading, says that everything before was durable.
    pub(crate) durable: Lsn,
    /// Where the end mark stands that names the file, in the one before it.
    pub(crate) linked_at: Option<u64>,
    /// Why this is not the log's end; `None` if it is.
    pub(crate) damage: Option<String>,
    /// What a write left here that was under way.
    pub(crate) cut: Option<Cut>,
}

impl End {
    /// An error that names file and offset, if the log is damaged.
    pub(crate) fn sound(&self, files: &[Arc<LogFile>]) -> Result<()> {
        let Some(why) = &self.damage else { return Ok(()) };
        let error = files[self.file].corrupt(self.offset, why);
        Err(Error::corrupt(format!("{error}; `ramekin check --repair` says what can be kept, and keeps it")))
    }
}

/// What a start drops from the log's end: requests that are not there as a whole. Nobody was told that they were done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// Requests of which something can still be read, and one at least.
    pub requests: u64,
    /// Records that can still be read.
    pub records: u64,
    /// From the first of them to the last byte that was written.
    pub bytes: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count| if count == 1 { "" } else { "s" };
        let Self { requests, records, bytes } = *self;
        write!(f, "{requests} request{} of which {records} record{} can be read", s(requests), s(records))?;
        write!(f, ", {}", Size(bytes))
    }
}

/// What is known of a log before it is read.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Everything before this position was durable once.
    pub(crate) durable: Lsn,
    /// It has had a file, so that the first one cannot be one that is being made.
    pub(crate) begun: bool,
}

/// Hands every record of `span` to `visit`; it ends between two records, or behind the log. An error is a failed read, or
/// the visitor's own.
pub(crate) fn walk(
    disk: &dyn Disk,
    account: &Account,
    files: &[Arc<LogFile>],
    span: Range<Lsn>,
    known: &Known,
    visit: &mut Visit<'_>,
) -> Result<End> {
    let from = span.start;
    let nothing = End { file: 0, offset: 0, records: 0, durable: from, linked_at: None, damage: None, cut: None };
    if let Some(file) = files.first().filter(|file| file.start > from) {
        let why = format!("the log from position {from} to {} is missing", file.start);
        return Ok(End { damage: Some(why), ..nothing });
    }
    let mut window = Window::new(disk, account)?;
    let first = files.partition_point(|file| file.start <= from).saturating_sub(1);
    let mut seen = Seen { records: 0, durable: from };
    let mut linked_at = None;
    for (index, file) in files.iter().enumerate().skip(first) {
        let next = files.get(index + 1);
        let limit = match next.filter(|_| file.made_bytes().is_none()) {
            // A file of version 1 names no other: it ends where the next one begins.
            Some(next) if file.header().is_ok() => next.start - file.start,
            _ => window.readable(file),
        };
        let limit = limit.min(span.end.saturating_sub(file.start).max(FILE_HEADER));
        let Stop { offset, why, open_from } = read_file(&mut window, file, limit, from, &mut seen, visit)?;
        let end = |damage, cut| {
            let Seen { records, durable } = seen;
            Ok(End { file: index, offset, records, durable, linked_at, damage, cut })
        };
        let why = match why {
            Why::Missing(why) => return end(Some(why), None),
            Why::Named(start) if next.is_some_and(|next| next.start == start) => {
                linked_at = Some(offset);
                continue;
            }
            Why::Named(start) => {
                let name = crate::files::path(std::path::Path::new(""), start);
                return end(Some(format!("the log goes on in {}, which is missing", name.display())), None);
            }
            Why::Limit if next.is_some_and(|next| next.start == file.start + offset) => {
                linked_at = None;
                continue;
            }
            why => why,
        };
        if let Some(next) = next {
            // A file that is not named was being made, and is empty.
            let is_last = index + 2 == files.len() && !(next.number() == 0 && next.header().is_ok());
            if !is_last || file.header().is_err() || holds_record(&mut window, next, file.number() + 1)? {
                let why = if let Why::Bad(why) = why { why } else { "the next file is not named".to_owned() };
                return end(Some(format!("{why}; a later log file proves that it had been durable")), None);
            }
        }
        if file.start + offset < known.durable {
            let durable = known.durable;
            return end(
                Some(format!("the log ends here, and was durable up to position {durable} by the manifest")),
                None,
            );
        }
        let is_made = linked_at.is_some() || index == 0 && (from > 0 || known.begun);
        let made = file.made_bytes().unwrap_or(0);
        // What was synced once keeps its place, even if it means nothing.
        let open_from = open_from.filter(|open| file.start + open >= known.durable);
        return match why {
            Why::Bad(why) if offset < FILE_HEADER && (is_made || holds_first_record(&mut window, file)?) => {
                end(Some(why), None)
            }
            _ if file.len() < made && (is_made || holds_record(&mut window, file, file.number())?) => {
                end(Some(format!("the file was made with {made} bytes and has {}", file.len())), None)
            }
            // The first file of all was being made.
            _ if file.len() < made => Ok(End { file: index, ..nothing }),
            Why::Bad(why) => match judge(&mut window, file, offset, open_from)? {
                Verdict::Cut(cut) => end(None, cut).map(|end| End { offset: open_from.unwrap_or(offset), ..end }),
                Verdict::Damaged(proof) => end(Some(format!("{why}; {proof}")), None),
            },
            _ => end(None, None),
        };
    }
    Err(Error::bug("a log without files was walked"))
}

/// Whether a record stands in a file whose number is `number`, as far as bytes can tell.
fn holds_record(window: &mut Window<'_>, file: &LogFile, number: u32) -> Result<bool> {
    let mut found = false;
    scan(window, file, number, 0, &mut |_, header| {
        found |= header.has_body();
        !found
    })?;
    Ok(found)
}

/// The same of the first file of all, whose header is damaged.
fn holds_first_record(window: &mut Window<'_>, file: &LogFile) -> Result<bool> {
    Ok(holds_record(window, file, 0)? || holds_record(window, file, 1)?)
}

/// What was read so far.
struct Seen {
    records: u64,
    durable: Lsn,
}

/// Where the reading of one file stopped.
struct Stop {
    offset: u64,
    why: Why,
    /// Where parts of requests begin that do not end before `offset`.
    open_from: Option<u64>,
}

enum Why {
    /// At the end of what the file may hold.
    Limit,
    /// At a mark that names the file that begins here.
    Named(Lsn),
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
    from: Lsn,
    seen: &mut Seen,
    visit: &mut Visit<'_>,
) -> Result<Stop> {
    let stop = |offset: u64, why: Why| Ok(Stop { offset, why, open_from: None });
    if let Err(error) = file.header() {
        return stop(0, Why::Bad(error.message().to_owned()));
    }
    let readable = limit.min(window.readable(file));
    let mut offset = from.saturating_sub(file.start).max(FILE_HEADER);
    if offset > readable {
        let why = format!("the log ends before position {from}, which the manifest names");
        return stop(readable, Why::Missing(why));
    }
    let mut group = Group::new(window.account())?;
    while offset != limit {
        let header = match step(window, file, offset, readable)? {
            Ok(header) => header,
            Err(why) => return Ok(Stop { offset, why: Why::Bad(why), open_from: group.open_from() }),
        };
        seen.durable = seen.durable.max(header.durable);
        if header.kind == Kind::End {
            return stop(offset, Why::Named(file.start + header.next(offset)));
        }
        if header.has_body() && group.is_whole(window, file, offset, &header, readable)? {
            let body = window.get(file, offset + RECORD_HEADER as u64, header.len)?;
            visit(file.start + offset, body)?;
            seen.records += 1;
        }
        offset = header.next(offset);
    }
    Ok(Stop { offset, why: Why::Limit, open_from: group.open_from() })
}

/// The whole record at `offset`, or why there is none.
pub(crate) fn step(
    window: &mut Window<'_>,
    file: &LogFile,
    offset: u64,
    readable: u64,
) -> Result<Result<Header, String>> {
    if offset + RECORD_HEADER as u64 > readable {
        return Ok(Err("the file ends inside a record".to_owned()));
    }
    let Some(header) = Header::decode(window.get(file, offset, RECORD_HEADER)?, file.place(offset)) else {
        return Ok(Err("no record stands here".to_owned()));
    };
    if offset + (RECORD_HEADER + header.len) as u64 > readable {
        return Ok(Err("the file ends inside a record".to_owned()));
    }
    let body = window.get(file, offset + RECORD_HEADER as u64, header.len)?;
    Ok(if header.holds(body) { Ok(header) } else { Err("a record fails its checksum".to_owned()) })
}

enum Verdict {
    /// Nothing was written here, or a write of the last commit was under way, and this is what it left.
    Cut(Option<Cut>),
    /// It had been acknowledged, and this proves it.
    Damaged(String),
}

/// What the bad bytes at `offset` of the last file are; `open_from`: the first part before them whose request does not end.
fn judge(window: &mut Window<'_>, file: &LogFile, offset: u64, open_from: Option<u64>) -> Result<Verdict> {
    let lost = lost_sector(window, file, offset)?;
    let mut proof = None;
    let mut cut = Cut::default();
    let mut requests = BTreeSet::new();
    let mut count = |header: Header| {
        cut.records += 1;
        // Enough to be said; a group has far fewer.
        if requests.len() < 4096 {
            requests.insert(header.request);
        }
    };
    let mut at = open_from.unwrap_or(offset);
    while at < offset {
        let Ok(header) = step(window, file, at, offset)? else { break };
        if header.kind == Kind::Part {
            count(header);
        }
        at = header.next(at);
    }
    let written = scan(window, file, file.number(), offset, &mut |at, header| {
        // A file's header is synced before any record is written.
        if header.durable > file.start + offset || offset < FILE_HEADER {
            proof = Some(format!("the record at offset {at} proves that it had been durable"));
        } else if header.has_body() && !lost {
            proof = Some(format!("a whole record stands after it, at offset {at}"));
        }
        if header.has_body() {
            count(header);
        }
        proof.is_none()
    })?;
    if let Some(proof) = proof {
        return Ok(Verdict::Damaged(proof));
    }
    if written.is_none() && open_from.is_none() {
        return Ok(Verdict::Cut(None));
    }
    cut.requests = (requests.len() as u64).max(1);
    cut.bytes = written.unwrap_or(offset) - open_from.unwrap_or(offset);
    Ok(Verdict::Cut(Some(cut)))
}

/// Whether some sector of the record at `offset` was never written: it reads as zeros, or lies behind the end.
fn lost_sector(window: &mut Window<'_>, file: &LogFile, offset: u64) -> Result<bool> {
    let readable = window.readable(file);
    if offset + RECORD_HEADER as u64 > readable {
        return Ok(true);
    }
    let header = Header::decode(window.get(file, offset, RECORD_HEADER)?, file.place(offset));
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

/// Calls `found` with every valid header of a file of this number after `offset` until it says to stop. Returns where the last
/// byte stands that is not zero, as far as it was read; `None`: there is none.
pub(crate) fn scan(
    window: &mut Window<'_>,
    file: &LogFile,
    number: u32,
    offset: u64,
    found: &mut dyn FnMut(u64, Header) -> bool,
) -> Result<Option<u64>> {
    let mut written = None;
    let mut sector = offset - offset % SECTOR;
    while sector < window.readable(file) {
        let bytes = window.get(file, sector, SECTOR as usize)?;
        let skip = offset.saturating_sub(sector) as usize;
        if let Some(last) = bytes[skip..].iter().rposition(|byte| *byte != 0) {
            written = Some(sector + (skip + last) as u64 + 1);
            for at in (0..=SECTOR - RECORD_HEADER as u64).step_by(8) {
                let here = &bytes[at as usize..];
                // The bad record itself may have a good header; it proves nothing.
                if sector + at <= offset || here[0] == 0 {
                    continue;
                }
                let place = crate::format::Place { file: number, lsn: file.start + sector + at };
                if let Some(header) = Header::decode(here, place)
                    && !found(sector + at, header)
                {
                    return Ok(written);
                }
            }
        }
        sector += SECTOR;
    }
    Ok(written)
}
