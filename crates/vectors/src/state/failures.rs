//! Builds of indexes that failed, and when each is tried again.

use parking_lot::Mutex;
use ramekin_base::{Kind, Result};
use ramekin_fields::Path;
use std::collections::BTreeMap;

/// Builds that failed: of which segment and field, how often, and when they are tried again by the clock of the store.
#[derive(Default)]
pub(crate) struct Failures(Mutex<BTreeMap<(String, Path), (u32, u64)>>);

/// Failures that are kept. Where there are more the one whose turn comes first makes way: segments that are gone are among those.
const FAILURES_MAX: usize = 1024;
/// After a failure a build waits for so long, twice as long after each further one, up to 64 times.
const PAUSE_MS: u64 = 1_000;
/// When it is tried again what cannot be built.
const NEVER: u64 = u64::MAX;

impl Failures {
    /// Whether a build is not tried again under this budget.
    pub(crate) fn is_given_up(&self, key: &(String, Path)) -> bool {
        self.0.lock().get(key).is_some_and(|(_, until)| *until == NEVER)
    }

    /// The budget is another one.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// How often a build failed; `None`: it is not its turn yet.
    pub(crate) fn count(&self, key: &(String, Path), now_ms: u64) -> Option<u32> {
        let (count, until) = self.0.lock().get(key).copied().unwrap_or((0, 0));
        (now_ms >= until).then_some(count)
    }

    pub(crate) fn note<T>(&self, key: (String, Path), built: &Result<T>, now_ms: u64) {
        let mut held = self.0.lock();
        let count = held.get(&key).map_or(0, |(count, _)| *count) + 1;
        let Err(error) = built else {
            held.remove(&key);
            return;
        };
        // What finds too little memory where it has all that there can be will find no more.
        let is_final = error.kind() == Kind::NoMemory && count > 1;
        held.insert(key, (count, if is_final { NEVER } else { now_ms + (PAUSE_MS << count.min(6)) }));
        if held.len() > FAILURES_MAX {
            let first = held.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| key.clone());
            first.and_then(|key| held.remove(&key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Error;

    #[test]
    fn builds_that_fail_wait_longer_and_longer_however_many_there_are() {
        let key = |segment: usize| (format!("{segment}"), Path::parse("a").unwrap());
        let failures = Failures::default();
        let failed = &Err::<(), _>(Error::io("planted"));
        failures.note(key(0), failed, 0);
        failures.note(key(0), failed, 0);
        assert_eq!((failures.count(&key(0), 3_999), failures.count(&key(0), 4_000)), (None, Some(2)));
        (1..2 * FAILURES_MAX).for_each(|segment| failures.note(key(segment), failed, segment as u64));
        assert_eq!(failures.0.lock().len(), FAILURES_MAX);
        assert_eq!(failures.count(&key(2 * FAILURES_MAX - 1), 2_000), None, "the newest waits as the first did");
        failures.note(key(0), &Ok(()), 0);
        assert_eq!(failures.count(&key(0), 0), Some(0));
    }

    #[test]
    fn what_cannot_be_built_under_a_budget_is_tried_twice_and_again_under_another() {
        let (key, failures) = (("segment".to_owned(), Path::parse("a").unwrap()), Failures::default());
        let never = &Err::<(), _>(Error::no_memory("too large"));
        failures.note(key.clone(), never, 0);
        assert!(failures.count(&key, 2_000).is_some() && !failures.is_given_up(&key));
        failures.note(key.clone(), never, 2_000);
        assert!(failures.count(&key, u64::MAX - 1).is_none() && failures.is_given_up(&key));
        failures.forget();
        assert_eq!(failures.count(&key, 0), Some(0));
    }
}
