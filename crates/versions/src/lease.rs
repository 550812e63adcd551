//! Leases: when each ends. That one was granted, and its keys, stand in `meta`; a renewal is not logged, so after a start each
//! has its full time, and one election timeout more.

use crate::stage::TTL_LEAST;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// What a lease takes: its places in a map and in a set.
const LEASE_BYTES: u64 = 200;
/// A lease of before a start gets so much more: nobody could renew it meanwhile.
pub(crate) const AFTER_START: Duration = Duration::from_secs(1);
/// A lease that could not be revoked is tried again after this, then after twice as much, up to the most.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MOST: Duration = Duration::from_secs(64);

/// A lease, by the clock.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Another number than that of any lease before it: an id may be granted anew while who revoked the one before is not done.
    grant: u64,
    ttl: i64,
    ends: Duration,
    /// When it is to be revoked: as it ends, or later where that failed so many times.
    due: Duration,
    failures: u32,
    /// It has ended, and is being revoked.
    is_over: bool,
}

/// A lease whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) id: i64,
    /// Of its grant.
    pub(crate) grant: u64,
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
    by_due: BTreeSet<(Duration, i64)>,
    /// Leases that began so far.
    grants: u64,
    memory: Reservation,
}

impl State {
    /// Takes a lease out, with what it takes.
    fn take_out(&mut self, id: i64) {
        if let Some(held) = self.held.remove(&id) {
            self.by_due.remove(&(held.due, id));
            self.memory.shrink(LEASE_BYTES);
        }
    }

    fn get(&mut self, Over { id, grant }: Over) -> Option<&mut Held> {
        self.held.get_mut(&id).filter(|held| held.grant == grant)
    }
}

impl Leases {
    pub(crate) fn new(account: &Account) -> Result<Self> {
        let memory = account.try_reserve(0)?;
        let state = State { held: HashMap::new(), by_due: BTreeSet::new(), grants: 0, memory };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Books one more lease, before it is granted.
    pub(crate) fn book(&self) -> Result<()> {
        self.state.lock().memory.grow(LEASE_BYTES)
    }

    /// A lease that was booked was not granted.
    pub(crate) fn unbook(&self) {
        self.state.lock().memory.shrink(LEASE_BYTES);
    }

    /// A lease that was booked begins. One of the same id before it is gone, though who revoked it may not have said so yet.
    pub(crate) fn add(&self, Lease { id, ttl }: Lease, now: Duration) {
        let (ttl, state) = (ttl.max(TTL_LEAST), &mut *self.state.lock());
        state.take_out(id);
        state.grants += 1;
        let ends = now + Duration::from_secs(ttl as u64);
        state.held.insert(id, Held { grant: state.grants, ttl, ends, due: ends, failures: 0, is_over: false });
        state.by_due.insert((ends, id));
    }

    /// The number of a lease's grant.
    pub(crate) fn grant_of(&self, id: i64) -> Option<u64> {
        self.state.lock().held.get(&id).map(|held| held.grant)
    }

    /// A lease was revoked; one of the same id that was granted since stays.
    pub(crate) fn remove(&self, over: Over) {
        let state = &mut *self.state.lock();
        if state.get(over).is_some() {
            state.take_out(over.id);
        }
    }

    /// Its full time from now on; 0: there is no such lease, or it has ended.
    pub(crate) fn renew(&self, id: i64, now: Duration) -> i64 {
        let state = &mut *self.state.lock();
        let Some(held) = state.held.get_mut(&id).filter(|held| !held.is_over && held.ends > now) else { return 0 };
        state.by_due.remove(&(held.due, id));
        held.ends = now + Duration::from_secs(held.ttl as u64);
        held.due = held.ends;
        state.by_due.insert((held.due, id));
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
        self.state.lock().by_due.iter().map(|(_, id)| *id).collect()
    }

    /// Leases whose time is over, so many at most; each is given once, until [`Leases::not_revoked`].
    pub(crate) fn take_over(&self, now: Duration, most: usize) -> Vec<Over> {
        let state = &mut *self.state.lock();
        let is_due = |(due, id): &(Duration, i64)| (*due <= now).then_some((*due, *id));
        let due: Vec<(Duration, i64)> = state.by_due.iter().map_while(is_due).take(most).collect();
        let mut over = Vec::with_capacity(due.len());
        for entry in due {
            state.by_due.remove(&entry);
            if let Some(held) = state.held.get_mut(&entry.1) {
                held.is_over = true;
                over.push(Over { id: entry.1, grant: held.grant });
            }
        }
        over
    }

    /// A lease that was given to be revoked still stands: it is tried again, later each time.
    pub(crate) fn not_revoked(&self, over: Over, now: Duration) {
        let state = &mut *self.state.lock();
        if let Some(held) = state.get(over) {
            held.is_over = false;
            held.due = now + AGAIN.saturating_mul(1 << held.failures.min(16)).min(AGAIN_MOST);
            held.failures += 1;
            let due = held.due;
            state.by_due.insert((due, over.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    fn of(account: &Account, id: i64, ttl: i64, now: u64) -> Leases {
        let leases = Leases::new(account).unwrap();
        leases.book().unwrap();
        leases.add(Lease { id, ttl }, Duration::from_secs(now));
        leases
    }

    #[test]
    fn a_lease_of_an_id_that_was_granted_anew_has_its_own_time_and_is_booked_once() {
        let budget = Budget::new(1 << 20);
        let account = budget.root().child("leases", "");
        let leases = of(&account, 7, 5, 0);
        let over = leases.take_over(Duration::from_secs(5), 10);
        assert_eq!(over.len(), 1);
        for seconds in [10, 20] {
            leases.book().unwrap();
            leases.add(Lease { id: 7, ttl: seconds }, Duration::from_secs(5));
            assert_eq!((leases.ids(), account.used()), (vec![7], LEASE_BYTES));
        }
        leases.not_revoked(over[0], Duration::from_secs(6));
        leases.remove(over[0]);
        assert_eq!((leases.ids(), account.used()), (vec![7], LEASE_BYTES));
        assert!(leases.take_over(Duration::from_secs(24), 10).is_empty());
        let over = leases.take_over(Duration::from_secs(25), 10);
        leases.remove(over[0]);
        assert_eq!((leases.ids(), account.used()), (vec![], 0));
    }

    #[test]
    fn a_lease_that_cannot_end_is_tried_less_and_less_often() {
        let budget = Budget::new(1 << 20);
        let leases = of(&budget.root().child("leases", ""), 7, 5, 0);
        let mut tries = Vec::new();
        for at in (0..600_000).step_by(250) {
            let now = Duration::from_millis(at);
            for over in leases.take_over(now, 10) {
                tries.push(at);
                leases.not_revoked(over, now);
                assert_eq!((leases.ids(), leases.renew(7, now)), (vec![7], 0));
            }
        }
        let waits: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(tries[0], 5000);
        assert_eq!(waits[..9], [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 64_000]);
    }
}
