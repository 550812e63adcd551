//! What is asked of the writer, what of it is handed on to changers, and who is told what became of it.
//!
//! ```text
//!   Request::Write ─┬─ plain ───────────────► logged by the writer ─► Completion
//!                   └─ Change ─► a changer ─► Piece, Piece, ... ─► Request::Piece ─► Reply
//! ```

use crate::api::op::{CollectionId, MetaOp};
use crate::api::{Batch, Selection, Wait, Write, Written};
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
    /// A piece of a change that is under way.
    Piece { collection: Arc<Collection>, piece: Piece, answer: SyncSender<Reply> },
}

impl Request {
    /// The collection whose other writes it must not overtake.
    pub(crate) fn collection_number(&self) -> Option<CollectionId> {
        match self {
            Self::Write { collection, .. } => Some(collection.number),
            Self::Meta { .. } | Self::Rotate(_) | Self::Look | Self::Piece { .. } => None,
        }
    }

    /// The collection that it changes; `None`: the names of all.
    pub(crate) fn collection(&self) -> Option<&Arc<Collection>> {
        match self {
            Self::Write { collection, .. } | Self::Rotate(collection) | Self::Piece { collection, .. } => {
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

/// What became of a piece.
pub(crate) enum Reply {
    /// It is applied, or it failed.
    Done(Result<()>),
    /// What is new must be written out first; nothing of the piece is logged.
    Later(Piece),
}

/// Who is told what became of it.
pub(crate) enum Tell {
    Client { answer: Completion, seqno: u64 },
    Changer(SyncSender<Reply>),
}

impl Tell {
    pub(crate) fn tell(self, applied: Result<()>) {
        match self {
            Self::Client { answer, seqno } => answer.give(seqno, applied),
            Self::Changer(answer) => _ = answer.send(Reply::Done(applied)),
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
    pub(crate) seqno: u64,
    pub(crate) answer: Completion,
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

/// Sees a piece through until it is applied.
pub(crate) type Log<'a> = &'a mut dyn FnMut(Piece) -> Result<()>;
