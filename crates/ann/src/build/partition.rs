//! The second pass over the stream: each vector goes to the part of its nearest centroid.
//!
//! ```text
//!   batch n - 1    appended to the files of its partitions  ┐ one after the other, on the thread that builds
//!   batch n + 1    read                                ┘
//!   batch n        its nearest centroids are found       meanwhile, on others
//! ```
//!
//! so that the disk and the cores work side by side. Where there is no memory for a second batch, or one thread only, all
//! is done in turn.

use crate::build::batch::Batch;
use crate::build::partitions::Partitions;
use crate::build::plan::Plan;
use crate::build::tiles::Tiles;
use crate::build::train::Trained;
use crate::build::work::{Phase, Work};
use crate::format::buffer::Buffer;
use crate::source::Source;
use ramekin_base::{Error, Result};
use ramekin_disk::SpillFile;
use ramekin_memory::Account;
use ramekin_vecmath::dot;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// The least buffer of a partition's file.
const BUFFER_LEAST: usize = 4096;

/// Clusters of each partition, so that by the sample's counts a partition fills nine tenths of a chunk.
fn bounds(sampled: &[u32], plan: &Plan) -> Vec<u32> {
    let total: u64 = sampled.iter().map(|count| u64::from(*count)).sum::<u64>().max(1);
    let parts_max = (plan.part_buffers / BUFFER_LEAST).max(1);
    let rows = (plan.chunk_rows as u64 * 9 / 10).max(plan.count as u64 / parts_max as u64 + 1);
    let (mut bounds, mut filled) = (vec![0], 0);
    for (cluster, count) in sampled.iter().enumerate() {
        let expected = u64::from(*count) * plan.count as u64 / total;
        if filled > 0 && filled + expected > rows {
            bounds.push(cluster as u32);
            filled = 0;
        }
        filled += expected;
    }
    bounds.push(sampled.len() as u32);
    bounds
}

/// Bytes of one partition's write buffer. Nothing else takes as much while partitions are written, and small writes cost more time
/// than all the rest: half of what is free now is for buffers.
fn buffer_bytes(partitions: usize, plan: &Plan, account: &Account) -> usize {
    let all = plan.part_buffers.max(account.left().unwrap_or(0) as usize / 2);
    (all / partitions).clamp(BUFFER_LEAST, 256 << 10) / BUFFER_LEAST * BUFFER_LEAST
}

/// Cuts the stream into partitions. `batch` has room for one batch, which is paid for.
pub(crate) fn partition(
    source: &mut dyn Source,
    trained: &Trained,
    plan: &Plan,
    work: &Work<'_>,
    mut batch: Batch,
) -> Result<Partitions> {
    let tiles = Tiles::new(&trained.centroids, plan.tile, work.threads, &work.account)?;
    let mut partition = Partitioner::new(trained, plan, work)?;
    let (mut other, mut seen) = (Batch::default(), 0);
    source.rewind()?;
    let mut more = batch.read(source, 0, plan)?;
    // The source has its own buffers by now, and may want as much again.
    let bytes = Batch::bytes(plan.dim) as u64;
    let is_room = work.threads > 1 && work.account.left().is_none_or(|left| left >= 2 * bytes);
    let second = is_room.then(|| work.account.try_reserve_no_reclaim(bytes).ok()).flatten();
    while more {
        seen += batch.rows.len();
        if second.is_some() {
            more = std::thread::scope(|scope| {
                scope.spawn(|| batch.assign(&tiles, plan));
                partition.append(&mut other)?;
                other.read(source, seen, plan)
            })?;
            std::mem::swap(&mut batch, &mut other);
        } else {
            batch.assign(&tiles, plan);
            partition.append(&mut batch)?;
            more = batch.read(source, seen, plan)?;
        }
        work.step(Phase::Assign, seen, plan.count)?;
    }
    partition.append(&mut other)?;
    if seen != plan.count {
        return Err(Error::bug(format!("the source promised {} vectors and gave {seen} the second time", plan.count)));
    }
    partition.finish()
}

impl Batch {
    fn assign(&mut self, tiles: &Tiles<'_>, plan: &Plan) {
        plan.full_vectors.view_for_now(&mut self.vectors, &mut self.lengths);
        self.best.resize(self.rows.len(), 0);
        self.scores.resize(self.rows.len(), 0.0);
        tiles.assign(&self.vectors, &mut self.best, &mut self.scores);
    }
}

/// The partitions while they are filled.
struct Partitioner<'a> {
    plan: &'a Plan,
    partitions: Partitions,
    /// Sum of the squared lengths of all vectors.
    lengths: f64,
    record: Vec<u8>,
}

impl<'a> Partitioner<'a> {
    fn new(trained: &Trained, plan: &'a Plan, work: &Work<'_>) -> Result<Self> {
        let counts = Buffer::<u32>::new(&work.account, trained.centroids.len())?;
        let squares = Buffer::<f32>::new(&work.account, trained.centroids.len())?;
        let bounds = bounds(&trained.counts, plan);
        let partitions = bounds.len() - 1;
        let buffer = buffer_bytes(partitions, plan, &work.account);
        let mut spills = VecDeque::with_capacity(partitions);
        for part in 0..partitions {
            let path = work.temp.join(format!("ann-part-{part}"));
            spills.push_back(SpillFile::create(&work.disk, &path, &work.account, buffer)?);
        }
        let partitions = Partitions { spills, bounds, counts, squares, length: 0.0 };
        Ok(Self { plan, partitions, lengths: 0.0, record: Vec::new() })
    }

    /// Appends the vectors of a batch, whose centroids were found, to their partitions.
    fn append(&mut self, batch: &mut Batch) -> Result<()> {
        let (full_vectors, partitions) = (&self.plan.full_vectors, &mut self.partitions);
        let assigned = batch.rows.iter().zip(&batch.best).zip(&batch.scores);
        for (at, (((row, cluster), score), x)) in
            assigned.zip(batch.vectors.chunks_exact_mut(self.plan.dim)).enumerate()
        {
            let square = dot(x, x);
            self.lengths += f64::from(square);
            partitions.squares[*cluster as usize] += (square - 2.0 * score).max(0.0);
            let part = partitions.bounds.partition_point(|first| first <= cluster) - 1;
            let spill = &mut partitions.spills[part];
            spill.append([*row, *cluster].as_bytes())?;
            full_vectors.values(x, &batch.lengths, at);
            spill.append(full_vectors.pack(x, &mut self.record))?;
            partitions.counts[*cluster as usize] += 1;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Partitions> {
        for spill in &mut self.partitions.spills {
            spill.finish()?;
        }
        let length = (self.lengths / self.plan.count as f64).sqrt() as f32;
        // Some square is no f32: queries stay as they are.
        self.partitions.length = if length.is_finite() { length } else { 0.0 };
        Ok(self.partitions)
    }
}
