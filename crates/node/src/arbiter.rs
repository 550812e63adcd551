//! The arbiter: gives each open store a share of the budget, and moves shares as the load and the budget move.
//!
//! ```text
//!   each look:  wants of all ─► plan (shares.rs) ─► near enough? all keep what they have
//!                                              └─► who shrinks, first ─► who grows: takes it from the budget for good, then uses it
//!   what failed:  stale, and told what it has ◄──┴── as it was, and later and later ──┘
//! ```
//!
//! A share of a store beside the first is a minimum reservation of its account: nobody else can have it, and the tree of accounts
//! refuses what would pass the budget, so what is moved is taken first and given afterwards. The first store is that of vectors.
//! It is told what the others leave. While it is alone nothing moves, and it works with the whole budget.

use crate::shares::{Claim, Use, Wants, is_near, plan};
use parking_lot::{Condvar, Mutex};
use ramekin_base::supervise::{self, Threads};
use ramekin_base::{Result, Size};
use ramekin_memory::{Account, Budget};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at how much each store is used.
const EVERY: Duration = Duration::from_millis(250);
/// A store that shrinks because another one grows is waited for so long; it goes on meanwhile.
const SHRINK_MOST: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 256 << 10;
/// What a store has that holds nothing and that nobody asks: see the design of stores.
pub const IDLE_SHARE: u64 = 512 << 10;

/// A store that shares the budget with others.
pub trait Tenant: Send + Sync {
    fn wants(&self) -> Wants;

    /// The share is about to become smaller: writes out what has no room in it. Waits for that, `at_most` so long.
    fn shrink(&self, share: u64, at_most: Duration) -> Result<()>;

    /// The share has moved.
    fn resize(&self, share: u64) -> Result<()>;
}

/// A store, and what it was given.
struct Seat {
    tenant: Arc<dyn Tenant>,
    account: Account,
    /// That of vectors, which has what the others leave and reserves nothing.
    is_first: bool,
    /// What it may use: of all but the first reserved for good.
    share: u64,
    /// Its store was told of a share and may not have taken it, or computes anew in any case: it is told its share again.
    is_stale: bool,
    used: Use,
    pause: Pause,
}

/// Looks that pass before it is tried again to give a store more: each try may take page caches away, so each failure doubles them.
#[derive(Debug, Default)]
struct Pause {
    left: u32,
    length: u32,
}

/// Eight seconds.
const PAUSE_MAX: u32 = 32;

/// Gives shares. Clones are handles to the same.
#[derive(Clone)]
pub(crate) struct Arbiter(Arc<Inner>);

struct Inner {
    budget: Budget,
    /// In the order in which they came; held while shares move.
    seats: Mutex<Vec<Seat>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stopped: (Mutex<bool>, Condvar),
}

impl Arbiter {
    /// With the first store, which has all.
    pub(crate) fn new(budget: &Budget, first: Arc<dyn Tenant>, account: &Account) -> Self {
        let seat = Seat { is_first: true, share: budget.limit(), ..Seat::new(first, account) };
        let (seats, thread, stopped) = (Mutex::new(vec![seat]), Mutex::default(), Default::default());
        Self(Arc::new(Inner { budget: budget.clone(), seats, thread, stopped }))
    }

    /// Another store, which was opened with [`IDLE_SHARE`].
    pub(crate) fn add(&self, tenant: Arc<dyn Tenant>, account: &Account, threads: &Threads) -> Result<()> {
        self.0.seats.lock().push(Seat::new(tenant, account));
        self.look();
        let mut thread = self.0.thread.lock();
        if thread.is_none() {
            let inner = self.clone();
            *thread = Some(threads.spawn("arbiter", STACK_BYTES, move || {
                inner.run();
                Ok(())
            })?);
        }
        Ok(())
    }

    fn run(&self) {
        let (stopped, wake) = &self.0.stopped;
        let mut is_stopped = stopped.lock();
        while !*is_stopped {
            wake.wait_for(&mut is_stopped, EVERY);
            if !*is_stopped {
                drop(is_stopped);
                _ = supervise::caught("a look of the arbiter", || {
                    self.look();
                    Ok(())
                });
                is_stopped = stopped.lock();
            }
        }
    }

    pub(crate) fn stop(&self) {
        *self.0.stopped.0.lock() = true;
        self.0.stopped.1.notify_all();
        if let Some(thread) = self.0.thread.lock().take() {
            _ = thread.join();
        }
    }

    /// Looks how much each store is used, and moves shares where that is worth it.
    pub(crate) fn look(&self) {
        let (mut seats, total) = (self.0.seats.lock(), self.0.budget.limit());
        if seats.len() < 2 {
            return;
        }
        seats.iter_mut().for_each(Seat::look);
        let claims: Vec<Claim> = seats.iter().map(Seat::claim).collect();
        let (now, mut planned): (Vec<u64>, _) = (seats.iter().map(|seat| seat.share).collect(), plan(total, &claims));
        if is_near(total, &now, &planned, &claims) {
            planned = now;
        }
        let free = self.0.budget.free();
        if let Err(error) = shrink(&mut seats, &planned, SHRINK_MOST).and_then(|()| grow(&mut seats, &planned, free)) {
            tracing::debug!("shares are moved at a later look: {error}");
        }
    }

    /// A store that is about to be opened takes so much until it is: the first one does with less, as far as it can. One without a log
    /// takes next to nothing, so what is too little shows when it is opened.
    pub(crate) fn make_room(&self, bytes: u64, at_most: Duration) -> Result<()> {
        let (mut seats, total) = (self.0.seats.lock(), self.0.budget.limit());
        let others: u64 = seats.iter().skip(1).map(|seat| seat.share).sum();
        let left = total.saturating_sub(others + bytes).max(seats[0].tenant.wants().least);
        let share = |seat: &Seat| if seat.is_first { left.min(seat.share) } else { seat.share };
        let planned: Vec<u64> = seats.iter().map(share).collect();
        shrink(&mut seats, &planned, at_most)
    }

