//! Whether the wished recall is kept: some real queries, asked again with more care in the background.
//!
//! ```text
//!   every 16th query ─► one of 32 slots ─► at rest, one at a time:  the search as it is  ∩  one that misses next to nothing
//!                                                │
//!                                     found / wanted, the older the less it counts ─► care ─► the next searches
//! ```
//!
//! Each segment measured its own recall curve when it was built, on its own points. Real queries may lie elsewhere: then
//! what they miss becomes more care, and the collection says so where care alone does not help.

use crate::collection::{Collection, View};
use crate::search::segments;
use crate::shared::Shared;
use parking_lot::Mutex;
use ramekin_ann::{Scratch, Search, SearchParams};
use ramekin_base::Result;
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every so many queries one is kept.
const EVERY: u64 = 16;
const SLOTS: u64 = 32;
/// Results that are compared.
const K: usize = 10;
/// The recall of the search that is compared with.
const CAREFUL: f32 = 0.998;
/// So many results must have been compared before anything follows from them; at twice as many the older half is forgotten.
const ENOUGH: u64 = 320;
/// Below the wish by more than this, care is taken; above it by more than twice this, less.
const NEAR: f64 = 0.01;
/// Care is what may be missed, in thousandths of what the wish says: from all of it to a quarter.
const CARE: (u64, u64) = (250, 1000);

/// Some real queries of a collection, and what they told.
#[derive(Default)]
pub(crate) struct Reservoir {
    offered: AtomicU64,
    kept: Mutex<Vec<Kept>>,
    told: Mutex<Told>,
}

struct Kept {
    using: String,
    vector: Vec<f32>,
    is_checked: bool,
    _memory: Reservation,
}

struct Told {
    found: u64,
    wanted: u64,
    care: u64,
}

impl Default for Told {
    fn default() -> Self {
        Self { found: 0, wanted: 0, care: CARE.1 }
    }
}

impl Reservoir {
    /// A query that asks for the collection's own recall.
    pub(crate) fn offer(&self, shared: &Shared, using: &str, vector: &[f32]) {
        let number = self.offered.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(EVERY) {
            return;
        }
        // Nobody waits for it, and nobody gives way.
        let bytes = (size_of::<Kept>() + using.len() + size_of_val(vector)) as u64;
        let Ok(memory) = shared.accounts.reservoir.try_reserve_calm(bytes) else { return };
        let query = Kept { using: using.to_owned(), vector: vector.to_vec(), is_checked: false, _memory: memory };
        let mut kept = self.kept.lock();
        match kept.get_mut((number / EVERY % SLOTS) as usize) {
            Some(slot) => *slot = query,
            None => kept.push(query),
        }
    }

    /// The recall to ask for, so that the wished one is kept.
    pub(crate) fn recall(&self, wished: f32) -> f32 {
        1.0 - (1.0 - wished) * self.told.lock().care as f32 / 1000.0
    }

    /// The share of the right results that searches found lately, if enough were looked at.
    pub(crate) fn measured(&self) -> Option<f64> {
        let told = self.told.lock();
        (told.wanted >= ENOUGH / 2).then(|| told.found as f64 / told.wanted as f64)
    }

    /// Why the wished recall is not kept, if it is not and no more care can be taken.
    pub(crate) fn warning(&self, wished: f32) -> Option<String> {
        let measured = self.measured()?;
        let is_low = measured < f64::from(wished) - 2.0 * NEAR && self.told.lock().care == CARE.0;
        is_low.then(|| {
            format!("recall {measured:.3} was measured on real queries where {wished} is wished; a larger hnsw_ef finds more")
        })
    }

    /// A kept query that was not looked at yet.
    fn next(&self) -> Option<(String, Vec<f32>)> {
        let mut kept = self.kept.lock();
        let query = kept.iter_mut().find(|query| !query.is_checked)?;
        query.is_checked = true;
        Some((query.using.clone(), query.vector.clone()))
    }

    fn tell(&self, found: u64, wanted: u64, wished: f32) {
        let mut told = self.told.lock();
        (told.found, told.wanted) = (told.found + found, told.wanted + wanted);
        if told.wanted < ENOUGH {
            return;
        }
        let (measured, wished) = (told.found as f64 / told.wanted as f64, f64::from(wished));
        let care = match measured - wished {
            below if below < -NEAR => told.care * 3 / 4,
            above if above > 2.0 * NEAR => told.care * 5 / 4,
            _ => told.care,
        }
        .clamp(CARE.0, CARE.1);
        if care != told.care {
            // What was found with other care tells nothing of this.
            *told = Told { found: 0, wanted: 0, care };
        } else if told.wanted >= 2 * ENOUGH {
            (told.found, told.wanted) = (told.found / 2, told.wanted / 2);
        }
    }
}

/// Looks at one kept query of one collection. False: there is none.
pub(crate) fn check_one(shared: &Shared) -> bool {
    for collection in shared.collections().iter() {
        let Some((using, vector)) = collection.reservoir.next() else { continue };
        let wished = collection.config.load().recall;
        // A search that fails tells nothing; who asks for these points will see the error.
        if let Ok((found, wanted)) = compare(shared, collection, &using, &vector, wished) {
            collection.reservoir.tell(found, wanted, wished);
        }
        return true;
    }
    false
}

/// How many of the results of a careful search the usual one finds, and how many those are.
fn compare(
    shared: &Shared,
    collection: &Arc<Collection>,
    using: &str,
    vector: &[f32],
    wished: f32,
) -> Result<(u64, u64)> {
    let view: Arc<View> = collection.view.load_full();
    // Of its own: a careful search makes it large, and those of the readers should not all become so.
    let mut scratch = Scratch::new(&shared.accounts.reservoir)?;
    let mut hits = |recall: f32| {
        let params = SearchParams { recall: Some(recall), ..SearchParams::default() };
        segments(&view, using, &params, Search::begin(&shared.pages, vector, K, None, &mut scratch), None)
    };
    let (usual, right) = (hits(collection.reservoir.recall(wished))?, hits(CAREFUL)?);
    let is_found = |right: &&ramekin_ann::Hit| usual.iter().any(|hit| (hit.index, hit.row) == (right.index, right.row));
    Ok((right.iter().filter(is_found).count() as u64, right.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn care_follows_what_is_missed() {
        let reservoir = Reservoir::default();
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
