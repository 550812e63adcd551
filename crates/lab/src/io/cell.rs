//! One cell: all queries through one engine, on one disk, by so many threads.

use super::Options;
use super::bench::Bench;
use crate::dataset::Dataset;
use crate::files;
use crate::pause::pause;
use crate::statistics::Spread;
use crate::usage::Usage;
use ramekin_ann::{Hit, Scratch, SearchParams};
use ramekin_base::{Clock, Kind, Result, SystemClock};
use ramekin_disk::{Disk, Engine, Local};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// So long a query asks again for room in the cache: the time that a request has by default.
const PATIENCE: Duration = Duration::from_secs(30);
/// After so long each time.
const AGAIN: Duration = Duration::from_millis(1);

/// Which measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) place: usize,
    pub(super) oversampling: usize,
    pub(super) parallel: usize,
    pub(super) engine: Engine,
}

/// A disk that the originals can be read from.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) direct: bool,
}

impl Place {
    pub(super) fn new(name: String, path: PathBuf) -> Self {
        let direct = files::takes_direct(&path);
        Self { name, path, direct }
    }
}

/// What one run of a cell showed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) major_faults: u64,
    pub(super) rescored: u64,
    pub(super) recall: f64,
    pub(super) queries: usize,
}

/// A cell with its runs.
pub(super) struct Shown {
    pub(super) cell: Cell,
    pub(super) runs: Vec<Run>,
}

impl Cell {
    pub(super) fn text(&self, places: &[Place]) -> String {
        let Cell { oversampling, parallel, engine, .. } = self;
        format!("{}, oversampling {oversampling}, {parallel} in parallel, {engine}", places[self.place].name)
    }
}

impl Run {
    pub(super) fn iops(&self) -> f64 {
        self.reads as f64 / self.seconds.max(1e-9)
    }

    pub(super) fn text(&self) -> String {
        let Run { seconds, cpu_seconds, recall, .. } = self;
        format!("{seconds:.2} s, {:.0} reads/s, {cpu_seconds:.2} s of CPU, recall {recall:.4}", self.iops())
    }
}

impl Shown {
    pub(super) fn new(cell: Cell) -> Self {
        Self { cell, runs: Vec::new() }
    }

    pub(super) fn spread(&self, figure: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(&self.runs.iter().map(figure).collect::<Vec<_>>())
    }
}

impl Bench {
    /// One run from cold caches.
    pub(super) fn run(&self, place: &Place, cell: Cell, options: &Options, set: &Dataset) -> Result<Run> {
        self.pages.evict_all();
        // A mapping would hold its pages; that of the last run is gone with its handle.
        files::drop_file_from_page_cache(self.file())?;
        files::drop_file_from_page_cache(&place.path)?;
        // What the engine can do is tried out in the folder that can be written to.
        let disk: Arc<dyn Disk> = Arc::new(Local::new(cell.engine, self.folder())?);
        self.redirect.set(disk.clone(), &place.path)?;
        let run = self.search(&*disk, cell, options, set);
        self.redirect.clear();
        run
    }

    fn search(&self, disk: &dyn Disk, cell: Cell, options: &Options, set: &Dataset) -> Result<Run> {
        let (next, clock) = (AtomicUsize::new(0), SystemClock::new());
        let mut scratches = (0..cell.parallel).map(|_| Scratch::new(&self.root)).collect::<Result<Vec<_>>>()?;
        let (start, before) = (clock.now(), Usage::now());
        let parts: Vec<Result<(u64, u64)>> = std::thread::scope(|scope| {
            let one = |scratch| scope.spawn(|| self.ask(&next, scratch, cell, options, set));
            let threads: Vec<_> = scratches.iter_mut().map(one).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let (seconds, used) = ((clock.now() - start).as_secs_f64(), Usage::now());
        let (mut found, mut rescored) = (0, 0);
        for part in parts {
            let part = part?;
            found += part.0;
            rescored += part.1;
        }
        let counters = disk.counters();
        Ok(Run {
            seconds,
            cpu_seconds: used.cpu_seconds - before.cpu_seconds,
            major_faults: used.major_faults.saturating_sub(before.major_faults),
            reads: counters.reads,
            read_bytes: counters.read_bytes,
            rescored,
            recall: found as f64 / set.truth.len().max(1) as f64,
            queries: set.count(),
        })
    }

    /// One thread: takes queries until none is left. Right rows found, and originals scored.
    fn ask(
        &self,
        next: &AtomicUsize,
        scratch: &mut Scratch,
        cell: Cell,
        options: &Options,
        set: &Dataset,
    ) -> Result<(u64, u64)> {
        let params = SearchParams { ef: Some(options.ef), ..SearchParams::default() };
        let (mut hits, mut found, mut rescored): (Vec<Hit>, u64, u64) = (Vec::new(), 0, 0);
        let (mut query, clock) = (Vec::new(), SystemClock::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(truth) = set.truth.chunks(set.k).nth(number) else { return Ok((found, rescored)) };
            query.clear();
            query.extend_from_slice(set.query(number));
            if set.metric == ramekin_vecmath::Metric::Cosine {
                ramekin_vecmath::normalise(&mut query);
            }
            // Oversampling: so many times more candidates than are wanted are scored by their originals.
            let k = set.k * cell.oversampling;
            let mut search = || self.index.search_into(&self.pages, &query, k, &params, None, &mut *scratch, &mut hits);
            // Searches of a slow disk hold the cache for long: it is asked again, as a door does until a request's time is over.
            let until = clock.now() + PATIENCE;
            let mut searched = search();
            while searched.as_ref().is_err_and(|error| error.kind() == Kind::Busy) && clock.now() < until {
                // Those that hold it need the processor to let go of it.
                pause(AGAIN);
                searched = search();
            }
            searched?;
            found += hits.iter().take(set.k).filter(|hit| truth.contains(&hit.row)).count() as u64;
            rescored += scratch.profile.rescored;
        }
    }
}
