//! Reads through a mapping of the whole file: a baseline to measure against, not for service.
//!
//! The page cache holds what was read, outside the budget, and a failing disk is a SIGBUS.

use super::file::LocalFile;
use super::names::errno;
use crate::ReadOp;
use crate::disk::short_read;
use ramekin_base::Result;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::path::Path;

/// A file mapped for reading.
pub(crate) struct Mapping {
    start: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: the mapping is read only and owned.
unsafe impl Send for Mapping {}
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &LocalFile, len: usize, path: &Path) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file.fd(), 0) }
            .map_err(|error| errno(error, "mmap", path))?;
        // SAFETY: advice on our own mapping. If it is refused, only read-ahead differs.
        let _ = unsafe { madvise(start, len, Advice::Random) };
        Ok(Self { start, len })
    }

    /// Copies `buf.len()` bytes from `at`, which must lie inside.
    fn copy(&self, at: usize, buf: &mut [u8]) {
        assert!(at.checked_add(buf.len()).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping, as just asserted; `buf` is ours alone and cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.start.cast::<u8>().add(at), buf.as_mut_ptr(), buf.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `new`, to which no borrow is left.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

pub(crate) fn read(ops: &mut [ReadOp<'_>]) -> Result<()> {
    for op in ops {
        read_one(op, op.file.local()?)?;
    }
    Ok(())
}

fn read_one(op: &mut ReadOp<'_>, file: &LocalFile) -> Result<()> {
    let end = op.at.saturating_add(op.buf.len() as u64);
    // The length is asked each time: touching a page past the end would be a SIGBUS.
    let len = file.len(op.file.path())?;
    if end > len {
        return Err(short_read(op.file, op.at, op.buf.len(), len.saturating_sub(op.at) as usize));
    }
    let mapping = file.mapping.read();
    if let Some(mapping) = mapping.as_ref().filter(|mapping| mapping.len as u64 >= end) {
        mapping.copy(op.at as usize, op.buf);
        return Ok(());
    }
    drop(mapping);
    let mut mapping = file.mapping.write();
    *mapping = None;
    if len > 0 {
        mapping.insert(Mapping::new(file, len as usize, op.file.path())?).copy(op.at as usize, op.buf);
    }
    Ok(())
}
