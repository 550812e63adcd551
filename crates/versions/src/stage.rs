//! Changes: each command is one unit of the engine, and all that it changes has one revision.
//!
//! ```text
//!   put      head ─► history (it ends) ─► the new head · value, if long · a change · the key in its lease
//!   delete   head ─► history           ─► no head                        · a change · the key out of its lease
//! ```

use crate::api::{Asked, Command, DeleteRange, Deleted, Guard, KeyRange, KeyValue, OpReply, Put, Reply, errors};
use crate::keys::{self, CHANGES, COMPACTED, HEADS, HISTORY, META, REVISION, VALUES};
use crate::range::{booking, check_revision, key_value, visible};
use crate::reads::{InUnit, Reads};
use crate::record::{self, Change, Dead, Head, Value, Version};
use crate::txn;
use ramekin_base::{Error, Result};
use ramekin_engine::{Staged, Store, TreeOptions, Unit};
use ramekin_memory::{Account, Reservation};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub(crate) const TREES: usize = 5;
/// The least time that a lease is granted for, seconds: one and a half times etcd's election timeout, and a whole number.
pub const TTL_LEAST: i64 = 2;
const TTL_MOST: i64 = 9_000_000_000;
/// Bytes of effects of a unit that removes values, so that the smallest group takes it; and what each effect takes besides its key.
const PURGED_BYTES: usize = 56 << 10;
const EFFECT_BYTES: usize = 80;
/// Of effects of the end of a lease: of those that have more the keys are not even collected.
const REVOKED_BYTES: usize = 2 << 20;

/// The trees and what is staged in them.
pub struct Trees {
    trees: [TreeOptions; TREES],
    /// Pays for answers.
    pub(crate) answers: Account,
    /// The greatest revision up to which a compaction was staged, or done before the start.
    pub(crate) compacted: Arc<AtomicI64>,
}

/// What leaves the store, and what pays for it.
pub struct Answer {
    pub reply: Reply,
    pub memory: Option<Reservation>,
}

impl Trees {
    pub(crate) fn new(answers: Account) -> Self {
        let plain = TreeOptions::plain;
        let trees = [
            TreeOptions { weigh: Some(|_| 1), filtered: true, ..plain("heads") },
            TreeOptions { deadline: Dead::end_of, ..plain("history") },
            plain("values"),
            plain("changes"),
            plain("meta"),
        ];
        Self { trees, answers, compacted: Arc::new(AtomicI64::new(i64::MIN)) }
    }
}

impl Store for Trees {
    type Command = Asked;
    type Reply = Answer;

    fn trees(&self) -> &[TreeOptions] {
        &self.trees
    }

    fn stage(&self, unit: &mut Unit<'_>, asked: &Asked) -> Result<Staged<Answer>> {
        let mut writing = Writing::begin(unit, &self.answers)?;
        if let Some(guard) = &asked.guard {
            writing.check(guard)?;
        }
        let reply = writing.command(&asked.command)?;
        if let Command::Compact(revision) = asked.command {
            self.compacted.fetch_max(revision, Ordering::Relaxed);
        }
        Ok(Staged::Done(Answer { reply, memory: writing.memory }))
    }
}

/// A unit under way.
pub(crate) struct Writing<'u, 'e, 'a> {
    pub(crate) reads: InUnit<'u, 'e>,
    /// The newest revision before it.
    before: i64,
    /// Changes so far.
    changes: u32,
    pub(crate) answers: &'a Account,
    memory: Option<Reservation>,
}

impl<'u, 'e, 'a> Writing<'u, 'e, 'a> {
    fn begin(unit: &'u mut Unit<'e>, answers: &'a Account) -> Result<Self> {
        let reads = InUnit(RefCell::new(unit));
        let before = reads.revision()?;
        Ok(Self { reads, before, changes: 0, answers, memory: None })
    }

    /// The newest revision as far as the unit has come.
    pub(crate) fn revision(&self) -> i64 {
        self.before + i64::from(self.changes > 0)
    }

