//! Small changes of one collection that are made together: each sees what those before it do, and one commit is for all.
//!
//! ```text
//!   queue ─► changes that name a few ids each, in their order ─► what is stored of all these ids, read in one batch
//!         ─► each is made of that and of what those before it did ─► pieces ─► writer: logs all, ONE fsync, applies ─► answers
//!                  └─ finds no memory beside the others, or comes after one that the log refused: back to the head of the queue
//! ```
//!
//! A client that writes points again and again without waiting, and many clients that write one each, share the fsyncs then
//! as those do who upsert. While a group is logged, the next one gathers in the queue.

use crate::api::{Mode, Parts, PayloadChange, PayloadParts, Selection, VectorParts, Write};
use crate::collection::Collection;
use crate::collection::health::FaultKind;
use crate::inner::StoreInner;
use crate::state::request::{Change, Log, Piece, Reply, Request};
use crate::write::change::{Changer, PIECE_BYTES, REWRITE_POINTS, Sink};
use crate::write::staged::Staged;
use ramekin_base::{Error, PointId, Result, cancel, supervise};
use ramekin_memory::Reservation;
use std::sync::{Arc, mpsc};

/// Does changes until the store closes and none is left.
pub(crate) fn run(shared: &Arc<StoreInner>) {
    loop {
        shared.reach("changer");
        let changes = shared.queue.take_changes();
        let Some(collection) = changes.first().map(|change| change.collection.clone()) else { return };
        let mut log = |pieces| send(shared, &collection, pieces);
        let made = see_through(shared, &collection, changes, &mut log);
        // Whoever hears the answer finds the collection open to his next write, which gets a later number.
        let numbered: Vec<_> = made.into_iter().map(|made| (shared.next_seqno(), made)).collect();
        shared.queue.changed(collection.number);
        numbered.into_iter().for_each(|(seqno, (change, outcome))| change.answer.give_unless(seqno, outcome));
    }
}

/// Makes changes of one collection, and puts those back that had to be left: they are the first of the queue then.
pub(crate) fn see_through(
    shared: &StoreInner,
    collection: &Arc<Collection>,
    mut changes: Vec<Change>,
    log: Log<'_>,
) -> Vec<(Change, Outcome)> {
    // A panic beside the changes themselves leaves nobody waiting, and the collection open to others.
    let made = supervise::caught("changes", || Ok(make(shared, collection, &changes, log)));
    let made = made.unwrap_or_else(|error| changes.iter().map(|_| Err(error.clone())).collect());
    shared.queue.put_back_all(changes.split_off(made.len()));
    changes.into_iter().zip(made).collect()
}

/// Hands pieces to the writer and waits until they are applied. Where one finds no memory or too long a log, what is new is
/// written out first; the writer does not wait for that. What became of each; `None`: one before it failed.
fn send(shared: &StoreInner, collection: &Arc<Collection>, pieces: Vec<Piece>) -> Vec<Option<Result<()>>> {
    let closed = || Some(Err(Error::closed("the writer has stopped")));
    let mut outcomes: Vec<Option<Result<()>>> = pieces.iter().map(|_| closed()).collect();
    let mut left: Vec<(usize, Piece)> = pieces.into_iter().enumerate().collect();
    while let Some((_, first)) = left.first() {
        let seen = shared.flushed.count();
        let (mut waits, asker) = (left.len(), first.asker.clone());
        let (answer, answered) = mpsc::sync_channel(waits + 1);
        shared.queue.put_pieces(Request::Pieces { collection: collection.clone(), pieces: left, answer });
        left = Vec::new();
        while waits > 0 {
            match answered.recv() {
                Ok(Reply::Done(at, outcome)) => {
                    outcomes[at] = Some(outcome.and_then(|()| collection.check_current()));
                    waits -= 1;
                }
                Ok(Reply::Later(back)) => (waits, left) = (waits - back.len(), back),
                Ok(Reply::Left(count)) => {
                    waits -= count;
                    let from = outcomes.len() - count;
                    outcomes[from..].iter_mut().for_each(|outcome| *outcome = None);
                }
                Err(_) => return outcomes,
            }
        }
        // That others cannot be written out does not end it: where it needs their memory the writer says so.
        let wait = || asker.as_ref().map_or(Ok(()), cancel::Token::check).and_then(|()| shared.wait_for_flush(seen));
        if let Some((first, _)) = left.first()
            && let Err(error) = wait()
        {
            outcomes[*first..].iter_mut().for_each(|outcome| *outcome = None);
            outcomes[*first] = Some(Err(error));
            break;
        }
    }
    outcomes
}

/// What became of a change: the first of its ids that no point has.
type Outcome = Result<Option<PointId>>;

/// Makes changes of one collection in their order, each durable when this returns. What became of the first ones, of one at
/// least: those behind one that the log did not take may be made of it, and are left, as is one that finds no memory beside others.
fn make(shared: &StoreInner, collection: &Arc<Collection>, changes: &[Change], log: Log<'_>) -> Vec<Outcome> {
    let staged = Staged::default();
    let mut group =
        Group { shared, collection, log, staged, pieces: Vec::new(), memory: Vec::new(), bytes: 0, ended: false };
    if changes.len() > 1 {
        // What cannot be read here is read by the change that needs it.
        _ = supervise::caught("a read for changes", || group.fetch(changes));
    }
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        let made = if changes.len() > 1 { group.stage(change, number) } else { group.alone(change) };
        match made {
            Err(error) if error.kind().is_memory() && changes.len() > 1 => {
                group.send(&mut outcomes);
                if outcomes.is_empty() {
                    outcomes.push(group.alone(change));
                }
                break;
            }
            made => outcomes.push(made),
        }
        if group.bytes >= PIECE_BYTES {
            group.send(&mut outcomes);
        }
        if group.ended {
            break;
        }
    }
    group.send(&mut outcomes);
    for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        shared.noted(collection, FaultKind::Read, error);
    }
    outcomes
}

