//! The fast scan: 32 one-bit codes at a time, against 16-byte tables of four dimensions each (as in PQ fast scan;
//! André, Kermarrec and Le Scouarnec, VLDB 2015).
//!
//! ```text
//!   a block:   group 0            group 1            ...  group ceil(dim/4)-1 | f of 32 codes | k of 32 codes
//!              16 bytes           16 bytes                16 bytes            | u16 LE each   | u16 LE each
//!   byte j of group g:  low nibble = dims 4g..4g+4 of code j, high nibble = the same of code 16 + j
//! ```
//!
//! One byte shuffle looks up 16 codes; a 512-bit register does four groups at a time. A lane is a code's place in
//! its block. The unused lanes of a last block are zeros and must be masked by the caller (or by `lanes`).

use crate::codes::{Linear, Width, code_bytes};
use crate::kernels::kernels;
use crate::query::QueryCodes;
use std::ops::Range;

/// Codes of a block.
pub const BLOCK: usize = 32;
/// Bytes of the two factors of a block.
const FACTORS: usize = BLOCK * 4;

/// Bytes of a block: its codes, then `f`, then `k` of each.
pub fn block_bytes(dim: usize) -> usize {
    dim.div_ceil(4) * 16 + FACTORS
}

/// Lays 1 to 32 one-bit codes (each [`code_bytes`] of width 1, one after another) and their factors into a block.
pub fn pack_block(dim: usize, codes: &[u8], f: &[u16], k: &[u16], out: &mut [u8]) {
    let bytes = code_bytes(Width::ONE, dim);
    let count = codes.len() / bytes;
    assert!(count <= BLOCK && codes.len() == count * bytes, "a block holds up to 32 codes");
    assert_eq!(out.len(), block_bytes(dim), "block of another size");
    out.fill(0);
    for (lane, code) in codes.chunks_exact(bytes).enumerate() {
        for group in 0..dim.div_ceil(4) {
            let nibble = (code[group / 2] >> (group % 2 * 4)) & 15;
            out[group * 16 + lane % 16] |= nibble << (lane / 16 * 4);
        }
    }
    block_put_factors(dim, f, k, out);
}

/// Writes the factors of a block; fewer than 32 leave the rest zero.
pub fn block_put_factors(dim: usize, f: &[u16], k: &[u16], block: &mut [u8]) {
    assert!(f.len() == k.len() && f.len() <= BLOCK, "two factors a code");
    let at = dim.div_ceil(4) * 16;
    for (lane, (f, k)) in f.iter().zip(k).enumerate() {
        block[at + lane * 2..at + lane * 2 + 2].copy_from_slice(&f.to_le_bytes());
        block[at + (BLOCK + lane) * 2..at + (BLOCK + lane) * 2 + 2].copy_from_slice(&k.to_le_bytes());
    }
}

/// The code of one lane, as it was given to [`pack_block`], and its factors `f`, `k`.
pub fn unpack_lane(dim: usize, block: &[u8], lane: usize, code: &mut [u8]) -> (u16, u16) {
    assert_eq!(block.len(), block_bytes(dim), "block of another size");
    assert!(lane < BLOCK, "a block has 32 lanes");
    assert_eq!(code.len(), code_bytes(Width::ONE, dim), "code of another size");
    code.fill(0);
    for group in 0..dim.div_ceil(4) {
        code[group / 2] |= nibble(block, group, lane) << (group % 2 * 4);
    }
    factors(dim, block, lane)
}

#[inline]
fn nibble(block: &[u8], group: usize, lane: usize) -> u8 {
    (block[group * 16 + lane % 16] >> (lane / 16 * 4)) & 15
}

/// The factors `f`, `k` of one lane, as [`pack_block`] took them.
#[inline]
pub fn lane_factors(dim: usize, block: &[u8], lane: usize) -> (u16, u16) {
    assert!(block.len() == block_bytes(dim) && lane < BLOCK, "block of another size");
    factors(dim, block, lane)
}

#[inline]
fn factors(dim: usize, block: &[u8], lane: usize) -> (u16, u16) {
    let at = dim.div_ceil(4) * 16;
    let read = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    (read(at + lane * 2), read(at + (BLOCK + lane) * 2))
}

