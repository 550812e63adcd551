//! Payload fields: what a filter asks of a point, and how a point answers.
//!
//! ```text
//!   filter ── must, should, must_not, min_should ──► conditions ──► a path and tests of the values below it
//!                                                                       │
//!   payload (JSON) ────────────────── path: a.b[].c ────────────────────┘ any value that passes is enough
//! ```
//!
//! Knows no wire and no store: a door decodes filters into these types, a store shows points to them.

mod area;
mod bitmap;
mod check;
pub mod column;
mod datetime;
mod evaluate;
mod filter;
mod geo;
mod index;
pub mod key;
mod memtable;
mod order;
pub mod parts;
mod path;
mod predicate;
mod schema;
mod text;
mod tokens;
mod words;

pub use bitmap::{Bitmap, Bitmaps};
pub use check::{Point, Subject};
pub use datetime::micros;
pub use evaluate::{Evaluation, FieldRows, Segment, Verdict};
pub use filter::{
    Condition, FieldCondition, Filter, IndexedCondition, Match, MinShould, Prepared, Scalar, Scalars, SchemaOf, Span,
    Test,
};
pub use geo::{GeoBox, GeoPoint, GeoPolygon, GeoRadius};
pub use index::{EachPayload, Index, Meta, Payloads, Work, build, expected_bytes};
pub use memtable::{FieldMemtable, FieldValues, Stepped};
pub use order::{Order, OrderValue, Start};
pub use path::Path;
pub use predicate::{Answerable, Flagged, KeyRange, ValuePredicate};
pub use schema::Schema;
pub use tokens::{Kind as TokenizerKind, Tokenizer};
pub use words::{Language, Stem, StopWords};
