//! The build: one index from a stream of vectors, within a bounded memory.
//!
//! ```text
//!   stream, first pass    ──► sample, held-out points ──► centroids
//!   stream, second pass   ──► nearest centroid ──► partitions on disk
//!   part, chunk after chunk ──► vectors in cluster order ──► section "vectors"
//!                         ├─► codes, rows            ──► temporary files
//!                         └─► held-out points look on ──► recall curve
//!   temporary files       ──► sections "codes*", "rows", "positions"; then "clusters", "centroids"
//! ```
//!
//! At most on disk at a time, a vector of `d` dimensions of `b` bytes: its record in a part (bd + 8) or its place in the
//! section (bd and a page's rest), and its codes twice while one width moves (10d/8 + 16, and that width again).

pub(crate) mod batch;
pub(crate) mod calibrate;
pub(crate) mod partition;
pub(crate) mod partitions;
pub(crate) mod plan;
pub(crate) mod sample;
pub(crate) mod tiles;
pub(crate) mod train;
pub(crate) mod work;

use crate::build::batch::Batch;
use crate::build::calibrate::{CalibrationChunk, HeldOut, RecallCalibration};
use crate::build::partition::partition;
use crate::build::partitions::{Chunk, ChunkBuffers, Partitions};
use crate::build::plan::Plan;
use crate::build::train::Trained;
use crate::build::work::{BuildOptions, Phase, Work};
use crate::format::buffer::Buffer;
use crate::format::coarse::{self, Coarse};
use crate::format::curve::Curve;
use crate::format::encode::{Coded, Coder, Coding};
use crate::format::full_vectors::FullVectors;
use crate::format::layout::{InvertedList, Part, RecordLayout};
use crate::format::meta::{IndexMeta, Shape, metric_name, version};
use crate::source::Source;
use ramekin_base::Packer;
use ramekin_base::{Error, Result, limits};
use ramekin_disk::SpillFile;
use ramekin_pages::{PageWriter, Priority};
use ramekin_vecmath::{Datatype, Metric, Rotation, dot};
use zerocopy::IntoBytes;

/// Builds an index into sections `base_tag ..` of a page file. The caller keeps the meta and finishes the file.
pub fn build(
    source: &mut dyn Source,
    metric: Metric,
    datatype: Datatype,
    out: &mut PageWriter,
    base_tag: u32,
    work: &Work<'_>,
    options: &BuildOptions,
) -> Result<IndexMeta> {
    let (count, dim) = (source.len(), source.dim());
    if count == 0 || count > u32::MAX as usize || !(1..=limits::DIM_MAX).contains(&dim) {
        return Err(Error::invalid(format!(
            "an index holds 1 to 2^32-1 vectors of 1 to {} dimensions, not {count} of {dim}",
            limits::DIM_MAX
        )));
    }
    let full_vectors = FullVectors { metric, datatype, dim };
    let plan = Plan::make(count, full_vectors, work, options)?;
    let (trained, held, partition) = {
        let _batch = work.account.try_reserve((Batch::bytes(dim) + full_vectors.beside()) as u64)?;
        let mut batch = Batch::default();
        let (sample, held) = sample::draw(source, &plan, work, &mut batch)?;
        let trained = train::train(&sample, &plan, work)?;
        drop(sample);
        let partition = partition(source, &trained, &plan, work, batch)?;
        (trained, held, partition)
    };
    let _lists_room = work.account.try_reserve(partition.lists_bytes(&plan))?;
    let (mut lists, clusters) = partition.lists(&plan);
    let mut centroids = Buffer::<u8>::new(&work.account, coarse::section_bytes(lists.len(), dim))?;
    place_centroids(&trained, &partition, metric, &mut lists, &clusters, &mut centroids);
    let length = partition.length;
    drop(trained);

    let coarse = Coarse::new(&centroids, lists.len(), dim, metric, length)?;
    let _rotation_room = work.account.try_reserve(Rotation::bytes(dim) as u64)?;
    let rotation = (metric != Metric::Manhattan).then(|| Rotation::new(dim, work.seed));
    let coding = Coding { metric, dim, rotation: rotation.as_ref() };
    let blocks = lists.last().map_or(0, |list| list.block + list.count.div_ceil(ramekin_vecmath::BLOCK as u32));
    let shape = Shape::new(full_vectors, count, lists.len(), blocks as usize);
    let mut writing = Writing { out, base_tag, shape, work, plan: &plan };
    let (spills, curve) = writing.encode(partition, &mut lists, &clusters, coding, coarse, held)?;
    // What the chunks were coded in is free now, and the kernel should know.
    ramekin_memory::allocator_purge();
    writing.gather(spills)?;
    writing.whole(Part::Clusters, Priority::Centroids, lists.as_bytes())?;
    writing.whole(Part::Centroids, Priority::Centroids, &centroids)?;
    work.step(Phase::Gather, count, count)?;
    Ok(IndexMeta {
        version: version(datatype),
        metric: metric_name(metric).to_owned(),
        dim,
        datatype,
        rows: count as u32,
        lists: lists.len() as u32,
        blocks,
        seed: work.seed,
        length,
        recall: options.recall,
        curve,
    })
}

