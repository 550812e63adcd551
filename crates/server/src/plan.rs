//! `ramekin plan`, and what `POST /memory/plan` calls: from flags, a file or a body to the lab's plan.
//!
//! ```text
//!   ramekin plan --points 1000000 --dim 100 --memory 127MiB [--sample FILE] [--curve]
//!   ramekin plan --keys 1000000 --versions 3 --memory 64MiB        of etcd's door
//!   ramekin plan --file PLAN.json                                  the body of POST /memory/plan
//! ```
//!
//! In a server a plan lives inside the budget like everything else: one at a time, its sample as large as there is memory.

use crate::exit::Failure;
use crate::lab::exit_of;
use crate::options::Read;
use crate::process;
use clap::ArgMatches;
use parking_lot::Mutex;
use ramekin_base::{Error, Result};
use ramekin_door_qdrant::{Wanted, WantedVersions, decode};
use ramekin_lab::plan::versions::{VersionsPlan, VersionsRequest};
use ramekin_lab::plan::{self, DiskRate, Plan, PlanRequest, Planner, disk_rate, read_sample, sample_bytes};
use ramekin_node::{Node, base_of, default_budget, least_of_all};
use ramekin_vectors::FixedOverhead;
use serde_json::{Value, json};
use std::path::Path;

/// Memory of a sample that the command line reads.
const SAMPLE_BYTES: u64 = 256 << 20;

pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let wanted = wanted(arguments).map_err(Failure::usage)?;
    let text = planned(arguments, &wanted).map_err(|error| Failure::new(exit_of(&error), error))?;
    crate::print(&text)
}

/// What flags or a file ask for.
fn wanted(arguments: &ArgMatches) -> Result<Wanted> {
    let read = Read(arguments);
    let body = match read.path("file") {
        Some(path) => crate::settings::read_file(&path)?,
        None => body(&read)?.to_string().into_bytes(),
    };
    let mut wanted = decode::plan(&body)?;
    wanted.budget = read.size("memory")?.or(wanted.budget);
    wanted.sample = read.path("sample").or(wanted.sample);
    Ok(wanted)
}

/// The body that flags stand for.
fn body(read: &Read<'_>) -> Result<Value> {
    let needed = |name: &str| Error::invalid(format!("--{name} is needed, or --keys, or --file FILE"));
    if let Some(keys) = read.number::<u64>("keys", "a whole number")? {
        let count = |name: &str, usual: u64| -> Result<u64> {
            Ok(read.number::<u64>(name, "a whole number")?.unwrap_or(usual))
        };
        return Ok(json!({"versions": {
            "keys": keys, "versions": count("versions", 1)?,
            "key_bytes": count("key-bytes", 64)?, "value_bytes": count("value-bytes", 256)?,
            "watchers": count("watchers", 0)?, "streams": count("streams", 1)?,
        }}));
    }
    let points = read.number::<u64>("points", "a whole number")?.ok_or_else(|| needed("points"))?;
    let dim = read.count("dim")?.ok_or_else(|| needed("dim"))?;
    let mut collection = read.object("collection")?.unwrap_or_default();
    let mut put = |key: &str, value: Value| _ = collection.entry(key).or_insert(value);
    put("points", json!(points));
    put("payload_bytes", json!(read.count("payload-bytes")?.unwrap_or(0)));
    put("recall", json!(read.real("recall")?.unwrap_or(0.95)));
    put("vectors", json!({"size": dim, "distance": read.text("distance")}));
    Ok(json!({"collections": [collection]}))
}

fn planned(arguments: &ArgMatches, wanted: &Wanted) -> Result<String> {
    let read = Read(arguments);
    let data = read.path("data").unwrap_or_default();
    let sample = match &wanted.sample {
        Some(path) => {
            let rows = read.count("sample-rows")?.unwrap_or(usize::MAX);
            Some(read_sample(path, rows, SAMPLE_BYTES)?)
        }
        None => None,
    };
    let folder = data.join(format!("ramekin-plan-{}", std::process::id()));
    let planner = Planner::new(disk_rate(&data)?, &folder, &wanted.expected, sample)?;
    // A budget is meant to hold in a cgroup.
    let base = base_of(process::code_bytes_without_etcd(), crate::serve::OTHER_THREADS, true);
    let overhead = |budget| overhead(base, budget);
    let budget = wanted.budget.unwrap_or_else(|| default_budget().0);
    let request = PlanRequest { budget, least: least_of_all(base), overhead: &overhead, expected: &wanted.expected };
    let as_json = arguments.get_flag("json");
    if wanted.expected.is_empty()
        && let Some(versions) = wanted.versions
    {
        let plan = planner.versions(request_of(versions, budget, beside_versions(0, base)));
        return Ok(match as_json {
            true => format!("{:#}\n", json!({"versions": plan::versions::json(&plan)})),
            false => plan::versions::text(&plan, &planner.disk()),
        });
    }
    if arguments.get_flag("curve") {
        let plans = planner.curve(&request)?;
        let svg = read.path("svg").unwrap_or_default();
        ramekin_lab::plan::write_svg(&svg, &plan::curve_svg(&plans, "ramekin plan: queries/s over the budget"))?;
        return Ok(match as_json {
            true => format!("{:#}\n", Value::from(plans.iter().map(plan::json).collect::<Vec<_>>())),
            false => format!("{}\nwritten: {}\n", plan::curve_text(&plans), svg.display()),
        });
    }
    let plan = planner.plan(&request)?;
    let versions = wanted
        .versions
        .map(|it| planner.versions(request_of(it, budget, beside_versions(plan.total.least_budget, base))));
    Ok(match as_json {
        true => format!("{:#}\n", together(&plan, versions.as_ref())),
        false => {
            let more = versions.map(|it| format!("\n{}", plan::versions::text(&it, &planner.disk())));
            plan::text(&plan, &planner.disk()) + &more.unwrap_or_default()
        }
    })
}

