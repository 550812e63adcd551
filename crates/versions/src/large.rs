//! A delete of more keys than one unit of the log takes: it is one revision all the same, whole or absent.
//!
//! ```text
//!   hold the heads, their history, new changes, leases and the revision ─► who writes waits
//!     heads     each goes                         history   each ends
//!     changes   one for each                      meta      values to bury · keys out of leases · the revision
//!   one edit of the manifest is its commit
//! ```
//!
//! Each tree is written in its own order. A range is walked along its heads: in `meta` its keys stand by their leases, so they are
//! sorted there, in a temporary file. The keys of a lease are walked along `meta`, and each head is looked up: no other key is read.

use crate::api::{KeyRange, errors};
use crate::keys::{self, CHANGES, HEADS, HISTORY, META, REVISION};
use crate::reads::{InView, Reads};
use crate::record::{self, Change, Dead, Head};
use crate::stage::Trees;
use crate::stored::Work;
use ramekin_base::{Error, Result};
use ramekin_engine::{Bulk, Engine, ReadView};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_runs::sort::{Scratch, Sorter};
use ramekin_runs::{Value, View};

/// Memory of a sort at least, and for each key at most.
const SORT_LEAST: usize = 256 << 10;
const SORT_EACH: usize = 256;

/// Which keys go: all of a range, or those of a lease, which goes with them.
pub(crate) enum Which<'k> {
    Range(&'k KeyRange),
    Lease(i64),
}

/// A delete under way.
struct Large<'a> {
    which: Which<'a>,
    pages: &'a Pages,
    account: &'a Account,
    /// For a sort.
    work: Work,
    bounds: (Vec<u8>, Vec<u8>),
    /// Before it.
    before: Option<Before>,
    /// That it is.
    revision: i64,
    deleted: i64,
}

/// Trees as they are while they are held.
struct Before {
    heads: View,
    meta: View,
}

/// Deletes keys. How many there were, and the newest revision then.
pub(crate) fn delete(
    engine: &Engine<Trees>,
    (account, work): (&Account, Work),
    which: Which<'_>,
) -> Result<(i64, i64)> {
    let view = engine.view();
    let newest = InView(&view).revision()?;
    let range = match which {
        Which::Range(range) => range.clone(),
        Which::Lease(_) => KeyRange { key: vec![0], end: vec![0] },
    };
    let (bounds, versions) = (keys::heads_of(&range), keys::versions_of(&range));
    if bounds.1 <= bounds.0 {
        return Ok((0, newest));
    }
    let (first, last) = (keys::change(newest + 1, 0), [0xff; 12]);
    let after = [REVISION, &[0]].concat();
    let ranges: [(usize, &[u8], &[u8]); 6] = [
        (HEADS, &bounds.0, &bounds.1),
        (HISTORY, &versions.0, &versions.1),
        (CHANGES, &first, &last),
        (META, b"g", b"h"),
        (META, b"k", b"m"),
        (META, REVISION, &after),
    ];
    let mut large = Large {
        which,
        pages: view.pages().0,
        account,
        work,
        bounds: (bounds.0.clone(), bounds.1.clone()),
        before: None,
        revision: newest,
        deleted: 0,
    };
    let moment = || engine.view();
    engine.bulk_over(&ranges, |bulk| large.make(bulk, &moment))?;
    Ok((large.deleted, large.revision))
}

