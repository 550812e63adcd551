//! One reservation of virtual addresses. It costs nothing until it is touched, and what was touched
//! goes back to the kernel piece by piece.
//!
//! ```text
//!   base                                                        base + bytes
//!    │ file A          │ free   │ file B   │ free ...                │
//!    │ ▓▓░░░▓░░░░░░░░░ │        │ ░░▓▓▓▓░░ │                         │   ▓ in memory  ░ reads as zeros
//! ```

use ramekin_base::{Error, Result, Size};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Addresses that one page of the kernel's page table, or one huge page, covers on the machines we know.
const TABLE_SPAN: usize = 2 << 20;

/// Ranges that go back to the kernel in one call.
const BATCH: usize = 64;

/// "This process" where the kernel asks for a process; it knows this name since Linux 6.14. A handle
/// made at start would still name the parent in a forked child.
const PIDFD_SELF: libc::c_int = -10_000;

pub(crate) struct Region {
    /// A multiple of [`TABLE_SPAN`], up to so many bytes into what is mapped.
    base: NonNull<u8>,
    bytes: usize,
    mapped: NonNull<u8>,
    /// The kernel takes advice on many ranges in one call.
    batches: AtomicBool,
}

// SAFETY: the region is plain memory; who may touch which part is settled by the page states.
unsafe impl Send for Region {}
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing of ours.
        let mapped = unsafe {
            let all = bytes.saturating_add(TABLE_SPAN);
            mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let mapped = mapped.ok().and_then(|base| NonNull::new(base.cast::<u8>())).ok_or_else(|| {
            Error::no_memory(format!(
                "the kernel refused {} of virtual addresses; raise `ulimit -v`, set vm.overcommit_memory to 0 or 1, \
                 or ask for a smaller address range",
                Size(bytes as u64)
            ))
        })?;
        let aligned = mapped.as_ptr().align_offset(TABLE_SPAN);
        // SAFETY: less than `TABLE_SPAN` into a mapping that is so much longer than asked for.
        let base = unsafe { mapped.add(aligned) };
        let region = Self { base, bytes, mapped, batches: AtomicBool::new(true) };
        region.advise(0, bytes, Advice::LinuxNoHugepage);
        Ok(region)
    }

    /// The address `offset` bytes into the region.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        // SAFETY: callers stay inside the region, which is one mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Gives whole pages back to the kernel; they read as zeros from now on.
    pub(crate) fn discard(&self, offset: usize, bytes: usize) {
        // Locked memory (mlockall) refuses this advice; the same pages come back zeroed by a new mapping.
        if !self.advise(offset, bytes, Advice::LinuxDontNeed) {
            self.remap(offset, bytes);
        }
    }

    /// Gives several ranges (offset, bytes) of whole pages back. One call for many costs a third of
    /// many calls, and less where other threads run.
    pub(crate) fn discard_all(&self, ranges: impl Iterator<Item = (usize, usize)>) {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut batch, mut filled) = ([empty; BATCH], 0);
        for (offset, bytes) in ranges {
            debug_assert!(offset + bytes <= self.bytes);
            batch[filled] = libc::iovec { iov_base: self.at(offset).cast(), iov_len: bytes };
            filled += 1;
            if filled == BATCH {
                self.discard_batch(&batch);
                filled = 0;
            }
        }
        self.discard_batch(&batch[..filled]);
    }

    fn discard_batch(&self, batch: &[libc::iovec]) {
        if batch.len() > 1 && self.batches.load(Ordering::Relaxed) {
            let bytes: usize = batch.iter().map(|range| range.iov_len).sum();
            // SAFETY: all ranges are ours, and nobody holds a slice of what is given back.
            let done = unsafe {
                let (number, advice) = (libc::SYS_process_madvise, libc::MADV_DONTNEED);
                libc::syscall(number, PIDFD_SELF, batch.as_ptr(), batch.len(), advice, 0)
            };
            if done == bytes as libc::c_long {
                return;
            }
            // An older kernel, or one that is told to refuse this. What was done is done again, which is harmless.
            self.batches.store(false, Ordering::Relaxed);
        }
        for range in batch {
            self.discard(range.iov_base as usize - self.base.as_ptr() as usize, range.iov_len);
        }
    }

    /// Like `discard`, and gives back the page tables that lie wholly inside. For ranges that nobody
    /// uses any more. False if the addresses must not be used again.
    pub(crate) fn scrub(&self, offset: usize, bytes: usize) -> bool {
        let start = self.base.as_ptr() as usize + offset;
        let (first, last) = (start.next_multiple_of(TABLE_SPAN), (start + bytes) / TABLE_SPAN * TABLE_SPAN);
        if first < last && !self.remap(offset + (first - start), last - first) {
            return false;
        }
        self.discard(offset, bytes);
        true
    }

    /// The kernel may, or may no longer, back the range with huge pages; only whole ones inside it count, so that
    /// no byte beside the range comes to memory with it.
    pub(crate) fn use_huge(&self, offset: usize, bytes: usize, huge: bool) {
        let (first, last) = (offset.next_multiple_of(TABLE_SPAN), (offset + bytes) / TABLE_SPAN * TABLE_SPAN);
        if first < last {
            self.advise(first, last - first, if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
        }
    }

    fn remap(&self, offset: usize, bytes: usize) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the addresses are ours, nobody holds a slice of them, and they stay mapped and zeroed.
        let mapped =
            unsafe { mmap_anonymous(self.at(offset).cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        mapped.is_ok() && self.advise(offset, bytes, Advice::LinuxNoHugepage)
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> bool {
        debug_assert!(offset + bytes <= self.bytes);
        // SAFETY: the range is ours, and nobody holds a slice of what is given back.
        unsafe { madvise(self.at(offset).cast(), bytes, advice) }.is_ok()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `new`; borrowers hold the owner of this region alive.
        let unmapped = unsafe { munmap(self.mapped.as_ptr().cast(), self.bytes + TABLE_SPAN) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Bytes of `[offset, offset + bytes)` of the region that are in memory, as the kernel sees it.
#[cfg(test)]
pub(crate) fn in_memory(region: &Region, offset: usize, bytes: usize) -> usize {
    let mut seen = vec![0u8; bytes.div_ceil(4096)];
    // SAFETY: the vector has a byte for each page of the range.
    let done = unsafe { libc::mincore(region.at(offset).cast(), bytes, seen.as_mut_ptr()) };
    assert_eq!(done, 0);
    seen.iter().filter(|byte| **byte & 1 == 1).count() * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_leaves_memory_and_reads_as_zeros() {
        let region = Region::new(64 << 20).unwrap();
        assert_eq!(in_memory(&region, 0, 64 << 20), 0);
        let fill = |offset: usize, bytes: usize| unsafe { region.at(offset).write_bytes(9, bytes) };
        fill(0, 8 << 20);
        assert_eq!(in_memory(&region, 0, 64 << 20), 8 << 20);
        region.discard(4096, 4096);
        assert_eq!(in_memory(&region, 0, 64 << 20), (8 << 20) - 4096);
        assert_eq!(unsafe { (region.at(4095).read(), region.at(4096).read(), region.at(8192).read()) }, (9, 0, 9));
        assert!(region.scrub(4096, (8 << 20) - 8192));
        assert_eq!(in_memory(&region, 0, 64 << 20), 8192);
        fill(0, 8 << 20);
        assert!(region.scrub(0, 8 << 20));
        assert_eq!(in_memory(&region, 0, 64 << 20), 0);
        // Every second page, in one call for many and in one for each.
        for batches in [true, false] {
            region.batches.store(batches, Ordering::Relaxed);
            fill(0, 8 << 20);
            region.discard_all((0..2048).step_by(2).map(|page| (page * 4096, 4096)));
            assert_eq!(in_memory(&region, 0, 64 << 20), 4 << 20);
            assert_eq!(unsafe { (region.at(8192).read(), region.at(4096).read()) }, (0, 9));
        }
    }
}
