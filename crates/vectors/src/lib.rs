//! Floor 6: collections of points with vectors, in plain Rust types. Knows no HTTP and no protobuf.
//!
//! ```text
//!   Store ─► Writer ─► log ─► growing ─seal─► segment ─merge─► segment
//!     │                          └──────┬────────┘
//!     └─► search, read ◄───────────── View
//! ```
//!
//! `store` is the front; `collection` is what a moment looks like; `writer` and `background` are the
//! only things that change it. `op` is what the log holds, `segment`, `overlay` and `manifest` what files
//! hold. `changes` is what a sealed point's payload became, `fold` how that gets into files.
//!
//! Locks are taken in this order, and builds with debug assertions panic where one is not (`base::lock`). Only those that are
//! marked are held across reads and writes of the disk, or while memory is waited for.
//!
//! ```text
//!   rest.waking *   floors are taken back          collection.change   a batch is applied, a view is swapped
//!   rest.state      awake or not                   growing             points of a part
//!   manifest *      what counts on disk            segment.changes, segment.fields
//!   still *         a read that others wait for    pages: hungry *, ring, purse; memory: the tree of accounts
//! ```

#![forbid(unsafe_code)]

pub mod api;
mod append;
mod background;
mod bits;
mod bloom;
mod catalog;
mod catalog_cost;
mod change;
mod changes;
mod check;
mod codec;
mod collection;
mod conditional;
mod count;
mod facet;
mod field_index;
mod fold;
mod full;
mod growing;
mod growing_fields;
mod health;
mod lock;
mod manifest;
mod matching;
mod merge;
mod op;
mod ordered;
mod ordinals;
mod overlay;
mod passing;
mod payload;
mod payload_write;
mod plan;
mod policy;
mod queue;
mod read;
mod remembered;
mod reservoir;
mod residency;
mod rest;
mod rewrite;
mod scratches;
mod seal;
mod search;
mod segment;
mod segment_write;
mod share;
mod shared;
mod store;
mod texts;
mod top;
mod usage;
mod writer;

pub use api::*;
pub use check::check_name;
pub use op::record_again;
pub use plan::{Beside, Expected, Line, Outlook, Searched, outlook};
pub use ramekin_vecmath::Datatype;
pub use shared::Plant;
pub use store::{Done, Names, Store, StoreOptions};
