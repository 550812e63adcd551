//! Sections become resident and go back to pages.
//!
//! ```text
//!   load     would all fit? ─► what is cached leaves the ring ─► batch by batch: pay ─► keep what is cached, read the rest
//!            in big runs ─► keep what was cached meanwhile
//!   unload   wait for the last guard ─► pinned pages become cached ones, the others leave memory
//! ```
//!
//! Batches end where huge pages of the processor do: a resident section is read all over, and a walk through the
//! page table for each record that is looked at would cost more than the record.

use crate::cache::Cache;
use crate::file::PageFile;
use crate::fill::Claim;
use crate::keep::{Drain, Start};
use crate::word::{Unkeep, Word};
use ramekin_base::Result;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
                Start::Wait => cache.gate.wait(|| !keep.is_moving())?,
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
        let mut ours = cache.take_aside(&pages);
        let mut paid = pages.start;
        let mut kept = Ok(());
        for batch in batches(pages.clone()) {
            kept = cache.take_kept(batch.len());
            if kept.is_err() {
                break;
            }
            paid = batch.end;
            ours = cache.take_over(ours, batch.end);
            kept = self.keep_rest(&batch).map(|_| ());
            if kept.is_err() {
                break;
            }
        }
        let kept = kept.and_then(|()| self.keep_late(&pages));
        if kept.is_err() {
            cache.ring.lock().extend(ours);
            cache.release(pages.start..paid);
            cache.space.use_huge(pages, false);
        }
        kept
    }

    /// Keeps the pages of a range that is paid for and that a fetch cached, or that it and the clock's hand were moving, while
    /// the others were read.
    fn keep_late(&self, pages: &Range<u32>) -> Result<()> {
        let cache = self.cache();
        while let Some(late) = pages.clone().find(|page| !cache.space.word(*page).is_kept()) {
            let ours = cache.take_aside(&(late..pages.end));
            cache.take_over(ours, pages.end);
            for batch in batches(late..pages.end) {
                if let Some(word) = self.keep_rest(&batch)? {
                    cache.gate.wait(|| !word.is_moving())?;
                }
            }
        }
        Ok(())
    }

    /// Reads the pages of a batch that nobody has. Returns one that somebody has, and that is not kept yet.
    fn keep_rest(&self, batch: &Range<u32>) -> Result<Option<&Word>> {
        let cache = self.cache();
        let mut claims = Vec::with_capacity(batch.len());
        let mut busy = None;
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
        Ok(busy)
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
    /// Takes the cached pages of a range out of the ring, so that the clock's hand passes them over; ascending. The ring is
    /// walked through once, however many batches there are.
    fn take_aside(&self, pages: &Range<u32>) -> VecDeque<u32> {
        let mut aside = Vec::new();
        let mut ring = self.ring.lock();
        self.tally.walked.fetch_add(ring.len() as u64, Ordering::Relaxed);
        ring.retain(|page| {
            let is_ours = pages.contains(page);
            if is_ours {
                aside.push(*page);
            }
            !is_ours
        });
        drop(ring);
        aside.sort_unstable();
        aside.into()
    }

    /// Of pages that stand aside those before `end` become kept ones, which are paid for already. Returns the others.
    fn take_over(&self, mut aside: VecDeque<u32>, end: u32) -> VecDeque<u32> {
        let ours = aside.partition_point(|page| *page < end);
        for page in aside.drain(..ours) {
            let is_kept = self.space.word(page).keep();
            debug_assert!(is_kept, "a page that stands aside stays cached");
        }
        self.purse.lock().give_cached(ours);
        aside
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

#[cfg(test)]
mod tests {
    use crate::{Pages, Priority};
    use ramekin_base::limits::PAGE;
    use ramekin_disk::{Engine, Local};
    use ramekin_memory::Budget;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// A section of many batches, some pages of each cached: what a load looks at of the ring is not multiplied by the batches.
    #[test]
    fn a_load_walks_through_the_ring_once() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
        let budget = Budget::new(64 << 20);
        let account = budget.root().child("files", "");
        let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
        let mut writer = pages.create(&folder.path().join("a"), &account).unwrap();
        let count = 8 * super::BATCH as usize;
        writer.begin(1, Priority::Vectors).unwrap();
        (0..count * PAGE / 64).for_each(|_| writer.write(&[7; 64]).unwrap());
        writer.end().unwrap();
        writer.finish(&[]).unwrap();
        let file = pages.open(&folder.path().join("a"), &account).unwrap();
        let section = file.section(1).unwrap();
        for page in (0..count).step_by(4) {
            let mut fetch = pages.fetch();
            fetch.want(&section, (page * PAGE) as u64, PAGE).unwrap();
            fetch.run().unwrap();
        }
        let cached = pages.stats().cached_bytes / PAGE as u64;
        section.load().unwrap();
        assert!(pages.cache.tally.walked.load(Ordering::Relaxed) <= cached);
        let stats = pages.stats();
        assert_eq!((stats.cached_bytes, stats.resident_bytes), (0, (count * PAGE) as u64));
        assert!(section.resident().unwrap().iter().all(|byte| *byte == 7));
        section.unload();
        assert_eq!(pages.stats().resident_bytes, 0);
    }
}
