//! Plain Rust: what every kernel computes, without an instruction that the base processor lacks. Sums run in 16 lanes,
//! so that the compiler may use whatever vectors the base has (SSE2, NEON).

use super::Kernels;
use crate::centroids::{Centroids8, HEAD, LANES};
use crate::codes::{self, Width};
use crate::datatype::of_half;
use crate::level::Level;
use crate::panels::{PANEL, Panels};
use crate::query::{ENTRY_MAX, QueryCodes};
use crate::scan::{self, BLOCK, Probe, Survivors};
use std::ops::Range;

pub(crate) static TABLE: Kernels = Kernels {
    level: Level::Plain,
    dot,
    l2_squared,
    l1,
    sad,
    dot_rows: |q, block, out| rows(q, block, out, dot),
    l2_rows: |q, block, out| rows(q, block, out, l2_squared),
    l1_rows: |q, block, out| rows(q, block, out, l1),
    unpack_halves,
    unpack_bytes,
    assign,
    scores,
    mix,
    trials,
    quantise,
    pack: codes::pack,
    query_sizes,
    query_bytes,
    query_tables,
    dots,
    dot_code,
    scan_sums,
    scan_block,
    scan: |query, blocks, _, lanes, probe, out| {
        // SAFETY: plain code needs no instructions, and the lengths were checked for this very call.
        unsafe { scan_with(scan_block, query, blocks, lanes, probe, out) }
    },
    centroids,
    along,
    at_least,
    group_best,
};

#[inline(always)]
fn sum_of(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let mut rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| term(*a, *b)).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += term(*a, *b);
        }
    }
    for lane in lanes {
        rest += lane;
    }
    rest
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum_of(a, b, |a, b| a * b)
}

fn l2_squared(a: &[f32], b: &[f32]) -> f32 {
    sum_of(a, b, |a, b| (a - b) * (a - b))
}

fn l1(a: &[f32], b: &[f32]) -> f32 {
    sum_of(a, b, |a, b| (a - b).abs())
}

fn sad(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
}

fn unpack_halves(bytes: &[u8], out: &mut [f32]) {
    let halves = bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half));
    out.iter_mut().zip(halves).for_each(|(x, half)| *x = of_half(half));
}

#[inline(always)]
pub(super) fn unpack_bytes(bytes: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(bytes).for_each(|(x, byte)| *x = f32::from(*byte));
}

fn rows(q: &[f32], block: &[f32], out: &mut [f32], one: impl Fn(&[f32], &[f32]) -> f32) {
    for (x, out) in block.chunks_exact(q.len()).zip(out) {
        *out = one(q, x);
    }
}

fn panel_sums(panels: &Panels, panel: usize, row: &[f32]) -> [f32; PANEL] {
    let mut sums = [0.0; PANEL];
    sums[..16].copy_from_slice(&panels.start[panel * 2].0);
    sums[16..].copy_from_slice(&panels.start[panel * 2 + 1].0);
    let lines = &panels.lines[panel * panels.dim * 2..(panel + 1) * panels.dim * 2];
    for (value, pair) in row.iter().zip(lines.chunks_exact(2)) {
        let (low, high) = sums.split_at_mut(16);
        for (sum, c) in low.iter_mut().zip(&pair[0].0) {
            *sum += value * c;
        }
        for (sum, c) in high.iter_mut().zip(&pair[1].0) {
            *sum += value * c;
        }
    }
    sums
}

fn assign(panels: &Panels, rows: &[f32], best: &mut [u32], scores: &mut [f32]) {
    for ((row, best), score) in rows.chunks_exact(panels.dim).zip(best).zip(scores) {
        (*best, *score) = (0, f32::NEG_INFINITY);
        for panel in 0..panels.k.div_ceil(PANEL) {
            for (lane, value) in panel_sums(panels, panel, row).into_iter().enumerate() {
                if value > *score {
                    (*best, *score) = ((panel * PANEL + lane) as u32, value);
                }
            }
        }
    }
}

fn scores(panels: &Panels, rows: &[f32], out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(panels.dim).zip(out.chunks_exact_mut(panels.k)) {
        for (panel, out) in out.chunks_mut(PANEL).enumerate() {
            out.copy_from_slice(&panel_sums(panels, panel, row)[..out.len()]);
        }
    }
}

