//! Small changes of one collection that are made together: each sees what those before it do, and one commit is for all.
//!
//! ```text
//!   queue ─► changes that name a few ids each, in their order ─► what is stored of all these ids, read in one batch
//!         ─► each is made of that and of what those before it did ─► pieces ─► writer: logs all, ONE fsync, applies ─► answers
//!                  └─ finds no memory beside the others: these go first, then it is made alone
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
        let made = make(shared, &collection, &changes, &mut log);
        // Whoever hears the answer finds the collection open to his next write.
        shared.queue.changed(collection.number);
        for (change, outcome) in changes.into_iter().zip(made) {
            change.answer.give_unless(shared.next_seqno(), outcome);
        }
    }
}

/// Hands pieces to the writer and waits until they are applied. Where one finds no memory or too long a log, what is new is
/// written out first; the writer does not wait for that. What became of each.
fn send(shared: &StoreInner, collection: &Arc<Collection>, pieces: Vec<Piece>) -> Vec<Result<()>> {
    let closed = || Error::closed("the writer has stopped");
    let mut outcomes: Vec<Result<()>> = pieces.iter().map(|_| Err(closed())).collect();
    let mut left: Vec<(usize, Piece)> = pieces.into_iter().enumerate().collect();
    while !left.is_empty() {
        let seen = shared.flushed.count();
        let (mut waits, asker) = (left.len(), left[0].1.asker.clone());
        let (answer, answered) = mpsc::sync_channel(waits + 1);
        shared.queue.put_pieces(Request::Pieces { collection: collection.clone(), pieces: left, answer });
        left = Vec::new();
        while waits > 0 {
            match answered.recv() {
                Ok(Reply::Done(at, outcome)) => {
                    outcomes[at] = outcome.and_then(|()| collection.check_current());
                    waits -= 1;
                }
                Ok(Reply::Later(back)) => (waits, left) = (waits - back.len(), back),
                Err(_) => return outcomes,
            }
        }
        if left.is_empty() {
            break;
        }
        // That others cannot be written out does not end it: where it needs their memory the writer says so.
        let waited = asker.as_ref().map_or(Ok(()), cancel::Token::check).and_then(|()| shared.wait_for_flush(seen));
        if let Err(error) = waited {
            left.drain(..).for_each(|(at, _)| outcomes[at] = Err(error.clone()));
        }
    }
    outcomes
}

/// What became of a change: the first of its ids that no point has.
type Outcome = Result<Option<PointId>>;

/// Makes changes of one collection in their order, each durable when this returns. What became of each.
pub(crate) fn make(
    shared: &StoreInner,
    collection: &Arc<Collection>,
    changes: &[Change],
    log: Log<'_>,
) -> Vec<Outcome> {
    let staged = Staged::default();
    let mut group = Group { shared, collection, log, staged, pieces: Vec::new(), memory: Vec::new(), bytes: 0 };
    if changes.len() > 1 {
        // What cannot be read here is read by the change that needs it.
        _ = supervise::caught("a read for changes", || group.fetch(changes));
    }
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(changes.len());
    for change in changes {
        let mut outcome = if changes.len() > 1 { group.stage(change, outcomes.len()) } else { group.alone(change) };
        if changes.len() > 1 && outcome.as_ref().is_err_and(|error| error.kind().is_memory()) {
            group.send(&mut outcomes);
            outcome = group.alone(change);
        }
        outcomes.push(outcome);
        if group.bytes >= PIECE_BYTES {
            group.send(&mut outcomes);
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
        let (shared, collection, asker) = (self.shared, self.collection, change.answer.asker.clone());
        let sink = &mut Member { group: self, number };
        supervise::caught("a change", || {
            shared.reach("change");
            Changer { shared, collection, asker, logged: false, sink }.change(&change.write)
        })
    }

    /// Sees a change through that nothing else shares a commit with.
    fn alone(&mut self, change: &Change) -> Outcome {
        let (shared, collection, asker) = (self.shared, self.collection, change.answer.asker.clone());
        let sink = &mut Alone { log: &mut *self.log, staged: Staged::default() };
        supervise::caught("a change", || {
            shared.reach("change");
            Changer { shared, collection, asker, logged: false, sink }.change(&change.write)
        })
    }

    /// Sees through what was staged so far. Afterwards all of it shows in what is read.
    fn send(&mut self, outcomes: &mut [Outcome]) {
        let (numbers, pieces): (Vec<usize>, Vec<Piece>) = std::mem::take(&mut self.pieces).into_iter().unzip();
        if !pieces.is_empty() {
            for (number, outcome) in numbers.into_iter().zip((self.log)(pieces)) {
                if let (Err(error), Some(own)) = (outcome, outcomes.get_mut(number)) {
                    *own = Err(error);
                }
            }
        }
        (self.staged, self.memory, self.bytes) = (Staged::default(), Vec::new(), 0);
    }
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
        let logged = (self.log)(vec![piece]).into_iter().collect();
        drop(memory);
        logged
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
