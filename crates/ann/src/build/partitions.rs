//! The external sort by cluster: the stream was cut into partitions (`partition.rs`), each of which is read in chunks that fit
//! into memory.
//!
//! ```text
//!   stream ───cut────► part 0: clusters 0..57     a record: row u32 | cluster u32 | record of the original
//!                      part 1: clusters 57..109
//!                      ...
//!   partition ──► chunk: lists 0..31, vectors in their final order ──► chunk: lists 31..57 ──► ...
//! ```
//!
//! Bounds of partitions come from the sample, so a partition may turn out larger than a chunk; it is then read once for
//! each chunk. A cluster larger than a chunk becomes several lists with the same centroid.

use crate::build::plan::Plan;
use crate::build::work::Work;
use crate::format::buffer::Buffer;
use crate::format::layout::InvertedList;
use ramekin_base::{Error, Result};
use ramekin_disk::{SpillFile, SpillReader};
use ramekin_memory::Account;
use ramekin_vecmath::BLOCK;
use std::collections::VecDeque;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Bytes before the vector in a record of a partition.
const HEAD: usize = 8;

/// The whole stream, cut by cluster.
pub(crate) struct Partitions {
    /// Files of the partitions not yet encoded, first part first.
    pub(crate) spills: VecDeque<SpillFile>,
    /// The first cluster of each partition, then their number.
    pub(crate) bounds: Vec<u32>,
    /// Vectors of each cluster.
    pub(crate) counts: Buffer<u32>,
    /// Of each cluster, the sum of squared distances of its vectors to the centroid.
    pub(crate) squares: Buffer<f32>,
    /// Root of the mean squared length of all vectors.
    pub(crate) length: f32,
}

/// Where the vectors of a chunk are put in order.
pub(crate) struct ChunkBuffers {
    pub(crate) rows: Buffer<u32>,
    /// Their views.
    pub(crate) vectors: Buffer<f32>,
    /// Their records, where they are not the views themselves.
    records: Buffer<u8>,
}

impl ChunkBuffers {
    pub(crate) fn new(rows: usize, plan: &Plan, account: &Account) -> Result<Self> {
        Ok(Self {
            rows: Buffer::new(account, rows)?,
            vectors: Buffer::new(account, rows * plan.dim)?,
            records: Buffer::new(account, rows * plan.full_vectors.beside())?,
        })
    }

    /// Records of the first `count` vectors.
    pub(crate) fn records(&self, count: usize, plan: &Plan) -> &[u8] {
        match plan.full_vectors.is_plain() {
            true => self.vectors[..count * plan.dim].as_bytes(),
            false => &self.records[..count * plan.full_vectors.record()],
        }
    }

    /// Reads the record and the view of the vector at `slot`.
    fn read(&mut self, slot: usize, reader: &mut SpillReader<'_>, plan: &Plan) -> Result<()> {
        let vector = &mut self.vectors[slot * plan.dim..(slot + 1) * plan.dim];
        if plan.full_vectors.is_plain() {
            return reader.read_exact(vector.as_mut_bytes());
        }
        let bytes = plan.full_vectors.record();
        let record = &mut self.records[slot * bytes..(slot + 1) * bytes];
        reader.read_exact(record)?;
        plan.full_vectors.unpack(record, vector);
        plan.full_vectors.view(vector);
        Ok(())
    }
}

/// Some lists of one partition, with their vectors in the order that they keep.
pub(crate) struct Chunk {
    /// Lists of this chunk.
    pub(crate) lists: Range<usize>,
    /// Positions of its vectors.
    pub(crate) positions: Range<u32>,
}

