//! Writes a page file from its start to its end, once.
//!
//! ```text
//!   begin(tag) write write ... end()   begin(tag) ... end()   finish(meta)
//!      └───────► buffer of 256 KiB ── full ──► checksums, one aligned write
//! ```
//!
//! A file that was not finished is removed when its writer is dropped. The name is durable when the
//! caller has synced the folder.

use crate::Priority;
use crate::format::{
    DATA_PAGES_MAX, Entry, Footer, META_MAX, SECTIONS_MAX, encode_directory, encode_footer, identity, page_crc,
};
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_disk::{Aligned, Disk, File, Open, Sync};
use ramekin_memory::{Account, Reservation};
use std::path::Path;
use std::sync::Arc;

/// Bytes of one write.
const BUFFER: usize = 256 << 10;
/// Checksums for which memory is reserved at one time.
const CHECKSUMS_STEP: usize = 8192;

pub struct PageWriter {
    disk: Arc<dyn Disk>,
    file: File,
    buffer: Aligned,
    filled: usize,
    /// Bytes on disk.
    flushed: u64,
    checksums: Vec<u32>,
    reservation: Reservation,
    entries: Vec<Entry>,
    /// The last entry is still growing.
    open: bool,
    /// A write failed: the file can not be finished.
    failed: bool,
    finished: bool,
}

impl PageWriter {
    pub(crate) fn create(disk: Arc<dyn Disk>, path: &Path, account: &Account) -> Result<Self> {
        let buffer = Aligned::new(account, BUFFER)?;
        let reservation = account.try_reserve(0)?;
        let file = disk.open(path, Open::Create)?;
        Ok(Self {
            disk,
            file,
            buffer,
            filled: 0,
            flushed: 0,
            checksums: Vec::new(),
            reservation,
            entries: Vec::new(),
            open: false,
            failed: false,
            finished: false,
        })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Begins a section. Its tag must be new, and the one before it must have ended.
    pub fn begin(&mut self, tag: u32, priority: Priority) -> Result<()> {
        if self.open || self.entries.iter().any(|entry| entry.tag == tag) {
            return Err(self.bug(format!("section {tag} begins twice, or before another one has ended")));
        }
        if self.entries.len() == SECTIONS_MAX {
            let text = format!("a page file holds at most {SECTIONS_MAX} sections; use fewer vector names or fields");
            return Err(Error::too_large(text));
        }
        let first_page = self.bytes_written() / PAGE as u64;
        self.entries.push(Entry { tag, priority, bytes: 0, first_page: first_page as u32 });
        self.open = true;
        Ok(())
    }

    /// Appends to the open section.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let pages = (self.bytes_written() + bytes.len() as u64).div_ceil(PAGE as u64);
        if pages > DATA_PAGES_MAX {
            return Err(Error::too_large("a page file holds at most 8 TiB; write several"));
        }
        match self.entries.last_mut().filter(|_| self.open) {
            Some(entry) => entry.bytes += bytes.len() as u64,
            None => return Err(self.bug("bytes were written outside of a section".to_owned())),
        }
        self.append(bytes).inspect_err(|_| self.failed = true)
    }

    /// Ends the section; returns its bytes.
    pub fn end(&mut self) -> Result<u64> {
        if !std::mem::take(&mut self.open) {
            return Err(self.bug("a section ends that did not begin".to_owned()));
        }
        self.pad();
        self.flush_if_full().inspect_err(|_| self.failed = true)?;
        Ok(self.entries.last().map_or(0, |entry| entry.bytes))
    }

    /// Bytes of the file so far, sections padded to whole pages.
    pub fn bytes_written(&self) -> u64 {
        self.flushed + self.filled as u64
    }

    /// Writes the tables and the footer and syncs the file.
    pub fn finish(mut self, meta: &[u8]) -> Result<()> {
        if self.open || self.failed {
            return Err(self.bug("finished with an open section or after a failed write".to_owned()));
        }
        if meta.len() > META_MAX {
            let text = format!("{} bytes of meta data are more than {META_MAX}; store them as a section", meta.len());
            return Err(Error::too_large(text));
        }
        self.flush(true)?;
        let checksums_crc = self.write_checksums()?;
        let directory_crc = self.write_table(&encode_directory(&self.entries, meta))?;
        let footer = Footer {
            data_pages: self.checksums.len() as u32,
            sections: self.entries.len() as u32,
            meta_bytes: meta.len() as u32,
            checksums_crc,
            directory_crc,
            identity: identity(self.file.path()),
        };
        self.append_table(&encode_footer(&footer))?;
        self.flush(false)?;
        self.disk.sync(Sync::File(&self.file))?;
        self.finished = true;
        Ok(())
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.flush_if_full()?;
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER - self.filled));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
        }
        Ok(())
    }

    /// Zeros up to the next page.
    fn pad(&mut self) {
        let end = self.filled.next_multiple_of(PAGE);
        self.buffer[self.filled..end].fill(0);
        self.filled = end;
    }

    fn flush_if_full(&mut self) -> Result<()> {
        if self.filled == BUFFER { self.flush(true) } else { Ok(()) }
    }

    /// Writes the buffer, whole pages always; pages of sections are entered into the table of checksums.
    fn flush(&mut self, of_sections: bool) -> Result<()> {
        debug_assert!(self.filled.is_multiple_of(PAGE));
        if self.filled == 0 {
            return Ok(());
        }
        if of_sections {
            let pages = self.filled / PAGE;
            if self.checksums.capacity() < self.checksums.len() + pages {
                self.reservation.grow((CHECKSUMS_STEP * 4) as u64)?;
                self.checksums.reserve_exact(CHECKSUMS_STEP);
            }
            let (identity, numbers) = (identity(self.file.path()), self.checksums.len() as u32..);
            let pages = numbers.zip(self.buffer[..self.filled].chunks_exact(PAGE));
            self.checksums.extend(pages.map(|(number, page)| page_crc(identity, number, page)));
        }
        self.disk.write(&self.file, self.flushed, &self.buffer[..self.filled])?;
        self.flushed += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn append_table(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.filled == BUFFER {
                self.flush(false)?;
            }
            let (now, later) = rest.split_at(rest.len().min(BUFFER - self.filled));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            rest = later;
        }
        Ok(())
    }

    /// Writes a table, padded to whole pages; returns its checksum, padding included.
    fn write_table(&mut self, bytes: &[u8]) -> Result<u32> {
        self.append_table(bytes)?;
        let padding = [0; PAGE];
        let padding = &padding[..bytes.len().next_multiple_of(PAGE) - bytes.len()];
        self.append_table(padding)?;
        Ok(crc32c::crc32c_append(crc32c::crc32c(bytes), padding))
    }

    fn write_checksums(&mut self) -> Result<u32> {
        let mut crc = 0;
        let mut page = [0; PAGE];
        let checksums = std::mem::take(&mut self.checksums);
        for numbers in checksums.chunks(PAGE / 4) {
            page.fill(0);
            for (place, number) in page.chunks_exact_mut(4).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            crc = crc32c::crc32c_append(crc, &page);
            self.append_table(&page)?;
        }
        self.checksums = checksums;
        Ok(crc)
    }

    fn bug(&self, text: String) -> Error {
        Error::bug(text).at(self.file.path().display())
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is not named by any manifest and goes at the next start.
            let _ = self.disk.rename(self.file.path(), None);
        }
    }
}
