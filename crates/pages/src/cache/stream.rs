//! A section from its start to its end, in pieces, past the cache: for merges, scans and checks. What
//! is resident is taken from memory; what is not is read into a buffer of its own and checked, so that
//! a scan never pushes out what queries use.

use crate::Section;
use crate::cache::file::PageFile;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result, cancel};
use ramekin_disk::{Aligned, ReadOp};
use ramekin_memory::Account;

pub struct Stream {
    section: Section,
    buffer: Aligned,
    /// The next byte of the section that the caller gets.
    at: u64,
    /// The bytes of the section that the buffer holds.
    window: std::ops::Range<u64>,
}

impl Section {
    /// Reads the section from its start to its end past the cache, through a buffer of about `buf_bytes`.
    pub fn stream(&self, account: &Account, buf_bytes: usize) -> Result<Stream> {
        Stream::new(self.clone(), account, buf_bytes)
    }
}

impl Stream {
    pub(crate) fn new(section: Section, account: &Account, buf_bytes: usize) -> Result<Self> {
        let most = section.bytes_on_disk().max(PAGE as u64) as usize;
        let buffer = Aligned::new(account, buf_bytes.clamp(PAGE, most).next_multiple_of(PAGE))?;
        Ok(Self { section, buffer, at: 0, window: 0..0 })
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> u64 {
        self.section.len() - self.at
    }

    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next piece, of whatever length; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "the piece borrows from the stream, which no Iterator can say")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let piece = self.piece()?;
        self.at += piece.len() as u64;
        Ok((!piece.is_empty()).then(|| &self.buffer[piece]))
    }

    /// Fills `out` with the next bytes.
    pub fn read_exact(&mut self, out: &mut [u8]) -> Result<()> {
        self.section.end_of(self.at, out.len() as u64)?;
        let mut done = 0;
        while done < out.len() {
            let piece = self.piece()?;
            let part = &self.buffer[piece];
            let len = part.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[..len]);
            done += len;
            self.at += len as u64;
        }
        Ok(())
    }

    /// Passes over `bytes`; what is passed over is not read.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        self.at = self.section.end_of(self.at, bytes)?;
        Ok(())
    }

    /// Where in the buffer the next bytes stand; empty at the end of the section.
    fn piece(&mut self) -> Result<std::ops::Range<usize>> {
        if self.left() == 0 {
            return Ok(0..0);
        }
        if !self.window.contains(&self.at) {
            self.refill()?;
        }
        Ok((self.at - self.window.start) as usize..(self.window.end - self.window.start) as usize)
    }

    fn refill(&mut self) -> Result<()> {
        // Nothing is in the window while this may fail.
        self.window = 0..0;
        cancel::check()?;
        let start = self.at / PAGE as u64 * PAGE as u64;
        let bytes = (self.section.len() - start).min(self.buffer.len() as u64);
        if let Some(resident) = self.section.resident() {
            self.buffer[..bytes as usize].copy_from_slice(&resident[start as usize..][..bytes as usize]);
        } else {
            let first = self.section.entry().first_page + (start / PAGE as u64) as u32;
            let piece = &mut self.buffer[..(bytes as usize).next_multiple_of(PAGE)];
            read_checked(self.section.file(), first, piece)?;
        }
        self.window = start..start + bytes;
        Ok(())
    }
}

/// Reads pages of a file from number `first` on, and checks them.
fn read_checked(file: &PageFile, first: u32, pages: &mut [u8]) -> Result<()> {
    let at = u64::from(first) * PAGE as u64;
    file.cache().disk.read(&mut [ReadOp { file: file.disk_file(), at, buf: &mut *pages }])?;
    match (first..).zip(pages.chunks_exact(PAGE)).find(|(number, page)| !file.verify(*number, page)) {
        Some((number, _)) => Err(file.damaged(&[number])),
        None => Ok(()),
    }
}

impl std::io::Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let wanted = (out.len() as u64).min(self.left()) as usize;
        let fill = |error: Error| std::io::Error::other(error);
        self.read_exact(&mut out[..wanted]).map_err(fill)?;
        Ok(wanted)
    }
}
