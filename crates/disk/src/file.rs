//! An open file: a name for messages, and a handle that closes itself.

use ramekin_base::{Error, Result};
use std::any::Any;
use std::path::{Path, PathBuf};

/// An open file of any disk; it closes on drop. Only the disk that opened it can use it.
pub struct File {
    path: PathBuf,
    handle: Box<dyn Any + Send + Sync>,
}

impl File {
    /// A file of a disk, which keeps what it needs for it in `handle`.
    pub(crate) fn new(path: &Path, handle: impl Any + Send + Sync) -> Self {
        Self { path: path.to_owned(), handle: Box::new(handle) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the disk that opened it keeps for it; an error for every other disk.
    pub(crate) fn handle<T: Any>(&self) -> Result<&T> {
        let foreign = || Error::bug("the file was opened by another disk").at(self.path.display());
        self.handle.downcast_ref().ok_or_else(foreign)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", self.path.display())
    }
}
