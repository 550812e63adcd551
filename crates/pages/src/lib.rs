//! Floor 3: immutable page files, read through one bounded cache.
//!
//! ```text
//!   PageWriter ──► file:  sections │ checksums │ directory │ footer        format.rs, writer.rs
//!                    │
//!                    ▼ open: tables only
//!   PageFile ──► Section ─┬─ resident()  a guard, then a plain slice        section.rs, keep.rs, load.rs
//!                         ├─ fetch       name pages, one batch, pinned      fetch.rs, fill.rs, word.rs
//!                         └─ stream      in order, past the cache           stream.rs
//!                                │
//!   Pages: one region of addresses (space.rs), one purse (purse.rs), one clock (evict.rs)
//! ```
//!
//! Every file has a range of addresses in which its pages lie one after the other, in memory or not
//! (the vmcache idea: Leis et al., SIGMOD 2023). Bringing a page in is a read into its place; evicting
//! it is giving that place back to the kernel. So what is wholly in memory is a plain slice, and what
//! is in memory at all is known page by page and paid for.

mod cache;
mod evict;
mod fetch;
mod file;
mod fill;
pub mod format;
mod frames;
mod gate;
mod keep;
mod load;
#[cfg(test)]
mod model;
mod priority;
mod purse;
mod ranges;
mod region;
mod section;
mod space;
mod stream;
mod word;
mod writer;

pub use cache::{CacheStats, Pages, Trip};
pub use fetch::{Fetch, Pinned, Want};
pub use file::PageFile;
pub use priority::Priority;
pub use purse::{LEAST_CACHED, PAGE_COST, RESERVE, resident_cost};
pub use section::{Resident, Section};
pub use stream::Stream;
pub use writer::PageWriter;