pub(super) fn mix(row: &mut [f32], signs: &[f32], front: usize, round: usize) {
    for (x, sign) in row.iter_mut().zip(signs) {
        *x *= sign;
    }
    let start = if round.is_multiple_of(2) { 0 } else { row.len() - front };
    hadamard(&mut row[start..start + front]);
    pair_up(row, front);
}

/// The orthonormal Walsh-Hadamard transform; the length is a power of two.
fn hadamard(x: &mut [f32]) {
    steps(x, 1);
    let scale = 1.0 / (x.len() as f32).sqrt();
    for value in x {
        *value *= scale;
    }
}

/// The steps of the transform over distances from `half` up.
#[inline(always)]
pub(super) fn steps(x: &mut [f32], mut half: usize) {
    while half < x.len() {
        for pair in x.chunks_exact_mut(half * 2) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// Mixes what the transform reached with what it did not.
#[inline(always)]
pub(super) fn pair_up(row: &mut [f32], front: usize) {
    if front < row.len() {
        let (low, high) = row.split_at_mut(row.len() / 2);
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = ((*a + *b) * std::f32::consts::FRAC_1_SQRT_2, (*a - *b) * std::f32::consts::FRAC_1_SQRT_2);
        }
    }
}

#[inline]
fn level_of(width: Width, x: f32, scale: f32) -> u8 {
    let half = (1u32 << (width.bits() - 1)) as f32;
    ((x * scale).floor().clamp(-half, half - 1.0) + half) as u8
}

fn trials(width: Width, r: &[f32], scales: [f32; 6]) -> [(f32, f32); 6] {
    scales.map(|scale| {
        let (mut along, mut length) = (0.0f64, 0.0f64);
        for x in r {
            let value = f32::from(level_of(width, *x, scale)) + width.offset();
            along += f64::from(x * value);
            length += f64::from(value * value);
        }
        (along as f32, length as f32)
    })
}

fn quantise(width: Width, r: &[f32], centre: &[f32], scale: f32, levels: &mut [u8]) -> [f32; 3] {
    let mut sums = [0.0f64; 3];
    for ((x, c), level) in r.iter().zip(centre).zip(levels) {
        *level = level_of(width, *x, scale);
        let value = f32::from(*level) + width.offset();
        sums[0] += f64::from(x * value);
        sums[1] += f64::from(value * value);
        sums[2] += f64::from(c * value);
    }
    sums.map(|sum| sum as f32)
}

fn query_sizes(rotated: &[f32]) -> [f32; 3] {
    let (mut max, mut widest, mut sum) = (0.0f32, 0.0f32, 0.0f32);
    for group in rotated.chunks(4) {
        let mut x = [0.0f32; 4];
        x.iter_mut().zip(group).for_each(|(x, value)| *x = value.abs());
        max = max.max(x[0]).max(x[1]).max(x[2]).max(x[3]);
        // In this order, so that every level finds the same.
        let wide = (x[0] + x[1]) + (x[2] + x[3]);
        widest = widest.max(wide);
        sum += wide;
    }
    [max, widest, sum]
}

fn query_bytes(rotated: &[f32], inverse: f32, bytes: &mut [i8]) -> i32 {
    let mut sum = 0;
    for (byte, x) in bytes.iter_mut().zip(rotated) {
        *byte = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        sum += i32::from(*byte);
    }
    sum
}

fn query_tables(rotated: &[f32], inverse: f32, tables: &mut [u8]) {
    for (table, group) in tables.chunks_exact_mut(16).zip(rotated.chunks(4)) {
        let lowest: f32 = group.iter().map(|x| x.min(0.0)).sum();
        for (mask, entry) in table.iter_mut().enumerate() {
            let set = group.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, x)| x);
            *entry = ((set.sum::<f32>() - lowest) * inverse).round_ties_even().clamp(0.0, ENTRY_MAX) as u8;
        }
    }
}

fn dots(query: &QueryCodes, width: Width, codes: &[u8], starts: &[usize], sums: &mut [i32]) {
    let bytes = codes::code_bytes(width, query.dim());
    let mut levels = vec![0; query.dim()];
    for (start, sum) in starts.iter().zip(sums) {
        codes::unpack(width, &codes[*start..][..bytes], &mut levels);
        *sum = levels.iter().zip(&query.bytes).map(|(level, q)| i32::from(*level) * i32::from(*q)).sum();
    }
}

fn dot_code(query: &QueryCodes, width: Width, code: &[u8]) -> i32 {
    let mut sum = [0];
    dots(query, width, code, &[0], &mut sum);
    sum[0]
}

