//! The group commit: whoever wants units durable leads it if nobody does, and one sync is for all who wait.
//!
//! ```text
//!   lead:  lock log ─► take the group, publish the roots (execute) ─► append ─► one sync ─► durable, view ─► room ─► wake ─► tell
//!          others wait, all are woken at once, and most of them find that their units are durable
//! ```
//!
//! Who waits does so beside the log's lock: behind it they would come one by one, and whoever came first would lead again, for
//! itself alone.
//!
//! Room for two groups is made in the log before anybody can fill the first of them, so that a full disk shows before anything is
//! staged: units are refused until there is room. A commit that fails closes the store for writing: nobody knows what the disk
//! holds of it.

use crate::engine::Inner;
use crate::execute::{Answer, Exec};
use crate::group::Group;
use crate::health::Source;
use crate::options::Durability;
use crate::store::Store;
use crate::tree::Tree;
use crate::view::{Published, Roots};
use ramekin_base::limits::PAGE;
use ramekin_base::lock::about_to_wait;
use ramekin_base::{Error, Kind, Result, supervise};
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

/// Whoever leads a commit. The next one may when this is gone, also by a panic.
struct Turn<'a, S: Store>(&'a Inner<S>);

impl<S: Store> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        *self.0.is_led.lock() = false;
        self.0.led.notify_all();
    }
}

impl<S: Store> Inner<S> {
    /// Makes the units up to `seqno` durable.
    pub(crate) fn commit(&self, seqno: u64) -> Result<()> {
        if self.durable.load(Ordering::Acquire) >= seqno {
            return self.check_log();
        }
        if let Some(turn) = self.turn_for(seqno) {
            let told = {
                let mut side = self.log.lock();
                // Whoever handed a full group on may have made them durable meanwhile.
                if self.is_settled(seqno) { Vec::new() } else { self.lead(&mut side) }
            };
            drop(turn);
            self.tell(told);
        }
        self.check_log()
    }

    /// Whether no commit is to be waited for: the units up to `seqno` are durable, or none will ever be.
    fn is_settled(&self, seqno: u64) -> bool {
        self.durable.load(Ordering::Acquire) >= seqno || self.is_poisoned()
    }

