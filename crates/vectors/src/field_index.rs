//! The indexes of a segment's payload fields: a file for each, written in the background, replaced as a whole.
//!
//! ```text
//!   segment's payloads + one run of changed ones ─► `fields::build` ─► .field
//!
//!   rows that changed after that run are stale: their payloads are asked, until the index is built again
//! ```
//!
//! Whether an index is new, a segment is, or too much has changed: what is missing is built, and nothing else decides.

use crate::api::{CollectionConfig, FieldConfig};
use crate::background::{MERGE, Reporter, note};
use crate::collection::{Collection, View};
use crate::fold;
use crate::manifest;
use crate::merge::Cursor;
use crate::overlay::Run;
use crate::payload;
use crate::rest;
use crate::segment::Segment;
use crate::segment_write::Walk;
use crate::shared::Shared;
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Result};
use ramekin_fields::{Bitmap, Bitmaps, EachPayload, Index, Path, Payloads, Schema, Work};
use ramekin_memory::{Account, allocator_purge};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
}

impl Drop for FieldIndex {
    fn drop(&mut self) {
        if !self.listed.load(Ordering::SeqCst) {
            self.index.file().remove_on_drop();
        }
    }
}

impl FieldIndex {
    pub(crate) fn open(shared: &Shared, json: &FieldJson, points: u32) -> Result<Self> {
        let index = Index::open(shared.storage.open_file(&json.file)?).map_err(|error| error.at(&json.file))?;
        if index.meta().rows != points {
            return Err(Error::corrupt("an index of a field has other rows than its segment").at(&json.file));
        }
        let listed = AtomicBool::new(true);
        let (name, run) = (json.file.clone(), json.run.clone());
        Ok(Self { path: json.path.clone(), schema: json.schema.clone(), index, name, run, listed })
    }

    pub(crate) fn json(&self) -> FieldJson {
        FieldJson {
            path: self.path.clone(),
            schema: self.schema.clone(),
            file: self.name.clone(),
            run: self.run.clone(),
        }
    }

    /// Of a segment's runs, oldest first, those whose changes are not in it.
    fn newer<'a>(&self, runs: &'a [Arc<Run>]) -> &'a [Arc<Run>] {
        newer(self.run.as_deref(), runs)
    }
}

