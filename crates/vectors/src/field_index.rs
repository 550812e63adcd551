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
use crate::background::{MERGE, Reporter};
use crate::collection::{Collection, View};
use crate::health::FaultKind;
use crate::merge::Cursor;
use crate::overlay::PatchRun;
use crate::read::{self, Place};
use crate::segment::Segment;
use crate::segment_write::Walk;
use crate::store_inner::StoreInner;
use crate::{idle, manifest, patch_compaction, payload};
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, PointId, Result, Size, supervise};
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
    pub(crate) fn open(shared: &StoreInner, json: &FieldJson, points: u32) -> Result<Self> {
        let index = Index::open(shared.storage.open_file(&json.file)?).map_err(|error| error.at(&json.file))?;
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
    fn living(&self, shared: &StoreInner, segment: &Segment) -> Result<u64> {
        let (rows, held) = (u64::from(self.index.meta().rows), u64::from(self.index.meta().held));
        let dead = segment.dead.count();
        if dead == 0 || held == 0 || held == rows {
            return Ok(held.min(rows - dead));
        }
        if let Some((_, living)) = self.counted.lock().filter(|(then, _)| *then == dead) {
            return Ok(living);
        }
        let mut living = Bitmap::all(rows as usize, &shared.bitmaps)?;
        if !self.index.keep_held(&shared.pages, &mut living)? {
            return Ok(held.min(rows - dead));
        }
        // A row is counted just before its bit is set.
        let is_whole = segment.dead.each_word().map(|word| u64::from(word.count_ones())).sum::<u64>() >= dead;
        segment.dead.clear_in(living.words_mut());
        let living = living.count();
        *self.counted.lock() = is_whole.then_some((dead, living));
        Ok(living)
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
pub(crate) fn open_all(shared: &StoreInner, kept: &[FieldJson], points: u32) -> Result<Arc<[Arc<FieldIndex>]>> {
    let mut opened = Vec::with_capacity(kept.len());
    for json in kept {
        if !json.schema.has_tokens_of(json.tokens.as_deref()) {
            let was = json.tokens.as_deref().unwrap_or("no version");
            tracing::info!(file = json.file, was, now = json.schema.tokens(), "an index of words is built again");
            continue;
        }
        match FieldIndex::open(shared, json, points) {
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
pub(crate) fn stale(segment: &Segment, fields: &[Arc<FieldIndex>], pool: &Arc<Bitmaps>) -> Result<Option<Bitmap>> {
    if segment.patches.len() == 0 && segment.patches.runs().is_empty() {
        return Ok(None);
    }
    let mut stale = Bitmap::none(segment.meta.points as usize, pool)?;
    let runs = segment.patches.each_row(&mut |row| stale.set(row));
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
    let runs = segment.patches.runs();
    segment.patches.len() as u64 + newer(run, &runs).iter().map(|run| run.len()).sum::<u64>()
}

/// Of a segment's runs, oldest first, those that came after one.
fn newer<'a>(run: Option<&str>, runs: &'a [Arc<PatchRun>]) -> &'a [Arc<PatchRun>] {
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

/// Whether an index is to be built that some segment lacks.
pub(crate) fn is_to_build(shared: &StoreInner, collection: &Collection) -> bool {
    let config = collection.config.load();
    let is_wanted =
        |segment: &Arc<Segment>, path: Path| !shared.field_failures.is_given_up(&(segment.name.clone(), path));
    let is_to_build =
        |segment: &Arc<Segment>| lacking(segment, &config).into_iter().any(|(path, _)| is_wanted(segment, path));
    !config.indexes.is_empty() && collection.view.load().segments.iter().any(is_to_build)
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

/// Of each field that has an index, how many living points of the segments are in it.
pub(crate) fn points(
    shared: &StoreInner,
    collection: &Collection,
    view: &View,
    config: &CollectionConfig,
) -> BTreeMap<Path, u64> {
    let of = |path: &Path, field: &FieldConfig| {
        let living = |segment: &Arc<Segment>| {
            let fields = segment.fields.read().clone();
            let Some(own) = fields.iter().find(|held| held.path == *path && held.schema == field.schema) else {
                return 0;
            };
            own.living(shared, segment).unwrap_or_else(|error| {
                shared.noted(collection, FaultKind::Read, &error);
                u64::from(own.index.meta().held).min(segment.live())
            })
        };
        view.segments.iter().map(living).sum()
    };
    config.indexes.iter().map(|(path, field)| (path.clone(), of(path, field))).collect()
}

/// New points whose payloads are read at a time to count them. What was read is kept until it changes, so who asks again
/// reads the next ones: those that an index finds when it is made are soon written out, too.
const READ_TO_COUNT: usize = 8_192;

/// Of each field that has an index, how many of the points in memory have a value for it. What cannot be read now counts later.
pub(crate) fn new_points(shared: &StoreInner, view: &View, config: &CollectionConfig) -> BTreeMap<Path, u64> {
    let of = |(path, field): (&Path, &FieldConfig)| (path.clone(), new_points_of(shared, view, path, &field.schema));
    config.indexes.iter().map(of).collect()
}

fn new_points_of(shared: &StoreInner, view: &View, path: &Path, schema: &Schema) -> u64 {
    let (mut count, mut left) = (0, READ_TO_COUNT);
    for (at, part) in view.oldest_memtables() {
        let mut unknown = Vec::new();
        let inner = part.read();
        let own = inner.fields().iter().find(|own| own.path() == path && **own.schema() == *schema);
        for (word, live) in inner.live_words().enumerate() {
            let (held, known) = own.map_or((0, 0), |own| own.held(word));
            count += u64::from((held & live).count_ones());
            let mut rest = live & !known;
            while rest != 0 && unknown.len() < left {
                let slot = (word * 64) as u32 + rest.trailing_zeros();
                unknown.push((slot, inner.payload(slot)));
                rest &= rest - 1;
            }
        }
        drop(inner);
        left -= unknown.len();
        for some in unknown.chunks(read::TEXTS) {
            let points: Vec<_> = some.iter().map(|(slot, _)| (PointId::Num(0), Place::Memtable(at, *slot))).collect();
            let Ok(keys) = read::keys(shared, view, &points, path, schema) else { break };
            let has_value = keys.iter().map(|keys| !keys.is_empty());
            count += has_value.clone().filter(|has_value| *has_value).count() as u64;
            let found = some.iter().zip(has_value).map(|((slot, at), has_value)| (*slot, *at, has_value));
            part.count_held((path, schema), found);
        }
    }
    count
}

/// Takes damaged indexes of fields out of their segments: payloads are asked until they are built again, and the collection
/// is red until then. False: there were none.
pub(crate) fn take_out_damaged(shared: &StoreInner, collection: &Collection) -> bool {
    let mut damaged = Vec::new();
    for segment in &collection.view.load().segments {
        let is_damaged = |field: &&Arc<FieldIndex>| field.index.file().damage().is_some();
        if segment.fields.read().iter().any(|field| is_damaged(&field)) {
            let mut fields = segment.fields.write();
            damaged.extend(fields.iter().filter(is_damaged).cloned());
            let whole: Vec<_> = fields.iter().filter(|field| !is_damaged(field)).cloned().collect();
            *fields = whole.into();
        }
    }
    for field in &damaged {
        let error = Error::corrupt(format!("{}; it is built again", field.index.file().damage().unwrap_or_default()));
        collection.health.raise(FaultKind::Index(field.path.clone()), None, &error, shared.now_ms());
    }
    if !damaged.is_empty() {
        // The next manifest names them no more.
        shared.manifest_dirty.store(true, Ordering::SeqCst);
        idle::plan_again(shared);
        shared.wake_background();
    }
    !damaged.is_empty()
}

/// Builds that failed: of which segment and field, how often, and when they are tried again by [`StoreInner::now_ms`].
#[derive(Default)]
pub(crate) struct Failures(Mutex<BTreeMap<(String, Path), (u32, u64)>>);

/// Failures that are kept. Where there are more the one whose turn comes first makes way: segments that are gone are among those.
const FAILURES_MAX: usize = 1024;
/// After a failure a build waits for so long, twice as long after each further one, up to 64 times.
const PAUSE_MS: u64 = 1_000;
/// When it is tried again what cannot be built.
const NEVER: u64 = u64::MAX;

impl Failures {
    /// Whether a build is not tried again under this budget.
    fn is_given_up(&self, key: &(String, Path)) -> bool {
        self.0.lock().get(key).is_some_and(|(_, until)| *until == NEVER)
    }

    /// The budget is another one.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// How often a build failed; `None`: it is not its turn yet.
    fn count(&self, key: &(String, Path), now_ms: u64) -> Option<u32> {
        let (count, until) = self.0.lock().get(key).copied().unwrap_or((0, 0));
        (now_ms >= until).then_some(count)
    }

    fn note<T>(&self, key: (String, Path), built: &Result<T>, now_ms: u64) {
        let mut held = self.0.lock();
        let count = held.get(&key).map_or(0, |(count, _)| *count) + 1;
        let Err(error) = built else {
            held.remove(&key);
            return;
        };
        // What finds too little memory where it has all that there can be will find no more.
        let is_final = error.kind() == Kind::NoMemory && count > 1;
        held.insert(key, (count, if is_final { NEVER } else { now_ms + (PAUSE_MS << count.min(6)) }));
        if held.len() > FAILURES_MAX {
            let first = held.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| key.clone());
            first.and_then(|key| held.remove(&key));
        }
    }
}

/// Builds one index that some segment lacks, and that has not just failed. False: there is none.
pub(crate) fn build_one(shared: &StoreInner) -> Result<bool> {
    for collection in shared.collections().iter() {
        let (view, config) = (collection.view.load_full(), collection.config.load_full());
        let wanted = view.segments.iter().flat_map(|segment| {
            lacking(segment, &config).into_iter().map(move |(path, schema)| (segment, path, schema))
        });
        for (segment, path, schema) in wanted {
            let key = (segment.name.clone(), path.clone());
            let Some(failures) = shared.field_failures.count(&key, shared.now_ms()) else { continue };
            let built = supervise::caught("the build of an index", || {
                shared.reach("index");
                let _merging = idle::work_on_merge(shared)?;
                build(shared, &collection.name, collection, segment, (&path, &schema), failures > 0)
            });
            shared.field_failures.note(key, &built, shared.now_ms());
            // Where other segments still lack it, what was said of it stands.
            if built.is_err() || !is_lacking(collection, Some(&path)) {
                shared.note(collection, FaultKind::Index(path), &collection.name, &built);
            }
            shared.flushed.raise();
            return built.map(|()| true);
        }
    }
    Ok(false)
}

fn build(
    shared: &StoreInner,
    name: &str,
    collection: &Collection,
    segment: &Arc<Segment>,
    (path, schema): (&Path, &Arc<Schema>),
    sparing: bool,
) -> Result<()> {
    let account = &shared.accounts.merge;
    let run = {
        let _manifest = shared.manifest.lock();
        let first = segment.patches.runs().first().cloned();
        // A new run voids what was built with the one before: it is worth that only where much has changed.
        if is_much(stale_rows(segment, first.as_ref().map(|run| &*run.name)), segment) {
            patch_compaction::segment(shared, segment, true, account)?;
        }
        segment.patches.runs().first().cloned()
    };
    let reporter = Reporter::new(shared, name, collection, "index");
    let is_wanted = || collection.config.load().indexes.get(path).is_some_and(|field| field.schema == *schema);
    // On a disk that fills up meanwhile it would take what is kept for those who free it.
    let cancelled = || shared.is_closing() || collection.is_dropped() || !is_wanted() || shared.full.is_on();
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
        // It had all that a merge has for good, and made do with the least.
        Err(error) if sparing && error.kind().is_memory() => {
            return Err(Error::no_memory(format!(
                "a payload is too large to be taken apart under the budget of {}: it is asked without an index, which is not \
                 tried again before the budget is another one: {error}",
                Size(shared.budget.limit())
            )));
        }
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
        tokens: meta.tokens.clone(),
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
    idle::plan_again(shared);
    manifest::commit(shared)
}

/// The payloads of a segment as they stood when its changes were compacted.
struct SegmentPayloads<'a> {
    segment: &'a Arc<Segment>,
    run: Option<&'a PatchRun>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_that_fail_wait_longer_and_longer_however_many_there_are() {
        let key = |segment: usize| (format!("{segment}"), Path::parse("a").unwrap());
        let failures = Failures::default();
        let failed = &Err::<(), _>(Error::io("planted"));
        failures.note(key(0), failed, 0);
        failures.note(key(0), failed, 0);
        assert_eq!((failures.count(&key(0), 3_999), failures.count(&key(0), 4_000)), (None, Some(2)));
        (1..2 * FAILURES_MAX).for_each(|segment| failures.note(key(segment), failed, segment as u64));
        assert_eq!(failures.0.lock().len(), FAILURES_MAX);
        assert_eq!(failures.count(&key(2 * FAILURES_MAX - 1), 2_000), None, "the newest waits as the first did");
        failures.note(key(0), &Ok(()), 0);
        assert_eq!(failures.count(&key(0), 0), Some(0));
    }

    #[test]
    fn what_cannot_be_built_under_a_budget_is_tried_twice_and_again_under_another() {
        let (key, failures) = (("segment".to_owned(), Path::parse("a").unwrap()), Failures::default());
        let never = &Err::<(), _>(Error::no_memory("too large"));
        failures.note(key.clone(), never, 0);
        assert!(failures.count(&key, 2_000).is_some() && !failures.is_given_up(&key));
        failures.note(key.clone(), never, 2_000);
        assert!(failures.count(&key, u64::MAX - 1).is_none() && failures.is_given_up(&key));
        failures.forget();
        assert_eq!(failures.count(&key, 0), Some(0));
    }
}
