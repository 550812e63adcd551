//! Which addresses are free: first fit, and free neighbours melt into one.

use std::collections::BTreeMap;

/// Free ranges of pages: start to length.
pub(crate) struct Ranges {
    free: BTreeMap<u32, u32>,
}

impl Ranges {
    pub(crate) fn new(pages: u32) -> Self {
        Self { free: BTreeMap::from([(0, pages)]) }
    }

    /// The first free range of `pages` pages; an empty one costs nothing.
    pub(crate) fn take(&mut self, pages: u32) -> Option<u32> {
        if pages == 0 {
            return Some(0);
        }
        let (start, len) = self.free.iter().find(|(_, len)| **len >= pages).map(|(start, len)| (*start, *len))?;
        self.free.remove(&start);
        if len > pages {
            self.free.insert(start + pages, len - pages);
        }
        Some(start)
    }

    pub(crate) fn give(&mut self, mut start: u32, mut pages: u32) {
        if pages == 0 {
            return;
        }
        if let Some(after) = self.free.remove(&(start + pages)) {
            pages += after;
        }
        if let Some((before, len)) = self.free.range(..start).next_back().map(|(before, len)| (*before, *len)) {
            debug_assert!(before + len <= start, "given back twice");
            if before + len == start {
                (start, pages) = (before, pages + len);
            }
        }
        self.free.insert(start, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;

    #[test]
    fn ranges_never_overlap_and_melt_together_again() {
        let mut rng = Rng::new(3);
        let mut ranges = Ranges::new(10_000);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..5000 {
            if rng.chance(0.5) && !taken.is_empty() {
                let (start, pages) = taken.swap_remove(rng.below(taken.len() as u64) as usize);
                ranges.give(start, pages);
            } else {
                let pages = rng.below(300) as u32;
                if let Some(start) = ranges.take(pages) {
                    let apart = |other: &(u32, u32)| start + pages <= other.0 || other.0 + other.1 <= start;
                    assert!(start + pages <= 10_000 && (pages == 0 || taken.iter().all(apart)));
                    taken.extend((pages > 0).then_some((start, pages)));
                }
            }
        }
        for (start, pages) in taken {
            ranges.give(start, pages);
        }
        assert_eq!(ranges.free, BTreeMap::from([(0, 10_000)]));
        assert_eq!(ranges.take(10_001), None);
    }
}
