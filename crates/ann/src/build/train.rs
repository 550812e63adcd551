//! Centroids from the sample: k-means (Lloyd) that looks at another part of the sample in each round.
//!
//! ```text
//!   k points, evenly spread over the sample ──► a few rounds over all k centroids, each with about 16 points a centroid
//! ```
//!
//! Training in two levels, regions first and centroids inside them, costs less and ends worse: borders between regions
//! cut through heaps, and rounds over all never mend that. On the harder synthetic set its lists had to be probed seven
//! times as often for one recall.

use crate::build::plan::Plan;
use crate::build::tiles::Tiles;
use crate::build::work::{Phase, Work};
use crate::format::buffer::Buffer;
use crate::format::compact::Compact;
use ramekin_base::rng::mix;
use ramekin_base::{Result, Rng};

/// Points a centroid that one round looks at.
const ROUND_POINTS: usize = 16;

/// What training found.
pub(crate) struct Trained {
    pub(crate) centroids: Compact,
    /// How many points of the last round's part of the sample went to each centroid, just before its last move.
    pub(crate) counts: Buffer<u32>,
}

/// Finds `plan.clusters` centroids.
pub(crate) fn train(sample: &Compact, plan: &Plan, work: &Work<'_>) -> Result<Trained> {
    let k = plan.clusters.min(sample.len());
    let mut centroids = Compact::new(&work.account, sample.scales.clone(), k)?;
    let mut rng = Rng::new(work.seed ^ 0x6d65616e73);
    let mut point = vec![0.0; plan.dim];
    for at in 0..k {
        // Somewhere in its share of the sample, which is in the order of the stream.
        let (from, to) = (at * sample.len() / k, (at + 1) * sample.len() / k);
        sample.get(from + rng.below((to - from) as u64) as usize, &mut point);
        centroids.push(&point);
    }
    let step = (sample.len() / (ROUND_POINTS * k)).max(1);
    let mut counts = Buffer::new(&work.account, k)?;
    for round in 0..plan.rounds {
        work.step(Phase::Train, round, plan.rounds)?;
        let part = Part { sample, step, round };
        let near = nearest(&part, &centroids, plan, work)?;
        counts.fill(0);
        near.iter().for_each(|centroid| counts[*centroid as usize] += 1);
        move_to_means(&part, &near, &counts, plan, work, &mut centroids)?;
    }
    work.step(Phase::Train, plan.rounds, plan.rounds)?;
    Ok(Trained { centroids, counts })
}

/// What a round looks at: of every `step` points of the sample one, by chance; a stream may repeat itself in any rhythm.
struct Part<'a> {
    sample: &'a Compact,
    step: usize,
    round: usize,
}

impl Part<'_> {
    fn len(&self) -> usize {
        self.sample.len() / self.step
    }

    fn get(&self, index: usize, out: &mut [f32]) {
        let chance = mix(((self.round as u64) << 32) ^ index as u64) % self.step as u64;
        self.sample.get(index * self.step + chance as usize, out);
    }
}

/// The nearest centroid of every point.
fn nearest(part: &Part<'_>, centroids: &Compact, plan: &Plan, work: &Work<'_>) -> Result<Buffer<u32>> {
    let mut near = Buffer::<u32>::new(&work.account, part.len())?;
    let tiles = Tiles::new(centroids, plan.tile, work.threads, &work.account)?;
    let batch = plan.train_rows.min(4096).min(part.len());
    let mut points = Buffer::<f32>::new(&work.account, batch * plan.dim)?;
    let mut scores = Buffer::<f32>::new(&work.account, batch)?;
    for from in (0..part.len()).step_by(batch) {
        let to = (from + batch).min(part.len());
        let points = &mut points[..(to - from) * plan.dim];
        (from..to).zip(points.chunks_exact_mut(plan.dim)).for_each(|(index, point)| part.get(index, point));
        tiles.assign(points, &mut near[from..to], &mut scores[..to - from]);
    }
    Ok(near)
}

