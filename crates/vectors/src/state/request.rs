//! What is asked of the writer, what of it is handed on to changers, and who is told what became of it.
//!
//! ```text
//!   Request::Write ─┬─ plain ───────────────► logged by the writer ─► Completion
//!                   └─ Change ─► a changer ─► Piece, Piece, ... ─► Request::Pieces ─► Reply
//! ```

use crate::api::op::{CollectionId, MetaOp};
use crate::api::{Batch, PayloadChange, Selection, Wait, Write, Written};
use crate::collection::catalog::Catalog;
use crate::collection::{Collection, Located};
use ramekin_base::{Error, PointId, Result, cancel};
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Called once with what became of a write.
pub type Done = Box<dyn FnOnce(Result<Written>) + Send>;

/// Makes an operation on names from what the store is when its turn comes; `None`: nothing to do.
pub(crate) type MakeMeta = Box<dyn FnOnce(&Catalog) -> Result<Option<MetaOp>> + Send>;

/// What waits in the queue.
pub(crate) enum Request {
    Write {
        collection: Arc<Collection>,
        write: Write,
        wait: Wait,
        memory: Vec<Reservation>,
        /// Cancelled when nobody waits for the write any more.
        asker: Option<cancel::Token>,
        done: Done,
    },
    Meta {
        op: MakeMeta,
        /// Bytes that whoever asked holds until it is done: waiting does not free them.
        brought: u64,
        /// Cancelled when nobody waits for it any more.
        asker: Option<cancel::Token>,
        done: Box<dyn FnOnce(Result<bool>) + Send>,
    },
    /// The background asks for the active part to be immutable.
    Rotate(Arc<Collection>),
    /// The background asks for the log to be trimmed, and for what pins it to be written out.
    Look,
    /// Pieces of changes that are under way, each by its place among them.
    Pieces { collection: Arc<Collection>, pieces: Vec<(usize, Piece)>, answer: SyncSender<Reply> },
}

impl Request {
    /// The collection whose other writes it must not overtake.
    pub(crate) fn collection_number(&self) -> Option<CollectionId> {
        match self {
            Self::Write { collection, .. } => Some(collection.number),
            Self::Meta { .. } | Self::Rotate(_) | Self::Look | Self::Pieces { .. } => None,
        }
    }

    /// The collection that it changes; `None`: the names of all.
    pub(crate) fn collection(&self) -> Option<&Arc<Collection>> {
        match self {
            Self::Write { collection, .. } | Self::Rotate(collection) | Self::Pieces { collection, .. } => {
                Some(collection)
            }
            Self::Meta { .. } | Self::Look => None,
        }
    }

    /// Nobody waits for it any more, and nothing of it was done.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self, Self::Write { asker: Some(asker), .. } if asker.is_cancelled())
    }

    /// Whether it depends on what is stored.
    pub(crate) fn is_change(&self) -> bool {
        let is_plain = |write: &Write| matches!(write, Write::Upsert(_) | Write::Delete(Selection::Ids(_)));
        matches!(self, Self::Write { write, .. } if !is_plain(write))
    }
}

/// What became of pieces.
pub(crate) enum Reply {
    /// One is applied, or it failed.
    Done(usize, Result<()>),
    /// What is new must be written out before these, of which nothing is logged.
    Later(Vec<(usize, Piece)>),
    /// So many at the end are not logged, since one before them failed.
    Left(usize),
}

/// Who is told what became of it.
pub(crate) enum Tell {
    Client {
        answer: Completion,
        seqno: u64,
    },
    /// Of the piece at this place.
    Changer(SyncSender<Reply>, usize),
}

impl Tell {
    pub(crate) fn tell(self, applied: Result<()>) {
        match self {
            Self::Client { answer, seqno } => answer.give(seqno, applied),
            Self::Changer(answer, at) => _ = answer.send(Reply::Done(at, applied)),
        }
    }
}

pub(crate) struct Completion {
    pub(crate) done: Done,
    pub(crate) wait: Wait,
    pub(crate) memory: Vec<Reservation>,
    pub(crate) asker: Option<cancel::Token>,
}

