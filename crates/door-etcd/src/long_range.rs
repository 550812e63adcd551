//! The answer of a range of any length, in bounded memory: it is one message, whose length comes first.
//!
//! ```text
//!   a view ─► walked once: how many keys, how many bytes ─► the head of the message
//!        └──► walked again, a piece at a time, as the client takes them ─► keys ─► more, count ─► trailers
//! ```
//!
//! No thread waits for the client: each piece is a job of its own, which goes on behind the last key of the one before.

use crate::door::Door;
use crate::schema::{around_value, bytes as head_of_bytes, number};
use crate::wire::etcdserverpb as pb;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use prost::Message;
use ramekin_base::{Error, Lane, Result};
use ramekin_memory::Reservation;
use ramekin_versions::{KeyRange, Order, Range, ReadView, SortBy, Stored, Versions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Response, Status};

/// A range of no more keys is answered from memory.
const FEW: i64 = 1000;
/// Bytes of a piece, beside its last key and value.
const PIECE: u64 = 256 << 10;
/// A message of gRPC has at most so many bytes.
const MOST: u64 = u32::MAX as u64;
/// A piece for which there was no memory is tried again after so long.
const AGAIN: Duration = Duration::from_millis(20);
/// Who takes nothing for so long is no longer waited for: what is read for it keeps memory and files from others.
const PATIENCE: Duration = Duration::from_secs(60);

/// The body that takes the place of the one that was made of an answer.
#[derive(Clone)]
pub(crate) struct InPlace(Arc<Mutex<Option<Body>>>);

impl InPlace {
    pub(crate) fn take(&self) -> Option<Body> {
        self.0.lock().take()
    }
}

/// Whether an answer may be so long that it is made piece by piece.
pub(crate) fn is_long(asked: &Range) -> bool {
    let is_plain = asked.sort_by == SortBy::Key && asked.order != Order::Descend;
    let bounds = [asked.min_mod, asked.max_mod, asked.min_create, asked.max_create];
    is_plain
        && bounds.iter().all(|bound| *bound == 0)
        && !asked.keys.is_one()
        && !asked.count_only
        && !(1..=FEW).contains(&asked.limit)
}

/// What is answered.
struct Long {
    view: ReadView,
    asked: Range,
    /// The revision that is read, and the newest.
    at: (i64, i64),
    /// Keys, and bytes of their messages with their heads.
    keys: i64,
    bytes: u64,
    more: bool,
    count: i64,
}

impl Long {
    fn measure(versions: &Versions, asked: Range) -> Result<Self> {
        let view = versions.view();
        let at = versions.meant(&view, asked.revision)?;
        let limit = if asked.limit > 0 { asked.limit } else { i64::MAX };
        let (mut keys, mut bytes, mut more) = (0, 0, false);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        versions.show(&view, &asked.keys, at, &mut |stored| {
            more = keys == limit;
            if !more {
                keys += 1;
                let len = message(stored, asked.keys_only, (&mut before, &mut after));
                bytes += 1 + prost::length_delimiter_len(len as usize) as u64 + len;
            }
            Ok(!more)
        })?;
        let count = if more { versions.count(&view, &asked.keys, at)? } else { keys };
        Ok(Self { view, asked, at, keys, bytes, more, count })
    }

    /// What stands behind the keys.
    fn end(&self) -> Vec<u8> {
        pb::RangeResponse { header: None, kvs: Vec::new(), more: self.more, count: self.count }.encode_to_vec()
    }

    /// Keys from one on. Whoever asks goes on behind the last one.
    fn piece(&self, versions: &Versions, from: &[u8], left: i64, mut memory: Reservation) -> Result<Piece> {
        let keys = KeyRange { key: from.to_vec(), end: self.asked.keys.end.clone() };
        let (mut bytes, mut last, mut count) = (Vec::with_capacity(PIECE as usize), Vec::new(), 0);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        versions.show(&self.view, &keys, self.at, &mut |stored| {
            if count == left {
                return Ok(false);
            }
            let len = message(stored, self.asked.keys_only, (&mut before, &mut after));
            let needed = bytes.len() as u64 + len + 8;
            if needed > memory.bytes() {
                memory.grow(needed - memory.bytes())?;
            }
            head_of_bytes(&mut bytes, 2, len);
            bytes.extend_from_slice(&before);
            if !self.asked.keys_only {
                stored.value(&mut |piece| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                })?;
            }
            bytes.extend_from_slice(&after);
            count += 1;
            last.clear();
            last.extend_from_slice(stored.key);
            Ok((bytes.len() as u64) < PIECE)
        })?;
        last.push(0);
        Ok(Piece { bytes, count, next: last, memory })
    }
}

