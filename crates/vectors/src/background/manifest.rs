//! Writes the manifest: which files hold what, and from where the log is still needed.
//!
//! ```text
//!   take replay positions ─► write overlays of dead rows ─► what changed, or all ─► files it no longer names go
//! ```
//!
//! A position is taken before the bitmaps are read: a row that dies in between stands in the overlay
//! early, and replay kills it again, which changes nothing. Changed payloads in memory pin the log
//! instead, until a patch compaction has written them out; a run may hold later changes too, and replay, which is
//! total and in order, ends with the same ones.
//!
//! What is written of a collection stays true while its files and its configuration do: a later position alone is
//! not worth an edit, since replay begins at the head's.

use crate::api::CollectionConfig;
use crate::api::op::CollectionId;
use crate::collection::Collection;
use crate::collection::catalog::{AliasChange, Catalog, Collections};
use crate::collection::health::FaultKind;
use crate::inner::StoreInner;
use crate::segment::delete_file::DeleteFile;
use crate::segment::field::FieldJson;
use crate::segment::{Segment, SegmentView};
use parking_lot::MutexGuard;
use ramekin_base::lock::Guard;
use ramekin_base::{Kind, Result};
use ramekin_log::Lsn;
use ramekin_memory::Reservation;
use ramekin_storage::{Head, ReserveClaim, Sink};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Collections that may come between a look at how many there are and a look at them.
const NEW_COLLECTIONS: u64 = 16;

/// What the store says anew with each commit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct HeadJson {
    pub(crate) next_number: CollectionId,
    pub(crate) operation: u64,
    pub(crate) meta_from: Lsn,
}

/// All of it, as manifests had it that were written as a whole.
#[derive(Debug, Deserialize)]
pub(crate) struct CatalogJson {
    pub(crate) collections: Vec<CollectionJson>,
    pub(crate) aliases: BTreeMap<String, String>,
}

/// A collection as the manifest keeps it.
#[derive(Debug, Deserialize)]
pub(crate) struct CollectionJson {
    pub(crate) number: CollectionId,
    pub(crate) name: String,
    pub(crate) config: CollectionConfig,
    pub(crate) replay_from: Lsn,
    pub(crate) segments: Vec<SegmentJson>,
}

/// A segment's file, its overlays (of dead rows, and of changed payloads, newest last) and its indexes of fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SegmentJson {
    pub(crate) file: String,
    pub(crate) dead: Option<String>,
    #[serde(default)]
    pub(crate) payloads: Vec<String>,
    #[serde(default)]
    pub(crate) fields: Vec<FieldJson>,
}

/// A collection, as [`CollectionJson`] reads it.
#[derive(Serialize)]
struct PartJson<'a> {
    number: CollectionId,
    name: &'a str,
    config: &'a CollectionConfig,
    replay_from: Lsn,
    segments: Vec<SegmentJson>,
}

/// Aliases with the collections that they name from now on; `None`: with none.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AliasesJson {
    pub(crate) aliases: Vec<(Box<str>, Option<CollectionId>)>,
}

/// So often at most the watermark is raised, while the log grows.
pub(crate) const WATERMARK_EVERY_MS: u64 = 1_000;

/// Writes how far the log is durable, where it has grown and the last manifest is so old. True: it was.
pub(crate) fn raise_watermark(shared: &StoreInner, every_ms: u64) -> Result<bool> {
    let end = shared.log_reader()?.end();
    if shared.full.is_on() || !shared.watermark.is_old(end, shared.now_ms(), every_ms) {
        return Ok(false);
    }
    let _manifest = shared.manifest.lock();
    commit(shared).map(|()| true)
}

/// Aliases of one note.
const ALIASES_A_NOTE: usize = 256;
/// What a segment takes while it is described, and each of its files.
const DESCRIBED_BYTES: u64 = 512;