/// One round: each centroid moves to the mean of its points; one without points moves beside a crowded one.
fn move_to_means(
    part: &Part<'_>,
    near: &[u32],
    counts: &[u32],
    plan: &Plan,
    work: &Work<'_>,
    centroids: &mut Compact,
) -> Result<()> {
    let (k, dim) = (centroids.len(), plan.dim);
    let range = plan.train_rows.min(k);
    let mut sums = Buffer::<f32>::new(&work.account, range * dim)?;
    let mut point = vec![0.0; dim];
    for from in (0..k).step_by(range) {
        let to = (from + range).min(k);
        sums.fill(0.0);
        for (index, centroid) in near.iter().enumerate() {
            let centroid = *centroid as usize;
            if (from..to).contains(&centroid) {
                part.get(index, &mut point);
                add(&mut sums[(centroid - from) * dim..(centroid - from + 1) * dim], &point);
            }
        }
        for centroid in (from..to).filter(|centroid| counts[*centroid] > 0) {
            let mean = &mut sums[(centroid - from) * dim..(centroid - from + 1) * dim];
            mean.iter_mut().for_each(|x| *x /= counts[centroid] as f32);
            centroids.set(centroid, mean);
        }
    }
    let mut crowded: Vec<u32> = (0..k as u32).collect();
    crowded.sort_unstable_by_key(|centroid| (std::cmp::Reverse(counts[*centroid as usize]), *centroid));
    let empty = (0..k).filter(|centroid| counts[*centroid] == 0);
    let mut rng = Rng::new(work.seed ^ 0x656d707479);
    for (centroid, beside) in empty.zip(crowded) {
        centroids.get(beside as usize, &mut point);
        point.iter_mut().for_each(|x| *x *= 1.0 + 0.02 * rng.normal());
        centroids.set(centroid, &point);
    }
    Ok(())
}

#[inline]
fn add(sum: &mut [f32], x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::work::BuildOptions;
    use crate::format::compact::Scales;
    use crate::format::full_vectors::FullVectors;
    use ramekin_base::SystemClock;
    use ramekin_memory::Budget;
    use ramekin_vecmath::{Datatype, Metric};
    use std::sync::Arc;

    #[test]
    fn separate_heaps_get_centroids_of_their_own() {
        let account = Budget::new(64 << 20).root();
        let disk = Arc::new(ramekin_disk::sim::SimDisk::new(1, ramekin_disk::sim::Faults::default()));
        let work = Work {
            disk,
            temp: "/temp".into(),
            account: account.clone(),
            clock: Arc::new(SystemClock::new()),
            seed: 1,
            threads: 1,
            progress: &|_| {},
            cancelled: &|| false,
        };
        let (heaps, dim) = (16, 8);
        let mut rng = Rng::new(3);
        let places: Vec<f32> = (0..heaps * dim).map(|_| 10.0 * rng.normal()).collect();
        let mut sample = Compact::new(&account, Scales { of: vec![1.0; dim] }, 4000).unwrap();
        for at in 0..4000 {
            let heap = &places[at % heaps * dim..(at % heaps + 1) * dim];
            let point: Vec<f32> = heap.iter().map(|x| x + 0.1 * rng.normal()).collect();
            sample.push(&point);
        }
        let full_vectors = FullVectors { metric: Metric::Euclid, datatype: Datatype::Float32, dim };
        let plan = Plan::of(4000, full_vectors, 32 << 20, &BuildOptions::default()).unwrap();
        let trained = train(&sample, &plan, &work).unwrap();
        assert!(trained.centroids.len() > 4 * heaps);
        let mut centroid = vec![0.0; dim];
        let mut near = vec![0; heaps];
        for at in 0..trained.centroids.len() {
            trained.centroids.get(at, &mut centroid);
            for (near, heap) in near.iter_mut().zip(places.chunks_exact(dim)) {
                *near += usize::from(heap.iter().zip(&centroid).all(|(a, b)| (a - b).abs() < 1.0));
            }
        }
        assert!(near.iter().all(|near| *near > 0), "{near:?}");
        assert_eq!(trained.counts.iter().sum::<u32>(), 2000);
    }
}
