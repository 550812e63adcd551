//! Floor 6: collections of points with vectors, in plain Rust types. Knows no HTTP and no protobuf.
//!
//! ```text
//!   Store ─► Writer ─► log ─► memtable ─flush─► segment ─merge─► segment
//!     │                          └──────┬─────────┘
//!     └─► search, read ◄───────────── View
//! ```
//!
//! Folders, each of which knows only those before it:
//!
//! ```text
//!   api ─► payload ─► memtable ─► segment ─► collection ─► query ─► state ─► inner ─► residency ─► background ─► write ─► store
//! ```
//!
//! Locks are taken in this order, and builds with debug assertions panic where one is not (`base::lock`). Only those that are
//! marked are held across reads and writes of the disk, or while memory is waited for.
//!
//! ```text
//!   idle.waking *   reserves are taken back        catalog             names, numbers, aliases
//!   idle.planning * sections are chosen, loaded    collection.change   a batch is applied, a view is published
//!   idle.merging *  a merge has its memory         memtable            points of a memtable
//!   idle.state      idle or not                    segment.patches, segment.fields
//!   manifest *      what counts on disk            pages: memory_waiter *, ring, quota
//!   aliasing *      aliases change, or all are     memory: the tree of accounts
//!                   written
//! ```

#![forbid(unsafe_code)]

pub mod api;
mod background;
mod collection;
mod info;
mod inner;
mod lock;
mod memtable;
mod payload;
mod query;
mod recovery;
mod residency;
mod segment;
mod state;
mod store;
mod write;

pub use api::check::check_name;
pub use api::op::record_again;
pub use api::*;
pub use query::env::Plant;
pub use ramekin_vecmath::Datatype;
pub use residency::capacity::{CapacityPlan, Expected, FixedOverhead, PlanLine, Searched, capacity_plan};
pub use state::options::StoreOptions;
pub use state::request::Done;
pub use state::timings::Timings;
pub use store::{Names, Store, THREADS};
