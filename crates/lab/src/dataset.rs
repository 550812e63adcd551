//! What is searched, and what is right: base vectors, held-out queries, their exact neighbours.
//!
//! ```text
//!   --base FILE --query FILE [--truth FILE]     or     --synthetic N,DIM,SEED
//!                               └─ without: computed here, on all cores
//! ```

use crate::exact::nearest;
use crate::progress::Progress;
use crate::synthetic::Synthetic;
use crate::vectors::VectorFile;
use ramekin_base::{Error, Result};
pub use ramekin_vecmath::Metric;
use std::path::PathBuf;

/// Neighbours that recall is counted over.
pub const K: usize = 10;
/// Queries where nothing is said.
const QUERIES: usize = 10_000;
/// The same for synthetic vectors, of which people want to be done soon.
const QUERIES_SYNTHETIC: usize = 1_000;

/// Where vectors come from.
#[derive(Debug, Clone, Default)]
pub struct DatasetRequest {
    pub base: Option<PathBuf>,
    pub query: Option<PathBuf>,
    pub truth: Option<PathBuf>,
    pub synthetic: Option<Synthetic>,
    /// Only the first so many of the base.
    pub rows: Option<usize>,
    /// Only the first so many queries.
    pub queries: Option<usize>,
}

enum Base {
    File(VectorFile),
    Memory(Vec<f32>),
}

/// A set of vectors, open.
pub struct Dataset {
    pub name: String,
    base: Base,
    pub rows: usize,
    pub dim: usize,
    pub metric: Metric,
    /// One query after another.
    pub queries: Vec<f32>,
    /// The numbers of the nearest rows, [`Dataset::k`] a query.
    pub truth: Vec<u32>,
    pub k: usize,
}

/// A metric by the name that `--metric` takes.
pub fn metric_of(text: &str) -> Result<Metric> {
    match text {
        "cosine" => Ok(Metric::Cosine),
        "dot" => Ok(Metric::Dot),
        "euclid" => Ok(Metric::Euclid),
        "manhattan" => Ok(Metric::Manhattan),
        _ => Err(Error::invalid(format!("'{text}' is no metric; choose cosine, dot, euclid or manhattan"))),
    }
}

impl Dataset {
    pub fn open(asked: &DatasetRequest, metric: Metric, progress: &Progress) -> Result<Self> {
        if asked.rows == Some(0) || asked.queries == Some(0) {
            return Err(Error::invalid("--rows and --queries must be 1 at least"));
        }
        let mut set = match (&asked.synthetic, &asked.base, &asked.query) {
            (Some(synthetic), None, None) => Self::synthetic(*synthetic, asked, metric),
            (None, Some(_), Some(_)) => Self::files(asked, metric)?,
            _ => {
                let text = "vectors come either from --base FILE with --query FILE, or from --synthetic N,DIM,SEED";
                return Err(Error::invalid(text));
            }
        };
        set.k = K.min(set.rows);
        progress.say(format!("{}: {} x {}, {} queries", set.name, set.rows, set.dim, set.count()));
        set.truth = match &asked.truth {
            Some(path) => set.truth_of(path)?,
            None => {
                let base = |from, to| set.floats(from, to);
                let told = |done| progress.tick(|| format!("exact neighbours: {done} of {} rows", set.rows));
                nearest(&base, set.rows, &set.queries, set.dim, metric, set.k, &told)?
            }
        };
        Ok(set)
    }

    fn synthetic(asked: Synthetic, all: &DatasetRequest, metric: Metric) -> Self {
        let count = all.queries.unwrap_or(QUERIES_SYNTHETIC);
        let mut base = asked.draw(count);
        let queries = base.split_off(asked.rows * asked.dim);
        let rows = all.rows.unwrap_or(asked.rows).min(asked.rows);
        let name = format!("synthetic {},{},{}", asked.rows, asked.dim, asked.seed);
        Self { name, base: Base::Memory(base), rows, dim: asked.dim, metric, queries, truth: Vec::new(), k: K }
    }

