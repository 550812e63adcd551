//! All versions that are stored, in the order in which they were written.
//!
//! ```text
//!   heads ───┐  those that count ─► sorted by revision and number, ─┐
//!   history ─┘                      in a temporary file             ├─► merged ─► one after the other
//!   changes ───────────────────────► deletes, in order ─────────────┘
//! ```
//!
//! Trees lie in the order of keys, and `changes` knows nothing from before the last compaction: so versions are sorted, along with
//! values that stand beside them. Everything is read once and in order, however much there is. Long values stay where they are
//! until they are shown.

use crate::api::KeyRange;
use crate::keys::{self, CHANGES, HEADS, HISTORY, VALUES, broken};
use crate::range;
use crate::reads::{InView, Reads, Walk};
use crate::record::{Change, Dead, Head, Value, Version};
use ramekin_base::{Error, Result, varint};
use ramekin_disk::Disk;
use ramekin_engine::ReadView;
use ramekin_memory::Account;
use ramekin_runs::sort::{MergedRecords, Runs, Scratch, Sorter};
use std::path::PathBuf;
use std::sync::Arc;

/// Memory of a sort: a sixteenth of the budget, within these bounds. With more there are fewer and longer reads and writes.
const SORT_BYTES: std::ops::RangeInclusive<u64> = 768 << 10..=12 << 20;
/// Records between two looks whether somebody still waits.
const CHECK_EVERY: u64 = 1024;
/// A long value is handed out in pieces.
const PIECE: usize = 32 << 10;

/// A version, or that a key was deleted.
pub struct Stored<'a> {
    pub revision: i64,
    /// In its revision.
    pub number: u32,
    pub is_delete: bool,
    pub key: &'a [u8],
    /// 0 for a delete, as what follows.
    pub create_revision: i64,
    pub version: i64,
    pub lease: i64,
    pub value_len: u64,
    value: Place<'a>,
}

enum Place<'a> {
    Here(&'a [u8]),
    There(&'a ReadView),
}

/// Wanted versions count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All that can be read or watched.
    All,
    /// What the hash of a revision is made of.
    Hash(i64),
}

/// Where a walk sorts.
pub(crate) struct Work {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    /// Different from that of any other walk at the time.
    pub(crate) name: String,
    pub(crate) account: Account,
    /// Of a sort.
    pub(crate) bytes: usize,
}

/// Memory of a sort under a budget.
pub(crate) fn sort_bytes(budget: u64) -> usize {
    (budget / 16).clamp(*SORT_BYTES.start(), *SORT_BYTES.end()) as usize
}

