//! The tree of accounts, and its arithmetic: what is added at a leaf, and what each step above must give for it.
//!
//! ```text
//!   try_reserve(n) on a leaf:
//!      climb from the leaf to the root; at each step the bytes that the step above must give are
//!      max(min, used + n) - max(min, used): zero while the minimum reservation covers the use.
//!      A limit that would be passed ends the climb: reclaimable memory is taken back in the
//!      order of `pressure.rs`, then the caller gets `Busy` or `NoMemory`.
//! ```
//!
//! A minimum reservation may be lent. Its bytes are free then, but only to reclaimable accounts; where it belongs to an idling
//! account, to transient ones too. All other accounts keep away from them:
//!
//! ```text
//!   |  firm: in use by all others, and minimums        | transient | reclaimable  |   limit
//!   |                              may grow up to here >|<  idle  ><     lent     |
//! ```
//!
//! so that the owner can take it back whatever the others hold, once reclaimable accounts have given way and transient ones
//! have released theirs.
//!
//! One mutex guards the whole tree: reservations are coarse (a page run, a request, a chunk), and a
//! tree that is always consistent is worth more than the last nanoseconds.

use crate::ReclaimOrder;
use crate::held;
use ramekin_base::{Error, Size};

pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Places of accounts that are gone.
    free: Vec<usize>,
    pub(crate) peak: u64,
    /// Minimum reservations that are lent to reclaimable accounts, and (`idle`) to transient ones as well.
    pub(crate) lent: u64,
    pub(crate) idle: u64,
    /// Bytes above their minimum reservations that reclaimable accounts hold.
    pub(crate) reclaimable: u64,
    /// Transient accounts that are not below another transient one.
    pub(crate) transient: Vec<usize>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) formula: &'static str,
    pub(crate) parent: Option<usize>,
    pub(crate) limit: u64,
    pub(crate) min_reservation: u64,
    /// Bytes of its minimum reservation that are lent, and come back when it asks for them.
    pub(crate) lent: u64,
    /// What is reserved here can be reclaimed when other accounts are short.
    pub(crate) is_reclaimable: bool,
    /// What is reserved here is released soon, so it may be borrowed from idling accounts.
    pub(crate) transient: bool,
    /// Its minimum reservation is unused at times, and is lent to transient accounts then.
    pub(crate) is_idling: bool,
    /// Bytes that were given back here since there were many, where what is given back bit by bit counts together.
    pub(crate) scattered: Option<u64>,
    /// What is reserved here stays as long as the data that it is for: nobody gets it by waiting.
    pub(crate) is_lasting: bool,
    /// What is held for good here and below is given back when its owner has nothing to do: whoever is short of it gets it by waiting.
    pub(crate) is_movable: bool,
    /// What is reserved here nobody has asked for: it goes where it is needed, and after a restart it is not there.
    pub(crate) is_passing: bool,
    /// Bytes in use by this account and those below it (minimum reservations below count in full).
    pub(crate) used: u64,
    /// Bytes that were reserved on this account itself.
    pub(crate) own: u64,
    pub(crate) predicted: Option<u64>,
    pub(crate) wanted: Option<u64>,
    /// What a store was given of the budget.
    pub(crate) share: Option<u64>,
    pub(crate) handles: usize,
}

impl Node {
    fn new(name: &str, formula: &'static str, parent: Option<usize>, limit: u64) -> Self {
        Self {
            name: name.to_owned(),
            formula,
            parent,
            limit,
            min_reservation: 0,
            lent: 0,
            is_reclaimable: false,
            transient: false,
            is_idling: false,
            scattered: None,
            is_lasting: false,
            is_movable: false,
            is_passing: false,
            used: 0,
            own: 0,
            predicted: None,
            wanted: None,
            share: None,
            handles: 1,
        }
    }

    /// What the parent must hold for this account when it uses `used`.
    pub(crate) fn claim(&self, used: u64) -> u64 {
        used.max(self.min_reservation)
    }

    pub(crate) fn above_min_reservation(&self) -> u64 {
        self.used.saturating_sub(self.min_reservation)
    }
}

/// Bytes that are given back are many from this part of the budget on, but not below so many.
const LARGE_PART: u64 = 32;
const LARGE_LEAST: u64 = 512 << 10;

pub(crate) struct Short {
    pub(crate) index: usize,
    pub(crate) missing: u64,
    /// Reclaiming pages or sections cannot help: what they hold is lent memory that the asker may not use. Memory that the
    /// allocator keeps is not lent.
    pub(crate) firm: bool,
}

impl Short {
    /// Only the root's shortage can be eased by others.
    pub(crate) fn can_be_eased(&self) -> bool {
        self.index == 0
    }

