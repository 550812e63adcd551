//! One process a folder: a `flock` on its file `LOCK`, given up by the kernel however we end.

use ramekin_base::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, pread, pwrite};
use std::path::Path;

use crate::local::errno;

/// The folder is ours until this is dropped.
pub struct FolderLock {
    _fd: OwnedFd,
}

impl FolderLock {
    /// Locks an existing folder, or says which process holds it.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join("LOCK");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = open(&path, flags, Mode::from(0o644)).map_err(|error| errno(error, "open", &path))?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = holder(&fd).map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(Error::busy(format!(
                    "{} is in use by another ramekin{holder}; stop it or choose another folder",
                    folder.display()
                )));
            }
            Err(error) => return Err(errno(error, "flock", &path)),
        }
        // The number is for messages only, so a failure to write it does not matter.
        let _ = pwrite(&fd, format!("{:<10}\n", std::process::id()).as_bytes(), 0);
        Ok(Self { _fd: fd })
    }
}

/// The process number that the holder wrote into the file.
fn holder(fd: &OwnedFd) -> Option<u32> {
    let mut text = [0; 10];
    let len = pread(fd, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
