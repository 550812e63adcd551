//! A tree whose entries carry what they are booked with.
//!
//! ```text
//!   memory, booked before ── insert(key, value, memory) ──► the tree's own ── remove, retain ──► given back
//!                            try_insert(key, value): books it itself        ── take ──► handed on with the value
//! ```
//!
//! What brings its memory goes in without failing: an operation can be checked and booked, then logged, then done.

use crate::{Account, Reservation};
use ramekin_base::Result;
use std::collections::BTreeMap;
use std::ops::Deref;

/// An ordered map. What an entry takes is said by a function of it, the same as long as it is there.
#[derive(Debug)]
pub struct BookedMap<K, V> {
    entries: BTreeMap<K, V>,
    memory: Reservation,
    cost: fn(&K, &V) -> u64,
}

impl<K: Ord, V> BookedMap<K, V> {
    pub fn new(account: &Account, cost: fn(&K, &V) -> u64) -> Result<Self> {
        Ok(Self { entries: BTreeMap::new(), memory: account.try_reserve(0)?, cost })
    }

    /// Puts an entry in, with the memory that it takes. What an entry of the same key took is given back.
    pub fn insert(&mut self, key: K, value: V, memory: Reservation) -> Option<V> {
        debug_assert_eq!(memory.bytes(), (self.cost)(&key, &value), "an entry brings what it takes");
        let before = self.entries.get(&key).map_or(0, |value| (self.cost)(&key, value));
        let joined = self.memory.join(memory);
        debug_assert!(joined.is_ok(), "memory of another account");
        let old = self.entries.insert(key, value);
        self.memory.shrink(before);
        old
    }

    /// Puts an entry in if there is memory for it.
    pub fn try_insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        let bytes = (self.cost)(&key, &value);
        self.memory.grow(bytes)?;
        let memory = self.memory.split(bytes);
        Ok(self.insert(key, value, memory))
    }

    /// Takes an entry out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.take(key).map(|(value, _)| value)
    }

    /// Takes an entry out, with its memory.
    pub fn take<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(V, Reservation)>
    where
        K: std::borrow::Borrow<Q>,
    {
        let (key, value) = self.entries.remove_entry(key)?;
        let bytes = (self.cost)(&key, &value);
        Some((value, self.memory.split(bytes)))
    }

    /// Keeps the entries that stay.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool) {
        let (mut freed, cost) = (0, self.cost);
        self.entries.retain(|key, value| {
            let stays = stays(key, value);
            freed += if stays { 0 } else { cost(key, value) };
            stays
        });
        self.memory.shrink(freed);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.memory.shrink(u64::MAX);
    }
}

impl<K, V> Deref for BookedMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use ramekin_base::Kind;

    #[test]
    fn entries_carry_what_they_take() {
        let budget = Budget::new(100);
        let account = budget.root().child("names", "");
        let mut map: BookedMap<String, u64> = BookedMap::new(&account, |key: &String, _| key.len() as u64).unwrap();
        assert_eq!(map.try_insert("abc".into(), 1).unwrap(), None);
        let mut memory = account.try_reserve(10).unwrap();
        assert_eq!(map.insert("abc".into(), 2, memory.split(3)), Some(1));
        assert_eq!(map.insert("de".into(), 3, memory.split(2)), None);
        assert_eq!((account.used(), map.len()), (10, 2));
        drop(memory);
        assert_eq!(account.used(), 5);
        let other = budget.root().try_reserve(95).unwrap();
        assert_eq!(map.try_insert("f".into(), 4).unwrap_err().kind(), Kind::Busy);
        assert_eq!(map.len(), 2);
        drop(other);
        let (value, held) = map.take("de").unwrap();
        assert_eq!((value, held.bytes(), account.used()), (3, 2, 5));
        drop(held);
        assert_eq!((map.remove("none"), account.used()), (None, 3));
        map.try_insert("gh".into(), 5).unwrap();
        map.retain(|_, value| *value == 5);
        assert_eq!((map["gh"], account.used()), (5, 2));
        map.clear();
        assert_eq!((map.is_empty(), account.used()), (true, 0));
    }
}
