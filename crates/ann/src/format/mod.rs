//! How an index lies in its sections, and what is known of it without reading them.

pub(crate) mod buffer;
pub(crate) mod coarse;
pub(crate) mod compact;
pub(crate) mod curve;
pub(crate) mod encode;
pub(crate) mod full_vectors;
pub(crate) mod index;
pub(crate) mod layout;
pub(crate) mod meta;
