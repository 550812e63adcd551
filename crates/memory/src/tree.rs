//! The tree of accounts, and its arithmetic: what is added at a leaf, and what each step above must give for it.
//!
//! ```text
//!   try_reserve(n) on a leaf:
//!      climb from the leaf to the root; at each step the bytes that the step above must give are
//!      max(floor, used + n) - max(floor, used): zero while a floor covers the use.
//!      A limit that would be passed ends the climb: first those who yield are asked, in the
//!      order of `pressure.rs`, then the caller gets `Busy` or `NoMemory`.
//! ```
//!
//! A floor may be lent: its bytes are free then, but only to accounts that yield; those of a floor that idles also to accounts
//! that are brief. The others keep away from them:
//!
//! ```text
//!   |  firm: in use by all others, and floors          |  brief  |  yielding    |   limit
//!   |                              may grow up to here >|< idle ><  lent floors |
//! ```
//!
//! so that it can be taken back whatever the others hold, as soon as those yield, and those let go.
//!
//! One mutex guards the whole tree: reservations are coarse (a page run, a request, a chunk), and a
//! tree that is always consistent is worth more than the last nanoseconds.

use crate::YieldOrder;
use crate::held;
use ramekin_base::{Error, Size};

pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Places of accounts that are gone.
    free: Vec<usize>,
    pub(crate) peak: u64,
    /// Floors that are lent to accounts that yield, and to those that are brief besides.
    pub(crate) lent: u64,
    pub(crate) idle: u64,
    /// Bytes above their floors that yielding accounts hold.
    pub(crate) yielding: u64,
    /// Accounts that are brief, and below none that is.
    pub(crate) brief: Vec<usize>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) formula: &'static str,
    pub(crate) parent: Option<usize>,
    pub(crate) limit: u64,
    pub(crate) floor: u64,
    /// What it had of its floor, and has again when it asks for it.
    pub(crate) lent: u64,
    /// What is reserved here is given back when others are short.
    pub(crate) yields: bool,
    /// What is reserved here is given back soon, so it may come from floors that are idle.
    pub(crate) brief: bool,
    /// Its floor is idle now and then, and is given then to who holds it briefly.
    pub(crate) idles: bool,
    /// Bytes that were given back here since there were many, where what is given back bit by bit counts together.
    pub(crate) scattered: Option<u64>,
    /// What is reserved here stays as long as the data that it is for: nobody gets it by waiting.
    pub(crate) lasts: bool,
    /// What is reserved here nobody has asked for: it goes where it is needed, and after a restart it is not there.
    pub(crate) passes: bool,
    /// Bytes in use by this account and those below it (floors below count in full).
    pub(crate) used: u64,
    /// Bytes that were reserved on this account itself.
    pub(crate) own: u64,
    pub(crate) predicted: Option<u64>,
    pub(crate) wanted: Option<u64>,
    pub(crate) handles: usize,
}

impl Node {
    fn new(name: &str, formula: &'static str, parent: Option<usize>, limit: u64) -> Self {
        Self {
            name: name.to_owned(),
            formula,
            parent,
            limit,
            floor: 0,
            lent: 0,
            yields: false,
            brief: false,
            idles: false,
            scattered: None,
            lasts: false,
            passes: false,
            used: 0,
            own: 0,
            predicted: None,
            wanted: None,
            handles: 1,
        }
    }

    /// What the parent must hold for this account when it uses `used`.
    pub(crate) fn claim(&self, used: u64) -> u64 {
        used.max(self.floor)
    }

    pub(crate) fn above_floor(&self) -> u64 {
        self.used.saturating_sub(self.floor)
    }
}

/// Bytes that are given back are many from this part of the budget on, but not below so many.
const LARGE_PART: u64 = 32;
const LARGE_LEAST: u64 = 512 << 10;

pub(crate) struct Short {
    pub(crate) index: usize,
    pub(crate) missing: u64,
    /// What yields by itself cannot help: it is lent, and not to who asks. What the allocator keeps is not lent.
    pub(crate) firm: bool,
}

impl Short {
    /// Only the root's shortage can be eased by others.
    pub(crate) fn can_be_eased(&self) -> bool {
        self.index == 0
    }

    /// Whether those of an order can help.
    pub(crate) fn is_eased_by(&self, order: YieldOrder) -> bool {
        self.can_be_eased() && (!self.firm || order == YieldOrder::Allocator)
    }
}

