//! The service itself: who it is, whether it is well, what it did.

use crate::errors::{HttpError, Outcome};
use crate::request::call::Call;
use crate::request::state::DoorInner;
use crate::response::{BookedResponse, ResponseWriter};
use axum::http::StatusCode;
use ramekin_base::histogram::{BOUNDS_US, Histogram};
use ramekin_base::{Error, Lane, Result, supervise};
use ramekin_fields::Filter;
use ramekin_memory::Ledger;
use serde_json::{Map, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of Qdrant's API that is spoken.
pub const API_VERSION: &str = "1.19.0";

/// The commit of a build, where whoever builds says it.
const COMMIT: &str = match option_env!("RAMEKIN_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// `GET /`: what clients compare their version with. Our own version stands in a header of every answer.
pub async fn title(_: Call) -> Outcome<BookedResponse> {
    let body = json!({ "title": "qdrant - vector search engine", "version": API_VERSION, "commit": COMMIT });
    Ok(BookedResponse::json(body.to_string()))
}

pub async fn healthz(_: Call) -> Outcome<BookedResponse> {
    Ok(BookedResponse::text("healthz check passed"))
}

pub async fn livez(_: Call) -> Outcome<BookedResponse> {
    Ok(BookedResponse::text("healthz check passed"))
}

/// `GET /readyz`: 503 with the causes while a thread is dead, writes are refused or a collection is red.
pub async fn readyz(call: Call) -> Outcome<BookedResponse> {
    let faults = (call.door.host.faults)();
    match faults.is_empty() {
        true => Ok(BookedResponse::text("all shards are ready")),
        false => Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, faults.join("; "))),
    }
}

/// `GET /cluster`: one node is no cluster.
pub async fn cluster(call: Call) -> Outcome<BookedResponse> {
    BookedResponse::result(&json!({ "status": "disabled" }), call.took())
}

/// What Qdrant's API has and is not built here.
pub async fn not_implemented(mut call: Call) -> Outcome<BookedResponse> {
    // The body is read to its end, so that the client reads the answer.
    if !call.expects {
        crate::body::drain(call.body.take().unwrap_or_default()).await;
    }
    Err(Error::unsupported(format!("{} {} is not built yet", call.route.method, call.route.path)).into())
}

/// `GET /telemetry`
pub async fn telemetry(call: Call) -> Outcome<BookedResponse> {
    let door = &call.door;
    let mut responses = Map::new();
    for (route, status, requests, micros) in door.counters.all() {
        let name = format!("{} {}", door.routes[route].method, door.routes[route].path);
        let of_route = responses.entry(name).or_insert_with(|| json!({}));
        of_route[status.to_string()] = json!({
            "count": requests,
            "avg_duration_micros": micros as f64 / requests as f64,
            "total_duration_micros": micros,
        });
    }
    let result = json!({
        "id": "ramekin",
        "app": { "name": "ramekin", "version": API_VERSION, "startup": moment(door.opened) },
        "collections": { "number_of_collections": door.host.store.collections().len() },
        "cluster": { "enabled": false },
        "requests": { "rest": { "responses": responses }, "grpc": { "responses": {} } },
        "ramekin": { "version": door.host.version, "engine": door.host.engine },
    });
    BookedResponse::result(&result, call.took())
}

/// A moment as `2026-11-20T17:28:03Z` (the calendar by Hinnant, "chrono-compatible low-level date algorithms").
fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let (days, rest) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `GET /metrics`, in the text format of Prometheus.
pub async fn metrics(call: Call) -> Outcome<BookedResponse> {
    let text = call.door.run(Lane::Short, call.options.until, |door| {
        let mut text = ResponseWriter::new(door.answers.clone());
        write_metrics(door, &mut text)?;
        Ok(text)
    });
    Ok(BookedResponse::text(text.await?.into_pieces()))
}

