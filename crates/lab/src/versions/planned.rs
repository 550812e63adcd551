//! What a plan says of a point of our own server, beside what was measured of it.
//!
//! ```text
//!   keys, versions, watchers ─► the request of a plan ─► disk, tables, watchers, least budget
//!   the files                ─► disk
//!   GET /memory              ─► tables (`versions/runs`)
//!   anonymous memory         ─► watchers, and what the gateway keeps of their request
//!   a start with that budget ─► its largest charge
//! ```

use super::{Options, Point, Series};
use crate::http::Connection;
use crate::plan::versions::VersionsRequest;
use crate::server::Server;
use crate::statistics::grouped;
use crate::table::Table;
use ramekin_base::{Result, Size};
use ramekin_versions::Expected;
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// What our own server's ledger and its cgroup say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    pub tables: u64,
    /// The largest charge with `--memory`, and with the least budget that a plan states.
    pub peak: u64,
    pub least_peak: u64,
    /// How it was charged; `None`: by its resident set.
    pub limited: Option<&'static str>,
}

impl Seen {
    pub(super) fn of(server: &Server) -> Result<Self> {
        let (peak, limited) = (server.peak().unwrap_or_default(), server.limited());
        Ok(Self { tables: tables(server.other)?, peak, least_peak: 0, limited })
    }
}

/// A line of the ledger, by the door that shows it.
fn tables(port: u16) -> Result<u64> {
    let ledger = Connection::new(port, PATIENCE).must("GET", "/memory", "")?;
    let accounts = ledger["accounts"].as_array().into_iter().flatten();
    Ok(accounts.filter(|it| it["name"] == "versions/runs").filter_map(|it| it["bytes"].as_u64()).sum())
}

/// What a plan would be asked.
pub(super) fn request(options: &Options, point: &Point) -> VersionsRequest {
    let (watchers, streams) = (options.watchers, options.streams());
    let (key_bytes, value_bytes) = (options.key_bytes as u64, options.value_bytes as u64);
    VersionsRequest {
        budget: options.memory,
        expected: Expected { keys: point.keys, versions: point.versions, key_bytes, value_bytes },
        beside: options.least,
        watchers,
        streams,
        watch_bytes: (options.watch_bytes)(watchers, streams, key_bytes),
    }
}

/// Planned and measured, of each point; `None`: it is not ours.
pub(super) fn table(options: &Options, series: &Series) -> Option<Table> {
    let mut table = Table::new([
        "keys",
        "versions a key",
        "disk, planned",
        "disk",
        "tables, planned",
        "tables, booked",
        "watchers, planned",
        "watchers, anonymous",
        "peak",
        "least budget, planned",
        "peak with it",
    ]);
    let mut is_own = false;
    for point in &series.points {
        let Some(seen) = point.own else { continue };
        is_own = true;
        let request = request(options, point);
        let size = |bytes: u64| Size(bytes).to_string();
        table.row(vec![
            grouped(point.keys as f64, 0),
            grouped(point.versions as f64, 0),
            size(request.disk_bytes().value as u64),
            size(point.disk),
            size(request.expected.capacity().tables_bytes),
            size(seen.tables),
            size(request.watch_bytes),
            size(point.watched.anonymous.saturating_sub(point.settled.anonymous)),
            size(seen.peak),
            size(request.least_budget()),
            size(seen.least_peak),
        ]);
    }
    is_own.then_some(table)
}

pub(super) fn json(options: &Options, point: &Point) -> Value {
    let Some(seen) = point.own else { return Value::Null };
    let request = request(options, point);
    let disk = request.disk_bytes();
    json!({
        "disk_bytes": {"value": disk.value as u64, "low": disk.low as u64, "high": disk.high as u64},
        "tables_bytes": request.expected.capacity().tables_bytes, "tables_bytes_booked": seen.tables,
        "watch_bytes": request.watch_bytes,
        "peak_bytes": seen.peak,
        "least_budget": request.least_budget(), "least_budget_peak_bytes": seen.least_peak,
        "limited_by": seen.limited,
    })
}
