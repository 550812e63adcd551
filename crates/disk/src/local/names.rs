//! Names in folders, and the errors of the kernel.

use ramekin_base::{Error, Result};
use rustix::fs::{self, Access, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Makes a folder and what is missing above it, each name durable in its parent. Returns how many syncs it took.
pub(crate) fn make_folder(folder: &Path) -> Result<usize> {
    let failed = |error| errno(error, "make", folder);
    let parent = match folder.parent() {
        None => return Ok(0),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    let above = if parent.is_dir() { 0 } else { make_folder(parent)? };
    match fs::mkdir(folder, Mode::from(0o777)) {
        // Also this may be new: whoever made it may have ended before its name was durable.
        Err(Errno::EXIST) if folder.is_dir() => {}
        made => made.map_err(failed)?,
    }
    match fs::access(parent, Access::READ_OK) {
        Ok(()) => sync_folder(parent).map(|()| above + 1),
        // A parent that we may not read is not ours, and was there before.
        Err(_) => Ok(above),
    }
}

pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(folder, flags, Mode::empty()).and_then(fs::fsync).map_err(|error| errno(error, "fsync", folder))
}

/// An error of the kernel, with what was tried and where.
pub(super) fn errno(error: Errno, what: &str, path: &Path) -> Error {
    Error::from(std::io::Error::from(error)).at(format!("{what} {}", path.display()))
}