    /// The right to lead the next commit, or `None` when there is nothing to wait for.
    fn turn_for(&self, seqno: u64) -> Option<Turn<'_, S>> {
        let mut is_led = self.is_led.lock();
        loop {
            if self.is_settled(seqno) {
                return None;
            }
            if !std::mem::replace(&mut *is_led, true) {
                return Some(Turn(self));
            }
            about_to_wait("a commit that somebody else leads");
            self.led.wait(&mut is_led);
        }
    }

    /// Commits everything that is staged.
    pub(crate) fn commit_all(&self) -> Result<()> {
        let seqno = self.exec.lock().core.seqno;
        self.commit(seqno)
    }

    /// Makes place for more units: wakes the store, or hands the group on to the log, without a sync where no answer waits for one.
    pub(crate) fn make_place(&self) -> Result<()> {
        if self.is_asleep() {
            return self.wake();
        }
        let told = {
            let mut side = self.log.lock();
            self.check_log()?;
            self.hand_on(&mut side)
        };
        self.tell(told);
        self.check_log()
    }

    /// The next group is filled, and this one is written, with a sync where answers wait for one.
    pub(crate) fn hand_on(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        match self.options.durability {
            Durability::Each => self.lead(side),
            Durability::Interval(_) | Durability::No => self.append_group(side),
        }
    }

    /// Changes the group that is filled for the other one. Where that was made for a large unit, whoever waits comes first.
    fn turn(&self, exec: &mut Exec<S>, group: &mut Group) {
        std::mem::swap(&mut exec.core.group, group);
        if group.is_large {
            exec.core.large_bytes = 0;
        }
        // Since it was made the share may have grown: then any group is as large, and whoever waits has not heard of it.
        if exec.core.group.is_large || exec.core.group.unit_max > self.limits().unit_bytes {
            exec.queue.woken();
            exec.serve(&self.around());
        }
    }

    /// Hands the group on to the log; the next commit makes it durable.
    fn append_group(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        let LogSide { log, group } = side;
        self.turn(&mut self.exec.lock(), group);
        if let Err(error) = supervise::caught("a write of the log", || group.append(log)) {
            self.poison(&error);
        }
        group.clear();
        self.go_on(side)
    }

    /// A group was handed on: room in the log for the next ones, and what waited for place is staged.
    pub(crate) fn go_on(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        self.fit(side);
        let room = self.make_room(side);
        let mut exec = self.exec.lock();
        exec.refuse(room.err());
        let mut answers = Vec::new();
        self.after(&mut exec, &mut answers);
        answers
    }

    /// The units up to `seqno` are durable.
    pub(crate) fn made_durable(&self, exec: &mut Exec<S>, seqno: u64) {
        exec.made_durable(seqno);
        self.durable.store(seqno, Ordering::Release);
    }

    /// Makes room in the log for both groups: the one that is filled, and the one that is written meanwhile.
    pub(crate) fn make_room(&self, side: &mut LogSide) -> Result<()> {
        let filled = self.exec.lock().core.group.room();
        if side.group.is_asleep() { Ok(()) } else { self.make_room_beside(side, filled) }
    }

    /// The same for a group that nobody can fill yet. Groups change places under the log's lock only, so room is theirs that have it.
    pub(crate) fn make_room_beside(&self, side: &mut LogSide, filled: (usize, usize)) -> Result<()> {
        let other = side.group.room();
        // What ends the first of the two commits comes on top.
        let (records, bytes) = (filled.0 + other.0, filled.1 + other.1 + PAGE);
        // A new file takes many commits beside those two: to make one costs three syncs. A disk that is nearly full has room for less.
        let file_bytes = self.limits().log_file_bytes() + ramekin_log::room(records, bytes);
        let room = side.log.make_room_in(file_bytes, records, bytes);
        let room = match room {
            Err(error) if error.kind() == Kind::NoSpace => side.log.make_room_in(0, records, bytes),
            room => room,
        };
        if let Err(error) = &room
            && side.log.check_open().is_err()
        {
            self.poison(error);
        }
        room
    }

    /// Fails once a commit has failed.
    pub(crate) fn check_log(&self) -> Result<()> {
        self.poisoned.get().map_or(Ok(()), |why| Err(Error::closed(why.clone())))
    }

    /// Writes and syncs the group that is filled. Returns the answers that may leave.
    pub(crate) fn lead(&self, side: &mut LogSide) -> Vec<Answer<S>> {
        let LogSide { log, group } = side;
        // What readers see when the group is durable.
        let (last, roots) = {
            let mut exec = self.exec.lock();
            let seen = (exec.core.seqno, exec.core.roots());
            self.turn(&mut exec, group);
            seen
        };
        // Units that a panic leaves half written must not be written a second time: it closes the store as a failure does.
        let began = self.options.clock.now();
        let committed = supervise::caught("a commit of the log", || group.append(log).and_then(|()| log.commit()));
        self.commits.note(self.options.clock.now().saturating_sub(began));
        group.clear();
        match committed {
            Ok(end) => {
                self.log_end.store(end, Ordering::SeqCst);
                self.publish(last, roots);
                self.made_durable(&mut self.exec.lock(), last);
            }
            Err(error) => self.poison(&error),
        }
        self.trim(log);
        self.go_on(side)
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
        if exec.queue.has_fetch() {
            self.fetch_due.raise();
        }
        let is_hurried = std::mem::take(&mut exec.queue.is_hurried);
        if is_hurried || exec.is_commit_due() || exec.is_wake_due() {
            self.commit_due.raise();
        }
    }

    fn poison(&self, error: &Error) {
        let why = format!("writes are closed since the log could not be written ({error}); restart to open them again");
        self.health.raise(Source::Log, Some(""), error, self.now_ms());
        let closed = self.close_writes(why);
        self.exec.lock().refuse_for_good(&closed);
    }

    /// No commit is begun any more.
    fn close_writes(&self, why: String) -> Error {
        Error::closed(self.poisoned.get_or_init(|| why).clone())
    }

    /// An edit of the manifest is written, or is not: nobody knows, so nothing may come after it.
    pub(crate) fn close_manifest(&self, error: &Error) -> Error {
        let why =
            format!("writes are closed since the manifest could not be written ({error}); restart to open them again");
        self.close_writes(why)
    }

    /// The same, and whoever waits is told.
    pub(crate) fn lose_manifest(&self, error: &Error) {
        self.health.raise(Source::Manifest, Some(""), error, self.now_ms());
        let closed = self.close_manifest(error);
        self.change(|exec| exec.refuse_for_good(&closed));
    }

    /// What a thread did is done by nobody: whoever waits is told, and nobody is kept any more.
    pub(crate) fn thread_died(&self, name: &str) {
        let why = format!("the store is closed since its thread `{name}` has ended; restart to open it again");
        // It is not tried again, so no clock is asked for the time.
        self.health.raise(Source::Thread, Some(""), &Error::bug(why.clone()), 0);
        let closed = self.close_writes(why);
        self.change(|exec| {
            exec.refuse_for_good(&closed);
            exec.end(&closed);
        });
    }

    /// Shows units up to `seqno` to readers.
    pub(crate) fn publish(&self, seqno: u64, roots: Roots) {
        let _turn = self.publishing.lock();
        if self.published.load().seqno <= seqno {
            self.show(seqno, roots);
        }
    }

    fn show(&self, seqno: u64, roots: Roots) {
        let trees =
            self.trees.iter().zip(&roots).map(|(tree, (number, root))| tree.view(*number, root.as_ref())).collect();
        self.published.store(Arc::new(Published { seqno, roots, trees }));
    }

    /// What is below the memtables has changed: readers from now on see it so.
    pub(crate) fn publish_again(&self) {
        let _turn = self.publishing.lock();
        let now = self.published.load_full();
        // Nobody needs the root of what has become a run.
        let rest = |(tree, (number, root)): (&Tree, &(u64, Option<Arc<Root>>))| {
            (*number, root.clone().filter(|_| !tree.is_gone(*number)))
        };
        self.show(now.seqno, self.trees.iter().zip(&now.roots).map(rest).collect());
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

    /// Gives answers; no lock is held. One whose receiver panics keeps no other from being given.
    pub(crate) fn tell(&self, answers: Vec<Answer<S>>) {
        for (done, reply) in answers {
            _ = supervise::caught("an answer", || {
                done(reply);
                Ok(())
            });
        }
    }

    /// Whether writes are refused for good.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    /// A full disk is no reason to close: it may have room again. Nobody hands a group on between the look and what it says.
    pub(crate) fn try_room(&self) {
        if self.exec.lock().refuses.as_ref().is_some_and(|why| why.kind() != Kind::Closed) {
            let mut answers = Vec::new();
            {
                let mut side = self.log.lock();
                let room = self.make_room(&mut side);
                let mut exec = self.exec.lock();
                exec.refuse(room.err());
                self.after(&mut exec, &mut answers);
            }
            self.tell(answers);
        }
    }
}
