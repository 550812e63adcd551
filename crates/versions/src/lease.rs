//! Leases: when each ends. That one was granted, and its keys, stand in `meta`; a renewal is not logged, so after a start each
//! has its full time, and one election timeout more.

use crate::stage::TTL_LEAST;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// What a lease takes: its places in a map and in a set.
const LEASE_BYTES: u64 = 144;
/// A lease of before a start gets so much more: nobody could renew it meanwhile.
pub(crate) const AFTER_START: Duration = Duration::from_secs(1);

/// A lease, by the clock.
#[derive(Debug, Clone, Copy)]
struct Held {
    ttl: i64,
    ends: Duration,
    /// It has ended, and is being revoked.
    is_over: bool,
}

/// What is left of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLeft {
    /// Whole seconds.
    pub left: i64,
    pub granted: i64,
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    pub ttl: i64,
}

/// All leases.
pub(crate) struct Leases {
    state: Mutex<State>,
}

struct State {
    held: HashMap<i64, Held>,
    by_end: BTreeSet<(Duration, i64)>,
    memory: Reservation,
}

impl Leases {
    pub(crate) fn new(account: &Account) -> Result<Self> {
        let memory = account.try_reserve(0)?;
        Ok(Self { state: Mutex::new(State { held: HashMap::new(), by_end: BTreeSet::new(), memory }) })
    }

    /// Books one more lease, before it is granted.
    pub(crate) fn book(&self) -> Result<()> {
        self.state.lock().memory.grow(LEASE_BYTES)
    }

    /// A lease that was booked was not granted.
    pub(crate) fn unbook(&self) {
        self.state.lock().memory.shrink(LEASE_BYTES);
    }

    /// A lease that was booked begins.
    pub(crate) fn add(&self, Lease { id, ttl }: Lease, now: Duration) {
        let (ttl, state) = (ttl.max(TTL_LEAST), &mut *self.state.lock());
        let ends = now + Duration::from_secs(ttl as u64);
        state.held.insert(id, Held { ttl, ends, is_over: false });
        state.by_end.insert((ends, id));
    }

    /// A lease was revoked.
    pub(crate) fn remove(&self, id: i64) {
        let state = &mut *self.state.lock();
        if let Some(held) = state.held.remove(&id) {
            state.by_end.remove(&(held.ends, id));
            state.memory.shrink(LEASE_BYTES);
        }
    }

    /// Its full time from now on; 0: there is no such lease, or it has ended.
    pub(crate) fn renew(&self, id: i64, now: Duration) -> i64 {
        let state = &mut *self.state.lock();
        let Some(held) = state.held.get_mut(&id).filter(|held| !held.is_over && held.ends > now) else { return 0 };
        state.by_end.remove(&(held.ends, id));
        held.ends = now + Duration::from_secs(held.ttl as u64);
        state.by_end.insert((held.ends, id));
        held.ttl
    }

    pub(crate) fn left(&self, id: i64, now: Duration) -> Option<LeaseLeft> {
        let state = self.state.lock();
        let held = state.held.get(&id)?;
        let left = held.ends.saturating_sub(now).as_secs() as i64;
        Some(LeaseLeft { left, granted: held.ttl })
    }

    /// Ids, the one that ends first before the others.
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.state.lock().by_end.iter().map(|(_, id)| *id).collect()
    }

    /// Leases whose time is over, so many at most; each is given once, until [`Leases::not_revoked`].
    pub(crate) fn take_over(&self, now: Duration, most: usize) -> Vec<i64> {
        let state = &mut *self.state.lock();
        let is_due = |(ends, id): &(Duration, i64)| (*ends <= now).then_some((*ends, *id));
        let due: Vec<(Duration, i64)> = state.by_end.iter().map_while(is_due).take(most).collect();
        for entry in &due {
            state.by_end.remove(entry);
            if let Some(held) = state.held.get_mut(&entry.1) {
                held.is_over = true;
            }
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// A lease that was given to be revoked still stands: it is tried again.
    pub(crate) fn not_revoked(&self, id: i64) {
        let state = &mut *self.state.lock();
        if let Some(held) = state.held.get_mut(&id) {
            held.is_over = false;
            state.by_end.insert((held.ends, id));
        }
    }
}
