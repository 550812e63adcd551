//! A sample of the vectors, indexed twice and searched as the plan says: how recall, reads and speed will be.
//!
//! ```text
//!   sample ─► queries, held out
//!          ├► an index of all the rest ────► searched by 8 threads, with these parts resident ─► recall, reads, time
//!          └► an index of a fifth of it ───► the same      ─► how each grows with the number of vectors (a power)
//! ```
//!
//! Both are searched through the engine and on the disk of the data folder, past the page cache, with a cache of our own
//! that is as small against them as the planned one is against all.

use super::guess;
use crate::exact::nearest;
use crate::files;
use crate::index::{IndexJob, write_index};
use crate::machine::cores;
use crate::usage::Usage;
use ramekin_ann::{BuildOptions, Index, Part, Scratch, SearchParams, SliceSource};
use ramekin_base::{Clock, Error, Result, SystemClock, cancel};
use ramekin_disk::probe;
use ramekin_memory::{Account, Budget};
use ramekin_pages::{Pages, RESERVE};
use ramekin_vectors::VectorConfig;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Queries that are held out of a sample, and the share of it that they may be.
const QUERIES: usize = 1_000;
const QUERIES_SHARE: usize = 10;
/// Fewer vectors than this tell too little.
pub const LEAST: usize = 2_000;
/// The smaller of the two indexes has a fifth of the rows of the larger.
const SMALLER: usize = 5;
/// Threads that search: as many as a server has.
const THREADS: usize = ramekin_node::READERS;
/// A measurement goes on for so long.
const MEASURE_S: f64 = 0.4;
/// Queries that are asked one by one, each with an empty cache.
const COLD_QUERIES: usize = 100;
const K: usize = 10;
/// Memory of a build at most: what a merge has under 128 MiB.
const BUILD_BYTES: u64 = 24 << 20;
/// Of one thread that searches: its scratch, about; its stack and its ring.
const SCRATCH_BYTES: u64 = 256 << 10;
const THREAD_BYTES: u64 = 128 << 10;

/// A build of few vectors needs less.
fn build_bytes(rows: usize, dim: usize) -> u64 {
    ((rows * dim * 4) as u64).clamp(4 << 20, BUILD_BYTES).max(dim as u64 * 4096)
}

/// Some vectors of a collection to be.
pub struct Sample {
    pub dim: usize,
    /// One after another.
    pub vectors: Vec<f32>,
}

/// What a search of one index did.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    recall: f64,
    /// With the cache that there will be, and with none.
    reads: f64,
    cold_reads: f64,
    /// The processor's seconds of a query without its reads, and of one read.
    search_s: f64,
    read_s: f64,
}

/// What a search will do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Predicted {
    pub(super) recall: f64,
    pub(super) reads: f64,
    /// The processor's seconds of a query.
    pub(super) cpu_s: f64,
}

/// The sample, indexed.
pub(super) struct Trial {
    folder: PathBuf,
    vector: VectorConfig,
    /// The wished one.
    recall: f32,
    queries: Vec<f32>,
    large: Built,
    small: Built,
}

struct Built {
    rows: usize,
    index: Index,
    pages: Pages,
    cache: Account,
    root: Account,
    truth: Vec<u32>,
}

impl Trial {
    /// Indexes the sample in `folder`, which is made anew, and removed in the end.
    pub(super) fn new(folder: &Path, sample: Sample, vector: &VectorConfig, recall: f32) -> Result<Self> {
        let Sample { dim, vectors } = sample;
        let rows = vectors.len() / dim;
        if rows < LEAST {
            return Err(Error::invalid(format!("a sample of {rows} vectors tells too little; {LEAST} at least")));
        }
        let held_out = QUERIES.min(rows / QUERIES_SHARE);
        let (mut vectors, mut queries) = hold_out(vectors, dim, rows / held_out);
        vectors.chunks_exact_mut(dim).chain(queries.chunks_exact_mut(dim)).for_each(|row| vector.keep(row));
        queries.chunks_exact_mut(dim).for_each(|query| vector.ask(query));
        let folder = folder.to_path_buf();
        files::remove_all(&folder)?;
        files::make_folder(&folder)?;
        let built =
            |rows: usize, name: &str| Built::new(&folder.join(name), &vectors[..rows * dim], vector, recall, &queries);
        let rows = vectors.len() / dim;
        let both = built(rows, "large").and_then(|large| Ok((large, built(rows / SMALLER, "small")?)));
        match both {
            Ok((large, small)) => Ok(Self { folder, vector: vector.clone(), recall, queries, large, small }),
            Err(error) => {
                files::remove_all(&folder)?;
                Err(error)
            }
        }
    }

    /// Whether it tells how another vector will be searched.
    pub(super) fn is_of(&self, vector: &VectorConfig) -> bool {
        let like = |vector: &VectorConfig| (vector.dim, vector.metric, vector.datatype);
        like(vector) == like(&self.vector)
    }

