//! `/metrics`, in the text format of Prometheus, under the names that etcd gives them. Only what is known is written: names of parts that
//! this server does not have (peers, bbolt, snapshots of raft) are left out.
//!
//! ```text
//!   what was done (`Done`), calls (`calls.rs`), the store's numbers, the process ─► one text, booked before it is made
//! ```

use crate::calls::{CLIENT_MINORS, CODES, METHODS, TIMED};
use crate::door::{CLUSTER_VERSION, Door, VERSION};
use crate::http::{Answer, PLAIN, text};
use http::StatusCode;
use ramekin_base::Histogram;
use ramekin_base::histogram::{BOUNDS_US, Seen};
use ramekin_versions::{KeyRange, OpReply, Range};
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a text takes at most: all methods with some codes each.
const TEXT_BYTES: u64 = 192 << 10;

/// The methods whose time is measured, as what is applied is called.
const APPLIED: [&str; TIMED.len()] = ["Range", "Put", "Txn", "DeleteRange", "Compaction"];

/// What a process uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// Seconds since 1970.
    pub started: f64,
    pub open_files: u64,
    pub most_files: u64,
}

/// What was done since the start, and what is open.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) puts: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) txns: AtomicU64,
    pub(crate) ranges: AtomicU64,
    pub(crate) put_bytes: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) revoked: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) watchers: AtomicU64,
    pub(crate) streams: AtomicU64,
}

impl Done {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what a command did.
    pub(crate) fn note(&self, reply: &OpReply) {
        match reply {
            OpReply::Range(_) => Self::one(&self.ranges),
            OpReply::Put { .. } => Self::one(&self.puts),
            OpReply::Deleted { .. } => Self::one(&self.deletes),
            OpReply::Txn { replies, .. } => {
                Self::one(&self.txns);
                replies.iter().for_each(|reply| self.note(reply));
            }
        }
    }
}

/// Counts something as open until it is dropped.
pub(crate) struct Open {
    door: Door,
    of: fn(&Done) -> &AtomicU64,
}

impl Open {
    pub(crate) fn new(door: &Door, of: fn(&Done) -> &AtomicU64) -> Self {
        Done::one(of(&door.inner.done));
        Self { door: door.clone(), of }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        (self.of)(&self.door.inner.done).fetch_sub(1, Ordering::Relaxed);
    }
}

/// The text as it grows.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str) {
        _ = writeln!(self.0, "# TYPE {name} {kind}");
    }

    /// Labels are empty, or stand in braces.
    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn all<T: Display>(&mut self, kind: &str, lines: &[(&str, T)]) {
        for (name, value) in lines {
            self.head(name, kind);
            self.line(name, "", value);
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, seen: &Seen) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in BOUNDS_US.iter().zip(seen.at_most) {
            let bound = *bound as f64 / 1e6;
            self.line(&format!("{name}_bucket"), &format!("{{{labels}{comma}le=\"{bound}\"}}"), count);
        }
        self.line(&format!("{name}_bucket"), &format!("{{{labels}{comma}le=\"+Inf\"}}"), seen.count);
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        self.line(&format!("{name}_sum"), &labels, seen.micros as f64 / 1e6);
        self.line(&format!("{name}_count"), &labels, seen.count);
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// `/metrics`.
pub(crate) async fn answer(door: &Door) -> Answer {
    let Ok(memory) = door.inner.bodies.try_reserve(TEXT_BYTES) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "there is no memory for it right now\n");
    };
    let all = Range { keys: KeyRange { key: vec![0], end: vec![0] }, count_only: true, ..Range::default() };
    let keys = door.read(true, move |versions| versions.range(&all)).await.map_or(0, |held| held.value.count);
    let mut made = Text(String::with_capacity(TEXT_BYTES as usize / 4));
    server(door, &mut made);
    store(door, keys, &mut made);
    leases_and_watches(door, &mut made);
    calls(door, &mut made);
    process(door, &mut made);
    let mut answer = text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", made.0);
    answer.extensions_mut().insert(Arc::new(memory));
    answer
}

