//! A store at rest lends: while nothing is there to be sealed or merged, the memory that seal and merge have for good
//! serves resident sections.
//!
//! ```text
//!   awake     floors of seal and merge │ room for new points │ headroom │ resident sections
//!   at rest                                                    headroom │ resident sections, of wider codes
//!
//!   a write, a seal, a merge ──► sections give way ──► floors are taken back ──► and only then it goes on
//! ```
//!
//! What a seal has goes to sections alone, which give way when they are asked: requests cannot take it, however many they
//! are. So before a write is accepted, its seal has its memory again. What a merge has requests may use too, also in an awake
//! store between two merges, if nothing else is left to give; a merge waits until they let go. What is held for longer, new points
//! for instance, never takes it: a merge might wait for it for ever.

use crate::background::is_busy;
use crate::lock;
use crate::reservoir;
use crate::residency::{self, Planned};
use crate::shared::{Limits, Shared};
use crate::writer::Request;
use parking_lot::{Mutex, MutexGuard};
use ramekin_base::lock::{Guard, Ranked};
use ramekin_base::{Error, Kind, Result};
use ramekin_memory::{Account, Yield};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Without work for this long a store is at rest: at first the one, doubled up to the other each time a rest was short, so that
/// a write now and then does not make all sections come and go.
const REST_AFTER_MS: (u64, u64) = (2_000, 64_000);
/// A rest is worth what it costs if it lasts so many times longer than the wait for it.
const WORTH: u64 = 16;
/// So often it looks whether collections are used as before, and whether what should be resident still is.
const LOOK_AFTER_MS: u64 = 2_000;
/// So often one real query is asked again, with care.
const CHECK_EVERY_MS: u64 = 2_000;
/// A waking store waits for readers of sections that give way so often and so long.
const PATIENCE: (u32, Duration) = (100, Duration::from_millis(10));

pub(crate) struct Rest {
    /// Held by who takes floors back, which may have to be waited for.
    waking: Ranked<Mutex<()>>,
    state: Ranked<Mutex<State>>,
    /// One thread plans at a time, by what is free then.
    planning: Mutex<()>,
    /// A merge is under way, or waits for its memory.
    merging: Mutex<bool>,
    /// What is resident is to be chosen again: wishes have changed, or who has them.
    again: AtomicBool,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            waking: Ranked::mutex(&lock::WAKING, ()),
            state: Ranked::mutex(&lock::REST, State::default()),
            planning: Mutex::default(),
            merging: Mutex::default(),
            again: AtomicBool::default(),
        }
    }
}

#[derive(Default)]
struct State {
    at_rest: bool,
    /// Seals, folds and merges under way.
    working: usize,
    /// When there was work last.
    since_ms: u64,
    looked_ms: u64,
    /// When a real query was looked at again.
    checked_ms: u64,
    /// When it lay down last.
    lay_ms: u64,
    /// What the last plan at rest had to give, and gave.
    planned: Planned,
    /// So long without work and it is at rest; at first, at once.
    after_ms: u64,
    /// It was woken, and what is resident does not suit that yet.
    unplanned: bool,
}

/// While one lives the store is awake.
pub(crate) struct Working<'a>(&'a Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.rest.state.lock();
        state.working -= 1;
        state.since_ms = self.0.now_ms();
    }
}

/// A merge is under way while one lives.
pub(crate) struct Merging<'a>(Working<'a>);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        *self.0.0.rest.merging.lock() = false;
    }
}

/// Lends what a merge has for good to a request that finds nothing else: it must not wait for the store to lie down.
pub(crate) struct IdleMerge(pub(crate) Weak<Shared>);

impl Yield for IdleMerge {
    fn give_back(&self, wanted: u64) -> u64 {
        let Some(shared) = self.0.upgrade() else { return 0 };
        let Some(merging) = shared.rest.merging.try_lock() else { return 0 };
        if *merging { 0 } else { shared.accounts.merge.lend_floor(wanted) }
    }
}

/// Does `promise` with what a merge has for good, while none is under way. New points that find no other room would wait for one
/// that nobody makes; they are written out before the next merge.
pub(crate) fn instead_of_merge(shared: &Shared, bytes: u64, promise: impl FnOnce() -> Result<()>) -> Result<()> {
    let merging = shared.rest.merging.lock();
    if !*merging {
        shared.accounts.merge.give_floor_to(bytes, &shared.accounts.growing);
    }
    let promised = promise();
    // What it holds now it keeps; a floor that shrinks cannot fail.
    _ = shared.accounts.growing.set_floor(0);
    promised
}

/// Takes back what a seal has for good. Only sections may have used it, and they give way as soon as their readers let
/// them. What a merge has may be in use by requests: it is taken back when they let go, at the latest before a merge.
fn hold(shared: &Shared, limits: Limits) -> Result<()> {
    take_back(&shared.accounts.seal, limits.seal_work)?;
    match shared.accounts.merge.set_floor(limits.merge_work) {
        Err(error) if error.kind() == Kind::Busy => Ok(()),
        held => held,
    }
}

fn take_back(account: &Account, bytes: u64) -> Result<()> {
    let mut held = account.set_floor(bytes);
    for _ in 0..PATIENCE.0 {
        if !held.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
            break;
        }
        account.wait_for_release(PATIENCE.1);
        // What a crowd lets go of bit by bit is held on to.
        account.raise_floor(bytes);
        held = account.set_floor(bytes);
    }
    held
}

fn awake(shared: &Shared) -> Result<Guard<MutexGuard<'_, State>>> {
    loop {
        let mut state = shared.rest.state.lock();
        state.since_ms = shared.now_ms();
        if !state.at_rest {
            return Ok(state);
        }
        drop(state);
        wake_up(shared)?;
    }
}

