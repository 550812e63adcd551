//! All centroids of an index scored for one query, in int8.
//!
//! ```text
//!   block of 16:  start: 16 x i32 | scale: 16 x f32 | bias: 16 x f32 | dims 0..4 of 16 | dims 4..8 of 16 | ...
//!                 -128 * sum(c)     of each centroid                   64 bytes          64 bytes
//! ```
//!
//! A step multiplies four dimensions of 16 centroids at a time. The query is stored with 128 added, since the
//! instruction wants one unsigned side; `start` takes that away again. The bytes are little-endian and may lie in a file
//! as they are.

use crate::kernels::kernels;
use crate::query::inverse;

/// Centroids of a block.
pub(crate) const LANES: usize = 16;
pub(crate) const HEAD: usize = LANES * 12;

/// Packing and scoring of int8 centroids; the packed bytes belong to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Centroids8 {
    k: usize,
    dim: usize,
}

impl Centroids8 {
    pub fn new(k: usize, dim: usize) -> Self {
        assert!(k > 0 && dim > 0, "nothing to score");
        Self { k, dim }
    }

    pub(crate) fn block(&self) -> usize {
        HEAD + self.dim.div_ceil(4) * 64
    }

    /// Bytes of the packed form.
    pub fn bytes(&self) -> usize {
        self.k.div_ceil(LANES) * self.block()
    }

    /// Packs `k` centroids; `bias` of each is taken from its scores (Euclid: half the squared length).
    pub fn pack(&self, centroids: &[f32], bias: &[f32], out: &mut [u8]) {
        assert_eq!(centroids.len(), self.k * self.dim, "centroids of another size");
        assert_eq!(bias.len(), self.k, "a bias for each centroid");
        assert_eq!(out.len(), self.bytes(), "packed form of another size");
        out.fill(0);
        for (at, (centroid, bias)) in centroids.chunks_exact(self.dim).zip(bias).enumerate() {
            let lane = at % LANES;
            let block = &mut out[at / LANES * self.block()..][..self.block()];
            let max = centroid.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let scale = max / 127.0;
            let inverse = inverse(scale);
            let mut sum = 0;
            for (d, x) in centroid.iter().enumerate() {
                let byte = (x * inverse).round().clamp(-127.0, 127.0) as i8;
                sum += i32::from(byte);
                block[HEAD + d / 4 * 64 + lane * 4 + d % 4] = byte as u8;
            }
            block[lane * 4..][..4].copy_from_slice(&(-128 * sum).to_le_bytes());
            block[(LANES + lane) * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            block[(2 * LANES + lane) * 4..][..4].copy_from_slice(&(-bias).to_le_bytes());
        }
    }

    /// Scores `<q, c> - bias(c)` of all centroids, from their packed form. `room` is filled with the query's bytes and may be
    /// used again.
    pub fn scores(&self, q: &[f32], packed: &[u8], room: &mut Vec<u8>, out: &mut [f32]) {
        assert_eq!(q.len(), self.dim, "query of another dimension");
        assert_eq!(packed.len(), self.bytes(), "packed form of another size");
        assert_eq!(out.len(), self.k, "a score for each centroid");
        let scale = self.quantise(q, room);
        // SAFETY: all sizes are those of this shape.
        unsafe { (kernels().centroids)(self, room, scale, packed, out) }
    }

    /// `<q, c>` of one centroid with a query in full precision.
    #[inline]
    pub fn along(&self, q: &[f32], packed: &[u8], at: usize) -> f32 {
        assert_eq!(q.len(), self.dim, "query of another dimension");
        let (block, lane) = self.place(packed, at);
        let (fours, rest) = q.as_chunks::<4>();
        // SAFETY: a block has bytes of all lanes for each four dimensions; the level is by the table.
        let sum = unsafe { (kernels().along)(fours, &block[HEAD + lane * 4..]) };
        let last = block[HEAD + fours.len() * 64..].iter().skip(lane * 4);
        let sum = rest.iter().zip(last).fold(sum, |sum, (x, byte)| sum + x * f32::from(*byte as i8));
        sum * f32_at(block, LANES + lane)
    }

    /// One centroid, as its bytes have it.
    pub fn unpack(&self, packed: &[u8], at: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.dim, "centroid of another dimension");
        let (block, lane) = self.place(packed, at);
        let scale = f32_at(block, LANES + lane);
        for (four, bytes) in out.chunks_mut(4).zip(block[HEAD..].chunks_exact(64)) {
            for (out, byte) in four.iter_mut().zip(&bytes[lane * 4..]) {
                *out = f32::from(*byte as i8) * scale;
            }
        }
    }

    /// The block and lane of a centroid.
    fn place<'a>(&self, packed: &'a [u8], at: usize) -> (&'a [u8], usize) {
        assert_eq!(packed.len(), self.bytes(), "packed form of another size");
        assert!(at < self.k, "centroid past the last");
        (&packed[at / LANES * self.block()..][..self.block()], at % LANES)
    }

    /// The query as bytes with 128 added, filled up to whole groups of four; returns its scale.
    fn quantise(&self, q: &[f32], room: &mut Vec<u8>) -> f32 {
        room.clear();
        room.resize(self.dim.next_multiple_of(4), 0);
        let kernels = kernels();
        // SAFETY: there is a byte for each dimension; u8 and i8 are laid out alike.
        let scale = unsafe {
            let [max, ..] = (kernels.query_sizes)(q);
            let scale = max / 127.0;
            let bytes = std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<i8>(), room.len());
            (kernels.query_bytes)(q, inverse(scale), bytes);
            scale
        };
        // Turning the sign bit of an i8 adds 128 and makes it a u8.
        room.iter_mut().for_each(|byte| *byte ^= 0x80);
        scale
    }
}

/// The f32 at a place of the head.
#[inline]
fn f32_at(block: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([block[at * 4], block[at * 4 + 1], block[at * 4 + 2], block[at * 4 + 3]])
}