impl Completion {
    /// The answer to a change of points that may be `missing`: who waits hears of the first that is. The others
    /// were changed.
    pub(crate) fn give_unless(self, seqno: u64, changed: Result<Option<PointId>>) {
        let missing = |id: PointId| Err(Error::not_found(format!("No point with id {id} found")));
        let outcome = match changed {
            Ok(Some(id)) if self.wait == Wait::Visible => missing(id),
            changed => changed.map(|_| ()),
        };
        self.give(seqno, outcome);
    }

    pub(crate) fn give(self, seqno: u64, applied: Result<()>) {
        let Self { done, wait, memory, .. } = self;
        let visible = wait == Wait::Visible;
        // Whoever hears the answer may count on the memory of his request.
        drop(memory);
        done(applied.map(|()| Written { operation: seqno, visible }));
    }
}

/// A write that waits for a changer.
pub(crate) struct Change {
    pub(crate) collection: Arc<Collection>,
    pub(crate) write: Write,
    pub(crate) answer: Completion,
}

/// What changes that are made together name and bring at most, each of them and all.
const SMALL_POINTS: usize = 64;
const SMALL_BYTES: usize = 64 << 10;
const GROUP_POINTS: usize = 1024;
const GROUP_BYTES: usize = 512 << 10;

/// How many points changes name that are made together, and what they bring for them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    points: usize,
    bytes: usize,
}

impl Weight {
    /// Of a write that may be made together with others; `None`: it names too much, or a filter says what.
    pub(crate) fn of(write: &Write) -> Option<Self> {
        let (points, bytes) = match write {
            Write::Upsert(batch) | Write::Conditional { batch, .. } | Write::UpdateVectors(batch) => {
                (batch.ids.len(), batch.bytes())
            }
            Write::Delete(Selection::Ids(ids)) | Write::DeleteVectors { points: Selection::Ids(ids), .. } => {
                (ids.len(), 0)
            }
            Write::Payload { points: Selection::Ids(ids), change } => (ids.len(), ids.len() * change.bytes()),
            Write::Delete(_) | Write::DeleteVectors { .. } | Write::Payload { .. } => return None,
        };
        (points <= SMALL_POINTS && bytes <= SMALL_BYTES).then_some(Self { points, bytes })
    }

    /// Both, unless that is too much.
    pub(crate) fn with(self, other: Self) -> Option<Self> {
        let both = Self { points: self.points + other.points, bytes: self.bytes + other.bytes };
        (both.points <= GROUP_POINTS && both.bytes <= GROUP_BYTES).then_some(both)
    }
}

impl PayloadChange {
    /// What it brings for each point.
    fn bytes(&self) -> usize {
        match self {
            Self::Merge { keys: text, .. } | Self::Overwrite(text) => text.len(),
            Self::DeleteKeys(_) | Self::Clear => 0,
        }
    }
}

/// What is logged at one go: all of it, or nothing where the log has no room. A crash leaves all or nothing of ids and of payloads.
pub(crate) enum What {
    Delete(Vec<PointId>),
    /// Whole points that take the place of what was read; no id is named twice. A crash leaves each batch or nothing of it.
    Upserts(Vec<Batch>),
    Payloads(Vec<(PointId, Box<str>)>),
}

/// A piece of a change, on its way to the log.
pub(crate) struct Piece {
    pub(crate) what: What,
    /// Where its points stand in segments, so that the writer need not look.
    pub(crate) located: Vec<Located>,
    /// Who may give the change up before the first of its pieces is logged.
    pub(crate) asker: Option<cancel::Token>,
}

impl What {
    /// Bytes of what is written.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Delete(ids) => ids.len() * 17,
            Self::Upserts(batches) => batches.iter().map(Batch::bytes).sum(),
            Self::Payloads(points) => points.iter().map(|(_, text)| 17 + text.len()).sum(),
        }
    }
}

/// Sees pieces through until they are applied: what became of each; `None`: it is not logged, since one before it failed.
pub(crate) type Log<'a> = &'a mut dyn FnMut(Vec<Piece>) -> Vec<Option<Result<()>>>;
