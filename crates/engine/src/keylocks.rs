//! Keys that a command holds while it waits for its pages, and ranges that a long change holds while it is made: who touches
//! them waits, others go on.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Who holds a lock; 0 is nobody.
pub(crate) type Owner = u64;

/// A range of keys of one tree.
pub(crate) struct KeyRange {
    pub(crate) tree: usize,
    pub(crate) from: Box<[u8]>,
    pub(crate) to: Box<[u8]>,
}

/// Locks by the hash of a key: two keys of one hash wait for each other, which costs time and no more.
#[derive(Default)]
pub(crate) struct KeyLocks {
    keys: HashMap<u64, Owner>,
    ranges: Vec<(KeyRange, Owner)>,
    hasher: RandomState,
}

impl KeyLocks {
    pub(crate) fn is_free(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    fn hash(&self, tree: usize, key: &[u8]) -> u64 {
        self.hasher.hash_one((tree, key))
    }

    /// Whether somebody else holds the key.
    pub(crate) fn is_held(&self, tree: usize, key: &[u8], owner: Owner) -> bool {
        let in_range = |(range, holder): &(KeyRange, Owner)| {
            *holder != owner && range.tree == tree && *range.from <= *key && *key < *range.to
        };
        self.keys.get(&self.hash(tree, key)).is_some_and(|holder| *holder != owner) || self.ranges.iter().any(in_range)
    }

    /// Whether somebody else holds a key of a range.
    pub(crate) fn is_range_held(&self, range: &KeyRange, owner: Owner) -> bool {
        let meets = |(held, holder): &(KeyRange, Owner)| {
            *holder != owner && held.tree == range.tree && held.from < range.to && range.from < held.to
        };
        // Keys are known by their hashes only.
        !self.keys.is_empty() || self.ranges.iter().any(meets)
    }

    /// Takes a key. The caller has seen that nobody else holds it.
    pub(crate) fn hold(&mut self, tree: usize, key: &[u8], owner: Owner) {
        let hash = self.hash(tree, key);
        self.keys.insert(hash, owner);
    }

    pub(crate) fn hold_range(&mut self, range: KeyRange, owner: Owner) {
        self.ranges.push((range, owner));
    }

    /// Lets go of all that somebody holds.
    pub(crate) fn release(&mut self, owner: Owner) {
        self.keys.retain(|_, holder| *holder != owner);
        self.ranges.retain(|(_, holder)| *holder != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_key_or_its_range_keeps_others_out() {
        let mut locks = KeyLocks::default();
        assert!(locks.is_free() && !locks.is_held(0, b"a", 0));
        locks.hold(0, b"a", 1);
        let range = |from: &[u8], to: &[u8]| KeyRange { tree: 1, from: from.into(), to: to.into() };
        locks.hold_range(range(b"m", b"p"), 2);
        assert!(locks.is_held(0, b"a", 2) && !locks.is_held(0, b"a", 1) && !locks.is_held(0, b"b", 2));
        assert!(locks.is_held(1, b"m", 1) && !locks.is_held(1, b"p", 1) && !locks.is_held(0, b"m", 1));
        locks.release(1);
        assert!(!locks.is_held(0, b"a", 2));
        assert!(locks.is_range_held(&range(b"o", b"z"), 3) && !locks.is_range_held(&range(b"p", b"z"), 3));
        locks.release(2);
        assert!(locks.is_free());
    }
}
