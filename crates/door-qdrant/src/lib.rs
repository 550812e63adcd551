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
mod body;
mod connections;
mod cors;
pub mod decode;
mod decoders;
mod door;
mod errors;
mod handlers;
mod lanes;
pub mod limits;
mod request;
mod response;
mod routes;
mod wire;

pub use admission::guests::places;
pub use connections::serve;
pub use door::{Door, min_reservations};
pub use request::call::Route;
pub use request::host::{Host, Job, Planner};
pub use request::host::{Wanted, WantedVersions};
pub use request::keys::{Access, Keys};
pub use routes::ROUTES;

use ramekin_base::Result;

/// Opens the door of a process: takes the minimum reservations of its accounts and lays out its routes.
pub fn router(host: Host, keys: Keys) -> Result<Door> {
    Door::open(host, keys)
}
