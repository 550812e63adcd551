//! Floor 0: what every other floor speaks of.
//!
//! ```text
//!   size    "256MiB" <-> bytes            id      a point's id: u64 or UUID
//!   error   one error, a coarse kind      clock   time, handed in
//!   limits  every limit, in one table     rng     chance, from a seed
//!   lane    where a request waits for a thread          packed  numbers of few bits
//!   cancel  whether a piece of work is still wanted      lock    locks in one order, and the disk
//!   few     a list of a few, in place     histogram   durations, counted by how long they were
//!   varint  numbers of as many bytes as they need        signal  events that threads wait for
//!   health  what is wrong, until it works again
//! ```
//!
//! Nothing here opens a file, starts a thread or reads a clock by itself, but for [`supervise::Threads`], under which all
//! threads of ours run, and [`clock::SystemClock`], which is the one place where the real time enters.

#![forbid(unsafe_code)]

pub mod cancel;
pub mod clock;
pub mod error;
pub mod few;
pub mod health;
pub mod histogram;
pub mod id;
pub mod lane;
pub mod limits;
pub mod lock;
pub mod nonblocking;
pub mod packed;
pub mod rng;
pub mod signal;
pub mod size;
pub mod supervise;
pub mod varint;

pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Error, Kind, Result, cut, excerpt, message};
pub use few::Few;
pub use histogram::Histogram;
pub use id::PointId;
pub use lane::Lane;
pub use packed::{Packed, Packer};
pub use rng::Rng;
pub use signal::Signal;
pub use size::Size;
