//! The external sort by cluster: the stream was cut into parts (`cut.rs`), each is read in loads that fit into memory.
//!
//! ```text
//!   stream ───cut────► part 0: clusters 0..57     a record: row u32 | cluster u32 | record of the original
//!                      part 1: clusters 57..109
//!                      ...
//!   part ──► load: lists 0..31, vectors in their final order ──► load: lists 31..57 ──► ...
//! ```
//!
//! Bounds of parts come from the sample, so a part may turn out larger than a load; it is then read once for
//! each load. A cluster larger than a load becomes several lists with the same centroid.

use crate::buffer::Buffer;
use crate::layout::List;
use crate::plan::Plan;
use crate::work::Work;
use ramekin_base::{Error, Result};
use ramekin_disk::{Spool, SpoolReader};
use ramekin_memory::Account;
use ramekin_vecmath::BLOCK;
use std::collections::VecDeque;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Bytes before the vector in a record of a part.
const HEAD: usize = 8;

/// The whole stream, cut by cluster.
pub(crate) struct Parts {
    /// Files of the parts not yet encoded, first part first.
    pub(crate) spools: VecDeque<Spool>,
    /// The first cluster of each part, then their number.
    pub(crate) bounds: Vec<u32>,
    /// Vectors of each cluster.
    pub(crate) counts: Buffer<u32>,
    /// Of each cluster, the sum of squared distances of its vectors to the centroid.
    pub(crate) squares: Buffer<f32>,
    /// Root of the mean squared length of all vectors.
    pub(crate) length: f32,
}

/// Where the vectors of a load are put in order.
pub(crate) struct LoadRoom {
    pub(crate) rows: Buffer<u32>,
    /// Their views.
    pub(crate) vectors: Buffer<f32>,
    /// Their records, where they are not the views themselves.
    records: Buffer<u8>,
}

impl LoadRoom {
    pub(crate) fn new(rows: usize, plan: &Plan, account: &Account) -> Result<Self> {
        Ok(Self {
            rows: Buffer::new(account, rows)?,
            vectors: Buffer::new(account, rows * plan.dim)?,
            records: Buffer::new(account, rows * plan.originals.beside())?,
        })
    }

    /// Records of the first `count` vectors.
    pub(crate) fn records(&self, count: usize, plan: &Plan) -> &[u8] {
        match plan.originals.is_plain() {
            true => self.vectors[..count * plan.dim].as_bytes(),
            false => &self.records[..count * plan.originals.record()],
        }
    }

    /// Reads the record and the view of the vector at `slot`.
    fn read(&mut self, slot: usize, reader: &mut SpoolReader<'_>, plan: &Plan) -> Result<()> {
        let vector = &mut self.vectors[slot * plan.dim..(slot + 1) * plan.dim];
        if plan.originals.is_plain() {
            return reader.read_exact(vector.as_mut_bytes());
        }
        let bytes = plan.originals.record();
        let record = &mut self.records[slot * bytes..(slot + 1) * bytes];
        reader.read_exact(record)?;
        plan.originals.unpack(record, vector);
        plan.originals.view(vector);
        Ok(())
    }
}

/// Some lists of one part, with their vectors in the order that they keep.
pub(crate) struct Load {
    /// Lists of this load.
    pub(crate) lists: Range<usize>,
    /// Positions of its vectors.
    pub(crate) positions: Range<u32>,
}

impl Parts {
    /// The lists of all clusters, each no longer than a load, in order of position. Of an empty cluster there is none.
    pub(crate) fn lists(&self, plan: &Plan) -> (Vec<List>, Vec<u32>) {
        let (mut lists, mut clusters) = (Vec::new(), Vec::new());
        let (mut start, mut block) = (0, 0);
        for (cluster, count) in self.counts.iter().enumerate() {
            let piece = piece_rows(*count, plan);
            let mut left = *count;
            while left > 0 {
                let count = left.min(piece);
                lists.push(List { start, count, block, ..List::default() });
                clusters.push(cluster as u32);
                start += count;
                block += count.div_ceil(BLOCK as u32);
                left -= count;
            }
        }
        (lists, clusters)
    }

    /// Bytes of [`Parts::lists`], before it is made.
    pub(crate) fn lists_bytes(&self, plan: &Plan) -> u64 {
        let pieces = |count: &u32| u64::from(count.div_ceil(piece_rows(*count, plan).max(1)));
        self.counts.iter().map(pieces).sum::<u64>() * 2 * (size_of::<List>() + 4) as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The loads of a part: runs of its lists that fit.
    pub(crate) fn loads(&self, part: usize, lists: &[List], clusters: &[u32], plan: &Plan) -> Vec<Load> {
        let from = clusters.partition_point(|cluster| *cluster < self.bounds[part]);
        let to = clusters.partition_point(|cluster| *cluster < self.bounds[part + 1]);
        let mut loads: Vec<Load> = Vec::new();
        for (at, list) in lists[from..to].iter().enumerate().map(|(at, list)| (from + at, list)) {
            match loads.last_mut() {
                Some(load) if list.positions().end - load.positions.start <= plan.load_rows as u32 => {
                    load.lists.end = at + 1;
                    load.positions.end = list.positions().end;
                }
                _ => loads.push(Load { lists: at..at + 1, positions: list.positions() }),
            }
        }
        loads
    }

    /// Reads a load of the first part left: vectors and rows, each at its position.
    pub(crate) fn read(
        &self,
        load: &Load,
        lists: &[List],
        clusters: &[u32],
        plan: &Plan,
        work: &Work<'_>,
        room: &mut LoadRoom,
    ) -> Result<()> {
        let spool = self.spools.front().ok_or_else(|| Error::bug("no part is left to read"))?;
        let mut reader = spool.read(&work.account, plan.read_buffer)?;
        // Where each cluster of the load begins, counted from the load's start; negative if in an earlier load.
        let first = clusters[load.lists.start];
        let last = clusters[load.lists.end - 1];
        let mut next = Vec::with_capacity((last - first + 1) as usize);
        for cluster in first..=last {
            let list = clusters.partition_point(|c| *c < cluster);
            next.push(i64::from(lists[list.min(lists.len() - 1)].start) - i64::from(load.positions.start));
        }
        let count = i64::from(load.positions.end - load.positions.start);
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
                reader.skip(plan.originals.record())?;
            }
        }
        if filled != count {
            return Err(Error::bug(format!("a part gave {filled} of {count} vectors")));
        }
        Ok(())
    }

    /// The first part left is no longer needed: its file goes.
    pub(crate) fn drop_first(&mut self) {
        self.spools.pop_front();
    }
}

/// The longest list of a cluster of `count` vectors: the cluster is cut evenly.
fn piece_rows(count: u32, plan: &Plan) -> u32 {
    let pieces = count.div_ceil(plan.load_rows as u32).max(1);
    count.div_ceil(pieces)
}
