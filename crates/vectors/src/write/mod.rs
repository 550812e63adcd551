//! The one writer of a store: it alone appends to the log and changes what is newest.
//!
//! ```text
//!   queue (bounded) ─► take what waits ─► log.append each ─► ONE log.commit ─► apply each ─► answer each
//! ```
//!
//! Group commit is the queue: while one fsync runs, others wait in it and share the next. A change
//! that depends on what is stored (a vector of a point, a payload key) is made by a changer out of what
//! was applied before it, and comes back in pieces (see `change.rs`). Order is total, so replay is the same loop.
//!
//! The writer serves all collections, so it waits for none of them: a write that finds no memory, or whose collection
//! is to write slower for a while, stays in the queue, and those of others go by.

pub(crate) mod append;
pub(crate) mod change;
pub(crate) mod conditional;
pub(crate) mod group;
pub(crate) mod payload_write;
pub(crate) mod rewrite;
pub(crate) mod staged;
mod stalls;

use crate::api::catalog_cost::json_bytes;
use crate::api::op::{self, CollectionId};
use crate::api::{Selection, Write};
use crate::collection::Collection;
use crate::collection::catalog::Catalog;
use crate::collection::health::FaultKind;
use crate::inner::{StoreInner, idle};
use crate::memtable::Memtable;
use crate::state::request::{Change, Completion, MakeMeta, Piece, Reply, Request, Tell, What};
use crate::write::append::{Asker, Logged, Pending, begin, parts_of};

use crate::write::stalls::Hold;
use ramekin_base::{Error, Kind, Result, cancel, supervise};
use ramekin_log::{Log, Lsn};
use ramekin_memory::holding;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Bytes of the log that wait for one fsync at most.
const GROUP_BYTES: u64 = 2 << 20;
/// A write that waits for readers of an idle store is tried again after so long.
const WAKE_AGAIN: Duration = Duration::from_millis(10);

pub(crate) struct Writer {
    pub(crate) shared: Arc<StoreInner>,
    pub(crate) log: Log,
    /// What is logged and waits for the fsync.
    pub(crate) pending: Vec<Pending>,
    /// A record while it is made.
    pub(crate) record: Vec<u8>,
    holds: HashMap<CollectionId, Hold>,
    /// All that was logged before is applied, or waits in `pending`.
    covered: (Lsn, u64),
}

impl Writer {
    pub(crate) fn new(shared: Arc<StoreInner>, log: Log) -> Self {
        Self { shared, log, pending: Vec::new(), record: Vec::new(), holds: HashMap::new(), covered: (0, 0) }
    }

    /// Takes what waits in the queue and sees it through. False: the store is closing and the queue is empty.
    pub(crate) fn step(&mut self, block: bool) -> bool {
        self.shared.reach("writer");
        let Some(first) = self.take(block) else {
            return !self.shared.is_closing();
        };
        let mut next = Some(first);
        while let Some(request) = next {
            self.supervised(request);
            let full = self.log.uncommitted_bytes() > GROUP_BYTES;
            next = if full { None } else { self.take(false) };
        }
        self.flush();
        // What failed of this is tried again at the next turn, and has been said.
        _ = supervise::caught("the writer's keeping of bounds", || {
            self.keep_bounds();
            Ok(())
        });
        true
    }

    /// Does a request. If it panics its client alone gets an error; what is in the log of it by then is in nobody's memory,
    /// so its collection is closed to changes, and others go on.
    fn supervised(&mut self, request: Request) {
        let collection = request.collection().cloned();
        self.covered = self.logged();
        let done = supervise::caught("a write", || {
            self.handle(request);
            Ok(())
        });
        self.note_log();
        if let Err(error) = done
            && self.logged() != self.covered
        {
            self.diverge(collection.as_deref(), &error);
        }
    }

    /// Where the log ends with what the next commit makes durable.
    fn logged(&self) -> (Lsn, u64) {
        (self.log.end(), self.log.uncommitted_bytes())
    }

