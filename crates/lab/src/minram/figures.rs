//! What one run showed, and what several runs at one limit show together.

use crate::cgroup::Reads;
use crate::load::Seen;
use crate::statistics::{Spread, percentile};
use ramekin_base::Size;
use serde_json::{Value, json};

/// One run of a server that answered.
#[derive(Debug, Clone, Default)]
pub struct Run {
    pub seen: Seen,
    pub started_s: f64,
    pub empty_rate: Option<f64>,
    pub reads: Option<Reads>,
    /// Processor seconds while the queries ran: the server's, and those of the load and its threads.
    pub cpu_s: Option<f64>,
    pub load_cpu_s: Option<f64>,
    pub peak: Option<u64>,
    pub kills: u64,
    /// Why the collection was not green while it was searched.
    pub not_green: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    Served(Box<Run>),
    /// The server did not start, was killed, or answered nothing.
    Failed(String),
}

impl Run {
    /// Why nothing was answered.
    pub fn why(&self) -> String {
        let failures: Vec<String> = self.seen.failed.iter().map(|(what, count)| format!("{count} x {what}")).collect();
        format!("no query was answered: {}", failures.join(", "))
    }
}

impl Outcome {
    pub fn line(&self) -> String {
        match self {
            Self::Failed(why) => why.clone(),
            Self::Served(run) => {
                let peak = run.peak.map_or(String::new(), |peak| format!(", peak {}", Size(peak)));
                let failed = match run.seen.failures() {
                    0 => String::new(),
                    failures => format!(", {failures} failed"),
                };
                let p99 = percentile(&run.seen.laps_ms, 0.99);
                let (rate, recall) = (run.seen.rate(), run.seen.recall());
                format!("{rate:.0} requests/s, recall {recall:.4}, p99 {p99:.1} ms{peak}{failed}")
            }
        }
    }
}

/// One figure of a limit: its name in JSON, its head in a table, how to print it.
type Figure = (&'static str, &'static str, fn(&Run) -> Option<f64>, fn(&Spread) -> String);

/// Every figure, in the order of the table.
pub const FIGURES: &[Figure] = &[
    ("requests_per_second", "requests/s", |run| Some(run.seen.rate()), |spread| spread.text(digits(spread.median))),
    ("recall", "recall@10", |run| Some(run.seen.recall()), |spread| spread.text(4)),
    ("p50_ms", "p50 ms", |run| Some(percentile(&run.seen.laps_ms, 0.5)), |spread| spread.text(2)),
    ("p99_ms", "p99 ms", |run| Some(percentile(&run.seen.laps_ms, 0.99)), |spread| spread.text(1)),
    ("reads_per_query", "reads/query", |run| each(run, run.reads?.requests? as f64), |spread| spread.text(1)),
    ("read_bytes_per_query", "KiB read/query", |run| each(run, run.reads?.bytes as f64), |spread| spread.in_kib()),
    ("cpu_us_per_query", "CPU us/query", |run| each(run, run.cpu_s? * 1e6), |spread| spread.text(0)),
    ("load_cpu_us_per_query", "load's CPU us", |run| each(run, run.load_cpu_s? * 1e6), |spread| spread.text(0)),
    ("peak_bytes", "peak MiB", |run| Some(run.peak? as f64), |spread| spread.in_mib()),
    ("started_s", "ready after s", |run| Some(run.started_s), |spread| spread.text(2)),
    ("empty_per_second", "empty handler/s", |run| run.empty_rate, |spread| spread.text(0)),
];

fn each(run: &Run, total: f64) -> Option<f64> {
    (run.seen.answered > 0).then(|| total / run.seen.answered as f64)
}

/// Slow servers need a digit behind the point.
fn digits(rate: f64) -> usize {
    match rate {
        rate if rate >= 100.0 => 0,
        rate if rate >= 10.0 => 1,
        _ => 2,
    }
}

impl Spread {
    fn over(&self, unit: f64) -> Self {
        Self { median: self.median / unit, least: self.least / unit, most: self.most / unit }
    }

    fn in_kib(&self) -> String {
        self.over(1024.0).text(1)
    }

    fn in_mib(&self) -> String {
        self.over(1024.0 * 1024.0).text(1)
    }
}

/// All runs at one limit.
#[derive(Debug, Clone)]
pub struct Figures {
    pub memory: u64,
    pub limit: u64,
    /// In the order of [`FIGURES`]; `None` where nobody counted.
    pub spreads: Vec<Option<Spread>>,
    pub served: usize,
    pub failed: Vec<String>,
    /// Of runs that were searched though the collection was not green.
    pub not_green: Vec<String>,
    /// Queries answered, and not answered with 200, over all runs.
    pub answered: u64,
    pub refused: u64,
}