struct Piece {
    bytes: Vec<u8>,
    count: i64,
    /// The key from which the next one goes on.
    next: Vec<u8>,
    memory: Reservation,
}

/// The message of a key, but for its value; how long it is with that.
fn message(stored: &Stored<'_>, keys_only: bool, (before, after): (&mut Vec<u8>, &mut Vec<u8>)) -> u64 {
    before.clear();
    after.clear();
    if keys_only {
        // As etcd has it: neither a value nor a lease.
        head_of_bytes(before, 1, stored.key.len() as u64);
        before.extend_from_slice(stored.key);
        number(before, 2, stored.create_revision);
        number(before, 3, stored.revision);
        number(before, 4, stored.version);
        return before.len() as u64;
    }
    around_value(stored, before, after);
    before.len() as u64 + stored.value_len + after.len() as u64
}

/// Answers with the head at once, and with the keys as they are taken.
pub(crate) async fn answer(door: &Door, asked: Range) -> Result<Response<pb::RangeResponse>, Status> {
    let long = door.block(Lane::Reads, move |versions| Long::measure(versions, asked)).await?;
    let header = pb::RangeResponse { header: door.header(long.at.1), ..pb::RangeResponse::default() }.encode_to_vec();
    let end = long.end();
    let len = header.len() as u64 + long.bytes + end.len() as u64;
    if len > MOST {
        return Err(Status::resource_exhausted(format!(
            "grpc: trying to send message larger than max ({len} vs. {MOST})"
        )));
    }
    let mut head = Vec::with_capacity(5 + header.len());
    head.push(0);
    head.extend_from_slice(&(len as u32).to_be_bytes());
    head.extend_from_slice(&header);
    let (send, sent) = mpsc::channel(1);
    tokio::spawn(feed(door.clone(), Arc::new(long), (head, end), send));
    let mut held = None;
    let frames = ReceiverStream::new(sent).map(move |(frame, memory): Sent| {
        // What pays for a piece is let go of when the next one is taken.
        drop(std::mem::replace(&mut held, memory));
        Ok::<_, std::convert::Infallible>(frame)
    });
    let mut response = Response::new(pb::RangeResponse::default());
    let body = Body::new(StreamBody::new(frames));
    response.extensions_mut().insert(InPlace(Arc::new(Mutex::new(Some(body)))));
    Ok(response)
}

type Sent = (Frame<Bytes>, Option<Reservation>);

async fn feed(door: Door, long: Arc<Long>, (head, end): (Vec<u8>, Vec<u8>), send: mpsc::Sender<Sent>) {
    let trailers = match pieces(&door, &long, (head, end), &send).await {
        Ok(true) => ended(&Status::new(Code::Ok, "")),
        // The client has left.
        Ok(false) => return,
        Err(status) => ended(&status),
    };
    _ = send.send((Frame::trailers(trailers), None)).await;
}

fn ended(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", HeaderValue::from(Code::Internal as i32));
    }
    trailers
}

/// False: nobody takes them any more.
async fn pieces(
    door: &Door,
    long: &Arc<Long>,
    (head, end): (Vec<u8>, Vec<u8>),
    send: &mpsc::Sender<Sent>,
) -> Result<bool, Status> {
    if send.send_timeout((Frame::data(head.into()), None), PATIENCE).await.is_err() {
        return Ok(false);
    }
    let (mut from, mut left) = (long.asked.keys.key.clone(), long.keys);
    while left > 0 {
        let memory = loop {
            match door.inner.bodies.try_reserve(PIECE + 64) {
                Ok(memory) => break memory,
                // Others hold it, and will not for ever.
                Err(_) if send.is_closed() => return Ok(false),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        };
        let (own, at) = (long.clone(), from);
        let piece = door.block(Lane::Reads, move |versions| own.piece(versions, &at, left, memory)).await?;
        if piece.count == 0 {
            return Err(crate::errors::status(&Error::bug("a range ended before its count")));
        }
        left -= piece.count;
        from = piece.next;
        if send.send_timeout((Frame::data(piece.bytes.into()), Some(piece.memory)), PATIENCE).await.is_err() {
            return Ok(false);
        }
    }
    Ok(send.send_timeout((Frame::data(end.into()), None), PATIENCE).await.is_ok())
}
