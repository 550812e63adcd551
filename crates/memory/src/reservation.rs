//! A reservation: bytes of an account that somebody holds.
//!
//! ```text
//!   try_reserve ─► Reservation ─┬─ grow, resize ─► more of the same account
//!                               ├─ split, join       two of it, and one again
//!                               ├─ hand_over ──────► another account pays
//!                               └─ shrink, drop ───► given back, and who waits is told
//! ```

use crate::account::Account;
use crate::pressure::YieldOrder;
use ramekin_base::Result;

/// Bytes that are ours until dropped.
#[must_use]
pub struct Reservation {
    account: Account,
    bytes: u64,
}

impl Reservation {
    /// Bytes that were taken on the account.
    pub(crate) fn of(account: Account, bytes: u64) -> Self {
        Self { account, bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `bytes` more.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        self.account.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Reserves up to `bytes` more; cached pages make way for it, and nobody else.
    pub fn grow_from_pages(&mut self, bytes: u64) {
        let mut taken = bytes;
        if self.account.take_from(bytes, YieldOrder::Pages).is_err() {
            // Even all the pages were not enough: what they left is taken.
            taken = self.account.shared.tree.lock().unclaimed().min(bytes);
            taken = self.account.take_from(taken, YieldOrder::Pages).map_or(0, |()| taken);
        }
        self.bytes += taken;
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
        Self::of(self.account.clone(), bytes)
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
        Ok(Self::of(account.clone(), bytes))
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
