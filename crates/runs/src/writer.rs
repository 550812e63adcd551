//! Writes sorted records as the files of one run.
//!
//! ```text
//!   push ─► block of a page ──full──► body          index, hashes of keys: in memory until the file ends
//!   push_big ─► bytes ──────────────► body,         blocks that end meanwhile are held back, 64 KiB of them at most,
//!                                                   so that values lie byte by byte and blocks on whole pages
//!   a file ends at a key, at `file_bytes` ─► index ─► filter ─► head; the next push begins another one
//! ```
//!
//! Memory: a page file's buffer of 256 KiB, 4 bytes a record for the filter (at most [`RECORDS_MAX`] of them) and then the filter,
//! and an index of about 25 bytes a page, at most [`INDEX_MAX`]: booked as it grows.

use crate::block::BlockBuilder;
use crate::entry::{Entry, Extent, INLINE_MAX, KEY_MAX, VALUE_MAX, Value};
use crate::filter::Hashes;
use crate::format::{BODY, BlockAt, FILTER, INDEX, MetaBuilder, Shape, separator};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, BookedVec, SharedReservation};
use ramekin_pages::{PageWriter, Pages, Priority};
use std::path::PathBuf;

/// Records of a file at most: the filter's hashes are in memory until it ends.
const RECORDS_MAX: u64 = 256 << 10;
/// Bytes of an index, and of the tops above it, at most.
const INDEX_MAX: usize = 512 << 10;
const TOPS_MAX: usize = 64 << 10;
/// Bytes of blocks that wait for big values to end.
const HELD_MAX: usize = 16 * PAGE;

/// Hands out the bytes of a value in pieces.
pub type Pieces<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

/// Writes the files of a run.
pub struct RunWriter<'a> {
    pages: &'a Pages,
    account: Account,
    shape: Shape,
    /// The name of the next file.
    name: &'a mut dyn FnMut() -> PathBuf,
    file: Option<Output>,
    done: Vec<PathBuf>,
}

/// A file that is being written.
struct Output {
    out: PageWriter,
    block: BlockBuilder,
    /// What the index will say of the block that grows.
    growing: BlockAt,
    separator: Vec<u8>,
    /// Blocks that are complete, and what the index will say of them once they have a place.
    held: Vec<u8>,
    waiting: Vec<(Vec<u8>, BlockAt)>,
    /// Bytes of the body so far.
    body: u64,
    index: BlockBuilder,
    /// The first separator of the index's block that grows.
    top: Vec<u8>,
    index_pages: BookedVec<u8>,
    meta: MetaBuilder,
    hashes: Option<Hashes>,
    deadline: fn(&[u8]) -> u64,
}

impl<'a> RunWriter<'a> {
    /// `account` pays for the memory; `name` says how each file is called.
    pub fn new(pages: &'a Pages, account: &Account, shape: Shape, name: &'a mut dyn FnMut() -> PathBuf) -> Self {
        Self { pages, account: account.clone(), shape, name, file: None, done: Vec::new() }
    }

    /// Whether a record with this value is not written any more.
    pub(crate) fn has_ended(&self, value: &Value<'_>) -> bool {
        let Shape { ended, deadline, weighted, .. } = self.shape;
        match value {
            Value::Inline(value) if ended > 0 && !weighted => (1..=ended).contains(&deadline(value)),
            _ => false,
        }
    }

    /// Adds a record; its key is greater than the last one's.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        match entry.value {
            Value::Inline(bytes) if bytes.len() > INLINE_MAX => {
                self.push_big(entry, bytes.len() as u64, &mut |each| each(bytes))
            }
            Value::Big(_) => Err(Error::bug("a big value was handed over without its bytes")),
            _ => self.output(entry)?.push(entry),
        }
    }

    /// Adds a record whose value has `len` bytes, which `pieces` hands out; what the entry says of its value does not matter.
    pub fn push_big(&mut self, entry: &Entry<'_>, len: u64, pieces: Pieces<'_>) -> Result<()> {
        if len > VALUE_MAX {
            return Err(Error::too_large(format!("a value of {len} bytes; at most {VALUE_MAX} are allowed")));
        }
        if len <= INLINE_MAX as u64 {
            let mut value = Vec::with_capacity(len as usize);
            pieces(&mut |piece| {
                value.extend_from_slice(&piece[..piece.len().min(INLINE_MAX + 1 - value.len())]);
                Ok(())
            })?;
            check_length(value.len() as u64, len)?;
            return self.output(entry)?.push(&Entry { value: Value::Inline(&value), ..*entry });
        }
        self.output(entry)?.push_big(entry, len, pieces)
    }

    /// Ends the file that is being written, if any, and returns the paths of all files since the last call. Their names are
    /// durable when their folder has been synced.
    pub fn finish(&mut self) -> Result<Vec<PathBuf>> {
        self.end_file()?;
        Ok(std::mem::take(&mut self.done))
    }

    /// The file that takes the record.
    fn output(&mut self, entry: &Entry<'_>) -> Result<&mut Output> {
        if entry.key.len() > KEY_MAX {
            let text = format!("a key of {} bytes; at most {KEY_MAX} are allowed", entry.key.len());
            return Err(Error::too_large(text));
        }
        if self.is_full() {
            self.end_file()?;
        }
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let out = self.pages.create(&(self.name)(), &self.account)?;
                Ok(none.insert(Output::new(out, self.shape, &self.account)?))
            }
        }
    }

    /// Whether the next record begins a file of its own.
    pub(crate) fn is_full(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_full(self.shape.file_bytes))
    }

    /// Ends the file that is being written, if any.
    pub(crate) fn end_file(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            self.done.push(file.finish()?);
        }
        Ok(())
    }
}

