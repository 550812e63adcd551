//! Where a build reads its vectors from: batches of (row, vector), in any order that stays the same.

use ramekin_base::Result;

/// Rows of one batch at most.
pub const BATCH_ROWS: usize = 4096;

/// A stream of (row, vector) that can be read again from its start. Values are such as the datatype of the index has.
pub trait Source {
    /// How many vectors the stream holds.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn dim(&self) -> usize;

    /// Starts again from the first batch.
    fn rewind(&mut self) -> Result<()>;

    /// Replaces both lists by the next batch: at most [`batch_rows`] rows, each a row number of the segment
    /// that comes once, and their vectors one after another. `false` at the end.
    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool>;
}

/// Rows of a batch of `dim`-dimensional vectors: at most 4096, and at most 1 MiB unless one vector is larger.
pub fn batch_rows(dim: usize) -> usize {
    ((1 << 20) / (4 * dim.max(1))).clamp(1, BATCH_ROWS)
}

/// Vectors that lie in memory; row `i` is the `i`-th.
pub struct SliceSource<'a> {
    vectors: &'a [f32],
    dim: usize,
    at: usize,
}

impl<'a> SliceSource<'a> {
    pub fn new(vectors: &'a [f32], dim: usize) -> Self {
        Self { vectors, dim, at: 0 }
    }
}

impl Source for SliceSource<'_> {
    fn len(&self) -> usize {
        self.vectors.len() / self.dim
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn rewind(&mut self) -> Result<()> {
        self.at = 0;
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        let end = (self.at + batch_rows(self.dim)).min(self.len());
        rows.clear();
        vectors.clear();
        rows.extend(self.at as u32..end as u32);
        vectors.extend_from_slice(&self.vectors[self.at * self.dim..end * self.dim]);
        self.at = end;
        Ok(!rows.is_empty())
    }
}
