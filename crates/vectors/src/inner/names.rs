//! Operations on names: what a change of collections, configurations and aliases takes, and how it is done.

use crate::api::catalog_cost::{HeldConfig, actions_bytes, collection_bytes, config_bytes, json_bytes};
use crate::api::op::MetaOp;
use crate::api::{CollectionConfig, FieldConfig};
use crate::collection::Collection;
use crate::collection::catalog::{Change, Places};
use crate::inner::{StoreInner, idle};
use crate::memtable::CLEAN;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_fields::Path;
use ramekin_log::Lsn;
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the catalog leaves free at the moment, besides a share of the budget and what merges have lent, when it grows.
const NAMES_LEAVE: u64 = 512 << 10;

/// The share of the budget that what the allocator keeps counts as.
const KEPT_PART: u64 = 32;

/// Memory of a connection and of an answer, about: who asks for a name holds it until the answer is sent.
const ASKER_HOLDS: u64 = 64 << 10;

/// What it leaves while a store opens: less, so that what was accepted is accepted again.
const OPENING_LEAVES: u64 = 512 << 10;
/// Changes of names that wait for something else to write a manifest; the next one asks for it.
const CHANGES_WAIT: usize = 1024;

impl StoreInner {
    /// Checks an operation on names, books what it makes the catalog grow by, and makes it: what comes out cannot fail.
    pub(crate) fn prepare(&self, op: MetaOp) -> Result<Change> {
        let find = |number| self.catalog.read().by_number(number).cloned();
        Ok(match op {
            MetaOp::Create { number, name, config } => {
                let config = self.hold_config(config, self.room_beside_names())?;
                let mut memory = self.book_names(collection_bytes(&name), self.room_beside_names())?;
                let (places, accounts) = (Places::of(&mut memory), (&self.accounts.growing, &self.accounts.segments));
                Change::Create(Arc::new(Collection::new(number, &name, config, memory, accounts, CLEAN)?), places)
            }
            MetaOp::Drop { number } => Change::Drop(number),
            MetaOp::Patch { number, patch } => {
                let Some(collection) = find(number) else { return Ok(Change::Nothing) };
                let room = self.room_beside_names();
                let _patch = self.book_names(config_bytes(&collection.config.load()) + json_bytes(&patch), room)?;
                let config = self.hold_config(patch.apply(&collection.config.load()), room)?;
                Change::Configure { collection, config, index: None }
            }
            MetaOp::Index { number, path, index } => {
                let Some(collection) = find(number) else { return Ok(Change::Nothing) };
                // Indexes are few and small, and an index that is taken away must not have to wait for room.
                let _copy = self.book_names(config_bytes(&collection.config.load()), 0)?;
                let mut config = (***collection.config.load()).clone();
                match &index {
                    Some(index) => config.indexes.insert(path.clone(), index.clone()),
                    None => config.indexes.remove(&path),
                };
                let config = self.hold_config(config, 0)?;
                Change::Configure { collection, config, index: Some((path, index)) }
            }
            MetaOp::Aliases { actions } => {
                let [aliases, changes] = actions_bytes(&actions);
                let room = self.room_beside_names();
                let memory = [self.book_names(aliases, room)?, self.book_names(changes, room)?];
                Change::Aliases { actions, memory }
            }
        })
    }

    /// The configuration that others have as well, or this one, booked with `room` left.
    pub(crate) fn hold_config(&self, config: CollectionConfig, room: u64) -> Result<Arc<HeldConfig>> {
        if let Some(held) = self.catalog.read().configs.find(&config) {
            return Ok(held);
        }
        let memory = self.book_names(config_bytes(&config), room)?;
        let held = HeldConfig::new(config, memory);
        self.catalog.write().configs.remember(&held);
        Ok(held)
    }

    /// What the catalog leaves for points and for merges when it grows, or nothing could be done with what it names.
    pub(crate) fn room_beside_names(&self) -> u64 {
        // What merges have for good comes and goes with the writes; a part of it that is missing now must be there again.
        let of_merges = self.limits().merge_work.saturating_sub(self.accounts.merge.secured());
        let of_points = match self.opening.load(Ordering::Relaxed) {
            true => OPENING_LEAVES,
            // In the long run what the allocator keeps is free: it counts as that share.
            false => NAMES_LEAVE + (self.budget.limit() / KEPT_PART).saturating_sub(self.budget.passing()),
        };
        of_points + of_merges.min(self.budget.limit() / 16)
    }

