//! Work beside commands: commits that nobody leads, fetches, flushes, merges.
//!
//! ```text
//!   committer   answers wait, or the interval has passed          fetcher   all parked commands' pages in one batch
//!   flusher     frozen memtable ─► run ─► manifest ─► trim        merger    neighbours ─► one run, file by file
//! ```
//!
//! A flush and a merge prepare their files without a lock and are installed by a swap under the executor's. Each has memory for
//! good, so what frees memory never waits for memory. A panic ends the job alone; it is tried again later and later.

use crate::engine::{Inner, shutting_down};
use crate::fetch::{Fetched, Wanted, fetch};
use crate::health::Source;
use crate::manifest;
use crate::options::Durability;
use crate::queue::Waiting;
use crate::store::Store;
use crate::tree::{CLEAN, Draft, Frozen, Tree};
use ramekin_base::{Error, Kind, Result, nonblocking, supervise};
use ramekin_memory::Account;
use ramekin_runs::Run;
use ramekin_runs::compaction::{RUNS_MAX, TIER, due, flush_bytes};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The runs of a tree, the oldest first.
type Runs = Arc<[Arc<Run>]>;

/// Threads look at the clock so often.
const LOOK: Duration = Duration::from_millis(250);
/// And no more often than so, however short a time is left.
const LOOK_LEAST: Duration = Duration::from_millis(1);
/// A memtable that nobody wrote for so long is written out, if it holds as much as this.
pub(crate) const IDLE_MS: u64 = 2_000;
pub(crate) const IDLE_BYTES: usize = 64 << 10;
/// Frozen memtables of one tree.
const FROZEN_MAX: usize = 1;
/// Commands whose pages are read in one batch.
const FETCH_MAX: usize = 256;
/// The manifest names all files of a tree each time: a merge into the bottom is installed about so often, however many it has.
const INSTALLS: usize = 16;
/// A write waits at most so long for merges that are behind.
const DELAY_MAX: Duration = Duration::from_millis(1);

pub(crate) fn run_committer<S: Store>(inner: &Inner<S>) -> Result<()> {
    let (mut seen, mut synced) = (0, inner.options.clock.now());
    let every = match inner.options.durability {
        Durability::Interval(every) => every,
        Durability::Each | Durability::No => LOOK,
    };
    while !inner.is_closing() {
        let (now, deadline) = (inner.options.clock.now(), inner.exec.lock().queue.next_deadline());
        seen = inner.commit_due.wait_past(seen, patience(now, every, deadline));
        let now = inner.options.clock.now();
        let is_over = matches!(inner.options.durability, Durability::Interval(_)) && now >= synced + every;
        // What fails says so to whoever waits.
        wake_if_due(inner);
        let is_due = inner.exec.lock().is_commit_due();
        if is_due || is_over {
            synced = now;
            _ = inner.commit_all();
        }
        inner.try_room();
        expire(inner);
    }
    Ok(())
}

/// How long the committer may wait: not past the time of a command that waits for a key.
fn patience(now: Duration, every: Duration, deadline: Option<Duration>) -> Duration {
    let left = deadline.map_or(LOOK, |deadline| deadline.saturating_sub(now).max(LOOK_LEAST));
    every.min(LOOK).min(left)
}

fn wake_if_due<S: Store>(inner: &Inner<S>) -> bool {
    let is_due = inner.exec.lock().is_wake_due();
    is_due && inner.wake().is_ok()
}

/// Tells those who waited too long for a key.
fn expire<S: Store>(inner: &Inner<S>) {
    let now = inner.options.clock.now();
    inner.change(|exec| exec.expire(now));
}

pub(crate) fn run_fetcher<S: Store>(inner: &Inner<S>) -> Result<()> {
    let mut seen = 0;
    while !inner.is_closing() {
        seen = inner.fetch_due.wait_past(seen, LOOK);
        while fetch_some(inner) {}
    }
    Ok(())
}

/// Reads what parked commands need, and stages them anew. False: none is parked.
fn fetch_some<S: Store>(inner: &Inner<S>) -> bool {
    // Who walks keeps those waiting whose records come in one batch no longer than one walk takes.
    let batch = fetch_batch(inner, FETCH_MAX, false);
    fetch_batch(inner, 1, true) || batch
}

