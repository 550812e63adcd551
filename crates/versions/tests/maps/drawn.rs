//! Commands and reads, drawn: few keys, few leases, revisions near those that there are, so that they meet each other.

use ramekin_base::Rng;
use ramekin_versions::*;
use std::collections::BTreeSet;

/// Leases have one of these ids.
pub const LEASES: [i64; 6] = [1, 2, i64::MAX, i64::MIN, -2, -1];

/// Draws from a stream of chance.
pub struct Drawing<'r> {
    pub rng: &'r mut Rng,
    /// The newest revision.
    pub newest: i64,
    /// So many keys begin with the same letters.
    pub many: u64,
}

impl Drawing<'_> {
    pub fn key(&mut self) -> Vec<u8> {
        let text = [&b"a"[..], b"b", b"\0", b"ab", b"\xff", b"a\0b"][self.rng.below(6) as usize];
        let mut key = text.to_vec();
        key.extend_from_slice(format!("{}", self.rng.below(self.many)).as_bytes());
        key
    }

    pub fn keys(&mut self) -> KeyRange {
        let key = self.key();
        match self.rng.below(6) {
            0 | 1 => KeyRange::one(key),
            2 => KeyRange { key, end: vec![0] },
            3 => KeyRange { key: vec![0], end: vec![0] },
            4 => KeyRange { key: b"a".to_vec(), end: b"b".to_vec() },
            _ => KeyRange { key, end: self.key() },
        }
    }

    pub fn lease(&mut self) -> i64 {
        match self.rng.below(4) {
            0 => self.id(),
            _ => 0,
        }
    }

    pub fn put(&mut self) -> Put {
        let bytes = match self.rng.below(10) {
            0 => 900 + self.rng.below(5000),
            _ => self.rng.below(40),
        };
        let value: Vec<u8> = (0..bytes).map(|_| self.rng.below(256) as u8).collect();
        let (ignore_value, ignore_lease) = (self.rng.below(8) == 0, self.rng.below(8) == 0);
        let lease = if ignore_lease && self.rng.below(4) > 0 { 0 } else { self.lease() };
        let value = if ignore_value && self.rng.below(4) > 0 { Vec::new() } else { value };
        Put { key: self.key(), value, lease, prev_kv: self.rng.below(2) == 0, ignore_value, ignore_lease }
    }

    pub fn revision(&mut self) -> i64 {
        match self.rng.below(3) {
            0 => 0,
            _ => self.rng.below(self.newest as u64 + 3) as i64,
        }
    }

    pub fn range(&mut self) -> Range {
        let filter = |rng: &mut Rng, most: i64| if rng.below(6) == 0 { rng.below(most as u64 + 1) as i64 } else { 0 };
        let most = self.newest;
        let rng = &mut *self.rng;
        let order = [Order::None, Order::None, Order::Ascend, Order::Descend][rng.below(4) as usize];
        let by = [SortBy::Key, SortBy::Version, SortBy::Create, SortBy::Mod, SortBy::Value];
        Range {
            limit: if rng.below(2) == 0 { rng.below(12) as i64 } else { 0 },
            order,
            sort_by: by[rng.below(5) as usize],
            keys_only: rng.below(5) == 0,
            count_only: rng.below(6) == 0,
            uncounted: false,
            min_mod: filter(rng, most),
            max_mod: filter(rng, most),
            min_create: filter(rng, most),
            max_create: filter(rng, most),
            revision: self.revision(),
            keys: self.keys(),
        }
    }

    pub fn compare(&mut self) -> Compare {
        let number = |rng: &mut Rng, most: i64| rng.below(most as u64 + 1) as i64;
        let (keys, most) = (self.keys(), self.newest);
        let rng = &mut *self.rng;
        let result = [CompareResult::Equal, CompareResult::Greater, CompareResult::Less, CompareResult::NotEqual]
            [rng.below(4) as usize];
        let target = match rng.below(5) {
            0 => CompareTarget::Version(number(rng, 3)),
            1 => CompareTarget::Create(number(rng, most)),
            2 => CompareTarget::Mod(number(rng, most)),
            3 => CompareTarget::Value(vec![rng.below(256) as u8]),
            _ => CompareTarget::Lease(number(rng, 4)),
        };
        Compare { keys, result, target }
    }

    /// Operations that write no key twice, but for deletes without an end.
    pub fn ops(&mut self, depth: u64, used: &mut BTreeSet<Vec<u8>>) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..self.rng.below(4) {
            match self.rng.below(6) {
                0 | 1 => {
                    let put = self.put();
                    if used.insert(put.key.clone()) {
                        ops.push(Op::Put(put));
                    }
                }
                2 => {
                    let keys = self.keys();
                    // What has no end is not seen to meet others.
                    if keys.is_endless() {
                        ops.push(Op::Delete(DeleteRange { keys, prev_kv: false }));
                    } else if !used.iter().any(|key| keys.contains(key)) && keys.is_one() {
                        used.insert(keys.key.clone());
                        ops.push(Op::Delete(DeleteRange { keys, prev_kv: self.rng.below(2) == 0 }));
                    }
                }
                3 if depth < 2 => ops.push(Op::Txn(self.txn(depth + 1, used))),
                _ => ops.push(Op::Range(self.range())),
            }
        }
        ops
    }

    pub fn txn(&mut self, depth: u64, used: &mut BTreeSet<Vec<u8>>) -> Txn {
        let compare = (0..self.rng.below(3)).map(|_| self.compare()).collect();
        Txn { compare, success: self.ops(depth, used), failure: self.ops(depth, used) }
    }

    /// A delete, of one key mostly.
    pub fn delete(&mut self) -> DeleteRange {
        let (keys, prev_kv) = (self.keys(), self.rng.below(2) == 0);
        let keys = if self.rng.below(3) > 0 { KeyRange::one(keys.key) } else { keys };
        DeleteRange { keys, prev_kv }
    }

    /// A revision up to which to compact: a wrong one now and then.
    pub fn compaction(&mut self) -> i64 {
        self.rng.below(self.newest as u64 + 2) as i64
    }

    pub fn id(&mut self) -> i64 {
        LEASES[self.rng.below(LEASES.len() as u64) as usize]
    }
}
