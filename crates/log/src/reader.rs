//! Reads committed records by position, while the writer goes on.
//!
//! ```text
//!   wanted   p1    p2 p3             p4            positions, in any order
//!            ├──┤  ├──┬──┤           ├───┤         whole blocks; neighbours are read as one
//!            └──────────── one batch ────┘         a second one only if a record was longer than believed
//! ```
//!
//! Every record is checked before it is handed out. What has been trimmed is `NotFound`, but for who pinned the log before.

use crate::Lsn;
use crate::files::LogFile;
use crate::format::{Header, RECORD_HEADER};
use parking_lot::RwLock;
use ramekin_base::{Error, Result, limits, nonblocking};
use ramekin_disk::{ALIGN, Aligned, Disk, ReadOp};
use ramekin_memory::Account;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads of neighbouring records are joined up to this many bytes.
const RUN_MAX: u64 = 64 << 10;

/// What the writer and its readers share.
pub(crate) struct LogFiles {
    disk: Arc<dyn Disk>,
    /// Shared with pins: who changes the list makes another one.
    files: RwLock<Arc<[Arc<LogFile>]>>,
    end: AtomicU64,
}

impl LogFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, files: Vec<Arc<LogFile>>, end: Lsn) -> Arc<Self> {
        Arc::new(Self { disk, files: RwLock::new(files.into()), end: AtomicU64::new(end) })
    }

    pub(crate) fn end(&self) -> Lsn {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn set_end(&self, end: Lsn) {
        self.end.store(end, Ordering::Release);
    }

    pub(crate) fn add(&self, file: Arc<LogFile>) {
        let mut files = self.files.write();
        *files = files.iter().cloned().chain([file]).collect();
    }

    pub(crate) fn files(&self) -> Arc<[Arc<LogFile>]> {
        self.files.read().clone()
    }

    /// Takes out the files whose records all stand before `before`; the last one always stays.
    pub(crate) fn trim(&self, before: Lsn) -> Vec<Arc<LogFile>> {
        let mut files = self.files.write();
        let gone = files.partition_point(|file| file.start <= before).saturating_sub(1);
        if gone == 0 {
            return Vec::new();
        }
        let (trimmed, kept) = files.split_at(gone);
        let (trimmed, kept) = (trimmed.to_vec(), kept.into());
        *files = kept;
        trimmed
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.read().iter().map(|file| file.len()).sum()
    }

    /// The file of a record; one that was trimmed is looked for among those that are pinned.
    fn file(&self, lsn: Lsn, pinned: &[Arc<LogFile>]) -> Result<Arc<LogFile>> {
        if lsn >= self.end() {
            return Err(Error::bug(format!("log position {lsn} is not committed")));
        }
        let found = file_of(&self.files.read(), lsn).or_else(|| file_of(pinned, lsn));
        found.ok_or_else(|| Error::not_found(format!("log position {lsn} was trimmed")))
    }
}

fn file_of(files: &[Arc<LogFile>], lsn: Lsn) -> Option<Arc<LogFile>> {
    let after = files.partition_point(|file| file.start <= lsn);
    let file = after.checked_sub(1).and_then(|index| files.get(index));
    file.filter(|file| lsn < file.start + file.len()).cloned()
}

/// Reads committed records. Clones are cheap.
#[derive(Clone)]
pub struct LogReader {
    shared: Arc<LogFiles>,
    account: Account,
    /// Pays where that one finds no memory.
    instead: Option<Account>,
    /// Files that stay readable for it.
    pinned: Arc<[Arc<LogFile>]>,
}

/// A record's bytes; they stay reserved while it lives.
#[derive(Clone)]
pub struct Record {
    buffer: Arc<Aligned>,
    body: Range<usize>,
}

impl Deref for Record {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.body.clone()]
    }
}

/// A record that is wanted: where it is believed to stand, and which answer it is.
struct ReadRequest {
    file: Arc<LogFile>,
    offset: u64,
    /// Bytes of header and body.
    bytes: u64,
    /// Of the file, so many bytes stay: what is beyond its committed records is cut off when the next file begins.
    stays: u64,
    answer: usize,
}

impl ReadRequest {
    /// The blocks to read, which end with what stays of the file: a length that is a guess may be too large.
    fn blocks(&self) -> Range<u64> {
        let align = ALIGN as u64;
        self.offset / align * align..(self.offset + self.bytes).next_multiple_of(align).min(self.stays)
    }
}

/// Neighbouring records that are read as one.
struct ReadSpan {
    wants: Range<usize>,
    blocks: Range<u64>,
}

impl LogReader {
    pub(crate) fn new(shared: Arc<LogFiles>, account: Account) -> Self {
        Self { shared, account, instead: None, pinned: Arc::default() }
    }

    /// A reader for which all that is in the log now stays readable, also when it is trimmed: the files' space is free once it
    /// is gone.
    #[must_use]
    pub fn pin(&self) -> Self {
        Self { pinned: self.shared.files(), ..self.clone() }
    }

    /// Of a pinned reader, where the log began when it was pinned.
    pub fn start(&self) -> Lsn {
        self.pinned.first().map_or(0, |file| file.start)
    }

    /// A reader for work that has memory of its own, for good: what finds none elsewhere is booked on `account`.
    #[must_use]
    pub fn or_on(self, account: &Account) -> Self {
        Self { instead: Some(account.clone()), ..self }
    }

