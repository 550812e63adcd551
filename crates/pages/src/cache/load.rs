//! Sections become resident and go back to pages.
//!
//! ```text
//!   load     would all fit? ─► what is cached leaves the ring ─► batch by batch: pay ─► promote what is cached, read the rest
//!            in big runs ─► promote what was cached meanwhile
//!   unload   wait for the last guard ─► pinned pages become cached ones, the others leave memory
//! ```
//!
//! Batches end where huge pages of the processor do: a resident section is read all over, and a walk through the
//! page table for each record that is looked at would cost more than the record.

use crate::cache::Cache;
use crate::cache::file::PageFile;
use crate::cache::fill::{Claims, PendingRead, unharmed};
use crate::residency::latch::{Drain, Start};
use crate::residency::state::{Demote, PageState};
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
        let (cache, latch) = (self.cache(), self.latch(index));
        loop {
            match latch.start() {
                Start::Resident => return Ok(()),
                Start::Wait => cache.events.wait(|| !latch.is_moving())?,
                Start::Load => break,
            }
        }
        let pages = self.range(index);
        let loaded = self.load_all(pages);
        if loaded.is_ok() {
            self.charge_owner(index);
            cache.residents.lock().push((Arc::downgrade(self), index));
        }
        latch.finish(loaded.is_ok());
        cache.events.notify();
        loaded
    }

    /// Makes every page of the range `Resident`, or none, also where it panics: others wait for the end of it.
    fn load_all(&self, pages: Range<u32>) -> Result<()> {
        let cache = self.cache();
        unharmed(|| cache.could_load(pages.len()))?;
        cache.space.use_huge(pages.clone(), true);
        let mut ours = cache.take_aside(&pages);
        let mut paid = pages.start;
        let loaded = unharmed(|| {
            for batch in batches(pages.clone()) {
                cache.take_resident(batch.len())?;
                paid = batch.end;
                ours = cache.take_over(std::mem::take(&mut ours), batch.end);
                self.load_rest(&batch)?;
            }
            self.load_late(&pages)
        });
        if loaded.is_err() {
            cache.ring.lock().extend(ours);
            cache.release(pages.start..paid);
            cache.space.use_huge(pages, false);
        }
        loaded
    }

    /// Promotes the pages of a range that is paid for and that a fetch cached, or that it and the clock's hand were moving, while
    /// the others were read.
    fn load_late(&self, pages: &Range<u32>) -> Result<()> {
        let cache = self.cache();
        while let Some(late) = pages.clone().find(|page| !cache.space.state(*page).is_resident()) {
            let ours = cache.take_aside(&(late..pages.end));
            cache.take_over(ours, pages.end);
            for batch in batches(late..pages.end) {
                if let Some(state) = self.load_rest(&batch)? {
                    cache.events.wait(|| !state.is_moving())?;
                }
            }
        }
        Ok(())
    }

    /// Reads the pages of a batch that nobody has. Returns one that somebody has, and that is not resident yet.
    fn load_rest(&self, batch: &Range<u32>) -> Result<Option<&PageState>> {
        let cache = self.cache();
        let mut claims = Claims::new(cache);
        let mut busy = None;
        for page in batch.clone() {
            let state = cache.space.state(page);
            if state.is_resident() {
                continue;
            }
            if state.claim() {
                claims.push(PendingRead { file: self, page, to: page, usage: 0 });
            } else {
                busy = Some(state);
            }
        }
        cache.fill(&mut claims, RUN)?;
        claims.iter().for_each(|claim| cache.space.state(claim.page).publish_resident());
        claims.published();
        cache.events.notify();
        Ok(busy)
    }

    pub(crate) fn unload(&self, index: u32) -> Drain {
        let drain = self.latch(index).drain();
        if drain == Drain::Unload {
            self.finish_unload(index);
        }
        drain
    }

    /// Unloads a section that is `Moving` by the caller's hand.
    #[cold]
    pub(crate) fn finish_unload(&self, index: u32) {
        let cache = self.cache();
        let here = |file: &std::sync::Weak<PageFile>| std::ptr::eq(file.as_ptr(), self);
        let unloaded = unharmed(|| {
            self.discharge_owner(index);
            cache.release(self.range(index));
            cache.space.use_huge(self.range(index), false);
            cache.residents.lock().retain(|(file, at)| !(here(file) && *at == index));
            Ok(())
        });
        debug_assert!(unloaded.is_ok(), "nothing of this fails");
        self.latch(index).finish(false);
        cache.events.notify();
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

    /// Of pages that stand aside those before `end` become resident ones, which are paid for already. Returns the others.
    fn take_over(&self, mut aside: VecDeque<u32>, end: u32) -> VecDeque<u32> {
        let ours = aside.partition_point(|page| *page < end);
        for page in aside.drain(..ours) {
            let is_resident = self.space.state(page).promote();
            debug_assert!(is_resident, "a page that stands aside stays cached");
        }
        self.quota.lock().give_cached(ours);
        aside
    }

    /// Resident pages of the range leave memory, or become cached ones if someone has pinned them; what was
    /// paid for the range as a section is given back.
    fn release(&self, pages: Range<u32>) {
        let mut left = pages.len();
        let mut taken = Vec::with_capacity(pages.len().min(BATCH as usize));
        for batch in batches(pages) {
            taken.clear();
            let mut ring = self.ring.lock();
            for page in batch {
                match self.space.state(page).demote() {
                    Some(Demote::Taken) => taken.push(page),
                    Some(Demote::Cached) => {
                        // Booked as cached before the clock can see it.
                        self.quota.lock().resident_to_cached(1);
                        ring.push_back(page);
                        left -= 1;
                    }
                    None => {}
                }
            }
            drop(ring);
            self.space.discard(&taken);
        }
        self.quota.lock().give_resident(left);
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
