//! Takes over the versions of another store, such as an etcd's, with their revisions: into a store that is empty, whole or not at all.
//!
//! ```text
//!   versions in the order of revisions ─► sorted by key, the newest first, in a temporary file: each ends where the one before began
//!                                           ├─► heads, history, values
//!   leases, keys of them, others ─► sorted ─┼─► meta
//!   versions once more ─────────────────────┴─► changes              one edit of the manifest is its commit
//! ```
//!
//! Everything is read and written in order; a long value is read where it stands when its turn comes.

use crate::keys::{self, CHANGES, COMPACTED, HEADS, HISTORY, META, REVISION, VALUES, broken};
use crate::lease::Lease;
use crate::reads::{InView, Reads};
use crate::record::{self, Change, Dead, Head, Value, Version};
use crate::stage::{TTL_LEAST, Trees};
use crate::stored::Work;
use ramekin_base::{Error, Kind, Result, varint};
use ramekin_engine::{Bulk, Engine};
use ramekin_memory::{Account, Reservation};
use ramekin_runs::sort::{Runs, Scratch, Sorter};
use std::collections::HashSet;

/// What is remembered of a lease.
const LEASE_BYTES: u64 = 24;
const NEWER_THAN_ALL: i64 = i64::MAX;

/// A version of the other store, or that a key was deleted.
pub struct Incoming<'a> {
    pub revision: i64,
    /// In its revision.
    pub number: u32,
    pub is_delete: bool,
    pub key: &'a [u8],
    pub create_revision: i64,
    pub version: i64,
    pub lease: i64,
    pub value: &'a [u8],
    /// Where the value can be read again.
    pub value_at: u64,
}

