//! An open file of a run: where a key stands in it, and what it stands for there.
//!
//! ```text
//!   key ─► tops (in memory) ─► a page of the index ─► a page of the body ─► record
//!           filter: only if its page is in memory, since to read it costs what it saves
//! ```
//!
//! A part of a file may count no more: while a run is merged into another one file by file, what was merged lies below
//! `from` and is passed over.

use crate::block::{Block, Walk};
use crate::entry::{Entry, Extent};
use crate::filter::{self, LINE};
use crate::format::{BODY, BlockAt, FILTER, INDEX, Meta, Top};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{Fetch, FetchTicket, PageFile, Pages, Section};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of one page of a block in a section.
const PAGE_BYTES: u64 = PAGE as u64;

/// A file of a run.
pub struct RunFile {
    file: Arc<PageFile>,
    body: Section,
    index: Section,
    filter: Option<Section>,
    meta: Meta,
    /// Records with smaller keys count no more.
    from: Box<[u8]>,
    /// The weights of those records.
    before: i64,
    _memory: Reservation,
}

impl RunFile {
    /// Opens a file; `account` pays for what stays in memory while it is open. Records below `from` count no more.
    pub fn open(pages: &Pages, path: &Path, from: &[u8], account: &Account) -> Result<Arc<Self>> {
        Self::of(pages, pages.open(path, account)?, from, account)
    }

    /// The same of a page file that is open already.
    pub fn of(pages: &Pages, file: Arc<PageFile>, from: &[u8], account: &Account) -> Result<Arc<Self>> {
        let place = file.path().display();
        let meta = Meta::decode(file.meta()).map_err(|error| error.at(&place))?;
        let missing = || Error::corrupt("a section of a run is missing; restore the file").at(&place);
        let section = |tag| file.section(tag);
        let (body, index) = (section(BODY).ok_or_else(missing)?, section(INDEX).ok_or_else(missing)?);
        let filter = section(FILTER);
        let _memory = account.try_reserve(meta.cost() + size_of::<Self>() as u64)?;
        let whole = Self { file, body, index, filter, meta, from: Box::default(), before: 0, _memory };
        if from.is_empty() { Ok(Arc::new(whole)) } else { whole.cut(pages, from, account) }
    }

    /// The same file, of which records below `from` count no more.
    pub fn cut(&self, pages: &Pages, from: &[u8], account: &Account) -> Result<Arc<Self>> {
        let before = if from > self.last_key() { self.meta.weight } else { self.weight_before(pages, from)? };
        Ok(Arc::new(Self {
            file: self.file.clone(),
            body: self.body.clone(),
            index: self.index.clone(),
            filter: self.filter.clone(),
            _memory: account.try_reserve(self.meta.cost() + (from.len() + size_of::<Self>()) as u64)?,
            meta: self.meta.clone(),
            from: from.into(),
            before,
        }))
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Bytes of its records, without what finds them.
    pub fn record_bytes(&self) -> u64 {
        self.body.len()
    }

    /// Records, those below `from` too.
    pub fn records(&self) -> u64 {
        self.meta.records
    }

    /// The sum of the weights of all records that count.
    pub fn weight(&self) -> i64 {
        self.meta.weight - self.before
    }

    pub fn is_weighted(&self) -> bool {
        self.meta.weighted
    }

    /// When the first of its values expires; 0: never.
    pub fn deadline(&self) -> u64 {
        self.meta.deadline
    }

    /// The least key that counts, or one below it and above those of the file before.
    pub fn first_key(&self) -> &[u8] {
        self.text(&self.meta.first).max(&self.from)
    }

    /// The greatest key.
    pub fn last_key(&self) -> &[u8] {
        self.text(&self.meta.last)
    }

    /// Records with smaller keys count no more.
    pub fn from(&self) -> &[u8] {
        &self.from
    }

    /// The file is removed when its last reader leaves.
    pub fn remove_on_drop(&self) {
        self.file.remove_on_drop();
    }

    /// Keeps index and filter in memory as long as there is room.
    pub fn load(&self) -> Result<()> {
        self.index.load()?;
        self.filter.as_ref().map_or(Ok(()), Section::load)
    }

    pub(crate) fn body(&self) -> &Section {
        &self.body
    }

    fn text(&self, range: &Range<u32>) -> &[u8] {
        &self.file.meta()[range.start as usize..range.end as usize]
    }

    pub(crate) fn tops(&self) -> &[Top] {
        &self.meta.tops
    }

    /// The first key that a block of the index answers for, or one below it.
    pub(crate) fn separator(&self, top: usize) -> &[u8] {
        self.text(&self.meta.tops[top].separator)
    }

    /// The separators in a block of the index.
    pub(crate) fn separators(&self, pages: &Pages, top: usize) -> Result<Vec<Vec<u8>>> {
        self.with_index(pages, top, |index| {
            let (mut walk, mut there, mut all) = (Walk::default(), true, Vec::with_capacity(index.len()));
            walk.go_to(index, 0)?;
            while there {
                all.push(walk.key().to_vec());
                there = walk.next(index)?;
            }
            Ok(all)
        })
    }

    /// Names the block of the index that answers for a key.
    pub(crate) fn want_index<'a>(&'a self, fetch: &mut Fetch<'a>, key: &[u8]) -> Result<FetchTicket> {
        let top = &self.meta.tops[self.top_of(key)];
        let (at, len) = Self::span(top.page, top.pages);
        fetch.want(&self.index, at, len)
    }

