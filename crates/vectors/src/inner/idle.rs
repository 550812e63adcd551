//! Idle lending: while no flush and no merge is pending, the memory that is reserved for them holds more index sections. It is
//! reclaimed before the next write is accepted.
//!
//! ```text
//!   active   minimum reservations of flush and merge │ room for new points │ headroom │ resident sections
//!   idle                                                                     headroom │ resident sections, of wider codes
//!
//!   a write, a flush, a merge ──► sections are demoted ──► the minimum reservations are taken back ──► it goes on
//! ```
//!
//! The reserve of flushes is lent to sections alone, which are demoted on demand: requests cannot take it, however many there
//! are. So before a write is accepted, its flush has its memory again. The reserve of merges may be borrowed by requests too,
//! also in an active store between two merges, if nothing else is left to reclaim; a merge waits until they let go. New points
//! never borrow it for long: a merge might wait for them for ever.

use crate::inner::{Limits, StoreInner};
use crate::state::idle::State;
use crate::state::request::Request;
use parking_lot::MutexGuard;
use ramekin_base::lock::Guard;
use ramekin_base::{Error, Kind, Result};
use ramekin_memory::{Account, Reclaim};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Idle timeout: 2 s, doubled up to 64 s each time an idle period was short (below [`WORTH`] times the timeout), so that an
/// occasional write does not make all sections come and go.
const IDLE_AFTER_MS: (u64, u64) = (2_000, 64_000);
/// An idle period pays for its plans if it lasts this many times the timeout.
const WORTH: u64 = 16;
/// Rounds in which a store that ends its idle period waits for readers of demoted sections, and how long each is.
const RETRY: (u32, Duration) = (100, Duration::from_millis(10));

/// While one lives the store is awake.
pub(crate) struct Working<'a>(&'a StoreInner);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.idle.state.lock();
        state.working -= 1;
        state.since_ms = self.0.now_ms();
    }
}

/// A merge is under way while one lives.
pub(crate) struct Merging<'a>(Working<'a>);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        *self.0.0.idle.merging.lock() = false;
    }
}

/// Lends what a merge has for good to a request that finds nothing else: it must not wait for the store to lie down.
pub(crate) struct IdleMerge(pub(crate) Weak<StoreInner>);

impl Reclaim for IdleMerge {
    fn reclaim(&self, wanted: u64) -> u64 {
        let Some(shared) = self.0.upgrade() else { return 0 };
        let Some(merging) = shared.idle.merging.try_lock() else { return 0 };
        if *merging { 0 } else { shared.accounts.merge.lend_min_reservation(wanted) }
    }
}

/// Does `promise` with what a merge has for good, while none is under way. New points that find no other room would wait for one
/// that nobody makes; they are written out before the next merge.
pub(crate) fn instead_of_merge(shared: &StoreInner, bytes: u64, promise: impl FnOnce() -> Result<()>) -> Result<()> {
    let merging = shared.idle.merging.lock();
    if !*merging {
        shared.accounts.merge.give_min_reservation_to(bytes, &shared.accounts.growing);
    }
    let promised = promise();
    // What it holds now it keeps; a minimum reservation that shrinks cannot fail.
    _ = shared.accounts.growing.set_min_reservation(0);
    promised
}

/// Takes back what a flush has for good. Only sections may have used it, and they give way as soon as their readers let
/// them. What a merge has may be in use by requests: it is taken back when they let go, at the latest before a merge.
fn hold(shared: &StoreInner, limits: Limits) -> Result<()> {
    take_back(&shared.accounts.flush, limits.flush_work)?;
    match shared.accounts.merge.set_min_reservation(limits.merge_work) {
        Err(error) if error.kind() == Kind::Busy => Ok(()),
        held => held,
    }
}

fn take_back(account: &Account, bytes: u64) -> Result<()> {
    let mut held = account.set_min_reservation(bytes);
    for _ in 0..RETRY.0 {
        if !held.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            break;
        }
        account.wait_for_release(RETRY.1);
        // What a crowd lets go of bit by bit is held on to.
        account.raise_min_reservation(bytes);
        held = account.set_min_reservation(bytes);
    }
    held
}

