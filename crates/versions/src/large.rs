//! A delete of more keys than one unit of the log takes: it is one revision all the same, whole or absent.
//!
//! ```text
//!   hold the heads, their history, new changes, leases and the revision ─► who writes waits
//!     heads     each goes                         history   each ends
//!     changes   one for each                      meta      values to bury · keys out of leases · the revision
//!   one edit of the manifest is its commit
//! ```

use crate::api::{KeyRange, errors};
use crate::keys::{self, CHANGES, HEADS, HISTORY, META, REVISION};
use crate::reads::{InView, Reads};
use crate::record::{self, Change, Dead, Head};
use crate::stage::Trees;
use ramekin_base::{Error, Result};
use ramekin_engine::{Bulk, Engine, ReadView};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use ramekin_runs::{Value, View};

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
    bounds: (Vec<u8>, Vec<u8>),
    /// The heads before it, and the revision that it is.
    heads: Option<View>,
    revision: i64,
    deleted: i64,
}

/// Deletes keys. How many there were, and the newest revision then.
pub(crate) fn delete(engine: &Engine<Trees>, account: &Account, which: Which<'_>) -> Result<(i64, i64)> {
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
        bounds: (bounds.0.clone(), bounds.1.clone()),
        heads: None,
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
                // Nobody writes a key any more; what was written is durable, since the heads were flushed.
                self.revision = InView(&moment()).revision()?;
                self.heads = Some(bulk.view().clone());
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
        let (mut leased, mut memory): (Vec<Vec<u8>>, Reservation) = (Vec::new(), self.account.try_reserve(0)?);
        self.each(|key, head, end| {
            if head.is.lease != 0 {
                memory.grow(80 + key.len() as u64)?;
                leased.push(keys::leased(head.is.lease, key));
            }
            match head.is.value.is_there() {
                true => bulk.put(&keys::grave(end, &keys::version(key, head.revision)), &[]),
                false => Ok(()),
            }
        })?;
        leased.sort_unstable();
        leased.iter().try_for_each(|key| bulk.delete(key))?;
        if let Which::Lease(id) = self.which {
            if !bulk.view().get(self.pages, &keys::lease(id), |found| Ok(found.entry.value.is_live()))?.unwrap_or(false)
            {
                return Err(Error::not_found(errors::LEASE_NOT_FOUND));
            }
            bulk.delete(&keys::lease(id))?;
        }
        match self.deleted {
            0 => Ok(()),
            _ => bulk.put(REVISION, &record::number(self.revision)),
        }
    }

    /// Calls `each` with a key that goes, its head and the revision in which it goes.
    fn each(&self, mut each: impl FnMut(&[u8], &Head<'_>, i64) -> Result<()>) -> Result<()> {
        let Some(heads) = &self.heads else { return Err(Error::bug("a large delete has no heads")) };
        let mut walk = heads.range(self.pages, self.account)?;
        walk.seek(&self.bounds.0)?;
        while let Some(found) = walk.entry()?.filter(|found| found.entry.key < &self.bounds.1[..]) {
            if let Value::Inline(head) = found.entry.value {
                let (key, head) = (keys::of_head(found.entry.key)?, Head::decode(head)?);
                let goes = match self.which {
                    Which::Range(_) => true,
                    Which::Lease(id) => head.is.lease == id,
                };
                if goes {
                    each(key, &head, self.revision)?;
                }
            }
            walk.advance()?;
        }
        Ok(())
    }
}