/// Fills the centroids' section, and in each list what follows from its centroid alone.
fn place_centroids(
    trained: &Trained,
    partition: &Partitions,
    metric: Metric,
    lists: &mut [InvertedList],
    clusters: &[u32],
    section: &mut [u8],
) {
    let mut centroid = vec![0.0; trained.centroids.dim()];
    for (list, cluster) in lists.iter_mut().zip(clusters) {
        let cluster = *cluster as usize;
        trained.centroids.get(cluster, &mut centroid);
        list.square = dot(&centroid, &centroid);
        list.scale = trained.centroids.scale(cluster);
        list.spread = (partition.squares[cluster] / partition.counts[cluster].max(1) as f32).sqrt();
    }
    let bias = |list: usize| coarse::bias(metric, lists[list].square, lists[list].spread);
    coarse::pack(&trained.centroids, clusters, bias, section);
}

/// Codes and rows in position order, until they move to their sections.
struct SpillFiles {
    rows: SpillFile,
    blocks: Option<SpillFile>,
    narrow: SpillFile,
    wide: Option<SpillFile>,
}

/// The half of a build that writes.
struct Writing<'a, 'w> {
    out: &'a mut PageWriter,
    base_tag: u32,
    shape: Shape,
    work: &'a Work<'w>,
    plan: &'a Plan,
}

