//! The arbiter: gives each open store a share of the budget, and moves shares as the load and the budget move.
//!
//! ```text
//!   each look:  wants of all ─► plan (shares.rs) ─► near enough? nothing
//!                                              └─► who shrinks, first ─► who grows: takes it from the budget for good, then uses it
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
    share: u64,
    /// Its store was told of a share and has not taken it, or computes anew in any case.
    is_stale: bool,
    used: Use,
}

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
        let (share, used) = (budget.limit(), Use::default());
        let seat = Seat { tenant: first, account: account.clone(), share, is_stale: false, used };
        let (seats, thread, stopped) = (Mutex::new(vec![seat]), Mutex::default(), Default::default());
        Self(Arc::new(Inner { budget: budget.clone(), seats, thread, stopped }))
    }

    /// Another store, which was opened with [`IDLE_SHARE`].
    pub(crate) fn add(&self, tenant: Arc<dyn Tenant>, account: &Account, threads: &Threads) -> Result<()> {
        let seat = Seat { tenant, account: account.clone(), share: 0, is_stale: false, used: Use::default() };
        self.0.seats.lock().push(seat);
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
        let claims: Vec<Claim> = seats.iter_mut().map(Seat::claim).collect();
        let (now, planned): (Vec<u64>, _) = (seats.iter().map(|seat| seat.share).collect(), plan(total, &claims));
        if is_near(total, &now, &planned, &claims) {
            return;
        }
        if let Err(error) = shrink(&mut seats, &planned, SHRINK_MOST).and_then(|()| grow(&mut seats, &planned)) {
            tracing::debug!("shares are moved at the next look: {error}");
        }
    }

    /// The budget is about to become `total`, which is less.
    pub(crate) fn shrink(&self, total: u64, at_most: Duration) -> Result<()> {
        let mut seats = self.0.seats.lock();
        let planned = planned(&mut seats, total);
        shrink(&mut seats, &planned, at_most)
    }

    /// The budget has moved.
    pub(crate) fn settle(&self) -> Result<()> {
        let (mut seats, total) = (self.0.seats.lock(), self.0.budget.limit());
        let planned = planned(&mut seats, total);
        shrink(&mut seats, &planned, Duration::ZERO)?;
        // Whoever has what it had computes anew all the same, from another budget.
        seats[0].is_stale = true;
        grow(&mut seats, &planned)
    }

    /// What each store has, in the order in which they came.
    pub(crate) fn shares(&self) -> Vec<u64> {
        self.0.seats.lock().iter().map(|seat| seat.share).collect()
    }
}

impl Seat {
    fn claim(&mut self) -> Claim {
        let Wants { least, most, requests } = self.tenant.wants();
        let least = least.max(IDLE_SHARE);
        Claim { least, most: most.max(least), recent: self.used.look(requests) }
    }

    fn set(&mut self, share: u64) {
        self.share = share;
        self.account.show_share(Some(share));
    }
}

fn planned(seats: &mut [Seat], total: u64) -> Vec<u64> {
    if seats.len() == 1 {
        return vec![total];
    }
    let claims: Vec<Claim> = seats.iter_mut().map(Seat::claim).collect();
    plan(total, &claims)
}

/// Those that are to have less have it.
fn shrink(seats: &mut [Seat], planned: &[u64], at_most: Duration) -> Result<()> {
    let is_shared = seats.len() > 1;
    for (at, (seat, share)) in
        seats.iter_mut().zip(planned).enumerate().filter(|(_, (seat, share))| seat.share > **share)
    {
        seat.tenant.shrink(*share, at_most)?;
        if at > 0 {
            seat.account.set_min_reservation(*share)?;
        }
        if is_shared {
            tracing::debug!("the share of {} goes from {} to {}", seat.account.path(), Size(seat.share), Size(*share));
            seat.set(*share);
        }
    }
    Ok(())
}

/// Those that are to have more have it.
fn grow(seats: &mut [Seat], planned: &[u64]) -> Result<()> {
    let is_shared = seats.len() > 1;
    for (at, (seat, share)) in
        seats.iter_mut().zip(planned).enumerate().filter(|(_, (seat, share))| seat.share < **share || seat.is_stale)
    {
        if at > 0
            && let Err(error) = seat.account.set_min_reservation(*share)
        {
            // What it had it keeps.
            seat.account.set_min_reservation(seat.share)?;
            return Err(error);
        }
        seat.is_stale = true;
        seat.tenant.resize(*share)?;
        seat.is_stale = false;
        if is_shared {
            tracing::debug!("the share of {} goes from {} to {}", seat.account.path(), Size(seat.share), Size(*share));
            seat.set(*share);
        } else {
            seat.share = *share;
        }
    }
    Ok(())
}
