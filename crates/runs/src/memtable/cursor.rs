//! Walks through a version of a memtable, both ways.

use super::node::{Inner, Leaf};
use super::{Path, Root, Tree, record};
use crate::entry::Entry;
use std::sync::Arc;

/// A place in a version of a memtable.
pub struct MemoryCursor {
    root: Arc<Root>,
    /// The inner nodes above the leaf.
    path: Path,
    leaf: u32,
    /// Where in the leaf; `None`: at neither end is a record.
    at: Option<usize>,
}

impl MemoryCursor {
    pub fn new(root: Arc<Root>) -> Self {
        let leaf = root.shape.node;
        Self { root, path: Path::default(), leaf, at: None }
    }

    fn tree(&self) -> Tree<'_> {
        self.root.tree()
    }

    fn node(&self) -> &Leaf {
        self.root.arena.node(self.leaf)
    }

    /// Goes to the first record whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.descend(|tree, inner| inner.child_of(tree.arena, key));
        let at = self.node().lower_bound(self.tree().arena, key).0;
        self.at = Some(at);
        if at == self.node().count as usize {
            self.step_leaf(true);
        }
    }

    /// Goes to the last record whose key is below `key`; `None`: to the last of all.
    pub fn seek_back(&mut self, key: Option<&[u8]>) {
        self.descend(|tree, inner| key.map_or(inner.count as usize - 1, |key| inner.child_of(tree.arena, key)));
        let end = key.map_or(self.node().count as usize, |key| self.node().lower_bound(self.tree().arena, key).0);
        self.at = end.checked_sub(1);
        if self.at.is_none() {
            self.step_leaf(false);
        }
    }

    /// Goes to the next record.
    pub fn next(&mut self) {
        let Some(at) = self.at else { return };
        self.at = Some(at + 1);
        if at + 1 >= self.node().count as usize {
            self.step_leaf(true);
        }
    }

    /// Goes to the record before.
    pub fn back(&mut self) {
        let Some(at) = self.at else { return };
        self.at = at.checked_sub(1);
        if self.at.is_none() {
            self.step_leaf(false);
        }
    }

    /// The record; `None`: the cursor is past an end.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let record = self.node().records[self.at?];
        Some(record::decode(self.tree().arena, record))
    }

    /// From the root to a leaf, by the child that `choose` takes.
    fn descend(&mut self, choose: impl Fn(Tree<'_>, &Inner) -> usize) {
        let (mut node, mut path) = (self.root.shape.node, Path::default());
        for _ in 0..self.root.shape.depth {
            let inner = self.root.arena.node::<Inner>(node);
            let child = choose(self.tree(), inner);
            path.push((node, child));
            node = inner.children[child];
        }
        (self.path, self.leaf) = (path, node);
    }

    /// To the first record of the next leaf that has one, or to the last one of a leaf before.
    fn step_leaf(&mut self, forward: bool) {
        loop {
            if !self.turn(forward) {
                self.at = None;
                return;
            }
            let count = self.node().count as usize;
            if count > 0 {
                self.at = Some(if forward { 0 } else { count - 1 });
                return;
            }
        }
    }

    /// To the neighbouring leaf; false: there is none.
    fn turn(&mut self, forward: bool) -> bool {
        let depth = self.path.len();
        for level in (0..depth).rev() {
            let (node, child) = self.path[level];
            let count = self.root.arena.node::<Inner>(node).count as usize;
            let next = if forward { Some(child + 1).filter(|next| *next < count) } else { child.checked_sub(1) };
            let Some(next) = next else { continue };
            self.path[level].1 = next;
            let mut below = self.root.arena.node::<Inner>(node).children[next];
            for lower in level + 1..depth {
                let inner = self.root.arena.node::<Inner>(below);
                let child = if forward { 0 } else { inner.count as usize - 1 };
                self.path[lower] = (below, child);
                below = inner.children[child];
            }
            self.leaf = below;
            return true;
        }
        false
    }
}
