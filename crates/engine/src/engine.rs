//! An open store: what its threads share, and what its owner may ask of it.

use crate::commit::LogSide;
use crate::execute::{Around, Attempt, Call, CommandId, Done, Exec, Job, Slot};
use crate::files::Files;
use crate::health::{Fault, Health};
use crate::jobs;
use crate::options::{Durability, EngineOptions, Limits};
use crate::store::Store;
use crate::tree::Tree;
use crate::unit::Miss;
use crate::view::{Published, ReadView};
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use ramekin_base::lock::Ranked;
use ramekin_base::supervise::Threads;
use ramekin_base::{Error, Histogram, Result, Signal, histogram};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Of each thread of the engine.
const STACK_BYTES: usize = 512 << 10;
/// What a thread takes of memory: the stack that it touches, and the kernel's own.
pub(crate) const THREAD_BYTES: u64 = 52 << 10;
pub(crate) const THREADS: u64 = 4;

/// The accounts of a store.
pub(crate) struct Accounts {
    pub(crate) memtables: Account,
    /// Files that are open.
    pub(crate) runs: Account,
    pub(crate) log: Account,
    pub(crate) flush: Account,
    pub(crate) merge: Account,
    /// Records that were fetched for commands, and windows of reads.
    pub(crate) reads: Account,
    pub(crate) _threads: Reservation,
}

/// What the threads of a store share.
pub(crate) struct Inner<S: Store> {
    pub(crate) store: S,
    pub(crate) options: EngineOptions,
    pub(crate) share: AtomicU64,
    pub(crate) files: Files,
    pub(crate) trees: Box<[Tree]>,
    pub(crate) exec: Ranked<Mutex<Exec<S>>>,
    pub(crate) log: Ranked<Mutex<LogSide>>,
    /// Somebody leads a commit; and it has ended.
    pub(crate) is_led: Mutex<bool>,
    pub(crate) led: Condvar,
    /// One manifest is written at a time.
    pub(crate) manifest: Ranked<Mutex<()>>,
    pub(crate) published: ArcSwap<Published>,
    pub(crate) publishing: Mutex<()>,
    /// The last unit that survives a power cut.
    pub(crate) durable: AtomicU64,
    /// Where the log ends with it.
    pub(crate) log_end: AtomicU64,
    /// The log is needed from here on, as the last manifest says; and was trimmed so far.
    pub(crate) log_from: AtomicU64,
    pub(crate) trimmed: AtomicU64,
    pub(crate) poisoned: OnceLock<String>,
    pub(crate) health: Health,
    pub(crate) threads: Threads,
    /// Raised when there is something to commit, to fetch, to flush, to merge; and when a flush or a merge has ended.
    pub(crate) commit_due: Signal,
    pub(crate) fetch_due: Signal,
    pub(crate) flush_due: Signal,
    pub(crate) merge_due: Signal,
    pub(crate) job_ended: Signal,
    pub(crate) closing: AtomicBool,
    /// Views that were taken.
    pub(crate) views: AtomicU64,
    /// Groups that were written to the log and synced.
    pub(crate) commits: Histogram,
}

impl<S: Store> Inner<S> {
    /// What it holds whoever writes.
    pub(crate) fn lasting(&self) -> u64 {
        self.files.accounts.runs.used() + THREADS * THREAD_BYTES
    }

    pub(crate) fn limits(&self) -> Limits {
        // What files take that are open is not there for writes.
        let share = self.share.load(Ordering::Relaxed).saturating_sub(self.lasting());
        Limits::within(share, self.trees.len())
    }

    /// Those of the least share.
    pub(crate) fn least_limits(&self) -> Limits {
        Limits::of(0, self.trees.len())
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.options.clock.now().as_millis() as u64
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.options.pages
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(crate) fn around(&self) -> Around<'_, S> {
        let log_end = self.log_end.load(Ordering::Acquire);
        let reads = &self.files.accounts.reads;
        Around { store: &self.store, trees: &self.trees, pages: self.pages(), reads, log_end }
    }
}