/// Writes a manifest of the present state. The caller holds `StoreInner::manifest`.
pub(crate) fn commit(shared: &StoreInner) -> Result<()> {
    let applied = shared.applied.load(Ordering::SeqCst);
    shared.manifest_dirty.store(false, Ordering::SeqCst);
    let written = shared.frees(ReserveClaim::Delete, || write(shared, applied));
    if written.is_err() {
        shared.manifest_dirty.store(true, Ordering::SeqCst);
    }
    note(shared, &written);
    written
}

/// Whether manifests can be written shows in the health of the store.
fn note(shared: &StoreInner, written: &Result<()>) {
    match written {
        Ok(()) => shared.health.clear(&FaultKind::Manifest),
        // It is tried again, and a full disk shows by itself; but not even that ends it where nobody knows what is on disk.
        Err(error) if matches!(error.kind(), Kind::Busy | Kind::NoSpace) && shared.storage.closed().is_none() => {}
        Err(error) => {
            if let Some(why) = shared.storage.closed() {
                _ = shared.closed.set(why);
            }
            shared.health.raise(FaultKind::Manifest, Some(""), error, shared.now_ms());
        }
    }
}

/// What is to be committed, of one moment of the catalog.
struct State<'a> {
    shared: &'a StoreInner,
    head: HeadJson,
    collections: Collections,
    /// The first record that each collection needs.
    pins: Vec<Lsn>,
    /// Their places in `collections`: of those that changed.
    changed: Vec<usize>,
    /// Dropped collections and changes of aliases before this number wait to be written.
    changes: u64,
    /// While all aliases are written none may change.
    aliasing: Option<Guard<MutexGuard<'a, ()>>>,
    _memory: Reservation,
}

fn write(shared: &StoreInner, applied: Lsn) -> Result<()> {
    let before = Pinned::take(shared, applied)?;
    let overlays = before.write_overlays(shared)?;
    let mut state = State::take(shared, applied, &before)?;
    drop(before);
    let log_from = state.pins.iter().copied().min().unwrap_or(applied).min(applied);
    // Read after the overlays were written: every effect in them is of a record before this.
    let durable = shared.log_reader()?.end();
    let head = Head::new(log_from..durable, &state.head)?;
    let marks: Vec<u64> = state.changed.iter().map(|at| fingerprint(&state.collections[*at])).collect();
    let configs: Vec<_> =
        state.changed.iter().map(|at| state.collections[*at].unwritten.swap(false, Ordering::SeqCst)).collect();
    let committed = shared.storage.commit(head, &mut |sink, whole| state.write(sink, whole));
    if committed.is_err() {
        for (at, was) in state.changed.iter().zip(configs) {
            state.collections[*at].unwritten.fetch_or(was, Ordering::SeqCst);
        }
        // An overlay that no manifest names goes.
        for (segment, before, overlay) in overlays {
            *segment.delete_bitmap.lock() = before;
            // Where nobody knows what is on disk it stays for the next start to see.
            _ = shared.storage.discard(&overlay);
        }
        return committed;
    }
    shared.catalog.write().written(state.changes);
    for (at, mark) in state.changed.iter().zip(marks) {
        let collection = &state.collections[*at];
        collection.replay_from.store(state.pins[*at], Ordering::SeqCst);
        collection.written.store(mark, Ordering::SeqCst);
        let view = collection.view.load();
        view.segments.iter().for_each(|segment| segment.listed.store(true, Ordering::SeqCst));
    }
    shared.set_log_from(log_from);
    shared.watermark.set(durable, shared.now_ms());
    Ok(())
}

/// The collections, with the first record that each needs, taken before anything of them is written.
struct Pinned {
    collections: Collections,
    pins: Vec<Lsn>,
    _memory: Reservation,
}

impl Pinned {
    fn take(shared: &StoreInner, applied: Lsn) -> Result<Self> {
        let collections = shared.collections();
        let memory = shared.accounts.manifest.try_reserve(collections.len() as u64 * 8)?;
        let pins = collections.iter().map(|collection| collection.pinned_from(applied)).collect();
        Ok(Self { collections, pins, _memory: memory })
    }

