//! Floor 6: collections of points with vectors, in plain Rust types. Knows no HTTP and no protobuf.

pub mod api;
mod store;

pub use api::*;
pub use store::Store;
