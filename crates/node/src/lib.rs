//! Floor 7: a node opens the stores of one data folder on one budget and runs their threads.
//!
//! ```text
//!   Node::open(data, memory)
//!      disk ── lock ── budget ── base ── pages ── store ── readers ── watch
//!              LOCK    budget.json        one cache         8 threads  1 thread, each second:
//!                                                                      ledger, lost folder
//!   close(): readers drain, the store flushes, threads join, the lock is given up
//! ```
//!
//! A node knows no door: what a door needs of it is handed over by the server, as plain values and
//! closures. It holds no data of its own but `budget.json`, the budget that `PUT /memory` keeps.

#![forbid(unsafe_code)]

mod base;
mod budget;
mod layout;
mod node;
mod readers;
mod watch;

pub use base::{BASE_FORMULA, BaseCounts, base_bytes};
pub use budget::{budget_margin, default_budget, least_of_all};
pub use layout::vectors_folder;
pub use node::{Folder, Node, NodeOptions, base_of};
pub use readers::{READER_STACK_BYTES, READERS, Readers};
pub use watch::Fault;
