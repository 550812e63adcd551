//! A full disk: who may still write, and how it passes.
//!
//! ```text
//!   a write finds no room ──► full: what needs more room is refused, `/readyz` says why
//!        │                    deletes, names that go, the manifest, flushes, patch compactions and merges use the reserve
//!        ▼
//!   the background: flushes what pins the log · drops dead segments · rewrites what is mostly dead · looks again
//!        │
//!        └── the reserve is whole again, and the log's next file has room ──► writes go on
//! ```
//!
//! While it is not full the reserve is whole, so whoever needs more room never takes of it.

use crate::collection::health::FaultKind;
use crate::inner::StoreInner;
use crate::state::full::Using;
use ramekin_base::{Error, Kind, Result, Size};
use ramekin_storage::ReserveClaim;
use std::sync::atomic::Ordering;

/// Between two looks whether there is room again.
const LOOK_EVERY_MS: u64 = 500;
/// While the disk is full the log may pin this part of the reserve, so that its files go, and one file has as many bytes.
const PART_OF_RESERVE: u64 = 16;
const FULL_LOG_BYTES: (u64, u64) = (64 << 10, 256 << 10);

impl StoreInner {
    /// Log that may be pinned before the oldest part is flushed.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        if self.full.is_on() { self.full_log_bytes() } else { self.limits().log_bytes }
    }

    /// Bytes of a file of the log on a full disk, and of what may be pinned of it.
    pub(crate) fn full_log_bytes(&self) -> u64 {
        let (_, wanted) = self.storage.reserve().bytes();
        (wanted / PART_OF_RESERVE).clamp(FULL_LOG_BYTES.0, FULL_LOG_BYTES.1)
    }

    /// Does what frees space: where the disk is full, with what is kept for that. `work` fails whole.
    pub(crate) fn frees<T>(&self, claim: ReserveClaim, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut using = None;
        loop {
            match work() {
                Err(error) if error.kind() == Kind::NoSpace => {
                    using.get_or_insert_with(|| {
                        self.full.users.fetch_add(1, Ordering::SeqCst);
                        Using(&self.full)
                    });
                    self.set_full(&error);
                    if !self.storage.reserve().give(claim)? {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// The disk has no room for what `error` says.
    pub(crate) fn set_full(&self, error: &Error) {
        if !self.full.on.swap(true, Ordering::SeqCst) {
            self.health.raise(FaultKind::Full, Some(""), error, self.now_ms());
            self.wake_background();
        }
    }

    /// Before a write that needs more room: fails while the disk is full.
    pub(crate) fn admit(&self) -> Result<()> {
        if !self.full.is_on() || self.look_for_room()? {
            return Ok(());
        }
        let (bytes, wanted) = self.storage.reserve().bytes();
        let needed = wanted.saturating_sub(bytes) + self.limits().log_file_bytes();
        let free = self.options.disk.space(self.storage.folder()).map_or(0, |space| space.free);
        Err(Error::no_space(format!(
            "the disk is full: {} must be free for the log and for the reserve, and {} are; make room, or delete points, \
             indexes or collections, which goes on, as reading does",
            Size(needed),
            Size(free)
        )))
    }

    /// When a store opens, and when the budget has moved: makes the reserve, and sees whether the log can grow.
    pub(crate) fn begin_reserve(&self) -> Result<()> {
        self.storage.reserve().want(self.limits().reserve_bytes())?;
        if self.full.users.load(Ordering::SeqCst) > 0 {
            return Ok(());
        }
        match self.make_reserve() {
            Err(error) if error.kind() == Kind::NoSpace => {
                self.set_full(&error);
                Ok(())
            }
            made => made,
        }
    }

    /// Looks, at bounded intervals, whether there is room again. True: there is.
    fn look_for_room(&self) -> Result<bool> {
        let (now, looked) = (self.now_ms(), self.full.looked_ms.load(Ordering::SeqCst));
        let is_due = now.saturating_sub(looked) >= LOOK_EVERY_MS || self.single_threaded.load(Ordering::SeqCst);
        let is_mine = is_due
            && self.full.users.load(Ordering::SeqCst) == 0
            && self.full.looked_ms.compare_exchange(looked, now, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_mine {
            match self.make_reserve() {
                Err(error) if error.kind() == Kind::NoSpace => {}
                made => made?,
            }
        }
        Ok(!self.full.is_on())
    }

    /// Makes the reserve whole, with room for a file of the log beside it: then the disk is not full.
    fn make_reserve(&self) -> Result<()> {
        self.storage.reserve().make(self.limits().log_file_bytes())?;
        if self.full.on.swap(false, Ordering::SeqCst) {
            self.health.clear(&FaultKind::Full);
            self.collections().iter().for_each(|collection| collection.health.room_again());
            tracing::info!("the disk has room again, writes go on");
        }
        Ok(())
    }

    /// One look of the flushing thread while the disk is full. True: it is no more.
    pub(crate) fn full_disk_step(&self) -> Result<bool> {
        if !self.full.is_on() {
            return Ok(false);
        }
        if self.look_for_room()? {
            return Ok(true);
        }
        // The writer trims the log, and has what pins it flushed.
        if !self.single_threaded.load(Ordering::SeqCst) && self.queue.is_empty() {
            _ = self.queue.put(crate::state::request::Request::Look);
        }
        Ok(false)
    }
}
