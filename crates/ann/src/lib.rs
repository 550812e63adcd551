//! Floor 5: the cluster index of one vector name of one segment.
//!
//! ```text
//!   Source ──► build ─┬─ sample ──► train ──► centroids                      sample, train, tiles, compact
//!                     ├─ assign ──► partitions on disk, by cluster           partition, partitions
//!                     └─ encode ──► codes of 1, 3 and 6 bits, vectors        encode, calibrate (the recall curve)
//!                            │
//!                            ▼  sections of a page file                      layout, meta, full_vectors
//!   Index ─► search ─┬─ coarse    which lists are near                       coarse
//!                    ├─ scan      1-bit codes by their bound, then wider     scan
//!                    └─ rescore   the best by their full vectors           rescore
//!         ─► exact, vectors, stream, check
//! ```
//!
//! A query reads runs of neighbouring bytes at every step, so the same index serves from memory and from disk, and
//! whichever sections are resident are used as they are. Nothing here knows points, payloads or deletes: a filter
//! is asked by row.

mod build;
mod check;
mod format;
mod search;
mod source;
mod stream;

pub use build::build;
pub use build::plan::expected_sections;
pub use build::work::{BuildOptions, Phase, Progress, Work};
pub use format::curve::{Curve, SearchEffort, Step, recall_of_ef, with_safety_margin};
pub use format::index::Index;
pub use format::layout::{Part, TAGS, WIDTHS};
pub use format::meta::IndexMeta;
pub use search::Search;
pub use search::request::{ClusterOrder, Hit, Profile, SearchParams};
pub use search::scratch::Scratch;
pub use source::{BATCH_ROWS, SliceSource, Source, batch_rows};
pub use stream::IndexSource;
