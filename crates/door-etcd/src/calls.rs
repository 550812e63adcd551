//! Calls of gRPC, counted by method and by what became of them. The labels are these methods and codes, whatever clients send.
//!
//! ```text
//!   begin(path) ─► started, open ─► the answer's status ─► handled{code}, how long it took ─► dropped: no longer open
//! ```

use crate::door::Door;
use http::HeaderMap;
use ramekin_base::Histogram;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tonic::Code;

/// How many messages a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ServerStream,
    BothStream,
}
use Kind::{BothStream, ServerStream, Unary};

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unary => "unary",
            ServerStream => "server_stream",
            BothStream => "bidi_stream",
        }
    }
}

/// Service, method and kind; those that are asked most stand first.
pub(crate) const METHODS: &[(&str, &str, Kind)] = &[
    ("etcdserverpb.KV", "Range", Unary),
    ("etcdserverpb.KV", "Put", Unary),
    ("etcdserverpb.KV", "Txn", Unary),
    ("etcdserverpb.KV", "DeleteRange", Unary),
    ("etcdserverpb.KV", "Compact", Unary),
    ("etcdserverpb.KV", "RangeStream", ServerStream),
    ("etcdserverpb.Watch", "Watch", BothStream),
    ("etcdserverpb.Lease", "LeaseKeepAlive", BothStream),
    ("etcdserverpb.Lease", "LeaseGrant", Unary),
    ("etcdserverpb.Lease", "LeaseRevoke", Unary),
    ("etcdserverpb.Lease", "LeaseTimeToLive", Unary),
    ("etcdserverpb.Lease", "LeaseLeases", Unary),
    ("etcdserverpb.Cluster", "MemberAdd", Unary),
    ("etcdserverpb.Cluster", "MemberRemove", Unary),
    ("etcdserverpb.Cluster", "MemberUpdate", Unary),
    ("etcdserverpb.Cluster", "MemberList", Unary),
    ("etcdserverpb.Cluster", "MemberPromote", Unary),
    ("etcdserverpb.Maintenance", "Alarm", Unary),
    ("etcdserverpb.Maintenance", "Status", Unary),
    ("etcdserverpb.Maintenance", "Defragment", Unary),
    ("etcdserverpb.Maintenance", "Hash", Unary),
    ("etcdserverpb.Maintenance", "HashKV", Unary),
    ("etcdserverpb.Maintenance", "Snapshot", ServerStream),
    ("etcdserverpb.Maintenance", "MoveLeader", Unary),
    ("etcdserverpb.Maintenance", "Downgrade", Unary),
    ("etcdserverpb.Auth", "AuthEnable", Unary),
    ("etcdserverpb.Auth", "AuthDisable", Unary),
    ("etcdserverpb.Auth", "AuthStatus", Unary),
    ("etcdserverpb.Auth", "Authenticate", Unary),
    ("etcdserverpb.Auth", "UserAdd", Unary),
    ("etcdserverpb.Auth", "UserGet", Unary),
    ("etcdserverpb.Auth", "UserList", Unary),
    ("etcdserverpb.Auth", "UserDelete", Unary),
    ("etcdserverpb.Auth", "UserChangePassword", Unary),
    ("etcdserverpb.Auth", "UserGrantRole", Unary),
    ("etcdserverpb.Auth", "UserRevokeRole", Unary),
    ("etcdserverpb.Auth", "RoleAdd", Unary),
    ("etcdserverpb.Auth", "RoleGet", Unary),
    ("etcdserverpb.Auth", "RoleList", Unary),
    ("etcdserverpb.Auth", "RoleDelete", Unary),
    ("etcdserverpb.Auth", "RoleGrantPermission", Unary),
    ("etcdserverpb.Auth", "RoleRevokePermission", Unary),
    ("v3lockpb.Lock", "Lock", Unary),
    ("v3lockpb.Lock", "Unlock", Unary),
    ("v3electionpb.Election", "Campaign", Unary),
    ("v3electionpb.Election", "Proclaim", Unary),
    ("v3electionpb.Election", "Leader", Unary),
    ("v3electionpb.Election", "Observe", ServerStream),
    ("v3electionpb.Election", "Resign", Unary),
    ("grpc.health.v1.Health", "Check", Unary),
    ("grpc.health.v1.Health", "Watch", ServerStream),
];

/// The first methods, whose time is measured, by the names that etcd gives them.
pub(crate) const TIMED: [&str; 5] = ["range", "put", "txn", "delete_range", "compaction"];

