//! Keys as they were at a revision.
//!
//! ```text
//!   the newest      a walk along the heads                                     count: their weights
//!   an old one      heads that are that old ─┐
//!                   versions that ended later ┴─► merged by key                count: that of now, less what came since
//! ```

use crate::api::{KeyRange, KeyValue, Order, Range, RangeReply, SortBy, errors};
use crate::keys::{self, CHANGES, HEADS, HISTORY, VALUES};
use crate::reads::{Reads, Walk};
use crate::record::{Change, Dead, Head, Value, Version};
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use std::cmp::Ordering;

/// What a key of an answer takes besides its bytes.
pub(crate) const KV_COST: u64 = 160;
/// Versions of one key that are passed one by one before the walk looks for the next.
const STEPS: usize = 8;

/// Books bytes of an answer.
pub(crate) type Book<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Books what one answer takes.
pub(crate) fn booking<'a>(
    account: &'a Account,
    memory: &'a mut Option<Reservation>,
) -> impl FnMut(u64) -> Result<()> + 'a {
    move |bytes| match &mut *memory {
        Some(memory) => memory.grow(bytes),
        none => account.try_reserve(bytes).map(|memory| *none = Some(memory)),
    }
}

/// Is shown a key, the revision in which its version was written, and the version; false: it has enough.
type Each<'a> = &'a mut dyn FnMut(&[u8], i64, &Version<'_>) -> Result<bool>;

/// Fails for a revision that is not there yet, or no more. The one that is meant.
pub(crate) fn check_revision(reads: &impl Reads, wanted: i64, newest: i64) -> Result<i64> {
    if wanted > newest {
        return Err(Error::invalid(errors::FUTURE_REVISION));
    }
    if wanted > 0 && wanted < reads.compacted()? {
        return Err(Error::invalid(errors::COMPACTED));
    }
    Ok(if wanted <= 0 { newest } else { wanted })
}

/// Answers a read. `newest`: the newest revision that shows here, that of a transaction under way included.
pub(crate) fn range(reads: &impl Reads, asked: &Range, newest: i64, book: Book<'_>) -> Result<RangeReply> {
    asked.check()?;
    let revision = check_revision(reads, asked.revision, newest)?;
    let mut reply = RangeReply { revision: newest, ..RangeReply::default() };
    if asked.count_only {
        reply.count = count(reads, &asked.keys, revision, newest)?;
        return Ok(reply);
    }
    let is_sorted = asked.order != Order::None && !(asked.order == Order::Ascend && asked.sort_by == SortBy::Key);
    let is_sorted = is_sorted || asked.order == Order::None && asked.sort_by != SortBy::Key;
    let bounds = [asked.min_mod, asked.max_mod, asked.min_create, asked.max_create];
    let is_filtered = bounds.iter().any(|bound| *bound != 0);
    // An order that was not asked for by name sorts what the limit has left.
    let takes_all = asked.order != Order::None && is_sorted || is_filtered;
    let limit = usize::try_from(asked.limit).ok().filter(|limit| *limit > 0);
    let most = limit.filter(|_| !takes_all).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let needs_value = !asked.keys_only || asked.sort_by == SortBy::Value && is_sorted;
    let mut kvs = Vec::new();
    visible(reads, &asked.keys, (revision, newest), &mut |key, written, version| {
        let is_in = |at: i64, least: i64, most: i64| (least == 0 || at >= least) && (most == 0 || at <= most);
        if !is_in(written, asked.min_mod, asked.max_mod) || !is_in(version.create, asked.min_create, asked.max_create) {
            return Ok(true);
        }
        kvs.push(key_value(reads, (key, written), version, needs_value, book)?);
        Ok(kvs.len() < most)
    })?;
    if is_sorted {
        kvs.sort_by(|one, other| {
            let order = by(one, other, asked.sort_by);
            if asked.order == Order::Descend { order.reverse() } else { order }
        });
    }
    if let Some(limit) = limit.filter(|limit| *limit < kvs.len()) {
        kvs.truncate(limit);
        reply.more = true;
    }
    if asked.keys_only {
        let keeps_lease = asked.sort_by == SortBy::Value;
        for kv in &mut kvs {
            kv.value = Vec::new();
            // As in etcd, which has these answers from its index of keys.
            kv.lease = if keeps_lease { kv.lease } else { 0 };
        }
    }
    // Where all were taken they need not be counted once more.
    reply.count = match most == usize::MAX && !is_filtered && !reply.more {
        _ if asked.uncounted => 0,
        true => kvs.len() as i64,
        false => count(reads, &asked.keys, revision, newest)?,
    };
    reply.kvs = kvs;
    Ok(reply)
}

fn by(one: &KeyValue, other: &KeyValue, what: SortBy) -> Ordering {
    match what {
        SortBy::Key => one.key.cmp(&other.key),
        SortBy::Version => one.version.cmp(&other.version),
        SortBy::Create => one.create_revision.cmp(&other.create_revision),
        SortBy::Mod => one.mod_revision.cmp(&other.mod_revision),
        SortBy::Value => one.value.cmp(&other.value),
    }
}

/// A version as it is answered.
pub(crate) fn key_value(
    reads: &impl Reads,
    (key, written): (&[u8], i64),
    version: &Version<'_>,
    needs_value: bool,
    book: Book<'_>,
) -> Result<KeyValue> {
    let len = match version.value {
        Value::Here(value) => value.len() as u64,
        Value::There(len) => len,
    };
    book(KV_COST + key.len() as u64 + if needs_value { len } else { 0 })?;
    let value = match version.value {
        _ if !needs_value => Vec::new(),
        Value::Here(value) => value.to_vec(),
        Value::There(_) => long_value(reads, (key, written))?,
    };
    Ok(KeyValue {
        key: key.to_vec(),
        create_revision: version.create,
        mod_revision: written,
        version: version.version,
        value,
        lease: version.lease,
    })
}

/// A value that stands beside its version.
pub(crate) fn long_value(reads: &impl Reads, (key, written): (&[u8], i64)) -> Result<Vec<u8>> {
    let value = reads.get(VALUES, &keys::version(key, written))?;
    value.ok_or_else(|| Error::corrupt("a version's value is not there; restore the folder from a copy"))
}

/// Shows the versions of keys that were alive at a revision, in the order of keys.
pub(crate) fn visible(
    reads: &impl Reads,
    range: &KeyRange,
    (revision, newest): (i64, i64),
    each: Each<'_>,
) -> Result<()> {
    match (range.is_one(), revision == newest) {
        (true, _) => one(reads, &range.key, revision, each),
        (false, true) => newest_of(reads, range, each),
        (false, false) => old(reads, range, revision, each),
    }
}

/// Shows the version of one key that was alive at a revision.
pub(crate) fn one(reads: &impl Reads, key: &[u8], revision: i64, each: Each<'_>) -> Result<()> {
    if let Some(head) = reads.get(HEADS, &keys::head(key))? {
        let head = Head::decode(&head)?;
        if head.revision <= revision {
            return each(key, head.revision, &head.is).map(|_| ());
        }
    }
    let mut walk = reads.walk(HISTORY, &keys::past_versions(key))?;
    walk.seek(&keys::version(key, revision))?;
    if let Some((at, dead)) = walk.record() {
        let (written, dead) = (keys::of_history(at)?.1, Dead::decode(dead)?);
        if dead.end > revision {
            each(key, written, &dead.is)?;
        }
    }
    Ok(())
}

fn newest_of(reads: &impl Reads, range: &KeyRange, each: Each<'_>) -> Result<()> {
    let (from, to) = keys::heads_of(range);
    if to <= from {
        return Ok(());
    }
    let mut walk = reads.walk(HEADS, &to)?;
    walk.seek(&from)?;
    while let Some((key, head)) = walk.record() {
        let head = Head::decode(head)?;
        if !each(keys::of_head(key)?, head.revision, &head.is)? {
            return Ok(());
        }
        walk.next()?;
    }
    Ok(())
}

fn old(reads: &impl Reads, range: &KeyRange, revision: i64, each: Each<'_>) -> Result<()> {
    let (from, to) = keys::heads_of(range);
    let (from_version, to_version) = keys::versions_of(range);
    if to <= from {
        return Ok(());
    }
    let (mut heads, mut history) = (reads.walk(HEADS, &to)?, reads.walk(HISTORY, &to_version)?);
    heads.seek(&from)?;
    history.seek(&from_version)?;
    let mut dead = alive_at(&mut *history, revision)?;
    loop {
        let head = match heads.record() {
            Some((key, head)) => Some((keys::of_head(key)?, Head::decode(head)?)),
            None => None,
        };
        let is_dead_first = match (&head, &dead) {
            (None, None) => return Ok(()),
            (Some((key, _)), Some((dead, _))) => dead.as_slice() <= *key,
            (None, Some(_)) => true,
            (Some(_), None) => false,
        };
        if is_dead_first {
            if let (Some((key, written)), Some((_, record))) = (&dead, history.record())
                && !each(key, *written, &Dead::decode(record)?.is)?
            {
                return Ok(());
            }
            history.next()?;
            dead = alive_at(&mut *history, revision)?;
            continue;
        }
        // A head that is too new has its key's version of then in `history`, if it had one.
        if let Some((key, head)) = head
            && head.revision <= revision
            && !each(key, head.revision, &head.is)?
        {
            return Ok(());
        }
        heads.next()?;
    }
}

/// From where a walk along `history` stands on, the first version that was alive at a revision: its key and when it was written.
fn alive_at(history: &mut dyn Walk, revision: i64) -> Result<Option<(Vec<u8>, i64)>> {
    let mut passed = 0;
    while let Some((at, record)) = history.record() {
        let ((key, written), end) = (keys::of_history(at)?, Dead::decode(record)?.end);
        if written <= revision && revision < end {
            return Ok(Some((key, written)));
        }
        passed += 1;
        match (written > revision, passed % STEPS) {
            (true, 0) => history.seek(&keys::version(&key, revision))?,
            // Those that are older ended before.
            (false, 0) => history.seek(&keys::past_versions(&key))?,
            _ => history.next()?,
        }
    }
    Ok(None)
}

/// Keys that were there at a revision.
pub(crate) fn count(reads: &impl Reads, range: &KeyRange, revision: i64, newest: i64) -> Result<i64> {
    if range.is_one() {
        let mut count = 0;
        one(reads, &range.key, revision, &mut |_, _, _| {
            count += 1;
            Ok(true)
        })?;
        return Ok(count);
    }
    let (from, to) = keys::heads_of(range);
    if to <= from {
        return Ok(0);
    }
    let mut count = reads.count(HEADS, (&from, &to))?;
    if revision == newest {
        return Ok(count);
    }
    let mut since = reads.walk(CHANGES, &keys::change(newest + 1, 0))?;
    since.seek(&keys::change(revision + 1, 0))?;
    while let Some((_, change)) = since.record() {
        let change = Change::decode(change)?;
        if range.contains(change.key) {
            count += i64::from(change.is_delete) - i64::from(change.is_new);
        }
        since.next()?;
    }
    Ok(count)
}
