//! Floor 8: the stores on a simulated disk and clock, driven by a seed, checked against a plain model.
//!
//! ```text
//!   seed ─► life 1: open · random writes, reads, seals, merges · the plug is pulled
//!           life 2: open · what was acknowledged must be there ...
//!           ...
//!   faults of the disk: lost and torn unsynced writes and names (always), failed reads, writes and syncs, flipped
//!   bits, misdirected and lost writes, a full disk, slow calls, panics in the middle of a call, an end of power at
//!   any operation, also while the store recovers
//! ```
//!
//! One thread, no clock but the simulated one: the same seed is the same run, to the last byte.

#![forbid(unsafe_code)]

mod lot;
mod pairs;
mod run;
mod vectors;
mod versions;

pub use pairs::{FAULTS, Fault, Pairs};
pub use run::{Failure, Outcome};

/// A store that seeds are run with, by its name.
pub type Kind = (&'static str, fn(u64) -> Result<Outcome, Failure>);

pub const KINDS: &[Kind] = &[("vectors", run::run::<vectors::Vectors>), ("versions", run::run::<versions::Store>)];