struct Group<'a> {
    shared: &'a StoreInner,
    collection: &'a Arc<Collection>,
    log: Log<'a>,
    staged: Staged,
    /// What is to be logged, and of which change it is.
    pieces: Vec<(usize, Piece)>,
    /// What the pieces hold.
    memory: Vec<Reservation>,
    bytes: usize,
    /// The log did not take a piece: no other is made.
    ended: bool,
}

impl Group<'_> {
    /// Reads what is stored of the points that changes are made of: those first of which most is needed.
    fn fetch(&mut self, changes: &[Change]) -> Result<()> {
        let (all, none) = ((PayloadParts::All, VectorParts::All), (PayloadParts::None, VectorParts::None));
        for wanted in [all, (PayloadParts::All, VectorParts::None), none] {
            let needs = changes.iter().filter_map(|change| needed(&change.write));
            let mut ids: Vec<PointId> =
                needs.filter(|(_, parts)| *parts == wanted).flat_map(|(ids, _)| ids).copied().collect();
            ids.sort_unstable();
            ids.dedup();
            let parts = Parts { payload: wanted.0, vectors: wanted.1 };
            for ids in ids.chunks(REWRITE_POINTS) {
                if self.staged.bytes() < PIECE_BYTES as u64 {
                    self.staged.fetch(&self.shared.env, self.collection, ids, &parts)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the pieces of a change.
    fn stage(&mut self, change: &Change, number: usize) -> Outcome {
        let (shared, collection) = (self.shared, self.collection);
        make_one(shared, collection, change, &mut Member { group: self, number })
    }

    /// Sees a change through that nothing else shares a commit with.
    fn alone(&mut self, change: &Change) -> Outcome {
        let sink = &mut Alone { log: &mut *self.log, staged: Staged::default() };
        make_one(self.shared, self.collection, change, sink)
    }

    /// Sees through what was staged so far. Afterwards all of it shows in what is read. Of changes that the log did not take there
    /// are no outcomes then, but for the one that it refused.
    fn send(&mut self, outcomes: &mut Vec<Outcome>) {
        let (numbers, pieces): (Vec<usize>, Vec<Piece>) = std::mem::take(&mut self.pieces).into_iter().unzip();
        let logged = if pieces.is_empty() { Vec::new() } else { (self.log)(pieces) };
        let failed = numbers.into_iter().zip(logged).find(|(_, logged)| !matches!(logged, Some(Ok(()))));
        if let Some((number, logged)) = failed {
            // Those behind it saw what it would have done, also where they write nothing.
            outcomes.truncate(number);
            self.ended = true;
            match logged {
                // Whoever finds no memory beside others waits for it at the head of the queue.
                Some(Err(error)) if !error.kind().is_memory() || number == 0 => outcomes.push(Err(error)),
                _ => {}
            }
        }
        (self.staged, self.memory, self.bytes) = (Staged::default(), Vec::new(), 0);
    }
}

fn make_one(shared: &StoreInner, collection: &Arc<Collection>, change: &Change, sink: &mut dyn Sink) -> Outcome {
    let asker = change.answer.asker.clone();
    supervise::caught("a change", || {
        shared.reach("change");
        Changer { shared, collection, asker, logged: false, sink }.change(&change.write)
    })
}

/// Where the pieces of one change of a group go.
struct Member<'g, 'a> {
    group: &'g mut Group<'a>,
    number: usize,
}

impl Sink for Member<'_, '_> {
    fn log(&mut self, mut piece: Piece, memory: Vec<Reservation>) -> Result<()> {
        // Those after it see what it does, so it is seen through from here on, whoever waits.
        piece.asker.take().map_or(Ok(()), |asker| asker.begin())?;
        self.group.staged.stage(&self.group.shared.env, &piece.what)?;
        self.group.bytes += piece.what.bytes();
        self.group.pieces.push((self.number, piece));
        self.group.memory.extend(memory);
        Ok(())
    }

    fn staged(&self) -> &Staged {
        &self.group.staged
    }

    /// Others wait for the group.
    fn may_wait(&self) -> bool {
        false
    }
}

/// Each piece is applied before the next one is made.
struct Alone<'a> {
    log: Log<'a>,
    staged: Staged,
}

impl Sink for Alone<'_> {
    fn log(&mut self, piece: Piece, memory: Vec<Reservation>) -> Result<()> {
        let logged = (self.log)(vec![piece]).pop().flatten();
        drop(memory);
        logged.unwrap_or_else(|| Err(Error::bug("a piece has no outcome")))
    }

    fn staged(&self) -> &Staged {
        &self.staged
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// The points that a change is made of, and what it must know of them.
fn needed(write: &Write) -> Option<(&[PointId], (PayloadParts, VectorParts))> {
    let (all, payload) = ((PayloadParts::All, VectorParts::All), (PayloadParts::All, VectorParts::None));
    match write {
        Write::Payload { points: Selection::Ids(ids), change } => match change {
            PayloadChange::Merge { .. } | PayloadChange::DeleteKeys(_) => Some((ids, payload)),
            PayloadChange::Overwrite(_) | PayloadChange::Clear => Some((ids, (PayloadParts::None, VectorParts::None))),
        },
        Write::Conditional { batch, mode: Mode::Vectors, .. } | Write::UpdateVectors(batch) => Some((&batch.ids, all)),
        Write::Conditional { batch, .. } => Some((&batch.ids, payload)),
        Write::DeleteVectors { points: Selection::Ids(ids), .. } => Some((ids, all)),
        _ => None,
    }
}
