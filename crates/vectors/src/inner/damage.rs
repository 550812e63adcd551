//! What a read or work in the background has found wrong: whose fault it is, and what goes on without it.

use crate::collection::Collection;
use crate::collection::health::FaultKind;
use crate::inner::{StoreInner, idle};
use crate::segment::field::FieldIndex;
use ramekin_base::{Error, Kind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl StoreInner {
    /// The way of each read of a collection: whatever damage or failure it meets is the collection's fault from then on.
    /// Indexes of fields that are damaged are taken out, and the read is done once more: without them it needs their pages
    /// no longer.
    pub(crate) fn read<T>(&self, collection: &Collection, read: impl Fn() -> Result<T>) -> Result<T> {
        let found = read();
        let Err(error) = &found else {
            collection.health.read_succeeded(|| self.now_ms());
            return found;
        };
        self.noted(collection, FaultKind::Read, error);
        match error.kind() == Kind::Corrupt && take_out_damaged(self, collection) {
            true => self.read(collection, read),
            false => found,
        }
    }

    /// Takes note of an error of the disk or of what it holds; others are not the collection's.
    pub(crate) fn noted(&self, collection: &Collection, kind: FaultKind, error: &Error) {
        if !matches!(error.kind(), Kind::Corrupt | Kind::Io) {
            return;
        }
        let name = self.catalog.read().name_of(collection.number).unwrap_or_default();
        match error.kind() {
            Kind::Corrupt => {
                let view = collection.view.load();
                let tell = &mut |damage: &str| tracing::error!(collection = &*name, "damage: {damage}");
                view.segments.iter().for_each(|segment| segment.tell_damage(tell));
                if !view.segments.iter().any(|segment| segment.damage().is_some()) {
                    collection.health.raise(FaultKind::Damage, Some(&name), error, self.now_ms());
                }
            }
            _ => collection.health.raise(kind, Some(&name), error, self.now_ms()),
        }
    }

    /// Takes note of what became of work in the background.
    pub(crate) fn note<T>(&self, collection: &Collection, kind: FaultKind, name: &str, outcome: &Result<T>) {
        match outcome {
            // Damage is said with its file.
            Err(error) if error.kind() == Kind::Corrupt => {
                self.noted(collection, kind.clone(), error);
                collection.health.raise(kind, None, error, self.now_ms());
            }
            _ => collection.health.note(kind, name, outcome, self.now_ms()),
        }
    }
}

/// Takes damaged indexes of fields out of their segments: payloads are asked until they are built again, and the collection
/// is red until then. False: there were none.
pub(crate) fn take_out_damaged(shared: &StoreInner, collection: &Collection) -> bool {
    let mut damaged = Vec::new();
    for segment in &collection.view.load().segments {
        let is_damaged = |field: &&Arc<FieldIndex>| field.index.file().damage().is_some();
        if segment.fields.iter().any(|field| is_damaged(&field)) {
            let mut fields = segment.own.fields.write();
            damaged.extend(fields.iter().filter(is_damaged).cloned());
            let whole: Vec<_> = fields.iter().filter(|field| !is_damaged(field)).cloned().collect();
            *fields = whole.into();
        }
    }
    if !damaged.is_empty() {
        collection.publish();
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
