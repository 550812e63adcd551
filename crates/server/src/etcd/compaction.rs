//! Compaction by itself: what is older than a time, or than so many revisions, goes.
//!
//! ```text
//!   periodic  the revision is noted ten times in a period (of at most an hour); once a period's notes are there, the oldest of them is
//!             compacted to, each period
//!   revision  every five minutes, to so many revisions below the newest
//! ```

use ramekin_door_etcd::Door;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    Period(Duration),
    Revisions(i64),
}

const EVERY: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3600);
/// Notes in a period of an hour or less.
const NOTES: u32 = 10;
/// Notes at most, however long a period is.
const NOTES_MAX: u32 = 1000;

/// What is to be compacted to, from one look to the next.
struct Plan {
    retention: Retention,
    /// Between two looks.
    every: Duration,
    /// Revisions at the looks of a period, the oldest first, and how many looks a period has.
    notes: VecDeque<i64>,
    notes_most: usize,
    /// Looks until the next compaction, and from one to the next.
    left: u32,
    each: u32,
    last: i64,
}

impl Plan {
    fn new(retention: Retention) -> Self {
        let (every, period) = match retention {
            Retention::Revisions(_) => (EVERY, EVERY),
            Retention::Period(period) => ((period.min(HOUR) / NOTES).max(period / NOTES_MAX), period),
        };
        let in_one = |time: Duration| (time.as_millis() / every.as_millis().max(1)).clamp(1, NOTES_MAX.into()) as u32;
        Self {
            retention,
            every,
            notes: VecDeque::new(),
            notes_most: in_one(period) as usize,
            left: in_one(period),
            each: in_one(period.min(HOUR)),
            last: 0,
        }
    }

    /// What to compact to at this look.
    fn look(&mut self, newest: i64) -> Option<i64> {
        let to = match self.retention {
            Retention::Revisions(kept) => newest - kept,
            Retention::Period(_) => {
                if self.notes.len() == self.notes_most {
                    self.notes.pop_front();
                }
                let oldest = self.notes.front().copied().unwrap_or(newest);
                self.notes.push_back(newest);
                if self.left > 0 {
                    self.left -= 1;
                    return None;
                }
                oldest
            }
        };
        (to > self.last && to > 0).then_some(to)
    }

    fn compacted(&mut self, to: i64) {
        self.last = to;
        self.left = self.each.saturating_sub(1);
    }
}

/// Compacts for ever.
pub async fn run(door: Door, retention: Retention) {
    let mut plan = Plan::new(retention);
    let mut looks = interval(plan.every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(to) = plan.look(door.newest()) else { continue };
        if door.compact(to).await {
            tracing::info!("compacted to revision {to} by itself");
            plan.compacted(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_period_goes_each_period() {
        let mut plan = Plan::new(Retention::Period(Duration::from_secs(100)));
        assert_eq!(plan.every, Duration::from_secs(10));
        // At each look there are ten revisions more.
        let mut done = Vec::new();
        for look in 0..40 {
            if let Some(to) = plan.look(10 * look) {
                done.push((look, to));
                plan.compacted(to);
            }
        }
        assert_eq!(done, [(10, 10), (20, 110), (30, 210)]);
    }

    #[test]
    fn a_long_period_is_compacted_each_hour() {
        let mut plan = Plan::new(Retention::Period(24 * HOUR));
        assert_eq!((plan.every, plan.each, plan.notes_most), (HOUR / 10, 10, 240));
        let looks = (1..=250).filter(|look| plan.look(*look).inspect(|to| plan.compacted(*to)).is_some()).count();
        assert_eq!(looks, 1);
    }

    #[test]
    fn so_many_revisions_stay() {
        let mut plan = Plan::new(Retention::Revisions(100));
        assert_eq!((plan.every, plan.look(100), plan.look(150)), (EVERY, None, Some(50)));
        plan.compacted(50);
        assert_eq!((plan.look(150), plan.look(151)), (None, Some(51)));
    }
}
