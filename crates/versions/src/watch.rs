//! What has changed since a revision: read from `changes`, and from where the versions stand.
//!
//! ```text
//!   revisions from .. to ─► changes, in order ─► the version of each: a head, or one that has ended ─► events
//! ```

use crate::api::{KeyValue, errors};
use crate::keys::{self, CHANGES, HEADS, HISTORY};
use crate::range::{self, Book, KV_COST, key_value};
use crate::reads::{InView, Reads};
use crate::record::{Change, Dead, Head};
use ramekin_base::{Error, Result};
use ramekin_engine::ReadView;

/// What an event takes besides its bytes: its place among others, which are twice as many places as there are events when these become
/// more, and what the allocator adds.
pub const EVENT_BYTES: u64 = 2 * size_of::<Event>() as u64 + 32;

/// What happened to a key in a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub is_delete: bool,
    /// Of a delete the key alone, and the revision.
    pub kv: KeyValue,
    /// The version before, where it was asked for, unless there was none.
    pub prev: Option<KeyValue>,
}

/// Events of whole revisions.
#[derive(Debug, Default)]
pub struct Events {
    /// In their order; all events of a revision, or none.
    pub events: Vec<Event>,
    /// The first revision whose events are not here.
    pub next: i64,
    /// The newest revision there is.
    pub revision: i64,
}

/// Reads the events from a revision on whose keys `is_wanted` names: up to so many revisions, and until `most` bytes are full.
pub(crate) fn read(
    view: &ReadView,
    from: i64,
    (revisions, most): (i64, u64),
    with_prev: bool,
    is_wanted: &mut dyn FnMut(&[u8]) -> bool,
    book: Book<'_>,
) -> Result<Events> {
    let reads = InView(view);
    let revision = reads.revision()?;
    let compacted = reads.compacted()?;
    if from < compacted {
        return Err(Error::invalid(errors::COMPACTED));
    }
    let to = revision.min(from.saturating_add(revisions - 1)) + 1;
    let mut events = Events { next: to.max(from), revision, ..Events::default() };
    if to <= from {
        return Ok(events);
    }
    let mut walk = reads.walk(CHANGES, &keys::change(to, 0))?;
    walk.seek(&keys::change(from, 0))?;
    let (mut bytes, mut last) = (0, 0);
    while let Some((at, change)) = walk.record() {
        let (written, _) = keys::of_change(at)?;
        if written != last && bytes > most {
            events.next = written;
            break;
        }
        last = written;
        let change = Change::decode(change)?;
        if is_wanted(change.key) {
            let mut counted = |more| {
                bytes += more;
                book(more)
            };
            // What was there before the compacted revision may be gone in part.
            let with_prev = with_prev && written > compacted;
            events.events.extend(event(&reads, (written, compacted), &change, with_prev, &mut counted)?);
        }
        walk.next()?;
    }
    Ok(events)
}

/// None: a put whose key was deleted in the same revision, up to which all is compacted.
fn event(
    reads: &InView<'_>,
    (written, compacted): (i64, i64),
    change: &Change<'_>,
    with_prev: bool,
    book: Book<'_>,
) -> Result<Option<Event>> {
    let prev = match with_prev && !change.is_new {
        true => version_at(reads, change.key, written - 1, book)?,
        false => None,
    };
    // It is booked before it is there; of a put, its version is booked where it is found.
    book(if change.is_delete { EVENT_BYTES + change.key.len() as u64 } else { EVENT_BYTES - KV_COST })?;
    let kv = match change.is_delete {
        true => KeyValue { key: change.key.to_vec(), mod_revision: written, ..KeyValue::default() },
        false => match version_of(reads, change.key, (written, compacted), book)? {
            Some(kv) => kv,
            None if written <= compacted => return Ok(None),
            None => return Err(Error::corrupt("a change has no version; restore the folder from a copy")),
        },
    };
    Ok(Some(Event { is_delete: change.is_delete, kv, prev }))
}

/// The version of a key that a revision wrote, also if the same revision ended it.
fn version_of(
    reads: &InView<'_>,
    key: &[u8],
    (written, compacted): (i64, i64),
    book: Book<'_>,
) -> Result<Option<KeyValue>> {
    if let Some(head) = reads.get(HEADS, &keys::head(key))? {
        let head = Head::decode(&head)?;
        if head.revision == written {
            return key_value(reads, (key, written), &head.is, true, book).map(Some);
        }
    }
    let Some(dead) = reads.get(HISTORY, &keys::version(key, written))? else { return Ok(None) };
    match Dead::decode(&dead)? {
        Dead { end, .. } if end <= compacted => Ok(None),
        Dead { is, .. } => key_value(reads, (key, written), &is, true, book).map(Some),
    }
}

/// The version of a key that was the newest at a revision, if it is still there.
fn version_at(reads: &InView<'_>, key: &[u8], revision: i64, book: Book<'_>) -> Result<Option<KeyValue>> {
    let mut found = None;
    range::one(reads, key, revision, &mut |key, written, version| {
        found = Some(key_value(reads, (key, written), version, true, book)?);
        Ok(true)
    })?;
    Ok(found)
}
