//! Payload fields: what a filter asks of a point, and how a point answers.
//!
//! ```text
//!   filter ── must, should, must_not, min_should ──► conditions ──► a path and tests of the values below it
//!                                                                       │
//!   payload (JSON) ────────────────── path: a.b[].c ────────────────────┘ any value that passes is enough
//! ```
//!
//! Knows no wire and no store: a door decodes filters into these types, a store shows points to them.

mod check;
pub mod column;
mod datetime;
mod filter;
mod geo;
pub mod parts;
mod path;
mod text;

pub use check::{Point, Subject};
pub use datetime::micros;
pub use filter::{Condition, FieldCondition, Filter, Match, MinShould, Scalar, Scalars, Span, Test};
pub use geo::{GeoBox, GeoPoint, GeoPolygon, GeoRadius};
pub use path::Path;