fn fetch_batch<S: Store>(inner: &Inner<S>, most: usize, walks: bool) -> bool {
    let mut reading = Reading { inner, parked: inner.exec.lock().queue.take_fetch(most, walks).collect() };
    if reading.parked.is_empty() {
        return false;
    }
    let outcomes = fetch_for(inner, reading.parked.make_contiguous());
    inner.change(|exec| {
        for outcome in outcomes {
            if let Some(waiting) = reading.parked.pop_front() {
                exec.was_read(&inner.around(), waiting, outcome);
            }
        }
    });
    true
}

/// Commands whose records are read. Those that are left by a panic are told.
struct Reading<'a, S: Store> {
    inner: &'a Inner<S>,
    parked: VecDeque<Waiting<S>>,
}

impl<S: Store> Drop for Reading<'_, S> {
    fn drop(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let error = || Err(Error::bug("a fetch for commands panicked (a bug of the server)"));
        let left = std::mem::take(&mut self.parked);
        self.inner
            .change(|exec| left.into_iter().for_each(|waiting| exec.was_read(&self.inner.around(), waiting, error())));
    }
}

fn fetch_for<S: Store>(inner: &Inner<S>, parked: &mut [Waiting<S>]) -> Vec<Result<()>> {
    let mut wanted = Vec::with_capacity(parked.len());
    for Waiting { needs, looks, fetched, .. } in parked {
        let fetched = fetched.get_or_insert_with(|| Fetched::new(&inner.files.accounts.reads));
        wanted.push(Wanted { needs, looks, fetched, outcome: Ok(()) });
    }
    let read = supervise::caught("a fetch for commands", || {
        fetch(&inner.trees, inner.pages(), &mut wanted);
        Ok(())
    });
    wanted.into_iter().map(|want| want.outcome.and(read.clone())).collect()
}

pub(crate) fn run_flusher<S: Store>(inner: &Inner<S>) -> Result<()> {
    let mut seen = 0;
    while !inner.is_closing() {
        tidy(inner);
        while !inner.is_closing() && did(&flush_one(inner)) {}
        _ = inner.sleep();
        seen = inner.flush_due.wait_past(seen, LOOK);
    }
    Ok(())
}

pub(crate) fn run_merger<S: Store>(inner: &Inner<S>) -> Result<()> {
    let mut seen = 0;
    while !inner.is_closing() {
        while !inner.is_closing() && did(&merge_one(inner)) {}
        seen = inner.merge_due.wait_past(seen, LOOK);
    }
    Ok(())
}

/// Whether there was something to do. What failed is not tried again at once, and there may be more beside it.
fn did(outcome: &Result<bool>) -> bool {
    outcome.as_ref().map_or_else(|error| !matches!(error.kind(), Kind::Closed | Kind::Cancelled), |did| *did)
}

/// One step of everything, in one thread. False: there was nothing to do.
pub(crate) fn step<S: Store>(inner: &Inner<S>) -> bool {
    let mut did = wake_if_due(inner);
    let is_due = inner.exec.lock().is_commit_due();
    did |= is_due && inner.commit_all().is_ok();
    did |= fetch_some(inner);
    tidy(inner);
    did |= self::did(&flush_one(inner));
    did |= self::did(&merge_one(inner));
    did |= inner.sleep();
    inner.try_room();
    expire(inner);
    did
}

/// Freezes memtables that pin too much of the log, that are larger than they may be by now, or that nobody writes any more.
fn tidy<S: Store>(inner: &Inner<S>) {
    let (now_ms, limits) = (inner.now_ms(), inner.limits());
    inner.change(|exec| {
        let end = inner.log_end.load(Ordering::SeqCst);
        for tree in 0..inner.trees.len() {
            let draft = &mut exec.core.drafts[tree];
            if draft.seen.0 != draft.last {
                draft.seen = (draft.last, now_ms);
            }
            let used = draft.memtable.used_bytes();
            let is_idle = now_ms - draft.seen.1 >= IDLE_MS && used >= IDLE_BYTES;
            let pins = end.saturating_sub(draft.from) >= limits.log_bytes;
            if draft.from != CLEAN && (is_idle || pins) {
                inner.rotate(exec, tree);
            }
        }
        // The share has become smaller, or there was a large unit.
        if exec.core.held_bytes() > limits.memtable_bytes
            && let Some(tree) = exec.core.largest()
        {
            inner.rotate(exec, tree);
        }
    });
}