/// Codes of gRPC, by number.
pub(crate) const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Minor versions that clients say; the last stands for all others.
pub(crate) const CLIENT_MINORS: usize = 16;

/// The counters.
pub(crate) struct Calls {
    pub(crate) started: [AtomicU64; METHODS.len()],
    pub(crate) handled: [[AtomicU64; CODES.len()]; METHODS.len()],
    /// Those that failed, and those that did not.
    pub(crate) took: [[Histogram; 2]; TIMED.len()],
    /// Unary calls and streams, by the version of the API that the client says.
    pub(crate) clients: [[AtomicU64; CLIENT_MINORS + 1]; 2],
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Requests that have an end of their own, and have not reached it.
    open: AtomicUsize,
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            started: zeros(),
            handled: std::array::from_fn(|_| zeros()),
            took: Default::default(),
            clients: std::array::from_fn(|_| zeros()),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        }
    }
}

impl Calls {
    /// Whether requests are under way that end by themselves.
    pub(crate) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

/// A request under way.
pub(crate) struct Call {
    door: Door,
    method: Option<usize>,
    began: Duration,
    is_told: bool,
    ends_by_itself: bool,
}

impl Call {
    /// Of a path of gRPC.
    pub(crate) fn begin(door: &Door, path: &str, headers: &HeaderMap) -> Self {
        let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let method = parts
            .and_then(|(service, method)| METHODS.iter().position(|(of, name, _)| *name == method && *of == service));
        let kind = method.and_then(|at| METHODS.get(at)).map(|(.., kind)| *kind);
        let calls = &door.inner.calls;
        if let Some(started) = method.and_then(|at| calls.started.get(at)) {
            started.fetch_add(1, Ordering::Relaxed);
        }
        let minor = headers.get("client-api-version").and_then(|version| version.to_str().ok()?.strip_prefix("3."));
        let minor = minor.and_then(|minor| minor.parse::<usize>().ok()).unwrap_or(CLIENT_MINORS).min(CLIENT_MINORS);
        let ends_by_itself = kind == Some(Unary);
        if let Some(clients) = calls.clients[usize::from(!ends_by_itself)].get(minor) {
            clients.fetch_add(1, Ordering::Relaxed);
        }
        Self::new(door, method, ends_by_itself)
    }

    /// Of a request that is none of gRPC.
    pub(crate) fn plain(door: &Door, ends_by_itself: bool) -> Self {
        Self::new(door, None, ends_by_itself)
    }

    fn new(door: &Door, method: Option<usize>, ends_by_itself: bool) -> Self {
        let opened = usize::from(ends_by_itself);
        door.inner.calls.open.fetch_add(opened, Ordering::Relaxed);
        let began = door.versions().now();
        Self { door: door.clone(), method, began, is_told: false, ends_by_itself }
    }

    /// What the headers or trailers of the answer say became of it.
    pub(crate) fn hears(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get("grpc-status") {
            self.ended(Code::from_bytes(status.as_bytes()));
        }
    }

    pub(crate) fn sends(&self, bytes: usize) {
        self.door.inner.calls.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn ended(&mut self, code: Code) {
        let (calls, Some(method)) = (&self.door.inner.calls, self.method) else { return };
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        if let Some(handled) = calls.handled.get(method).and_then(|codes| codes.get(code as usize)) {
            handled.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(took) = calls.took.get(method) {
            let since = self.door.versions().now().saturating_sub(self.began);
            took[usize::from(code == Code::Ok)].note(since);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // The client left before it had its answer.
        self.ended(Code::Cancelled);
        self.door.inner.calls.open.fetch_sub(usize::from(self.ends_by_itself), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_of_the_wire_is_counted() {
        for service in crate::gateway::POOL.services() {
            for method in service.methods() {
                let kind = match (method.is_client_streaming(), method.is_server_streaming()) {
                    (false, false) => Unary,
                    (false, true) => ServerStream,
                    _ => BothStream,
                };
                let (service, name) = (service.full_name(), method.name());
                assert!(METHODS.contains(&(service, name, kind)), "{service} {name}");
            }
        }
    }

    #[test]
    fn the_methods_whose_time_is_measured_stand_first() {
        let first: Vec<&str> = METHODS.iter().map(|(_, method, _)| *method).take(TIMED.len()).collect();
        assert_eq!(first, ["Range", "Put", "Txn", "DeleteRange", "Compact"]);
    }

    #[test]
    fn codes_have_their_numbers() {
        assert_eq!(CODES[Code::Unavailable as usize], "Unavailable");
        assert_eq!(CODES[Code::Unauthenticated as usize], "Unauthenticated");
    }
}
