//! The tree of accounts.
//!
//! ```text
//!   try_reserve(n) on a leaf:
//!      climb from the leaf to the root; at each step the bytes that the step above must give are
//!      max(floor, used + n) - max(floor, used): zero while a floor covers the use.
//!      A limit that would be passed ends the climb: first those who yield are asked, in the
//!      order of `pressure.rs`, then the caller gets `Busy` or `NoMemory`.
//! ```
//!
//! A floor may be lent: its bytes are free then, but only to accounts that yield. The others keep away from them:
//!
//! ```text
//!   |  firm: in use by who does not yield, and floors  |        yielding        |   limit
//!   |                              may grow up to here >|< lent floors           |
//! ```
//!
//! so that it can be taken back whatever the others hold, as soon as those yield.
//!
//! One mutex guards the whole tree: reservations are coarse (a page run, a request, a chunk), and a
//! tree that is always consistent is worth more than the last nanoseconds.

use crate::pressure::{Pressure, Yield, YieldOrder};
use parking_lot::{Condvar, Mutex};
use ramekin_base::{Error, Result, Size};
use std::sync::Arc;

/// The one number, and the tree below it.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

struct Shared {
    tree: Mutex<Tree>,
    released: Condvar,
    yielders: Mutex<Vec<(YieldOrder, Arc<dyn Yield>)>>,
}

struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    peak: u64,
    /// Floors that are lent, and bytes above their floors that yielding accounts hold.
    lent: u64,
    yielding: u64,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) formula: &'static str,
    pub(crate) parent: Option<usize>,
    pub(crate) limit: u64,
    pub(crate) floor: u64,
    /// The floor that it had, and has again when it asks for it.
    lent: u64,
    /// What is reserved here is given back when others are short.
    yields: bool,
    /// Bytes in use by this account and those below it (floors below count in full).
    pub(crate) used: u64,
    /// Bytes that were reserved on this account itself.
    pub(crate) own: u64,
    pub(crate) predicted: Option<u64>,
    pub(crate) wanted: Option<u64>,
    handles: usize,
}

impl Node {
    /// What the parent must hold for this account when it uses `used`.
    fn claim(&self, used: u64) -> u64 {
        used.max(self.floor)
    }

    fn above_floor(&self) -> u64 {
        self.used.saturating_sub(self.floor)
    }
}

/// A named part of the budget. Clones are handles to the same account; the last one removes it.
pub struct Account {
    shared: Arc<Shared>,
    index: usize,
}

/// Bytes that are ours until dropped.
#[must_use]
pub struct Reservation {
    account: Account,
    bytes: u64,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        let root = Node {
            name: String::new(),
            formula: "the budget",
            parent: None,
            limit: bytes,
            floor: 0,
            lent: 0,
            yields: false,
            used: 0,
            own: 0,
            predicted: None,
            wanted: None,
            handles: 1,
        };
        let tree = Tree { nodes: vec![root], free: Vec::new(), peak: 0, lent: 0, yielding: 0 };
        Self {
            shared: Arc::new(Shared {
                tree: Mutex::new(tree),
                released: Condvar::new(),
                yielders: Mutex::new(Vec::new()),
            }),
        }
    }

    /// The account of the whole process.
    pub fn root(&self) -> Account {
        self.shared.tree.lock().nodes[0].handles += 1;
        Account { shared: self.shared.clone(), index: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[0].limit
    }

    /// Bytes claimed now: in use, or held by a floor.
    pub fn reserved(&self) -> u64 {
        self.shared.tree.lock().nodes[0].used
    }

    /// Bytes that could be reserved now without asking anyone to yield.
    pub fn free(&self) -> u64 {
        let tree = self.shared.tree.lock();
        tree.nodes[0].limit.saturating_sub(tree.nodes[0].used)
    }

    pub fn peak(&self) -> u64 {
        self.shared.tree.lock().peak
    }

    /// Moves the budget. Below what is claimed, those who yield are asked first; returns the bytes
    /// by which the claims still pass the new limit (0: done).
    pub fn set_limit(&self, bytes: u64) -> u64 {
        self.shared.tree.lock().nodes[0].limit = bytes;
        let over = self.reserved().saturating_sub(bytes);
        if over > 0 {
            self.ask(over);
        }
        self.shared.released.notify_all();
        self.reserved().saturating_sub(bytes)
    }

    pub fn pressure(&self) -> Pressure {
        let tree = self.shared.tree.lock();
        Pressure::of(tree.nodes[0].used, tree.nodes[0].limit)
    }

    /// Registers someone who can give bytes back when the budget is short.
    pub fn add_yielder(&self, order: YieldOrder, yielder: Arc<dyn Yield>) {
        let mut yielders = self.shared.yielders.lock();
        yielders.push((order, yielder));
        yielders.sort_by_key(|(order, _)| *order);
    }

    /// Asks those who yield, in order, until `wanted` bytes came back or all were asked.
    pub(crate) fn ask(&self, wanted: u64) -> u64 {
        self.shared.ask(wanted)
    }

    /// Every account with its path, root first, parents before children.
    pub(crate) fn nodes(&self) -> Vec<(String, Node)> {
        let tree = self.shared.tree.lock();
        let live = |index: &usize| tree.nodes[*index].handles > 0;
        (0..tree.nodes.len()).filter(live).map(|index| (tree.path(index), tree.nodes[index].clone())).collect()
    }
}

