//! What a build is handed: disk, memory, chance, time, and ways to tell of its progress and to stop it.

use ramekin_base::{Clock, Error, Result, cancel};
use ramekin_disk::Disk;
use ramekin_memory::Account;
use std::path::PathBuf;
use std::sync::Arc;

/// The means of one build.
pub struct Work<'a> {
    pub disk: Arc<dyn Disk>,
    /// An existing folder for temporary files; its names `ann-*` are ours.
    pub temp: PathBuf,
    /// Pays for all working memory. Its limit decides how large the sample is and in how many parts the
    /// vectors are sorted.
    pub account: Account,
    pub clock: Arc<dyn Clock>,
    pub seed: u64,
    /// Threads that compute: 1 or 2 on small machines. With more than one, the thread that calls reads and writes beside them.
    pub threads: usize,
    /// Told between batches how far the build is, from the thread that called it.
    pub progress: &'a dyn Fn(Progress),
    /// Asked between batches; `true` ends the build with an error of kind `Closed`.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// What the index is to reach.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions {
    /// Wished recall of a search that names no `ef`.
    pub recall: f32,
    /// The client's `ef_construct`: a hint only; above 200 the training sample grows.
    pub ef_construct: usize,
    /// Share of what is free below the account's limit that is planned with, per cent. Where shapes are large against
    /// the limit, what the plan does not count may need more than the tenth that is left for it.
    pub percent: u64,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self { recall: 0.95, ef_construct: 100, percent: 100 }
    }
}

/// The steps of a build, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The stream is read once for a sample.
    Sample,
    /// Centroids are found on the sample.
    Train,
    /// The stream is read again: each vector goes to the part of its cluster.
    Assign,
    /// Part after part: sorted, coded, written.
    Encode,
    /// The codes and row numbers move to their sections.
    Gather,
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub done: u64,
    pub total: u64,
}

impl Work<'_> {
    /// Tells where the build is; an error if it is to stop.
    pub(crate) fn step(&self, phase: Phase, done: usize, total: usize) -> Result<()> {
        cancel::check()?;
        if (self.cancelled)() {
            return Err(Error::closed("the index build was cancelled"));
        }
        (self.progress)(Progress { phase, done: done as u64, total: total as u64 });
        Ok(())
    }
}