/// The member: it always leads, and what it is told is applied as it is durable.
fn server(door: &Door, made: &mut Text) {
    let stats = door.versions().stats();
    let inner = &door.inner;
    let pending = (stats.waiting + stats.blocked) as u64;
    made.all(
        "gauge",
        &[
            ("etcd_server_has_leader", 1),
            ("etcd_server_is_leader", 1),
            ("etcd_server_is_learner", 0),
            ("etcd_server_proposals_committed_total", stats.durable),
            ("etcd_server_proposals_applied_total", stats.durable),
            ("etcd_server_proposals_pending", pending),
            ("etcd_server_quota_backend_bytes", inner.host.quota.unwrap_or(0)),
        ],
    );
    made.all(
        "counter",
        &[
            ("etcd_server_leader_changes_seen_total", 1),
            ("etcd_server_proposals_failed_total", 0),
            ("etcd_server_slow_apply_total", 0),
            ("etcd_server_read_indexes_failed_total", 0),
            ("etcd_server_health_success", read(&inner.healths.well)),
            ("etcd_server_health_failures", read(&inner.healths.unwell)),
        ],
    );
    let minor = CLUSTER_VERSION.rsplit_once('.').map_or(CLUSTER_VERSION, |(minor, _)| minor);
    for (name, label, value) in [
        ("etcd_server_version", "server_version", VERSION.to_owned()),
        ("etcd_cluster_version", "cluster_version", minor.to_owned()),
        ("etcd_server_id", "server_id", format!("{:x}", inner.member)),
    ] {
        made.head(name, "gauge");
        made.line(name, &format!("{{{label}=\"{value}\"}}"), 1);
    }
    disk(door, made);
}

/// A group of commands is written to the log and synced: nothing else is waited for.
fn disk(door: &Door, made: &mut Text) {
    let commits = door.versions().engine().commits();
    for name in ["etcd_disk_wal_fsync_duration_seconds", "etcd_disk_backend_commit_duration_seconds"] {
        made.head(name, "histogram");
        made.histogram(name, "", &commits);
    }
    // What never takes any time here has its name, so that nobody looks for it in vain.
    let never = Histogram::default().seen();
    for name in [
        "etcd_disk_backend_defrag_duration_seconds",
        "etcd_disk_backend_snapshot_duration_seconds",
        "etcd_mvcc_hash_duration_seconds",
        "etcd_mvcc_hash_rev_duration_seconds",
        "etcd_network_peer_round_trip_time_seconds",
        "etcd_debugging_lease_ttl_total",
    ] {
        made.head(name, "histogram");
        made.histogram(name, "", &never);
    }
    made.all(
        "counter",
        &[
            ("etcd_disk_wal_write_bytes_total", door.versions().stats().log_bytes),
            ("etcd_debugging_mvcc_db_compaction_keys_total", 0),
        ],
    );
}

fn store(door: &Door, keys: i64, made: &mut Text) {
    let (done, bytes) = (&door.inner.done, door.store_bytes());
    let compacted = door.versions().compacted().unwrap_or(0).max(0);
    made.all(
        "gauge",
        &[
            ("etcd_mvcc_db_total_size_in_bytes", bytes as i64),
            ("etcd_mvcc_db_total_size_in_use_in_bytes", bytes as i64),
            ("etcd_debugging_mvcc_keys_total", keys),
            ("etcd_debugging_mvcc_current_revision", *door.inner.host.changed.borrow()),
            ("etcd_debugging_mvcc_compact_revision", compacted),
            ("etcd_mvcc_db_open_read_transactions", 0),
        ],
    );
    made.all(
        "counter",
        &[
            ("etcd_mvcc_put_total", read(&done.puts)),
            ("etcd_mvcc_delete_total", read(&done.deletes)),
            ("etcd_mvcc_txn_total", read(&done.txns)),
            ("etcd_mvcc_range_total", read(&done.ranges)),
        ],
    );
    made.all("gauge", &[("etcd_debugging_mvcc_total_put_size_in_bytes", read(&done.put_bytes))]);
}