impl Shared {
    fn ask(&self, wanted: u64) -> u64 {
        // The list is copied so that a yielder may itself release reservations.
        let yielders: Vec<_> = self.yielders.lock().iter().map(|(_, yielder)| yielder.clone()).collect();
        let mut given = 0;
        for yielder in yielders {
            if given >= wanted {
                break;
            }
            given += yielder.give_back(wanted - given);
        }
        given
    }
}

impl Tree {
    fn path(&self, index: usize) -> String {
        let mut parts = Vec::new();
        let mut next = Some(index);
        while let Some(index) = next {
            parts.push(self.nodes[index].name.as_str());
            next = self.nodes[index].parent;
        }
        parts.pop();
        parts.reverse();
        parts.join("/")
    }

    /// Adds `bytes` to the account and its claims upwards, or says which account is short and by how much.
    fn add(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        let mut steps: Vec<(usize, u64)> = Vec::with_capacity(8);
        let (mut next, mut more) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &self.nodes[index];
            let used = node.used.saturating_add(more);
            if used > node.limit && more > 0 {
                return Err(Short { index, missing: used - node.limit, firm: false });
            }
            steps.push((index, more));
            more = node.claim(used) - node.claim(node.used);
            next = node.parent;
        }
        self.check_firm(index, steps.last().map_or(0, |(_, more)| *more))?;
        let before = self.nodes[index].above_floor();
        for (index, more) in steps {
            self.nodes[index].used += more;
        }
        self.nodes[index].own += bytes;
        self.yielding += self.yields_above(index, before);
        self.peak = self.peak.max(self.nodes[0].used);
        Ok(())
    }

    /// Who does not yield must leave what is lent to those who do.
    fn check_firm(&self, index: usize, more: u64) -> Result<(), Short> {
        let root = &self.nodes[0];
        let firm = (root.used + more).saturating_sub(self.yielding);
        let most = root.limit.saturating_sub(self.lent);
        match self.lent > 0 && more > 0 && !self.nodes[index].yields && firm > most {
            true => Err(Short { index: 0, missing: firm - most, firm: true }),
            false => Ok(()),
        }
    }

    /// What a yielding account holds above its floor more than `before`; 0 of others.
    fn yields_above(&self, index: usize, before: u64) -> u64 {
        let node = &self.nodes[index];
        if node.yields { node.above_floor() - before } else { 0 }
    }

    fn sub(&mut self, index: usize, bytes: u64) {
        let before = self.nodes[index].above_floor();
        self.sub_used(index, bytes);
        let node = &self.nodes[index];
        self.yielding -= if node.yields { before - node.above_floor() } else { 0 };
    }

    fn sub_used(&mut self, index: usize, bytes: u64) {
        self.nodes[index].own -= bytes;
        let (mut next, mut less) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            let before = node.claim(node.used);
            node.used -= less;
            less = before - node.claim(node.used);
            next = node.parent;
        }
    }

    /// Moves bytes from one account to another. The root is asked for no more than it holds already.
    fn transfer(&mut self, from: usize, to: usize, bytes: u64) -> Result<(), Short> {
        let (limit, before) = (self.nodes[0].limit, self.nodes[0].used);
        self.nodes[0].limit = limit.max(before);
        self.sub(from, bytes);
        let added = self.add(to, bytes);
        if added.is_err() {
            // They were here a moment ago, so there is room for them.
            let returned = self.add(from, bytes);
            debug_assert!(returned.is_ok());
        }
        self.nodes[0].limit = limit;
        added
    }

    /// Moves a floor, or says what is short for it.
    fn set_floor(&mut self, index: usize, bytes: u64) -> Result<Result<(), (Short, Error)>> {
        let lent = std::mem::take(&mut self.nodes[index].lent);
        self.lent -= lent;
        let moved = self.move_floor(index, bytes);
        if !matches!(moved, Ok(Ok(()))) {
            self.nodes[index].lent = lent;
            self.lent += lent;
        }
        moved
    }

    fn move_floor(&mut self, index: usize, bytes: u64) -> Result<Result<(), (Short, Error)>> {
        let node = &self.nodes[index];
        let above = node.above_floor();
        let (before, after) = (node.claim(node.used), node.used.max(bytes));
        let parent = node.parent.ok_or_else(|| Error::bug("the budget itself has no floor"))?;
        if after > before {
            if let Err(short) = self.add(parent, after - before) {
                let error = self.error(&short, parent, bytes);
                return Ok(Err((short, error)));
            }
            self.nodes[parent].own -= after - before;
        } else {
            self.nodes[parent].own += before - after;
            self.sub(parent, before - after);
        }
        self.nodes[index].floor = bytes;
        if self.nodes[index].yields {
            self.yielding = self.yielding + self.nodes[index].above_floor() - above;
        }
        Ok(Ok(()))
    }

    fn drop_handle(&mut self, index: usize) {
        self.nodes[index].handles -= 1;
        if self.nodes[index].handles > 0 || index == 0 {
            return;
        }
        self.lent -= std::mem::take(&mut self.nodes[index].lent);
        let (floor, parent) = (self.nodes[index].floor, self.nodes[index].parent);
        if let Some(parent) = parent {
            // What a floor still held goes back; all reservations are gone, or a handle would live.
            self.nodes[parent].own += floor;
            self.sub(parent, floor);
            self.free.push(index);
            self.drop_handle(parent);
        }
    }
}

