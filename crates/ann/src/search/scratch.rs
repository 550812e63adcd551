//! The room in which a search works; kept from one search to the next, so that a search allocates nothing.
//!
//! ```text
//!   bytes = 12 dim + 5.25 dim (query in all its forms) + 8 max(dim, 1024) (full vectors) + 8 lists (scores, order)
//!         + 100 (nprobe + 1) + 24 (candidates + 4096)
//! ```

use crate::format::full_vectors::FullVectors;
use crate::format::layout::InvertedList;
use crate::search::request::Profile;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use ramekin_vecmath::{QueryCodes, Survivors};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A list that is scanned, and what the query makes of it.
#[derive(Clone, Copy)]
pub(crate) struct ProbedList {
    pub(crate) list: InvertedList,
    /// Its index in the cluster table.
    pub(crate) index: u32,
    /// The part of each estimate that its vectors share.
    pub(crate) shared_term: f32,
    /// Distance of the query to its centroid.
    pub(crate) centroid_distance: f32,
    /// The largest factor f of its 1-bit codes: with it the error of any of them is bounded.
    pub(crate) max_error_factor: f32,
}

/// A vector that may be among the nearest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) estimate: f32,
    /// How far the truth may lie above the estimate.
    pub(crate) margin: f32,
    pub(crate) position: u32,
    /// Its list while an index is scanned; which of the indexes it is in afterwards.
    pub(crate) slot: u32,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// By estimate; of equal ones the lower position is the greater.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.estimate.total_cmp(&other.estimate).then(other.position.cmp(&self.position))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The best few candidates; `least` is what a further one must pass.
#[derive(Default)]
pub(crate) struct TopK {
    kept: usize,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl TopK {
    pub(crate) fn begin(&mut self, kept: usize) {
        self.kept = kept.max(1);
        self.heap.clear();
    }

    #[inline]
    pub(crate) fn least(&self) -> f32 {
        match self.heap.peek() {
            Some(Reverse(candidate)) if self.heap.len() >= self.kept => candidate.estimate,
            _ => f32::NEG_INFINITY,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, candidate: Candidate) {
        if self.heap.len() < self.kept {
            self.heap.push(Reverse(candidate));
        } else if let Some(mut least) = self.heap.peek_mut()
            && candidate > least.0
        {
            *least = Reverse(candidate);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.heap.len() >= self.kept
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Takes all out, in no order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Candidate> {
        self.heap.drain().map(|Reverse(candidate)| candidate)
    }

    /// Moves all into `out`, best first.
    pub(crate) fn drain(&mut self, out: &mut Vec<Candidate>) {
        out.clear();
        out.extend(self.heap.drain().map(|Reverse(candidate)| candidate));
        out.sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// How the filter answered.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) asked: u64,
    pub(crate) passed: u64,
}

/// Pages that a search may still read.
#[derive(Clone, Copy)]
pub(crate) struct Reads {
    pub(crate) left: usize,
    /// Of them, kept for candidates.
    kept: usize,
}

impl Reads {
    pub(crate) const ENDLESS: Self = Self { left: usize::MAX, kept: 0 };

    /// Up to half are kept for candidates, two for each of `k`; codes may take the others.
    pub(crate) fn of(most: usize, k: usize) -> Self {
        Self { left: most, kept: (most / 2).min(k * 2) }
    }

    /// Whether codes may be read yet.
    pub(crate) fn has_for_codes(&self) -> bool {
        self.left > self.kept
    }

    /// Takes so many if there are so many.
    pub(crate) fn take(&mut self, pages: usize) -> bool {
        let has = pages <= self.left;
        self.left -= if has { pages } else { 0 };
        has
    }

    pub(crate) fn spend(&mut self, pages: usize) {
        self.left = self.left.saturating_sub(pages);
    }
}

/// What one search works with.
pub struct Scratch {
    pub(crate) account: Account,
    room: Reservation,
    /// What the last search did.
    pub profile: Profile,
    pub(crate) reads: Reads,
    pub(crate) scaled: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) scores: Vec<f32>,
    pub(crate) centroid_dots: Vec<f32>,
    pub(crate) near: Vec<u32>,
    pub(crate) rotated: Vec<f32>,
    /// Values of full vectors that are packed, and bytes of full vectors that stream by.
    pub(crate) unpacked: Vec<f32>,
    pub(crate) streamed: Vec<f32>,
    pub(crate) codes: Option<QueryCodes>,
    pub(crate) survivors: Survivors,
    pub(crate) slots: Vec<ProbedList>,
    pub(crate) pending: Vec<Candidate>,
    /// Where the codes of those that are refined begin, and what the query makes of them.
    pub(crate) starts: Vec<usize>,
    pub(crate) dots: Vec<f32>,
    pub(crate) best: TopK,
    /// Of the lists that were scanned last.
    pub(crate) tally: Tally,
    pub(crate) chosen: Vec<Candidate>,
    /// So many of the chosen the bar takes into account.
    pub(crate) counted: usize,
    pub(crate) exact: TopK,
}

/// Codes of one list that are scanned at a time, and so the most that pass at one time.
pub(crate) const SCAN_AT_A_TIME: usize = 2048;

impl Scratch {
    /// An empty one; it grows to what the indexes it meets need, paid for by `account`.
    pub fn new(account: &Account) -> Result<Self> {
        Ok(Self {
            account: account.clone(),
            room: account.try_reserve(0)?,
            profile: Profile::default(),
            reads: Reads::ENDLESS,
            scaled: Vec::new(),
            bytes: Vec::new(),
            scores: Vec::new(),
            centroid_dots: Vec::new(),
            near: Vec::new(),
            rotated: Vec::new(),
            unpacked: Vec::new(),
            streamed: Vec::new(),
            codes: None,
            survivors: Survivors::default(),
            slots: Vec::new(),
            pending: Vec::new(),
            starts: Vec::new(),
            dots: Vec::new(),
            best: TopK::default(),
            tally: Tally::default(),
            chosen: Vec::new(),
            counted: 0,
            exact: TopK::default(),
        })
    }

    /// Bytes of a scratch for searches of an index of this shape that scan `nprobe` lists for `candidates`.
    pub fn bytes(dim: usize, lists: usize, nprobe: usize, candidates: usize) -> u64 {
        let query = 2 * 4 * dim + dim + 4 + QueryCodes::bytes(dim);
        let full_vectors = 2 * 4 * FullVectors::room(dim);
        let coarse = lists * 12;
        let scan = (nprobe + 1) * size_of::<ProbedList>() + SCAN_AT_A_TIME * (20 + 2 * size_of::<Candidate>());
        (query + full_vectors + coarse + scan + 4 * candidates * size_of::<Candidate>()) as u64
    }

    /// Bytes that it has reserved: what the largest search needed so far.
    pub fn reserved_bytes(&self) -> u64 {
        self.room.bytes()
    }

    /// Reserves what such a search needs, if it is more than before.
    pub(crate) fn fit(&mut self, dim: usize, lists: usize, nprobe: usize, candidates: usize) -> Result<()> {
        let bytes = Self::bytes(dim, lists, nprobe, candidates);
        if bytes > self.room.bytes() {
            self.room.resize(bytes)?;
        }
        if self.unpacked.len() < FullVectors::room(dim) {
            self.unpacked.resize(FullVectors::room(dim), 0.0);
        }
        if self.codes.as_ref().is_none_or(|codes| codes.dim() != dim) {
            self.codes = Some(QueryCodes::new(dim));
        }
        Ok(())
    }
}
