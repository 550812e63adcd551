//! How a build spends its memory: from the account's limit follow the sample, the clusters and the partitions.
//!
//! ```text
//!   phase      what is held at the same time                                    share of the limit
//!   Sample     sample, held-out points, one batch                               1/2, 1/16, the batch
//!   Train      sample + centroids, f32 rows of a batch                          + 1/8, 1/8
//!   Assign     centroids, their panels, a write buffer for each partition, a batch   1/8, 1/8, 1/8
//!   Encode     centroids, one part: vectors, rows, codes; candidates            2/5, 1/8
//! ```
//!
//! The shares leave about a tenth for what is small: counts, orders, the cluster table. What is free beyond them while
//! partitions are written makes their buffers larger, and a second batch.

use crate::build::batch::Batch;
use crate::build::calibrate::RecallCalibration;
use crate::build::work::{BuildOptions, Work};
use crate::format::encode::Coder;
use crate::format::full_vectors::FullVectors;
use crate::format::layout::Part;
use crate::format::meta::Shape;
use ramekin_base::{Error, Result, Size};
use ramekin_vecmath::{BLOCK, Datatype, Metric};

/// Without a limit of its own an account is taken to have this many bytes.
const LIMIT_WITHOUT: u64 = 512 << 20;

/// Bytes below which no build is tried, whatever its dimension.
const LIMIT_LEAST: u64 = 1 << 20;

/// Fewer vectors than this make one cluster: its codes are scanned as a whole.
const CLUSTERED_FROM: usize = 256;

/// What a build will use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) count: usize,
    pub(crate) dim: usize,
    pub(crate) full_vectors: FullVectors,
    pub(crate) clusters: usize,
    pub(crate) sample: usize,
    pub(crate) held_out: usize,
    /// Rounds of training.
    pub(crate) rounds: usize,
    /// Rows of f32 that one step of training may hold.
    pub(crate) train_rows: usize,
    /// Centroids whose panels may be held at a time.
    pub(crate) tile: usize,
    /// Vectors that one chunk of the encoder may hold.
    pub(crate) chunk_rows: usize,
    /// Bytes of write buffers of all partitions together.
    pub(crate) part_buffers: usize,
    /// Bytes of buffers to read temporary files through.
    pub(crate) read_buffer: usize,
}

/// Bytes that a build over so many dimensions needs: some whole vectors in every place where one must fit.
fn least_bytes(dim: usize) -> u64 {
    LIMIT_LEAST.max(4 * dim as u64 * 96)
}

impl Plan {
    pub(crate) fn make(
        count: usize,
        full_vectors: FullVectors,
        work: &Work<'_>,
        options: &BuildOptions,
    ) -> Result<Self> {
        let limit = match work.account.left() {
            None => LIMIT_WITHOUT,
            Some(free) => {
                // A build that is tried again with less has what it needs at least, as far as there is that much.
                (free * options.percent.min(100) / 100).max(free.min(least_bytes(full_vectors.dim)))
            }
        };
        Self::of(count, full_vectors, limit, options)
    }

    /// Bytes of one vector's codes of all widths, with their factors and its part of half-filled blocks.
    pub(crate) fn code_bytes(dim: usize) -> usize {
        (dim * 12).div_ceil(8) + 24
    }

