//! A moving view of a file for sequential reading, of bounded size.
//!
//! ```text
//!   file   ├──────────────┬═══════════════┬────────────┤
//!                         at          at + filled        the next piece is read when a slice passes the end
//! ```

use crate::files::LogFile;
use ramekin_base::{Error, Result};
use ramekin_disk::{ALIGN, Aligned, Disk, ReadOp};
use ramekin_memory::Account;

/// Bytes read at a time. A longer record takes a longer buffer, up to the record's own limit.
const WINDOW: usize = 256 << 10;

pub(crate) struct Window<'a> {
    pub(crate) disk: &'a dyn Disk,
    account: &'a Account,
    buffer: Aligned,
    start: Option<u64>,
    at: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(disk: &'a dyn Disk, account: &'a Account) -> Result<Self> {
        let buffer = Aligned::new(account, WINDOW)?;
        Ok(Self { disk, account, buffer, start: None, at: 0, filled: 0 })
    }

    pub(crate) fn account(&self) -> &'a Account {
        self.account
    }

    /// The bytes of `file` that can be read: whole blocks. A file that was cut by others may end inside one.
    pub(crate) fn readable(&self, file: &LogFile) -> u64 {
        file.len() - file.len() % self.disk.block() as u64
    }

    /// `len` bytes of `file` from `offset`, which lie below [`Window::readable`].
    pub(crate) fn get(&mut self, file: &LogFile, offset: u64, len: usize) -> Result<&[u8]> {
        let inside =
            self.start == Some(file.start) && offset >= self.at && offset + len as u64 <= self.at + self.filled as u64;
        if !inside {
            self.fill(file, offset, len)?;
        }
        let from = (offset - self.at) as usize;
        self.buffer[..self.filled]
            .get(from..from + len)
            .ok_or_else(|| Error::bug(format!("a read of {len} bytes at {offset} passes the end of the log file")))
    }

    fn fill(&mut self, file: &LogFile, offset: u64, len: usize) -> Result<()> {
        self.start = None;
        self.at = offset - offset % ALIGN as u64;
        let needed = ((offset - self.at) as usize + len).next_multiple_of(ALIGN);
        if needed > self.buffer.len() || (needed <= WINDOW && self.buffer.len() > WINDOW) {
            // The old buffer goes first, so that the two are never held at once.
            self.buffer = Aligned::new(self.account, 0)?;
            self.buffer = Aligned::new(self.account, needed.max(WINDOW))?;
        }
        let left = self.readable(file).saturating_sub(self.at);
        self.filled = left.min(self.buffer.len() as u64) as usize;
        let buf = &mut self.buffer[..self.filled];
        self.disk.read(&mut [ReadOp { file: &file.file, at: self.at, buf }])?;
        self.start = Some(file.start);
        Ok(())
    }
}
