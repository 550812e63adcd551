//! Centroids from the sample, in two levels.
//!
//! ```text
//!   sample ──► sqrt(k) regions ──► in each region its share of k centroids ──► all k: a few rounds over all
//!              k-means on a part    k-means on the region's points              of the sample
//! ```
//!
//! A round over all k costs sample * k products, so most of the work is done inside regions, where it costs
//! only sample * sqrt(k). Regions stay together in the order of centroids, so neighbours lie close in the file.

use crate::buffer::Buffer;
use crate::compact::Compact;
use crate::plan::Plan;
use crate::tiles::{self, Tiles};
use crate::work::{Phase, Work};
use parking_lot::Mutex;
use ramekin_base::{Result, Rng};
use ramekin_vecmath::Panels;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rounds of k-means inside a region.
const ROUNDS: usize = 8;
/// Rounds over all centroids at the end.
const LAST_ROUNDS: usize = 2;

/// What training found.
pub(crate) struct Trained {
    pub(crate) centroids: Compact,
    /// How many points of the sample went to each centroid, just before its last move.
    pub(crate) counts: Buffer<u32>,
}

/// Finds `plan.clusters` centroids.
pub(crate) fn train(sample: &Compact, plan: &Plan, work: &Work<'_>) -> Result<Trained> {
    let k = plan.clusters.min(sample.len());
    let mut centroids = Compact::new(&work.account, sample.scales.clone(), k)?;
    centroids.fill();
    work.step(Phase::Train, 0, LAST_ROUNDS + 2)?;
    let regions = if k < 64 { 1 } else { (k as f64).sqrt() as usize };
    let mut near = Buffer::<u32>::new(&work.account, sample.len())?;
    if regions > 1 {
        let rows = plan.region_rows.min(sample.len()).min(regions * 256);
        let mut tops = Compact::new(&work.account, sample.scales.clone(), regions)?;
        {
            let mut points = Buffer::<f32>::new(&work.account, rows * plan.dim)?;
            // Evenly spread over the sample, which is in the order of the stream.
            for (at, out) in points.chunks_exact_mut(plan.dim).enumerate() {
                sample.get(at * sample.len() / rows, out);
            }
            let means = means(&points, regions, plan.dim, work.seed, work.threads);
            means.chunks_exact(plan.dim).for_each(|mean| tops.push(mean));
        }
        assign_all(sample, &tops, plan, work, &mut near)?;
    }
    work.step(Phase::Train, 1, LAST_ROUNDS + 2)?;
    split_regions(sample, &near, regions, plan, work, &mut centroids)?;
    work.step(Phase::Train, 2, LAST_ROUNDS + 2)?;
    for round in 0..LAST_ROUNDS {
        assign_all(sample, &centroids, plan, work, &mut near)?;
        move_to_means(sample, &near, plan, work, &mut centroids)?;
        work.step(Phase::Train, round + 3, LAST_ROUNDS + 2)?;
    }
    let mut counts = Buffer::new(&work.account, k)?;
    near.iter().for_each(|centroid| counts[*centroid as usize] += 1);
    Ok(Trained { centroids, counts })
}

/// The nearest centroid of every point of the sample.
pub(crate) fn assign_all(
    sample: &Compact,
    centroids: &Compact,
    plan: &Plan,
    work: &Work<'_>,
    near: &mut [u32],
) -> Result<()> {
    let tiles = Tiles::new(centroids, plan.tile, work.threads, &work.account)?;
    let batch = plan.region_rows.min(4096).min(sample.len());
    let mut points = Buffer::<f32>::new(&work.account, batch * plan.dim)?;
    let mut scores = Buffer::<f32>::new(&work.account, batch)?;
    for from in (0..sample.len()).step_by(batch) {
        let to = (from + batch).min(sample.len());
        let points = &mut points[..(to - from) * plan.dim];
        sample.unpack(from, to, points);
        tiles.assign(points, &mut near[from..to], &mut scores[..to - from]);
    }
    Ok(())
}

/// Splits each region into its share of the centroids; the regions are shared out over threads.
fn split_regions(
    sample: &Compact,
    near: &[u32],
    regions: usize,
    plan: &Plan,
    work: &Work<'_>,
    centroids: &mut Compact,
) -> Result<()> {
    let k = centroids.len();
    // The sample's indices, region after region.
    let mut starts = vec![0usize; regions + 1];
    near.iter().for_each(|region| starts[*region as usize + 1] += 1);
    (0..regions).for_each(|region| starts[region + 1] += starts[region]);
    let mut order = Buffer::<u32>::new(&work.account, sample.len())?;
    let mut next = starts.clone();
    for (index, region) in near.iter().enumerate() {
        order[next[*region as usize]] = index as u32;
        next[*region as usize] += 1;
    }
    let shares = shares(&starts, k);
    let (seed, dim) = (work.seed, plan.dim);
    let threads = work.threads.max(1).min(regions);
    let rows_max = (plan.region_rows / threads).max(4);
    let mut rooms = Vec::with_capacity(threads);
    for _ in 0..threads {
        rooms.push(Buffer::<f32>::new(&work.account, rows_max * plan.dim)?);
    }
    let (turn, centroids) = (AtomicUsize::new(0), Mutex::new(centroids));
    std::thread::scope(|scope| {
        for mut room in rooms {
            let (turn, centroids, shares, starts, order) = (&turn, &centroids, &shares, &starts, &order);
            scope.spawn(move || {
                loop {
                    let region = turn.fetch_add(1, Ordering::Relaxed);
                    if region >= regions {
                        return;
                    }
                    let share = shares[region + 1] - shares[region];
                    let members = &order[starts[region]..starts[region + 1]];
                    if share == 0 {
                        continue;
                    }
                    let rows = members.len().min(rows_max);
                    let points = &mut room[..rows * dim];
                    for (at, out) in points.chunks_exact_mut(dim).enumerate() {
                        sample.get(members[at * members.len() / rows] as usize, out);
                    }
                    let means = means(points, share, dim, seed ^ region as u64, 1);
                    let mut centroids = centroids.lock();
                    for (at, mean) in means.chunks_exact(dim).enumerate() {
                        centroids.set(shares[region] + at, mean);
                    }
                }
            });
        }
    });
    Ok(())
}

