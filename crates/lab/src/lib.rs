//! Floor 8: the lab. It measures memory, I/O and recall as the published tables do, so that anybody can repeat them.
//!
//! ```text
//!   io          one search through each disk engine, rescoring from a fast and from a slowed disk
//!   slow_disk   a folder again, each read a fixed time late: a FUSE file system
//!   minram      a server, ours or another, at falling memory limits: requests/s, recall, latency, reads, peak
//!
//!   fields      whether a point has a value of a field, in three layouts
//!
//!   versions    what keys and versions cost in memory: our door for etcd's clients, and an etcd
//!
//!   plan        what collections to be will take, and how fast they will be: formulas, and a trial of a sample
//!
//!   dataset     vectors · synthetic · exact            what is searched and what is right
//!   server      cgroup · http · load                   the server, its limits, its load
//!   disk_rate   the disk's own figures                 stand beside all that depends on it
//!   statistics  least · table · plot                   what comes out
//! ```
//!
//! A lab reads clocks and files as a person would: from outside. It opens no store; `minram` speaks REST, and `versions` JSON to etcd's gateway.

mod cgroup;
pub mod dataset;
mod disk_rate;
mod exact;
pub mod fields;
mod files;
pub mod http;
mod index;
pub mod io;
mod least;
mod load;
mod machine;
pub mod minram;
mod pause;
pub mod plan;
mod plot;
mod progress;
pub mod server;
pub mod slow_disk;
mod statistics;
mod synthetic;
mod table;
mod usage;
mod vectors;
pub mod versions;

pub use synthetic::Synthetic;
