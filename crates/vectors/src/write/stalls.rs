//! When a write waits: for memory of what is new, for merges that are behind, for a log that is too long.
//!
//! ```text
//!   no room for its points ─► what is largest is rotated, flushed ─┐
//!   no room for its patches ─► a patch compaction ─────────────────┼─► the collection's writes stay in the queue, others go by
//!   merges are behind ─► a pause for each that it lacks ───────────┤
//!   the log is too long ─► what pins it is written out ────────────┘
//! ```

use crate::collection::Collection;
use crate::inner::idle;
use crate::memtable::CLEAN;
use crate::state::request::Completion;
use crate::write::Writer;
use ramekin_base::{Error, Kind, Result};
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A write that fills a memtable makes those after it wait so long for each segment that merges are behind, ...
const PAUSE_FOR_ONE: Duration = Duration::from_millis(50);
/// ... and no longer than this.
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// A write that waits for memory is tried again after so long, whether something was written out or not.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Why a collection takes no write for now.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    /// There is no memory before the next flush or patch compaction after this many; it is looked at again at this time of the clock.
    Flush(u64, Duration),
    /// Merges are behind: until this time of the clock.
    Until(Duration),
}

/// Patches of one collection are worth a run if they are one part of so many of what all may be.
const WORTH_A_RUN: u64 = 8;

/// What new points take beside their own bytes: a chunk that is begun, and the step in which memory is booked.
const BESIDE_POINTS: u64 = 256 << 10;

impl Writer {
    /// A flush has its memory. False: readers still use it; the write waits for them in the queue, as its client does.
    pub(super) fn wake(&self, answer: &Completion) -> Result<bool> {
        match idle::try_wake(&self.shared) {
            Err(error) if self.may_wait(answer, &error) => Ok(false),
            Err(_) => idle::wake(&self.shared).map(|()| true),
            Ok(()) => Ok(true),
        }
    }

    /// Whether a write that finds no memory, and nothing that could be written out for it, waits: others may let go of
    /// some, and its client still waits for it.
    pub(super) fn may_wait(&self, answer: &Completion, error: &Error) -> bool {
        let is_wanted = answer.asker.as_ref().is_some_and(|asker| !asker.is_cancelled());
        error.kind() == Kind::Busy
            && is_wanted
            && !self.shared.single_threaded.load(Ordering::SeqCst)
            && !self.shared.is_closing()
    }

    /// When a write that waits for memory is tried again.
    pub(super) fn soon(&self) -> Duration {
        self.shared.options.clock.now() + LOOK_AGAIN
    }

    /// Whether a change is to go on later: merges of its collection are behind, or the log is.
    pub(super) fn is_slowed(&self, collection: &Collection) -> bool {
        let now = self.shared.options.clock.now();
        let is_behind = matches!(self.holds.get(&collection.number), Some(Hold::Until(until)) if *until > now);
        let pinned = self.log.end().saturating_sub(self.shared.log_from());
        let is_long = pinned > self.shared.limits().log_bytes * 3 / 2 && self.shared.has_waiting();
        !self.is_alone() && (is_behind || is_long)
    }

    /// Nobody else does anything meanwhile, or not for long.
    pub(super) fn is_alone(&self) -> bool {
        self.shared.single_threaded.load(Ordering::SeqCst) || self.shared.is_closing()
    }

    /// Whether the log is so long that a write waits in the queue until something is written out, rather than let it grow without
    /// a bound: one to the collection that pins most of it, since that is what is written out then; any, once it is longer still.
    pub(super) fn waits_for_log(&mut self, collection: &Collection) -> bool {
        let (end, bound) = (self.log.end(), 2 * self.shared.limits().log_bytes);
        let pinned = end.saturating_sub(self.shared.log_from());
        if pinned <= bound || self.is_alone() {
            return false;
        }
        let seen = self.shared.flushed.count();
        let pins = || {
            let (own, collections) = (collection.pinned_from(CLEAN), self.shared.collections());
            collections.iter().all(|other| own <= other.pinned_from(CLEAN))
        };
        let waits = self.shared.has_waiting() && self.shared.check_flushing().is_ok() && (pinned > 2 * bound || pins());
        if waits {
            self.shared.wake_background();
            self.hold(collection, Hold::Flush(seen, self.soon()));
        }
        waits
    }

