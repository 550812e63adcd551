//! A temporary file: appended through one small buffer, read back in order, removed when dropped.
//!
//! ```text
//!   append ──► [buffer] ──full──► file            read: file ──► [buffer] ──► next bytes
//! ```
//!
//! One checksum runs along with what is written, and with what is read: a build never ends on bytes that changed on
//! the disk meanwhile. It survives no crash and is never synced. A build that dies leaves spill files behind in its work folder,
//! which its owner empties on start.

use crate::{Aligned, Disk, File, Open, ReadOp};
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A temporary file that grows at its end.
pub struct SpillFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Option<File>,
    buffer: Option<Aligned>,
    filled: usize,
    written: u64,
    /// CRC32C of what was written.
    crc: u32,
}

impl SpillFile {
    /// A new file, with a buffer of about `buffer_bytes`.
    pub fn create(disk: &Arc<dyn Disk>, path: &Path, account: &Account, buffer_bytes: usize) -> Result<Self> {
        let room = buffer_bytes.next_multiple_of(disk.block()).max(disk.block());
        let buffer = Aligned::new(account, room)?;
        let file = disk.open(path, Open::Create)?;
        let path = path.to_path_buf();
        Ok(Self { disk: disk.clone(), path, file: Some(file), buffer: Some(buffer), filled: 0, written: 0, crc: 0 })
    }

    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let buffer = self.buffer.as_mut().ok_or_else(finished)?;
            let part = bytes.len().min(buffer.len() - self.filled);
            buffer[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
            self.filled += part;
            bytes = &bytes[part..];
            if self.filled == buffer.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let (Some(buffer), Some(file)) = (&mut self.buffer, &self.file) else { return Err(finished()) };
        let whole = self.filled.next_multiple_of(self.disk.block());
        buffer[self.filled..whole].fill(0);
        self.disk.write(file, self.written, &buffer[..whole])?;
        self.crc = crc32c::crc32c_append(self.crc, &buffer[..self.filled]);
        self.written += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes out the rest and gives the buffer back; nothing can be appended from now on.
    pub fn finish(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.flush()?;
        }
        self.buffer = None;
        Ok(())
    }

    /// Reads the finished file from its start through a buffer of about `buffer_bytes`.
    pub fn read(&self, account: &Account, buffer_bytes: usize) -> Result<SpillReader<'_>> {
        SpillReader::new(Spill::Borrowed(self), account, buffer_bytes)
    }

    /// The same for a reader that takes the file along, which goes with it.
    pub fn into_reader(self, account: &Account, buffer_bytes: usize) -> Result<SpillReader<'static>> {
        SpillReader::new(Spill::Owned(Box::new(self)), account, buffer_bytes)
    }
}

fn finished() -> Error {
    Error::bug("a spill file is finished already")
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.file = None;
        // A file that cannot be removed now is removed with its folder later.
        let _ = self.disk.rename(&self.path, None);
    }
}

enum Spill<'a> {
    Borrowed(&'a SpillFile),
    Owned(Box<SpillFile>),
}

impl std::ops::Deref for Spill<'_> {
    type Target = SpillFile;

    fn deref(&self) -> &SpillFile {
        match self {
            Self::Borrowed(spill) => spill,
            Self::Owned(spill) => spill,
        }
    }
}

/// Reads a [`SpillFile`] in order.
pub struct SpillReader<'a> {
    spill: Spill<'a>,
    buffer: Aligned,
    /// What of the buffer is not yet read.
    from: usize,
    to: usize,
    /// Where in the file the next fill starts; a multiple of the buffer's length.
    at: u64,
    /// CRC32C of what was read.
    crc: u32,
}

impl<'a> SpillReader<'a> {
    fn new(spill: Spill<'a>, account: &Account, buffer_bytes: usize) -> Result<Self> {
        if spill.buffer.is_some() {
            return Err(Error::bug("a spill file is read before it is finished"));
        }
        let room = buffer_bytes.next_multiple_of(spill.disk.block()).max(spill.disk.block());
        Ok(Self { spill, buffer: Aligned::new(account, room)?, from: 0, to: 0, at: 0, crc: 0 })
    }

    /// Bytes that were not yet read.
    pub fn left(&self) -> u64 {
        self.spill.written.saturating_sub(self.at) + (self.to - self.from) as u64
    }

    /// The next bytes, at most `most` of them and as many as lie in the buffer; empty only at the end.
    pub fn next(&mut self, most: usize) -> Result<&[u8]> {
        if self.from == self.to && self.at < self.spill.written {
            let file = self.spill.file.as_ref().ok_or_else(finished)?;
            let bytes = (self.spill.written - self.at).min(self.buffer.len() as u64) as usize;
            let whole = bytes.next_multiple_of(self.spill.disk.block());
            self.spill.disk.read(&mut [ReadOp { file, at: self.at, buf: &mut self.buffer[..whole] }])?;
            (self.from, self.to) = (0, bytes);
            self.at += bytes as u64;
            self.crc = crc32c::crc32c_append(self.crc, &self.buffer[..bytes]);
            if self.at == self.spill.written && self.crc != self.spill.crc {
                let error = Error::corrupt("a temporary file of a build is not what was written; it is built again");
                return Err(error.at(self.spill.path.display()));
            }
        }
        let part = most.min(self.to - self.from);
        self.from += part;
        Ok(&self.buffer[self.from - part..self.from])
    }

    /// Passes over `count` bytes.
    pub fn skip(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            match self.next(count)?.len() {
                0 => return Err(Error::corrupt("a temporary file of a build ends early")),
                part => count -= part,
            }
        }
        Ok(())
    }

    /// Fills `out` whole.
    pub fn read_exact(&mut self, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let bytes = self.next(out.len())?;
            if bytes.is_empty() {
                return Err(Error::corrupt("a temporary file of a build ends early"));
            }
            let (done, rest) = out.split_at_mut(bytes.len());
            done.copy_from_slice(bytes);
            out = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn what_was_appended_is_read_back_and_the_file_goes() {
        let sim = Arc::new(crate::sim::SimDisk::new(1, Default::default()));
        let disk: Arc<dyn Disk> = sim.clone();
        let folder = PathBuf::from("work");
        disk.make_folder(&folder).unwrap();
        let account = Budget::new(1 << 20).root();
        for len in [0usize, 1, 511, 512, 4096, 10_000] {
            let mut spill = SpillFile::create(&disk, &folder.join("a"), &account, 4096).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            for part in bytes.chunks(333) {
                spill.append(part).unwrap();
            }
            spill.finish().unwrap();
            let mut reader = spill.read(&account, 1000).unwrap();
            let mut back = vec![0; len];
            assert_eq!(reader.left(), len as u64);
            reader.read_exact(&mut back).unwrap();
            assert_eq!(back, bytes);
            assert_eq!(reader.left(), 0);
            assert!(reader.read_exact(&mut [0]).is_err());
            drop(reader);
            assert_eq!(disk.list(&folder).unwrap().len(), 1);
            if len > 0 {
                sim.flip_bit(&folder.join("a"), len as u64 - 1, 5).unwrap();
                let mut reader = spill.read(&account, 1000).unwrap();
                assert_eq!(reader.skip(len).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
            }
            let reader = spill.into_reader(&account, 1000).unwrap();
            assert_eq!(disk.list(&folder).unwrap().len(), 1);
            drop(reader);
            assert!(disk.list(&folder).unwrap().is_empty());
        }
        assert_eq!(account.used(), 0);
    }
}
