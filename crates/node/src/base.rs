//! What the process costs before it holds any data: the `base` line of the ledger.
//!
//! ```text
//!   base = code + threads x (stack + kernel's own) + rings x ring + allocator + libraries
//! ```
//!
//! Counts come from the process as it is built and started; the constants were measured once, on the
//! release build (`/proc/PID/smaps` and the cgroup's own numbers), and are never measured at run time:
//! a book that is written from the scales cannot show what is missing.

/// Bytes of stack that a thread of ours touches; most of its mapping is never touched.
const STACK_TOUCHED: u64 = 24 << 10;
/// The kernel's own for a thread: its stack (16 KiB), its task and its page of page tables.
const THREAD_KERNEL: u64 = 28 << 10;
/// A ring of 64 entries with its two queues.
const RING: u64 = 16 << 10;
/// The allocator's arenas, thread caches and what is rounded up in them. What it keeps beyond that the watch books.
pub(crate) const ALLOCATOR: u64 = 1 << 20;
/// The C library and the loader, where others have read them before us, and the kernel's own for a process.
const SHARED_LIBRARIES: u64 = 512 << 10;
/// The same where the resident set is the charge: it counts what is shared as ours.
const RESIDENT_LIBRARIES: u64 = 9 << 18;

/// Share of the code that a server in use has mapped, per cent: 42 fresh, 70 after all kinds of requests. What only the
/// start needed is given back, and so is what the kernel reads ahead.
const CODE_TOUCHED: u64 = 60;

/// In words, for the ledger.
pub const BASE_FORMULA: &str = "code x 0.6 + threads x (stack + kernel) + rings x ring + allocator + libraries";

/// What the formula counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseCounts {
    /// Bytes of the binary that are mapped: code and constants.
    pub code_bytes: u64,
    /// Threads of the process, all kinds.
    pub threads: u64,
    /// Threads that read from the disk, each with a ring of its own.
    pub rings: u64,
    /// The charge is a cgroup's; else it is the resident set.
    pub in_cgroup: bool,
}

/// The formula.
pub fn base_bytes(counts: BaseCounts) -> u64 {
    counts.code_bytes * CODE_TOUCHED / 100
        + counts.threads * (STACK_TOUCHED + THREAD_KERNEL)
        + counts.rings * RING
        + ALLOCATOR
        + if counts.in_cgroup { SHARED_LIBRARIES } else { RESIDENT_LIBRARIES }
}