    /// What a search of `points` vectors will do with these parts resident and so much cache.
    pub(super) fn predict(&self, points: u64, resident: &[Part], cache: u64) -> Result<Predicted> {
        let measure = |built: &Built| {
            let share = (cache as f64 * built.rows as f64 / points.max(1) as f64) as u64;
            built.measure(&self.queries, resident, share)
        };
        let (small, large) = (measure(&self.small)?, measure(&self.large)?);
        let (from, to) = (self.large.rows as f64 / self.small.rows as f64, points as f64 / self.large.rows as f64);
        // From one size to five times it something grew by a factor: so it goes on, as a power of the rows.
        let grown = |of: fn(&Measured) -> f64, power: f64| {
            let (small, large) = (of(&small), of(&large));
            match small > 0.0 && large > 0.0 {
                true => large * to.powf(((large / small).ln() / from.ln() * power).clamp(0.0, MOST_GROWTH)),
                false => large,
            }
        };
        // What the cache spares is known best of the larger one, of which it holds about the same share.
        let spared = if large.cold_reads > 0.0 { (large.reads / large.cold_reads).min(1.0) } else { 0.0 };
        let reads = grown(|of| of.cold_reads, READS_GROWTH) * spared;
        let search_s = grown(|of| of.search_s, 1.0);
        // Each index aims at a recall. Below it one is by chance, and the less the more of its points it tries.
        let aimed_at = f64::from(ramekin_ann::with_safety_margin(self.recall));
        let recall = large.recall.max(aimed_at + (large.recall - aimed_at) / to.max(1.0).sqrt());
        Ok(Predicted { recall, reads, cpu_s: search_s + reads * large.read_s * READ_IN_SERVER })
    }
}

/// Takes every `step`-th vector out: the others, and those.
fn hold_out(vectors: Vec<f32>, dim: usize, step: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut rest, mut taken) = (Vec::with_capacity(vectors.len()), Vec::new());
    for (at, row) in vectors.chunks_exact(dim).enumerate() {
        if at % step == step / 2 { taken.extend_from_slice(row) } else { rest.extend_from_slice(row) }
    }
    (rest, taken)
}

/// What a search does grows no faster than so with the number of vectors: lists and their lengths both with its root.
const MOST_GROWTH: f64 = 0.6;
/// Reads grow as neighbours share fewer pages, which slows down as they near the number of candidates: of five sets of
/// vectors, with a third of the power that was seen between the two samples.
const READS_GROWTH: f64 = 1.0 / 3.0;
/// The processor's seconds of a read, at least and at most.
const READ_S: (f64, f64) = (2e-6, 60e-6);
/// A read in a server costs so many times what it costs in a trial: other threads want the cores and their caches.
const READ_IN_SERVER: f64 = 1.25;

impl Drop for Trial {
    fn drop(&mut self) {
        // Nothing of it is worth an error.
        let _ = files::remove_all(&self.folder);
    }
}

impl Built {
    fn new(folder: &Path, vectors: &[f32], vector: &VectorConfig, recall: f32, queries: &[f32]) -> Result<Self> {
        let (dim, metric, datatype) = (vector.dim, vector.metric.metric(), vector.datatype);
        files::make_folder(folder)?;
        let (disk, _) = probe(folder, None)?;
        // Nothing is scarce here but the cache, which gets its limit for each measurement.
        let budget = Budget::new(1 << 50);
        let (root, cache) = (budget.root(), budget.root().child("pages", ""));
        let addresses = (vectors.len() as u64 * 16).next_power_of_two().max(1 << 30);
        let pages = Pages::new(disk, cache.clone(), &budget, addresses)?;
        let account = root.child("build", "").with_limit(build_bytes(vectors.len() / dim, dim));
        let (file, mut source) = (folder.join("sample.seg"), SliceSource::new(vectors, dim));
        let options = BuildOptions { recall, ..BuildOptions::default() };
        let job = IndexJob { source: &mut source, metric, datatype, options, account: &account, progress: &|_| {} };
        let meta = write_index(&pages, &file, job)?;
        let index = Index::open(&pages.open(&file, &root)?, 0, &meta, &root)?;
        let base = |from: usize, to: usize| Ok(vectors[from * dim..to * dim].to_vec());
        let rows = vectors.len() / dim;
        let truth = nearest(&base, rows, queries, dim, metric, K, &|_| {})?;
        Ok(Self { rows, index, pages, cache, root, truth })
    }

