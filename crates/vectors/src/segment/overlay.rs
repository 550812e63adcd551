//! Runs of changed payloads of a segment: small immutable files with what has changed since it was flushed.
//!
//! ```text
//!   .payload  a sorted run of rows with their new payloads:
//!     rows    4 bytes each, ascending          fences  the first row of each page of rows; read at open, held
//!     ends    0, then where each text ends     texts   the texts (no section where all are empty)
//! ```
//!
//! A segment has a few runs of payloads; the newest that holds a row has its payload. An empty text
//! means that the point has none.

use crate::api::codec::{read_number, row_in};
use crate::payload::texts::{self, FETCH_BYTES};
use crate::segment::delete_file::bitmap_bytes;
use crate::segment::meta::Walk;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageFile, Pages, Section, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sections of a `.payload` file.
pub(crate) const ROWS: u32 = 1;
pub(crate) const FENCES: u32 = 2;
pub(crate) const ENDS: u32 = 3;
pub(crate) const TEXTS: u32 = 4;

pub(crate) const ROWS_PER_PAGE: usize = PAGE / 4;
/// Buffer of one stream of a run, bytes. Small: several runs are compacted at one time.
const STREAM_BYTES: usize = 8 << 10;

/// An open `.payload` file.
pub(crate) struct PatchRun {
    pub(crate) name: String,
    pub(crate) file: Arc<PageFile>,
    /// A manifest may name it.
    pub(crate) listed: AtomicBool,
    rows: Section,
    ends: Section,
    texts: Option<Section>,
    fences: Box<[u32]>,
    /// Its rows again, in memory: an index that was built before it is asked without them.
    pub(crate) changed: Changed,
    _memory: Reservation,
}

/// Rows, in what takes less: a list or a bitmap.
pub(crate) enum Changed {
    Few(Vec<u32>),
    Many(Vec<u64>),
}

impl Changed {
    /// Room for so many of `points` rows.
    fn new(rows: usize, points: usize) -> Self {
        match rows as u64 * 4 < bitmap_bytes(points) {
            true => Self::Few(Vec::with_capacity(rows)),
            false => Self::Many(vec![0; points.div_ceil(64)]),
        }
    }

    /// Bytes of that room.
    fn bytes(rows: usize, points: usize) -> u64 {
        (rows as u64 * 4).min(bitmap_bytes(points))
    }

    fn add(&mut self, row: u32) {
        match self {
            Self::Few(rows) => rows.push(row),
            Self::Many(words) => words[row as usize / 64] |= 1 << (row % 64),
        }
    }

    /// Sets a bit of `words` for each row.
    pub(crate) fn mark(&self, words: &mut [u64]) {
        match self {
            Self::Few(rows) => rows.iter().for_each(|row| words[*row as usize / 64] |= 1 << (row % 64)),
            Self::Many(own) => words.iter_mut().zip(own).for_each(|(word, own)| *word |= own),
        }
    }
}

impl Drop for PatchRun {
    fn drop(&mut self) {
        // The manifest removes what it once named and names no more; what it never named goes here.
        if !self.listed.load(Ordering::SeqCst) {
            self.file.remove_on_drop();
        }
    }
}