    fn buffer(&self, bytes: usize) -> Result<Aligned> {
        match (Aligned::new(&self.account, bytes), &self.instead) {
            (Err(error), Some(instead)) if error.kind().is_memory() => Aligned::new(instead, bytes),
            (made, _) => made,
        }
    }

    /// Everything before this position is committed.
    pub fn end(&self) -> Lsn {
        self.shared.end()
    }

    /// The record at `position`, believed to have `len` bytes.
    pub fn read(&self, lsn: Lsn, len: usize) -> Result<Record> {
        self.read_many(&[(lsn, len)])?.pop().ok_or_else(|| Error::bug("a log read without an answer"))
    }

    /// The records at these positions, each with its length if that is known, else with a guess. `Busy` where this thread
    /// may not wait.
    pub fn read_many(&self, wanted: &[(Lsn, usize)]) -> Result<Vec<Record>> {
        nonblocking::check()?;
        let mut wants = Vec::with_capacity(wanted.len());
        for (answer, &(lsn, len)) in wanted.iter().enumerate() {
            let file = self.shared.file(lsn, &self.pinned)?;
            let offset = lsn - file.start;
            let bytes = (RECORD_HEADER + len.min(limits::LOG_RECORD_MAX)) as u64;
            if offset % 8 != 0 || offset + RECORD_HEADER as u64 > file.len() {
                return Err(Error::bug(format!("no log record can stand at position {lsn}")));
            }
            let committed = (self.shared.end() - file.start).next_multiple_of(ALIGN as u64);
            let stays = committed.min(file.len());
            wants.push(ReadRequest { file, offset, bytes, stays, answer });
        }
        let mut records: Vec<Option<Record>> = vec![None; wanted.len()];
        while !wants.is_empty() {
            wants = self.read_batch(wants, &mut records)?;
        }
        records.into_iter().map(|record| record.ok_or_else(|| Error::bug("a log read without an answer"))).collect()
    }

    /// Reads all as one batch; gives back those that are longer than they were believed to be.
    fn read_batch(&self, mut wants: Vec<ReadRequest>, records: &mut [Option<Record>]) -> Result<Vec<ReadRequest>> {
        wants.sort_unstable_by_key(|want| (want.file.start, want.offset));
        let runs = runs(&wants);
        let mut buffers = Vec::with_capacity(runs.len());
        for run in &runs {
            buffers.push(self.buffer((run.blocks.end - run.blocks.start) as usize)?);
        }
        let mut ops: Vec<_> = runs
            .iter()
            .zip(&mut buffers)
            .map(|(run, buf)| ReadOp { file: &wants[run.wants.start].file.file, at: run.blocks.start, buf })
            .collect();
        self.shared.disk.read(&mut ops)?;
        let mut longer = Vec::new();
        for (run, buffer) in runs.into_iter().zip(buffers) {
            let buffer = Arc::new(buffer);
            for want in &mut wants[run.wants] {
                let from = (want.offset - run.blocks.start) as usize;
                match record(want, &buffer[from..])? {
                    Found::Whole(len) => {
                        let body = from + RECORD_HEADER..from + RECORD_HEADER + len;
                        records[want.answer] = Some(Record { buffer: buffer.clone(), body });
                    }
                    Found::Longer(bytes) => {
                        let ReadRequest { ref file, offset, stays, answer, .. } = *want;
                        longer.push(ReadRequest { file: file.clone(), offset, bytes, stays, answer });
                    }
                }
            }
        }
        Ok(longer)
    }
}

/// Joins the reads of neighbours. The wants are in order.
fn runs(wants: &[ReadRequest]) -> Vec<ReadSpan> {
    let mut runs: Vec<ReadSpan> = Vec::new();
    for (index, want) in wants.iter().enumerate() {
        let blocks = want.blocks();
        match runs.last_mut() {
            Some(run)
                if wants[run.wants.start].file.start == want.file.start
                    && blocks.start <= run.blocks.end
                    && blocks.end.max(run.blocks.end) - run.blocks.start <= RUN_MAX =>
            {
                run.blocks.end = run.blocks.end.max(blocks.end);
                run.wants.end = index + 1;
            }
            _ => runs.push(ReadSpan { wants: index..index + 1, blocks }),
        }
    }
    runs
}

enum Found {
    /// The record is there, with a body of so many bytes.
    Whole(usize),
    /// The record has so many bytes, header included.
    Longer(u64),
}

/// Checks the record at the start of `bytes`.
fn record(want: &ReadRequest, bytes: &[u8]) -> Result<Found> {
    let header = Header::decode(bytes, want.file.place(want.offset)).filter(Header::has_body);
    let header = header.ok_or_else(|| want.file.corrupt(want.offset, "no record stands here"))?;
    let whole = RECORD_HEADER + header.len;
    match bytes.get(RECORD_HEADER..whole) {
        Some(body) if header.holds(body) => Ok(Found::Whole(header.len)),
        Some(_) => Err(want.file.corrupt(want.offset, "a record fails its checksum")),
        None if want.offset + whole as u64 > want.stays => {
            Err(want.file.corrupt(want.offset, "the file ends inside a record"))
        }
        None => Ok(Found::Longer(whole as u64)),
    }
}
