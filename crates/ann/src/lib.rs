//! Floor 5: the cluster index of one vector name of one segment.
//!
//! ```text
//!   Source ──► build ─┬─ sample ──► train ──► centroids                      sample, train, tiles, compact
//!                     ├─ assign ──► parts on disk, by cluster                cut, parts, spool
//!                     └─ encode ──► codes of 1, 3 and 6 bits, vectors        encode, trial (the recall curve)
//!                            │
//!                            ▼  sections of a page file                      layout, meta, originals
//!   Index ─► search ─┬─ coarse    which lists are near                       coarse
//!                    ├─ scan      1-bit codes by their bound, then wider     scan
//!                    └─ rescore   the best by their originals                rescore
//!         ─► exact, vectors, stream, check
//! ```
//!
//! A query reads runs of neighbouring bytes at every step, so the same index serves from memory and from disk, and
//! whichever sections are resident are used as they are. Nothing here knows points, payloads or deletes: a filter
//! is asked by row.

mod batch;
mod buffer;
mod build;
mod check;
mod coarse;
mod compact;
mod curve;
mod cut;
mod direct;
mod encode;
mod exact;
mod index;
mod layout;
mod meta;
mod originals;
mod parts;
mod plan;
mod rescore;
mod sample;
mod scan;
mod scratch;
mod search;
mod source;
mod stream;
mod tiles;
mod train;
mod trial;
mod widen;
mod work;

pub use build::build;
pub use curve::{Curve, Setting, Step, aim, recall_of_ef};
pub use index::Index;
pub use layout::{Part, TAGS, WIDTHS};
pub use meta::IndexMeta;
pub use plan::expected_sections;
pub use scratch::Scratch;
pub use search::{Hit, Positions, Profile, Search, SearchParams};
pub use source::{BATCH_ROWS, SliceSource, Source, batch_rows};
pub use stream::IndexSource;
pub use work::{BuildOptions, Phase, Progress, Work};
