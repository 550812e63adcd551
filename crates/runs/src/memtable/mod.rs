//! The newest records of a tree, in memory: a copy-on-write B+-tree.
//!
//! ```text
//!   writer's root ──put──► copies the nodes on its way, once for each version; the others are shared
//!        │ publish
//!        ▼
//!   Root (version 7) ◄── views hold it        retired: slots that version 7 leads to no more
//!   Root (version 6) ◄── an older view        ... free when the last root older than 7 is gone
//! ```
//!
//! One writer (`&mut`), any number of readers, which hold a [`Root`] and take no lock. A unit of changes is kept by
//! [`Memtable::keep_unit`] or taken back by [`Memtable::drop_unit`]; nobody sees it before it is published. A record that is
//! written again adds to its weight; tombstones are records, so no key ever leaves but by `drop_unit`.
//!
//! Source: D. Comer, The Ubiquitous B-Tree (1979); copying on the way to the root as in LMDB, within memory.

mod arena;
mod cursor;
mod node;
mod record;

pub use cursor::MemoryCursor;

use crate::block::common;
use crate::entry::{Entry, KEY_MAX};
use crate::format::separator;
use arena::{Address, Arena, Slots};
use node::{INNER_MAX, Inner, LEAF_MAX, Leaf, NODE};
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, BookedVec, Reservation, SharedReservation};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

/// Levels of inner nodes at most: 25 to that power is more than an arena holds.
const DEPTH_MAX: usize = 8;
const RETIRED_STEP: usize = 1024;
/// Bytes of retired slots that are not worth a look.
const SWEEP_BYTES: usize = 256 << 10;
/// Published roots that are not worth a look.
const ROOTS: usize = 1024;

/// The newest records of a tree, and their writer.
pub struct Memtable {
    arena: Arc<Arena>,
    slots: Slots,
    root: Shape,
    /// The version that is being made.
    version: u64,
    /// Published roots that somebody may hold, the newest last.
    roots: VecDeque<Arc<Root>>,
    retired: VecDeque<Retired>,
    retired_memory: Reservation,
    /// Bytes of them, and how many there may be before all are looked at.
    retired_bytes: usize,
    sweep_at: usize,
    /// What the unit changed.
    unit: BookedVec<Change>,
}

/// A record that a unit wrote.
#[derive(Clone, Copy)]
struct Change {
    address: Address,
    /// The one that stood there, and whether it was young: written since the last root was published, so that no root leads to
    /// it.
    before: Option<(Address, bool)>,
}

/// A slot that only roots from the version in which it was `born` on and before another one lead to.
struct Retired {
    born: u64,
    version: u64,
    address: Address,
    bytes: u32,
}

/// A tree in an arena.
#[derive(Clone, Copy)]
struct Shape {
    node: Address,
    /// Levels of inner nodes.
    depth: usize,
    records: u64,
    weight: i64,
}

/// A published version of a memtable: it stays as it is while it is held.
pub struct Root {
    arena: Arc<Arena>,
    shape: Shape,
    version: u64,
}

/// A walk along a memtable that nobody writes meanwhile: it sees what is not published, too.
pub struct UnitCursor<'m> {
    cursor: MemoryCursor,
    _memtable: PhantomData<&'m Memtable>,
}

impl UnitCursor<'_> {
    /// Goes to the first record whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.seek(key);
    }

    /// Goes to the next record.
    pub fn next(&mut self) {
        self.cursor.next();
    }

    /// The record; `None`: the cursor is past the end.
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.cursor.entry()
    }

    /// Without what keeps it from outliving the memtable: whoever asks does that.
    pub(crate) fn unbound(self) -> MemoryCursor {
        self.cursor
    }
}

/// A tree that can be read.
#[derive(Clone, Copy)]
struct Tree<'a> {
    arena: &'a Arena,
    shape: Shape,
}

