//! A plan of a store of versions (etcd's door): memory and disk by its formulas, puts and gets a second by measured constants.
//!
//! ```text
//!   keys, versions, sizes ─► `ramekin_versions::Expected` ─► what stands on disk, tables, least share ─┬─► does a budget hold it?
//!   watchers, by the door's own formula ──────────────────────────────────────────────────────────────┘
//!   budget - what stands beside ─► cache: newest versions that fit it ─► reads a get
//!   a request's own cost (`wire.rs`), the disk (`disk_rate.rs`) ─► gets/s, puts/s
//! ```

use super::Planner;
use super::guess::Range;
use crate::machine::cores;
use crate::statistics::grouped;
use crate::table::Table;
use ramekin_base::Size;
use ramekin_versions::{Capacity, Expected};
use serde_json::{Value, json};

/// Processor's seconds of a request besides the exchange: gRPC, the door and the store. Measured with 8 clients on one key a request, on
/// two cores of an EPYC of 2.4 GHz: 29 us of the server's for a get and 72 us for a put, its share of a sync included.
const GET_S: f64 = 29e-6;
const PUT_S: f64 = 72e-6;
/// Keys in no order are merged again and again: processor's seconds of a byte of a record, times how often the memtable goes into what
/// is stored. Measured as 56 us for a record of 400 bytes, where 188 MiB were stored and memtables had 4 MiB; nothing for keys in order.
const MERGE_S: f64 = 3e-9;
/// The client's side of gRPC, as exchanges of bare bytes.
const EXCHANGES: f64 = 3.3;
/// Of the budget that is left, what the store's share may be where nothing else is in use, and of that the memtables' part.
const SHARE: u64 = 2;
const MEMTABLES: u64 = 6;
/// How far off the rates may be: another processor, larger requests, a disk that syncs slowly.
const RATE_LOW: f64 = 0.3;
const RATE_HIGH: f64 = 2.5;
/// Of what is on disk: merges under way, and names that begin alike.
const DISK_SHARE: f64 = 0.25;
/// Of tables and watchers: files that wait for a merge, streams that have something to send.
const MEMORY_SHARE: f64 = 0.25;
/// Of a record that is asked for in a key's tree: a page of the index, if it is not in the cache, and one of the body.
const READS: f64 = 2.0;

/// What is planned.
#[derive(Debug, Clone, Copy)]
pub struct VersionsRequest {
    pub budget: u64,
    pub expected: Expected,
    /// The least budget where nothing is stored in it and nobody watches.
    pub beside: u64,
    pub watchers: u64,
    pub streams: u64,
    /// What the door books for these.
    pub watch_bytes: u64,
}

/// What a budget gives.
#[derive(Debug, Clone)]
pub struct VersionsPlan {
    pub request: VersionsRequest,
    pub capacity: Capacity,
    pub least_budget: u64,
    /// What the caches have of the budget, and what they would like: all that reads of the present ask for, and the indexes.
    pub cache_bytes: u64,
    pub cache_wanted_bytes: u64,
    pub log_bytes: u64,
    pub disk_bytes: Range,
    pub reads_per_get: Range,
    pub gets_per_second: Range,
    pub puts_per_second: Range,
}

impl VersionsRequest {
    /// The least budget with these keys and watchers.
    pub fn least_budget(&self) -> u64 {
        self.beside + self.watch_bytes + self.expected.capacity().least_share
    }

    /// What the store and the caches have together; with the least budget, where this one is smaller.
    fn free(&self) -> u64 {
        self.budget.max(self.least_budget()) - self.beside - self.watch_bytes
    }

    /// What the store has of that, where nothing else is in use.
    fn share(&self) -> u64 {
        let capacity = self.expected.capacity();
        (self.free() / SHARE).clamp(capacity.least_share, capacity.most_share())
    }

    /// Files and log.
    pub fn disk_bytes(&self) -> Range {
        let capacity = self.expected.capacity();
        let (stored, log) = (capacity.stored_bytes() as f64, capacity.log_bytes(self.share()) as f64);
        Range::new(stored * (1.0 - DISK_SHARE), stored + log / 2.0, stored * (1.0 + DISK_SHARE) + log)
    }
}

