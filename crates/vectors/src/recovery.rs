//! Recovery: collections and aliases of the manifest are opened, and the log behind it is replayed by the writer's own code.
//!
//! ```text
//!   manifest ─► open_catalog ─► segments, their delete bitmaps, patches and indexes ─► replay ─► memtables
//! ```
//!
//! Where memory is short it is counted to the end, so that the least budget can be told.

use crate::api::catalog_cost::{self, alias_bytes, collection_bytes, config_bytes};
use crate::api::op::{self, MetaOp, Op};
use crate::api::*;
use crate::background;
use crate::background::manifest::{self, AliasesJson, CatalogJson, CollectionJson, HeadJson};
use crate::collection::catalog::{AliasChange, Places};
use crate::collection::{Collection, Located, View};
use crate::inner::StoreInner;
use crate::memtable::Memtable;
use crate::segment::overlay::PatchRun;
use crate::segment::{Segment, field};
use crate::write::payload_write;
use ramekin_base::{Error, Result, Size};
use ramekin_log::{Log, Lsn};
use ramekin_storage::{Manifest, read_app};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the catalog takes, counted while a store opens. Where it finds no memory it is let go of, and counted to its end:
/// then the least budget can be told.
#[derive(Default)]
pub(crate) struct Short {
    needed: u64,
    configs: HashSet<u64>,
    first: Option<Error>,
}

impl Short {
    fn count(&mut self, name: &str, config: &CollectionConfig) {
        self.needed += collection_bytes(name);
        if self.configs.insert(catalog_cost::hash(config)) {
            self.needed += config_bytes(config);
        }
    }

    /// What was made, or `None` if the memory is short.
    fn pass<T>(&mut self, shared: &StoreInner, made: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.is_short() {
            return Ok(None);
        }
        match made() {
            Err(error) if error.kind().is_memory() => {
                self.first = Some(error);
                shared.catalog.write().clear();
                Ok(None)
            }
            made => made.map(Some),
        }
    }

    pub(crate) fn is_short(&self) -> bool {
        self.first.is_some()
    }

    /// Nothing was short, or an error that names a budget that is enough. Of a larger one others have a share.
    pub(crate) fn check(&self, shared: &StoreInner) -> Result<()> {
        let Some(first) = &self.first else { return Ok(()) };
        let (budget, free) = (shared.budget.limit(), shared.budget.free());
        let missing = (self.needed + LEAVES_TO_OPEN).saturating_sub(free);
        let least = (budget + missing * 3 / 2 + (1 << 20)).next_multiple_of(1 << 20);
        Err(Error::no_memory(format!(
            "collections and aliases take {}, and {} are free for them, so it takes a budget of at least {} ({first})",
            Size(self.needed),
            Size(free),
            Size(least)
        )))
    }
}

/// What is to be free beside the catalog when a store has opened.
const LEAVES_TO_OPEN: u64 = 2 << 20;

pub(crate) fn head_of(manifest: &Manifest) -> Result<HeadJson> {
    read_app(manifest.whole().unwrap_or(&manifest.head.app))
}

/// Opens the collections and aliases that a manifest has.
pub(crate) fn open_catalog(shared: &StoreInner, manifest: &mut Manifest, short: &mut Short) -> Result<()> {
    let mut open = |json: CollectionJson| {
        short.count(&json.name, &json.config);
        let opened = || open_collection(shared, &json).map_err(|error| error.at(&json.name));
        if let Some((opened, places)) = short.pass(shared, opened)? {
            shared.catalog.write().insert(Arc::new(opened), places);
        }
        Ok(())
    };
    if let Some(whole) = manifest.whole() {
        let CatalogJson { collections, aliases } = read_app(whole)?;
        collections.into_iter().try_for_each(&mut open)?;
        let number = |name: &str| shared.catalog.read().by_name(name).map(|collection| collection.number);
        let aliases = aliases.into_iter().map(|(alias, name)| (alias.into(), number(&name))).collect();
        return restore_aliases(shared, aliases, short);
    }
    manifest.each_part(&mut |_, app| open(read_app(app)?))?;
    manifest.each_note(&mut |app| {
        let AliasesJson { aliases } = read_app(app)?;
        restore_aliases(shared, aliases, short)
    })?;
    if !short.is_short() {
        shared.catalog.write().drop_dangling();
    }
    Ok(())
}

fn restore_aliases(shared: &StoreInner, aliases: Vec<AliasChange>, short: &mut Short) -> Result<()> {
    let bytes = aliases.iter().filter(|(_, number)| number.is_some()).map(|(alias, _)| alias_bytes(alias)).sum();
    short.needed += bytes;
    if let Some(mut memory) = short.pass(shared, || shared.book_names(bytes, shared.room_beside_names()))? {
        let mut catalog = shared.catalog.write();
        aliases.into_iter().for_each(|alias| catalog.restore_alias(alias, &mut memory));
    }
    Ok(())
}

