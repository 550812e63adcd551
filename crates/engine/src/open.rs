//! Opening a store: the manifest, the runs, and the log from where they end, by the records that were written.
//!
//! ```text
//!   manifest ─► runs ─► each record of the log ─► the effects of units that a tree's runs lack ─► memtables, flushed as they fill
//! ```
//!
//! Effects are put as they stand: nothing is looked up, so a replay reads no page. A memtable is flushed between two units only,
//! or a run would hold half of one and the log would give it again.

use crate::commit::LogSide;
use crate::effects;
use crate::engine::{Accounts, Engine, Inner, THREAD_BYTES, THREADS};
use crate::execute::Exec;
use crate::files::Files;
use crate::group::Group;
use crate::health::Health;
use crate::manifest::{HeadJson, open_trees, replay_from};
use crate::options::{Durability, EngineOptions, Limits};
use crate::ranks;
use crate::store::Store;
use crate::tree::{CLEAN, Draft, Tree};
use crate::unit::Core;
use crate::view::{Published, Roots};
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Error, Histogram, Result, Signal};
use ramekin_log::Lsn;
use ramekin_runs::Entry;
use ramekin_runs::compaction::{RUNS_MAX, due};
use ramekin_storage::Storage;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

impl Accounts {
    fn new(options: &EngineOptions, limits: Limits) -> Result<Self> {
        let child = |name, formula| options.account.child(name, formula);
        let accounts = Self {
            memtables: child(
                "memtables",
                "records x (48 + key + value), in chunks of 64 KiB; at most a third of the share",
            ),
            runs: child("runs", "files x 2 KiB + pages x 8 + index blocks x (32 + key)"),
            log: child("log", "2 groups of commits + commit buffer").lasting(),
            flush: child("flush", "buffers of one flush"),
            merge: child("merge", "buffers of one merge"),
            reads: child("reads", "windows of ranges + records that commands wait for + their keys x (192 + key)")
                .transient(),
            _threads: child("threads", "threads x 52 KiB").try_reserve(if options.threads {
                THREADS * THREAD_BYTES
            } else {
                0
            })?,
        };
        // A replay may have to flush and to merge.
        accounts.flush.set_min_reservation(limits.flush_work)?;
        accounts.merge.set_min_reservation(limits.merge_work)?;
        Ok(accounts)
    }
}

impl<S: Store> Engine<S> {
    /// Opens the store in the options' folder, or makes one: reads the manifest, verifies, replays the log.
    pub fn open(options: EngineOptions, store: S) -> Result<Self> {
        let limits = Limits::within(options.share, store.trees().len());
        let accounts = Accounts::new(&options, limits)?;
        let (disk, pages) = (options.disk.clone(), options.pages.clone());
        let (storage, mut manifest) = Storage::open(disk, &options.folder, pages, &accounts.runs, &accounts.runs)?;
        let head: HeadJson = manifest.as_ref().map(|manifest| manifest.head.app()).transpose()?.unwrap_or_default();
        let log = replay_from(manifest.as_ref());
        let files = Files::new(storage, accounts);
        let trees = open_trees(store.trees(), manifest.as_mut(), &files)?;
        drop(manifest);
        let mut replay = Replay::new(&files, &trees, limits, head.seqno)?;
        let log_from = log.start;
        let log = files
            .storage
            .open_log(&files.accounts.log, log, &mut |position, record| replay.record(position, record))?;
        let Replay { drafts, seqno, is_changed, .. } = replay;
        if let Some(cut) = log.cut() {
            tracing::warn!("the end of the log was not whole and was cut: {cut:?}");
        }
        let log_end = log.end();
        let core = Core::new(drafts, seqno, limits.memtable_bytes);
        let exec = Exec::new(core, options.durability == Durability::Each, files.accounts.reads.clone());
        let roots: Roots = exec.core.drafts.iter().map(|draft| (draft.number, Some(draft.root.clone()))).collect();
        let views = trees.iter().zip(&roots).map(|(tree, (number, root))| tree.view(*number, root.as_ref())).collect();
        let side = LogSide { log, group: Group::asleep() };
        let inner = Inner {
            store,
            share: AtomicU64::new(options.share),
            files,
            trees,
            exec: Ranked::mutex(&ranks::EXECUTE, exec),
            log: Ranked::mutex(&ranks::LOG, side),
            is_led: Mutex::new(false),
            led: Condvar::new(),
            manifest: Ranked::mutex(&ranks::MANIFEST, ()),
            published: ArcSwap::from_pointee(Published { seqno, roots, trees: views }),
            publishing: Mutex::new(()),
            durable: AtomicU64::new(seqno),
            log_end: AtomicU64::new(log_end),
            log_from: AtomicU64::new(log_from),
            trimmed: AtomicU64::new(log_from),
            poisoned: OnceLock::new(),
            health: Health::default(),
            threads: Threads::default(),
            commit_due: Signal::default(),
            fetch_due: Signal::default(),
            flush_due: Signal::default(),
            merge_due: Signal::default(),
            job_ended: Signal::default(),
            closing: AtomicBool::new(false),
            views: AtomicU64::new(0),
            commits: Histogram::default(),
            options,
        };
        if is_changed {
            inner.commit_manifest(&inner.files.accounts.flush)?;
        }
        inner.settle()?;
        let engine = Self { inner: Arc::new(inner), running: Arc::default() };
        if engine.inner.options.threads {
            engine.start_threads()?;
        }
        Ok(engine)
    }
}