    /// That of one collection; one that came later needs no record before `applied`.
    fn pin(&self, collection: &Collection, applied: Lsn) -> Lsn {
        let found = self.collections.binary_search_by(|known| known.name.cmp(&collection.name)).ok();
        // One that was dropped meanwhile may have had the same name.
        let known = found.filter(|at| self.collections[*at].number == collection.number);
        known.map_or_else(|| collection.pinned_from(applied), |at| self.pins[at])
    }

    /// Writes the overlays that are needed for the new positions to be true. Returns what to take back if they are not
    /// committed: of each segment the overlay before, and the new one's name.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn write_overlays(&self, shared: &StoreInner) -> Result<Vec<(Arc<Segment>, Option<DeleteFile>, String)>> {
        let mut written = Vec::new();
        for (collection, pin) in self.collections.iter().zip(&self.pins) {
            let has_moved = *pin > collection.replay_from.load(Ordering::SeqCst);
            for segment in &collection.view.load().segments {
                if segment.has_unwritten_deaths() && (has_moved || !segment.listed.load(Ordering::SeqCst)) {
                    let overlay = DeleteFile::write(
                        &shared.storage,
                        segment.meta.points,
                        &segment.own.dead(),
                        &shared.accounts.manifest,
                    )?;
                    let name = overlay.name.clone();
                    let before = segment.delete_bitmap.lock().replace(overlay);
                    written.push((segment.own.clone(), before, name));
                }
            }
        }
        Ok(written)
    }
}

impl<'a> State<'a> {
    fn take(shared: &'a StoreInner, applied: Lsn, before: &Pinned) -> Result<Self> {
        let aliasing = Some(shared.aliasing.lock());
        // Memory may have to be waited for, so not under the lock. A few collections may come meanwhile.
        let count = shared.catalog.read().len() as u64 + NEW_COLLECTIONS;
        let memory = shared.accounts.manifest.try_reserve(count * 32)?;
        let catalog = shared.catalog.read();
        let head = HeadJson {
            next_number: catalog.next_number,
            operation: shared.seqno.load(Ordering::SeqCst),
            meta_from: catalog.meta_from,
        };
        let (collections, changes) = (catalog.collections(), catalog.next_change());
        drop(catalog);
        let pins: Vec<_> = collections.iter().map(|collection| before.pin(collection, applied)).collect();
        let has_changed = |at: &usize| has_changed(&collections[*at], pins[*at]);
        let changed = (0..collections.len()).filter(has_changed).collect();
        Ok(Self { shared, head, collections, pins, changed, changes, aliasing, _memory: memory })
    }

    fn write(&mut self, sink: &mut Sink<'_>, whole: bool) -> Result<()> {
        if whole {
            self.write_all_aliases(sink)?;
        } else {
            self.write_gone(sink)?;
            self.write_alias_changes(sink)?;
        }
        self.aliasing = None;
        match whole {
            true => (0..self.collections.len()).try_for_each(|at| self.write_part(sink, at)),
            false => self.changed.iter().try_for_each(|at| self.write_part(sink, *at)),
        }
    }

    fn write_gone(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut from = 0;
        loop {
            // The catalog is not held while it is written.
            let next = self.shared.catalog.read().gone(from..self.changes).next().map(|(at, number)| (*at, *number));
            let Some((at, number)) = next else { return Ok(()) };
            sink.gone(number)?;
            from = at + 1;
        }
    }

    fn write_alias_changes(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut from = 0;
        loop {
            let (mut aliases, catalog) = (Vec::with_capacity(ALIASES_A_NOTE), self.shared.catalog.read());
            for (at, change) in catalog.alias_changes(from..self.changes).take(ALIASES_A_NOTE) {
                aliases.push(change.clone());
                from = at + 1;
            }
            drop(catalog);
            if aliases.is_empty() {
                return Ok(());
            }
            sink.note(&AliasesJson { aliases })?;
        }
    }

