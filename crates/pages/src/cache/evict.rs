//! Who leaves memory: the clock over cached pages, and whole sections when that is not enough.
//!
//! ```text
//!        hand                                 a page enters with usage = its priority,
//!         │                                   a second touch raises it to priority + 3
//!   ┌───┐ ▼ ┌───┬───┬───┬───┬───┐
//!   │ 0 │◄──│ 2 │ 0 │ 1 │pin│ 3 │◄── new      usage 0: leaves     usage n: n - 1, back to the end
//!   └───┘   └───┴───┴───┴───┴───┘             pinned: back to the end
//! ```

use crate::cache::file::PageFile;
use crate::cache::{Cache, EVICT_STEP};
use crate::format::priority::Priority;
use crate::residency::latch::Drain;
use crate::residency::quota::PAGE_COST;
use crate::residency::state::Age;
use ramekin_memory::Reclaim;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Victims of one turn of the hand; the list of them lies on the stack.
const BATCH: usize = 256;

/// Pages that the hand passes under one hold of the lock.
const VISITS: usize = 4096;

/// How long the budget waits for readers of sections that are to leave.
const DRAIN_WAIT: Duration = Duration::from_millis(20);

impl Cache {
    /// Takes about `wanted` cached pages out of memory, the least worthy first. Returns how many left,
    /// and the bytes that went back to the account.
    pub(crate) fn evict(&self, wanted: usize) -> (usize, u64) {
        let (mut pages, mut bytes, mut pinned) = (0, 0, 0);
        let mut victims = [0u32; BATCH];
        while pages < wanted {
            let victims = &mut victims[..BATCH.min(wanted - pages)];
            let found = match self.sweep(&mut self.ring.lock(), victims, &mut pinned) {
                Sweep::Found(found) => found,
                Sweep::AllPinned => break,
            };
            let victims = &mut victims[..found];
            victims.sort_unstable();
            self.space.discard(victims);
            bytes += self.quota.lock().give_cached(found);
            pages += found;
            self.events.notify();
        }
        self.tally.evictions.fetch_add(pages as u64, Ordering::Relaxed);
        (pages, bytes)
    }

    /// Moves the hand until the victims are found, for a limited way. `pinned` counts the pages since
    /// the last one that was not pinned.
    fn sweep(&self, ring: &mut VecDeque<u32>, victims: &mut [u32], pinned: &mut usize) -> Sweep {
        let mut found = 0;
        for _ in 0..VISITS {
            if found == victims.len() {
                break;
            }
            if *pinned >= ring.len() {
                return if found > 0 { Sweep::Found(found) } else { Sweep::AllPinned };
            }
            let Some(page) = ring.pop_front() else { break };
            match self.space.state(page).age() {
                Age::Taken => {
                    victims[found] = page;
                    found += 1;
                    *pinned = 0;
                }
                Age::Aged => {
                    ring.push_back(page);
                    *pinned = 0;
                }
                Age::Held => {
                    ring.push_back(page);
                    *pinned += 1;
                }
                Age::Other => debug_assert!(false, "the ring holds cached pages only"),
            }
        }
        Sweep::Found(found)
    }
}

enum Sweep {
    Found(usize),
    /// Every cached page is pinned, or there is none.
    AllPinned,
}

/// Gives cached pages back when the budget is short.
pub(crate) struct PageReclaim(pub(crate) Weak<Cache>);

impl Reclaim for PageReclaim {
    fn reclaim(&self, wanted: u64) -> u64 {
        let Some(cache) = self.0.upgrade() else { return 0 };
        // Below the reserve a page that leaves returns nothing to anyone.
        let above = cache.quota.lock().above_reserve();
        cache.evict((wanted.div_ceil(PAGE_COST) as usize).max(EVICT_STEP).min(above as usize)).1
    }
}

/// The second stage of reclaim: resident sections become paged. First the redundant ones, if they alone are enough; then by
/// priority; within a priority the smallest section that covers the request, or else the largest.
pub(crate) struct SectionReclaim(pub(crate) Weak<Cache>);

