//! Floor 6: keys with all their versions: etcd's data model, on the engine's trees.
//!
//! ```text
//!   put, delete, txn ─► stage: one unit, one revision        stage.rs · txn.rs · large.rs
//!
//!     heads     key ─► its newest version                    weights count the keys that are there
//!     history   key, ~revision ─► a version that is no more  and the revision in which it ended
//!     values    key, ~revision ─► a value of nearly 1 KiB     written once, wherever its version stands
//!     changes   revision, number ─► key, put or delete       what watches read
//!     meta      the revision, leases, keys of leases, ...
//!
//!   range at a revision, count ─► a pinned view              reads.rs · range.rs
//!   watch from a revision ─► changes, then the versions      watch.rs
//!   all versions as they were written ─► sorted               stored.rs
//!   versions of another store ─► sorted, as one unit         import.rs
//!   what a store to be will take, by formulas                 capacity.rs
//! ```
//!
//! A version is alive at revision R if it was written at R or before and had not ended by then: that is all a read must know, so a
//! version may be dropped, by whichever merge meets it, once its end is compacted.
//!
//! Nothing is in memory for good but the deadlines of leases.

#![forbid(unsafe_code)]

mod api;
mod capacity;
mod import;
mod keys;
mod large;
mod lease;
mod range;
mod reads;
mod record;
mod stage;
mod stored;
mod txn;
mod versions;
mod watch;

pub use api::{
    Asked, Command, Compare, CompareResult, CompareTarget, DeleteRange, Deleted, Guard, KeyRange, KeyValue, Op,
    OpReply, Order, Put, Range, RangeReply, Reply, SortBy, Txn, errors,
};
pub use capacity::{Capacity, Expected, REQUEST_MAX};
pub use import::{EachIncoming, EachOwn, Imported, Incoming, Source};
pub use lease::{Lease, LeaseLeft};
pub use ramekin_engine::ReadView;
pub use stage::{TTL_LEAST, Trees};
pub use stored::{EachStored, Stored, Wanted};
pub use versions::{EachShown, Held, Options, Own, Versions, unexpected};
pub use watch::{EVENT_BYTES, Event, Events};

/// Decodes whatever stands there as a record of each kind. For fuzzing: it must neither panic nor read outside of the bytes.
pub fn decode_anything(bytes: &[u8]) {
    _ = record::Head::decode(bytes);
    _ = record::Dead::decode(bytes);
    _ = record::Change::decode(bytes);
    _ = keys::of_history(bytes);
}