/// Told of the name and the value of something of the server's own.
pub type EachOwn<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Is shown versions of the other store.
pub type EachIncoming<'a> = &'a mut dyn FnMut(&Incoming<'_>) -> Result<()>;

/// The other store, which does not change meanwhile.
pub trait Source {
    /// Shows all versions by their revisions, and by their numbers in them. It is asked twice.
    fn versions(&mut self, each: EachIncoming<'_>) -> Result<()>;

    /// Hands out in pieces what stands at a place.
    fn value(&mut self, at: u64, len: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    fn leases(&mut self, each: &mut dyn FnMut(Lease) -> Result<()>) -> Result<()>;

    /// Shows values of the server's own, by their names.
    fn owns(&mut self, each: &mut EachOwn<'_>) -> Result<()>;

    /// Up to which revision it is compacted; -1: it never was.
    fn compacted(&mut self) -> Result<i64>;
}

/// What was taken over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    pub revision: i64,
    pub compacted: i64,
    pub keys: u64,
    pub versions: u64,
    pub leases: u64,
}

/// Takes over all of a source.
pub(crate) fn import(
    engine: &Engine<Trees>,
    work: Work,
    source: &mut dyn Source,
    check: &dyn Fn() -> Result<()>,
) -> Result<Imported> {
    check_empty(engine)?;
    let Work { disk, folder, name, account, bytes } = work;
    let scratch = Scratch { disk, folder, account: account.clone(), check };
    let mut done = Imported { compacted: source.compacted()?, ..Imported::default() };
    let sorter = Sorter::long(&scratch, &format!("{name}-versions"), bytes)?;
    let versions = by_key(source, sorter, &mut done)?;
    let sorter = Sorter::long(&scratch, &format!("{name}-meta"), bytes / 2)?;
    let meta = meta_of(source, &versions, (sorter, &account), &mut done)?;
    let last = [0xff; 12];
    let ranges: [(usize, &[u8], &[u8]); 5] = [
        (HEADS, &[], keys::END),
        (HISTORY, &[], keys::END),
        (VALUES, &[], keys::END),
        (CHANGES, &[], &last),
        (META, &[], &last),
    ];
    engine.bulk_over(&ranges, |bulk| match bulk.tree() {
        CHANGES => changes(source, bulk, done.compacted),
        META => {
            let mut records = meta.read(&account)?;
            while let Some((key, value)) = records.record() {
                bulk.put(key, value)?;
                records.next()?;
            }
            Ok(())
        }
        tree => each_version(&versions, &account, done.compacted, &mut |version| version.put(tree, bulk, source)),
    })?;
    Ok(done)
}

/// Fails for a store that has anything.
fn check_empty(engine: &Engine<Trees>) -> Result<()> {
    let view = engine.view();
    let reads = InView(&view);
    for tree in [HEADS, HISTORY, VALUES, CHANGES, META] {
        let mut walk = reads.walk(tree, &[0xff; 16])?;
        walk.seek(&[])?;
        if walk.record().is_some() {
            return Err(Error::new(Kind::Exists, "there are keys or leases already; name a folder without any"));
        }
    }
    Ok(())
}

/// All versions by their keys, the newest first.
fn by_key(source: &mut dyn Source, mut sorter: Sorter<'_>, done: &mut Imported) -> Result<Runs> {
    let (mut place, mut record, mut last) = (Vec::new(), Vec::new(), None);
    source.versions(&mut |incoming| {
        keys::check(incoming.key)?;
        let at = (incoming.revision, incoming.number);
        if last.is_some_and(|last| last >= at) || incoming.revision < 1 {
            return Err(Error::corrupt("revisions of what is imported are not in order"));
        }
        last = Some(at);
        place.clear();
        place.extend_from_slice(&keys::version(incoming.key, incoming.revision));
        place.extend_from_slice(&(!incoming.number).to_be_bytes());
        encode(incoming, &mut record);
        sorter.push(&place, &record)
    })?;
    done.revision = last.map_or(1, |(revision, _)| revision).max(done.compacted).max(1);
    sorter.merged()
}

/// A delete: 1. A version: 0 │ where its value can be read │ the version
fn encode(incoming: &Incoming<'_>, out: &mut Vec<u8>) {
    out.clear();
    out.push(u8::from(incoming.is_delete));
    if !incoming.is_delete {
        let Incoming { number, create_revision: create, version, lease, value, value_at, .. } = *incoming;
        varint::put(out, value_at);
        Version { number, create, version, lease, value: Value::of(value) }.encode(out);
    }
}

/// A version, and how long it was the newest of its key.
struct Placed<'a> {
    /// Its place in `history`, with its revision.
    place: &'a [u8],
    key: &'a [u8],
    revision: i64,
    end: i64,
    is: Version<'a>,
    value_at: u64,
}

/// Shows the versions that are alive after the compacted revision.
fn each_version(
    sorted: &Runs,
    account: &Account,
    compacted: i64,
    each: &mut dyn FnMut(&Placed<'_>) -> Result<()>,
) -> Result<()> {
    let mut records = sorted.read(account)?;
    let mut newer: Option<(Vec<u8>, i64)> = None;
    while let Some((numbered, record)) = records.record() {
        let place = numbered.split_last_chunk::<4>().map_or(numbered, |(place, _)| place);
        let (key, revision) = keys::of_history(place)?;
        let end = newer.as_ref().filter(|(of, _)| *of == key).map_or(NEWER_THAN_ALL, |(_, revision)| *revision);
        if let (Some(0), true) = (record.first(), end > compacted) {
            let mut at = 1;
            let value_at = varint::get(record, &mut at).ok_or_else(|| broken("sorted version"))?;
            let is = Version::decode(record, &mut at).ok_or_else(|| broken("sorted version"))?;
            each(&Placed { place, key: &key, revision, end, is, value_at })?;
        }
        newer = Some((key, revision));
        records.next()?;
    }
    Ok(())
}

impl Placed<'_> {
    fn is_newest(&self) -> bool {
        self.end == NEWER_THAN_ALL
    }

    fn put(&self, tree: usize, bulk: &mut Bulk<'_, '_>, source: &mut dyn Source) -> Result<()> {
        let Self { place, key, revision, end, is, value_at } = *self;
        match (tree, is.value) {
            (HEADS, _) if self.is_newest() => bulk.put(&keys::head(key), &Head { revision, is }.encode()),
            (HISTORY, _) if !self.is_newest() => bulk.put(place, &Dead { end, is }.encode()),
            (VALUES, Value::There(len)) => bulk.put_pieces(place, len, &mut |each| source.value(value_at, len, each)),
            _ => Ok(()),
        }
    }
}

/// What stands beside the keys, in its order.
fn meta_of(
    source: &mut dyn Source,
    versions: &Runs,
    (mut sorter, account): (Sorter<'_>, &Account),
    done: &mut Imported,
) -> Result<Runs> {
    let mut memory: Reservation = account.try_reserve(0)?;
    let mut leases = HashSet::new();
    source.leases(&mut |Lease { id, ttl }| {
        memory.grow(LEASE_BYTES)?;
        leases.insert(id);
        sorter.push(&keys::lease(id), &record::number(ttl.max(TTL_LEAST)))
    })?;
    done.leases = leases.len() as u64;
    each_version(versions, account, done.compacted, &mut |version| {
        done.versions += 1;
        done.keys += u64::from(version.is_newest());
        match version.is_newest() {
            true if leases.contains(&version.is.lease) => {
                sorter.push(&keys::leased(version.is.lease, version.key), &[])
            }
            false if version.is.value.is_there() => sorter.push(&keys::grave(version.end, version.place), &[]),
            _ => Ok(()),
        }
    })?;
    source.owns(&mut |name, value| sorter.push(&keys::own(name), value))?;
    sorter.push(REVISION, &record::number(done.revision))?;
    if done.compacted >= 0 {
        sorter.push(COMPACTED, &record::number(done.compacted))?;
    }
    sorter.merged()
}

/// What watches read: nothing from before the compacted revision.
fn changes(source: &mut dyn Source, bulk: &mut Bulk<'_, '_>, compacted: i64) -> Result<()> {
    source.versions(&mut |incoming| {
        let Incoming { revision, number, is_delete, key, create_revision, .. } = *incoming;
        if revision < compacted {
            return Ok(());
        }
        let is_new = !is_delete && create_revision == revision;
        bulk.put(&keys::change(revision, number), &Change { is_delete, is_new, key }.encode())
    })
}
