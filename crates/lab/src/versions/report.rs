//! The points of all servers: a table each, what was fitted, and a picture of bars; Markdown, JSON, SVG.

use super::{Fit, Options, Point, Series, planned};
use crate::cgroup::Memory;
use crate::files;
use crate::machine::{machine, machine_line};
use crate::minram::Printed;
use crate::statistics::grouped;
use crate::table::Table;
use ramekin_base::{Result, Size};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// A figure of a point.
type Figure = fn(&Point) -> u64;

/// What is fitted, of which figure.
const FITTED: [(&str, Figure); 2] =
    [("after_restart", |point| point.restarted.anonymous), ("settled", |point| point.settled.anonymous)];

fn fit(series: &Series, of: Figure) -> Option<Fit> {
    let measured = |point: &Point| (point.keys as f64, point.records() as f64, of(point) as f64);
    Fit::of(&series.points.iter().map(measured).collect::<Vec<_>>())
}

fn table(series: &Series, watchers: u64) -> Table {
    let fit = fit(series, FITTED[0].1);
    let mut table = Table::new([
        "keys",
        "versions a key",
        "index (fitted)",
        "empty",
        "settled, anonymous",
        "settled, resident",
        "peak",
        "after restart, anonymous",
        "after restart, resident",
        "restart's peak",
        "disk",
        "a watcher, bytes",
        "versions/s",
        "start, s",
    ]);
    for point in &series.points {
        let size = |bytes: u64| Size(bytes).to_string();
        let index = fit.map_or("-".to_owned(), |fit| size(fit.bytes(point.keys, point.records()).max(0.0) as u64));
        table.row(vec![
            grouped(point.keys as f64, 0),
            grouped(point.versions as f64, 0),
            index,
            size(point.empty.anonymous),
            size(point.settled.anonymous),
            size(point.settled.resident),
            size(point.settled.peak),
            size(point.restarted.anonymous),
            size(point.restarted.resident),
            size(point.restarted.peak),
            size(point.disk),
            watcher_bytes(point, watchers).map_or("-".to_owned(), |bytes| grouped(bytes, 0)),
            grouped(point.versions_per_second, 0),
            grouped(point.start_s, 2),
        ]);
    }
    table
}

/// Anonymous memory of one. `None`: there were none.
fn watcher_bytes(point: &Point, watchers: u64) -> Option<f64> {
    let more = point.watched.anonymous as f64 - point.settled.anonymous as f64;
    (watchers > 0 && point.own.is_some()).then(|| more / watchers as f64)
}

fn fits(series: &Series) -> String {
    let line = |(name, of): &(&str, Figure)| {
        let name = name.replace('_', " ");
        match fit(series, *of) {
            Some(Fit { fixed, per_key, per_version, off_most }) => format!(
                "{}, {name}: {} + {} bytes x keys + {} bytes x versions; off by {} at most\n",
                series.recipe.name,
                megabytes(fixed),
                grouped(per_key, 1),
                grouped(per_version, 1),
                megabytes(off_most)
            ),
            None => format!(
                "{}, {name}: not fitted; two numbers of keys and two of versions are needed at least\n",
                series.recipe.name
            ),
        }
    };
    FITTED.iter().map(line).collect()
}

/// What held our own server to its budget.
fn limited(all: &[Series]) -> String {
    let seen = all.iter().flat_map(|series| &series.points).find_map(|point| point.own);
    match seen.and_then(|seen| seen.limited) {
        Some(how) => format!("limited by {how}"),
        None => "limited by nothing but itself: no cgroup could be made here".to_owned(),
    }
}

/// Of a number that may be below zero, as a fit's may.
fn megabytes(bytes: f64) -> String {
    format!("{} MiB", grouped(bytes / (1 << 20) as f64, 1))
}

fn point_json(options: &Options, point: &Point) -> Value {
    let memory =
        |of: Memory| json!({"anonymous_bytes": of.anonymous, "resident_bytes": of.resident, "peak_bytes": of.peak});
    json!({
        "keys": point.keys, "versions": point.versions, "empty": memory(point.empty), "settled": memory(point.settled),
        "watched": memory(point.watched), "bytes_per_watcher": watcher_bytes(point, options.watchers), "disk_bytes": point.disk,
        "planned": planned::json(options, point),
        "after_restart": memory(point.restarted), "versions_per_second": point.versions_per_second, "start_s": point.start_s,
    })
}