    /// The budget is about to become `total`, which is less.
    pub(crate) fn shrink(&self, total: u64, at_most: Duration) -> Result<()> {
        let mut seats = self.0.seats.lock();
        let planned = planned(&seats, total);
        shrink(&mut seats, &planned, at_most)
    }

    /// The budget has moved.
    pub(crate) fn settle(&self) -> Result<()> {
        let (mut seats, total) = (self.0.seats.lock(), self.0.budget.limit());
        let planned = planned(&seats, total);
        let shrunk = shrink(&mut seats, &planned, Duration::ZERO);
        // Whoever has what it had computes anew all the same, from another budget.
        seats[0].is_stale = true;
        // Whoever moves the budget waits for it.
        seats.iter_mut().for_each(|seat| seat.pause = Pause::default());
        shrunk.and_then(|()| grow(&mut seats, &planned, u64::MAX))
    }

    /// What the stores beside the first take while nobody writes to them: a budget has so much more.
    pub(crate) fn least_beside_first(&self) -> u64 {
        let seats = self.0.seats.lock();
        seats.iter().skip(1).map(|seat| seat.tenant.wants().needed.max(IDLE_SHARE)).sum()
    }

    /// What each store has, in the order in which they came.
    pub(crate) fn shares(&self) -> Vec<u64> {
        self.0.seats.lock().iter().map(|seat| seat.share).collect()
    }
}

impl Seat {
    /// A store that has nothing yet.
    fn new(tenant: Arc<dyn Tenant>, account: &Account) -> Self {
        let (used, pause) = (Use::default(), Pause::default());
        Self { tenant, account: account.clone(), is_first: false, share: 0, is_stale: false, used, pause }
    }

    /// How much it was asked since the last look. Only looks do so, which come at even times.
    fn look(&mut self) {
        self.used.look(self.tenant.wants().requests);
    }

    fn claim(&self) -> Claim {
        let Wants { least, most, .. } = self.tenant.wants();
        let least = least.max(IDLE_SHARE);
        Claim { least, most: most.max(least), recent: self.used.recent() }
    }

    /// What is reserved is always what it has, and covers what its store was told.
    fn set(&mut self, share: u64, is_shared: bool) -> Result<()> {
        if !self.is_first {
            self.account.set_min_reservation(share)?;
        }
        if is_shared && share != self.share {
            tracing::debug!("the share of {} goes from {} to {}", self.account.path(), Size(self.share), Size(share));
        }
        if is_shared {
            self.account.show_share(Some(share));
        }
        self.share = share;
        Ok(())
    }

    /// Its store gives way, and what it had is free then; or it keeps that.
    fn shrink(&mut self, share: u64, at_most: Duration, is_shared: bool) -> Result<()> {
        self.is_stale = true;
        self.tenant.shrink(share, at_most)?;
        self.is_stale = false;
        // Alone it has what it had until the budget has moved.
        if is_shared { self.set(share, true) } else { Ok(()) }
    }

    /// It has no less than before; its store is told, also where it is what it had.
    fn grow(&mut self, share: u64, is_shared: bool) -> Result<()> {
        self.set(share, is_shared)?;
        self.is_stale = true;
        self.tenant.resize(share)?;
        self.is_stale = false;
        Ok(())
    }

    /// Whether it is too early to try again to give it `more`. Where so much is `free` nobody has to give way for it.
    fn pauses(&mut self, more: u64, free: u64) -> bool {
        let is_early = self.pause.left > 0 && (more == 0 || more > free);
        self.pause.left = self.pause.left.saturating_sub(1);
        is_early
    }
}

impl Pause {
    fn note(&mut self, grown: &Result<()>) {
        let length = if grown.is_ok() { 0 } else { (2 * self.length).clamp(1, PAUSE_MAX) };
        *self = Self { left: length, length };
    }
}

fn planned(seats: &[Seat], total: u64) -> Vec<u64> {
    if seats.len() == 1 {
        return vec![total];
    }
    let claims: Vec<Claim> = seats.iter().map(Seat::claim).collect();
    plan(total, &claims)
}

/// Those that are to have less have it. One that fails keeps no other from that.
fn shrink(seats: &mut [Seat], planned: &[u64], at_most: Duration) -> Result<()> {
    let (is_shared, mut shrunk, mut is_moved) = (seats.len() > 1, Ok(()), false);
    for (seat, share) in seats.iter_mut().zip(planned).filter(|(seat, share)| seat.share > **share) {
        let outcome = seat.shrink(*share, at_most, is_shared);
        is_moved |= outcome.is_ok();
        shrunk = shrunk.and(outcome);
    }
    if is_moved {
        // There is more for others.
        seats.iter_mut().for_each(|seat| seat.pause = Pause::default());
    }
    shrunk
}

/// Those that are to have more have it, and those that have not taken what they were told are told again. One that fails keeps no
/// other from that.
fn grow(seats: &mut [Seat], planned: &[u64], free: u64) -> Result<()> {
    let (is_shared, mut grown) = (seats.len() > 1, Ok(()));
    for (seat, share) in seats.iter_mut().zip(planned).filter(|(seat, share)| seat.share < **share || seat.is_stale) {
        if !seat.pauses(share.saturating_sub(seat.share), free) {
            let outcome = seat.grow(*share, is_shared);
            seat.pause.note(&outcome);
            grown = grown.and(outcome);
        }
    }
    grown
}

#[cfg(test)]
mod tests;
