//! Bodies of requests, booked as they come; and what pays for an answer, held until its bytes have left.
//!
//! ```text
//!   frames ─► BookedBody: each is booked, or the request ends ─► the message ─► its command takes the bookings along
//!   answer ─► HeldBody: drops what pays for it with itself
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

/// The body of an answer, with what pays for it, and the call that it belongs to.
pub(crate) struct HeldBody<B> {
    inner: B,
    _held: Option<Arc<Reservation>>,
    /// Of the call itself, as long as it is open.
    _open: Option<Reservation>,
    call: Option<Call>,
}

impl<B> HeldBody<B> {
    pub(crate) fn new(inner: B, held: Option<Arc<Reservation>>) -> Self {
        Self { inner, _held: held, _open: None, call: None }
    }

    pub(crate) fn paid_by(self, open: Reservation) -> Self {
        Self { _open: Some(open), ..self }
    }

    pub(crate) fn of(self, call: Call) -> Self {
        Self { call: Some(call), ..self }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let (Poll::Ready(Some(Ok(frame))), Some(call)) = (&polled, &mut self.call) {
            match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => call.sends(data.len()),
                (_, Some(trailers)) => call.hears(trailers),
                _ => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