    /// Whether those of an order can help.
    pub(crate) fn is_eased_by(&self, order: ReclaimOrder) -> bool {
        self.can_be_eased() && (!self.firm || order == ReclaimOrder::Allocator)
    }
}

impl Tree {
    /// The account of a whole budget.
    pub(crate) fn new(bytes: u64) -> Self {
        let root = Node::new("", "the budget", None, bytes);
        Self { nodes: vec![root], free: Vec::new(), peak: 0, lent: 0, idle: 0, reclaimable: 0, transient: Vec::new() }
    }

    /// Whether `bytes` that an account gives back are many, alone or with those before.
    /// Reclaimable bytes are pages, mapped beside the allocator, or stand for them: the kernel has them as soon as they leave.
    pub(crate) fn is_large(&mut self, index: usize, bytes: u64) -> bool {
        if self.nodes[index].is_reclaimable {
            return false;
        }
        let large = LARGE_LEAST.max(self.nodes[0].limit / LARGE_PART);
        let Some(before) = &mut self.nodes[index].scattered else { return bytes >= large };
        *before += bytes;
        let is_large = *before >= large;
        if is_large {
            *before = 0;
        }
        is_large
    }

    /// Bytes of the budget that nobody has.
    pub(crate) fn unclaimed(&self) -> u64 {
        self.nodes[0].limit.saturating_sub(self.nodes[0].used)
    }

