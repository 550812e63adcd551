//! Walks through a run, both ways, a few pages at a time.
//!
//! ```text
//!   files ─► a block of the index, decoded: where its blocks of the body lie ─► window: some of them, copied ─► record
//! ```
//!
//! A walk pins no page while it rests: what it stands on is a copy. The window grows while the walk goes on, from one block to
//! [`WINDOW_PAGES`], so that a short range reads little and a long one reads long pieces. A merge reads past the cache.

use crate::block::{Block, Walk};
use crate::entry::{Entry, Value};
use crate::file::RunFile;
use crate::format::BlockAt;
use crate::run::Run;
use ramekin_base::limits::PAGE;
use ramekin_base::{Result, nonblocking};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{Pages, Stream};
use std::sync::Arc;

/// Pages of a window at most, unless one block has more.
const WINDOW_PAGES: u32 = 16;
/// What a walk holds besides its window, a decoded block of the index, and a key, which is no longer than a block.
const WALK_BYTES: u64 = 4 << 10;

pub(crate) struct RunCursor {
    run: Arc<Run>,
    pages: Pages,
    /// Where a merge reads from: the file of this number, past the cache.
    stream: Option<(usize, Stream)>,
    account: Option<Account>,
    file: usize,
    top: usize,
    /// Blocks of the body that the index's block names.
    blocks: Vec<BlockAt>,
    at: usize,
    window: Vec<u8>,
    /// The page of the body that the window begins with.
    window_page: u32,
    window_file: usize,
    ahead: u32,
    walk: Walk,
    is_valid: bool,
    memory: Reservation,
}

impl RunCursor {
    /// Reads through the cache; `account` pays for the window.
    pub(crate) fn new(run: Arc<Run>, pages: &Pages, account: &Account) -> Result<Self> {
        Ok(Self {
            run,
            pages: pages.clone(),
            stream: None,
            account: None,
            file: 0,
            top: 0,
            blocks: Vec::new(),
            at: 0,
            window: Vec::new(),
            window_page: 0,
            window_file: 0,
            ahead: 1,
            walk: Walk::default(),
            is_valid: false,
            memory: account.try_reserve(WALK_BYTES)?,
        })
    }

    /// Reads past the cache, forwards only.
    pub(crate) fn past_the_cache(run: Arc<Run>, pages: &Pages, account: &Account) -> Result<Self> {
        let cursor = Self::new(run, pages, account)?;
        Ok(Self { account: Some(account.clone()), ahead: WINDOW_PAGES, ..cursor })
    }