impl Tree {
    /// The account of a whole budget.
    pub(crate) fn new(bytes: u64) -> Self {
        let root = Node::new("", "the budget", None, bytes);
        Self { nodes: vec![root], free: Vec::new(), peak: 0, lent: 0, idle: 0, yielding: 0, brief: Vec::new() }
    }

    /// Whether `bytes` that an account gives back are many, alone or with those before.
    /// What yields is pages, mapped beside the allocator, or stands for them: the kernel has it when they leave.
    pub(crate) fn is_large(&mut self, index: usize, bytes: u64) -> bool {
        if self.nodes[index].yields {
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
        node.brief = self.nodes[parent].brief;
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

    /// Tells the job on this thread that it holds more, or less, by an account that does not yield.
    pub(crate) fn tell(&self, index: usize, tell: fn(u64), bytes: u64) {
        if !self.nodes[index].yields {
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
        let before = self.nodes[index].above_floor();
        let (mut next, mut more) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            let claimed = node.claim(node.used);
            node.used += more;
            more = node.claim(node.used) - claimed;
            next = node.parent;
        }
        self.yielding += self.yields_above(index, before);
        self.peak = self.peak.max(self.nodes[0].used);
    }

    /// Who does not yield must leave what is lent to those who do, and who is not brief what is lent to those who are.
    fn check_firm(&self, index: usize, more: u64) -> Result<(), Short> {
        let (root, asker) = (&self.nodes[0], &self.nodes[index]);
        let kept = if asker.brief { self.lent } else { self.lent + self.idle };
        if kept == 0 || more == 0 || asker.yields {
            return Ok(());
        }
        let firm = self.firm(asker.brief) + more;
        let most = root.limit.saturating_sub(kept);
        match firm > most {
            true => Err(Short { index: 0, missing: firm - most, firm: true }),
            false => Ok(()),
        }
    }

    /// Bytes that are claimed, without what yields, and for who is not brief without what brief accounts hold of floors.
    fn firm(&self, is_brief: bool) -> u64 {
        let held_briefly = || self.brief.iter().map(|index| self.nodes[*index].above_floor()).sum::<u64>();
        let brief = if is_brief { 0 } else { held_briefly().min(self.idle) };
        self.nodes[0].used.saturating_sub(self.yielding + brief)
    }

    /// Bytes that somebody may have who neither yields nor is brief.
    pub(crate) fn room(&self) -> u64 {
        self.nodes[0]
            .limit
            .saturating_sub(self.lent + self.idle + self.firm(false))
            .min(self.unclaimed() + self.yielding)
    }

    /// Marks an account as brief.
    pub(crate) fn make_brief(&mut self, index: usize) {
        let is_known = self.with_those_above(index).any(|above| self.nodes[above].brief);
        self.nodes[index].brief = true;
        if !is_known {
            self.brief.push(index);
        }
    }

    /// What a yielding account holds above its floor more than `before`; 0 of others.
    fn yields_above(&self, index: usize, before: u64) -> u64 {
        let node = &self.nodes[index];
        if node.yields { node.above_floor() - before } else { 0 }
    }

    pub(crate) fn sub(&mut self, index: usize, bytes: u64) {
        self.tell(index, held::sub, bytes);
        self.nodes[index].own -= bytes;
        self.lower_used(index, bytes);
    }

    fn lower_used(&mut self, index: usize, bytes: u64) {
        let before = self.nodes[index].above_floor();
        let (mut next, mut less) = (Some(index), bytes);
        while let Some(index) = next {
            let node = &mut self.nodes[index];
            let claimed = node.claim(node.used);
            node.used -= less;
            less = claimed - node.claim(node.used);
            next = node.parent;
        }
        let node = &self.nodes[index];
        self.yielding -= if node.yields { before - node.above_floor() } else { 0 };
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

    /// Moves a floor, or says what is short for it.
    pub(crate) fn set_floor(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        let lent = self.nodes[index].lent;
        self.set_lent(index, 0);
        let moved = self.move_floor(index, bytes);
        if moved.is_err() {
            self.set_lent(index, lent);
        }
        moved
    }

    /// Lends up to `bytes` of a floor, as far as it is not in use. Returns how many.
    pub(crate) fn lend_floor(&mut self, index: usize, bytes: u64) -> u64 {
        let node = &self.nodes[index];
        let given = bytes.min(node.floor.saturating_sub(node.used));
        let (left, lent) = (node.floor - given, node.lent + given);
        self.put_floor(index, left);
        self.set_lent(index, lent);
        given
    }

    /// Gives up to `bytes` of a floor to another account, whose floor covers that much more than it has: of what is not in use,
    /// and of what is lent. Where somebody has it just then all stays as it was.
    pub(crate) fn give_floor_to(&mut self, index: usize, bytes: u64, other: usize) -> u64 {
        let (node, before) = (&self.nodes[index], self.nodes[0].used);
        let (floor, lent) = (node.floor, node.lent);
        let of_floor = bytes.min(floor.saturating_sub(node.used));
        let of_lent = (bytes - of_floor).min(lent);
        let theirs = self.nodes[other].claim(self.nodes[other].used) + of_floor + of_lent;
        self.put_floor(index, floor - of_floor);
        self.set_lent(index, lent - of_lent);
        if self.up_to(before, |tree| tree.set_floor(other, theirs)).is_ok() {
            return of_floor + of_lent;
        }
        self.set_lent(index, lent);
        self.put_floor(index, floor);
        0
    }

    /// Takes back what is free of a floor that is lent, or raises one that is not.
    pub(crate) fn raise_floor(&mut self, index: usize, bytes: u64) {
        let node = &self.nodes[index];
        let room = node.claim(node.used).saturating_add(self.unclaimed()).min(bytes);
        let (floor, lent) = (node.floor, node.lent);
        // What only those have who yield comes back as a whole.
        if room <= floor || lent > 0 && !node.idles {
            return;
        }
        // Where an account above is short it stays as it is.
        if self.set_floor(index, room).is_ok() {
            self.set_lent(index, lent.saturating_sub(room - floor));
        }
    }

    fn set_lent(&mut self, index: usize, bytes: u64) {
        let node = &mut self.nodes[index];
        let before = std::mem::replace(&mut node.lent, bytes);
        let total = if node.idles { &mut self.idle } else { &mut self.lent };
        *total = *total - before + bytes;
    }

    fn move_floor(&mut self, index: usize, bytes: u64) -> Result<(), Short> {
        let node = &self.nodes[index];
        let more = node.used.max(bytes).saturating_sub(node.claim(node.used));
        if let Some(parent) = node.parent.filter(|_| more > 0) {
            self.check_room(parent, more)?;
        }
        self.put_floor(index, bytes);
        Ok(())
    }

    /// Moves a floor that shrinks, for which there is room, or that was so high a moment ago. No job holds it: it is the
    /// account's, whoever asked for it.
    fn put_floor(&mut self, index: usize, bytes: u64) {
        let node = &self.nodes[index];
        let above = node.above_floor();
        let (before, after) = (node.claim(node.used), node.used.max(bytes));
        // The budget itself has none.
        let Some(parent) = node.parent else { return };
        match after > before {
            true => self.raise_used(parent, after - before),
            false => self.lower_used(parent, before - after),
        }
        self.nodes[index].floor = bytes;
        if self.nodes[index].yields {
            self.yielding = self.yielding + self.nodes[index].above_floor() - above;
        }
    }

    pub(crate) fn drop_handle(&mut self, index: usize) {
        self.nodes[index].handles -= 1;
        if self.nodes[index].handles > 0 || index == 0 {
            return;
        }
        self.set_lent(index, 0);
        self.brief.retain(|brief| *brief != index);
        let (floor, parent) = (self.nodes[index].floor, self.nodes[index].parent);
        if let Some(parent) = parent {
            // What a floor still held goes back; all reservations are gone, or a handle would live.
            self.lower_used(parent, floor);
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

    /// Bytes that accounts beside this one hold for good: floors, counted once where one stands under another, and what is
    /// reserved to stay. What is idle now and then is not for good to who may have it then.
    fn for_good(&self, index: usize) -> u64 {
        let may_have = |other: &usize| self.nodes[index].brief && self.nodes[*other].idles;
        let is_own = |other: usize| self.with_those_above(index).any(|own| own == other);
        let counts = |other: &usize| {
            self.nodes[*other].handles > 0
                && !may_have(other)
                && !is_own(*other)
                && !self.with_those_above(*other).skip(1).any(|above| self.nodes[above].floor > 0 && !is_own(above))
        };
        let held = |node: &Node| (node.floor + node.lent).max(if node.lasts { node.own } else { 0 });
        (0..self.nodes.len()).filter(counts).map(|other| held(&self.nodes[other])).sum()
    }
}