/// Numbers of an open store, for whoever watches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// The last unit that was staged, and the last that is durable.
    pub seqno: u64,
    pub durable: u64,
    /// Of each tree: records in memtables, frozen memtables, runs, bytes of runs.
    pub trees: Vec<TreeStats>,
    /// How often commands were staged: more than once where they waited.
    pub staged: u64,
    /// Commands that have their answer, and views that were taken: how much the store is used.
    pub answered: u64,
    /// Commands that wait for pages, keys that others hold or a flush, and those that wait for others to write a key.
    pub waiting: usize,
    pub blocked: usize,
    pub log_bytes: u64,
}

impl Stats {
    /// Commands that have come and views that were taken, but those that wait for others to write a key: how much the store is used.
    pub fn asked(&self) -> u64 {
        self.answered + self.waiting as u64
    }
}

/// Numbers of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeStats {
    pub records: u64,
    pub frozen: usize,
    pub runs: usize,
    pub run_bytes: u64,
    /// Those of their records alone.
    pub record_bytes: u64,
    /// Bytes of memtables, as far as they are used.
    pub memtable_bytes: u64,
}

/// A store, open. Clones are handles to the same.
pub struct Engine<S: Store> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) running: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl<S: Store> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), running: self.running.clone() }
    }
}

impl<S: Store> Engine<S> {
    pub(crate) fn start_threads(&self) -> Result<()> {
        let mut running = self.running.lock();
        let mut spawn = |name: &str, work: fn(&Inner<S>) -> Result<()>| -> Result<()> {
            let (inner, own) = (self.inner.clone(), name.to_owned());
            let run = move || {
                let alive = Alive(&inner, &own);
                work(alive.0)
            };
            running.push(self.inner.threads.spawn(name, STACK_BYTES, run)?);
            Ok(())
        };
        spawn("committer", jobs::run_committer)?;
        spawn("fetcher", jobs::run_fetcher)?;
        spawn("flusher", jobs::run_flusher)?;
        spawn("merger", jobs::run_merger)
    }

    /// The store itself.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Stages the commands of a batch in order, each after the one before it has its answer, and returns when all answers may
    /// leave: their units and all that they saw are durable where the options ask for that. Blocks; where nothing must be waited
    /// for it allocates nothing and wakes nobody.
    pub fn run(&self, calls: &mut [Call<S>]) {
        let inner = &*self.inner;
        let (mut at, mut seen) = (0, 0);
        while at < calls.len() {
            let mut exec = inner.exec.lock();
            let (mut slot, mut is_full) = (None, false);
            while let Some(call) = calls.get_mut(at) {
                let Some(command) = call.command.take() else {
                    at += 1;
                    continue;
                };
                match exec.attempt(&inner.around(), &command) {
                    Attempt::Done(reply) => call.reply = Some(Ok(reply)),
                    Attempt::Refused(error) => call.reply = Some(Err(error)),
                    Attempt::Miss(Miss::Group) if exec.core.group.is_full() || exec.core.group.is_asleep() => {
                        (call.command, is_full) = (Some(command), true);
                        break;
                    }
                    missed => {
                        let (own, done) = Slot::new();
                        exec.park(Job { command, done, until: None }, missed);
                        slot = Some(own);
                        break;
                    }
                }
                at += 1;
            }
            seen = seen.max(exec.core.seqno);
            let mut answers = Vec::new();
            if slot.is_some() || !exec.ready.is_empty() {
                inner.after(&mut exec, &mut answers);
            }
            drop(exec);
            inner.tell(answers);
            // Whoever finds the group full hands it on; nobody else is woken for that.
            if let Err(error) = if is_full { inner.make_place() } else { Ok(()) } {
                (calls[at].command, calls[at].reply) = (None, Some(Err(error)));
                at += 1;
            }
            if let Some(slot) = slot {
                calls[at].reply = Some(inner.wait_for(slot));
                at += 1;
            }
        }
        if inner.options.durability == Durability::Each
            && let Err(error) = inner.commit(seen)
        {
            calls.iter_mut().for_each(|call| call.reply = Some(Err(error.clone())));
        }
        inner.slow_down();
    }

