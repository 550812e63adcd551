//! Events on their way to the watchers of a stream. They are held once, however many watchers want them; a response is made when it can
//! be sent, and paid for until the connection has taken it.
//!
//! ```text
//!   events read ─► due: watcher, which of them ─► one response, booked ─► Paid ─► the connection asks for the next: given back
//! ```

use crate::convert;
use crate::door::Door;
use crate::wire::etcdserverpb as pb;
use prost::Message;
use ramekin_base::Result;
use ramekin_memory::Reservation;
use ramekin_versions::Event;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// A response of so many bytes is cut, where the watcher asked for that.
const FRAGMENT_BYTES: usize = 2 << 20;
/// What a response takes for each byte of its events: the message, its bytes, and those again in the connection.
const TIMES: u64 = 3;
const EVENT_BYTES: u64 = 320;
/// What a watcher that is due takes, and each event that it wants.
pub(crate) const DUE_BYTES: u64 = 96;
pub(crate) const WANTED_BYTES: u64 = 8;

/// What a watcher is to be sent.
pub(crate) struct Due {
    pub(crate) id: i64,
    /// It gets each revision by itself.
    pub(crate) is_synced: bool,
    pub(crate) prev_kv: bool,
    pub(crate) fragment: bool,
    /// Places of the events that it wants, in their order.
    pub(crate) wanted: VecDeque<u32>,
}

/// Events that were read, and who is to be sent which.
#[derive(Default)]
pub(crate) struct Delivery {
    events: Vec<Event>,
    /// The newest revision when they were read.
    revision: i64,
    due: VecDeque<Due>,
    /// Of a response that was cut.
    pieces: VecDeque<pb::WatchResponse>,
    /// Pays for the events, and for what is due.
    _memory: Vec<Reservation>,
}

/// A response, and what pays for it.
pub(crate) type Sent = (std::result::Result<pb::WatchResponse, Status>, Option<Reservation>);

impl Delivery {
    pub(crate) fn new(events: Vec<Event>, revision: i64, due: VecDeque<Due>, memory: Vec<Reservation>) -> Self {
        Self { events, revision, due, pieces: VecDeque::new(), _memory: memory }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.pieces.is_empty()
    }

    /// The next response. Fails where there is no memory for it; then it is still the next.
    pub(crate) fn next(&mut self, door: &Door) -> Result<Option<Sent>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Ok(Some((Ok(piece), None)));
        }
        let Some(due) = self.due.front_mut() else { return Ok(None) };
        let revision_of = |place: &u32| self.events.get(*place as usize).map_or(0, |event| event.kv.mod_revision);
        let first = due.wanted.front().map_or(0, revision_of);
        let is_in = |place: &&u32| !due.is_synced || revision_of(place) == first;
        let count = due.wanted.iter().take_while(is_in).count();
        let bytes = |place: &u32| self.events.get(*place as usize).map_or(0, |event| bytes_of(event, due.prev_kv));
        let bytes: u64 = due.wanted.iter().take(count).map(bytes).sum();
        let memory = door.inner.bodies.try_reserve(TIMES * bytes)?;
        let made = due.wanted.drain(..count).filter_map(|place| {
            let event = self.events.get(place as usize)?;
            let prev = event.prev.clone().filter(|_| due.prev_kv);
            Some(convert::event(Event { prev, is_delete: event.is_delete, kv: event.kv.clone() }))
        });
        let response = pb::WatchResponse {
            header: door.header(if due.is_synced { first } else { self.revision }),
            watch_id: due.id,
            events: made.collect(),
            ..pb::WatchResponse::default()
        };
        let fragment = due.fragment;
        if due.wanted.is_empty() {
            self.due.pop_front();
        }
        let mut pieces = if fragment { fragments(response) } else { vec![response] }.into_iter();
        let first = pieces.next().map(|piece| (Ok(piece), Some(memory)));
        self.pieces.extend(pieces);
        Ok(first)
    }
}

fn bytes_of(event: &Event, with_prev: bool) -> u64 {
    let prev = event.prev.as_ref().filter(|_| with_prev).map_or(0, |kv| kv.key.len() + kv.value.len());
    EVENT_BYTES + (event.kv.key.len() + event.kv.value.len() + prev) as u64
}

/// A response in pieces, none of which is much longer than it should be.
fn fragments(mut response: pb::WatchResponse) -> Vec<pb::WatchResponse> {
    if response.events.len() < 2 || response.encoded_len() < FRAGMENT_BYTES {
        return vec![response];
    }
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    let mut piece = Vec::new();
    let events = std::mem::take(&mut response.events);
    let head = pb::WatchResponse { fragment: true, ..response };
    for event in events {
        let len = event.encoded_len();
        if !piece.is_empty() && bytes + len >= FRAGMENT_BYTES {
            pieces.push(pb::WatchResponse { events: std::mem::take(&mut piece), ..head.clone() });
            bytes = 0;
        }
        bytes += len;
        piece.push(event);
    }
    pieces.push(pb::WatchResponse { events: piece, fragment: false, ..head });
    pieces
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
