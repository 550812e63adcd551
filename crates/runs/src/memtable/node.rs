//! The nodes of a memtable's tree, of 1 KiB each, and how a key is found in one.
//!
//! ```text
//!   leaf    which records are young │ heads: 4 bytes of each key, behind the prefix │ records
//!   inner   heads of separators │ separators │ children │ sums of the weights below each child
//! ```
//!
//! A head decides most comparisons without a look at the key. All keys of a node have its prefix in common: that of the separators
//! between which it stands; at either end of a level there is one only, and no prefix. A separator is the least key of what its
//! child may hold; the first child's is empty.
//!
//! Source: R. Bayer, K. Unterauer, Prefix B-trees (1977).

use super::arena::{Address, Arena, Node};

pub(super) const NODE: usize = 1024;
pub(super) const LEAF_MAX: usize = (NODE - 32) / 8;
pub(super) const INNER_MAX: usize = (NODE - 16) / 20;

#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Leaf {
    /// The version of the tree that it was made for.
    pub(super) born: u64,
    pub(super) count: u32,
    /// Bytes of the prefix.
    pub(super) prefix: u32,
    /// A bit a record: it was written for the version that the leaf was made for. While that version is not published, no root
    /// leads to the record.
    pub(super) young: u128,
    pub(super) heads: [u32; LEAF_MAX],
    pub(super) records: [Address; LEAF_MAX],
}

#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Inner {
    pub(super) born: u64,
    pub(super) count: u32,
    /// Bytes of the prefix.
    pub(super) prefix: u32,
    pub(super) weights: [i64; INNER_MAX],
    pub(super) heads: [u32; INNER_MAX],
    pub(super) keys: [Address; INNER_MAX],
    pub(super) children: [Address; INNER_MAX],
    pub(super) rest: [u32; 2],
}

// SAFETY: plain integers, aligned to 16 bytes.
unsafe impl Node for Leaf {}
// SAFETY: as above.
unsafe impl Node for Inner {}

const _: () = assert!(size_of::<Leaf>() == NODE && size_of::<Inner>() == NODE && LEAF_MAX < u128::BITS as usize);

/// The first bytes of what is left of a key, in its order.
#[inline]
fn head(key: &[u8]) -> u32 {
    match key.first_chunk::<4>() {
        Some(four) => u32::from_be_bytes(*four),
        None => {
            let mut four = [0; 4];
            four[..key.len()].copy_from_slice(key);
            u32::from_be_bytes(four)
        }
    }
}

impl Leaf {
    pub(super) fn empty(born: u64) -> Self {
        Self { born, count: 0, prefix: 0, young: 0, heads: [0; LEAF_MAX], records: [0; LEAF_MAX] }
    }

