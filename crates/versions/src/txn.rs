//! Transactions: conditions on the state before, then operations in their order, each of which sees those before it.

use crate::api::{Compare, CompareResult, CompareTarget, Op, OpReply, Put, Range, Txn, errors};
use crate::keys::{self, HEADS, META};
use crate::range::{check_revision, long_value, range, visible};
use crate::reads::Reads;
use crate::record::{Value, Version};
use crate::stage::Writing;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use std::cmp::Ordering;

/// The way that a transaction and those inside it go: whether its conditions hold, and the ways of those that it then does.
struct Way {
    succeeded: bool,
    inner: Vec<Way>,
}

/// All conditions are looked at on the state before, and all that can fail is checked, before anything is changed.
pub(crate) fn stage(writing: &mut Writing<'_, '_, '_>, txn: &Txn) -> Result<OpReply> {
    let way = way_of(&writing.reads, txn, writing.answers)?;
    let newest = writing.revision();
    check(&writing.reads, ops_of(txn, &way), &way, newest)?;
    apply(writing, txn, &way)
}

/// A transaction that only reads, in a view.
pub(crate) fn read(
    reads: &impl Reads,
    txn: &Txn,
    newest: i64,
    answers: &Account,
    book: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<OpReply> {
    let way = way_of(reads, txn, answers)?;
    check(reads, ops_of(txn, &way), &way, newest)?;
    read_on(reads, txn, &way, newest, book)
}

fn read_on(
    reads: &impl Reads,
    txn: &Txn,
    way: &Way,
    newest: i64,
    book: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<OpReply> {
    let (mut replies, mut inner) = (Vec::new(), way.inner.iter());
    for op in ops_of(txn, way) {
        replies.push(match (op, inner.clone().next()) {
            (Op::Range(asked), _) => OpReply::Range(range(reads, asked, newest, book)?),
            (Op::Txn(txn), Some(way)) => {
                inner.next();
                read_on(reads, txn, way, newest, book)?
            }
            _ => return Err(Error::bug("a transaction that only reads would write")),
        });
    }
    Ok(OpReply::Txn { revision: newest, succeeded: way.succeeded, replies })
}

fn ops_of<'t>(txn: &'t Txn, way: &Way) -> &'t [Op] {
    if way.succeeded { &txn.success } else { &txn.failure }
}

/// `account` pays for what is looked at on the way.
fn way_of(reads: &impl Reads, txn: &Txn, account: &Account) -> Result<Way> {
    let mut succeeded = true;
    for compare in &txn.compare {
        succeeded = succeeded && holds(reads, compare, account)?;
    }
    let ops = if succeeded { &txn.success } else { &txn.failure };
    let inner = ops.iter().filter_map(|op| match op {
        Op::Txn(txn) => Some(way_of(reads, txn, account)),
        _ => None,
    });
    Ok(Way { succeeded, inner: inner.collect::<Result<_>>()? })
}

/// Whether a condition holds for all keys of its range; where there are none, for one that is not there.
fn holds(reads: &impl Reads, compare: &Compare, account: &Account) -> Result<bool> {
    keys::check(&compare.keys.key)?;
    let newest = reads.revision()?;
    let (mut holds, mut is_empty) = (true, true);
    visible(reads, &compare.keys, (newest, newest), &mut |key, written, version| {
        is_empty = false;
        holds = fits(reads, compare, (key, written), version, account)?;
        Ok(holds)
    })?;
    if is_empty {
        return Ok(match &compare.target {
            CompareTarget::Value(_) => false,
            CompareTarget::Version(it)
            | CompareTarget::Create(it)
            | CompareTarget::Mod(it)
            | CompareTarget::Lease(it) => is(compare.result, 0.cmp(it)),
        });
    }
    Ok(holds)
}

fn fits(
    reads: &impl Reads,
    compare: &Compare,
    at: (&[u8], i64),
    version: &Version<'_>,
    account: &Account,
) -> Result<bool> {
    let order = match &compare.target {
        CompareTarget::Version(it) => version.version.cmp(it),
        CompareTarget::Create(it) => version.create.cmp(it),
        CompareTarget::Mod(it) => at.1.cmp(it),
        CompareTarget::Lease(it) => version.lease.cmp(it),
        CompareTarget::Value(it) => match version.value {
            Value::Here(value) => value.cmp(it),
            Value::There(len) => {
                let _memory = account.try_reserve(len)?;
                long_value(reads, at)?.as_slice().cmp(it)
            }
        },
    };
    Ok(is(compare.result, order))
}

fn is(result: CompareResult, order: Ordering) -> bool {
    match result {
        CompareResult::Equal => order.is_eq(),
        CompareResult::Greater => order.is_gt(),
        CompareResult::Less => order.is_lt(),
        CompareResult::NotEqual => order.is_ne(),
        CompareResult::Always => true,
        CompareResult::Never => false,
    }
}

/// Revisions of reads, leases and keys of puts, before anything is written.
fn check(reads: &impl Reads, ops: &[Op], way: &Way, newest: i64) -> Result<()> {
    let mut inner = way.inner.iter();
    for op in ops {
        match (op, inner.clone().next()) {
            (Op::Range(Range { keys, revision, .. }), _) => {
                keys::check(&keys.key)?;
                check_revision(reads, *revision, newest)?;
                // By itself a read takes what is below 0 for the newest, here it does not.
                if *revision < 0 && *revision < reads.compacted()? {
                    return Err(Error::invalid(errors::COMPACTED));
                }
            }
            (Op::Put(put), _) => check_put(reads, put)?,
            (Op::Delete(delete), _) => keys::check(&delete.keys.key)?,
            (Op::Txn(txn), Some(way)) => {
                inner.next();
                check(reads, ops_of(txn, way), way, newest)?;
            }
            (Op::Txn(_), None) => return Err(Error::bug("a transaction has no way to go")),
            (Op::Refused(text), _) => return Err(Error::invalid(*text)),
        }
    }
    Ok(())
}

fn check_put(reads: &impl Reads, put: &Put) -> Result<()> {
    put.check()?;
    if put.lease != 0 && reads.get(META, &keys::lease(put.lease))?.is_none() {
        return Err(Error::not_found(errors::LEASE_NOT_FOUND));
    }
    if (put.ignore_value || put.ignore_lease) && reads.get(HEADS, &keys::head(&put.key))?.is_none() {
        return Err(Error::invalid(errors::KEY_NOT_FOUND));
    }
    Ok(())
}

fn apply(writing: &mut Writing<'_, '_, '_>, txn: &Txn, way: &Way) -> Result<OpReply> {
    let (mut replies, mut inner) = (Vec::new(), way.inner.iter());
    for op in ops_of(txn, way) {
        replies.push(match (op, inner.clone().next()) {
            (Op::Range(asked), _) => {
                writing.reading(|reads, newest, book| Ok(OpReply::Range(range(reads, asked, newest, book)?)))?
            }
            (Op::Put(put), _) => writing.put(put)?,
            (Op::Delete(delete), _) => writing.delete(delete)?,
            (Op::Txn(txn), Some(way)) => {
                inner.next();
                apply(writing, txn, way)?
            }
            (Op::Txn(_), None) => return Err(Error::bug("a transaction has no way to go")),
            (Op::Refused(text), _) => return Err(Error::invalid(*text)),
        });
    }
    Ok(OpReply::Txn { revision: writing.revision(), succeeded: way.succeeded, replies })
}