/// Takes the floors back. Only who needs a store that is awake waits for that.
fn wake_up(shared: &Shared) -> Result<()> {
    let _waking = shared.rest.waking.lock();
    if !is_at_rest(shared) {
        return Ok(());
    }
    hold(shared, shared.limits())?;
    let mut state = shared.rest.state.lock();
    let rested = shared.now_ms() - state.lay_ms;
    state.after_ms = match rested < state.after_ms * WORTH {
        true => (state.after_ms * 2).clamp(REST_AFTER_MS.0, REST_AFTER_MS.1),
        false => REST_AFTER_MS.0,
    };
    (state.at_rest, state.unplanned) = (false, true);
    shared.wake_background();
    Ok(())
}

/// Before a write: a seal has its memory.
pub(crate) fn wake(shared: &Shared) -> Result<()> {
    awake(shared).map(|_| ())
}

/// The same for who may not wait for readers: `Busy` says that they still use what is needed, and what they let go of is held on to.
pub(crate) fn try_wake(shared: &Shared) -> Result<()> {
    if is_at_rest(shared) {
        let others = || Error::busy("somebody else takes the memory for what is new back");
        let _waking = shared.rest.waking.try_lock().ok_or_else(others)?;
        let (seal, bytes) = (&shared.accounts.seal, shared.limits().seal_work);
        if seal.set_floor(bytes).is_err() {
            seal.raise_floor(bytes);
            seal.set_floor(bytes)?;
        }
    }
    wake(shared)
}

/// Before a merge: [`work`], and a merge has its memory.
pub(crate) fn work_on_merge(shared: &Shared) -> Result<Merging<'_>> {
    let merging = Merging(work(shared)?);
    *shared.rest.merging.lock() = true;
    let bytes = shared.limits().merge_work;
    let held = take_back(&shared.accounts.merge, bytes);
    if held.as_ref().is_err_and(|error| error.kind() == Kind::Busy)
        && let Some(largest) = shared.largest_active()
    {
        // New points may have it.
        _ = shared.queue.put(Request::Freeze(largest));
        return take_back(&shared.accounts.merge, bytes).map(|()| merging);
    }
    held.map(|()| merging)
}

/// Before a seal or a fold; it is over when the guard goes.
pub(crate) fn work(shared: &Shared) -> Result<Working<'_>> {
    awake(shared)?.working += 1;
    Ok(Working(shared))
}

/// The budget moves: floors and limits of what works in the background follow, and the store is awake.
pub(crate) fn set_limits(shared: &Shared, limits: Limits) -> Result<()> {
    let _waking = shared.rest.waking.lock();
    hold(shared, limits)?;
    let mut state = shared.rest.state.lock();
    state.since_ms = shared.now_ms();
    (state.at_rest, state.after_ms) = (false, state.after_ms.max(REST_AFTER_MS.0));
    drop(state);
    shared.accounts.seal.set_limit(limits.seal_work);
    shared.accounts.merge.set_limit(limits.merge_work);
    shared.accounts.growing.set_limit(limits.growing_bytes);
    Ok(())
}

pub(crate) fn is_at_rest(shared: &Shared) -> bool {
    shared.rest.state.lock().at_rest
}

/// Held while sections are chosen, loaded and unloaded.
pub(crate) fn planning(shared: &Shared) -> MutexGuard<'_, ()> {
    shared.rest.planning.lock()
}

/// One look of the sealing thread when it has nothing else to do: lies down, and plans again what is to be resident when
/// that has changed. True: it did.
pub(crate) fn turn(shared: &Shared) -> bool {
    if !is_due(shared) {
        return is_check_due(shared) && reservoir::check_one(shared);
    }
    let planned = residency::plan(shared);
    shared.rest.state.lock().planned = planned;
    true
}

/// One real query is looked at again so often, at rest.
fn is_check_due(shared: &Shared) -> bool {
    let mut state = shared.rest.state.lock();
    let now = shared.now_ms();
    let is_due = state.at_rest && now.saturating_sub(state.checked_ms) >= CHECK_EVERY_MS;
    state.checked_ms = if is_due { now } else { state.checked_ms };
    is_due
}

fn is_due(shared: &Shared) -> bool {
    // Nobody lies down while floors are taken back.
    let waking = shared.rest.waking.try_lock();
    let mut state = shared.rest.state.lock();
    let now = shared.now_ms();
    let busy = |shared: &Shared| shared.collections().iter().any(|collection| is_busy(shared, collection));
    let has_passed = now.saturating_sub(state.since_ms) >= state.after_ms;
    if waking.is_some() && !state.at_rest && state.working == 0 && has_passed && !busy(shared) {
        shared.accounts.seal.lend_floor(u64::MAX);
        shared.accounts.merge.lend_floor(u64::MAX);
        (state.at_rest, state.since_ms, state.lay_ms, state.unplanned) = (true, now, now, true);
    } else if now.saturating_sub(state.looked_ms) >= LOOK_AFTER_MS {
        state.looked_ms = now;
        // Sections that gave way to a crowd of requests come back when it is gone.
        let gave_way = shared.pages.stats().resident_bytes < state.planned.bytes;
        let has_gone = residency::room(shared, state.at_rest) > state.planned.room + shared.budget.limit() / 32;
        state.unplanned |= residency::use_moved(shared) || state.at_rest && (gave_way || has_gone);
    }
    std::mem::take(&mut state.unplanned) | shared.rest.again.swap(false, Ordering::Relaxed)
}

/// What is resident is chosen again soon.
pub(crate) fn plan_again(shared: &Shared) {
    shared.rest.again.store(true, Ordering::Relaxed);
    shared.wake_background();
}
