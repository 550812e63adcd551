//! Commands that wait, each by its ticket: for each cause, who waits for its end.
//!
//! ```text
//!   cause     Fetch    Locked(key)    Full(tree)    Wake    Written(keys) until a deadline        Due: the cause has ended
//!               │           │             │           │            │
//!   it ends     └ fetcher   └ first one   └──────── all ───────────┘ ──► `due`, in the order of tickets ──► staged anew
//! ```
//!
//! A ticket is given once and kept, so whoever came first has its turn first however often it is staged. What ends one cause looks
//! at nobody who waits for another. Each list is bounded: the executor refuses who would make it longer.

use crate::execute::Job;
use crate::fetch::Fetched;
use crate::keylocks::{Key, Owner, between};
use crate::store::Store;
use crate::walk::Look;
use ramekin_memory::Reservation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What a command waits for.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Its records; it holds their keys.
    Fetch,
    /// A key that somebody else holds.
    Locked(Key),
    /// A tree's next memtable.
    Full(usize),
    /// The memory that writes need.
    Wake,
    /// That a unit writes one of these.
    Written(Box<[Key]>),
    /// Nothing but its turn.
    Due,
}

/// A command that waits to be staged again.
pub(crate) struct Waiting<S: Store> {
    pub(crate) job: Job<S>,
    pub(crate) ticket: Owner,
    cause: Cause,
    /// The key for which it waited until it was let go of: the next one who waits for it comes behind this one.
    pub(crate) turn: Option<Key>,
    /// Keys of which it needs the records.
    pub(crate) needs: Vec<Key>,
    /// Ranges that it walks or counts, where what is below the memtable has to be read.
    pub(crate) looks: Vec<Look>,
    /// Keys that it has named since it began: those that it holds, and those that others held.
    pub(crate) named: BTreeSet<Key>,
    pub(crate) fetched: Option<Fetched>,
    /// How often it has let go of its keys.
    pub(crate) restarts: u32,
    /// What its keys take.
    pub(crate) memory: Option<Reservation>,
    /// It was never kept.
    pub(crate) is_new: bool,
}

impl<S: Store> Waiting<S> {
    pub(crate) fn new(job: Job<S>, ticket: Owner) -> Self {
        Self {
            job,
            ticket,
            cause: Cause::Due,
            turn: None,
            needs: Vec::new(),
            looks: Vec::new(),
            named: BTreeSet::new(),
            fetched: None,
            restarts: 0,
            memory: None,
            is_new: true,
        }
    }

    /// As if it had not been staged yet; it holds nothing.
    pub(crate) fn begin(&mut self) {
        (self.needs, self.looks, self.fetched, self.memory, self.restarts) = (Vec::new(), Vec::new(), None, None, 0);
        self.named.clear();
    }
}

/// Who waits for a key, by tree and key.
#[derive(Default)]
struct ByKey(Vec<BTreeMap<Arc<[u8]>, BTreeSet<Owner>>>);

impl ByKey {
    fn add(&mut self, (tree, key): &Key, ticket: Owner) {
        if self.0.len() <= *tree {
            self.0.resize_with(tree + 1, BTreeMap::new);
        }
        self.0[*tree].entry(key.clone()).or_default().insert(ticket);
    }

    fn remove(&mut self, (tree, key): &Key, ticket: Owner) {
        let Some(keys) = self.0.get_mut(*tree) else { return };
        if let Some(tickets) = keys.get_mut(key) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                keys.remove(key);
            }
        }
    }

    fn of(&self, tree: usize, key: &[u8]) -> Option<&BTreeSet<Owner>> {
        self.0.get(tree)?.get(key)
    }

    fn within(&self, tree: usize, bounds: (&[u8], &[u8])) -> impl Iterator<Item = (&Arc<[u8]>, &BTreeSet<Owner>)> {
        self.0.get(tree).into_iter().flat_map(move |keys| between(keys, bounds))
    }
}

