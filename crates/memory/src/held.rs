//! What the job on this thread holds: so that a shortage which it makes itself is not taken for one that passes.
//!
//! ```text
//!   holding(what the request brought, job) ── reserve +n ── reserve +m ── drop -n ──►  n + m ...
//!                                                 short? all that it holds and what it asks for > what can ever be free
//!                                                        ─► NoMemory: waiting cannot help
//! ```
//!
//! Only accounts that keep what they have count: what a cache takes on behalf of a job is the cache's own.

use std::cell::Cell;

thread_local! {
    static HELD: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs a job that brought `bytes` with it; what it reserves on this thread and still holds is added to them.
pub fn holding<T>(bytes: u64, job: impl FnOnce() -> T) -> T {
    instead(|before| Some(before.unwrap_or(0) + bytes), job)
}

/// Runs what others do on the job's thread: what they release was never the job's.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    instead(|_| None, work)
}

/// Runs `work` with another count; the one before is back when it ends, also by a panic.
fn instead<T>(count: impl FnOnce(Option<u64>) -> Option<u64>, work: impl FnOnce() -> T) -> T {
    struct Before(Option<u64>);
    impl Drop for Before {
        fn drop(&mut self) {
            HELD.set(self.0);
        }
    }
    let before = Before(HELD.get());
    HELD.set(count(before.0));
    work()
}

/// Bytes that the job on this thread holds: what it brings with it where it goes on on another thread.
pub fn bytes() -> u64 {
    HELD.get().unwrap_or(0)
}

pub(crate) fn add(bytes: u64) {
    HELD.set(HELD.get().map(|held| held + bytes));
}

pub(crate) fn sub(bytes: u64) {
    HELD.set(HELD.get().map(|held| held.saturating_sub(bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Given;
    use crate::{Budget, ReclaimOrder};
    use ramekin_base::Kind;

    #[test]
    fn a_job_that_fills_the_budget_itself_does_not_wait_for_others() {
        let budget = Budget::new(100);
        let (job, other) = (budget.root().child("job", ""), budget.root().child("other", ""));
        other.set_min_reservation(20).unwrap();
        let mut theirs = other.try_reserve(50).unwrap();
        let brought = job.try_reserve(10).unwrap();
        holding(10, || {
            let mut more = job.try_reserve(20).unwrap();
            // 10 + 20 + 40 may be free one day, 10 + 20 + 51 never.
            assert_eq!(more.grow(40).unwrap_err().kind(), Kind::Busy);
            let error = more.grow(51).unwrap_err();
            assert_eq!(error.kind(), Kind::NoMemory);
            assert!(error.message().contains("at most 80"), "{error}");
            drop(more);
            assert_eq!(job.try_reserve(70).unwrap_err().kind(), Kind::Busy);
        });
        theirs.shrink(50);
        drop(brought);
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn what_others_give_back_is_still_held_by_the_job() {
        let budget = Budget::new(100);
        let (job, kept) = (budget.root().child("job", ""), budget.root().child("kept", ""));
        budget.add_reclaimer(ReclaimOrder::Pages, Given::once(kept.try_reserve(30).unwrap()));
        holding(0, || {
            let mut held = job.try_reserve(70).unwrap();
            assert_eq!(held.grow(31).unwrap_err().kind(), Kind::NoMemory);
            assert_eq!((bytes(), budget.reserved()), (70, 70));
        });
    }

    #[test]
    fn a_minimum_reservation_is_not_held_by_the_job_that_moves_it() {
        let budget = Budget::new(100);
        let [merge, segments] = ["merge", "segments"].map(|name| budget.root().child(name, ""));
        holding(10, || {
            merge.set_min_reservation(40).unwrap();
            assert_eq!(bytes(), 10);
            merge.give_min_reservation_to(15, &segments);
            merge.lend_min_reservation(25);
            drop((merge, segments));
            assert_eq!(bytes(), 10);
        });
    }

    #[test]
    fn what_a_cache_takes_is_its_own() {
        let budget = Budget::new(100);
        let pages = budget.root().child("pages", "").reclaimable();
        holding(0, || {
            let _cached = pages.try_reserve(60).unwrap();
            assert_eq!(bytes(), 0);
        });
    }
}