/// So often those who yield are asked: what they gave may be taken by someone else in between.
const ROUNDS: usize = 4;

struct Short {
    index: usize,
    missing: u64,
    /// Who yields cannot help: it is lent, and not to who asks.
    firm: bool,
}

impl Short {
    /// Only the root's shortage can be eased by others.
    fn can_be_eased(&self) -> bool {
        self.index == 0 && !self.firm
    }
}

impl Account {
    /// A new account below this one. `formula` says in words what its bytes are made of.
    pub fn child(&self, name: &str, formula: &'static str) -> Account {
        let mut tree = self.shared.tree.lock();
        let node = Node {
            name: name.to_owned(),
            formula,
            parent: Some(self.index),
            limit: u64::MAX,
            floor: 0,
            lent: 0,
            yields: false,
            used: 0,
            own: 0,
            predicted: None,
            wanted: None,
            handles: 1,
        };
        tree.nodes[self.index].handles += 1;
        let index = match tree.free.pop() {
            Some(index) => {
                tree.nodes[index] = node;
                index
            }
            None => {
                tree.nodes.push(node);
                tree.nodes.len() - 1
            }
        };
        Account { shared: self.shared.clone(), index }
    }

    /// This account may never use more than `bytes`.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Account {
        self.set_limit(bytes);
        self
    }

    pub fn set_limit(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].limit = bytes;
        self.shared.released.notify_all();
    }

    /// Takes `bytes` from the parent for good: reserving up to them on this account cannot fail. Where the budget is
    /// short, those who yield are asked first; a floor that shrinks cannot fail.
    pub fn set_floor(&self, bytes: u64) -> Result<()> {
        for _ in 0..ROUNDS {
            let mut tree = self.shared.tree.lock();
            let Err((short, error)) = tree.set_floor(self.index, bytes)? else { return Ok(()) };
            drop(tree);
            if !short.can_be_eased() || self.shared.ask(short.missing) == 0 {
                return Err(error);
            }
        }
        self.shared.tree.lock().set_floor(self.index, bytes)?.map_err(|(_, error)| error)
    }

    /// This account's reservations are given back when others are short: it may use floors that are lent.
    #[must_use]
    pub fn yielding(self) -> Account {
        let mut tree = self.shared.tree.lock();
        if !std::mem::replace(&mut tree.nodes[self.index].yields, true) {
            tree.yielding += tree.nodes[self.index].above_floor();
        }
        drop(tree);
        self
    }

    /// Lends the floor to accounts that yield, until it is set again.
    pub fn lend_floor(&self) {
        let mut tree = self.shared.tree.lock();
        let floor = tree.nodes[self.index].floor;
        // A floor that shrinks cannot fail.
        if matches!(tree.set_floor(self.index, 0), Ok(Ok(()))) && floor > 0 {
            tree.nodes[self.index].lent = floor;
            tree.lent += floor;
        }
        drop(tree);
        self.shared.released.notify_all();
    }

    /// States what a formula over counts alone says that this account should hold.
    pub fn predict(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].predicted = Some(bytes);
    }

    /// States how much this account would use if the budget had no end.
    pub fn want(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].wanted = Some(bytes);
    }

    /// Bytes in use by this account and those below it.
    pub fn used(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].used
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].limit
    }

    pub fn path(&self) -> String {
        self.shared.tree.lock().path(self.index)
    }

    /// Reserves without asking anyone to yield.
    pub fn try_reserve_calm(&self, bytes: u64) -> Result<Reservation> {
        let mut tree = self.shared.tree.lock();
        tree.add(self.index, bytes).map_err(|short| tree.error(&short, self.index, bytes))?;
        drop(tree);
        Ok(Reservation { account: self.clone(), bytes })
    }

    /// Reserves `bytes`; where the budget is short, those who yield are asked first.
    /// `Busy` if waiting can help, `NoMemory` if it cannot.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation> {
        self.take(bytes)?;
        Ok(Reservation { account: self.clone(), bytes })
    }

    fn take(&self, bytes: u64) -> Result<()> {
        for _ in 0..ROUNDS {
            let mut tree = self.shared.tree.lock();
            let Err(short) = tree.add(self.index, bytes) else { return Ok(()) };
            let error = tree.error(&short, self.index, bytes);
            drop(tree);
            if !short.can_be_eased() || self.shared.ask(short.missing) == 0 {
                return Err(error);
            }
        }
        let mut tree = self.shared.tree.lock();
        tree.add(self.index, bytes).map_err(|short| tree.error(&short, self.index, bytes))
    }

    /// Blocks until something is released anywhere in the tree, or `at_most` has passed.
    pub fn wait_for_release(&self, at_most: std::time::Duration) {
        let mut tree = self.shared.tree.lock();
        self.shared.released.wait_for(&mut tree, at_most);
    }
}

