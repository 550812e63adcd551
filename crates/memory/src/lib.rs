//! Floor 1: the budget. Bytes are reserved before they are used and given back on drop.
//!
//! ```text
//!   Budget 128 MiB ── Account "ramekin"
//!                        ├─ base                 code, stacks, allocator: a formula
//!                        ├─ pages                resident pages; reclaimed first
//!                        ├─ vectors
//!                        │    ├─ growing         bounded by its own limit
//!                        │    └─ build           a minimum reservation: taken for good
//!                        └─ door/http            bodies and answers
//! ```
//!
//! A child's bytes count in every account above it. An account may have a *limit* (never more) and a
//! *minimum reservation* (taken from the parent at once and for good, so that reserving below it never fails).

#![forbid(unsafe_code)]

mod account;
mod booked;
mod booked_map;
mod budget;
mod held;
mod kernel;
mod ledger;
mod pressure;
mod reservation;
mod tree;

pub use account::Account;
pub use booked::{BookedSlice, BookedVec, SharedReservation};
pub use booked_map::BookedMap;
pub use budget::Budget;
pub use held::{bytes as held_by_job, holding};
pub use kernel::{
    Allocator, Charge, allocator_at_once, allocator_decay, allocator_purge, allocator_resident, cgroup_limit, charge,
    machine_memory, set_allocator,
};
pub use ledger::{Ledger, LedgerEntry};
pub use pressure::{Pressure, Reclaim, ReclaimOrder};
pub use reservation::Reservation;
