//! Writes an index of some vectors as a page file: what `lab io` and a plan's trial search.

use crate::machine::cores;
use ramekin_ann::{BuildOptions, IndexMeta, Progress, Source, Work, build};
use ramekin_base::{Result, SystemClock, cancel};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_vecmath::{Datatype, Metric};
use std::path::Path;
use std::sync::Arc;

/// What an index is built of, and how.
pub struct IndexJob<'a> {
    pub source: &'a mut dyn Source,
    pub metric: Metric,
    pub datatype: Datatype,
    pub options: BuildOptions,
    /// Its limit is the memory of the build.
    pub account: &'a Account,
    pub progress: &'a dyn Fn(Progress),
}

/// Builds into `file`, a new page file, with temporary files beside it.
pub fn write_index(pages: &Pages, file: &Path, job: IndexJob<'_>) -> Result<IndexMeta> {
    let IndexJob { source, metric, datatype, options, account, progress } = job;
    let work = Work {
        disk: pages.disk().clone(),
        temp: file.parent().unwrap_or(file).to_path_buf(),
        account: account.clone(),
        clock: Arc::new(SystemClock::new()),
        seed: 1,
        threads: cores(),
        progress,
        cancelled: &|| cancel::check().is_err(),
    };
    let mut out = pages.create(file, account)?;
    let meta = build(source, metric, datatype, &mut out, 0, &work, &options)?;
    out.finish(b"")?;
    Ok(meta)
}
