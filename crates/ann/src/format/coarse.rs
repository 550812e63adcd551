//! The first step of a search: which lists lie near the query.
//!
//! ```text
//!   section:  dim x f32 scales | blocks of 16 centroids: heads, then 4 dimensions of 16 centroids, ...
//!
//!   order:    Euclid, Manhattan   <q, c> - |c|^2 / 2               nearest first
//!             Dot, Cosine         <q', c> + spread(c)^2 / 2        q' = q at the length of the vectors
//! ```
//!
//! For vectors of one length both orders are the same. For others the second is the first after the vectors were
//! lifted onto a sphere by one more dimension, which is how a search for the largest product becomes a search for the
//! nearest.

use crate::format::compact::Compact;
use ramekin_base::{Error, Result};
use ramekin_vecmath::{Centroids8, Metric, norm};
use std::ops::Range;

/// Centroids of a block of [`Centroids8`].
const LANES: usize = 16;

/// The centroids of an index, as they lie in their section.
#[derive(Clone, Copy)]
pub(crate) struct Coarse<'a> {
    shape: Centroids8,
    scales: &'a [u8],
    packed: &'a [u8],
    /// Typical length of the vectors, to which a query is brought; 0 leaves it as it is.
    length: f32,
}

/// Bytes of the section.
pub(crate) fn section_bytes(lists: usize, dim: usize) -> usize {
    dim * 4 + Centroids8::new(lists, dim).bytes()
}

/// Writes the section: the centroid of each list, by `clusters`, and what its score is lessened by.
pub(crate) fn pack(centroids: &Compact, clusters: &[u32], bias: impl Fn(usize) -> f32, out: &mut [u8]) {
    let dim = centroids.dim();
    let (head, packed) = out.split_at_mut(dim * 4);
    for (bytes, scale) in head.chunks_exact_mut(4).zip(&centroids.scales.of) {
        bytes.copy_from_slice(&scale.to_le_bytes());
    }
    let block = Centroids8::new(LANES, dim).bytes();
    let mut rows = vec![0.0; LANES * dim];
    for (at, (clusters, out)) in clusters.chunks(LANES).zip(packed.chunks_mut(block)).enumerate() {
        for (cluster, row) in clusters.iter().zip(rows.chunks_exact_mut(dim)) {
            let scale = centroids.scale(*cluster as usize);
            row.iter_mut().zip(centroids.row(*cluster as usize)).for_each(|(x, byte)| *x = f32::from(*byte) * scale);
        }
        let bias: Vec<f32> = (0..clusters.len()).map(|lane| bias(at * LANES + lane)).collect();
        Centroids8::new(clusters.len(), dim).pack(&rows[..clusters.len() * dim], &bias, out);
    }
}

/// How much the score of a centroid is lessened by.
pub(crate) fn bias(metric: Metric, square: f32, spread: f32) -> f32 {
    match metric {
        Metric::Euclid | Metric::Manhattan => square / 2.0,
        Metric::Dot | Metric::Cosine => -spread * spread / 2.0,
    }
}

impl<'a> Coarse<'a> {
    /// Centroids of a block; a piece of the section begins with a whole one.
    pub(crate) const BLOCK: usize = LANES;

    pub(crate) fn new(section: &'a [u8], lists: usize, dim: usize, metric: Metric, length: f32) -> Result<Self> {
        if section.len() < section_bytes(lists, dim) {
            return Err(Error::corrupt(format!("the centroids' section has {} bytes, too few", section.len())));
        }
        let (scales, packed) = section[..section_bytes(lists, dim)].split_at(dim * 4);
        let length = if matches!(metric, Metric::Dot | Metric::Cosine) { length } else { 0.0 };
        Ok(Self { shape: Centroids8::new(lists, dim), scales, packed, length })
    }

    /// Some of the centroids: those that [`Coarse::range`] names, with the scales from the section's start. Lists are
    /// then counted from the first of them.
    pub(crate) fn of_parts(
        scales: &'a [u8],
        packed: &'a [u8],
        lists: usize,
        dim: usize,
        metric: Metric,
        length: f32,
    ) -> Self {
        let length = if matches!(metric, Metric::Dot | Metric::Cosine) { length } else { 0.0 };
        Self { shape: Centroids8::new(lists, dim), scales, packed, length }
    }

