//! What is wrong with a part of the process, each fault by its kind, until its own success ends it.
//!
//! ```text
//!   work ── fails ──► Fault { why, how often, when it is tried again: later and later } ── the next one succeeds ──► gone
//! ```
//!
//! A fault is said once in the log, when it is new or says something else. There is one of a kind at most, so they are as
//! bounded as their kinds are.

use crate::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What may fail: its text says so, and the worst comes first in its order.
pub trait FaultKind: Clone + Ord + fmt::Display {
    /// Says in the log that it failed, in the part `name`.
    fn say(&self, name: &str, error: &Error);

    /// How long it is not tried again after it failed so often in turn.
    fn pause_ms(&self, times: u32) -> u64 {
        pause_ms(times)
    }

    /// Work that is put off by such an error is no fault: it only waits.
    fn is_put_off(&self, _: &Error) -> bool {
        false
    }
}

/// The first wait after a failure, and how often it doubles: up to 32 s.
const RETRY_MS: u64 = 500;
const RETRY_DOUBLINGS: u32 = 6;
/// What lacks only what others have at the moment is tried again after so long at most: they may let go of it at any time.
const BUSY_MS: u64 = 2_000;

/// How long work is not tried again after it failed so often in turn.
pub fn pause_ms(times: u32) -> u64 {
    RETRY_MS << times.min(RETRY_DOUBLINGS)
}

/// What failed, and why.
#[derive(Debug, Clone)]
pub struct Fault<K> {
    pub kind: K,
    pub error: Error,
    times: u32,
    /// By the owner's clock: not tried again before.
    retry_ms: u64,
}

impl<K> Fault<K> {
    /// Whether it is not yet time to try again.
    pub fn waits(&self, now_ms: u64) -> bool {
        now_ms < self.retry_ms
    }
}

impl<K: fmt::Display> fmt::Display for Fault<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.error)
    }
}

/// The faults of a part of the process.
pub struct Health<K> {
    faults: Mutex<BTreeMap<K, Fault<K>>>,
    /// A look at how many there are costs no lock.
    count: AtomicUsize,
}

impl<K> Default for Health<K> {
    fn default() -> Self {
        Self { faults: Mutex::default(), count: AtomicUsize::new(0) }
    }
}

impl<K: FaultKind> Health<K> {
    /// Takes note of what became of a piece of work: a success ends its own fault and no other.
    pub fn note<T>(&self, kind: K, name: &str, outcome: &Result<T>, now_ms: u64) {
        match outcome {
            Ok(_) => self.clear(&kind),
            Err(error) if matches!(error.kind(), Kind::Closed | Kind::Cancelled) => {}
            Err(error) => self.raise(kind, Some(name), error, now_ms),
        }
    }

    /// A fault of the part `name`; `None`: somebody has said it already.
    pub fn raise(&self, kind: K, name: Option<&str>, error: &Error, now_ms: u64) {
        self.change(|faults| {
            let before = faults.get(&kind);
            let times = before.map_or(0, |fault| fault.times) + 1;
            if let Some(name) = name.filter(|_| before.is_none_or(|fault| fault.error.message() != error.message())) {
                kind.say(name, error);
            }
            let pause_ms = kind.pause_ms(times);
            let retry_ms = now_ms + if error.kind() == Kind::Busy { pause_ms.min(BUSY_MS) } else { pause_ms };
            faults.insert(kind.clone(), Fault { kind, error: error.clone(), times, retry_ms });
        });
    }

    pub fn clear(&self, kind: &K) {
        self.change(|faults| _ = faults.remove(kind));
    }

    /// Ends the faults that `is_over` names.
    pub fn end(&self, is_over: impl Fn(&Fault<K>) -> bool) {
        self.change(|faults| faults.retain(|_, fault| !is_over(fault)));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<K, Fault<K>>)) {
        let mut faults = self.faults.lock();
        change(&mut faults);
        self.count.store(faults.len(), Ordering::Relaxed);
    }

    /// Whether nothing is wrong. Costs no lock.
    pub fn is_well(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether it failed and it is not yet time to try again.
    pub fn waits(&self, kind: &K, now_ms: u64) -> bool {
        self.of(kind).is_some_and(|fault| fault.waits(now_ms))
    }

    /// The fault of one kind.
    pub fn of(&self, kind: &K) -> Option<Fault<K>> {
        self.faults.lock().get(kind).cloned()
    }

    /// All of them, the worst first.
    pub fn faults(&self) -> Vec<Fault<K>> {
        self.faults.lock().values().cloned().collect()
    }

    /// What the worst of all says that are more than put off.
    pub fn worst(&self) -> Option<String> {
        let faults = self.faults.lock();
        faults.values().find(|fault| !fault.kind.is_put_off(&fault.error)).map(Fault::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Work {
        Bad,
        Worse,
    }

    impl fmt::Display for Work {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{self:?}")
        }
    }

    impl FaultKind for Work {
        fn say(&self, name: &str, error: &Error) {
            SAID.with_borrow_mut(|said| said.push(format!("{name} {self} {error}")));
        }
    }

    #[test]
    fn a_fault_is_said_when_it_is_new_or_says_something_else() {
        let health = Health::default();
        let fail = |text: &str| health.note(Work::Bad, "a", &Err::<(), _>(Error::io(text)), 0);
        ["one", "one", "two"].into_iter().for_each(fail);
        health.note(Work::Bad, "a", &Ok(()), 0);
        fail("two");
        health.raise(Work::Worse, None, &Error::bug("said elsewhere"), 0);
        assert_eq!(SAID.take(), ["a Bad one", "a Bad two", "a Bad two"]);
        assert_eq!((health.worst().as_deref(), health.faults().len()), (Some("Bad: two"), 2));
    }

    #[test]
    fn only_its_own_success_ends_a_fault_and_who_looks_without_a_lock_sees_it() {
        let health = Health::default();
        assert!(health.is_well());
        health.note(Work::Bad, "", &Err::<(), _>(Error::io("no disk")), 7);
        health.note(Work::Worse, "", &Ok(()), 7);
        health.note(Work::Worse, "", &Err::<(), _>(Error::closed("stopping")), 7);
        assert!(!health.is_well() && health.waits(&Work::Bad, 7) && !health.waits(&Work::Bad, 1_007));
        health.end(|fault| fault.waits(1_007));
        assert!(!health.is_well());
        health.end(|fault| !fault.waits(1_007));
        assert!(health.is_well() && health.of(&Work::Bad).is_none());
    }
}
