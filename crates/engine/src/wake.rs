//! A store that nobody writes to holds next to nothing; what a write needs is taken when the first one comes.
//!
//! ```text
//!   asleep   an empty memtable a tree                                  ≤ 512 KiB with three trees, 96 KiB for each one more
//!     │  a command changes something: it waits
//!     ▼
//!   wake     flush, merge and memtables have theirs for good ─► buffer of the log ─► room in it for two groups ─► staged anew
//!     ▲  there is no memory: the command is refused, and the next one tries again
//!     │
//!   sleep    nothing was written for a while, nothing waits, all is durable, and memtables hold little
//! ```
//!
//! Awake, sizes follow the share: memory for good and memtables at once, a group and the buffer when they are empty. A unit that is
//! larger than a group takes waits as one does that finds the store asleep: what it needs is taken for the moment, or it is refused.

use crate::commit::LogSide;
use crate::engine::Inner;
use crate::execute::Answer;
use crate::group::Group;
use crate::jobs::{IDLE_BYTES, IDLE_MS};
use crate::options::{HELD_TIMES, KEPT_FOR_LARGE, Limits};
use crate::store::Store;
use crate::tree::{CLEAN, Draft, Tree};
use ramekin_base::{Error, Result};
use ramekin_runs::compaction::{due, flush_bytes};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So long whoever finds no memory waits for a larger share before it is refused.
const SHARE_PATIENCE: Duration = Duration::from_secs(1);

impl<S: Store> Inner<S> {
    pub(crate) fn is_asleep(&self) -> bool {
        self.exec.lock().core.group.is_asleep()
    }

    /// Takes what writes need, or what a large one does, and stages what waited for that; or refuses it.
    pub(crate) fn wake(&self) -> Result<()> {
        let (woken, told) = {
            let mut side = self.log.lock();
            self.check_log()?;
            self.exec.lock().check_open()?;
            let wants_large = std::mem::take(&mut self.exec.lock().core.wants_large);
            let gives_back = wants_large > 0 && !self.is_asleep() && (self.flushes_large() || self.merges());
            let woken = match self.is_asleep() {
                true => self.equip(&mut side).map(|()| self.go_on(&mut side)).inspect_err(|_| self.lay_down(&mut side)),
                false if wants_large > 0 => self.enlarge(&mut side, wants_large),
                false => return Ok(()),
            };
            match woken {
                Ok(told) => {
                    self.exec.lock().core.without_share = None;
                    (Ok(()), told)
                }
                Err(error) if error.kind().is_memory() && !self.is_closing() && (gives_back || self.awaits_share()) => {
                    self.exec.lock().core.wants_large = wants_large;
                    return Ok(());
                }
                Err(error) => {
                    let told = self.refuse_writers(&error);
                    (Err(error), told)
                }
            }
        };
        self.tell(told);
        woken
    }

    /// Whether a large unit of before is about to be flushed: the next one waits for what that gives back.
    fn flushes_large(&self) -> bool {
        let mut exec = self.exec.lock();
        let most = exec.core.memtable_bytes;
        if exec.core.held_bytes() > most
            && let Some(tree) = exec.core.largest()
        {
            self.rotate(&mut exec, tree);
        }
        self.frozen_bytes() > most && self.health.faults().is_empty()
    }

    /// Whether a share with which it takes any unit may come: it has less, and has not been without for long. Who gives shares sees
    /// that somebody waits.
    fn awaits_share(&self) -> bool {
        let (now, mut exec) = (self.options.clock.now(), self.exec.lock());
        let working = self.lasting() + self.least_limits().awake_bytes() + KEPT_FOR_LARGE;
        if !self.options.threads || self.share.load(Ordering::Relaxed) >= working {
            return false;
        }
        let since = *exec.core.without_share.get_or_insert(now);
        let waits = now < since + SHARE_PATIENCE;
        if !waits {
            exec.core.without_share = None;
        }
        waits
    }

    /// Whether a merge is under way: a large unit takes what it has, when it has ended.
    fn merges(&self) -> bool {
        self.files.accounts.merge.used() > 0 && self.health.faults().is_empty()
    }

    /// The next group takes a unit of so many bytes, for which there is memory. Whoever waits has the first place in it.
    fn enlarge(&self, side: &mut LogSide, unit_bytes: usize) -> Result<Vec<Answer<S>>> {
        let (limits, bytes) = (self.limits(), unit_bytes as u64);
        let take = |limits: Limits, more| {
            self.exec.lock().core.large_bytes = more;
            self.hold(&limits).and_then(|()| Group::new(limits.with_unit(unit_bytes), &self.files.accounts.log))
        };
        // Most units take little more than their bytes. What a merge has for good it can do without for the moment.
        let large = take(limits, HELD_TIMES * bytes).or_else(|_| take(limits, bytes));
        let made = large.or_else(|_| take(limits.without_merge(), bytes)).and_then(|large| {
            let usual = std::mem::replace(&mut side.group, large);
            self.make_room(side).inspect_err(|_| side.group = usual)
        });
        match made {
            Ok(()) => Ok(self.hand_on(side)),
            Err(error) => {
                self.exec.lock().core.large_bytes = 0;
                _ = self.hold(&limits);
                Err(error)
            }
        }
    }

