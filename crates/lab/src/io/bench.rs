//! The index that all cells search: built once, its codes loaded once.
//!
//! ```text
//!   OUT/io/bench.seg    the page file        OUT/io/bench.json   its meta, and what it was built from
//!   resident: centroids, clusters, codes of 1, 3 and 6 bits, row numbers        on disk: the originals
//! ```

use super::Options;
use super::redirect::Redirect;
use crate::dataset::Dataset;
use crate::files;
use crate::index::{IndexJob, write_index};
use crate::progress::Progress;
use ramekin_ann::{BuildOptions, Index, IndexMeta, Part, Source, batch_rows};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::{Disk, probe};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_vecmath::Datatype;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Bench {
    folder: PathBuf,
    file: PathBuf,
    pub(super) redirect: Arc<Redirect>,
    pub(super) pages: Pages,
    pub(super) index: Index,
    pub(super) root: Account,
    /// Bytes that are resident: codes and what leads to them.
    pub(super) resident: u64,
    /// Bytes of originals on disk.
    pub(super) originals: u64,
}

/// The vectors of a set as a build reads them.
struct Stream<'a> {
    set: &'a Dataset,
    at: usize,
}

impl Source for Stream<'_> {
    fn len(&self) -> usize {
        self.set.rows
    }

    fn dim(&self) -> usize {
        self.set.dim
    }

    fn rewind(&mut self) -> Result<()> {
        self.at = 0;
        Ok(())
    }

    fn next(&mut self, rows: &mut Vec<u32>, vectors: &mut Vec<f32>) -> Result<bool> {
        let end = (self.at + batch_rows(self.set.dim)).min(self.set.rows);
        rows.clear();
        rows.extend(self.at as u32..end as u32);
        *vectors = self.set.floats(self.at, end)?;
        if self.set.metric == ramekin_vecmath::Metric::Cosine {
            vectors.chunks_exact_mut(self.set.dim).for_each(|row| _ = ramekin_vecmath::normalise(row));
        }
        self.at = end;
        Ok(!rows.is_empty())
    }
}

impl Bench {
    pub(super) fn open(options: &Options, out: &Path, set: &Dataset, progress: &Progress) -> Result<Self> {
        let folder = out.join("io");
        files::make_folder(&folder)?;
        let (file, note) = (folder.join("bench.seg"), folder.join("bench.json"));
        let (below, _) = probe(&folder, None)?;
        let redirect = Arc::new(Redirect::new(below));
        let disk: Arc<dyn Disk> = redirect.clone();
        // Nothing is scarce here but the cache, which gets its limit below.
        let budget = Budget::new(1 << 50);
        let root = budget.root();
        let account = root.child("pages", "");
        let addresses = (set.rows as u64 * set.dim as u64 * 8).next_power_of_two().max(1 << 30);
        let pages = Pages::new(disk, account.clone(), &budget, addresses)?;
        let meta = match held(&note, set)? {
            Some(meta) if file.exists() => {
                progress.say(format!("{} is taken as it is", file.display()));
                meta
            }
            _ => make(options, &file, &note, set, &pages, &root, progress)?,
        };
        let opened = pages.open(&file, &root)?;
        let index = Index::open(&opened, 0, &meta, &root)?;
        let (mut resident, mut originals) = (0, 0);
        for (part, section) in index.sections() {
            match part {
                Part::Vectors => originals = section.len(),
                Part::Positions => {}
                _ => {
                    section.load()?;
                    resident += section.len();
                }
            }
        }
        // The 1 MiB that a cache always holds is in what is used already.
        account.set_limit(account.used() + options.cache.saturating_sub(1 << 20));
        progress.say(format!("{} resident, {} of originals on disk", Size(resident), Size(originals)));
        Ok(Self { folder, file, redirect, pages, index, root, resident, originals })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

fn signature(set: &Dataset) -> Value {
    json!({"vectors": set.name, "rows": set.rows, "dim": set.dim, "metric": format!("{:?}", set.metric)})
}

/// The meta of an index that was built of the same vectors.
fn held(note: &Path, set: &Dataset) -> Result<Option<IndexMeta>> {
    let Ok(text) = files::read_text(note) else { return Ok(None) };
    let wrong = |error: serde_json::Error| Error::malformed(error.to_string()).at(note.display());
    let held: Value = serde_json::from_str(&text).map_err(wrong)?;
    if held["built_of"] != signature(set) {
        return Ok(None);
    }
    serde_json::from_value(held["meta"].clone()).map(Some).map_err(wrong)
}

#[allow(clippy::too_many_arguments, reason = "a build with all it is handed")]
fn make(
    options: &Options,
    file: &Path,
    note: &Path,
    set: &Dataset,
    pages: &Pages,
    root: &Account,
    progress: &Progress,
) -> Result<IndexMeta> {
    files::remove_all(note)?;
    files::remove_all(file)?;
    let account = root.child("build", "").with_limit(options.build_memory);
    let report =
        |at: ramekin_ann::Progress| progress.tick(|| format!("build: {:?}, {} of {}", at.phase, at.done, at.total));
    let (mut source, options) = (Stream { set, at: 0 }, BuildOptions::default());
    let (metric, datatype) = (set.metric, Datatype::Float32);
    let job = IndexJob { source: &mut source, metric, datatype, options, account: &account, progress: &report };
    let meta = write_index(pages, file, job)?;
    let text = json!({"built_of": signature(set), "meta": meta});
    files::write_text(note, &format!("{text:#}\n"))?;
    progress.say(format!("built an index of {} lists", meta.lists));
    Ok(meta)
}
