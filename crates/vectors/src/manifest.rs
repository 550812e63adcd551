//! Writes the manifest: which files hold what, and from where the log is still needed.
//!
//! ```text
//!   take replay positions ─► write overlays of dead rows ─► manifest ─► files it no longer names go
//! ```
//!
//! A position is taken before the bitmaps are read: a row that dies in between stands in the overlay
//! early, and replay kills it again, which changes nothing.

use crate::catalog::{CatalogJson, CollectionJson, SegmentJson};
use crate::collection::{Collection, View};
use crate::segment::Segment;
use crate::shared::Shared;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Priority;
use ramekin_storage::Manifest;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Section of an overlay that holds the dead rows as a bitmap, 8 bytes a word.
const DEAD: u32 = 1;

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
    shared.storage.commit(&Manifest::new(log_from, files, &json)?)?;
    for ((_, collection), position) in collections.iter().zip(positions) {
        collection.replay_from.store(position, Ordering::SeqCst);
    }
    shared.set_log_from(log_from);
    named.iter().for_each(|segment| segment.listed.store(true, Ordering::SeqCst));
    for (segment, overlay) in overlays {
        *segment.overlay.lock() = Some(overlay);
    }
    Ok(())
}

/// A collection's position and segments; writes the overlays that are needed for them to be true.
fn describe(
    shared: &Shared,
    collection: &Collection,
    applied: u64,
    overlays: &mut Vec<(Arc<Segment>, Overlay)>,
) -> Result<(u64, Arc<View>, Vec<SegmentJson>)> {
    let replay_from = collection.pinned_from(applied);
    let moved = replay_from > collection.replay_from.load(Ordering::SeqCst);
    let view = collection.view.load_full();
    let mut segments = Vec::with_capacity(view.segments.len());
    for segment in &view.segments {
        let kept = segment.overlay.lock().clone();
        let listed = segment.listed.load(Ordering::SeqCst);
        let kept_dead = kept.as_ref().map_or(0, |overlay| overlay.dead);
        let dead = if segment.dead.count() != kept_dead && (moved || !listed) {
            let overlay = write_overlay(shared, segment)?;
            let name = overlay.name.clone();
            overlays.push((segment.clone(), overlay));
            Some(name)
        } else {
            kept.map(|overlay| overlay.name)
        };
        segments.push(SegmentJson { file: segment.name.clone(), dead });
    }
    Ok((replay_from, view, segments))
}

/// The file that keeps a segment's dead rows.
#[derive(Clone)]
pub(crate) struct Overlay {
    pub(crate) name: String,
    /// Dead rows in it.
    pub(crate) dead: u64,
}

fn write_overlay(shared: &Shared, segment: &Segment) -> Result<Overlay> {
    let account = &shared.accounts.manifest;
    let words = segment.dead.words();
    let path = shared.storage.new_path("dead");
    let mut out = shared.pages.create(&path, account)?;
    out.begin(DEAD, Priority::Ids)?;
    words.iter().try_for_each(|word| out.write(&word.to_le_bytes()))?;
    out.end()?;
    out.finish(b"{}")?;
    let dead = words.iter().map(|word| u64::from(word.count_ones())).sum();
    Ok(Overlay { name: shared.storage.name_of(&path)?, dead })
}

/// Reads a segment's overlay into its dead rows.
pub(crate) fn read_overlay(shared: &Shared, segment: &Segment, name: &str, account: &Account) -> Result<()> {
    let file = shared.storage.open_file(name)?;
    let section = file.section(DEAD).ok_or_else(|| Error::corrupt("an overlay without its bitmap").at(name))?;
    let rows = segment.meta.points as usize;
    if section.len() != rows.div_ceil(64) as u64 * 8 {
        return Err(Error::corrupt("an overlay of another size than its segment").at(name));
    }
    let mut bytes = [0; 8];
    let mut stream = section.stream(account, 64 << 10)?;
    let mut words = Vec::with_capacity(rows.div_ceil(64));
    for _ in 0..rows.div_ceil(64) {
        stream.read_exact(&mut bytes)?;
        words.push(u64::from_le_bytes(bytes));
    }
    if !rows.is_multiple_of(64) && words.last().is_some_and(|last| last >> (rows % 64) != 0) {
        return Err(Error::corrupt("an overlay names rows that are not there").at(name));
    }
    segment.dead.merge(&words);
    *segment.overlay.lock() = Some(Overlay { name: name.to_owned(), dead: segment.dead.count() });
    Ok(())
}