    /// As planned; then with what queries read in memory, which tells what reads cost; and the same by as many threads as there
    /// are cores, which is how many searches of a server compute at a time.
    fn measure(&self, queries: &[f32], resident: &[Part], cache: u64) -> Result<Measured> {
        let asked = self.search(queries, resident, cache, THREADS)?;
        let whole = [resident, &[Part::Rows, Part::Vectors]].concat();
        let has_reads = asked.reads >= 1.0;
        let still = if has_reads { self.search(queries, &whole, cache, THREADS)? } else { asked };
        let spared = asked.reads - still.reads;
        let read_s = match spared >= 1.0 {
            true => ((asked.search_s - still.search_s) / spared).clamp(READ_S.0, READ_S.1),
            false => guess::READ_S,
        };
        let alone = self.search(queries, if has_reads { &whole } else { resident }, cache, cores())?;
        Ok(Measured { read_s, search_s: (alone.search_s - alone.reads * read_s).max(1e-6), ..asked })
    }

    /// Searches for a while; `search_s` is of the whole query.
    fn search(&self, queries: &[f32], resident: &[Part], cache: u64, threads: usize) -> Result<Measured> {
        self.cache.set_limit(u64::MAX);
        for (part, section) in self.index.sections() {
            if resident.contains(&part) { section.load()? } else { section.unload() }
        }
        let cold_reads = self.cold_reads(queries)?;
        self.pages.evict_all();
        self.cache.set_limit(self.cache.used().max(RESERVE) + cache.saturating_sub(RESERVE));
        let pages = self.pages.counted();
        let (clock, next, found) = (SystemClock::new(), AtomicUsize::new(0), AtomicU64::new(0));
        let mut scratches = (0..threads).map(|_| Scratch::new(&self.root)).collect::<Result<Vec<_>>>()?;
        let start = clock.now();
        let goes_on = || (clock.now() - start).as_secs_f64() < MEASURE_S;
        // The threads work for who waits here.
        let token = cancel::current().unwrap_or_default();
        let ask = |scratch| self.ask(&pages, queries, scratch, &next, &found, &goes_on);
        let asked: Vec<Result<(u64, f64)>> = std::thread::scope(|scope| {
            let one = |scratch| scope.spawn(|| cancel::scope(&token, || ask(scratch)));
            let threads: Vec<_> = scratches.iter_mut().map(one).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|asked| asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let (mut count, mut cpu_s) = (0, 0.0);
        for one in asked {
            let (asked, used) = one?;
            count += asked;
            cpu_s += used;
        }
        let asked = count as f64;
        Ok(Measured {
            recall: found.into_inner() as f64 / (asked * K.min(self.rows) as f64),
            reads: pages.fetch_stats().reads as f64 / asked,
            cold_reads,
            search_s: cpu_s / asked,
            read_s: 0.0,
        })
    }

    /// Reads of a query that finds nothing in the cache.
    fn cold_reads(&self, queries: &[f32]) -> Result<f64> {
        let params = SearchParams::default();
        let (pages, mut scratch) = (self.pages.counted(), Scratch::new(&self.root)?);
        let queries = queries.chunks_exact(self.index.dim()).take(COLD_QUERIES);
        let count = queries.len().max(1);
        for query in queries {
            cancel::check()?;
            self.pages.evict_all();
            self.index.search(&pages, query, K, &params, None, &mut scratch)?;
        }
        Ok(pages.fetch_stats().reads as f64 / count as f64)
    }

    /// One thread: each query once, and then on as long as `goes_on`. Returns how many it asked, and its own seconds of the
    /// processor.
    fn ask(
        &self,
        pages: &Pages,
        queries: &[f32],
        scratch: &mut Scratch,
        next: &AtomicUsize,
        found: &AtomicU64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(u64, f64)> {
        let (dim, params) = (self.index.dim(), SearchParams::default());
        let count = queries.len() / dim;
        let (mut hits, mut asked) = (Vec::new(), 0);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count && !goes_on() {
                return Ok((asked, Usage::of_thread().cpu_seconds));
            }
            cancel::check()?;
            let number = number % count;
            let query = &queries[number * dim..(number + 1) * dim];
            self.index.search_into(pages, query, K, &params, None, scratch, &mut hits)?;
            let truth = &self.truth[number * self.truth.len() / count..(number + 1) * self.truth.len() / count];
            let right = hits.iter().filter(|hit| truth.contains(&hit.row)).count();
            found.fetch_add(right as u64, Ordering::Relaxed);
            asked += 1;
        }
    }
}

/// Memory of a trial with a sample of so many vectors, at its peak: the sample itself, both indexes with everything of them
/// resident, one build, and what searches hold.
pub fn bytes(rows: usize, dim: usize) -> u64 {
    let sample = (rows * dim * 4) as u64;
    let indexes = (sample + (rows * (dim * 2 + 32)) as u64) * (SMALLER as u64 + 1) / SMALLER as u64;
    sample
        + indexes
        + build_bytes(rows, dim)
        + (THREADS + cores()) as u64 * (SCRATCH_BYTES + THREAD_BYTES)
        + RESERVE * 2
}
