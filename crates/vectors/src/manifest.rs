//! Writes the manifest: which files hold what, and from where the log is still needed.
//!
//! ```text
//!   take replay positions ─► write overlays of dead rows ─► manifest ─► files it no longer names go
//! ```
//!
//! A position is taken before the bitmaps are read: a row that dies in between stands in the overlay
//! early, and replay kills it again, which changes nothing. Changed payloads in memory pin the log
//! instead, until a fold has written them out; a run may hold later changes too, and replay, which is
//! total and in order, ends with the same ones.

use crate::catalog::{CatalogJson, CollectionJson, SegmentJson};
use crate::collection::{Collection, View};
use crate::overlay::{DeadRows, write_dead};
use crate::segment::Segment;
use crate::shared::Shared;
use ramekin_base::Result;
use ramekin_storage::Manifest;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes a manifest of the present state. The caller holds `shared.manifest`.
pub(crate) fn commit(shared: &Shared) -> Result<()> {
    let applied = shared.applied.load(Ordering::SeqCst);
    shared.manifest_dirty.store(false, Ordering::SeqCst);
    let written = write(shared, applied);
    if written.is_err() {
        shared.manifest_dirty.store(true, Ordering::SeqCst);
    }
    written
}

fn write(shared: &Shared, applied: u64) -> Result<()> {
    let (mut json, collections) = {
        let catalog = shared.catalog.read();
        let json = CatalogJson {
            next_number: catalog.next_number,
            operation: shared.operation.load(Ordering::SeqCst),
            meta_from: catalog.meta_from,
            collections: Vec::with_capacity(catalog.collections.len()),
            aliases: catalog.aliases.clone(),
        };
        let collections: Vec<_> = catalog.collections.iter().map(|(name, held)| (name.clone(), held.clone())).collect();
        (json, collections)
    };
    let (mut files, mut named, mut log_from, mut overlays) = (Vec::new(), Vec::new(), applied, Vec::new());
    let mut positions = Vec::with_capacity(collections.len());
    for (name, collection) in &collections {
        let (replay_from, view, segments) = describe(shared, collection, applied, &mut overlays)?;
        for segment in &segments {
            files.push(segment.file.clone());
            files.extend(segment.dead.clone());
            files.extend(segment.payloads.iter().cloned());
            files.extend(segment.fields.iter().map(|field| field.file.clone()));
        }
        named.extend(view.segments.iter().cloned());
        log_from = log_from.min(replay_from);
        positions.push(replay_from);
        let config = (**collection.config.load()).clone();
        json.collections.push(CollectionJson {
            number: collection.number,
            name: name.clone(),
            config,
            replay_from,
            segments,
        });
    }
    // Read after the overlays were written: every effect in them is of a record before this.
    let durable = shared.log_reader()?.end();
    shared.storage.commit(&Manifest::new(log_from..durable, files, &json)?)?;
    for ((_, collection), position) in collections.iter().zip(positions) {
        collection.replay_from.store(position, Ordering::SeqCst);
    }
    shared.set_log_from(log_from);
    named.iter().for_each(|segment| segment.listed.store(true, Ordering::SeqCst));
    for (segment, overlay) in overlays {
        *segment.dead_rows.lock() = Some(overlay);
    }
    Ok(())
}

/// A collection's position and segments; writes the overlays that are needed for them to be true.
fn describe(
    shared: &Shared,
    collection: &Collection,
    applied: u64,
    overlays: &mut Vec<(Arc<Segment>, DeadRows)>,
) -> Result<(u64, Arc<View>, Vec<SegmentJson>)> {
    let replay_from = collection.pinned_from(applied);
    let moved = replay_from > collection.replay_from.load(Ordering::SeqCst);
    let view = collection.view.load_full();
    let mut segments = Vec::with_capacity(view.segments.len());
    for segment in &view.segments {
        let kept = segment.dead_rows.lock().clone();
        let listed = segment.listed.load(Ordering::SeqCst);
        let kept_dead = kept.as_ref().map_or(0, |overlay| overlay.dead);
        let dead = if segment.dead.count() != kept_dead && (moved || !listed) {
            let overlay = write_dead(shared, segment)?;
            let name = overlay.name.clone();
            overlays.push((segment.clone(), overlay));
            Some(name)
        } else {
            kept.map(|overlay| overlay.name)
        };
        let runs = segment.changes.runs();
        // From here on nobody knows whether a manifest on disk names them.
        runs.iter().for_each(|run| run.listed.store(true, Ordering::SeqCst));
        let payloads = runs.iter().map(|run| run.name.clone()).collect();
        let fields = segment.fields.read().clone();
        fields.iter().for_each(|field| field.listed.store(true, Ordering::SeqCst));
        let fields = fields.iter().map(|field| field.json()).collect();
        segments.push(SegmentJson { file: segment.name.clone(), dead, payloads, fields });
    }
    Ok((replay_from, view, segments))
}
