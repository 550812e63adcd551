//! Reads through io_uring: a batch is one submission on this thread's ring.
//!
//! ```text
//!   ops     [0 1 2 … 63 | 64 65 …]
//!            └── 64 slots ──┘   a free slot takes the next op; its number is the request's user_data
//!   fill all free slots ─► submit_and_wait ─► reap ─┐
//!        ▲──────────────────────────────────────────┘   until nothing is left and nothing is in flight
//! ```
//!
//! The kernel writes into the callers' buffers, so nothing may return or unwind while a request is
//! in flight: on an error no more is submitted, but all that was is waited for. Should the kernel
//! refuse even to wait, the process ends; a buffer that is freed under the kernel would be worse.

use super::names::errno;
use super::pread;
use crate::ReadOp;
use crate::disk::short_read;
use io_uring::{IoUring, opcode, squeue, types};
use ramekin_base::Result;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::cell::RefCell;

/// Requests in flight on one ring.
const ENTRIES: u32 = 64;

/// Kernel memory of one thread's ring, charged to us: entries, completions and the kernel's own record of it.
/// Measured at about 14 KiB on Linux 6.18.
pub const RING_BYTES: u64 = 16 << 10;

/// While more is to be submitted, a round waits for this many completions, so that the device's
/// queue stays three quarters full and a system call is still shared by many reads.
const REFILL_AT: usize = 16;

thread_local! {
    /// Made at the thread's first batch, closed when the thread ends.
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Makes a ring as this kernel can: the flags spare interrupts and task switches, where known.
fn ring() -> std::io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::builder().setup_coop_taskrun().build(ENTRIES))
        .or_else(|_| IoUring::new(ENTRIES))
}

/// Whether the kernel lets this process make a ring.
pub(crate) fn allowed() -> std::io::Result<()> {
    ring().map(drop)
}

pub(crate) fn read(ops: &mut [ReadOp<'_>]) -> Result<()> {
    if ops.len() == 1 {
        // A ring that is fed one request at a time is slower than a plain call.
        return pread::read(ops);
    }
    RING.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = ring().ok();
        }
        match slot {
            Some(ring) => Batch::new(ops).run(ring),
            // Out of descriptors or of memory for one more ring: slower, but right.
            None => pread::read(ops),
        }
    })
}

/// One batch on its way. Lives only inside [`read`]; the slots say what the kernel still holds.
struct Batch<'o, 'b> {
    ops: &'o mut [ReadOp<'b>],
    /// The next operation that was never submitted.
    next: usize,
    slots: [Slot; ENTRIES as usize],
    /// One bit a slot: set if free.
    free: u64,
    /// Slots to be submitted again: one bit each.
    again: u64,
    error: Option<(usize, ramekin_base::Error)>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    op: usize,
    /// Bytes of the operation that are in.
    done: usize,
}

/// Ends the process if dropped: a request may be in flight into memory about to be freed.
struct InFlight;

impl Drop for InFlight {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<'o, 'b> Batch<'o, 'b> {
    fn new(ops: &'o mut [ReadOp<'b>]) -> Self {
        const { assert!(ENTRIES == u64::BITS) }
        Self { ops, next: 0, slots: [Slot::default(); ENTRIES as usize], free: u64::MAX, again: 0, error: None }
    }

    fn run(mut self, ring: &mut IoUring) -> Result<()> {
        for op in self.ops.iter() {
            op.file.local()?;
        }
        let in_flight = InFlight;
        loop {
            self.fill(&mut ring.submission());
            let under_way = self.free.count_zeros() as usize;
            if under_way == 0 {
                break;
            }
            let more = self.error.is_none() && self.next < self.ops.len();
            let wanted = if more { under_way.min(REFILL_AT) } else { under_way };
            match ring.submit_and_wait(wanted) {
                Ok(_) => {}
                Err(error) if retryable(&error) => {}
                Err(error) => {
                    eprintln!("io_uring can neither submit nor wait ({error}); ending the process");
                    std::process::abort();
                }
            }
            self.reap(&mut ring.completion());
        }
        std::mem::forget(in_flight);
        self.error.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Puts what is to be tried again, then new operations, into free slots of the submission queue.
    fn fill(&mut self, queue: &mut squeue::SubmissionQueue<'_>) {
        let mut again = std::mem::take(&mut self.again);
        while again != 0 {
            self.push(queue, again.trailing_zeros() as usize);
            again &= again - 1;
        }
        while self.error.is_none() && self.next < self.ops.len() && self.free != 0 {
            let slot = self.free.trailing_zeros() as usize;
            self.free &= self.free - 1;
            self.slots[slot] = Slot { op: self.next, done: 0 };
            self.next += 1;
            self.push(queue, slot);
        }
    }

    fn push(&mut self, queue: &mut squeue::SubmissionQueue<'_>, number: usize) {
        let slot = self.slots[number];
        let op = &mut self.ops[slot.op];
        let rest = &mut op.buf[slot.done..];
        let Ok(file) = op.file.local() else { return self.finish(number, None) };
        let len = rest.len().min(1 << 30) as u32;
        let entry = opcode::Read::new(types::Fd(file.fd().as_raw_fd()), rest.as_mut_ptr(), len)
            .offset(op.at + slot.done as u64)
            .build()
            .user_data(number as u64);
        // SAFETY: the buffer and the descriptor are borrowed by `ops`, and `run` does not return
        // before the completion of every entry was reaped.
        if unsafe { queue.push(&entry) }.is_err() {
            // Cannot be: the queue has a place for every slot. The next round would try again.
            self.again |= 1 << number;
        }
    }

    fn reap(&mut self, queue: &mut io_uring::cqueue::CompletionQueue<'_>) {
        for entry in queue {
            let number = entry.user_data() as usize % self.slots.len();
            let slot = &mut self.slots[number];
            let op = &self.ops[slot.op];
            let wanted = op.buf.len();
            match entry.result() {
                result if result < 0 => match Errno::from_raw_os_error(-result) {
                    Errno::INTR | Errno::AGAIN => self.again |= 1 << number,
                    error => {
                        let error = errno(error, "read", op.file.path());
                        self.finish(number, Some(error));
                    }
                },
                more => {
                    slot.done += more as usize;
                    let done = slot.done;
                    if done >= wanted {
                        self.finish(number, None);
                    } else if more == 0 || more % 512 != 0 {
                        // An odd count can only be the end of the file.
                        let error = short_read(op.file, op.at, wanted, done);
                        self.finish(number, Some(error));
                    } else {
                        self.again |= 1 << number;
                    }
                }
            }
        }
    }

    /// Frees a slot. Of several errors the one of the first operation is kept, whatever came in first.
    fn finish(&mut self, number: usize, error: Option<ramekin_base::Error>) {
        self.free |= 1 << number;
        let op = self.slots[number].op;
        if let Some(error) = error
            && self.error.as_ref().is_none_or(|(first, _)| op < *first)
        {
            self.error = Some((op, error));
        }
    }
}

fn retryable(error: &std::io::Error) -> bool {
    // EBUSY: completions must be reaped first, which the caller does next.
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
