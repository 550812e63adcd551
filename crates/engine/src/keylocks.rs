//! Keys that a command holds while it waits for its pages, and ranges that a long change holds while it is made: who touches
//! them waits, others go on.
//!
//! ```text
//!   key      held by the command that waits for its record                 until that is answered, or lets go to begin anew
//!   range    announced ─► keys of it are let go of by whoever held them ─► granted         new touches wait from `announced` on
//!   elder    a command that began anew too often: others wait for all keys that it has named, held by it or not
//! ```
//!
//! No circle of waits closes. A granted range waits for nobody; an announced one waits for older ranges and for keys; a command lets
//! go of its keys before it waits for one, but for the elder, of which there is one. It passes ranges that are not granted yet.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Who holds a lock; 0 is nobody.
pub(crate) type Owner = u64;

/// A key of a tree.
pub(crate) type Key = (usize, Arc<[u8]>);

/// A range of keys of one tree.
#[derive(Debug, Clone)]
pub(crate) struct KeyRange {
    pub(crate) tree: usize,
    pub(crate) from: Box<[u8]>,
    pub(crate) to: Box<[u8]>,
}

impl KeyRange {
    pub(crate) fn contains(&self, tree: usize, key: &[u8]) -> bool {
        self.tree == tree && *self.from <= *key && *key < *self.to
    }

    fn meets(&self, tree: usize, (from, to): (&[u8], &[u8])) -> bool {
        self.tree == tree && *self.from < *to && *from < *self.to
    }
}

/// The keys of one tree from one on and below another, of something by keys. A range that ends before it begins has none.
pub(crate) fn between<'a, T>(
    map: &'a BTreeMap<Arc<[u8]>, T>,
    (from, to): (&[u8], &[u8]),
) -> impl Iterator<Item = (&'a Arc<[u8]>, &'a T)> {
    map.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to.max(from)))).filter(move |_| from < to)
}

/// A range, and who takes it.
struct Taken {
    range: KeyRange,
    owner: Owner,
    /// Nobody is left in it.
    is_granted: bool,
}

/// Who holds which key and which range.
#[derive(Default)]
pub(crate) struct KeyLocks {
    /// Of each tree.
    keys: Vec<BTreeMap<Arc<[u8]>, Owner>>,
    held: usize,
    /// In the order in which they were announced.
    ranges: Vec<Taken>,
    elder: Option<Owner>,
    reserved: BTreeMap<usize, BTreeMap<Arc<[u8]>, ()>>,
}

impl KeyLocks {
    pub(crate) fn is_free(&self) -> bool {
        self.held == 0 && self.ranges.is_empty() && self.elder.is_none()
    }

    /// The command that lets nobody go before it any more.
    pub(crate) fn elder(&self) -> Option<Owner> {
        self.elder
    }

    /// Whether somebody else holds the key.
    pub(crate) fn is_held(&self, tree: usize, key: &[u8], owner: Owner) -> bool {
        // Whoever holds it comes to an end, whatever was announced since.
        if let Some(holder) = self.keys.get(tree).and_then(|keys| keys.get(key)) {
            return *holder != owner;
        }
        let is_elder = self.elder == Some(owner);
        let is_reserved = || !is_elder && self.reserved.get(&tree).is_some_and(|keys| keys.contains_key(key));
        is_reserved() || self.against(owner).any(|taken| taken.range.contains(tree, key))
    }

    /// Ranges that keep `owner` away.
    fn against(&self, owner: Owner) -> impl Iterator<Item = &Taken> {
        let is_elder = self.elder == Some(owner);
        self.ranges.iter().filter(move |taken| taken.owner != owner && (taken.is_granted || !is_elder))
    }

    /// A key of a range for which `owner` has to wait; `None`: nobody else holds any.
    pub(crate) fn held_in(&self, tree: usize, bounds: (&[u8], &[u8]), owner: Owner) -> Option<Arc<[u8]>> {
        let locked = || {
            let mut keys = self.keys.get(tree).into_iter().flat_map(|keys| between(keys, bounds));
            keys.find(|(_, holder)| **holder != owner).map(|(key, _)| key.clone())
        };
        let reserved = || {
            let mut keys = self.reserved.get(&tree).into_iter().flat_map(|keys| between(keys, bounds));
            keys.next().map(|(key, _)| key.clone()).filter(|_| self.elder != Some(owner))
        };
        let taken = || {
            let range = &self.against(owner).find(|taken| taken.range.meets(tree, bounds))?.range;
            Some(Arc::from(range.from.as_ref().max(bounds.0)))
        };
        locked().or_else(reserved).or_else(taken)
    }

    /// Takes a key. The caller has seen that nobody else holds it.
    pub(crate) fn hold(&mut self, (tree, key): &Key, owner: Owner) {
        if self.keys.len() <= *tree {
            self.keys.resize_with(tree + 1, BTreeMap::new);
        }
        self.held += usize::from(self.keys[*tree].insert(key.clone(), owner).is_none());
    }

    /// Lets go of a key. False: `owner` did not hold it.
    pub(crate) fn release(&mut self, (tree, key): &Key, owner: Owner) -> bool {
        let Some(keys) = self.keys.get_mut(*tree).filter(|keys| keys.get(key) == Some(&owner)) else { return false };
        keys.remove(key);
        self.held -= 1;
        true
    }

