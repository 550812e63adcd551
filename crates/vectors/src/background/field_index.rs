//! The indexes of a segment's payload fields: a file for each, written in the background, replaced as a whole.
//!
//! ```text
//!   segment's payloads + one run of changed ones ─► `fields::build` ─► .field
//!
//!   rows that changed after that run are stale: their payloads are asked, until the index is built again
//! ```
//!
//! Whether an index is new, a segment is, or too much has changed: what is missing is built, and nothing else decides.

use crate::api::CollectionConfig;
use crate::background::merge::Cursor;
use crate::background::{MERGE, Reporter, manifest, patch_compaction};
use crate::collection::Collection;
use crate::collection::health::FaultKind;
use crate::inner::{StoreInner, idle};
use crate::payload;
use crate::segment::field::{FieldIndex, FieldJson, is_much, stale_rows};
use crate::segment::meta::Walk;
use crate::segment::overlay::PatchRun;
use crate::segment::{Segment, SegmentView};
use ramekin_base::{Error, Kind, Result, Size, supervise};
use ramekin_fields::{EachPayload, Path, Payloads, Schema, Work};
use ramekin_memory::{Account, allocator_purge};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The indexes that a segment lacks: it has none, or one that is stale.
fn lacking(segment: &Segment, config: &CollectionConfig) -> Vec<(Path, Arc<Schema>)> {
    let fields = segment.fields.read().clone();
    let is_fresh = |path: &Path, schema: &Arc<Schema>| {
        let own = fields.iter().find(|field| field.path == *path && field.schema == *schema);
        own.is_some_and(|field| !is_much(stale_rows(segment, field.run()), segment))
    };
    let lacking = config.indexes.iter().filter(|(path, field)| !is_fresh(path, &field.schema));
    lacking.map(|(path, field)| (path.clone(), field.schema.clone())).collect()
}

/// Whether an index is to be built that some segment lacks.
pub(crate) fn is_to_build(shared: &StoreInner, collection: &Collection) -> bool {
    let config = collection.config.load();
    let is_wanted = |segment: &Segment, path: Path| !shared.field_failures.is_given_up(&(segment.name.clone(), path));
    let is_to_build =
        |segment: &SegmentView| lacking(segment, &config).into_iter().any(|(path, _)| is_wanted(segment, path));
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
                build(shared, &collection.name, collection, &segment.own, (&path, &schema), failures > 0)
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
            collection.publish();
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
    let opened = FieldIndex::open(&shared.storage, &json, segment.meta.points);
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
    collection.publish();
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
