//! What the flushing thread looks at when it has nothing else to do: whether the store is idle, and whether what is resident
//! still suits how it is used.

use crate::collection::Collection;
use crate::inner::StoreInner;
use crate::residency::{self, recall_check};
use std::sync::atomic::Ordering;

/// So often it looks whether collections are used as before, and whether what should be resident still is.
const LOOK_AFTER_MS: u64 = 2_000;
/// So often one real query is asked again, with care.
const CHECK_EVERY_MS: u64 = 2_000;
/// One look of the flushing thread when it has nothing else to do: lies down, and plans again what is to be resident when
/// that has changed. True: it did.
pub(crate) fn step(shared: &StoreInner, is_busy: &dyn Fn(&Collection) -> bool) -> bool {
    if !is_due(shared, is_busy) {
        return is_check_due(shared) && recall_check::check_one(shared);
    }
    let planned = residency::plan(shared);
    shared.idle.state.lock().planned = planned;
    true
}

/// Whether an idle store is due to search one real query again.
fn is_check_due(shared: &StoreInner) -> bool {
    let mut state = shared.idle.state.lock();
    let now = shared.now_ms();
    let is_due = state.is_idle && now.saturating_sub(state.checked_ms) >= CHECK_EVERY_MS;
    state.checked_ms = if is_due { now } else { state.checked_ms };
    is_due
}

fn is_due(shared: &StoreInner, is_busy: &dyn Fn(&Collection) -> bool) -> bool {
    // No idle period begins while minimum reservations are taken back.
    let waking = shared.idle.waking.try_lock();
    let mut state = shared.idle.state.lock();
    let now = shared.now_ms();
    let busy = || shared.collections().iter().any(|collection| is_busy(collection));
    let has_passed = now.saturating_sub(state.since_ms) >= state.after_ms;
    if waking.is_some() && !state.is_idle && state.working == 0 && has_passed && !busy() {
        shared.accounts.flush.lend_min_reservation(u64::MAX);
        shared.accounts.merge.lend_min_reservation(u64::MAX);
        (state.is_idle, state.since_ms, state.idle_from_ms, state.unplanned) = (true, now, now, true);
    } else if now.saturating_sub(state.looked_ms) >= LOOK_AFTER_MS {
        state.looked_ms = now;
        // Sections that gave way to a crowd of requests come back when it is gone.
        let gave_way = shared.pages.stats().resident_bytes < state.planned.bytes;
        let has_gone = residency::room(shared, state.is_idle) > state.planned.room + shared.budget.limit() / 32;
        state.unplanned |= residency::use_moved(shared) || state.is_idle && (gave_way || has_gone);
    }
    std::mem::take(&mut state.unplanned) | shared.idle.again.swap(false, Ordering::Relaxed)
}
