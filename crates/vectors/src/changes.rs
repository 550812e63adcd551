//! The payloads of a segment's points that changed since it was sealed.
//!
//! ```text
//!   fresh     row ─► place in the log    takes changes; pins the log          ▲ the first that
//!   folding   row ─► place in the log    is being written out as a run        │ holds a row
//!   runs      overlay files, newest last (see `overlay.rs`)                   │ has its payload
//!   the segment's own payloads
//! ```
//!
//! A fold takes all of `fresh` at once, so that what it walks several times stays as it is. What it
//! could not write goes back below what came meanwhile. Folds, seals, merges and manifests exclude
//! each other by `shared.manifest`; only the writer adds to `fresh`.

use crate::growing::{CLEAN, PayloadAt};
use crate::lock;
use crate::overlay::Run;
use parking_lot::RwLock;
use ramekin_base::Result;
use ramekin_base::lock::Ranked;
use ramekin_log::Position;
use ramekin_memory::Reservation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one changed payload in memory: key, place, and a B-tree's slack.
pub(crate) const PATCH_BYTES: u64 = 64;

/// Changed payloads by row; each stands in the log.
pub(crate) type Patches = BTreeMap<u32, PayloadAt>;

pub(crate) struct Changes {
    inner: Ranked<RwLock<Inner>>,
}

struct Inner {
    fresh: Patches,
    folding: Arc<Patches>,
    runs: Vec<Arc<Run>>,
    /// Position of the first record that `fresh` needs; [`CLEAN`]: none.
    from: Position,
    folding_from: Position,
    memory: Option<Reservation>,
}

impl Default for Inner {
    fn default() -> Self {
        let folding = Arc::default();
        Self { fresh: Patches::new(), folding, runs: Vec::new(), from: CLEAN, folding_from: CLEAN, memory: None }
    }
}

impl Inner {
    /// Gives back memory for patches that are gone.
    fn settle(&mut self) {
        let held = (self.fresh.len() + self.folding.len()) as u64 * PATCH_BYTES;
        if let Some(memory) = &mut self.memory {
            memory.shrink(memory.bytes().saturating_sub(held));
        }
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self { inner: Ranked::rw(&lock::CHANGES, Inner::default()) }
    }
}

impl Changes {
    /// Adds changes, with memory for them out of `memory`. A later change of a row replaces an earlier one.
    pub(crate) fn put(&self, changes: impl Iterator<Item = (u32, PayloadAt)>, memory: &mut Reservation) -> Result<()> {
        let mut inner = self.inner.write();
        let before = inner.fresh.len();
        for (row, at) in changes {
            inner.from = inner.from.min(at.record);
            inner.fresh.insert(row, at);
        }
        let taken = memory.split((inner.fresh.len() - before) as u64 * PATCH_BYTES);
        match &mut inner.memory {
            Some(held) => held.join(taken),
            None => {
                inner.memory = Some(taken);
                Ok(())
            }
        }
    }

    /// The changed payloads that stand in the log, by row asked; for the others the runs, newest last.
    pub(crate) fn look(&self, rows: &[u32]) -> (Vec<Option<PayloadAt>>, Vec<Arc<Run>>) {
        let inner = self.inner.read();
        let patch = |row: &u32| inner.fresh.get(row).or_else(|| inner.folding.get(row)).copied();
        (rows.iter().map(patch).collect(), inner.runs.clone())
    }

    /// Shows the rows of the changed payloads that stand in the log, perhaps twice; returns the runs of the same moment.
    pub(crate) fn each_row(&self, each: &mut dyn FnMut(u32)) -> Vec<Arc<Run>> {
        let inner = self.inner.read();
        inner.fresh.keys().chain(inner.folding.keys()).for_each(|row| each(*row));
        inner.runs.clone()
    }

    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.inner.read().runs.clone()
    }

    /// Adds a run above those that are there.
    pub(crate) fn add_run(&self, run: Arc<Run>) {
        self.inner.write().runs.push(run);
    }

    /// Position of the first record that is needed; [`CLEAN`]: none.
    pub(crate) fn from(&self) -> Position {
        let inner = self.inner.read();
        inner.from.min(inner.folding_from)
    }

    /// Changed payloads in memory.
    pub(crate) fn len(&self) -> usize {
        let inner = self.inner.read();
        inner.fresh.len() + inner.folding.len()
    }

    /// How many changes came since the last fold began.
    pub(crate) fn fresh_len(&self) -> usize {
        self.inner.read().fresh.len()
    }

    /// The changes that came since the last fold began: few, where a fold was a moment ago.
    pub(crate) fn fresh(&self) -> Vec<(u32, PayloadAt)> {
        self.inner.read().fresh.iter().map(|(row, at)| (*row, *at)).collect()
    }

    /// Takes what is in memory aside to be written out. Rows that died come along: who found one alive
    /// may be about to read its payload.
    pub(crate) fn begin_fold(&self) -> Fold<'_> {
        let mut inner = self.inner.write();
        debug_assert!(inner.folding.is_empty(), "one fold at a time");
        inner.folding = Arc::new(std::mem::take(&mut inner.fresh));
        inner.folding_from = std::mem::replace(&mut inner.from, CLEAN);
        Fold { changes: self, patches: inner.folding.clone(), runs: inner.runs.clone() }
    }
}

/// What a fold writes out. Dropped before [`Fold::done`], everything is as it was.
pub(crate) struct Fold<'a> {
    changes: &'a Changes,
    pub(crate) patches: Arc<Patches>,
    /// Newest last.
    pub(crate) runs: Vec<Arc<Run>>,
}

impl Fold<'_> {
    /// The patches and the newest `replaced` runs are in `run` now.
    pub(crate) fn done(self, run: Option<Arc<Run>>, replaced: usize) {
        let mut inner = self.changes.inner.write();
        let kept = inner.runs.len().saturating_sub(replaced);
        inner.runs.truncate(kept);
        inner.runs.extend(run);
        inner.folding = Arc::default();
        inner.folding_from = CLEAN;
        inner.settle();
    }
}

impl Drop for Fold<'_> {
    fn drop(&mut self) {
        let mut inner = self.changes.inner.write();
        self.patches = Arc::default();
        let mut patches = Arc::unwrap_or_clone(std::mem::take(&mut inner.folding));
        patches.extend(std::mem::take(&mut inner.fresh));
        inner.fresh = patches;
        inner.from = inner.from.min(std::mem::replace(&mut inner.folding_from, CLEAN));
        inner.settle();
    }
}