impl<'a> Tree<'a> {
    fn get(&self, key: &[u8]) -> Option<Entry<'a>> {
        let leaf = self.leaf_of(key);
        let (at, found) = leaf.lower_bound(self.arena, key);
        found.then(|| record::decode(self.arena, leaf.records[at]))
    }

    fn leaf_of(&self, key: &[u8]) -> &'a Leaf {
        let mut node = self.shape.node;
        for _ in 0..self.shape.depth {
            let inner = self.arena.node::<Inner>(node);
            node = inner.children[inner.child_of(self.arena, key)];
        }
        self.arena.node::<Leaf>(node)
    }

    fn weight_below(&self, key: &[u8]) -> i64 {
        let (mut node, mut sum) = (self.shape.node, 0);
        for _ in 0..self.shape.depth {
            let inner = self.arena.node::<Inner>(node);
            let child = inner.child_of(self.arena, key);
            sum += inner.weight_before(child);
            node = inner.children[child];
        }
        let leaf = self.arena.node::<Leaf>(node);
        let (at, _) = leaf.lower_bound(self.arena, key);
        sum + leaf.records[..at].iter().map(|it| record::decode(self.arena, *it).weight).sum::<i64>()
    }
}

impl Root {
    fn tree(&self) -> Tree<'_> {
        Tree { arena: &self.arena, shape: self.shape }
    }

    /// The record of a key.
    pub fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        self.tree().get(key)
    }

    /// Records.
    pub fn records(&self) -> u64 {
        self.shape.records
    }

    /// The sum of the weights of all records.
    pub fn weight(&self) -> i64 {
        self.shape.weight
    }

    /// The sum of the weights of the records below a key.
    pub fn weight_below(&self, key: &[u8]) -> i64 {
        self.tree().weight_below(key)
    }
}

impl Memtable {
    /// Of at most `bytes`; `account` pays for what it holds.
    pub fn new(bytes: usize, account: &Account) -> Result<Self> {
        let (arena, mut slots) = Arena::new(bytes, account)?;
        let node = slots.take(&arena, NODE)?;
        let mut memtable = Self {
            arena: Arc::new(arena),
            slots,
            root: Shape { node, depth: 0, records: 0, weight: 0 },
            version: 1,
            roots: VecDeque::new(),
            retired: VecDeque::new(),
            retired_memory: account.try_reserve(0)?,
            retired_bytes: 0,
            sweep_at: SWEEP_BYTES,
            unit: BookedVec::new(&SharedReservation::new(0, account.clone(), None)),
        };
        *memtable.leaf(node) = Leaf::empty(1);
        Ok(memtable)
    }

    /// It may take chunks of so many bytes besides those that it has, but never more than it was made for.
    pub fn set_room(&mut self, bytes: usize) {
        self.slots.limit = self.slots.bytes.saturating_add(bytes);
    }

