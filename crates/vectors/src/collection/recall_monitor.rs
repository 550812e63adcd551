//! Whether the wished recall is kept: some real queries, asked again with more care in the background.
//!
//! ```text
//!   every 16th query ─► one of 32 slots ─► idle, one at a time:  the search as it is  ∩  one that misses next to nothing
//!                                                │
//!                                     found / wanted, the older the less it counts ─► care ─► the next searches
//! ```
//!
//! Each segment measured its own recall curve when it was built, on its own points. Real queries may lie elsewhere: then
//! what they miss becomes more care, and the collection says so where care alone does not help.

use parking_lot::Mutex;
use ramekin_memory::{Account, Reservation};
use std::sync::atomic::{AtomicU64, Ordering};

/// Every so many queries one is kept.
const EVERY: u64 = 16;
const SLOTS: u64 = 32;
/// So many results must have been compared before anything follows from them; at twice as many the older half is forgotten.
const ENOUGH: u64 = 320;
/// Below the wish by more than this, care is taken; above it by more than twice this, less.
const NEAR: f64 = 0.01;
/// Care is what may be missed, in thousandths of what the wish says: from all of it to a quarter.
const SAFETY_MARGINS: (u64, u64) = (250, 1000);

/// Some real queries of a collection, and what they told.
#[derive(Default)]
pub(crate) struct RecallMonitor {
    offered: AtomicU64,
    sampled: Mutex<Vec<SampledQuery>>,
    tally: Mutex<RecallTally>,
}

struct SampledQuery {
    using: String,
    vector: Vec<f32>,
    is_checked: bool,
    _memory: Reservation,
}

struct RecallTally {
    found: u64,
    wanted: u64,
    safety_margin: u64,
}

impl Default for RecallTally {
    fn default() -> Self {
        Self { found: 0, wanted: 0, safety_margin: SAFETY_MARGINS.1 }
    }
}

impl RecallMonitor {
    /// A query that asks for the collection's own recall.
    pub(crate) fn sample(&self, account: &Account, using: &str, vector: &[f32]) {
        let number = self.offered.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(EVERY) {
            return;
        }
        // Nobody waits for it, and nobody gives way.
        let bytes = (size_of::<SampledQuery>() + using.len() + size_of_val(vector)) as u64;
        let Ok(memory) = account.try_reserve_no_reclaim(bytes) else { return };
        let query =
            SampledQuery { using: using.to_owned(), vector: vector.to_vec(), is_checked: false, _memory: memory };
        let mut sampled = self.sampled.lock();
        match sampled.get_mut((number / EVERY % SLOTS) as usize) {
            Some(slot) => *slot = query,
            None => sampled.push(query),
        }
    }

    /// The recall to ask for, so that the wished one is kept.
    pub(crate) fn recall(&self, target_recall: f32) -> f32 {
        1.0 - (1.0 - target_recall) * self.tally.lock().safety_margin as f32 / 1000.0
    }

    /// The share of the right results that searches found lately, if enough were looked at.
    pub(crate) fn measured(&self) -> Option<f64> {
        let tally = self.tally.lock();
        (tally.wanted >= ENOUGH / 2).then(|| tally.found as f64 / tally.wanted as f64)
    }

    /// Why the wished recall is not kept, if it is not and no more care can be taken.
    pub(crate) fn warning(&self, target_recall: f32) -> Option<String> {
        let measured = self.measured()?;
        let is_low =
            measured < f64::from(target_recall) - 2.0 * NEAR && self.tally.lock().safety_margin == SAFETY_MARGINS.0;
        is_low.then(|| {
            format!("recall {measured:.3} was measured on real queries where {target_recall} is wished; a larger hnsw_ef finds more")
        })
    }

    /// A kept query that was not looked at yet.
    pub(crate) fn next(&self) -> Option<(String, Vec<f32>)> {
        let mut sampled = self.sampled.lock();
        let query = sampled.iter_mut().find(|query| !query.is_checked)?;
        query.is_checked = true;
        Some((query.using.clone(), query.vector.clone()))
    }

    pub(crate) fn tell(&self, found: u64, wanted: u64, target_recall: f32) {
        let mut tally = self.tally.lock();
        (tally.found, tally.wanted) = (tally.found + found, tally.wanted + wanted);
        if tally.wanted < ENOUGH {
            return;
        }
        let (measured, target_recall) = (tally.found as f64 / tally.wanted as f64, f64::from(target_recall));
        let safety_margin = match measured - target_recall {
            below if below < -NEAR => tally.safety_margin * 3 / 4,
            above if above > 2.0 * NEAR => tally.safety_margin * 5 / 4,
            _ => tally.safety_margin,
        }
        .clamp(SAFETY_MARGINS.0, SAFETY_MARGINS.1);
        if safety_margin != tally.safety_margin {
            // What was found with other care tells nothing of this.
            *tally = RecallTally { found: 0, wanted: 0, safety_margin };
        } else if tally.wanted >= 2 * ENOUGH {
            (tally.found, tally.wanted) = (tally.found / 2, tally.wanted / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn care_follows_what_is_missed() {
        let reservoir = RecallMonitor::default();
        assert_eq!((reservoir.recall(0.95), reservoir.measured()), (0.95, None));
        let tell = |found: u64, times: usize| (0..times).for_each(|_| reservoir.tell(found, 10, 0.95));
        tell(10, 200);
        assert_eq!(reservoir.recall(0.95), 0.95, "never less than the wish");
        tell(8, 64);
        assert!(reservoir.recall(0.95) > 0.96);
        assert_eq!(reservoir.warning(0.95), None, "more care can be taken");
        tell(8, 640);
        assert!((reservoir.recall(0.95) - 0.9875).abs() < 1e-6);
        assert!(reservoir.warning(0.95).is_some_and(|text| text.starts_with("recall 0.8")));
        tell(10, 640);
        assert!((reservoir.recall(0.95) - 0.95).abs() < 1e-6);
        assert!(reservoir.measured().is_some_and(|recall| recall > 0.99));
    }
}
