//! What is left of a run: a table, a page in Markdown, JSON and a plot.

use super::Printed;
use super::figures::{FIGURES, Figures};
use super::options::{Options, PageCache};
use super::prepare::distance;
use crate::dataset::Dataset;
use crate::disk_rate::DiskRate;
use crate::files;
use crate::machine::{machine, machine_line};
use crate::plot::{Point, svg};
use crate::table::Table;
use ramekin_base::{Result, Size};
use serde_json::{Value, json};
use std::path::Path;

pub(super) struct Report<'a> {
    options: &'a Options,
    set: &'a Dataset,
    disk: Option<DiskRate>,
    rows: Vec<Figures>,
    found: Option<Found>,
    limited_by: Option<String>,
}

struct Found {
    least: Option<u64>,
    /// Memory, whether it served, and what it did.
    tried: Vec<(u64, bool, String)>,
}

impl<'a> Report<'a> {
    pub(super) fn new(options: &'a Options, set: &'a Dataset, disk: Option<DiskRate>) -> Self {
        Self { options, set, disk, rows: Vec::new(), found: None, limited_by: None }
    }

    pub(super) fn add(&mut self, figures: Figures) {
        self.rows.push(figures);
    }

    pub(super) fn found(&mut self, least: Option<u64>, tried: Vec<(u64, bool, String)>) {
        self.found = Some(Found { least, tried });
    }

    pub(super) fn limited_by(&mut self, how: Option<String>) {
        self.limited_by = how;
    }

    fn title(&self) -> String {
        format!("{}: {} x {}, {}", self.options.recipe.name, self.set.rows, self.set.dim, self.set.name)
    }

    fn table(&self) -> Table {
        let mut heads = ["limit", "memory"].to_vec();
        heads.extend(FIGURES.iter().map(|figure| figure.1));
        heads.push("note");
        // Without a cgroup the peak is of the resident set, and nothing limits.
        let heads: Vec<String> = heads
            .iter()
            .map(
                |head| {
                    if self.limited_by.is_none() { head.replace("peak", "resident peak") } else { (*head).to_owned() }
                },
            )
            .collect();
        let mut table = Table::new(heads);
        self.rows.iter().for_each(|row| table.row(row.cells()));
        table
    }

    /// Lines that say how the figures came about.
    fn manner(&self) -> Vec<String> {
        let options = self.options;
        let cache = match options.page_cache {
            PageCache::All => "page cache dropped before each run (the data files; all of it where root may)",
            PageCache::Files => "data files dropped from the page cache before each run",
            PageCache::Keep => "page cache kept from run to run",
        };
        let limit = match &self.limited_by {
            Some(how) if options.with_margin => {
                format!("{how}; the limit is the memory B given to the server + max(8 MiB, B/16)")
            }
            Some(how) => format!("{how}; the limit is the memory given to the server"),
            None => "NOT LIMITED: no memory cgroup may be made here; the peak is that of the resident set".to_owned(),
        };
        let mut lines = vec![
            format!("machine: {}", machine_line()),
            format!("limit: {limit}"),
            format!(
                "manner: {} runs a limit, each from a cold start; {cache}; {} queries, each once, shuffled, {} of them to warm up; \
                 {} connections; a run ends after {} s at most; {}, params {}, payload {}",
                options.repeats,
                self.set.count(),
                options.warm_up,
                options.connections,
                options.seconds,
                distance(self.set.metric),
                options.search.params(),
                options.search.with_payload
            ),
            "figures: median (least to most) of the runs; reads are the kernel's count while the queries ran"
                .to_owned(),
        ];
        lines.extend(self.disk.as_ref().map(|disk| format!("disk: {}", disk.text())));
        lines.push(format!("server: {}", options.recipe.template()));
        lines
    }

    fn found_lines(&self) -> Vec<String> {
        let (Some(found), Some(find)) = (&self.found, &self.options.find) else { return Vec::new() };
        let wanted = format!("{} requests/s at recall {}", find.rate, find.recall);
        let head = match found.least {
            Some(memory) => {
                let limit = Size(self.options.limit(memory));
                format!("least memory for {wanted}: {} (limit {limit}), to within {}", Size(memory), Size(find.step))
            }
            None => format!("least memory for {wanted}: none up to {}", Size(find.high)),
        };
        let tried = found.tried.iter().map(|(memory, does, why)| {
            format!("  {} {}: {why}", Size(*memory), if *does { "serves" } else { "does not" })
        });
        std::iter::once(head).chain(tried).collect()
    }

    fn json(&self) -> Value {
        let options = self.options;
        let find = self.options.find.as_ref().zip(self.found.as_ref()).map(|(find, found)| {
            let tried: Vec<Value> = found.tried.iter()
                .map(|(memory, does, why)| json!({"memory_bytes": memory, "serves": does, "figures": why})).collect();
            json!({"requests_per_second": find.rate, "recall": find.recall, "step_bytes": find.step,
                   "least_memory_bytes": found.least, "least_limit_bytes": found.least.map(|memory| options.limit(memory)),
                   "tried": tried})
        });
        json!({
            "title": self.title(), "machine": machine(), "server": options.recipe.template(), "limited_by": self.limited_by,
            "vectors": {"name": self.set.name, "rows": self.set.rows, "dim": self.set.dim, "distance": distance(self.set.metric),
                        "queries": self.set.count(), "k": self.set.k},
            "search": {"params": options.search.params(), "with_payload": options.search.with_payload},
            "connections": options.connections, "repeats": options.repeats, "warm_up": options.warm_up, "seconds_max": options.seconds,
            "disk": self.disk.as_ref().map(DiskRate::json), "limits": self.rows.iter().map(Figures::json).collect::<Vec<_>>(),
            "least": find,
        })
    }

    fn points(&self) -> Vec<Point> {
        let none = crate::statistics::Spread { median: 0.0, least: 0.0, most: 0.0 };
        let point = |row: &Figures| Point {
            limit: row.limit,
            rate: row.spread("requests_per_second").unwrap_or(none),
            recall: row.spread("recall").map_or(f64::NAN, |recall| recall.median),
        };
        self.rows.iter().map(point).collect()
    }

    /// Writes the three files into `out`.
    pub(super) fn write(&self, out: &Path) -> Result<Printed> {
        let (table, json) = (self.table(), self.json());
        let manner: String = self.manner().iter().map(|line| format!("- {line}\n")).collect();
        let mut page = format!("# {}\n\n", self.title());
        let mut plain = format!("{}\n\n", self.title());
        if !self.rows.is_empty() {
            page += &format!("{}\n![requests/s over the memory limit](minram.svg)\n\n", table.markdown());
            plain += &format!("{}\n", table.plain());
        }
        let found = self.found_lines();
        if !found.is_empty() {
            page += &format!("```\n{}\n```\n\n", found.join("\n"));
            plain += &format!("{}\n\n", found.join("\n"));
        }
        page += &manner;
        plain += &manner;
        let names = ["minram.md", "minram.json", "minram.svg"].map(|name| out.join(name));
        files::write_text(&names[0], &page)?;
        files::write_text(&names[1], &format!("{json:#}\n"))?;
        files::write_text(&names[2], &svg(&self.title(), &self.points()))?;
        Ok(Printed { table: plain, json, files: names.to_vec() })
    }
}