    /// Calls `read` with what can be read, the newest revision, and what books the answer.
    pub(crate) fn reading<T>(
        &mut self,
        read: impl FnOnce(&InUnit<'u, 'e>, i64, &mut dyn FnMut(u64) -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let newest = self.revision();
        read(&self.reads, newest, &mut booking(self.answers, &mut self.memory))
    }

    fn check(&self, guard: &Guard) -> Result<()> {
        match self.reads.get(META, &keys::own(guard.name))? == guard.value {
            true => Ok(()),
            false => Err(Error::invalid(errors::OLD_AUTH_REVISION)),
        }
    }

    fn put_record(&self, tree: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.reads.0.borrow_mut().put(tree, key, value)
    }

    fn delete_record(&self, tree: usize, key: &[u8]) -> Result<()> {
        self.reads.0.borrow_mut().delete(tree, key)
    }

    fn command(&mut self, command: &Command) -> Result<Reply> {
        let reply = match command {
            Command::Put(put) => Some(self.put(put)?),
            Command::Delete(delete) => Some(self.delete(delete)?),
            Command::Txn(txn) => Some(txn::stage(self, txn)?),
            Command::Compact(revision) => return self.compact(*revision),
            Command::Grant { id, ttl } => return self.grant(*id, *ttl),
            Command::Revoke(id) => {
                self.revoke(*id)?;
                None
            }
            Command::Purge => {
                self.purge()?;
                None
            }
            Command::Own(values) => {
                for (name, value) in values {
                    match value {
                        Some(value) => self.put_record(META, &keys::own(name), value)?,
                        None => self.delete_record(META, &keys::own(name))?,
                    }
                }
                None
            }
        };
        self.end()?;
        let revision = self.revision();
        Ok(match reply {
            Some(reply) => Reply::Op { revision, reply },
            None => Reply::Done { revision },
        })
    }

    /// The revision counts if anything changed.
    fn end(&self) -> Result<()> {
        match self.changes {
            0 => Ok(()),
            _ => self.put_record(META, REVISION, &record::number(self.revision())),
        }
    }

    pub(crate) fn put(&mut self, put: &Put) -> Result<OpReply> {
        put.check()?;
        self.check_lease(put.lease)?;
        let held = self.reads.get(HEADS, &keys::head(&put.key))?;
        let head = held.as_deref().map(Head::decode).transpose()?;
        if head.is_none() && (put.ignore_value || put.ignore_lease) {
            return Err(Error::invalid(errors::KEY_NOT_FOUND));
        }
        let prev = self.prev(&put.key, head.as_ref(), put.prev_kv)?;
        let kept = match &head {
            Some(head) if put.ignore_value => self.value_of(&put.key, head)?,
            _ => None,
        };
        let value = match (&head, &kept) {
            (Some(Head { is: Version { value: Value::Here(value), .. }, .. }), None) if put.ignore_value => value,
            (_, Some(kept)) => &kept[..],
            _ => &put.value[..],
        };
        let lease = head.filter(|_| put.ignore_lease).map_or(put.lease, |head| head.is.lease);
        self.write(&put.key, head.as_ref(), (value, lease))?;
        Ok(OpReply::Put { revision: self.revision(), prev })
    }

    /// Fails where a lease is named that is not there.
    fn check_lease(&self, lease: i64) -> Result<()> {
        match lease == 0 || self.reads.get(META, &keys::lease(lease))?.is_some() {
            true => Ok(()),
            false => Err(Error::not_found(errors::LEASE_NOT_FOUND)),
        }
    }

    /// A value that does not stand in the head.
    fn value_of(&self, key: &[u8], head: &Head<'_>) -> Result<Option<Vec<u8>>> {
        match head.is.value {
            Value::Here(_) => Ok(None),
            Value::There(_) => self.reads.get(VALUES, &keys::version(key, head.revision)),
        }
    }

    fn prev(&mut self, key: &[u8], head: Option<&Head<'_>>, wanted: bool) -> Result<Option<KeyValue>> {
        let Some(head) = head.filter(|_| wanted) else { return Ok(None) };
        self.reading(|reads, _, book| key_value(reads, (key, head.revision), &head.is, true, book)).map(Some)
    }

    fn write(&mut self, key: &[u8], old: Option<&Head<'_>>, (value, lease): (&[u8], i64)) -> Result<()> {
        let revision = self.before + 1;
        if let Some(old) = old {
            self.bury(key, old)?;
        }
        let before = old.map_or(0, |old| old.is.lease);
        let create = old.map_or(revision, |old| old.is.create);
        let version = old.map_or(1, |old| old.is.version + 1);
        let is = Version { number: self.changes, create, version, lease, value: Value::of(value) };
        if is.value.is_there() {
            self.put_record(VALUES, &keys::version(key, revision), value)?;
        }
        self.put_record(HEADS, &keys::head(key), &Head { revision, is }.encode())?;
        if before != lease {
            self.detach(before, key)?;
            if lease != 0 {
                self.put_record(META, &keys::leased(lease, key), &[])?;
            }
        }
        self.note(&Change { is_delete: false, is_new: old.is_none(), key })
    }

    /// The newest version of a key ends.
    fn bury(&mut self, key: &[u8], head: &Head<'_>) -> Result<()> {
        let (at, end) = (keys::version(key, head.revision), self.before + 1);
        if head.is.value.is_there() {
            self.put_record(META, &keys::grave(end, &at), &[])?;
        }
        self.put_record(HISTORY, &at, &Dead { end, is: head.is }.encode())
    }

    fn detach(&self, lease: i64, key: &[u8]) -> Result<()> {
        match lease {
            0 => Ok(()),
            lease => self.delete_record(META, &keys::leased(lease, key)),
        }
    }

    fn note(&mut self, change: &Change<'_>) -> Result<()> {
        self.put_record(CHANGES, &keys::change(self.before + 1, self.changes), &change.encode())?;
        self.changes += 1;
        Ok(())
    }

    pub(crate) fn delete(&mut self, delete: &DeleteRange) -> Result<OpReply> {
        delete.check()?;
        let found = self.heads(&delete.keys)?;
        let mut deleted = Deleted { deleted: found.len() as i64, prev: Vec::new() };
        for (key, head) in &found {
            let head = Head::decode(head)?;
            deleted.prev.extend(self.prev(key, Some(&head), delete.prev_kv)?);
            self.remove(key, &head)?;
        }
        Ok(OpReply::Deleted { revision: self.revision(), deleted })
    }

    /// The heads of a range, for which the answer's account pays while they are looked at.
    fn heads(&mut self, range: &KeyRange) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if range.is_one() {
            let head = self.reads.get(HEADS, &keys::head(&range.key))?;
            return Ok(head.map(|head| (range.key.clone(), head)).into_iter().collect());
        }
        self.reading(|reads, newest, book| {
            let mut found = Vec::new();
            visible(reads, range, (newest, newest), &mut |key, revision, version| {
                let head = Head { revision, is: *version }.encode();
                book((64 + key.len() + head.len()) as u64)?;
                found.push((key.to_vec(), head));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    fn remove(&mut self, key: &[u8], head: &Head<'_>) -> Result<()> {
        self.bury(key, head)?;
        self.delete_record(HEADS, &keys::head(key))?;
        self.detach(head.is.lease, key)?;
        self.note(&Change { is_delete: true, is_new: false, key })
    }

    fn compact(&self, revision: i64) -> Result<Reply> {
        let compacted = self.reads.compacted()?;
        if revision <= compacted {
            return Err(Error::invalid(errors::COMPACTED));
        }
        check_revision(&self.reads, revision, self.before)?;
        self.put_record(META, COMPACTED, &record::number(revision))?;
        let (from, to) = (keys::change(compacted.max(0), 0), keys::change(revision.max(0), 0));
        if from < to {
            self.reads.0.borrow_mut().delete_range(CHANGES, &from, &to)?;
        }
        Ok(Reply::Done { revision: self.before })
    }

    fn purge(&self) -> Result<()> {
        let (from, to) = keys::graves_to(self.reads.compacted()?);
        let (mut graves, mut bytes) = (Vec::new(), 0);
        self.reads.0.borrow_mut().range(META, (&from, &to), &mut |key, _| {
            bytes += 2 * (key.len() + EFFECT_BYTES);
            let has_room = bytes <= PURGED_BYTES || graves.is_empty();
            if has_room {
                graves.push(key.to_vec());
            }
            Ok(has_room)
        })?;
        for grave in graves {
            self.delete_record(VALUES, keys::of_grave(&grave)?)?;
            self.delete_record(META, &grave)?;
        }
        Ok(())
    }

    fn grant(&self, id: i64, ttl: i64) -> Result<Reply> {
        if ttl > TTL_MOST {
            return Err(Error::invalid(errors::LEASE_TTL_TOO_LARGE));
        }
        if self.reads.get(META, &keys::lease(id))?.is_some() {
            return Err(Error::new(ramekin_base::Kind::Exists, errors::LEASE_EXISTS));
        }
        self.put_record(META, &keys::lease(id), &record::number(ttl.max(TTL_LEAST)))?;
        Ok(Reply::Done { revision: self.before })
    }

    /// Removes a lease and its keys.
    fn revoke(&mut self, id: i64) -> Result<()> {
        self.check_lease_is_there(id)?;
        let (mut leased, mut bytes) = (Vec::new(), 0);
        let (from, to) = keys::leased_range(id);
        self.reading(|reads, _, book| {
            let mut walk = reads.walk(META, &to)?;
            walk.seek(&from)?;
            while let Some((key, _)) = walk.record() {
                // Its head, version, change and place in the lease.
                bytes += 4 * (key.len() + EFFECT_BYTES);
                if bytes > REVOKED_BYTES {
                    return Err(Error::too_large("a lease has more keys than one unit takes"));
                }
                book(64 + key.len() as u64)?;
                leased.push(keys::of_leased(key)?.to_vec());
                walk.next()?;
            }
            Ok(())
        })?;
        for key in leased {
            if let Some(head) = self.reads.get(HEADS, &keys::head(&key))? {
                self.remove(&key, &Head::decode(&head)?)?;
            }
        }
        self.delete_record(META, &keys::lease(id))
    }

    fn check_lease_is_there(&self, id: i64) -> Result<()> {
        match self.reads.get(META, &keys::lease(id))? {
            Some(_) => Ok(()),
            None => Err(Error::not_found(errors::LEASE_NOT_FOUND)),
        }
    }
}
