//! What is wrong with a store, each fault by its source, until that source's own success ends it.
//!
//! ```text
//!   log       a commit failed: nothing more is written until the store is opened again
//!   flush, merge, manifest   failed: tried again later and later; the next success ends it
//! ```

use ramekin_base::{Error, health};
use std::fmt;

/// Where a fault comes from; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Log,
    Manifest,
    Flush,
    Merge,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "writes are refused",
            Self::Manifest => "the manifest cannot be written",
            Self::Flush => "a flush failed",
            Self::Merge => "a merge failed",
        })
    }
}

impl health::FaultKind for Source {
    fn say(&self, _: &str, error: &Error) {
        tracing::error!("{self}: {error}");
    }
}

pub type Fault = health::Fault<Source>;
pub(crate) type Health = health::Health<Source>;
