//! The best results so far: a small heap that knows the score to beat.
//!
//! Scores here are rank scores: larger is better for every metric. Equal scores rank by smaller id,
//! so that the same data gives the same answer whatever segments it lies in.

use ramekin_base::PointId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) score: f32,
    pub(crate) id: PointId,
}

impl Eq for Found {}

impl Ord for Found {
    /// Worse results are greater, so that the heap's top is the worst one kept.
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Keeps the best `limit` results better than a threshold.
pub(crate) struct TopK {
    limit: usize,
    least: f32,
    heap: BinaryHeap<Found>,
    excluded: Option<PointId>,
}

impl TopK {
    pub(crate) fn new(limit: usize, threshold: Option<f32>, excluded: Option<PointId>) -> Self {
        Self {
            limit,
            // Better than the threshold: from the next number on.
            least: threshold.map_or(f32::NEG_INFINITY, f32::next_up),
            heap: BinaryHeap::with_capacity(limit + 1),
            excluded,
        }
    }

    /// False if a result with this score cannot be among the best; cheap, so ask it first.
    pub(crate) fn accepts(&self, score: f32) -> bool {
        score >= self.least
    }

    /// Results must score this or more, if not all do.
    pub(crate) fn least(&self) -> Option<f32> {
        Some(self.least).filter(|least| *least > f32::NEG_INFINITY)
    }

    pub(crate) fn offer(&mut self, score: f32, id: PointId) {
        if self.limit == 0 || !self.accepts(score) || self.excluded == Some(id) {
            return;
        }
        self.heap.push(Found { score, id });
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
        if self.heap.len() == self.limit {
            self.least = self.least.max(self.heap.peek().map_or(f32::NEG_INFINITY, |worst| worst.score));
        }
    }

    /// Best first.
    pub(crate) fn into_sorted(self) -> Vec<Found> {
        self.heap.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_best_in_order() {
        let mut top = TopK::new(3, Some(0.5), Some(PointId::Num(9)));
        for (score, id) in [(0.4, 1), (0.6, 2), (0.9, 9), (0.8, 4), (0.8, 3), (0.7, 5)] {
            top.offer(score, PointId::Num(id));
        }
        let ids: Vec<_> = top.into_sorted().into_iter().map(|found| found.id).collect();
        assert_eq!(ids, [PointId::Num(3), PointId::Num(4), PointId::Num(5)]);
    }
}
