//! An open file: a name for messages, and a handle that closes itself.

use crate::mmap::Mapping;
use crate::sim::SimFile;
use parking_lot::RwLock;
use ramekin_base::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// An open file of any disk; it closes on drop. Only the disk that opened it can use it.
pub struct File {
    pub(crate) path: PathBuf,
    pub(crate) handle: Handle,
}

pub(crate) enum Handle {
    Local(LocalFile),
    Sim(SimFile),
}

/// A file of the real file system.
pub(crate) struct LocalFile {
    pub(crate) fd: OwnedFd,
    /// Opened with O_DIRECT.
    pub(crate) direct: bool,
    /// Bytes written through the page cache since they were last dropped from it.
    pub(crate) behind: AtomicU64,
    /// The whole file, mapped; of the mmap engine only.
    pub(crate) mapping: RwLock<Option<Mapping>>,
}

impl File {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn local(&self) -> Result<&LocalFile> {
        match &self.handle {
            Handle::Local(file) => Ok(file),
            Handle::Sim(_) => Err(self.foreign()),
        }
    }

    pub(crate) fn sim(&self) -> Result<&SimFile> {
        match &self.handle {
            Handle::Sim(file) => Ok(file),
            Handle::Local(_) => Err(self.foreign()),
        }
    }

    fn foreign(&self) -> Error {
        Error::bug("the file was opened by another disk").at(self.path.display())
    }
}

impl LocalFile {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", self.path.display())
    }
}
