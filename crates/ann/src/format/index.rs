//! An index that is open: its sections, and what must be in memory to use any of them.

use crate::format::coarse::Coarse;
use crate::format::layout::{InvertedList, Part};
use crate::format::meta::{IndexMeta, Shape};
use ramekin_base::Packed;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageFile, Pages, Section};
use ramekin_vecmath::{Metric, Rotation};
use std::sync::Arc;

/// One index of a page file, open for searching.
pub struct Index {
    pub(crate) meta: IndexMeta,
    pub(crate) shape: Shape,
    pub(crate) centroids: Section,
    pub(crate) clusters: Section,
    /// Blocks of one-bit codes; Manhattan has none.
    pub(crate) codes1: Option<Section>,
    /// Records of 3 bits (Manhattan: of 8).
    pub(crate) narrow: Section,
    /// Records of 6 bits; Manhattan has none.
    pub(crate) wide: Option<Section>,
    pub(crate) vectors: Section,
    pub(crate) rows: Section,
    pub(crate) positions: Section,
    /// The rotation of the codes, with the bytes that it was charged; none for Manhattan.
    rotation: Option<(Rotation, Reservation)>,
}

impl Index {
    /// Opens the index that `build` wrote with this tag and meta.
    pub fn open(file: &Arc<PageFile>, base_tag: u32, meta: &IndexMeta, account: &Account) -> Result<Self> {
        let shape = meta.shape()?;
        for (part, bytes) in shape.parts() {
            let section = section(file, base_tag, part)?;
            if section.len() != bytes {
                let text = format!("section {} has {} bytes, its shape asks for {bytes}", part.name(), section.len());
                return Err(Error::corrupt(text).at(file.path().display()));
            }
        }
        let coded = shape.metric != Metric::Manhattan;
        let rotation = if coded {
            let room = account.try_reserve(Self::open_bytes(meta))?;
            Some((Rotation::new(shape.dim, meta.seed), room))
        } else {
            None
        };
        let find = |part: Part| section(file, base_tag, part);
        Ok(Self {
            meta: meta.clone(),
            shape,
            centroids: find(Part::Centroids)?,
            clusters: find(Part::Clusters)?,
            codes1: if coded { Some(find(Part::Codes1)?) } else { None },
            narrow: find(if coded { Part::Codes3 } else { Part::Codes8 })?,
            wide: if coded { Some(find(Part::Codes6)?) } else { None },
            vectors: find(Part::Vectors)?,
            rows: find(Part::Rows)?,
            positions: find(Part::Positions)?,
            rotation,
        })
    }

    /// Bytes that an open index is charged: its rotation.
    pub fn open_bytes(meta: &IndexMeta) -> u64 {
        if meta.metric == crate::format::meta::metric_name(Metric::Manhattan) {
            0
        } else {
            Rotation::bytes(meta.dim) as u64
        }
    }

    pub fn meta(&self) -> &IndexMeta {
        &self.meta
    }

    pub fn len(&self) -> usize {
        self.shape.rows
    }

    pub fn is_empty(&self) -> bool {
        self.shape.rows == 0
    }

    pub fn dim(&self) -> usize {
        self.shape.dim
    }

    pub fn metric(&self) -> Metric {
        self.shape.metric
    }