    /// Whether it may take a chunk for a record of so many bytes: if it takes none, then memory is short.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.slots.has_room(bytes)
    }

    /// Bytes that it has booked for records, nodes and what was retired, whether or not they are in use.
    pub fn held_bytes(&self) -> usize {
        self.slots.bytes + self.retired_memory.bytes() as usize
    }

    /// Bytes of its records and nodes, those that only older roots lead to too.
    pub fn used_bytes(&self) -> usize {
        self.slots.used()
    }

    /// Records, those of the unit under way too.
    pub fn records(&self) -> u64 {
        self.root.records
    }

    /// The record of a key, as the unit under way sees it.
    pub fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        Tree { arena: &self.arena, shape: self.root }.get(key)
    }

    /// A walk along what the unit under way sees.
    pub fn walk(&self) -> UnitCursor<'_> {
        let root = Root { arena: self.arena.clone(), shape: self.root, version: self.version };
        UnitCursor { cursor: MemoryCursor::new(Arc::new(root)), _memtable: PhantomData }
    }

    /// The sum of the weights of the records below a key, as the unit under way sees them.
    pub fn weight_below(&self, key: &[u8]) -> i64 {
        Tree { arena: &self.arena, shape: self.root }.weight_below(key)
    }

    /// Writes a record over the one of its key; the weights add up. Refused, nothing has changed.
    pub fn put(&mut self, entry: &Entry<'_>) -> Result<()> {
        if entry.key.len() > KEY_MAX {
            return Err(Error::too_large(format!("a key of {} bytes; at most {KEY_MAX} are allowed", entry.key.len())));
        }
        self.make_room()?;
        let (path, leaf) = self.descend(entry.key)?;
        let (at, found) = self.arena.node::<Leaf>(leaf).lower_bound(&self.arena, entry.key);
        let before = found.then(|| record::decode(&self.arena, self.arena.node::<Leaf>(leaf).records[at]));
        let (weight, first) = before.map_or((0, entry.first), |it| (it.weight, it.first));
        let merged = Entry { weight: weight + entry.weight, first, ..*entry };
        let address = self.slots.take(&self.arena, record::size(&merged))?;
        self.write_record(&merged, address);
        self.add_weight(&path, entry.weight);
        self.place(entry.key, address, (leaf, at, found))
    }

    /// Memory for all that one change needs beside its record and a separator.
    fn make_room(&mut self) -> Result<()> {
        self.slots.ensure(&self.arena, (2 * self.root.depth + 3) * NODE)?;
        self.unit.reserve(1)?;
        // A change retires a node a level, and in the end the record that stood there.
        let wanted = self.retired.len() + self.unit.len() + DEPTH_MAX + 2;
        if wanted > self.retired.capacity() {
            let more = wanted.next_multiple_of(RETIRED_STEP).max(2 * self.retired.capacity()) - self.retired.capacity();
            self.retired_memory.grow((more * size_of::<Retired>()) as u64)?;
            self.retired.reserve_exact(more + self.retired.capacity() - self.retired.len());
        }
        Ok(())
    }

    /// Puts a record where its key belongs, and notes what stood there; room for the note was made.
    fn place(&mut self, key: &[u8], address: Address, (leaf, at, found): (Address, usize, bool)) -> Result<()> {
        let before = found.then(|| self.leaf(leaf).replace(at, address, true));
        if !found {
            self.leaf(leaf).insert(at, key, address);
            self.root.records += 1;
        }
        self.unit.push(Change { address, before })
    }

    fn add_weight(&mut self, path: &[(Address, usize)], weight: i64) {
        self.root.weight += weight;
        path.iter().for_each(|(node, child)| self.inner(*node).weights[*child] += weight);
    }

    /// The way to the leaf of a key, all of it private to this version, and room in each node of it.
    fn descend(&mut self, key: &[u8]) -> Result<(Path, Address)> {
        let mut path = Path::default();
        let (mut node, levels) = (self.own(self.root.node, self.root.depth), self.root.depth);
        self.root.node = node;
        for level in (0..levels).rev() {
            if self.arena.node::<Inner>(node).count as usize == INNER_MAX {
                node = self.split_inner(&mut path, node, key);
            }
            let child = self.arena.node::<Inner>(node).child_of(&self.arena, key);
            path.push((node, child));
            let below = self.own(self.arena.node::<Inner>(node).children[child], level);
            self.inner(node).children[child] = below;
            node = below;
        }
        if self.arena.node::<Leaf>(node).count as usize == LEAF_MAX {
            node = self.split_leaf(&mut path, node, key)?;
        }
        Ok((path, node))
    }

    /// The node itself if it was made for this version, else a copy.
    fn own(&mut self, node: Address, level: usize) -> Address {
        let born = if level == 0 { self.arena.node::<Leaf>(node).born } else { self.arena.node::<Inner>(node).born };
        if born == self.version {
            return node;
        }
        let copy = self.take_node();
        if level == 0 {
            *self.leaf(copy) = Leaf { born: self.version, young: 0, ..*self.arena.node::<Leaf>(node) };
        } else {
            *self.inner(copy) = Inner { born: self.version, ..*self.arena.node::<Inner>(node) };
        }
        self.retire(born, node, NODE as u32);
        copy
    }

    fn retire(&mut self, born: u64, address: Address, bytes: u32) {
        self.retired.push_back(Retired { born, version: self.version, address, bytes });
        self.retired_bytes += bytes as usize;
    }

    /// Halves a full leaf; the last one gives away only its last record, since keys often ascend. Returns the half of `key`.
    fn split_leaf(&mut self, path: &mut Path, node: Address, key: &[u8]) -> Result<Address> {
        let leaf = self.arena.node::<Leaf>(node);
        let (at, _) = leaf.lower_bound(&self.arena, key);
        let cut = if at == LEAF_MAX { LEAF_MAX - 1 } else { LEAF_MAX / 2 };
        let before = record::key_of(&self.arena, leaf.records[cut - 1]);
        let between = separator(before, record::key_of(&self.arena, leaf.records[cut]));
        let weight = leaf.records[cut..].iter().map(|it| record::decode(&self.arena, *it).weight).sum();
        let entry = Entry { key: between, value: crate::Value::Deleted, weight: 0, first: false };
        let size = record::size(&entry);
        let address = self.slots.take(&self.arena, size)?;
        self.write_record(&entry, address);
        // The separator may have taken what the nodes were to have.
        if let Err(error) = self.slots.ensure(&self.arena, 2 * NODE) {
            self.slots.give(&self.arena, address, size);
            return Err(error);
        }
        let goes_right = record::key_of(&self.arena, address) <= key;
        let (right, mut moved) = (self.take_node(), Leaf::empty(self.version));
        self.leaf(node).split_to(cut, &mut moved);
        *self.leaf(right) = moved;
        let (arena, [left_prefix, right_prefix]) = (self.arena.clone(), self.prefixes(path, address));
        self.leaf(node).set_prefix(&arena, left_prefix);
        self.leaf(right).set_prefix(&arena, right_prefix);
        self.add_child(path, node, (address, right, weight), goes_right);
        Ok(if goes_right { right } else { node })
    }

    /// Halves a full inner node, and returns the half of `key`.
    fn split_inner(&mut self, path: &mut Path, node: Address, key: &[u8]) -> Address {
        let (right, mut moved) = (self.take_node(), Inner::empty(self.version));
        let (separator, weight) = self.inner(node).split_to(INNER_MAX / 2, &mut moved);
        *self.inner(right) = moved;
        let (arena, [left_prefix, right_prefix]) = (self.arena.clone(), self.prefixes(path, separator));
        self.inner(node).set_prefix(&arena, left_prefix);
        self.inner(right).set_prefix(&arena, right_prefix);
        let goes_right = record::key_of(&self.arena, separator) <= key;
        self.add_child(path, node, (separator, right, weight), goes_right);
        if goes_right { right } else { node }
    }

    /// What keys have in common on both sides of `between`, which divides the node below a path.
    fn prefixes(&self, path: &Path, between: Address) -> [usize; 2] {
        let (mut low, mut high) = (None, None);
        for (node, child) in path.iter() {
            let inner = self.arena.node::<Inner>(*node);
            low = if *child > 0 { Some(inner.keys[*child]) } else { low };
            high = inner.keys[..inner.count as usize].get(child + 1).copied().or(high);
        }
        let key = |address| record::key_of(&self.arena, address);
        [low, high].map(|end| end.map_or(0, |end| common(key(end), key(between))))
    }

    /// Enters the right half of a node into the one above it, or into a new root; the way goes on where the key belongs.
    fn add_child(&mut self, path: &mut Path, left: Address, right: (Address, Address, i64), goes_right: bool) {
        let (arena, (separator, node, weight)) = (self.arena.clone(), right);
        if path.is_empty() {
            let root = self.take_node();
            let total = self.root.weight;
            *self.inner(root) = Inner::empty(self.version);
            self.inner(root).insert(&arena, 0, separator, left, total);
            (self.root.node, self.root.depth) = (root, self.root.depth + 1);
            path.push((root, 0));
        }
        let last = path.len() - 1;
        let (above, child) = path[last];
        let inner = self.inner(above);
        inner.weights[child] -= weight;
        inner.insert(&arena, child + 1, separator, node, weight);
        path[last].1 = child + usize::from(goes_right);
    }

    fn take_node(&mut self) -> Address {
        let address = self.slots.take(&self.arena, NODE);
        address.expect("room for the nodes of a change was made before it")
    }

    /// Writes a record into a slot of its size that was just taken.
    fn write_record(&self, entry: &Entry<'_>, address: Address) {
        // SAFETY: no root leads to it yet, and only `&mut self` comes here.
        record::encode(entry, unsafe { self.slots.slot(&self.arena, address, record::size(entry)) });
    }

    fn leaf(&mut self, address: Address) -> &mut Leaf {
        // SAFETY: only nodes that were made for this version are asked for: no published root leads to them.
        unsafe { self.slots.node(&self.arena, address) }
    }

    fn inner(&mut self, address: Address) -> &mut Inner {
        // SAFETY: as in `leaf`.
        unsafe { self.slots.node(&self.arena, address) }
    }

    /// Changes since the last unit was kept or dropped.
    pub fn unit_len(&self) -> usize {
        self.unit.len()
    }

    /// The unit under way is whole: it will be published.
    pub fn keep_unit(&mut self) {
        for number in 0..self.unit.len() {
            let Some((address, was_young)) = self.unit[number].before else { continue };
            let bytes = record::size_of_slot(&self.arena, address);
            match was_young {
                true => self.slots.give(&self.arena, address, bytes),
                // When it was born stands nowhere.
                false => self.retire(0, address, bytes as u32),
            }
        }
        self.unit.clear();
    }

    /// Takes the changes of the unit under way back.
    pub fn drop_unit(&mut self) {
        for number in (0..self.unit.len()).rev() {
            let Change { address, before } = self.unit[number];
            self.take_back(address, before);
        }
        self.unit.clear();
    }

    fn take_back(&mut self, address: Address, before: Option<(Address, bool)>) {
        let arena = self.arena.clone();
        let key = record::key_of(&arena, address);
        let weight_of = |address| record::decode(&arena, address).weight;
        let undone = before.map_or(0, |(before, _)| weight_of(before)) - weight_of(address);
        // Each node on the way is private since the record was put there, and none is full that was not then: nothing is taken.
        let (mut node, mut path) = (self.root.node, Path::default());
        for _ in 0..self.root.depth {
            let child = arena.node::<Inner>(node).child_of(&arena, key);
            path.push((node, child));
            node = arena.node::<Inner>(node).children[child];
        }
        let (at, found) = arena.node::<Leaf>(node).lower_bound(&arena, key);
        debug_assert!(found, "what a unit wrote is there until it is dropped");
        match before {
            Some((before, was_young)) => _ = self.leaf(node).replace(at, before, was_young),
            None => {
                self.leaf(node).remove(at);
                self.root.records -= 1;
            }
        }
        self.add_weight(&path, undone);
        self.slots.give(&arena, address, record::size_of_slot(&arena, address));
    }

    /// Shows what was kept to who asks from now on, and uses slots again that no root leads to.
    pub fn publish(&mut self) -> Arc<Root> {
        debug_assert!(self.unit.is_empty(), "a unit is kept or dropped before it is published");
        let root = Arc::new(Root { arena: self.arena.clone(), shape: self.root, version: self.version });
        self.roots.push_back(root.clone());
        self.version += 1;
        self.reclaim();
        root
    }

    fn reclaim(&mut self) {
        // Those that only this list holds are gone: nobody can ask for them again.
        while self.roots.front_mut().is_some_and(|root| Arc::get_mut(root).is_some()) {
            self.roots.pop_front();
        }
        let oldest = self.roots.front().map_or(self.version, |root| root.version);
        while let Some(next) = self.retired.front().filter(|next| next.version <= oldest) {
            let (address, bytes) = (next.address, next.bytes as usize);
            self.slots.give(&self.arena, address, bytes);
            self.retired_bytes -= bytes;
            self.retired.pop_front();
        }
        if self.retired_bytes >= self.sweep_at || self.roots.len() >= ROOTS {
            self.sweep();
        }
    }

    /// An old root that is held long keeps what it leads to, and nothing of what came and went after it.
    fn sweep(&mut self) {
        self.roots.retain_mut(|root| Arc::get_mut(root).is_none());
        let (roots, slots, arena, bytes) = (&self.roots, &mut self.slots, &self.arena, &mut self.retired_bytes);
        self.retired.retain(|slot| {
            let from = roots.partition_point(|root| root.version < slot.born);
            let is_held = roots.get(from).is_some_and(|root| root.version < slot.version);
            if !is_held {
                slots.give(arena, slot.address, slot.bytes as usize);
                *bytes -= slot.bytes as usize;
            }
            is_held
        });
        self.sweep_at = SWEEP_BYTES + 2 * self.retired_bytes;
    }
}

/// The inner nodes from the root to a leaf, and which child was taken in each.
type Path = PathOf<(Address, usize)>;

#[derive(Clone, Copy, Default)]
struct PathOf<T> {
    steps: [T; DEPTH_MAX],
    len: usize,
}

impl<T> PathOf<T> {
    fn push(&mut self, step: T) {
        self.steps[self.len] = step;
        self.len += 1;
    }
}

impl<T> std::ops::Deref for PathOf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.steps[..self.len]
    }
}

impl<T> std::ops::DerefMut for PathOf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.steps[..self.len]
    }
}
