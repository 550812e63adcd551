//! What is wrong with a store, each fault by its source, until that source's own success ends it.
//!
//! ```text
//!   log       a commit failed: nothing more is written until the store is opened again
//!   thread    it has ended: nothing is taken until the store is opened again
//!   manifest, flush and merge of each tree   failed: tried again later and later; the next success ends it
//! ```

use ramekin_base::{Error, health};
use std::fmt;

/// Where a fault comes from; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Log,
    Thread,
    Manifest,
    /// Of a tree, by its place.
    Flush(usize),
    Merge(usize),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "writes are refused",
            Self::Thread => "a thread has ended",
            Self::Manifest => "the manifest cannot be written",
            Self::Flush(tree) => return write!(f, "a flush of tree {tree} failed"),
            Self::Merge(tree) => return write!(f, "a merge of tree {tree} failed"),
        })
    }
}

impl health::FaultKind for Source {
    fn say(&self, name: &str, error: &Error) {
        match name {
            "" => tracing::error!("{self}: {error}"),
            tree => tracing::error!("{self} (`{tree}`): {error}"),
        }
    }
}

pub type Fault = health::Fault<Source>;
pub(crate) type Health = health::Health<Source>;