fn scan_sums(query: &QueryCodes, block: &[u8], sums: &mut [u32; BLOCK]) {
    let groups = query.dim().div_ceil(4);
    let (low, high) = sums.split_at_mut(BLOCK / 2);
    low.fill(0);
    high.fill(0);
    for (bytes, table) in block.as_chunks::<16>().0.iter().zip(query.tables.as_chunks::<16>().0).take(groups) {
        for ((byte, low), high) in bytes.iter().zip(low.iter_mut()).zip(high.iter_mut()) {
            *low += u32::from(table[usize::from(byte & 15)]);
            *high += u32::from(table[usize::from(byte >> 4)]);
        }
    }
}

fn scan_block(query: &QueryCodes, block: &[u8], probe: &Probe, estimates: &mut [f32; BLOCK]) -> u32 {
    let mut sums = [0; BLOCK];
    scan_sums(query, block, &mut sums);
    let mut mask = 0;
    for (lane, sum) in sums.into_iter().enumerate() {
        let (estimate, margin) = scan::lane_estimate(query, block, lane, sum, probe);
        estimates[lane] = estimate;
        mask |= u32::from(estimate + margin > probe.threshold) << lane;
    }
    mask
}

/// Scans block after block with `one`, and appends the lanes that pass.
///
/// # Safety
/// As for `one`: its instructions are there, and the lengths were checked.
#[inline(always)]
pub(super) unsafe fn scan_with(
    one: unsafe fn(&QueryCodes, &[u8], &Probe, &mut [f32; BLOCK]) -> u32,
    query: &QueryCodes,
    blocks: &[u8],
    lanes: Range<usize>,
    probe: &Probe,
    out: &mut Survivors,
) {
    let bytes = scan::block_bytes(query.dim());
    let mut estimates = [0.0; BLOCK];
    for at in lanes.start / BLOCK..lanes.end.div_ceil(BLOCK) {
        // SAFETY: passed on from the caller.
        let mut mask = unsafe { one(query, &blocks[at * bytes..(at + 1) * bytes], probe, &mut estimates) };
        mask &= scan::lane_mask(at, &lanes);
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize;
            out.places.push((at * BLOCK + lane) as u32);
            out.estimates.push(estimates[lane]);
            mask &= mask - 1;
        }
    }
}

fn centroids(shape: &Centroids8, q: &[u8], scale: f32, packed: &[u8], out: &mut [f32]) {
    for (block, out) in packed.chunks_exact(shape.block()).zip(out.chunks_mut(LANES)) {
        let (head, body) = block.split_at(HEAD);
        let mut sums = [0i32; LANES];
        for (four, dims) in q.as_chunks::<4>().0.iter().zip(body.as_chunks::<64>().0) {
            for (sum, c) in sums.iter_mut().zip(dims.as_chunks::<4>().0) {
                for (q, c) in four.iter().zip(c) {
                    *sum += i32::from(*q) * i32::from(*c as i8);
                }
            }
        }
        let numbers = head.as_chunks::<4>().0;
        for (lane, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
            let sum = (sum + i32::from_le_bytes(numbers[lane])) as f32;
            let (c_scale, bias) = (numbers[LANES + lane], numbers[2 * LANES + lane]);
            *out = (sum * scale) * f32::from_le_bytes(c_scale) + f32::from_le_bytes(bias);
        }
    }
}

fn along(q: &[[f32; 4]], lane: &[u8]) -> f32 {
    let mut sums = [0f32; 4];
    for (four, dims) in q.iter().zip(lane.chunks(64)) {
        for ((sum, q), c) in sums.iter_mut().zip(four).zip(dims) {
            *sum += q * f32::from(*c as i8);
        }
    }
    sums[0] + sums[2] + (sums[1] + sums[3])
}

fn at_least(scores: &[f32], floor: f32, out: &mut Vec<u32>) {
    for (at, score) in scores.iter().enumerate() {
        if *score >= floor {
            out.push(at as u32);
        }
    }
}

#[inline(always)]
pub(super) fn group_best(scores: &[f32], best: &mut [f32; 256]) -> usize {
    best.fill(f32::NEG_INFINITY);
    for scores in scores.chunks(256) {
        for (score, best) in scores.iter().zip(best.iter_mut()) {
            *best = if *score > *best { *score } else { *best };
        }
    }
    scores.len().min(256)
}