impl Writing<'_, '_> {
    /// Encodes chunk after chunk: vectors go to their section, codes and rows to temporary files.
    fn encode(
        &mut self,
        mut partitions: Partitions,
        lists: &mut [InvertedList],
        clusters: &[u32],
        coding: Coding<'_>,
        coarse: Coarse<'_>,
        held: HeldOut,
    ) -> Result<(SpillFiles, Curve)> {
        let (plan, work, dim) = (self.plan, self.work, self.plan.dim);
        let mut calibration = RecallCalibration::new(held, coding, &coarse, lists.len(), &work.account)?;
        let mut spills = self.spills()?;
        let rows_most = plan.chunk_rows.min(plan.count);
        let mut room = ChunkBuffers::new(rows_most, plan, &work.account)?;
        let threads = work.threads.max(1);
        let coders = Coder::bytes(dim, rows_most.div_ceil(threads)) * threads + Plan::code_bytes(dim) * rows_most;
        let _coders_room = work.account.try_reserve(coders as u64)?;
        let mut coders: Vec<(Coder<'_>, Coded)> =
            (0..threads).map(|_| (Coder::new(coding), Coded::default())).collect();
        self.begin(Part::Vectors, Priority::Vectors)?;
        let mut done = 0;
        for part in 0..partitions.len() {
            for chunk in partitions.chunks(part, lists, clusters, plan) {
                let count = chunk.positions.len();
                partitions.read(&chunk, lists, clusters, plan, work, &mut room)?;
                let (rows, vectors) = (&room.rows[..count], &room.vectors[..count * dim]);
                encode_chunk(&chunk, lists, vectors, dim, coarse, &mut coders);
                self.records(self.shape.vectors, chunk.positions.start, room.records(count, plan))?;
                spills.rows.append(rows.as_bytes())?;
                for (_, coded) in &coders {
                    spills.narrow.append(&coded.narrow)?;
                    if let (Some(blocks), Some(wide)) = (&mut spills.blocks, &mut spills.wide) {
                        blocks.append(&coded.blocks)?;
                        wide.append(&coded.wide)?;
                    }
                }
                calibration.see(
                    &CalibrationChunk {
                        coding,
                        lists: &lists[chunk.lists.clone()],
                        first_list: chunk.lists.start,
                        rows,
                        vectors,
                        coded: coders.iter().map(|(_, coded)| coded).collect(),
                        coarse,
                    },
                    threads,
                );
                done += count;
                work.step(Phase::Encode, done, plan.count)?;
            }
            partitions.drop_first();
        }
        self.out.end()?;
        for spill in [Some(&mut spills.rows), spills.blocks.as_mut(), Some(&mut spills.narrow), spills.wide.as_mut()] {
            spill.map_or(Ok(()), SpillFile::finish)?;
        }
        Ok((spills, calibration.curve(&coarse, lists, &work.account)?))
    }

    fn spills(&self) -> Result<SpillFiles> {
        let create = |name: &str| {
            SpillFile::create(&self.work.disk, &self.work.temp.join(name), &self.work.account, self.plan.read_buffer)
        };
        let coded = self.shape.metric != Metric::Manhattan;
        Ok(SpillFiles {
            rows: create("ann-rows")?,
            narrow: create("ann-narrow")?,
            blocks: if coded { Some(create("ann-blocks")?) } else { None },
            wide: if coded { Some(create("ann-wide")?) } else { None },
        })
    }

    /// Moves the temporary files into their sections, each removed when done.
    fn gather(&mut self, spills: SpillFiles) -> Result<()> {
        let SpillFiles { rows, blocks, narrow, wide } = spills;
        if let Some(blocks) = blocks {
            self.copy(Part::Codes1, Priority::NarrowCodes, &blocks)?;
        }
        match wide {
            Some(wide) => {
                self.copy_records(Part::Codes3, self.shape.narrow, &narrow)?;
                drop(narrow);
                self.copy_records(Part::Codes6, self.shape.wide, &wide)?;
            }
            None => self.copy_records(Part::Codes8, self.shape.narrow, &narrow)?,
        }
        self.rows(&rows)?;
        self.positions(&rows)
    }

    fn copy(&mut self, part: Part, priority: Priority, spill: &SpillFile) -> Result<()> {
        self.begin(part, priority)?;
        let mut reader = spill.read(&self.work.account, self.plan.read_buffer)?;
        while reader.left() > 0 {
            self.out.write(reader.next(usize::MAX)?)?;
        }
        self.out.end().map(|_| ())
    }

    fn copy_records(&mut self, part: Part, record_layout: RecordLayout, spill: &SpillFile) -> Result<()> {
        self.begin(part, Priority::WideCodes)?;
        let mut reader = spill.read(&self.work.account, self.plan.read_buffer)?;
        let mut page = vec![0u8; record_layout.record * record_layout.run(0)];
        let mut position = 0;
        while reader.left() > 0 {
            let bytes = page.len().min(reader.left() as usize);
            reader.read_exact(&mut page[..bytes])?;
            self.records(record_layout, position, &page[..bytes])?;
            position += (bytes / record_layout.record) as u32;
        }
        self.out.end().map(|_| ())
    }

    /// Writes records from `position` on, with the gaps that keep them inside pages.
    fn records(&mut self, record_layout: RecordLayout, mut position: u32, mut bytes: &[u8]) -> Result<()> {
        const ZEROS: [u8; limits::PAGE] = [0; limits::PAGE];
        while !bytes.is_empty() {
            let run = (record_layout.run(position) * record_layout.record).min(bytes.len());
            self.out.write(&bytes[..run])?;
            position += (run / record_layout.record) as u32;
            let gap = record_layout.gap(position - 1);
            // The section ends with its last record.
            if gap > 0 && (position as usize) < self.plan.count {
                self.out.write(&ZEROS[..gap])?;
            }
            bytes = &bytes[run..];
        }
        Ok(())
    }

    fn rows(&mut self, rows: &SpillFile) -> Result<()> {
        self.begin(Part::Rows, Priority::Ids)?;
        let mut packer = Packer::new(self.shape.packed);
        let mut bytes = Vec::new();
        let mut reader = rows.read(&self.work.account, self.plan.read_buffer)?;
        while reader.left() > 0 {
            let mut row = 0u32;
            reader.read_exact(row.as_mut_bytes())?;
            packer.push(row, &mut bytes);
            if bytes.len() >= 16 << 10 {
                self.out.write(&bytes)?;
                bytes.clear();
            }
        }
        packer.finish(&mut bytes);
        self.out.write(&bytes)?;
        self.out.end().map(|_| ())
    }

    /// The inverse of the rows: as many of them at a time as fit, each time through all rows.
    fn positions(&mut self, rows: &SpillFile) -> Result<()> {
        self.begin(Part::Positions, Priority::Ids)?;
        let room = (self.plan.chunk_rows * self.plan.dim).min(self.plan.count);
        let mut positions = Buffer::<u32>::new(&self.work.account, room)?;
        let mut packer = Packer::new(self.shape.packed);
        let mut bytes = Vec::new();
        for from in (0..self.plan.count).step_by(room) {
            let to = (from + room).min(self.plan.count);
            let mut reader = rows.read(&self.work.account, self.plan.read_buffer)?;
            let (mut position, mut met) = (0u32, 0);
            positions.fill(u32::MAX);
            while reader.left() > 0 {
                let mut row = 0u32;
                reader.read_exact(row.as_mut_bytes())?;
                if (from..to).contains(&(row as usize)) {
                    met += usize::from(positions[row as usize - from] == u32::MAX);
                    positions[row as usize - from] = position;
                }
                position += 1;
            }
            if met != to - from {
                return Err(Error::bug(format!("of the rows {from} to {to} the source gave only {met}")));
            }
            for position in &positions[..to - from] {
                packer.push(*position, &mut bytes);
                if bytes.len() >= 16 << 10 {
                    self.out.write(&bytes)?;
                    bytes.clear();
                }
            }
            self.work.step(Phase::Gather, to, self.plan.count)?;
        }
        packer.finish(&mut bytes);
        self.out.write(&bytes)?;
        self.out.end().map(|_| ())
    }

    fn begin(&mut self, part: Part, priority: Priority) -> Result<()> {
        self.out.begin(part.tag(self.base_tag), priority)
    }

    fn whole(&mut self, part: Part, priority: Priority, bytes: &[u8]) -> Result<()> {
        self.begin(part, priority)?;
        self.out.write(bytes)?;
        self.out.end().map(|_| ())
    }
}

/// Encodes the lists of a chunk; each thread takes a run of lists with about the same number of vectors.
fn encode_chunk(
    chunk: &Chunk,
    lists: &mut [InvertedList],
    vectors: &[f32],
    dim: usize,
    coarse: Coarse<'_>,
    coders: &mut [(Coder<'_>, Coded)],
) {
    let start = chunk.positions.start;
    let share = chunk.positions.len().div_ceil(coders.len()) as u32;
    let mut left = &mut lists[chunk.lists.clone()];
    let mut first = chunk.lists.start;
    std::thread::scope(|scope| {
        for (at, (coder, coded)) in coders.iter_mut().enumerate() {
            let until = start + share * (at as u32 + 1);
            let take = left.partition_point(|list| list.start < until);
            let (own, rest) = std::mem::take(&mut left).split_at_mut(take);
            left = rest;
            let first_list = first;
            first += take;
            scope.spawn(move || {
                let mut centroid = vec![0.0; dim];
                coded.clear();
                for (at, list) in own.iter_mut().enumerate() {
                    coarse.centroid(first_list + at, &mut centroid);
                    let from = (list.start - start) as usize * dim;
                    coder.encode(&vectors[from..from + list.count as usize * dim], &centroid, list, coded);
                }
            });
        }
    });
}