/// The indexes of a segment. One that is damaged, or for which there is no memory now, is left out: it is built again.
pub(crate) fn open_all(shared: &Shared, kept: &[FieldJson], points: u32) -> Result<Arc<[Arc<FieldIndex>]>> {
    let mut opened = Vec::with_capacity(kept.len());
    for json in kept {
        match FieldIndex::open(shared, json, points) {
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
pub(crate) fn stale(segment: &Segment, fields: &[Arc<FieldIndex>], pool: &Arc<Bitmaps>) -> Result<Option<Bitmap>> {
    if segment.changes.len() == 0 && segment.changes.runs().is_empty() {
        return Ok(None);
    }
    let mut stale = Bitmap::none(segment.meta.points as usize, pool)?;
    let runs = segment.changes.each_row(&mut |row| stale.set(row));
    let newer = fields.iter().map(|field| field.newer(&runs)).max_by_key(|runs| runs.len()).unwrap_or_default();
    newer.iter().for_each(|run| run.changed.mark(stale.words_mut()));
    Ok((stale.next(0).is_some()).then_some(stale))
}

/// The index of a field over a segment, if there is one. Of some rows those that are alive and that it knows are left; the
/// others that are alive come back.
pub(crate) fn known(
    segment: &Segment,
    (path, schema): (&Path, &Schema),
    rows: &mut Bitmap,
    pool: &Arc<Bitmaps>,
) -> Result<(Option<Arc<FieldIndex>>, Option<Bitmap>)> {
    let fields = segment.fields.read().clone();
    let own = fields.iter().find(|field| field.path == *path && *field.schema == *schema).cloned();
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
fn stale_rows(segment: &Segment, run: Option<&str>) -> u64 {
    let runs = segment.changes.runs();
    segment.changes.len() as u64 + newer(run, &runs).iter().map(|run| run.len()).sum::<u64>()
}

/// Of a segment's runs, oldest first, those that came after one.
fn newer<'a>(run: Option<&str>, runs: &'a [Arc<Run>]) -> &'a [Arc<Run>] {
    match (run, runs.first()) {
        (Some(own), Some(first)) if *own == first.name => &runs[1..],
        _ => runs,
    }
}

/// Whether so many rows are worth a new index.
fn is_much(rows: u64, segment: &Segment) -> bool {
    rows * STALE_PART > u64::from(segment.meta.points)
}

/// The indexes that a segment lacks: it has none, or one that is stale.
fn lacking(segment: &Segment, config: &CollectionConfig) -> Vec<(Path, Arc<Schema>)> {
    let fields = segment.fields.read().clone();
    let is_fresh = |path: &Path, schema: &Arc<Schema>| {
        let own = fields.iter().find(|field| field.path == *path && field.schema == *schema);
        own.is_some_and(|field| !is_much(stale_rows(segment, field.run.as_deref()), segment))
    };
    let lacking = config.indexes.iter().filter(|(path, field)| !is_fresh(path, &field.schema));
    lacking.map(|(path, field)| (path.clone(), field.schema.clone())).collect()
}

/// Whether a segment lacks an index: that of one field, or any.
pub(crate) fn is_lacking(collection: &Collection, path: Option<&Path>) -> bool {
    let config = collection.config.load();
    let is_asked = |own: &Path| path.is_none_or(|path| path == own);
    !config.indexes.is_empty()
        && collection
            .view
            .load()
            .segments
            .iter()
            .any(|segment| lacking(segment, &config).iter().any(|(path, _)| is_asked(path)))
}

/// Of each field that has an index, how many points of the segments are in it.
pub(crate) fn points(view: &View, config: &CollectionConfig) -> BTreeMap<Path, u64> {
    let of = |path: &Path, field: &FieldConfig| {
        let held = |segment: &Arc<Segment>| {
            let fields = segment.fields.read().clone();
            let own = fields.iter().find(|held| held.path == *path && held.schema == field.schema);
            own.map_or(0, |own| u64::from(own.index.meta().held))
        };
        view.segments.iter().map(held).sum()
    };
    config.indexes.iter().map(|(path, field)| (path.clone(), of(path, field))).collect()
}

/// Builds that failed: of which segment and field, how often, and when they are tried again by [`Shared::now_ms`].
#[derive(Default)]
pub(crate) struct Failures(Mutex<BTreeMap<(String, Path), (u32, u64)>>);

/// Failures that are kept; others are tried again at once.
const FAILURES_MAX: usize = 1024;
/// After a failure a build waits for so long, twice as long after each further one, up to 64 times.
const PAUSE_MS: u64 = 1_000;

impl Failures {
    /// How often a build failed; `None`: it is not its turn yet.
    fn count(&self, key: &(String, Path), now_ms: u64) -> Option<u32> {
        let (count, until) = self.0.lock().get(key).copied().unwrap_or((0, 0));
        (now_ms >= until).then_some(count)
    }

    fn note(&self, key: (String, Path), failed: bool, now_ms: u64) {
        let mut held = self.0.lock();
        let count = held.get(&key).map_or(0, |(count, _)| *count) + 1;
        match failed {
            true if held.len() < FAILURES_MAX => _ = held.insert(key, (count, now_ms + (PAUSE_MS << count.min(6)))),
            _ => _ = held.remove(&key),
        }
    }
}

/// Builds one index that some segment lacks, and that has not just failed. False: there is none.
pub(crate) fn build_one(shared: &Shared) -> Result<bool> {
    for (name, collection) in shared.collections() {
        let (view, config) = (collection.view.load_full(), collection.config.load_full());
        let wanted = view.segments.iter().flat_map(|segment| {
            lacking(segment, &config).into_iter().map(move |(path, schema)| (segment, path, schema))
        });
        for (segment, path, schema) in wanted {
            let key = (segment.name.clone(), path.clone());
            let Some(failures) = shared.field_failures.count(&key, shared.now_ms()) else { continue };
            let built = rest::work_on_merge(shared)
                .and_then(|_merging| build(shared, &name, &collection, segment, (&path, &schema), failures > 0));
            shared.field_failures.note(key, built.is_err(), shared.now_ms());
            note(&collection, MERGE, &name, &built);
            shared.sealed.raise();
            return built.map(|()| true);
        }
    }
    Ok(false)
}

fn build(
    shared: &Shared,
    name: &str,
    collection: &Collection,
    segment: &Arc<Segment>,
    (path, schema): (&Path, &Arc<Schema>),
    sparing: bool,
) -> Result<()> {
    let account = &shared.accounts.merge;
    let run = {
        let _manifest = shared.manifest.lock();
        let first = segment.changes.runs().first().cloned();
        // A new run voids what was built with the one before: it is worth that only where much has changed.
        if is_much(stale_rows(segment, first.as_ref().map(|run| &*run.name)), segment) {
            fold::segment(shared, segment, true, account)?;
        }
        segment.changes.runs().first().cloned()
    };
    let reporter = Reporter::new(shared, name, collection, "index");
    let is_wanted = || collection.config.load().indexes.get(path).is_some_and(|field| field.schema == *schema);
    let cancelled = || shared.is_closing() || collection.is_dropped() || !is_wanted();
    let file = shared.storage.new_path("field");
    let mut out = shared.pages.create(&file, account)?;
    let work = Work {
        disk: shared.options.disk.clone(),
        temp: shared.temp.join(MERGE),
        account: account.clone(),
        sparing,
        cancelled: &cancelled,
    };
    let mut payloads = SegmentPayloads { segment, run: run.as_deref(), path, account, reporter: &reporter };
    let meta = match ramekin_fields::build(&mut payloads, path, schema, &mut out, &work) {
        Err(error) if error.kind() == Kind::Closed => return Ok(()),
        built => built?,
    };
    let json = serde_json::to_vec(&meta)
        .map_err(|error| Error::bug(format!("an index of a field does not describe itself: {error}")))?;
    out.finish(&json)?;
    drop(reporter);
    allocator_purge();
    let json = FieldJson {
        path: path.clone(),
        schema: schema.clone(),
        file: shared.storage.name_of(&file)?,
        run: run.map(|run| run.name.clone()),
    };
    let opened = FieldIndex::open(shared, &json, segment.meta.points);
    if opened.is_err() {
        shared.storage.discard(&json.file)?;
    }
    let field = opened?;
    field.listed.store(false, Ordering::SeqCst);
    tracing::info!(
        collection = name,
        field = %path,
        values = meta.values,
        distinct = meta.distinct,
        bytes = field.index.file().bytes(),
        "index built"
    );
    let _manifest = shared.manifest.lock();
    {
        let mut fields = segment.fields.write();
        let mut kept: Vec<_> = fields.iter().filter(|held| held.path != *path).cloned().collect();
        if is_wanted() {
            kept.push(Arc::new(field));
        }
        *fields = kept.into();
    }
    // Its tables may be resident from now on.
    rest::plan_again(shared);
    manifest::commit(shared)
}

/// The payloads of a segment as they stood when its changes were folded.
struct SegmentPayloads<'a> {
    segment: &'a Arc<Segment>,
    run: Option<&'a Run>,
    path: &'a Path,
    account: &'a Account,
    reporter: &'a Reporter<'a>,
}

impl Payloads for SegmentPayloads<'_> {
    fn rows(&self) -> u32 {
        self.segment.meta.points
    }

    fn walk(&mut self, each: &mut EachPayload<'_>) -> Result<()> {
        let mut cursor = Cursor::open(self.segment, self.run, Walk::Payloads, self.account)?;
        let mut memory = self.account.try_reserve(0)?;
        let rows = self.rows();
        for row in 0..rows {
            cursor.read_payload()?;
            let text = std::str::from_utf8(cursor.payload())
                .map_err(|_| Error::corrupt("a stored payload is no text").at(&self.segment.name))?;
            each(row, &payload::parse_keys(text, &[self.path.first()], &mut memory)?)?;
            cursor.advance()?;
            if row % 8192 == 0 {
                self.reporter.tell(&self.path.to_string(), u64::from(row), u64::from(rows));
            }
        }
        Ok(())
    }
}
