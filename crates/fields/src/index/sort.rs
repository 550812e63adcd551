//! Sorts pairs of a key and a number, as many as there are, in the memory that there is.
//!
//! ```text
//!   push ─► [arena] ──full──► sorted ─► a run in a temporary file
//!                                        runs ─► merged, a few at a time ─► one, each pair once
//! ```

use super::build::Work;
use ramekin_base::{Error, Result};
use ramekin_disk::{Spool, SpoolReader};
use ramekin_memory::Reservation;
use std::collections::VecDeque;

/// Bytes of a pair before its key: how long the key is, and the number.
const HEAD: usize = 6;
/// Runs that are merged at a time.
const FAN_IN: usize = 16;
/// Buffer of a run, bytes.
const BUFFER: usize = 16 << 10;
/// Memory for runs that are merged, and the one that is written.
pub(crate) const MERGE_BYTES: u64 = ((FAN_IN + 1) * BUFFER) as u64;

pub(crate) struct Sorter<'w> {
    work: &'w Work<'w>,
    name: &'static str,
    arena: Vec<u8>,
    /// Where in the arena each pair begins.
    places: Vec<u32>,
    runs: VecDeque<Spool>,
    /// Runs so far, so that each file has a name of its own.
    made: usize,
    held: Option<Reservation>,
}

/// All pairs in order, each once.
pub(crate) struct Sorted {
    spool: Spool,
    /// Pairs.
    pub(crate) pairs: u64,
    /// Different keys.
    pub(crate) distinct: u64,
    /// Bytes of each key, where all have as many.
    pub(crate) key_len: Option<usize>,
}

impl<'w> Sorter<'w> {
    /// With so many bytes of memory; its files have `name` in theirs.
    pub(crate) fn new(work: &'w Work<'w>, name: &'static str, bytes: usize) -> Result<Self> {
        let held = work.account.try_reserve(bytes as u64)?;
        let arena = Vec::with_capacity(bytes / 3 * 2);
        let places = Vec::with_capacity(bytes / 3 / 4);
        Ok(Self { work, name, arena, places, runs: VecDeque::new(), made: 0, held: Some(held) })
    }

    pub(crate) fn push(&mut self, key: &[u8], number: u32) -> Result<()> {
        let len = HEAD + key.len();
        if self.arena.len() + len > self.arena.capacity() || self.places.len() == self.places.capacity() {
            self.spill()?;
        }
        self.places.push(self.arena.len() as u32);
        self.arena.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.arena.extend_from_slice(&number.to_le_bytes());
        self.arena.extend_from_slice(key);
        Ok(())
    }

    fn create(&mut self) -> Result<Spool> {
        self.made += 1;
        let path = self.work.temp.join(format!("field-{}-{}", self.name, self.made));
        Spool::create(&self.work.disk, &path, &self.work.account, BUFFER)
    }

    /// Writes what is in memory as a run.
    fn spill(&mut self) -> Result<()> {
        let arena = &self.arena;
        self.places.sort_unstable_by(|a, b| pair(arena, *a).cmp(&pair(arena, *b)));
        let mut run = self.create()?;
        for place in &self.places {
            let (key, _) = pair(&self.arena, *place);
            let from = *place as usize;
            run.append(&self.arena[from..from + HEAD + key.len()])?;
        }
        run.finish()?;
        self.runs.push_back(run);
        self.arena.clear();
        self.places.clear();
        self.work.check()
    }

    pub(crate) fn finish(mut self) -> Result<Sorted> {
        self.spill()?;
        (self.arena, self.places, self.held) = (Vec::new(), Vec::new(), None);
        loop {
            let is_last = self.runs.len() <= FAN_IN;
            let runs: Vec<Spool> = self.runs.drain(..self.runs.len().min(FAN_IN)).collect();
            let merged = self.merge(&runs)?;
            // Here, not at the end of the block: what a drop that panics finds already returned is
            // never dropped itself (rust-lang/rust#47949), and a spool is a file and its memory.
            drop(runs);
            if is_last {
                return Ok(merged);
            }
            self.runs.push_back(merged.spool);
        }
    }

    fn merge(&mut self, runs: &[Spool]) -> Result<Sorted> {
        let mut merged = Sorted { spool: self.create()?, pairs: 0, distinct: 0, key_len: None };
        let mut cursors = Vec::with_capacity(runs.len());
        for run in runs {
            let mut cursor = Pairs::open(run, self.work)?;
            if cursor.advance()? {
                cursors.push(cursor);
            }
        }
        let (mut last_key, mut last_number, mut lens) = (Vec::new(), 0, (usize::MAX, 0));
        loop {
            let least = cursors.iter().enumerate().min_by(|(_, a), (_, b)| a.pair().cmp(&b.pair()));
            let Some(at) = least.map(|(at, _)| at) else { break };
            let (key, number) = cursors[at].pair();
            let is_new = merged.pairs == 0 || last_key != key;
            if is_new || last_number != number {
                merged.spool.append(&(key.len() as u16).to_le_bytes())?;
                merged.spool.append(&number.to_le_bytes())?;
                merged.spool.append(key)?;
                merged.pairs += 1;
                merged.distinct += u64::from(is_new);
                lens = (lens.0.min(key.len()), lens.1.max(key.len()));
                last_key.clear();
                last_key.extend_from_slice(key);
                last_number = number;
                if merged.pairs.is_multiple_of(65_536) {
                    self.work.check()?;
                }
            }
            if !cursors[at].advance()? {
                cursors.remove(at);
            }
        }
        merged.spool.finish()?;
        merged.key_len = (lens.0 == lens.1).then_some(lens.0);
        Ok(merged)
    }
}

fn pair(arena: &[u8], place: u32) -> (&[u8], u32) {
    let (head, rest) = arena[place as usize..].split_at(HEAD);
    let (len, number) = head_of(head);
    (&rest[..len], number)
}

fn head_of(head: &[u8]) -> (usize, u32) {
    let len = u16::from_le_bytes([head[0], head[1]]);
    (usize::from(len), u32::from_le_bytes([head[2], head[3], head[4], head[5]]))
}

/// Pairs of a file, one after the other.
pub(crate) struct Pairs<'a> {
    reader: SpoolReader<'a>,
    key: Vec<u8>,
    number: u32,
}

impl<'a> Pairs<'a> {
    fn open(spool: &'a Spool, work: &Work<'_>) -> Result<Self> {
        Ok(Self { reader: spool.read(&work.account, BUFFER)?, key: Vec::with_capacity(crate::key::KEY_MAX), number: 0 })
    }

    /// Goes to the next pair; false: there is none.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        if self.reader.left() == 0 {
            return Ok(false);
        }
        let mut head = [0; HEAD];
        self.reader.read_exact(&mut head)?;
        let (len, number) = head_of(&head);
        if len > crate::key::KEY_MAX {
            return Err(Error::corrupt("a temporary file of an index is not what was written; it is built again"));
        }
        self.key.resize(len, 0);
        self.reader.read_exact(&mut self.key)?;
        self.number = number;
        Ok(true)
    }

    pub(crate) fn pair(&self) -> (&[u8], u32) {
        (&self.key, self.number)
    }
}

impl Sorted {
    /// All pairs from the start.
    pub(crate) fn pairs(&self, work: &Work<'_>) -> Result<Pairs<'_>> {
        Pairs::open(&self.spool, work)
    }
}
