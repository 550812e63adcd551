//! `ramekin plan`: what collections to be will take of a budget, and how fast and how right they will be searched.
//!
//! ```text
//!   points, vectors, payload ─► formulas (`ramekin_vectors::capacity_plan`) ─► a line a structure; who is resident
//!   sample of the vectors    ─► `plan/trial.rs`: indexed in small, searched ─┐
//!   no sample                ─► `plan/guess.rs`: wide ranges                 ├─► recall, reads, queries/s
//!   the disk of the folder   ─► `disk_rate.rs`                              ─┘
//!   a request's own cost     ─► `plan/wire.rs`
//!   keys and their versions  ─► `plan/versions.rs`, by the formulas of `ramekin_versions`
//! ```
//!
//! A plan that nobody waits for ends at its next batch of the sample, step of a build, or query of a trial.

mod guess;
mod report;
mod trial;
pub mod versions;
mod wire;

pub use crate::disk_rate::DiskRate;
use crate::files;
use crate::vectors::VectorFile;
pub use guess::Range;
use guess::{MachineRates, Shape};
use ramekin_ann::Part;
use ramekin_base::{Error, Kind, Result, Size, cancel};
use ramekin_vectors::{CapacityPlan, Expected, FixedOverhead, Searched, capacity_plan};
pub use report::{curve_svg, curve_text, json, text};
use std::path::Path;
use trial::Trial;
pub use trial::{LEAST as SAMPLE_LEAST, Sample, bytes as sample_bytes};

/// What is planned.
pub struct PlanRequest<'a> {
    pub budget: u64,
    /// The least budget that a server takes, whatever it stores.
    pub least: u64,
    /// What stands beside collections in a budget.
    pub overhead: &'a dyn Fn(u64) -> FixedOverhead,
    pub expected: &'a [Expected],
}

/// Figures of one collection, or of all together.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub name: String,
    pub points: u64,
    pub bytes: Range,
    pub disk_bytes: Range,
    pub build_peak_bytes: Range,
    pub recall: Range,
    pub reads_per_query: Range,
    pub queries_per_second: Range,
    pub fits: bool,
    pub least_budget: u64,
}

/// A plan for one budget.
pub struct Plan {
    pub budget: u64,
    pub capacity_plan: CapacityPlan,
    pub collections: Vec<Figures>,
    pub total: Figures,
}

/// Plans, with what was measured for all budgets that are asked about.
pub struct Planner {
    trials: Vec<Option<Trial>>,
    disk: DiskRate,
    exchange_s: f64,
}

/// The rate of a folder's disk, as plans need it. The folder is made if it is missing.
pub fn disk_rate(folder: &Path) -> Result<DiskRate> {
    files::make_folder(folder)?;
    DiskRate::measure(folder, DISK_FILE, DISK_SECONDS)
}

/// File on which the disk is measured, and for how long at each depth.
const DISK_FILE: u64 = 64 << 20;
const DISK_SECONDS: f64 = 0.3;
/// Of figures that follow from formulas.
const FORMULA_SHARE: f64 = 0.05;
/// Of figures that were measured on a sample.
const RECALL_WITHIN: f64 = 0.01;
const RATE_SHARE: f64 = 0.2;
const READS_SHARE: f64 = 0.25;
/// Steps of a curve between the least budget and that with everything in memory.
const CURVE_STEPS: usize = 12;

impl Planner {
    /// Tries out the sample where there is one, in a folder of its own: it stands for the first vector that has its
    /// dimension.
    pub fn new(disk: DiskRate, folder: &Path, expected: &[Expected], sample: Option<Sample>) -> Result<Self> {
        let mut trials: Vec<Option<Trial>> = expected.iter().map(|_| None).collect();
        if let Some(sample) = sample {
            let fitting = |one: &Expected| one.config.vectors.values().find(|vector| vector.dim == sample.dim).cloned();
            let found = expected.iter().enumerate().find_map(|(at, one)| Some((at, fitting(one)?)));
            let (at, vector) = found.ok_or_else(|| {
                Error::invalid(format!("the sample has {} dimensions, which no planned vector has", sample.dim))
            })?;
            trials[at] = Some(Trial::new(folder, sample, &vector, expected[at].config.recall)?);
        }
        Ok(Self { trials, disk, exchange_s: wire::exchange_s() })
    }

