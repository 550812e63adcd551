//! Floor 6: collections of points with vectors, in plain Rust types. Knows no HTTP and no protobuf.
//!
//! ```text
//!   Store ─► Writer ─► log ─► growing ─seal─► segment ─merge─► segment
//!     │                          └──────┬────────┘
//!     └─► search, read ◄───────────── View
//! ```
//!
//! `store` is the front; `collection` is what a moment looks like; `writer` and `background` are the
//! only things that change it. `op` is what the log holds, `segment` and `manifest` what files hold.

pub mod api;
mod background;
mod bits;
mod catalog;
mod check;
mod codec;
mod collection;
mod filter;
mod growing;
mod manifest;
mod merge;
mod op;
mod ordinals;
mod payload;
mod policy;
mod queue;
mod read;
mod residency;
mod rewrite;
mod seal;
mod search;
mod segment;
mod segment_write;
mod shared;
mod store;
mod top;
mod writer;

pub use api::*;
pub use op::check_record;
pub use store::{Done, Store, StoreOptions};
