//! The executor: commands are staged one at a time, on the thread of whoever brings them.
//!
//! ```text
//!                  ┌─ Done ─► its group ─► durable ─► told
//!   run, submit ─► stage ─┼─ pages ─► its keys are held ─► fetched ─► staged anew
//!                  ├─ locked, memtable or group full, asleep ─► that ends ─► staged anew
//!                  └─ Blocked ─► a unit writes one of its keys ─► staged anew
//! ```
//!
//! A command that misses drops its changes and is kept by what it waits for (`queue.rs`); when that ends it has its turn before
//! whoever comes later. On its way again it may find a key that another one holds: then it lets go of its own and begins anew. Who
//! has begun anew too often is the elder: it keeps its keys, and others wait for all that it has named (`keylocks.rs`).
//!
//! Nobody is left without a word: what is closed for good tells whoever waits for a write, and a store that has ended keeps nobody.

use crate::fetch::Fetched;
use crate::keylocks::{Key, KeyRange, Owner};
use crate::queue::{Cause, Queue, Waiting};
use crate::store::{Staged, Store};
use crate::tree::Tree;
use crate::unit::{Core, Miss, Unit};
use crate::walk::Look;
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
/// Answers that may wait for the log before no command is taken whose answer is given by a call.
const ANSWERS_MAX: usize = 16_384;
/// A command that has begun anew so often lets nobody go before it.
const RESTARTS_MAX: u32 = 8;
/// What a key takes that a command waits with, besides its bytes: its places in lists.
const KEY_COST: usize = 192;

