//! Events on their way to the watchers of a stream. They are held once, however many watchers want them; a response is made when it can
//! be sent, and paid for until the connection has taken it.
//!
//! ```text
//!   events read ─► due: watcher, which of them ─► one response, booked ─► Paid ─► the connection asks for the next: given back
//! ```

use crate::convert;
use crate::door::Door;
use crate::wire::etcdserverpb as pb;
use ramekin_memory::Reservation;
use ramekin_versions::Event;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::Status;

/// What a response may take: it has more only where one revision takes more, and its watcher did not ask for fragments.
const PART_BYTES: u64 = 2 << 20;
/// What a response takes for each byte of its events: the message, its bytes, and those again in the connection.
const TIMES: u64 = 3;
const EVENT_BYTES: u64 = 320;
/// What a watcher that is due takes, and each event that it wants.
pub(crate) const DUE_BYTES: u64 = 128;
pub(crate) const WANTED_BYTES: u64 = 8;
/// For so long a watcher waits for memory.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Watchers for whose responses memory is asked at one go.
const TRIES: usize = 16;

/// What a watcher is to be sent.
pub(crate) struct Due {
    pub(crate) id: i64,
    /// It gets each revision by itself.
    pub(crate) is_synced: bool,
    pub(crate) prev_kv: bool,
    pub(crate) fragment: bool,
    /// Places of the events that it wants, in their order.
    pub(crate) wanted: VecDeque<u32>,
    /// The last response had not all events of its revision: nothing else may come between.
    is_cut: bool,
    /// Since when there is no memory for its next response.
    short: Option<(Instant, Part)>,
}

impl Due {
    pub(crate) fn new(id: i64, (is_synced, prev_kv, fragment): (bool, bool, bool), wanted: VecDeque<u32>) -> Self {
        Self { id, is_synced, prev_kv, fragment, wanted, is_cut: false, short: None }
    }
}

/// Events of one response: how many, what they take, and whether more of the same revision follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    count: usize,
    bytes: u64,
    is_cut: bool,
}

/// Events that were read, and what pays for them.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    pub(crate) _memory: Option<Reservation>,
}

/// Batches one after the other, and the place of the first event of each among all.
#[derive(Default)]
pub(crate) struct Batches(Vec<(u32, Arc<Batch>)>);

