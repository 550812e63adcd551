//! A file of the real file system, and what the kernel's page cache holds of it.

use super::mmap::Mapping;
use super::names::errno;
use crate::file::File;
use parking_lot::RwLock;
use ramekin_base::{Error, Result};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, Advice};
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A file of the real file system.
pub(super) struct LocalFile {
    pub(super) fd: OwnedFd,
    /// Opened with O_DIRECT.
    pub(super) direct: bool,
    /// Bytes written through the page cache since they were last dropped from it.
    pub(super) behind: AtomicU64,
    /// The whole file, mapped; of the mmap engine only.
    pub(super) mapping: RwLock<Option<Mapping>>,
}

impl File {
    /// The file, if a local disk opened it.
    pub(super) fn local(&self) -> Result<&LocalFile> {
        self.handle()
    }
}

impl LocalFile {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn len(&self, path: &Path) -> Result<u64> {
        fs::fstat(self.fd()).map(|stat| stat.st_size as u64).map_err(|error| errno(error, "stat", path))
    }

    /// Writes all dirty pages out and waits for it, without the cost of a sync. A failure must be
    /// reported from here: the kernel tells it once, so the next sync would call these pages clean.
    pub(super) fn write_out(&self, path: &Path) -> Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: a call on a descriptor that we hold.
        match unsafe { libc::sync_file_range(self.fd().as_raw_fd(), 0, 0, flags) } {
            0 => Ok(()),
            _ => Err(Error::from(std::io::Error::last_os_error()).at(format!("write out {}", path.display()))),
        }
    }

    /// Drops the file's clean pages from the page cache, which the budget does not see.
    pub(super) fn drop_behind(&self) {
        let _ = fs::fadvise(self.fd(), 0, None, Advice::DontNeed);
    }
}