impl VersionsPlan {
    pub fn fits(&self) -> bool {
        self.request.budget >= self.least_budget
    }
}

impl Planner {
    /// Of versions in a server with such a budget.
    pub fn versions(&self, request: VersionsRequest) -> VersionsPlan {
        let (capacity, share) = (request.expected.capacity(), request.share());
        let cache_bytes = request.free() - share;
        let wanted = capacity.newest_bytes + capacity.index_bytes;
        let index = (cache_bytes as f64 / capacity.index_bytes.max(1) as f64).min(1.0);
        let body = cache_bytes.saturating_sub(capacity.index_bytes) as f64 / capacity.newest_bytes.max(1) as f64;
        let likely = (1.0 - index) + (1.0 - body.min(1.0));
        let reads = Range::new(0.0, likely.min(READS), if likely > 0.0 { 2.0 * READS } else { 0.0 });
        let (exchange, disk) = (self.exchange_s * EXCHANGES, self.disk.rates[2]);
        let gets = |reads: f64| rate(cores() as f64 / (GET_S + exchange), disk, reads);
        let times = capacity.stored_bytes() as f64 / (share / MEMTABLES).max(1) as f64;
        let record = capacity.stored_bytes() as f64 / request.expected.records().max(1) as f64;
        let merges = record * times * MERGE_S;
        let puts = |merges: f64| cores() as f64 / (PUT_S + exchange + merges);
        VersionsPlan {
            request,
            capacity,
            least_budget: request.least_budget(),
            cache_bytes: cache_bytes.min(wanted),
            cache_wanted_bytes: wanted,
            log_bytes: capacity.log_bytes(share),
            disk_bytes: request.disk_bytes(),
            reads_per_get: reads,
            gets_per_second: Range::new(gets(reads.high) * RATE_LOW, gets(reads.value), gets(0.0) * RATE_HIGH),
            puts_per_second: Range::new(puts(merges) * RATE_LOW, puts(merges / 2.0), puts(0.0) * RATE_HIGH),
        }
    }
}

/// Cores and disk beside each other.
fn rate(by_cores: f64, disk: f64, reads: f64) -> f64 {
    if reads > 0.0 { 1.0 / (1.0 / by_cores + reads / disk.max(1.0)) } else { by_cores }
}

/// The plan as JSON.
pub fn json(plan: &VersionsPlan) -> Value {
    let range = |range: Range, digits: i32| {
        let round = |value: f64| (value * 10f64.powi(digits)).round() / 10f64.powi(digits);
        json!({"value": round(range.value), "low": round(range.low), "high": round(range.high)})
    };
    let bytes = |range: Range| json!({"value": range.value as u64, "low": range.low as u64, "high": range.high as u64});
    let VersionsRequest { budget, expected, watchers, streams, watch_bytes, .. } = plan.request;
    let Expected { keys, versions, key_bytes, value_bytes } = expected;
    let about = |bytes: u64| Range::around(bytes as f64, MEMORY_SHARE);
    json!({
        "keys": keys, "versions": versions, "key_bytes": key_bytes, "value_bytes": value_bytes,
        "watchers": watchers, "streams": streams,
        "budget": budget,
        "fits": plan.fits(),
        "least_budget": plan.least_budget,
        "least_share_bytes": plan.capacity.least_share,
        "tables_bytes": bytes(about(plan.capacity.tables_bytes)),
        "watch_bytes": bytes(about(watch_bytes)),
        "cache_bytes": plan.cache_bytes,
        "cache_wanted_bytes": plan.cache_wanted_bytes,
        "disk_bytes": bytes(plan.disk_bytes),
        "newest_bytes": plan.capacity.newest_bytes,
        "ended_bytes": plan.capacity.ended_bytes,
        "changes_bytes": plan.capacity.changes_bytes,
        "log_bytes": plan.log_bytes,
        "reads_per_get": range(plan.reads_per_get, 2),
        "gets_per_second": range(plan.gets_per_second, 0),
        "puts_per_second": range(plan.puts_per_second, 0),
    })
}

