//! What keys and versions cost in memory: Ramekin's etcd door, and an etcd that is given by its command line.
//!
//! ```text
//!   for each server, for each (keys, versions):   an empty folder
//!     start ─► anonymous memory of an empty one ─► all versions, 100 puts a transaction, over the JSON gateway (`client.rs`)
//!           ─► settled: anonymous, resident, peak, disk ─► watchers ─► the same ─► SIGTERM ─► start again ─► the same
//!     of ours, which has a cgroup where that may be made: what its ledger books, and a start with the least budget of the plan
//!                                 │
//!   fit.rs      anonymous memory = c0 + c1 x keys + c2 x versions, by least squares over the points
//!   planned.rs  what `ramekin plan` says of the same keys, versions and watchers, beside what was measured
//!   report.rs   versions.md   versions.json   versions.svg
//! ```
//!
//! An index cannot be seen from outside. What is fitted is all anonymous memory (`RssAnon`), so a runtime's own garbage is in it; after
//! a restart there is least of that.

mod client;
mod fit;
mod planned;
mod report;

use crate::cgroup::Memory;
use crate::files;
use crate::minram::Printed;
use crate::pause::pause;
use crate::progress::Progress;
use crate::server::{Recipe, Server, Start};
use client::{Load, Watching};
pub use fit::Fit;
pub use planned::Seen;
use ramekin_base::{Error, Result, Size};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The path that answers 200 at both once they serve.
const READY: &str = "/health";
/// A key begins with so many bytes of its own.
pub const KEY_LEAST: usize = 16;

/// What is measured.
pub struct Options {
    /// Our own server first, then the one that was named.
    pub recipes: Vec<Recipe>,
    pub keys: Vec<u64>,
    /// Of each key; a point for each pair.
    pub versions: Vec<u64>,
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// What `{memory}` becomes.
    pub memory: u64,
    pub batch: u64,
    pub connections: usize,
    /// Watchers of our own server, of one key each.
    pub watchers: u64,
    /// The least budget of our own server where nothing is stored, and what its door books for so many watchers on so many streams of
    /// keys of so many bytes, as a plan says.
    pub least: u64,
    pub watch_bytes: fn(u64, u64, u64) -> u64,
    /// How long nobody asks anything before memory is looked at.
    pub settle: Duration,
    pub patience: Duration,
    pub out: PathBuf,
}

/// What was seen of one server with so many keys and versions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Point {
    pub keys: u64,
    pub versions: u64,
    pub empty: Memory,
    pub settled: Memory,
    /// With the watchers.
    pub watched: Memory,
    pub restarted: Memory,
    /// What came to the folder's files.
    pub disk: u64,
    /// What a plan can be compared with; ours only.
    pub own: Option<Seen>,
    pub start_s: f64,
    pub versions_per_second: f64,
}

impl Point {
    /// Versions of all keys.
    fn records(&self) -> u64 {
        self.keys * self.versions
    }
}

/// All points of a server.
pub struct Series {
    pub recipe: Recipe,
    pub points: Vec<Point>,
}

impl Options {
    /// That the watchers are on.
    fn streams(&self) -> u64 {
        self.watchers.div_ceil(client::WATCHERS_A_STREAM)
    }

    fn check(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::invalid(text));
        match () {
            () if self.keys.is_empty() || self.versions.is_empty() => wrong("--keys and --versions need a number each"),
            () if self.keys.iter().chain(&self.versions).any(|count| *count == 0) => {
                wrong("--keys and --versions count from 1")
            }
            () if self.key_bytes < KEY_LEAST => wrong("--key-bytes must be 16 or more: keys differ in so many"),
            () if self.memory < self.least => Err(Error::invalid(format!(
                "--memory: the least budget of a server with etcd's door is {} where nothing is stored",
                Size(self.least)
            ))),
            () if self.batch == 0 || self.connections == 0 => wrong("--batch and --connections count from 1"),
            () => Ok(()),
        }
    }
}

/// Does all of it.
pub fn versions(options: &Options) -> Result<Printed> {
    options.check()?;
    files::make_folder(&options.out)?;
    let out = files::whole(&options.out)?;
    let progress = Progress::new();
    let mut all = Vec::new();
    for recipe in &options.recipes {
        let mut points = Vec::new();
        for (keys, versions) in options.keys.iter().flat_map(|keys| options.versions.iter().map(|it| (*keys, *it))) {
            let name = format!("{}: {keys} keys x {versions}", recipe.name);
            let point = point(options, recipe, &out, (keys, versions), &progress).map_err(|error| error.at(&name))?;
            progress.say(format!(
                "{name}: anonymous {} settled, {} after a restart; peak {}",
                Size(point.settled.anonymous),
                Size(point.restarted.anonymous),
                Size(point.settled.peak)
            ));
            points.push(point);
        }
        all.push(Series { recipe: recipe.clone(), points });
    }
    report::write(options, &out, &all)
}

fn point(
    options: &Options,
    recipe: &Recipe,
    out: &Path,
    (keys, versions): (u64, u64),
    progress: &Progress,
) -> Result<Point> {
    let data = out.join("versions-data");
    files::remove_all(&data)?;
    files::make_folder(&data)?;
    let log = out.join("versions-server.log");
    let patience = options.patience;
    let start = |memory: u64| {
        // Others know no budget, and are not to be ended for that.
        let limit = recipe.is_own.then(|| memory + ramekin_node::budget_margin(memory));
        Server::start(&Start { recipe, data: &data, memory, limit, log: &log, ready: READY, patience })
    };
    let mut point = Point { keys, versions, ..Point::default() };
    let server = start(options.memory)?;
    pause(options.settle / 2);
    point.empty = memory_of(&server)?;
    let empty_disk = files::allocated(&data)?;
    let load = Load { options, keys, versions };
    let seconds = load.run(server.port, progress)?;
    point.versions_per_second = point.records() as f64 / seconds.max(1e-9);
    pause(options.settle);
    point.settled = memory_of(&server)?;
    point.disk = files::allocated(&data)?.saturating_sub(empty_disk);
    // Of another's gateway a request takes one watcher: their connections would be measured in place of them.
    let watching = recipe.is_own.then(|| Watching::open(&server, options)).transpose()?;
    pause(options.settle / 2);
    point.watched = memory_of(&server)?;
    point.own = recipe.is_own.then(|| Seen::of(&server)).transpose()?;
    drop(watching);
    server.stop()?;
    let server = start(options.memory)?;
    load.verify(server.port)?;
    pause(options.settle);
    (point.restarted, point.start_s) = (memory_of(&server)?, server.started_s);
    server.stop()?;
    if recipe.is_own {
        let least = planned::request(options, &point).least_budget();
        let peak = least_peak(&load, start(least)).map_err(|error| error.at(format!("with {}", Size(least))))?;
        point.own.iter_mut().for_each(|seen| seen.least_peak = peak);
    }
    files::remove_all(&data)?;
    Ok(point)
}

/// What a server with the least budget of the plan has charged at most, once it has served.
fn least_peak(load: &Load<'_>, server: Result<Server>) -> Result<u64> {
    let server = server?;
    load.verify(server.port)?;
    load.put_one(server.port)?;
    let peak = server.peak().unwrap_or_default();
    server.stop()?;
    Ok(peak)
}

fn memory_of(server: &Server) -> Result<Memory> {
    server.memory().ok_or_else(|| Error::closed("the server has ended"))
}
