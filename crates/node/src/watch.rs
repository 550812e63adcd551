//! The watch: one thread that compares, each second, what is reserved with what the kernel charges.
//!
//! ```text
//!   allocator gives back what it no longer needs; what it still keeps, in pieces among what it handed out, is booked,
//!             and where the budget is short it is asked to give back the rest
//!   ledger: booked bytes against the kernel's charge ──► a line in the log when that is more by over 5 % of the budget
//!   data folder: still the one that was locked?      ──► if not, a fault: the server stops with an error
//! ```

use crate::base::ALLOCATOR;
use parking_lot::{Condvar, Mutex};
use ramekin_base::supervise::{self, Threads};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::FolderLock;
use ramekin_memory::{
    Budget, Ledger, Reclaim, ReclaimOrder, Reservation, allocator_at_once, allocator_decay, allocator_purge,
    allocator_resident,
};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two comparisons of what is reserved with what the kernel charges.
const EVERY: Duration = Duration::from_secs(1);
/// Rounds between two lines about the same finding.
const QUIET_ROUNDS: u32 = 60;
/// Bytes that are reserved and not touched, and are taken to stay so.
const UNTOUCHED_MAX: u64 = 2 << 20;
/// Up to this budget all of them are.
const SMALL_BUDGET: u64 = 32 << 20;
const STACK_BYTES: usize = 128 << 10;
/// What is left for new points and opened files, as a part of the budget and at most, when it is booked what the allocator keeps:
/// a store that may not write anything out would keep it for ever.
const LEFT_PART: u64 = 24;
const LEFT_MAX: u64 = 1 << 20;
const KEPT_FORMULA: &str = "held by the allocator - handed out - what base has for it";

/// Called once, with what makes going on pointless.
pub type Fault = Box<dyn FnOnce(Error) + Send>;

/// The running watch.
pub(crate) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(budget: Budget, lock: Arc<FolderLock>, supervisor: &Threads, on_fault: Fault) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let of_thread = stop.clone();
        let kept = Arc::new(Mutex::new(budget.root().child("allocator", KEPT_FORMULA).passing().try_reserve(0)?));
        budget.add_reclaimer(ReclaimOrder::Allocator, Arc::new(KeptReclaim(Arc::downgrade(&kept))));
        let work = move || {
            run(&of_thread, &budget, &kept, &lock, on_fault);
            Ok(())
        };
        let thread = supervisor.spawn("watch", STACK_BYTES, work)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    pub(crate) fn stop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where the budget is short the allocator gives back to the kernel all that is not in use, and what was reserved for it goes.
struct KeptReclaim(Weak<Mutex<Reservation>>);

impl Reclaim for KeptReclaim {
    fn reclaim(&self, _: u64) -> u64 {
        let Some(kept) = self.0.upgrade() else { return 0 };
        let Some(mut kept) = kept.try_lock().filter(|kept| kept.bytes() > 0) else { return 0 };
        allocator_purge();
        release_unused(&mut kept, allocator_resident().unwrap_or_default())
    }
}

/// Lets go of what the allocator does not keep any more; returns how much that is.
fn release_unused(kept: &mut Reservation, allocator: (u64, u64)) -> u64 {
    let given = kept.bytes().saturating_sub(beyond(allocator));
    kept.shrink(given);
    given
}

/// What the allocator holds beyond what it handed out and `base` has for it.
fn beyond((held, handed_out): (u64, u64)) -> u64 {
    held.saturating_sub(handed_out + ALLOCATOR)
}

fn run(stop: &(Mutex<bool>, Condvar), budget: &Budget, kept: &Mutex<Reservation>, lock: &FolderLock, on_fault: Fault) {
    let mut on_fault = Some(on_fault);
    let mut quiet = 0;
    let mut stopped = stop.0.lock();
    let mut is_small = None;
    while !*stopped {
        // Where there is next to no room, none is for what is no longer in use.
        let small = budget.limit() <= SMALL_BUDGET;
        if is_small.replace(small) != Some(small) {
            allocator_at_once(small);
        }
        stop.1.wait_for(&mut stopped, EVERY);
        if *stopped {
            break;
        }
        drop(stopped);
        // A round that panics is one round; the panic itself is in the log.
        _ = supervise::caught("a round of the watch", || {
            allocator_decay();
            let ledger = Ledger::totals(budget);
            quiet = report(&ledger, quiet);
            let allocator = allocator_resident().unwrap_or_default();
            reserve_for_allocator(&mut kept.lock(), budget, ledger.unaccounted_bytes, allocator);
            Ok(())
        });
        if let (Err(error), Some(on_fault)) = (lock.check(), on_fault.take_if(|_| lock.check().is_err())) {
            on_fault(error);
        }
        stopped = stop.0.lock();
    }
}

/// Books what the allocator keeps beyond what it handed out and `base` has for it, as far as the kernel's charge shows it: what others
/// have reserved and not yet touched is room for it, but for [`UNTOUCHED_MAX`] at most, since a section that is reserved is
/// soon loaded (a small budget, where a flush needs what is left, has next to no sections). Only cached pages make way; sections
/// are planned again when the store is next idle, and then there is room for less of them.
fn reserve_for_allocator(kept: &mut Reservation, budget: &Budget, unaccounted: i64, allocator: (u64, u64)) {
    let limit = budget.limit();
    let most = (kept.bytes() + budget.room()).saturating_sub((limit / LEFT_PART).min(LEFT_MAX));
    let shown = (kept.bytes() as i64 + unaccounted).max(0) as u64;
    let beyond = beyond(allocator);
    let sure = beyond.saturating_sub(UNTOUCHED_MAX).min(limit.saturating_sub(SMALL_BUDGET) / 16);
    let bytes = beyond.min(shown).max(sure).min(most);
    match bytes.checked_sub(kept.bytes()) {
        Some(more) => kept.grow_from_pages(more),
        None => kept.shrink(kept.bytes() - bytes),
    }
}