    /// Memory for the catalog, given only where `room` is free beside it.
    pub(crate) fn book_names(&self, bytes: u64, room: u64) -> Result<Reservation> {
        let catalog = &self.accounts.catalog;
        let booked = catalog.try_reserve(bytes + room);
        let mut booked = booked.map_err(|error| {
            // Names stay and so do segments: what does not fit beside them never will. What the allocator keeps was left out of
            // the room and is in use all the same; who asks has a connection, and room for its answer, until it is told.
            let all = catalog.used() + self.accounts.segments.used() + bytes;
            let kept = self.budget.passing().min(self.budget.limit() / KEPT_PART);
            match catalog.try_reserve_no_reclaim(all + room + kept + ASKER_HOLDS) {
                Err(never) if never.kind() == Kind::NoMemory => Error::no_memory(format!(
                    "no room for more collections, configurations or aliases: {} more needed beside the {} that they take, \
                     and {} must stay free for points and merges under the budget of {}",
                    Size(bytes),
                    Size(catalog.used()),
                    Size(room),
                    Size(self.budget.limit()),
                )),
                _ => error,
            }
        })?;
        booked.shrink(room);
        Ok(booked)
    }

    /// Does a change that was prepared and is in the log from `position` to `end`.
    pub(crate) fn apply_meta(&self, change: Change, lsn: Lsn, end: Lsn) {
        let _aliasing = matches!(change, Change::Aliases { .. }).then(|| self.aliasing.lock());
        let change = match change {
            // Before the names are locked: it waits for who reads the collection. Done twice it is the same.
            Change::Configure { collection, config, index } => {
                self.configure(&collection, config, index);
                Change::Nothing
            }
            change => change,
        };
        // Whose last handle this is goes after the lock, with its files.
        let gone;
        let mut catalog = self.catalog.write();
        match change {
            Change::Create(collection, places) => {
                collection.replay_from.store(lsn, Ordering::SeqCst);
                catalog.insert(collection, places);
            }
            Change::Drop(number) => {
                gone = catalog.remove(number);
                if let Some(collection) = &gone {
                    collection.dropped.store(true, Ordering::SeqCst);
                    self.manifest_dirty.store(true, Ordering::SeqCst);
                    idle::plan_again(self);
                }
            }
            Change::Aliases { actions, memory } => catalog.apply_aliases(actions, memory),
            Change::Configure { .. } | Change::Nothing => {}
        }
        catalog.meta_from = end;
        if catalog.unwritten >= CHANGES_WAIT {
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
    }

    fn configure(&self, collection: &Collection, config: Arc<HeldConfig>, index: Option<(Path, Option<FieldConfig>)>) {
        collection.config.store(config);
        collection.unwritten.store(true, Ordering::SeqCst);
        if let Some((path, index)) = index {
            collection.keep_index(&path, index.as_ref());
            self.manifest_dirty.store(true, Ordering::SeqCst);
        }
        // Wishes are others, and tables that are gone leave their room.
        idle::plan_again(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{MetricName, UNNAMED, VectorConfig};
    use crate::state::options::StoreOptions;
    use crate::store::Store;
    use ramekin_base::SystemClock;
    use ramekin_disk::{Engine, probe};
    use ramekin_memory::Budget;
    use ramekin_pages::Pages;
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn an_index_that_waits_for_a_reader_of_its_collection_stops_no_look_at_names() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = probe(folder.path(), Some(Engine::Pread)).unwrap();
        let budget = Budget::new(64 << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 36).unwrap();
        let account = budget.root().child("vectors", "");
        let (folder, clock) = (folder.path().to_owned(), Arc::new(SystemClock::new()));
        let options = StoreOptions { disk, folder, pages, budget, account, clock, build_threads: 1, threads: true };
        let store = Store::open(options).unwrap();
        let vectors = BTreeMap::from([(UNNAMED.to_owned(), VectorConfig::new(4, MetricName::Dot))]);
        store.create_collection("c", CollectionConfig::new(vectors)).unwrap();
        let collection = store.shared().find("c").unwrap();
        std::thread::scope(|scope| {
            let (go, goes_on) = mpsc::sync_channel::<()>(0);
            let (begun, begins) = mpsc::sync_channel(0);
            let part = collection.view.load().active.clone();
            scope.spawn(move || {
                let _reading = part.read();
                begun.send(()).unwrap();
                _ = goes_on.recv();
            });
            begins.recv().unwrap();
            let path = Path::parse("a").unwrap();
            let index = FieldConfig { schema: Arc::new(ramekin_fields::Schema::Bool), client_config: None };
            let set = scope.spawn(|| store.set_index("c", path, Some(index)).unwrap());
            // From then on the writer waits for who reads.
            while collection.config.load().indexes.is_empty() {
                std::thread::yield_now();
            }
            let (asked, names) = mpsc::sync_channel(1);
            let named = &store;
            scope.spawn(move || _ = asked.send((named.collections().len(), named.config("c").is_ok())));
            let names = names.recv_timeout(Duration::from_secs(30));
            drop(go);
            assert_eq!(names, Ok((1, true)), "the names wait for the reader");
            set.join().unwrap();
        });
        assert!(!collection.view.load().active.read().fields().is_empty());
        store.close();
    }
}
