//! What each route does: a body decoded, a call of the store, a response.

pub(crate) mod aliases;
pub(crate) mod collection_info;
pub(crate) mod collections;
pub(crate) mod indexes;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod points;
pub(crate) mod query;
pub(crate) mod service;
pub(crate) mod writes;
