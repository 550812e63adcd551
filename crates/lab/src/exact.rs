//! The truth: for each query its exact nearest vectors, on all cores.
//!
//! ```text
//!   base, a block of rows at a time ──► each thread: its queries x the block ──► the best k of each query
//! ```

use ramekin_base::{Result, cancel};
use ramekin_vecmath::{Metric, normalise, score_block};

/// Bytes of one block of rows.
const BLOCK_BYTES: usize = 4 << 20;

/// The best few of one query, best first.
#[derive(Clone, Default)]
struct TopK(Vec<(f32, u32)>);

impl TopK {
    fn offer(&mut self, k: usize, score: f32, row: u32) {
        if self.0.len() == k && self.0.last().is_some_and(|last| score <= last.0) {
            return;
        }
        let at = self.0.partition_point(|kept| kept.0 >= score);
        self.0.insert(at, (score, row));
        self.0.truncate(k);
    }
}

/// Rows of the `k` nearest vectors of each query, best first, one query after another. `base` answers with a range of
/// rows; `told` hears how many are done.
pub fn nearest(
    base: &dyn Fn(usize, usize) -> Result<Vec<f32>>,
    rows: usize,
    queries: &[f32],
    dim: usize,
    metric: Metric,
    k: usize,
    told: &dyn Fn(usize),
) -> Result<Vec<u32>> {
    let mut queries = queries.to_vec();
    unit(metric, dim, &mut queries);
    let mut best = vec![TopK::default(); queries.len() / dim];
    let threads = crate::machine::cores();
    let share = best.len().div_ceil(threads).max(1);
    let step = (BLOCK_BYTES / (4 * dim)).max(1);
    for from in (0..rows).step_by(step) {
        cancel::check()?;
        let mut block = base(from, (from + step).min(rows))?;
        unit(metric, dim, &mut block);
        std::thread::scope(|scope| {
            for (best, queries) in best.chunks_mut(share).zip(queries.chunks(share * dim)) {
                let block = &block;
                scope.spawn(move || scan(best, queries, block, dim, metric, k, from));
            }
        });
        told((from + step).min(rows));
    }
    Ok(best.iter().flat_map(|best| best.0.iter().map(|(_, row)| *row)).collect())
}

/// Cosine compares directions.
fn unit(metric: Metric, dim: usize, vectors: &mut [f32]) {
    if metric == Metric::Cosine {
        vectors.chunks_exact_mut(dim).for_each(|row| {
            normalise(row);
        });
    }
}

fn scan(best: &mut [TopK], queries: &[f32], block: &[f32], dim: usize, metric: Metric, k: usize, from: usize) {
    let mut scores = vec![0.0; block.len() / dim];
    for (best, query) in best.iter_mut().zip(queries.chunks_exact(dim)) {
        score_block(metric, query, block, dim, &mut scores);
        scores.iter().enumerate().for_each(|(row, score)| best.offer(k, *score, (from + row) as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Synthetic;

    #[test]
    fn it_finds_what_a_plain_sort_finds() {
        let dim = 7;
        let all = Synthetic { rows: 400, dim, seed: 1 }.draw(9);
        let (base, queries) = all.split_at(400 * dim);
        for metric in [Metric::Cosine, Metric::Euclid, Metric::Manhattan, Metric::Dot] {
            let found = nearest(&|a, b| Ok(base[a * dim..b * dim].to_vec()), 400, queries, dim, metric, 10, &|_| {});
            for (query, found) in queries.chunks(dim).zip(found.unwrap().chunks(10)) {
                let mut rows: Vec<u32> = (0..400).collect();
                let score = |row: &u32| ramekin_vecmath::score(metric, query, &base[*row as usize * dim..][..dim]);
                rows.sort_by(|a, b| score(b).total_cmp(&score(a)));
                assert_eq!(found, &rows[..10], "{metric:?}");
            }
        }
    }

    #[test]
    fn fewer_rows_than_wanted_are_all_found() {
        let found = nearest(&|_, _| Ok(vec![1.0, 2.0]), 2, &[1.0], 1, Metric::Dot, 10, &|_| {}).unwrap();
        assert_eq!(found, [1, 0]);
    }
}
