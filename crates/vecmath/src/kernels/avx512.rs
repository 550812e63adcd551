//! AVX-512 F, BW, DQ, VL and VNNI.

use super::{Kernels, avx2};
use crate::level::Level;

mod codes;
mod distance;
mod dots;
mod rotate;
mod scan;
mod select;
mod tile;

pub(crate) static TABLE: Kernels = Kernels {
    level: Level::Avx512,
    dot: distance::dot,
    l2_squared: distance::l2_squared,
    l1: distance::l1,
    sad: distance::sad,
    dot_rows: distance::dot_rows,
    l2_rows: distance::l2_rows,
    l1_rows: distance::l1_rows,
    unpack_halves: avx2::TABLE.unpack_halves,
    unpack_bytes: avx2::TABLE.unpack_bytes,
    assign: tile::assign,
    scores: tile::scores,
    mix: rotate::mix,
    trials: codes::trials,
    quantise: codes::quantise,
    pack: codes::pack,
    query_sizes: codes::query_sizes,
    query_bytes: codes::query_bytes,
    query_tables: codes::query_tables,
    dots: dots::dots,
    dot_code: dots::dot_code,
    scan_sums: scan::scan_sums,
    scan_block: scan::scan_block,
    scan: scan::scan,
    centroids: dots::centroids,
    along: avx2::TABLE.along,
    at_least: select::at_least,
    group_best: select::group_best,
};

/// A mask of the lowest `count` of 16 lanes.
#[inline(always)]
fn low16(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

/// A mask of the lowest `count` of 64 lanes.
#[inline(always)]
fn low64(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
