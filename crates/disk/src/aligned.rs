//! A zeroed buffer that every disk can read into and write from, paid for by an account.
//!
//! Large ones are mapped, so that the kernel gets them back the moment they are dropped; small ones
//! come from the allocator, which is quicker and makes no mapping of its own.

use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of an [`Aligned`] buffer; every disk's block divides it.
pub const ALIGN: usize = 4096;

/// Buffers above this many bytes are mapped.
const MAPPED_FROM: usize = 64 << 10;

/// A buffer at an address that is a multiple of [`ALIGN`].
pub struct Aligned {
    start: NonNull<u8>,
    len: usize,
    /// `len` rounded up to whole pages: what was allocated and reserved.
    room: usize,
    _reservation: Reservation,
}

// SAFETY: the buffer is owned, plain bytes.
unsafe impl Send for Aligned {}
unsafe impl Sync for Aligned {}

impl Aligned {
    /// Reserves and takes `len` zero bytes; the reservation counts whole pages.
    pub fn new(account: &Account, len: usize) -> Result<Self> {
        let too_large = || Error::too_large(format!("a buffer of {len} bytes cannot be made; ask for less"));
        let room = len.max(1).checked_next_multiple_of(ALIGN).ok_or_else(too_large)?;
        let layout = Layout::from_size_align(room, ALIGN).map_err(|_| too_large())?;
        let reservation = account.try_reserve(room as u64)?;
        let start = if room > MAPPED_FROM {
            map(room)
        } else {
            // SAFETY: the layout's size is not zero.
            unsafe { alloc_zeroed(layout) }
        };
        let no_memory = || Error::no_memory(format!("the kernel refused {room} bytes; give the process more memory"));
        let start = NonNull::new(start).ok_or_else(no_memory)?;
        Ok(Self { start, len, room, _reservation: reservation })
    }
}

/// Maps `room` zero bytes; null if the kernel refuses. They are brought in at once: what is booked is also there, and
/// one call costs less than a fault a page.
fn map(room: usize) -> *mut u8 {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing of ours.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags) };
    mapped.map_or(std::ptr::null_mut(), |start| start.cast())
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if self.room > MAPPED_FROM {
            // SAFETY: exactly the mapping of `new`, to which no borrow is left.
            let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.room) };
            debug_assert!(unmapped.is_ok());
        } else {
            // SAFETY: allocated by `new` with this very layout, which was valid there.
            unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.room, ALIGN)) }
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that we own.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes that we own, borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn buffers_are_aligned_zeroed_and_paid_for() {
        let budget = Budget::new(1 << 20);
        for len in [0, 1, 512, 4096, 4097, MAPPED_FROM, MAPPED_FROM + 1, 300_000] {
            let mut buffer = Aligned::new(&budget.root(), len).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % ALIGN), (len, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert_eq!(budget.reserved(), len.max(1).next_multiple_of(ALIGN) as u64);
        }
        assert_eq!(budget.reserved(), 0);
        assert!(Aligned::new(&budget.root(), 2 << 20).is_err());
        assert!(Aligned::new(&budget.root(), usize::MAX).is_err());
    }
}
