//! Builds an index over a .npy file and measures it: build time by phase, bytes by section, recall@10 and queries a
//! second, one query after the other on one thread.
//!
//! ```text
//!   ann_bench BASE.npy QUERY.npy [--truth TRUTH.npy] [--metric cosine] [--queries 10000] [--build-memory 256MiB]
//!             [--threads 2] [--dir DIR] [--reuse] [--budget 2GiB] [--resident all|codes6|codes3|codes1|none]
//!             [--ef 16,32,64,128,256] [--io uring|pread]
//! ```
//!
//! Without a truth the exact search of the index gives it. `--reuse` opens the index of an earlier run in DIR.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a program that measures: a failure may end it")]

use ramekin_ann::{
    BuildOptions, Hit, Index, IndexMeta, Part, Phase, Progress, Scratch, SearchParams, Source, Work, batch_rows, build,
};
use ramekin_base::{Clock, Error, Result, Size, SystemClock};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_vecmath::{Datatype, Metric};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A two-dimensional .npy file.
struct Npy {
    file: File,
    start: u64,
    rows: usize,
    dim: usize,
}

impl Npy {
    fn open(path: &str) -> Self {
        let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut head = [0; 10];
        file.read_exact_at(&mut head, 0).unwrap();
        assert_eq!(&head[..6], b"\x93NUMPY", "{path} is no .npy file");
        let len = u64::from(u16::from_le_bytes([head[8], head[9]]));
        let mut text = vec![0; len as usize];
        file.read_exact_at(&mut text, 10).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("'<f4'") || text.contains("'<i4'"), "{path} holds neither f32 nor i32: {text}");
        let shape = text.split("'shape': (").nth(1).unwrap().split(')').next().unwrap();
        let shape: Vec<usize> = shape.split(',').filter_map(|part| part.trim().parse().ok()).collect();
        Self { file, start: 10 + len, rows: shape[0], dim: shape[1] }
    }

    fn bytes(&self, from: usize, to: usize) -> Vec<u8> {
        let mut bytes = vec![0; (to - from) * self.dim * 4];
        self.file.read_exact_at(&mut bytes, self.start + (from * self.dim * 4) as u64).unwrap();
        bytes
    }

    fn floats(&self, from: usize, to: usize) -> Vec<f32> {
        self.bytes(from, to).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// Streams a .npy file as the store streams its segments.
struct NpySource {
    npy: Npy,
    at: usize,
}

impl Source for NpySource {
    fn len(&self) -> usize {
        self.npy.rows
    }

    fn dim(&self) -> usize {
        self.npy.dim
    }

    fn rewind(&mut self) -> Result<()> {
        self.at = 0;
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        let end = (self.at + batch_rows(self.npy.dim)).min(self.npy.rows);
        rows.clear();
        rows.extend(self.at as u32..end as u32);
        vectors.resize((end - self.at) * self.npy.dim, 0.0);
        let bytes = zerocopy::IntoBytes::as_mut_bytes(vectors.as_mut_slice());
        self.npy
            .file
            .read_exact_at(bytes, self.npy.start + (self.at * self.npy.dim * 4) as u64)
            .map_err(Error::from)?;
        self.at = end;
        Ok(!rows.is_empty())
    }
}

/// Seconds that this thread was on a processor: what a busy machine does not lengthen much.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

struct Flags(Vec<String>);

impl Flags {
    fn get<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        let at = self.0.iter().position(|flag| flag == name);
        at.and_then(|at| self.0.get(at + 1)).map_or(default, String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|flag| flag == name)
    }
}