impl<S: Store> Inner<S> {
    /// A new memtable takes the place of a tree's, which waits for its flush if it holds anything. False: too much waits already, or
    /// there is no memory.
    pub(crate) fn rotate(&self, exec: &mut crate::execute::Exec<S>, tree: usize) -> bool {
        let state = self.trees[tree].state();
        if state.frozen.len() >= FROZEN_MAX || state.runs.len() >= RUNS_MAX {
            return false;
        }
        let (limits, account) = (self.limits(), &self.files.accounts.memtables);
        let (frozen, draft) = (self.frozen_bytes(), &mut exec.core.drafts[tree]);
        if draft.is_fresh() {
            exec.queue.has_place(tree);
            return true;
        }
        // As much as is flushed may be written meanwhile, and no more is held than that.
        let is_over = frozen > 0 && frozen + draft.memtable.held_bytes() as u64 > limits.memtable_bytes;
        if is_over && draft.from != CLEAN {
            return false;
        }
        // Nobody is waited for under the executor's lock.
        let new = nonblocking::scope(|| Draft::new(draft.number + 1, limits.memtable_most(), account));
        let Ok(new) = new else { return false };
        let full = std::mem::replace(draft, new);
        exec.queue.has_place(tree);
        // Else it is of units that were dropped.
        if full.from != CLEAN {
            self.trees[tree].add_frozen(full.freeze());
            self.flush_due.raise();
        }
        true
    }

    /// Bytes of memtables that wait for their flush.
    pub(crate) fn frozen_bytes(&self) -> u64 {
        self.trees.iter().map(|tree| tree.frozen_bytes() as u64).sum()
    }

    /// Replaces memtables that are full, and stages again what waited for that.
    pub(crate) fn rotate_full(&self, exec: &mut crate::execute::Exec<S>) {
        for tree in 0..self.trees.len() {
            if exec.queue.is_full(tree) && self.rotate(exec, tree) {
                exec.serve(&self.around());
            }
        }
    }

    /// Where merges are behind, whoever writes waits a little for them.
    pub(crate) fn slow_down(&self) {
        let most = self.trees.iter().map(|tree| tree.state().runs.len()).max().unwrap_or(0);
        if most > TIER + 1 && self.options.threads {
            let part = (most - TIER) as u32;
            self.merge_due.raise();
            self.job_ended.wait_past(self.job_ended.count(), DELAY_MAX * part.min(RUNS_MAX as u32) / RUNS_MAX as u32);
        }
    }

    /// Writes the manifest with what `lender` has for good and does not use, and takes note of what became of it.
    pub(crate) fn commit_manifest(&self, lender: &Account) -> Result<()> {
        let (_one, _lent) = (self.manifest.lock(), self.files.lend(lender));
        let written = manifest::commit(self, None);
        self.health.note(Source::Manifest, "", &written, self.now_ms());
        written
    }
}

/// Writes the oldest frozen memtable out, but for those of trees whose last flush failed just now. False: there is none.
pub(crate) fn flush_one<S: Store>(inner: &Inner<S>) -> Result<bool> {
    if inner.is_poisoned() {
        return Ok(false);
    }
    let now_ms = inner.now_ms();
    let first = |(number, tree): (usize, _)| Some((number, tree, Tree::state(tree).frozen.first().cloned()?));
    let rests = |number: usize| inner.health.waits(&Source::Flush(number), now_ms);
    let frozen = inner.trees.iter().enumerate().filter_map(first).filter(|(number, ..)| !rests(*number));
    let Some((number, tree, frozen)) = frozen.min_by_key(|(.., held)| held.from) else { return Ok(false) };
    let flushed = supervise::caught("a flush", || flush(inner, tree, frozen));
    inner.health.note(Source::Flush(number), tree.options.name, &flushed, inner.now_ms());
    // Who waits for room on a full disk would wait for whoever uses it: that takes too long.
    let full = flushed.as_ref().err().filter(|error| error.kind() == Kind::NoSpace).cloned();
    inner.change(|exec| exec.stick(full));
    inner.job_ended.raise();
    flushed.map(|()| true)
}

