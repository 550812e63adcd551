//! The trait that every engine and the simulated disk answer to, and the plain types around it.
//!
//! ```text
//!   open ──► File ──► write … write ──► sync(File) ──► sync(Folder)      now a crash loses nothing
//!                 └─► read([op, op, …])     one batch: all are in when it returns
//! ```
//!
//! What is promised after a crash: bytes of a file after `Sync::File`, names of a folder after
//! `Sync::Folder`; of anything later, each 512-byte sector and each name may be old or new.

use crate::File;
use ramekin_base::{Error, Result};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading only.
    Read,
    /// A new file, for reading and writing; an error if the name is taken.
    Create,
    /// An existing file, for reading and writing.
    Write,
}

/// One read of a batch: fills `buf` from `file` at `at`. All three are multiples of [`Disk::block`].
pub struct ReadOp<'a> {
    pub file: &'a File,
    pub at: u64,
    pub buf: &'a mut [u8],
}

/// What is to survive a crash from now on.
#[derive(Clone, Copy)]
pub enum Sync<'a> {
    /// The bytes and the length of a file.
    File(&'a File),
    /// The names in a folder: files created, renamed and removed there.
    Folder(&'a Path),
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    pub folder: bool,
}

/// How large the file system under a folder is, and how much of it may still be written, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
}

/// What a disk did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub batches: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub syncs: u64,
}

/// A place that keeps bytes under names.
pub trait Disk: Send + std::marker::Sync {
    /// Opens a data file, past the page cache where the file system allows it.
    fn open(&self, path: &Path, how: Open) -> Result<File>;

    /// Does all reads as one batch and returns when none is under way any more, also on an error.
    /// After an error the buffers hold anything. A read past the end of its file is `Corrupt`.
    fn read(&self, ops: &mut [ReadOp<'_>]) -> Result<()>;

    /// Writes all of `data` at `at`; offset, length and address are multiples of [`Disk::block`].
    fn write(&self, file: &File, at: u64, data: &[u8]) -> Result<()>;

    /// Returns once a crash can no longer take this back. After an error, what was not yet synced
    /// may be lost even if a later sync succeeds: close writes and start again. A file that was
    /// removed cannot be synced.
    fn sync(&self, what: Sync<'_>) -> Result<()>;

    /// The names in a folder, sorted.
    fn list(&self, folder: &Path) -> Result<Vec<Entry>>;

    /// Renames a file, replacing what stood under the new name; `None` removes it (an empty folder too).
    /// Files that are open stay readable.
    fn rename(&self, from: &Path, to: Option<&Path>) -> Result<()>;

    /// Makes a folder and what is missing above it, each name durable. It may exist already.
    fn make_folder(&self, folder: &Path) -> Result<()>;

    /// The length of a file, bytes.
    fn len(&self, file: &File) -> Result<u64>;

    /// Cuts a file; or lengthens it with zeros, if it is shorter, and reserves the space of all of it on the disk.
    fn set_len(&self, file: &File, bytes: u64) -> Result<()>;

    /// A look at the room there is; others may take it meanwhile.
    fn space(&self, folder: &Path) -> Result<Space>;

    /// The unit of offsets, lengths and addresses: 512 or 4096.
    fn block(&self) -> usize;

    fn engine_name(&self) -> &str;

    fn counters(&self) -> Counters;
}

/// A way to read real files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Uring,
    Pread,
    Mmap,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Mmap => "mmap",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "uring" => Ok(Self::Uring),
            "pread" => Ok(Self::Pread),
            "mmap" => Ok(Self::Mmap),
            _ => Err(Error::invalid(format!("'{text}' is not an I/O engine; choose uring, pread or mmap"))),
        }
    }
}

/// [`Counters`] that many threads add to.
#[derive(Default)]
pub(crate) struct Tally {
    batches: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
}

impl Tally {
    pub(crate) fn batch(&self, ops: &[ReadOp<'_>]) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(ops.len() as u64, Ordering::Relaxed);
        self.read_bytes.fetch_add(ops.iter().map(|op| op.buf.len() as u64).sum(), Ordering::Relaxed);
    }

    pub(crate) fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Counters {
        Counters {
            batches: self.batches.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }
}

/// Refuses what O_DIRECT would refuse, on every engine alike, so that a test on any of them finds it.
pub(crate) fn check_aligned(block: usize, file: &File, at: u64, bytes: &[u8]) -> Result<()> {
    let mask = block - 1;
    let address = if bytes.is_empty() { 0 } else { bytes.as_ptr() as usize };
    if at as usize & mask == 0 && bytes.len() & mask == 0 && address & mask == 0 {
        return Ok(());
    }
    let message = format!(
        "offset {at}, length {} and address {:p} must all be multiples of {block}",
        bytes.len(),
        bytes.as_ptr()
    );
    Err(Error::bug(message).at(file.path().display()))
}

/// A read that met the end of its file.
pub(crate) fn short_read(file: &File, at: u64, wanted: usize, got: usize) -> Error {
    let message = format!("ends early: {got} of {wanted} bytes at offset {at}; the file was cut or damaged");
    Error::corrupt(message).at(file.path().display())
}
