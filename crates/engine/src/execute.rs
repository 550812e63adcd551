//! The executor: commands are staged one at a time, on the thread of whoever brings them.
//!
//! ```text
//!                  ┌─ Done ─► its group ─► durable ─► told
//!   run, submit ─► stage ─┼─ pages ─► `fetching`, its keys held ─► fetched ─► staged anew
//!                  ├─ locked, memtable or group full ─► `waiting` ─► tried anew when that ends
//!                  └─ Blocked ─► `blocked` ─► a unit writes one of its keys ─► staged anew, before anything else
//! ```
//!
//! A command that misses drops its changes. On its way again it may find a key that another one holds: then it lets go of its
//! own and begins anew, so no two wait for each other.

use crate::fetch::Fetched;
use crate::keylocks::Owner;
use crate::store::{Staged, Store};
use crate::tree::Tree;
use crate::unit::{Core, Miss, Unit};
use parking_lot::{Condvar, Mutex};
use ramekin_base::limits::QUEUE_MAX;
use ramekin_base::{Error, Kind, Result, nonblocking, supervise};
use ramekin_log::Lsn;
use ramekin_memory::Account;
use ramekin_pages::Pages;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Called once with what became of a command, on a thread of the engine: it must not wait.
pub type Done<R> = Box<dyn FnOnce(Result<R>) + Send>;

/// Commands that may wait for others to write a key.
const BLOCKED_MAX: usize = 10_000;

/// A command of a batch, and its answer.
pub struct Call<S: Store> {
    pub(crate) command: Option<S::Command>,
    pub reply: Option<Result<S::Reply>>,
}

impl<S: Store> Call<S> {
    pub fn new(command: S::Command) -> Self {
        Self { command: Some(command), reply: None }
    }
}

/// A command whose answer is given by a call.
pub(crate) struct Job<S: Store> {
    pub(crate) command: S::Command,
    pub(crate) done: Done<S::Reply>,
    /// By the clock: it waits no longer for others to write a key. `None`: as long as the engine is open.
    pub(crate) until: Option<Duration>,
}

/// A command that waits to be staged again.
pub(crate) struct Waiting<S: Store> {
    pub(crate) job: Job<S>,
    pub(crate) owner: Owner,
    /// Keys of which it needs the records.
    pub(crate) needs: Vec<(usize, Box<[u8]>)>,
    pub(crate) fetched: Option<Fetched>,
}

/// A command that waits for somebody to write a key.
struct Blocked<S: Store> {
    keys: Vec<(usize, Box<[u8]>)>,
    job: Job<S>,
}

/// An answer, and who is told it.
pub(crate) type Answer<S> = (Done<<S as Store>::Reply>, Result<<S as Store>::Reply>);

/// What became of an attempt to stage a command.
pub(crate) enum Attempt<R> {
    Done(R),
    Refused(Error),
    Miss(Miss),
    Blocked(Vec<(usize, Box<[u8]>)>),
}

/// All that is changed under the executor's lock.
pub(crate) struct Exec<S: Store> {
    pub(crate) core: Core,
    /// The last unit that survives a power cut.
    durable: u64,
    /// Answers that leave when the last unit that they may have seen is durable, by its number.
    answers: Vec<(u64, Answer<S>)>,
    /// Answers that leave at once, as soon as the lock is given up.
    pub(crate) ready: Vec<Answer<S>>,
    pub(crate) waiting: VecDeque<Waiting<S>>,
    pub(crate) fetching: VecDeque<Waiting<S>>,
    blocked: Vec<Blocked<S>>,
    /// Of these, whose key was written: their turn comes before anything else.
    woken: VecDeque<Blocked<S>>,
    next_owner: Owner,
    /// Commands that were staged, also those that had to be staged again.
    pub(crate) staged: u64,
    /// Nothing is staged while a long change is installed.
    pub(crate) is_held: bool,
    /// Why no unit that changes anything is kept.
    pub(crate) refuses: Option<Error>,
    /// Answers wait for their group.
    pub(crate) waits_for_durable: bool,
    /// Trees whose memtable is full and could not be replaced yet.
    pub(crate) full: Vec<usize>,
}