fn flush<S: Store>(inner: &Inner<S>, tree: &Tree, frozen: Arc<Frozen>) -> Result<()> {
    // The log first: no file holds what a start would not find in it.
    inner.commit(frozen.last)?;
    let limits = inner.limits();
    // One with a large unit takes more than others; where not all of that can be had for good, it may do without.
    let (work, account) = (limits.flush_work.max(flush_bytes(frozen.bytes as u64)), &inner.files.accounts.flush);
    if account.set_min_reservation(work).is_err() {
        account.raise_min_reservation(work);
    }
    let shape = tree.shape(limits.file_bytes);
    let run = inner.files.flush(&frozen.root, (shape, tree.state().runs.is_empty()))?;
    inner.change(|_| {
        tree.flushed(&frozen, run);
        inner.publish_again();
        // Its memory is there for whoever has waited for it.
        drop(frozen);
    });
    inner.merge_due.raise();
    if !inner.is_asleep() {
        // A large one may have had more for good; what is wanted now is no more than that.
        _ = inner.hold(&inner.limits());
    }
    inner.commit_manifest(&inner.files.accounts.flush)
}

/// Merges neighbouring runs of the tree that has most of them among those that are due, but for those whose last merge failed just
/// now. False: there is none.
pub(crate) fn merge_one<S: Store>(inner: &Inner<S>) -> Result<bool> {
    if inner.is_poisoned() {
        return Ok(false);
    }
    let now_ms = inner.now_ms();
    let rests = |number: usize| inner.health.waits(&Source::Merge(number), now_ms);
    let is_due = |(number, tree): (usize, _)| Some((number, tree, merge_due(tree)?));
    // Writes wait next for the tree that has the most runs.
    let all = inner.trees.iter().enumerate().filter_map(is_due).filter(|(number, ..)| !rests(*number));
    let Some((number, tree, (runs, range))) = all.max_by_key(|(.., (runs, _))| runs.len()) else { return Ok(false) };
    let merged = supervise::caught("a merge", || merge(inner, tree, runs.to_vec(), range));
    inner.health.note(Source::Merge(number), tree.options.name, &merged, inner.now_ms());
    inner.job_ended.raise();
    merged.map(|()| true)
}

/// The runs of a tree, and which of them are to be merged.
fn merge_due(tree: &Tree) -> Option<(Runs, Range<usize>)> {
    let state = tree.state();
    let sizes: Vec<u64> = state.runs.iter().map(|run| run.bytes()).collect();
    let range = due(&sizes, state.frozen.is_empty());
    // What has ended takes room until its run is written anew.
    let is_wanted = tree.holds_ended() || tree.is_asked_whole() && sizes.len() > 1;
    let range = range.or_else(|| is_wanted.then_some(0..sizes.len()));
    range.map(|range| (state.runs.clone(), range))
}

/// `runs` are those of the tree when it began: only flushes add others, behind them.
fn merge<S: Store>(inner: &Inner<S>, tree: &Tree, mut runs: Vec<Arc<Run>>, range: Range<usize>) -> Result<()> {
    let (bottom, shape) = (range.start == 0, tree.shape(inner.limits().file_bytes));
    let is_whole = range == (0..runs.len());
    let mut known = runs.len();
    let files: usize = runs[range.clone()].iter().map(|run| run.files().len()).sum();
    let output = inner.files.merge(runs[range.clone()].to_vec(), (shape, bottom), &mut |(outputs, rest), used| {
        if inner.is_closing() {
            return Err(shutting_down());
        }
        if !bottom || outputs.len() < *used + files.div_ceil(INSTALLS) {
            return Ok(());
        }
        // At the bottom files count before the last one is there, so that what they replace can go.
        *used = outputs.len();
        let first = Run::new(outputs.iter().chain(rest[0].files()).cloned().collect())?;
        let others = rest[1..].iter().chain(&runs[range.end..]).cloned();
        install(inner, tree, std::iter::once(Arc::new(first)).chain(others).collect(), &mut known)
    })?;
    runs.splice(range, output);
    if is_whole {
        tree.ask_whole(false);
    }
    install(inner, tree, runs, &mut known)
}