impl Tree {
    /// What a shortage means for who asked on account `index`: `NoMemory` where waiting cannot help.
    fn error(&self, short: &Short, index: usize, asked: u64) -> Error {
        let node = &self.nodes[short.index];
        let name = if short.index == 0 { "the memory budget".to_owned() } else { self.path(short.index) };
        let most = match short.index {
            0 => node.limit.saturating_sub(self.for_good(index)),
            _ => node.limit,
        };
        if asked > most {
            return Error::no_memory(format!(
                "{name} is too small: {} needed, of {} at most {} can be free",
                Size(asked),
                Size(node.limit),
                Size(most)
            ));
        }
        Error::busy(format!(
            "{name} is short: {} needed, {} of {} in use",
            Size(asked),
            Size(node.used),
            Size(node.limit)
        ))
    }

    /// Bytes that accounts beside this one hold for good: the floors that are under no other floor.
    fn for_good(&self, index: usize) -> u64 {
        let ancestors = |index: usize| std::iter::successors(Some(index), |index| self.nodes[*index].parent);
        let counts = |other: &usize| {
            self.nodes[*other].handles > 0
                && !ancestors(index).any(|own| own == *other)
                && !ancestors(*other).skip(1).any(|above| self.nodes[above].floor > 0)
        };
        (0..self.nodes.len()).filter(counts).map(|other| self.nodes[other].floor.max(self.nodes[other].lent)).sum()
    }
}

