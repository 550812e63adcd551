//! What is wrong with a store, each fault by its source, until that source's own success ends it.
//!
//! ```text
//!   log       a commit failed: nothing more is written until the store is opened again
//!   flush, merge, manifest   failed: tried again later and later; the next success ends it
//!   read      stored bytes fail their checksum: gone when another file takes their place, or after a restart
//! ```

use parking_lot::Mutex;
use ramekin_base::{Error, Kind};
use std::collections::BTreeMap;
use std::fmt;

/// Where a fault comes from; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Log,
    Manifest,
    Flush,
    Merge,
    Read,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "writes are refused",
            Self::Manifest => "the manifest cannot be written",
            Self::Flush => "a flush failed",
            Self::Merge => "a merge failed",
            Self::Read => "a read failed",
        })
    }
}

/// A fault.
#[derive(Debug, Clone)]
pub struct Fault {
    pub source: Source,
    pub error: Error,
    times: u32,
    retry_ms: u64,
}

/// The first wait after a failure, and how often it doubles: up to 32 s.
const RETRY_MS: u64 = 500;
const RETRY_DOUBLINGS: u32 = 6;

#[derive(Default)]
pub(crate) struct Health {
    faults: Mutex<BTreeMap<Source, Fault>>,
}

impl Health {
    /// Takes note of what became of a piece of work: a success ends the fault of its own source and no other.
    pub(crate) fn note<T>(&self, source: Source, outcome: &Result<T, Error>, now_ms: u64) {
        match outcome {
            Ok(_) => _ = self.faults.lock().remove(&source),
            Err(error) if matches!(error.kind(), Kind::Closed | Kind::Cancelled) && source != Source::Log => {}
            Err(error) => self.raise(source, error, now_ms),
        }
    }

    pub(crate) fn raise(&self, source: Source, error: &Error, now_ms: u64) {
        let mut faults = self.faults.lock();
        let before = faults.get(&source);
        let times = before.map_or(0, |fault| fault.times) + 1;
        if before.is_none_or(|fault| fault.error.message() != error.message()) {
            tracing::error!("{source}: {error}");
        }
        let retry_ms = now_ms + (RETRY_MS << times.min(RETRY_DOUBLINGS));
        faults.insert(source, Fault { source, error: error.clone(), times, retry_ms });
    }

    /// Whether work failed and it is not yet time to try it again.
    pub(crate) fn waits(&self, source: Source, now_ms: u64) -> bool {
        self.faults.lock().get(&source).is_some_and(|fault| now_ms < fault.retry_ms)
    }

    pub(crate) fn of(&self, source: Source) -> Option<Error> {
        self.faults.lock().get(&source).map(|fault| fault.error.clone())
    }

    /// All of them, the worst first.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.faults.lock().values().cloned().collect()
    }
}