    /// An account, and those above it up to the root.
    fn with_those_above(&self, index: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(index), |index| self.nodes[*index].parent)
    }

    /// Returns the place of a new account.
    pub(crate) fn add_child(&mut self, parent: usize, name: &str, formula: &'static str) -> usize {
        self.nodes[parent].handles += 1;
        let mut node = Node::new(name, formula, Some(parent), u64::MAX);
        node.transient = self.nodes[parent].transient;
        let index = self.free.pop().unwrap_or(self.nodes.len());
        match self.nodes.get_mut(index) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        index
    }

    pub(crate) fn path(&self, index: usize) -> String {
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

    /// Tells the job on this thread that it holds more, or less, by an account that is not reclaimable.
    pub(crate) fn tell(&self, index: usize, tell: fn(u64), bytes: u64) {
        if !self.nodes[index].is_reclaimable {
            tell(bytes);
        }
    }

    /// Adds `bytes` to the account and its claims upwards, or says which account is short and by how much.
    pub(crate) fn add(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        self.check_room(index, bytes)?;
        self.put(index, bytes);
        Ok(())
    }

    /// Fails where a limit on the way up, or what is lent, stands against so many bytes more.
    fn check_room(&self, index: usize, bytes: u64) -> Result<(), Short> {
        let mut more = bytes;
        let mut root = 0;
        for above in self.with_those_above(index) {
            let node = &self.nodes[above];
            let used = node.used.saturating_add(more);
            if used > node.limit && more > 0 {
                return Err(Short { index: above, missing: used - node.limit, firm: false });
            }
            root = more;
            more = node.claim(used) - node.claim(node.used);
        }
        self.check_firm(index, root)
    }

    /// Adds bytes for which there is room, or which were here a moment ago.
    fn put(&mut self, index: usize, bytes: u64) {
        self.nodes[index].own += bytes;
        self.raise_used(index, bytes);
        self.tell(index, held::add, bytes);
    }

    fn raise_used(&mut self, index: usize, bytes: u64) {
        let before = self.nodes[index].above_min_reservation();
        let (mut next, mut more) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            let claimed = node.claim(node.used);
            node.used += more;
            more = node.claim(node.used) - claimed;
            next = node.parent;
        }
        self.reclaimable += self.reclaimable_above(index, before);
        self.peak = self.peak.max(self.nodes[0].used);
    }

    /// Accounts that are not reclaimable must leave what is lent to those that are; accounts that are not transient must leave
    /// what is lent to transient ones.
    fn check_firm(&self, index: usize, more: u64) -> Result<(), Short> {
        let (root, asker) = (&self.nodes[0], &self.nodes[index]);
        let kept = if asker.transient { self.lent } else { self.lent + self.idle };
        if kept == 0 || more == 0 || asker.is_reclaimable {
            return Ok(());
        }
        let firm = self.firm(asker.transient) + more;
        let most = root.limit.saturating_sub(kept);
        match firm > most {
            true => Err(Short { index: 0, missing: firm - most, firm: true }),
            false => Ok(()),
        }
    }

    /// Bytes claimed without the reclaimable ones; for an account that is not transient also without what transient accounts
    /// have borrowed.
    fn firm(&self, is_transient: bool) -> u64 {
        let held_briefly =
            || self.transient.iter().map(|index| self.nodes[*index].above_min_reservation()).sum::<u64>();
        let transient = if is_transient { 0 } else { held_briefly().min(self.idle) };
        self.nodes[0].used.saturating_sub(self.reclaimable + transient)
    }

    /// Bytes that an account which is neither reclaimable nor transient may have.
    pub(crate) fn room(&self) -> u64 {
        self.nodes[0]
            .limit
            .saturating_sub(self.lent + self.idle + self.firm(false))
            .min(self.unclaimed() + self.reclaimable)
    }

    /// Marks an account as transient.
    pub(crate) fn make_transient(&mut self, index: usize) {
        let is_known = self.with_those_above(index).any(|above| self.nodes[above].transient);
        self.nodes[index].transient = true;
        if !is_known {
            self.transient.push(index);
        }
    }

    /// What a reclaimable account holds above its minimum reservation more than `before`; 0 of others.
    fn reclaimable_above(&self, index: usize, before: u64) -> u64 {
        let node = &self.nodes[index];
        if node.is_reclaimable { node.above_min_reservation() - before } else { 0 }
    }

    pub(crate) fn sub(&mut self, index: usize, bytes: u64) {
        self.tell(index, held::sub, bytes);
        self.nodes[index].own -= bytes;
        self.lower_used(index, bytes);
    }

    fn lower_used(&mut self, index: usize, bytes: u64) {
        let before = self.nodes[index].above_min_reservation();
        let (mut next, mut less) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            let claimed = node.claim(node.used);
            node.used -= less;
            less = claimed - node.claim(node.used);
            next = node.parent;
        }
        let node = &self.nodes[index];
        self.reclaimable -= if node.is_reclaimable { before - node.above_min_reservation() } else { 0 };
    }

    /// Moves bytes from one account to another, or says why they stay. The root is asked for no more than it holds already.
    pub(crate) fn transfer(&mut self, from: usize, to: usize, bytes: u64) -> Result<(), Short> {
        let before = self.nodes[0].used;
        self.sub(from, bytes);
        let added = self.up_to(before, |tree| tree.add(to, bytes));
        if added.is_err() {
            // Whatever stands in the way by now: they were here a moment ago.
            self.put(from, bytes);
        }
        added
    }

    /// Makes an attempt that may use what was in use `before`, also where the budget has shrunk below that.
    fn up_to(&mut self, before: u64, attempt: impl FnOnce(&mut Self) -> Result<(), Short>) -> Result<(), Short> {
        let limit = self.nodes[0].limit;
        self.nodes[0].limit = limit.max(before);
        let done = attempt(self);
        self.nodes[0].limit = limit;
        done
    }

    /// Moves a minimum reservation, or says what is short for it.
    pub(crate) fn set_min_reservation(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        let lent = self.nodes[index].lent;
        self.set_lent(index, 0);
        let moved = self.move_min_reservation(index, bytes);
        if moved.is_err() {
            self.set_lent(index, lent);
        }
        moved
    }

    /// Lends up to `bytes` of a minimum reservation, as far as it is not in use. Returns how many.
    pub(crate) fn lend_min_reservation(&mut self, index: usize, bytes: u64) -> u64 {
        let node = &self.nodes[index];
        let given = bytes.min(node.min_reservation.saturating_sub(node.used));
        let (left, lent) = (node.min_reservation - given, node.lent + given);
        self.put_min_reservation(index, left);
        self.set_lent(index, lent);
        given
    }

    /// Moves up to `bytes` of a minimum reservation to another account, whose own then covers that much more than it uses. Taken
    /// from what is not in use and from what is lent; if a borrower holds the latter, only from the former.
    pub(crate) fn give_min_reservation_to(&mut self, index: usize, bytes: u64, other: usize) -> u64 {
        let (node, before) = (&self.nodes[index], self.nodes[0].used);
        let (min_reservation, lent) = (node.min_reservation, node.lent);
        let of_unused = bytes.min(min_reservation.saturating_sub(node.used));
        let of_lent = (bytes - of_unused).min(lent);
        let theirs = self.nodes[other].claim(self.nodes[other].used) + of_unused + of_lent;
        self.put_min_reservation(index, min_reservation - of_unused);
        self.set_lent(index, lent - of_lent);
        if self.up_to(before, |tree| tree.set_min_reservation(other, theirs)).is_ok() {
            return of_unused + of_lent;
        }
        self.set_lent(index, lent);
        if self.moved_unused(other, theirs - of_lent, before) {
            return of_unused;
        }
        self.put_min_reservation(index, min_reservation);
        0
    }

    /// Sets a minimum reservation to what another one has just given up: the budget holds no more than `before`, so neither what is
    /// lent nor a budget that has shrunk stands against it.
    fn moved_unused(&mut self, index: usize, bytes: u64, before: u64) -> bool {
        let node = &self.nodes[index];
        let was = node.min_reservation;
        if node.lent > 0 {
            return false;
        }
        self.put_min_reservation(index, bytes);
        let fits = |above: usize| above == 0 || self.nodes[above].used <= self.nodes[above].limit;
        let done = self.nodes[0].used <= before && self.with_those_above(index).all(fits);
        if !done {
            self.put_min_reservation(index, was);
        }
        done
    }

    /// Takes back what is free of a minimum reservation that is lent, or raises one that is not.
    pub(crate) fn raise_min_reservation(&mut self, index: usize, bytes: u64) {
        let node = &self.nodes[index];
        let room = node.claim(node.used).saturating_add(self.unclaimed()).min(bytes);
        let (min_reservation, lent) = (node.min_reservation, node.lent);
        // What is lent to reclaimable accounts only comes back as a whole.
        if room <= min_reservation || lent > 0 && !node.is_idling {
            return;
        }
        // Where an account above is short it stays as it is.
        if self.set_min_reservation(index, room).is_ok() {
            self.set_lent(index, lent.saturating_sub(room - min_reservation));
        }
    }

    fn set_lent(&mut self, index: usize, bytes: u64) {
        let node = &mut self.nodes[index];
        let before = std::mem::replace(&mut node.lent, bytes);
        let total = if node.is_idling { &mut self.idle } else { &mut self.lent };
        *total = *total - before + bytes;
    }

    fn move_min_reservation(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        let node = &self.nodes[index];
        let more = node.used.max(bytes).saturating_sub(node.claim(node.used));
        if let Some(parent) = node.parent.filter(|_| more > 0) {
            self.check_room(parent, more)?;
        }
        self.put_min_reservation(index, bytes);
        Ok(())
    }

    /// Sets a minimum reservation that shrinks, for which there is room, or that was so high a moment ago. It counts for no job:
    /// it is the account's, whoever asked for it.
    fn put_min_reservation(&mut self, index: usize, bytes: u64) {
        let node = &self.nodes[index];
        let above = node.above_min_reservation();
        let (before, after) = (node.claim(node.used), node.used.max(bytes));
        // The budget itself has none.
        let Some(parent) = node.parent else { return };
        match after > before {
            true => self.raise_used(parent, after - before),
            false => self.lower_used(parent, before - after),
        }
        self.nodes[index].min_reservation = bytes;
        if self.nodes[index].is_reclaimable {
            self.reclaimable = self.reclaimable + self.nodes[index].above_min_reservation() - above;
        }
    }

    pub(crate) fn drop_handle(&mut self, index: usize) {
        self.nodes[index].handles -= 1;
        if self.nodes[index].handles > 0 || index == 0 {
            return;
        }
        self.set_lent(index, 0);
        self.transient.retain(|transient| *transient != index);
        let (min_reservation, parent) = (self.nodes[index].min_reservation, self.nodes[index].parent);
        if let Some(parent) = parent {
            // What the minimum still held goes back; all reservations are gone, or a handle would live.
            self.lower_used(parent, min_reservation);
            self.free.push(index);
            self.drop_handle(parent);
        }
    }

    /// What a shortage means for who asked on account `index`: `NoMemory` where waiting cannot help.
    pub(crate) fn error(&self, short: &Short, index: usize, asked: u64) -> Error {
        let node = &self.nodes[short.index];
        let name = if short.index == 0 { "the memory budget".to_owned() } else { self.path(short.index) };
        let most = match short.index {
            0 => node.limit.saturating_sub(self.for_good(index)),
            _ => node.limit,
        };
        // What the asker holds already is not freed by waiting.
        let needed = if short.index == 0 { asked.saturating_add(held::bytes()) } else { asked };
        if needed > most {
            return Error::no_memory(format!(
                "{name} is too small: {} needed, of {} at most {} can be free",
                Size(needed),
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

    /// Bytes that accounts beside this one hold for good: minimum reservations, counted once where one stands under another, and
    /// what lasting accounts reserved. What this account may borrow is left out.
    fn for_good(&self, index: usize) -> u64 {
        let may_have = |other: &usize| self.nodes[index].transient && self.nodes[*other].is_idling;
        let is_own = |other: usize| self.with_those_above(index).any(|own| own == other);
        let counts = |other: &usize| {
            self.nodes[*other].handles > 0
                && !may_have(other)
                && !self.with_those_above(*other).any(|above| self.nodes[above].is_movable)
                && !is_own(*other)
                && !self
                    .with_those_above(*other)
                    .skip(1)
                    .any(|above| self.nodes[above].min_reservation > 0 && !is_own(above))
        };
        let held = |node: &Node| (node.min_reservation + node.lent).max(if node.is_lasting { node.own } else { 0 });
        (0..self.nodes.len()).filter(counts).map(|other| held(&self.nodes[other])).sum()
    }
}
