//! Brings claimed pages into memory: one batch of reads over all files, each page checked, all or
//! nothing. A panic on the way is an error like any other: whoever waits for the pages must hear that they do not come.

use crate::cache::Cache;
use crate::file::PageFile;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_disk::ReadOp;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A page that is `Moving` and ours to read.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) file: &'a PageFile,
    /// Its place in the region.
    pub(crate) page: u32,
    /// Where its bytes go: to its own place, or into a frame.
    pub(crate) to: u32,
    /// What it starts with if it becomes a cached page.
    pub(crate) heat: u16,
}

impl Claim<'_> {
    /// A page whose bytes go to its own place is claimed; one that goes into a frame is not.
    pub(crate) fn is_framed(&self) -> bool {
        self.to != self.page
    }
}

impl Cache {
    /// Reads the pages, neighbours in runs of at most `run` pages. After an error all that were claimed are out
    /// of memory again; paying for them stays the caller's affair. `claims` is sorted by page. Returns how many reads it
    /// took.
    pub(crate) fn fill(&self, claims: &[Claim<'_>], run: usize) -> Result<usize> {
        let fill = || self.read(claims, run).and_then(|reads| self.check(claims).map(|()| reads));
        let panicked = |_| Err(Error::bug("reading pages ended in a panic, which the log tells of"));
        let filled = catch_unwind(AssertUnwindSafe(fill)).unwrap_or_else(panicked);
        if filled.is_err() {
            let pages: Vec<u32> = claims.iter().filter(|claim| !claim.is_framed()).map(|claim| claim.page).collect();
            self.space.discard(&pages);
            self.gate.notify();
        }
        filled
    }

    fn read(&self, claims: &[Claim<'_>], run: usize) -> Result<usize> {
        let neighbours =
            |a: &Claim<'_>, b: &Claim<'_>| a.page + 1 == b.page && a.to + 1 == b.to && std::ptr::eq(a.file, b.file);
        let mut ops: Vec<ReadOp<'_>> = Vec::with_capacity(claims.len().min(64));
        for run in claims.chunk_by(neighbours).flat_map(|near| near.chunks(run)) {
            let first = run[0];
            let at = u64::from(first.page - first.file.first_page()) * PAGE as u64;
            // SAFETY: the places are neighbours inside one file's range, and `Moving` by our claim, so nobody else
            // reads or writes them until we publish or discard them; or they are a run of frames of ours.
            let buf = unsafe { std::slice::from_raw_parts_mut(self.space.address(first.to), run.len() * PAGE) };
            ops.push(ReadOp { file: first.file.disk_file(), at, buf });
        }
        self.disk.read(&mut ops)?;
        Ok(ops.len())
    }

    fn check(&self, claims: &[Claim<'_>]) -> Result<()> {
        let damaged = |claim: &&Claim<'_>| {
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
