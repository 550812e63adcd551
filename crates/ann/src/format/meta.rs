//! What must be known of an index before any of its sections is read. It lies as JSON in the page file's meta.

use crate::format::coarse;
use crate::format::curve::Curve;
use crate::format::encode;
use crate::format::full_vectors::FullVectors;
use crate::format::layout::{InvertedList, Part, RecordLayout, TAGS};
use ramekin_base::Packed;
use ramekin_base::{Error, Result, limits};
use ramekin_vecmath::{BLOCK, Datatype, Metric, Width, block_bytes, record_bytes};
use serde::{Deserialize, Serialize};

/// The newest layout. What was written before vectors had a datatype is of the first, and so is what has none to say.
pub(crate) const VERSION: u32 = 2;

/// The first layout that knows a datatype: programs that do not know it refuse the index instead of misreading it.
pub(crate) fn version(datatype: Datatype) -> u32 {
    if datatype == Datatype::Float32 { 1 } else { VERSION }
}

/// One index at rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexMeta {
    pub version: u32,
    pub metric: String,
    pub dim: usize,
    /// Of the full vectors; indexes of old do not say it.
    #[serde(default)]
    pub datatype: Datatype,
    /// Vectors, which are also the rows `0..rows` of the segment.
    pub rows: u32,
    pub lists: u32,
    /// Blocks of one-bit codes of all lists together.
    pub blocks: u32,
    /// Seed of the rotation.
    pub seed: u64,
    /// Root of the mean squared length of the vectors; 0 where some square is beyond f32.
    pub length: f32,
    /// The recall that a search without `ef` is to reach.
    pub recall: f32,
    pub curve: Curve,
}

/// A metric by its name in the meta.
pub(crate) fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Dot => "dot",
        Metric::Cosine => "cosine",
        Metric::Euclid => "euclid",
        Metric::Manhattan => "manhattan",
    }
}

/// The shapes of all sections, from the meta alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) metric: Metric,
    pub(crate) dim: usize,
    pub(crate) rows: usize,
    pub(crate) lists: usize,
    pub(crate) blocks: usize,
    pub(crate) full_vectors: FullVectors,
    pub(crate) vectors: RecordLayout,
    /// Records of 3 bits, or of 8 for Manhattan.
    pub(crate) narrow: RecordLayout,
    pub(crate) wide: RecordLayout,
    pub(crate) packed: Packed,
}

impl Shape {
    pub(crate) fn new(full_vectors: FullVectors, rows: usize, lists: usize, blocks: usize) -> Self {
        let FullVectors { metric, dim, .. } = full_vectors;
        let narrow = if metric == Metric::Manhattan { dim } else { record_bytes(Width::THREE, dim) };
        Self {
            metric,
            dim,
            rows,
            lists,
            blocks,
            full_vectors,
            vectors: RecordLayout::new(full_vectors.record()),
            narrow: RecordLayout::new(narrow),
            wide: RecordLayout::new(record_bytes(Width::SIX, dim)),
            packed: Packed::for_count(rows),
        }
    }

    /// The parts that an index of this metric has, each with its length in bytes.
    pub(crate) fn parts(&self) -> Vec<(Part, u64)> {
        let mut parts = vec![
            (Part::Centroids, coarse::section_bytes(self.lists, self.dim) as u64),
            (Part::Clusters, (self.lists * size_of::<InvertedList>()) as u64),
            (Part::Vectors, self.vectors.bytes(self.rows)),
            (Part::Rows, self.packed.bytes(self.rows)),
            (Part::Positions, self.packed.bytes(self.rows)),
        ];
        match self.metric {
            Metric::Manhattan => parts.push((Part::Codes8, self.narrow.bytes(self.rows))),
            _ => parts.extend([
                (Part::Codes1, (self.blocks * block_bytes(self.dim)) as u64),
                (Part::Codes3, self.narrow.bytes(self.rows)),
                (Part::Codes6, self.wide.bytes(self.rows)),
            ]),
        }
        parts
    }

    pub(crate) fn block_bytes(&self) -> usize {
        block_bytes(self.dim)
    }
}

impl IndexMeta {
    /// Whether some vector may be too long for its square to be an f32.
    pub(crate) fn has_huge(&self) -> bool {
        self.length == 0.0
    }

    /// Checks every number against the others and the limits, and gives the shapes that follow.
    pub(crate) fn shape(&self) -> Result<Shape> {
        if self.version > VERSION {
            let text =
                format!("the index has layout {}, this program reads up to {VERSION}; use a newer one", self.version);
            return Err(Error::unsupported(text));
        }
        let metric = [Metric::Dot, Metric::Cosine, Metric::Euclid, Metric::Manhattan]
            .into_iter()
            .find(|metric| metric_name(*metric) == self.metric)
            .ok_or_else(|| Error::corrupt(format!("the index has an unknown metric '{}'", self.metric)))?;
        let blocks_most = u64::from(self.rows) / BLOCK as u64 + u64::from(self.lists);
        let fits = (1..=limits::DIM_MAX).contains(&self.dim)
            && self.rows > 0
            && (1..=self.rows).contains(&self.lists)
            && u64::from(self.blocks) <= blocks_most
            && self.length.is_finite();
        if !fits {
            let Self { dim, rows, lists, blocks, .. } = self;
            let text =
                format!("an index of {dim} dimensions, {rows} rows, {lists} lists and {blocks} blocks cannot be");
            return Err(Error::corrupt(text));
        }
        let full_vectors = FullVectors { metric, datatype: self.datatype, dim: self.dim };
        Ok(Shape::new(full_vectors, self.rows as usize, self.lists as usize, self.blocks as usize))
    }

    /// Bytes of each section, by the formula of its layout.
    pub fn section_bytes(&self) -> Result<Vec<(Part, u64)>> {
        Ok(self.shape()?.parts())
    }

    /// Sections of the index whose codes were made with this meta's widths.
    pub const TAGS: u32 = TAGS;
}

const _: () = assert!(Part::ALL.len() as u32 <= TAGS);
const _: fn() -> [Width; 3] = encode::widths;