impl Figures {
    pub fn of(memory: u64, limit: u64, outcomes: &[Outcome]) -> Self {
        let mut failed = Vec::new();
        let mut runs = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Served(run) => runs.push(&**run),
                Outcome::Failed(why) => failed.push(why.clone()),
            }
        }
        let spread = |figure: &Figure| {
            let values: Vec<f64> =
                runs.iter().filter_map(|run| (figure.2)(run)).filter(|value| value.is_finite()).collect();
            Spread::of(&values)
        };
        Self {
            memory,
            limit,
            spreads: FIGURES.iter().map(spread).collect(),
            served: runs.len(),
            not_green: runs.iter().filter_map(|run| run.not_green.clone()).collect(),
            answered: runs.iter().map(|run| run.seen.answered).sum(),
            refused: runs.iter().map(|run| run.seen.failures()).sum(),
            failed,
        }
    }

    pub fn spread(&self, name: &str) -> Option<Spread> {
        let at = FIGURES.iter().position(|figure| figure.0 == name)?;
        self.spreads[at]
    }

    pub fn note(&self) -> String {
        let mut notes = Vec::new();
        if !self.failed.is_empty() {
            let total = self.failed.len() + self.served;
            notes.push(format!("{} of {total} runs failed: {}", self.failed.len(), self.failed[0]));
        }
        if let Some(why) = self.not_green.first() {
            notes.push(format!("{} of {} runs were not green: {why}", self.not_green.len(), self.served));
        }
        if self.refused > 0 {
            notes.push(format!("{} queries were not answered", self.refused));
        }
        notes.join("; ")
    }

    /// Cells of the table: limit, memory, each figure, the note.
    pub fn cells(&self) -> Vec<String> {
        let mut cells = vec![Size(self.limit).to_string(), Size(self.memory).to_string()];
        let figures = FIGURES.iter().zip(&self.spreads);
        cells
            .extend(figures.map(|(figure, spread)| spread.as_ref().map_or(String::new(), |spread| (figure.3)(spread))));
        cells.push(self.note());
        cells
    }

    pub fn json(&self) -> Value {
        let mut all = json!({
            "limit_bytes": self.limit, "memory_bytes": self.memory, "runs": self.served, "failed": self.failed,
            "not_green": self.not_green, "answered": self.answered, "refused": self.refused,
        });
        for (figure, spread) in FIGURES.iter().zip(&self.spreads) {
            all[figure.0] = spread.as_ref().map_or(Value::Null, Spread::json);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(answered: u64, requests: Option<u64>) -> Outcome {
        let seen = Seen { seconds: 2.0, answered, laps_ms: vec![1.0, 2.0], found: 9, wanted: 10, ..Seen::default() };
        let reads = Some(Reads { requests, bytes: answered * 4096 });
        Outcome::Served(Box::new(Run { seen, reads, peak: Some(3 << 20), ..Run::default() }))
    }

    #[test]
    fn runs_become_spreads_and_failures_notes() {
        let failed = Outcome::Failed("killed".to_owned());
        let figures = Figures::of(1 << 20, 9 << 20, &[run(100, Some(300)), failed, run(400, Some(800))]);
        let rate = figures.spread("requests_per_second").unwrap();
        assert_eq!((rate.median, rate.least, rate.most), (125.0, 50.0, 200.0));
        assert_eq!(figures.spread("reads_per_query").unwrap().median, 2.5);
        let cells = figures.cells();
        assert_eq!(cells[0], "9.0 MiB");
        assert_eq!(cells[7], "4.0");
        assert!(figures.note().starts_with("1 of 3 runs failed: killed"));
        assert_eq!(figures.json()["recall"]["median"], 0.9);
    }

    #[test]
    fn what_nobody_counted_stays_empty() {
        let figures = Figures::of(1, 1, &[run(100, None)]);
        assert!(figures.spread("reads_per_query").is_none() && figures.json()["reads_per_query"].is_null());
        let red = Run { not_green: Some("red".to_owned()), ..Run::default() };
        let red = Figures::of(1, 1, &[Outcome::Served(Box::new(red))]);
        assert_eq!(red.note(), "1 of 1 runs were not green: red");
        let none = Figures::of(1, 1, &[Outcome::Failed("x".to_owned())]);
        assert!(none.spread("recall").is_none());
        assert_eq!(none.cells().len(), FIGURES.len() + 3);
    }
}