/// Is shown versions in their order.
pub type EachStored<'a> = &'a mut dyn FnMut(&Stored<'_>) -> Result<()>;

impl<'a> Stored<'a> {
    /// A version of a key in a view, for whoever is not asked for its number.
    pub(crate) fn shown(view: &'a ReadView, key: &'a [u8], revision: i64, is: &Version<'a>) -> Self {
        let (value_len, value) = match is.value {
            Value::Here(value) => (value.len() as u64, Place::Here(value)),
            Value::There(len) => (len, Place::There(view)),
        };
        let Version { create, version, lease, .. } = *is;
        Self { revision, number: 0, is_delete: false, key, create_revision: create, version, lease, value_len, value }
    }

    /// Hands out the value in pieces.
    pub fn value(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let view = match self.value {
            Place::Here(value) => return each(value),
            Place::There(view) => view,
        };
        let (pages, account) = view.pages();
        let gone = || Error::corrupt("a version's value is not there; restore the folder from a copy");
        let shown = view.tree(VALUES)?.get(pages, &keys::version(self.key, self.revision), |found| {
            let Some(big) = found.big() else {
                let ramekin_runs::Value::Inline(value) = found.entry.value else { return Err(gone()) };
                return each(value);
            };
            let _memory = account.try_reserve(PIECE as u64)?;
            let (mut piece, mut at) = (vec![0; PIECE], 0);
            while at < big.len() {
                let part = &mut piece[..(big.len() - at).min(PIECE as u64) as usize];
                big.read(pages, at, part)?;
                each(part)?;
                at += part.len() as u64;
            }
            Ok(())
        })?;
        shown.ok_or_else(gone)
    }
}

/// Wanted versions count, in numbers.
struct Bounds {
    /// Of those that were written up to here, the ones that were alive at `alive_at`.
    compacted: i64,
    alive_at: i64,
    /// Of those after it all up to here.
    newest: i64,
    /// The first revision whose deletes count.
    deletes_from: i64,
}

impl Bounds {
    fn of(reads: &InView<'_>, wanted: Wanted) -> Result<Self> {
        let (compacted, newest) = (reads.compacted()?, reads.revision()?);
        match wanted {
            Wanted::All => Ok(Self { compacted, alive_at: compacted, newest, deletes_from: compacted.max(0) }),
            Wanted::Hash(asked) => {
                let revision = range::check_revision(reads, asked, newest)?;
                let all = KeyRange { key: vec![0], end: vec![0] };
                // Where no key is there at all etcd hashes what it has.
                let is_empty = range::count(reads, &all, revision, newest)? == 0;
                let alive_at = if is_empty { compacted } else { revision };
                Ok(Self { compacted, alive_at, newest: revision, deletes_from: compacted.max(0) + 1 })
            }
        }
    }

    fn counts(&self, written: i64, end: i64) -> bool {
        match written <= self.compacted {
            true => end > self.alive_at,
            false => written <= self.newest,
        }
    }
}

/// Shows what is stored; `check` fails where nobody waits any more. The compacted revision, and up to which one was shown.
pub(crate) fn walk(
    view: &ReadView,
    wanted: Wanted,
    work: Work,
    check: &dyn Fn() -> Result<()>,
    each: EachStored<'_>,
) -> Result<(i64, i64)> {
    let reads = InView(view);
    let bounds = Bounds::of(&reads, wanted)?;
    let Work { disk, folder, name, account, bytes } = work;
    let scratch = Scratch { disk, folder, account: account.clone(), check };
    let sorter = Sorter::long(&scratch, &name, bytes)?;
    let sorted = sort(&reads, &bounds, &scratch, sorter)?;
    let mut merged = Merged {
        view,
        bounds: &bounds,
        versions: sorted.read(&account)?,
        changes: reads.walk(CHANGES, &keys::change(bounds.newest + 1, 0))?,
    };
    merged.changes.seek(&keys::change(bounds.deletes_from, 0))?;
    let mut shown = 0u64;
    while merged.show(each)? {
        shown += 1;
        if shown.is_multiple_of(CHECK_EVERY) {
            check()?;
        }
    }
    Ok((bounds.compacted, bounds.newest))
}

/// The versions that count, by revision and number.
fn sort(reads: &InView<'_>, bounds: &Bounds, scratch: &Scratch<'_>, mut sorter: Sorter<'_>) -> Result<Runs> {
    let mut record = Vec::new();
    let mut seen = 0u64;
    let mut push = |key: &[u8], written: i64, end: i64, is: &Version<'_>| {
        seen += 1;
        if seen.is_multiple_of(CHECK_EVERY) {
            (scratch.check)()?;
        }
        if !bounds.counts(written, end) {
            return Ok(());
        }
        record.clear();
        varint::put(&mut record, key.len() as u64);
        record.extend_from_slice(key);
        is.encode(&mut record);
        sorter.push(&keys::change(written, is.number), &record)
    };
    let mut heads = reads.walk(HEADS, keys::END)?;
    heads.seek(&[])?;
    while let Some((key, head)) = heads.record() {
        let head = Head::decode(head)?;
        push(keys::of_head(key)?, head.revision, i64::MAX, &head.is)?;
        heads.next()?;
    }
    let mut history = reads.walk(HISTORY, keys::END)?;
    history.seek(&[])?;
    while let Some((at, dead)) = history.record() {
        let ((key, written), dead) = (keys::of_history(at)?, Dead::decode(dead)?);
        push(&key, written, dead.end, &dead.is)?;
        history.next()?;
    }
    sorter.merged()
}

/// Versions and deletes, both in order.
struct Merged<'m> {
    view: &'m ReadView,
    bounds: &'m Bounds,
    versions: MergedRecords<'m>,
    changes: Box<dyn Walk + 'm>,
}

impl Merged<'_> {
    /// Shows the next one. False: there are no more.
    fn show(&mut self, each: EachStored<'_>) -> Result<bool> {
        loop {
            let version = self.versions.record();
            let Some((at, change)) = self.changes.record() else {
                let Some((at, version)) = version else { return Ok(false) };
                show_version(self.view, at, version, each)?;
                return self.versions.next().map(|()| true);
            };
            if let Some((place, version)) = version.filter(|(place, _)| *place <= at) {
                let is_noted = place == at;
                show_version(self.view, place, version, each)?;
                self.versions.next()?;
                if is_noted {
                    self.changes.next()?;
                }
                return Ok(true);
            }
            let ((revision, number), change) = (keys::of_change(at)?, Change::decode(change)?);
            let is_delete = change.is_delete;
            if is_delete {
                each(&deleted(revision, number, change.key))?;
            } else if revision > self.bounds.compacted {
                return Err(Error::corrupt("a change has no version; restore the folder from a copy"));
            }
            self.changes.next()?;
            if is_delete {
                return Ok(true);
            }
        }
    }
}

fn deleted(revision: i64, number: u32, key: &[u8]) -> Stored<'_> {
    let value = Place::Here(&[]);
    Stored { revision, number, is_delete: true, key, create_revision: 0, version: 0, lease: 0, value_len: 0, value }
}

fn show_version(view: &ReadView, at: &[u8], record: &[u8], each: EachStored<'_>) -> Result<()> {
    let (revision, number) = keys::of_change(at)?;
    let mut place = 0;
    let mut decode = || {
        let len = usize::try_from(varint::get(record, &mut place)?).ok()?;
        let key = record.get(place..place.checked_add(len)?)?;
        place += len;
        Some((key, Version::decode(record, &mut place)?))
    };
    let (key, is) = decode().ok_or_else(|| broken("sorted version"))?;
    let (value, value_len) = match is.value {
        Value::Here(value) => (Place::Here(value), value.len() as u64),
        Value::There(len) => (Place::There(view), len),
    };
    let Version { create: create_revision, version, lease, .. } = is;
    each(&Stored { revision, number, is_delete: false, key, create_revision, version, lease, value_len, value })
}
