//! A unit that is too large for the log: its effects are written as runs, and one edit of the manifest is its commit.
//!
//! ```text
//!   announce ranges ─► who was in them ends ─► memtables of the trees are flushed ─► make: sorted effects ─► files of runs
//!        others who touch them wait, all others go on                                           │ tree by tree
//!   staging stands still ─► the log up to here is durable ─► manifest names the runs ─► they are seen ─► go on
//! ```
//!
//! While a range is held no memtable has a key of it, so among runs and memtables a new run may stand anywhere. A crash before the
//! manifest's edit leaves files that nothing names; the next start removes them. However a unit ends, also by a panic, its ranges
//! are let go of and staging goes on.

use crate::engine::{Engine, Inner, shutting_down};
use crate::keylocks::{KeyRange, Owner};
use crate::manifest::{self, TreeRun};
use crate::store::Store;
use crate::tree::Tree;
use ramekin_base::{Error, Result, supervise};
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Pieces, Run, RunWriter, Value, View};
use std::sync::Arc;
use std::time::Duration;

/// Whoever waits for a range looks again so often.
const LOOK: Duration = Duration::from_millis(5);
/// Ranges of one large unit: whoever touches a key meanwhile looks at all of them.
const RANGES_MAX: usize = 64;

/// Takes the effects of a large unit on one tree, in the order of their keys.
pub struct Bulk<'a, 'w> {
    writer: &'a mut RunWriter<'w>,
    view: &'a View,
    pages: &'a Pages,
    tree: &'a Tree,
    number: usize,
    /// Those of the tree which are not written yet, in the order of keys.
    ranges: &'a [KeyRange],
}

impl Bulk<'_, '_> {
    /// The tree whose effects are taken.
    pub fn tree(&self) -> usize {
        self.number
    }

    /// The tree as it is while the ranges are held; what others wrote outside of them shows up to now.
    pub fn view(&self) -> &View {
        self.view
    }

    /// Writes a value under a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (weight, first) = match self.tree.options.weigh {
            Some(weigh) => {
                let before = self.weight_of(key, weigh)?;
                (weigh(value) - before.unwrap_or(0), before.is_none())
            }
            None => (0, false),
        };
        self.push(&Entry { key, value: Value::Inline(value), weight, first })
    }

    /// Writes a value of `len` bytes, which `pieces` hands out, under a key of a tree without weights.
    pub fn put_pieces(&mut self, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        if self.tree.options.weigh.is_some() {
            return Err(Error::bug("a value in pieces has no weight"));
        }
        self.check_range(key)?;
        self.writer.push_big(&Entry { key, value: Value::Inline(&[]), weight: 0, first: false }, len, pieces)
    }

    /// Removes a key, of which the caller has seen that it is there.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        let weight = match self.tree.options.weigh {
            Some(weigh) => -self.weight_of(key, weigh)?.unwrap_or(0),
            None => 0,
        };
        self.push(&Entry { key, value: Value::Deleted, weight, first: false })
    }

    /// Removes a key whose value is at hand.
    pub fn delete_known(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let weight = self.tree.options.weigh.map_or(0, |weigh| -weigh(value));
        self.push(&Entry { key, value: Value::Deleted, weight, first: false })
    }

    fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.check_range(entry.key)?;
        self.writer.push(entry)
    }

    fn check_range(&mut self, key: &[u8]) -> Result<()> {
        while let [range, rest @ ..] = self.ranges
            && *key >= *range.to
        {
            self.ranges = rest;
        }
        match self.ranges.first().is_some_and(|range| range.contains(self.number, key)) {
            true => Ok(()),
            false => Err(Error::bug("a large unit writes a key outside of the ranges that it holds")),
        }
    }

    fn weight_of(&self, key: &[u8], weigh: fn(&[u8]) -> i64) -> Result<Option<i64>> {
        self.view.get(self.pages, key, |found| match (found.entry.value, found.big()) {
            (Value::Inline(value), _) => Ok(weigh(value)),
            (_, Some(big)) => {
                let mut value = vec![0; big.len() as usize];
                big.read(self.pages, 0, &mut value)?;
                Ok(weigh(&value))
            }
            _ => Ok(0),
        })
    }
}

