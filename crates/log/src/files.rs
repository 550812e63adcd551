//! The files of a log: their names, and how a new one comes to be.
//!
//! ```text
//!   create   open new ► reserve all its space ► write the header ► sync file ► sync folder
//!   link     the old file's end mark, synced with the last commit in it                     only now it is used
//! ```
//!
//! A file's name is the position of its first byte, so a folder's listing is the map of the log. An end mark names the next
//! file, so a file that is missing is noticed, and so is one that is shorter than it was made. A crash between any two of
//! these steps leaves at most one file behind that none names and that holds no record: a start removes it.
//!
//! A file is linked only after all before it was synced. So damage in any but the last file is never a torn write.

use crate::Lsn;
use crate::format::{FILE_HEADER, FileHeader, Place};
use ramekin_base::{Error, Kind, Result};
use ramekin_disk::{Aligned, Disk, Failed, File, Open, ReadOp, Sync};
use ramekin_memory::Account;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a file unless a record needs more or [`crate::Log::set_file_bytes`] says otherwise.
pub const FILE_BYTES: u64 = 4 << 20;

/// Smallest size of a file.
pub(crate) const FILE_BYTES_MIN: u64 = 64 << 10;

const SUFFIX: &str = ".log";

/// One file of the log, open.
pub(crate) struct LogFile {
    /// The position of its first byte.
    pub(crate) start: Lsn,
    pub(crate) file: File,
    /// Its length; whole blocks.
    len: AtomicU64,
    /// What it says of itself, or why that cannot be read.
    header: Result<FileHeader>,
}

impl LogFile {
    /// Opens a file and reads its header. A damaged one is the walk's affair; a newer format is an error.
    pub(crate) fn open(disk: &dyn Disk, folder: &Path, account: &Account, start: Lsn, how: Open) -> Result<Arc<Self>> {
        let file = disk.open(&path(folder, start), how)?;
        let len = disk.len(&file)?;
        let header = match len {
            ..FILE_HEADER => Err(Error::corrupt("the file ends inside its header")),
            _ => {
                let mut page = Aligned::new(account, FILE_HEADER as usize)?;
                disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut page }])?;
                FileHeader::decode(&page).and_then(|header| match header.start == start {
                    true => Ok(header),
                    false => Err(Error::corrupt(format!("the file belongs to position {}", header.start))),
                })
            }
        };
        match header {
            Err(error) if error.kind() != Kind::Corrupt => Err(error.at(file.path().display())),
            header => Ok(Arc::new(Self { start, file, len: AtomicU64::new(len), header })),
        }
    }

    pub(crate) fn header(&self) -> Result<&FileHeader> {
        self.header.as_ref().map_err(Clone::clone)
    }

    /// Its number; 0 also where its header is damaged.
    pub(crate) fn number(&self) -> u32 {
        self.header.as_ref().map_or(0, |header| header.number)
    }

    /// The bytes that it was made with, if it says so.
    pub(crate) fn made_bytes(&self) -> Option<u64> {
        self.header.as_ref().ok().map(|header| header.bytes).filter(|bytes| *bytes > 0)
    }

    /// What a header at `offset` is sealed with.
    pub(crate) fn place(&self, offset: u64) -> Place {
        Place { file: self.number(), lsn: self.start + offset }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn set_len(&self, disk: &dyn Disk, len: u64) -> Result<()> {
        disk.set_len(&self.file, len)?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// An error about the bytes at `offset` of this file.
    pub(crate) fn corrupt(&self, offset: u64, why: &str) -> Error {
        Error::corrupt(format!("{} is damaged at offset {offset}: {why}", self.file.path().display()))
    }
}

pub(crate) fn path(folder: &Path, start: Lsn) -> PathBuf {
    folder.join(format!("{start:016x}{SUFFIX}"))
}

/// The starts of the log's files in `folder`, ascending. Names of any other form are not ours.
pub(crate) fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<Lsn>> {
    let entries = disk.list(folder)?;
    let mut starts: Vec<_> =
        entries.iter().filter(|entry| !entry.folder).filter_map(|entry| parse(&entry.name)).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// The start that a name states.
fn parse(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(SUFFIX)?;
    let ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    ours.then(|| Lsn::from_str_radix(digits, 16).ok()).flatten()
}

/// Makes the file that `header` describes; `buffer` is free for use and holds a header at least.
pub(crate) fn create(
    disk: &dyn Disk,
    folder: &Path,
    header: FileHeader,
    buffer: &mut Aligned,
) -> Result<Arc<LogFile>, Failed> {
    let path = path(folder, header.start);
    let prepare = |buffer: &mut Aligned| {
        let file = disk.open(&path, Open::Create)?;
        disk.set_len(&file, header.bytes)?;
        let page = &mut buffer[..FILE_HEADER as usize];
        let bytes = header.encode();
        page.fill(0);
        page[..bytes.len()].copy_from_slice(&bytes);
        disk.write(&file, 0, page)?;
        Ok(file)
    };
    let mut made = prepare(buffer);
    if made.as_ref().is_err_and(|error: &Error| error.kind() == Kind::Exists) {
        // Left over from an attempt that failed; only the writer makes files, so nothing in it was acknowledged.
        made = disk.rename(&path, None).and_then(|()| prepare(buffer));
    }
    let file = match made {
        Ok(file) => file,
        Err(error) => {
            // What is left takes the space that is missing, and after a crash it would pass for a file of the log.
            match disk.rename(&path, None) {
                Err(other) if other.kind() != Kind::NotFound => return Err(Failed::Unknown(other)),
                _ => disk.sync(Sync::Folder(folder)).map_err(Failed::Unknown)?,
            }
            return Err(Failed::Clean(error));
        }
    };
    disk.sync(Sync::File(&file)).and_then(|()| disk.sync(Sync::Folder(folder))).map_err(Failed::Unknown)?;
    Ok(Arc::new(LogFile { start: header.start, file, len: AtomicU64::new(header.bytes), header: Ok(header) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_positions() {
        for start in [0, 1, 4096, u64::MAX] {
            let path = path(Path::new("log"), start);
            assert_eq!(path.file_name().and_then(|name| parse(name.to_str()?)), Some(start));
        }
        for name in ["", ".log", "1.log", "000000000000000g.log", "+000000000000001.log", "0000000000000001.log.new"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