    /// Goes to the first record whose key is at least `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.reset();
        let number = self.run.file_of(key);
        let Some(file) = self.run.files().get(number).cloned() else { return Ok(()) };
        let key = key.max(file.from());
        self.open(number, file.top_of(key))?;
        // The last block whose separator is not greater than the key.
        let at = file.with_index(&self.pages, self.top, |index| {
            let (place, found) = index.lower_bound(key)?;
            Ok(if found { place.index } else { place.index.saturating_sub(1) })
        })?;
        self.load(at)?;
        self.is_valid = self.walk(|walk, block| walk.seek(block, key))?;
        if self.is_valid { Ok(()) } else { self.next_block() }
    }

    /// Goes to the last record whose key is below `key`; `None`: to the last of all.
    pub(crate) fn seek_back(&mut self, key: Option<&[u8]>) -> Result<()> {
        let Some(key) = key else {
            self.reset();
            let Some(number) = self.run.files().len().checked_sub(1) else { return Ok(()) };
            return self.go_to_end(number);
        };
        self.seek(key)?;
        match self.is_valid {
            true => self.back(),
            false => self.seek_back(None),
        }
    }

    fn reset(&mut self) {
        self.is_valid = false;
        self.ahead = if self.account.is_some() { WINDOW_PAGES } else { 1 };
    }

    /// To the last record of a file.
    fn go_to_end(&mut self, number: usize) -> Result<()> {
        let top = self.run.files()[number].tops().len() - 1;
        self.open(number, top)?;
        self.load(self.blocks.len() - 1)?;
        self.last_of_block()
    }

    fn last_of_block(&mut self) -> Result<()> {
        self.is_valid = self.walk(|walk, block| walk.go_to(block, block.len() - 1))?;
        self.stop_below_from();
        Ok(())
    }

    /// What lies below `from` counts no more; nothing that counts is before it in the file.
    fn stop_below_from(&mut self) {
        if self.is_valid && self.walk.key() < self.run.files()[self.file].from() {
            self.is_valid = false;
        }
    }

    /// Goes to the next record.
    pub(crate) fn next(&mut self) -> Result<()> {
        if self.walk(Walk::next)? { Ok(()) } else { self.next_block() }
    }

    /// Goes to the record before.
    pub(crate) fn back(&mut self) -> Result<()> {
        if self.walk(Walk::back)? {
            self.stop_below_from();
        } else {
            self.block_before()?;
        }
        if self.is_valid || self.file == 0 {
            return Ok(());
        }
        // The rest of this file counts no more: the one before ends below it.
        self.go_to_end(self.file - 1)
    }

    fn next_block(&mut self) -> Result<()> {
        self.is_valid = false;
        self.grow_window();
        if self.at + 1 < self.blocks.len() {
            self.load(self.at + 1)?;
        } else if self.top + 1 < self.run.files()[self.file].tops().len() {
            self.open(self.file, self.top + 1)?;
            self.load(0)?;
        } else if self.file + 1 < self.run.files().len() {
            let number = self.file + 1;
            let from = self.run.files()[number].from().to_vec();
            if !from.is_empty() {
                return self.seek(&from);
            }
            self.open(number, 0)?;
            self.load(0)?;
        } else {
            return Ok(());
        }
        self.is_valid = self.walk(|walk, block| walk.go_to(block, 0))?;
        Ok(())
    }

    fn block_before(&mut self) -> Result<()> {
        self.is_valid = false;
        if self.at > 0 {
            self.load(self.at - 1)?;
        } else if self.top > 0 {
            self.open(self.file, self.top - 1)?;
            self.load(self.blocks.len() - 1)?;
        } else {
            return Ok(());
        }
        self.last_of_block()
    }

    fn grow_window(&mut self) {
        self.ahead = (self.ahead * 2).min(WINDOW_PAGES);
    }

    /// Takes a block of the index apart.
    fn open(&mut self, number: usize, top: usize) -> Result<()> {
        let file = self.run.files()[number].clone();
        let blocks = &mut self.blocks;
        blocks.clear();
        file.with_index(&self.pages, top, |index| {
            let (mut walk, mut there) = (Walk::default(), true);
            walk.go_to(index, 0)?;
            while there {
                if let Value::Inline(value) = walk.entry(index)?.value {
                    blocks.push(file.checked(BlockAt::decode(value)?)?);
                }
                there = walk.next(index)?;
            }
            Ok(())
        })?;
        if blocks.is_empty() {
            return Err(file.corrupt("a block of the index names no block"));
        }
        (self.file, self.top) = (number, top);
        Ok(())
    }

    /// Makes the window hold a block.
    fn load(&mut self, at: usize) -> Result<()> {
        self.at = at;
        let wanted = self.blocks[at];
        let end = self.window_page + (self.window.len() / PAGE) as u32;
        let inside = wanted.page >= self.window_page && wanted.page + wanted.pages <= end;
        if self.window_file == self.file && inside && !self.window.is_empty() {
            return Ok(());
        }
        // Who may not wait wants no page more than he needs.
        let (mut pages, ahead) = (wanted.pages, if nonblocking::is_set() { 1 } else { self.ahead });
        for next in &self.blocks[at + 1..] {
            if next.page != wanted.page + pages || pages + next.pages > ahead {
                break;
            }
            pages += next.pages;
        }
        self.read(wanted.page, pages).inspect_err(|_| self.window.clear())?;
        (self.window_page, self.window_file) = (wanted.page, self.file);
        Ok(())
    }

    fn read(&mut self, page: u32, pages: u32) -> Result<()> {
        let (at, len) = (u64::from(page) * PAGE as u64, pages as usize * PAGE);
        let needed = WALK_BYTES + 2 * len as u64 + (self.blocks.capacity() * size_of::<BlockAt>()) as u64;
        if needed > self.memory.bytes() {
            self.memory.grow(needed - self.memory.bytes())?;
        }
        let file = self.run.files()[self.file].clone();
        self.window.resize(len, 0);
        let Some(account) = &self.account else {
            let mut fetch = self.pages.fetch();
            let want = fetch.want(file.body(), at, len)?;
            self.window.copy_from_slice(fetch.run()?.bytes(want));
            return Ok(());
        };
        if self.stream.as_ref().is_none_or(|(number, stream)| *number != self.file || stream.position() > at) {
            self.stream = Some((self.file, file.body().stream(account, WINDOW_PAGES as usize * PAGE)?));
        }
        let Some((_, stream)) = &mut self.stream else { return Ok(()) };
        stream.skip(at - stream.position())?;
        stream.read_exact(&mut self.window)
    }

    /// Moves in the block that the cursor is in.
    fn walk(&mut self, step: impl FnOnce(&mut Walk, &Block<'_>) -> Result<bool>) -> Result<bool> {
        let walk = &mut self.walk;
        let moved = in_window(&self.window, self.window_page, &self.blocks[self.at], |block| step(walk, &block));
        moved.map_err(|error| self.run.files()[self.file].named(error))
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid
    }

    /// The key that the cursor is at.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.walk.key()
    }

    /// The record that the cursor is at, and the file that holds its big value.
    pub(crate) fn entry(&self) -> Result<(Entry<'_>, &Arc<RunFile>)> {
        let file = &self.run.files()[self.file];
        let entry = in_window(&self.window, self.window_page, &self.blocks[self.at], |block| self.walk.entry(&block));
        Ok((entry.map_err(|error| file.named(error))?, file))
    }
}

/// Opens a block in a window and works on it.
fn in_window<'w, T>(
    window: &'w [u8],
    window_page: u32,
    at: &BlockAt,
    work: impl FnOnce(Block<'w>) -> Result<T>,
) -> Result<T> {
    let from = (at.page - window_page) as usize * PAGE;
    work(Block::open(&window[from..from + at.pages as usize * PAGE])?)
}
