//! Many rows against many centroids: the inner loop of k-means, of assigning a stream to its clusters, and of brute
//! force over held-out queries.
//!
//! ```text
//!   panel p: centroids 32p .. 32p+32          one row of 32 f32 per dimension
//!        dim 0   | c0 c1 ... c31 |            rows stay as they are; each is broadcast against
//!        dim 1   | c0 c1 ... c31 |            the panel, so a tile of rows x 32 sums lives in
//!        ...                                  registers and starts from -bias
//! ```
//!
//! The score of row x and centroid c is `<x, c> - bias(c)`. With `bias = |c|^2 / 2` the best score is the nearest
//! centroid and `|x - c|^2 = |x|^2 - 2 * score`; with `bias = 0` it is the largest inner product.

use crate::kernels::kernels;

/// Centroids of a panel.
pub(crate) const PANEL: usize = 32;

/// 16 floats on a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

/// Centroids, packed for the tile kernel.
#[derive(Clone, Debug)]
pub struct Panels {
    pub(crate) k: usize,
    pub(crate) dim: usize,
    /// Two lines for each dimension of each panel.
    pub(crate) lines: Vec<Line>,
    /// `-bias` of each centroid; minus infinity for the ones that only fill up the last panel.
    pub(crate) start: Vec<Line>,
}

impl Panels {
    /// Heap bytes of a packed set, to be reserved before.
    pub fn bytes(k: usize, dim: usize) -> usize {
        k.div_ceil(PANEL) * PANEL * 4 * (dim + 1)
    }

    /// Packs `k` centroids for the search of the nearest: the bias is half the squared length.
    pub fn pack(centroids: &[f32], k: usize, dim: usize) -> Self {
        let bias: Vec<f32> = centroids.chunks_exact(dim).map(|c| crate::dot(c, c) / 2.0).collect();
        Self::pack_biased(centroids, k, dim, &bias)
    }

    /// Packs `k` vectors for the search of the largest inner product.
    pub fn pack_dot(centroids: &[f32], k: usize, dim: usize) -> Self {
        Self::pack_biased(centroids, k, dim, &vec![0.0; k])
    }

    /// Packs with a bias of each centroid, which every score of it is lessened by.
    pub fn pack_biased(centroids: &[f32], k: usize, dim: usize, bias: &[f32]) -> Self {
        assert!(k > 0 && dim > 0, "nothing to pack");
        assert_eq!(centroids.len(), k * dim, "centroids of another size");
        assert_eq!(bias.len(), k, "a bias for each centroid");
        let panels = k.div_ceil(PANEL);
        let mut packed = Self {
            k,
            dim,
            lines: vec![Line([0.0; 16]); panels * dim * 2],
            start: vec![Line([f32::NEG_INFINITY; 16]); panels * 2],
        };
        for (at, (centroid, bias)) in centroids.chunks_exact(dim).zip(bias).enumerate() {
            let (panel, lane) = (at / PANEL, at % PANEL);
            packed.start[panel * 2 + lane / 16].0[lane % 16] = -bias;
            for (d, value) in centroid.iter().enumerate() {
                packed.lines[(panel * dim + d) * 2 + lane / 16].0[lane % 16] = *value;
            }
        }
        packed
    }

    pub fn len(&self) -> usize {
        self.k
    }

    pub fn is_empty(&self) -> bool {
        self.k == 0
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The best centroid of each row and its score `<x, c> - bias(c)`. `rows` holds `best.len()` rows of `dim`. Of
    /// equal scores the lowest index wins. A row that is not finite gets centroid 0 or any other.
    pub fn assign(&self, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
        assert_eq!(rows.len(), best.len() * self.dim, "rows of another size");
        assert_eq!(best.len(), scores.len(), "a score for each row");
        // SAFETY: there are as many rows as results.
        unsafe { (kernels().assign)(self, rows, best, scores) }
    }

    /// The score of each row against each centroid: `out[row * k + centroid]`.
    pub fn scores(&self, rows: &[f32], out: &mut [f32]) {
        let count = rows.len() / self.dim;
        assert_eq!(rows.len(), count * self.dim, "rows of another size");
        assert_eq!(out.len(), count * self.k, "a score for each row and centroid");
        // SAFETY: there is a place for each row and centroid.
        unsafe { (kernels().scores)(self, rows, out) }
    }
}