/// A metric's head and its lines: labels and value.
fn metric(
    text: &mut ResponseWriter,
    (name, kind, help): (&str, &str, &str),
    lines: impl Iterator<Item = (String, String)>,
) -> Result<()> {
    text.push(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"))?;
    for (labels, value) in lines {
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        text.push(&format!("{name}{labels} {value}\n"))?;
    }
    Ok(())
}

/// A histogram's head, and for each set of labels its buckets, sum and count.
fn histogram<'a>(
    text: &mut ResponseWriter,
    name: &str,
    help: &str,
    all: impl Iterator<Item = (String, &'a Histogram)>,
) -> Result<()> {
    text.push(&format!("# HELP {name} {help}\n# TYPE {name} histogram\n"))?;
    for (labels, histogram) in all {
        let seen = histogram.seen();
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in BOUNDS_US.iter().zip(seen.at_most) {
            text.push(&format!("{name}_bucket{{{labels}{comma}le=\"{}\"}} {count}\n", *bound as f64 / 1e6))?;
        }
        text.push(&format!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}\n", seen.count))?;
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        text.push(&format!("{name}_sum{labels} {}\n", seen.micros as f64 / 1e6))?;
        text.push(&format!("{name}_count{labels} {}\n", seen.count))?;
    }
    Ok(())
}

/// A label with its value in quotes.
fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn write_metrics(door: &DoorInner, text: &mut ResponseWriter) -> Result<()> {
    let one = |value: String| std::iter::once((String::new(), value));
    let app = format!("{},{}", label("name", "ramekin"), label("version", door.host.version));
    metric(text, ("app_info", "gauge", "information about the server"), std::iter::once((app, "1".to_owned())))?;
    let names = door.host.store.collections();
    metric(text, ("collections_total", "gauge", "number of collections"), one(names.len().to_string()))?;
    let panics = supervise::panics().to_string();
    metric(text, ("ramekin_panics_total", "counter", "panics that were caught"), one(panics))?;
    let faults = (door.host.faults)().len().to_string();
    metric(text, ("ramekin_faults", "gauge", "dead threads, refused writes and red collections"), one(faults))?;
    // A collection may go while this is written.
    let points = names.iter().filter_map(|name: &str| {
        Some((label("id", name), door.host.store.count(name, &Filter::default(), true).ok()?.to_string()))
    });
    metric(text, ("collection_points", "gauge", "points of a collection"), points)?;

    let route = |(route, status, requests, micros): (usize, u16, u64, u64)| {
        let (method, endpoint) =
            (label("method", door.routes[route].method), label("endpoint", door.routes[route].path));
        (format!("{method},{endpoint},status=\"{status}\""), requests, micros)
    };
    let counts = || door.counters.all().map(route);
    metric(
        text,
        ("rest_responses_total", "counter", "responses of the REST door"),
        counts().map(|(labels, requests, _)| (labels, requests.to_string())),
    )?;
    metric(
        text,
        ("rest_responses_duration_seconds_total", "counter", "time that they took"),
        counts().map(|(labels, _, micros)| (labels, (micros as f64 / 1e6).to_string())),
    )?;
    write_durations(door, text)?;

    let _lines = door.answers.try_reserve(Ledger::bytes_at_most(&door.host.budget))?;
    let ledger = Ledger::take(&door.host.budget);
    for (name, help, value) in [
        ("ramekin_memory_budget_bytes", "the budget", ledger.budget_bytes.to_string()),
        ("ramekin_memory_charged_bytes", "what the kernel charges", ledger.charged_bytes.to_string()),
        ("ramekin_memory_peak_bytes", "the most that the kernel charged", ledger.peak_bytes.to_string()),
        ("ramekin_memory_unaccounted_bytes", "the charge less all accounts", ledger.unaccounted_bytes.to_string()),
    ] {
        metric(text, (name, "gauge", help), one(value))?;
    }
    let account = |value: fn(&ramekin_memory::LedgerEntry) -> u64| {
        ledger.accounts.iter().map(move |line| (label("account", &line.name), value(line).to_string()))
    };
    metric(text, ("ramekin_memory_account_bytes", "gauge", "bytes of an account"), account(|line| line.bytes))?;
    metric(
        text,
        ("ramekin_memory_account_predicted_bytes", "gauge", "bytes that the formula of an account predicts"),
        account(|line| line.predicted_bytes),
    )
}

fn write_durations(door: &DoorInner, text: &mut ResponseWriter) -> Result<()> {
    let name = "ramekin_request_duration_seconds";
    let requests = door.latency.requests().map(|(kind, histogram)| (label("kind", kind), histogram));
    histogram(text, name, "from the head of a request to its answer", requests)?;
    let name = "ramekin_queue_wait_seconds";
    let waits = door.latency.waits().map(|(lane, histogram)| (label("lane", lane), histogram));
    histogram(text, name, "work of a request waits for a thread", waits)?;
    let timings = door.host.store.timings();
    for (name, help, of_all) in [
        ("ramekin_log_commit_duration_seconds", "a group of the log is written and synced", &timings.commit),
        ("ramekin_flush_duration_seconds", "new points become a segment", &timings.flush),
        ("ramekin_fold_duration_seconds", "changed payloads become a file", &timings.fold),
        ("ramekin_merge_duration_seconds", "segments become one", &timings.merge),
    ] {
        histogram(text, name, help, std::iter::once((String::new(), of_all)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_793_208_483, "2026-10-28T17:28:03Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(moment(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("id", "a\"b\\c\n"), r#"id="a\"b\\c\n""#);
    }
}
