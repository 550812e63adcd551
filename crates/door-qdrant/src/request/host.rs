//! What the door needs of the process it stands in, handed over as plain values and closures, so that
//! it knows no node and a test can stand in for one.

use ramekin_base::{Clock, Lane, Result};
use ramekin_memory::{Account, Budget};
use ramekin_vectors::{Expected, Store};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Work for a thread that may block on the disk.
pub type Job = Box<dyn FnOnce() + Send>;

/// What is to be planned.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    /// The server's own, where none is named.
    pub budget: Option<u64>,
    pub expected: Vec<Expected>,
    pub versions: Option<WantedVersions>,
    /// Vectors of the first collection that has their dimension, in a file of the server.
    pub sample: Option<PathBuf>,
}

/// A store of versions that is to be planned beside collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedVersions {
    pub keys: u64,
    /// Of each key.
    pub versions: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Watchers of one key each, and the streams that they are on.
    pub watchers: u64,
    pub streams: u64,
}

/// Plans what a request wants.
pub type Planner = dyn Fn(&Wanted) -> Result<Value> + Send + Sync;

#[derive(Clone)]
pub struct Host {
    pub store: Store,
    pub budget: Budget,
    /// The reader pool: runs a job on a thread that may block. `Busy` when its lane is full.
    pub run: Arc<dyn Fn(Lane, Job) -> Result<()> + Send + Sync>,
    /// Moves the budget: bytes, whether to keep it over restarts, how long to wait. True once the charge is under it. Blocks.
    pub set_budget: Arc<dyn Fn(u64, bool, Duration) -> Result<bool> + Send + Sync>,
    pub least_budget: u64,
    /// Why the process is not well, a line each; empty: it is. Does not block.
    pub faults: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Plans memory and speed of collections to be: a JSON object. Blocks.
    pub plan: Arc<Planner>,
    pub clock: Arc<dyn Clock>,
    /// Our own version.
    pub version: &'static str,
    /// The engine that reads the disk, as `ramekin serve` prints it.
    pub engine: String,
    /// The origin whose pages may use the door.
    pub cors: Option<String>,
    /// Connections at a time; `None`: what is usual under the budget.
    pub connections: Option<usize>,
    /// The account `door/http`.
    pub account: Account,
}
