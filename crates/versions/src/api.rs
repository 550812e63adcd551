//! What is asked of the store, and what it answers; etcd's words and meanings (`rpc.proto` of etcd 3.7).

use crate::keys;
use ramekin_base::{Error, Result};
use ramekin_memory::Reservation;
use std::collections::BTreeSet;

/// Texts of refusals, as clients of etcd know them.
pub mod errors {
    pub const KEY_NOT_PROVIDED: &str = "etcdserver: key is not provided";
    pub const KEY_NOT_FOUND: &str = "etcdserver: key not found";
    pub const VALUE_PROVIDED: &str = "etcdserver: value is provided";
    pub const LEASE_PROVIDED: &str = "etcdserver: lease is provided";
    pub const TOO_MANY_OPS: &str = "etcdserver: too many operations in txn request";
    pub const DUPLICATE_KEY: &str = "etcdserver: duplicate key given in txn request";
    pub const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
    pub const FUTURE_REVISION: &str = "etcdserver: mvcc: required revision is a future revision";
    pub const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
    pub const LEASE_EXISTS: &str = "etcdserver: lease already exists";
    pub const LEASE_TTL_TOO_LARGE: &str = "etcdserver: too large lease TTL";
    pub const TOO_LARGE: &str = "etcdserver: request is too large";
    pub const OLD_AUTH_REVISION: &str = "etcdserver: revision of auth store is old";
}

/// A version of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Vec<u8>,
    /// The revision in which this life of the key began, and the one in which this version was written.
    pub create_revision: i64,
    pub mod_revision: i64,
    /// 1 at its creation, one more with each put.
    pub version: i64,
    pub value: Vec<u8>,
    /// 0: it has none.
    pub lease: i64,
}

/// Keys from one on and below another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub key: Vec<u8>,
    /// Empty: the key alone. A zero byte: no end.
    pub end: Vec<u8>,
}