impl<S: Store> Engine<S> {
    /// Changes the keys of one tree from one on and below another as one unit of any size: `make` hands over the effects in the
    /// order of their keys. Whole or absent, and durable when it returns; commands on other keys go on meanwhile. Its number.
    pub fn bulk(
        &self,
        tree: usize,
        (from, to): (&[u8], &[u8]),
        make: impl FnOnce(&mut Bulk<'_, '_>) -> Result<()>,
    ) -> Result<u64> {
        let mut make = Some(make);
        self.bulk_over(&[(tree, from, to)], |bulk| make.take().map_or(Ok(()), |make| make(bulk)))
    }

    /// The same over several ranges (tree, from, to), in the order of trees and keys; one key is a range of its own. `make` is called
    /// once for each tree, in this order.
    pub fn bulk_over(
        &self,
        ranges: &[(usize, &[u8], &[u8])],
        mut make: impl FnMut(&mut Bulk<'_, '_>) -> Result<()>,
    ) -> Result<u64> {
        let inner = &*self.inner;
        let ranges = checked(inner, ranges)?;
        let held = Held::take(inner, &ranges)?;
        // A store with a range that is held does not go to sleep.
        inner.wake()?;
        let runs = write(inner, &ranges, &mut make)?;
        let done = commit(inner, &ranges, &runs);
        drop(held);
        inner.merge_due.raise();
        done
    }
}

fn checked<S: Store>(inner: &Inner<S>, ranges: &[(usize, &[u8], &[u8])]) -> Result<Vec<KeyRange>> {
    if ranges.len() > RANGES_MAX {
        return Err(Error::too_large(format!(
            "a large unit has {} ranges; at most {RANGES_MAX} are allowed",
            ranges.len()
        )));
    }
    let is_ordered = |pair: &[(usize, &[u8], &[u8])]| (pair[0].0, pair[0].2) <= (pair[1].0, pair[1].1);
    if !ranges.windows(2).all(is_ordered) || ranges.iter().any(|(tree, ..)| *tree >= inner.trees.len()) {
        return Err(Error::bug("the ranges of a large unit meet, are not in order or are of a tree that is not there"));
    }
    Ok(ranges.iter().map(|(tree, from, to)| KeyRange { tree: *tree, from: (*from).into(), to: (*to).into() }).collect())
}

/// Ranges that others stay away from, until this is gone.
struct Held<'a, S: Store> {
    inner: &'a Inner<S>,
    ranges: &'a [KeyRange],
    owner: Owner,
}

impl<'a, S: Store> Held<'a, S> {
    /// Keeps others away from ranges, and returns when nobody is there any more: whoever comes from now on does not.
    fn take(inner: &'a Inner<S>, ranges: &'a [KeyRange]) -> Result<Self> {
        let owner = inner.exec.lock().announce(ranges)?;
        let held = Self { inner, ranges, owner };
        held.wait().map(|()| held)
    }

    fn wait(&self) -> Result<()> {
        let inner = self.inner;
        loop {
            {
                let mut exec = inner.exec.lock();
                exec.check_open()?;
                if exec.core.locks.grant(self.owner) {
                    return Ok(());
                }
            }
            if inner.is_closing() {
                return Err(shutting_down());
            }
            match inner.options.threads {
                true => _ = inner.job_ended.wait_past(inner.job_ended.count(), LOOK),
                false if !crate::jobs::step(inner) => return Err(Error::busy("the range is held by another command")),
                false => {}
            }
        }
    }
}

impl<S: Store> Drop for Held<'_, S> {
    fn drop(&mut self) {
        self.inner.change(|exec| exec.release_ranges(self.ranges, self.owner));
    }
}

/// Nothing is staged until this is gone.
struct Still<'a, S: Store>(&'a Inner<S>);

impl<'a, S: Store> Still<'a, S> {
    fn of(inner: &'a Inner<S>) -> Self {
        inner.exec.lock().is_held = true;
        Self(inner)
    }
}

