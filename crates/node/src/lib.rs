//! Floor 7: a node opens the stores of one data folder on one budget and runs their threads.
//!
//! ```text
//!   Node::open(data, memory)
//!      disk ── lock ── budget ── base ── pages ── store ── readers ── watch
//!              LOCK    budget.json        one cache         8 threads  1 thread, each second:
//!                                                                      ledger, lost folder
//!   other stores beside that of vectors: `Node::host`; the arbiter gives each its share of the budget    arbiter.rs · shares.rs
//!   close(): readers drain, the store flushes, threads join, the lock is given up
//! ```
//!
//! A node knows no door: what a door needs of it is handed over by the server, as plain values and
//! closures. It holds no data of its own but `budget.json`, the budget that `PUT /memory` keeps.

#![forbid(unsafe_code)]

mod arbiter;
mod base;
mod budget;
mod layout;
mod node;
mod readers;
mod shares;
mod watch;

pub use arbiter::{IDLE_SHARE, Tenant};
pub use base::{BASE_FORMULA, BaseCounts, base_bytes};
pub use budget::{budget_margin, default_budget, least_of_all};
pub use layout::vectors_folder;
pub use node::{Folder, Node, NodeOptions, Place, base_of};
pub use readers::{READER_STACK_BYTES, READERS, Readers};
pub use shares::Wants;
pub use watch::Fault;
