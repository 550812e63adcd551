//! A reservation: bytes of an account that somebody holds.
//!
//! ```text
//!   try_reserve ─► Reservation ─┬─ grow, resize ─► more of the same account
//!                               ├─ split, join       two of it, and one again
//!                               ├─ hand_over ──────► another account pays
//!                               └─ shrink, drop ───► given back, and who waits is told
//! ```

use crate::account::Account;
use crate::budget::BudgetInner;
use crate::pressure::ReclaimOrder;
use ramekin_base::{Error, Result};
use std::sync::Arc;

/// Bytes that are ours until dropped. Taking them and giving them back locks the tree of accounts once each.
#[must_use]
pub struct Reservation {
    shared: Arc<BudgetInner>,
    /// The account, of which this is a handle.
    index: usize,
    bytes: u64,
}

impl Reservation {
    /// Reserves; memory is reclaimed where the budget is short.
    pub(crate) fn eased(shared: &Arc<BudgetInner>, index: usize, bytes: u64) -> Result<Self> {
        shared.take(index, bytes, 1)?;
        Ok(Self { shared: shared.clone(), index, bytes })
    }

    /// Reserves without reclaiming any.
    pub(crate) fn no_reclaim(shared: &Arc<BudgetInner>, index: usize, bytes: u64) -> Result<Self> {
        shared.failing.check()?;
        let mut tree = shared.tree.lock();
        tree.add(index, bytes).map_err(|short| tree.error(&short, index, bytes))?;
        tree.nodes[index].handles += 1;
        drop(tree);
        Ok(Self { shared: shared.clone(), index, bytes })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        self.shared.take(self.index, bytes, 0)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Reserves up to `bytes` more; cached pages are reclaimed for it, and nothing else.
    pub fn grow_from_pages(&mut self, bytes: u64) {
        let take = |bytes| self.shared.take_from(self.index, bytes, 0, ReclaimOrder::Pages);
        let mut taken = bytes;
        if take(bytes).is_err() {
            // Even all the pages were not enough: what they left is taken.
            taken = self.shared.tree.lock().unclaimed().min(bytes);
            taken = take(taken).map_or(0, |()| taken);
        }
        self.bytes += taken;
    }

    /// Reserves `bytes` more without reclaiming any; for accounts that are reclaimable themselves.
    pub fn grow_no_reclaim(&mut self, bytes: u64) -> Result<()> {
        self.shared.failing.check()?;
        let mut tree = self.shared.tree.lock();
        tree.add(self.index, bytes).map_err(|short| tree.error(&short, self.index, bytes))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back (all of them if it holds fewer).
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if bytes > 0 {
            self.shared.give(self.index, bytes, false);
        }
    }

    /// Takes `bytes` out as a reservation of their own (all of them if it holds fewer).
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.shared.tree.lock().nodes[self.index].handles += 1;
        Self { shared: self.shared.clone(), index: self.index, bytes }
    }

    /// Hands `bytes` of it over to another account of the budget: nobody else can take them in between, and a budget that
    /// is overdrawn because it shrank stands in the way of nobody. Where the other account may not hold them, they stay.
    pub fn hand_over(&mut self, bytes: u64, account: &Account) -> Result<Reservation> {
        let bytes = bytes.min(self.bytes);
        let mut tree = self.shared.tree.lock();
        tree.transfer(self.index, account.index, bytes).map_err(|short| tree.error(&short, account.index, bytes))?;
        tree.nodes[account.index].handles += 1;
        drop(tree);
        self.bytes -= bytes;
        Ok(Self { shared: self.shared.clone(), index: account.index, bytes })
    }

    /// Takes over what `other` holds. Both must be of one account: bytes that change accounts are handed over.
    pub fn join(&mut self, mut other: Reservation) -> Result<()> {
        if self.index != other.index || !Arc::ptr_eq(&self.shared, &other.shared) {
            return Err(Error::bug("reservations of two accounts cannot be joined"));
        }
        self.bytes += std::mem::take(&mut other.bytes);
        Ok(())
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
        self.shared.give(self.index, self.bytes, true);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({})", self.bytes)
    }
}