/// A command that was submitted, by which it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandId(pub(crate) Owner);

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
    answers: VecDeque<(u64, Answer<S>)>,
    /// Answers that leave at once, as soon as the lock is given up.
    pub(crate) ready: Vec<Answer<S>>,
    pub(crate) queue: Queue<S>,
    next_owner: Owner,
    /// How often commands were staged, and how many have their answer.
    pub(crate) staged: u64,
    pub(crate) answered: u64,
    /// Nothing is staged while a long change is installed.
    pub(crate) is_held: bool,
    /// Why no unit that changes anything is kept.
    pub(crate) refuses: Option<Error>,
    /// Why memtables that are full are not written out for now.
    stuck: Option<Error>,
    /// Why nobody is kept who would have to wait for anything.
    ended: Option<Error>,
    /// Answers wait for their group.
    pub(crate) waits_for_durable: bool,
    /// Pays for keys that commands wait with.
    account: Account,
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
    pub(crate) fn new(core: Core, waits_for_durable: bool, account: Account) -> Self {
        Self {
            durable: core.seqno,
            core,
            answers: VecDeque::new(),
            ready: Vec::new(),
            queue: Queue::new(),
            next_owner: 1,
            staged: 0,
            answered: 0,
            is_held: false,
            refuses: None,
            stuck: None,
            ended: None,
            waits_for_durable,
            account,
        }
    }

    /// Stages a command behind those whose turn has come, and after it those that waited for what it wrote; a unit that is whole
    /// is in the group then.
    pub(crate) fn attempt(&mut self, around: &Around<'_, S>, command: &S::Command) -> Attempt<S::Reply> {
        if self.queue.has_due() {
            self.serve(around);
        }
        let outcome = self.stage(around, command, None, 0);
        if self.queue.has_due() && matches!(outcome, Attempt::Done(_)) {
            self.serve(around);
        }
        outcome
    }

    fn stage(
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
        self.core.looks.clear();
        self.core.walked = 0;
        self.core.locked = None;
        self.core.asked.forget();
        let Around { store, trees, pages, reads, log_end } = *around;
        let mut unit = Unit { core: &mut self.core, trees, pages, reads, fetched, owner, miss: None };
        let staged = nonblocking::scope(|| supervise::caught("a command", || store.stage(&mut unit, command)));
        let closed = self.refuses.as_ref().filter(|why| why.kind() == Kind::Closed);
        let outcome = match (staged, unit.miss) {
            // No flush will make room, and nobody wakes the store.
            (_, Some(Miss::Full(_) | Miss::Group)) if let Some(why) = closed => Attempt::Refused(why.clone()),
            (_, Some(Miss::Full(_))) if let Some(why) = &self.stuck => Attempt::Refused(why.clone()),
            (_, Some(miss)) => Attempt::Miss(miss),
            // Nobody will write the key.
            (Ok(Staged::Blocked(_)), None) if let Some(why) = closed => Attempt::Refused(why.clone()),
            (Ok(Staged::Blocked(keys)), None) => Attempt::Blocked(keys),
            (Ok(Staged::Done(reply)), None) => match &self.refuses {
                Some(why) if self.core.group.unit_bytes() > 0 => Attempt::Refused(why.clone()),
                _ => Attempt::Done(reply),
            },
            (Err(error), None) => Attempt::Refused(error),
        };
        self.answered += u64::from(matches!(outcome, Attempt::Done(_) | Attempt::Refused(_)));
        match outcome {
            Attempt::Done(_) => self.keep_unit(log_end),
            _ => self.core.drop_unit(),
        }
        outcome
    }

    /// Whoever waits for a key that the unit writes has its turn next, each as a unit of its own.
    fn keep_unit(&mut self, log_end: Lsn) {
        if self.queue.blocked() > 0 {
            self.core.group.each_key(&mut |tree, key| self.queue.key_written(tree, key));
        }
        self.core.keep_unit(log_end);
    }

    /// Stages a command whose answer is given by a call.
    pub(crate) fn start(&mut self, around: &Around<'_, S>, job: Job<S>) -> CommandId {
        let waiting = Waiting::new(job, self.new_owner());
        let ticket = CommandId(waiting.ticket);
        if self.answers.len() + self.ready.len() >= ANSWERS_MAX {
            let text = format!("{ANSWERS_MAX} answers wait for the log, which is the most allowed; try again");
            self.ready.push((waiting.job.done, Err(Error::busy(text))));
            return ticket;
        }
        let outcome = self.attempt(around, &waiting.job.command);
        self.see_through(waiting, outcome);
        ticket
    }

    /// Keeps a command of a batch that could not be staged.
    pub(crate) fn park(&mut self, job: Job<S>, missed: Attempt<S::Reply>) {
        let waiting = Waiting::new(job, self.new_owner());
        self.see_through(waiting, missed);
    }

    /// Answers a command that was staged, or keeps it.
    fn see_through(&mut self, waiting: Waiting<S>, outcome: Attempt<S::Reply>) {
        let reply = match outcome {
            Attempt::Miss(miss) => return self.keep(waiting, miss),
            Attempt::Blocked(keys) => return self.block(waiting, keys),
            Attempt::Done(reply) => Ok(reply),
            Attempt::Refused(error) => Err(error),
        };
        let done = self.finish(waiting);
        self.answer(done, reply);
    }

    /// A number that nobody has had.
    fn new_owner(&mut self) -> Owner {
        self.next_owner += 1;
        self.next_owner - 1
    }

    /// Puts a command where it is looked at again.
    fn keep(&mut self, mut waiting: Waiting<S>, miss: Miss) {
        let turn = waiting.turn.take();
        match self.cause_of(&mut waiting, miss) {
            Ok(cause) => self.queue.put(waiting, cause),
            Err(error) => self.give_up(waiting, error),
        }
        turn.iter().for_each(|key| self.freed(key));
    }

    /// What a command that missed waits for; it holds what it needs for that and no more.
    fn cause_of(&mut self, waiting: &mut Waiting<S>, miss: Miss) -> Result<Cause> {
        self.check_place(waiting, self.queue.parked() >= QUEUE_MAX, || {
            format!("{QUEUE_MAX} commands wait already, which is the most allowed; try again")
        })?;
        let needs = std::mem::take(&mut self.core.needs);
        match miss {
            Miss::Pages => {
                self.name(waiting, needs.iter().cloned())?;
                waiting.looks = std::mem::take(&mut self.core.looks);
                self.book(waiting, waiting.looks.iter().map(Look::bytes).sum())?;
                needs.iter().for_each(|key| self.core.locks.hold(key, waiting.ticket));
                waiting.needs = needs;
                Ok(Cause::Fetch)
            }
            Miss::Locked => {
                let held = self.core.locked.take().ok_or_else(|| Error::bug("a key is held that nobody named"))?;
                self.name(waiting, needs.into_iter().chain([held.clone()]))?;
                self.begin_anew(waiting);
                Ok(Cause::Locked(held))
            }
            Miss::Full(tree) => Ok(Cause::Full(tree)),
            Miss::Group if self.is_held || self.core.group.is_full() => Ok(Cause::Due),
            // Its turn alone would not help.
            Miss::Group => Ok(Cause::Wake),
        }
    }

    /// Fails where nobody is kept, or a new command finds too many.
    fn check_place(&self, waiting: &Waiting<S>, is_crowded: bool, text: impl FnOnce() -> String) -> Result<()> {
        match &self.ended {
            Some(why) => Err(why.clone()),
            None if is_crowded && waiting.is_new => Err(Error::busy(text())),
            None => Ok(()),
        }
    }

    /// Takes note of keys that a command touches, and books them.
    fn name(&self, waiting: &mut Waiting<S>, keys: impl Iterator<Item = Key>) -> Result<()> {
        let mut bytes = 0;
        for key in keys {
            let len = key.1.len();
            if waiting.named.insert(key) {
                bytes += (len + KEY_COST) as u64;
            }
        }
        self.book(waiting, bytes)
    }

    /// Nobody is waited for under the executor's lock.
    fn book(&self, waiting: &mut Waiting<S>, bytes: u64) -> Result<()> {
        nonblocking::scope(|| match &mut waiting.memory {
            Some(memory) => memory.grow(bytes),
            none => self.account.try_reserve(bytes).map(|memory| *none = Some(memory)),
        })
    }

    /// A command that found a key which another one holds lets go of its own, or becomes the elder.
    fn begin_anew(&mut self, waiting: &mut Waiting<S>) {
        waiting.restarts += 1;
        let locks = &mut self.core.locks;
        if waiting.restarts >= RESTARTS_MAX {
            locks.reserve(&waiting.named, waiting.ticket);
        }
        if locks.elder() != Some(waiting.ticket) {
            // What was fetched for it may change as soon as it lets go.
            waiting.fetched = None;
            self.let_go(waiting);
        }
    }

    fn block(&mut self, mut waiting: Waiting<S>, keys: Vec<(usize, Box<[u8]>)>) {
        self.let_go(&waiting);
        let turn = waiting.turn.take();
        waiting.begin();
        let keys: Box<[Key]> = keys.into_iter().map(|(tree, key)| (tree, key.into())).collect();
        match self.check_block(&mut waiting, &keys) {
            Ok(()) => self.queue.put(waiting, Cause::Written(keys)),
            Err(error) => self.give_up(waiting, error),
        }
        turn.iter().for_each(|key| self.freed(key));
    }

    fn check_block(&self, waiting: &mut Waiting<S>, keys: &[Key]) -> Result<()> {
        self.check_place(waiting, self.queue.blocked() >= BLOCKED_MAX, || {
            format!("{BLOCKED_MAX} commands wait for keys to be written, which is the most allowed; try again")
        })?;
        if keys.is_empty() {
            return Err(Error::bug("a command waits for a key to be written and names none"));
        }
        self.name(waiting, keys.iter().cloned())
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
                self.answers.push_back((self.core.seqno, (done, reply)));
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

    /// Whoever finds a memtable full is told so from now on, and who waits for one: the disk is. `None`: they wait again.
    pub(crate) fn stick(&mut self, why: Option<Error>) {
        let is_news = why.is_some();
        self.stuck = why;
        if is_news {
            (0..self.core.drafts.len()).for_each(|tree| self.queue.has_place(tree));
        }
    }

    /// Nothing becomes durable any more, neither what is staged already: whoever waits for that, for place or for a write, is told.
    pub(crate) fn refuse_for_good(&mut self, why: &Error) {
        self.refuse(Some(why.clone()));
        self.core.group.clear();
        self.ready.extend(self.answers.drain(..).map(|(_, (done, _))| (done, Err(why.clone()))));
        self.queue.take_blocked().into_iter().for_each(|waiting| self.give_up(waiting, why.clone()));
        // These are staged once more, and refused.
        (0..self.core.drafts.len()).for_each(|tree| self.queue.has_place(tree));
        self.queue.woken();
    }

    /// Stages a command again whose turn has come.
    fn again(&mut self, around: &Around<'_, S>, waiting: Waiting<S>) {
        let outcome = self.stage(around, &waiting.job.command, waiting.fetched.as_ref(), waiting.ticket);
        self.see_through(waiting, outcome);
    }

    /// Stages a command again whose records were read.
    pub(crate) fn was_read(&mut self, around: &Around<'_, S>, waiting: Waiting<S>, outcome: Result<()>) {
        let is_cancelled = self.queue.was_read(waiting.ticket);
        match outcome {
            _ if is_cancelled => self.give_up(waiting, cancelled()),
            Ok(()) => self.again(around, waiting),
            Err(error) => self.give_up(waiting, error),
        }
    }

    /// Tells a command that it is not done.
    fn give_up(&mut self, waiting: Waiting<S>, error: Error) {
        let done = self.finish(waiting);
        self.ready.push((done, Err(error)));
    }

    /// A command waits no longer, and holds nothing.
    fn finish(&mut self, waiting: Waiting<S>) -> Done<S::Reply> {
        self.let_go(&waiting);
        waiting.turn.iter().for_each(|key| self.freed(key));
        waiting.job.done
    }

    /// Lets go of what a command holds.
    fn let_go(&mut self, waiting: &Waiting<S>) {
        let was_elder = self.core.locks.retire(waiting.ticket);
        for key in &waiting.named {
            if self.core.locks.release(key, waiting.ticket) || was_elder {
                self.freed(key);
            }
        }
    }

    /// A key may be free: whoever waits for it first has its turn, and the next one when that has had it.
    fn freed(&mut self, (tree, key): &Key) {
        let locks = &self.core.locks;
        if let Some(first) = self.queue.first_locked(*tree, key, locks.elder())
            && !locks.is_held(*tree, key, first)
        {
            self.queue.unlocked(first);
        }
    }

    /// Whoever touches these ranges from now on waits. The number by which they are granted and let go of.
    pub(crate) fn announce(&mut self, ranges: &[KeyRange]) -> Result<Owner> {
        if let Some(why) = self.ended.as_ref().or(self.refuses.as_ref()) {
            return Err(why.clone());
        }
        let owner = self.new_owner();
        self.core.locks.announce(ranges, owner);
        Ok(owner)
    }

    /// Lets go of ranges.
    pub(crate) fn release_ranges(&mut self, ranges: &[KeyRange], owner: Owner) {
        self.core.locks.release_ranges(owner);
        for KeyRange { tree, from, to } in ranges {
            let waited_for = self.queue.locked_within(*tree, (from, to));
            waited_for.iter().for_each(|key| self.freed(key));
        }
    }

    /// Cancels a command that waits. False: it does not wait, or no longer.
    pub(crate) fn cancel(&mut self, CommandId(ticket): CommandId) -> bool {
        match self.queue.take(ticket) {
            Some(waiting) => {
                self.give_up(waiting, cancelled());
                true
            }
            None => self.queue.cancel_reading(ticket),
        }
    }

    /// Stages again whose turn has come, in the order of tickets, as long as there is place.
    pub(crate) fn serve(&mut self, around: &Around<'_, S>) {
        while !self.is_held && !self.core.group.is_full() {
            let Some(waiting) = self.queue.next_due() else { return };
            self.again(around, waiting);
        }
    }

    /// Answers wait for a commit, or the group takes no other unit.
    pub(crate) fn is_commit_due(&self) -> bool {
        !self.answers.is_empty() || self.core.group.is_full()
    }

    /// Somebody waits for the store to wake, or for a larger group.
    pub(crate) fn is_wake_due(&self) -> bool {
        (self.core.group.is_asleep() || self.core.wants_large > 0) && self.queue.has_wake()
    }

    /// Nothing is staged, and nobody waits for anything but a key.
    pub(crate) fn is_at_rest(&self) -> bool {
        let nobody = self.queue.parked() == 0 && self.answers.is_empty();
        nobody && self.core.group.is_empty() && self.core.locks.is_free() && !self.is_held
    }

    /// Tells those whose time is over.
    pub(crate) fn expire(&mut self, now: Duration) {
        for waiting in self.queue.take_over(now) {
            let text = "nobody wrote a key that the command waits for within its time";
            self.give_up(waiting, Error::new(Kind::Cancelled, text));
        }
    }

    /// Fails when the store has ended.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Nobody serves those that wait any more: they are told, and from now on nobody is kept.
    pub(crate) fn end(&mut self, why: &Error) {
        self.refuse(Some(why.clone()));
        self.ended.get_or_insert_with(|| why.clone());
        self.queue.take_all().into_iter().for_each(|waiting| self.give_up(waiting, why.clone()));
    }

    /// What is left of answers, when there is nobody to make anything durable.
    pub(crate) fn take_answers(&mut self, why: &Error) -> Vec<Answer<S>> {
        self.refuse_for_good(why);
        self.end(why);
        std::mem::take(&mut self.ready)
    }
}

fn cancelled() -> Error {
    Error::new(Kind::Cancelled, "the command was cancelled before it was done")
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
