//! The full vectors of an index: how they lie in their section, and what the index takes them for.
//!
//! ```text
//!   values   what the source gives and what is given back: f32 that the datatype has
//!   record   the values packed: 4, 2 or 1 byte each
//!   view     what is trained on, coded and scored: the values; of bytes under Cosine, brought to length 1
//! ```
//!
//! Bytes cannot hold a vector of length 1, so under Cosine they are kept as they came, and every score divides by their
//! length. Queries come as views.

use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_vecmath::{Datatype, Metric, divide_by_lengths, norm, normalise, score, score_block};
use zerocopy::IntoBytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FullVectors {
    pub(crate) metric: Metric,
    pub(crate) datatype: Datatype,
    pub(crate) dim: usize,
}

impl FullVectors {
    /// Bytes of a record.
    pub(crate) fn record(&self) -> usize {
        self.dim * self.datatype.bytes()
    }

    /// The record of values is their bytes in memory.
    pub(crate) fn is_plain(&self) -> bool {
        self.datatype == Datatype::Float32
    }

    /// Bytes of a record beside the view; none where it is the view.
    pub(crate) fn beside(&self) -> usize {
        if self.is_plain() { 0 } else { self.record() }
    }

    fn is_normalised(&self) -> bool {
        self.datatype == Datatype::Uint8 && self.metric == Metric::Cosine
    }

    /// Turns values into views.
    pub(crate) fn view(&self, vectors: &mut [f32]) {
        if self.is_normalised() {
            vectors.chunks_exact_mut(self.dim).for_each(|x| _ = normalise(x));
        }
    }

    /// The same, where the values are wanted again: adds what [`FullVectors::values`] needs for that.
    pub(crate) fn view_for_now(&self, vectors: &mut [f32], lengths: &mut Vec<f32>) {
        lengths.clear();
        if self.is_normalised() {
            lengths.extend(vectors.chunks_exact(self.dim).map(norm));
            self.view(vectors);
        }
    }

    /// Turns the view of the vector at `index` back into its values: whole numbers up to 255, so rounding is exact.
    pub(crate) fn values(&self, view: &mut [f32], lengths: &[f32], index: usize) {
        if let Some(length) = lengths.get(index) {
            view.iter_mut().for_each(|x| *x = (*x * length).round());
        }
    }

    /// The record of values, in `room` where it is not theirs.
    pub(crate) fn pack<'a>(&self, values: &'a [f32], room: &'a mut Vec<u8>) -> &'a [u8] {
        if self.is_plain() {
            return values.as_bytes();
        }
        room.resize(values.len() * self.datatype.bytes(), 0);
        self.datatype.pack(values, room);
        room
    }

    /// Values of records.
    pub(crate) fn unpack(&self, records: &[u8], values: &mut [f32]) {
        self.datatype.unpack(records, values);
    }

    /// Floats of the room that scores of this dimension need.
    pub(crate) fn room(dim: usize) -> usize {
        dim.max(PAGE / 4)
    }

    /// Records that are scored at a time: as many as the room has values for.
    pub(crate) fn together(&self) -> usize {
        Self::room(self.dim) / self.dim
    }

    /// Scores of a query's view, by records that lie one after another, at most [`FullVectors::together`].
    #[inline]
    pub(crate) fn scores(&self, query: &[f32], records: &[u8], room: &mut [f32], out: &mut [f32]) -> Result<()> {
        if self.is_plain() {
            score_block(self.metric, query, floats(records)?, self.dim, out);
            return Ok(());
        }
        let values = &mut room[..out.len() * self.dim];
        self.unpack(records, values);
        score_block(self.metric, query, values, self.dim, out);
        if self.is_normalised() {
            divide_by_lengths(values, self.dim, out);
        }
        Ok(())
    }

    /// The score of a query's view by one record.
    #[inline]
    pub(crate) fn score(&self, query: &[f32], record: &[u8], room: &mut [f32]) -> Result<f32> {
        if self.is_plain() {
            return Ok(score(self.metric, query, floats(record)?));
        }
        let mut scores = [0.0];
        self.scores(query, record, room, &mut scores)?;
        Ok(scores[0])
    }
}

/// Bytes of a page as floats: sections begin on pages and records are whole floats, so they are aligned.
#[inline]
pub(crate) fn floats(bytes: &[u8]) -> Result<&[f32]> {
    zerocopy::FromBytes::ref_from_bytes(bytes).map_err(|_| Error::bug("a vector does not lie on a float's boundary"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;

    #[test]
    fn values_come_back_from_views_and_records() {
        let mut rng = Rng::new(3);
        for metric in [Metric::Cosine, Metric::Dot] {
            for (datatype, dim) in Datatype::ALL.into_iter().flat_map(|datatype| [1, 5, 300].map(|dim| (datatype, dim)))
            {
                let full_vectors = FullVectors { metric, datatype, dim };
                let mut values: Vec<f32> = (0..4 * dim).map(|_| rng.normal().abs() * 90.0).collect();
                values[..dim].fill(0.0);
                datatype.round(&mut values);
                let (mut views, mut lengths, mut room) = (values.clone(), Vec::new(), Vec::new());
                full_vectors.view_for_now(&mut views, &mut lengths);
                let mut records = Vec::new();
                for (index, view) in views.clone().chunks_exact_mut(dim).enumerate() {
                    full_vectors.values(view, &lengths, index);
                    records.extend_from_slice(full_vectors.pack(view, &mut room));
                }
                let mut back = vec![0.0; 4 * dim];
                full_vectors.unpack(&records, &mut back);
                assert_eq!(back, values, "{metric:?} {datatype:?}");
                let query: Vec<f32> = (0..dim).map(|_| rng.normal()).collect();
                let mut room = vec![0.0; FullVectors::room(dim)];
                for (record, view) in records.chunks_exact(full_vectors.record()).zip(views.chunks_exact(dim)) {
                    let mut aligned = vec![0f32; full_vectors.record().div_ceil(4)];
                    aligned.as_mut_bytes()[..record.len()].copy_from_slice(record);
                    let found = full_vectors.score(&query, &aligned.as_bytes()[..record.len()], &mut room).unwrap();
                    let wanted = score(metric, &query, view);
                    assert!((found - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()), "{found} {wanted}");
                }
            }
        }
    }
}
