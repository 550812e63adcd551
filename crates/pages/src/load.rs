//! Sections become resident and go back to pages.
//!
//! ```text
//!   load     would all fit? ─► batch by batch: pay ─► take over what is cached ─► read the rest in big runs
//!   unload   wait for the last guard ─► pinned pages become cached ones, the others leave memory
//! ```
//!
//! Batches end where huge pages of the processor do: a resident section is read all over, and a walk through the
//! page table for each record that is looked at would cost more than the record.

use crate::cache::Cache;
use crate::file::PageFile;
use crate::fill::Claim;
use crate::keep::{Drain, Start};
use crate::word::Unkeep;
use ramekin_base::Result;
use std::ops::Range;
use std::sync::Arc;

/// Pages of one read.
const RUN: usize = 64;
/// Pages that are paid for and read as one batch, or leave memory under one lock: one huge page, so that what is booked
/// is there soon after.
const BATCH: u32 = 512;

/// The range in batches that end at multiples of [`BATCH`].
fn batches(pages: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let first = pages.start / BATCH;
    let end = pages.end;
    (first..end.div_ceil(BATCH)).map(move |at| (at * BATCH).max(pages.start)..((at + 1) * BATCH).min(end))
}

impl PageFile {
    pub(crate) fn load(self: &Arc<Self>, index: u32) -> Result<()> {
        let (cache, keep) = (self.cache(), self.keep(index));
        loop {
            match keep.start() {
                Start::Resident => return Ok(()),
                Start::Wait => cache.gate.wait(|| !keep.is_moving()),
                Start::Load => break,
            }
        }
        let pages = self.range(index);
        let loaded = cache.could_keep(pages.len()).and_then(|()| self.keep_all(pages));
        if loaded.is_ok() {
            self.charge_owner(index);
            cache.residents.lock().push((Arc::downgrade(self), index));
        }
        keep.finish(loaded.is_ok());
        cache.gate.notify();
        loaded
    }

    /// Makes every page of the range `Kept`, or none.
    fn keep_all(&self, pages: Range<u32>) -> Result<()> {
        let cache = self.cache();
        cache.space.use_huge(pages.clone(), true);
        for batch in batches(pages.clone()) {
            let kept = cache
                .take_kept(batch.len())
                .and_then(|()| self.keep_batch(&batch).inspect_err(|_| cache.release(batch.clone())));
            if kept.is_err() {
                cache.release(pages.start..batch.start);
                cache.space.use_huge(pages, false);
                return kept;
            }
        }
        Ok(())
    }

    /// Makes every page of a batch that is paid for `Kept`.
    fn keep_batch(&self, batch: &Range<u32>) -> Result<()> {
        let cache = self.cache();
        let mut claims = Vec::with_capacity(batch.len());
        loop {
            cache.take_over(batch);
            let mut busy = None;
            claims.clear();
            for page in batch.clone() {
                let word = cache.space.word(page);
                if word.is_kept() {
                    continue;
                }
                if word.claim() {
                    claims.push(Claim { file: self, page, to: page, heat: 0 });
                } else {
                    busy = Some(word);
                }
            }
            cache.fill(&claims, RUN)?;
            claims.iter().for_each(|claim| cache.space.word(claim.page).publish_kept());
            cache.gate.notify();
            // A page that a fetch or the clock's hand was moving is looked at again.
            let Some(word) = busy else { return Ok(()) };
            cache.gate.wait(|| !word.is_moving());
        }
    }

    pub(crate) fn unload(&self, index: u32) -> Drain {
        let drain = self.keep(index).drain();
        if drain == Drain::Unload {
            self.finish_unload(index);
        }
        drain
    }

    /// Unloads a section that is `Moving` by the caller's hand.
    #[cold]
    pub(crate) fn finish_unload(&self, index: u32) {
        let cache = self.cache();
        self.discharge_owner(index);
        cache.release(self.range(index));
        cache.space.use_huge(self.range(index), false);
        let here = |file: &std::sync::Weak<PageFile>| std::ptr::eq(file.as_ptr(), self);
        cache.residents.lock().retain(|(file, at)| !(here(file) && *at == index));
        self.keep(index).finish(false);
        cache.gate.notify();
    }
}

impl Cache {
    /// Cached pages of the range become kept ones; they are paid for already.
    fn take_over(&self, pages: &Range<u32>) {
        let mut ring = self.ring.lock();
        let before = ring.len();
        ring.retain(|page| !(pages.contains(page) && self.space.word(*page).keep()));
        let taken = before - ring.len();
        drop(ring);
        self.purse.lock().give_cached(taken);
    }

    /// Kept pages of the range leave memory, or become cached ones if someone has pinned them; what was
    /// paid for the range as a section is given back.
    fn release(&self, pages: Range<u32>) {
        let mut left = pages.len();
        let mut taken = Vec::with_capacity(pages.len().min(BATCH as usize));
        for batch in batches(pages) {
            taken.clear();
            let mut ring = self.ring.lock();
            for page in batch {
                match self.space.word(page).unkeep() {
                    Some(Unkeep::Taken) => taken.push(page),
                    Some(Unkeep::Cached) => {
                        // Booked as cached before the clock can see it.
                        self.purse.lock().kept_to_cached(1);
                        ring.push_back(page);
                        left -= 1;
                    }
                    None => {}
                }
            }
            drop(ring);
            self.space.discard(&taken);
        }
        self.purse.lock().give_kept(left);
    }
}