    /// Where the first key that is at least `key` stands, and whether it is that one.
    #[inline]
    pub(super) fn lower_bound(&self, arena: &Arena, key: &[u8]) -> (usize, bool) {
        let (count, wanted) = (self.count as usize, self.head(key));
        let mut low = self.heads[..count].partition_point(|head| *head < wanted);
        let mut high = low + self.heads[low..count].partition_point(|head| *head == wanted);
        while low < high {
            let middle = low + (high - low) / 2;
            match super::record::key_of(arena, self.records[middle]).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return (middle, true),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u32 {
        head(&key[self.prefix as usize..])
    }

    /// From now on it has a prefix of so many bytes.
    pub(super) fn set_prefix(&mut self, arena: &Arena, bytes: usize) {
        self.prefix = bytes as u32;
        for at in 0..self.count as usize {
            self.heads[at] = self.head(super::record::key_of(arena, self.records[at]));
        }
    }

    /// Enters a record of a key that was written for the leaf's version.
    pub(super) fn insert(&mut self, at: usize, key: &[u8], record: Address) {
        let (count, head) = (self.count as usize, self.head(key));
        self.heads.copy_within(at..count, at + 1);
        self.records.copy_within(at..count, at + 1);
        (self.heads[at], self.records[at]) = (head, record);
        let below = (1 << at) - 1;
        self.young = (self.young & below) | (self.young & !below) << 1 | 1 << at;
        self.count += 1;
    }

    /// Puts a record in the place of another one; returns that one, and whether it was young.
    pub(super) fn replace(&mut self, at: usize, record: Address, is_young: bool) -> (Address, bool) {
        let was_young = self.young >> at & 1 == 1;
        self.young = self.young & !(1 << at) | u128::from(is_young) << at;
        (std::mem::replace(&mut self.records[at], record), was_young)
    }

    pub(super) fn remove(&mut self, at: usize) {
        let count = self.count as usize;
        self.heads.copy_within(at + 1..count, at);
        self.records.copy_within(at + 1..count, at);
        let below = (1 << at) - 1;
        self.young = (self.young & below) | (self.young >> 1 & !below);
        self.count -= 1;
    }

    /// Moves what stands from `at` on to `right`, which is empty.
    pub(super) fn split_to(&mut self, at: usize, right: &mut Self) {
        let moved = self.count as usize - at;
        right.heads[..moved].copy_from_slice(&self.heads[at..at + moved]);
        right.records[..moved].copy_from_slice(&self.records[at..at + moved]);
        (self.young, right.young) = (self.young & ((1 << at) - 1), self.young >> at);
        (self.count, right.count) = (at as u32, moved as u32);
    }
}

impl Inner {
    pub(super) fn empty(born: u64) -> Self {
        let [heads, keys, children] = [[0; INNER_MAX]; 3];
        Self { born, count: 0, prefix: 0, weights: [0; INNER_MAX], heads, keys, children, rest: [0; 2] }
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u32 {
        head(&key[self.prefix as usize..])
    }

    /// From now on it has a prefix of so many bytes.
    pub(super) fn set_prefix(&mut self, arena: &Arena, bytes: usize) {
        self.prefix = bytes as u32;
        // The first separator is not asked.
        for at in 1..self.count as usize {
            self.heads[at] = self.head(super::record::key_of(arena, self.keys[at]));
        }
    }

    /// The child that answers for a key: the last whose separator is not greater.
    #[inline]
    pub(super) fn child_of(&self, arena: &Arena, key: &[u8]) -> usize {
        let (count, wanted) = (self.count as usize, self.head(key));
        // The first separator is empty: it is not asked.
        let mut low = 1 + self.heads[1..count].partition_point(|head| *head < wanted);
        let mut high = low + self.heads[low..count].partition_point(|head| *head == wanted);
        while low < high {
            let middle = low + (high - low) / 2;
            if super::record::key_of(arena, self.keys[middle]) <= key { low = middle + 1 } else { high = middle }
        }
        low - 1
    }

    /// The sum of the weights below the first `count` children.
    pub(super) fn weight_before(&self, count: usize) -> i64 {
        self.weights[..count].iter().sum()
    }

    pub(super) fn insert(&mut self, arena: &Arena, at: usize, key: Address, child: Address, weight: i64) {
        // That of the first child is not asked.
        let head = if at == 0 { 0 } else { self.head(super::record::key_of(arena, key)) };
        let count = self.count as usize;
        self.weights.copy_within(at..count, at + 1);
        self.heads.copy_within(at..count, at + 1);
        self.keys.copy_within(at..count, at + 1);
        self.children.copy_within(at..count, at + 1);
        (self.weights[at], self.heads[at], self.keys[at], self.children[at]) = (weight, head, key, child);
        self.count += 1;
    }

    /// Moves what stands from `at` on to `right`, which is empty. Returns the separator of `right`, and its weight.
    pub(super) fn split_to(&mut self, at: usize, right: &mut Self) -> (Address, i64) {
        let moved = self.count as usize - at;
        right.weights[..moved].copy_from_slice(&self.weights[at..at + moved]);
        right.heads[..moved].copy_from_slice(&self.heads[at..at + moved]);
        right.keys[..moved].copy_from_slice(&self.keys[at..at + moved]);
        right.children[..moved].copy_from_slice(&self.children[at..at + moved]);
        (self.count, right.count) = (at as u32, moved as u32);
        (right.keys[0], right.weight_before(moved))
    }
}