fn main() -> Result<()> {
    let flags = Flags(std::env::args().skip(1).collect());
    let (base, query) = (Npy::open(&flags.0[0]), Npy::open(&flags.0[1]));
    let metric = match flags.get("--metric", "cosine") {
        "dot" => Metric::Dot,
        "euclid" => Metric::Euclid,
        "manhattan" => Metric::Manhattan,
        _ => Metric::Cosine,
    };
    let dir = PathBuf::from(flags.get("--dir", "/tmp/ann-bench-work"));
    std::fs::create_dir_all(&dir).unwrap();
    let budget = Budget::new(Size::parse(flags.get("--budget", "2GiB"))?.0);
    let root = budget.root();
    let (disk, engine) = ramekin_disk::probe(&dir, flags.get("--io", "uring").parse().ok())?;
    println!("{engine}; SIMD {}", ramekin_vecmath::level());
    let pages = Pages::new(disk.clone(), root.child("pages", ""), &budget, 16 << 30)?;
    let (file, meta_file) = (dir.join("bench.seg"), dir.join("bench.json"));
    if !flags.has("--reuse") || !meta_file.exists() {
        let _ = std::fs::remove_file(&file);
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("ann-") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let work_memory = Size::parse(flags.get("--build-memory", "256MiB"))?;
        let account = root.child("build", "").with_limit(work_memory.0);
        let threads = flags.get("--threads", "2").parse().unwrap();
        let recall = flags.get("--recall", "0.95").parse().unwrap();
        let meta = run_build(base, metric, &pages, &file, &dir, account, threads, recall)?;
        std::fs::write(&meta_file, serde_json::to_vec(&meta).unwrap()).unwrap();
    }
    let meta: IndexMeta = serde_json::from_slice(&std::fs::read(&meta_file).unwrap()).unwrap();
    let opened = pages.open(&file, &root)?;
    let index = Index::open(&opened, 0, &meta, &root)?;
    for (part, bytes) in meta.section_bytes()? {
        println!("  {:<10} {:>12} bytes {:>8.2} a vector", part.name(), bytes, bytes as f64 / index.len() as f64);
    }
    if flags.has("--curve") {
        for step in &meta.curve.steps {
            println!("  {step:?}");
        }
    }
    make_resident(&index, flags.get("--resident", "all"))?;
    if flags.has("--check") {
        index.check(&pages, &root)?;
        println!("checked");
    }
    measure(&index, &pages, &query, &flags, &root)
}

#[allow(clippy::too_many_arguments, reason = "a program that measures")]
fn run_build(
    base: Npy,
    metric: Metric,
    pages: &Pages,
    file: &std::path::Path,
    dir: &std::path::Path,
    account: Account,
    threads: usize,
    recall: f32,
) -> Result<IndexMeta> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let laps: RefCell<Vec<(Phase, Duration)>> = RefCell::default();
    let peak = Cell::new(0u64);
    let told = |progress: Progress| {
        let mut laps = laps.borrow_mut();
        let now = clock.now();
        peak.set(account.used().max(peak.get()));
        match laps.last_mut() {
            Some((phase, end)) if *phase == progress.phase => *end = now,
            _ => laps.push((progress.phase, now)),
        }
    };
    let work = Work {
        disk: pages.disk().clone(),
        temp: dir.to_path_buf(),
        account: account.clone(),
        clock: clock.clone(),
        seed: 1,
        threads,
        progress: &told,
        cancelled: &|| false,
    };
    let mut out = pages.create(file, &account)?;
    let options = BuildOptions { recall, ..BuildOptions::default() };
    let meta = build(&mut NpySource { npy: base, at: 0 }, metric, Datatype::Float32, &mut out, 0, &work, &options)?;
    out.finish(b"")?;
    let total = clock.now();
    let mut before = Duration::ZERO;
    for (phase, end) in laps.borrow().iter() {
        println!("  {phase:?} {:.2} s", (*end - before).as_secs_f64());
        before = *end;
    }
    let (peak, limit) = (Size(peak.get()), Size(account.limit()));
    println!(
        "built in {:.2} s; {} lists; working memory between batches {peak} of {limit}",
        total.as_secs_f64(),
        meta.lists
    );
    Ok(meta)
}

/// Loads sections from the most wanted to the one that is named.
fn make_resident(index: &Index, until: &str) -> Result<()> {
    let last = match until {
        "none" => return Ok(()),
        "centroids" => Part::Clusters,
        "codes1" => Part::Rows,
        "codes3" => Part::Codes3,
        "codes6" => Part::Codes6,
        _ => Part::Vectors,
    };
    for (part, section) in index.sections() {
        section.load()?;
        if part == last {
            break;
        }
    }
    Ok(())
}

