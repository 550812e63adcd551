//! Vectors of one byte a dimension: the training sample and the centroids.
//!
//! ```text
//!   x[d]  =  scale of x  *  scale of d  *  i8
//! ```
//!
//! The scale of a dimension evens out data whose dimensions differ in range; the scale of the vector makes
//! its largest value 127. A centroid *is* its compact form: residuals are taken to what the bytes say, so
//! nothing is lost by it but a little centring.

use crate::format::buffer::Buffer;
use ramekin_base::Result;
use ramekin_memory::Account;

/// A number so large that a sum with it has no room for a fraction: adding and subtracting it rounds to even, without
/// a call where the processor has no instruction for it.
const WHOLE: f32 = 12_582_912.0;

/// The scale of each dimension.
#[derive(Debug, Clone)]
pub(crate) struct Scales {
    pub(crate) of: Vec<f32>,
}

impl Scales {
    /// From the root mean square of each dimension; a dimension that is (nearly) always zero gets a thousandth
    /// of the largest, so that no value divides by zero.
    pub(crate) fn from_squares(squares: &[f64], count: usize) -> Self {
        let root = |sum: &f64| (*sum / count.max(1) as f64).sqrt() as f32;
        let most = squares.iter().map(root).fold(0f32, f32::max);
        let least = if most > f32::MIN_POSITIVE * 1e6 { most * 1e-3 } else { 1.0 };
        Self { of: squares.iter().map(|sum| root(sum).max(least)).collect() }
    }

    /// Writes the bytes of `x` and returns its scale.
    pub(crate) fn pack(&self, x: &[f32], out: &mut [i8]) -> f32 {
        let most = x.iter().zip(&self.of).fold(0f32, |most, (x, scale)| most.max((x / scale).abs()));
        if !(most > 0.0 && most.is_finite()) {
            out.fill(0);
            return 0.0;
        }
        let unit = 127.0 / most;
        for ((out, x), scale) in out.iter_mut().zip(x).zip(&self.of) {
            *out = (x / scale * unit + WHOLE - WHOLE) as i8;
        }
        most / 127.0
    }

    pub(crate) fn unpack(&self, bytes: &[i8], scale: f32, out: &mut [f32]) {
        for ((out, byte), dim) in out.iter_mut().zip(bytes).zip(&self.of) {
            *out = f32::from(*byte) * (dim * scale);
        }
    }
}

/// Many compact vectors in one reserved place.
pub(crate) struct Compact {
    pub(crate) scales: Scales,
    bytes: Buffer<i8>,
    scale: Buffer<f32>,
    len: usize,
}

impl Compact {
    pub(crate) fn new(account: &Account, scales: Scales, room: usize) -> Result<Self> {
        let dim = scales.of.len();
        Ok(Self { scales, bytes: Buffer::new(account, room * dim)?, scale: Buffer::new(account, room)?, len: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn dim(&self) -> usize {
        self.scales.of.len()
    }

    /// Adds a vector; the room was reserved for it.
    pub(crate) fn push(&mut self, x: &[f32]) {
        self.len += 1;
        self.set(self.len - 1, x);
    }

    pub(crate) fn set(&mut self, index: usize, x: &[f32]) {
        let dim = self.dim();
        self.scale[index] = self.scales.pack(x, &mut self.bytes[index * dim..(index + 1) * dim]);
    }

    pub(crate) fn get(&self, index: usize, out: &mut [f32]) {
        self.scales.unpack(self.row(index), self.scale[index], out);
    }

    pub(crate) fn row(&self, index: usize) -> &[i8] {
        &self.bytes[index * self.dim()..(index + 1) * self.dim()]
    }

    pub(crate) fn scale(&self, index: usize) -> f32 {
        self.scale[index]
    }

    /// Unpacks the vectors `from..to` one after another.
    pub(crate) fn unpack(&self, from: usize, to: usize, out: &mut [f32]) {
        for (index, out) in (from..to).zip(out.chunks_exact_mut(self.dim())) {
            self.get(index, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn bytes_keep_a_vector_to_a_part_in_two_hundred() {
        let account = Budget::new(1 << 20).root();
        let scales = Scales::from_squares(&[1.0, 1e6, 0.0], 1);
        let mut compact = Compact::new(&account, scales, 3).unwrap();
        let rows = [[0.5f32, -900.0, 0.0], [0.0, 0.0, 0.0], [-2.0, 20.0, 0.01]];
        rows.iter().for_each(|row| compact.push(row));
        assert_eq!(compact.len(), 3);
        let mut back = [0f32; 9];
        compact.unpack(0, 3, &mut back);
        assert!((back[0] - 0.5).abs() < 0.01 && (back[1] + 900.0).abs() < 8.0 && back[2] == 0.0);
        assert_eq!(&back[3..6], &[0.0; 3]);
        assert!((back[6] + 2.0).abs() < 0.02 && (back[7] - 20.0).abs() < 9.0, "{back:?}");
    }
}