    fn equip(&self, side: &mut LogSide) -> Result<()> {
        let limits = self.limits();
        self.hold(&limits)?;
        side.log.set_buffer(limits.log_buffer)?;
        let group = || Group::new(limits, &self.files.accounts.log);
        side.group = group()?;
        let filled = group()?;
        // On a full disk the store wakes all the same, and refuses what adds.
        let room = self.make_room_beside(side, filled.room());
        let mut exec = self.exec.lock();
        exec.core.group = filled;
        exec.refuse(room.err());
        exec.queue.woken();
        Ok(())
    }

    /// Memory for good: for what frees memory, and for memtables, which grow where nobody may wait for others to give way. Those that
    /// a larger share left are flushed with what they need, and others take their place meanwhile.
    pub(crate) fn hold(&self, limits: &Limits) -> Result<()> {
        let (mut all, mut largest) = (0, 0);
        let more = {
            let exec = self.exec.lock();
            let drafts = exec.core.drafts.iter().map(|draft| draft.memtable.held_bytes());
            let frozen = self.trees.iter().map(Tree::frozen_bytes);
            for bytes in drafts.chain(frozen) {
                (all, largest) = (all + bytes as u64, largest.max(bytes as u64));
            }
            exec.core.large_bytes
        };
        let accounts = &self.files.accounts;
        if limits.merge_work == 0 {
            accounts.merge.set_min_reservation(0)?;
        }
        accounts.flush.set_min_reservation(limits.flush_work.max(flush_bytes(largest)))?;
        accounts.memtables.set_min_reservation(limits.memtables_for(all) + more)?;
        self.exec.lock().core.memtable_bytes = limits.memtable_bytes;
        accounts.merge.set_min_reservation(limits.merge_work)
    }

    fn lay_down(&self, side: &mut LogSide) {
        side.group = Group::asleep();
        // None of these can fail: less is asked for.
        _ = side.log.set_buffer(0);
        let accounts = &self.files.accounts;
        for account in [&accounts.flush, &accounts.merge, &accounts.memtables] {
            _ = account.set_min_reservation(0);
        }
    }

    /// Commands that wait to change something are refused; others go on.
    fn refuse_writers(&self, why: &Error) -> Vec<Answer<S>> {
        let mut exec = self.exec.lock();
        exec.core.cannot_wake = Some(why.clone());
        exec.queue.woken();
        exec.serve(&self.around());
        exec.core.cannot_wake = None;
        std::mem::take(&mut exec.ready)
    }

    /// After a start: what the replay brought back must be flushed one day; without that the store sleeps.
    pub(crate) fn settle(&self) -> Result<()> {
        let is_clean = self.exec.lock().core.drafts.iter().all(|draft| draft.from == CLEAN);
        match is_clean {
            true => self.lay_down(&mut self.log.lock()),
            false => self.wake()?,
        }
        Ok(())
    }

    /// The share has moved.
    pub(crate) fn resize(&self, share: u64) -> Result<()> {
        self.share.store(share, Ordering::Relaxed);
        self.flush_due.raise();
        let told = {
            let mut side = self.log.lock();
            if side.group.is_asleep() {
                // Somebody may have waited for it.
                self.commit_due.raise();
                return Ok(());
            }
            self.hold(&self.limits())?;
            self.fit(&mut side);
            // Where the log has no room for the other group, nobody is to fill it.
            if self.make_room(&mut side).is_ok() {
                let mut exec = self.exec.lock();
                if exec.core.group.is_empty() {
                    std::mem::swap(&mut exec.core.group, &mut side.group);
                }
            }
            self.go_on(&mut side)
        };
        self.tell(told);
        Ok(())
    }

    /// The group at hand and the log's buffer are empty: from now on they are as large as the share says, if there is memory.
    pub(crate) fn fit(&self, side: &mut LogSide) {
        let limits = self.limits();
        if side.group.is_asleep() {
            return;
        }
        _ = side.log.set_buffer(limits.log_buffer);
        if !side.group.suits(&limits)
            && let Ok(group) = Group::new(limits, &self.files.accounts.log)
            && std::mem::replace(&mut side.group, group).is_large
        {
            // What it was made for may have taken from others.
            _ = self.hold(&limits);
        }
    }

    /// Gives back what writes need, if nobody seems to write any more. True: it did.
    pub(crate) fn sleep(&self) -> bool {
        if self.is_asleep() || !self.is_idle() || self.commit_all().is_err() {
            return false;
        }
        let mut side = self.log.lock();
        let _group = {
            let mut exec = self.exec.lock();
            // Somebody may have come since then. A store that is closed does not change any more.
            if self.is_poisoned() || !exec.is_at_rest() {
                return false;
            }
            std::mem::replace(&mut exec.core.group, Group::asleep())
        };
        self.lay_down(&mut side);
        true
    }

    /// Nothing was written for a while, and nothing is left to flush or to merge.
    fn is_idle(&self) -> bool {
        let now_ms = self.now_ms();
        let exec = self.exec.lock();
        let is_quiet = |draft: &Draft| {
            let little = draft.memtable.used_bytes() < IDLE_BYTES;
            draft.seen.0 == draft.last && now_ms.saturating_sub(draft.seen.1) >= IDLE_MS && little
        };
        let is_tidy = |tree: &Tree| {
            let state = tree.state();
            let sizes: Vec<u64> = state.runs.iter().map(|run| run.bytes()).collect();
            state.frozen.is_empty() && due(&sizes, true).is_none()
        };
        exec.core.drafts.iter().all(is_quiet) && self.trees.iter().all(is_tidy)
    }
}