/// Writes a line when the kernel charges over 5 % of the budget more than is reserved; then is quiet for a while. What is reserved and
/// not touched yet is no reason for one: minimum reservations are taken long before they are used, so a healthy server shows less.
fn report(ledger: &Ledger, quiet: u32) -> u32 {
    if !parts_too_far(ledger) {
        return 0;
    }
    if quiet > 0 {
        return quiet - 1;
    }
    let booked = ledger.charged_bytes as i64 - ledger.unaccounted_bytes;
    let (resident, allocated) = allocator_resident().unwrap_or_default();
    tracing::warn!(
        "ledger: {} are reserved, the kernel charges {}: what is not reserved is more than 5 % of the budget of {} \
         (allocator: {} handed out, {} held)",
        Size(booked.max(0) as u64),
        Size(ledger.charged_bytes),
        Size(ledger.budget_bytes),
        Size(allocated),
        Size(resident),
    );
    QUIET_ROUNDS
}

fn parts_too_far(ledger: &Ledger) -> bool {
    ledger.unaccounted_bytes > (ledger.budget_bytes / 20) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(unaccounted_bytes: i64) -> Ledger {
        Ledger {
            budget_bytes: 100 << 20,
            charged_bytes: 50 << 20,
            peak_bytes: 60 << 20,
            unaccounted_bytes,
            pressure: "calm",
            accounts: Vec::new(),
        }
    }

    #[test]
    fn what_the_allocator_keeps_is_booked_as_far_as_it_shows_and_there_is_room() {
        let budget = Budget::new(100);
        let mut kept = budget.root().child("allocator", "").try_reserve(0).unwrap();
        let other = budget.root().child("other", "").try_reserve(70).unwrap();
        // (unaccounted, held beyond what was handed out) and what is booked then: 4 are left for others.
        let looks =
            [(20, 20, 20), (0, 20, 20), (0, 5, 5), (9, 12, 12), (-4, 12, 8), (30, 38, 26), (-40, 38, 0), (5, 0, 0)];
        for (unaccounted, beyond, booked) in looks {
            reserve_for_allocator(&mut kept, &budget, unaccounted, (1000 + ALLOCATOR + beyond, 1000));
            assert_eq!(kept.bytes(), booked);
        }
        drop(other);
        reserve_for_allocator(&mut kept, &budget, 40, (ALLOCATOR + 50, 0));
        assert_eq!(kept.bytes(), 40);
        // Where the budget is short it lets go of what is no longer kept.
        assert_eq!(release_unused(&mut kept, (ALLOCATOR + 15, 0)), 25);
        assert_eq!(release_unused(&mut kept, (ALLOCATOR + 30, 0)), 0);
        assert_eq!(kept.bytes(), 15);
        // What is booked and not touched stays so in part.
        let budget = Budget::new(100 << 20);
        let mut kept = budget.root().child("allocator", "").try_reserve(0).unwrap();
        for (size, booked) in [(100 << 20, 3 << 20), (48 << 20, 1 << 20), (24 << 20, 0)] {
            assert_eq!(budget.set_limit(size), 0);
            reserve_for_allocator(&mut kept, &budget, -(50 << 20), (ALLOCATOR + UNTOUCHED_MAX + (3 << 20), 0));
            assert_eq!(kept.bytes(), booked);
        }
        // However much it keeps: what is reclaimable counts as room, a minimum reservation that is lent does not.
        let (seal, pages) = (budget.root().child("seal", ""), budget.root().child("pages", "").reclaimable());
        seal.set_min_reservation(3 << 20).unwrap();
        seal.lend_min_reservation(u64::MAX);
        let _other = budget.root().child("other", "").try_reserve(16 << 20).unwrap();
        let cached = pages.try_reserve(8 << 20).unwrap();
        reserve_for_allocator(&mut kept, &budget, 20 << 20, (ALLOCATOR + (20 << 20), 0));
        assert_eq!(kept.bytes(), 0, "nobody was asked for the pages");
        drop(cached);
        reserve_for_allocator(&mut kept, &budget, 20 << 20, (ALLOCATOR + (20 << 20), 0));
        assert_eq!(kept.bytes(), 4 << 20);
        let mut new_points = budget.root().child("new", "").try_reserve(1 << 20).unwrap();
        assert!(new_points.grow(1).is_err());
    }

    #[test]
    fn a_difference_is_reported_once_and_again_after_a_while() {
        assert_eq!(report(&ledger(5 << 20), 0), 0);
        assert_eq!(report(&ledger(-(40 << 20)), 0), 0, "reserved and not touched");
        let mut quiet = report(&ledger(6 << 20), 0);
        assert_eq!(quiet, QUIET_ROUNDS);
        for _ in 0..QUIET_ROUNDS {
            quiet = report(&ledger(6 << 20), quiet);
        }
        assert_eq!(quiet, 0);
        assert_eq!(report(&ledger(0), 30), 0);
    }
}