    fn write_all_aliases(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut after: Box<str> = "".into();
        loop {
            let aliases = some_aliases(&self.shared.catalog.read(), &after);
            let Some((last, _)) = aliases.last() else { return Ok(()) };
            after = last.clone();
            sink.note(&AliasesJson { aliases })?;
        }
    }

    fn write_part(&self, sink: &mut Sink<'_>, at: usize) -> Result<()> {
        let collection = &self.collections[at];
        let view = collection.view.load();
        let parts: u64 = view.segments.iter().map(|segment| 1 + segment.fields.len() as u64).sum();
        let _described = self.shared.accounts.manifest.try_reserve(2 * parts * DESCRIBED_BYTES)?;
        let segments: Vec<SegmentJson> = view.segments.iter().map(|segment| describe(segment)).collect();
        let files = segments.iter().flat_map(SegmentJson::files).cloned().collect();
        let replay_from = match self.changed.binary_search(&at) {
            Ok(_) => self.pins[at],
            Err(_) => collection.replay_from.load(Ordering::SeqCst),
        };
        let (number, config) = (collection.number, collection.config.load());
        sink.part(number, files, &PartJson { number, name: &collection.name, config: &config, replay_from, segments })
    }
}

/// The aliases after one, as many as a note has.
fn some_aliases(catalog: &Catalog, after: &str) -> Vec<AliasChange> {
    let later = catalog.aliases_after(after).map(|(alias, number)| (alias.clone(), Some(number)));
    later.take(ALIASES_A_NOTE).collect()
}

/// Whether what was last written of a collection is not true any more.
fn has_changed(collection: &Collection, pin: Lsn) -> bool {
    let has_moved = pin > collection.replay_from.load(Ordering::SeqCst);
    let view = collection.view.load();
    let dies = |segment: &SegmentView| segment.has_unwritten_deaths();
    collection.unwritten.load(Ordering::SeqCst)
        || has_moved && view.segments.iter().any(dies)
        || fingerprint(collection) != collection.written.load(Ordering::SeqCst)
}

/// A hash of the files of a collection.
pub(crate) fn fingerprint(collection: &Collection) -> u64 {
    let mut hash = DefaultHasher::new();
    for segment in &collection.view.load().segments {
        segment.name.hash(&mut hash);
        segment.delete_bitmap.lock().as_ref().map(|overlay| &overlay.name).hash(&mut hash);
        segment.patches.runs().iter().for_each(|run| run.name.hash(&mut hash));
        segment.fields.iter().for_each(|field| field.name().hash(&mut hash));
    }
    hash.finish()
}

fn describe(segment: &Segment) -> SegmentJson {
    let dead = segment.delete_bitmap.lock().as_ref().map(|overlay| overlay.name.clone());
    let runs = segment.patches.runs();
    // From here on nobody knows whether a manifest on disk names them.
    runs.iter().for_each(|run| run.listed.store(true, Ordering::SeqCst));
    let payloads = runs.iter().map(|run| run.name.clone()).collect();
    let fields = segment.fields.read().clone();
    fields.iter().for_each(|field| field.listed.store(true, Ordering::SeqCst));
    let fields = fields.iter().map(|field| field.json()).collect();
    SegmentJson { file: segment.name.clone(), dead, payloads, fields }
}

impl SegmentJson {
    /// The files that it names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        let fields = self.fields.iter().map(|field| &field.file);
        std::iter::once(&self.file).chain(&self.dead).chain(&self.payloads).chain(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_from_before_payload_overlays_is_read() {
        let old: SegmentJson =
            serde_json::from_str(r#"{"file":"files/000001.seg","dead":"files/000002.dead"}"#).unwrap();
        assert_eq!((old.dead.as_deref(), old.payloads.len()), (Some("files/000002.dead"), 0));
        let new = SegmentJson { payloads: vec!["files/000003.payload".to_owned()], ..old };
        let again: SegmentJson = serde_json::from_slice(&serde_json::to_vec(&new).unwrap()).unwrap();
        assert_eq!(again.payloads, new.payloads);
    }
}