/// Which centroids belong to each region: `k` shared out by size, at least one where there is a point.
fn shares(starts: &[usize], k: usize) -> Vec<usize> {
    let regions = starts.len() - 1;
    let size = |region: usize| starts[region + 1] - starts[region];
    let filled = (0..regions).filter(|region| size(*region) > 0).count();
    let total = starts[regions].max(1);
    let spare = k.saturating_sub(filled);
    let (mut shares, mut seen, mut given) = (vec![0; regions + 1], 0, 0);
    for region in 0..regions {
        seen += size(region);
        // The running total is rounded, not each share, so the shares add up to k.
        let due = (spare as u128 * seen as u128 / total as u128) as usize;
        let one = usize::from(size(region) > 0);
        shares[region + 1] = shares[region] + due - given + one;
        given = due;
    }
    shares
}

/// One round: each centroid moves to the mean of its points; one without points moves beside a crowded one.
fn move_to_means(sample: &Compact, near: &[u32], plan: &Plan, work: &Work<'_>, centroids: &mut Compact) -> Result<()> {
    let (k, dim) = (centroids.len(), plan.dim);
    let mut counts = vec![0u32; k];
    near.iter().for_each(|centroid| counts[*centroid as usize] += 1);
    let range = plan.region_rows.min(k);
    let mut sums = Buffer::<f32>::new(&work.account, range * dim)?;
    let mut point = vec![0.0; dim];
    for from in (0..k).step_by(range) {
        let to = (from + range).min(k);
        sums.fill(0.0);
        for (index, centroid) in near.iter().enumerate() {
            let centroid = *centroid as usize;
            if (from..to).contains(&centroid) {
                sample.get(index, &mut point);
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

/// Plain k-means (Lloyd) over rows in memory; begins at rows chosen evenly at random.
fn means(rows: &[f32], k: usize, dim: usize, seed: u64, threads: usize) -> Vec<f32> {
    let count = rows.len() / dim;
    let row = |index: usize| &rows[index * dim..(index + 1) * dim];
    let mut rng = Rng::new(seed ^ 0x6d65616e73);
    let mut picks: Vec<u32> = (0..count as u32).collect();
    let mut means = Vec::with_capacity(k * dim);
    for at in 0..k.min(count) {
        let pick = at + rng.below((count - at) as u64) as usize;
        picks.swap(at, pick);
        means.extend_from_slice(row(picks[at] as usize));
    }
    // More means than rows: the rest repeat, and stay empty.
    while means.len() < k * dim {
        means.extend_from_slice(row(rng.below(count as u64) as usize));
    }
    if k == 1 || k >= count {
        if k == 1 {
            means.fill(0.0);
            (0..count).for_each(|index| add(&mut means, row(index)));
            means.iter_mut().for_each(|x| *x /= count as f32);
        }
        return means;
    }
    let (mut near, mut scores, mut counts) = (vec![0; count], vec![0.0; count], vec![0u32; k]);
    for _ in 0..ROUNDS {
        tiles::assign(&Panels::pack(&means, k, dim), rows, &mut near, &mut scores, threads);
        means.fill(0.0);
        counts.fill(0);
        for (index, mean) in near.iter().enumerate() {
            let mean = *mean as usize;
            add(&mut means[mean * dim..(mean + 1) * dim], row(index));
            counts[mean] += 1;
        }
        for (mean, count_of) in means.chunks_exact_mut(dim).zip(&counts) {
            if *count_of > 0 {
                mean.iter_mut().for_each(|x| *x /= *count_of as f32);
            } else {
                mean.copy_from_slice(row(rng.below(count as u64) as usize));
            }
        }
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (starts, k) in [(vec![0, 10, 10, 40], 7), (vec![0, 1, 2, 1000], 64), (vec![0, 5], 5)] {
            let shares = shares(&starts, k);
            assert_eq!(shares.last(), Some(&k), "{shares:?}");
            for region in 0..starts.len() - 1 {
                assert_eq!(starts[region] == starts[region + 1], shares[region] == shares[region + 1]);
            }
        }
    }

    #[test]
    fn means_find_separate_heaps() {
        let mut rng = Rng::new(3);
        let rows: Vec<f32> =
            (0..400).flat_map(|i| [(i % 4) as f32 * 10.0 + rng.normal() * 0.1, rng.normal() * 0.1]).collect();
        let means = means(&rows, 8, 2, 1, 2);
        for heap in 0..4 {
            assert!(means.chunks_exact(2).any(|mean| (mean[0] - heap as f32 * 10.0).abs() < 0.5), "{means:?}");
        }
    }
}