impl Partitions {
    /// The lists of all clusters, each no longer than a chunk, in order of position. Of an empty cluster there is none.
    pub(crate) fn lists(&self, plan: &Plan) -> (Vec<InvertedList>, Vec<u32>) {
        let (mut lists, mut clusters) = (Vec::new(), Vec::new());
        let (mut start, mut block) = (0, 0);
        for (cluster, count) in self.counts.iter().enumerate() {
            let piece = piece_rows(*count, plan);
            let mut left = *count;
            while left > 0 {
                let count = left.min(piece);
                lists.push(InvertedList { start, count, block, ..InvertedList::default() });
                clusters.push(cluster as u32);
                start += count;
                block += count.div_ceil(BLOCK as u32);
                left -= count;
            }
        }
        (lists, clusters)
    }

    /// Bytes of [`Partitions::lists`], before it is made.
    pub(crate) fn lists_bytes(&self, plan: &Plan) -> u64 {
        let pieces = |count: &u32| u64::from(count.div_ceil(piece_rows(*count, plan).max(1)));
        self.counts.iter().map(pieces).sum::<u64>() * 2 * (size_of::<InvertedList>() + 4) as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The chunks of a partition: runs of its lists that fit.
    pub(crate) fn chunks(&self, part: usize, lists: &[InvertedList], clusters: &[u32], plan: &Plan) -> Vec<Chunk> {
        let from = clusters.partition_point(|cluster| *cluster < self.bounds[part]);
        let to = clusters.partition_point(|cluster| *cluster < self.bounds[part + 1]);
        let mut chunks: Vec<Chunk> = Vec::new();
        for (at, list) in lists[from..to].iter().enumerate().map(|(at, list)| (from + at, list)) {
            match chunks.last_mut() {
                Some(chunk) if list.positions().end - chunk.positions.start <= plan.chunk_rows as u32 => {
                    chunk.lists.end = at + 1;
                    chunk.positions.end = list.positions().end;
                }
                _ => chunks.push(Chunk { lists: at..at + 1, positions: list.positions() }),
            }
        }
        chunks
    }

    /// Reads a chunk of the first partition left: vectors and rows, each at its position.
    pub(crate) fn read(
        &self,
        chunk: &Chunk,
        lists: &[InvertedList],
        clusters: &[u32],
        plan: &Plan,
        work: &Work<'_>,
        room: &mut ChunkBuffers,
    ) -> Result<()> {
        let spill = self.spills.front().ok_or_else(|| Error::bug("no part is left to read"))?;
        let mut reader = spill.read(&work.account, plan.read_buffer)?;
        // Where each cluster of the chunk begins, counted from the chunk's start; negative if in an earlier chunk.
        let first = clusters[chunk.lists.start];
        let last = clusters[chunk.lists.end - 1];
        let mut next = Vec::with_capacity((last - first + 1) as usize);
        for cluster in first..=last {
            let list = clusters.partition_point(|c| *c < cluster);
            next.push(i64::from(lists[list.min(lists.len() - 1)].start) - i64::from(chunk.positions.start));
        }
        let count = i64::from(chunk.positions.end - chunk.positions.start);
        let mut filled = 0;
        while reader.left() > 0 {
            let mut head = [0u32; HEAD / 4];
            reader.read_exact(head.as_mut_bytes())?;
            let [row, cluster] = head;
            let slot = match cluster.checked_sub(first).and_then(|at| next.get_mut(at as usize)) {
                Some(next) => {
                    *next += 1;
                    *next - 1
                }
                None => -1,
            };
            if (0..count).contains(&slot) {
                let slot = slot as usize;
                room.rows[slot] = row;
                room.read(slot, &mut reader, plan)?;
                filled += 1;
            } else {
                reader.skip(plan.full_vectors.record())?;
            }
        }
        if filled != count {
            return Err(Error::bug(format!("a part gave {filled} of {count} vectors")));
        }
        Ok(())
    }

    /// The first partition left is no longer needed: its file goes.
    pub(crate) fn drop_first(&mut self) {
        self.spills.pop_front();
    }
}

/// The longest list of a cluster of `count` vectors: the cluster is cut evenly.
fn piece_rows(count: u32, plan: &Plan) -> u32 {
    let pieces = count.div_ceil(plan.chunk_rows as u32).max(1);
    count.div_ceil(pieces)
}