fn series_json(options: &Options, series: &Series) -> Value {
    let fit_json = |fit: Fit| {
        json!({
            "fixed_bytes": fit.fixed, "bytes_per_key": fit.per_key, "bytes_per_version": fit.per_version,
            "off_bytes_most": fit.off_most,
        })
    };
    let fitted = FITTED.iter().map(|(name, of)| ((*name).to_owned(), fit(series, *of).map_or(Value::Null, fit_json)));
    json!({
        "server": series.recipe.name, "command": series.recipe.template(), "fitted": Value::Object(fitted.collect()),
        "points": series.points.iter().map(|point| point_json(options, point)).collect::<Vec<_>>(),
    })
}

pub(super) fn write(options: &Options, out: &Path, all: &[Series]) -> Result<Printed> {
    let title = format!("Memory of keys and versions: {} + {} bytes", options.key_bytes, options.value_bytes);
    let manner = [
        format!("machine: {}", machine_line()),
        format!(
            "manner: each point in an empty folder; {} puts a transaction on {} connections, over the JSON gateway; looked at \
             after {:.0} s of rest, then after a restart and as much rest; ours with --memory {}, {}",
            options.batch,
            options.connections,
            options.settle.as_secs_f64(),
            Size(options.memory),
            limited(all)
        ),
        "figures: anonymous is RssAnon of /proc/PID/status, resident VmRSS (with what is mapped of files), peak VmHWM; disk is what came \
         to the folder"
            .to_owned(),
        format!(
            "watchers: {} of one key each at ours, {} on a stream; bytes of one are what anonymous memory grew by, with what the gateway keeps",
            options.watchers,
            super::client::WATCHERS_A_STREAM
        ),
        "planned: what `ramekin plan` says of the same; booked is what the ledger says; peaks are of the cgroup where there is one"
            .to_owned(),
        "fitted: anonymous memory = c0 + c1 x keys + c2 x versions, by least squares over the points; an index itself cannot be seen \
         from outside, and a runtime's garbage is in it, most where the server has not been started anew; index (fitted) is c1 x keys \
         + c2 x versions, of what is there after a restart"
            .to_owned(),
    ];
    let manner: String = manner.iter().map(|line| format!("- {line}\n")).collect();
    let (mut plain, mut page) = (format!("{title}\n\n"), format!("# {title}\n\n"));
    for series in all {
        let (name, table, fits) = (&series.recipe.name, table(series, options.watchers), fits(series));
        plain += &format!("{name}\n{}\n{fits}\n", table.plain());
        page += &format!("## {name}\n\n{}\n{}\n", table.markdown(), fits.replace('\n', "\n\n"));
        if let Some(planned) = planned::table(options, series) {
            plain += &format!("{name}, planned and measured\n{}\n", planned.plain());
            page += &format!("### Planned and measured\n\n{}\n", planned.markdown());
        }
    }
    let json = json!({
        "title": title, "machine": machine(), "key_bytes": options.key_bytes, "value_bytes": options.value_bytes,
        "memory_bytes": options.memory, "batch": options.batch, "settle_s": options.settle.as_secs_f64(),
        "servers": all.iter().map(|series| series_json(options, series)).collect::<Vec<_>>(),
    });
    let names = ["versions.md", "versions.json", "versions.svg"].map(|name| out.join(name));
    files::write_text(&names[0], &(page + &manner))?;
    files::write_text(&names[1], &format!("{json:#}\n"))?;
    files::write_text(&names[2], &svg(&title, all))?;
    Ok(Printed { table: plain + &manner, json, files: names.to_vec() })
}

const COLOURS: [&str; 2] = ["#1f6feb", "#c76b00"];
const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const BAR: f64 = 12.0;
const TOP: f64 = 56.0;

