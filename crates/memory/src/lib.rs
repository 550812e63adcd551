//! Floor 1: the budget. Bytes are reserved before they are used and given back on drop.
//!
//! ```text
//!   Budget 128 MiB ── Account "ramekin"
//!                        ├─ base                 code, stacks, allocator: a formula
//!                        ├─ pages                resident pages; yields first
//!                        ├─ vectors
//!                        │    ├─ growing         bounded by its own limit
//!                        │    └─ build           a floor: reserved for good
//!                        └─ door/http            bodies and answers
//! ```
//!
//! A child's bytes count in every account above it. An account may have a *limit* (never more) and a
//! *floor* (taken from the parent at once and for good, so that its use can never fail below it).

#![forbid(unsafe_code)]

mod account;
mod booked;
mod booked_map;
mod held;
mod kernel;
mod ledger;
mod pressure;
mod reservation;
mod tree;

pub use account::{Account, Budget};
pub use booked::{BookedSlice, BookedVec, Room};
pub use booked_map::BookedMap;
pub use held::holding;
pub use kernel::{
    Allocator, Charge, allocator_at_once, allocator_decay, allocator_purge, allocator_resident, cgroup_limit, charge,
    machine_memory, set_allocator,
};
pub use ledger::{Ledger, Line};
pub use pressure::{Pressure, Yield, YieldOrder};
pub use reservation::Reservation;