impl<S: Store> Drop for Still<'_, S> {
    fn drop(&mut self) {
        self.0.exec.lock().is_held = false;
    }
}

/// The effects as runs, one for each tree that has any.
fn write<S: Store>(
    inner: &Inner<S>,
    ranges: &[KeyRange],
    make: &mut dyn FnMut(&mut Bulk<'_, '_>) -> Result<()>,
) -> Result<Vec<TreeRun>> {
    let mut runs = Vec::new();
    for ranges in ranges.chunk_by(|one, next| one.tree == next.tree) {
        match write_tree(inner, ranges[0].tree, ranges, make) {
            Ok(run) => runs.extend(run.map(|run| (ranges[0].tree, run))),
            Err(error) => {
                discard(inner, &runs);
                return Err(error);
            }
        }
    }
    Ok(runs)
}

fn write_tree<S: Store>(
    inner: &Inner<S>,
    number: usize,
    ranges: &[KeyRange],
    make: &mut dyn FnMut(&mut Bulk<'_, '_>) -> Result<()>,
) -> Result<Option<Arc<Run>>> {
    crate::jobs::flush_tree(inner, number)?;
    let tree = &inner.trees[number];
    let view = {
        let mut exec = inner.exec.lock();
        let draft = &mut exec.core.drafts[number];
        let root = draft.publish();
        tree.view(draft.number, Some(&root))
    };
    let pages = inner.pages();
    inner.files.made(tree.shape(inner.limits().file_bytes), |writer| {
        supervise::caught("a large unit", || make(&mut Bulk { writer, view: &view, pages, tree, number, ranges }))
    })
}

fn discard<S: Store>(inner: &Inner<S>, runs: &[TreeRun]) {
    let files = runs.iter().flat_map(|(_, run)| run.files());
    files.for_each(|file| inner.files.discard(file.path()));
}

/// Makes the runs count, by one edit of the manifest.
fn commit<S: Store>(inner: &Inner<S>, ranges: &[KeyRange], runs: &[TreeRun]) -> Result<u64> {
    if runs.is_empty() {
        return Ok(inner.exec.lock().core.seqno);
    }
    let (mut answers, named, lost) = {
        let mut side = inner.log.lock();
        let _still = Still::of(inner);
        let answers = inner.lead(&mut side);
        let was_closed = inner.files.storage.closed().is_some();
        let named = supervise::caught("an edit of the manifest", || Ok(name(inner, ranges, runs)));
        // A panic, or a sync that failed, leaves an edit of which nobody knows whether a start finds it.
        let lost = match &named {
            Err(panic) => Some(panic.clone()),
            Ok(Err(error)) if !was_closed && inner.files.storage.closed().is_some() => Some(error.clone()),
            Ok(_) => None,
        };
        lost.iter().for_each(|error| _ = inner.close_manifest(error));
        (answers, named, lost)
    };
    match (&named, &lost) {
        (_, Some(error)) => inner.lose_manifest(error),
        (Ok(Err(_)), _) => discard(inner, runs),
        _ => {}
    }
    inner.after(&mut inner.exec.lock(), &mut answers);
    inner.tell(answers);
    named?
}

/// Names the runs in the manifest, and shows them. Nothing is staged meanwhile. The number of the unit.
fn name<S: Store>(inner: &Inner<S>, ranges: &[KeyRange], runs: &[TreeRun]) -> Result<u64> {
    let _one = inner.manifest.lock();
    let seqno = inner.exec.lock().core.seqno + 1;
    inner.check_log()?;
    manifest::commit(inner, Some((runs, seqno)))?;
    let mut exec = inner.exec.lock();
    exec.core.seqno = seqno;
    for (number, run) in runs {
        inner.trees[*number].add_bulk(run.clone());
    }
    let roots = exec.core.roots();
    inner.publish(seqno, roots);
    inner.made_durable(&mut exec, seqno);
    for KeyRange { tree, from, to } in ranges {
        exec.queue.range_written(*tree, (from, to));
    }
    Ok(seqno)
}
