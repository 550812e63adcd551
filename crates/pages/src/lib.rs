//! Floor 3: immutable page files, read through one bounded cache.
//!
//! ```text
//!   PageWriter ──► file:  sections │ checksums │ directory │ footer        format.rs, writer.rs
//!                    │
//!                    ▼ open: tables only
//!   PageFile ──► Section ─┬─ resident()  a guard, then a plain slice        section.rs, latch.rs, load.rs
//!                         ├─ fetch       name pages, one batch, pinned      fetch.rs, fill.rs, state.rs
//!                         └─ stream      in order, past the cache           stream.rs
//!                                │
//!   Pages: one region of addresses (space.rs), one quota (quota.rs), one clock (evict.rs)
//! ```
//!
//! Every file has a range of addresses in which its pages lie one after the other, in memory or not
//! (the vmcache idea: Leis et al., SIGMOD 2023). Bringing a page in is a read into its place; evicting
//! it is giving that place back to the kernel. So what is wholly in memory is a plain slice, and what
//! is in memory at all is known page by page and paid for.

mod cache;
pub mod format;
mod pages;
mod residency;

pub use cache::fetch::{Fetch, FetchTicket, Pinned};
pub use cache::file::PageFile;
pub use cache::section::{Resident, Section};
pub use cache::stream::Stream;
pub use cache::{CacheStats, FetchStats};
pub use format::priority::Priority;
pub use format::writer::PageWriter;
pub use pages::Pages;
pub use residency::quota::{LEAST_CACHED, PAGE_COST, RESERVE, resident_cost};