fn open_collection(shared: &StoreInner, json: &CollectionJson) -> Result<(Collection, Places)> {
    let config = shared.hold_config(json.config.clone(), shared.room_beside_names())?;
    let mut memory = shared.book_names(collection_bytes(&json.name), shared.room_beside_names())?;
    let (places, accounts) = (Places::of(&mut memory), (&shared.accounts.growing, &shared.accounts.segments));
    let collection = Collection::new(json.number, &json.name, config, memory, accounts, json.replay_from)?;
    let mut segments = Vec::with_capacity(json.segments.len());
    for kept in &json.segments {
        let file = shared.storage.open_file(&kept.file)?;
        let segment = Segment::open(&kept.file, file, &shared.accounts.segments)?;
        segment.listed.store(true, Ordering::SeqCst);
        if let Some(name) = &kept.dead {
            segment.restore_deaths(&shared.storage, name, &shared.accounts.segments)?;
        }
        for name in &kept.payloads {
            let file = shared.storage.open_file(name)?;
            let run = PatchRun::open(name, file, segment.meta.points, &shared.accounts.segments)?;
            segment.patches.add_run(Arc::new(run));
        }
        *segment.fields.write() = field::open_all(&shared.storage, &kept.fields, segment.meta.points)?;
        segments.push(Arc::new(segment).view());
    }
    _ = collection.swap(|view| View { active: view.active.clone(), immutable: Vec::new(), segments });
    collection.unwritten.store(false, Ordering::SeqCst);
    collection.written.store(manifest::fingerprint(&collection), Ordering::SeqCst);
    Ok((collection, places))
}

/// Opens the log and applies what the manifest does not hold. Where the memtable fills up, it is
/// flushed at once, so that replay fits a smaller budget than the one that wrote the log.
pub(crate) fn replay(shared: &Arc<StoreInner>, durable: Range<Lsn>, meta_from: Lsn, short: &mut Short) -> Result<Log> {
    let log_from = durable.start;
    let mut log = shared.storage.open_log(&shared.accounts.log, durable, &mut |_, _| Ok(()))?;
    if let Some(cut) = log.cut() {
        tracing::warn!(
            "the log ended in a write that was under way and is dropped, nobody was told that it was done: {cut}"
        );
    }
    _ = shared.env.log.set(log.reader());
    log.replay(log_from, &mut |lsn, record| {
        let (seqno, op) = op::decode(record).map_err(|error| error.at(format!("log position {lsn}")))?;
        shared.seqno.fetch_max(seqno, Ordering::SeqCst);
        // This record is not applied yet, and all before it are.
        shared.applied.store(lsn, Ordering::SeqCst);
        match op {
            Op::Meta(_) if lsn < meta_from => Ok(()),
            Op::Meta(op) => replay_meta(shared, op, lsn, short),
            // Nothing may be made of points while collections are missing.
            _ if short.is_short() => Ok(()),
            Op::Upsert { collection, batch, payloads_at } => {
                let Some(collection) = replayed(shared, collection, lsn) else { return Ok(()) };
                let parts = [(lsn, 0..batch.ids.len(), &payloads_at[..])];
                with_room(shared, &|| {
                    replay_room(shared, &collection, &batch)?;
                    shared.apply_parts(&collection, &batch, &parts, seqno, Located::default())
                })
            }
            Op::Delete { collection, ids } => {
                let Some(collection) = replayed(shared, collection, lsn) else { return Ok(()) };
                with_room(shared, &|| collection.apply_delete(&shared.pages, &ids, lsn, Located::default()))
            }
            Op::Payloads { collection, ids, texts } => {
                let Some(collection) = replayed(shared, collection, lsn) else { return Ok(()) };
                payload_write::replay(shared, &collection, &ids, &texts, lsn)
            }
        }
    })?;
    short.check(shared)?;
    shared.applied.store(log.end(), Ordering::SeqCst);
    log.set_file_bytes(shared.limits().log_file_bytes());
    log.trim(log_from)?;
    Ok(log)
}

/// Applies a record, where nothing of it is done if it finds no memory: then what is new is written out first.
fn with_room(shared: &StoreInner, apply: &dyn Fn() -> Result<()>) -> Result<()> {
    loop {
        match apply() {
            Err(error) if error.kind().is_memory() => {
                if !shared.rotate_largest()? || !background::flush_waiting(shared)? {
                    return Err(error);
                }
            }
            applied => return applied,
        }
    }
}

fn replay_meta(shared: &StoreInner, op: MetaOp, lsn: Lsn, short: &mut Short) -> Result<()> {
    let known = |number: u64| shared.catalog.read().by_number(number).is_some();
    if matches!(op, MetaOp::Create { number, .. } if known(number)) {
        return Ok(());
    }
    match &op {
        MetaOp::Create { name, config, .. } => short.count(name, config),
        op => short.needed += catalog_cost::op_bytes(op),
    }
    // Points that came before may be written out for it.
    let prepare = || loop {
        match shared.prepare(op.clone()) {
            Err(error) if error.kind().is_memory() => {
                if !shared.rotate_largest()? || !background::flush_waiting(shared)? {
                    return Err(error);
                }
            }
            prepared => return prepared,
        }
    };
    if let Some(change) = short.pass(shared, prepare)? {
        shared.apply_meta(change, lsn, lsn + 1);
    }
    Ok(())
}

/// The collection of a record, if the record is not yet in its files.
fn replayed(shared: &StoreInner, number: u64, lsn: Lsn) -> Option<Arc<Collection>> {
    let collection = shared.catalog.read().by_number(number).cloned()?;
    (lsn >= collection.replay_from.load(Ordering::SeqCst)).then_some(collection)
}

fn replay_room(shared: &StoreInner, collection: &Arc<Collection>, batch: &Batch) -> Result<()> {
    let bytes = Memtable::bytes_for(batch);
    loop {
        let view = collection.view.load_full();
        let used = view.active.read().bytes();
        if used > 0 && used + bytes > shared.limits().flush_bytes {
            collection.rotate()?;
            background::flush_waiting(shared)?;
            continue;
        }
        match shared.promise_points(&view.active, bytes) {
            Ok(()) => return Ok(()),
            Err(error) => {
                if !shared.rotate_largest()? {
                    return Err(shared.check_flushing().err().unwrap_or(error));
                }
                background::flush_waiting(shared)?;
            }
        }
    }
}
