//! `ramekin lab io`: the same quantised search, rescoring from disk, through io_uring, pread and mmap.
//!
//! ```text
//!   index (once) ─► codes resident, originals on disk
//!   for each round: for each disk, oversampling, parallel: uring, pread, mmap in turn
//!        caches dropped ─► all queries on n threads ─► seconds, IOPS, CPU seconds
//! ```
//!
//! The index is loaded once; what changes from cell to cell is only the engine, and the path, that originals are read
//! through. Our own page cache is kept so small that next to nothing is found in it.

mod bench;
mod cell;
mod redirect;
mod report;

use crate::dataset::{Dataset, DatasetRequest};
use crate::disk_rate::DiskRate;
use crate::minram::Printed;
use crate::progress::Progress;
use crate::slow_disk::{Mounted, SlowDisk};
use crate::{files, server};
use bench::Bench;
use cell::{Cell, Place, Shown};
use ramekin_base::{Error, Result};
use ramekin_disk::Engine;
use ramekin_vecmath::Metric;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that `ramekin lab io` is told.
#[derive(Debug, Clone)]
pub struct Options {
    pub asked: DatasetRequest,
    pub metric: Metric,
    pub out: PathBuf,
    pub engines: Vec<Engine>,
    pub oversampling: Vec<usize>,
    pub parallel: Vec<usize>,
    pub rounds: usize,
    pub ef: usize,
    pub cache: u64,
    pub build_memory: u64,
    /// Delay of the slow disk; none: the local disk alone.
    pub slow: Option<Duration>,
    pub disk_file: u64,
    pub disk_seconds: f64,
}

impl Options {
    fn check(&self) -> Result<()> {
        let within =
            |list: &[usize], most: usize| !list.is_empty() && list.iter().all(|value| (1..=most).contains(value));
        if self.engines.is_empty() || !within(&self.oversampling, 100) || !within(&self.parallel, 256) {
            return Err(Error::invalid(
                "--engines must name one at least, --oversampling 1 to 100, --parallel 1 to 256",
            ));
        }
        if self.rounds == 0 || self.rounds > 1000 || self.ef == 0 {
            return Err(Error::invalid("--rounds may be 1 to 1000, --ef must be above 0"));
        }
        Ok(())
    }

    /// Cells of one round, engines innermost: what is compared stands side by side in time.
    fn cells(&self, places: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for place in 0..places {
            for oversampling in &self.oversampling {
                for parallel in &self.parallel {
                    let cell = |engine: &Engine| Cell {
                        place,
                        oversampling: *oversampling,
                        parallel: *parallel,
                        engine: *engine,
                    };
                    cells.extend(self.engines.iter().map(cell));
                }
            }
        }
        cells
    }
}

/// Does all of it.
pub fn io(options: &Options) -> Result<Printed> {
    options.check()?;
    files::make_folder(&options.out)?;
    let out = files::whole(&options.out)?;
    let progress = Progress::new();
    let set = Dataset::open(&options.asked, options.metric, &progress)?;
    let bench = Bench::open(options, &out, &set, &progress)?;
    let disk = match options.disk_file {
        0 => None,
        bytes => Some(DiskRate::measure(&out, bytes, options.disk_seconds)?),
    };
    let (places, _mounted, cannot) = places(options, &out, &bench)?;
    let cells = options.cells(places.len());
    let mut shown: Vec<Shown> = cells.iter().map(|cell| Shown::new(*cell)).collect();
    for round in 0..options.rounds {
        for shown in &mut shown {
            let run = bench.run(&places[shown.cell.place], shown.cell, options, &set);
            let run = run.map_err(|error| error.at(shown.cell.text(&places)))?;
            progress.say(format!("round {}, {}: {}", round + 1, shown.cell.text(&places), run.text()));
            shown.runs.push(run);
        }
    }
    report::write(options, &out, &set, &bench, disk.as_ref(), &places, cannot.as_deref(), &shown)
}

/// The local disk, and the slow one where it can be made; else why it cannot.
fn places(options: &Options, out: &Path, bench: &Bench) -> Result<(Vec<Place>, Option<Mounted>, Option<String>)> {
    let local = Place::new("local disk".to_owned(), bench.file().to_owned());
    let Some(delay) = options.slow else { return Ok((vec![local], None, None)) };
    let asked = SlowDisk {
        source: bench.folder().to_owned(),
        mountpoint: out.join("slow"),
        delay,
        // As many as the largest cell can have under way: one batch of each thread.
        parallel: (options.parallel.iter().max().copied().unwrap_or(1) * 64).clamp(64, 1024),
    };
    let name = bench.file().file_name().unwrap_or_default().to_string_lossy().into_owned();
    match Mounted::start(&server::own_program()?, &asked, &name) {
        Ok(mounted) => {
            let text = format!("slow disk (FUSE, each read {delay:?} after it was asked)");
            let slow = Place::new(text, mounted.mountpoint.join(name));
            Ok((vec![local, slow], Some(mounted), None))
        }
        Err(error) => Ok((vec![local], None, Some(error.message().to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_stand_side_by_side() {
        let options = Options {
            asked: DatasetRequest::default(),
            metric: Metric::Cosine,
            out: PathBuf::new(),
            engines: vec![Engine::Uring, Engine::Mmap],
            oversampling: vec![1, 4],
            parallel: vec![4],
            rounds: 1,
            ef: 64,
            cache: 1 << 20,
            build_memory: 1 << 26,
            slow: None,
            disk_file: 0,
            disk_seconds: 1.0,
        };
        options.check().unwrap();
        let cells = options.cells(2);
        assert_eq!(cells.len(), 8);
        assert!(
            cells.chunks(2).all(|pair| pair[0].oversampling == pair[1].oversampling && pair[0].place == pair[1].place)
        );
        assert!(Options { parallel: vec![0], ..options.clone() }.check().is_err());
        assert!(Options { rounds: 0, ..options.clone() }.check().is_err());
        assert!(Options { engines: vec![], ..options }.check().is_err());
    }
}
