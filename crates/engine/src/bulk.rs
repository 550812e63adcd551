//! A unit that is too large for the log: its effects are written as a run, and one edit of the manifest is its commit.
//!
//! ```text
//!   hold the range ─► what memtables have of the tree is flushed ─► make: sorted effects ─► files of a run
//!        others who touch the range wait, all others go on                                     │
//!   staging stands still ─► the log up to here is durable ─► manifest names the run ─► it is seen ─► go on
//! ```
//!
//! While the range is held no memtable has a key of it, so among runs and memtables the new run may stand anywhere. A crash
//! before the manifest's edit leaves files that nothing names; the next start removes them.

use crate::engine::{Engine, Inner};
use crate::keylocks::{KeyRange, Owner};
use crate::manifest;
use crate::store::Store;
use crate::tree::Tree;
use ramekin_base::{Error, Result};
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Run, RunWriter, Value, View};
use std::sync::Arc;
use std::time::Duration;

/// Whoever waits for a range looks again so often.
const LOOK: Duration = Duration::from_millis(5);

/// Takes the effects of a large unit, in the order of their keys.
pub struct Bulk<'a, 'w> {
    writer: &'a mut RunWriter<'w>,
    view: &'a View,
    pages: &'a Pages,
    tree: &'a Tree,
    range: &'a KeyRange,
}

impl Bulk<'_, '_> {
    /// The tree as it is while the range is held.
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
        if *entry.key < *self.range.from || *entry.key >= *self.range.to {
            return Err(Error::bug("a large unit writes a key outside of the range that it holds"));
        }
        self.writer.push(entry)
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
        let inner = &*self.inner;
        let range = || KeyRange { tree, from: from.into(), to: to.into() };
        let held = inner.trees.get(tree).ok_or_else(|| Error::bug(format!("there is no tree {tree}")))?;
        let owner = hold(inner, range())?;
        // A store with a range that is held does not go to sleep.
        let made = inner.wake().and_then(|()| write(inner, held, tree, &range(), make));
        let done = made.and_then(|run| commit(inner, held, tree, run));
        inner.change(|exec| exec.core.locks.release(owner));
        inner.merge_due.raise();
        done
    }
}

/// Keeps others away from a range, once nobody is there.
fn hold<S: Store>(inner: &Inner<S>, range: KeyRange) -> Result<Owner> {
    loop {
        {
            let mut exec = inner.exec.lock();
            if let Some(why) = &exec.refuses {
                return Err(why.clone());
            }
            if !exec.core.locks.is_range_held(&range, 0) {
                let owner = exec.new_owner();
                exec.core.locks.hold_range(range, owner);
                return Ok(owner);
            }
        }
        if inner.is_closing() {
            return Err(Error::closed("the server is shutting down"));
        }
        match inner.options.threads {
            true => _ = inner.job_ended.wait_past(inner.job_ended.count(), LOOK),
            false if !crate::jobs::step(inner) => return Err(Error::busy("the range is held by another command")),
            false => {}
        }
    }
}

fn write<S: Store>(
    inner: &Inner<S>,
    tree: &Tree,
    number: usize,
    range: &KeyRange,
    make: impl FnOnce(&mut Bulk<'_, '_>) -> Result<()>,
) -> Result<Option<Arc<Run>>> {
    crate::jobs::flush_tree(inner, number)?;
    let view = View::new(Vec::new(), tree.state().runs.clone());
    let pages = inner.pages();
    inner.files.made(tree.options.shape(inner.limits().file_bytes), |writer| {
        make(&mut Bulk { writer, view: &view, pages, tree, range })
    })
}

/// Makes the run count, by one edit of the manifest.
fn commit<S: Store>(inner: &Inner<S>, tree: &Tree, number: usize, run: Option<Arc<Run>>) -> Result<u64> {
    let Some(run) = run else { return Ok(inner.exec.lock().core.seqno) };
    let mut side = inner.log.lock();
    inner.exec.lock().is_held = true;
    let mut answers = inner.lead(&mut side);
    let committed = {
        let _one = inner.manifest.lock();
        let seqno = inner.exec.lock().core.seqno + 1;
        let named = inner.check_log().and_then(|()| manifest::commit(inner, Some((number, &run, seqno))));
        let mut exec = inner.exec.lock();
        exec.is_held = false;
        if named.is_ok() {
            exec.core.seqno = seqno;
            let runs = tree.state().runs.iter().cloned().chain([run.clone()]).collect();
            tree.set_runs(runs);
            inner.publish(seqno, exec.core.roots());
            inner.made_durable(&mut exec, seqno);
        }
        named.map(|()| seqno)
    };
    drop(side);
    if committed.is_err() {
        run.files().iter().for_each(|file| inner.files.discard(file.path()));
    }
    inner.after(&mut inner.exec.lock(), &mut answers);
    inner.tell(answers);
    committed
}
