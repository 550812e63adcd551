//! What a segment's file consists of: its sections by their tags, and what it says of itself.

use crate::api::MetricName;
use ramekin_ann::IndexMeta;
use serde::{Deserialize, Serialize};

pub(crate) const NUMBERS: u32 = 1;
pub(crate) const UUIDS: u32 = 2;
pub(crate) const FILTER: u32 = 3;
pub(crate) const FENCES: u32 = 4;
pub(crate) const PAYLOAD_AT: u32 = 5;
pub(crate) const PAYLOAD: u32 = 6;

/// Sections of the index of the `i`-th vector name begin here.
pub(crate) fn index_tag(vector: usize) -> u32 {
    256 + 16 * vector as u32
}

/// Section of the rows that have the `i`-th vector, where not all have.
pub(crate) fn present_tag(vector: usize) -> u32 {
    (1 << 20) + vector as u32
}

/// What a segment's file says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SegmentMeta {
    pub(crate) points: u32,
    /// Rows whose id is a number; the others are UUIDs.
    pub(crate) numbers: u32,
    /// The numbers are `dense_from, dense_from + 1, ...`.
    pub(crate) dense_from: Option<u64>,
    pub(crate) version: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) vectors: Vec<VectorMeta>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VectorMeta {
    pub(crate) name: String,
    pub(crate) dim: usize,
    pub(crate) metric: MetricName,
    /// `None`: no point of the segment has this vector.
    pub(crate) index: Option<IndexMeta>,
}

/// How much of each row a walk needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    Ids,
    Lengths,
    Payloads,
}