/// Both in one object.
fn together(plan: &Plan, versions: Option<&VersionsPlan>) -> Value {
    let mut all = plan::json(plan);
    if let Some(versions) = versions {
        all["versions"] = plan::versions::json(versions);
    }
    all
}

/// The least budget of a server with etcd's door in which no key is stored yet, beside collections that want `least` of a process with
/// such a base.
fn beside_versions(least: u64, base: u64) -> u64 {
    let with = base_of(process::code_bytes(), crate::serve::OTHER_THREADS, true);
    least_of_all(with).max(least + with.saturating_sub(base))
}

fn request_of(wanted: WantedVersions, budget: u64, beside: u64) -> VersionsRequest {
    let WantedVersions { keys, versions, key_bytes, value_bytes, watchers, streams } = wanted;
    let expected = ramekin_versions::Expected { keys, versions, key_bytes, value_bytes };
    let watch_bytes = ramekin_door_etcd::watch_bytes(watchers, streams, key_bytes);
    VersionsRequest { budget, expected, beside, watchers, streams, watch_bytes }
}

/// The same for a server that has no data and no collections, in a cgroup of its own.
pub fn least_with_versions() -> u64 {
    beside_versions(0, base_of(process::code_bytes_without_etcd(), crate::serve::OTHER_THREADS, true))
}

/// What stands beside collections in a budget.
fn overhead(base: u64, budget: u64) -> FixedOverhead {
    FixedOverhead { used: base, min_reservations: ramekin_door_qdrant::min_reservations(budget) }
}

/// The plans of a server.
pub struct OfServer {
    node: Node,
    /// Held while a plan is made; the disk is measured once.
    disk: Mutex<Option<DiskRate>>,
}

/// Rows of a sample at most, and the share of the budget that a plan with one may hold.
const ROWS_MAX: usize = 100_000;
const SHARE: u64 = 4;
/// What measuring the disk holds.
const DISK_BYTES: u64 = 2 << 20;

impl OfServer {
    pub fn new(node: Node) -> Self {
        let own = Self { node, disk: Mutex::new(None) };
        // What a plan left there that was cut short; if it cannot go now it is in nobody's way.
        let _ = plan::clear(&own.folder());
        own
    }

    /// Where a plan writes what it measures with.
    fn folder(&self) -> std::path::PathBuf {
        self.node.data().join("temp").join("plan")
    }

    pub fn plan(&self, wanted: &Wanted) -> Result<Value> {
        let mut disk = self.disk.try_lock().ok_or_else(|| Error::busy("another plan is being made; try again"))?;
        let account = self.node.budget().root().child("plan", "sample x 4.4 + build of its index");
        let (folder, _held) = (self.folder(), account.try_reserve(DISK_BYTES)?);
        let (sample, _held) = match &wanted.sample {
            Some(path) => self.sample(path, &account)?,
            None => (None, account.try_reserve(0)?),
        };
        let rate = match disk.take() {
            Some(rate) => rate,
            None => disk_rate(&folder)?,
        };
        *disk = Some(rate.clone());
        let planner = Planner::new(rate, &folder, &wanted.expected, sample)?;
        let base = self.node.base_bytes();
        let overhead = |budget| overhead(base, budget);
        let budget = wanted.budget.unwrap_or_else(|| self.node.budget().limit());
        let request =
            PlanRequest { budget, least: least_of_all(base), overhead: &overhead, expected: &wanted.expected };
        let plan = planner.plan(&request)?;
        let versions = wanted
            .versions
            .map(|it| planner.versions(request_of(it, budget, beside_versions(plan.total.least_budget, base))));
        Ok(together(&plan, versions.as_ref()))
    }

    /// As much of the sample as there is memory for.
    fn sample(
        &self,
        path: &Path,
        account: &ramekin_memory::Account,
    ) -> Result<(Option<plan::Sample>, ramekin_memory::Reservation)> {
        let (rows, dim) = plan::sample_shape(path)?;
        let most = self.node.budget().limit() / SHARE;
        let (mut rows, fits) = (rows.min(ROWS_MAX), |rows: usize| sample_bytes(rows, dim) <= most);
        while !fits(rows) && rows > plan::SAMPLE_LEAST {
            rows = (rows * 3 / 4).max(plan::SAMPLE_LEAST);
        }
        // Tried once: who is short of so much stays so for a while, and each try makes others give way.
        let held = account.try_reserve(sample_bytes(rows, dim)).map_err(|error| {
            let text =
                format!("no memory for a sample of {rows} vectors ({error}); run `ramekin plan` beside the server");
            Error::no_memory(text)
        })?;
        Ok((Some(read_sample(path, rows, u64::MAX)?), held))
    }
}
