//! A batch of the stream in memory, and what a pass over it finds.

use crate::build::plan::Plan;
use crate::source::{Source, batch_rows};
use ramekin_base::{Error, Result};

/// Rows and vectors of one batch; the other lists stand beside them where a pass fills them.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) rows: Vec<u32>,
    pub(crate) vectors: Vec<f32>,
    /// What the vectors were divided by, see [`crate::format::full_vectors::FullVectors::view_for_now`].
    pub(crate) lengths: Vec<f32>,
    /// The nearest centroid of each, and its score.
    pub(crate) best: Vec<u32>,
    pub(crate) scores: Vec<f32>,
}

impl Batch {
    /// Bytes of a batch with all that stands beside it.
    pub(crate) fn bytes(dim: usize) -> usize {
        batch_rows(dim) * (4 * dim + 16)
    }

    /// Reads the next batch of a source that gave `seen` vectors before; false, and it is empty, at the end. A source that
    /// breaks a promise of [`Source`] is an error.
    pub(crate) fn read(&mut self, source: &mut dyn Source, seen: usize, plan: &Plan) -> Result<bool> {
        let Self { rows, vectors, .. } = self;
        if !source.next(rows, vectors)? {
            rows.clear();
            vectors.clear();
            return Ok(false);
        }
        if rows.len() * plan.dim != vectors.len() || seen + rows.len() > plan.count || rows.is_empty() {
            let (count, values, dim) = (rows.len(), vectors.len(), plan.dim);
            let text = format!("the source gave {count} rows with {values} values of {dim} dimensions");
            return Err(Error::bug(text));
        }
        match rows.iter().find(|row| **row as usize >= plan.count) {
            Some(row) => Err(Error::bug(format!("the source gave row {row} of a segment of {}", plan.count))),
            None => Ok(true),
        }
    }
}
