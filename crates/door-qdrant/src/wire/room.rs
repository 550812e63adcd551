//! The memory that a decoder may fill, and the lists that it fills.

pub use ramekin_memory::{BookedVec, Room};