/// What staging needs besides what it changes.
pub(crate) struct Around<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) trees: &'a [Tree],
    pub(crate) pages: &'a Pages,
    /// Pays for big values while a command looks at them.
    pub(crate) reads: &'a Account,
    /// Everything that is committed stands before it in the log.
    pub(crate) log_end: Lsn,
}

impl<S: Store> Exec<S> {
    pub(crate) fn new(core: Core, waits_for_durable: bool) -> Self {
        Self {
            durable: core.seqno,
            core,
            answers: Vec::new(),
            ready: Vec::new(),
            waiting: VecDeque::new(),
            fetching: VecDeque::new(),
            blocked: Vec::new(),
            woken: VecDeque::new(),
            next_owner: 1,
            staged: 0,
            is_held: false,
            refuses: None,
            waits_for_durable,
            full: Vec::new(),
        }
    }

    /// Stages a command, and after it those that waited for what it wrote; a unit that is whole is in the group then.
    pub(crate) fn attempt(
        &mut self,
        around: &Around<'_, S>,
        command: &S::Command,
        fetched: Option<&Fetched>,
        owner: Owner,
    ) -> Attempt<S::Reply> {
        let outcome = self.attempt_alone(around, command, fetched, owner);
        while let Some(Blocked { job, .. }) = self.woken.pop_front() {
            let outcome = self.attempt_alone(around, &job.command, None, 0);
            self.see_through(job, outcome);
        }
        outcome
    }

    fn attempt_alone(
        &mut self,
        around: &Around<'_, S>,
        command: &S::Command,
        fetched: Option<&Fetched>,
        owner: Owner,
    ) -> Attempt<S::Reply> {
        if self.is_held || self.core.group.is_full() {
            return Attempt::Miss(Miss::Group);
        }
        self.staged += 1;
        self.core.needs.clear();
        self.core.asked.forget();
        let Around { store, trees, pages, reads, log_end } = *around;
        let mut unit = Unit { core: &mut self.core, trees, pages, reads, fetched, owner, miss: None };
        let staged = nonblocking::scope(|| supervise::caught("a command", || store.stage(&mut unit, command)));
        let closed = self.refuses.as_ref().filter(|why| why.kind() == Kind::Closed);
        let outcome = match (staged, unit.miss) {
            // No flush will make room, and nobody wakes the store.
            (_, Some(Miss::Full(_) | Miss::Group)) if let Some(why) = closed => Attempt::Refused(why.clone()),
            (_, Some(miss)) => Attempt::Miss(miss),
            (Ok(Staged::Blocked(keys)), None) => Attempt::Blocked(keys),
            (Ok(Staged::Done(reply)), None) => match &self.refuses {
                Some(why) if self.core.group.unit_bytes() > 0 => Attempt::Refused(why.clone()),
                _ => Attempt::Done(reply),
            },
            (Err(error), None) => Attempt::Refused(error),
        };
        match outcome {
            Attempt::Done(_) => self.keep_unit(log_end),
            _ => self.core.drop_unit(),
        }
        outcome
    }

    fn keep_unit(&mut self, log_end: Lsn) {
        if self.blocked.is_empty() {
            self.core.keep_unit(log_end);
            return;
        }
        let blocked = &self.blocked;
        let mut woken = Vec::new();
        self.core.group.each_key(&mut |tree, key| {
            let waits = |held: &Blocked<S>| held.keys.iter().any(|(of, wanted)| *of == tree && **wanted == *key);
            woken.extend(blocked.iter().enumerate().filter(|(_, held)| waits(held)).map(|(at, _)| at));
        });
        self.core.keep_unit(log_end);
        woken.sort_unstable();
        woken.dedup();
        // The one that waits longest has its turn first; each is a unit of its own.
        for (taken, at) in woken.into_iter().enumerate() {
            self.woken.push_back(self.blocked.remove(at - taken));
        }
    }

    /// Stages a command whose answer is given by a call.
    pub(crate) fn start(&mut self, around: &Around<'_, S>, job: Job<S>) {
        let outcome = self.attempt(around, &job.command, None, 0);
        self.see_through(job, outcome);
    }

