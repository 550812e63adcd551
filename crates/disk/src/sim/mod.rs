//! A disk in memory that loses what was not synced.

/// A file of the simulated disk.
pub(crate) struct SimFile {}
