//! One process a folder: a `flock` on its file `LOCK`, given up by the kernel however we end.
//!
//! The lock is on the file, not on its name: if the folder is moved or removed we still hold it, on a file that
//! nobody will find. [`FolderLock::check`] compares the two.

use ramekin_base::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::{Errno, pread, pwrite};
use std::path::{Path, PathBuf};

use super::names::{errno, make_folder};

/// The folder is ours until this is dropped.
pub struct FolderLock {
    fd: OwnedFd,
    path: PathBuf,
}

impl FolderLock {
    /// Makes the folder, and what is missing above it, then locks it.
    pub fn make_and_take(folder: &Path) -> Result<Self> {
        make_folder(folder)?;
        Self::take(folder)
    }

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
        Ok(Self { fd, path })
    }

    /// An error if the folder under the name that was locked is not ours any more: moved, removed or replaced.
    pub fn check(&self) -> Result<()> {
        let lost = |why: &str| {
            let folder = self.path.parent().unwrap_or(&self.path).display();
            Error::io(format!("{folder} is lost: {why}; restore it or mount it again, then restart"))
        };
        let ours = fstat(&self.fd).map_err(|error| errno(error, "stat", &self.path))?;
        match stat(&self.path) {
            Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => Ok(()),
            Ok(_) => Err(lost("another folder was put in its place while the server ran")),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(lost("it was moved or removed")),
            Err(error) => Err(lost(&error.to_string())),
        }
    }
}

/// The process number that the holder wrote into the file.
fn holder(fd: &OwnedFd) -> Option<u32> {
    let mut text = [0; 10];
    let len = pread(fd, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_folder_is_noticed() {
        let above = tempfile::tempdir().unwrap();
        let (folder, moved) = (above.path().join("a/b"), above.path().join("moved"));
        let lock = FolderLock::make_and_take(&folder).unwrap();
        lock.check().unwrap();
        rustix::fs::rename(&folder, &moved).unwrap();
        assert!(lock.check().unwrap_err().message().contains("moved or removed"));
        let _other = FolderLock::make_and_take(&folder).unwrap();
        assert!(lock.check().unwrap_err().message().contains("another folder"));
        std::fs::remove_dir_all(&folder).unwrap();
        rustix::fs::rename(&moved, &folder).unwrap();
        lock.check().unwrap();
    }
}
