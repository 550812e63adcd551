//! Which pages are in memory: their addresses, their states, and the bytes that they may take.

pub(crate) mod bypass;
pub(crate) mod event_count;
pub(crate) mod latch;
#[cfg(test)]
mod model;
pub(crate) mod quota;
pub(crate) mod ranges;
pub(crate) mod region;
pub(crate) mod space;
pub(crate) mod state;