impl Reclaim for SectionReclaim {
    fn reclaim(&self, wanted: u64) -> u64 {
        let Some(cache) = self.0.upgrade() else { return 0 };
        let gone = |(file, index): &(Arc<PageFile>, u32)| file.latch(*index).is_paged();

        let residents: Vec<_> = cache.residents.lock().clone();
        let mut sections: Vec<DemotionCandidate> = residents.into_iter().filter_map(DemotionCandidate::of).collect();
        // Redundant ones go first if they are enough; or else the others would go as well.
        let redundant: u64 =
            sections.iter().filter(|candidate| candidate.is_redundant).map(|candidate| candidate.cost).sum();
        if redundant < wanted {
            sections.iter_mut().for_each(|candidate| candidate.is_redundant = false);
        }
        sections.sort_by_key(|candidate| (candidate.rank(), candidate.cost));
        let (mut left, mut leaving) = (wanted, Vec::new());
        while left > 0 && !sections.is_empty() {
            let lowest = sections.partition_point(|candidate| candidate.rank() == sections[0].rank());
            let enough = sections[..lowest].partition_point(|candidate| candidate.cost < left);
            let DemotionCandidate { section, cost, .. } = sections.remove(enough.min(lowest - 1));
            if section.0.unload(section.1) != Drain::Nothing {
                left = left.saturating_sub(cost);
                leaving.push((section, cost));
            }
        }
        cache.events.wait_at_most(DRAIN_WAIT, || leaving.iter().all(|(section, _)| gone(section)));
        leaving.iter().filter(|(section, _)| gone(section)).map(|(_, cost)| cost).sum()
    }
}

/// A resident section, as it was when somebody asked: others change meanwhile.
struct DemotionCandidate {
    section: (Arc<PageFile>, u32),
    is_redundant: bool,
    priority: Priority,
    cost: u64,
}

impl DemotionCandidate {
    fn of((file, index): (Weak<PageFile>, u32)) -> Option<Self> {
        let file = file.upgrade()?;
        let entry = file.entry(index);
        let (priority, cost) = (entry.priority, Cache::cost(entry.pages()));
        Some(Self { is_redundant: file.is_redundant(index), priority, cost, section: (file, index) })
    }

    /// The least goes first.
    fn rank(&self) -> (bool, Priority) {
        (!self.is_redundant, self.priority)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pages, Priority};
    use ramekin_base::limits::PAGE;
    use ramekin_disk::{Engine, Local};
    use ramekin_memory::Budget;
    use std::sync::Arc;

    /// The kernel's own view of the addresses follows what is booked, page by page.
    #[test]
    fn the_kernel_gets_evicted_pages_back() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
        let budget = Budget::new(16 << 20);
        let account = budget.root().child("files", "");
        let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
        let mut writer = pages.create(&folder.path().join("a"), &account).unwrap();
        for (tag, count) in [(1, 1000), (2, 700)] {
            writer.begin(tag, Priority::Vectors).unwrap();
            (0..count * PAGE / 64).for_each(|_| writer.write(&[7; 64]).unwrap());
            writer.end().unwrap();
        }
        writer.finish(&[]).unwrap();
        let file = pages.open(&folder.path().join("a"), &account).unwrap();
        let [one, two] = [1, 2].map(|tag| file.section(tag).unwrap());
        let agree = |expected: usize| {
            let stats = pages.stats();
            assert_eq!((stats.cached_bytes + stats.resident_bytes) as usize, expected * PAGE);
            assert_eq!(pages.cache.space.in_memory(file.first_page(), 1700), expected * PAGE);
        };
        let read = |page: u64| {
            let mut fetch = pages.fetch();
            fetch.want(&one, page * PAGE as u64, PAGE).unwrap();
            fetch.run().unwrap();
        };
        agree(0);
        (0..1000).step_by(3).for_each(read);
        agree(334);
        pages.cache.evict(100);
        agree(234);
        two.load().unwrap();
        agree(934);
        two.load().unwrap();
        one.load().unwrap();
        agree(1700);
        two.unload();
        agree(1000);
        let first = file.first_page();
        // An owner pays for what is resident, and the cache for what is not.
        let owner = budget.root().child("owner", "");
        one.unload();
        one.owned_by(&owner);
        let before = budget.reserved();
        one.load().unwrap();
        assert_eq!((owner.used(), budget.reserved()), (one.resident_cost(), before + one.resident_cost()));
        agree(1000);
        one.unload();
        assert_eq!((owner.used(), budget.reserved()), (0, before));
        one.load().unwrap();
        budget.set_limit(1 << 20);
        assert_eq!(owner.used(), 0, "it gave way to the smaller budget");
        budget.set_limit(16 << 20);
        one.load().unwrap();
        let cache = pages.cache.clone();
        drop((one, two, file));
        assert_eq!(owner.used(), 0);
        assert_eq!(cache.space.in_memory(first, 1700), 0);
        (0..1700).for_each(|page| assert!(cache.space.state(first + page).is_out()));
    }
}