impl Large<'_> {
    fn make(&mut self, bulk: &mut Bulk<'_, '_>, moment: &dyn Fn() -> ReadView) -> Result<()> {
        match bulk.tree() {
            HEADS => {
                // Nobody writes a key any more, alone or into a lease; what was written is durable, since the heads were flushed.
                let moment = moment();
                self.revision = InView(&moment).revision()?;
                self.before = Some(Before { heads: bulk.view().clone(), meta: moment.tree(META)?.clone() });
                let mut deleted = 0;
                self.each(|key, head, _| {
                    deleted += 1;
                    bulk.delete_known(&keys::head(key), &head.encode())
                })?;
                self.deleted = deleted;
                self.revision += i64::from(deleted > 0);
                Ok(())
            }
            HISTORY => self.each(|key, head, end| {
                bulk.put(&keys::version(key, head.revision), &Dead { end, is: head.is }.encode())
            }),
            CHANGES => {
                let mut number = 0;
                self.each(|key, _, revision| {
                    let change = Change { is_delete: true, is_new: false, key };
                    number += 1;
                    bulk.put(&keys::change(revision, number - 1), &change.encode())
                })
            }
            _ => self.meta(bulk),
        }
    }

    fn meta(&self, bulk: &mut Bulk<'_, '_>) -> Result<()> {
        match self.which {
            Which::Range(_) => self.meta_of_range(bulk)?,
            Which::Lease(id) => self.meta_of_lease(id, bulk)?,
        }
        match self.deleted {
            0 => Ok(()),
            _ => bulk.put(REVISION, &record::number(self.revision)),
        }
    }

    fn meta_of_range(&self, bulk: &mut Bulk<'_, '_>) -> Result<()> {
        let Work { disk, folder, name, account, bytes } = &self.work;
        let (disk, folder) = (disk.clone(), folder.clone());
        let scratch = Scratch { disk, folder, account: account.clone(), check: &|| Ok(()) };
        let bytes = (*bytes).min(SORT_LEAST.max(SORT_EACH.saturating_mul(self.deleted as usize)));
        let mut leased: Option<Sorter<'_>> = None;
        self.each(|key, head, end| {
            if head.is.lease != 0 {
                let sorter = match &mut leased {
                    Some(sorter) => sorter,
                    none => none.insert(Sorter::long(&scratch, name, bytes)?),
                };
                sorter.push(&keys::leased(head.is.lease, key), &[])?;
            }
            bury(bulk, key, head, end)
        })?;
        let Some(leased) = leased.map(Sorter::merged).transpose()? else { return Ok(()) };
        let mut leased = leased.read(account)?;
        while let Some((key, _)) = leased.record() {
            bulk.delete(key)?;
            leased.next()?;
        }
        Ok(())
    }

    fn meta_of_lease(&self, id: i64, bulk: &mut Bulk<'_, '_>) -> Result<()> {
        self.each(|key, head, end| bury(bulk, key, head, end))?;
        self.each(|key, _, _| bulk.delete(&keys::leased(id, key)))?;
        let lease = keys::lease(id);
        match bulk.view().get(self.pages, &lease, |found| Ok(found.entry.value.is_live()))? {
            Some(true) => bulk.delete(&lease),
            _ => Err(Error::not_found(errors::LEASE_NOT_FOUND)),
        }
    }

    /// Calls `each` with a key that goes, its head and the revision in which it goes, in the order of keys.
    fn each(&self, each: impl FnMut(&[u8], &Head<'_>, i64) -> Result<()>) -> Result<()> {
        let Some(before) = &self.before else { return Err(Error::bug("a large delete has no heads")) };
        match self.which {
            Which::Range(_) => self.each_in_range(&before.heads, each),
            Which::Lease(id) => self.each_of_lease(before, id, each),
        }
    }

    fn each_in_range(&self, heads: &View, mut each: impl FnMut(&[u8], &Head<'_>, i64) -> Result<()>) -> Result<()> {
        let mut walk = heads.range(self.pages, self.account)?;
        walk.seek(&self.bounds.0)?;
        while let Some(found) = walk.entry()?.filter(|found| found.entry.key < &self.bounds.1[..]) {
            if let Value::Inline(head) = found.entry.value {
                each(keys::of_head(found.entry.key)?, &Head::decode(head)?, self.revision)?;
            }
            walk.advance()?;
        }
        Ok(())
    }

    fn each_of_lease(
        &self,
        before: &Before,
        id: i64,
        mut each: impl FnMut(&[u8], &Head<'_>, i64) -> Result<()>,
    ) -> Result<()> {
        let (from, to) = keys::leased_range(id);
        let mut walk = before.meta.range(self.pages, self.account)?;
        walk.seek(&from)?;
        while let Some(found) = walk.entry()?.filter(|found| found.entry.key < &to[..]) {
            if found.entry.value.is_live() {
                let key = keys::of_leased(found.entry.key)?;
                before.heads.get(self.pages, &keys::head(key), |found| match found.entry.value {
                    Value::Inline(head) => each(key, &Head::decode(head)?, self.revision),
                    _ => Ok(()),
                })?;
            }
            walk.advance()?;
        }
        Ok(())
    }
}

/// The value of a version that ends is to be removed, if it is long.
fn bury(bulk: &mut Bulk<'_, '_>, key: &[u8], head: &Head<'_>, end: i64) -> Result<()> {
    match head.is.value.is_there() {
        true => bulk.put(&keys::grave(end, &keys::version(key, head.revision)), &[]),
        false => Ok(()),
    }
}