    pub fn disk(&self) -> String {
        self.disk.text()
    }

    /// What the budget that is asked for gives.
    pub fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan> {
        let least = least_budget(request, request.expected)?;
        // Of a budget that is too small the table shows the least one that is not.
        let fits = request.budget >= least;
        let budget = request.budget.max(least);
        let capacity_plan = capacity_plan(budget, (request.overhead)(budget), request.expected)?;
        let mut collections = Vec::new();
        for (at, one) in request.expected.iter().enumerate() {
            let mut figures = self.searched(request, &capacity_plan, at)?;
            let lines = || capacity_plan.of_collection[at].iter().map(|line| &capacity_plan.lines[*line]);
            figures.name = one.name.clone();
            figures.points = one.points;
            figures.bytes = formula(lines().map(|line| line.bytes).sum());
            figures.disk_bytes = formula(lines().map(|line| line.disk_bytes).sum());
            figures.build_peak_bytes = formula(lines().map(|line| line.build_bytes).sum());
            figures.least_budget = least_budget(request, std::slice::from_ref(one))?;
            figures.fits = request.budget >= figures.least_budget;
            collections.push(figures);
        }
        let total = total(&collections, &capacity_plan, budget, fits, least);
        Ok(Plan { budget: request.budget, capacity_plan, collections, total })
    }

    /// Plans from the least budget to the one that holds everything.
    pub fn curve(&self, request: &PlanRequest<'_>) -> Result<Vec<Plan>> {
        let least = least_budget(request, request.expected)?;
        let whole = capacity_plan(1 << 50, FixedOverhead::default(), request.expected)?;
        let overhead = (request.overhead)(least);
        let structures = whole.of_collection.iter().flatten().map(|line| whole.lines[*line].bytes).sum::<u64>();
        // Headroom and minimum reservations besides.
        let most = ((structures + overhead.used + overhead.min_reservations + (4 << 20)) * 17 / 15).max(least * 2);
        let step = (most as f64 / least as f64).powf(1.0 / (CURVE_STEPS - 1) as f64);
        let budgets = (0..CURVE_STEPS).map(|at| (least as f64 * step.powi(at as i32)).ceil() as u64);
        budgets.map(|budget| self.plan(&PlanRequest { budget, ..*request })).collect()
    }

    /// Recall, reads and speed of a collection: of its slowest vector.
    fn searched(&self, request: &PlanRequest<'_>, capacity_plan: &CapacityPlan, at: usize) -> Result<Figures> {
        let one = &request.expected[at];
        let mut slowest: Option<Figures> = None;
        for searched in capacity_plan.searched.iter().filter(|searched| searched.collection == at) {
            let figures = self.of_vector(one, capacity_plan, searched)?;
            let is_slower = |other: &Figures| figures.queries_per_second.value < other.queries_per_second.value;
            if slowest.as_ref().is_none_or(is_slower) {
                slowest = Some(figures);
            }
        }
        Ok(slowest.unwrap_or_else(|| Figures { recall: Range::new(1.0, 1.0, 1.0), ..Figures::default() }))
    }