    pub(crate) fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref().map(|(rotation, _)| rotation)
    }

    /// The sections that are worth being resident, in the order in which memory should be given to them.
    pub fn sections(&self) -> Vec<(Part, &Section)> {
        let mut sections = vec![(Part::Centroids, &self.centroids), (Part::Clusters, &self.clusters)];
        match (&self.codes1, &self.wide) {
            (Some(codes1), Some(wide)) => sections.extend([
                (Part::Codes1, codes1),
                (Part::Rows, &self.rows),
                (Part::Codes3, &self.narrow),
                (Part::Codes6, wide),
            ]),
            _ => sections.extend([(Part::Codes8, &self.narrow), (Part::Rows, &self.rows)]),
        }
        sections.extend([(Part::Positions, &self.positions), (Part::Vectors, &self.vectors)]);
        sections
    }

    /// Appends the values of the full vectors of rows, in the order of `rows`.
    pub fn vectors(&self, pages: &Pages, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        for rows in rows.chunks(ROWS_AT_A_TIME) {
            if let Some(row) = rows.iter().find(|row| **row as usize >= self.shape.rows) {
                return Err(Error::bug(format!("row {row} is asked of an index of {}", self.shape.rows)));
            }
            let mut fetch = pages.fetch();
            let mut wants = Vec::with_capacity(rows.len());
            for row in rows {
                let range = self.shape.packed.range(*row, 1);
                wants.push((fetch.want(&self.positions, range.start as u64, range.len())?, range.start));
            }
            let pinned = fetch.run()?;
            let mut positions = Vec::with_capacity(rows.len());
            for (row, (want, from)) in rows.iter().zip(wants) {
                positions.push(self.checked(self.shape.packed.get(pinned.bytes(want), from, *row))?);
            }
            drop(pinned);
            let together = (FETCH_BYTES / self.shape.vectors.record.max(4096)).max(1);
            for positions in positions.chunks(together) {
                let mut fetch = pages.fetch();
                let mut wants = Vec::with_capacity(positions.len());
                for position in positions {
                    let at = self.shape.vectors.at(*position) as u64;
                    wants.push(fetch.want(&self.vectors, at, self.shape.vectors.record)?);
                }
                let pinned = fetch.run()?;
                for want in wants {
                    let from = out.len();
                    out.resize(from + self.shape.dim, 0.0);
                    self.shape.full_vectors.unpack(pinned.bytes(want), &mut out[from..]);
                }
            }
        }
        Ok(())
    }

    /// A list's centroid.
    pub(crate) fn centroid(&self, pages: &Pages, list: usize, out: &mut Vec<f32>) -> Result<()> {
        let shape = &self.shape;
        out.resize(shape.dim, 0.0);
        if let Some(section) = self.centroids.resident() {
            Coarse::new(&section, shape.lists, shape.dim, shape.metric, 0.0)?.centroid(list, out);
            return Ok(());
        }
        let first = list / Coarse::BLOCK * Coarse::BLOCK;
        let count = Coarse::BLOCK.min(shape.lists - first);
        let range = Coarse::range(first, first + count, shape.dim);
        let mut fetch = pages.fetch();
        let scales = fetch.want(&self.centroids, 0, shape.dim * 4)?;
        let packed = fetch.want(&self.centroids, range.start as u64, range.len())?;
        let pinned = fetch.run()?;
        Coarse::of_parts(pinned.bytes(scales), pinned.bytes(packed), count, shape.dim, shape.metric, 0.0)
            .centroid(list - first, out);
        Ok(())
    }

    /// A position or row that was read from a section: below the number of rows, or the file contradicts itself.
    pub(crate) fn checked(&self, number: u32) -> Result<u32> {
        if (number as usize) < self.shape.rows {
            return Ok(number);
        }
        let text = format!("row or position {number} stands in an index of {}", self.shape.rows);
        Err(Error::corrupt(text).at(self.rows.file().path().display()))
    }

    pub(crate) fn packed(&self) -> Packed {
        self.shape.packed
    }

    /// A list of the table, checked against the shape: nothing that it names lies outside of a section.
    #[inline]
    pub(crate) fn list(&self, table: &[u8], index: usize, from: usize) -> Result<InvertedList> {
        let list = InvertedList::read(table, index - from)?;
        let blocks = u64::from(list.block) + u64::from(list.count.div_ceil(ramekin_vecmath::BLOCK as u32));
        let end = u64::from(list.start) + u64::from(list.count);
        if end > self.shape.rows as u64 || blocks > self.shape.blocks as u64 {
            let text = format!("list {index} of the cluster table ends at {end} of {} vectors", self.shape.rows);
            return Err(Error::corrupt(text).at(self.clusters.file().path().display()));
        }
        Ok(list)
    }
}

/// Rows that are looked up in one batch.
const ROWS_AT_A_TIME: usize = 128;
/// Bytes of pages that one fetch names at most: half of what the cache always has room for.
pub(crate) const FETCH_BYTES: usize = 512 << 10;

fn section(file: &Arc<PageFile>, base_tag: u32, part: Part) -> Result<Section> {
    file.section(part.tag(base_tag)).ok_or_else(|| {
        let text = format!("section {} of the index is missing", part.name());
        Error::corrupt(text).at(file.path().display())
    })
}