    /// Makes `owner` the elder if there is none, and keeps `keys` for it if it is.
    pub(crate) fn reserve<'k>(&mut self, keys: impl IntoIterator<Item = &'k Key>, owner: Owner) {
        if *self.elder.get_or_insert(owner) == owner {
            keys.into_iter()
                .for_each(|(tree, key)| _ = self.reserved.entry(*tree).or_default().insert(key.clone(), ()));
        }
    }

    /// The elder is done. False: `owner` was not the elder.
    pub(crate) fn retire(&mut self, owner: Owner) -> bool {
        let was_elder = self.elder == Some(owner);
        if was_elder {
            self.elder = None;
            self.reserved.clear();
        }
        was_elder
    }

    /// Whoever comes from now on waits for these ranges.
    pub(crate) fn announce(&mut self, ranges: &[KeyRange], owner: Owner) {
        let taken = |range: &KeyRange| Taken { range: range.clone(), owner, is_granted: false };
        self.ranges.extend(ranges.iter().map(taken));
    }

    /// Grants the ranges of `owner` if nobody is left in them.
    pub(crate) fn grant(&mut self, owner: Owner) -> bool {
        let is_older = |taken: &&Taken| taken.owner != owner;
        let older: Vec<&Taken> = self.ranges.iter().take_while(is_older).collect();
        let is_empty = |Taken { range, .. }: &Taken| {
            let bounds = (&*range.from, &*range.to);
            let mut keys = self.keys.get(range.tree).into_iter().flat_map(|keys| between(keys, bounds));
            keys.all(|(_, holder)| *holder == owner) && !older.iter().any(|taken| taken.range.meets(range.tree, bounds))
        };
        let is_granted = self.ranges.iter().filter(|taken| taken.owner == owner).all(is_empty);
        if is_granted {
            self.ranges.iter_mut().filter(|taken| taken.owner == owner).for_each(|taken| taken.is_granted = true);
        }
        is_granted
    }

    /// Lets go of the ranges of `owner`.
    pub(crate) fn release_ranges(&mut self, owner: Owner) {
        self.ranges.retain(|taken| taken.owner != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: &[u8], to: &[u8]) -> KeyRange {
        KeyRange { tree: 1, from: from.into(), to: to.into() }
    }

    fn key(tree: usize, key: &[u8]) -> Key {
        (tree, key.into())
    }

    #[test]
    fn who_holds_a_key_or_its_range_keeps_others_out() {
        let mut locks = KeyLocks::default();
        assert!(locks.is_free() && !locks.is_held(0, b"a", 0));
        locks.hold(&key(0, b"a"), 1);
        locks.announce(&[range(b"m", b"p")], 2);
        assert!(locks.is_held(0, b"a", 2) && !locks.is_held(0, b"a", 1) && !locks.is_held(0, b"b", 2));
        assert!(locks.is_held(1, b"m", 1) && !locks.is_held(1, b"p", 1) && !locks.is_held(0, b"m", 1));
        assert!(!locks.release(&key(0, b"a"), 2) && locks.release(&key(0, b"a"), 1));
        assert!(!locks.is_held(0, b"a", 2));
        assert_eq!(locks.held_in(1, (b"a", b"z"), 3).as_deref(), Some(&b"m"[..]));
        assert_eq!(locks.held_in(1, (b"o", b"z"), 3).as_deref(), Some(&b"o"[..]));
        assert_eq!((locks.held_in(1, (b"p", b"z"), 3), locks.held_in(1, (b"z", b"a"), 3)), (None, None));
        locks.release_ranges(2);
        assert!(locks.is_free());
    }

    #[test]
    fn a_range_is_granted_when_keys_that_were_held_before_it_and_older_ranges_are_let_go_of() {
        let mut locks = KeyLocks::default();
        locks.hold(&key(1, b"n"), 1);
        locks.hold(&key(1, b"z"), 1);
        locks.announce(&[range(b"a", b"c"), range(b"m", b"p")], 2);
        locks.announce(&[range(b"b", b"d")], 3);
        assert!(!locks.is_held(1, b"n", 1) && locks.is_held(1, b"o", 1));
        assert!(!locks.grant(2) && !locks.grant(3));
        locks.release(&key(1, b"n"), 1);
        assert!(!locks.grant(3) && locks.grant(2) && !locks.grant(3));
        locks.release_ranges(2);
        assert!(locks.grant(3));
    }

    #[test]
    fn the_elder_keeps_others_from_what_it_named_and_passes_ranges_that_are_not_granted() {
        let mut locks = KeyLocks::default();
        locks.hold(&key(1, b"n"), 1);
        locks.reserve(&[key(1, b"n"), key(1, b"o")], 7);
        locks.reserve(&[key(1, b"q")], 8);
        assert!(locks.is_held(1, b"o", 8) && !locks.is_held(1, b"o", 7) && !locks.is_held(1, b"q", 9));
        assert!(locks.is_held(1, b"n", 7), "who holds a key of it comes to an end first");
        locks.announce(&[range(b"m", b"p")], 3);
        assert!(!locks.is_held(1, b"o", 7) && locks.is_held(1, b"o", 1));
        assert!(!locks.grant(3));
        locks.release(&key(1, b"n"), 1);
        assert!(locks.grant(3) && locks.is_held(1, b"o", 7));
        assert!(!locks.retire(8) && locks.retire(7));
        locks.release_ranges(3);
        assert!(locks.is_free());
    }
}
