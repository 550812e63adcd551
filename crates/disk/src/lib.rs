//! Floor 2: the disk. No crate but this one opens a file.
//!
//! ```text
//!            Disk: open · read (a batch) · write · sync · list · rename · make_folder · len · set_len
//!              │
//!     ┌────────┴──────────┐
//!   Local               sim::SimDisk      in memory, loses what was not synced, driven by a seed
//!     │ O_DIRECT, or buffered and dropped behind
//!     ├─ Engine::Uring    a batch is one submission on this thread's ring
//!     ├─ Engine::Pread    where the kernel forbids io_uring
//!     └─ Engine::Mmap     a baseline to measure against
//! ```
//!
//! Data files are read and written past the kernel's page cache, so that the kernel keeps no second
//! copy which the budget does not see. Offsets, lengths and addresses are therefore multiples of
//! [`Disk::block`]; an [`Aligned`] buffer fits every disk.

mod aligned;
mod disk;
mod failed;
mod file;
mod local;
pub mod sim;
mod spill;

pub use aligned::{ALIGN, Aligned};
pub use disk::{Counters, Disk, Engine, Entry, Open, ReadOp, Space, Sync};
pub use failed::Failed;
pub use file::File;
pub use local::Local;
pub use local::lock::FolderLock;
pub use local::probe::probe;
pub use local::tail::tail;
pub use local::uring::RING_BYTES;
pub use spill::{SpillFile, SpillReader};