impl KeyRange {
    pub fn one(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), end: Vec::new() }
    }

    pub fn is_one(&self) -> bool {
        self.end.is_empty()
    }

    /// Whether it has no end.
    pub fn is_endless(&self) -> bool {
        self.end == [0]
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self.is_one() {
            true => key == self.key,
            false => *self.key <= *key && (self.is_endless() || *key < *self.end),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    None,
    Ascend,
    Descend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortBy {
    #[default]
    Key,
    Version,
    Create,
    Mod,
    Value,
}

/// A read of keys.
#[derive(Debug, Clone, Default)]
pub struct Range {
    pub keys: KeyRange,
    /// 0 or less: none.
    pub limit: i64,
    /// 0 or less: the newest.
    pub revision: i64,
    pub order: Order,
    pub sort_by: SortBy,
    pub keys_only: bool,
    pub count_only: bool,
    /// The answer's count may be 0: nobody looks at it.
    pub uncounted: bool,
    /// Inclusive bounds; 0: none.
    pub min_mod: i64,
    pub max_mod: i64,
    pub min_create: i64,
    pub max_create: i64,
}

impl Range {
    /// Fails for what no store takes.
    pub fn check(&self) -> Result<()> {
        keys::check(&self.keys.key)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// The newest revision when it was read.
    pub revision: i64,
    pub kvs: Vec<KeyValue>,
    pub more: bool,
    pub count: i64,
}

#[derive(Debug, Clone, Default)]
pub struct Put {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub lease: i64,
    pub prev_kv: bool,
    pub ignore_value: bool,
    pub ignore_lease: bool,
}

impl Put {
    /// Fails for what no store takes.
    pub fn check(&self) -> Result<()> {
        keys::check(&self.key)?;
        if self.ignore_value && !self.value.is_empty() {
            return Err(Error::invalid(errors::VALUE_PROVIDED));
        }
        if self.ignore_lease && self.lease != 0 {
            return Err(Error::invalid(errors::LEASE_PROVIDED));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
pub struct DeleteRange {
    pub keys: KeyRange,
    pub prev_kv: bool,
}

impl DeleteRange {
    /// Fails for what no store takes.
    pub fn check(&self) -> Result<()> {
        keys::check(&self.keys.key)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    pub deleted: i64,
    pub prev: Vec<KeyValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareResult {
    Equal,
    Greater,
    Less,
    NotEqual,
    /// What a number without a meaning stands for.
    Always,
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompareTarget {
    Version(i64),
    Create(i64),
    Mod(i64),
    Value(Vec<u8>),
    Lease(i64),
}

/// A condition: it must hold for each key of a range.
#[derive(Debug, Clone)]
pub struct Compare {
    pub keys: KeyRange,
    pub result: CompareResult,
    pub target: CompareTarget,
}

#[derive(Debug, Clone)]
pub enum Op {
    Range(Range),
    Put(Put),
    Delete(DeleteRange),
    Txn(Txn),
    /// What no store takes, and the text that says so: the first of several is told.
    Refused(&'static str),
}

/// Conditions on the state before, and what is done if all of them hold, or else.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

impl Txn {
    /// Fails for a transaction of more than `most` operations or conditions, for one with an operation that is refused alone, and
    /// for one that writes a key twice, whichever way it goes.
    pub fn check(&self, most: usize) -> Result<()> {
        self.check_each(most)?;
        // Only where nothing is refused alone.
        [&self.success, &self.failure].into_iter().try_for_each(|ops| Written::of(ops).map(|_| ()))
    }

    fn check_each(&self, most: usize) -> Result<()> {
        let count = self.compare.len().max(self.success.len()).max(self.failure.len());
        let Some(most) = most.checked_sub(count) else { return Err(Error::invalid(errors::TOO_MANY_OPS)) };
        self.compare.iter().try_for_each(|compare| keys::check(&compare.keys.key))?;
        self.success.iter().chain(&self.failure).try_for_each(|op| op.check(most))
    }

    /// Whether it only reads, whichever way it goes.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|op| match op {
            Op::Range(_) => true,
            Op::Txn(txn) => txn.is_read_only(),
            Op::Put(_) | Op::Delete(_) | Op::Refused(_) => false,
        })
    }
}

/// What one operation of a transaction answers. Its revision is that of the transaction as far as it had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpReply {
    Range(RangeReply),
    Put { revision: i64, prev: Option<KeyValue> },
    Deleted { revision: i64, deleted: Deleted },
    Txn { revision: i64, succeeded: bool, replies: Vec<OpReply> },
}

/// What changes the store, or must see what is about to change it.
#[derive(Debug, Clone)]
pub enum Command {
    Put(Put),
    Delete(DeleteRange),
    Txn(Txn),
    Compact(i64),
    Grant {
        id: i64,
        ttl: i64,
    },
    Revoke(i64),
    /// Removes some of the values whose versions ended up to the compacted revision.
    Purge,
    /// Values of the server's own, beside the keys, all or none of them; `None` removes one.
    Own(Vec<(Vec<u8>, Option<Vec<u8>>)>),
}

/// A value of the server's own that must stand as it is said here when a command is done, or the command fails
/// ([`errors::OLD_AUTH_REVISION`]): whoever allowed the command had looked at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    pub name: &'static [u8],
    pub value: Option<Vec<u8>>,
}

/// A command, what it is tied to, and the memory that it came with.
pub struct Asked {
    pub command: Command,
    pub guard: Option<Guard>,
    pub memory: Vec<Reservation>,
}

impl From<Command> for Asked {
    fn from(command: Command) -> Self {
        Self { command, guard: None, memory: Vec::new() }
    }
}

/// What a command answers; `revision` is the newest one after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Op { revision: i64, reply: OpReply },
    Done { revision: i64 },
}

impl Reply {
    pub fn revision(&self) -> i64 {
        match self {
            Self::Op { revision, .. } | Self::Done { revision } => *revision,
        }
    }
}

impl Op {
    fn check(&self, most: usize) -> Result<()> {
        match self {
            Self::Range(range) => range.check(),
            Self::Put(put) => put.check(),
            Self::Delete(delete) => delete.check(),
            Self::Txn(txn) => txn.check_each(most),
            Self::Refused(text) => Err(Error::invalid(*text)),
        }
    }
}

/// What operations write, those of transactions among them too.
#[derive(Default)]
struct Written<'t> {
    puts: BTreeSet<&'t [u8]>,
    deletes: Vec<&'t KeyRange>,
}

impl<'t> Written<'t> {
    /// Fails where a key is put twice, or put and deleted, as far as etcd sees it: what a transaction among them puts may be deleted
    /// by one that comes later.
    fn of(ops: &'t [Op]) -> Result<Self> {
        let mut all = Self::default();
        all.deletes.extend(ops.iter().filter_map(|op| match op {
            Op::Delete(delete) => Some(&delete.keys),
            _ => None,
        }));
        for op in ops {
            let Op::Txn(txn) = op else { continue };
            let (success, failure) = (Self::of(&txn.success)?, Self::of(&txn.failure)?);
            // One of both is done, so these may meet.
            success.puts.union(&failure.puts).try_for_each(|key| all.check_put(key))?;
            all.puts.extend(success.puts.into_iter().chain(failure.puts));
            all.deletes.extend(success.deletes.into_iter().chain(failure.deletes));
        }
        for op in ops {
            let Op::Put(put) = op else { continue };
            all.check_put(&put.key)?;
            all.puts.insert(&put.key);
        }
        Ok(all)
    }

    /// Fails for a key that is put or deleted already. A delete that has no end is not seen as a range.
    fn check_put(&self, key: &[u8]) -> Result<()> {
        let deletes = |range: &&KeyRange| range.contains(key) && (range.is_one() || !range.is_endless());
        match self.puts.contains(key) || self.deletes.iter().any(deletes) {
            true => Err(Error::invalid(errors::DUPLICATE_KEY)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Op {
        Op::Put(Put { key: key.into(), ..Put::default() })
    }

    fn delete(key: &str, end: &str) -> Op {
        Op::Delete(DeleteRange { keys: KeyRange { key: key.into(), end: end.into() }, prev_kv: false })
    }

    fn txn(success: Vec<Op>, failure: Vec<Op>) -> Txn {
        Txn { compare: Vec::new(), success, failure }
    }

    #[test]
    fn a_key_that_is_written_twice_is_refused_whichever_way_it_goes() {
        let fine = [
            txn(vec![put("a"), put("b")], vec![put("a")]),
            txn(vec![delete("a", "c"), delete("b", "d"), put("e")], Vec::new()),
            txn(vec![Op::Txn(txn(vec![put("a")], vec![put("a")]))], vec![put("a")]),
            txn(vec![put("a"), delete("a", "\0")], Vec::new()),
            txn(
                vec![Op::Txn(txn(vec![put("a")], Vec::new())), Op::Txn(txn(vec![delete("a", "")], Vec::new()))],
                Vec::new(),
            ),
            txn(vec![Op::Txn(txn(vec![put("a")], vec![delete("a", "")]))], Vec::new()),
        ];
        let wrong = [
            txn(vec![put("a"), put("a")], Vec::new()),
            txn(Vec::new(), vec![put("b"), delete("a", "c")]),
            txn(vec![put("b"), delete("b", "")], Vec::new()),
            txn(vec![Op::Txn(txn(vec![put("a")], Vec::new())), put("a")], Vec::new()),
            txn(vec![Op::Txn(txn(vec![delete("a", "c")], Vec::new())), put("b")], Vec::new()),
            txn(vec![Op::Txn(txn(vec![put("a")], Vec::new())), Op::Txn(txn(Vec::new(), vec![put("a")]))], Vec::new()),
        ];
        for txn in fine {
            txn.check(128).unwrap();
        }
        for txn in wrong {
            assert_eq!(txn.check(128).unwrap_err().message(), errors::DUPLICATE_KEY, "{txn:?}");
        }
    }

    #[test]
    fn what_is_refused_alone_is_refused_inside_and_so_are_too_many() {
        let empty = txn(vec![Op::Txn(txn(Vec::new(), vec![put("")]))], Vec::new());
        assert_eq!(empty.check(128).unwrap_err().message(), errors::KEY_NOT_PROVIDED);
        let three = |ops| txn(ops, Vec::new());
        let some = || vec![put("a"), put("b"), put("c")];
        three(some()).check(3).unwrap();
        assert_eq!(three(some()).check(2).unwrap_err().message(), errors::TOO_MANY_OPS);
        // What is inside has what is left.
        let nested = three(vec![Op::Txn(three(some())), put("d")]);
        nested.check(5).unwrap();
        assert_eq!(nested.check(4).unwrap_err().message(), errors::TOO_MANY_OPS);
    }
}
