//! A read view: all trees at one moment. What is written, flushed or merged later does not show in it.

use crate::fetch::copied;
use arc_swap::Guard;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_runs::{Root, Value, View};
use std::sync::Arc;

/// Of each tree, the memtable that was written at some moment, by its number, and its root unless it has become a run since.
pub(crate) type Roots = Box<[(u64, Option<Arc<Root>>)]>;

/// What is published: the trees at the end of a unit.
pub(crate) struct Published {
    /// The number of that unit.
    pub(crate) seqno: u64,
    pub(crate) roots: Roots,
    pub(crate) trees: Box<[View]>,
}

/// All trees at one moment. It holds files and memory that were given up since, so it is not kept for long.
pub struct ReadView {
    pub(crate) published: Arc<Published>,
    pub(crate) pages: Pages,
    pub(crate) account: Account,
}

impl ReadView {
    /// The last unit whose changes show.
    pub fn seqno(&self) -> u64 {
        self.published.seqno
    }

    /// One tree.
    pub fn tree(&self, tree: usize) -> Result<&View> {
        self.published.trees.get(tree).ok_or_else(|| Error::bug(format!("there is no tree {tree}")))
    }

    /// What reads pages, and what pays for windows over them.
    pub fn pages(&self) -> (&Pages, &Account) {
        (&self.pages, &self.account)
    }

    /// Shows the value of a key if it is there; one that no command could have written is read by pieces from the tree.
    pub fn get<T>(&self, tree: usize, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let shown = self.tree(tree)?.get(&self.pages, key, |found| match (found.entry.value, found.big()) {
            (Value::Inline(value), _) => Ok(Some(read(value))),
            (_, Some(big)) => copied(&self.pages, &self.account, &big).map(|(value, _memory)| Some(read(&value))),
            _ => Ok(None),
        })?;
        Ok(shown.flatten())
    }
}

impl Published {
    pub(crate) fn of(pinned: Guard<Arc<Self>>, pages: &Pages, account: &Account) -> ReadView {
        ReadView { published: Guard::into_inner(pinned), pages: pages.clone(), account: account.clone() }
    }
}