/// All that wait.
pub(crate) struct Queue<S: Store> {
    all: BTreeMap<Owner, Waiting<S>>,
    due: BTreeSet<Owner>,
    fetch: BTreeSet<Owner>,
    locked: ByKey,
    full: BTreeSet<(usize, Owner)>,
    wake: BTreeSet<Owner>,
    written: ByKey,
    blocked: usize,
    deadlines: BTreeSet<(Duration, Owner)>,
    /// Commands in the fetcher's hands, and whether they were cancelled meanwhile.
    reading: BTreeMap<Owner, bool>,
    /// A deadline came that is before all others.
    pub(crate) is_hurried: bool,
}

impl<S: Store> Queue<S> {
    pub(crate) fn new() -> Self {
        Self {
            all: BTreeMap::new(),
            due: BTreeSet::new(),
            fetch: BTreeSet::new(),
            locked: ByKey::default(),
            full: BTreeSet::new(),
            wake: BTreeSet::new(),
            written: ByKey::default(),
            blocked: 0,
            deadlines: BTreeSet::new(),
            reading: BTreeMap::new(),
            is_hurried: false,
        }
    }

    /// Commands that wait for others to write a key.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked
    }

    /// Commands that wait for anything else.
    pub(crate) fn parked(&self) -> usize {
        self.all.len() - self.blocked + self.reading.len()
    }

    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn has_fetch(&self) -> bool {
        !self.fetch.is_empty()
    }

    pub(crate) fn has_wake(&self) -> bool {
        !self.wake.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    pub(crate) fn put(&mut self, mut waiting: Waiting<S>, cause: Cause) {
        let ticket = waiting.ticket;
        match &cause {
            Cause::Fetch => _ = self.fetch.insert(ticket),
            Cause::Locked(key) => self.locked.add(key, ticket),
            Cause::Full(tree) => _ = self.full.insert((*tree, ticket)),
            Cause::Wake => _ = self.wake.insert(ticket),
            Cause::Due => _ = self.due.insert(ticket),
            Cause::Written(keys) => {
                keys.iter().for_each(|key| self.written.add(key, ticket));
                self.blocked += 1;
                if let Some(until) = waiting.job.until {
                    self.deadlines.insert((until, ticket));
                    self.is_hurried |= self.deadlines.first() == Some(&(until, ticket));
                }
            }
        }
        (waiting.cause, waiting.is_new) = (cause, false);
        self.all.insert(ticket, waiting);
    }

    /// Takes a command out, whatever it waits for.
    pub(crate) fn take(&mut self, ticket: Owner) -> Option<Waiting<S>> {
        let waiting = self.all.remove(&ticket)?;
        match &waiting.cause {
            Cause::Fetch => _ = self.fetch.remove(&ticket),
            Cause::Locked(key) => self.locked.remove(key, ticket),
            Cause::Full(tree) => _ = self.full.remove(&(*tree, ticket)),
            Cause::Wake => _ = self.wake.remove(&ticket),
            Cause::Due => _ = self.due.remove(&ticket),
            Cause::Written(keys) => {
                keys.iter().for_each(|key| self.written.remove(key, ticket));
                self.blocked -= 1;
                if let Some(until) = waiting.job.until {
                    self.deadlines.remove(&(until, ticket));
                }
            }
        }
        Some(waiting)
    }

    /// The cause of a command has ended.
    fn make_due(&mut self, ticket: Owner) {
        if let Some(mut waiting) = self.take(ticket) {
            if let Cause::Locked(key) = &waiting.cause {
                waiting.turn = Some(key.clone());
            }
            self.put(waiting, Cause::Due);
        }
    }

    pub(crate) fn next_due(&mut self) -> Option<Waiting<S>> {
        let first = *self.due.first()?;
        self.take(first)
    }

    /// Those whose records are read next, the oldest first: who needs records of keys alone, or who walks along ranges, which takes
    /// longer. They are told apart by their tickets until [`Queue::was_read`].
    pub(crate) fn take_fetch(&mut self, most: usize, walks: bool) -> impl Iterator<Item = Waiting<S>> {
        let is_it = |ticket: &&Owner| self.all.get(*ticket).is_some_and(|waiting| waiting.looks.is_empty() != walks);
        let some: Vec<Owner> = self.fetch.iter().filter(is_it).copied().take(most).collect();
        self.reading.extend(some.iter().map(|ticket| (*ticket, false)));
        some.into_iter().filter_map(|ticket| self.take(ticket))
    }

    /// A command is not in the fetcher's hands any more. True: it was cancelled there.
    pub(crate) fn was_read(&mut self, ticket: Owner) -> bool {
        self.reading.remove(&ticket).unwrap_or(false)
    }

    /// Marks a command that is in the fetcher's hands as cancelled. False: it is not there, or was cancelled before.
    pub(crate) fn cancel_reading(&mut self, ticket: Owner) -> bool {
        self.reading.get_mut(&ticket).is_some_and(|is_cancelled| !std::mem::replace(is_cancelled, true))
    }

    /// The first one that waits for a key which is held; `elder`, if it does.
    pub(crate) fn first_locked(&self, tree: usize, key: &[u8], elder: Option<Owner>) -> Option<Owner> {
        let tickets = self.locked.of(tree, key)?;
        elder.filter(|elder| tickets.contains(elder)).or_else(|| tickets.first().copied())
    }

    /// Keys of a range which are held and for which somebody waits.
    pub(crate) fn locked_within(&self, tree: usize, bounds: (&[u8], &[u8])) -> Vec<Key> {
        self.locked.within(tree, bounds).map(|(key, _)| (tree, key.clone())).collect()
    }

    /// The key for which it waits is free: its turn.
    pub(crate) fn unlocked(&mut self, ticket: Owner) {
        self.make_due(ticket);
    }

    /// Whether somebody waits for a tree's next memtable.
    pub(crate) fn is_full(&self, tree: usize) -> bool {
        self.full.range((tree, 0)..=(tree, Owner::MAX)).next().is_some()
    }

    /// A tree has another memtable.
    pub(crate) fn has_place(&mut self, tree: usize) {
        while let Some((_, ticket)) = self.full.range((tree, 0)..=(tree, Owner::MAX)).next().copied() {
            self.make_due(ticket);
        }
    }

    /// The store is awake, or could not be woken.
    pub(crate) fn woken(&mut self) {
        while let Some(ticket) = self.wake.first().copied() {
            self.make_due(ticket);
        }
    }

    /// A unit writes a key. Costs nothing where nobody waits for any.
    pub(crate) fn key_written(&mut self, tree: usize, key: &[u8]) {
        while let Some(ticket) = self.written.of(tree, key).and_then(|tickets| tickets.first().copied()) {
            self.make_due(ticket);
        }
    }

    /// A large unit wrote keys of a range.
    pub(crate) fn range_written(&mut self, tree: usize, bounds: (&[u8], &[u8])) {
        let woken: BTreeSet<Owner> =
            self.written.within(tree, bounds).flat_map(|(_, tickets)| tickets.iter().copied()).collect();
        woken.into_iter().for_each(|ticket| self.make_due(ticket));
    }

    /// Those that wait for others to write a key, and no longer than until now.
    pub(crate) fn take_over(&mut self, now: Duration) -> Vec<Waiting<S>> {
        let over: Vec<Owner> = self.deadlines.range(..=(now, Owner::MAX)).map(|(_, ticket)| *ticket).collect();
        over.into_iter().filter_map(|ticket| self.take(ticket)).collect()
    }

    /// Those that wait for others to write a key.
    pub(crate) fn take_blocked(&mut self) -> Vec<Waiting<S>> {
        let is_blocked = |waiting: &&Waiting<S>| matches!(waiting.cause, Cause::Written(_));
        let all: Vec<Owner> = self.all.values().filter(is_blocked).map(|waiting| waiting.ticket).collect();
        all.into_iter().filter_map(|ticket| self.take(ticket)).collect()
    }

    /// All but those in the fetcher's hands.
    pub(crate) fn take_all(&mut self) -> Vec<Waiting<S>> {
        let all: Vec<Owner> = self.all.keys().copied().collect();
        all.into_iter().filter_map(|ticket| self.take(ticket)).collect()
    }
}
