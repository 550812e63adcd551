//! Floor 0: what every other floor speaks of.
//!
//! ```text
//!   size    "256MiB" <-> bytes            id      a point's id: u64 or UUID
//!   error   one error, a coarse kind      clock   time, handed in
//!   limits  every limit, in one table     rng     chance, from a seed
//!   lane    where a request waits for a thread          packed  numbers of few bits
//! ```
//!
//! Nothing here opens a file, starts a thread or reads a clock by itself, but for
//! [`clock::SystemClock`], which is the one place where the real time enters.

pub mod clock;
pub mod error;
pub mod id;
pub mod lane;
pub mod limits;
pub mod packed;
pub mod rng;
pub mod size;

pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Error, Kind, Result};
pub use id::PointId;
pub use lane::Lane;
pub use packed::{Packed, Packer};
pub use rng::Rng;
pub use size::Size;
