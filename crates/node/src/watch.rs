//! The watch: one thread that wakes each second and compares what is booked with what is so.
//!
//! ```text
//!   allocator gives back what it no longer needs
//!   ledger: booked bytes against the kernel's charge ──► a line in the log when they part by more than 5 %
//!   data folder: still the one that was locked?      ──► if not, a fault: the server stops with an error
//! ```

use parking_lot::{Condvar, Mutex};
use ramekin_base::{Error, Result, Size};
use ramekin_disk::FolderLock;
use ramekin_memory::{Budget, Ledger, allocator_decay, allocator_resident};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the book is compared with the scales.
const EVERY: Duration = Duration::from_secs(1);
/// Rounds between two lines about the same finding.
const QUIET_ROUNDS: u32 = 60;
const STACK_BYTES: usize = 128 << 10;

/// Called once, with what makes going on pointless.
pub type Fault = Box<dyn FnOnce(Error) + Send>;

/// The running watch.
pub(crate) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(budget: Budget, lock: Arc<FolderLock>, on_fault: Fault) -> Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let of_thread = stop.clone();
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || run(&of_thread, &budget, &lock, on_fault))
            .map_err(|error| Error::io(format!("the kernel refused the watch thread: {error}")))?;
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

fn run(stop: &(Mutex<bool>, Condvar), budget: &Budget, lock: &FolderLock, on_fault: Fault) {
    let mut on_fault = Some(on_fault);
    let mut quiet = 0;
    let mut stopped = stop.0.lock();
    while !*stopped {
        stop.1.wait_for(&mut stopped, EVERY);
        if *stopped {
            break;
        }
        drop(stopped);
        allocator_decay();
        quiet = report(&Ledger::take(budget), quiet);
        if let (Err(error), Some(on_fault)) = (lock.check(), on_fault.take_if(|_| lock.check().is_err())) {
            on_fault(error);
        }
        stopped = stop.0.lock();
    }
}

/// Writes a line when the book and the scales part by more than 5 % of the budget; then is quiet for a while.
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
        "ledger: {} are booked, the kernel charges {}: the difference is more than 5 % of the budget of {} \
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
    ledger.unaccounted_bytes.unsigned_abs() > ledger.budget_bytes / 20
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
    fn a_difference_is_reported_once_and_again_after_a_while() {
        assert_eq!(report(&ledger(5 << 20), 0), 0);
        let mut quiet = report(&ledger(-(6 << 20)), 0);
        assert_eq!(quiet, QUIET_ROUNDS);
        for _ in 0..QUIET_ROUNDS {
            quiet = report(&ledger(6 << 20), quiet);
        }
        assert_eq!(quiet, 0);
        assert_eq!(report(&ledger(0), 30), 0);
    }
}
