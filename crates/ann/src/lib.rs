//! Floor 5: the cluster index of one vector name of one segment.

mod buffer;
mod build;
mod check;
mod coarse;
mod compact;
mod curve;
mod encode;
mod exact;
mod index;
mod layout;
mod meta;
mod parts;
mod plan;
mod rescore;
mod sample;
mod scan;
mod scratch;
mod search;
mod source;
mod spool;
mod stream;
mod tiles;
mod train;
mod trial;
mod work;

pub use build::build;
pub use curve::{Curve, Setting, Step, aim, recall_of_ef};
pub use index::Index;
pub use layout::{Part, TAGS, WIDTHS};
pub use meta::IndexMeta;
pub use scratch::Scratch;
pub use search::{Hit, Profile, SearchParams};
pub use source::{BATCH_ROWS, SliceSource, Source, batch_rows};
pub use stream::IndexSource;
pub use work::{BuildOptions, Phase, Progress, Work};