    fn files(asked: &DatasetRequest, metric: Metric) -> Result<Self> {
        let (Some(base_path), Some(query_path)) = (&asked.base, &asked.query) else {
            return Err(Error::bug("files without names"));
        };
        let (base, query) = (VectorFile::open(base_path)?, VectorFile::open(query_path)?);
        if base.dim() != query.dim() {
            let text = format!("has {} dimensions, the base has {}", query.dim(), base.dim());
            return Err(Error::invalid(text).at(query_path.display()));
        }
        let count = query.rows().min(asked.queries.unwrap_or(QUERIES));
        let (rows, dim) = (asked.rows.unwrap_or(usize::MAX).min(base.rows()), base.dim());
        let name = base_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let queries = query.floats(0, count)?;
        Ok(Self { name, base: Base::File(base), rows, dim, metric, queries, truth: Vec::new(), k: K })
    }

    fn truth_of(&self, path: &std::path::Path) -> Result<Vec<u32>> {
        let file = VectorFile::open(path)?;
        if file.rows() < self.count() || file.dim() < self.k {
            let text = format!(
                "has {} x {} neighbours; {} x {} at least are needed",
                file.rows(),
                file.dim(),
                self.count(),
                self.k
            );
            return Err(Error::invalid(text).at(path.display()));
        }
        let all = file.numbers(0, self.count())?;
        let truth: Vec<u32> = all.chunks(file.dim()).flat_map(|row| row[..self.k].iter().copied()).collect();
        match truth.iter().find(|row| **row as usize >= self.rows) {
            Some(row) => {
                let text = format!("names row {row} of {}; leave it out to have the truth computed", self.rows);
                Err(Error::invalid(text).at(path.display()))
            }
            None => Ok(truth),
        }
    }

    /// How many queries there are.
    pub fn count(&self) -> usize {
        self.queries.len() / self.dim
    }

    pub fn query(&self, number: usize) -> &[f32] {
        &self.queries[number * self.dim..(number + 1) * self.dim]
    }

    /// Rows `from` to `to` of the base.
    pub fn floats(&self, from: usize, to: usize) -> Result<Vec<f32>> {
        match &self.base {
            Base::File(file) => file.floats(from, to),
            Base::Memory(all) => Ok(all[from * self.dim..to * self.dim].to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test writes its files")]
    use super::*;

    fn asked(synthetic: &str) -> DatasetRequest {
        DatasetRequest { synthetic: Some(synthetic.parse().unwrap()), queries: Some(4), ..DatasetRequest::default() }
    }

    #[test]
    fn a_synthetic_set_has_its_truth() {
        let set = Dataset::open(&asked("50,6,1"), Metric::Cosine, &Progress::new()).unwrap();
        assert_eq!((set.rows, set.dim, set.count(), set.truth.len()), (50, 6, 4, 40));
        let few = Dataset::open(&DatasetRequest { rows: Some(3), ..asked("50,6,1") }, Metric::Cosine, &Progress::new())
            .unwrap();
        assert_eq!((few.k, few.truth.len()), (3, 12));
    }

    #[test]
    fn files_that_do_not_fit_each_other_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, rows: u32, dim: u32| {
            let path = folder.path().join(name);
            let head = [rows.to_le_bytes(), dim.to_le_bytes()].concat();
            std::fs::write(&path, [head, vec![1; (rows * dim * 4) as usize]].concat()).unwrap();
            Some(path)
        };
        let base = write("b.fbin", 20, 3);
        let query = write("q.fbin", 2, 3);
        let open = |asked: &DatasetRequest| Dataset::open(asked, Metric::Euclid, &Progress::new());
        let good = DatasetRequest { base, query, ..DatasetRequest::default() };
        assert_eq!(open(&good).unwrap().truth.len(), 20);
        let wrong = [
            DatasetRequest { query: write("q4.fbin", 2, 4), ..good.clone() },
            DatasetRequest { truth: write("t.ibin", 1, 10), ..good.clone() },
            DatasetRequest { truth: write("far.ibin", 2, 10), ..good.clone() },
            DatasetRequest { query: None, ..good.clone() },
            DatasetRequest { synthetic: Some("9,9,9".parse().unwrap()), ..good.clone() },
        ];
        for asked in wrong {
            assert!(open(&asked).is_err(), "{asked:?}");
        }
        assert!(metric_of("cosin").unwrap_err().message().contains("manhattan"));
    }
}