impl Batches {
    pub(crate) fn new(all: impl IntoIterator<Item = Arc<Batch>>) -> Self {
        let mut start = 0;
        let placed = all.into_iter().map(|batch| {
            let next = start + batch.events.len() as u32;
            (std::mem::replace(&mut start, next), batch)
        });
        Self(placed.collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Events in their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Event)> {
        (0..).zip(self.0.iter().flat_map(|(_, batch)| &batch.events))
    }

    fn get(&self, place: u32) -> Option<&Event> {
        let at = self.0.partition_point(|(start, _)| *start <= place).checked_sub(1)?;
        let (start, batch) = self.0.get(at)?;
        batch.events.get((place - start) as usize)
    }

    fn revision_of(&self, place: u32) -> i64 {
        self.get(place).map_or(0, |event| event.kv.mod_revision)
    }
}

/// Events that were read, and who is to be sent which.
#[derive(Default)]
pub(crate) struct Delivery {
    events: Batches,
    /// The newest revision when they were read.
    revision: i64,
    due: VecDeque<Due>,
    /// Pays for what is due.
    _memory: Option<Reservation>,
}

/// A response, and what pays for it.
pub(crate) type Sent = (std::result::Result<pb::WatchResponse, Status>, Option<Reservation>);

/// What comes next of a delivery.
pub(crate) enum Next {
    Sent(Sent),
    /// There is no memory for any response now.
    Wait,
    /// This watcher will not get its events of a revision: there was no memory for too long, or can never be.
    Refused(i64, i64),
}

impl Delivery {
    pub(crate) fn new(events: Batches, revision: i64, due: VecDeque<Due>, memory: Reservation) -> Self {
        Self { events, revision, due, _memory: Some(memory) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// What comes next; of a delivery that is not empty.
    pub(crate) fn next(&mut self, door: &Door) -> Next {
        let events = &self.events;
        for _ in 0..self.due.len().min(TRIES) {
            let Some(due) = self.due.front_mut() else { break };
            let part = due.short.map_or_else(|| part(events, due), |(_, part)| part);
            let most = door.versions().budget();
            if let Ok(memory) = door.inner.bodies.try_reserve(part.bytes) {
                return Next::Sent((Ok(self.made(door, part)), Some(memory)));
            }
            let (since, _) = *due.short.get_or_insert((Instant::now(), part));
            if part.bytes > most || since.elapsed() >= PATIENCE {
                let (id, revision) = (due.id, due.wanted.front().map_or(0, |place| events.revision_of(*place)));
                self.due.pop_front();
                return Next::Refused(id, revision);
            }
            if due.is_cut {
                break;
            }
            // Others may want less.
            self.due.rotate_left(1);
        }
        Next::Wait
    }

    /// As if whoever waits for memory had waited for too long.
    #[cfg(test)]
    pub(crate) fn age(&mut self) {
        self.due.iter_mut().filter_map(|due| due.short.as_mut()).for_each(|(since, _)| *since -= PATIENCE);
    }

    /// The next response of the first that is due.
    fn made(&mut self, door: &Door, part: Part) -> pb::WatchResponse {
        let Some(due) = self.due.front_mut() else { return pb::WatchResponse::default() };
        let events = &self.events;
        let first = due.wanted.front().map_or(0, |place| events.revision_of(*place));
        let made = due.wanted.drain(..part.count).filter_map(|place| {
            let event = events.get(place)?;
            let prev = event.prev.as_ref().filter(|_| due.prev_kv).cloned();
            Some(convert::event(Event { prev, is_delete: event.is_delete, kv: event.kv.clone() }))
        });
        let response = pb::WatchResponse {
            header: door.header(if due.is_synced { first } else { self.revision }),
            watch_id: due.id,
            events: made.collect(),
            fragment: part.is_cut,
            ..pb::WatchResponse::default()
        };
        (due.is_cut, due.short) = (part.is_cut, None);
        if due.wanted.is_empty() {
            self.due.pop_front();
        }
        response
    }
}

/// What the next response to a watcher has: whole revisions, as many as are not too much (one where it gets each by itself); of one
/// that is too much a part, where fragments were asked for.
fn part(events: &Batches, due: &Due) -> Part {
    let mut whole: Option<Part> = None;
    let mut so_far = Part { count: 0, bytes: 0, is_cut: false };
    let mut last = 0;
    for event in due.wanted.iter().filter_map(|place| events.get(*place)) {
        let bytes = TIMES * bytes_of(event, due.prev_kv);
        let revision = event.kv.mod_revision;
        if so_far.count > 0 && revision != last {
            if due.is_synced {
                return so_far;
            }
            whole = Some(so_far);
        }
        if so_far.count > 0 && so_far.bytes + bytes > PART_BYTES {
            match whole {
                Some(whole) => return whole,
                None if due.fragment => return Part { is_cut: true, ..so_far },
                None => {}
            }
        }
        last = revision;
        so_far = Part { count: so_far.count + 1, bytes: so_far.bytes + bytes, is_cut: false };
    }
    so_far
}

fn bytes_of(event: &Event, with_prev: bool) -> u64 {
    let prev = event.prev.as_ref().filter(|_| with_prev).map_or(0, |kv| kv.key.len() + kv.value.len());
    EVENT_BYTES + (event.kv.key.len() + event.kv.value.len() + prev) as u64
}

/// Responses as the connection takes them. It asks for the next when it has sent the one before: then that is paid for no more.
pub(crate) struct Paid {
    sent: mpsc::Receiver<Sent>,
    _last: Option<Reservation>,
}

impl Paid {
    pub(crate) fn new(sent: mpsc::Receiver<Sent>) -> Self {
        Self { sent, _last: None }
    }
}

impl Stream for Paid {
    type Item = std::result::Result<pb::WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self._last = None;
        self.sent.poll_recv(context).map(|sent| {
            let (response, memory) = sent?;
            self._last = memory;
            Some(response)
        })
    }
}