    pub(crate) fn of(count: usize, full_vectors: FullVectors, limit: u64, options: &BuildOptions) -> Result<Self> {
        let dim = full_vectors.dim;
        let share = |parts: u64, of: u64| (limit * parts / of) as usize;
        let least = least_bytes(dim);
        if limit < least {
            let (needed, there) = (Size(least), Size(limit));
            let text =
                format!("an index build over {dim} dimensions needs {needed} of working memory, and has {there}");
            return Err(Error::no_memory(text));
        }
        let compact = dim + 16;
        let clusters = match count {
            ..CLUSTERED_FROM => 1,
            count => ((4.0 * (count as f64).sqrt()) as usize).min(count / 32).min(share(1, 8) / compact).max(1),
        };
        // From 16 to 64 points a centroid, as memory allows; beyond that a larger sample moves centroids by less than
        // they differ between two seeds.
        let per_cluster = if options.ef_construct > 200 { 128 } else { 64 };
        let sample = (clusters * per_cluster).min(share(1, 2) / compact).clamp(1, count.max(1));
        // Each looks at all vectors: 320 of them cost a build of 17,000 two fifths of its time. 64 with
        // their ten nearest still tell recall to a per cent.
        let asked = (count / 128).clamp(64, 320);
        let held_out = (share(1, 8) / RecallCalibration::bytes_each(dim)).clamp(1, asked).min(count);
        // A vector of a chunk with its record, its row, its codes of all widths and their factors.
        let chunk_row =
            4 * dim + full_vectors.beside() + 4 + Self::code_bytes(dim) + Coder::bytes(0, 1) + dim.div_ceil(8);
        let batch = Batch::bytes(dim);
        let chunk = share(2, 5).max(4 * chunk_row);
        Ok(Self {
            count,
            dim,
            full_vectors,
            clusters,
            sample,
            held_out,
            // A round costs 16 points a centroid: ten of them cost less than assigning the points of a large index, and
            // three about as much as assigning those of a small one, whose lists are scanned in no time anyway.
            rounds: (count / clusters / 25).clamp(3, 10),
            train_rows: (share(1, 8) / (4 * dim)).max(8),
            tile: (share(1, 12) / (4 * dim + 4)).clamp(32, clusters.next_multiple_of(32)) / 32 * 32,
            chunk_rows: (chunk / chunk_row).max(1),
            part_buffers: share(1, 8).min(16 << 20),
            read_buffer: share(1, 24).clamp(64 << 10, 1 << 20).min(batch.max(64 << 10)),
        })
    }
}

/// The sections that an index of so many vectors will have, built with so much memory, and how many lists: known before
/// there is any vector, but for how evenly lists are filled.
pub fn expected_sections(
    metric: Metric,
    dim: usize,
    datatype: Datatype,
    rows: usize,
    memory: u64,
) -> Result<(usize, Vec<(Part, u64)>)> {
    let full_vectors = FullVectors { metric, datatype, dim };
    let lists = Plan::of(rows, full_vectors, memory, &BuildOptions::default())?.clusters.max(1);
    // The last block of a list is half full.
    let blocks = rows.div_ceil(BLOCK) + lists / 2;
    Ok((lists, Shape::new(full_vectors, rows.max(1), lists, blocks).parts()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_vecmath::{Datatype, Metric};

    fn of_dim(dim: usize) -> FullVectors {
        FullVectors { metric: Metric::Dot, datatype: Datatype::Float16, dim }
    }

    #[test]
    fn a_million_by_a_hundred_fits_24_mib() {
        let plan = Plan::of(1_000_000, of_dim(100), 24 << 20, &BuildOptions::default()).unwrap();
        assert_eq!(plan.clusters, 4000);
        assert!(plan.sample >= 100_000 && plan.chunk_rows > 10_000 && plan.tile == 4000, "{plan:?}");
        let more = Plan::of(1_000_000, of_dim(100), 256 << 20, &BuildOptions::default()).unwrap();
        assert_eq!(more.sample, 256_000);
    }

    #[test]
    fn every_shape_has_a_plan_or_a_clear_refusal() {
        for dim in [1, 2, 100, 1536, 65_536] {
            for count in [1, 2, 255, 256, 10_000, 1_000_000, 100_000_000] {
                for limit in [1u64 << 10, 1 << 20, 24 << 20, 1 << 30] {
                    match Plan::of(count, of_dim(dim), limit, &BuildOptions::default()) {
                        Ok(plan) => {
                            assert!(plan.clusters >= 1 && plan.sample >= 1 && plan.chunk_rows >= 1, "{plan:?}");
                            assert!(plan.held_out <= count && plan.tile >= 32);
                        }
                        Err(error) => assert_eq!(error.kind(), ramekin_base::Kind::NoMemory),
                    }
                }
            }
        }
    }
}