fn measure(index: &Index, pages: &Pages, query: &Npy, flags: &Flags, root: &Account) -> Result<()> {
    let count = query.rows.min(flags.get("--queries", "10000").parse().unwrap());
    let queries = query.floats(0, count);
    let k: usize = flags.get("--k", "10").parse().unwrap();
    let mut scratch = Scratch::new(root)?;
    let asked = |at: usize| &queries[at * query.dim..(at + 1) * query.dim];
    let truth: Vec<Vec<u32>> = match flags.get("--truth", "") {
        "" => {
            let params = SearchParams { exact: true, ..SearchParams::default() };
            let exact = |at: usize, scratch: &mut Scratch| index.search(pages, asked(at), k, &params, None, scratch);
            (0..count.min(500))
                .map(|at| exact(at, &mut scratch).map(|hits| hits.iter().map(|hit| hit.row).collect()))
                .collect::<Result<_>>()?
        }
        path => {
            let npy = Npy::open(path);
            let bytes = npy.bytes(0, count);
            let rows = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
            let rows: Vec<u32> = rows.collect();
            rows.chunks_exact(npy.dim).map(|row| row[..k].to_vec()).collect()
        }
    };
    let clock = SystemClock::new();
    let mut efs: Vec<Option<usize>> = vec![None];
    efs.extend(flags.get("--ef", "16,32,64,128,256").split(',').filter_map(|ef| ef.parse().ok()).map(Some));
    println!(
        "ef        recall   q/s  lists   codes  refined rescored  pages  reads | cpu us    p10    p50 | coarse, scan, rescore us"
    );
    for ef in efs {
        let nprobe = flags.get("--probes", "").parse().ok();
        let params = SearchParams { ef, nprobe, ..SearchParams::default() };
        let mut hits: Vec<Hit> = Vec::new();
        let timed = SearchParams { clock: Some(&clock), ..params };
        let (mut found, mut wanted) = (0, 0);
        let mut sums = [0u64; 8];
        for (at, truth) in truth.iter().enumerate() {
            index.search_into(pages, asked(at), k, &timed, None, &mut scratch, &mut hits)?;
            found += hits.iter().filter(|hit| truth.contains(&hit.row)).count();
            wanted += truth.len();
            let profile = scratch.profile;
            let numbers = [
                profile.clusters,
                profile.codes,
                profile.refined,
                profile.rescored,
                profile.pages,
                profile.coarse_us,
                profile.scan_us,
                profile.rescore_us,
            ];
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        let reads = pages.disk().counters();
        let (start, cpu, mut done) = (clock.now(), on_cpu(), 0);
        // The second round of the same queries may find pages in the cache that the first brought in; with a cache
        // smaller than the vectors that is what a server in use would see.
        let mut laps = Vec::with_capacity(count);
        for at in 0..count {
            let begun = clock.now();
            index.search_into(pages, asked(at), k, &params, None, &mut scratch, &mut hits)?;
            let ended = clock.now();
            laps.push((ended - begun).as_secs_f64() * 1e6);
            done += 1;
            if (ended - start).as_secs() >= 5 {
                break;
            }
        }
        laps.sort_unstable_by(f64::total_cmp);
        let (seconds, cpu) = ((clock.now() - start).as_secs_f64(), on_cpu() - cpu);
        let reads = (pages.disk().counters().reads - reads.reads) as f64 / done as f64;
        let mean = |at: usize| sums[at] as f64 / truth.len() as f64;
        println!(
            "{:<8} {:>7.4} {:>6.0} {:>6.1} {:>8.0} {:>7.0} {:>7.1} {:>7.1} {:>6.1} | {:>6.1} {:>6.1} {:>6.1} | {:.1} {:.1} {:.1}",
            ef.map_or("default".to_owned(), |ef| ef.to_string()),
            found as f64 / wanted as f64,
            done as f64 / seconds,
            mean(0),
            mean(1),
            mean(2),
            mean(3),
            mean(4),
            reads,
            cpu / done as f64 * 1e6,
            laps[done / 10],
            laps[done / 2],
            mean(5),
            mean(6),
            mean(7),
        );
    }
    Ok(())
}
