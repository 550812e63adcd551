//! Without a sample: what is known of searches before any vector was seen, as ranges.
//!
//! How many lists must be scanned for a recall depends on the vectors alone: data that falls into heaps needs a few, noise
//! needs a good part of all. So the range of speeds is wide, and it is meant to hold.

use super::Figures;
use crate::machine::cores;
use ramekin_ann::Part;

/// From least to most, and what is likely.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Range {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Range {
    pub(super) fn new(low: f64, value: f64, high: f64) -> Self {
        Self { value, low, high }
    }

    /// So many times less, and more.
    pub(super) fn around(value: f64, share: f64) -> Self {
        Self { value, low: value * (1.0 - share), high: value * (1.0 + share) }
    }

    /// A share, within so much.
    pub(super) fn within(value: f64, difference: f64) -> Self {
        Self { value, low: (value - difference).max(0.0), high: (value + difference).min(1.0) }
    }
}

/// What one vector of a collection is like to search.
pub(super) struct Shape<'a> {
    pub(super) points: u64,
    pub(super) dim: usize,
    pub(super) lists: usize,
    pub(super) resident: &'a [Part],
    pub(super) recall: f64,
    /// Pages of originals that fit the cache, as a share.
    pub(super) cached: f64,
}

/// Share of the lists that a search scans, easy to hard: text vectors need 0.6 per cent; of drawn vectors of 768 dimensions half
/// was scanned, and noise may need all.
const LISTS_SCANNED: (f64, f64, f64) = (0.003, 0.01, 1.0);
/// Bytes of codes that a core scans a second, and of centroids.
const SCAN_RATE: f64 = 3e9;
/// Processor's seconds of one read, in the kernel and in the cache.
pub(super) const READ_S: f64 = 14e-6;

/// Reads a query: candidates whose originals are on disk, and lists whose codes are.
pub(super) fn reads(shape: &Shape<'_>) -> Range {
    let has = |part: Part| shape.resident.contains(&part);
    let missing = 1.0 - shape.cached;
    let originals = match () {
        () if has(Part::Vectors) => Range::default(),
        () if has(Part::Codes6) || has(Part::Codes8) => Range::new(3.0, 10.0, 16.0),
        () if has(Part::Codes3) => Range::new(6.0, 18.0, 45.0),
        () => Range::new(12.0, 50.0, 250.0),
    };
    let codes = match has(Part::Codes1) || has(Part::Codes3) || has(Part::Codes6) || has(Part::Codes8) {
        true => Range::default(),
        false => lists_scanned(shape),
    };
    let all = |originals: f64, codes: f64| (originals + codes) * missing;
    Range::new(
        all(originals.low, codes.low) * 0.5,
        all(originals.value, codes.value),
        all(originals.high, codes.high) + 2.0,
    )
}

fn lists_scanned(shape: &Shape<'_>) -> Range {
    let (low, value, high) = LISTS_SCANNED;
    let lists = shape.lists as f64;
    Range::new((lists * low).max(1.0), (lists * value).max(4.0).min(lists), (lists * high).max(40.0).min(lists))
}

/// Processor's seconds of a search.
pub(super) fn search_s(shape: &Shape<'_>, reads: Range) -> Range {
    let (lists, dim) = (shape.lists as f64, shape.dim as f64);
    let coarse = lists * dim / (4.0 * SCAN_RATE);
    let each_list = shape.points as f64 / lists.max(1.0) * (dim / 8.0 + 4.0);
    let at = |scanned: f64, reads: f64| coarse + scanned * each_list / SCAN_RATE * 2.0 + 4e-6 + reads * READ_S;
    let scanned = lists_scanned(shape);
    Range::new(at(scanned.low, reads.low), at(scanned.value, reads.value), at(scanned.high, reads.high) * 1.5)
}

/// Recall@10 of the default search, where the wish is `recall`: what a segment aims at, on vectors it has not seen.
pub(super) fn recall(wished: f64) -> Range {
    let missed = 1.0 - wished;
    Range::new((wished - 0.02).max(0.0), 1.0 - missed * 0.8, 1.0 - missed * 0.2)
}

/// Processor's seconds of a request besides its search, on both sides of the connection: HTTP, and the vector as text.
fn request_s(dim: usize, exchange_s: f64) -> f64 {
    REQUEST_S + exchange_s * EXCHANGES + dim as f64 * FLOAT_S
}

/// Measured with the lab's own load on eight connections, on two machines of two cores, of which one takes three times as long
/// for an exchange: what a request takes besides, how many bare exchanges it takes the time of, and a number of the query as
/// text.
const REQUEST_S: f64 = 50e-6;
const EXCHANGES: f64 = 3.3;
const FLOAT_S: f64 = 0.13e-6;

/// What a machine does in a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineRates {
    /// The processor's seconds of a bare exchange, see `wire.rs`.
    pub(super) exchange_s: f64,
    /// 4 KiB random reads a second, many at a time.
    pub(super) disk: f64,
}

/// Share of the time of what is less busy, cores or disk, that is not hidden behind the other: eight queries at a time.
const WAITING: f64 = 0.35;

/// Queries a second of all cores, if a query takes so long.
pub(super) fn rate(rates: MachineRates, search_s: f64, dim: usize, reads: f64) -> f64 {
    let by_cores = cores() as f64 / (search_s + request_s(dim, rates.exchange_s));
    let by_disk = if reads > 0.0 { rates.disk / reads } else { f64::INFINITY };
    // With a few queries at a time, one of both sometimes waits for the other.
    1.0 / (1.0 / by_cores.min(by_disk) + WAITING / by_cores.max(by_disk))
}

/// A collection that is small enough to be scanned: every answer is exact.
pub(super) fn scanned(rates: MachineRates, bytes: u64, dim: usize, is_resident: bool) -> Figures {
    let reads = if is_resident { Range::default() } else { Range::around(bytes as f64 / EXACT_READ, 0.5) };
    let rate = |share: f64, reads: f64| self::rate(rates, bytes as f64 / EXACT_RATE * share, dim, reads);
    Figures {
        recall: Range::new(1.0, 1.0, 1.0),
        reads_per_query: reads,
        queries_per_second: Range::new(rate(2.0, reads.high), rate(1.0, reads.value), rate(0.5, reads.low)),
        ..Figures::default()
    }
}

/// Bytes of originals that a core scans a second, and of one read of those that are on disk.
const EXACT_RATE: f64 = 16e9;
const EXACT_READ: f64 = 65_536.0;