/// Lying bars: a group for each point, a bar for each server and figure.
fn svg(title: &str, all: &[Series]) -> String {
    let shown = |point: &Point| {
        [("settled", point.settled.resident), ("peak", point.settled.peak), ("restart", point.restarted.resident)]
    };
    let most = all.iter().flat_map(|series| &series.points).flat_map(shown).map(|(_, bytes)| bytes).max().unwrap_or(1);
    let count = all.first().map_or(0, |series| series.points.len());
    let group = BAR * 3.0 * all.len() as f64 + 14.0;
    let height = TOP + group * count as f64 + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"10\" y=\"20\" font-size=\"15\">{}, resident</text>\n",
        escape(title)
    );
    for (number, series) in all.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let x = 10 + 150 * number;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"40\" font-size=\"12\" fill=\"{colour}\">{}</text>",
            escape(&series.recipe.name)
        );
        for (at, point) in series.points.iter().enumerate() {
            let mut y = TOP + group * at as f64 + BAR * 3.0 * number as f64;
            if number == 0 {
                let name = format!("{} keys x {}", grouped(point.keys as f64, 0), point.versions);
                let _ = writeln!(out, "<text x=\"10\" y=\"{:.0}\">{name}</text>", y + BAR);
            }
            for (name, bytes) in shown(point) {
                let width = (WIDTH - LEFT - 110.0) * bytes as f64 / most.max(1) as f64;
                let (right, line) = (LEFT + width + 4.0, y + BAR - 3.0);
                let _ = writeln!(
                    out,
                    "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\n\
                     <text x=\"{right:.0}\" y=\"{line:.0}\">{name} {}</text>",
                    BAR - 2.0,
                    Size(bytes)
                );
                y += BAR;
            }
        }
    }
    out + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Recipe;
    use std::time::Duration;

    fn series() -> Series {
        let memory = |bytes| Memory { anonymous: bytes, resident: bytes + 5, peak: bytes * 2 };
        let point = |(keys, versions): (u64, u64)| Point {
            keys,
            versions,
            settled: memory((9 << 20) + 240 * keys),
            restarted: memory((9 << 20) + 120 * keys + 30 * keys * versions),
            ..Point::default()
        };
        let points = [(10_000, 1), (10_000, 5), (80_000, 1), (80_000, 5)].map(point).to_vec();
        Series { recipe: Recipe::of("a&b {data} {port}").unwrap(), points }
    }

    fn options() -> Options {
        Options {
            recipes: Vec::new(),
            keys: vec![1],
            versions: vec![1],
            key_bytes: 64,
            value_bytes: 256,
            memory: 64 << 20,
            batch: 100,
            connections: 1,
            watchers: 1000,
            least: 28 << 20,
            watch_bytes: |watchers, streams, key| watchers * (320 + 2 * key) + streams * (14 << 10),
            settle: Duration::ZERO,
            patience: Duration::ZERO,
            out: "out".into(),
        }
    }

    #[test]
    fn what_is_planned_stands_beside_what_was_measured() {
        let mut own = series();
        assert!(planned::table(&options(), &own).is_none());
        let seen = planned::Seen { tables: 3 << 20, peak: 50 << 20, ..Default::default() };
        own.points[0].own = Some(seen);
        own.points[0].watched.anonymous = own.points[0].settled.anonymous + 500_000;
        let told = planned::table(&options(), &own).unwrap().plain();
        assert!(told.contains("3.0 MiB") && told.contains("50.0 MiB"), "{told}");
        let json = &series_json(&options(), &own)["points"][0];
        assert_eq!(json["bytes_per_watcher"], 500.0);
        assert_eq!(json["planned"]["watch_bytes"], 1000 * 448 + (14 << 10));
        assert!(limited(&[own]).contains("no cgroup"));
    }

    #[test]
    fn what_is_fitted_is_told() {
        let told = fits(&series());
        assert!(told.contains("after restart: 9.0 MiB + 120.0 bytes x keys + 30.0 bytes x versions"), "{told}");
        let shown = table(&series(), 0).plain();
        // 120 x 80,000 + 30 x 400,000 bytes.
        assert!(shown.contains("20.6 MiB"), "{shown}");
        let few = Series { points: series().points[..2].to_vec(), ..series() };
        assert!(fits(&few).contains("not fitted"));
        assert_eq!(series_json(&options(), &few)["fitted"]["settled"], Value::Null);
    }

    #[test]
    fn the_picture_has_a_bar_for_each_figure() {
        let text = svg("t < u", &[series(), series()]);
        assert_eq!(text.matches("<rect").count(), 1 + 2 * 4 * 3);
        assert!(text.contains("t &lt; u") && text.contains("a&amp;b") && !text.contains("NaN"));
        assert!(svg("t", &[]).ends_with("</svg>\n"));
    }
}