/// A replay under way.
struct Replay<'a> {
    files: &'a Files,
    trees: &'a [Tree],
    limits: Limits,
    drafts: Box<[Draft]>,
    /// The last unit of which all effects were put.
    seqno: u64,
    /// The unit whose effects are put; records end anywhere in it.
    unit: u64,
    /// A memtable became a run.
    is_changed: bool,
}

impl<'a> Replay<'a> {
    fn new(files: &'a Files, trees: &'a [Tree], limits: Limits, seqno: u64) -> Result<Self> {
        let draft = |_| Draft::new(1, limits.memtable_most(), &files.accounts.memtables);
        let drafts = trees.iter().map(draft).collect::<Result<_>>()?;
        Ok(Self { files, trees, limits, drafts, seqno, unit: 0, is_changed: false })
    }

    fn record(&mut self, position: Lsn, record: &[u8]) -> Result<()> {
        let next = effects::each(record, &mut |seqno, tree, entry| self.put(position, (seqno, tree), entry))?;
        // A record that ends inside of a unit counts up to the one before.
        self.seqno = self.seqno.max(next.saturating_sub(1));
        self.drafts.iter_mut().for_each(|draft| _ = draft.publish());
        Ok(())
    }

    fn put(&mut self, position: Lsn, (seqno, tree): (u64, usize), entry: &Entry<'_>) -> Result<()> {
        if seqno != self.unit {
            self.unit = seqno;
            while let Some(tree) = self.full() {
                self.flush(tree)?;
            }
        }
        let (Some(draft), Some(held)) = (self.drafts.get_mut(tree), self.trees.get(tree)) else {
            return Err(Error::unsupported(format!("the log changes a tree {tree} that is not there")));
        };
        if seqno > held.state().flushed {
            draft.memtable.put(entry)?;
            draft.memtable.keep_unit();
            draft.from = draft.from.min(position);
            draft.last = seqno;
            draft.is_dirty = true;
        }
        Ok(())
    }

    /// The largest memtable, where all together have what they may. A unit comes whole on top, of a larger share too; memory is taken
    /// as they are filled.
    fn full(&self) -> Option<usize> {
        let held = |draft: &Draft| draft.memtable.held_bytes() as u64;
        let is_full = self.drafts.iter().map(held).sum::<u64>() >= self.limits.memtable_bytes;
        let written = (0..self.drafts.len()).filter(|tree| is_full && self.drafts[*tree].from != CLEAN);
        written.max_by_key(|tree| held(&self.drafts[*tree]))
    }

    fn flush(&mut self, tree: usize) -> Result<()> {
        let bytes = self.limits.memtable_most();
        let number = self.drafts[tree].number;
        let state = self.trees[tree].state();
        // Its memory serves the next one.
        let full =
            std::mem::replace(&mut self.drafts[tree], Draft::new(number + 1, bytes, &self.files.accounts.memtables)?);
        debug_assert!(full.from != CLEAN, "an empty memtable is not flushed");
        let frozen = full.freeze();
        let shape = self.trees[tree].shape(self.limits.file_bytes);
        let run = self.files.flush(&frozen.root, (shape, state.runs.is_empty()))?;
        self.trees[tree].flushed(&Arc::new(frozen), run);
        self.is_changed = true;
        self.merge(&self.trees[tree])
    }

    /// A log that was written with a larger share becomes many runs of this one: no more than a view takes.
    fn merge(&self, tree: &Tree) -> Result<()> {
        let mut runs = tree.state().runs.to_vec();
        while runs.len() >= RUNS_MAX {
            let sizes: Vec<u64> = runs.iter().map(|run| run.bytes()).collect();
            let Some(range) = due(&sizes, false) else { break };
            let how = (tree.shape(self.limits.file_bytes), range.start == 0);
            let output = self.files.merge(runs[range.clone()].to_vec(), how, &mut |_, _| Ok(()))?;
            runs.splice(range, output);
        }
        tree.set_runs(runs);
        Ok(())
    }
}
