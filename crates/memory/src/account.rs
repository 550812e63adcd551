//! Accounts: handles to the nodes of `tree.rs`, with the policy of each.
//!
//! ```text
//!   Account ─┬─ with_limit, set_limit        never more than this
//!            ├─ set_min_reservation          taken for good: never fails below this; may be lent while it is unused
//!            ├─ reclaimable, transient,      who may borrow, and what may be taken back
//!            │  idling, lasting, passing,
//!            │  movable
//!            └─ try_reserve ─► Reservation   reclaims where the budget is short
//! ```

use crate::budget::BudgetInner;
use crate::pressure::ReclaimOrder;
use crate::reservation::Reservation;
use crate::tree::{Short, Tree};
use ramekin_base::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// A named part of the budget. Clones are handles to the same account; the last one removes it.
pub struct Account {
    pub(crate) shared: Arc<BudgetInner>,
    pub(crate) index: usize,
}

impl Account {
    /// A new account below this one. `formula` says in words what its bytes are made of.
    pub fn child(&self, name: &str, formula: &'static str) -> Account {
        let index = self.shared.tree.lock().add_child(self.index, name, formula);
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
    /// short, memory is reclaimed first. Lowering the minimum cannot fail.
    pub fn set_min_reservation(&self, bytes: u64) -> Result<()> {
        if self.index == 0 {
            return Err(Error::bug("the budget itself has no minimum reservation"));
        }
        if bytes > self.shared.tree.lock().nodes[self.index].min_reservation {
            self.shared.failing.check()?;
        }
        self.ease(bytes, ReclaimOrder::Residency, |tree| tree.set_min_reservation(self.index, bytes))
    }

    /// Marks this account as reclaimable when others are short. In return it may borrow minimum reservations that their owners
    /// have lent.
    #[must_use]
    pub fn reclaimable(self) -> Account {
        let mut tree = self.shared.tree.lock();
        if !std::mem::replace(&mut tree.nodes[self.index].is_reclaimable, true) {
            tree.reclaimable += tree.nodes[self.index].above_min_reservation();
        }
        drop(tree);
        self
    }

    /// This account's reservations are held briefly, and so are those of accounts made below it from now on: they may be
    /// borrowed from idling accounts.
    #[must_use]
    pub fn transient(self) -> Account {
        self.shared.tree.lock().make_transient(self.index);
        self
    }

    /// What is reserved here is released in small parts, and was allocated in many small blocks: the parts are added up to tell
    /// whether the allocator has much to give back to the kernel.
    #[must_use]
    pub fn scattered(self) -> Account {
        self.shared.tree.lock().nodes[self.index].scattered = Some(0);
        self
    }

    /// This account's minimum reservation is unused at times, and may be lent to transient accounts then; its lender is
    /// registered as [`ReclaimOrder::Idle`].
    #[must_use]
    pub fn idling(self) -> Account {
        self.shared.tree.lock().nodes[self.index].is_idling = true;
        self
    }

    /// What is reserved on this account stays: a request that would need it gets `NoMemory` at once instead of `Busy`.
    #[must_use]
    pub fn lasting(self) -> Account {
        self.shared.tree.lock().nodes[self.index].is_lasting = true;
        self
    }

    /// What this account and those below it hold for good is given back when their owner has nothing to do: a request that would
    /// need it gets `Busy`.
    #[must_use]
    pub fn movable(self) -> Account {
        self.shared.tree.lock().nodes[self.index].is_movable = true;
        self
    }

    /// What is reserved on this account is there for the moment: see [`Budget::passing`].
    #[must_use]
    pub fn passing(self) -> Account {
        self.shared.tree.lock().nodes[self.index].is_passing = true;
        self
    }

    /// Lends up to `bytes` of the minimum reservation, as far as it is not in use, to reclaimable accounts, until it is set again;
    /// from an idling account to transient ones too. Returns how many.
    pub fn lend_min_reservation(&self, bytes: u64) -> u64 {
        let lent = self.shared.tree.lock().lend_min_reservation(self.index, bytes);
        self.shared.released.notify_all();
        lent
    }

    /// Moves up to `bytes` of the minimum reservation, as far as they are not in use, to that of another account, which then
    /// covers that much more than it uses; nobody else can take them in between. What is lent is moved too, unless a borrower
    /// holds that. Returns how many.
    pub fn give_min_reservation_to(&self, bytes: u64, other: &Account) -> u64 {
        self.shared.tree.lock().give_min_reservation_to(self.index, bytes, other.index)
    }

    /// Raises the minimum reservation towards `bytes` as far as there is room, without reclaiming any. What is lent to reclaimable
    /// accounts stays lent: nobody else can take it meanwhile, and it comes back as a whole.
    pub fn raise_min_reservation(&self, bytes: u64) {
        self.shared.tree.lock().raise_min_reservation(self.index, bytes);
    }

    /// Bytes that are in use here, held by the minimum reservation, or lent from it: nobody else can reserve these for long.
    pub fn secured(&self) -> u64 {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        node.used.max(node.min_reservation + node.lent)
    }

    /// Bytes that are in use here, or held by the minimum reservation.
    pub fn claimed(&self) -> u64 {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        node.claim(node.used)
    }

    /// States what a formula over counts alone says that this account should hold.
    pub fn predict(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].predicted = Some(bytes);
    }

    /// States how much this account would use if the budget had no end.
    pub fn want(&self, bytes: u64) {
        self.shared.tree.lock().nodes[self.index].wanted = Some(bytes);
    }

    /// States which share of the budget this account and those below it were given, for the ledger.
    pub fn show_share(&self, bytes: Option<u64>) {
        self.shared.tree.lock().nodes[self.index].share = bytes;
    }

    /// Bytes in use by this account and those below it.
    pub fn used(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].used
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[self.index].limit
    }

    /// Bytes that its own limit leaves; `None` without a limit.
    pub fn left(&self) -> Option<u64> {
        let tree = self.shared.tree.lock();
        let node = &tree.nodes[self.index];
        (node.limit < u64::MAX).then(|| node.limit.saturating_sub(node.used))
    }

    pub fn path(&self) -> String {
        self.shared.tree.lock().path(self.index)
    }

    /// Reserves without reclaiming any.
    pub fn try_reserve_no_reclaim(&self, bytes: u64) -> Result<Reservation> {
        Reservation::no_reclaim(&self.shared, self.index, bytes)
    }

    /// Reserves `bytes`; where the budget is short, memory is reclaimed first.
    /// `Busy` if waiting can help, `NoMemory` if it cannot.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation> {
        Reservation::eased(&self.shared, self.index, bytes)
    }

    fn ease(&self, bytes: u64, last: ReclaimOrder, attempt: impl FnMut(&mut Tree) -> Result<(), Short>) -> Result<()> {
        let eased = self.shared.ease(last, attempt);
        eased.map_err(|short| self.shared.tree.lock().error(&short, self.index, bytes))
    }

    /// Blocks until something is released anywhere in the tree, or `at_most` has passed.
    pub fn wait_for_release(&self, at_most: Duration) {
        let mut tree = self.shared.tree.lock();
        tree.wait_for(&self.shared.released, at_most);
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

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::Given;
