//! The figures of all cells: a table a disk, Markdown, JSON.

use super::Options;
use super::bench::Bench;
use super::cell::{Place, Run, Shown};
use crate::dataset::Dataset;
use crate::disk_rate::DiskRate;
use crate::files;
use crate::machine::{machine, machine_line};
use crate::minram::Printed;
use crate::statistics::Spread;
use crate::table::Table;
use ramekin_base::{Result, Size};
use serde_json::{Value, json};
use std::path::Path;

/// A figure: its name in JSON, its head in a table, its value, its digits.
type Figure = (&'static str, &'static str, fn(&Run) -> f64, usize);

const FIGURES: &[Figure] = &[
    ("seconds", "seconds", |run| run.seconds, 2),
    ("iops", "IOPS", Run::iops, 0),
    ("cpu_seconds", "CPU seconds", |run| run.cpu_seconds, 2),
    ("reads_per_query", "reads/query", |run| each(run, run.reads), 1),
    ("read_kib_per_query", "KiB/query", |run| each(run, run.read_bytes) / 1024.0, 1),
    ("rescored_per_query", "rescored/query", |run| each(run, run.rescored), 1),
    ("major_faults", "major faults", |run| run.major_faults as f64, 0),
    ("recall", "recall@10", |run| run.recall, 4),
];

fn each(run: &Run, total: u64) -> f64 {
    total as f64 / run.queries.max(1) as f64
}

fn table(shown: &[Shown], place: usize) -> Table {
    let heads = ["oversampling", "parallel", "engine"].into_iter().chain(FIGURES.iter().map(|figure| figure.1));
    let mut table = Table::new(heads);
    for shown in shown.iter().filter(|shown| shown.cell.place == place) {
        let cell = shown.cell;
        let mut cells = vec![cell.oversampling.to_string(), cell.parallel.to_string(), cell.engine.to_string()];
        let text = |figure: &Figure| shown.spread(figure.2).map_or(String::new(), |spread| spread.text(figure.3));
        cells.extend(FIGURES.iter().map(text));
        table.row(cells);
    }
    table
}

fn cells_json(shown: &[Shown], places: &[Place]) -> Vec<Value> {
    let one = |shown: &Shown| {
        let cell = shown.cell;
        let mut all = json!({
            "disk": places[cell.place].name, "oversampling": cell.oversampling, "parallel": cell.parallel,
            "engine": cell.engine.name(), "rounds": shown.runs.len(),
        });
        for figure in FIGURES {
            all[figure.0] = shown.spread(figure.2).as_ref().map_or(Value::Null, Spread::json);
        }
        all
    };
    shown.iter().map(one).collect()
}

#[allow(clippy::too_many_arguments, reason = "a report with all it is handed")]
pub(super) fn write(
    options: &Options,
    out: &Path,
    set: &Dataset,
    bench: &Bench,
    disk: Option<&DiskRate>,
    places: &[Place],
    cannot: Option<&str>,
    shown: &[Shown],
) -> Result<Printed> {
    let title = format!("One search through each I/O engine: {} x {}, {}", set.rows, set.dim, set.name);
    let mut lines = vec![
        format!("machine: {}", machine_line()),
        format!(
            "manner: {} rounds, engines interleaved; {} queries a cell, each once, ef {}; {} of codes resident, {} of originals \
             on disk, our own page cache {}; before each cell that cache and the file's pages in the kernel's are dropped",
            options.rounds, set.count(), options.ef, Size(bench.resident), Size(bench.originals), Size(options.cache)
        ),
        "figures: median (least to most) of the rounds; a read is a run of neighbouring pages, which mmap faults in page by page; \
         CPU seconds of the searching process, without a slow disk's own"
            .to_owned(),
    ];
    lines.extend(disk.map(|disk| format!("local disk: {}", disk.text())));
    lines.extend(places.iter().map(|place| {
        let direct = if place.direct {
            "past the page cache (O_DIRECT)"
        } else {
            "O_DIRECT is refused: buffered, dropped behind"
        };
        format!("{}: uring and pread read {direct}; mmap faults pages in through the page cache", place.name)
    }));
    lines.extend(cannot.map(|why| format!("slow disk: {why}")));
    let manner: String = lines.iter().map(|line| format!("- {line}\n")).collect();
    let (mut plain, mut page) = (format!("{title}\n\n"), format!("# {title}\n\n"));
    for (number, place) in places.iter().enumerate() {
        let table = table(shown, number);
        plain += &format!("{}\n{}\n", place.name, table.plain());
        page += &format!("## {}\n\n{}\n", place.name, table.markdown());
    }
    let json = json!({
        "title": title, "machine": machine(), "disk": disk.map(DiskRate::json), "slow_disk_cannot": cannot,
        "vectors": {"name": set.name, "rows": set.rows, "dim": set.dim, "queries": set.count(), "k": set.k},
        "ef": options.ef, "cache_bytes": options.cache, "resident_bytes": bench.resident, "originals_bytes": bench.originals,
        "disks": places.iter().map(|place| json!({"name": place.name, "o_direct": place.direct})).collect::<Vec<_>>(),
        "cells": cells_json(shown, places),
    });
    let names = ["io.md", "io.json"].map(|name| out.join(name));
    files::write_text(&names[0], &(page + &manner))?;
    files::write_text(&names[1], &format!("{json:#}\n"))?;
    Ok(Printed { table: plain + &manner, json, files: names.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::*;
    use ramekin_disk::Engine;

    #[test]
    fn each_disk_has_its_own_table() {
        let cell = Cell { place: 0, oversampling: 4, parallel: 8, engine: Engine::Uring };
        let run = |seconds| Run { seconds, reads: 400, queries: 100, ..Run::default() };
        let slow = Shown { cell: Cell { place: 1, ..cell }, runs: vec![run(5.0)] };
        let shown = [Shown { cell, runs: vec![run(1.0), run(2.0), run(4.0)] }, slow];
        let text = table(&shown, 0).plain();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.contains("2.00 (1.00 to 4.00)") && text.contains("200 (100 to 400)") && text.contains("uring"),
            "{text}"
        );
        let places = ["a", "b"].map(|name| Place::new(name.to_owned(), "/nowhere".into()));
        let json = cells_json(&shown, &places);
        assert_eq!((&json[1]["disk"], &json[0]["iops"]["median"]), (&json!("b"), &json!(200.0)));
    }
}
