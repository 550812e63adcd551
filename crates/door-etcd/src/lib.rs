//! Floor 7: etcd's door: gRPC and HTTP on one port, over a store of versions.
//!
//! ```text
//!   connection ─► HTTP/2 ─► gRPC: KV, Watch, Lease, Cluster, Maintenance ─► a command, or a read of a view
//!              └► HTTP/1 ─► /v3/...: the same calls as JSON · /version, /health, /livez, /readyz, /metrics
//!
//!   listen.rs             sockets and TLS        calls.rs        calls, counted by what became of them
//!   serve.rs · drive.rs   connections            kv.rs           reads on the reader pool, changes as commands
//!   booked.rs   bodies, booked as they come      watch.rs        one task a stream: positions, no queues of events
//!   convert.rs  wire ◄─► store                   errors.rs       etcd's texts with their codes
//!   auth/       who asks, and what they may do   alarm.rs        a store that is full, or corrupt
//!   schema.rs   what etcd's file has             snapshot.rs     that file as a stream
//!   database.rs such a file, to be imported      hash.rs         hashes of it
//! ```

#![forbid(unsafe_code)]

mod alarm;
mod auth;
mod booked;
mod calls;
mod cluster;
mod convert;
mod database;
mod delivery;
mod door;
mod drive;
mod election;
mod errors;
mod gateway;
mod hash;
mod health;
mod http;
mod kv;
mod lease;
mod listen;
mod lock;
mod long_range;
mod maintenance;
mod metrics;
mod queue;
mod range_stream;
mod recent;
mod reflection;
mod schema;
mod serve;
mod snapshot;
#[cfg(test)]
mod tests;
mod watch;
mod weight;

pub use database::Database;
pub use door::{Door, Host, Job, VERSION as ETCD_VERSION};
pub use listen::{Listener, Serves, Socket};
pub use metrics::Usage;
pub use serve::serve;
pub use watch::watch_bytes;

/// Decodes whatever stands there as each kind of what clients send, and as the door's own records. For fuzzing: it must neither panic nor
/// weigh less than it is.
pub fn decode_anything(bytes: &[u8]) {
    use prost::Message;
    use wire::{authpb, etcdserverpb as pb};
    gateway::decode_anything(bytes);
    _ = weight::of_txn(bytes);
    if let Ok(txn) = pb::TxnRequest::decode(bytes) {
        let operations = txn.compare.len() + txn.success.len() + txn.failure.len();
        assert!(weight::of_txn(bytes) >= operations as u64 * weight::OPERATION, "an operation was not weighed");
        _ = convert::txn(txn).check(128);
    }
    if let Ok(range) = pb::RangeRequest::decode(bytes) {
        _ = convert::range(range).and_then(|range| range.check());
    }
    _ = pb::WatchRequest::decode(bytes);
    _ = pb::AlarmMember::decode(bytes);
    _ = authpb::User::decode(bytes);
    _ = authpb::Role::decode(bytes);
}

/// The wire's messages and services.
#[allow(
    clippy::all,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    dead_code,
    reason = "generated from the protobuf files"
)]
pub(crate) mod wire {
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    pub mod v3lockpb {
        tonic::include_proto!("v3lockpb");
    }
    pub mod v3electionpb {
        tonic::include_proto!("v3electionpb");
    }
    pub mod authpb {
        tonic::include_proto!("authpb");
    }
}
