//! The index of a payload field over a segment: a file of its own, replaced as a whole.
//!
//! ```text
//!   rows that changed after the run of patches that is in it are stale: their payloads are asked, until it is built again
//! ```

use crate::segment::overlay::PatchRun;
use crate::segment::{Segment, SegmentView};
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_fields::{Bitmap, Bitmaps, Index, Path, Schema};
use ramekin_pages::Pages;
use ramekin_storage::Storage;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An index is built again where more than one row of so many is stale.
const STALE_PART: u64 = 16;

/// As the manifest keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FieldJson {
    pub(crate) path: Path,
    pub(crate) schema: Arc<Schema>,
    pub(crate) file: String,
    /// The run of changed payloads that is in it.
    pub(crate) run: Option<String>,
    /// Of texts, which version of the tokenizer made its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<Box<str>>,
}

/// An open `.field` file.
pub(crate) struct FieldIndex {
    pub(crate) path: Path,
    pub(crate) schema: Arc<Schema>,
    pub(crate) index: Index,
    name: String,
    run: Option<String>,
    /// A manifest may name it.
    pub(crate) listed: AtomicBool,
    /// With how many dead rows those that are alive and have a value were counted, and how many they were.
    counted: Mutex<Option<(u64, u64)>>,
}

impl Drop for FieldIndex {
    fn drop(&mut self) {
        if !self.listed.load(Ordering::SeqCst) {
            self.index.file().remove_on_drop();
        }
    }
}

impl FieldIndex {
    pub(crate) fn open(storage: &Storage, json: &FieldJson, points: u32) -> Result<Self> {
        let index = Index::open(storage.open_file(&json.file)?).map_err(|error| error.at(&json.file))?;
        if index.meta().rows != points {
            return Err(Error::corrupt("an index of a field has other rows than its segment").at(&json.file));
        }
        let listed = AtomicBool::new(true);
        let (name, run) = (json.file.clone(), json.run.clone());
        let (path, schema, counted) = (json.path.clone(), json.schema.clone(), Mutex::default());
        Ok(Self { path, schema, index, name, run, listed, counted })
    }

    /// Rows of its segment that are alive and have a value. They are counted when others have died, by a bit a row; where that
    /// is not told, or cannot be read, they are said to be as many as they can be.
    pub(crate) fn living(&self, pages: &Pages, pool: &Arc<Bitmaps>, segment: &SegmentView) -> Result<u64> {
        let (rows, held) = (u64::from(self.index.meta().rows), u64::from(self.index.meta().held));
        let dead = segment.dead.count();
        if dead == 0 || held == 0 || held == rows {
            return Ok(held.min(rows - dead));
        }
        if let Some((_, living)) = self.counted.lock().filter(|(then, _)| *then == dead) {
            return Ok(living);
        }
        let mut living = Bitmap::all(rows as usize, pool)?;
        if !self.index.keep_held(pages, &mut living)? {
            return Ok(held.min(rows - dead));
        }
        segment.dead.clear_in(living.words_mut());
        let living = living.count();
        *self.counted.lock() = Some((dead, living));
        Ok(living)
    }

    /// The run of changed payloads that is in it.
    pub(crate) fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// The name of its file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn json(&self) -> FieldJson {
        FieldJson {
            path: self.path.clone(),
            schema: self.schema.clone(),
            file: self.name.clone(),
            run: self.run.clone(),
            tokens: self.index.meta().tokens.clone(),
        }
    }

    /// Of a segment's runs, oldest first, those whose changes are not in it.
    fn newer<'a>(&self, runs: &'a [Arc<PatchRun>]) -> &'a [Arc<PatchRun>] {
        newer(self.run.as_deref(), runs)
    }
}

/// The indexes of a segment. One that is damaged, for which there is no memory now, whose words were made otherwise than now,
/// or that does not say what its keys leave out, is left out: it is built again, and until then its field is looked at in the
/// payloads.
pub(crate) fn open_all(storage: &Storage, kept: &[FieldJson], points: u32) -> Result<Arc<[Arc<FieldIndex>]>> {
    let mut opened = Vec::with_capacity(kept.len());
    for json in kept {
        if !json.schema.has_tokens_of(json.tokens.as_deref()) {
            let was = json.tokens.as_deref().unwrap_or("no version");
            tracing::info!(file = json.file, was, now = json.schema.tokens(), "an index of words is built again");
            continue;
        }
        match FieldIndex::open(storage, json, points) {
            Ok(field) if !field.index.meta().is_current() => {
                tracing::info!(file = json.file, "an index of an earlier form is built again");
            }
            Ok(field) => opened.push(Arc::new(field)),
            Err(error) if error.kind() == Kind::Corrupt || error.kind().is_memory() => {
                tracing::warn!("an index is built again: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(opened.into())
}

/// The rows of a segment whose payloads may differ from what one of these indexes says; `None`: there are none.
pub(crate) fn stale(segment: &SegmentView, fields: &[Arc<FieldIndex>], pool: &Arc<Bitmaps>) -> Result<Option<Bitmap>> {
    let (patches, runs) = (&segment.patches, segment.patches.runs());
    if patches.len() == 0 && runs.is_empty() {
        return Ok(None);
    }
    let mut stale = Bitmap::none(segment.meta.points as usize, pool)?;
    patches.each_row(&mut |row| stale.set(row));
    let newer = fields.iter().map(|field| field.newer(runs)).max_by_key(|runs| runs.len()).unwrap_or_default();
    newer.iter().for_each(|run| run.changed.mark(stale.words_mut()));
    Ok((stale.next(0).is_some()).then_some(stale))
}

/// The index of a field over a segment, if there is one. Of some rows those that are alive and that it knows are left; the
/// others that are alive come back.
pub(crate) fn known(
    segment: &SegmentView,
    (path, schema): (&Path, &Schema),
    rows: &mut Bitmap,
    pool: &Arc<Bitmaps>,
) -> Result<(Option<Arc<FieldIndex>>, Option<Bitmap>)> {
    let own = segment.fields.iter().find(|field| field.path == *path && *field.schema == *schema).cloned();
    segment.dead.clear_in(rows.words_mut());
    let mut unknown = match &own {
        Some(own) => stale(segment, std::slice::from_ref(own), pool)?,
        None => Some(Bitmap::all(rows.rows(), pool)?),
    };
    if let Some(unknown) = &mut unknown {
        unknown.and(rows);
        rows.and_not(unknown);
    }
    Ok((own, unknown))
}

/// Rows of a segment that are stale to what was built with this run, or a few more.
pub(crate) fn stale_rows(segment: &Segment, run: Option<&str>) -> u64 {
    let patches = segment.patches.view();
    patches.len() as u64 + newer(run, patches.runs()).iter().map(|run| run.len()).sum::<u64>()
}

/// Of a segment's runs, oldest first, those that came after one.
fn newer<'a>(run: Option<&str>, runs: &'a [Arc<PatchRun>]) -> &'a [Arc<PatchRun>] {
    match (run, runs.first()) {
        (Some(own), Some(first)) if *own == first.name => &runs[1..],
        _ => runs,
    }
}

/// Whether so many rows are worth a new index.
pub(crate) fn is_much(rows: u64, segment: &Segment) -> bool {
    rows * STALE_PART > u64::from(segment.meta.points)
}
