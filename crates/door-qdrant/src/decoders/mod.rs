//! Bodies of requests, decoded once into the types of the store.

pub(crate) mod batch;
pub(crate) mod collection_body;
pub(crate) mod listing;
pub(crate) mod placement;
pub(crate) mod search;
pub(crate) mod sections;
pub(crate) mod selection;
pub(crate) mod text_index;
