//! Writes that depend on what is stored: changes of payloads and vectors, deletes by a filter, conditional upserts.
//!
//! ```text
//!   writer:  takes it from the queue ──► hands it over; the collection's later writes wait in the queue, others go on;
//!            small ones that wait behind it are made together with it (`group.rs`)
//!   changer: reads what is there ─► a piece of the change ─► writer: logs it, fsync with all who wait, applies it ─┐
//!               ▲                                                                                                  │
//!               └────────────────────────────── next piece ◄───────────────────────────────────────────────────────┘
//! ```
//!
//! A change may be of millions of points. While it goes on nobody else writes to its collection, so each piece is made of what
//! the pieces before it left there. The writer never reads for it; between two pieces it serves whoever else waits. The log
//! has whole upserts, whole payloads and ids, so replay never has to read anything else. A change done twice gives what it
//! gives once: one that ended half-way is simply sent again.

use crate::api::{Batch, Column, Mode, Parts, PayloadChange, Selection, Write};
use crate::collection::{Collection, Kills};
use crate::inner::StoreInner;
use crate::query::read;
use crate::state::request::{Piece, What};
use crate::write::conditional;
use crate::write::payload_write::{self, Changed};
use crate::write::rewrite::{self, Resolved, VectorChange};
use crate::write::staged::Staged;
use ramekin_base::{Kind, PointId, Result, cancel};
use ramekin_fields::Filter;
use ramekin_memory::Reservation;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Points that a filter selects at a time, and the most of a piece.
const PIECE_POINTS: usize = 1024;
/// Bytes of a piece after which it is not added to.
pub(crate) const PIECE_BYTES: usize = 512 << 10;
/// Points that are read and changed at a time.
pub(crate) const REWRITE_POINTS: usize = 64;

/// A piece that finds no memory for the moment looks for it again after so long, and so often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const RETRIES: u32 = 300;

/// Where the pieces of a change go.
pub(crate) trait Sink {
    /// Sees a piece through, or puts it beside others that are seen through together; `memory` is what its data holds.
    fn log(&mut self, piece: Piece, memory: Vec<Reservation>) -> Result<()>;

    /// What changes before it did that is not applied yet.
    fn staged(&self) -> &Staged;

    /// Whether a change that finds no memory for the moment may wait for it.
    fn may_wait(&self) -> bool;
}

/// Makes a change's pieces, one after the other.
pub(crate) struct Changer<'a> {
    pub(crate) shared: &'a StoreInner,
    pub(crate) collection: &'a Arc<Collection>,
    /// Who waits for it; as long as nothing of it is logged he may give it up.
    pub(crate) asker: Option<cancel::Token>,
    /// Something of it is.
    pub(crate) logged: bool,
    pub(crate) sink: &'a mut dyn Sink,
}

