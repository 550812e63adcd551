//! A rotated query, prepared once for the codes of every cluster.
//!
//! ```text
//!   int8    q_i ~ scale * i8           <q, code> ~ scale * (sum i8 * level + offset * sum i8)
//!   tables  16 bytes for 4 dimensions: entry m = sum of the q of the set bits of m, from 0 up, in steps of 1/31 of
//!           the widest group; 31 at most, so that eight entries add up within a byte. The rounding adds 0.1 % to the
//!           error that one-bit codes have anyway
//!   planes  the int8 bytes once more, in the order in which a 64-byte register meets them that takes a plane of a code
//!           apart: all shifts of the first 64 bytes of the plane, then of the next
//! ```

use crate::codes::{Linear, Width, code_bytes, plane_bytes, record_bytes};
use crate::kernels::kernels;

/// Largest entry of a byte table.
pub(crate) const ENTRY_MAX: f32 = 31.0;
/// Readable bytes past the end of the int8 query, so that a kernel may load whole registers.
const PAD: usize = 128;
/// Records whose sums are taken in one go.
const BATCH: usize = 64;

/// A query in the forms that the code kernels read.
#[derive(Clone, Debug)]
pub struct QueryCodes {
    dim: usize,
    pub(crate) bytes: Vec<i8>,
    /// For planes of 4, 2 and 1 bits; see [`arrange`].
    arranged: Vec<i8>,
    planes: [Plane; 3],
    scale: f32,
    sum: i32,
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
        let (planes, arranged) = planes(dim);
        Self {
            dim,
            bytes: vec![0; dim + PAD],
            arranged: vec![0; arranged],
            planes,
            scale: 0.0,
            sum: 0,
            tables: vec![0; groups * 16],
            table_step: 0.0,
            table_base: 0.0,
        }
    }

    /// Heap bytes of a prepared query, to be reserved before.
    pub fn bytes(dim: usize) -> usize {
        dim + PAD + planes(dim).1 + dim.div_ceil(4).next_multiple_of(4) * 16
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Takes a rotated query.
    pub fn prepare(&mut self, rotated: &[f32]) {
        assert_eq!(rotated.len(), self.dim, "query of another dimension");
        let kernels = kernels();
        // SAFETY: there is a byte for each dimension, and a table for each four.
        unsafe {
            let [max, widest, sum] = (kernels.query_sizes)(rotated);
            self.scale = max / 127.0;
            self.sum = (kernels.query_bytes)(rotated, inverse(self.scale), &mut self.bytes);
            // The lowest entry of a table, all its negative dimensions, becomes 0.
            self.table_step = widest / ENTRY_MAX;
            self.table_base = -0.5 * sum;
            (kernels.query_tables)(rotated, inverse(self.table_step), &mut self.tables);
        }
        for plane in &self.planes {
            arrange(&self.bytes, plane, &mut self.arranged[plane.start..]);
        }
    }

    /// A plane of 4, 2 or 1 bits, and the query's bytes as its kernel reads them.
    #[inline(always)]
    pub(crate) fn plane<const BITS: u32>(&self) -> (&Plane, *const i8) {
        let plane = &self.planes[2 - BITS.ilog2() as usize];
        (plane, self.arranged.as_ptr().wrapping_add(plane.start))
    }

    /// `<q, code>` of one code.
    pub fn dot(&self, width: Width, code: &[u8]) -> f32 {
        assert_eq!(code.len(), code_bytes(width, self.dim), "code of another size");
        // SAFETY: the code has its size.
        self.real(width, unsafe { (kernels().dot_code)(self, width, code) })
    }

    /// `<q, code>` of codes that lie `stride` bytes apart (the last one may end with the slice).
    pub fn dots(&self, width: Width, codes: &[u8], stride: usize, out: &mut [f32]) {
        let bytes = code_bytes(width, self.dim);
        assert!(stride >= bytes, "codes overlap");
        assert!(out.is_empty() || codes.len() >= (out.len() - 1) * stride + bytes, "too few codes");
        for (batch, out) in out.chunks_mut(BATCH).enumerate() {
            let starts: [usize; BATCH] = std::array::from_fn(|at| (batch * BATCH + at) * stride);
            // SAFETY: all codes lie inside the slice.
            unsafe { self.batch(width, codes, &starts[..out.len()], out) };
        }
    }

    /// `<q, code>` of codes anywhere in a slice, each given by the byte that it starts at; prefetched.
    pub fn dots_at(&self, width: Width, codes: &[u8], starts: &[usize], out: &mut [f32]) {
        let bytes = code_bytes(width, self.dim);
        assert_eq!(starts.len(), out.len(), "a dot for each code");
        assert!(starts.iter().all(|start| start.saturating_add(bytes) <= codes.len()), "a code past the end");
        for (starts, out) in starts.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            // SAFETY: all codes lie inside the slice.
            unsafe { self.batch(width, codes, starts, out) };
        }
    }

    /// # Safety
    /// All codes lie inside the slice, and there are no more than a batch.
    unsafe fn batch(&self, width: Width, codes: &[u8], starts: &[usize], out: &mut [f32]) {
        let mut sums = [0; BATCH];
        // SAFETY: passed on.
        unsafe { (kernels().dots)(self, width, codes, starts, &mut sums[..out.len()]) };
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = self.real(width, sum);
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
        let count = records.len() / stride;
        assert!(which.iter().all(|at| (*at as usize) < count), "a record past the end");
        let step = |at: usize| u16::from_le_bytes([records[at], records[at + 1]]);
        let results = estimates.chunks_mut(BATCH).zip(margins.chunks_mut(BATCH));
        for (which, (estimates, margins)) in which.chunks(BATCH).zip(results) {
            let (mut starts, mut dots) = ([0; BATCH], [0.0; BATCH]);
            let (starts, dots) = (&mut starts[..which.len()], &mut dots[..which.len()]);
            for (start, at) in starts.iter_mut().zip(which) {
                *start = *at as usize * stride;
            }
            // SAFETY: all records lie inside the slice.
            unsafe { self.batch(width, records, starts, dots) };
            for (((start, dot), estimate), margin) in starts.iter().zip(dots).zip(estimates).zip(margins) {
                let f = linear.f(step(start + bytes));
                *estimate = base + (f * *dot + linear.k(step(start + bytes + 2)));
                *margin = f * slack;
            }
        }
    }

    /// The sum over int8 times level, as a real number.
    #[inline]
    fn real(&self, width: Width, sum: i32) -> f32 {
        self.scale * (sum as f32 + width.offset() * self.sum as f32)
    }
}

