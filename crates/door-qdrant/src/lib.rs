//! Floor 7: Qdrant's REST API over the plain store.
//!
//! ```text
//!   TcpListener ─► connections ─► routes ─► keys ─► body (admission) ─► decode ─► store ─► answer
//!                  booked         one table          booked             wire/     api.rs    booked
//! ```
//!
//! No wire type passes below this crate and no plain type above the store is converted twice. Everything
//! that a client can make large is booked on the account `door/http` before it exists.
//!
//! Reading order: `routes` (what there is), `door` (the way of a request), `wire/json` (how a body is read),
//! `batch` (an upload), `answer` (what goes back).

#![forbid(unsafe_code)]

mod admission;
mod aliases;
mod answer;
mod batch;
mod body;
mod call;
mod collection_body;
mod collection_info;
mod collections;
mod connections;
mod cors;
mod counters;
pub mod decode;
mod decoding;
mod door;
mod errors;
mod guests;
mod heard;
mod host;
mod indexes;
mod keys;
pub mod limits;
mod listing;
mod memory;
mod options;
mod pace;
mod pack;
mod patient;
mod pieces;
mod placement;
mod plan;
mod points;
mod query;
mod routes;
mod search;
mod sections;
mod selection;
mod service;
mod socket;
mod text_index;
mod unpack;
mod wire;
mod writes;

pub use connections::serve;
pub use door::Door;
pub use guests::places;
pub use host::{Host, Job, Planner};
pub use keys::{Access, Keys};
pub use plan::Wanted;
pub use routes::{ROUTES, Route};

use ramekin_base::Result;

/// Opens the door of a process: takes the floors of its accounts and lays out its routes.
pub fn router(host: Host, keys: Keys) -> Result<Door> {
    Door::open(host, keys)
}