    /// Answers a command that was staged, or keeps it.
    fn see_through(&mut self, job: Job<S>, outcome: Attempt<S::Reply>) {
        match outcome {
            Attempt::Miss(miss) => self.park(job, miss),
            Attempt::Blocked(keys) => self.block(keys, job),
            Attempt::Done(reply) => self.answer(job.done, Ok(reply)),
            Attempt::Refused(error) => self.answer(job.done, Err(error)),
        }
    }

    /// Keeps a command that could not be staged.
    pub(crate) fn park(&mut self, job: Job<S>, miss: Miss) {
        if self.waiting.len() + self.fetching.len() >= QUEUE_MAX {
            let text = format!("{QUEUE_MAX} commands wait already, which is the most allowed; try again");
            return self.ready.push((job.done, Err(Error::busy(text))));
        }
        let owner = self.new_owner();
        self.keep(Waiting { job, owner, needs: Vec::new(), fetched: None }, miss);
    }

    /// A number that nobody has had.
    pub(crate) fn new_owner(&mut self) -> Owner {
        self.next_owner += 1;
        self.next_owner - 1
    }

    /// Puts a command where it is looked at again.
    fn keep(&mut self, mut waiting: Waiting<S>, miss: Miss) {
        let Core { locks, needs, .. } = &mut self.core;
        let is_free = |locks: &crate::keylocks::KeyLocks, owner| {
            !needs.iter().any(|(tree, key)| locks.is_held(*tree, key, owner))
        };
        match miss {
            Miss::Pages if is_free(locks, waiting.owner) => {
                needs.iter().for_each(|(tree, key)| locks.hold(*tree, key, waiting.owner));
                waiting.needs = std::mem::take(needs);
                self.fetching.push_back(waiting);
                return;
            }
            // What was fetched for it may change as soon as it lets go.
            Miss::Pages | Miss::Locked => {
                locks.release(waiting.owner);
                waiting.fetched = None;
            }
            Miss::Full(tree) if !self.full.contains(&tree) => self.full.push(tree),
            Miss::Full(_) | Miss::Group => {}
        }
        self.waiting.push_back(waiting);
    }

    fn block(&mut self, keys: Vec<(usize, Box<[u8]>)>, job: Job<S>) {
        if self.blocked.len() >= BLOCKED_MAX {
            let text =
                format!("{BLOCKED_MAX} commands wait for keys to be written, which is the most allowed; try again");
            return self.ready.push((job.done, Err(Error::busy(text))));
        }
        self.blocked.push(Blocked { keys, job });
    }

    /// An answer leaves when what it depends on is durable, or at once.
    fn answer(&mut self, done: Done<S::Reply>, reply: Result<S::Reply>) {
        match &self.refuses {
            // It may have seen what will never be durable.
            Some(why) if self.waits_for_durable && why.kind() == Kind::Closed => {
                let closed = reply.and_then(|_| Err(why.clone()));
                self.ready.push((done, closed));
            }
            // Also when what it saw is in the group that is written just now.
            _ if self.waits_for_durable && self.core.seqno > self.durable => {
                self.answers.push((self.core.seqno, (done, reply)));
            }
            _ => self.ready.push((done, reply)),
        }
    }

    /// The units up to `seqno` are durable: answers that waited for no more leave.
    pub(crate) fn made_durable(&mut self, seqno: u64) {
        self.durable = self.durable.max(seqno);
        let due = self.answers.partition_point(|(seen, _)| *seen <= self.durable);
        self.ready.extend(self.answers.drain(..due).map(|(_, answer)| answer));
    }

    /// Units that change anything are refused from now on; `None`: they are kept again. What was closed stays closed.
    pub(crate) fn refuse(&mut self, why: Option<Error>) {
        if self.refuses.as_ref().is_none_or(|held| held.kind() != Kind::Closed) {
            self.refuses = why;
        }
    }

    /// Nothing becomes durable any more, neither what is staged already: whoever waits for that, or for place, is told.
    pub(crate) fn refuse_for_good(&mut self, why: &Error) {
        self.refuse(Some(why.clone()));
        self.core.group.clear();
        self.ready.extend(self.answers.drain(..).map(|(_, (done, _))| (done, Err(why.clone()))));
    }

