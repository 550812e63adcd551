//! A rotated query, prepared once for the codes of every cluster.
//!
//! ```text
//!   int8    q_i ~ scale * i8           <q, code> ~ scale * (sum i8 * level + offset * sum i8)
//!   tables  16 bytes for 4 dimensions: entry m = sum of the q of the set bits of m, from 0 up, in steps of 1/63 of
//!           the widest group; 63 at most, so that four entries add up within a byte
//! ```

use crate::codes::{Linear, Width, code_bytes, record_bytes, unpack};

/// Largest entry of a byte table.
pub(crate) const ENTRY_MAX: f32 = 63.0;
/// Readable bytes past the end of the int8 query, so that a kernel may load whole registers.
const PAD: usize = 64;

/// A query in the forms that the code kernels read.
#[derive(Clone, Debug)]
pub struct QueryCodes {
    dim: usize,
    pub(crate) bytes: Vec<i8>,
    pub(crate) scale: f32,
    pub(crate) sum: i32,
    /// 16 entries for each 4 dimensions; filled up with groups of zeros to a multiple of 4 groups.
    pub(crate) tables: Vec<u8>,
    /// `<q, code> ~ table_step * sum of entries + table_base`.
    pub(crate) table_step: f32,
    pub(crate) table_base: f32,
}

impl QueryCodes {
    /// Room for a query; [`QueryCodes::prepare`] fills it. A search keeps one and uses it again.
    pub fn new(dim: usize) -> Self {
        assert!(dim > 0, "a query of no dimensions");
        let groups = dim.div_ceil(4).next_multiple_of(4);
        Self {
            dim,
            bytes: vec![0; dim + PAD],
            scale: 0.0,
            sum: 0,
            tables: vec![0; groups * 16],
            table_step: 0.0,
            table_base: 0.0,
        }
    }

    /// Heap bytes of a prepared query, to be reserved before.
    pub fn bytes(dim: usize) -> usize {
        dim + PAD + dim.div_ceil(4).next_multiple_of(4) * 16
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Takes a rotated query.
    pub fn prepare(&mut self, rotated: &[f32]) {
        assert_eq!(rotated.len(), self.dim, "query of another dimension");
        let max = rotated.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        self.scale = max / 127.0;
        let inverse = if self.scale > 0.0 && self.scale.is_finite() { 1.0 / self.scale } else { 0.0 };
        self.sum = 0;
        for (byte, x) in self.bytes.iter_mut().zip(rotated) {
            *byte = (x * inverse).round().clamp(-127.0, 127.0) as i8;
            self.sum += i32::from(*byte);
        }
        self.prepare_tables(rotated);
    }

    fn prepare_tables(&mut self, rotated: &[f32]) {
        let widest = rotated.chunks(4).map(|group| group.iter().map(|x| x.abs()).sum()).fold(0.0f32, f32::max);
        self.table_step = widest / ENTRY_MAX;
        let inverse = if self.table_step > 0.0 && self.table_step.is_finite() { 1.0 / self.table_step } else { 0.0 };
        self.table_base = 0.0;
        for (table, group) in self.tables.chunks_exact_mut(16).zip(rotated.chunks(4)) {
            let lowest: f32 = group.iter().map(|x| x.min(0.0)).sum();
            self.table_base += lowest - 0.5 * group.iter().sum::<f32>();
            for (mask, entry) in table.iter_mut().enumerate() {
                let set = group.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, x)| x);
                *entry = ((set.sum::<f32>() - lowest) * inverse).round().clamp(0.0, ENTRY_MAX) as u8;
            }
        }
    }

    /// `<q, code>` of one code.
    pub fn dot(&self, width: Width, code: &[u8]) -> f32 {
        assert_eq!(code.len(), code_bytes(width, self.dim), "code of another size");
        self.real(width, self.levels_dot(width, code))
    }

    /// `<q, code>` of codes that lie `stride` bytes apart (the last one may end with the slice).
    pub fn dots(&self, width: Width, codes: &[u8], stride: usize, out: &mut [f32]) {
        let bytes = code_bytes(width, self.dim);
        assert!(stride >= bytes, "codes overlap");
        assert!(out.is_empty() || codes.len() >= (out.len() - 1) * stride + bytes, "too few codes");
        for (at, out) in out.iter_mut().enumerate() {
            *out = self.real(width, self.levels_dot(width, &codes[at * stride..at * stride + bytes]));
        }
    }

    /// Estimates of chosen records, prefetched: for `which[i]`, an index into `records` ([`record_bytes`] apart),
    /// `estimates[i] = base + f <q, code> + k` and `margins[i] = f * slack`, how far the truth may lie off. All indices
    /// must be inside the slice.
    #[allow(clippy::too_many_arguments, reason = "one call for a whole cluster")]
    pub fn estimate(
        &self,
        width: Width,
        records: &[u8],
        which: &[u32],
        linear: &Linear,
        base: f32,
        slack: f32,
        estimates: &mut [f32],
        margins: &mut [f32],
    ) {
        let (bytes, stride) = (code_bytes(width, self.dim), record_bytes(width, self.dim));
        assert!(which.len() == estimates.len() && which.len() == margins.len(), "an estimate for each record");
        for ((at, estimate), margin) in which.iter().zip(estimates).zip(margins) {
            let record = &records[*at as usize * stride..(*at as usize + 1) * stride];
            let dot = self.real(width, self.levels_dot(width, &record[..bytes]));
            let f = linear.f(u16::from_le_bytes([record[bytes], record[bytes + 1]]));
            let k = linear.k(u16::from_le_bytes([record[bytes + 2], record[bytes + 3]]));
            *estimate = base + f.mul_add(dot, k);
            *margin = f * slack;
        }
    }

    /// The sum over int8 times level, as a real number.
    #[inline]
    pub(crate) fn real(&self, width: Width, sum: i32) -> f32 {
        self.scale * (sum as f32 + width.offset() * self.sum as f32)
    }

    fn levels_dot(&self, width: Width, code: &[u8]) -> i32 {
        let mut levels = vec![0; self.dim];
        unpack(width, code, &mut levels);
        levels.iter().zip(&self.bytes).map(|(level, q)| i32::from(*level) * i32::from(*q)).sum()
    }
}