impl PatchRun {
    /// Opens the file `name`, which overlays a segment of `points` rows.
    pub(crate) fn open(name: &str, file: Arc<PageFile>, points: u32, account: &Account) -> Result<Self> {
        let broken = |what: &str| Error::corrupt(what).at(name);
        let section = |tag| file.section(tag).ok_or_else(|| broken("an overlay misses one of its tables"));
        let (rows, ends, texts) = (section(ROWS)?, section(ENDS)?, file.section(TEXTS));
        let len = rows.len() / 4;
        let pages = (len as usize).div_ceil(ROWS_PER_PAGE);
        let held = section(FENCES)?;
        if !rows.len().is_multiple_of(4) || ends.len() != (len + 1) * 8 || held.len() != pages as u64 * 4 {
            return Err(broken("the tables of an overlay do not fit each other"));
        }
        let changed_bytes = Changed::bytes(len as usize, points as usize);
        let memory = account.try_reserve(pages as u64 * 4 + changed_bytes + 1024)?;
        let mut changed = Changed::new(len as usize, points as usize);
        let mut fences = Vec::with_capacity(pages);
        let mut stream = held.stream(account, PAGE)?;
        for _ in 0..pages {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes)?;
            fences.push(u32::from_le_bytes(bytes));
        }
        let ascending = fences.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || fences.last().is_some_and(|last| *last >= points) {
            return Err(broken("an overlay names rows that are not there"));
        }
        let mut stream = rows.stream(account, STREAM_BYTES)?;
        let mut bytes = [0; 4];
        for _ in 0..len {
            stream.read_exact(&mut bytes)?;
            let row = u32::from_le_bytes(bytes);
            if row >= points {
                return Err(broken("an overlay names rows that are not there"));
            }
            changed.add(row);
        }
        let listed = AtomicBool::new(true);
        let fences = fences.into_boxed_slice();
        Ok(Self { name: name.to_owned(), file, listed, rows, ends, texts, fences, changed, _memory: memory })
    }

    /// Rows that have a payload here.
    pub(crate) fn len(&self) -> u64 {
        self.rows.len() / 4
    }

    /// The number of each row's text; `None` where the row is not here.
    pub(crate) fn find(&self, pages: &Pages, rows: &[u32]) -> Result<Vec<Option<u32>>> {
        let mut found = Vec::with_capacity(rows.len());
        for rows in rows.chunks(FETCH_BYTES / PAGE) {
            let mut fetch = pages.fetch();
            let mut wants = Vec::with_capacity(rows.len());
            for row in rows {
                let page = self.fences.partition_point(|fence| fence <= row).checked_sub(1);
                let want = |page: usize| -> Result<_> {
                    let start = (page * PAGE) as u64;
                    let len = (self.rows.len() - start).min(PAGE as u64);
                    Ok((page, fetch.want(&self.rows, start, len as usize)?))
                };
                wants.push(page.map(want).transpose()?);
            }
            let pinned = fetch.run()?;
            found.extend(rows.iter().zip(wants).map(|(row, want)| {
                let (page, want) = want?;
                let at = row_in(pinned.bytes(want), 4, |bytes| (read_number(bytes) as u32).cmp(row))?;
                Some((page * ROWS_PER_PAGE + at) as u32)
            }));
        }
        Ok(found)
    }

    /// The texts of these numbers, in the order asked; `memory` grows by what they hold.
    pub(crate) fn texts(&self, pages: &Pages, numbers: &[u32], memory: &mut Reservation) -> Result<Vec<String>> {
        match &self.texts {
            Some(texts) => texts::read(pages, (&self.ends, texts), numbers, &self.name, memory),
            None => Ok(vec![String::new(); numbers.len()]),
        }
    }
}

/// A run's rows, front to back, past the page cache.
pub(crate) struct PatchRunCursor {
    row: Option<u32>,
    left: u64,
    rows: Stream,
    ends: Option<Stream>,
    texts: Option<Stream>,
    end: u64,
    /// Bytes of the current row's text, once lengths are walked.
    len: u64,
    /// Bytes of texts that were passed over.
    skip: u64,
    name: String,
}

impl PatchRunCursor {
    pub(crate) fn open(run: &PatchRun, what: Walk, account: &Account) -> Result<Self> {
        let stream = |section: &Section| section.stream(account, STREAM_BYTES);
        let ends = if what == Walk::Ids { None } else { Some(stream(&run.ends)?) };
        let texts = run.texts.as_ref().filter(|_| what == Walk::Payloads).map(stream).transpose()?;
        let (left, rows, name) = (run.len(), stream(&run.rows)?, run.name.clone());
        let mut cursor = Self { row: None, left, rows, ends, texts, end: 0, len: 0, skip: 0, name };
        if let Some(ends) = &mut cursor.ends {
            ends.skip(8)?;
        }
        cursor.load()?;
        Ok(cursor)
    }

    /// The row that the cursor is at; `None`: it is at the end.
    pub(crate) fn row(&self) -> Option<u32> {
        self.row
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        // What was not read of this text stands before the next one's.
        self.skip += std::mem::take(&mut self.len);
        self.load()
    }

    fn load(&mut self) -> Result<()> {
        if self.left == 0 {
            self.row = None;
            return Ok(());
        }
        self.left -= 1;
        let mut bytes = [0; 8];
        self.rows.read_exact(&mut bytes[..4])?;
        let row = read_number(&bytes[..4]) as u32;
        if self.row.is_some_and(|before| before >= row) {
            return Err(Error::corrupt("the rows of an overlay go backwards").at(&self.name));
        }
        self.row = Some(row);
        if let Some(ends) = &mut self.ends {
            ends.read_exact(&mut bytes)?;
            let end = read_number(&bytes);
            let len = end.checked_sub(self.end);
            self.len = len.ok_or_else(|| Error::corrupt("payload places go backwards").at(&self.name))?;
            self.end = end;
        }
        Ok(())
    }

    /// Hands out the current row's text, in pieces, once.
    pub(crate) fn text(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut left = std::mem::take(&mut self.len);
        if left == 0 {
            return Ok(());
        }
        let missing = || Error::corrupt("an overlay misses its texts").at(&self.name);
        let texts = self.texts.as_mut().ok_or_else(missing)?;
        texts.skip(std::mem::take(&mut self.skip))?;
        let mut piece = [0; 4096];
        while left > 0 {
            let now = left.min(piece.len() as u64) as usize;
            texts.read_exact(&mut piece[..now])?;
            each(&piece[..now])?;
            left -= now as u64;
        }
        Ok(())
    }
}