/// What a cluster adds to the scan of its codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// How the factors lie in u16.
    pub linear: Linear,
    /// The exact part of the estimate: `<q, c>`, or what the metric makes of it.
    pub base: f32,
    /// Error allowance of `<q, code>`, about `|q - c| * kappa`: a code survives if
    /// `base + f * (<q, code> + slack) + k > threshold`.
    pub slack: f32,
    pub threshold: f32,
}

/// Codes that passed the threshold: places and estimates, side by side.
#[derive(Clone, Debug, Default)]
pub struct Survivors {
    /// Places within the scanned blocks: `32 * block + lane`.
    pub places: Vec<u32>,
    /// `base + f * <q, code> + k`, without the slack.
    pub estimates: Vec<f32>,
}

impl Survivors {
    pub fn clear(&mut self) {
        self.places.clear();
        self.estimates.clear();
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl QueryCodes {
    /// Sums of table entries of the 32 codes of one block.
    pub fn scan_sums(&self, block: &[u8], sums: &mut [u32; BLOCK]) {
        assert_eq!(block.len(), block_bytes(self.dim()), "block of another size");
        // SAFETY: the block has the query's dimension.
        unsafe { (kernels().scan_sums)(self, block, sums) }
    }

    /// `<q, code>` from a sum of [`QueryCodes::scan_sums`].
    #[inline]
    pub fn scan_real(&self, sum: u32) -> f32 {
        (sum as f32).mul_add(self.table_step, self.table_base)
    }

    /// Scans one block: the estimates of all 32 lanes, and a bit for each that passes the threshold.
    pub fn scan_block(&self, block: &[u8], probe: &Probe, estimates: &mut [f32; BLOCK]) -> u32 {
        assert_eq!(block.len(), block_bytes(self.dim()), "block of another size");
        // SAFETY: the block has the query's dimension.
        unsafe { (kernels().scan_block)(self, block, probe, estimates) }
    }

    /// Scans blocks one after another and appends the places of `lanes` (counted over all blocks) that pass, in
    /// order. `out` must have capacity for `lanes.len()` more, or it grows.
    pub fn scan(&self, blocks: &[u8], lanes: Range<usize>, probe: &Probe, out: &mut Survivors) {
        self.scan_ahead(blocks, &[], lanes, probe, out);
    }

    /// The same, while the lines of `next` (the blocks of the list to be scanned after this one) are fetched from
    /// memory. Lists lie far apart, and the memory answers more slowly than a list is scanned.
    pub fn scan_ahead(&self, blocks: &[u8], next: &[u8], lanes: Range<usize>, probe: &Probe, out: &mut Survivors) {
        let bytes = block_bytes(self.dim());
        assert_eq!(blocks.len() % bytes, 0, "blocks of another size");
        assert!(lanes.end <= blocks.len() / bytes * BLOCK, "lanes past the last block");
        // SAFETY: the blocks have the query's dimension, and the lanes lie within them.
        unsafe { (kernels().scan)(self, blocks, next, lanes, probe, out) }
    }

    /// The estimate of one lane of a block, for when few of its codes are wanted; and its margin `f * slack`.
    pub fn scan_one(&self, block: &[u8], lane: usize, probe: &Probe) -> (f32, f32) {
        assert_eq!(block.len(), block_bytes(self.dim()), "block of another size");
        lane_estimate(self, block, lane, lane_sum(self, block, lane), probe)
    }
}

/// The sum of table entries of one lane.
pub(crate) fn lane_sum(query: &QueryCodes, block: &[u8], lane: usize) -> u32 {
    let groups = query.dim().div_ceil(4);
    (0..groups).map(|g| u32::from(query.tables[g * 16 + usize::from(nibble(block, g, lane))])).sum()
}

/// The estimate of a lane from its sum, and its margin.
pub(crate) fn lane_estimate(query: &QueryCodes, block: &[u8], lane: usize, sum: u32, probe: &Probe) -> (f32, f32) {
    let (f, k) = factors(query.dim(), block, lane);
    let (f, k) = (probe.linear.f(f), probe.linear.k(k) + probe.base);
    (f * query.scan_real(sum) + k, f * probe.slack)
}

/// The lanes of block `at` that lie within `lanes`.
pub(crate) fn lane_mask(at: usize, lanes: &Range<usize>) -> u32 {
    let first = lanes.start.saturating_sub(at * BLOCK).min(BLOCK);
    let end = lanes.end.saturating_sub(at * BLOCK).min(BLOCK);
    ((1u64 << end) - 1) as u32 & !((1u64 << first) - 1) as u32
}