impl Output {
    fn new(mut out: PageWriter, shape: Shape, account: &Account) -> Result<Self> {
        out.begin(BODY, Priority::Vectors)?;
        Ok(Self {
            out,
            block: BlockBuilder::new(shape.weighted),
            growing: BlockAt::default(),
            separator: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            body: 0,
            index: BlockBuilder::new(false),
            top: Vec::new(),
            index_pages: BookedVec::new(&SharedReservation::new(0, account.clone(), None)),
            meta: MetaBuilder::new(shape.weighted),
            hashes: shape.filtered.then(|| Hashes::new(account)),
            deadline: shape.deadline,
        })
    }

    fn is_full(&self, file_bytes: u64) -> bool {
        self.body + self.held.len() as u64 >= file_bytes
            || self.meta.records >= RECORDS_MAX
            || self.index_pages.len() >= INDEX_MAX
            || self.meta.tops_bytes() >= TOPS_MAX
    }

    fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        if !self.block.fits(entry) {
            self.end_block()?;
        }
        if self.block.is_empty() {
            let is_first = self.meta.records == 0;
            self.separator.clear();
            self.separator.extend_from_slice(if is_first { &[] } else { separator(self.block.last_key(), entry.key) });
            self.growing = BlockAt { weight: self.meta.weight, ..BlockAt::default() };
            if is_first {
                self.meta.first = entry.key.to_vec();
            }
        } else if entry.key <= self.block.last_key() {
            return Err(Error::bug("records of a run were not in order"));
        }
        self.block.push(entry);
        if let Some(hashes) = &mut self.hashes {
            hashes.add(entry.key)?;
        }
        if let Value::Inline(value) = entry.value {
            self.growing.deadline = earlier(self.growing.deadline, (self.deadline)(value));
        }
        self.meta.records += 1;
        self.meta.weight += entry.weight;
        Ok(())
    }

    fn push_big(&mut self, entry: &Entry<'_>, len: u64, pieces: Pieces<'_>) -> Result<()> {
        let (at, mut written) = (self.body, 0);
        pieces(&mut |piece| {
            written += piece.len() as u64;
            self.out.write(piece)
        })?;
        self.body += written;
        check_length(written, len)?;
        self.push(&Entry { value: Value::Big(Extent { at, len }), ..*entry })
    }

    /// The block that grows is complete.
    fn end_block(&mut self) -> Result<()> {
        self.growing.pages = self.block.finish(&mut self.held) as u32;
        self.meta.deadline = earlier(self.meta.deadline, self.growing.deadline);
        self.waiting.push((std::mem::take(&mut self.separator), self.growing));
        if self.body.is_multiple_of(PAGE as u64) || self.held.len() >= HELD_MAX {
            self.place_blocks()?;
        }
        Ok(())
    }

    /// Blocks that were held back get their places.
    fn place_blocks(&mut self) -> Result<()> {
        let padding = self.body.next_multiple_of(PAGE as u64) - self.body;
        self.out.write(&[0; PAGE][..padding as usize])?;
        let mut page = (self.body + padding) / PAGE as u64;
        self.out.write(&self.held)?;
        self.body += padding + self.held.len() as u64;
        self.held.clear();
        self.held.shrink_to(HELD_MAX);
        for (separator, mut block) in std::mem::take(&mut self.waiting) {
            block.page = page as u32;
            page += u64::from(block.pages);
            self.add_to_index(&separator, block)?;
        }
        Ok(())
    }

    fn add_to_index(&mut self, separator: &[u8], block: BlockAt) -> Result<()> {
        let mut value = Vec::with_capacity(32);
        block.encode(&mut value);
        let entry = Entry { key: separator, value: Value::Inline(&value), weight: 0, first: false };
        if !self.index.fits(&entry) {
            self.end_index_block()?;
        }
        if self.index.is_empty() {
            self.top = separator.to_vec();
        }
        self.index.push(&entry);
        Ok(())
    }

    /// The block of the index that grows is complete.
    fn end_index_block(&mut self) -> Result<()> {
        let (mut block, page) = (Vec::with_capacity(PAGE), self.index_pages.len() / PAGE);
        let pages = self.index.finish(&mut block);
        self.index_pages.extend(&block)?;
        self.meta.add_top(&self.top, page as u64, pages);
        Ok(())
    }

    fn finish(mut self) -> Result<PathBuf> {
        let last = self.block.last_key().to_vec();
        self.end_block()?;
        self.place_blocks()?;
        self.end_index_block()?;
        self.out.end()?;
        self.out.begin(INDEX, Priority::Centroids)?;
        self.out.write(&self.index_pages)?;
        self.out.end()?;
        if let Some(hashes) = &mut self.hashes {
            self.out.begin(FILTER, Priority::NarrowCodes)?;
            hashes.write(&mut |piece| self.out.write(piece))?;
            self.out.end()?;
        }
        let path = self.out.path().to_owned();
        self.out.finish(&self.meta.finish(&last))?;
        Ok(path)
    }
}

/// The earlier of two deadlines, where 0 is none.
fn earlier(a: u64, b: u64) -> u64 {
    if a == 0 || b == 0 { a.max(b) } else { a.min(b) }
}

fn check_length(written: u64, len: u64) -> Result<()> {
    if written == len {
        return Ok(());
    }
    Err(Error::corrupt(format!("a value of {len} bytes was handed out as {written}; what it was read from is damaged")))
}