/// The plan as tables.
pub fn text(plan: &VersionsPlan, disk: &str) -> String {
    let capacity = &plan.capacity;
    let mut structures = Table::new(["structure", "memory", "disk", "formula"]);
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { Size(bytes).to_string() };
    for (name, memory, disk, formula) in [
        ("newest versions", 0, capacity.newest_bytes, "keys x (key + value + 12) x 1.04; long values apart"),
        ("ended versions", 0, capacity.ended_bytes, "versions that ended x (key + value + 21) x 1.04, until compacted"),
        ("changes", 0, capacity.changes_bytes, "versions x (key + 14) x 1.04, until compacted"),
        ("log", 0, plan.log_bytes, "at most; follows from the share"),
        ("tables of files", capacity.tables_bytes, 0, "pages x 8 + index blocks x (64 + 2 keys) + files x 2 KiB"),
        (
            "writing",
            capacity.least_share - capacity.tables_bytes,
            0,
            "least memtables, log buffers, a flush, a merge, and the largest change",
        ),
        ("watchers", plan.request.watch_bytes, 0, "watchers x (320 + 2 keys) + streams x 14 KiB"),
        ("cache", plan.cache_bytes, 0, "what is left for pages of what is on disk"),
    ] {
        structures.row(vec![name.to_owned(), size(memory), size(disk), formula.to_owned()]);
    }
    let mut figures = Table::new(["", "likely", "from", "to"]);
    let mut row = |name: &str, range: Range, text: &dyn Fn(f64) -> String| {
        figures.row(vec![name.to_owned(), text(range.value), text(range.low), text(range.high)]);
    };
    row("disk", plan.disk_bytes, &|bytes| Size(bytes as u64).to_string());
    row("reads a get", plan.reads_per_get, &|reads| grouped(reads, 2));
    row("gets/s", plan.gets_per_second, &|rate| grouped(rate, 0));
    row("puts/s", plan.puts_per_second, &|rate| grouped(rate, 0));
    let (budget, least, wanted) = (Size(plan.request.budget), Size(plan.least_budget), Size(plan.cache_wanted_bytes));
    let verdict = match plan.fits() {
        true => format!("fits {budget}; the least budget is {least}, and caches would like {wanted}"),
        false => format!("does not fit {budget}: the least budget is {least}, and that is what is shown"),
    };
    format!("{}\n{}\n{verdict}\ndisk: {disk}\n", structures.plain(), figures.plain())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(budget: u64, expected: Expected) -> VersionsRequest {
        VersionsRequest { budget, expected, beside: 28 << 20, watchers: 0, streams: 0, watch_bytes: 0 }
    }

    #[test]
    fn shares_never_exceed_what_is_free() {
        let all = [(0, 1, 64, 256), (20_000, 3, 64, 256), (1 << 32, 1, 32_735, 2 << 20), (1000, 1, 30_000, 1)];
        for (keys, versions, key_bytes, value_bytes) in all {
            for budget in [1 << 20, 45 << 20, 1 << 30, 1 << 50] {
                let request = request(budget, Expected { keys, versions, key_bytes, value_bytes });
                assert!(request.share() <= request.free(), "{request:?}");
                let disk = request.disk_bytes();
                assert!(disk.low <= disk.value && disk.value <= disk.high, "{disk:?}");
            }
        }
    }

    #[test]
    fn watchers_come_on_top() {
        let expected = Expected { keys: 1000, versions: 1, key_bytes: 64, value_bytes: 256 };
        let watched = VersionsRequest { watch_bytes: 5 << 20, ..request(64 << 20, expected) };
        assert_eq!(watched.least_budget(), request(64 << 20, expected).least_budget() + (5 << 20));
        assert!(watched.free() + (5 << 20) == request(64 << 20, expected).free());
    }
}