    /// Stages a command again whose turn has come.
    pub(crate) fn again(&mut self, around: &Around<'_, S>, waiting: Waiting<S>) {
        match self.attempt(around, &waiting.job.command, waiting.fetched.as_ref(), waiting.owner) {
            Attempt::Miss(miss) => self.keep(waiting, miss),
            outcome => {
                self.core.locks.release(waiting.owner);
                self.see_through(waiting.job, outcome);
            }
        }
    }

    /// A command whose records could not be fetched.
    pub(crate) fn give_up(&mut self, waiting: Waiting<S>, error: Error) {
        self.core.locks.release(waiting.owner);
        self.ready.push((waiting.job.done, Err(error)));
    }

    /// Stages again what waits, each once, in order.
    pub(crate) fn serve(&mut self, around: &Around<'_, S>) {
        for _ in 0..self.waiting.len() {
            if self.is_held || self.core.group.is_full() {
                return;
            }
            let Some(waiting) = self.waiting.pop_front() else { return };
            self.again(around, waiting);
        }
    }

    /// Answers wait for a commit, or the group takes no other unit.
    pub(crate) fn is_commit_due(&self) -> bool {
        !self.answers.is_empty() || self.core.group.is_full()
    }

    /// Somebody waits for the store to wake, or for a larger group.
    pub(crate) fn is_wake_due(&self) -> bool {
        (self.core.group.is_asleep() || self.core.wants_large > 0) && !self.waiting.is_empty()
    }

    /// Nothing is staged, and nobody waits for anything but a key.
    pub(crate) fn is_at_rest(&self) -> bool {
        let nobody = self.waiting.is_empty() && self.fetching.is_empty() && self.answers.is_empty();
        nobody && self.core.group.is_empty() && self.core.locks.is_free() && !self.is_held
    }

    /// Tells those whose time is over.
    pub(crate) fn expire(&mut self, now: Duration) {
        let is_over = |held: &mut Blocked<S>| held.job.until.is_some_and(|until| until <= now);
        for Blocked { job, .. } in self.blocked.extract_if(.., is_over) {
            let text = "nobody wrote a key that the command waits for within its time";
            self.ready.push((job.done, Err(Error::new(Kind::Cancelled, text))));
        }
    }

    /// The engine closes: nobody is left without a word.
    pub(crate) fn end(&mut self) {
        let closed = || Error::closed("the server is shutting down");
        let parked = self.waiting.drain(..).chain(self.fetching.drain(..)).map(|waiting| waiting.job);
        let blocked = self.blocked.drain(..).map(|blocked| blocked.job);
        self.ready.extend(parked.chain(blocked).map(|job| (job.done, Err(closed()))));
    }
}

/// Where a thread waits for the answer of one command.
pub(crate) struct Slot<R>(Arc<(Mutex<Option<Result<R>>>, Condvar)>);

impl<R: Send + 'static> Slot<R> {
    /// The slot, and what fills it. A filler that is dropped fills it, too.
    pub(crate) fn new() -> (Self, Done<R>) {
        struct Filler<R>(Arc<(Mutex<Option<Result<R>>>, Condvar)>);
        impl<R> Drop for Filler<R> {
            fn drop(&mut self) {
                let mut slot = self.0.0.lock();
                slot.get_or_insert_with(|| Err(Error::closed("the server is shutting down")));
                self.0.1.notify_one();
            }
        }
        let slot = Arc::new((Mutex::new(None), Condvar::new()));
        let filler = Filler(slot.clone());
        let done = move |reply| {
            let filler = filler;
            *filler.0.0.lock() = Some(reply);
        };
        (Self(slot), Box::new(done))
    }

    pub(crate) fn take(&self) -> Option<Result<R>> {
        self.0.0.lock().take()
    }

    pub(crate) fn wait(self) -> Result<R> {
        let mut slot = self.0.0.lock();
        loop {
            if let Some(reply) = slot.take() {
                return reply;
            }
            self.0.1.wait(&mut slot);
        }
    }
}
