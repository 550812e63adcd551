//! One tree of sorted records: what is below the memtable, and the memtable as the executor changes it.
//!
//! ```text
//!   Draft      memtable 7, private                     changed under the executor's lock
//!   TreeState  frozen: memtables 5, 6 · runs           swapped as a whole: by a rotation, a flush, a merge
//!   view       root of 7 as published + frozen + runs  what a reader pins
//! ```

use crate::options::{FIRST_BYTES, TreeOptions};
use arc_swap::{ArcSwap, Guard};
use ramekin_base::Result;
use ramekin_log::Lsn;
use ramekin_memory::Account;
use ramekin_runs::{Memtable, Root, Run, Shape, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A memtable whose first record needs the log from here on: it has none.
pub(crate) const CLEAN: Lsn = Lsn::MAX;

/// A tree of a store.
pub(crate) struct Tree {
    pub(crate) options: TreeOptions,
    state: ArcSwap<TreeState>,
    /// How often its runs have changed, and how often they had when a manifest named them last.
    version: AtomicU64,
    named: AtomicU64,
    /// Records whose deadline is at most this go as files are written.
    ended: AtomicU64,
    /// Somebody waits for all runs to be one.
    asked_whole: AtomicBool,
}

/// What is below the memtable that is written.
pub(crate) struct TreeState {
    /// Memtables that take no more, the oldest first.
    pub(crate) frozen: Vec<Arc<Frozen>>,
    /// The oldest first.
    pub(crate) runs: Arc<[Arc<Run>]>,
    /// All of these, to be read.
    pub(crate) below: View,
    /// The last unit whose effects are in the runs, as are those of all before it.
    pub(crate) flushed: u64,
    /// The last memtable that became a run, by its number.
    gone: u64,
    /// Large units that added a run of their own.
    bulks: u64,
}

/// Which records are below the memtable that is written: as long as it is the same, flushes and merges change nothing of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    newest: u64,
    bulks: u64,
}

/// A memtable that waits for its flush.
pub(crate) struct Frozen {
    pub(crate) number: u64,
    pub(crate) root: Arc<Root>,
    /// The log is needed from here on until it is flushed.
    pub(crate) from: Lsn,
    /// The last unit that changed it.
    pub(crate) last: u64,
    pub(crate) bytes: usize,
}

/// The memtable that is written.
pub(crate) struct Draft {
    pub(crate) number: u64,
    pub(crate) memtable: Memtable,
    /// The log is needed from here on for what it holds.
    pub(crate) from: Lsn,
    pub(crate) last: u64,
    /// It has changed since it was published.
    pub(crate) is_dirty: bool,
    pub(crate) root: Arc<Root>,
    /// When it was begun or written last, by the clock, where somebody looked.
    pub(crate) seen: (u64, u64),
}

impl Draft {
    pub(crate) fn new(number: u64, bytes: u64, account: &Account) -> Result<Self> {
        let mut memtable = Memtable::new(bytes as usize, account)?;
        let root = memtable.publish();
        Ok(Self { number, memtable, from: CLEAN, last: 0, is_dirty: false, root, seen: (0, 0) })
    }

    /// Whether it holds nothing, and no more memory than an empty one.
    pub(crate) fn is_fresh(&self) -> bool {
        self.from == CLEAN && self.memtable.held_bytes() as u64 <= FIRST_BYTES
    }

    /// What it holds now, for readers.
    pub(crate) fn publish(&mut self) -> Arc<Root> {
        if std::mem::take(&mut self.is_dirty) {
            self.root = self.memtable.publish();
        }
        self.root.clone()
    }

    /// It takes no more.
    pub(crate) fn freeze(mut self) -> Frozen {
        let root = self.publish();
        Frozen { number: self.number, root, from: self.from, last: self.last, bytes: self.memtable.held_bytes() }
    }
}

impl TreeState {
    fn new(frozen: Vec<Arc<Frozen>>, runs: Arc<[Arc<Run>]>, (flushed, gone, bulks): (u64, u64, u64)) -> Self {
        let roots = frozen.iter().rev().map(|frozen| frozen.root.clone()).collect();
        Self { below: View::new(roots, runs.clone()), frozen, runs, flushed, gone, bulks }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { newest: self.frozen.last().map_or(self.gone, |frozen| frozen.number), bulks: self.bulks }
    }
}

