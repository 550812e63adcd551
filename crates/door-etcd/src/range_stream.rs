//! A range as a stream of chunks, at one revision: the server holds one chunk, however long the range is.
//!
//! ```text
//!   10 keys ─► 20 ─► ... while a chunk is under half of the longest request, fewer where it is over twice that ─► the last one
//!                                                                                            says revision, count and more
//! ```

use crate::auth::{Access, Caller};
use crate::convert;
use crate::door::{Door, book_encoded};
use crate::errors::status;
use crate::wire::etcdserverpb as pb;
use prost::Message;
use ramekin_memory::Reservation;
use ramekin_versions::{Held, Order, Range, RangeReply, SortBy};
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Response, Status};

/// Keys of the first chunk, and of any at most.
const FIRST: i64 = 10;
const MOST: i64 = 10_000;

/// A chunk, and what pays for it until the next one is asked for.
type Chunk = (pb::RangeStreamResponse, Option<Reservation>);
type Chunks = Pin<Box<dyn Stream<Item = Result<pb::RangeStreamResponse, Status>> + Send>>;

pub(crate) fn begin(
    door: &Door,
    asked: pb::RangeRequest,
    caller: Result<Caller, Status>,
) -> Result<Response<Chunks>, Status> {
    let mut asked = convert::range(asked).map_err(|error| status(&error))?;
    asked.check().map_err(|error| status(&error))?;
    // Without an order each chunk is sorted by itself, by what is named: etcd does so.
    if asked.order != Order::None && (asked.order, asked.sort_by) != (Order::Ascend, SortBy::Key) {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    if [asked.min_mod, asked.max_mod, asked.min_create, asked.max_create].iter().any(|bound| *bound != 0) {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    caller?.may(Access::Read, &asked.keys)?;
    door.check_sound()?;
    // It is read in the order of keys, so that no chunk leaves any out.
    let shown = Shown { sort_by: asked.sort_by, keys_only: asked.keys_only };
    asked.keys_only &= shown.sort_by != SortBy::Value;
    asked.sort_by = SortBy::Key;
    let (send, sent) = mpsc::channel(1);
    let task = Task { shown, door: door.clone(), send, per_chunk: FIRST, begun_at: 0 };
    tokio::spawn(task.run(asked));
    let mut held = None;
    // What pays for a chunk is let go of when the next one is taken.
    let chunks = ReceiverStream::new(sent).map(move |chunk: Result<Chunk, Status>| {
        chunk.map(|(chunk, memory)| {
            held = memory;
            _ = &held;
            chunk
        })
    });
    Ok(Response::new(Box::pin(chunks)))
}

/// What becomes of a chunk that was read.
struct Shown {
    sort_by: SortBy,
    keys_only: bool,
}

impl Shown {
    fn of(&self, mut value: RangeReply) -> RangeReply {
        match self.sort_by {
            SortBy::Key => {}
            SortBy::Version => value.kvs.sort_by_key(|kv| kv.version),
            SortBy::Create => value.kvs.sort_by_key(|kv| kv.create_revision),
            SortBy::Mod => value.kvs.sort_by_key(|kv| kv.mod_revision),
            SortBy::Value => value.kvs.sort_by(|one, other| one.value.cmp(&other.value)),
        }
        if self.keys_only {
            value.kvs.iter_mut().for_each(|kv| kv.value = Vec::new());
        }
        value
    }
}

struct Task {
    shown: Shown,
    door: Door,
    send: mpsc::Sender<Result<Chunk, Status>>,
    per_chunk: i64,
    /// The newest revision when the stream began.
    begun_at: i64,
}

impl Task {
    async fn run(mut self, asked: Range) {
        if let Err(status) = self.chunks(asked).await {
            _ = self.send.send(Err(status)).await;
        }
    }

    async fn chunks(&mut self, mut asked: Range) -> Result<(), Status> {
        if asked.count_only {
            let Held { value, memory } = self.read(asked).await?;
            return self.last(value, memory, None).await;
        }
        let mut left = if asked.limit > 0 { asked.limit } else { i64::MAX };
        let whole = Range { count_only: true, limit: 0, ..asked.clone() };
        loop {
            asked.limit = self.per_chunk.min(left);
            asked.uncounted = true;
            let Held { value, memory } = self.read(asked.clone()).await?;
            if self.begun_at == 0 {
                self.begun_at = value.revision;
                // From here on it is read at one revision.
                asked.revision = if asked.revision > 0 { asked.revision } else { value.revision };
            }
            left -= value.kvs.len() as i64;
            if !value.more || left == 0 {
                let counted = self.read(Range { revision: asked.revision, ..whole }).await?;
                return self.last(value, memory, Some(counted.value.count)).await;
            }
            if let Some(last) = value.kvs.last().map(|kv| &kv.key) {
                asked.keys.key = [&last[..], &[0]].concat();
            }
            let response = convert::range_response(self.shown.of(RangeReply { more: false, ..value }), None);
            let (bytes, usual) = (response.encoded_len(), self.door.inner.host.max_request_bytes);
            if bytes < usual / 2 {
                self.per_chunk = (2 * self.per_chunk).min(MOST);
            } else if bytes > 2 * usual {
                self.per_chunk = (self.per_chunk / 2).max(1);
            }
            if self.send(response, memory).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn read(&self, asked: Range) -> Result<Held<RangeReply>, Status> {
        self.door.read(asked.limit == FIRST, move |versions| versions.range(&asked)).await
    }

    async fn last(&self, value: RangeReply, memory: Option<Reservation>, count: Option<i64>) -> Result<(), Status> {
        let count = count.unwrap_or(value.count);
        let begun_at = if self.begun_at == 0 { value.revision } else { self.begun_at };
        let response =
            convert::range_response(self.shown.of(RangeReply { count, ..value }), self.door.header(begun_at));
        // Whoever asked may be gone.
        _ = self.send(response, memory).await;
        Ok(())
    }

    async fn send(&self, response: pb::RangeResponse, mut memory: Option<Reservation>) -> Result<(), ()> {
        let chunk = pb::RangeStreamResponse { range_response: Some(response) };
        let booked = book_encoded(&chunk, &mut memory).map_err(|error| status(&error));
        let is_booked = booked.is_ok();
        self.send.send(booked.map(|()| (chunk, memory))).await.map_err(|_| ())?;
        if is_booked { Ok(()) } else { Err(()) }
    }
}
