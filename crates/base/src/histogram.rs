//! Durations, counted by how long they were: a fixed number of counters, whatever is counted.
//!
//! ```text
//!   took ──► the first bound that is not below it ──► one counter more      bounds: 100 us ... 60 s, and above
//!        └──► the sum of all, in microseconds
//! ```
//!
//! Noting one is two additions to atomics: no lock and no allocation. Several that note at the same time lose nothing; who
//! reads meanwhile may see a duration in one of the two and not yet in the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in microseconds. What is longer than the last is counted beside them.
pub const BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000, 60_000_000,
];

/// Durations of one kind of work.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// How many took at most as long as the bound at the same place.
    pub at_most: [u64; BOUNDS_US.len()],
    pub count: u64,
    pub micros: u64,
}

impl Histogram {
    pub fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_US.partition_point(|bound| *bound < micros)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub fn seen(&self) -> Seen {
        let mut seen = Seen { at_most: [0; BOUNDS_US.len()], count: 0, micros: self.micros.load(Ordering::Relaxed) };
        for (at, count) in self.counts.iter().enumerate() {
            seen.count += count.load(Ordering::Relaxed);
            if let Some(at_most) = seen.at_most.get_mut(at) {
                *at_most = seen.count;
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_at_its_bound_and_at_all_above() {
        let histogram = Histogram::default();
        assert_eq!(histogram.seen(), Seen { at_most: [0; BOUNDS_US.len()], count: 0, micros: 0 });
        for micros in [0, 100, 101, 60_000_000, 60_000_001] {
            histogram.note(Duration::from_micros(micros));
        }
        let seen = histogram.seen();
        assert_eq!((seen.at_most[0], seen.at_most[1]), (2, 3));
        assert_eq!((seen.at_most[BOUNDS_US.len() - 1], seen.count, seen.micros), (4, 5, 120_000_202));
        assert!(seen.at_most.windows(2).all(|two| two[0] <= two[1]));
    }

    #[test]
    fn bounds_ascend() {
        assert!(BOUNDS_US.windows(2).all(|two| two[0] < two[1]));
    }
}