    /// Promises `bytes` in the collection's active part; where there is no room, rotates it and lets
    /// the background flush. False: its writes wait in the queue, which is the second step of yielding.
    pub(super) fn room(&mut self, collection: &Arc<Collection>, bytes: u64) -> Result<bool> {
        let limits = self.shared.limits();
        if bytes > limits.memtable_bytes {
            let most = ramekin_base::Size(limits.memtable_bytes);
            return Err(Error::no_memory(format!(
                "{} needed for the points of one request, and new points may use {most} under this budget; send fewer at a time",
                ramekin_base::Size(bytes)
            )));
        }
        loop {
            let view = collection.view.load_full();
            let used = view.active.read().bytes();
            if used > 0 && used + bytes > limits.flush_bytes {
                self.flush();
                collection.rotate()?;
                self.shared.wake_background();
                self.slow_down(collection);
                continue;
            }
            let before = self.shared.flushed.count();
            match self.shared.promise_points(&view.active, bytes) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind().is_memory() => {
                    self.flush();
                    if !self.shared.rotate_largest()? && !self.shared.has_immutable() {
                        let promise = || self.shared.promise_points(&view.active, bytes);
                        let promised = idle::instead_of_merge(&self.shared, bytes + BESIDE_POINTS, promise);
                        return promised.map(|()| true).map_err(|_| error);
                    }
                    if !self.flush_now(collection, before)? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Promises memory for changed payloads; where there is none, lets the background write some out, or new points.
    pub(super) fn patches(&mut self, collection: &Arc<Collection>, points: usize) -> Result<Option<Reservation>> {
        loop {
            let before = self.shared.flushed.count();
            match self.shared.promise_patches(points) {
                Err(error) if error.kind().is_memory() => {
                    self.flush();
                    let goes = self.shared.compact_largest_patches()
                        || self.shared.rotate_most_changed()?
                        // New points hold the memory, and no changed payload.
                        || !self.shared.are_patches_full(points) && self.shared.rotate_largest()?;
                    if !goes && !self.shared.has_waiting() {
                        if self.is_alone() {
                            return Err(error);
                        }
                        // Views of readers hold it, and let go of it when they end.
                        self.hold(collection, Hold::Flush(before, self.soon()));
                        return Ok(None);
                    }
                    if !self.flush_now(collection, before)? {
                        return Ok(None);
                    }
                }
                promised => return promised.map(Some),
            }
        }
    }

    /// Memory comes with the next flush or patch compaction, which is done here where there is no background. False: the collection's
    /// writes wait for it in the queue.
    pub(super) fn flush_now(&mut self, collection: &Collection, seen: u64) -> Result<bool> {
        if self.shared.single_threaded.load(Ordering::SeqCst) {
            return match crate::background::flush_one(&self.shared)? {
                true => Ok(true),
                false => Err(Error::busy("nothing of what is new can be written out")),
            };
        }
        if self.shared.is_closing() {
            return Err(Error::closed("the server is shutting down"));
        }
        self.shared.wake_background();
        self.shared.check_flushing()?;
        self.hold(collection, Hold::Flush(seen, self.soon()));
        Ok(false)
    }

    /// Slows the collection's writes down while its merges are behind: searches pay for each segment. Never stops them,
    /// however long a merge takes.
    pub(super) fn slow_down(&mut self, collection: &Arc<Collection>) {
        let compaction_debt = crate::background::merge_debt(&self.shared, collection) as u32;
        if compaction_debt > 0 && !self.shared.single_threaded.load(Ordering::SeqCst) {
            let pause = PAUSE_FOR_ONE.saturating_mul(compaction_debt).min(PAUSE_MOST);
            self.hold(collection, Hold::Until(self.shared.options.clock.now() + pause));
        }
    }

    pub(super) fn hold(&mut self, collection: &Collection, hold: Hold) {
        self.shared.waited_ms.store(self.shared.now_ms(), Ordering::Relaxed);
        self.holds.insert(collection.number, hold);
    }

    /// Flushes and patch compactions what pins the log for too long, and trims what no one needs.
    pub(super) fn keep_bounds(&mut self) {
        if let Err(error) = self.log.trim(self.shared.trim_to.load(Ordering::SeqCst)) {
            tracing::warn!("could not trim the log: {error}");
        }
        let limits = self.shared.limits();
        let needed = self.log.end().saturating_sub(self.shared.pinned_bytes());
        if self.shared.log_from() < needed
            && let Err(error) = self.shared.unpin(needed)
        {
            tracing::warn!("could not rotate the oldest memtable: {error}");
        }
        // Half full, so that they are written out before a change has to wait for it.
        if self.shared.accounts.patches.used() > limits.patch_bytes / 2
            && self.shared.largest_patches() > limits.patch_bytes / WORTH_A_RUN
        {
            _ = self.shared.has_waiting() || self.shared.compact_largest_patches();
        }
        // Where nobody does it meanwhile, so that the log does not grow without a bound; else writes wait in the queue.
        while self.shared.single_threaded.load(Ordering::SeqCst)
            && self.log.end().saturating_sub(self.shared.log_from()) > 2 * limits.log_bytes
            && self.shared.has_waiting()
        {
            let before = self.shared.flushed.count();
            if self.shared.flush_or_wait(before).is_err() {
                break;
            }
        }
    }
}