fn leases_and_watches(door: &Door, made: &mut Text) {
    let done = &door.inner.done;
    made.all(
        "counter",
        &[
            ("etcd_debugging_lease_granted_total", read(&done.granted)),
            ("etcd_debugging_lease_renewed_total", read(&done.renewed)),
            ("etcd_debugging_lease_revoked_total", read(&done.revoked)),
            ("etcd_debugging_server_lease_expired_total", door.versions().expired()),
            ("etcd_debugging_mvcc_events_total", read(&done.events)),
        ],
    );
    made.all(
        "gauge",
        &[
            ("etcd_debugging_mvcc_watcher_total", read(&done.watchers)),
            ("etcd_debugging_mvcc_watch_stream_total", read(&done.streams)),
            // A watcher is a position: nothing waits in memory for it.
            ("etcd_debugging_mvcc_slow_watcher_total", 0),
            ("etcd_debugging_mvcc_pending_events_total", 0),
        ],
    );
}

fn calls(door: &Door, made: &mut Text) {
    let calls = &door.inner.calls;
    let labels = |(service, method, kind): &(&str, &str, crate::calls::Kind)| {
        format!("grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"{}\"", kind.name())
    };
    made.head("grpc_server_started_total", "counter");
    for (method, started) in METHODS.iter().zip(&calls.started) {
        made.line("grpc_server_started_total", &format!("{{{}}}", labels(method)), read(started));
    }
    made.head("grpc_server_handled_total", "counter");
    for (method, codes) in METHODS.iter().zip(&calls.handled) {
        // What never happened is said for the good end alone.
        for (at, handled) in codes.iter().map(read).enumerate().filter(|(at, handled)| *at == 0 || *handled > 0) {
            let labels = format!("{{grpc_code=\"{}\",{}}}", CODES[at], labels(method));
            made.line("grpc_server_handled_total", &labels, handled);
        }
    }
    let name = "etcd_server_request_duration_seconds";
    made.head(name, "histogram");
    for (kind, took) in TIMED.iter().zip(&calls.took) {
        for (success, took) in ["false", "true"].iter().zip(took) {
            made.histogram(name, &format!("type=\"{kind}\",success=\"{success}\""), &took.seen());
        }
    }
    let name = "etcd_server_apply_duration_seconds";
    made.head(name, "histogram");
    for (op, took) in APPLIED.iter().zip(&calls.took) {
        for (success, took) in ["false", "true"].iter().zip(took) {
            made.histogram(name, &format!("version=\"v3\",op=\"{op}\",success=\"{success}\""), &took.seen());
        }
    }
    let name = "etcd_server_range_duration_seconds";
    made.head(name, "histogram");
    for (success, took) in ["false", "true"].iter().zip(&calls.took[0]) {
        made.histogram(name, &format!("success=\"{success}\""), &took.seen());
    }
    let name = "etcd_server_client_requests_total";
    made.head(name, "counter");
    for (kind, clients) in ["unary", "stream"].iter().zip(&calls.clients) {
        for (minor, count) in clients.iter().map(read).enumerate().filter(|(_, count)| *count > 0) {
            let version = if minor == CLIENT_MINORS { "unknown".to_owned() } else { format!("3.{minor}") };
            made.line(name, &format!("{{client_api_version=\"{version}\",type=\"{kind}\"}}"), count);
        }
    }
    made.all(
        "counter",
        &[
            ("etcd_network_client_grpc_received_bytes_total", read(&calls.received)),
            ("etcd_network_client_grpc_sent_bytes_total", read(&calls.sent)),
        ],
    );
}

fn process(door: &Door, made: &mut Text) {
    let used = (door.inner.host.usage)();
    made.all("counter", &[("process_cpu_seconds_total", used.cpu_seconds)]);
    made.all("gauge", &[("process_start_time_seconds", used.started)]);
    made.all(
        "gauge",
        &[
            ("process_resident_memory_bytes", used.resident_bytes),
            ("process_virtual_memory_bytes", used.virtual_bytes),
            ("process_open_fds", used.open_files),
            ("process_max_fds", used.most_files),
            ("os_fd_used", used.open_files),
            ("os_fd_limit", used.most_files),
        ],
    );
}