fn ensure_active(shared: &StoreInner) -> Result<Guard<MutexGuard<'_, State>>> {
    loop {
        let mut state = shared.idle.state.lock();
        state.since_ms = shared.now_ms();
        if !state.is_idle {
            return Ok(state);
        }
        drop(state);
        wake_up(shared)?;
    }
}

/// Takes the minimum reservations back. Only work that needs an active store waits for that.
fn wake_up(shared: &StoreInner) -> Result<()> {
    let _waking = shared.idle.waking.lock();
    if !is_idle(shared) {
        return Ok(());
    }
    hold(shared, shared.limits())?;
    let mut state = shared.idle.state.lock();
    let idled = shared.now_ms() - state.idle_from_ms;
    state.after_ms = match idled < state.after_ms * WORTH {
        true => (state.after_ms * 2).clamp(IDLE_AFTER_MS.0, IDLE_AFTER_MS.1),
        false => IDLE_AFTER_MS.0,
    };
    (state.is_idle, state.unplanned) = (false, true);
    shared.wake_background();
    Ok(())
}

/// Before a write: a flush has its memory.
pub(crate) fn wake(shared: &StoreInner) -> Result<()> {
    ensure_active(shared).map(|_| ())
}

/// The same for who may not wait for readers: `Busy` says that they still use what is needed, and what they let go of is held on to.
pub(crate) fn try_wake(shared: &StoreInner) -> Result<()> {
    if is_idle(shared) {
        let others = || Error::busy("somebody else takes the memory for what is new back");
        let _waking = shared.idle.waking.try_lock().ok_or_else(others)?;
        let (seal, bytes) = (&shared.accounts.flush, shared.limits().flush_work);
        if seal.set_min_reservation(bytes).is_err() {
            seal.raise_min_reservation(bytes);
            seal.set_min_reservation(bytes)?;
        }
    }
    wake(shared)
}

/// Before a merge: [`work`], and a merge has its memory.
pub(crate) fn work_on_merge(shared: &StoreInner) -> Result<Merging<'_>> {
    let merging = Merging(work(shared)?);
    *shared.idle.merging.lock() = true;
    let bytes = shared.limits().merge_work;
    let held = take_back(&shared.accounts.merge, bytes);
    if held.as_ref().is_err_and(|error| error.kind() == Kind::Busy)
        && let Some(largest) = shared.largest_active()
    {
        // New points may have it.
        _ = shared.queue.put(Request::Rotate(largest));
        return take_back(&shared.accounts.merge, bytes).map(|()| merging);
    }
    held.map(|()| merging)
}

/// Before a flush or a patch compaction; it is over when the guard goes.
pub(crate) fn work(shared: &StoreInner) -> Result<Working<'_>> {
    ensure_active(shared)?.working += 1;
    Ok(Working(shared))
}

/// The budget moves: minimum reservations and limits of what works in the background follow, and the store is awake.
pub(crate) fn set_limits(shared: &StoreInner, limits: Limits) -> Result<()> {
    let _waking = shared.idle.waking.lock();
    hold(shared, limits)?;
    let mut state = shared.idle.state.lock();
    state.since_ms = shared.now_ms();
    (state.is_idle, state.after_ms) = (false, state.after_ms.max(IDLE_AFTER_MS.0));
    drop(state);
    shared.accounts.flush.set_limit(limits.flush_work);
    shared.accounts.merge.set_limit(limits.merge_work);
    shared.accounts.growing.set_limit(limits.memtable_bytes);
    Ok(())
}

pub(crate) fn is_idle(shared: &StoreInner) -> bool {
    shared.idle.state.lock().is_idle
}

/// Held while sections are chosen, loaded and unloaded.
pub(crate) fn planning(shared: &StoreInner) -> Guard<MutexGuard<'_, ()>> {
    shared.idle.planning.lock()
}

/// What is resident is chosen again soon.
pub(crate) fn plan_again(shared: &StoreInner) {
    shared.idle.again.store(true, Ordering::Relaxed);
    shared.wake_background();
}
