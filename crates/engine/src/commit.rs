//! The group commit: whoever wants units durable leads it if nobody does, and one sync is for all who wait.
//!
//! ```text
//!   lead:  lock log ─► take the group, publish the roots (execute) ─► append ─► one sync ─► durable, view ─► tell ─► room
//!          others wait for the lock, and mostly find that their units are durable when they have it
//! ```
//!
//! Room for two groups is made in the log before the first of them is filled, so that a full disk shows before anything is
//! staged. A commit that fails closes the store for writing: nobody knows what the disk holds of it.

use crate::engine::Inner;
use crate::execute::{Answer, Exec};
use crate::group::Group;
use crate::health::Source;
use crate::options::Durability;
use crate::store::Store;
use crate::view::Published;
use ramekin_base::{Error, Kind, Result};
use ramekin_log::Log;
use ramekin_runs::Root;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The writer's side of the log.
pub(crate) struct LogSide {
    pub(crate) log: Log,
    /// The group that is written, or empty.
    pub(crate) group: Group,
}

/// A group that was taken, with what is to happen when it is durable.
struct Taken<S: Store> {
    last: u64,
    roots: Box<[(u64, Arc<Root>)]>,
    answers: Vec<Answer<S>>,
}

impl<S: Store> Inner<S> {
    /// Makes the units up to `seqno` durable.
    pub(crate) fn commit(&self, seqno: u64) -> Result<()> {
        if self.durable.load(Ordering::Acquire) >= seqno {
            return self.check_log();
        }
        let told = {
            let mut side = self.log.lock();
            if self.durable.load(Ordering::Acquire) >= seqno {
                return self.check_log();
            }
            self.check_log()?;
            self.lead(&mut side)
        };
        self.tell(told);
        self.check_log()
    }

    /// Commits everything that is staged.
    pub(crate) fn commit_all(&self) -> Result<()> {
        let seqno = self.exec.lock().core.seqno;
        self.commit(seqno)
    }

    /// Makes place for more units: hands the group on to the log, without a sync where no answer waits for one.
    pub(crate) fn write_group(&self) -> Result<()> {
        let told = {
            let mut side = self.log.lock();
            self.check_log()?;
            match self.options.durability {
                Durability::Each => self.lead(&mut side),
                Durability::Interval(_) | Durability::No => self.append_group(&mut side),
            }
        };
        self.tell(told);
        self.check_log()
    }

    /// Hands the group on to the log; the next commit makes it durable.
    fn append_group(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        let LogSide { log, group } = side;
        std::mem::swap(&mut self.exec.lock().core.group, group);
        if let Err(error) = group.append(log) {
            self.poison(&error);
        }
        group.clear();
        self.go_on(log, Vec::new())
    }

    /// A group was handed on: room in the log for the next ones, and what waited for place is staged.
    fn go_on(&self, log: &mut Log, mut answers: Vec<Answer<S>>) -> Vec<Answer<S>> {
        let room = Group::make_room(log, self.limits().unit_bytes);
        let mut exec = self.exec.lock();
        if !self.is_poisoned() {
            exec.refuses = room.err();
        }
        self.after(&mut exec, &mut answers);
        answers
    }

    /// Fails once a commit has failed.
    pub(crate) fn check_log(&self) -> Result<()> {
        self.poisoned.get().map_or(Ok(()), |why| Err(Error::closed(why.clone())))
    }

    /// Writes and syncs the group that is filled. Returns the answers that may leave.
    pub(crate) fn lead(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        let LogSide { log, group } = side;
        let taken = {
            let mut exec = self.exec.lock();
            std::mem::swap(&mut exec.core.group, group);
            let roots = exec.core.drafts.iter_mut().map(|draft| (draft.number, draft.publish())).collect();
            Taken::<S> { last: exec.core.seqno, roots, answers: std::mem::take(&mut exec.answers) }
        };
        let committed = group.append(log).and_then(|()| log.commit());
        group.clear();
        let answers = match committed {
            Ok(end) => {
                self.log_end.store(end, Ordering::SeqCst);
                self.publish(taken.last, taken.roots);
                self.durable.store(taken.last, Ordering::Release);
                taken.answers
            }
            Err(error) => {
                self.poison(&error);
                let failed = |(done, _): Answer<S>| (done, Err(error.clone()));
                taken.answers.into_iter().map(failed).collect()
            }
        };
        self.trim(log);
        self.go_on(log, answers)
    }

    /// Changes what the executor's lock guards, stages what may go on then, and tells whose answers may leave.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Exec<S>) -> T) -> T {
        let mut answers = Vec::new();
        let changed = {
            let mut exec = self.exec.lock();
            let changed = change(&mut exec);
            self.after(&mut exec, &mut answers);
            changed
        };
        self.tell(answers);
        changed
    }

    /// A group was taken, so there is place for what waits. What leaves at once is added to `answers`.
    pub(crate) fn after(&self, exec: &mut Exec<S>, answers: &mut Vec<Answer<S>>) {
        exec.serve(&self.around());
        self.rotate_full(exec);
        answers.append(&mut exec.ready);
        if !exec.fetching.is_empty() {
            self.fetch_due.raise();
        }
        if exec.is_commit_due() {
            self.commit_due.raise();
        }
    }

    fn poison(&self, error: &Error) {
        let why = format!("writes are closed since the log could not be written ({error}); restart to open them again");
        let closed = Error::closed(why.clone());
        _ = self.poisoned.set(why);
        self.health.raise(Source::Log, error, self.now_ms());
        let mut exec = self.exec.lock();
        exec.refuses = Some(closed);
    }

    /// Shows units up to `seqno` to readers.
    pub(crate) fn publish(&self, seqno: u64, roots: Box<[(u64, Arc<Root>)]>) {
        let _turn = self.publishing.lock();
        if self.published.load().seqno <= seqno {
            self.show(seqno, roots);
        }
    }

    fn show(&self, seqno: u64, roots: Box<[(u64, Arc<Root>)]>) {
        let trees = self.trees.iter().zip(&roots).map(|(tree, (number, root))| tree.view(*number, root)).collect();
        self.published.store(Arc::new(Published { seqno, roots, trees }));
    }

    /// What is below the memtables has changed: readers from now on see it so.
    pub(crate) fn publish_again(&self) {
        let _turn = self.publishing.lock();
        let now = self.published.load_full();
        self.show(now.seqno, now.roots.clone());
    }

    fn trim(&self, log: &mut Log) {
        let before = self.log_from.load(Ordering::SeqCst);
        if before > self.trimmed.load(Ordering::Relaxed) {
            self.trimmed.store(before, Ordering::Relaxed);
            if let Err(error) = log.trim(before) {
                tracing::warn!(
                    "log files that are not needed could not be removed, the next trim tries again: {error}"
                );
            }
        }
    }

    /// Gives answers; no lock is held.
    pub(crate) fn tell(&self, answers: Vec<Answer<S>>) {
        for (done, reply) in answers {
            done(reply);
        }
    }

    /// Whether writes are refused for good.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    /// A full disk is no reason to close: it may have room again.
    pub(crate) fn try_room(&self) {
        let is_full = self.exec.lock().refuses.as_ref().is_some_and(|why| why.kind() == Kind::NoSpace);
        if is_full && !self.is_poisoned() {
            let room = Group::make_room(&mut self.log.lock().log, self.limits().unit_bytes);
            self.exec.lock().refuses = room.err();
        }
    }
}
