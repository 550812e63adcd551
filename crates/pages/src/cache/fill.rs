//! Brings claimed pages into memory: one batch of reads over all files, each page checked, all or
//! nothing. A panic on the way is an error like any other: whoever waits for the pages must hear that they do not come.
//!
//! ```text
//!   claim ─► Claims ─┬─ fill, publish ─► in memory
//!                    └─ an error, a panic, whatever ends the work that has them ─► out of memory, others may claim them
//! ```

use crate::cache::Cache;
use crate::cache::file::PageFile;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_disk::ReadOp;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A page that is `Moving` and ours to read.
#[derive(Clone, Copy)]
pub(crate) struct PendingRead<'a> {
    pub(crate) file: &'a PageFile,
    /// Its place in the region.
    pub(crate) page: u32,
    /// Where its bytes go: to its own place, or into a bypass buffer.
    pub(crate) to: u32,
    /// What it starts with if it becomes a cached page.
    pub(crate) usage: u16,
}

impl PendingRead<'_> {
    /// A page whose bytes go to its own place is claimed; one that goes into a bypass buffer is not.
    pub(crate) fn is_bypassing(&self) -> bool {
        self.to != self.page
    }
}

/// Pages that a piece of work has claimed, each of which others may wait for. Those that it has not published when it ends,
/// however it does, are let go of.
pub(crate) struct Claims<'a> {
    cache: &'a Cache,
    list: Vec<PendingRead<'a>>,
    are_held: bool,
}

impl<'a> Claims<'a> {
    pub(crate) fn new(cache: &'a Cache) -> Self {
        Self { cache, list: Vec::new(), are_held: true }
    }

    /// Adds a page that is `Moving` by the caller's hand.
    pub(crate) fn push(&mut self, claim: PendingRead<'a>) {
        self.list.push(claim);
    }

    /// They are claimed no more; who they were is still told.
    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.are_held) {
            self.list
                .iter()
                .filter(|claim| !claim.is_bypassing())
                .for_each(|claim| self.cache.space.state(claim.page).clear());
            self.cache.events.notify();
        }
    }

    /// They are in memory, and there may be others.
    pub(crate) fn published(&mut self) {
        self.list.clear();
    }
}

impl<'a> Deref for Claims<'a> {
    type Target = [PendingRead<'a>];

    fn deref(&self) -> &[PendingRead<'a>] {
        &self.list
    }
}

impl DerefMut for Claims<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.list
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if !self.list.is_empty() {
            self.let_go();
        }
    }
}

/// Does `work`; if it panics, that is an error: it holds what must be given back.
pub(crate) fn unharmed<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::bug("reading pages ended in a panic, which the log tells of"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

impl Cache {
    /// Reads the pages, neighbours in runs of at most `run` pages. After an error all that were claimed are out
    /// of memory again; paying for them stays the caller's affair. `claims` is sorted by page. Returns how many reads it
    /// took.
    pub(crate) fn fill(&self, claims: &mut Claims<'_>, run: usize) -> Result<usize> {
        let filled = unharmed(|| self.read(claims, run).and_then(|reads| self.check(claims).map(|()| reads)));
        if filled.is_err() {
            let pages: Vec<u32> = claims.iter().filter(|claim| !claim.is_bypassing()).map(|claim| claim.page).collect();
            // What a read has left there goes with them.
            claims.are_held = false;
            self.space.discard(&pages);
            self.events.notify();
        }
        filled
    }

    fn read(&self, claims: &[PendingRead<'_>], run: usize) -> Result<usize> {
        let neighbours = |a: &PendingRead<'_>, b: &PendingRead<'_>| {
            a.page + 1 == b.page && a.to + 1 == b.to && std::ptr::eq(a.file, b.file)
        };
        let mut ops: Vec<ReadOp<'_>> = Vec::with_capacity(claims.len().min(64));
        for run in claims.chunk_by(neighbours).flat_map(|near| near.chunks(run)) {
            let first = run[0];
            let at = u64::from(first.page - first.file.first_page()) * PAGE as u64;
            // SAFETY: the places are neighbours inside one file's range, and `Moving` by our claim, so nobody else
            // reads or writes them until we publish or discard them; or they are a run of bypass buffers of ours.
            let buf = unsafe { std::slice::from_raw_parts_mut(self.space.address(first.to), run.len() * PAGE) };
            ops.push(ReadOp { file: first.file.disk_file(), at, buf });
        }
        self.disk.read(&mut ops)?;
        Ok(ops.len())
    }

    fn check(&self, claims: &[PendingRead<'_>]) -> Result<()> {
        let damaged = |claim: &&PendingRead<'_>| {
            // SAFETY: as in `read`: ours alone, and the reads are over.
            let bytes = unsafe { std::slice::from_raw_parts(self.space.address(claim.to), PAGE) };
            !claim.file.verify(claim.page - claim.file.first_page(), bytes)
        };
        match claims.iter().find(damaged) {
            Some(claim) => Err(claim.file.damaged(&[claim.page - claim.file.first_page()])),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, Priority};
    use ramekin_disk::{Engine, Local};
    use ramekin_memory::Budget;
    use std::sync::Arc;

    #[test]
    fn pages_that_work_had_claimed_which_panicked_are_read_by_others_and_their_file_closes() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
        let budget = Budget::new(16 << 20);
        let account = budget.root().child("files", "");
        let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
        let mut writer = pages.create(&folder.path().join("a"), &account).unwrap();
        writer.begin(1, Priority::Vectors).unwrap();
        (0..8 * PAGE / 64).for_each(|_| writer.write(&[7; 64]).unwrap());
        writer.end().unwrap();
        writer.finish(&[]).unwrap();
        let file = pages.open(&folder.path().join("a"), &account).unwrap();
        let cache = &*pages.cache;
        let states = || file.range(0).map(|page| cache.space.state(page));
        let panicked = unharmed::<()>(|| {
            let mut claims = Claims::new(cache);
            for page in file.range(0) {
                assert!(cache.space.state(page).claim());
                claims.push(PendingRead { file: &file, page, to: page, usage: 0 });
            }
            assert!(states().all(|state| state.is_moving()));
            panic!("planted by a test");
        });
        assert!(panicked.is_err() && states().all(|state| state.is_out()));
        let section = file.section(1).unwrap();
        section.load().unwrap();
        assert!(section.resident().unwrap().iter().all(|byte| *byte == 7));
        drop((section, file));
        assert_eq!(account.used(), 0);
    }
}
