//! The one writer of a store: it alone appends to the log and changes what is newest.
//!
//! ```text
//!   queue (bounded) ─► take what waits ─► log.append each ─► ONE log.commit ─► apply each ─► answer each
//! ```
//!
//! Group commit is the queue: while one fsync runs, others wait in it and share the next. A change
//! that depends on what is stored (a vector of a point, a payload key) first lets everything before
//! it be applied, then becomes a whole upsert or whole new payloads. Order is total, so replay is the
//! same loop.

use crate::api::{Batch, Mode, Parts, Selection, Wait, Write, Written};
use crate::collection::Collection;
use crate::conditional;
use crate::growing::{CLEAN, Growing, PayloadAt};
use crate::op::{self, MetaOp};
use crate::read;
use crate::rest;
use crate::rewrite::VectorChange;
use crate::shared::Shared;
use crate::store::Done;
use ramekin_base::{Error, PointId, Result};
use ramekin_fields::Filter;
use ramekin_log::{Log, Position};
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of one upsert record: a payload that is read back from the log costs a read of its record.
pub(crate) const RECORD_BYTES: usize = 32 << 10;
/// Bytes of the log that wait for one fsync at most.
const GROUP_BYTES: u64 = 2 << 20;
/// Points that a filter selects at a time.
const PAGE_POINTS: usize = 1024;
/// Points that a change reads and rewrites at a time.
pub(crate) const REWRITE_POINTS: usize = 64;

/// Makes an operation on names from what the store is when its turn comes; `None`: nothing to do.
pub(crate) type MakeMeta = Box<dyn FnOnce(&Shared) -> Result<Option<MetaOp>> + Send>;

/// What waits in the queue.
pub(crate) enum Request {
    Write {
        collection: Arc<Collection>,
        write: Write,
        wait: Wait,
        memory: Vec<Reservation>,
        done: Done,
    },
    Meta {
        op: MakeMeta,
        done: Box<dyn FnOnce(Result<bool>) + Send>,
    },
    /// The background asks for the active part to be frozen.
    Freeze(Arc<Collection>),
}

/// A logged operation that waits for the fsync.
pub(crate) enum Pending {
    Upsert { collection: Arc<Collection>, batch: Batch, parts: Vec<Part>, sequence: u64, answer: Option<Answer> },
    Delete { collection: Arc<Collection>, ids: Vec<PointId>, position: Position, sequence: u64, answer: Option<Answer> },
    Payloads { collection: Arc<Collection>, ids: Vec<PointId>, payloads: Vec<PayloadAt>, memory: Reservation },
}

/// A record of an upsert: its points and where their payloads stand in it.
pub(crate) struct Part {
    position: Position,
    points: std::ops::Range<usize>,
    payloads_at: Vec<u32>,
}

pub(crate) struct Answer {
    done: Done,
    wait: Wait,
    memory: Vec<Reservation>,
}

pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Log,
    pub(crate) pending: Vec<Pending>,
    pub(crate) record: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, log: Log) -> Self {
        Self { shared, log, pending: Vec::new(), record: Vec::new() }
    }

    /// Takes what waits in the queue and sees it through. False: the store is closing and the queue is empty.
    pub(crate) fn turn(&mut self, block: bool) -> bool {
        let Some(first) = self.shared.queue.take(block) else {
            return !self.shared.is_closing();
        };
        let mut next = Some(first);
        while let Some(request) = next {
            self.handle(request);
            let full = self.log.uncommitted_bytes() > GROUP_BYTES;
            next = if full { None } else { self.shared.queue.take(false) };
        }
        self.flush();
        self.keep_bounds();
        true
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.shared.queue.is_empty()
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Write { collection, write, wait, memory, done } => {
                let answer = Answer { done, wait, memory };
                if collection.is_dropped() {
                    return (answer.done)(Err(Error::not_found("the collection was deleted")));
                }
                if let Err(error) = rest::wake(&self.shared) {
                    return (answer.done)(Err(error));
                }
                collection.written_ms.store(self.shared.now_ms(), Ordering::Relaxed);
                let sequence = self.shared.operation.fetch_add(1, Ordering::SeqCst) + 1;
                match write {
                    Write::Upsert(batch) => self.upsert(&collection, batch, sequence, Some(answer)),
                    Write::Delete(Selection::Ids(ids)) => match self.log_deletes(&collection, &ids, sequence) {
                        Ok(position) => {
                            let answer = Some(answer);
                            self.pending.push(Pending::Delete { collection, ids, position, sequence, answer });
                        }
                        Err(error) => (answer.done)(Err(error)),
                    },
                    write => {
                        let changed = self.change(&collection, write, sequence);
                        answer.give_unless(sequence, changed);
                    }
                }
            }
            Request::Meta { op, done } => {
                self.flush();
                done(self.meta(op));
            }
            Request::Freeze(collection) => {
                self.flush();
                if let Err(error) = collection.freeze() {
                    tracing::warn!("could not freeze a part: {error}");
                }
                self.shared.wake_background();
            }
        }
    }

    /// Logs an upsert in records of a bounded size. Memory for the points is promised first, so that
    /// nothing that was made durable can fail to fit.
    fn upsert(&mut self, collection: &Arc<Collection>, batch: Batch, sequence: u64, answer: Option<Answer>) {
        match self.log_upsert(collection, &batch, sequence) {
            Ok(parts) => {
                self.pending.push(Pending::Upsert { collection: collection.clone(), batch, parts, sequence, answer })
            }
            Err(error) => {
                if let Some(answer) = answer {
                    (answer.done)(Err(error));
                }
            }
        }
    }

    fn log_upsert(&mut self, collection: &Arc<Collection>, batch: &Batch, sequence: u64) -> Result<Vec<Part>> {
        let bytes = Growing::bytes_for(batch);
        self.make_room(collection, bytes)?;
        let logged = self.append_upsert(collection, batch, sequence);
        if logged.is_err() {
            collection.view.load().active.forget(bytes);
        }
        logged
    }

    fn append_upsert(&mut self, collection: &Arc<Collection>, batch: &Batch, sequence: u64) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let point_bytes = |point: usize| {
            let vectors: usize = batch.columns.iter().map(|column| column.dim * 4 + 4).sum();
            17 + vectors + batch.payloads.get(point).map_or(0, |payload| payload.len() + 4)
        };
        let mut first = 0;
        while first < batch.ids.len() {
            let (mut last, mut bytes) = (first, 0);
            while last < batch.ids.len() && (last == first || bytes + point_bytes(last) <= RECORD_BYTES) {
                bytes += point_bytes(last);
                last += 1;
            }
            self.record.clear();
            let payloads_at = op::encode_upsert(&mut self.record, sequence, collection.number, batch, first..last);
            let position = self.log.append(&self.record)?;
            parts.push(Part { position, points: first..last, payloads_at });
            first = last;
        }
        Ok(parts)
    }

    /// Logs deletes; those of many ids in several records, each well below the log's limit. Returns where the first is.
    fn log_deletes(&mut self, collection: &Collection, ids: &[PointId], sequence: u64) -> Result<Position> {
        let mut first_position = CLEAN;
        for ids in ids.chunks(RECORD_BYTES / 17) {
            self.record.clear();
            op::encode_delete(&mut self.record, sequence, collection.number, ids);
            first_position = first_position.min(self.log.append(&self.record)?);
        }
        Ok(first_position)
    }

    /// Does a write that depends on what is stored, durably. Returns the first of its ids that no point has.
    fn change(&mut self, collection: &Arc<Collection>, write: Write, sequence: u64) -> Result<Option<PointId>> {
        match write {
            Write::Delete(points) => self.each_page(collection, &points, |writer, ids| {
                let (ids, collection) = (ids.to_vec(), collection.clone());
                let position = writer.log_deletes(&collection, &ids, sequence)?;
                writer.pending.push(Pending::Delete { collection, ids, position, sequence, answer: None });
                writer.flush_checked().map(|()| None)
            }),
            Write::Payload { points, change } => self.each_page(collection, &points, |writer, ids| {
                writer.change_payloads(collection, ids, &change, sequence)
            }),
            Write::DeleteVectors { points, names } => {
                let change = VectorChange::Delete(names);
                self.each_page(collection, &points, |writer, ids| writer.rewrite(collection, ids, &change, sequence))
            }
            Write::UpdateVectors(mut batch) => {
                let ids = std::mem::take(&mut batch.ids);
                self.rewrite(collection, &ids, &VectorChange::Replace(batch), sequence)
            }
            Write::Conditional { batch, mode, filter } => {
                self.write_conditionally(collection, &batch, mode, &filter, sequence).map(|()| None)
            }
            Write::Upsert(_) => Err(Error::bug("an upsert depends on nothing")),
        }
    }

    /// Before points are read that are to be changed: what was written before must be there. A log that has closed, or one
    /// that memory is behind of, may hold more than can be read: then not even "there is no such point" would be true.
    pub(crate) fn catch_up(&mut self, collection: &Collection) -> Result<()> {
        self.flush();
        self.log.check_open()?;
        collection.check_current()
    }

    fn write_conditionally(
        &mut self,
        collection: &Arc<Collection>,
        batch: &Batch,
        mode: Mode,
        filter: &Filter,
        sequence: u64,
    ) -> Result<()> {
        for from in (0..batch.ids.len()).step_by(REWRITE_POINTS) {
            self.catch_up(collection)?;
            let range = from..(from + REWRITE_POINTS).min(batch.ids.len());
            let mut batch = conditional::written(&self.shared, collection, batch, range, mode, filter)?;
            if mode == Mode::Vectors {
                let ids = std::mem::take(&mut batch.ids);
                self.rewrite(collection, &ids, &VectorChange::Replace(batch), sequence)?;
            } else if !batch.ids.is_empty() {
                self.log_whole(collection, batch, sequence)?;
            }
        }
        self.log.check_open()
    }

    /// Logs whole points that take the place of what was read, and applies them.
    fn log_whole(&mut self, collection: &Arc<Collection>, batch: Batch, sequence: u64) -> Result<()> {
        let parts = self.log_upsert(collection, &batch, sequence)?;
        let collection = collection.clone();
        self.pending.push(Pending::Upsert { collection, batch, parts, sequence, answer: None });
        // Later points of the same change may name the same id again.
        self.flush_checked()
    }

    /// Calls `change` with the points of a selection, a page at a time where a filter selects them. A point that is
    /// there when its page's turn comes and passes the filter is changed.
    fn each_page(
        &mut self,
        collection: &Arc<Collection>,
        points: &Selection,
        mut change: impl FnMut(&mut Self, &[PointId]) -> Result<Option<PointId>>,
    ) -> Result<Option<PointId>> {
        let filter = match points {
            Selection::Ids(ids) => return change(self, ids),
            Selection::Filter(filter) => filter,
        };
        let mut from = None;
        loop {
            self.catch_up(collection)?;
            let page = read::scroll(&self.shared, collection, from, PAGE_POINTS, filter, &Parts::default())?.value;
            let ids: Vec<PointId> = page.records.iter().map(|record| record.id).collect();
            change(self, &ids)?;
            match page.next {
                Some(_) => from = page.next,
                None => return Ok(None),
            }
            self.keep_bounds();
        }
    }

    /// Reads points, changes their vectors, and logs them whole.
    fn rewrite(
        &mut self,
        collection: &Arc<Collection>,
        ids: &[PointId],
        change: &VectorChange,
        sequence: u64,
    ) -> Result<Option<PointId>> {
        self.catch_up(collection)?;
        let (mut from, mut missing) = (0, None);
        while from < ids.len() {
            let range = from..(from + REWRITE_POINTS).min(ids.len());
            from = range.end;
            let (batch, absent) = crate::rewrite::resolve(&self.shared, collection, ids, change, range)?;
            missing = missing.or(absent);
            if !batch.ids.is_empty() {
                self.log_whole(collection, batch, sequence)?;
            }
        }
        self.log.check_open().map(|()| missing)
    }

    fn meta(&mut self, op: MakeMeta) -> Result<bool> {
        let Some(op) = op(&self.shared)? else { return Ok(false) };
        self.shared.catalog.read().check(&op)?;
        let sequence = self.shared.operation.fetch_add(1, Ordering::SeqCst) + 1;
        self.record.clear();
        op::encode_meta(&mut self.record, sequence, &op)?;
        let position = self.log.append(&self.record)?;
        let end = self.log.commit()?;
        self.shared.apply_meta(&op, position, end)?;
        self.shared.applied.store(end, Ordering::SeqCst);
        Ok(true)
    }

    pub(crate) fn flush(&mut self) {
        _ = self.flush_checked();
    }

    /// One fsync for all that is pending, then each is applied and answered.
    pub(crate) fn flush_checked(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let committed = self.log.commit();
        let mut outcome = committed.as_ref().map(|_| ()).map_err(Clone::clone);
        for pending in std::mem::take(&mut self.pending) {
            if let Err(error) = self.finish(pending, committed.clone()) {
                outcome = Err(error);
            }
        }
        if let Ok(end) = committed {
            self.shared.applied.store(end, Ordering::SeqCst);
        }
        outcome
    }

    fn finish(&self, pending: Pending, committed: Result<Position>) -> Result<()> {
        let durable = committed.map(|_| ());
        match pending {
            Pending::Upsert { collection, batch, parts, sequence, answer } => {
                let applied = match &durable {
                    Ok(()) => self.shared.apply_parts(&collection, &batch, &parts_of(&parts), sequence),
                    Err(error) => {
                        collection.view.load().active.forget(Growing::bytes_for(&batch));
                        Err(error.clone())
                    }
                };
                note(&collection, &durable, &applied);
                drop(batch);
                if let Some(answer) = answer {
                    answer.give(sequence, applied.clone());
                }
                applied
            }
            Pending::Delete { collection, ids, position, sequence, answer } => {
                let applied =
                    durable.clone().and_then(|()| collection.apply_delete(&self.shared.pages, &ids, position));
                note(&collection, &durable, &applied);
                drop(ids);
                if let Some(answer) = answer {
                    answer.give(sequence, applied.clone());
                }
                applied
            }
            Pending::Payloads { collection, ids, payloads, mut memory } => {
                let applied = durable
                    .clone()
                    .and_then(|()| collection.apply_payloads(&self.shared.pages, &ids, &payloads, &mut memory));
                note(&collection, &durable, &applied);
                applied
            }
        }
    }

    /// Promises `bytes` in the collection's active part; where there is no room, freezes it and lets
    /// the background seal. New writes wait here, which is the second step of yielding.
    fn make_room(&mut self, collection: &Arc<Collection>, bytes: u64) -> Result<()> {
        let seal_bytes = self.shared.limits().seal_bytes;
        if bytes > self.shared.limits().growing_bytes {
            let most = ramekin_base::Size(self.shared.limits().growing_bytes);
            return Err(Error::no_memory(format!(
                "{} needed for the points of one request, and new points may use {most} under this budget; send fewer at a time",
                ramekin_base::Size(bytes)
            )));
        }
        loop {
            let view = collection.view.load_full();
            let used = view.active.read().bytes();
            if used > 0 && used + bytes > seal_bytes {
                self.flush();
                collection.freeze()?;
                self.shared.wake_background();
                self.shared.pause_for(crate::background::merge_debt(&self.shared, collection));
                continue;
            }
            let before = self.shared.sealed.count();
            match self.shared.promise_points(&view.active, bytes) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind().is_memory() => {
                    self.flush();
                    if !self.shared.freeze_largest()? && !self.shared.has_frozen() {
                        return Err(error);
                    }
                    self.shared.seal_or_wait(before)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Seals and folds what pins the log for too long, and trims what no one needs.
    pub(crate) fn keep_bounds(&mut self) {
        if let Err(error) = self.log.trim(self.shared.trim_to.load(Ordering::SeqCst)) {
            tracing::warn!("could not trim the log: {error}");
        }
        let limits = self.shared.limits();
        let needed = self.log.end().saturating_sub(limits.log_bytes);
        if self.shared.log_from() < needed
            && let Err(error) = self.shared.unpin(needed)
        {
            tracing::warn!("could not freeze the oldest part: {error}");
        }
        // Half full, so that they are written out before a change has to wait for it.
        if self.shared.accounts.patches.used() > limits.patch_bytes / 2 {
            _ = self.shared.has_waiting() || self.shared.fold_largest();
        }
        // Writes wait rather than let the log grow without a bound.
        while self.log.end().saturating_sub(self.shared.log_from()) > 2 * limits.log_bytes && self.shared.has_waiting()
        {
            let before = self.shared.sealed.count();
            if self.shared.seal_or_wait(before).is_err() {
                break;
            }
        }
    }
}

fn parts_of(parts: &[Part]) -> Vec<(Position, std::ops::Range<usize>, &[u32])> {
    parts.iter().map(|part| (part.position, part.points.clone(), &part.payloads_at[..])).collect()
}

/// A durable write that cannot be applied leaves the collection behind its log: it is red until a restart.
fn note(collection: &Collection, durable: &Result<()>, applied: &Result<()>) {
    if let (Ok(()), Err(error)) = (durable, applied) {
        *collection.error.lock() = Some(error.to_string());
        collection.behind.store(true, Ordering::SeqCst);
    }
}

impl Answer {
    /// The answer to a change of points that may be `missing`: who waits hears of the first that is. The others
    /// were changed.
    fn give_unless(self, operation: u64, changed: Result<Option<PointId>>) {
        let missing = |id: PointId| Err(Error::not_found(format!("Not found: No point with id {id} found")));
        let outcome = match changed {
            Ok(Some(id)) if self.wait == Wait::Visible => missing(id),
            changed => changed.map(|_| ()),
        };
        self.give(operation, outcome);
    }

    pub(crate) fn give(self, operation: u64, applied: Result<()>) {
        let Self { done, wait, memory } = self;
        let visible = wait == Wait::Visible;
        // Whoever hears the answer may count on the memory of his request.
        drop(memory);
        done(applied.map(|()| Written { operation, visible }));
    }
}

/// Where the payload of each point of a batch stands, given the records the batch was logged in.
pub(crate) fn payload_places<'a>(
    batch: &'a Batch,
    first: usize,
    position: Position,
    payloads_at: &'a [u32],
) -> impl Fn(usize) -> PayloadAt + 'a {
    move |point| match (payloads_at.get(point), batch.payloads.get(first + point)) {
        (Some(at), Some(text)) if !text.is_empty() => PayloadAt { record: position, at: *at, len: text.len() as u32 },
        _ => PayloadAt::default(),
    }
}