    /// The log holds what memory lacks: of a collection, or of the names of all.
    fn diverge(&self, collection: Option<&Collection>, error: &Error) {
        self.shared.diverged.store(true, Ordering::SeqCst);
        let now_ms = self.shared.now_ms();
        match collection {
            Some(collection) => {
                let name = self.shared.catalog.read().name_of(collection.number).unwrap_or_default();
                collection.health.raise(FaultKind::Diverged, Some(&name), error, now_ms);
            }
            None => self.shared.health.raise(FaultKind::Diverged, Some(""), error, now_ms),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.shared.queue.is_empty()
    }

    /// The next request that need not wait for its collection.
    fn take(&mut self, block: bool) -> Option<Request> {
        let shared = self.shared.clone();
        let is_over = |hold: &Hold| match hold {
            Hold::Flush(seen, until) => shared.flushed.count() > *seen || shared.options.clock.now() >= *until,
            Hold::Until(until) => shared.options.clock.now() >= *until,
        };
        self.holds.retain(|_, hold| !is_over(hold));
        let is_held = |request: &Request| match request {
            Request::Write { collection, .. } => {
                let hold = self.holds.get(&collection.number);
                hold.is_some_and(|hold| !is_over(hold) && !shared.is_closing())
            }
            _ => false,
        };
        shared.queue.take(block, is_held)
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Write { collection, write, wait, memory, asker, done } => {
                let answer = Completion { done, wait, memory, asker };
                if collection.is_dropped() {
                    return (answer.done)(Err(Error::not_found("the collection was deleted")));
                }
                if let Some(Err(given_up)) = answer.asker.as_ref().map(cancel::Token::check) {
                    return (answer.done)(Err(given_up));
                }
                // A log that has what memory lacks takes no more.
                let current = self.check_current().and_then(|()| collection.check_current());
                match current.and_then(|()| self.wake(&answer)) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.hold(&collection, Hold::Until(self.shared.options.clock.now() + WAKE_AGAIN));
                        return self.put_back(collection, write, answer);
                    }
                    Err(error) => return (answer.done)(Err(error)),
                }
                let is_delete = matches!(write, Write::Delete(_));
                // On a full disk nobody can say when what waits is written out.
                if !(is_delete && self.shared.full.is_on()) && self.waits_for_log(&collection) {
                    return self.put_back(collection, write, answer);
                }
                self.shared.reach("write");
                collection.written_ms.store(self.shared.now_ms(), Ordering::Relaxed);
                self.write(collection, write, answer);
            }
            Request::Meta { op, brought, asker, done } => {
                self.flush();
                done(holding(brought, || self.meta(asker.as_ref(), op)));
            }
            Request::Rotate(collection) => {
                self.flush();
                if let Err(error) = collection.rotate() {
                    tracing::warn!("could not rotate a memtable: {error}");
                }
                self.shared.wake_background();
            }
            // Each turn keeps the bounds.
            Request::Look => {}
            Request::Pieces { collection, pieces, answer } => self.log_pieces(&collection, pieces, &answer),
        }
    }

    /// Logs a write, or hands it on to a changer.
    fn write(&mut self, collection: Arc<Collection>, write: Write, answer: Completion) {
        if !matches!(write, Write::Delete(_))
            && let Err(full) = self.shared.admit()
        {
            return (answer.done)(Err(full));
        }
        let logged = match write {
            Write::Upsert(batch) => match self.room(&collection, Memtable::bytes_for(&batch)) {
                Ok(false) => return self.put_back(collection, Write::Upsert(batch), answer),
                Err(error) if self.may_wait(&answer, &error) => {
                    self.hold(&collection, Hold::Flush(self.shared.flushed.count(), self.soon()));
                    return self.put_back(collection, Write::Upsert(batch), answer);
                }
                room => room.and_then(|_| self.log_upsert(answer.asker.as_ref(), &collection, batch, None)),
            },
            Write::Delete(Selection::Ids(ids)) if self.is_at_once(&ids) => {
                self.log_deletes(answer.asker.as_ref(), &collection, ids, None)
            }
            write => {
                self.flush();
                return match self.log.check_open().and_then(|()| collection.check_current()) {
                    // What the log may hold and memory has not: then not even "there is no such point" would be true.
                    Err(error) => answer.give(0, Err(error)),
                    Ok(()) => self.change(Change { collection, write, answer }),
                };
            }
        };
        match logged {
            Ok(seqno) => self.answer_last(Tell::Client { answer, seqno }),
            Err(error) => (answer.done)(Err(error)),
        }
    }

    fn put_back(&self, collection: Arc<Collection>, write: Write, answer: Completion) {
        let Completion { done, wait, memory, asker } = answer;
        self.shared.queue.put_back(Request::Write { collection, write, wait, memory, asker, done });
    }

    /// A changer does it; where there is none (the simulator), it is done here.
    fn change(&mut self, change: Change) {
        let shared = self.shared.clone();
        if !shared.single_threaded.load(Ordering::SeqCst) {
            return shared.queue.hand_on(change);
        }
        let collection = change.collection.clone();
        let changes = shared.queue.with_followers(change);
        let mut log = |pieces| self.see_through(&collection, pieces);
        let made = group::see_through(&shared, &collection, changes, &mut log);
        made.into_iter().for_each(|(change, outcome)| change.answer.give_unless(shared.next_seqno(), outcome));
    }

    /// Logs and applies pieces where there are no changers. After one that failed none is logged.
    fn see_through(&mut self, collection: &Arc<Collection>, pieces: Vec<Piece>) -> Vec<Option<Result<()>>> {
        let mut outcomes: Vec<Option<Result<()>>> = pieces.iter().map(|_| None).collect();
        for (piece, outcome) in pieces.into_iter().zip(&mut outcomes) {
            let mut logged = self.log_piece(collection, piece);
            while let Ok(Some(piece)) = logged {
                logged = self.log_piece(collection, piece);
            }
            let is_logged = logged.is_ok();
            *outcome = Some(logged.map(|_| ()));
            if !is_logged {
                break;
            }
        }
        let applied = self.flush_checked();
        self.keep_bounds();
        if let Err(error) = applied.and_then(|()| self.log.check_open()) {
            outcomes.iter_mut().filter(|it| matches!(it, Some(Ok(())))).for_each(|it| *it = Some(Err(error.clone())));
        }
        outcomes
    }

    /// Who is told of what was logged last.
    fn answer_last(&mut self, tell: Tell) {
        match self.pending.last_mut() {
            Some(pending) if pending.answer.is_none() => pending.answer = Some(tell),
            _ => tell.tell(Ok(())),
        }
    }

    /// Logs pieces of changes, in their order. One that must wait keeps those behind it waiting; after one that fails none is
    /// logged: they may be made of what it would have done.
    fn log_pieces(&mut self, collection: &Arc<Collection>, pieces: Vec<(usize, Piece)>, answer: &SyncSender<Reply>) {
        let mut left = pieces.into_iter();
        while let Some((at, piece)) = left.next() {
            match self.log_piece(collection, piece) {
                Ok(None) => {
                    self.answer_last(Tell::Changer(answer.clone(), at));
                    self.covered = self.logged();
                }
                Ok(Some(piece)) => {
                    let later = std::iter::once((at, piece)).chain(left).collect();
                    _ = answer.send(Reply::Later(later));
                    return;
                }
                Err(error) => {
                    _ = answer.send(Reply::Done(at, Err(error)));
                    _ = answer.send(Reply::Left(left.len()));
                    return;
                }
            }
        }
    }

    /// Logs a piece of a change. What comes back must wait until something new was written out.
    fn log_piece(&mut self, collection: &Arc<Collection>, piece: Piece) -> Result<Option<Piece>> {
        if collection.is_dropped() {
            return Err(Error::not_found("the collection was deleted"));
        }
        self.check_current()?;
        collection.check_current()?;
        match idle::try_wake(&self.shared) {
            // Readers still use what a flush needs: others are served until they let go of it.
            Err(error) if error.kind() == Kind::Busy && !self.is_alone() => return Ok(Some(piece)),
            Err(_) => idle::wake(&self.shared)?,
            Ok(()) => {}
        }
        self.log.check_open()?;
        let is_delete = matches!(piece.what, What::Delete(_));
        if !is_delete {
            self.shared.admit()?;
        }
        // On a full disk nobody can say when what waits is written out.
        if self.is_slowed(collection) && !(is_delete && self.shared.full.is_on()) {
            return Ok(Some(piece));
        }
        collection.written_ms.store(self.shared.now_ms(), Ordering::Relaxed);
        let mut patches = None;
        let has_room = match &piece.what {
            What::Delete(_) => true,
            What::Upserts(batches) => self.room(collection, batches.iter().map(Memtable::bytes_for).sum())?,
            What::Payloads(points) => {
                patches = self.patches(collection, points.len())?;
                patches.is_some()
            }
        };
        if !has_room {
            return Ok(Some(piece));
        }
        let (mut located, asker) = (piece.located.into_iter(), piece.asker.as_ref());
        match piece.what {
            What::Delete(ids) => _ = self.log_deletes(asker, collection, ids, located.next())?,
            What::Upserts(batches) => self.log_upserts(asker, collection, batches, located)?,
            What::Payloads(points) => {
                let (located, patches) = (located.next().unwrap_or_default(), patches.ok_or_else(no_patches)?);
                self.log_payloads(asker, collection, &points, located, patches)?;
            }
        }
        Ok(None)
    }

    fn meta(&mut self, asker: Asker<'_>, op: MakeMeta) -> Result<bool> {
        asker.map_or(Ok(()), cancel::Token::check)?;
        self.check_current()?;
        let Some(op) = op(&self.shared.catalog.read())? else { return Ok(false) };
        let frees = op.frees();
        if !frees {
            self.shared.admit()?;
        }
        let mut checking = self.shared.accounts.catalog.try_reserve(Catalog::check_bytes(&op))?;
        self.shared.catalog.read().check(&op, &mut checking)?;
        drop(checking);
        let mut record = Vec::new();
        let _record = self.shared.accounts.catalog.try_reserve(2 * json_bytes(&op))?;
        let seqno = self.shared.next_seqno();
        op::encode_meta(&mut record, seqno, &op)?;
        // All that can fail comes before the record.
        let change = self.shared.prepare(op)?;
        match frees {
            true => self.room_to_free(1, record.len())?,
            false => self.room_to_add(1, record.len())?,
        }
        begin(asker)?;
        let lsn = self.log.append(&record)?;
        let end = self.shared.timed(&self.shared.timings.commit, || self.log.commit())?;
        self.shared.apply_meta(change, lsn, end);
        self.shared.set_applied(end);
        self.covered = self.logged();
        Ok(true)
    }

    fn flush(&mut self) {
        _ = self.flush_checked();
    }

    /// One fsync for all that is pending, then each is applied and answered.
    fn flush_checked(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (shared, log) = (&self.shared, &mut self.log);
        let committed =
            supervise::caught("a commit of the log", || Ok(shared.timed(&shared.timings.commit, || log.commit())));
        let committed = match committed {
            Ok(committed) => committed,
            Err(error) => {
                // What the log holds of these is not known; whoever waits for them hears that, and it is not written again.
                self.diverge(None, &error);
                self.pending.clear();
                return Err(error);
            }
        };
        self.note_log();
        let mut outcome = committed.as_ref().map(|_| ()).map_err(Clone::clone);
        for mut pending in std::mem::take(&mut self.pending) {
            let (collection, answer) = (pending.collection.clone(), pending.answer.take());
            let applied = supervise::caught("a write", || self.finish(pending, committed.clone()));
            // A fault is to be seen by then that whoever caused it hears of it.
            let applied = applied.map_err(|error| match committed {
                Ok(_) => {
                    self.diverge(Some(&collection), &error);
                    error.after("it is durable, and shows after a restart")
                }
                Err(_) => error,
            });
            if let Err(error) = &applied {
                outcome = Err(error.clone());
            }
            if let Some(tell) = answer {
                tell.tell(applied);
            }
        }
        if let Ok(end) = committed {
            self.shared.set_applied(end);
        }
        self.covered = self.logged();
        outcome
    }

    /// Fails if memory has diverged from the log in what is of no one collection, or if what is logged could not be written
    /// out.
    fn check_current(&self) -> Result<()> {
        self.shared.check_open()?;
        self.shared.health.of(&FaultKind::Diverged).map_or(Ok(()), |cause| {
            Err(Error::closed(format!("the store is closed to changes until a restart: {cause}")))
        })
    }

    /// That the log takes no more until a restart shows in the health of the store, whatever closed it.
    fn note_log(&self) {
        if let Err(closed) = self.log.check_open() {
            self.shared.health.raise(FaultKind::Log, Some(""), &closed, self.shared.now_ms());
        }
    }

    fn finish(&self, pending: Pending, committed: Result<Lsn>) -> Result<()> {
        let Pending { collection, what, located, .. } = pending;
        let durable = committed.map(|_| ());
        if durable.is_ok() {
            self.shared.reach("apply");
        }
        match (&durable, what) {
            (Ok(()), Logged::Upsert { batch, parts, seqno }) => {
                self.shared.apply_parts(&collection, &batch, &parts_of(&parts), seqno, located)
            }
            (Err(error), Logged::Upsert { batch, .. }) => {
                collection.view.load().active.forget(Memtable::bytes_for(&batch));
                Err(error.clone())
            }
            (Ok(()), Logged::Delete { ids, lsn }) => collection.apply_delete(&self.shared.pages, &ids, lsn, located),
            (Ok(()), Logged::Payloads { ids, payloads, mut memory }) => {
                collection.apply_payloads(&self.shared.pages, &ids, &payloads, &mut memory, located)
            }
            (Err(error), _) => Err(error.clone()),
        }
    }
}

fn no_patches() -> Error {
    Error::bug("payloads without memory for them")
}
