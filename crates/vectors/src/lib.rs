//! Floor 6: collections of points with vectors, in plain Rust types. Knows no HTTP and no protobuf.
//!
//! ```text
//!   Store ─► Writer ─► log ─► memtable ─flush─► segment ─merge─► segment
//!     │                          └──────┬─────────┘
//!     └─► search, read ◄───────────── View
//! ```
//!
//! `store` is the front; `collection` is what a moment looks like; `writer` and `background` are the
//! only things that change it. `op` is what the log holds, `segment`, `overlay` and `manifest` what files
//! hold. `patch_tree` is what a flushed point's payload became, `patch_compaction` how that gets into files.
//!
//! Locks are taken in this order, and builds with debug assertions panic where one is not (`base::lock`). Only those that are
//! marked are held across reads and writes of the disk, or while memory is waited for.
//!
//! ```text
//!   idle.waking *   reserves are taken back        catalog             names, numbers, aliases
//!   idle.planning * sections are chosen, loaded    still *             a read that others wait for
//!   idle.merging *  a merge has its memory         collection.change   a batch is applied, a view is swapped
//!   idle.state      idle or not                    memtable            points of a memtable
//!   manifest *      what counts on disk            segment.patches, segment.fields
//!   aliasing *      aliases change, or all are     pages: memory_waiter *, ring, quota
//!                   written                        memory: the tree of accounts
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
mod check;
mod codec;
mod collection;
mod conditional;
mod consistent;
mod count;
mod facet;
mod field_index;
mod filter_cache;
mod filter_probe;
mod flush;
mod full;
mod health;
mod idle;
mod index_filter;
mod lock;
mod manifest;
mod memtable;
mod memtable_fields;
mod merge;
mod op;
mod ordered;
mod ordinals;
mod overlay;
mod patch_compaction;
mod patch_tree;
mod payload;
mod payload_filter;
mod payload_write;
mod plan;
mod policy;
mod queue;
mod read;
mod recall_monitor;
mod recovery;
mod request;
mod residency;
mod residency_plan;
mod rewrite;
mod scratches;
mod search;
mod segment;
mod segment_write;
mod store;
mod store_inner;
mod texts;
mod timings;
mod top;
mod usage;
mod writer;

pub use api::*;
pub use check::check_name;
pub use op::record_again;
pub use plan::{CapacityPlan, Expected, FixedOverhead, PlanLine, Searched, capacity_plan};
pub use ramekin_vecmath::Datatype;
pub use request::Done;
pub use store::{Names, Store, StoreOptions, THREADS};
pub use store_inner::Plant;
pub use timings::Timings;
