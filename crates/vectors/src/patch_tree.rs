//! The payloads of a segment's points that changed since it was flushed.
//!
//! ```text
//!   active    row ─► place in the log    takes changes; pins the log          ▲ the first that
//!   immutable row ─► place in the log    is being written out as a run        │ holds a row
//!   runs      overlay files, newest last (see `overlay.rs`)                   │ has its payload
//!   the segment's own payloads
//! ```
//!
//! A patch compaction takes all of `active` at once, so that what it walks several times stays as it is. What it
//! could not write goes back below what came meanwhile. Patch compactions, flushes, merges and manifests exclude
//! each other by `StoreInner::manifest`; only the writer adds to `active`.

use crate::lock;
use crate::memtable::{CLEAN, PayloadAt};
use crate::overlay::PatchRun;
use parking_lot::RwLock;
use ramekin_base::Result;
use ramekin_base::lock::Ranked;
use ramekin_log::Lsn;
use ramekin_memory::Reservation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of one changed payload in memory: key, place, and a B-tree's slack.
pub(crate) const PATCH_BYTES: u64 = 64;

/// Changed payloads by row; each stands in the log.
pub(crate) type PatchMemtable = BTreeMap<u32, PayloadAt>;

pub(crate) struct PatchTree {
    inner: Ranked<RwLock<Inner>>,
}

struct Inner {
    active: PatchMemtable,
    immutable: Arc<PatchMemtable>,
    runs: Vec<Arc<PatchRun>>,
    /// Position of the first record that `active` needs; [`CLEAN`]: none.
    from: Lsn,
    immutable_from: Lsn,
    memory: Option<Reservation>,
}

impl Default for Inner {
    fn default() -> Self {
        let immutable = Arc::default();
        Self {
            active: PatchMemtable::new(),
            immutable,
            runs: Vec::new(),
            from: CLEAN,
            immutable_from: CLEAN,
            memory: None,
        }
    }
}

impl Inner {
    /// Gives back memory for patches that are gone.
    fn settle(&mut self) {
        let held = (self.active.len() + self.immutable.len()) as u64 * PATCH_BYTES;
        if let Some(memory) = &mut self.memory {
            memory.shrink(memory.bytes().saturating_sub(held));
        }
    }
}

impl Default for PatchTree {
    fn default() -> Self {
        Self { inner: Ranked::rw(&lock::PATCHES, Inner::default()) }
    }
}

impl PatchTree {
    /// Adds changes, with memory for them out of `memory`. A later change of a row replaces an earlier one.
    pub(crate) fn put(&self, changes: impl Iterator<Item = (u32, PayloadAt)>, memory: &mut Reservation) -> Result<()> {
        let mut inner = self.inner.write();
        let before = inner.active.len();
        for (row, at) in changes {
            inner.from = inner.from.min(at.record);
            inner.active.insert(row, at);
        }
        let taken = memory.split((inner.active.len() - before) as u64 * PATCH_BYTES);
        match &mut inner.memory {
            Some(held) => held.join(taken),
            None => {
                inner.memory = Some(taken);
                Ok(())
            }
        }
    }

    /// The changed payloads that stand in the log, by row asked; for the others the runs, newest last.
    pub(crate) fn look(&self, rows: &[u32]) -> (Vec<Option<PayloadAt>>, Vec<Arc<PatchRun>>) {
        let inner = self.inner.read();
        let patch = |row: &u32| inner.active.get(row).or_else(|| inner.immutable.get(row)).copied();
        (rows.iter().map(patch).collect(), inner.runs.clone())
    }

    /// Shows the rows of the changed payloads that stand in the log, perhaps twice; returns the runs of the same moment.
    pub(crate) fn each_row(&self, each: &mut dyn FnMut(u32)) -> Vec<Arc<PatchRun>> {
        let inner = self.inner.read();
        inner.active.keys().chain(inner.immutable.keys()).for_each(|row| each(*row));
        inner.runs.clone()
    }

    pub(crate) fn runs(&self) -> Vec<Arc<PatchRun>> {
        self.inner.read().runs.clone()
    }

    /// Adds a run above those that are there.
    pub(crate) fn add_run(&self, run: Arc<PatchRun>) {
        self.inner.write().runs.push(run);
    }

    /// Position of the first record that is needed; [`CLEAN`]: none.
    pub(crate) fn from(&self) -> Lsn {
        let inner = self.inner.read();
        inner.from.min(inner.immutable_from)
    }

    /// Changed payloads in memory.
    pub(crate) fn len(&self) -> usize {
        let inner = self.inner.read();
        inner.active.len() + inner.immutable.len()
    }

    /// How many changes came since the last patch compaction began.
    pub(crate) fn active_len(&self) -> usize {
        self.inner.read().active.len()
    }

    /// The changes that came since the last patch compaction began: few, where there was one a moment ago.
    pub(crate) fn active(&self) -> Vec<(u32, PayloadAt)> {
        self.inner.read().active.iter().map(|(row, at)| (*row, *at)).collect()
    }

    /// Takes what is in memory aside to be written out. Rows that died come along: who found one alive
    /// may be about to read its payload.
    pub(crate) fn begin_compaction(&self) -> PatchCompaction<'_> {
        let mut inner = self.inner.write();
        debug_assert!(inner.immutable.is_empty(), "one compaction at a time");
        inner.immutable = Arc::new(std::mem::take(&mut inner.active));
        inner.immutable_from = std::mem::replace(&mut inner.from, CLEAN);
        PatchCompaction { tree: self, patches: inner.immutable.clone(), runs: inner.runs.clone() }
    }
}

/// What a patch compaction writes out. Dropped before [`PatchCompaction::done`], everything is as it was.
pub(crate) struct PatchCompaction<'a> {
    tree: &'a PatchTree,
    pub(crate) patches: Arc<PatchMemtable>,
    /// Newest last.
    pub(crate) runs: Vec<Arc<PatchRun>>,
}

impl PatchCompaction<'_> {
    /// The patches and the newest `replaced` runs are in `run` now.
    pub(crate) fn done(self, run: Option<Arc<PatchRun>>, replaced: usize) {
        let mut inner = self.tree.inner.write();
        let kept = inner.runs.len().saturating_sub(replaced);
        inner.runs.truncate(kept);
        inner.runs.extend(run);
        inner.immutable = Arc::default();
        inner.immutable_from = CLEAN;
        inner.settle();
    }
}

impl Drop for PatchCompaction<'_> {
    fn drop(&mut self) {
        let mut inner = self.tree.inner.write();
        self.patches = Arc::default();
        let mut patches = Arc::unwrap_or_clone(std::mem::take(&mut inner.immutable));
        patches.extend(std::mem::take(&mut inner.active));
        inner.active = patches;
        inner.from = inner.from.min(std::mem::replace(&mut inner.immutable_from, CLEAN));
        inner.settle();
    }
}