impl Clone for Account {
    fn clone(&self) -> Self {
        self.shared.tree.lock().nodes[self.index].handles += 1;
        Self { shared: self.shared.clone(), index: self.index }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shared.tree.lock().drop_handle(self.index);
    }
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        self.account.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Reserves `bytes` more without asking anyone to yield; for those who yield themselves.
    pub fn grow_calm(&mut self, bytes: u64) -> Result<()> {
        let (index, mut tree) = (self.account.index, self.account.shared.tree.lock());
        tree.add(index, bytes).map_err(|short| tree.error(&short, index, bytes))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back (all of them if it holds fewer).
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.shared.tree.lock().sub(self.account.index, bytes);
        self.account.shared.released.notify_all();
    }

    /// Takes `bytes` out as a reservation of their own (all of them if it holds fewer).
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { account: self.account.clone(), bytes }
    }

    /// Hands `bytes` of it over to another account of the budget: nobody else can take them in between, and a budget that
    /// is overdrawn because it shrank stands in the way of nobody. Where the other account may not hold them, they stay.
    pub fn hand_over(&mut self, bytes: u64, account: &Account) -> Result<Reservation> {
        let bytes = bytes.min(self.bytes);
        let mut tree = self.account.shared.tree.lock();
        tree.transfer(self.account.index, account.index, bytes)
            .map_err(|short| tree.error(&short, account.index, bytes))?;
        drop(tree);
        self.bytes -= bytes;
        Ok(Reservation { account: account.clone(), bytes })
    }

    /// Takes over what `other` holds. Both are of one account.
    pub fn join(&mut self, mut other: Reservation) {
        debug_assert_eq!(self.account.index, other.account.index, "reservations of two accounts");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Grows or shrinks to `bytes`.
    pub fn resize(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            self.grow(bytes - self.bytes)
        } else {
            self.shrink(self.bytes - bytes);
            Ok(())
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::{Kind, Rng};

    #[test]
    fn a_reservation_moves_even_where_nothing_is_free() {
        let budget = Budget::new(100);
        let (a, b) = (budget.root().child("a", ""), budget.root().child("b", "").child("c", ""));
        let small = budget.root().child("small", "").with_limit(10);
        a.set_floor(20).unwrap();
        let mut held = a.try_reserve(100).unwrap();
        assert_eq!(held.hand_over(100, &b).unwrap_err().kind(), Kind::NoMemory, "the floor of `a` is held besides");
        assert_eq!((a.used(), b.used(), budget.reserved()), (100, 0, 100));
        let mut moved = held.hand_over(80, &b).unwrap();
        assert_eq!((a.used(), b.used(), held.bytes(), moved.bytes(), budget.reserved()), (20, 80, 20, 80, 100));
        // The budget shrinks below what is held: it may still move.
        budget.set_limit(50);
        let back = moved.hand_over(80, &a).unwrap();
        assert_eq!((a.used(), b.used(), budget.reserved()), (100, 0, 100));
        assert!(held.hand_over(20, &small).is_err());
        drop((held, moved, back));
        assert_eq!(budget.reserved(), 20);
    }

    #[test]
    fn what_is_lent_comes_back_whatever_others_hold() {
        let budget = Budget::new(100);
        let (seal, crowd) = (budget.root().child("seal", ""), budget.root().child("crowd", ""));
        let pages = budget.root().child("pages", "").yielding();
        pages.set_floor(10).unwrap();
        seal.set_floor(40).unwrap();
        seal.lend_floor();
        assert_eq!(budget.reserved(), 10);
        let mut held = pages.try_reserve(70).unwrap();
        // Others may have what is left, and what yields, but not what is lent.
        let most = crowd.try_reserve(30).unwrap();
        assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy);
        held.shrink(60);
        let more = crowd.try_reserve(20).unwrap();
        assert_eq!(crowd.try_reserve(1).unwrap_err().kind(), Kind::Busy, "10 of the floor of `pages`, 40 are lent");
        assert_eq!(crowd.try_reserve(91).unwrap_err().kind(), Kind::NoMemory);
        let again = pages.try_reserve(40).unwrap();
        assert!(seal.set_floor(40).is_err(), "nobody was asked to yield");
        drop(again);
        seal.set_floor(40).unwrap();
        drop((most, more));
        assert!(crowd.try_reserve(50).is_ok());
    }

    #[test]
    fn a_parents_limit_holds_for_its_children() {
        let budget = Budget::new(100);
        let a = budget.root().child("a", "").with_limit(60);
        let (b, c) = (a.child("b", ""), a.child("c", ""));
        let held = b.try_reserve(50).unwrap();
        assert_eq!(c.try_reserve(20).unwrap_err().kind(), Kind::Busy);
        assert_eq!(c.try_reserve(61).unwrap_err().kind(), Kind::NoMemory);
        drop(held);
        assert_eq!(c.try_reserve(60).unwrap().bytes(), 60);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn waiting_does_not_help_against_floors() {
        let budget = Budget::new(100);
        let (seal, bodies) = (budget.root().child("seal", ""), budget.root().child("bodies", ""));
        let queries = budget.root().child("store", "").child("queries", "");
        seal.set_floor(30).unwrap();
        bodies.set_floor(10).unwrap();
        let held = queries.try_reserve(20).unwrap();
        // 100 - 30 could be free for bodies, whose own floor counts for them.
        assert_eq!(bodies.try_reserve(70).unwrap_err().kind(), Kind::Busy);
        assert_eq!(bodies.try_reserve(71).unwrap_err().kind(), Kind::NoMemory);
        assert_eq!(queries.try_reserve(61).unwrap_err().kind(), Kind::NoMemory);
        drop(held);
        assert_eq!(bodies.try_reserve(70).unwrap().bytes(), 70);
    }

    #[test]
    fn a_reservation_splits_and_joins() {
        let budget = Budget::new(100);
        let mut whole = budget.root().try_reserve(60).unwrap();
        let part = whole.split(25);
        assert_eq!((whole.bytes(), part.bytes(), budget.reserved()), (35, 25, 60));
        assert_eq!(whole.split(99).bytes(), 35);
        assert_eq!(budget.reserved(), 25);
        whole.join(part);
        assert_eq!((whole.bytes(), budget.reserved()), (25, 25));
        drop(whole);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn a_floor_is_taken_once_and_never_fails_below_it() {
        let budget = Budget::new(100);
        let (build, rest) = (budget.root().child("build", ""), budget.root().child("rest", ""));
        build.set_floor(40).unwrap();
        let all = rest.try_reserve(60).unwrap();
        assert!(rest.try_reserve(1).is_err());
        let inside = build.try_reserve(40).unwrap();
        assert!(build.try_reserve(1).is_err());
        drop(all);
        let above = build.try_reserve(10).unwrap();
        assert_eq!(budget.reserved(), 50);
        drop((inside, above));
        assert_eq!(budget.reserved(), 40);
        drop(build);
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn yielders_are_asked_in_order() {
        struct Holder(Mutex<Vec<Reservation>>);
        impl Yield for Holder {
            fn give_back(&self, _: u64) -> u64 {
                self.0.lock().pop().map_or(0, |held| held.bytes())
            }
        }
        let budget = Budget::new(100);
        let account = budget.root().child("cache", "");
        let held = (0..10).map(|_| account.try_reserve(10).unwrap()).collect();
        let holder = Arc::new(Holder(Mutex::new(held)));
        budget.add_yielder(YieldOrder::Pages, holder.clone());
        let _mine = budget.root().child("mine", "").try_reserve(35).unwrap();
        assert_eq!(holder.0.lock().len(), 6);
    }

    /// Any sequence of reservations, floors and drops leaves the sums right.
    #[test]
    fn the_tree_always_adds_up() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let budget = Budget::new(10_000);
            let mut accounts = vec![budget.root()];
            let mut held: Vec<Reservation> = Vec::new();
            for _ in 0..200 {
                let account = accounts[rng.below(accounts.len() as u64) as usize].clone();
                match rng.below(6) {
                    0 => accounts.push(account.child("x", "")),
                    1 => {
                        let _ = accounts.last().unwrap().set_floor(rng.below(500));
                    }
                    2 if !held.is_empty() => drop(held.swap_remove(rng.below(held.len() as u64) as usize)),
                    _ => held.extend(account.try_reserve(rng.below(900)).ok()),
                }
                let own: u64 = held.iter().map(Reservation::bytes).sum();
                assert!(budget.reserved() >= own && budget.reserved() <= 10_000);
            }
            held.clear();
            accounts.clear();
            assert_eq!(budget.reserved(), 0);
        }
    }
}
