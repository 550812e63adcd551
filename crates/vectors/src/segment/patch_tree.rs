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
//! each other by `StoreInner::manifest`; who adds to `active` holds `Collection::change`.

use crate::lock;
use crate::memtable::CLEAN;
use crate::memtable::patches::PatchMemtable;
use crate::payload::log::PayloadAt;
use crate::segment::overlay::PatchRun;
use parking_lot::RwLock;
use ramekin_base::lock::Ranked;
use ramekin_log::Lsn;
use ramekin_memory::Reservation;
use std::sync::Arc;

/// The tree as it is now.
pub(crate) struct PatchTree(Ranked<RwLock<PatchView>>);

/// The tree at one moment.
#[derive(Clone)]
pub(crate) struct PatchView {
    active: PatchMemtable,
    immutable: PatchMemtable,
    /// Newest last.
    runs: Arc<[Arc<PatchRun>]>,
    /// Position of the first record that `active` needs; [`CLEAN`]: none.
    from: Lsn,
    immutable_from: Lsn,
}

impl Default for PatchTree {
    fn default() -> Self {
        let (active, immutable) = (PatchMemtable::default(), PatchMemtable::default());
        let view = PatchView { active, immutable, runs: Arc::default(), from: CLEAN, immutable_from: CLEAN };
        Self(Ranked::rw(&lock::PATCHES, view))
    }
}

impl PatchView {
    /// The changed payload of a row that stands in the log.
    pub(crate) fn get(&self, row: u32) -> Option<PayloadAt> {
        self.active.get(row).or_else(|| self.immutable.get(row))
    }

    /// Shows the rows of the changed payloads that stand in the log, perhaps twice.
    pub(crate) fn each_row(&self, each: &mut dyn FnMut(u32)) {
        self.active.each_row(each);
        self.immutable.each_row(each);
    }

    /// Newest last.
    pub(crate) fn runs(&self) -> &Arc<[Arc<PatchRun>]> {
        &self.runs
    }

    /// Position of the first record that is needed; [`CLEAN`]: none.
    pub(crate) fn from(&self) -> Lsn {
        self.from.min(self.immutable_from)
    }

    /// Changed payloads in memory.
    pub(crate) fn len(&self) -> usize {
        self.active.len() + self.immutable.len()
    }
}

impl PatchTree {
    pub(crate) fn view(&self) -> PatchView {
        self.0.read().clone()
    }

    /// Adds changes, with memory for them out of `memory`. A later change of a row replaces an earlier one.
    pub(crate) fn put(&self, changes: Vec<(u32, PayloadAt)>, memory: &mut Reservation) {
        let mut own = self.0.write();
        own.from = changes.iter().map(|(_, at)| at.record).min().unwrap_or(CLEAN).min(own.from);
        own.active = own.active.with(changes, memory);
    }

    pub(crate) fn runs(&self) -> Arc<[Arc<PatchRun>]> {
        self.0.read().runs.clone()
    }

    /// Adds a run above those that are there.
    pub(crate) fn add_run(&self, run: Arc<PatchRun>) {
        let mut own = self.0.write();
        own.runs = own.runs.iter().cloned().chain([run]).collect();
    }

    /// Rows whose changed payload is in memory.
    pub(crate) fn rows(&self) -> usize {
        let own = self.view();
        own.immutable.below(&own.active).iter().count()
    }

    /// How many changes came since the last patch compaction began.
    pub(crate) fn active_len(&self) -> usize {
        self.0.read().active.len()
    }

    /// The changes that came since the last patch compaction began: few, where there was one a moment ago.
    pub(crate) fn active(&self) -> PatchMemtable {
        self.0.read().active.clone()
    }

    /// Takes what is in memory aside to be written out, rows that died included: a view may hold them alive.
    pub(crate) fn begin_compaction(&self) -> PatchCompaction<'_> {
        let mut own = self.0.write();
        debug_assert!(own.immutable.is_empty(), "one compaction at a time");
        own.immutable = std::mem::take(&mut own.active);
        own.immutable_from = std::mem::replace(&mut own.from, CLEAN);
        PatchCompaction { tree: self, patches: own.immutable.clone(), runs: own.runs.clone() }
    }
}

/// What a patch compaction writes out. Dropped before [`PatchCompaction::done`], everything is as it was.
pub(crate) struct PatchCompaction<'a> {
    tree: &'a PatchTree,
    pub(crate) patches: PatchMemtable,
    /// Newest last.
    pub(crate) runs: Arc<[Arc<PatchRun>]>,
}

impl PatchCompaction<'_> {
    /// The patches and the newest `replaced` runs are in `run` now.
    pub(crate) fn done(self, run: Option<Arc<PatchRun>>, replaced: usize) {
        let mut own = self.tree.0.write();
        let kept = own.runs.len().saturating_sub(replaced);
        own.runs = own.runs[..kept].iter().cloned().chain(run).collect();
        own.immutable = PatchMemtable::default();
        own.immutable_from = CLEAN;
    }
}

impl Drop for PatchCompaction<'_> {
    fn drop(&mut self) {
        let mut own = self.tree.0.write();
        own.active = std::mem::take(&mut own.immutable).below(&own.active);
        own.from = own.from.min(std::mem::replace(&mut own.immutable_from, CLEAN));
    }
}
