//! The names of the simulated disk: what stands in which folder, and what a crash may undo.
//!
//! ```text
//!   live     folder ─► name ─► node        what open and list see
//!   durable  folder ─► name ─► node        what is left after a crash
//!   pending  [make a] [move a b] [remove c] …   done live, not yet durable
//!            Sync::Folder makes those of its folder durable; a crash keeps each by chance
//! ```
//!
//! Nothing is promised about the order in which unsynced names become durable, so a crash may keep
//! a later one and lose an earlier. A move is kept or lost as a whole.

use super::faults::Counts;
use super::image::survival;
use ramekin_base::{Error, Result, Rng};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

pub(super) type NodeId = u64;
pub(super) const ROOT: NodeId = 0;

type Place = (NodeId, String);
type Tree = BTreeMap<NodeId, BTreeMap<String, NodeId>>;

#[derive(Debug, Clone)]
enum Change {
    Make(Place, NodeId),
    Move(Place, Place, NodeId),
    Remove(Place),
}

impl Change {
    fn concerns(&self, folder: NodeId) -> bool {
        match self {
            Self::Make(place, _) | Self::Remove(place) => place.0 == folder,
            Self::Move(from, to, _) => from.0 == folder || to.0 == folder,
        }
    }

    fn apply(&self, tree: &mut Tree) {
        match self {
            Self::Make((folder, name), node) => {
                tree.entry(*folder).or_default().insert(name.clone(), *node);
            }
            Self::Remove((folder, name)) => {
                tree.entry(*folder).or_default().remove(name);
            }
            Self::Move(from, to, node) => {
                Self::Remove(from.clone()).apply(tree);
                Self::Make(to.clone(), *node).apply(tree);
            }
        }
    }

    fn node(&self) -> Option<NodeId> {
        match self {
            Self::Make(_, node) | Self::Move(_, _, node) => Some(*node),
            Self::Remove(_) => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Names {
    live: Tree,
    durable: Tree,
    /// Which nodes are folders; the root always is.
    folders: BTreeSet<NodeId>,
    pending: Vec<Change>,
}

impl Default for Names {
    fn default() -> Self {
        Self { live: Tree::new(), durable: Tree::new(), folders: BTreeSet::from([ROOT]), pending: Vec::new() }
    }
}

/// The names of a path from the root down.
fn parts(path: &Path) -> Vec<String> {
    let normal = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    };
    path.components().filter_map(normal).collect()
}

fn missing(path: &Path) -> Error {
    Error::not_found("no such file or folder").at(path.display())
}

impl Names {
    pub(super) fn is_folder(&self, node: NodeId) -> bool {
        self.folders.contains(&node)
    }

    pub(super) fn find(&self, path: &Path) -> Result<NodeId> {
        parts(path).iter().try_fold(ROOT, |folder, name| self.child(folder, name)).ok_or_else(|| missing(path))
    }

    fn child(&self, folder: NodeId, name: &str) -> Option<NodeId> {
        self.live.get(&folder)?.get(name).copied()
    }

    pub(super) fn folder(&self, path: &Path) -> Result<NodeId> {
        let node = self.find(path)?;
        if self.is_folder(node) { Ok(node) } else { Err(Error::io("is not a folder").at(path.display())) }
    }

    /// The folder and the name that a path stands for; the name itself need not exist.
    fn place(&self, path: &Path) -> Result<Place> {
        let name = parts(path).pop().ok_or_else(|| Error::io("the root has no name").at(path.display()))?;
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        Ok((self.folder(parent)?, name))
    }

    pub(super) fn make(&mut self, path: &Path, node: NodeId, folder: bool) -> Result<()> {
        let place = self.place(path)?;
        if self.child(place.0, &place.1).is_some() {
            return Err(Error::exists("exists already").at(path.display()));
        }
        if folder {
            self.folders.insert(node);
        }
        self.change(Change::Make(place, node));
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let (source, target) = (self.place(from)?, self.place(to)?);
        let node = self.child(source.0, &source.1).ok_or_else(|| missing(from))?;
        if let Some(there) = self.child(target.0, &target.1) {
            if there == node {
                return Ok(());
            }
            if self.is_folder(there) || self.is_folder(node) {
                return Err(Error::exists("only a file can replace a file").at(to.display()));
            }
        }
        self.change(Change::Move(source, target, node));
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<()> {
        let place = self.place(path)?;
        let node = self.child(place.0, &place.1).ok_or_else(|| missing(path))?;
        if self.live.get(&node).is_some_and(|names| !names.is_empty()) {
            return Err(Error::io("the folder is not empty").at(path.display()));
        }
        self.change(Change::Remove(place));
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    pub(super) fn list(&self, folder: NodeId) -> impl Iterator<Item = (&String, NodeId)> {
        self.live.get(&folder).into_iter().flatten().map(|(name, node)| (name, *node))
    }

    pub(super) fn sync(&mut self, folder: NodeId) {
        for change in self.pending.extract_if(.., |change| change.concerns(folder)) {
            change.apply(&mut self.durable);
        }
    }

    /// What a crash leaves: durable names, and of the pending changes each by chance.
    pub(super) fn crash(&self, rng: &mut Rng, counts: &mut Counts) -> Self {
        let keep_chance = survival(rng);
        let mut tree = self.durable.clone();
        for change in &self.pending {
            if rng.chance(keep_chance) {
                change.apply(&mut tree);
            } else {
                counts.lost_names += 1;
            }
        }
        let mut after = Self { live: tree, folders: self.folders.clone(), ..Self::default() };
        let reachable = after.nodes();
        after.folders.retain(|node| reachable.contains(node));
        after.live.retain(|node, _| reachable.contains(node));
        after.durable = after.live.clone();
        after
    }

    /// Every node that has a live name, by whatever path.
    pub(super) fn live_nodes(&self) -> BTreeSet<NodeId> {
        self.live.values().flat_map(|names| names.values().copied()).collect()
    }

    /// Every node that has a name, may get one back by a crash, or is the root.
    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::from([ROOT]);
        let mut next = vec![ROOT];
        let pending = self.pending.iter().filter_map(Change::node);
        next.extend(pending.filter(|node| found.insert(*node)));
        while let Some(folder) = next.pop() {
            for tree in [&self.live, &self.durable] {
                let inside = tree.get(&folder).into_iter().flatten().map(|(_, node)| *node);
                next.extend(inside.filter(|node| found.insert(*node)));
            }
        }
        found
    }
}