    /// Stages a command and returns; `done` is called once with its answer when that may leave. `until`, by the clock: it does
    /// not wait longer for others to write a key. Refused, `done` is called at once.
    pub fn submit(&self, command: S::Command, until: Option<Duration>, done: Done<S::Reply>) -> CommandId {
        self.inner.change(|exec| exec.start(&self.inner.around(), Job { command, done, until }))
    }

    /// Cancels a command that was submitted and waits to be staged: it changes nothing, and `done` is called with an error that
    /// says so. False: it was staged, or answered, and nothing is cancelled.
    pub fn cancel(&self, ticket: CommandId) -> bool {
        self.inner.change(|exec| exec.cancel(ticket))
    }

    /// One command, as [`Engine::run`] does it.
    pub fn execute(&self, command: S::Command) -> Result<S::Reply> {
        let mut call = [Call::new(command)];
        self.run(&mut call);
        let [call] = call;
        call.reply.unwrap_or_else(|| Err(Error::bug("a command has no answer")))
    }

    /// All trees at this moment. Where answers wait for the log, only what is durable shows, and that is all that anybody was
    /// told of; else everything that was staged.
    pub fn view(&self) -> ReadView {
        let inner = &*self.inner;
        inner.views.fetch_add(1, Ordering::Relaxed);
        if inner.options.durability != Durability::Each && !inner.is_poisoned() {
            let mut exec = inner.exec.lock();
            if exec.core.drafts.iter().any(|draft| draft.is_dirty) || inner.published.load().seqno < exec.core.seqno {
                inner.publish(exec.core.seqno, exec.core.roots());
            }
        }
        Published::of(inner.published.load(), inner.pages(), &inner.files.accounts.reads)
    }

    /// Makes all that was staged durable.
    pub fn sync(&self) -> Result<()> {
        self.inner.commit_all()
    }

    /// What is wrong, the worst first. A thread that died closes the store for good, and is named here.
    pub fn faults(&self) -> Vec<Fault> {
        self.inner.health.faults()
    }

    /// Threads that died, each with its cause.
    pub fn dead_threads(&self) -> Vec<(String, String)> {
        self.inner.threads.dead()
    }

    /// Another share of the budget: sizes follow, of groups when they are empty.
    pub fn resize(&self, share: u64) -> Result<()> {
        self.inner.resize(share)
    }

    /// The least share with which it works as it is: next to nothing while nobody writes.
    pub fn least_share(&self) -> u64 {
        let accounts = &self.inner.files.accounts;
        match self.inner.is_asleep() {
            true => self.inner.lasting() + accounts.memtables.used() + accounts.log.used(),
            false => self.inner.lasting() + self.inner.least_limits().awake_bytes(),
        }
    }

    /// The least share with which it takes the largest unit.
    pub fn working_share(&self) -> u64 {
        self.inner.lasting() + self.inner.least_limits().awake_bytes() + self.inner.least_limits().large_bytes()
    }

    /// The least share with which it will work when nobody has written for a while.
    pub fn idle_share(&self) -> u64 {
        match self.inner.is_asleep() {
            true => self.least_share(),
            // What a memtable holds that is not worth a flush, and as much of chunks that are not full.
            false => self.inner.lasting() + (2 * jobs::IDLE_BYTES * self.inner.trees.len()) as u64,
        }
    }

    /// With more it would do nothing better: memtables are as large as an eighth of the data, or 2 MiB, and the largest unit has what
    /// it needs.
    pub fn most_share(&self) -> u64 {
        let trees = self.inner.trees.iter().map(|tree| tree.state().runs.iter().map(|run| run.bytes()).sum::<u64>());
        // Somebody waits for what it takes to wake up.
        let is_wanted = self.inner.exec.lock().queue.has_wake();
        match self.inner.is_asleep() && !is_wanted {
            true => self.least_share(),
            false => ((trees.sum::<u64>() / 8).max(2 << 20) * 6).max(self.working_share()),
        }
    }

    /// How long the log took to take a group and to sync.
    pub fn commits(&self) -> histogram::Seen {
        self.inner.commits.seen()
    }

