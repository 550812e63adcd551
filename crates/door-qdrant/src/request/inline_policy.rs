//! Which searches are quick enough to run where they arrive.
//!
//! ```text
//!   slot = hash(collection, vector, what is returned)
//!   16 quick ones in a row ─► the next run on the connection's own thread
//!   one that read the disk or took long ─► back to the reader pool
//! ```
//!
//! Handing work to another thread and back costs more than a search over resident codes does. A search
//! that waits for the disk, though, would keep a thread from all other connections. Which of the two
//! comes next is guessed from those before it. Where the guess is wrong the search is refused before its first wait
//! (`ramekin_base::nonblocking`), and runs on the reader pool: that costs it what it did until then.

use crate::decoders::search::Search;
use ramekin_vectors::{Profile, Target};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Longest search that may keep a thread of the connections.
const QUICK: Duration = Duration::from_micros(500);

/// Quick searches in a row before the next one runs inline.
const QUICK_IN_A_ROW: u8 = 16;

/// Slots; two kinds of searches that share one only slow each other down.
const SLOTS: usize = 256;

pub struct InlinePolicy {
    slots: [AtomicU8; SLOTS],
}

impl InlinePolicy {
    pub fn new() -> Self {
        Self { slots: [const { AtomicU8::new(0) }; SLOTS] }
    }

    /// The slot of searches like this one. One with a filter, or in the order of a field, has none: what it takes depends on
    /// the filter or the field.
    pub fn slot(&self, collection: &str, search: &Search) -> Option<&AtomicU8> {
        let query = &search.query;
        if !query.filter.is_empty() || matches!(query.target, Target::Order(_)) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        collection.hash(&mut hasher);
        query.using.hash(&mut hasher);
        std::mem::discriminant(&query.target).hash(&mut hasher);
        std::mem::discriminant(&query.parts.payload).hash(&mut hasher);
        std::mem::discriminant(&query.parts.vectors).hash(&mut hasher);
        (
            query.exact,
            query.rescore,
            query.ef,
            query.candidates,
            query.limit.saturating_add(query.offset).max(1).ilog2(),
        )
            .hash(&mut hasher);
        self.slots.get(hasher.finish() as usize % SLOTS)
    }
}

/// True if the searches of this slot were quick of late.
pub fn runs_inline(slot: Option<&AtomicU8>) -> bool {
    slot.is_some_and(|slot| slot.load(Ordering::Relaxed) >= QUICK_IN_A_ROW)
}

/// Tells what a search of this slot was like.
pub fn saw(slot: Option<&AtomicU8>, profile: &Profile, took: Duration) {
    let Some(slot) = slot else { return };
    let quick = profile.reads == 0 && took < QUICK;
    // Lost updates between threads do not matter: it is a guess.
    let count = if quick { slot.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
    slot.store(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_earned_slowly_and_lost_at_once() {
        let quick = AtomicU8::new(0);
        let slot = Some(&quick);
        for _ in 0..QUICK_IN_A_ROW {
            assert!(!runs_inline(slot));
            saw(slot, &Profile::default(), Duration::from_micros(50));
        }
        assert!(runs_inline(slot));
        saw(slot, &Profile { reads: 1, ..Profile::default() }, Duration::from_micros(50));
        assert!(!runs_inline(slot));
        for _ in 0..1000 {
            saw(slot, &Profile::default(), Duration::from_micros(50));
        }
        assert!(runs_inline(slot));
        saw(slot, &Profile::default(), Duration::from_millis(5));
        assert!(!runs_inline(slot));
    }
}