    fn of_vector(&self, one: &Expected, capacity_plan: &CapacityPlan, searched: &Searched) -> Result<Figures> {
        let vector = &one.config.vectors[&searched.vector];
        let rates = MachineRates { exchange_s: self.exchange_s, disk: self.disk.rates[2] };
        let bytes = one.points * vector.dim as u64 * 4;
        if bytes < one.config.full_scan_threshold_kib * 1024 {
            return Ok(guess::scanned(rates, bytes, vector.dim, searched.resident.contains(&Part::Vectors)));
        }
        let measured = self.trials[searched.collection].as_ref().filter(|trial| trial.is_of(vector));
        if let Some(trial) = measured {
            let measured = trial.predict(one.points, &searched.resident, capacity_plan.cache_bytes)?;
            let rate = guess::rate(rates, measured.cpu_s, vector.dim, measured.reads);
            return Ok(Figures {
                recall: Range::within(measured.recall, RECALL_WITHIN),
                reads_per_query: Range::around(measured.reads, READS_SHARE),
                queries_per_second: Range::around(rate, RATE_SHARE),
                ..Figures::default()
            });
        }
        let originals = one.points * (vector.dim * vector.datatype.bytes()) as u64;
        let shape = Shape {
            points: one.points,
            dim: vector.dim,
            lists: searched.lists,
            resident: &searched.resident,
            recall: f64::from(one.config.recall),
            cached: (capacity_plan.cache_bytes as f64 / originals.max(1) as f64).min(1.0),
        };
        let reads = guess::reads(&shape);
        let search = guess::search_s(&shape, reads);
        let rate = |search_s, reads| guess::rate(rates, search_s, vector.dim, reads);
        Ok(Figures {
            recall: guess::recall(shape.recall),
            reads_per_query: reads,
            queries_per_second: Range::new(
                rate(search.high, reads.high),
                rate(search.value, reads.value),
                rate(search.low, reads.low) * 1.5,
            ),
            ..Figures::default()
        })
    }
}

fn formula(bytes: u64) -> Range {
    Range::around(bytes as f64, FORMULA_SHARE)
}

/// All collections together. A search is of one of them, each as often as the others.
fn total(collections: &[Figures], capacity_plan: &CapacityPlan, budget: u64, fits: bool, least: u64) -> Figures {
    let points = collections.iter().map(|one| one.points).sum();
    // What holds nothing is not searched.
    let collections: Vec<&Figures> = collections.iter().filter(|one| one.queries_per_second.value > 0.0).collect();
    let searched = collections.len().max(1) as f64;
    let over = |of: &dyn Fn(&Figures) -> Range, join: &dyn Fn(&mut dyn Iterator<Item = f64>) -> f64| {
        let each = |side: fn(&Range) -> f64| join(&mut collections.iter().map(|one| side(&of(one))));
        Range::new(each(|range| range.low), each(|range| range.value), each(|range| range.high))
    };
    let least_of = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0, f64::min);
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / searched;
    let harmonic = |values: &mut dyn Iterator<Item = f64>| {
        searched / values.map(|value| 1.0 / value.max(1e-9)).sum::<f64>().max(1e-12)
    };
    let (settled, cached) = (capacity_plan.bytes() as f64, (capacity_plan.bytes() + capacity_plan.cache_bytes) as f64);
    let build = (capacity_plan.build_bytes() as f64).max(settled).min(budget as f64);
    Figures {
        name: "together".to_owned(),
        points,
        bytes: Range::new(settled * (1.0 - FORMULA_SHARE), cached.min(budget as f64), budget as f64),
        disk_bytes: formula(capacity_plan.disk_bytes()),
        // The budget is a promise; what a build touches of what it holds is not known as well.
        build_peak_bytes: Range::new(build * 0.7, build, budget as f64),
        recall: over(&|one| one.recall, &least_of),
        reads_per_query: over(&|one| one.reads_per_query, &mean),
        queries_per_second: over(&|one| one.queries_per_second, &harmonic),
        fits,
        least_budget: least,
    }
}