    pub fn stats(&self) -> Stats {
        let exec = self.inner.exec.lock();
        let tree = |(tree, draft): (&Tree, &crate::tree::Draft)| {
            let state = tree.state();
            let frozen: u64 = state.frozen.iter().map(|frozen| frozen.root.records()).sum();
            TreeStats {
                records: draft.memtable.records() + frozen,
                frozen: state.frozen.len(),
                runs: state.runs.len(),
                run_bytes: state.runs.iter().map(|run| run.bytes()).sum(),
                record_bytes: state.runs.iter().flat_map(|run| run.files()).map(|file| file.record_bytes()).sum(),
                memtable_bytes: (draft.memtable.used_bytes() + tree.frozen_bytes()) as u64,
            }
        };
        Stats {
            seqno: exec.core.seqno,
            durable: self.inner.durable.load(Ordering::SeqCst),
            trees: self.inner.trees.iter().zip(&exec.core.drafts).map(tree).collect(),
            staged: exec.staged,
            answered: exec.answered + self.inner.views.load(Ordering::Relaxed),
            waiting: exec.queue.parked(),
            blocked: exec.queue.blocked(),
            // A manifest may say meanwhile that the log is needed from a later position on.
            log_bytes: self
                .inner
                .log_end
                .load(Ordering::SeqCst)
                .saturating_sub(self.inner.log_from.load(Ordering::SeqCst)),
        }
    }

    /// Records of a tree whose deadline is at most this may go, for good: merges drop them, and runs that hold any are written anew.
    /// For trees without weights whose keys are written once.
    pub fn drop_ended(&self, tree: usize, deadline: u64) {
        if let Some(tree) = self.inner.trees.get(tree) {
            tree.set_ended(deadline);
            self.inner.merge_due.raise();
        }
    }

    /// One step of all that threads would do, for owners without threads. False: nothing was to be done.
    pub fn step(&self) -> bool {
        jobs::step(&self.inner)
    }

    /// Writes all memtables out, however little they hold.
    pub fn flush(&self) -> Result<()> {
        jobs::flush_all(&self.inner)
    }

    /// Writes all memtables out and merges all runs of each tree into one, so that nothing takes room that can be had no more.
    pub fn merge_all(&self) -> Result<()> {
        jobs::merge_all(&self.inner)
    }

    /// Sees through what was staged, then stops the threads. Nothing is taken any more.
    pub fn close(&self) -> Result<()> {
        let inner = &*self.inner;
        let committed = inner.commit_all();
        inner.change(|exec| exec.end(&shutting_down()));
        inner.closing.store(true, Ordering::SeqCst);
        for signal in [&inner.commit_due, &inner.fetch_due, &inner.flush_due, &inner.merge_due, &inner.job_ended] {
            signal.raise();
        }
        for thread in std::mem::take(&mut *self.running.lock()) {
            _ = thread.join();
        }
        committed.and_then(|()| inner.commit_all())
    }
}

impl<S: Store> Inner<S> {
    /// The answer of a command that was parked. Without threads the work is done here.
    fn wait_for(&self, slot: Slot<S::Reply>) -> Result<S::Reply> {
        if self.options.threads {
            return slot.wait();
        }
        loop {
            if let Some(reply) = slot.take() {
                return reply;
            }
            if !jobs::step(self) {
                // What could not be done was said to whoever waited for it.
                return slot.take().unwrap_or_else(|| Err(Error::busy("the command waits for what nobody does")));
            }
        }
    }
}

impl<S: Store> Drop for Inner<S> {
    fn drop(&mut self) {
        let answers = self.exec.get_mut().take_answers(&shutting_down());
        self.tell(answers);
    }
}

pub(crate) fn shutting_down() -> Error {
    Error::closed("the server is shutting down")
}

/// A thread at work. If it ends while the store is open, nobody does its work: whoever waits for that is told.
struct Alive<'a, S: Store>(&'a Inner<S>, &'a str);

impl<S: Store> Drop for Alive<'_, S> {
    fn drop(&mut self) {
        let Self(inner, name) = self;
        if !inner.is_closing() {
            inner.thread_died(name);
        }
    }
}