    /// How many centroids fit into so many bytes, in whole blocks; one block at least.
    pub(crate) fn lists_within(bytes: usize, dim: usize) -> usize {
        (bytes / Centroids8::new(LANES, dim).bytes()).max(1) * LANES
    }

    /// Bytes of the section that hold the centroids `from..to`; `from` is the first of a block.
    pub(crate) fn range(from: usize, to: usize, dim: usize) -> Range<usize> {
        let block = Centroids8::new(LANES, dim).bytes();
        dim * 4 + from / LANES * block..dim * 4 + to.div_ceil(LANES) * block
    }

    /// The query in the scale of the centroids' bytes; [`Coarse::along`] takes it.
    pub(crate) fn prepare(&self, query: &[f32], scaled: &mut Vec<f32>) {
        scaled.clear();
        scaled.extend(query.iter().zip(self.scales.chunks_exact(4)).map(|(x, scale)| x * f32_at(scale, 0)));
    }

    /// The score of every list. `scaled` is what [`Coarse::prepare`] made, and comes back changed.
    pub(crate) fn scores(&self, query: &[f32], scaled: &mut Vec<f32>, room: &mut Vec<u8>, out: &mut [f32]) {
        self.prepare(query, scaled);
        let own = if self.length > 0.0 { norm(query) } else { 0.0 };
        if own > 0.0 {
            let times = self.length / own;
            scaled.iter_mut().for_each(|x| *x *= times);
        }
        self.shape.scores(scaled, self.packed, room, out);
    }

    /// `<q, c>` in full precision.
    #[inline]
    pub(crate) fn along(&self, prepared: &[f32], list: usize) -> f32 {
        self.shape.along(prepared, self.packed, list)
    }

    /// Unpacks a centroid.
    pub(crate) fn centroid(&self, list: usize, out: &mut [f32]) {
        self.shape.unpack(self.packed, list, out);
        out.iter_mut().zip(self.scales.chunks_exact(4)).for_each(|(out, scale)| *out *= f32_at(scale, 0));
    }
}

#[inline]
fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::compact::Scales;
    use ramekin_base::Rng;
    use ramekin_memory::Budget;
    use ramekin_vecmath::dot;

    #[test]
    fn packed_centroids_are_the_compact_ones() {
        let (account, mut rng) = (Budget::new(1 << 20).root(), Rng::new(2));
        for (k, dim) in [(1, 1), (5, 7), (16, 4), (40, 33)] {
            let scales: Vec<f64> = (0..dim).map(|d| 1.0 + d as f64).collect();
            let mut compact = Compact::new(&account, Scales::from_squares(&scales, 1), k).unwrap();
            for _ in 0..k {
                compact.push(&(0..dim).map(|_| rng.normal()).collect::<Vec<_>>());
            }
            let clusters: Vec<u32> = (0..k as u32).rev().collect();
            let mut section = vec![0; section_bytes(k, dim)];
            pack(&compact, &clusters, |list| list as f32, &mut section);
            let coarse = Coarse::new(&section, k, dim, Metric::Euclid, 1.0).unwrap();
            let query: Vec<f32> = (0..dim).map(|_| rng.normal()).collect();
            let (mut prepared, mut room, mut scores) = (Vec::new(), Vec::new(), vec![0.0; k]);
            coarse.scores(&query, &mut prepared, &mut room, &mut scores);
            let (mut want, mut got) = (vec![0.0; dim], vec![0.0; dim]);
            for list in 0..k {
                compact.get(clusters[list] as usize, &mut want);
                coarse.centroid(list, &mut got);
                let close = |a: f32, b: f32, by: f32| (a - b).abs() <= by * (1.0 + a.abs());
                assert!(want.iter().zip(&got).all(|(a, b)| close(*a, *b, 1e-5)), "{want:?} {got:?}");
                let exact = dot(&query, &want);
                assert!(close(coarse.along(&prepared, list), exact, 1e-4));
                assert!(close(scores[list] + list as f32, exact, 0.05 * dim as f32), "{} {exact}", scores[list]);
            }
        }
        assert!(Coarse::new(&[0; 9], 3, 3, Metric::Dot, 1.0).is_err());
    }
}
