//! The kernels behind the public functions: one table a level.
//!
//! ```text
//!   public function: checks lengths ──> kernels(): one atomic load ──> PLAIN | AVX2 | AVX512
//! ```
//!
//! A kernel may assume what its public function has checked. An entry of a table runs only on a processor that has
//! its instructions: [`kernels`] and [`at`] hand out no other. What a level does no better than the one below it, it
//! takes from there.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod plain;
#[cfg(test)]
mod tests;

use crate::centroids::Centroids8;
use crate::codes::Width;
use crate::level::{Level, detected};
use crate::panels::Panels;
use crate::query::QueryCodes;
use crate::scan::{BLOCK, Probe, Survivors};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

type Pair = unsafe fn(&[f32], &[f32]) -> f32;
type Rows = unsafe fn(&[f32], &[f32], &mut [f32]);

/// What a level computes. Every entry is `unsafe` for the instructions it uses and the lengths it trusts.
#[allow(clippy::type_complexity, reason = "each signature stands once, beside its meaning")]
pub(crate) struct Kernels {
    pub level: Level,
    // Distances of two vectors, and of a query to rows.
    pub dot: Pair,
    pub l2_squared: Pair,
    pub l1: Pair,
    pub sad: unsafe fn(&[u8], &[u8]) -> u32,
    pub dot_rows: Rows,
    pub l2_rows: Rows,
    pub l1_rows: Rows,
    // Packed values, as many as the slice of floats has room for.
    pub unpack_halves: unsafe fn(&[u8], &mut [f32]),
    pub unpack_bytes: unsafe fn(&[u8], &mut [f32]),
    // Rows against panels.
    pub assign: unsafe fn(&Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32]),
    pub scores: unsafe fn(&Panels, rows: &[f32], out: &mut [f32]),
    /// One round of the structured rotation: row, signs, front, round.
    pub mix: unsafe fn(&mut [f32], &[f32], usize, usize),
    // Codes.
    /// `<r, value>` and `|value|^2` of the levels at each of six scales.
    pub trials: unsafe fn(Width, r: &[f32], scales: [f32; 6]) -> [(f32, f32); 6],
    /// Levels at a scale, with `<r, value>`, `|value|^2` and `<centre, value>`.
    pub quantise: unsafe fn(Width, r: &[f32], centre: &[f32], scale: f32, levels: &mut [u8]) -> [f32; 3],
    pub pack: unsafe fn(Width, levels: &[u8], code: &mut [u8]),
    // Queries and codes.
    /// The largest magnitude, the largest sum of magnitudes of four dimensions, and the sum of all.
    pub query_sizes: unsafe fn(&[f32]) -> [f32; 3],
    /// Fills `bytes` of the query from (rotated, 1 / scale); returns their sum.
    pub query_bytes: unsafe fn(&[f32], f32, &mut [i8]) -> i32,
    /// Fills the byte tables from (rotated, 1 / step).
    pub query_tables: unsafe fn(&[f32], f32, &mut [u8]),
    /// Sums of int8 times level of the codes that start at these bytes.
    pub dots: unsafe fn(&QueryCodes, Width, codes: &[u8], starts: &[usize], sums: &mut [i32]),
    /// The same of one code.
    pub dot_code: unsafe fn(&QueryCodes, Width, code: &[u8]) -> i32,
    pub scan_sums: unsafe fn(&QueryCodes, block: &[u8], sums: &mut [u32; BLOCK]),
    pub scan_block: unsafe fn(&QueryCodes, block: &[u8], &Probe, estimates: &mut [f32; BLOCK]) -> u32,
    /// Scans blocks while the lines of `next` are fetched.
    pub scan: unsafe fn(&QueryCodes, blocks: &[u8], next: &[u8], lanes: Range<usize>, &Probe, out: &mut Survivors),
    // Centroids.
    /// Scores from query bytes and their scale.
    pub centroids: unsafe fn(&Centroids8, q: &[u8], scale: f32, packed: &[u8], out: &mut [f32]),
    /// Products with the int8 of one lane: four dimensions, which are 64 bytes from the next four.
    pub along: unsafe fn(&[[f32; 4]], lane: &[u8]) -> f32,
    /// Indices of all scores of at least the floor, in order, appended.
    pub at_least: unsafe fn(scores: &[f32], floor: f32, out: &mut Vec<u32>),
    /// The largest of each of up to 256 groups that share out all scores; returns how many groups.
    pub group_best: unsafe fn(scores: &[f32], best: &mut [f32; 256]) -> usize,
}

static ACTIVE: AtomicPtr<Kernels> = AtomicPtr::new(std::ptr::null_mut());

/// The table in use.
#[inline]
pub(crate) fn kernels() -> &'static Kernels {
    let active = ACTIVE.load(Ordering::Relaxed);
    if active.is_null() {
        activate(detected())
    } else {
        // SAFETY: only `activate` stores here, and what it stores is a static table.
        unsafe { &*active }
    }
}

/// Makes the table of `wanted`, or of the highest level below it that the processor has, the one in use.
#[cold]
pub(crate) fn activate(wanted: Level) -> &'static Kernels {
    let table = at(wanted.min(detected()));
    ACTIVE.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
    table
}

/// The table of a level; of the highest one below it if the processor does not have it.
pub(crate) fn at(level: Level) -> &'static Kernels {
    match level.min(detected()) {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &avx2::TABLE,
        _ => &plain::TABLE,
    }
}