/// The least budget that these collections can be filled, indexed and searched with.
fn least_budget(request: &PlanRequest<'_>, expected: &[Expected]) -> Result<u64> {
    let fits = |budget: u64| match cancel::check()
        .and_then(|()| capacity_plan(budget, (request.overhead)(budget), expected))
    {
        Ok(capacity_plan) => Ok(capacity_plan.lacks == 0),
        Err(error) if error.kind() == Kind::NoMemory => Ok(false),
        Err(error) => Err(error),
    };
    let (mut low, mut high) = (request.least, request.least.max(1 << 20));
    while !fits(high)? {
        low = high;
        high = high.checked_mul(2).filter(|high| *high < 1 << 60).ok_or_else(|| {
            Error::too_large(format!("no budget up to {} is enough for these collections", Size(1 << 59)))
        })?;
    }
    while high - low > (64 << 10) {
        let middle = low + (high - low) / 2;
        if fits(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

/// The first vectors of a file, as many as may be held.
pub fn read_sample(path: &Path, rows_max: usize, bytes_max: u64) -> Result<Sample> {
    let file = VectorFile::open(path)?;
    let dim = file.dim();
    let most = (bytes_max / (dim as u64 * 4)).min(rows_max as u64) as usize;
    let rows = file.rows().min(most);
    // Spread over the file: the first rows of a file are often alike.
    let (pieces, whole) = (SAMPLE_PIECES.min(rows.max(1)), file.rows());
    let mut vectors = Vec::with_capacity(rows * dim);
    for piece in 0..pieces {
        // In an order in which any first few of them are from all over, too: a part of the sample is one.
        let piece = if pieces == SAMPLE_PIECES { piece * SPREAD % pieces } else { piece };
        cancel::check()?;
        let from = whole * piece / pieces;
        let count = rows * (piece + 1) / pieces - rows * piece / pieces;
        vectors.extend(file.floats(from, from + count)?);
    }
    // What the kernel keeps of it would be charged to us.
    files::drop_file_from_page_cache(path)?;
    Ok(Sample { dim, vectors })
}

/// Vectors in a file, and their dimensions.
pub fn sample_shape(path: &Path) -> Result<(usize, usize)> {
    let file = VectorFile::open(path)?;
    Ok((file.rows(), file.dim()))
}

/// Removes what a plan that was cut short has left in its folder.
pub fn clear(folder: &Path) -> Result<()> {
    files::remove_all(folder)
}

/// Writes the picture of a curve.
pub fn write_svg(path: &Path, svg: &str) -> Result<()> {
    files::write_text(path, svg)
}

/// A sample is read in so many pieces, from all over the file; a step from one to the next that meets all of them.
const SAMPLE_PIECES: usize = 64;
const SPREAD: usize = 39;

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test writes its sample")]
    use super::*;
    use ramekin_base::cancel::{Token, scope};
    use ramekin_vectors::{CollectionConfig, MetricName, VectorConfig};
    use std::collections::BTreeMap;

    #[test]
    fn a_plan_that_nobody_waits_for_ends() {
        let folder = tempfile::tempdir().unwrap();
        let vectors = BTreeMap::from([(String::new(), VectorConfig::new(4, MetricName::Dot))]);
        let config = CollectionConfig::new(vectors);
        let expected = [Expected { name: "c".to_owned(), config, points: 100_000, payload_bytes: 0 }];
        let path = folder.path().join("sample.fbin");
        let body = (0..trial::LEAST as u32 * 4).flat_map(|n| (n as f32).to_le_bytes());
        let head = [trial::LEAST as u32, 4].into_iter().flat_map(u32::to_le_bytes);
        std::fs::write(&path, head.chain(body).collect::<Vec<_>>()).unwrap();
        let sample = || read_sample(&path, usize::MAX, u64::MAX);
        let rate = DiskRate { engine: "none".to_owned(), file_bytes: 0, rates: [1e4; 3] };
        let planner = |sample| Planner::new(rate.clone(), &folder.path().join("plan"), &expected, sample);
        let overhead = |_| FixedOverhead::default();
        let request = PlanRequest { budget: 64 << 20, least: 24 << 20, overhead: &overhead, expected: &expected };

        let (taken, ready) = (sample().unwrap(), planner(None).unwrap());
        let token = Token::new();
        token.cancel();
        scope(&token, || {
            let steps = [
                ("sample", sample().err()),
                ("disk", disk_rate(folder.path()).err()),
                ("trial", planner(Some(taken)).err()),
                ("plan", ready.plan(&request).err()),
            ];
            for (step, error) in steps {
                assert_eq!(error.map(|error| error.kind()), Some(Kind::Cancelled), "{step}");
            }
        });
        assert!(!folder.path().join("plan").exists(), "a trial that was given up leaves nothing");
        assert!(ready.plan(&request).is_ok());
    }
}