/// Swaps in what a merge made of the first `known` runs, and names it in the manifest.
fn install<S: Store>(inner: &Inner<S>, tree: &Tree, mut list: Vec<Arc<Run>>, known: &mut usize) -> Result<()> {
    inner.change(|_| {
        let newer = tree.state().runs[*known..].to_vec();
        *known = list.len();
        list.extend(newer);
        tree.set_runs(list);
        inner.publish_again();
    });
    inner.commit_manifest(&inner.files.accounts.merge)
}

/// Freezes and writes out all memtables.
pub(crate) fn flush_all<S: Store>(inner: &Inner<S>) -> Result<()> {
    inner.wake()?;
    (0..inner.trees.len()).try_for_each(|tree| flush_tree(inner, tree))
}

/// Writes out all memtables, then merges all runs of each tree into one.
pub(crate) fn merge_all<S: Store>(inner: &Inner<S>) -> Result<()> {
    flush_all(inner)?;
    for (number, tree) in inner.trees.iter().enumerate() {
        tree.ask_whole(true);
        let merged = merge_whole(inner, number);
        tree.ask_whole(false);
        merged?;
    }
    Ok(())
}

/// Waits until the runs of a tree are one, which holds nothing that has ended.
fn merge_whole<S: Store>(inner: &Inner<S>, number: usize) -> Result<()> {
    let tree = &inner.trees[number];
    while tree.holds_ended() || tree.is_asked_whole() && tree.state().runs.len() > 1 {
        if let Some(fault) = inner.health.of(&Source::Merge(number)) {
            return Err(fault.error);
        }
        if inner.is_closing() {
            return Err(shutting_down());
        }
        match inner.options.threads {
            true => {
                let seen = inner.job_ended.count();
                inner.merge_due.raise();
                inner.job_ended.wait_past(seen, LOOK);
            }
            false => _ = merge_one(inner)?,
        }
    }
    Ok(())
}

/// Why the memtables of a tree are not written out: its own flush failed, or a merge without which it takes no other run.
fn stops<S: Store>(inner: &Inner<S>, tree: usize) -> Option<Error> {
    let merge = || inner.health.of(&Source::Merge(tree)).filter(|_| inner.trees[tree].state().runs.len() >= RUNS_MAX);
    let failed = inner.health.of(&Source::Flush(tree)).or_else(merge).map(|fault| fault.error);
    failed.or_else(|| inner.is_closing().then(shutting_down))
}

/// Writes out what the memtables of a tree hold now.
pub(crate) fn flush_tree<S: Store>(inner: &Inner<S>, tree: usize) -> Result<()> {
    let last = {
        let exec = inner.exec.lock();
        let draft = &exec.core.drafts[tree];
        if draft.from == CLEAN { draft.number - 1 } else { draft.number }
    };
    loop {
        inner.commit_all()?;
        {
            let mut exec = inner.exec.lock();
            if exec.core.drafts[tree].number <= last {
                inner.rotate(&mut exec, tree);
            }
            let is_newer = exec.core.drafts[tree].number > last;
            if is_newer && inner.trees[tree].state().frozen.iter().all(|frozen| frozen.number > last) {
                return Ok(());
            }
        }
        if inner.options.threads {
            let seen = inner.job_ended.count();
            inner.flush_due.raise();
            inner.merge_due.raise();
            inner.job_ended.wait_past(seen, LOOK);
            stops(inner, tree).map_or(Ok(()), Err)?;
        } else {
            // Another tree may fail meanwhile, and this one be written out.
            let did = did(&flush_one(inner)) || did(&merge_one(inner));
            if let Some(error) = stops(inner, tree) {
                return Err(error);
            }
            if !did {
                return Err(Error::busy("a memtable cannot be written out for the moment"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committer_waits_no_longer_than_the_first_that_waits_for_a_key() {
        let ms = Duration::from_millis;
        assert_eq!(patience(ms(1_000), ms(500), None), LOOK);
        assert_eq!(patience(ms(1_000), ms(100), Some(ms(9_000))), ms(100));
        assert_eq!(patience(ms(1_000), ms(100), Some(ms(1_007))), ms(7));
        // It is over, and told in this round.
        assert_eq!(patience(ms(1_000), ms(100), Some(ms(900))), LOOK_LEAST);
    }
}
