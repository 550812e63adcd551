//! Bodies of requests, booked as they come; and what pays for an answer, held until its bytes have left.
//!
//! ```text
//!   frames ─► BookedBody: each is booked, or the request ends ─► the message ─► its command takes the bookings along
//!   answer ─► HeldBody: in pieces, each of which has what pays for the answer with it until the socket has taken it
//! ```

use crate::calls::Call;
use crate::door::Door;
use crate::errors;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use ramekin_memory::Reservation;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tonic::Status;

/// What a message takes while it is decoded: its bytes as they came, and as they are.
const TIMES: u64 = 2;

/// What the body of one request has booked.
#[derive(Clone, Default)]
pub(crate) struct Bookings(Arc<Mutex<Vec<Reservation>>>);

impl Bookings {
    /// Books more for a request.
    pub(crate) fn add(&self, door: &Door, bytes: u64) -> Result<(), Status> {
        let mut held = self.0.lock();
        let booked = match held.last_mut() {
            Some(last) => last.grow(bytes),
            None => door.inner.bodies.try_reserve(bytes).map(|booked| held.push(booked)),
        };
        booked.map_err(|_| Status::resource_exhausted(errors::TOO_MANY_REQUESTS))
    }
}

/// What a request has booked, for whoever takes its message.
pub(crate) fn memory_of<T>(request: &tonic::Request<T>) -> Vec<Reservation> {
    let bookings = request.extensions().get::<Bookings>();
    bookings.map_or_else(Vec::new, |bookings| std::mem::take(&mut *bookings.0.lock()))
}

/// The body of a request. `is_stream`: of many small messages; what was booked for one serves the next.
pub(crate) struct BookedBody<B> {
    inner: B,
    door: Door,
    bookings: Bookings,
    is_stream: bool,
    /// Bytes of a message at most.
    most: usize,
    /// The first bytes of what came, which say how long the message is.
    head: Vec<u8>,
}

/// A message of a stream names keys, and is no longer.
pub(crate) const STREAM_MESSAGE_MAX: usize = 128 << 10;

/// A byte of flags, and the length of the message.
const HEAD: usize = 5;

impl<B> BookedBody<B> {
    pub(crate) fn new(inner: B, door: Door, (is_stream, most): (bool, usize)) -> (Self, Bookings) {
        let bookings = Bookings::default();
        (Self { inner, door, bookings: bookings.clone(), is_stream, most, head: Vec::with_capacity(HEAD) }, bookings)
    }

    /// Fails, with grpc-go's words, for a message that is too long, before it has come.
    fn check_length(&mut self, data: &[u8]) -> Result<(), Status> {
        let more = data.len().min(HEAD - self.head.len());
        self.head.extend_from_slice(&data[..more]);
        let [_, a, b, c, d] = self.head[..] else { return Ok(()) };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        match len > self.most {
            true => Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({len} vs. {})",
                self.most
            ))),
            false => Ok(()),
        }
    }

    fn book(&self, bytes: u64) -> Result<(), Status> {
        let held = self.bookings.0.lock().last().map_or(0, Reservation::bytes);
        let bytes =
            if self.is_stream { bytes.min((TIMES * STREAM_MESSAGE_MAX as u64).saturating_sub(held)) } else { bytes };
        self.bookings.add(&self.door, bytes)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for BookedBody<B>
where
    B::Error: std::fmt::Display,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        polled.map(|frame| {
            frame.map(|frame| {
                let frame = frame.map_err(|error| Status::cancelled(format!("the request broke off: {error}")))?;
                if let Some(data) = frame.data_ref() {
                    self.door.inner.calls.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                    if !self.is_stream && self.head.len() < HEAD {
                        self.check_length(data)?;
                    }
                    self.book(TIMES * data.len() as u64)?;
                }
                Ok(frame)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Bytes of an answer that a connection is given at a time: it takes all that it is given as soon as there is room for one of them.
const PIECE: usize = 16 << 10;

/// Bytes on their way, and what pays for them.
struct Paid {
    bytes: Bytes,
    _held: Arc<Reservation>,
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of an answer, with what pays for it, and the call that it belongs to.
pub(crate) struct HeldBody<B> {
    inner: B,
    held: Option<Arc<Reservation>>,
    /// What came of the inner body, and is not given yet.
    rest: Bytes,
    /// Of the call itself, as long as it is open.
    open: Vec<Reservation>,
    call: Option<Call>,
    /// Bytes that are given at a time.
    most: usize,
    /// What is given next is the rest of what was cut.
    is_cut: bool,
}

impl<B> HeldBody<B> {
    pub(crate) fn new(inner: B, held: Option<Arc<Reservation>>) -> Self {
        Self { inner, held, rest: Bytes::new(), open: Vec::new(), call: None, most: PIECE, is_cut: false }
    }

    /// Given as it comes: a connection of HTTP/1 queues small pieces and asks for more, but never behind a large one.
    pub(crate) fn whole(self) -> Self {
        Self { most: usize::MAX, ..self }
    }

    pub(crate) fn paid_by(mut self, open: Reservation) -> Self {
        self.open.push(open);
        self
    }

    pub(crate) fn of(self, call: Call) -> Self {
        Self { call: Some(call), ..self }
    }

    /// The next piece of what is to be given.
    fn piece(&mut self, data: Bytes) -> Frame<Bytes> {
        self.rest = data;
        let piece = self.rest.split_to(self.rest.len().min(self.most));
        // What is paid for until the next message is asked for must not keep all of this one behind its last piece.
        let is_copied = self.held.is_none() && !self.rest.is_empty() || self.is_cut;
        self.is_cut = self.held.is_none() && !self.rest.is_empty();
        Frame::data(if is_copied { Bytes::copy_from_slice(&piece) } else { piece })
    }

    /// All of it has what pays for it with it.
    fn paid(&self, bytes: Bytes) -> Bytes {
        match &self.held {
            Some(held) if !bytes.is_empty() => Bytes::from_owner(Paid { bytes, _held: held.clone() }),
            _ => bytes,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece(rest))));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let (Poll::Ready(Some(Ok(frame))), Some(call)) = (&polled, &mut self.call) {
            match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => call.sends(data.len()),
                (_, Some(trailers)) => call.hears(trailers),
                _ => {}
            }
        }
        polled.map(|frame| {
            let frame = frame?;
            Some(frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    let data = self.paid(data);
                    self.piece(data)
                }
                Err(frame) => frame,
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};
    use ramekin_memory::Budget;

    #[test]
    fn what_pays_for_an_answer_stays_until_its_last_byte_has_left() {
        let account = Budget::new(1 << 20).root().child("bodies", "");
        let whole: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
        let held = Arc::new(account.try_reserve(1000).unwrap());
        let mut body = HeldBody::new(Full::new(Bytes::from(whole.clone())), Some(held));
        let mut pieces = Vec::new();
        crate::tests::run(async {
            while let Some(frame) = body.frame().await {
                let left = body.size_hint().exact();
                let piece = frame.unwrap().into_data().unwrap();
                assert!(piece.len() <= PIECE);
                pieces.push(piece);
                assert_eq!(left, Some((whole.len() - pieces.iter().map(Bytes::len).sum::<usize>()) as u64));
            }
        });
        assert!(body.is_end_stream() && pieces.concat() == whole);
        drop(body);
        while pieces.len() > 1 {
            pieces.pop();
            assert_eq!(account.used(), 1000, "a piece is still on its way");
        }
        pieces.clear();
        assert_eq!(account.used(), 0);
    }
}