impl Tree {
    pub(crate) fn new(options: TreeOptions, runs: Vec<Arc<Run>>, flushed: u64) -> Self {
        let state = TreeState::new(Vec::new(), runs.into(), (flushed, 0, 0));
        let (version, named) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            options,
            state: ArcSwap::from_pointee(state),
            version,
            named,
            ended: AtomicU64::new(0),
            asked_whole: AtomicBool::new(false),
        }
    }

    /// How its files of about so many bytes are made.
    pub(crate) fn shape(&self, file_bytes: u64) -> Shape {
        Shape { ended: self.ended.load(Ordering::SeqCst), ..self.options.shape(file_bytes) }
    }

    /// Records whose deadline is at most this may go.
    pub(crate) fn set_ended(&self, deadline: u64) {
        self.ended.fetch_max(deadline, Ordering::SeqCst);
    }

    /// Whether runs hold records that have ended.
    pub(crate) fn holds_ended(&self) -> bool {
        let ended = self.ended.load(Ordering::SeqCst);
        ended > 0
            && self.state().runs.iter().flat_map(|run| run.files()).any(|file| (1..=ended).contains(&file.deadline()))
    }

    /// All its runs are to be one: merges see to it.
    pub(crate) fn ask_whole(&self, whole: bool) {
        self.asked_whole.store(whole, Ordering::SeqCst);
    }

    pub(crate) fn is_asked_whole(&self) -> bool {
        self.asked_whole.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn state(&self) -> Guard<Arc<TreeState>> {
        self.state.load()
    }

    /// Bytes of memtables that wait for their flush.
    pub(crate) fn frozen_bytes(&self) -> usize {
        self.state().frozen.iter().map(|frozen| frozen.bytes).sum()
    }

    /// Whether a memtable has become a run.
    pub(crate) fn is_gone(&self, number: u64) -> bool {
        number <= self.state().gone
    }

    /// What a reader sees: the root of memtable `number`, and what is older.
    pub(crate) fn view(&self, number: u64, root: Option<&Arc<Root>>) -> View {
        let state = self.state();
        let older = state.frozen.iter().rev().filter(|frozen| frozen.number < number).map(|frozen| &frozen.root);
        // What became a run meanwhile is not seen twice. It was durable first, so all of it was published.
        let newest = root.filter(|_| number > state.gone);
        let roots = newest.into_iter().chain(older).cloned().collect();
        View::new(roots, state.runs.clone())
    }

    /// Of its runs. The caller holds the executor's lock, under which they change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Whether the last manifest names the runs of a version.
    pub(crate) fn is_named(&self, version: u64) -> bool {
        self.named.load(Ordering::SeqCst) == version
    }

    pub(crate) fn note_named(&self, version: u64) {
        self.named.store(version, Ordering::SeqCst);
    }

    /// Each of these swaps the state; the caller holds the executor's lock.
    pub(crate) fn add_frozen(&self, frozen: Frozen) {
        let state = self.state();
        let all = state.frozen.iter().cloned().chain([Arc::new(frozen)]).collect();
        self.state.store(Arc::new(TreeState::new(all, state.runs.clone(), (state.flushed, state.gone, state.bulks))));
    }

    /// The oldest frozen memtable became a run; `None`: nothing of it is left.
    pub(crate) fn flushed(&self, frozen: &Arc<Frozen>, run: Option<Arc<Run>>) {
        let state = self.state();
        let rest = state.frozen.iter().filter(|held| !Arc::ptr_eq(held, frozen)).cloned().collect();
        let runs = state.runs.iter().cloned().chain(run).collect();
        self.version.fetch_add(1, Ordering::SeqCst);
        self.state.store(Arc::new(TreeState::new(
            rest,
            runs,
            (frozen.last.max(state.flushed), frozen.number, state.bulks),
        )));
    }

    /// A large unit has a run of its own, which comes on top of the others.
    pub(crate) fn add_bulk(&self, run: Arc<Run>) {
        self.version.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        let runs = state.runs.iter().cloned().chain([run]).collect();
        let numbers = (state.flushed, state.gone, state.bulks + 1);
        self.state.store(Arc::new(TreeState::new(state.frozen.clone(), runs, numbers)));
    }

    /// Other runs hold what the runs held.
    pub(crate) fn set_runs(&self, runs: Vec<Arc<Run>>) {
        self.version.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        self.state.store(Arc::new(TreeState::new(
            state.frozen.clone(),
            runs.into(),
            (state.flushed, state.gone, state.bulks),
        )));
    }
}