    /// Which block of the body answers for a key, by the block of the index.
    pub(crate) fn locate_in(&self, index: &[u8], key: &[u8]) -> Result<BlockAt> {
        let locate = |index: Block<'_>| self.checked(BlockAt::decode(index.value_at_or_before(key)?)?);
        Block::open(index).and_then(locate).map_err(|error| self.named(error))
    }

    /// Names a block of the body.
    pub(crate) fn want_block<'a>(&'a self, fetch: &mut Fetch<'a>, at: &BlockAt) -> Result<FetchTicket> {
        let (at, len) = Self::span(at.page, at.pages);
        fetch.want(&self.body, at, len)
    }

    /// False if the key is not here, as far as memory knows.
    #[inline]
    pub(crate) fn may_hold(&self, key: &[u8], hash: u32) -> bool {
        key >= &*self.from && !self.is_excluded(hash)
    }

    /// The number of the index's block that answers for a key.
    #[inline]
    pub(crate) fn top_of(&self, key: &[u8]) -> usize {
        // The first separator is empty.
        self.meta.tops.partition_point(|top| self.text(&top.separator) <= key).saturating_sub(1)
    }

    /// The bytes of a block of the index or of the body, as a fetch takes them.
    fn span(page: u32, pages: u32) -> (u64, usize) {
        (u64::from(page) * PAGE_BYTES, pages as usize * PAGE)
    }

    /// Shows a block of the index.
    pub(crate) fn with_index<T>(
        &self,
        pages: &Pages,
        top: usize,
        read: impl FnOnce(&Block<'_>) -> Result<T>,
    ) -> Result<T> {
        let top = &self.meta.tops[top];
        self.with(pages, &self.index, (top.page, top.pages), read)
    }

    /// Shows a block of the body.
    pub(crate) fn with_block<T>(
        &self,
        pages: &Pages,
        at: &BlockAt,
        read: impl FnOnce(&Block<'_>) -> Result<T>,
    ) -> Result<T> {
        self.with(pages, &self.body, (at.page, at.pages), read)
    }

    fn with<T>(
        &self,
        pages: &Pages,
        section: &Section,
        (page, count): (u32, u32),
        read: impl FnOnce(&Block<'_>) -> Result<T>,
    ) -> Result<T> {
        let (at, len) = Self::span(page, count);
        if let Some(resident) = section.resident() {
            let bytes = resident.get(at as usize..at as usize + len);
            let bytes = bytes.ok_or_else(|| self.corrupt("a block lies beyond its section"))?;
            return Block::open(bytes).and_then(|block| read(&block)).map_err(|error| self.named(error));
        }
        let mut fetch = pages.fetch();
        let want = fetch.want(section, at, len)?;
        let pinned = fetch.run()?;
        Block::open(pinned.bytes(want)).and_then(|block| read(&block)).map_err(|error| self.named(error))
    }

    /// Which block of the body answers for a key.
    #[inline]
    pub(crate) fn locate(&self, pages: &Pages, key: &[u8]) -> Result<BlockAt> {
        self.with_index(pages, self.top_of(key), |block| self.checked(BlockAt::decode(block.value_at_or_before(key)?)?))
    }

    /// Whether the filter says that the key is not here; a filter that is not in memory says nothing.
    #[inline]
    fn is_excluded(&self, hash: u32) -> bool {
        let Some(filter) = self.filter.as_ref().and_then(Section::resident) else { return false };
        let at = filter::line_of(hash, filter.len() as u64) as usize;
        filter.get(at..at + LINE).is_some_and(|line| !filter::may_hold(line, hash))
    }

    /// Shows the record of a key, if there is one. `hash` is the key's.
    pub(crate) fn get<T>(
        &self,
        pages: &Pages,
        key: &[u8],
        hash: u32,
        read: impl FnOnce(&Entry<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.may_hold(key, hash) {
            return Ok(None);
        }
        let at = self.locate(pages, key)?;
        self.with_block(pages, &at, |block| {
            let (place, found) = block.lower_bound(key)?;
            if found { read(&block.entry_of(place, key)?).map(Some) } else { Ok(None) }
        })
    }

    /// The sum of the weights of the records that count and whose keys are below `key`.
    pub(crate) fn weight_below(&self, pages: &Pages, key: &[u8]) -> Result<i64> {
        if key <= self.first_key() {
            return Ok(0);
        }
        if key > self.last_key() {
            return Ok(self.weight());
        }
        Ok(self.weight_before(pages, key)? - self.before)
    }

    fn weight_before(&self, pages: &Pages, key: &[u8]) -> Result<i64> {
        let at = self.locate(pages, key)?;
        let within = self.with_block(pages, &at, |block| block.weight_before(block.lower_bound(key)?.0.index))?;
        Ok(at.weight + within)
    }

    /// Reads a piece of a big value.
    pub(crate) fn read_big(&self, pages: &Pages, value: Extent, from: u64, out: &mut [u8]) -> Result<()> {
        let inside = from.checked_add(out.len() as u64).is_some_and(|end| end <= value.len);
        let at = value.at.checked_add(from).filter(|_| inside);
        let at = at.ok_or_else(|| self.corrupt("a piece of a value lies beyond it"))?;
        let mut fetch = pages.fetch();
        let want = fetch.want(&self.body, at, out.len())?;
        out.copy_from_slice(fetch.run()?.bytes(want));
        Ok(())
    }

    /// A block that lies in the body, or an error.
    pub(crate) fn checked(&self, at: BlockAt) -> Result<BlockAt> {
        let end = u64::from(at.page) + u64::from(at.pages);
        if at.pages == 0 || end * PAGE_BYTES > self.body.bytes_on_disk() {
            return Err(Error::corrupt("a block of a run lies beyond its body; restore the file"));
        }
        Ok(at)
    }

    pub(crate) fn corrupt(&self, text: &str) -> Error {
        Error::corrupt(text.to_owned()).at(self.path().display())
    }

    /// Errors of decoders say which file.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error.kind() {
            ramekin_base::Kind::Corrupt | ramekin_base::Kind::Unsupported => error.at(self.path().display()),
            _ => error,
        }
    }
}