/// Steps of a unit; none if there is nothing to measure.
pub(crate) fn inverse(step: f32) -> f32 {
    if step >= f32::MIN_POSITIVE && step.is_finite() { 1.0 / step } else { 0.0 }
}

/// How a plane of a code is read: whole registers of 64 bytes, then what is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    pub bits: u32,
    pub bytes: usize,
    /// Bytes in whole registers.
    pub whole: usize,
    /// The bytes left, as a mask.
    pub left: u64,
    /// Copies that the bytes left are read as: 0 (none are left), 1, 2 (up to 32) or 4 (up to 16).
    pub copies: usize,
    /// Where the arranged query starts.
    start: usize,
}

impl Plane {
    fn new(bits: u32, dim: usize, start: usize) -> Self {
        let bytes = plane_bytes(bits, dim);
        let copies = match bytes % 64 {
            0 => 0,
            1..=16 => 4,
            17..=32 => 2,
            _ => 1,
        };
        Self { bits, bytes, whole: bytes / 64 * 64, left: (1 << (bytes % 64)) - 1, copies, start }
    }

    /// Where the arranged query ends.
    fn end(&self) -> usize {
        let slices = 8 / self.bits as usize;
        self.start + self.whole * slices + if self.copies > 0 { slices.div_ceil(self.copies) * 64 } else { 0 }
    }
}

/// The planes of 4, 2 and 1 bits, and where the last one ends.
fn planes(dim: usize) -> ([Plane; 3], usize) {
    let four = Plane::new(4, dim, 0);
    let two = Plane::new(2, dim, four.end());
    let one = Plane::new(1, dim, two.end());
    ([four, two, one], one.end())
}

/// Lays the query out for a plane: for each 64 bytes of the plane a register for each shift; where 32 or 16 are left,
/// a register for 2 or 4 shifts. What no bit of the plane meets stays as it is: zero.
fn arrange(bytes: &[i8], plane: &Plane, out: &mut [i8]) {
    let slices = 8 / plane.bits as usize;
    let mut to = 0;
    // Sizes known to the compiler: no call for each few bytes.
    for from in (0..plane.whole).step_by(64) {
        for slice in 0..slices {
            copy::<64>(bytes, slice * plane.bytes + from, out, to);
            to += 64;
        }
    }
    for slice in 0..slices {
        let from = slice * plane.bytes + plane.whole;
        match plane.copies {
            0 => {}
            1 => copy::<64>(bytes, from, out, to + slice * 64),
            2 => copy::<32>(bytes, from, out, to + slice * 32),
            _ => copy::<16>(bytes, from, out, to + slice * 16),
        }
    }
}

#[inline(always)]
fn copy<const N: usize>(source: &[i8], from: usize, target: &mut [i8], to: usize) {
    target[to..to + N].copy_from_slice(&source[from..from + N]);
}
