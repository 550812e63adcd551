//! Where indexes are built in tests, and the slow way to search them.

use ramekin_ann::{BuildOptions, Hit, Index, IndexMeta, SliceSource, Source, Work, build};
use ramekin_base::{ManualClock, Result, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::SimDisk;
use ramekin_memory::{Account, Budget};
use ramekin_pages::{PageFile, Pages};
use ramekin_vecmath::{Datatype, Metric, normalise, score};
use std::path::Path;
use std::sync::Arc;

/// A disk, a cache, and what they are paid from.
pub struct World {
    pub account: Account,
    pub disk: Arc<dyn Disk>,
    pub pages: Pages,
    /// Of the vectors of all indexes here.
    pub datatype: Datatype,
}

impl World {
    pub fn new() -> Self {
        Self::of(Datatype::Float32)
    }

    pub fn of(datatype: Datatype) -> Self {
        let budget = Budget::new(1 << 30);
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1, Default::default()));
        disk.make_folder(Path::new("temp")).unwrap();
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 4 << 30).unwrap();
        Self { account: budget.root(), disk, pages, datatype }
    }

    pub fn build(
        &self,
        name: &str,
        source: &mut dyn Source,
        metric: Metric,
        memory: u64,
    ) -> Result<(Arc<PageFile>, IndexMeta)> {
        let account = self.account.child("build", "").with_limit(memory);
        let work = Work {
            disk: self.disk.clone(),
            temp: "temp".into(),
            account: account.clone(),
            clock: Arc::new(ManualClock::default()),
            seed: 7,
            threads: 2,
            progress: &|_| {},
            cancelled: &|| false,
        };
        let mut out = self.pages.create(Path::new(name), &self.account)?;
        let meta = build(source, metric, self.datatype, &mut out, 32, &work, &BuildOptions::default())?;
        out.finish(b"")?;
        assert_eq!(account.used(), 0, "the build gives everything back");
        assert!(self.disk.list(Path::new("temp"))?.is_empty(), "the build leaves no file behind");
        Ok((self.pages.open(Path::new(name), &self.account)?, meta))
    }

    pub fn index(&self, vectors: &[f32], dim: usize, metric: Metric) -> Index {
        let name = format!("{metric:?}-{dim}-{}.seg", vectors.len() / dim);
        let (file, meta) = self.build(&name, &mut SliceSource::new(vectors, dim), metric, 16 << 20).unwrap();
        let index = Index::open(&file, 32, &meta, &self.account).unwrap();
        index.check(&self.pages, &self.account).unwrap();
        index
    }
}

/// Points around centres, as real data are; of length 1 for Cosine.
pub fn clustered(count: usize, dim: usize, centres: usize, metric: Metric, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let heaps: Vec<f32> = (0..centres * dim).map(|_| rng.normal()).collect();
    let mut vectors = Vec::with_capacity(count * dim);
    for _ in 0..count {
        let centre = rng.below(centres as u64) as usize;
        let from = vectors.len();
        vectors.extend(heaps[centre * dim..(centre + 1) * dim].iter().map(|x| x + 0.6 * rng.normal()));
        if metric == Metric::Cosine {
            normalise(&mut vectors[from..]);
        }
    }
    vectors
}

/// The slow, obvious answer.
pub fn oracle(vectors: &[f32], query: &[f32], metric: Metric, k: usize, filter: &dyn Fn(u32) -> bool) -> Vec<Hit> {
    let rows = vectors.chunks_exact(query.len()).enumerate().filter(|(row, _)| filter(*row as u32));
    let mut hits: Vec<Hit> =
        rows.map(|(row, x)| Hit { index: 0, row: row as u32, score: score(metric, query, x) }).collect();
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
    hits.truncate(k);
    hits
}

/// How many of the wanted were found; a hit as good as the last wanted counts as one.
pub fn found(hits: &[Hit], wanted: &[Hit]) -> usize {
    let least = wanted.last().map_or(f32::MIN, |hit| hit.score);
    hits.iter().filter(|hit| hit.score >= least - 1e-6 * least.abs()).count().min(wanted.len())
}