impl Changer<'_> {
    /// Does a change, durably. Returns the first of its ids that no point has. One that ends half-way is not refused.
    pub(crate) fn change(&mut self, write: &Write) -> Result<Option<PointId>> {
        self.pieces(write).map_err(|error| match self.logged {
            true => error.after("a part of the change was done, send it again for the rest"),
            false => error,
        })
    }

    fn pieces(&mut self, write: &Write) -> Result<Option<PointId>> {
        match write {
            Write::Delete(points) => self.each_page(points, |changer, ids| changer.delete(ids).map(|()| None)),
            Write::Payload { points, change } => {
                self.each_page(points, |changer, ids| changer.change_payloads(ids, change))
            }
            Write::DeleteVectors { points, names } => {
                let change = VectorChange::Delete(names);
                self.each_page(points, |changer, ids| changer.rewrite(ids, &change))
            }
            Write::UpdateVectors(batch) => self.rewrite(&batch.ids, &VectorChange::Replace(batch)),
            Write::Conditional { batch, mode, filter } => self.write_conditionally(batch, *mode, filter).map(|()| None),
            Write::Upsert(batch) => {
                let memory = self.shared.env.account.try_reserve(batch.bytes() as u64)?;
                self.log(What::Upserts(vec![batch.clone()]), vec![memory]).map(|()| None)
            }
        }
    }

    /// Sees a piece through; `memory` is what its data holds until it is applied.
    fn log(&mut self, what: What, memory: Vec<Reservation>) -> Result<()> {
        let locate = |ids: &[PointId], kills| self.collection.locate(&self.shared.pages, ids, kills);
        let located = match &what {
            What::Delete(ids) => vec![locate(ids, Kills::All)?],
            What::Upserts(batches) => {
                batches.iter().map(|batch| locate(&batch.ids, Kills::All)).collect::<Result<_>>()?
            }
            What::Payloads(points) => {
                let ids: Vec<PointId> = points.iter().map(|(id, _)| *id).collect();
                vec![locate(&ids, Kills::None)?]
            }
        };
        self.sink.log(Piece { what, located, asker: self.asker.clone() }, memory)?;
        self.logged = true;
        Ok(())
    }

    /// Calls `change` with the points of a selection, a page at a time where a filter selects them. A point that is
    /// there when its page's turn comes and passes the filter is changed.
    fn each_page(
        &mut self,
        points: &Selection,
        mut change: impl FnMut(&mut Self, &[PointId]) -> Result<Option<PointId>>,
    ) -> Result<Option<PointId>> {
        let filter = match points {
            Selection::Ids(ids) => return change(self, ids),
            Selection::Filter(filter) => filter,
        };
        let mut from = None;
        loop {
            let parts = Parts::default();
            let look = || read::scroll(&self.shared.env, self.collection, from, PIECE_POINTS, filter, &parts);
            let asker = self.asker.clone().unwrap_or_default();
            let page = cancel::scope(&asker, || self.shared.read(self.collection, look))?.value;
            let ids: Vec<PointId> = page.records.iter().map(|record| record.id).collect();
            if !ids.is_empty() {
                change(self, &ids)?;
            }
            match page.next {
                Some(_) => from = page.next,
                None => return Ok(None),
            }
        }
    }

    fn delete(&mut self, ids: &[PointId]) -> Result<()> {
        ids.chunks(PIECE_POINTS).try_for_each(|ids| self.log(What::Delete(ids.to_vec()), Vec::new()))
    }

    /// Changes the payloads of the points that exist. The pieces of one change need not see each other, even if an id is
    /// named again.
    fn change_payloads(&mut self, ids: &[PointId], change: &PayloadChange) -> Result<Option<PointId>> {
        let (mut from, mut most, mut missing) = (0, REWRITE_POINTS, None);
        let (mut points, mut memory, mut bytes) = (Vec::new(), Vec::new(), 0);
        // Where the piece begins that is being made, and how often it was begun again.
        let (mut begin, mut again) = (0, 0);
        while from < ids.len() {
            let some = &ids[from..(from + most).min(ids.len())];
            match payload_write::changed(self.shared, self.collection, self.sink.staged(), some, change) {
                // Of big payloads fewer at a time may fit.
                Err(error) if error.kind().is_memory() && some.len() > 1 => most = some.len() / 2,
                // A piece is not cut short for what is missing for the moment. Nothing is held while others give it back.
                Err(error) if error.kind() == Kind::Busy && self.may_wait(again) => {
                    (points, memory, bytes) = (Vec::new(), Vec::new(), 0);
                    (from, again) = (begin, again + 1);
                    self.shared.flushed.wait_past(self.shared.flushed.count(), LOOK_AGAIN);
                }
                Err(error) if error.kind() == Kind::Busy && !self.logged => return Err(error),
                // What was made so far makes room.
                Err(error) if error.kind().is_memory() && !points.is_empty() => bytes = PIECE_BYTES,
                changed => {
                    let Changed { points: new, missing: absent, memory: held } = changed?;
                    missing = missing.or(absent);
                    bytes += new.iter().map(|(_, text)| text.len()).sum::<usize>();
                    points.extend(new);
                    memory.extend(held);
                    from += some.len();
                }
            }
            if bytes >= PIECE_BYTES || points.len() + most > PIECE_POINTS || from == ids.len() && !points.is_empty() {
                self.log(What::Payloads(std::mem::take(&mut points)), std::mem::take(&mut memory))?;
                (most, bytes, begin, again) = (REWRITE_POINTS, 0, from, 0);
            }
        }
        Ok(missing)
    }

    /// Whether a piece that finds no memory for the moment waits for it once more.
    fn may_wait(&self, waited: u32) -> bool {
        let is_given_up = self.asker.as_ref().is_some_and(cancel::Token::is_cancelled);
        let is_alone = self.shared.single_threaded.load(Ordering::SeqCst) || self.shared.is_closing();
        self.sink.may_wait() && !is_given_up && !is_alone && waited < RETRIES
    }

    /// Reads points, changes their vectors, and logs them whole.
    fn rewrite(&mut self, ids: &[PointId], change: &VectorChange<'_>) -> Result<Option<PointId>> {
        let (mut gathered, mut missing) = (Gathered::default(), None);
        self.rewrite_into(&mut gathered, ids, change, &mut missing)?;
        self.log_gathered(&mut gathered)?;
        Ok(missing)
    }

    fn rewrite_into(
        &mut self,
        gathered: &mut Gathered,
        ids: &[PointId],
        change: &VectorChange<'_>,
        missing: &mut Option<PointId>,
    ) -> Result<()> {
        let make = |changer: &Self, range| {
            rewrite::resolve(changer.shared, changer.collection, changer.sink.staged(), (ids, range), change)
        };
        self.by_steps(gathered, ids, make, |changer, gathered, Resolved { batch, memory, missing: absent }| {
            *missing = missing.or(absent);
            changer.gather(gathered, batch, memory)
        })
    }

    fn write_conditionally(&mut self, batch: &Batch, mode: Mode, filter: &Filter) -> Result<()> {
        let mut gathered = Gathered::default();
        let make = |changer: &Self, range| {
            let (env, staged) = (&changer.shared.env, changer.sink.staged());
            conditional::written(env, changer.collection, staged, (batch, range), (mode, filter))
        };
        self.by_steps(&mut gathered, &batch.ids, make, |changer, gathered, (batch, memory)| {
            if mode != Mode::Vectors {
                return changer.gather(gathered, batch, memory);
            }
            changer.rewrite_into(gathered, &batch.ids, &VectorChange::Replace(&batch), &mut None)
        })?;
        self.log_gathered(&mut gathered)
    }

    /// Makes new points of some at a time, and hands them on. Where memory is short: of fewer at a time, after what was
    /// gathered so far has made room, and once others have let go of theirs.
    fn by_steps<T>(
        &mut self,
        gathered: &mut Gathered,
        ids: &[PointId],
        make: impl Fn(&Self, Range<usize>) -> Result<T>,
        mut hand_on: impl FnMut(&mut Self, &mut Gathered, T) -> Result<()>,
    ) -> Result<()> {
        let (mut from, mut most, mut again) = (0, REWRITE_POINTS, 0);
        while from < ids.len() {
            let range = from..(from + most).min(ids.len());
            self.see(gathered, &ids[range.clone()])?;
            match make(self, range.clone()) {
                Err(error) if error.kind().is_memory() && range.len() > 1 => most = range.len() / 2,
                Err(error) if error.kind().is_memory() && !gathered.batches.is_empty() => {
                    self.log_gathered(gathered)?
                }
                Err(error) if error.kind() == Kind::Busy && self.may_wait(again) => {
                    again += 1;
                    self.shared.flushed.wait_past(self.shared.flushed.count(), LOOK_AGAIN);
                }
                made => {
                    hand_on(self, gathered, made?)?;
                    (from, most, again) = (range.end, (most * 2).min(REWRITE_POINTS), 0);
                }
            }
        }
        Ok(())
    }

    /// Before points are read that are to be changed: one that is changed again is made of what the piece before left there.
    fn see(&mut self, gathered: &mut Gathered, ids: &[PointId]) -> Result<()> {
        let is_named = ids.iter().any(|id| gathered.named.contains(id));
        if is_named { self.log_gathered(gathered) } else { Ok(()) }
    }

    /// Adds changed points to a piece. One batch may be as big as all new points together may be.
    fn gather(&mut self, gathered: &mut Gathered, batch: Batch, memory: Reservation) -> Result<()> {
        let is_full = gathered.bytes > 0 && gathered.bytes + batch.bytes() > PIECE_BYTES;
        if is_full || gathered.named.len() + batch.ids.len() > PIECE_POINTS {
            self.log_gathered(gathered)?;
        }
        if !batch.ids.is_empty() {
            gathered.bytes += batch.bytes();
            gathered.named.extend(batch.ids.iter().copied());
            gathered.batches.push(batch);
            gathered.memory.push(memory);
        }
        Ok(())
    }

    fn log_gathered(&mut self, gathered: &mut Gathered) -> Result<()> {
        let Gathered { batches, memory, .. } = std::mem::take(gathered);
        if batches.is_empty() { Ok(()) } else { self.log(What::Upserts(batches), memory) }
    }
}

/// Changed points that will be a piece.
#[derive(Default)]
struct Gathered {
    batches: Vec<Batch>,
    /// What the batches hold.
    memory: Vec<Reservation>,
    named: HashSet<PointId>,
    bytes: usize,
}

/// Bytes of a point in a batch beside its vectors and its payload's text.
pub(crate) const POINT_BYTES: usize = size_of::<PointId>() + size_of::<Box<str>>();

impl Batch {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes_of(0..self.ids.len())
    }

    /// Bytes of some of its points.
    pub(crate) fn bytes_of(&self, range: Range<usize>) -> usize {
        let points = range.len();
        let has = |column: &&Column| column.present.iter().filter(|at| range.contains(&(**at as usize))).count();
        let vectors: usize = self.columns.iter().map(|column| has(&column) * (column.dim * 4 + 4)).sum();
        let payloads: usize = self.payloads.iter().skip(range.start).take(points).map(|text| text.len()).sum();
        points * POINT_BYTES + vectors + payloads
    }
}
